//! [`Fault`]: why a server cannot be used; and what is done about each error of a server.

use core::fmt;
use core::time::Duration;

use crate::config::Address;

/// Why a server cannot be used.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// There is no connection: why.
    Connection(String),
    /// It closed the connection before it had answered anything.
    Closed,
    /// It does not speak the protocol of Valkey and Redis.
    Foreign(String),
    /// It did not answer the beginning of TLS in time.
    NoTls,
    /// A fault of a sentinel, or of a node of a cluster that was asked where the servers are.
    Of(Address, Box<Self>),
    /// The sentinel does not know a primary of this name.
    UnknownName(String),
    /// No more than half of the sentinels name the same primary: what each of them says.
    NoMajority(Vec<(Address, Result<Address, Self>)>),
    /// It did not answer in time.
    Late,
    /// Its replies take longer than [`Config::slow`](crate::Config::slow).
    Slow {
        /// How long they take.
        takes: Duration,
        /// How long they may take.
        most: Duration,
    },
    /// It is a replica, or has become one.
    Replica,
    /// It is a sentinel, and not a server: the name of a primary that it knows.
    Sentinel(Option<String>),
    /// It is reading its data set.
    Loading,
    /// It is out of memory (`maxmemory` with `noeviction`).
    OutOfMemory,
    /// The user may not do what is needed.
    NotPermitted(String),
    /// The user is not known, or the password is wrong or missing.
    Login(String),
    /// The cluster cannot be used, or no server has the key.
    ClusterDown(String),
    /// Fewer replicas than there are have confirmed.
    Replicas {
        /// How many have.
        are: u32,
        /// How many there are.
        needed: u32,
    },
    /// A replica lives and does not follow it, so it cannot confirm.
    NotFollowing {
        /// Where that is, as the sentinels or the cluster say.
        replica: Address,
        /// How many follow.
        are: u32,
        /// How many must confirm.
        needed: u32,
    },
    /// It has fewer replicas than [`Config::least_replicas`](crate::Config::least_replicas).
    FewReplicas {
        /// How many it has.
        are: u32,
        /// How many it must have.
        least: u32,
    },
    /// Another error of the server.
    Other(String),
}

impl Fault {
    pub(crate) fn not_a_reply() -> Self {
        Self::Other("something that is no reply to the ask".to_owned())
    }

    /// There is no connection, for a reason that may have words of the server in it.
    pub(crate) fn connection(why: impl fmt::Display) -> Self {
        Self::Connection(in_words(&why.to_string()))
    }
}

