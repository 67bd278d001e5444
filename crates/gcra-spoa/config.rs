//! What the operator asks for, checked, and why it can't be had if so.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;
use std::{env, io};

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use gcra_table::{Rate, RateError, Slots};
use nix::unistd::Group;
use spop_agent::{ListenAddress, Scope, SocketAccess, VarName};

use crate::key::Key;
use crate::policy::answer::Answers;
use crate::policy::{self, Hashing, KeyParts, Limit, Overrides, Policies, Policy, Rule};

/// An exact rate limiter for HAProxy, as an SPOE agent.
///
/// HAProxy asks it about each request; it answers txn.gcra.blocked=true or false, and HAProxy's
/// rules deny what is blocked. All agents that use one table file share one limit, however many
/// they are and however often they are killed or restarted.
#[derive(Debug, Parser)]
#[command(name = "gcra-spoa", version, after_help = AFTER_HELP, max_term_width = 100)]
#[command(
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
struct Args {
    /// How many requests each key may make: 100/s, 5000/m, 10/h, 1000/d, 0.5/s, 1/10s, 100/250ms;
    /// 'deny' for none at all, 'unlimited' for all of them
    #[arg(
        long,
        value_name = "COUNT/PERIOD",
        allow_hyphen_values = true,
        required_unless_present = "config"
    )]
    rate: Option<RateArg>,

    /// A file with policies, for more than one limit, instead of --rate and the flags that go
    /// with it. Read again on SIGHUP, and when 'gcra-spoa reload' asks for it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "burst", "key", "cost", "var", "scope"])]
    config: Option<PathBuf>,

    /// Read the file of --config again when it, or a list that it names, has changed, without
    /// being told. Looked at once a second
    #[arg(long)]
    watch: bool,

    /// How many of them an idle key may make at once [default: the rate's own count, so 100 for
    /// 100/s]
    #[arg(long, value_name = "COUNT")]
    burst: Option<u64>,

    /// Where HAProxy connects to: IP:PORT, unix:/PATH, abns:NAME (an abstract socket), or
    /// 'inherited' for the sockets that systemd has opened. May be given several times
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    listen: Vec<ListenAddress>,

    /// The mode of the Unix sockets that the agent makes, in octal, like 0660: who may write to
    /// one may connect [default: what the umask leaves of 0777]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    socket_mode: Option<u32>,

    /// The group of the Unix sockets that the agent makes, by name or number, like haproxy. The
    /// agent's user must be a member of it, or root [default: that of a new file]
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    socket_group: Option<u32>,

    /// The file with the buckets, made when it is not there. Agents that name the same file share
    /// one limit [default: gcra-spoa.table in $RUNTIME_DIRECTORY if systemd sets it, else
    /// /dev/shm/gcra-spoa-UID.table]
    #[arg(long, value_name = "PATH")]
    table: Option<PathBuf>,

    /// How many keys the table has room for, 16 bytes each, rounded up to a power of two. Twice
    /// the keys active within burst/rate is plenty; when all are taken the key that owes
    /// least is forgotten first [default: what the file has, 1048576 for a new one]
    #[arg(long, value_name = "N", value_parser = parse_slots)]
    slots: Option<Slots>,

    /// The args that make the key, by name, comma separated [default: all args of the message but
    /// that of --cost, by type and value]
    #[arg(long, value_name = "ARG,…", value_delimiter = ',')]
    key: Vec<String>,

    /// The name of the arg that says how many requests a message stands for: an integer, charged
    /// whole or not at all. 0 is never blocked and charges nothing; more than the burst is
    /// always blocked; a message without it (or with null) counts as one request. It is no
    /// part of the key
    #[arg(long, value_name = "ARG")]
    cost: Option<String>,

    /// The name of the variable that is set. HAProxy puts scope and prefix in front, and drops it
    /// if all that has more than 63 characters
    #[arg(long, value_name = "NAME", default_value = "blocked", value_parser = parse_var)]
    var: VarName<'static>,

    /// The scope of the variable: proc, sess, txn, req or res
    #[arg(long, value_name = "SCOPE", default_value = "txn", value_parser = parse_scope)]
    scope: Scope,

    /// Worker threads. One answers millions of requests a second, more than HAProxy can ask on
    /// the same machine; each further one takes a core from HAProxy
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_threads)]
    threads: NonZeroUsize,

    /// How long a stopping agent goes on answering before it says goodbye. Its health check fails
    /// meanwhile, so that HAProxy turns to another agent: twice what the check takes (inter x
    /// fall) is enough. A single agent needs 0, because HAProxy asks nobody while the only agent
    /// is DOWN [default: 0 with --listen inherited, else 3]
    #[arg(long, value_name = "SECONDS", value_parser = parse_drain)]
    drain: Option<Duration>,

    /// Keep a worker awake for so many microseconds after each request, for the next one. Saves
    /// the time of a wake-up, and costs a core while requests come
    #[arg(long, value_name = "MICROS", default_value = "0", value_parser = parse_busy_poll)]
    busy_poll: Duration,

    /// The largest frame that HAProxy may send, in bytes, up to 1048576. HAProxy's own are
    /// tune.bufsize - 4, and the smaller of both holds; so a larger one is for a HAProxy with
    /// a larger tune.bufsize whose messages are larger than 16 KiB
    #[arg(long, value_name = "BYTES", default_value = "16380", value_parser = parse_frame_size)]
    max_frame_size: u32,

    /// How much memory all connections together may keep of incomplete frames and of answers that
    /// are not read: bytes, or 256K, 256M, 1G. A connection that needs more than is left is
    /// ended; one whose frames come whole needs none
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    buffers: usize,

    /// Where to answer what is counted and who is blocked, over HTTP: /metrics, /status, /healthz
    /// and /readyz. Nobody is asked who they are, so it should be an address that only
    /// operators reach [default: nowhere]
    #[arg(long, value_name = "IP:PORT", value_parser = parse_admin)]
    admin: Option<SocketAddr>,

    /// A name under which --admin is asked, such as limiter1.example.com, if that is neither an
    /// IP address nor localhost nor the machine's own name: what stands in the targets of
    /// Prometheus. May be given several times. Requests under other names get status 421,
    /// because a web site could have sent them through a visitor's browser
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "admin", value_parser = parse_host)]
    admin_host: Vec<String>,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Look after a table, beside agents that use it or while none runs
    #[command(subcommand)]
    Table(TableCommand),
    /// Watch an agent that was started with --admin: who is blocked, how many, how fast. 'q' ends
    /// it
    Top(Top),
    /// Check a configuration file, and say in words what it means; the exit status is 1 if
    /// anything is wrong
    Check {
        /// The file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,

        /// Print a configuration of HAProxy that fits instead
        #[arg(long)]
        print_haproxy: bool,
    },
    /// Check a configuration file, ask all agents of a table to read theirs again, and say what
    /// they answer. The exit status is 0 when it is in force in all that are alive
    Reload {
        /// The file that the agents were started with
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        at: At,
    },
}

