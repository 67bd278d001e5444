//! [`Config`]: where the store is, and how it is asked.

use core::fmt;
use core::time::Duration;
use std::path::PathBuf;

use ring::digest::{Context, SHA256, digest};

/// Where the store is, and how it is asked.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Where it is.
    pub url: Url,
    /// Where the password comes from. It is read for each connection, so it can be changed in its
    /// place.
    pub password: Password,
    /// Where the password of the sentinels comes from, which is another one than the store's.
    pub sentinel_password: Password,
    /// With TLS: what this program shows the servers, if they want to know who connects.
    pub certificate: Option<Certificate>,
    /// With TLS: a file of certificates (PEM) that are trusted instead of the system's.
    pub authorities: Option<PathBuf>,
    /// Whether a bucket of which the store knows nothing begins as if a full burst were owed, if
    /// the store's memory may have been lost not long ago.
    pub strict: bool,
    /// Whether a reply is void unless all replicas have confirmed what it is about.
    pub durable: bool,
    /// How many replicas must be there. With fewer, the store is not used.
    pub least_replicas: u32,
    /// A reply that takes longer does not count, and the store is not used until it has answered
    /// in time again.
    pub timeout: Duration,
    /// A server that takes longer to reply, on average, is not used. It is
    /// [`timeout`](Self::timeout) at most.
    pub slow: Duration,
    /// How long it may take to connect, with TLS and logging in.
    pub connect_timeout: Duration,
    /// How often to look whether servers are there and which are primaries. Each interval is
    /// chosen at random, up to a quarter shorter or longer.
    pub look_every: Duration,
    /// How many asks may be under way at once, answers that were not fetched included.
    pub most_asks: usize,
}

impl Config {
    /// The usual configuration for a store at `url`.
    pub const fn new(url: Url) -> Self {
        Self {
            url,
            password: Password::None,
            sentinel_password: Password::None,
            certificate: None,
            authorities: None,
            strict: false,
            durable: true,
            least_replicas: 0,
            timeout: Duration::from_millis(50),
            slow: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(1),
            look_every: Duration::from_secs(1),
            most_asks: 65_536,
        }
    }
}

/// A certificate of this program, and its key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Certificate {
    /// A file with the certificate, and those that lead from it to an authority (PEM).
    pub chain: PathBuf,
    /// A file with the private key (PEM), which only this program should be able to read.
    pub key: PathBuf,
}

/// Where a password comes from. It is never a part of a configuration, so it is in no log and no
/// list of processes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Password {
    /// There is none.
    #[default]
    None,
    /// The first line of a file.
    File(PathBuf),
    /// A variable of the environment.
    Variable(String),
}

/// The address of a server.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Address {
    /// A host and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Where the store is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Url {
    pub(crate) place: Place,
    pub(crate) tls: bool,
    pub(crate) user: Option<String>,
    pub(crate) database: i64,
}

/// How to find the primary of a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// It is always this server.
    Single(Address),
    /// Sentinels know it.
    Sentinel { sentinels: Vec<Address>, name: String },
    /// The nodes of the cluster know it.
    Cluster { nodes: Vec<Address> },
}

impl Url {
    /// Whether the nodes of a cluster know it.
    pub const fn is_cluster(&self) -> bool {
        matches!(self.place, Place::Cluster { .. })
    }

    /// Whether it names one server, which no other server replaces.
    pub const fn is_one_server(&self) -> bool {
        matches!(self.place, Place::Single(_))
    }

    /// Whether sentinels know where the store is.
    pub const fn has_sentinels(&self) -> bool {
        matches!(self.place, Place::Sentinel { .. })
    }

    /// The user to log in as, if it names one.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Whether connections have TLS.
    pub const fn has_tls(&self) -> bool {
        self.tls
    }

    /// A digest of where the records are: the servers, the name of the primary, the database, and
    /// the salt of [`Names`](crate::Names).
    ///
    /// Two addresses with the same digest lead to the same records. The order of sentinels, or of
    /// the nodes of a cluster, makes no difference, and neither does the user or TLS. Another name
    /// of the same server is another digest, and so is one sentinel or node more or less.
    pub fn digest(&self, salt: &[u8]) -> [u8; 16] {
        let (kind, addresses, name) = match &self.place {
            Place::Single(address) => ("one", core::slice::from_ref(address), ""),
            Place::Sentinel { sentinels, name } => ("sentinel", &sentinels[..], name.as_str()),
            Place::Cluster { nodes } => ("cluster", &nodes[..], ""),
        };
        let mut addresses: Vec<_> = addresses.iter().map(Address::to_string).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut hash = Context::new(&SHA256);
        hash.update(digest(&SHA256, salt).as_ref());
        for part in [kind, name, &self.database.to_string(), &addresses.join(",")] {
            hash.update(part.as_bytes());
            // No UTF-8 has this byte.
            hash.update(&[0xff]);
        }
        hash.finish().as_ref().first_chunk().copied().unwrap_or_default()
    }