/// A server's words, for people: cut off if it is long, and with a question mark in place of each
/// character that does not print.
pub(crate) fn in_words(said: &str) -> String {
    const MOST: usize = 200;
    let prints = |c: char| "\\'\"".contains(c) || c.escape_debug().len() == 1;
    let mut words: String =
        said.chars().take(MOST).map(|c| if prints(c) { c } else { '?' }).collect();
    if said.chars().nth(MOST).is_some() {
        words.push_str("...");
    }
    words
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(why) => write!(f, "there is no connection: {why}"),
            Self::Closed => f.write_str("it closed the connection without an answer"),
            Self::Foreign(said) => {
                write!(f, "it does not answer as Valkey and Redis do, but with '{said}'")
            }
            Self::NoTls => f.write_str("it did not answer the beginning of TLS in time"),
            Self::Of(address, fault) => write!(f, "{address}: {fault}"),
            Self::UnknownName(name) => {
                write!(f, "the sentinel does not know a primary that is called '{name}'")
            }
            Self::NoMajority(said) => {
                let most = said.len() / 2 + 1;
                write!(f, "of {} sentinels, {most} must name the same primary", said.len())?;
                for (place, (address, said)) in said.iter().enumerate() {
                    f.write_str(if place == 0 { ": " } else { "; " })?;
                    match said {
                        Ok(primary) => write!(f, "{address} names {primary}")?,
                        Err(fault) => write!(f, "{address}: {fault}")?,
                    }
                }
                Ok(())
            }
            Self::Late => f.write_str("it did not answer in time"),
            Self::Slow { takes, most } => {
                let [takes, most] = [takes, most].map(|time| time.as_secs_f64() * 1e3);
                write!(f, "its replies take {takes:.1} ms, and may take {most} ms at most")
            }
            Self::Replica => f.write_str("it is a replica, not a primary"),
            Self::Sentinel(_) => f.write_str("it is a sentinel, not a primary"),
            Self::Loading => f.write_str("it is reading its data set"),
            Self::OutOfMemory => f.write_str("it is out of memory"),
            Self::NotPermitted(why) => write!(f, "the user is not permitted to do this: {why}"),
            Self::Login(why) => write!(f, "the user or the password is wrong: {why}"),
            Self::ClusterDown(why) if why.eq_ignore_ascii_case("the cluster is down") => {
                f.write_str("the cluster is down")
            }
            Self::ClusterDown(why) => write!(f, "the cluster is down: {why}"),
            Self::Replicas { are, needed } => {
                let have = if *are == 1 { "replica has" } else { "replicas have" };
                write!(f, "{are} {have} confirmed, and {needed} must")
            }
            Self::NotFollowing { replica, are, needed } => {
                let s = if *are == 1 { "" } else { "s" };
                write!(
                    f,
                    "it has {are} replica{s}, and {needed} must confirm: the one at {replica} \
                     does not follow it"
                )
            }
            Self::FewReplicas { are, least } => {
                let s = if *are == 1 { "" } else { "s" };
                write!(f, "it has {are} replica{s}, and least_replicas is {least}")
            }
            Self::Other(why) => write!(f, "it says {why}"),
        }
    }
}

/// The reaction to an error as a server's answer to an ask. In the last two cases, the reply is
/// void.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Reaction {
    /// The ask is sent again with the text of the script.
    SendText,
    /// The ask is sent to another server, and the servers are looked for again.
    Moved(Address),
    /// The ask is sent to another server, with `ASKING` before it.
    Asking(Address),
    /// The ask is sent again to the same server after a pause: its slot is being moved.
    Pause,
    /// It concerns this ask only, or passes by itself in a moment.
    Nothing,
    /// The connection is closed, and the servers are looked for again.
    Close(Fault),
}

/// Chooses the reaction to an error by its first word and the rest.
pub(crate) fn reaction(code: &str, detail: &str) -> Reaction {
    let said = || in_words(format!("{code} {detail}").trim_end());
    let other = || {
        let (_slot, address) = detail.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        // Without a host: the host that was asked, with another port. It is looked for again.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().ok()?;
        Address::said(host, port)
    };
    match code {
        "NOSCRIPT" => Reaction::SendText,
        "MOVED" => other().map_or(Reaction::Close(Fault::Other(said())), Reaction::Moved),
        "ASK" => other().map_or(Reaction::Nothing, Reaction::Asking),
        // A slot is on its way to another server, and some of the keys of the call are there.
        "TRYAGAIN" => Reaction::Pause,
        // The script may not do what the user may not do. (Valkey, and Redis 7.)
        "ERR"
            if ["ACL failure", "can't run this command"].iter().any(|it| detail.contains(it)) =>
        {
            Reaction::Close(Fault::NotPermitted(said()))
        }
        // Something else is kept under the name of the record, or the script has a mistake.
        "WRONGTYPE" | "ERR" => Reaction::Nothing,
        "READONLY" | "MASTERDOWN" => Reaction::Close(Fault::Replica),
        "LOADING" => Reaction::Close(Fault::Loading),
        "OOM" => Reaction::Close(Fault::OutOfMemory),
        "NOPERM" => Reaction::Close(Fault::NotPermitted(said())),
        "NOAUTH" | "WRONGPASS" => Reaction::Close(Fault::Login(said())),
        "CLUSTERDOWN" => Reaction::Close(Fault::ClusterDown(in_words(detail))),
        // Also BUSY, MISCONF, NOREPLICAS, and words that are not known yet.
        _ => Reaction::Close(Fault::Other(said())),
    }
}