/// Which agent to watch, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// What the agent's --admin is
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9101", value_parser = parse_admin)]
    pub(crate) admin: SocketAddr,
    /// Watch for one second and print that as plain text
    #[arg(long)]
    pub(crate) once: bool,
}

/// What can be done to a table from the command line.
#[derive(Debug, Subcommand)]
pub(crate) enum TableCommand {
    /// Show how full it is, who uses it, and what was forgotten for want of room
    Info(At),
    /// Show what keys may still do under a limit
    #[command(after_help = KEY_HELP)]
    Get {
        #[command(flatten)]
        at: At,
        /// The limit to measure them by, as the agents have it
        #[arg(long, value_name = "COUNT/PERIOD", allow_hyphen_values = true)]
        rate: Rate,
        /// Its burst, if the agents have one
        #[arg(long, value_name = "COUNT")]
        burst: Option<u64>,
        /// The keys; see below
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<Key>,
    },
    /// Forgive keys all they owe, so that they have their full burst at once
    #[command(after_help = KEY_HELP)]
    Reset {
        #[command(flatten)]
        at: At,
        /// The keys; see below
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<Key>,
    },
    /// Give it another number of slots. Agents move by themselves, and no bucket is forgotten
    Resize {
        #[command(flatten)]
        at: At,
        /// How many, rounded up to a power of two
        #[arg(long, value_name = "N", value_parser = parse_slots)]
        slots: Slots,
    },
    /// Verify what must always hold. Exit status 1 when something does not
    Check(At),
}

