//! The command line: every flag and command, checked and turned into values.

use std::error::Error as _;
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use gcra_admin::top::command::{Top, not_a_socket_address, parse_host_and_port};
use gcra_inspect::commands::audit::{AUDIT_HELP, Audit};
use gcra_inspect::commands::exempt::{EXEMPT_HELP, Exempt};
use gcra_inspect::commands::explain::{EXPLAIN_HELP, Explain};
use gcra_inspect::commands::name::{NAME_HELP, Name};
use gcra_inspect::commands::store::{StoreCommand, StoreSource};
use gcra_inspect::commands::table::TableCommand;
use gcra_inspect::flags::{At, ConfigFile, default_table};
use gcra_policy::answers::Answers;
use gcra_policy::flags::{
    LimitFlags, Source, StoreFlags, parse_slots, parse_store_wait, parse_without_store,
    policies_of_flags,
};
use gcra_policy::sharing::{Sharing, WithoutStore};
use gcra_replay::args::{REPLAY_HELP, Replay};
use gcra_table::Slots;
use gcra_text::duration::{self, Exact};
use gcra_text::output::complain;
use gcra_text::version;
use nix::unistd::Group;
use spop_agent::{ListenAddress, Scope, SocketAccess, VarName};

/// An exact rate limiter for HAProxy, as an SPOE agent.
///
/// HAProxy asks it about each request. It answers by setting the variable txn.gcra.blocked to true
/// or false, and rules in haproxy.cfg deny the requests that are blocked. All agents that use the
/// same table file share one limit, and what clients owe is kept when agents are restarted or
/// killed.
#[derive(Debug, Parser)]
#[command(name = "gcra-spoa", version = version::WORDS, max_term_width = 80)]
#[command(after_help = AFTER_SHORT_HELP, after_long_help = AFTER_HELP)]
#[command(
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
struct Args {
    #[command(flatten)]
    limit: LimitFlags,

    #[command(flatten)]
    store: StoreFlags,

    /// How long a request waits for the store at most, from 1ms to 10s [default: 20ms]
    ///
    /// Only requests of clients that are new or near their limit wait. 'timeout processing' of
    /// HAProxy must be longer.
    #[arg(long, value_name = "TIME", value_parser = parse_store_wait)]
    #[arg(allow_hyphen_values = true, requires = "store", conflicts_with = "config")]
    store_wait: Option<Duration>,

    /// What happens while the store cannot be used: share, closed or open [default: share]
    ///
    /// 'share' lets each machine allow its share of the limit, 'closed' blocks requests, and
    /// 'open' allows them for 10s, and then does as 'share' does. 'open' also allows, at any time,
    /// each request that stops waiting for a slow store.
    #[arg(long, value_name = "WORD", value_parser = parse_without_store)]
    #[arg(requires = "store", conflicts_with = "config")]
    without_store: Option<WithoutStore>,

    /// The variable that is set, without its scope and prefix
    ///
    /// HAProxy puts the scope and its prefix in front of the name, and ignores the variable if
    /// all that is longer than 63 characters.
    #[arg(long, value_name = "NAME", default_value = "blocked", value_parser = parse_var)]
    var: VarName<'static>,

    /// The scope of the variable: proc, sess, txn, req or res
    #[arg(long, value_name = "SCOPE", default_value = "txn", value_parser = parse_scope)]
    scope: Scope,

