//! The grammar of `[store]`, and the state of the files that it names.

use std::io::Read as _;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use gcra_store::{Certificate, Password};
use toml::de::DeValue;

use crate::file::reader::{Entries, Node, Reader};
use crate::file::sources;
use crate::file::sources::Sources;
use crate::store::{StoreSettings, StoreUrl, VARIABLE_RULE, WAITS, is_variable};

/// How many bytes a salt has, so that it cannot be guessed.
const SALTS: RangeInclusive<usize> = 16..=4096;

/// The most replicas of a server that can be asked for.
const MOST_REPLICAS: u64 = 100;

const SETTINGS: &[&str] = &[
    "url",
    "password_file",
    "password_env",
    "sentinel_password_file",
    "sentinel_password_env",
    "ca",
    "certificate",
    "certificate_key",
    "wait",
    "strict",
    "least_replicas",
    "salt_file",
];

/// Reads `[store]`.
pub fn store<'t>(
    reader: &mut Reader<'t>,
    sources: &mut Sources,
    value: &Node<'t>,
) -> Option<StoreSettings> {
    let at = value.span().start;
    let what = "store must be a table; write [store], and below it url = \"redis://HOST:PORT\"";
    let table = reader.table(value, what)?;
    let mut entries = Entries::new("the store".to_owned(), SETTINGS, table);
    let url = entries.take("url");
    if url.is_none() {
        reader.wrong(at, "the store has no address; write url = \"redis://HOST:PORT\"");
    }
    let url = url.and_then(|value| self::url(reader, value));
    let password = password(reader, sources, &mut entries, ["password_file", "password_env"]);
    let of_sentinels = ["sentinel_password_file", "sentinel_password_env"];
    let sentinel = of_sentinels.iter().find_map(|name| entries.get(name));
    if let (Some(value), Some(url)) = (sentinel, &url)
        && !url.has_sentinels()
    {
        let what = "the store has no sentinels that need a password; write a url that begins with \
                    redis+sentinel://, or leave it out";
        reader.wrong(value.span().start, what);
    }
    let sentinel_password = self::password(reader, sources, &mut entries, of_sentinels);
    let pair = ["certificate", "certificate_key"];
    if let [Some(value), None] | [None, Some(value)] = pair.map(|name| entries.get(name)) {
        let what = "certificate and certificate_key belong together; write both";
        reader.wrong(value.span().start, what);
    }
    let mut tls_file = |name: &'static str, content: Content| {
        let value = entries.take(name)?;
        let file = reader.name(value, name, "the name of a file (PEM)")?;
        let path = sources.path(&file);
        // It is said once about the two that belong together.
        if name != pair[1] && url.as_ref().is_some_and(|url| !url.has_tls()) {
            let what = format!(
                "{name} has no effect without TLS; write a url that begins with rediss://, or \
                 leave {name} out"
            );
            reader.wrong(value.span().start, &what);
        } else if let Some(remark) = content.remark(&path) {
            reader.hide_unless_there(&file, &path);
            reader.warn(value.span().start, &remark);
        }
        Some(path)
    };
    let ca = tls_file("ca", Content::Certificates);
    let chain = tls_file(pair[0], Content::Certificates);
    let key = tls_file(pair[1], Content::Key);
    let certificate = chain.zip(key).map(|(chain, key)| Certificate { chain, key });
    let wait = entries.take("wait");
    let wait = wait.and_then(|value| reader.time(value, "wait", WAITS, "20ms"));
    let strict = entries.take("strict").and_then(|value| reader.boolean(value, "strict"));
    let least_replicas = entries
        .take("least_replicas")
        .and_then(|value| reader.number(value, "least_replicas", 0..=MOST_REPLICAS));
    let salt = entries.take("salt_file").and_then(|value| salt(reader, sources, value));
    reader.no_more_but(entries, |name, _| misplaced(name));
    let usual = StoreSettings::new(url?);
    let settings = StoreSettings {
        password,
        sentinel_password,
        certificate,
        authorities: ca,
        wait: wait.unwrap_or(usual.wait),
        strict: strict.unwrap_or(usual.strict),
        least_replicas: least_replicas
            .and_then(|least| u32::try_from(least).ok())
            .unwrap_or(usual.least_replicas),
        salt: salt.unwrap_or_default(),
        ..usual
    };
    if let Some(remark) = settings.remark_about_user() {
        reader.warn(at, &remark);
    }
    Some(settings)
}