/// Which table, and how to answer.
#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// The file with the buckets [default: as for the agent]
    #[arg(long, value_name = "PATH")]
    table: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl At {
    /// The table's path.
    pub(crate) fn path(&self) -> PathBuf {
        self.table.clone().unwrap_or_else(default_table)
    }
}

/// How long one of several agents drains, unless `--drain` says so. HAProxy's check may take half
/// of it to find out.
const DRAIN: Duration = Duration::from_secs(3);

const KEY_HELP: &str = "\
A KEY is what the agent makes keys of: the values of the args, in order, separated by commas.
  192.0.2.1              an address, as 'src' gives it (the shipped configurations cut IPv6
                         addresses to their first 64 bits: 2001:db8:1:2::)
  192.0.2.1,/login       an address and a string
  str:192.0.2.1          a string that looks like an address
  int64:7  uint32:7  bool:true  hex:00ff  null:      other types
A comma or backslash within a value has a backslash before it.";

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Task {
    /// To be an agent.
    Serve(Box<Config>),
    /// To look after a table.
    Table(TableCommand),
    /// To check a configuration file, and print one for HAProxy.
    Check { config: PathBuf, print_haproxy: bool },
    /// To tell agents that their configuration has changed.
    Reload { config: PathBuf, at: At },
    /// To watch an agent.
    Top(Top),
}

const AFTER_HELP: &str = "\
Examples:
  gcra-spoa --rate 100/s --burst 20
      Each client (each value of the message's args) may make 100 requests per second, up to 20 at once.
  gcra-spoa --rate 1000/h --key key --listen unix:/run/gcra-spoa/agent.sock
      Each API key (the arg named 'key') may make 1000 requests per hour.

  gcra-spoa --rate 100/s --burst 20 --cost cost
      The arg 'cost' of a message says how many requests it is charged for.

  gcra-spoa --config gcra-spoa.toml --admin 127.0.0.1:9101
      As the policies in the file say, which docs/CONFIG.md explains; and what happens can be watched.

  gcra-spoa table info
      How full the table is, and who uses it. 'gcra-spoa table --help' has more.

  gcra-spoa top
      Who is blocked now, beside an agent that was started with --admin 127.0.0.1:9101.

In HAProxy, haproxy.cfg needs 'filter spoe' and a rule such as
  http-request deny status 429 if { var(txn.gcra.blocked) -m bool }
Complete files are in the haproxy/ folder of the project.

RUST_LOG=debug shows every connection. SIGTERM, SIGINT or SIGUSR1 stops in order, SIGHUP reads --config again.
Exit status: 0 stopped by a signal, 1 could not run, 2 wrong usage.";

/// What `--rate` may be.
#[derive(Clone, Copy, Debug)]
enum RateArg {
    Deny,
    Unlimited,
    Rate(Rate),
}

impl FromStr for RateArg {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        match text {
            "deny" => Ok(Self::Deny),
            "unlimited" => Ok(Self::Unlimited),
            _ => text.parse().map(Self::Rate),
        }
    }
}

/// Where the policies are from.
#[derive(Debug)]
pub(crate) enum Source {
    Flags(Box<Policies>),
    File(PathBuf),
}

