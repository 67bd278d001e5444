//! Clients have many connections, in HAProxy and over SPOE at once. Meanwhile workers and agents
//! are killed, HAProxy is reloaded, the table is resized, and one client is exempt now and then.
//! All requests that pass are held against the limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::process::Signal;

use crate::http2::Http2;
use crate::set_up::{Program, SetUp, programs};
use crate::support::{
    self, Agent, Client, Haproxy, Process, agent_binary, directory, free_port, needs, wait_until,
};

/// How long a run takes, unless `GCRA_INPROC_SECONDS` says otherwise.
const DURATION: Duration = Duration::from_secs(6);

/// A limit: cells in a second, and the burst.
type Limit = (f64, f64);

/// Whose requests are limited, and how.
struct Plan {
    /// The clients, each with its limits. The last one is exempt now and then.
    clients: &'static [(Ipv4Addr, &'static [Limit])],
    /// Whether the limits stand in a file. It is changed at each reload, for another client.
    has_file: bool,
}

const ONE_LIMIT: Plan = Plan {
    clients: &[
        (Ipv4Addr::LOCALHOST, &[(200.0, 50.0)]),
        (Ipv4Addr::new(127, 0, 0, 4), &[(200.0, 50.0)]),
    ],
    has_file: false,
};

const FILE: Plan = Plan {
    clients: &[
        (Ipv4Addr::LOCALHOST, &[(300.0, 30.0), (200.0, 60.0)]),
        (Ipv4Addr::new(127, 0, 0, 2), &[(100.0, 20.0)]),
        (Ipv4Addr::new(127, 0, 0, 4), &[(300.0, 30.0), (200.0, 60.0)]),
    ],
    has_file: true,
};

/// The limits of [`FILE`], and one that changes.
fn policies(changing: u32) -> String {
    format!(
        r#"[policy.api]
limits = ["300/s burst 30", "200/s burst 60"]
key = ["ip"]
[policy.api.overrides]
"127.0.0.2" = "100/s burst 20"
"127.0.0.3" = "{changing}/s"
"#
    )
}

/// A request that has passed or was blocked, and between which moments.
#[derive(Clone, Copy, Debug)]
struct Answered {
    /// The place of the client.
    client: usize,
    sent: Instant,
    at: Instant,
    /// `None`: no answer came, so that it may have been charged.
    passed: Option<bool>,
}

/// From before an exemption was asked for, until no process could have it in force any more.
type Exempt = (Instant, Instant);

/// Denied is what is over the limit. A request without a decision gets 503, because no bucket has
/// counted it.
const RULES: &str = "http-request set-var(txn.wait) src,lua.gcra
    http-request deny status 429 if { var(txn.wait) -m int gt 0 }
    http-request deny status 503 if { var(txn.wait) -m int lt 0 }";

#[test]
fn no_request_too_many_passes_while_everything_is_killed() {
    run_and_judge(&ONE_LIMIT);
}

/// Two limits and an override, of a file that is changed, and clients of HTTP/2.
#[test]
fn no_request_too_many_passes_while_the_file_is_changed() {
    run_and_judge(&FILE);
}

