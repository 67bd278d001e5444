//! Real HAProxys with the shipped files, and clients of all kinds, while HAProxy is reloaded and
//! killed, and agents are killed and frozen. Whatever passes is held against the limit.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Agent, Client, Haproxy, directory, haproxy_folder};

/// A limit as it was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    burst: u32,
    interval: Duration,
}

/// How many requests a process of HAProxy lets pass of each client without asking.
const UNASKED: u32 = 7;
const FAST: Limit = Limit { burst: 20, interval: Duration::from_millis(10) };
const SLOW: Limit = Limit { burst: 20, interval: Duration::from_secs(180) };

/// The policy of the agents, with or without a reserve.
fn policies(has_reserve: bool) -> String {
    let unasked = if has_reserve { format!("unasked = {UNASKED}\n") } else { String::new() };
    format!(
        "[policy.check-cost]\nkey = [\"ip\"]\ncost = \"cost\"\n{unasked}limits = \"100/s burst \
         20\"\n[policy.check-cost.overrides]\n\"127.0.2.0/24\" = \"20/h burst 20\"\n"
    )
}

/// A request that was answered, and between which moments it was decided.
#[derive(Clone, Copy, Debug)]
struct Answered {
    sent: Instant,
    at: Instant,
    passed: bool,
}

/// A process of HAProxy: from when it was started to when it had ended.
#[derive(Clone, Copy, Debug)]
struct Process {
    from: Instant,
    to: Instant,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub passed: usize,
    pub blocked: usize,
    /// How many of all these an exact bucket would have let pass.
    pub exact: usize,
    /// The most cells by which any window of any client was beyond the limit; less than zero is
    /// what was left.
    pub beyond: f64,
    /// Requests that were neither: no agent answered, or no HAProxy.
    pub other: usize,
}

/// One kind of client.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// As fast as it can.
    Hot,
    /// So many per second, evenly.
    Steady(u32),
    /// Bursts and pauses of random length.
    Bursts,
    /// As fast as it can, and goes away before the answer.
    Resets,
}

/// Each client: its last two bytes, its limit, and its connections.
const CLIENTS: [([u8; 2], Limit, &[Kind]); 7] = [
    ([1, 1], FAST, &[Kind::Hot; 8]),
    ([1, 2], FAST, &[Kind::Hot, Kind::Hot, Kind::Resets, Kind::Resets]),
    ([1, 3], FAST, &[Kind::Bursts; 6]),
    ([1, 4], FAST, &[Kind::Steady(130)]),
    ([1, 5], FAST, &[Kind::Steady(40), Kind::Steady(30)]),
    ([2, 1], SLOW, &[Kind::Bursts, Kind::Bursts, Kind::Resets]),
    ([2, 2], SLOW, &[Kind::Steady(5)]),
];

/// The shipped file with this many threads. Without an answer a request is answered by 503 instead
/// of passing, because the limit knows nothing of those.
fn prepare(folder: &Path, name: &str, threads: usize) -> String {
    let shipped = |name: &str| fs::read_to_string(haproxy_folder().join(name)).unwrap();
    fs::write(folder.join("spoe-ask-less.conf"), shipped("spoe-ask-less.conf")).unwrap();
    let decided = "{ var(txn.gcra.blocked) -m bool }\n";
    let after = "    http-request deny status 503 if !{ var(txn.gcra.blocked) -m found }\n";
    let text = shipped(name).replace("log stdout len 8192 format raw local0 info\n", "");
    // On a busy machine an agent is not DOWN at once.
    let text = text.replace("timeout check 300ms", "timeout check 5s");
    let (before, rest) = text.rsplit_once(decided).unwrap();
    let text = format!("{before}{decided}{after}{rest}");
    let text = text.replacen("global\n", &format!("global\n    nbthread {threads}\n"), 1);
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub file: &'static str,
    /// HAProxy's.
    pub threads: usize,
    pub duration: Duration,
    /// Whether the agents keep what is not asked about in reserve.
    pub has_reserve: bool,
    pub seed: u64,
}