/// Everything the daemon needs to know.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) policies: Source,
    /// Whether the file is read again when it changes.
    pub(crate) watch: bool,
    pub(crate) listen: Vec<ListenAddress>,
    pub(crate) socket_access: SocketAccess,
    pub(crate) table: PathBuf,
    pub(crate) slots: Option<Slots>,
    pub(crate) threads: NonZeroUsize,
    pub(crate) drain: Duration,
    pub(crate) busy_poll: Duration,
    pub(crate) max_frame_size: u32,
    /// In bytes.
    pub(crate) buffers: usize,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) admin_hosts: Vec<String>,
}

/// Parses the command line. On an error, or when help was asked for, that is printed and the exit
/// status returned.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Task, ExitCode> {
    let parse = || Args::from_arg_matches(&Args::command().try_get_matches_from(args)?);
    let args = parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Nobody reads the help where standard output is closed.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => usage_error(&in_one_sentence(&error)),
    })?;
    match args.command {
        Some(Command::Table(command)) => Ok(Task::Table(command)),
        Some(Command::Check { config, print_haproxy }) => {
            Ok(Task::Check { config, print_haproxy })
        }
        Some(Command::Reload { config, at }) => Ok(Task::Reload { config, at }),
        Some(Command::Top(top)) => Ok(Task::Top(top)),
        None => Config::from_parsed(args)
            .map(|config| Task::Serve(Box::new(config)))
            .map_err(|error| usage_error(&error)),
    }
}

impl Config {
    fn from_parsed(args: Args) -> Result<Self, String> {
        let policies = match &args.config {
            Some(file) => Source::File(file.clone()),
            None => Source::Flags(Box::new(policies_of_flags(&args)?)),
        };
        if args.watch && args.config.is_none() {
            return Err("--watch reads the file of --config again, and there is none; leave it out, or write the limit into a \
                        file and name that with --config"
                .to_owned());
        }
        let mut socket_access = SocketAccess::default();
        if let Some(mode) = args.socket_mode {
            socket_access = socket_access.mode(mode);
        }
        if let Some(group) = args.socket_group {
            socket_access = socket_access.group(group);
        }
        let is_unix = |address: &ListenAddress| matches!(address, ListenAddress::Unix(_));
        if socket_access != SocketAccess::default() && !args.listen.iter().any(is_unix) {
            return Err("--socket-mode and --socket-group are for Unix sockets with a path, and there is no --listen unix:/PATH; \
                        for 'inherited' the .socket unit has SocketMode= and SocketGroup="
                .to_owned());
        }
        // Sockets that outlive the agent are for a single one. Connections wait in them for the
        // next agent, and a check that failed meanwhile would only make HAProxy stop asking.
        let inherits = args.listen.contains(&ListenAddress::Inherited);
        let drain = args.drain.unwrap_or(if inherits { Duration::ZERO } else { DRAIN });
        Ok(Self {
            policies,
            watch: args.watch,
            listen: args.listen,
            socket_access,
            table: args.table.unwrap_or_else(default_table),
            slots: args.slots,
            threads: args.threads,
            drain,
            busy_poll: args.busy_poll,
            max_frame_size: args.max_frame_size,
            buffers: args.buffers,
            admin: args.admin,
            admin_hosts: args.admin_host,
        })
    }
}