    /// Reads an address: `redis://[USER@]HOST[:PORT][/DATABASE]`, `unix://[USER@]PATH`,
    /// `redis+sentinel://[USER@]HOST[:PORT],HOST[:PORT].../NAME[/DATABASE]`, or
    /// `redis+cluster://[USER@]HOST[:PORT],HOST[:PORT]...`. `rediss` is with TLS, and `valkey` is
    /// the same as `redis`.
    ///
    /// # Errors
    ///
    /// The string is something else, or has a password in it.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::SCHEME)?;
        // The path of a Unix socket may have an @ in it.
        let (user, rest) = match rest.split_once('@') {
            Some((user, rest)) if !user.starts_with('/') => (user, rest),
            _ => ("", rest),
        };
        if user.contains(':') {
            return Err(UrlError::PASSWORD);
        }
        let user = (!user.is_empty()).then(|| user.to_owned());
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        if scheme == "unix" {
            let path = PathBuf::from(rest);
            let place = Place::Single(Address::Unix(path.clone()));
            let url = Self { place, tls: false, user, database: 0 };
            return if path.is_absolute() { Ok(url) } else { Err(UrlError::PATH) };
        }
        let tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(UrlError::SCHEME),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_strange = |c: char| "?#".contains(c) || c.is_whitespace() || c.is_control();
        if hosts.contains('@') || rest.contains(is_strange) {
            return Err(UrlError::CHARACTER);
        }
        let port = if kind == "sentinel" { 26_379 } else { 6_379 };
        let addresses = hosts.split(',').map(|host| address(host, port));
        let mut addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let number = |text: &str| match text {
            "" => Ok(0),
            text => text.parse::<u16>().map(i64::from).map_err(|_| UrlError::DATABASE),
        };
        let (place, database) = match kind {
            "" if addresses.len() > 1 => return Err(UrlError::ONE_HOST),
            "" => (Place::Single(addresses.remove(0)), number(path)?),
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(UrlError::NAME);
                }
                let name = name.to_owned();
                (Place::Sentinel { sentinels: addresses, name }, number(database)?)
            }
            "cluster" if path.is_empty() => (Place::Cluster { nodes: addresses }, 0),
            "cluster" => return Err(UrlError::DATABASE),
            _ => return Err(UrlError::SCHEME),
        };
        Ok(Self { place, tls, user, database })
    }
}

fn address(text: &str, port: u16) -> Result<Address, UrlError> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or(UrlError::HOST)?,
        None if text.matches(':').count() > 1 => return Err(UrlError::BRACKETS),
        None => text.find(':').map_or((text, ""), |colon| text.split_at(colon)),
    };
    let port = match rest.strip_prefix(':') {
        Some(number) => number.parse().map_err(|_| UrlError::HOST)?,
        None if rest.is_empty() => port,
        None => return Err(UrlError::HOST),
    };
    if host.is_empty() || port == 0 {
        return Err(UrlError::HOST);
    }
    Ok(Address::Tcp(host.to_owned(), port))
}

/// Why a string is not the address of a store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UrlError(&'static str);

impl UrlError {
    const SCHEME: Self = Self(
        "the address of a store begins with redis://, rediss://, unix://, redis+sentinel:// or \
         redis+cluster://",
    );
    const PASSWORD: Self = Self(
        "the address of a store must not have a password in it; name a file or a variable of the \
         environment instead",
    );
    const HOST: Self = Self("the address of a store needs a host, and a port from 1 to 65535");
    const BRACKETS: Self =
        Self("an IPv6 address has brackets in the address of a store: redis://[2001:db8::1]:6379");
    const CHARACTER: Self = Self(
        "the address of a store has no '?', no '#', no blanks, and one '@' at most; all that can \
         be set has a flag or a setting of its own",
    );
    const ONE_HOST: Self = Self(
        "several hosts need an address that begins with redis+sentinel:// or redis+cluster://",
    );
    const PATH: Self = Self("the path of a Unix socket must be absolute: unix:///run/valkey.sock");
    const NAME: Self =
        Self("the sentinels need the name of the primary: redis+sentinel://HOST,HOST/NAME");
    const DATABASE: Self =
        Self("the database of a store is a number from 0 to 65535, and a cluster has none");
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for UrlError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    #[test]
    fn each_kind_of_address_is_read() {
        let url = Url::parse("redis://store.example").unwrap();
        assert_eq!(url.place, Place::Single(tcp("store.example", 6_379)));
        assert_eq!((url.tls, url.user, url.database), (false, None, 0));

        let url = Url::parse("rediss://gcra@[2001:db8::1]:7000/3").unwrap();
        assert_eq!(url.place, Place::Single(tcp("2001:db8::1", 7_000)));
        assert_eq!((url.tls, url.user.as_deref(), url.database), (true, Some("gcra"), 3));
        assert!(url.has_tls() && url.is_one_server());

        let url = Url::parse("unix:///run/valkey.sock").unwrap();
        assert_eq!(url.place, Place::Single(Address::Unix("/run/valkey.sock".into())));
        let url = Url::parse("unix:///run/a:b@c").unwrap();
        assert_eq!(url.place, Place::Single(Address::Unix("/run/a:b@c".into())));
        let url = Url::parse("unix://gcra@/run/a@c").unwrap();
        assert_eq!(url.place, Place::Single(Address::Unix("/run/a@c".into())));
        assert_eq!(url.user.as_deref(), Some("gcra"));

        let url = Url::parse("redis+sentinel://a,b:1/mymaster/2").unwrap();
        let sentinels = vec![tcp("a", 26_379), tcp("b", 1)];
        assert_eq!(url.place, Place::Sentinel { sentinels, name: "mymaster".into() });
        assert_eq!(url.database, 2);
        assert!(!url.has_tls() && !url.is_one_server() && url.has_sentinels());

        let url = Url::parse("valkeys+cluster://a,b").unwrap();
        assert_eq!(url.place, Place::Cluster { nodes: vec![tcp("a", 6_379), tcp("b", 6_379)] });
        assert!(url.has_tls() && !url.is_one_server() && !url.has_sentinels());
    }