    /// A file with policies, instead of --rate: for more than one limit
    ///
    /// It replaces --rate, --burst, --key, --cost, --var and --scope. It is read again on SIGHUP
    /// and on 'gcra-spoa reload'. docs/CONFIG.md describes it, and 'gcra-spoa check FILE' checks
    /// it.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["rate", "burst", "key", "cost", "var", "scope"]
    )]
    config: Option<PathBuf>,

    /// Read the file of --config again whenever it has changed
    ///
    /// The agent looks once a second whether the file, or a list that it names, has changed.
    #[arg(long)]
    watch: bool,

    /// Where HAProxy connects: IP:PORT, unix:/PATH, abns:NAME or 'inherited'
    ///
    /// abns:NAME is an abstract socket, which HAProxy calls abns@NAME. 'inherited' means the
    /// sockets that systemd has opened. The flag may be given several times.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:9000",
        value_parser = parse_listen
    )]
    listen: Vec<ListenAddress>,

    /// The mode of Unix sockets, in octal, such as 0660 [default: 0777 without the bits of the
    /// umask]
    ///
    /// Only users who may write to a socket can connect to it. The owner must be able to read and
    /// write.
    #[arg(long, value_name = "MODE", value_parser = parse_mode, allow_hyphen_values = true)]
    socket_mode: Option<u32>,

    /// The group of Unix sockets, by name or number, such as haproxy [default: that of any new
    /// file]
    ///
    /// The user of the agent must be root or a member of the group.
    #[arg(long, value_name = "GROUP", value_parser = parse_group, allow_hyphen_values = true)]
    socket_group: Option<u32>,

    /// The file with the buckets, which agents share [default: gcra-spoa.table in
    /// $RUNTIME_DIRECTORY if systemd sets it, else /dev/shm/gcra-spoa-UID.table]
    ///
    /// It is created if it does not exist. Agents that use the same file share one limit.
    #[arg(long, value_name = "PATH")]
    table: Option<PathBuf>,

    /// How many buckets the table can hold, 16 bytes each [default: as the file has, 1048576 if
    /// it is new]
    ///
    /// From 8 to 1073741824, rounded up to a power of two. A key needs a bucket until it is idle
    /// again, for at most burst / rate after its last request; twice the number of keys in that
    /// time is plenty. When all slots are taken, the key that owes the smallest part of its limit
    /// is forgotten first.
    #[arg(long, value_name = "N", value_parser = parse_slots)]
    #[arg(allow_negative_numbers = true)]
    slots: Option<Slots>,

    /// The number of worker threads, from 1 to 1024
    ///
    /// One thread answers millions of requests a second, more than HAProxy can ask on the same
    /// machine, and each further thread takes a core from HAProxy.
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_threads)]
    #[arg(allow_negative_numbers = true)]
    threads: NonZeroUsize,

    /// How long an agent that is being stopped keeps answering, from 0s to 5m [default: 0s with
    /// --listen inherited, else 3s]
    ///
    /// Its health check fails during that time, so that HAProxy asks another agent; twice the
    /// time that the check takes (inter x fall) is enough. Use 0s for a single agent, because
    /// HAProxy asks no agent while the only one is DOWN. A number without a unit means
    /// seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_drain, allow_hyphen_values = true)]
    drain: Option<Duration>,

    /// How long a worker stays awake after each request, from 0us to 1s, such as 50us
    ///
    /// It waits for the next request in that time, which saves the time that waking up takes, and
    /// uses a whole core while requests arrive. With 0 it sleeps at once. A number without a unit
    /// means microseconds.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_busy_poll)]
    #[arg(allow_hyphen_values = true)]
    busy_poll: Duration,

    /// The largest frame that HAProxy may send, in bytes, from 256 to 1048576
    ///
    /// HAProxy itself allows tune.bufsize - 4, and the smaller of the two values applies. So raise
    /// it only together with tune.bufsize, for messages above 16 KiB; with a smaller tune.bufsize
    /// there is nothing to do.
    #[arg(long, value_name = "BYTES", default_value = "16380", value_parser = parse_frame_size)]
    #[arg(allow_negative_numbers = true)]
    max_frame_size: u32,

    /// The most memory for unfinished frames and unread answers, in bytes, or such as 16M or 1G
    ///
    /// All connections share it. A connection that needs more than is left is closed. A
    /// connection whose frames arrive whole needs none of it.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    #[arg(allow_negative_numbers = true)]
    buffers: usize,

    /// Serve metrics and status over HTTP at this address [default: not served]
    ///
    /// A browser finds a live page there, docs/PAGE.md. For programs there are /metrics, /status,
    /// /history, /events, /explain, /healthz and /readyz. There is no authentication, so use an
    /// address that only operators can reach.
    #[arg(long, value_name = "IP:PORT", value_parser = parse_admin)]
    admin: Option<SocketAddr>,

    /// A further host name that requests to --admin may use, such as limiter1.example.com
    ///
    /// It is the name in Prometheus' targets, for example. IP addresses, localhost and the
    /// machine's own name are always allowed. Requests under other names get status 421, because
    /// a web site could have sent them through a visitor's browser. The flag may be given
    /// several times.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        requires = "admin",
        value_parser = parse_host
    )]
    admin_host: Vec<String>,

    /// Allow actions on the page of --admin to clients with the token in this file [default: none]
    ///
    /// They can clear what a client owes, exempt a client for a while, and make a policy only
    /// observe. The first line of the file is the token, at least 16 characters. The file must
    /// belong to root or to the agent's user, and other users must not be able to read it. It is
    /// read when the agent starts.
    #[arg(long, value_name = "FILE", requires = "admin")]
    admin_actions: Option<PathBuf>,

    /// Write each decision to this file [default: not written]
    ///
    /// A line has the time, the policy, the key, the cells and the outcome. Strings in keys are
    /// digests. 'gcra-spoa audit' holds the files of all agents against a limit. The lines of a
    /// burst are written before it is answered, with 40 to 80 bytes for each decision. The file
    /// must not be a link, nor belong to another user than root or the agent's.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Inspect or change a table, with or without running agents
    #[command(subcommand)]
    Table(TableCommand),
    /// Watch the agents of a table, and the clients that they block most often
    ///
    /// One of the agents must have been started with --admin. b, a and n sort by blocked and
    /// allowed requests and by name, / searches, and q quits.
    Top(Top),
    /// Check a configuration file and print what it means
    ///
    /// Mistakes and warnings are printed with their lines. The exit status is 1 if there is a
    /// mistake.
    #[command(override_usage = "gcra-spoa check [OPTIONS] <FILE>")]
    Check {
        #[command(flatten)]
        config: ConfigFile,

        /// Print a HAProxy configuration that fits the file, instead of what it means. What you
        /// have to replace in it is EDIT-THIS
        #[arg(long)]
        print_haproxy: bool,
    },
    /// Say which policy decides about a client and why, and whether it is blocked now
    ///
    /// It also says what the client owes. Nothing is charged.
    #[command(after_help = EXPLAIN_HELP)]
    Explain(Explain),
    /// Allow a client all its requests for a time
    ///
    /// The configuration stays as it is.
    #[command(after_help = EXEMPT_HELP)]
    Exempt(Exempt),
    /// Print how logs, top and /status name a client
    #[command(after_help = NAME_HELP)]
    Name(Name),
    /// Say what limits would have done to the requests in HAProxy's logs
    ///
    /// Every request is decided by the code that agents decide with, at the time that the log
    /// has for it. Nothing is changed.
    #[command(after_help = REPLAY_HELP, override_usage = "gcra-spoa replay --config FILE \
        [OPTIONS] <LOG>...")]
    Replay(Replay),
    /// Check what agents have allowed, by the files of --audit, against a limit
    ///
    /// The exit status is 1 if more was allowed, and 2 if the files have no decisions.
    #[command(after_help = AUDIT_HELP, override_usage = "gcra-spoa audit --rate COUNT/PERIOD \
        [OPTIONS] <FILE>...")]
    Audit(Audit),
    /// Check a configuration file, and make all agents of a table read theirs again
    ///
    /// The answers of the agents are printed. The exit status is 0 if the limits of the file are
    /// in force in all agents that are alive.
    #[command(override_usage = "gcra-spoa reload [OPTIONS] <FILE>")]
    Reload {
        #[command(flatten)]
        config: ConfigFile,
        #[command(flatten)]
        at: At,
    },
    /// Look at a store through which several machines can share limits
    #[command(subcommand)]
    Store(StoreCommand),
}

/// How long an agent drains unless `--drain` says otherwise. HAProxy's check may take half of it
/// to fail.
const DRAIN: Duration = Duration::from_secs(3);

const MAX_DRAIN: Duration = Duration::from_secs(300);

/// The longest path of a Unix socket, and the longest name of an abstract one, in bytes.
const MAX_SOCKET_PATH: usize = 107;

const MAX_BUSY_POLL: Duration = Duration::from_secs(1);

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Task {
    /// To run an agent.
    Serve(Box<Config>),
    /// To inspect or change a table.
    Table(TableCommand),
    /// To check a configuration file, or print one for HAProxy.
    Check { config: PathBuf, print_haproxy: bool },
    /// To ask agents to read their configuration again.
    Reload { config: PathBuf, at: At },
    /// To watch agents.
    Top(Top),
    /// To say what is decided about a client.
    Explain(Explain),
    /// To allow a client everything for a while.
    Exempt(Exempt),
    /// To name a client as logs do.
    Name(Name),
    /// To look at a store.
    StoreCheck { store: StoreSource, json: bool },
    /// To check what agents have allowed.
    Audit(Audit),
    /// To say what limits would have done.
    Replay(Box<Replay>),
}

const AFTER_SHORT_HELP: &str = "\
Examples:
  gcra-spoa --rate 100/s --burst 20
  gcra-spoa --config gcra-spoa.toml --admin 127.0.0.1:9101
  gcra-spoa explain --config gcra-spoa.toml ip=192.0.2.7

'gcra-spoa --help' says more about each flag, and 'gcra-spoa help COMMAND' about
a command.";

