//! The grammar of `[store]`, and the state of the files that it names.

use std::io::Read as _;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use gcra_store::{Certificate, Password};
use toml::de::DeValue;

use crate::file::reader::{Entries, Node, Reader};
use crate::file::sources::{self, Sources};
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

pub(crate) fn store<'t>(
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
        reader.at(at).wrong("the store has no address; write url = \"redis://HOST:PORT\"");
    }
    let url = url.and_then(|value| self::url(reader, value));
    let password = password(reader, sources, &mut entries, ["password_file", "password_env"]);
    let of_sentinels = ["sentinel_password_file", "sentinel_password_env"];
    let sentinel = of_sentinels.iter().find_map(|name| entries.get(name));
    if let (Some(value), Some(url)) = (sentinel, &url)
        && !url.url.has_sentinels()
    {
        let what = "the store has no sentinels that need a password; write a url that begins with \
                    redis+sentinel://, or leave it out";
        reader.on(value).wrong(what);
    }
    let sentinel_password = self::password(reader, sources, &mut entries, of_sentinels);
    let pair = ["certificate", "certificate_key"];
    if let [Some(value), None] | [None, Some(value)] = pair.map(|name| entries.get(name)) {
        let what = "certificate and certificate_key belong together; write both";
        reader.on(value).wrong(what);
    }
    let mut tls_file = |name: &'static str, content: Content| {
        let value = entries.take(name)?;
        let file = reader.name(value, name, "the name of a file (PEM)")?;
        let path = sources.path(&file);
        // It is said once about the two that belong together.
        if name != pair[1] && url.as_ref().is_some_and(|url| !url.url.has_tls()) {
            reader.on(value).wrong(format!(
                "{name} has no effect without TLS; write a url that begins with rediss://, or \
                 leave {name} out"
            ));
        } else if let Some(remark) = content.remark(&path) {
            reader.hide_unless_there(&file, &path);
            reader.on(value).warn(&remark);
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
    let mut settings = StoreSettings::new(url?).with_wait(wait);
    settings.salt = salt.unwrap_or_default();
    let config = &mut settings.base;
    config.password = password.unwrap_or_default();
    config.sentinel_password = sentinel_password.unwrap_or_default();
    (config.certificate, config.authorities) = (certificate, ca);
    config.strict = strict.unwrap_or(config.strict);
    let least_replicas = least_replicas.and_then(|least| u32::try_from(least).ok());
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
        "shared" | "without_store" | "open_for" => {
            format!("'{name}' belongs to a policy; write it below its header")
        }
        _ => return None,
    })
}

fn url<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<StoreUrl> {
    let text = reader.string(value, "url", "such as \"redis://store.example\"")?;
    StoreUrl::parse(&text).map_err(|what| reader.on(value).wrong(&what)).ok()
}

/// A password: the settings that name its file and its variable.
fn password<'t>(
    reader: &mut Reader<'t>,
    sources: &Sources,
    entries: &mut Entries<'_, 't>,
    [in_file, in_variable]: [&'static str; 2],
) -> Option<Password> {
    let (file, variable) = (entries.take(in_file), entries.take(in_variable));
    if let (Some(_), Some(variable)) = (file, variable) {
        let what = format!("{in_file} and {in_variable} cannot be given together; leave one out");
        reader.on(variable).wrong(what);
    }
    if let Some(value) = file {
        let file = reader.name(value, in_file, "the name of a file")?;
        let path = sources.path(&file);
        if let Some(remark) = Content::Password.remark(&path) {
            reader.hide_unless_there(&file, &path);
            reader.on(value).warn(&remark);
        }
        return Some(Password::File(path));
    }
    let value = variable?;
    match value.get_ref() {
        DeValue::String(name) if is_variable(name) => Some(Password::Variable(name.to_string())),
        _ => {
            let what = format!("{in_variable} is not the name of a variable; {VARIABLE_RULE}");
            reader.on(value).refuse(what)
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
    Some(salt)
}

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
    pub fn remarks(&self) -> Vec<String> {
        let password = match &self.base.password {
            Password::File(path) => Content::Password.remark(path),
            _ => None,
        };
        let authorities = self.base.authorities.as_ref();
        let authorities = authorities.and_then(|path| Content::Certificates.remark(path));
        password.into_iter().chain(authorities).chain(self.remark_about_user()).collect()
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
