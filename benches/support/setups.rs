//! The setups that are compared through HAProxy: rules, agents, and loads.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use spop_agent::{Agent as Server, ListenAddress, Reply, Request, Scope, VarName};
use tempfile::TempDir;

use crate::support::{Agent, Process, directory, free_port, haproxy_folder, wait_until};

/// The figure by which rows are compared with each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Group {
    /// An agent is asked about every request, and none is denied.
    Asking,
    /// Nearly all clients make one request.
    Light,
    /// One client is far above its limit.
    Heavy,
    /// The share of the requests that an agent is asked about.
    Share,
}

impl Group {
    pub(crate) const ALL: [Self; 4] = [Self::Asking, Self::Light, Self::Heavy, Self::Share];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Asking => "asking",
            Self::Light => "light",
            Self::Heavy => "heavy",
            Self::Share => "share",
        }
    }
}

/// The requests that wrk sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Load {
    /// From one client, all of whose requests are allowed.
    Allowed,
    /// From one client far above its limit.
    Heavy,
    /// 19 of 20 requests from clients that make no other, the others from 2 clients far above
    /// their limit.
    Light,
}

impl Load {
    pub(crate) fn script(self) -> String {
        let request = match self {
            Self::Allowed | Self::Heavy => "wrk.headers['X-Client'] = '10.0.0.1'\n",
            Self::Light => {
                "local n = 0
function request()
    n = n + 1
    local client
    if n % 20 == 0 then
        client = '10.0.0.' .. n / 20 % 2
    else
        client = '11.' .. math.floor(n / 65536) % 256 .. '.'
            .. math.floor(n / 256) % 256 .. '.' .. n % 256
    end
    return 'GET / HTTP/1.1\\r\\nHost: test\\r\\nX-Client: ' .. client .. '\\r\\n\\r\\n'
end
"
            }
        };
        request.to_owned()
            + "function done(summary, latency, requests)
    local errors = summary.errors
    local failed = errors.connect + errors.read + errors.write + errors.timeout
    io.write(string.format('figures %d %d %d %d %d %d %d\\n', summary.requests,
        summary.duration, failed, errors.status,
        latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
"
    }
}

#[derive(Clone, Copy, Debug)]
enum Rules {
    Nothing,
    StickTable,
    /// The agent is asked about this many of 1000 requests.
    Asked(u32),
    /// The filter is configured, and nothing is ever sent.
    Unused,
}

#[derive(Clone, Debug)]
enum Who {
    Nobody,
    Ours,
    Constant { delay_ms: u64 },
    Peer(std::path::PathBuf),
}

/// One way to limit, and the load it is put under.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub name: String,
    pub group: Group,
    pub load: Load,
    rules: Rules,
    who: Who,
    unix: bool,
    /// Of the limit: 100 requests in an "s" or an "h", which a slow machine exceeds, too.
    period: &'static str,
}

impl Setup {
    fn new(name: &str, group: Group, load: Load, rules: Rules, who: Who) -> Self {
        Self { name: name.to_owned(), group, load, rules, who, unix: false, period: "s" }
    }

    fn over_unix(mut self) -> Self {
        self.unix = true;
        self
    }

    /// Whether requests are denied, or none.
    pub(crate) fn denies(&self) -> bool {
        !matches!(self.rules, Rules::Nothing) && self.load != Load::Allowed
    }

    /// Whether `--quick` has it. Each of these has something that no other has.
    pub(crate) fn is_quick(&self) -> bool {
        match self.group {
            // Over a Unix socket, the constant answer stands for both agents; over TCP, ours.
            Group::Asking => self.unix == matches!(self.who, Who::Constant { .. }),
            Group::Light => matches!(self.rules, Rules::Asked(_)),
            Group::Heavy => matches!(self.rules, Rules::StickTable),
            Group::Share => matches!(self.rules, Rules::Unused | Rules::Asked(25)),
        }
    }