const AFTER_HELP: &str = "\
Examples:
  gcra-spoa --rate 100/s --burst 20
      Each client (each value of the message's args) may make 100 requests per
      second, up to 20 at once.

  gcra-spoa --rate 1000/h --key key --listen unix:/run/gcra-spoa/agent.sock
      Each API key (the arg named 'key') may make 1000 requests per hour.

  gcra-spoa --rate 100/s --burst 20 --cost cost
      The arg 'cost' of a message says how many cells its request costs.

  gcra-spoa --config gcra-spoa.toml --admin 127.0.0.1:9101
      Limits by the policies in a file (see docs/CONFIG.md), with metrics and
      status over HTTP.

  gcra-spoa explain --config gcra-spoa.toml ip=192.0.2.7
      Say whether this client is blocked now, and why.

  gcra-spoa table info
      Show how full the table is, and which agents use it. See 'gcra-spoa table
      --help'.

  gcra-spoa top
      Show which clients an agent with --admin 127.0.0.1:9101 blocks now.

haproxy.cfg needs 'filter spoe' and a rule such as
  http-request deny status 429 if { var(txn.gcra.blocked) -m bool }
The folder haproxy/ of the project has complete configurations.

A time has a unit: us, ms, s, m, h or d. The environment variable RUST_LOG=debug
makes an agent log every connection. SIGTERM, SIGINT and SIGUSR1 stop it
cleanly, and SIGHUP makes it read the file of --config again.
Exit status: 0 after a stop by signal, 1 if the agent could not run, 2 for wrong
usage.";

/// Everything that an agent needs to know.
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
    /// In bytes, for all connections together.
    pub(crate) buffers: usize,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) admin_hosts: Vec<String>,
    /// The file with the token of actions.
    pub(crate) admin_actions: Option<PathBuf>,
    /// The file of each decision.
    pub(crate) audit: Option<PathBuf>,
}

/// The command line, with its help.
pub(crate) fn command() -> clap::Command {
    Args::command()
}

/// Parses the command line. Prints the help that was asked for, or what is wrong, and then returns
/// the exit status as the error.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Task, ExitCode> {
    let args = with_flags_for_words(args.into_iter().collect());
    let parse = || Args::from_arg_matches(&Args::command().try_get_matches_from(&args)?);
    let parsed = parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // If standard output is closed, no one reads the help.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => usage_error(&in_one_sentence(&error, &args)),
    })?;
    match parsed.command {
        Some(Command::Table(command)) => Ok(Task::Table(command)),
        Some(Command::Check { config, print_haproxy }) => {
            Ok(Task::Check { config: config.path(), print_haproxy })
        }
        Some(Command::Reload { config, at }) => Ok(Task::Reload { config: config.path(), at }),
        Some(Command::Top(top)) => Ok(Task::Top(top)),
        Some(Command::Explain(explain)) => Ok(Task::Explain(explain)),
        Some(Command::Exempt(exempt)) => Ok(Task::Exempt(exempt)),
        Some(Command::Name(name)) => Ok(Task::Name(name)),
        Some(Command::Store(StoreCommand::Check(check))) => {
            let json = check.json;
            let store = check.source().map_err(|error| usage_error(&error))?;
            Ok(Task::StoreCheck { store, json })
        }
        Some(Command::Audit(audit)) => Ok(Task::Audit(audit)),
        Some(Command::Replay(replay)) => Ok(Task::Replay(Box::new(replay))),
        None => Config::from_parsed(parsed)
            .map(|config| Task::Serve(Box::new(config)))
            .map_err(|error| usage_error(&error)),
    }
}

/// The arguments with `--help` for the word `help` where a command can stand, and `--version` for
/// `version`.
fn with_flags_for_words(mut args: Vec<OsString>) -> Vec<OsString> {
    let mut command = &Args::command();
    let is_command = |arg: &&OsString| match command.find_subcommand(arg) {
        Some(inner) => {
            command = inner;
            true
        }
        None => false,
    };
    let place = 1 + args.iter().skip(1).take_while(is_command).count();
    let has_commands = command.has_subcommands();
    match args.get(place) {
        Some(word) if word == "help" && has_commands => {
            args.remove(place);
            args.push("--help".into());
        }
        Some(word) if word == "version" && args.len() == 2 => args[1] = "--version".into(),
        _ => {}
    }
    args
}

impl Config {
    fn from_parsed(args: Args) -> Result<Self, String> {
        let policies = match &args.config {
            Some(file) => Source::File(file.clone()),
            None => {
                let answers = Answers { scope: args.scope, blocked: args.var, others: Vec::new() };
                let store = args.store.settings()?;
                let without_store = args.without_store.unwrap_or_default();
                let shared = store.as_ref().map(|_| Sharing { without_store, at_once: false });
                let mut policies = policies_of_flags(&args.limit, shared, answers)?;
                if let Some(settings) = &store {
                    policies.warnings = settings.remarks();
                    policies.warning_count = policies.warnings.len();
                }
                let wait = args.store_wait;
                policies.store = store.map(|store| store.with_wait(wait));
                Source::Flags(Box::new(policies))
            }
        };
        if args.watch && args.config.is_none() {
            return Err("--watch needs --config, whose file it reads again; leave it out, or \
                        write the limit into a file and name that with --config"
                .to_owned());
        }
        let mut places = args.listen.iter().enumerate();
        if let Some((_, twice)) = places.find(|(at, address)| args.listen[..*at].contains(address))
        {
            return Err(format!("--listen names {twice} twice; once is enough"));
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
            return Err("--socket-mode and --socket-group need --listen unix:/PATH; for \
                        inherited sockets, set SocketMode= and SocketGroup= in the .socket unit"
                .to_owned());
        }
        // Inherited sockets outlive the agent, and connections wait in them for the next one. A
        // health check that failed in the meantime would only make HAProxy stop asking.
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
            admin_actions: args.admin_actions,
            audit: args.audit,
        })
    }
}

fn usage_error(sentence: &str) -> ExitCode {
    complain(sentence);
    ExitCode::from(2)
}

