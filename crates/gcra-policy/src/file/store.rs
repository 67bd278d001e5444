//! The grammar of `[store]`, the state of the files that it names, and salts.

use std::io::Read as _;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use gcra_store::{Certificate, Password};
use gcra_text::config_note::ConfigNote;
use toml::de::DeValue;

use crate::file::entries::Entries;
use crate::file::reader::{Node, Reader};
use crate::file::settings::{NonEmpty, Own, POLICY_TABLE, STORE_TABLE, Setting, of_store as of};
use crate::file::sources::{self, Sources};
use crate::store::{StoreSettings, StoreUrl, VARIABLE_RULE, is_variable};

/// How many bytes a salt has, so that it cannot be guessed.
const SALTS: RangeInclusive<usize> = 16..=4096;

pub(crate) fn store<'t>(
    reader: &mut Reader<'t>,
    sources: &mut Sources,
    value: &Node<'t>,
) -> Option<StoreSettings> {
    let at = value.span().start;
    let what = "store must be a table; write [store], and below it url = \"redis://HOST:PORT\"";
    let table = reader.table(value, what)?;
    let entries = Entries::new("the store", &STORE_TABLE, table);
    if entries.get(&of::URL).is_none() {
        reader.at(at).wrong("the store has no address; write url = \"redis://HOST:PORT\"");
    }
    let url = entries.get(&of::URL).and_then(|value| self::url(reader, value));
    let mut file = PathReader { reader, sources, entries: &entries, url: url.as_ref() };
    let password = file.password(&of::PASSWORD_FILE, &of::PASSWORD_ENV);
    let sentinel_password = file.sentinel_password();
    let authorities = file.of_tls(&of::CA, Content::Certificates);
    let certificate = file.certificate();
    let wait = entries.read(reader, &of::WAIT);
    let strict = entries.read(reader, &of::STRICT);
    let least_replicas = entries.read(reader, &of::LEAST_REPLICAS);
    let salt = salt(reader, sources, &entries, &of::SALT_FILE);
    entries.no_others(reader, |name, _| misplaced(name));
    let mut settings = StoreSettings::new(url?).with_wait(wait);
    settings.salt = salt.unwrap_or_default();
    let config = &mut settings.base;
    config.password = password.unwrap_or_default();
    config.sentinel_password = sentinel_password.unwrap_or_default();
    (config.certificate, config.authorities) = (certificate, authorities);
    config.strict = strict.unwrap_or(config.strict);
    config.least_replicas = least_replicas.unwrap_or(config.least_replicas);
    if let Some(remark) = settings.remark_about_user() {
        reader.at(at).warn(&remark);
    }
    Some(settings)
}

/// The advice for a setting that `[store]` does not have.
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
        _ if POLICY_TABLE.has(name) => {
            format!("'{name}' belongs to a policy; write it below its header")
        }
        _ => return None,
    })
}

fn url<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<StoreUrl> {
    let text = of::URL.read(reader, value)?;
    StoreUrl::parse(&text).map_err(|what| reader.on(value).wrong(&what)).ok()
}

/// Reads the settings that name a file of the store, and looks at the file.
struct PathReader<'r, 'd, 't> {
    reader: &'r mut Reader<'t>,
    sources: &'r Sources,
    entries: &'r Entries<'d, 't>,
    url: Option<&'r StoreUrl>,
}