/// Runs the load and the faults for about as long.
pub(crate) fn run(run: Run) -> Report {
    let folder = directory();
    let config = prepare(folder.path(), run.file, run.threads);
    let file = folder.path().join("policies.toml");
    fs::write(&file, policies(run.has_reserve)).unwrap();
    let table = folder.path().join("table");
    let args = ["--config", file.to_str().unwrap()];
    let mut agents = [(); 2].map(|()| Some(Agent::start(&table, &args)));
    let addresses = [0, 1].map(|number| agents[number].as_ref().unwrap().address.clone());
    let environment = [("GCRA_AGENT1", &addresses[0][..]), ("GCRA_AGENT2", &addresses[1][..])];
    let mut running = Instant::now();
    let mut haproxy = Haproxy::start_as_shipped(&config, &environment);
    haproxy.wait_for("gcra-agents", "agent1", "UP");
    haproxy.wait_for("gcra-agents", "agent2", "UP");
    let (frontend, stop) = (haproxy.frontend, AtomicBool::new(false));
    let mut random = fastrand::Rng::with_seed(run.seed);
    let mut processes = Vec::new();
    let answered = thread::scope(|scope| {
        // Also if something here panics: the scope waits for the clients.
        let stops = StopsAtEnd(&stop);
        let clients: Vec<_> = CLIENTS
            .iter()
            .map(|(bytes, _, kinds)| {
                let ip = Ipv4Addr::new(127, 0, bytes[0], bytes[1]).into();
                let connections = kinds.iter().map(|kind| {
                    let (random, stop) = (random.fork(), &stop);
                    scope.spawn(move || send(frontend, ip, *kind, random, stop))
                });
                connections.collect::<Vec<_>>()
            })
            .collect();
        let start = Instant::now();
        while start.elapsed() < run.duration {
            thread::sleep(Duration::from_millis(random.u64(100..600)));
            let number = random.usize(0..2);
            match random.u32(0..6) {
                kills @ 0..=1 => {
                    if kills == 0 {
                        haproxy.process.kill();
                    }
                    let started = Instant::now();
                    haproxy.reload().wait();
                    haproxy.wait_for_statistics();
                    processes.push(Process { from: running, to: Instant::now() });
                    running = started;
                }
                2 => {
                    agents[number] = None;
                    thread::sleep(Duration::from_millis(random.u64(0..300)));
                    agents[number] = Some(Agent::start_at(&table, &addresses[number], &args));
                    // Without an agent nothing is decided, and nothing is learned.
                    haproxy.wait_for("gcra-agents", ["agent1", "agent2"][number], "UP");
                }
                _ => {
                    let agent = agents[number].as_ref().unwrap();
                    agent.process.signal(Signal::STOP);
                    thread::sleep(Duration::from_millis(random.u64(0..60)));
                    agent.process.signal(Signal::CONT);
                }
            }
        }
        drop(stops);
        let all = clients.into_iter().map(|connections| {
            let answered = connections.into_iter().map(|it| it.join().unwrap());
            answered.reduce(|(mut all, other), (more, others)| {
                all.extend(more);
                (all, other + others)
            })
        });
        all.map(Option::unwrap).collect::<Vec<_>>()
    });
    processes.push(Process { from: running, to: Instant::now() });
    let mut report = Report { beyond: f64::NEG_INFINITY, ..Report::default() };
    for ((answered, other), (_, limit, _)) in answered.into_iter().zip(CLIENTS) {
        report.add(&answered, limit, &processes);
        report.other += other;
    }
    report
}

struct StopsAtEnd<'a>(&'a AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends requests of one kind on one connection. Returns those that passed or were blocked, and
/// how many had another answer or none.
fn send(
    frontend: SocketAddr,
    ip: IpAddr,
    kind: Kind,
    mut random: fastrand::Rng,
    stop: &AtomicBool,
) -> (Vec<Answered>, usize) {
    let mut client = Client::from(frontend, ip);
    let (mut answered, mut other) = (Vec::new(), 0);
    let mut left = 0;
    while !stop.load(Ordering::Relaxed) {
        match kind {
            Kind::Hot => {}
            Kind::Steady(rate) => thread::sleep(Duration::from_secs(1) / rate),
            Kind::Bursts if left == 0 => {
                left = random.u32(1..15);
                thread::sleep(Duration::from_millis(random.u64(0..200)));
            }
            Kind::Bursts => left -= 1,
            Kind::Resets => {
                let after = Duration::from_micros(random.u64(0..3000));
                // A process that is being replaced may refuse it.
                let _ = client.reset_after(after);
                continue;
            }
        }
        let sent = Instant::now();
        match client.get("/").map(|response| response.status) {
            Ok(status @ (200 | 429)) => {
                answered.push(Answered { sent, at: Instant::now(), passed: status == 200 });
            }
            _ => {
                other += 1;
                // There may be no HAProxy now.
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
    (answered, other)
}

impl Report {
    /// Holds what one client got against its limit.
    fn add(&mut self, answered: &[Answered], limit: Limit, processes: &[Process]) {
        let mut answered = answered.to_vec();
        answered.sort_by_key(|answer| answer.at);
        let interval = limit.interval.as_secs_f64();
        let cells = |from: Instant, to: Instant| (to - from).as_secs_f64() / interval;
        let passed: Vec<_> = answered.iter().filter(|answer| answer.passed).copied().collect();
        self.passed += passed.len();
        self.blocked += answered.len() - passed.len();
        // Whatever was sent and answered in a window was decided in it.
        for from in passed.iter().map(|answer| answer.sent) {
            let mut count = 0.0;
            for answer in passed.iter().filter(|answer| answer.sent >= from) {
                count += 1.0;
                let to = answer.at;
                let is_in = |process: &&Process| process.from <= to && process.to >= from;
                let more = processes.iter().filter(is_in).count().saturating_sub(1);
                let more = u32::try_from(more).unwrap() * UNASKED;
                let allowed = f64::from(limit.burst + more) + cells(from, to);
                self.beyond = self.beyond.max(count - allowed);
            }
        }
        // An exact bucket for the same requests.
        let (mut owed, mut last) = (0.0, None);
        for answer in &answered {
            let since = last.map_or(0.0, |last| cells(last, answer.at));
            last = Some(answer.at);
            owed = f64::max(0.0, owed - since);
            if owed + 1.0 <= f64::from(limit.burst) {
                owed += 1.0;
                self.exact += 1;
            }
        }
    }
}