/// What is wrong with a command line, in one sentence without clap's own words.
fn in_one_sentence(error: &clap::Error, args: &[OsString]) -> String {
    let mut command = &Args::command();
    let mut words = command.get_name().to_owned();
    for arg in args.iter().skip(1) {
        let Some(inner) = command.find_subcommand(arg) else { break };
        command = inner;
        words = format!("{words} {}", command.get_name());
    }
    let names = || command.get_subcommands().map(clap::Command::get_name).collect::<Vec<_>>();
    let help = format!("(see '{words} --help')");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return format!("'{words}' needs a command behind it: {} {help}", names().join(", "));
    }
    if let Some((flag, next)) = flag_without_value(command, args) {
        return format!("{flag} needs a value, and '{next}' behind it is a flag {help}");
    }
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.as_str()],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let (wrong, prior) = (context(ContextKind::InvalidArg), context(ContextKind::PriorArg));
    let arg = wrong.first().copied().unwrap_or_default();
    let needs_a_value = || format!("{} needs a value; write {} {help}", name_of(arg), plain(arg));
    match (error.kind(), error.source()) {
        (ErrorKind::ValueValidation, _)
            if context(ContextKind::InvalidValue) == [""] && arg.starts_with("--") =>
        {
            needs_a_value()
        }
        (ErrorKind::ValueValidation, _)
            if words == "gcra-spoa table reset" && context(ContextKind::InvalidValue) == ["*"] =>
        {
            RESET_ALL.to_owned()
        }
        // The sentence of a parser below, which says what would be right.
        (ErrorKind::ValueValidation, Some(sentence)) => format!("{}: {sentence}", name_of(arg)),
        (ErrorKind::InvalidValue, _) => needs_a_value(),
        (ErrorKind::InvalidSubcommand, _) => {
            let word = context(ContextKind::InvalidSubcommand).concat();
            if ["unblock", "unban", "clear", "forgive"].contains(&&*word) {
                return format!(
                    "'{word}' is not a command; write 'gcra-spoa table reset KEY' to clear once \
                     what a client owes, or 'gcra-spoa exempt --for 1h KEY' to allow it all its \
                     requests for a time"
                );
            }
            let mut names = names();
            let nearest = names.iter().find(|name| is_near(name, &word));
            match nearest.map(|name| (*name).to_owned()).or_else(|| flag_like(command, &word)) {
                Some(nearest) => format!("'{word}' is not a command; did you mean '{nearest}'?"),
                None => {
                    if words == "gcra-spoa" {
                        names.push("or --rate or --config to start an agent");
                    }
                    format!(
                        "'{word}' is not a command of '{words}'; write one of {}",
                        names.join(", ")
                    )
                }
            }
        }
        (ErrorKind::ArgumentConflict, _) if wrong == prior => {
            format!("{} is given twice; write it once", name_of(arg))
        }
        (ErrorKind::ArgumentConflict, _) if !wrong.is_empty() => format!(
            "{} and {} cannot be given together; leave one out {help}",
            name_of(arg),
            prior.iter().map(|arg| name_of(arg)).collect::<Vec<_>>().join(" and ")
        ),
        (ErrorKind::ArgumentConflict, _) => {
            let word = context(ContextKind::InvalidSubcommand).concat();
            if command.find_subcommand(&word).is_some() {
                format!(
                    "'{word}' is a command, which cannot follow flags of an agent; begin with it"
                )
            } else {
                format!("'{word}' is neither a flag nor the value of one; leave it out")
            }
        }
        (ErrorKind::MissingRequiredArgument, _) => {
            let missing: Vec<_> =
                wrong.iter().map(|arg| plain(arg).replace('|', " or ")).collect();
            if missing == ["--store URL"]
                && let Some(flag) = args
                    .iter()
                    .filter_map(|arg| arg.to_str())
                    .find(|arg| arg.starts_with("--store-") || arg.starts_with("--without-store"))
            {
                let flag = flag.split('=').next().unwrap_or(flag);
                return format!("{flag} needs --store URL beside it {help}");
            }
            // A flag may be needed only because of another flag.
            let here = if missing.iter().all(|arg| arg.starts_with("--")) { " here" } else { "" };
            format!("'{words}' needs {}{here} {help}", missing.join(" and "))
        }
        (ErrorKind::UnknownArgument, _) => {
            // Of '-rate' clap names '-r'.
            let written = args.iter().filter_map(|written| written.to_str());
            let arg = written.clone().find(|written| written.starts_with(arg)).unwrap_or(arg);
            if let Some(sentence) = instead_of(&words, arg) {
                return sentence;
            }
            match flag_like(command, arg) {
                _ if !arg.starts_with('-') => {
                    format!("'{arg}' is one argument too many for '{words}' {help}")
                }
                None if command.get_positionals().any(|arg| arg.get_id() == "keys") => format!(
                    "'{arg}' is not a flag of '{words}'; if it is a KEY, write '--' and all KEYs \
                     behind the flags, as in '{words} … -- {arg}'"
                ),
                _ if arg.len() == 2 => format!(
                    "'{arg}' is not a flag of '{words}'; write flags as whole words, such as \
                     --help"
                ),
                Some(nearest) => {
                    format!("'{arg}' is not a flag of '{words}'; did you mean '{nearest}'?")
                }
                None => format!("'{arg}' is not a flag of '{words}' {help}"),
            }
        }
        _ => {
            let text = error.to_string();
            let said = text.split("\n\nUsage:").next().unwrap_or(&text);
            let said = said.strip_prefix("error: ").unwrap_or(said);
            let sentence = format!("{said} {help}");
            sentence.split_whitespace().collect::<Vec<_>>().join(" ")
        }
    }
}

/// What to write instead of an argument that a command does not have, where that is known.
fn instead_of(words: &str, arg: &str) -> Option<String> {
    let flag = arg.split('=').next().unwrap_or(arg);
    Some(match (words, flag) {
        ("gcra-spoa table reset", "--all") => RESET_ALL.to_owned(),
        (
            "gcra-spoa table reset" | "gcra-spoa exempt" | "gcra-spoa name",
            "--rate" | "--burst",
        ) => {
            format!("'{words}' needs no {flag}; leave it out")
        }
        (_, "-v") => format!("'-v' is not a flag of '{words}'; write -V for the version"),
        ("gcra-spoa top", address) if parse_host_and_port(address).is_ok() => {
            format!("'{address}' is one argument too many for '{words}'; write --admin {address}")
        }
        ("gcra-spoa table resize", slots) if parse_slots(slots).is_ok() => {
            format!("'{slots}' is one argument too many for '{words}'; write --slots {slots}")
        }
        ("gcra-spoa store check", address) if address.contains("://") => {
            // It may have a password in it.
            format!("an address is one argument too many for '{words}'; write --store URL")
        }
        ("gcra-spoa store check", file) if !file.starts_with('-') => {
            format!("'{file}' is one argument too many for '{words}'; write --config {file}")
        }
        (
            "gcra-spoa" | "gcra-spoa store check",
            "--strict"
            | "--salt-file"
            | "--least-replicas"
            | "--open-for"
            | "--certificate"
            | "--certificate-key"
            | "--sentinel-password-file"
            | "--sentinel-password-env",
        ) => {
            let setting = flag.trim_start_matches('-').replace('-', "_");
            let place = if setting == "open_for" { "the policy" } else { "[store]" };
            format!(
                "'{flag}' is not a flag of '{words}'; write {setting} below {place} of a file, \
                 and name the file with --config"
            )
        }
        _ => return None,
    })
}

const RESET_ALL: &str = "'gcra-spoa table reset' takes KEYs; to reset everything, stop all \
                         agents, delete the table's file, and start them";

/// `--rate` of `--rate <COUNT/PERIOD>`, and `KEY` of `<KEY>...`.
fn name_of(arg: &str) -> &str {
    let name = arg.split_whitespace().next().unwrap_or(arg);
    name.trim_matches(['<', '>', '[', ']', '.'])
}

/// `--rate COUNT/PERIOD` of `--rate <COUNT/PERIOD>`, and `KEY` of `<KEY>...`.
fn plain(arg: &str) -> String {
    arg.replace(['<', '>', '[', ']'], "").trim_end_matches('.').to_owned()
}