impl PathReader<'_, '_, '_> {
    /// A password, of which one setting names the file, or another one the variable.
    fn password(
        &mut self,
        in_file: &Setting<NonEmpty>,
        in_variable: &Setting<Own>,
    ) -> Option<Password> {
        let (value, variable) = (self.entries.get(in_file), self.entries.get(in_variable));
        let (file_name, name) = (in_file.about.name, in_variable.about.name);
        if let (Some(_), Some(variable)) = (value, variable) {
            let what = format!("{file_name} and {name} cannot be given together; leave one out");
            self.reader.on(variable).wrong(what);
        }
        if let Some(value) = value {
            let file = in_file.read(self.reader, value)?;
            let at = value.span().start;
            return Some(Password::File(self.file(at, &file, Content::Password)));
        }
        let value = variable?;
        match value.get_ref() {
            DeValue::String(name) if is_variable(name) => {
                Some(Password::Variable(name.to_string()))
            }
            _ => {
                let what = format!("{name} is not the name of a variable; {VARIABLE_RULE}");
                self.reader.on(value).refuse(what)
            }
        }
    }

    fn sentinel_password(&mut self) -> Option<Password> {
        let at = self.entries.at(&of::SENTINEL_PASSWORD_FILE);
        if let Some(at) = at.or(self.entries.at(&of::SENTINEL_PASSWORD_ENV))
            && self.url.is_some_and(|url| !url.url.has_sentinels())
        {
            let what = "the store has no sentinels that need a password; write a url that begins \
                        with redis+sentinel://, or leave it out";
            self.reader.at(at).wrong(what);
        }
        self.password(&of::SENTINEL_PASSWORD_FILE, &of::SENTINEL_PASSWORD_ENV)
    }

    fn certificate(&mut self) -> Option<Certificate> {
        let pair = [self.entries.at(&of::CERTIFICATE), self.entries.at(&of::CERTIFICATE_KEY)];
        if let [Some(at), None] | [None, Some(at)] = pair {
            let what = "certificate and certificate_key belong together; write both";
            self.reader.at(at).wrong(what);
        }
        let chain = self.of_tls(&of::CERTIFICATE, Content::Certificates);
        // That it has no effect without TLS is said once about the two that belong together.
        let key = self.entries.read(self.reader, &of::CERTIFICATE_KEY);
        let key = key.zip(self.entries.at(&of::CERTIFICATE_KEY));
        let key = key.map(|(file, at)| self.file(at, &file, Content::Key));
        chain.zip(key).map(|(chain, key)| Certificate { chain, key })
    }

    /// A file that has an effect with TLS only.
    fn of_tls(&mut self, setting: &Setting<NonEmpty>, content: Content) -> Option<PathBuf> {
        let (at, path) = (self.entries.at(setting)?, self.entries.read(self.reader, setting)?);
        if self.url.is_some_and(|url| !url.url.has_tls()) {
            let name = setting.about.name;
            self.reader.at(at).wrong(format!(
                "{name} has no effect without TLS; write a url that begins with rediss://, or \
                 leave {name} out"
            ));
            return Some(self.sources.path(&path));
        }
        Some(self.file(at, &path, content))
    }

    /// The path of a file, after a look at it.
    fn file(&mut self, at: usize, file: &str, content: Content) -> PathBuf {
        let path = self.sources.path(file);
        if let Some(remark) = content.remark(&path) {
            self.reader.hide_unless_there(file, &path);
            self.reader.at(at).warn(&remark);
        }
        path
    }
}

/// The bytes of a salt file, without line ends and blanks behind them.
pub(crate) fn salt<'t>(
    reader: &mut Reader<'t>,
    sources: &mut Sources,
    entries: &Entries<'_, 't>,
    setting: &Setting<NonEmpty>,
) -> Option<Vec<u8>> {
    let (at, file) = (entries.at(setting)?, entries.read(reader, setting)?);
    let (path, bytes) = sources.read_bytes(&file, *SALTS.end());
    let shown = path.display();
    let salt = bytes
        .map_err(|why| {
            reader.hide_unless_there(&file, &path);
            reader.at(at).wrong(format!("cannot read the salt file {shown}: {why}"));
        })
        .ok()?
        .trim_ascii_end()
        .to_vec();
    if !SALTS.contains(&salt.len()) {
        let (least, most) = (SALTS.start(), SALTS.end());
        reader.at(at).wrong(format!(
            "the salt file {shown} must have {least} to {most} bytes, without line ends behind \
             them; 'openssl rand -hex 32' makes one, and all machines need the same"
        ));
    }
    if let Some(remark) = Content::Salt.remark(&path) {
        reader.at(at).warn(&remark);
    }
    Some(salt)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Content {
    Password,
    Certificates,
    Key,
    Salt,
}

impl Content {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Certificates => "certificate",
            Self::Key => "key",
            Self::Salt => "salt",
        }
    }

    /// A sentence about a file, if anything is wrong with it. That is no mistake, because the
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
    /// The remarks about the files that it names, a sentence each.
    pub fn remarks(&self) -> Vec<ConfigNote> {
        let password = match &self.base.password {
            Password::File(path) => Content::Password.remark(path),
            _ => None,
        };
        let authorities = self.base.authorities.as_ref();
        let authorities = authorities.and_then(|path| Content::Certificates.remark(path));
        let all = password.into_iter().chain(authorities).chain(self.remark_about_user());
        all.map(ConfigNote::from).collect()
    }

    /// That the user has no password, if that is so.
    fn remark_about_user(&self) -> Option<String> {
        let user = self.base.url.user().filter(|_| self.base.password == Password::None)?;
        Some(format!(
            "the address of the store names the user '{user}' and there is no password, so agents \
             do not log in and are the user 'default'; name the password with password_file or \
             --store-password-file"
        ))
    }
}
