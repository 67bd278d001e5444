//! The flags that commands have in common: which table, which clients.

use std::env;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Once;

use clap::builder::{OsStringValueParser, TypedValueParser};
use gcra_policy::key::Key;
use gcra_table::Table;
use gcra_text::output::print_note;

use crate::process_state::is_used;

/// Which table, and how to answer.
#[derive(Debug, clap::Args)]
pub struct At {
    /// The file with the buckets [default: the same as for the agent; if no agent uses that, the
    /// one of the shipped systemd unit, /run/gcra-spoa/gcra-spoa.table]
    #[arg(long, value_name = "PATH")]
    pub table: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
}

impl At {
    /// The table's path. The first call says if it is not the default one.
    pub fn path(&self) -> PathBuf {
        self.table.clone().unwrap_or_else(table_of_commands)
    }
}

/// The table of the agents of `deploy/gcra-spoa@.service`.
pub(crate) const TABLE_OF_UNIT: &str = "/run/gcra-spoa/gcra-spoa.table";

/// Which policies the clients belong to.
#[derive(Debug, clap::Args)]
pub struct PolicyFlags {
    /// A configuration file [default: what the agents have in force]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The policy [default: each one whose key has as many parts as KEY]
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
}

/// A configuration file: `FILE`, or `--config FILE` as for an agent.
#[derive(Debug, clap::Args)]
pub struct ConfigFile {
    /// The file that the agents are started with
    #[arg(value_name = "FILE", required_unless_present = "config")]
    pub file: Option<PathBuf>,
    /// The same file, with the flag that agents have
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    pub config: Option<PathBuf>,
}

impl ConfigFile {
    /// One of the two; clap takes care that there is one.
    pub fn path(self) -> PathBuf {
        self.file.or(self.config).unwrap_or_default()
    }
}

/// The types of values, as an operator writes them.
macro_rules! values_help {
    () => {
        "  192.0.2.7              an address
  2001:db8::/64          a group of addresses that counts as one client
  /login                 a string
  str:192.0.2.7          a string that looks like an address
  strhex:636166e9        a string by its bytes, which need not be text
  int64:7  uint32:7  bool:true  hex:00ff  null:
                         other types (an integer of HAProxy is int64, and hex:
                         is binary, which is never the same as a string: text
                         such as req.hdr() is a string, and sha2(256) binary)"
    };
}

macro_rules! key_help {
    () => {
        concat!(
            "\
A KEY has the values of the policy's key, in the same order, separated by
commas, such as 192.0.2.7,/login. Names may be in front of them:
ip=192.0.2.7,path=/login. A value is
",
            values_help!(),
            "
  else:192.0.2.7         a value that stands for an arg without one, by 'else
                         ip' in the key; also ip=192.0.2.7. A value without
                         a name or 'else:' is never one of those
'gcra-spoa explain' prints the KEY of a client. Write a backslash before a comma
or backslash within a value. If a KEY begins with '-', write '--' and all KEYs
behind the flags. Addresses are grouped and strings are put in lower case as the
policy does.
"
        )
    };
}

pub(crate) use {key_help, values_help};

/// HAProxy sends strings of any bytes, so those of the command line are read as they are.
pub(crate) fn key_parser() -> impl TypedValueParser<Value = Key> {
    OsStringValueParser::new().try_map(|text| Key::from_bytes(text.as_bytes()))
}

pub fn parse_host_and_port(text: &str) -> Result<String, String> {
    const RIGHT: &str = "HOST:PORT, such as 127.0.0.1:9101 or localhost:9101";
    if let Some(mistake) = not_a_socket_address(text, "[::1]:9101", RIGHT) {
        return Err(mistake);
    }
    match text.rsplit_once(':') {
        _ if text.contains(|c: char| c.is_whitespace() || ",;".contains(c)) => {
            Err(format!("'{text}' is not one address; write {RIGHT}"))
        }
        Some((host, _)) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("'{text}' has no host; write {RIGHT}")),
    }
}

