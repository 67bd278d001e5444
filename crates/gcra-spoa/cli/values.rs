//! The values of flags: from a string to a value, or to a sentence about the mistake in it.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use gcra_inspect::flags::not_a_socket_address;
use gcra_text::duration::{self, Exact};
use nix::unistd::Group;
use spop_agent::{ListenAddress, Scope, VarName};

const MAX_DRAIN: Duration = Duration::from_secs(300);

/// The longest path of a Unix socket, and the longest name of an abstract one, in bytes.
const MAX_SOCKET_PATH: usize = 107;

const MAX_BUSY_POLL: Duration = Duration::from_secs(1);

pub(super) fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    match text.parse() {
        Ok(threads @ 1..=1024) => NonZeroUsize::new(threads).ok_or_else(String::new),
        _ => Err(format!("'{text}' is not a number of threads from 1 to 1024")),
    }
}

pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    let is_octal =
        (3..=4).contains(&text.len()) && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    match u32::from_str_radix(text, 8) {
        // An agent of the same user must be able to find out later whether this one still listens.
        Ok(mode) if is_octal && mode <= 0o777 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err(format!(
            "'{text}' is not a mode from 0600 to 0777 that lets the owner read and write, such \
             as 0660"
        )),
    }
}

pub(super) fn parse_group(text: &str) -> Result<u32, String> {
    match text.parse() {
        // For chown(2) this number means that the group stays as it is.
        Ok(u32::MAX) => {
            return Err(format!("{text} is not the number of a group; name one, such as haproxy"));
        }
        Ok(number) => return Ok(number),
        Err(_) => {}
    }
    match Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(format!(
            "there is no group '{text}' on this machine; write the name or number of a group \
             that exists, such as haproxy"
        )),
        Err(error) => Err(format!(
            "the group '{text}' could not be looked up: {error}; write its number instead"
        )),
    }
}

pub(super) fn parse_busy_poll(text: &str) -> Result<Duration, String> {
    parse_time(text, Duration::from_micros(1), "us", MAX_BUSY_POLL)
}

pub(super) fn parse_drain(text: &str) -> Result<Duration, String> {
    parse_time(text, Duration::from_secs(1), "s", MAX_DRAIN)
}

/// A duration with a unit, or a number of `bare` units, from 0 to `most`.
fn parse_time(text: &str, bare: Duration, unit: &str, most: Duration) -> Result<Duration, String> {
    let with_unit = match text.parse::<u32>() {
        Ok(count) => bare.checked_mul(count),
        Err(_) => duration::parse(text),
    };
    with_unit.filter(|time| *time <= most).ok_or_else(|| {
        format!(
            "'{text}' is not a time from 0{unit} to {}; write a whole number and a unit ({})",
            Exact(most),
            duration::UNITS_IN_WORDS
        )
    })
}

pub(super) fn parse_frame_size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ 256..=1_048_576) => Ok(bytes),
        _ => Err(format!("'{text}' is not a number of bytes from 256 to 1048576")),
    }
}

/// Bytes, with K, M or G for powers of 1024. At least 1 MiB, enough for any one connection.
pub(super) fn parse_size(text: &str) -> Result<usize, String> {
    let units = [("K", 10), ("M", 20), ("G", 30)];
    let (digits, power) = units
        .into_iter()
        .find_map(|(unit, power)| Some((text.strip_suffix(unit)?, power)))
        .unwrap_or((text, 0));
    let digits = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let bytes = digits.and_then(|digits| digits.parse::<usize>().ok()?.checked_mul(1 << power));
    match bytes {
        Some(bytes) if bytes >= 1 << 20 => Ok(bytes),
        Some(_) => Err(format!("'{text}' is too little; the least is 1M, such as 256M or 1G")),
        None => Err(format!(
            "'{text}' is not a size; write a whole number and K, M or G, 1M or more, such as \
             256M or 1G"
        )),
    }
}

fn not_ip_and_port(text: &str, v6: &str, right: &str) -> String {
    if let Some(mistake) = not_a_socket_address(text, v6, right) {
        return mistake;
    }
    match text.rsplit_once(':') {
        Some(("" | "*", port)) => format!(
            "'{text}' has no IP address; write 0.0.0.0:{port} for all IPv4 addresses of this \
             machine, or 127.0.0.1:{port}, which only this machine can reach"
        ),
        Some((host, _)) => format!("'{host}' in '{text}' is not an IP address; write {right}"),
        None => format!("'{text}' is not an address; write {right}"),
    }
}

/// An address, of which the name `localhost` is one, too.
pub(super) fn parse_admin(text: &str) -> Result<SocketAddr, String> {
    let on_localhost = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let localhost = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    localhost
        .map(on_localhost)
        .or_else(|| text.parse().ok())
        .ok_or_else(|| not_ip_and_port(text, "[::1]:9101", "IP:PORT, such as 127.0.0.1:9101"))
}

/// An address to listen on. HAProxy and the agent rarely have the same working directory, so a
/// path must be absolute.
pub(super) fn parse_listen(text: &str) -> Result<ListenAddress, String> {
    const RIGHT: &str = "IP:PORT, such as 127.0.0.1:9000, unix:/PATH, abns:NAME or inherited";
    match (text.parse(), text.split_once(['@', ':'])) {
        (Ok(ListenAddress::Unix(path)), _) if path.is_relative() => Err(format!(
            "the path in '{text}' is relative; write all of it, such as \
             unix:/run/gcra-spoa/agent.sock"
        )),
        (Ok(ListenAddress::Unix(path)), _) if path.as_os_str().len() > MAX_SOCKET_PATH => {
            Err(format!(
                "the path in '{text}' has {} bytes, and that of a socket may have \
                 {MAX_SOCKET_PATH}; choose a shorter one",
                path.as_os_str().len()
            ))
        }
        (Ok(address), _) => Ok(address),
        (Err(_), Some((kind @ ("unix" | "abns"), name))) if text.contains('@') => {
            Err(format!("'{text}' is HAProxy's notation; write {kind}:{name}"))
        }
        (Err(_), Some(("unix", _))) => Err(format!("'{text}' has no path; write unix:/PATH")),
        (Err(_), Some(("abns", name))) => Err(format!(
            "the name in '{text}' must have 1 to {MAX_SOCKET_PATH} bytes, and has {}",
            name.len()
        )),
        (Err(_), _) if text.starts_with('/') => {
            Err(format!("'{text}' is only a path; write unix:{text}"))
        }
        (Err(_), _) => Err(not_ip_and_port(text, "[::1]:9000", RIGHT)),
    }
}

pub(super) fn parse_host(text: &str) -> Result<String, String> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    match text.strip_suffix('.').unwrap_or(text) {
        name if is_name && (1..=253).contains(&name.len()) => Ok(name.to_ascii_lowercase()),
        _ => Err(format!(
            "'{text}' is not a host name without a port, such as limiter1.example.com"
        )),
    }
}

pub(super) fn parse_scope(text: &str) -> Result<Scope, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not a scope; write one of proc, sess, txn, req, res"))
}

/// The name is leaked, because it is needed until the process ends.
pub(super) fn parse_var(text: &str) -> Result<VarName<'static>, String> {
    if let Some((scope, name)) = text.split_once('.')
        && scope.parse::<Scope>().is_ok()
    {
        return Err(format!("'{text}' begins with a scope; write --scope {scope} --var {name}"));
    }
    VarName::new(String::leak(text.to_owned()))
        .map_err(|error| format!("'{text}' cannot be used: {error}"))
}