fn run_and_judge(plan: &Plan) {
    needs!(support::haproxy());
    let seconds = std::env::var("GCRA_INPROC_SECONDS").ok();
    let duration =
        seconds.map_or(DURATION, |seconds| Duration::from_secs(seconds.parse().unwrap()));
    for program in programs() {
        let seed = std::env::var("GCRA_INPROC_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        println!("GCRA_INPROC_SEED={seed}, HAProxy {:?}", program.version);
        let (answered, exempt) = run(plan, &program, duration, seed);
        for (place, (client, limits)) in plan.clients.iter().enumerate() {
            let own = answered.iter().filter(|it| it.client == place).copied();
            let exempt = if place + 1 == plan.clients.len() { &exempt[..] } else { &[] };
            println!("{client}: {}", judge(&own.collect::<Vec<_>>(), limits, duration, exempt));
        }
    }
}

/// Two HAProxys that decide and one that asks two agents, all on one table.
fn run(
    plan: &Plan,
    program: &Program,
    duration: Duration,
    seed: u64,
) -> (Vec<Answered>, Vec<Exempt>) {
    let folder = directory();
    let table = folder.path().join("table");
    let file = folder.path().join("policies.toml");
    let change = |to: u32| {
        let new = file.with_extension("new");
        fs::write(&new, policies(to)).unwrap();
        fs::rename(&new, &file).unwrap();
    };
    change(1);
    let words = match plan.has_file {
        true => format!("--config {}", file.display()),
        false => "--rate 200/s --burst 50".to_owned(),
    };
    let set_up = SetUp::new(&table, &words, RULES);
    let frontends = [(); 2].map(|()| free_port(Ipv4Addr::LOCALHOST.into()));
    let start = |number: usize, args: &[&str]| {
        let cfg = folder.path().join(format!("{number}.cfg"));
        let set_up = set_up.clone().global(["nbthread 4", "nbthread 1"][number]);
        fs::write(&cfg, set_up.text(program.version, &frontends[number].to_string())).unwrap();
        let mut command = Command::new(&program.path);
        let process = Process::start("haproxy", command.args(args).arg("-f").arg(&cfg));
        process.wait_for_table();
        process
    };
    let (mut master, mut other) = (start(0, &["-W"]), start(1, &["-db"]));
    // Without --slots: the table is resized.
    let agent = |listen: &str| {
        let args = words.split(' ').chain(["--drain", "0", "--listen", listen]);
        Agent::start_with(&table, &args.collect::<Vec<_>>())
    };
    // They come back at the same ports, which no client may have got from the system meanwhile.
    let addresses = [(); 2].map(|()| free_port(Ipv4Addr::LOCALHOST.into()).to_string());
    let mut agents = addresses.each_ref().map(|address| agent(address));
    let environment = [("GCRA_AGENT1", &addresses[0][..]), ("GCRA_AGENT2", &addresses[1][..])];
    let spoe = Haproxy::start_program(&program.path, "fail-closed.cfg", &environment);
    spoe.wait_for("gcra-agents", "agent1", "UP");
    spoe.wait_for("gcra-agents", "agent2", "UP");
    let servers = [frontends[0], frontends[1], spoe.frontend];
    let stop = AtomicBool::new(false);
    // For each client.
    let passed: Vec<_> = plan.clients.iter().map(|_| AtomicU64::new(0)).collect();
    let mut random = fastrand::Rng::with_seed(seed);
    thread::scope(|scope| {
        let stops = StopsAtEnd(&stop);
        let clients: Vec<_> = (0..12)
            .map(|number| {
                let client = number / 3 % plan.clients.len();
                let (server, stop, passed) = (servers[number % 3], &stop, &passed[client]);
                // A connection of each client to each server has HTTP/2.
                let is_http2 = plan.has_file && number / 6 == 1;
                let address = plan.clients[client].0;
                let client = (client, address.into());
                scope.spawn(move || send(server, client, is_http2, stop, passed))
            })
            .collect();
        // On a busy machine it goes on until enough has passed.
        let is_enough = || {
            let enough = |(passed, (_, limits)): (&AtomicU64, &(_, &[Limit]))| {
                passed.load(Ordering::Relaxed) as f64 > least(limits, duration)
            };
            passed.iter().zip(plan.clients).all(enough)
        };
        let began = Instant::now();
        let last = (plan.clients.len() - 1, plan.clients[plan.clients.len() - 1].0.into());
        let (mut exempt, mut exempt_since) = (Vec::new(), None);
        let mut probes = Vec::new();
        let mut slots = [65_536, 262_144].into_iter().cycle();
        while began.elapsed() < duration || !is_enough() && began.elapsed() < 10 * duration {
            thread::sleep(Duration::from_millis(random.u64(100..500)));
            match random.u32(..7) {
                0 => {
                    kill_with_workers(&mut master);
                    master = start(0, &["-W"]);
                }
                1 => {
                    change(random.u32(1..1_000));
                    master.signal(Signal::USR2);
                }
                2 => {
                    other.kill();
                    other = start(1, &["-db"]);
                }
                3 => {
                    let which = random.usize(..2);
                    agents[which].process.kill();
                    agents[which] = agent(&addresses[which]);
                }
                4 => resize(&table, slots.next().unwrap()),
                _ => match exempt_since.take() {
                    None => {
                        exempt_since = Some(Instant::now());
                        begin_exemption(&table, &words, last.1, &mut random);
                    }
                    Some(since) => {
                        end_exemption(&table, &words, last.1);
                        if random.u32(..4) == 0 {
                            kill_with_workers(&mut master);
                            other.kill();
                            (master, other) = (start(0, &["-W"]), start(1, &["-db"]));
                        } else {
                            until_blocked(frontends[0], last, &mut probes, || {
                                match children(master.id())[..] {
                                    [worker] => Some(worker),
                                    _ => None,
                                }
                            });
                            until_blocked(frontends[1], last, &mut probes, || Some(()));
                        }
                        // Which of the agents has answered is not known.
                        for (agent_of, address) in agents.iter_mut().zip(&addresses) {
                            agent_of.process.kill();
                            *agent_of = agent(address);
                        }
                        exempt.push((since, Instant::now()));
                    }
                },
            }
        }
        drop(stops);
        let answered = clients.into_iter().flat_map(|client| client.join().unwrap());
        let answered = answered.chain(probes).collect();
        exempt.extend(exempt_since.map(|since| (since, Instant::now())));
        master.stop();
        (answered, exempt)
    })
}

/// Ends the clients, also if something panics.
struct StopsAtEnd<'a>(&'a AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn resize(table: &Path, slots: u32) {
    let mut command = Command::new(agent_binary());
    command.args(["table", "resize", "--slots", &slots.to_string(), "--table"]).arg(table);
    let output = command.output().unwrap();
    // A process that was killed during it leaves nothing that is wrong.
    assert!(output.status.success() || !output.stderr.is_empty(), "{output:?}");
}

fn kill_with_workers(master: &mut Process) {
    for worker in children(master.id()) {
        let _ = rustix::process::kill_process(worker, Signal::KILL);
    }
    // It ends with its worker, but not with one that a reload has replaced.
    master.kill();
}

fn exempt_command(table: &Path, words: &str, client: IpAddr, more: &[&str]) -> Command {
    let mut command = Command::new(agent_binary());
    command.arg("exempt").args(more).arg("--table").arg(table).arg(client.to_string());
    if words.starts_with("--config") {
        command.args(words.split(' '));
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The command may be killed, so that the client may be exempt or not.
fn begin_exemption(table: &Path, words: &str, client: IpAddr, random: &mut fastrand::Rng) {
    let mut command = exempt_command(table, words, client, &["--for", "1h"]);
    if random.u32(..4) == 0 {
        let mut child = command.spawn().unwrap();
        thread::sleep(Duration::from_millis(random.u64(..20)));
        child.kill().unwrap();
        child.wait().unwrap();
    } else {
        // It is refused while the table is resized.
        command.output().unwrap();
    }
}

fn end_exemption(table: &Path, words: &str, client: IpAddr) {
    wait_until("the exemption is ended, if there is one", || {
        let output = exempt_command(table, words, client, &["--end"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        output.status.success() || said.contains("there was no exemption")
    });
}

/// Asks a server as a client that is no longer exempt, until the one process of the server denies
/// a request. Others may still know the exemption.
fn until_blocked<P: PartialEq>(
    server: SocketAddr,
    (client, address): (usize, IpAddr),
    probes: &mut Vec<Answered>,
    process: impl Fn() -> Option<P>,
) {
    let mut http = Client::from(server, address);
    wait_until("the client is no longer exempt", || {
        let before = process();
        let answered = answered(client, || http.get("/").map(|it| it.status));
        probes.push(answered);
        answered.passed == Some(false) && before.is_some() && process() == before
    });
}

fn children(of: u32) -> Vec<rustix::process::Pid> {
    let text = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    let pids = text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter_map(rustix::process::Pid::from_raw).collect()
}

/// Sends many more requests than the limit allows.
fn send(
    server: SocketAddr,
    (client, address): (usize, IpAddr),
    is_http2: bool,
    stop: &AtomicBool,
    passed: &AtomicU64,
) -> Vec<Answered> {
    let mut http1 = Client::from(server, address);
    let mut http2 = Http2::new(Client::from(server, address));
    let mut all = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let answered = answered(client, || match is_http2 {
            true => http2.get(),
            false => http1.get("/").map(|it| it.status),
        });
        passed.fetch_add(u64::from(answered.passed == Some(true)), Ordering::Relaxed);
        all.push(answered);
        thread::sleep(Duration::from_millis(1));
    }
    all
}

fn answered(client: usize, get: impl FnOnce() -> io::Result<u16>) -> Answered {
    let sent = Instant::now();
    let passed = match get() {
        Ok(200) => Some(true),
        Ok(429) => Some(false),
        // Not decided: nothing was charged, or it is not known.
        Ok(_) => None,
        Err(_) => {
            thread::sleep(Duration::from_millis(5));
            None
        }
    };
    Answered { client, sent, at: Instant::now(), passed }
}

/// How many of a client's requests must have passed, so that a verdict on them means something.
fn least(limits: &[Limit], duration: Duration) -> f64 {
    let slowest = limits.iter().map(|(per_second, _)| *per_second).fold(f64::MAX, f64::min);
    duration.as_secs_f64() * slowest * 0.2
}

/// Of each window from a request's sending to another one's answer: no more have passed wholly
/// within it than each burst and rate allow. And of each that was blocked: the debt to one of the
/// limits could be that high. Requests of a client that may be exempt are not counted, but may
/// have been charged. Returns what was found.
fn judge(
    answered: &[Answered],
    limits: &[Limit],
    duration: Duration,
    exempt: &[Exempt],
) -> String {
    let may_be_exempt =
        |it: &Answered| exempt.iter().any(|(from, until)| it.at >= *from && it.sent <= *until);
    let passed: Vec<_> = answered.iter().filter(|it| it.passed == Some(true)).collect();
    let origin = answered.iter().map(|it| it.sent).min().unwrap();
    let s = |at: Instant| (at - origin).as_secs_f64();
    let sorted = |mut pairs: Vec<(f64, f64)>| {
        pairs.sort_by(|one, other| one.partial_cmp(other).unwrap());
        pairs
    };
    let counted = passed.iter().filter(|it| !may_be_exempt(it));
    let by_end = sorted(counted.map(|it| (s(it.at), s(it.sent))).collect());
    let mut worst = f64::MIN;
    for start in by_end.iter().map(|it| it.1) {
        let within = by_end.iter().filter(|(_, sent)| *sent >= start);
        for (count, (at, _)) in within.enumerate() {
            for (per_second, burst) in limits {
                worst = worst.max(count as f64 + 1.0 - (burst + per_second * (at - start)));
            }
        }
    }
    // A cell may be rounded.
    assert!(worst <= 1e-6, "{worst} too many of {}", passed.len());

    // The largest debt that is possible when a request was sent: each that may have been charged
    // was charged when its answer came, and those under way until the answer came, too.
    let late = |it: &Answered| if it.passed.is_some() { s(it.at) } else { s(it.at) + 1.0 };
    let charged = answered.iter().filter(|it| it.passed != Some(false));
    let charged = sorted(charged.map(|it| (late(it), s(it.sent))).collect());
    let mut begun: Vec<_> = charged.iter().map(|(_, sent)| *sent).collect();
    begun.sort_by(f64::total_cmp);
    let blocked = answered.iter().filter(|it| it.passed == Some(false));
    let blocked = sorted(blocked.map(|it| (s(it.sent), s(it.at))).collect());
    let mut debts = vec![0.0_f64; limits.len()];
    let (mut then, mut next, mut early) = (0.0, 0, 0);
    for (sent, at) in blocked.iter().copied() {
        while next < charged.len() && charged[next].0 <= sent {
            for (debt, (per_second, _)) in debts.iter_mut().zip(limits) {
                *debt = (*debt - (charged[next].0 - then) * per_second).max(0.0) + 1.0;
            }
            (then, next) = (charged[next].0, next + 1);
        }
        let under_way = (begun.partition_point(|begun| *begun <= at) - next) as f64;
        let has_room = |(debt, (per_second, burst)): (&f64, &Limit)| {
            let owed = (debt - (sent - then) * per_second).max(0.0) + under_way;
            owed + 1.0 <= burst - 1e-6
        };
        early += usize::from(debts.iter().zip(limits).all(has_room));
    }
    let least = least(limits, duration);
    assert!(passed.len() as f64 > least, "{} passed: too few to tell", passed.len());
    assert_eq!(early, 0, "blocked early, of {}", blocked.len());
    let uncounted = passed.len() - by_end.len();
    format!(
        "{} passed and {uncounted} of them perhaps exempt, {} blocked, worst {worst:.2}",
        passed.len(),
        blocked.len()
    )
}