fn is_near(known: &str, word: &str) -> bool {
    strsim::damerau_levenshtein(known, &word.to_ascii_lowercase()) <= 1 + known.len() / 6
}

/// The flag that a word was probably meant to be: `--rate` for `rate`, `-rate` and `--Rate`.
fn flag_like(command: &clap::Command, word: &str) -> Option<String> {
    let word = word.split('=').next().unwrap_or(word).trim_start_matches('-');
    let flags = || command.get_arguments().filter_map(clap::Arg::get_long);
    let exact = flags().find(|flag| *flag == word);
    let nearest = exact.or_else(|| flags().find(|flag| is_near(flag, word)));
    nearest.map(|flag| format!("--{flag}"))
}

/// A flag that needs a value, and the flag that stands in the place of the value.
fn flag_without_value<'a>(
    command: &clap::Command,
    args: &'a [OsString],
) -> Option<(&'a str, &'a str)> {
    let flag = |arg: &'a OsString| Some((arg.to_str()?, arg.to_str()?.strip_prefix("--")?));
    args.windows(2).find_map(|pair| {
        let ((written, name), (next, next_name)) = (flag(&pair[0])?, flag(&pair[1])?);
        let known = command.get_arguments().find(|arg| arg.get_long() == Some(name))?;
        let takes_value = known.get_action().takes_values() && !next_name.is_empty();
        takes_value.then_some((written, next))
    })
}

/// Whether a file lies in memory.
pub(crate) fn is_on_tmpfs(path: &Path) -> io::Result<bool> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    Ok(rustix::fs::statfs(path)?.f_type == TMPFS_MAGIC)
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
        // An agent of the same user must be able to find out later whether this one still listens.
        Ok(mode) if is_octal && mode <= 0o777 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err(format!(
            "'{text}' is not a mode from 0600 to 0777 that lets the owner read and write, such \
             as 0660"
        )),
    }
}

fn parse_group(text: &str) -> Result<u32, String> {
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

fn parse_busy_poll(text: &str) -> Result<Duration, String> {
    parse_time(text, Duration::from_micros(1), "us", MAX_BUSY_POLL)
}

fn parse_drain(text: &str) -> Result<Duration, String> {
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

fn parse_frame_size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ 256..=1_048_576) => Ok(bytes),
        _ => Err(format!("'{text}' is not a number of bytes from 256 to 1048576")),
    }
}

/// Bytes, with K, M or G for powers of 1024. At least 1 MiB, enough for any one connection.
fn parse_size(text: &str) -> Result<usize, String> {
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

/// What is wrong with a text that is not `IP:PORT`.
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
fn parse_admin(text: &str) -> Result<SocketAddr, String> {
    let on_localhost = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let localhost = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    localhost
        .map(on_localhost)
        .or_else(|| text.parse().ok())
        .ok_or_else(|| not_ip_and_port(text, "[::1]:9101", "IP:PORT, such as 127.0.0.1:9101"))
}

/// An address to listen on. HAProxy and the agent rarely have the same working directory, so a
/// path must be absolute.
fn parse_listen(text: &str) -> Result<ListenAddress, String> {
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

fn parse_host(text: &str) -> Result<String, String> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    match text.strip_suffix('.').unwrap_or(text) {
        name if is_name && (1..=253).contains(&name.len()) => Ok(name.to_ascii_lowercase()),
        _ => Err(format!(
            "'{text}' is not a host name without a port, such as limiter1.example.com"
        )),
    }
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not a scope; write one of proc, sess, txn, req, res"))
}

/// The name is leaked, because it is needed until the process ends.
fn parse_var(text: &str) -> Result<VarName<'static>, String> {
    if let Some((scope, name)) = text.split_once('.')
        && scope.parse::<Scope>().is_ok()
    {
        return Err(format!("'{text}' begins with a scope; write --scope {scope} --var {name}"));
    }
    VarName::new(String::leak(text.to_owned()))
        .map_err(|error| format!("'{text}' cannot be used: {error}"))
}

#[cfg(test)]
mod tests {
    use gcra_inspect::commands::get_reset::Reset;
    use gcra_policy::flags;
    use gcra_policy::rate_flags::RateFlags;
    use gcra_store::Password;
    use gcra_table::Rate;

    use super::*;