/// What to write instead of a setting that `[store]` does not have.
fn misplaced(name: &str) -> Option<String> {
    let instead = |setting: &str| {
        format!(
            "must not stand in this file; write it into a file of its own, and name that with \
                 {setting}"
        )
    };
    Some(match name {
        "password" => format!("a password {}", instead("password_file")),
        "salt" => format!("the salt {}", instead("salt_file")),
        "user" | "username" | "host" | "port" | "database" => format!(
            "'{name}' is part of the address; write url = \"redis://USER@HOST:PORT/DATABASE\""
        ),
        "shared" | "without_store" | "open_for" => {
            format!("'{name}' belongs to a policy; write it below its header")
        }
        _ => return None,
    })
}

fn url<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<StoreUrl> {
    let text = reader.string(value, "url", "such as \"redis://store.example\"")?;
    StoreUrl::parse(&text).map_err(|what| reader.wrong(value.span().start, &what)).ok()
}

/// A password: the settings that name its file and its variable.
fn password<'t>(
    reader: &mut Reader<'t>,
    sources: &Sources,
    entries: &mut Entries<'_, 't>,
    [in_file, in_variable]: [&'static str; 2],
) -> Password {
    let (file, variable) = (entries.take(in_file), entries.take(in_variable));
    if let (Some(_), Some(variable)) = (file, variable) {
        let what = format!("{in_file} and {in_variable} cannot be given together; leave one out");
        reader.wrong(variable.span().start, &what);
    }
    if let Some(value) = file {
        let Some(file) = reader.name(value, in_file, "the name of a file") else {
            return Password::None;
        };
        let path = sources.path(&file);
        if let Some(remark) = Content::Password.remark(&path) {
            reader.hide_unless_there(&file, &path);
            reader.warn(value.span().start, &remark);
        }
        return Password::File(path);
    }
    let Some(value) = variable else { return Password::None };
    match value.get_ref() {
        DeValue::String(name) if is_variable(name) => Password::Variable(name.to_string()),
        _ => {
            let what = format!("{in_variable} is not the name of a variable; {VARIABLE_RULE}");
            reader.wrong(value.span().start, &what);
            Password::None
        }
    }
}

/// The bytes of a salt file, without line ends and blanks behind them.
fn salt<'t>(reader: &mut Reader<'t>, sources: &mut Sources, value: &Node<'t>) -> Option<Vec<u8>> {
    let at = value.span().start;
    let file = reader.name(value, "salt_file", "the name of a file of random bytes")?;
    let (path, bytes) = sources.read_bytes(&file, *SALTS.end());
    let shown = path.display();
    let salt = bytes
        .map_err(|why| {
            reader.hide_unless_there(&file, &path);
            reader.wrong(at, &format!("cannot read the salt file {shown}: {why}"));
        })
        .ok()?
        .trim_ascii_end()
        .to_vec();
    if !SALTS.contains(&salt.len()) {
        let (least, most) = (SALTS.start(), SALTS.end());
        let what = format!(
            "the salt file {shown} must have {least} to {most} bytes, without line ends behind \
             them; 'openssl rand -hex 32' makes one, and all machines need the same"
        );
        reader.wrong(at, &what);
    }
    Some(salt)
}

/// What a file of a store has in it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Content {
    Password,
    Certificates,
    Key,
}

impl Content {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Certificates => "certificate",
            Self::Key => "key",
        }
    }

    /// What is wrong with a file, if anything is: a sentence. It is no mistake, because the
    /// machine on which a configuration is checked may not have the file.
    fn remark(self, path: &Path) -> Option<String> {
        let (shown, what) = (path.display(), self.in_words());
        let looked = sources::open(path).and_then(|(mut file, metadata)| {
            let mut first = [0];
            let bytes = file.read(&mut first).map_err(|error| error.to_string())?;
            Ok((bytes > 0 && !first[0].is_ascii_whitespace(), metadata))
        });
        match looked {
            Err(why) => Some(format!("cannot read the {what} file {shown}: {why}")),
            Ok((false, _)) if self == Self::Password => {
                Some(format!("{shown} has no password; write it in the first line"))
            }
            Ok((_, metadata)) if self != Self::Certificates && metadata.mode() & 0o004 != 0 => {
                Some(format!(
                    "every user of this machine can read the {what} file {shown}; run chmod o-r \
                     on it"
                ))
            }
            Ok(_) => None,
        }
    }
}