    #[test]
    fn addresses_that_lead_to_the_same_records_have_one_digest() {
        let digest = |text: &str| Url::parse(text).unwrap().digest(b"salt");
        for (one, same) in [
            ("redis://a", "valkeys://user@a:6379/0"),
            ("redis+sentinel://a,b/limits", "rediss+sentinel://b:26379,a,b/limits/0"),
            ("redis+cluster://a,b:7", "redis+cluster://b:7,a"),
        ] {
            assert_eq!(digest(one), digest(same), "{one} {same}");
        }
        let others = [
            "redis://a",
            "redis://a/1",
            "redis://a:1",
            "redis://b",
            "unix:///a",
            "redis+sentinel://a/limits",
            "redis+sentinel://a/other",
            "redis+sentinel://a,b/limits",
            "redis+cluster://a",
            "redis+cluster://a,b",
        ];
        for (place, one) in others.iter().enumerate() {
            for other in &others[..place] {
                assert_ne!(digest(one), digest(other), "{one} {other}");
            }
        }
        let url = Url::parse("redis://a").unwrap();
        assert_ne!(url.digest(b""), url.digest(b"salt"));
    }

    #[test]
    fn each_mistake_has_a_message_of_its_own() {
        for (text, error) in [
            ("store.example:6379", UrlError::SCHEME),
            ("http://a", UrlError::SCHEME),
            ("redis+other://a", UrlError::SCHEME),
            ("redis://:secret@a", UrlError::PASSWORD),
            ("redis://user:secret@a", UrlError::PASSWORD),
            ("redis://user:sec/ret@a", UrlError::PASSWORD),
            ("redis://user:secret@@a", UrlError::PASSWORD),
            ("redis://a:b", UrlError::HOST),
            ("redis://", UrlError::HOST),
            ("redis://[::1", UrlError::HOST),
            ("redis://[::1]6379", UrlError::HOST),
            ("redis://a:0", UrlError::HOST),
            ("redis://::1", UrlError::BRACKETS),
            ("redis://2001:db8::1:6379", UrlError::BRACKETS),
            ("redis://h?x=1", UrlError::CHARACTER),
            ("redis://h/0?x=1", UrlError::CHARACTER),
            ("redis://h#f", UrlError::CHARACTER),
            ("redis://h ", UrlError::CHARACTER),
            ("redis://u@@h", UrlError::CHARACTER),
            ("redis://a,b", UrlError::ONE_HOST),
            ("unix://valkey.sock", UrlError::PATH),
            ("redis+sentinel://a", UrlError::NAME),
            ("redis://a/x", UrlError::DATABASE),
            ("redis+cluster://a/1", UrlError::DATABASE),
        ] {
            assert_eq!(Url::parse(text), Err(error), "{text}");
            assert!(!error.to_string().contains("secret"));
        }
    }

    proptest::proptest! {
        /// Whatever an operator types, there is an answer, and no password passes.
        #[test]
        fn any_text_is_read_or_refused(
            scheme in proptest::sample::select(vec![
                "redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "x", "",
            ]),
            rest in "[a@:/,.\\[\\]1é]{0,12}",
        ) {
            let url = Url::parse(&format!("{scheme}://{rest}"));
            let user = url.ok().and_then(|url| url.user).unwrap_or_default();
            proptest::prop_assert!(!user.contains(':'));
        }
    }
}