impl Address {
    /// The address that one server says another has. `None`: it is not an address.
    pub(crate) fn said(host: &str, port: u16) -> Option<Self> {
        // As long as a name can be.
        let is_host =
            (1..=255).contains(&host.len()) && host.bytes().all(|c| c.is_ascii_graphic());
        is_host.then(|| Self::Tcp(host.to_owned(), port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_has_its_reaction() {
        let close = Reaction::Close;
        let other = |text: &str| Fault::Other(text.to_owned());
        let tcp = |host: &str| Address::Tcp(host.to_owned(), 7_000);
        for (code, detail, expected) in [
            ("NOSCRIPT", "No matching script.", Reaction::SendText),
            ("MOVED", "3999 127.0.0.1:7000", Reaction::Moved(tcp("127.0.0.1"))),
            ("MOVED", "3999 [::1]:7000", Reaction::Moved(tcp("::1"))),
            ("MOVED", "3999 ::1:7000", Reaction::Moved(tcp("::1"))),
            ("MOVED", "3999 :7000", close(other("MOVED 3999 :7000"))),
            ("MOVED", "nonsense", close(other("MOVED nonsense"))),
            ("ASK", "3999 store.example:7000", Reaction::Asking(tcp("store.example"))),
            ("ASK", "", Reaction::Nothing),
            ("TRYAGAIN", "Multiple keys request during rehashing", Reaction::Pause),
            ("WRONGTYPE", "Operation against", Reaction::Nothing),
            ("ERR", "user_script:1: what", Reaction::Nothing),
            (
                "ERR",
                "ACL failure in script: no",
                close(Fault::NotPermitted("ERR ACL failure in script: no".into())),
            ),
            ("READONLY", "You can't write", close(Fault::Replica)),
            ("MASTERDOWN", "Link with MASTER is down", close(Fault::Replica)),
            ("LOADING", "Redis is loading", close(Fault::Loading)),
            ("OOM", "command not allowed", close(Fault::OutOfMemory)),
            ("NOPERM", "no", close(Fault::NotPermitted("NOPERM no".into()))),
            ("NOAUTH", "no", close(Fault::Login("NOAUTH no".into()))),
            ("WRONGPASS", "no", close(Fault::Login("WRONGPASS no".into()))),
            ("CLUSTERDOWN", "Hash slot", close(Fault::ClusterDown("Hash slot".into()))),
            ("BUSY", "", close(other("BUSY"))),
            ("MISCONF", "disk", close(other("MISCONF disk"))),
        ] {
            assert_eq!(reaction(code, detail), expected, "{code} {detail}");
        }
    }

    #[test]
    fn no_fault_says_the_same_twice() {
        let down = |why: &str| Fault::ClusterDown(why.to_owned()).to_string();
        assert_eq!(down("The cluster is down"), "the cluster is down");
        assert_eq!(down("Hash slot not served"), "the cluster is down: Hash slot not served");
        let few = Fault::FewReplicas { are: 1, least: 2 };
        assert_eq!(few.to_string(), "it has 1 replica, and least_replicas is 2");
    }

    #[test]
    fn words_of_a_server_are_short_and_printable() {
        let long = "e".repeat(10_000);
        let text = |reaction: Reaction| match reaction {
            Reaction::Close(fault) => fault.to_string(),
            other => panic!("{other:?}"),
        };
        for code in ["NOPERM", "CLUSTERDOWN", "MOVED", "BUSY", long.as_str()] {
            let said = text(reaction(code, &long));
            assert!(said.len() < 300 && said.ends_with("..."), "{said}");
            let said = text(reaction(code, "\x1b[31m it's\u{202e}\nx"));
            assert!(said.ends_with("?[31m it's??x") || code == long, "{said}");
        }
        assert_eq!(in_words(&"\u{e9}".repeat(200)), "\u{e9}".repeat(200));
        assert_eq!(in_words(&"\u{e9}".repeat(201)), "\u{e9}".repeat(200) + "...");
    }
}