impl StoreSettings {
    /// What is wrong with the files that it names, a sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let password = match &self.password {
            Password::File(path) => Content::Password.remark(path),
            _ => None,
        };
        let authorities = self.authorities.as_ref();
        let authorities = authorities.and_then(|path| Content::Certificates.remark(path));
        password.into_iter().chain(authorities).chain(self.remark_about_user()).collect()
    }

    /// That the user has no password, if that is so.
    fn remark_about_user(&self) -> Option<String> {
        let user = self.url.user().filter(|_| self.password == Password::None)?;
        Some(format!(
            "the address of the store names the user '{user}' and there is no password, so agents \
             do not log in and are the user 'default'; name the password with password_file or \
             --store-password-file"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use std::time::Duration;

    use gcra_store::Url;

    use super::*;
    use crate::file::document::parse;
    use crate::policies::Policies;

    const SHARED: &str = "[policy.api]\nlimits = \"1/s\"\nshared = true\n";

    fn read(path: &Path, store: &str) -> Result<Policies, Vec<String>> {
        parse(path, &format!("[store]\n{store}\n{SHARED}"))
    }

    fn settings(store: &str) -> StoreSettings {
        read(Path::new("/etc/gcra/x.toml"), store).unwrap().store.unwrap()
    }

    #[test]
    fn the_least_that_can_be_said_about_a_store_is_its_url() {
        let store = settings("url = \"redis://store.example\"");
        let expected = StoreSettings {
            url: Url::parse("redis://store.example").unwrap(),
            url_text: "redis://store.example".to_owned(),
            password: Password::None,
            sentinel_password: Password::None,
            certificate: None,
            authorities: None,
            wait: Duration::from_millis(20),
            strict: false,
            least_replicas: 0,
            salt: Vec::new(),
        };
        assert_eq!(store, expected);
        let config = store.config();
        assert_eq!((config.timeout, config.durable), (Duration::from_millis(50), true));
        // A server that another one may replace has a replica.
        for url in ["redis+sentinel://a,b/main", "redis+cluster://a,b"] {
            assert_eq!(settings(&format!("url = \"{url}\"")).least_replicas, 1);
            let none = format!("url = \"{url}\"\nleast_replicas = 0");
            assert_eq!(settings(&none).least_replicas, 0);
        }
    }

    #[test]
    fn all_settings_reach_the_client_of_the_store() {
        let directory = tempfile::tempdir().unwrap();
        let salt = directory.path().join("salt");
        fs::write(&salt, "0123456789abcdef\r\n").unwrap();
        let text = "url = \"rediss://gcra@store.example:6380/3\"\npassword_file = \"secret\"\n\
                    ca = \"/etc/ca.pem\"\ncertificate = \"me.pem\"\n\
                    certificate_key = \"me.key\"\nwait = \"70ms\"\nstrict = true\n\
                    least_replicas = 2\nsalt_file = \"salt\"";
        let policies = read(&directory.path().join("x.toml"), text).unwrap();
        let store = policies.store.unwrap();
        let config = store.config();
        assert_eq!(config.url, Url::parse("rediss://gcra@store.example:6380/3").unwrap());
        // As with lists, the name of a file is relative to the configuration.
        assert_eq!(config.password, Password::File(directory.path().join("secret")));
        assert_eq!(config.authorities.as_deref(), Some(Path::new("/etc/ca.pem")));
        let [chain, key] = ["me.pem", "me.key"].map(|name| directory.path().join(name));
        assert_eq!(config.certificate, Some(Certificate { chain, key }));
        assert_eq!((config.strict, config.least_replicas), (true, 2));
        assert_eq!((store.wait, config.timeout), (Duration::from_millis(70), store.wait));
        assert_eq!(store.salt, b"0123456789abcdef");
        assert!(policies.files.iter().any(|(file, _)| *file == salt), "it is watched");
        assert!(!format!("{store:?}").contains("48"), "the salt is in no log: {store:?}");
        assert_eq!(
            store.in_words(),
            "rediss://gcra@store.example:6380/3, for which a request waits at most 70ms, with at \
             least 2 replicas, strict"
        );

        let sentinels = settings(
            "url = \"redis+sentinel://a,b/main\"\npassword_file = \"/p\"\n\
             sentinel_password_file = \"/s\"",
        );
        let config = sentinels.config();
        assert_eq!(config.password, Password::File("/p".into()));
        assert_eq!(config.sentinel_password, Password::File("/s".into()));

        let variable = settings("url = \"redis://a\"\npassword_env = \"GCRA_PASSWORD\"");
        assert_eq!(variable.config().password, Password::Variable("GCRA_PASSWORD".to_owned()));

        // A reload must notice another salt.
        fs::write(&salt, "0123456789abcdeF").unwrap();
        let other = read(&directory.path().join("x.toml"), text).unwrap();
        assert_ne!(policies.text_digest, other.text_digest);
        assert_ne!(Some(store), other.store);
    }

    #[test]
    fn each_wrong_setting_is_one_clear_sentence() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("short"), "0123456789abcde\n").unwrap();
        fs::write(directory.path().join("long"), "x".repeat(5_000)).unwrap();
        let file = directory.path().join("x.toml");
        for (store, sentence) in [
            ("", "1: the store has no address; write url = \"redis://HOST:PORT\""),
            ("url = 6379", "2: url must be a string, such as \"redis://store.example\""),
            ("url = \"store:6379\"", "2: the address of a store begins with redis://, rediss://"),
            ("url = \"redis://u:geheim@a\"", "2: the address of a store must not have a password"),
            ("url = \"redis://a,b\"", "2: several hosts need an address that begins with"),
            ("url = \"redis://a\"\nurll = 1", "3: 'urll' is not a setting of the store; did you"),
            (
                "url = \"redis://a\"\npassword = \"geheim\"",
                "3: a password must not stand in this file; write it into a file of its own,",
            ),
            (
                "url = \"redis://a\"\nsalt = \"geheim\"",
                "3: the salt must not stand in this file; write it into a file of its own, and",
            ),
            ("url = \"redis://a\"\nuser = \"u\"", "3: 'user' is part of the address; write url"),
            (
                "url = \"redis://a\"\npassword_file = \"p\"\npassword_env = \"P\"",
                "4: password_file and password_env cannot be given together; leave one out",
            ),
            (
                "url = \"redis://a\"\npassword_file = \"\"",
                "3: password_file is empty; write the name of a file, or leave it out",
            ),
            (
                "url = \"redis://a\"\npassword_env = \"ge-heim\"",
                "3: password_env is not the name of a variable; it must be the name of",
            ),
            (
                "url = \"redis://a\"\nca = \"x\"",
                "3: ca has no effect without TLS; write a url that begins with rediss://,",
            ),
            (
                "url = \"redis://a\"\ncertificate = \"x\"\ncertificate_key = \"y\"",
                "3: certificate has no effect without TLS; write a url that begins with rediss",
            ),
            (
                "url = \"rediss://a\"\ncertificate = \"x\"",
                "3: certificate and certificate_key belong together; write both",
            ),
            (
                "url = \"rediss://a\"\ncertificate_key = \"x\"",
                "3: certificate and certificate_key belong together; write both",
            ),
            (
                "url = \"redis://a\"\nsentinel_password_env = \"P\"",
                "3: the store has no sentinels that need a password; write a url that begins",
            ),
            (
                "url = \"redis+sentinel://a/b\"\nsentinel_password_env = \"P-1\"",
                "3: sentinel_password_env is not the name of a variable; it must be",
            ),
            (
                "url = \"redis://a\"\nwait = \"20\"",
                "3: '20' in wait is not a time from 1ms to 10s; write a whole number and a unit",
            ),
            ("url = \"redis://a\"\nwait = \"999us\"", "3: '999us' in wait is not a time from 1ms"),
            ("url = \"redis://a\"\nwait = \"11s\"", "3: '11s' in wait is not a time from 1ms to"),
            ("url = \"redis://a\"\nwait = 20", "3: wait must be a string, such as \"20ms\""),
            ("url = \"redis://a\"\nstrict = 1", "3: strict must be true or false, without quotes"),
            (
                "url = \"redis://a\"\nleast_replicas = -1",
                "3: least_replicas must be a whole number from 0 to 100, without quotes",
            ),
            ("url = \"redis://a\"\nsalt_file = \"none\"", "3: cannot read the salt file "),
            ("url = \"redis://a\"\nsalt_file = \".\"", "3: cannot read the salt file "),
            ("url = \"redis://a\"\nsalt_file = \"short\"", "3: the salt file "),
            ("url = \"redis://a\"\nsalt_file = \"long\"", "3: the salt file "),
            ("url = \"redis://a\"\nshared = true", "3: 'shared' belongs to a policy; write it"),
        ] {
            let mistakes = read(&file, store).unwrap_err();
            let expected = format!("{}:{sentence}", file.display());
            assert!(mistakes.len() == 1 && mistakes[0].starts_with(&expected), "{mistakes:#?}");
            assert!(!mistakes[0].contains("geheim") && !mistakes[0].contains("heim"));
        }
        let all = "url = \"x\"\nwait = \"1h\"\nstrict = 0\nca = 1\npassword = \"geheim\"";
        assert_eq!(read(&file, all).unwrap_err().len(), 5, "all mistakes are reported");
        let text = format!("store = \"redis://a\"\n{SHARED}");
        let mistakes = parse(&file, &text).unwrap_err();
        assert!(mistakes[0].contains("store must be a table; write [store], and"));
        assert_eq!(mistakes.len(), 1);
    }

    #[test]
    fn a_user_without_a_password_gets_a_warning() {
        let warnings = |more: &str| {
            let store = format!("url = \"redis://gcra@a\"\n{more}");
            read(Path::new("x.toml"), &store).unwrap().warnings
        };
        let [user] = &warnings("")[..] else { panic!() };
        let begins = "x.toml:1: warning: the address of the store names the user 'gcra' and there";
        assert!(user.starts_with(begins), "{user}");
        assert_eq!(warnings("password_env = \"P\""), [""; 0]);
    }

    #[test]
    fn a_file_that_others_can_read_or_nobody_gets_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let (file, secret) = (directory.path().join("x.toml"), directory.path().join("secret"));
        let warnings = |file: &Path| {
            let text = "url = \"rediss://a\"\npassword_file = \"secret\"\nca = \"ca.pem\"";
            read(file, text).unwrap().warnings
        };
        let [password, ca] = &warnings(&file)[..] else { panic!() };
        assert!(password.contains(":3: warning: cannot read the password file "), "{password}");
        assert!(ca.contains(":4: warning: cannot read the certificate file "), "{ca}");

        fs::write(directory.path().join("ca.pem"), "").unwrap();
        for (name, mode) in [("me.pem", 0o644), ("me.key", 0o604)] {
            let path = directory.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        let text = "url = \"rediss://a\"\ncertificate = \"me.pem\"\n\
                    certificate_key = \"me.key\"";
        let [key] = &read(&file, text).unwrap().warnings[..] else { panic!() };
        assert!(key.contains(":4: warning: every user of this machine can read the key file "));
        for (text, mode, said) in [
            ("geheim\n", 0o644, Some(": warning: every user of this machine can read the pass")),
            ("geheim\n", 0o640, None),
            ("", 0o600, Some("has no password; write it in the first line")),
            ("\ngeheim\n", 0o600, Some("has no password; write it in the first line")),
        ] {
            fs::write(&secret, text).unwrap();
            fs::set_permissions(&secret, Permissions::from_mode(mode)).unwrap();
            let warnings = warnings(&file);
            assert_eq!(warnings.len(), usize::from(said.is_some()), "{warnings:?}");
            assert!(warnings.iter().all(|it| said.is_some_and(|said| it.contains(said))));
            assert!(!warnings.concat().contains("geheim"));
        }
    }
}