/// The flags' one policy, for every message.
fn policies_of_flags(args: &Args) -> Result<Policies, String> {
    let rule = match (args.rate.as_ref().ok_or("--rate is missing")?, args.burst) {
        (RateArg::Rate(rate), burst) => {
            let quota = rate.quota(burst).map_err(|error| error.to_string())?;
            let text = format!("{rate}, up to {} at once", quota.burst()).into();
            Rule::Limits(vec![Limit { label: "default".into(), id: 0, quota, text }])
        }
        (RateArg::Deny, None) => Rule::Deny,
        (RateArg::Unlimited, None) => Rule::Unlimited,
        (RateArg::Deny | RateArg::Unlimited, Some(_)) => {
            return Err(
                "--burst has no meaning with --rate deny or --rate unlimited; leave it out"
                    .to_owned(),
            );
        }
    };
    if args.key.iter().any(String::is_empty) {
        return Err(
            "--key has an empty name; write the names of args, like --key ip,path".to_owned()
        );
    }
    if let Some(cost) = &args.cost {
        if cost.is_empty() {
            return Err(
                "--cost has an empty name; write the name of an arg, like --cost cost".to_owned()
            );
        }
        if args.key.contains(cost) {
            return Err(format!(
                "--key and --cost both name '{cost}', so that each cost would have a bucket of its own; leave it out of \
                 --key"
            ));
        }
    }
    let key = KeyParts::exact(args.key.iter().map(|name| name.as_bytes().into()).collect());
    let cost: Option<Box<[u8]>> = args.cost.as_ref().map(|name| name.as_bytes().into());
    let overrides = Overrides::default();
    let hashing = Hashing::of(&key, cost.as_deref(), None, &overrides);
    let policy = Policy {
        name: "default".into(),
        message: None,
        when: None,
        key,
        cost,
        rule,
        overrides,
        observes: false,
        penalty: None,
        hashing,
    };
    let answers = Answers { scope: args.scope, blocked: args.var, others: Vec::new() };
    Ok(Policies { list: vec![policy], answers, files: Vec::new(), digest: 0 })
}

impl Source {
    /// The policies, or what is wrong with them: a line for each mistake.
    pub(crate) fn read(self) -> Result<(Policies, Option<PathBuf>), Vec<String>> {
        match self {
            Self::Flags(policies) => Ok((*policies, None)),
            Self::File(file) => policy::file::read(&file).map(|policies| (policies, Some(file))),
        }
    }
}

pub(crate) fn usage_error(sentence: &str) -> ExitCode {
    eprintln!("gcra-spoa: {sentence}");
    ExitCode::from(2)
}

/// What clap says over several lines, without its usage summary.
fn in_one_sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let said = text.split("\n\nUsage:").next().unwrap_or(&text);
    let said = said.split("\n\nFor more information").next().unwrap_or(said);
    let said = said.strip_prefix("error: ").unwrap_or(said).replace("\n\n  tip:", ";");
    let words: Vec<_> = said.split_whitespace().collect();
    format!("{} (see gcra-spoa --help)", words.join(" "))
}

fn default_table() -> PathBuf {
    // systemd may name several directories; the first is the service's own.
    let runtime_directory = env::var("RUNTIME_DIRECTORY").unwrap_or_default();
    match runtime_directory.split(':').next() {
        Some(directory) if !directory.is_empty() => Path::new(directory).join("gcra-spoa.table"),
        _ => format!("/dev/shm/gcra-spoa-{}.table", rustix::process::geteuid().as_raw()).into(),
    }
}

/// Whether a file lies in memory.
pub(crate) fn is_on_tmpfs(path: &Path) -> io::Result<bool> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    Ok(rustix::fs::statfs(path)?.f_type == TMPFS_MAGIC)
}

fn parse_slots(text: &str) -> Result<Slots, String> {
    let slots = text.parse().map_err(|_| format!("'{text}' is not a whole number"))?;
    Slots::new(slots).map_err(|error| error.to_string())
}

fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    match text.parse() {
        Ok(threads @ 1..=1024) => NonZeroUsize::new(threads).ok_or_else(String::new),
        _ => Err(format!("'{text}' is not a number of threads from 1 to 1024")),
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let is_octal =
        (3..=4).contains(&text.len()) && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    match u32::from_str_radix(text, 8) {
        // Its owner must be able to find out later whether an agent listens there.
        Ok(mode) if is_octal && mode <= 0o777 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err(format!(
            "'{text}' is not a mode from 0600 to 0777 with which its owner may read and write, such as 0660"
        )),
    }
}

fn parse_group(text: &str) -> Result<u32, String> {
    match text.parse() {
        // To chown(2) it means that nothing is to be changed.
        Ok(u32::MAX) => {
            return Err(format!("{text} is the number of no group; name one, such as haproxy"));
        }
        Ok(number) => return Ok(number),
        Err(_) => {}
    }
    match Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(format!(
            "there is no group '{text}' on this machine; name one, such as haproxy, or its number"
        )),
        Err(error) => Err(format!(
            "the group '{text}' could not be looked up: {error}; its number may be given instead"
        )),
    }
}

