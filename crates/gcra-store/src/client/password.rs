//! The password itself, wherever a configuration says that it comes from.

use std::path::Path;
use std::{env, fs, io};

use crate::config::Password;

impl Password {
    pub(crate) fn read(&self) -> io::Result<Option<String>> {
        let about = |what: String| move |error| io::Error::other(format!("{what}: {error}"));
        match self {
            Self::None => Ok(None),
            Self::File(path) => {
                let text = fs::read_to_string(path)
                    .map_err(about(format!("the password file {}", shown(path))))?;
                let password = text.lines().next().filter(|line| !line.is_empty());
                let empty = || format!("the first line of {} has no password", path.display());
                password.map(str::to_owned).map(Some).ok_or_else(|| io::Error::other(empty()))
            }
            Self::Variable(name) => {
                env::var(name).ok().filter(|password| !password.is_empty()).map(Some).ok_or_else(
                    || io::Error::other(format!("the variable {} has no password", cut(name))),
                )
            }
        }
    }
}

/// A path. If there is no such file, the name may be the password, which was written in the wrong
/// place.
fn shown(path: &Path) -> String {
    match (path.symlink_metadata(), path.file_name()) {
        (Err(_), Some(name)) => {
            path.with_file_name(cut(&name.to_string_lossy())).display().to_string()
        }
        _ => path.display().to_string(),
    }
}

/// The beginning of a string, and its length.
fn cut(text: &str) -> String {
    let length = text.chars().count();
    let begin: String = text.chars().take((length / 4).min(4)).collect();
    format!("{begin}…({length})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Url};

    #[test]
    fn a_password_is_the_first_line_of_a_file_and_in_no_text() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "secret\nnot this\n").unwrap();
        let mut config = Config::new(Url::parse("redis://user@a").unwrap());
        config.password = Password::File(file.path().to_owned());
        assert_eq!(config.password.read().unwrap().as_deref(), Some("secret"));
        assert!(!format!("{config:?}").contains("secret"));
        fs::write(file.path(), "\nsecret\n").unwrap();
        let empty = config.password.read().unwrap_err().to_string();
        assert!(empty.ends_with(" has no password"), "{empty}");
        // The password may be in the place of the file's name.
        let missing = Password::File("/nonexistent/hunter2hunter2".into()).read().unwrap_err();
        let missing = missing.to_string();
        assert!(missing.starts_with("the password file /nonexistent/hun…(14): "), "{missing}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let no_file = Password::File(path.clone()).read().unwrap_err().to_string();
        assert!(no_file.starts_with(&format!("the password file {}: ", path.display())));
        let variable = Password::Variable("GCRA_NO_SUCH_VARIABLE".into()).read().unwrap_err();
        assert_eq!(variable.to_string(), "the variable GCRA…(21) has no password");
    }
}