    /// Whether the agent counts how often it was asked.
    pub(crate) fn counts(&self) -> bool {
        matches!(self.who, Who::Ours)
    }
}

pub(crate) const NO_LIMITER: &str = "no limiter";
pub(crate) const STICK_TABLE: &str = "stick table";
const OURS: &str = "gcra-spoa, TCP";
const OURS_UNIX: &str = "gcra-spoa, Unix";
const GO: &str = "Go agent, TCP";
const GO_UNIX: &str = "Go agent, Unix";
const CONSTANT: &str = "constant answer, TCP";
const CONSTANT_UNIX: &str = "constant answer, Unix";

/// All setups, in the order in which they take turns. The limit is per second, or per hour.
pub(crate) fn all(peer: Option<&Path>, hourly: bool) -> Vec<Setup> {
    let mut setups = Vec::new();
    let asking = |name, rules, who| Setup::new(name, Group::Asking, Load::Allowed, rules, who);
    setups.push(asking(NO_LIMITER, Rules::Nothing, Who::Nobody));
    setups.push(asking(STICK_TABLE, Rules::StickTable, Who::Nobody));
    let constant = Who::Constant { delay_ms: 0 };
    for (tcp, unix, who) in [(OURS, OURS_UNIX, Who::Ours), (CONSTANT, CONSTANT_UNIX, constant)] {
        setups.push(asking(tcp, Rules::Asked(1000), who.clone()));
        setups.push(asking(unix, Rules::Asked(1000), who).over_unix());
    }
    if let Some(path) = peer {
        let who = Who::Peer(path.to_owned());
        setups.push(asking(GO, Rules::Asked(1000), who.clone()));
        setups.push(asking(GO_UNIX, Rules::Asked(1000), who).over_unix());
    }
    for (group, load) in [(Group::Light, Load::Light), (Group::Heavy, Load::Heavy)] {
        setups.push(Setup::new(NO_LIMITER, group, load, Rules::Nothing, Who::Nobody));
        setups.push(Setup::new(STICK_TABLE, group, load, Rules::StickTable, Who::Nobody));
        setups.push(Setup::new("asked every time", group, load, Rules::Asked(1000), Who::Ours));
    }
    let share = |name: &str, rules, who| Setup::new(name, Group::Share, Load::Allowed, rules, who);
    setups.push(share(NO_LIMITER, Rules::Nothing, Who::Nobody));
    setups.push(share("configured, unused", Rules::Unused, Who::Ours));
    for of_1000 in [0, 25, 100, 250, 500, 750, 1000] {
        let name = format!("{} %", f64::from(of_1000) / 10.0);
        setups.push(share(&name, Rules::Asked(of_1000), Who::Ours));
    }
    if hourly {
        setups.iter_mut().for_each(|setup| setup.period = "h");
    }
    setups
}

/// An agent that waits before it answers; with `None`, no agent is asked.
pub(crate) fn delayed(delay_ms: Option<u64>) -> Setup {
    let (rules, who) = match delay_ms {
        Some(delay_ms) => (Rules::Asked(1000), Who::Constant { delay_ms }),
        None => (Rules::Nothing, Who::Nobody),
    };
    Setup::new("blind", Group::Asking, Load::Allowed, rules, who)
}

/// The argument that makes this program an agent which answers a constant.
pub(crate) const AGENT: &str = "--constant-agent";

/// Answers "not blocked" to everything, after the delay.
pub(crate) fn be_agent(listen: &str, delay: Duration) {
    const BLOCKED: VarName<'_> = VarName::from_static("blocked");
    let answer = move |_: &Request<'_>, reply: &mut Reply<'_>| {
        if delay.is_zero() {
            reply.set_var(Scope::Transaction, BLOCKED, false);
        } else {
            reply.later(async move |mut reply| {
                tokio::time::sleep(delay).await;
                reply.set_var(Scope::Transaction, BLOCKED, false);
                reply
            });
        }
    };
    let address: ListenAddress = listen.parse().unwrap();
    // The server says so too, but to the log, which is not set up here.
    println!("listening on {address}");
    Server::new(answer).run(NonZeroUsize::MIN, &[address], std::future::pending()).unwrap();
}

/// Processes that run for one measurement.
pub(crate) struct Started {
    pub haproxy: Process,
    pub agent: Option<Agent>,
    pub frontend: SocketAddr,
    pub directory: TempDir,
}

impl Started {
    pub(crate) fn new(binary: &Path, setup: &Setup) -> Self {
        let directory = directory();
        let local = || free_port(Ipv4Addr::LOCALHOST.into());
        let listen = if setup.unix {
            format!("unix:{}/agent.sock", directory.path().display())
        } else {
            local().to_string()
        };
        let agent = start_agent(setup, &listen, directory.path());
        let frontend = local();
        let config = directory.path().join("haproxy.cfg");
        fs::write(&config, configuration(setup, frontend, &listen)).unwrap();
        fs::write(directory.path().join("spoe.conf"), questions(setup)).unwrap();
        let haproxy =
            Process::start("haproxy", Command::new(binary).arg("-db").arg("-f").arg(&config));
        wait_until("HAProxy listens", || std::net::TcpStream::connect(frontend).is_ok());
        Self { haproxy, agent, frontend, directory }
    }
}

fn start_agent(setup: &Setup, listen: &str, directory: &Path) -> Option<Agent> {
    let agent = match &setup.who {
        Who::Nobody => return None,
        Who::Constant { delay_ms } => {
            let mut command = Command::new(std::env::current_exe().unwrap());
            Agent::start_command(command.args([AGENT, listen, &delay_ms.to_string()]))
        }
        Who::Peer(path) => Agent::start_command(Command::new(path).arg(listen)),
        Who::Ours => {
            let (rate, burst) = match setup.load {
                Load::Allowed => ("100000000/s".to_owned(), "1000000"),
                Load::Heavy | Load::Light => (format!("100/{}", setup.period), "20"),
            };
            let args = ["--rate", &rate, "--burst", burst, "--drain", "0", "--listen", listen];
            Agent::start_with(&directory.join("table"), &args)
        }
    };
    // Peers that say that they listen before they do.
    if let Some(path) = listen.strip_prefix("unix:") {
        wait_until("the agent's socket is there", || Path::new(path).exists());
    } else {
        wait_until("the agent's port is open", || std::net::TcpStream::connect(listen).is_ok());
    }
    Some(agent)
}

/// The client is in a header that wrk sends, so that one wrk can be many clients.
const KEY: &str = "req.hdr_ip(x-client),ipmask(32,64)";

/// A file of haproxy/, with that key.
fn shipped(file: &str) -> String {
    let text = fs::read_to_string(haproxy_folder().join(file)).unwrap();
    assert!(text.contains("src,ipmask(32,64)"), "{file}");
    text.replace("src,ipmask(32,64)", KEY)
}

fn configuration(setup: &Setup, frontend: SocketAddr, agent: &str) -> String {
    const FILTER: &str = "    filter spoe engine gcra config spoe.conf\n";
    // As in the shipped files.
    const COUNTS: &str = "    http-request track-sc2 var(txn.gcra.err) table undecided
    http-request set-var(proc.gcra_undecided) date(0,us) if { var(txn.gcra.err) -m found }
";
    const COUNTED: &str = "backend undecided
    stick-table type integer size 64 store http_req_cnt
";
    const DENY: &str = "    http-request deny status 429 if";
    let agent = agent.replace("unix:", "unix@");
    let mut rules = String::new();
    let mut tables = String::new();
    match setup.rules {
        Rules::Nothing => {}
        Rules::StickTable => {
            let per_second = if setup.load == Load::Allowed { 4_000_000_000_u32 } else { 100 };
            writeln!(rules, "    http-request track-sc0 {KEY} table limiter").unwrap();
            writeln!(rules, "{DENY} {{ sc_http_req_rate(0) gt {per_second} }}").unwrap();
            writeln!(
                tables,
                "backend limiter\n    stick-table type ipv6 size 1m expire 10m \
                 store http_req_rate(1{})",
                setup.period
            )
            .unwrap();
        }
        Rules::Asked(_) | Rules::Unused => {
            rules.push_str(FILTER);
            rules.push_str(COUNTS);
            tables.push_str(COUNTED);
            writeln!(rules, "{DENY} {{ var(txn.gcra.blocked) -m bool }}").unwrap();
        }
    }
    format!(
        "global
    default-path config
    nbthread 1
    set-var proc.gcra_since date(0,us)
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 2m
frontend web
    bind {frontend}
{rules}    default_backend app
{tables}
backend app
    http-request return status 200 content-type text/plain string ok
backend gcra-agents
.if version_atleast(3.1-dev0)
    mode spop
.else
    mode tcp
.endif
    server agent {agent}
"
    )
}

/// The SPOE configuration, also from haproxy/.
fn questions(setup: &Setup) -> String {
    let text = match setup.rules {
        Rules::Unused => shipped("spoe-group.conf"),
        // Without a filter the file is not read.
        Rules::Nothing | Rules::StickTable => String::new(),
        Rules::Asked(1000) => shipped("spoe-gcra.conf"),
        Rules::Asked(of_1000) => {
            let event = "\n    event on-frontend-http-request";
            shipped("spoe-gcra.conf").replace(
                &format!("{event}\n"),
                &format!("{event} if {{ rand(1000) lt {of_1000} }}\n"),
            )
        }
    };
    // Long enough for a slow agent on a busy machine.
    text.replace("timeout processing 100ms", "timeout processing 5s")
}