fn parse_busy_poll(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(micros @ 0..=1_000_000) => Ok(Duration::from_micros(micros)),
        _ => Err("it is a number of microseconds, from 0 (off) to 1000000; 50 is enough for most"
            .to_owned()),
    }
}

fn parse_frame_size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ 256..=1_048_576) => Ok(bytes),
        _ => Err(format!("'{text}' is not a number of bytes from 256 to 1048576")),
    }
}

/// Bytes, with K, M or G for powers of 1024. At least 1 MiB, so that each kind of connection finds
/// room.
fn parse_size(text: &str) -> Result<usize, String> {
    let units = [("K", 10), ("M", 20), ("G", 30)];
    let (digits, power) = units
        .into_iter()
        .find_map(|(unit, power)| Some((text.strip_suffix(unit)?, power)))
        .unwrap_or((text, 0));
    let digits = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let bytes = digits.and_then(|digits| digits.parse::<usize>().ok()?.checked_mul(1 << power));
    bytes
        .filter(|bytes| *bytes >= 1 << 20)
        .ok_or_else(|| format!("'{text}' is not a size of 1M or more, such as 256M or 1G"))
}

fn parse_admin(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("'{text}' is not IP:PORT, such as 127.0.0.1:9101"))
}

fn parse_host(text: &str) -> Result<String, String> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    match text.strip_suffix('.').unwrap_or(text) {
        name if is_name && (1..=253).contains(&name.len()) => Ok(name.to_ascii_lowercase()),
        _ => Err(format!(
            "'{text}' is not the name of a host, without a port, such as limiter1.example.com"
        )),
    }
}

fn parse_drain(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0..=300) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("'{text}' is not a number of seconds from 0 to 300")),
    }
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    text.parse().map_err(|_| format!("'{text}' is not one of proc, sess, txn, req, res"))
}