/// The mistake in a string that is not `HOST:PORT` nor `IP:PORT`. It may be neither although
/// this finds nothing. `v6` is an example with an IPv6 address, and `right` says what to write.
pub fn not_a_socket_address(text: &str, v6: &str, right: &str) -> Option<String> {
    if let Some((scheme, rest)) = text.split_once("://") {
        let rest = rest.split('/').next().unwrap_or(rest);
        return Some(format!("'{text}' begins with '{scheme}://'; write {rest}"));
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<Ipv6Addr>().is_ok() {
        return Some(format!("'{text}' is an IPv6 address without a port; write {v6}"));
    }
    let Some((_, port)) = text.rsplit_once(':').filter(|(_, port)| !port.is_empty()) else {
        return Some(match text.parse::<u16>() {
            Ok(port) => format!("'{text}' is only a port; write 127.0.0.1:{port}"),
            Err(_) => format!("'{text}' has no port; write {right}"),
        });
    };
    if port.parse::<u16>().is_err() {
        return Some(format!("'{port}' in '{text}' is not a port from 1 to 65535; write {right}"));
    }
    None
}

pub fn default_table() -> PathBuf {
    // systemd may name several directories; the first is the service's own.
    let runtime_directory = env::var("RUNTIME_DIRECTORY").unwrap_or_default();
    match runtime_directory.split(':').next() {
        Some(directory) if !directory.is_empty() => Path::new(directory).join("gcra-spoa.table"),
        _ => format!("/dev/shm/gcra-spoa-{}.table", rustix::process::geteuid().as_raw()).into(),
    }
}

/// The table of a command that names none: that of agents that this user starts, or, if no agent
/// uses it, that of the agents of the shipped unit; a note says so.
pub fn table_of_commands() -> PathBuf {
    static NOTE: Once = Once::new();
    let own = default_table();
    let is_used = |path: &Path| Table::inspect(path).is_ok_and(|table| is_used(&table));
    let path = chosen(&own, Path::new(TABLE_OF_UNIT), is_used).to_owned();
    if path != own {
        NOTE.call_once(|| {
            let shown = own.display();
            let why = match own.exists() {
                true => format!("no agent uses the table {shown}"),
                false => format!("there is no table {shown}"),
            };
            print_note(&format!(
                "{why}, so this command uses {TABLE_OF_UNIT}, the table of the systemd unit"
            ));
        });
    }
    path
}

/// The second path if only that one exists, or if agents use only that one; else the first. A file
/// that this user may not see exists: opening it says what to do.
pub fn chosen<'a>(first: &'a Path, second: &'a Path, is_used: impl Fn(&Path) -> bool) -> &'a Path {
    let exists = |path: &Path| path.try_exists().unwrap_or(true);
    let takes_second = match (exists(first), exists(second)) {
        (_, false) => false,
        (false, true) => true,
        // A start that failed can leave a table that no agent uses.
        (true, true) => !is_used(first) && is_used(second),
    };
    if takes_second { second } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_table_is_used_if_no_agent_uses_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let (first, second, none) = (path("first"), path("second"), path("none"));
        std::fs::write(&first, "").unwrap();
        std::fs::write(&second, "").unwrap();
        let chosen_if =
            |used: &[&Path]| chosen(&first, &second, |path| used.contains(&path)).to_owned();
        assert_eq!(chosen_if(&[]), first);
        assert_eq!(chosen_if(&[&second]), second, "a failed start has left the first");
        assert_eq!(chosen_if(&[&first]), first);
        assert_eq!(chosen_if(&[&first, &second]), first);
        let unused = |_: &Path| false;
        assert_eq!(chosen(&none, &second, unused), second);
        assert_eq!(chosen(&none, &path("other"), unused), none, "this is the one to be named");
    }
}