    fn parse(args: &str) -> Result<Config, String> {
        let args: Vec<OsString> =
            ["gcra-spoa"].into_iter().chain(args.split_whitespace()).map(Into::into).collect();
        let args = Args::try_parse_from(&args).map_err(|error| in_one_sentence(&error, &args))?;
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

    /// What is written over several lines is not wrapped again, and a flag that takes half a page
    /// is not found among the others.
    #[test]
    fn the_help_fits_a_terminal_of_80_columns() {
        fn look(command: &clap::Command, name: &str) {
            let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string);
            let afters = [text(command.get_after_help()), text(command.get_after_long_help())];
            for line in afters.iter().flatten().flat_map(|after| after.lines()) {
                let columns = line.chars().count();
                assert!(columns <= 80, "{name}: {columns} columns: {line}");
            }
            for arg in command.get_arguments() {
                let help = text(arg.get_help()).unwrap_or_default();
                assert!(help.len() <= 160, "{name} {}: {help}", arg.get_id());
            }
            let about = text(command.get_about()).unwrap_or_default();
            assert!(about.len() <= 90, "{name}: {about}");
            for inner in command.get_subcommands() {
                look(inner, &format!("{name} {}", inner.get_name()));
            }
        }
        look(&Args::command(), "gcra-spoa");
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
            assert!(message.contains("such as 256M or 1G"), "{message}");
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
            "10 per second, up to 10 at once, for each ip, with the cost in n"
        );
        assert_eq!(
            words("--rate deny --key ip,path"),
            "every request is blocked, for each ip and path"
        );
        assert_eq!(words("--rate unlimited --key ip"), "no request is blocked, for each ip");
    }

    #[test]
    fn every_wrong_setting_is_one_clear_sentence() {
        for (args, said) in [
            // Flags that are missing, too many, or in contradiction.
            ("--config=", "--config needs a value; write --config FILE"),
            ("--rate 1/s --slots=", "--slots needs a value; write --slots N"),
            ("--rate 1/s --listen 127.0.0.1:", "'127.0.0.1:' has no port"),
            ("--rate", "--rate needs a value; write --rate COUNT/PERIOD"),
            ("--rate --threads 1", "--rate needs a value, and '--threads' behind it is a flag"),
            ("--rate 1/s --slots --threads 1", "--slots needs a value, and '--threads' behind it"),
            ("--rate 1/s --rate 2/s", "--rate is given twice; write it once"),
            ("--config a --watch --watch", "--watch is given twice; write it once"),
            (
                "--rate 1/s --listen 127.0.0.1:1 --listen 127.0.0.1:1",
                "--listen names 127.0.0.1:1 twice",
            ),
            (
                "--burst 5 --config a",
                "--burst and --config cannot be given together; leave one out",
            ),
            ("check a b", "'b' is one argument too many for 'gcra-spoa check'"),
            ("top 127.0.0.1:19000", "for 'gcra-spoa top'; write --admin 127.0.0.1:19000"),
            ("top x", "'x' is one argument too many for 'gcra-spoa top'"),
            ("table resize 4194304", "write --slots 4194304"),
            ("table reset --rate 5/s x", "'gcra-spoa table reset' needs no --rate; leave it out"),
            ("table reset --rate=5/s x", "'gcra-spoa table reset' needs no --rate; leave it out"),
            ("table reset --all", "to reset everything, stop all agents, delete the table's file"),
            ("table reset *", "to reset everything, stop all agents, delete the table's file"),
            ("unblock 192.0.2.7", "'unblock' is not a command; write 'gcra-spoa table reset KEY'"),
            ("table clear 192.0.2.7", "or 'gcra-spoa exempt --for 1h KEY' to allow it all its"),
            ("-v", "'-v' is not a flag of 'gcra-spoa'; write -V for the version"),
            ("--rate 1,000/h", "'1,000/h' is not a rate; write --rate 1000/h"),
            ("exempt --for 1h30m x", "'1h30m' is not a time from 10s to 7d; write one unit: 90m"),
            ("check a --table b", "'--table' is not a flag of 'gcra-spoa check'"),
            ("check", "'gcra-spoa check' needs FILE (see"),
            ("exempt", "'gcra-spoa exempt' needs --for TIME and KEY (see"),
            ("top --json", "'gcra-spoa top' needs --once here"),
            (
                "-c x.toml",
                "'-c' is not a flag of 'gcra-spoa'; write flags as whole words, such as --help",
            ),
            ("-rate 1/s", "'-rate' is not a flag of 'gcra-spoa'; did you mean '--rate'?"),
            ("-x", "'-x' is not a flag of 'gcra-spoa'; write flags as whole words"),
            ("--daemon", "'--daemon' is not a flag of 'gcra-spoa' (see"),
            ("--Rate 1/s", "'--Rate' is not a flag of 'gcra-spoa'; did you mean '--rate'?"),
            ("rate 1/s", "'rate' is not a command; did you mean '--rate'?"),
            // The store.
            ("--rate 1/s --store", "--store needs a value; write --store URL"),
            ("--rate 1/s --store store:6379", "--store: the address of a store begins with redis"),
            ("--rate 1/s --store redis://:s3@a", "--store: the address of a store must not have"),
            ("--store redis://a --config x", "--store and --config cannot be given together"),
            ("--store redis://a", "there is no limit; write --rate COUNT/PERIOD"),
            ("--config x --store-wait 20ms", "--config and --store-wait cannot be given together"),
            ("--config x --without-store open", "--config and --without-store cannot be given"),
            ("--config x --store-ca c", "--config and --store-ca cannot be given together; leave"),
            ("--config x --store-password-file c", "--config and --store-password-file cannot be"),
            ("--config x --store-password-env C", "--config and --store-password-env cannot be"),
            ("--rate 1/s --store-wait 20ms", "--store-wait needs --store URL beside it (see"),
            ("--rate 1/s --store-wait=20ms", "--store-wait needs --store URL beside it (see"),
            ("--rate 1/s --without-store open", "--without-store needs --store URL beside it"),
            ("--rate 1/s --store-password-env C", "--store-password-env needs --store URL beside"),
            (
                "--rate 1/s --store redis://a --strict",
                "'--strict' is not a flag of 'gcra-spoa'; write strict below [store] of a file, \
                 and name the file with --config",
            ),
            ("--rate 1/s --salt-file=x", "write salt_file below [store] of a file, and name"),
            ("store check --least-replicas 2", "write least_replicas below [store] of a file"),
            ("--rate 1/s --open-for 1s", "write open_for below the policy of a file, and name"),
            (
                "store check a.toml",
                "'a.toml' is one argument too many for 'gcra-spoa store check'; write --config \
                 a.toml",
            ),
            ("store check redis://a", "an address is one argument too many for 'gcra-spoa store"),
            ("--rate deny --store redis://a", "--store has no effect with a rate of deny or unli"),
            (
                "--rate 9000/s --cost n --store redis://a",
                "at once' cannot be shared, because a request with a 'cost' can have at most 819",
            ),
            (
                "--rate 1/s --store redis://a --store-ca c",
                "--store-ca has no effect without TLS; write a --store that begins with rediss://",
            ),
            (
                "--rate 1/s --store redis://a --store-password-env s-3",
                "--store-password-env: it must be the name of a variable of the environment",
            ),
            (
                "--rate 1/s --store redis://a --store-password-env A --store-password-file a",
                "--store-password-env and --store-password-file cannot be given together",
            ),
            (
                "--rate 1/s --store redis://a --store-wait 20",
                "--store-wait: '20' is not a time from 1ms to 10s; write a whole number and a",
            ),
            ("--rate 1/s --store redis://a --store-wait 0ms", "'0ms' is not a time from 1ms to"),
            (
                "--rate 1/s --store redis://a --without-store deny",
                "'deny' is not a way to do without the store; write one of share, closed, open",
            ),
            ("store check", "needs --store URL or --config FILE here"),
            ("store check --store redis://a --config x", "cannot be given together; leave one"),
            ("store check --config x --store-ca x", "cannot be given together; leave one out"),
            // Rates.
            (
                "--rate 100/s,50/m",
                "'100/s,50/m' has several rates, and --rate takes one; write them",
            ),
            ("--rate 10r/s", "'10r/s' is not a rate; write --rate 10/s"),
            ("--rate 3/m,burst=5", "'3/m,burst=5' is not a rate; write --rate 3/m --burst 5"),
            (
                "--rate off",
                "'off' is not a rate; write COUNT/PERIOD, such as 100/s, or deny or unlim",
            ),
            // Addresses.
            ("--rate 1/s --listen localhost", "'localhost' has no port; write IP:PORT"),
            ("--rate 1/s --listen 9000", "'9000' is only a port; write 127.0.0.1:9000"),
            ("--rate 1/s --listen :9000", "':9000' has no IP address; write 0.0.0.0:9000 for all"),
            (
                "--rate 1/s --listen *:9000",
                "'*:9000' has no IP address; write 0.0.0.0:9000 for all",
            ),
            (
                "--rate 1/s --listen 127.0.0.1:99999",
                "'99999' in '127.0.0.1:99999' is not a port from",
            ),
            (
                "--rate 1/s --listen ::1",
                "'::1' is an IPv6 address without a port; write [::1]:9000",
            ),
            (
                "--rate 1/s --listen h.example:1",
                "'h.example' in 'h.example:1' is not an IP address;",
            ),
            (
                "--rate 1/s --listen localhost:1",
                "'localhost' in 'localhost:1' is not an IP address;",
            ),
            (
                "--rate 1/s --listen /run/x.sock",
                "'/run/x.sock' is only a path; write unix:/run/x.sock",
            ),
            (
                "--rate 1/s --listen unix@/run/x",
                "'unix@/run/x' is HAProxy's notation; write unix:/run/x",
            ),
            ("--rate 1/s --listen abns@x", "'abns@x' is HAProxy's notation; write abns:x"),
            ("--rate 1/s --listen unix:", "'unix:' has no path; write unix:/PATH"),
            (
                "--rate 1/s --listen abns:",
                "the name in 'abns:' must have 1 to 107 bytes, and has 0",
            ),
            (
                "--rate 1/s --admin 127.0.0.1:99999",
                "'99999' in '127.0.0.1:99999' is not a port from 1",
            ),
            ("--rate 1/s --admin http://127.0.0.1:1/", "begins with 'http://'; write 127.0.0.1:1"),
            ("top --admin http://h:9101/status", "begins with 'http://'; write h:9101"),
            ("top --admin localhost", "'localhost' has no port; write HOST:PORT"),
            ("top --admin :9101", "':9101' has no host; write HOST:PORT"),
            ("top --admin ::1:9101", "is an IPv6 address without a port; write [::1]:9101"),
            // Numbers, sizes and times.
            ("--rate 1/s --slots 0", "--slots: '0' is not a number of slots from 8 to 1073741824"),
            (
                "--rate 1/s --slots 99999999999999999999",
                "is not a number of slots from 8 to 107374",
            ),
            (
                "--rate 1/s --buffers 1T",
                "'1T' is not a size; write a whole number and K, M or G, 1M",
            ),
            ("--rate 1/s --buffers 1023K", "'1023K' is too little; the least is 1M"),
            ("--rate 1/s --drain -5s", "--drain: '-5s' is not a time from 0s to 5m"),
            ("--rate 1/s --busy-poll -5us", "--busy-poll: '-5us' is not a time from 0us to 1s"),
            ("exempt --for -1h 192.0.2.1", "--for: '-1h' is not a time from 10s to 7d"),
            ("replay --rate 1/s --window 1ms x", "--window: '1ms' is not a time from 1s to 7d"),
            ("replay --rate 1/s --utc-offset CET x", "'CET' is not a time zone; write hours and"),
            ("replay --rate 1/s --utc-offset +2500 x", "'+2500' is not a time zone"),
            ("replay --suggest ip --target 0 x", "'0' is not a share, such as 0.1%"),
            ("replay --rate 1/s --map ip x", "--map: 'ip' is not ARG=FIELD, such as ip=%ci"),
            ("replay x.log", "'gcra-spoa replay' needs --config FILE or --rate COUNT/PERIOD or"),
            ("replay --rate 1/s --config x.toml x", "--rate and --config cannot be given togeth"),
            ("replay --rate 1/s", "'gcra-spoa replay' needs LOG"),
            ("--rate 1/s --listen unix:/x --socket-mode -1", "--socket-mode: '-1' is not a mode"),
            (
                "--rate 1/s --cost ip=src",
                "'ip=src' in --cost is an arg with its sample; write only",
            ),
            (
                "--rate 1/s --var txn.blocked",
                "'txn.blocked' begins with a scope; write --scope txn",
            ),
            ("", "write --rate COUNT/PERIOD, such as --rate 100/s, or --config FILE"),
            ("--rate 0/s", "write 'deny'"),
            ("--rate -1/s", "not a positive number"),
            ("--rate 100", "it has no '/'"),
            ("--rate 1/week", "the period must end in ms, s, m, h or d"),
            ("--rate 100/fortnight", "must end in ms, s, m, h or d"),
            ("--rate 99999999999999999999/s", "too many digits"),
            ("--rate 100/s --burst 0", "'0' is not a whole number of requests from 1 to"),
            ("--rate 100/s --burst -3", "--burst: '-3' is not a whole number of requests from 1"),
            ("--rate 100/s extra", "'extra' is neither a flag nor the value of one; leave it out"),
            ("--rate 100/s check", "'check' is a command, which cannot follow flags of an agent"),
            ("start", "'start' is not a command of 'gcra-spoa'; write one of table, top, check,"),
            ("start", ", or --rate or --config to start an agent"),
            ("checks", "'checks' is not a command; did you mean 'check'?"),
            ("table checks", "'checks' is not a command; did you mean 'check'?"),
            ("--rate 1/s --drain -1", "--drain: '-1' is not a time from 0s to 5m"),
            ("--rate 1/s --slots -1", "--slots: '-1' is not a number of slots"),
            ("--rate 1/s --threads -1", "--threads: '-1' is not a number of threads from 1 to"),
            ("--rate 1/s --key ip,ip", "--key names 'ip' twice; once is enough"),
            ("--rate 1/s --config x.toml", "--rate and --config cannot be given together"),
            ("reload a --config b", "FILE and --config cannot be given together"),
            ("--rate 100/s --burst 1.5", "'1.5' is not a whole number of requests"),
            ("--rate 100/s --burst 99999999999999999999", "from 1 to 4294967294"),
            ("--rate 1/d --burst 100000", "takes 100000 days to pay off"),
            ("--rate deny --burst 5", "--burst has no effect"),
            ("--rate 1/s --listen localhost", "IP:PORT"),
            ("--rate 1/s --slots 3", "from 8 to 1073741824"),
            ("--rate 1/s --slots many", "'many' is not a number of slots"),
            ("--rate 1/s --threads 0", "from 1 to 1024"),
            ("--rate 1/s --drain 1h", "'1h' is not a time from 0s to 5m"),
            ("--rate 1/s --drain 301", "'301' is not a time from 0s to 5m"),
            ("--rate 1/s --drain soon", "us, ms, s, m, h or d"),
            ("--rate 1/s --listen unix:agent.sock", "write all of it, such as unix:/run/"),
            ("--rate 1/s --admin :9101", "':9101' has no IP address"),
            ("--rate 1/s --admin localhost", "'localhost' has no port"),
            ("--rate 1/s --admin-host a.example", "needs --admin IP:PORT here"),
            ("--rate 1/s --admin-actions token", "needs --admin IP:PORT here"),
            ("--rate 1/s --admin 127.0.0.1:0 --admin-host a.example:9101", "without a port"),
            ("--rate 1/s --admin 127.0.0.1:0 --admin-host a,,b", "--admin-host needs a value"),
            ("--rate 1/s --listen unix:/x --socket-mode 0666x", "'0666x' is not a mode"),
            ("--rate 1/s --listen inherited --socket-mode 0660", "SocketMode="),
            ("--rate 1/s --busy-poll 2s", "'2s' is not a time from 0us to 1s"),
            ("--rate 1/s --key ip,,path", "empty name"),
            ("--rate 1/s --key else", "'else' in --key names no arg"),
            ("--rate 1/s --key ip,path,ip", "--key names 'ip' twice"),
            ("--rate 1/s --key ip,n --cost n", "both name 'n'"),
            ("--rate 1/s --cost=", "--cost has an empty name"),
            ("--rate 1/s --var no-dashes", "no-dashes"),
            ("--rate 1/s --scope txn2", "proc, sess, txn, req, res"),
            ("--rate 1/s --brust 5", "--burst"),
        ] {
            let sentence = error(args);
            assert!(sentence.contains(said), "{args}: {sentence}");
            for word in ["argument '", "<", "required", "provided"] {
                assert!(!sentence.contains(word), "{args}: a word of the parser: {sentence}");
            }
        }
    }

    #[test]
    fn the_flags_of_a_store_share_the_limit() {
        let policies = |args: &str| {
            let Source::Flags(policies) = parse(args).unwrap().policies else { panic!("a file") };
            *policies
        };
        let local = policies("--rate 1/s");
        assert_eq!((local.list[0].shared, local.store), (None, None));

        let least = policies("--rate 1/s --store redis://store.example");
        assert_eq!(least.list[0].shared, Some(Sharing::default()));
        let store = least.store.unwrap();
        assert_eq!((&*store.url_text, store.wait.as_millis()), ("redis://store.example", 20));

        let most = policies(
            "--rate 1/s --store rediss://u@a --store-password-file /none --store-ca /none/ca \
             --store-wait 1s --without-store open",
        );
        let without_store = WithoutStore::Open { for_: Duration::from_secs(10) };
        assert_eq!(most.list[0].shared, Some(Sharing { without_store, at_once: false }));
        let store = most.store.unwrap();
        assert_eq!(store.password, Password::File("/none".into()));
        assert_eq!(store.authorities.as_deref(), Some(Path::new("/none/ca")));
        assert_eq!(store.config().timeout, Duration::from_secs(1));
        let [password, ca] = &most.warnings[..] else { panic!() };
        assert!(password.starts_with("cannot read the password file /none: "), "{password}");
        assert!(ca.starts_with("cannot read the certificate file /none/ca: "), "{ca}");

        let [user] = &policies("--rate 1/s --store redis://gcra@a").warnings[..] else { panic!() };
        assert!(user.starts_with("the address of the store names the user 'gcra' and"), "{user}");

        let variable = policies("--rate 1/s --store redis://a --store-password-env P_1");
        assert_eq!(variable.store.unwrap().password, Password::Variable("P_1".to_owned()));
    }

    #[test]
    fn the_limits_of_flags_are_found_again_however_they_are_shared() {
        let flags = RateFlags::of("3/s".parse::<Rate>().unwrap().quota(None).unwrap()).unwrap();
        for (args, shown) in [
            ("", ""),
            (" --store redis://a", " --store URL"),
            (" --store redis://a --without-store share", " --store URL"),
            (" --store redis://a --without-store closed", " --store URL --without-store closed"),
            (" --store redis://a --without-store open", " --store URL --without-store open"),
        ] {
            let config = parse(&format!("--rate 3/s{args}")).unwrap();
            let Source::Flags(policies) = config.policies else { panic!("not the flags") };
            let is_it = |found: &RateFlags| {
                flags::policies_like(found).unwrap().limits_digest == policies.limits_digest
            };
            let found = flags.shared_or_not().find(is_it).unwrap();
            assert_eq!(found.to_string(), format!("--rate 3/s --burst 3{shown}"));
        }
    }

    #[test]
    fn a_store_to_check_is_named_or_in_a_file() {
        let task = |args: &str| {
            let args = ["gcra-spoa", "store", "check"].into_iter().chain(args.split(' '));
            super::parse(args.map(OsString::from))
        };
        let Ok(Task::StoreCheck { store: StoreSource::File(file), json: false }) =
            task("--config x.toml")
        else {
            panic!("no file")
        };
        assert_eq!(file, Path::new("x.toml"));
        let Ok(Task::StoreCheck { store: StoreSource::Flags(settings), json: true }) =
            task("--json --store redis+cluster://a,b --store-password-env P")
        else {
            panic!("no flags")
        };
        assert_eq!(settings.least_replicas, 1, "as an agent does");
        assert_eq!(settings.password, Password::Variable("P".to_owned()));
    }

    #[test]
    fn times_have_a_unit_or_the_units_that_they_always_had() {
        let times = |args: &str| {
            let config = parse(&format!("--rate 1/s {args}")).unwrap();
            (config.drain.as_millis(), config.busy_poll.as_micros())
        };
        assert_eq!(times("--drain 4 --busy-poll 50"), (4000, 50));
        assert_eq!(times("--drain 250ms --busy-poll 1ms"), (250, 1000));
        assert_eq!(times("--drain 5m --busy-poll 0us"), (300_000, 0));
    }

    #[test]
    fn help_and_version_are_words_too() {
        for (words, flags) in [
            ("help", "--help"),
            ("version", "--version"),
            ("help top", "top --help"),
            ("help table info", "table info --help"),
            ("table help", "table --help"),
            ("table help info", "table info --help"),
            // These have arguments of their own.
            ("name help", "name help"),
            ("check help", "check help"),
            ("--rate help", "--rate help"),
        ] {
            let split = |text: &str| -> Vec<OsString> {
                ["gcra-spoa"].into_iter().chain(text.split(' ')).map(Into::into).collect()
            };
            assert_eq!(with_flags_for_words(split(words)), split(flags), "{words}");
        }
    }

    #[test]
    fn localhost_is_an_address() {
        let admin = parse("--rate 1/s --admin localhost:9101").unwrap().admin.unwrap();
        assert_eq!(admin.to_string(), "127.0.0.1:9101");
    }

    #[test]
    fn a_file_is_named_with_or_without_its_flag() {
        for args in ["check x.toml", "check --config x.toml", "check x.toml --print-haproxy"] {
            let args = ["gcra-spoa"].into_iter().chain(args.split(' ')).map(OsString::from);
            let Ok(Task::Check { config, .. }) = super::parse(args) else { panic!("no check") };
            assert_eq!(config, Path::new("x.toml"));
        }
    }

    #[test]
    fn a_key_or_time_with_a_minus_has_a_hint() {
        for (args, said) in [
            ("table get -abc", "'-abc' is not a flag of 'gcra-spoa table get'; if it is a KEY, "),
            ("exempt --for 1h -5", "as in 'gcra-spoa exempt … -- -5'"),
            ("name --polcy x y", "'--polcy' is not a flag of 'gcra-spoa name'; did you mean"),
            ("exempt --for -5m x", "--for: '-5m' is not a time from 10s to 7d; write a whole"),
            ("exempt --for 9s x", "--for: '9s' is not a time from 10s to 7d; write a whole"),
        ] {
            let sentence = error(args);
            assert!(sentence.contains(said), "{args}: {sentence}");
        }
        let args = "gcra-spoa table reset -- -abc".split(' ').map(OsString::from);
        let Ok(Task::Table(TableCommand::Reset(Reset { keys, .. }))) = super::parse(args) else {
            panic!("no reset")
        };
        assert_eq!(keys[0].text, "-abc");
    }

    #[test]
    fn an_agent_on_inherited_sockets_drains_only_with_the_flag() {
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