/// The name is needed for as long as the process lives.
fn parse_var(text: &str) -> Result<VarName<'static>, String> {
    VarName::new(String::leak(text.to_owned())).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Config, String> {
        let args = ["gcra-spoa"].into_iter().chain(args.split_whitespace());
        let args = Args::try_parse_from(args).map_err(|error| in_one_sentence(&error))?;
        Config::from_parsed(args)
    }

    fn words(args: &str) -> String {
        let Source::Flags(policies) = parse(args).unwrap().policies else {
            panic!("not the flags")
        };
        policies.list[0].in_words()
    }

    fn error(args: &str) -> String {
        let error = parse(args).unwrap_err();
        assert!(!error.contains('\n'), "more than one line: {error}");
        error
    }

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        let config = parse("--rate 1/s").unwrap();
        assert_eq!((config.max_frame_size, config.buffers), (16_380, 256 << 20));
        for (text, bytes) in
            [("1048576", 1 << 20), ("2048K", 2 << 20), ("1M", 1 << 20), ("3G", 3 << 30)]
        {
            assert_eq!(parse(&format!("--rate 1/s --buffers {text}")).unwrap().buffers, bytes);
        }
        for wrong in ["1023K", "0", "M", "+2M", "1.5G", "2m", "99999999999G", "256MB"] {
            let message = error(&format!("--rate 1/s --buffers {wrong}"));
            assert!(message.contains("is not a size of 1M or more"), "{message}");
        }
        assert_eq!(parse("--rate 1/s --max-frame-size 65532").unwrap().max_frame_size, 65_532);
        for wrong in ["255", "1048577", "64K"] {
            let message = error(&format!("--rate 1/s --max-frame-size {wrong}"));
            assert!(message.contains("from 256 to 1048576"), "{message}");
        }
    }

    #[test]
    fn limits_in_words() {
        assert_eq!(
            words("--rate 100/s --burst 20 --key ip"),
            "100 per second, up to 20 at once, for each ip"
        );
        assert_eq!(
            words("--rate 5000/m"),
            "5000 per minute, up to 5000 at once, for each value of the message's args"
        );
        assert_eq!(
            words("--rate 10/s --key ip --cost n"),
            "10 per second, up to 10 at once, for each ip, at the cost that n says"
        );
        assert_eq!(
            words("--rate deny --key ip,path"),
            "nothing is let through, for each ip and path"
        );
        assert_eq!(words("--rate unlimited --key ip"), "everything is let through, for each ip");
    }

    #[test]
    fn every_wrong_setting_is_one_clear_sentence() {
        for (args, said) in [
            ("", "--rate <COUNT/PERIOD>"),
            ("--rate 0/s", "write 'deny'"),
            ("--rate -1/s", "not a positive number"),
            ("--rate 100", "it has no '/'"),
            ("--rate 100/fortnight", "must end in ms, s, m, h or d"),
            ("--rate 99999999999999999999/s", "too many digits"),
            ("--rate 100/s --burst 0", "the smallest is 1"),
            ("--rate 100/s --burst 1.5", "'1.5'"),
            ("--rate 1/d --burst 100000", "takes 100000 days to drain"),
            ("--rate deny --burst 5", "--burst has no meaning"),
            ("--rate 1/s --listen localhost", "IP:PORT"),
            ("--rate 1/s --slots 3", "from 8 to 1073741824"),
            ("--rate 1/s --slots many", "'many' is not a whole number"),
            ("--rate 1/s --threads 0", "from 1 to 1024"),
            ("--rate 1/s --drain 1h", "from 0 to 300"),
            ("--rate 1/s --admin localhost:9101", "'localhost:9101' is not IP:PORT"),
            ("--rate 1/s --admin-host a.example", "--admin <IP:PORT>"),
            ("--rate 1/s --admin 127.0.0.1:0 --admin-host a.example:9101", "without a port"),
            ("--rate 1/s --admin 127.0.0.1:0 --admin-host a,,b", "'' is not the name of a host"),
            ("--rate 1/s --listen unix:/x --socket-mode 0666x", "'0666x' is not a mode"),
            ("--rate 1/s --listen inherited --socket-mode 0660", "SocketMode="),
            ("--rate 1/s --busy-poll 1ms", "from 0 (off) to 1000000"),
            ("--rate 1/s --key ip,,path", "empty name"),
            ("--rate 1/s --key ip,n --cost n", "both name 'n'"),
            ("--rate 1/s --cost=", "--cost has an empty name"),
            ("--rate 1/s --var no-dashes", "no-dashes"),
            ("--rate 1/s --scope txn2", "proc, sess, txn, req, res"),
            ("--rate 1/s --brust 5", "--burst"),
        ] {
            let sentence = error(args);
            assert!(sentence.contains(said), "{args}: {sentence}");
        }
    }

    #[test]
    fn an_agent_on_inherited_sockets_does_not_drain_unless_told_to() {
        let drain = |args: &str| parse(args).unwrap().drain.as_secs();
        assert_eq!(drain("--rate 1/s"), 3);
        assert_eq!(drain("--rate 1/s --listen inherited"), 0);
        assert_eq!(drain("--rate 1/s --listen inherited --drain 2"), 2);
    }

    #[test]
    fn defaults() {
        let config = parse("--rate 100/s").unwrap();
        assert_eq!(config.listen, ["127.0.0.1:9000".parse().unwrap()]);
        assert_eq!(config.slots, None);
        assert_eq!(config.threads.get(), 1);
        let Source::Flags(policies) = config.policies else { panic!("not the flags") };
        assert_eq!(
            policies.list[0].limits().map(|limit| limit.quota.burst()).collect::<Vec<_>>(),
            [100]
        );
        assert_eq!(
            (policies.answers.blocked.as_str(), policies.answers.scope),
            ("blocked", Scope::Transaction)
        );
    }
}
