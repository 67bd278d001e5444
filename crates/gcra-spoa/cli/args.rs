//! The flags and commands, with their help.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use gcra_admin::top::command::Top;
use gcra_inspect::commands::audit::{AUDIT_HELP, Audit};
use gcra_inspect::commands::check::Check;
use gcra_inspect::commands::explain::{EXPLAIN_HELP, Explain};
use gcra_inspect::commands::name::{NAME_HELP, NameArgs};
use gcra_inspect::commands::order::{BLOCK_HELP, EXEMPT_HELP, OrderArgs};
use gcra_inspect::commands::store::StoreCommand;
use gcra_inspect::commands::table::TableCommand;
use gcra_inspect::flags::{At, ConfigFile};
use gcra_policy::flags::{
    LimitFlags, StoreFlags, parse_slots, parse_store_wait, parse_without_store,
};
use gcra_policy::sharing::WithoutStore;
use gcra_replay::args::{REPLAY_HELP, Replay};
use gcra_replay::blocked::args::{BLOCKED_HELP, BlockedArgs};
use gcra_table::Slots;
use gcra_text::version;
use spop_agent::{ListenAddress, Scope, VarName};

use super::values::{
    parse_admin, parse_busy_poll, parse_drain, parse_frame_size, parse_group, parse_host,
    parse_listen, parse_mode, parse_scope, parse_size, parse_threads, parse_var,
};

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
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) limit: LimitFlags,

    #[command(flatten)]
    pub(crate) store: StoreFlags,

    /// How long a request waits for the store at most, from 1ms to 10s [default: 20ms]
    ///
    /// Only requests of clients that are new or near their limit wait. 'timeout processing' of
    /// HAProxy must be longer.
    #[arg(long, value_name = "TIME", value_parser = parse_store_wait)]
    #[arg(allow_hyphen_values = true, requires = "store", conflicts_with = "config")]
    pub(crate) store_wait: Option<Duration>,

    /// What happens while the store cannot be used: share, closed or open [default: share]
    ///
    /// 'share' lets each machine allow its share of the limit, 'closed' blocks requests, and
    /// 'open' allows them for 10s, and then does as 'share' does. 'open' also allows, at any time,
    /// each request that stops waiting for a slow store.
    #[arg(long, value_name = "WORD", value_parser = parse_without_store)]
    #[arg(requires = "store", conflicts_with = "config")]
    pub(crate) without_store: Option<WithoutStore>,

    /// The variable that is set, without its scope and prefix
    ///
    /// HAProxy puts the scope and its prefix in front of the name, and ignores the variable if
    /// all that is longer than 63 characters.
    #[arg(long, value_name = "NAME", default_value = "blocked", value_parser = parse_var)]
    pub(crate) var: VarName<'static>,

    /// The scope of the variable: proc, sess, txn, req or res
    #[arg(long, value_name = "SCOPE", default_value = "txn", value_parser = parse_scope)]
    pub(crate) scope: Scope,

    /// A file with policies, instead of --rate: for more than one limit
    ///
    /// It replaces --rate, --burst, --key, --cost, --var and --scope. It is read again on SIGHUP
    /// and on 'gcra-spoa reload'. docs/CONFIG.md describes it, and 'gcra-spoa check FILE' checks
    /// it.
    #[arg(long, value_name = "FILE", conflicts_with_all = LimitFlags::NAMES)]
    #[arg(conflicts_with_all = ["var", "scope"])]
    pub(crate) config: Option<PathBuf>,

    /// Read the file of --config again whenever it has changed
    ///
    /// The agent looks once a second whether the file, or a list that it names, has changed.
    #[arg(long)]
    pub(crate) watch: bool,

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
    pub(crate) listen: Vec<ListenAddress>,

    /// The mode of Unix sockets, in octal, such as 0660 [default: 0777 without the bits of the
    /// umask]
    ///
    /// Only users who may write to a socket can connect to it. The owner must be able to read and
    /// write.
    #[arg(long, value_name = "MODE", value_parser = parse_mode, allow_hyphen_values = true)]
    pub(crate) socket_mode: Option<u32>,

    /// The group of Unix sockets, by name or number, such as haproxy [default: that of any new
    /// file]
    ///
    /// The user of the agent must be root or a member of the group.
    #[arg(long, value_name = "GROUP", value_parser = parse_group, allow_hyphen_values = true)]
    pub(crate) socket_group: Option<u32>,

    /// The file with the buckets, which agents share [default: gcra-spoa.table in
    /// $RUNTIME_DIRECTORY if systemd sets it, else /dev/shm/gcra-spoa-UID.table]
    ///
    /// It is created if it does not exist. Agents that use the same file share one limit.
    #[arg(long, value_name = "PATH")]
    pub(crate) table: Option<PathBuf>,

    /// How many buckets the table can hold, 16 bytes each [default: as the file has, 1048576 if
    /// it is new]
    ///
    /// From 8 to 1073741824, rounded up to a power of two. A key needs a bucket until it is idle
    /// again, for at most burst / rate after its last request; twice the number of keys in that
    /// time is plenty. When all slots are taken, the key that owes the smallest part of its limit
    /// is forgotten first.
    #[arg(long, value_name = "N", value_parser = parse_slots)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) slots: Option<Slots>,

    /// The number of worker threads, from 1 to 1024
    ///
    /// One thread answers millions of requests a second, more than HAProxy can ask on the same
    /// machine, and each further thread takes a core from HAProxy.
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_threads)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) threads: NonZeroUsize,

    /// How long an agent that is being stopped keeps answering, from 0s to 5m [default: 0s with
    /// --listen inherited, else 3s]
    ///
    /// Its health check fails during that time, so that HAProxy asks another agent; twice the
    /// time that the check takes (inter x fall) is enough. Use 0s for a single agent, because
    /// HAProxy asks no agent while the only one is DOWN. A number without a unit means
    /// seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_drain, allow_hyphen_values = true)]
    pub(crate) drain: Option<Duration>,

    /// How long a worker stays awake after each request, from 0us to 1s, such as 50us
    ///
    /// It waits for the next request in that time, which saves the time that waking up takes, and
    /// uses a whole core while requests arrive. With 0 it sleeps at once. A number without a unit
    /// means microseconds.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_busy_poll)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) busy_poll: Duration,

    /// The largest frame that HAProxy may send, in bytes, from 256 to 1048576
    ///
    /// HAProxy itself allows tune.bufsize - 4, and the smaller of the two values applies. So there
    /// is nothing to do unless tune.bufsize is above 1 MiB. A frame takes memory only as it
    /// arrives, and --buffers bounds the memory of all connections. A request whose message is
    /// larger than a frame gets no decision.
    #[arg(long, value_name = "BYTES", default_value = "1048576", value_parser = parse_frame_size)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) max_frame_size: u32,

    /// The most memory for unfinished frames and unread answers, in bytes, or such as 16M or 1G
    ///
    /// All connections share it. A connection that needs more than is left is closed. A
    /// connection whose frames arrive whole needs none of it.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) buffers: usize,

    /// Serve metrics and status over HTTP at this address [default: not served]
    ///
    /// A browser finds a live page there, docs/PAGE.md. For programs there are /metrics, /status,
    /// /history, /events, /explain, /healthz and /readyz. There is no authentication, so use an
    /// address that only operators can reach.
    #[arg(long, value_name = "IP:PORT", value_parser = parse_admin)]
    pub(crate) admin: Option<SocketAddr>,

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
    pub(crate) admin_host: Vec<String>,

    /// Allow actions on the page of --admin to clients with the token in this file [default: none]
    ///
    /// They can clear what a client owes, exempt or block a client, and make a policy only
    /// observe. The first line of the file is the token, at least 16 characters. The file must
    /// belong to root or to the agent's user, and other users must not be able to read it. It is
    /// read when the agent starts.
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub(crate) admin_actions: Option<PathBuf>,

    /// Write each decision to this file [default: not written]
    ///
    /// A line has the time, the policy, the key, the cells and the outcome. Strings in keys are
    /// digests. 'gcra-spoa audit' holds the files of all agents against a limit. The lines of a
    /// burst are written before it is answered, with 40 to 80 bytes for each decision. The file
    /// must not be a link, nor belong to another user than root or the agent's.
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
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
    Check(Check),
    /// Say which policy decides about a client and why, and whether it is blocked now
    ///
    /// It also says what the client owes. Nothing is charged.
    #[command(after_help = EXPLAIN_HELP)]
    Explain(Explain),
    /// Allow a client all its requests for a time
    ///
    /// The configuration stays as it is.
    #[command(after_help = EXEMPT_HELP)]
    Exempt(OrderArgs),
    /// Block all requests of a client for a time
    ///
    /// The configuration stays as it is.
    #[command(after_help = BLOCK_HELP)]
    Block(OrderArgs),
    /// Print how logs, top and /status name a client
    #[command(after_help = NAME_HELP)]
    Name(NameArgs),
    /// Say what limits would have done to the requests in HAProxy's logs
    ///
    /// Every request is decided by the code that agents decide with, at the time that the log
    /// has for it. Nothing is changed.
    #[command(after_help = REPLAY_HELP, override_usage = "gcra-spoa replay --config FILE \
        [OPTIONS] <LOG>...")]
    Replay(Replay),
    /// Say who was blocked, when and by which limit, by HAProxy's logs
    ///
    /// It also says how many requests had no decision, and why. Nothing is decided again: the
    /// lines say what HAProxy got from the agents.
    #[command(after_help = BLOCKED_HELP, override_usage = "gcra-spoa blocked [OPTIONS] <LOG>... \
        [KEY]")]
    Blocked(BlockedArgs),
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
