//! `gcra-spoa replay`: held against a replay that is written here once more, naively, and against
//! what a real agent has blocked behind a real HAProxy.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fastrand::Rng;
use serde_json::Value;

use crate::support;
use crate::support::{Agent, Client, Haproxy, agent_binary, directory, needs};

/// When the logs of these tests begin: 2026-11-21 00:00:00 UTC, in milliseconds since 1970.
const START_MS: u64 = 1_795_219_200_000;

/// A request of a log that is made here.
#[derive(Clone, Debug)]
struct Line {
    ms: u64,
    ip: String,
    method: &'static str,
    path: String,
    cost: u64,
}

impl Line {
    /// As `option httplog` writes it, with one captured header.
    fn written(&self) -> String {
        let Self { ms, ip, method, path, cost } = self;
        let (second, ms) = (ms / 1000 % 86_400, ms % 1000);
        let time = format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
        format!(
            "{ip}:4711 [21/Nov/2026:{time}.{ms:03}] web app/srv1 0/0/0/1/1 200 99 - - ---- \
             1/1/0/0/0 0/0 {{{cost}}} \"{method} {path}?x=1 HTTP/1.1\""
        )
    }
}

/// A log of half an hour: some clients that ask now and then, some that ask all the time, bursts.
fn lines(seed: u64, count: usize) -> Vec<Line> {
    let mut random = Rng::with_seed(seed);
    let mut lines = Vec::new();
    while lines.len() < count {
        // By about Zipf's law.
        let client = (200.0_f64.powf(random.f64()) - 1.0) as u64;
        let (net, host) = (client % 4, client % 250);
        let ip = match net {
            0 => format!("192.0.2.{host}"),
            1 => format!("198.51.100.{host}"),
            2 => format!("203.0.113.{host}"),
            _ => format!("2001:db8:0:{host:x}::{:x}", random.u64(1..5)),
        };
        let ms = START_MS + random.u64(..1_800_000);
        let burst = if random.u64(..20) == 0 { random.u64(1..40) } else { 1 };
        for place in 0..burst {
            lines.push(Line {
                ms: ms + place * random.u64(..30),
                ip: ip.clone(),
                method: if random.u64(..5) == 0 { "POST" } else { "GET" },
                path: format!("/{}", random.u64(..3)),
                cost: random.u64(..4),
            });
        }
    }
    // As requests end: some later than others.
    lines.sort_by_key(|line| line.ms);
    let mut ended: Vec<_> =
        lines.into_iter().map(|line| (line.ms + random.u64(..5_000), line)).collect();
    ended.sort_by_key(|(ended, _)| *ended);
    ended.into_iter().map(|(_, line)| line).collect()
}

fn write_log(path: &Path, lines: &[Line]) {
    let text: String = lines.iter().map(|line| line.written() + "\n").collect();
    fs::write(path, text).unwrap();
}

/// The emission interval in nanoseconds, and the burst.
type Quota = (u64, u64);

enum Over {
    Policy,
    Deny,
    Unlimited,
    Limits(Vec<Quota>),
}

/// A policy, as plainly as it can be written.
struct Plain {
    name: &'static str,
    is_for: fn(&Line) -> bool,
    key: fn(&Line) -> String,
    limits: Vec<Quota>,
    observes: bool,
    /// Cells, and the ceiling in nanoseconds.
    penalty: Option<(u64, u64)>,
    /// In nanoseconds.
    max_delay: u64,
    has_cost: bool,
    over: fn(&Line) -> Over,
    /// Whether the next policy in the list is its trial.
    has_trial: bool,
}

impl Plain {
    fn new(name: &'static str, limits: Vec<Quota>) -> Self {
        Self {
            name,
            is_for: |_| true,
            key: |line| network(&line.ip),
            limits,
            observes: false,
            penalty: None,
            max_delay: 0,
            has_cost: false,
            over: |_| Over::Policy,
            has_trial: false,
        }
    }
}

/// The address, or the /64 network of an IPv6 one.
fn network(ip: &str) -> String {
    match ip.split_once("::") {
        Some((net, _)) => format!("{net}::/64"),
        None => ip.to_owned(),
    }
}

#[derive(Debug, Default, PartialEq)]
struct Counts {
    allowed: u64,
    delayed: u64,
    hit: u64,
    clients: BTreeSet<String>,
    hit_by_client: BTreeMap<String, u64>,
    by_limit: Vec<u64>,
    worst_wait_ns: Vec<u64>,
}

#[derive(Debug, Default, PartialEq)]
struct Naive {
    allowed: u64,
    blocked: u64,
    would_block: u64,
    policies: Vec<Counts>,
    /// For each request, whether it was blocked.
    each: Vec<bool>,
}

/// Decides about all lines in the order of time, by a map of theoretical arrival times.
fn naive(policies: &[Plain], lines: &[Line]) -> Naive {
    let mut sorted: Vec<_> = lines.iter().collect();
    sorted.sort_by_key(|line| line.ms);
    let mut tats: HashMap<(usize, bool, usize, String), u64> = HashMap::new();
    let mut naive = Naive::default();
    for policy in policies {
        naive.policies.push(Counts {
            by_limit: vec![0; policy.limits.len()],
            worst_wait_ns: vec![0; policy.limits.len()],
            ..Counts::default()
        });
    }
    for line in sorted {
        let place = policies.iter().position(|policy| (policy.is_for)(line)).unwrap();
        let mut outcome = 0;
        let is_over = !matches!((policies[place].over)(line), Over::Policy);
        let trial = (policies[place].has_trial && !is_over).then_some(place + 1);
        for place in [place].into_iter().chain(trial) {
            let is_denied = decide(place, &policies[place], line, &mut tats, &mut naive);
            outcome = outcome.max(match (is_denied, policies[place].observes) {
                (false, _) => 0,
                (true, true) => 1,
                (true, false) => 2,
            });
        }
        *[&mut naive.allowed, &mut naive.would_block, &mut naive.blocked][outcome] += 1;
        naive.each.push(outcome == 2);
    }
    naive
}

fn decide(
    place: usize,
    policy: &Plain,
    line: &Line,
    tats: &mut HashMap<(usize, bool, usize, String), u64>,
    naive: &mut Naive,
) -> bool {
    let key = (policy.key)(line);
    let counts = &mut naive.policies[place];
    counts.clients.insert(key.clone());
    let now = line.ms * 1_000_000;
    let cells = if policy.has_cost { line.cost } else { 1 };
    let (limits, is_over) = match (policy.over)(line) {
        Over::Policy => (policy.limits.clone(), false),
        Over::Limits(limits) => (limits, true),
        Over::Unlimited => (Vec::new(), true),
        Over::Deny => {
            counts.hit += 1;
            *counts.hit_by_client.entry(key).or_default() += 1;
            return true;
        }
    };
    let (mut is_denied, mut is_delayed) = (false, false);
    let mut after = Vec::new();
    for (place_of_limit, (interval, burst)) in limits.iter().enumerate() {
        let tat = tats.entry((place, is_over, place_of_limit, key.clone())).or_default();
        let owed = tat.saturating_sub(now);
        let most = burst * interval + policy.max_delay;
        is_delayed |= cells > 0 && owed + cells * interval > burst * interval;
        if cells > 0 && owed + cells * interval > most {
            is_denied = true;
            let mut owed = owed;
            if let Some((cells, ceiling)) = policy.penalty
                && let most = burst * interval + policy.max_delay.next_multiple_of(*interval)
                && owed + cells * interval <= (most + ceiling) / interval * interval
            {
                owed += cells * interval;
                *tat = now + owed;
            }
            if !is_over {
                let wait = owed + cells * interval - most;
                counts.by_limit[place_of_limit] += 1;
                let worst = &mut counts.worst_wait_ns[place_of_limit];
                *worst = (*worst).max(wait);
            }
        }
        after.push(now + owed + cells * interval);
    }
    if is_denied {
        counts.hit += 1;
        *counts.hit_by_client.entry(key).or_default() += 1;
        return true;
    }
    counts.allowed += 1;
    counts.delayed += u64::from(is_delayed && !policy.observes);
    for (place_of_limit, tat) in after.into_iter().enumerate().filter(|_| cells > 0) {
        tats.insert((place, is_over, place_of_limit, key.clone()), tat);
    }
    false
}

/// Runs `gcra-spoa replay` with these arguments.
fn replay(args: &[&str]) -> Output {
    Command::new(agent_binary()).arg("replay").args(args).output().unwrap()
}

fn report(args: &[&str]) -> Value {
    let output = replay(&[args, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The sentence about a wrong command line, and its exit status.
fn wrong(args: &[&str]) -> (String, i32) {
    let output = replay(args);
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "one sentence: {said}");
    (said, output.status.code().unwrap())
}

fn assert_same(report: &Value, naive: &Naive, policies: &[Plain]) {
    let total = &report["total"];
    assert_eq!(total["allowed"], naive.allowed);
    assert_eq!(total["blocked"], naive.blocked);
    assert_eq!(total["would_block"], naive.would_block);
    let delayed: u64 = naive.policies.iter().map(|counts| counts.delayed).sum();
    assert_eq!(total["delayed"], delayed);
    let sum = |series: &str| {
        report["timeline"][series].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).sum()
    };
    let sums: [u64; 3] = [sum("allowed"), sum("blocked"), sum("would_block")];
    assert_eq!(sums, [naive.allowed, naive.blocked, naive.would_block]);
    let reported = report["policies"].as_array().unwrap();
    assert_eq!(reported.len(), policies.len());
    for policy in reported {
        let name = policy["name"].as_str().unwrap();
        let place = policies.iter().position(|policy| policy.name == name).unwrap();
        let counts = &naive.policies[place];
        assert_eq!(policy["allowed"], counts.allowed, "{name}");
        assert_eq!(policy["delayed"], counts.delayed, "{name}");
        let hit = if policies[place].observes { "would_block" } else { "blocked" };
        assert_eq!(policy[hit], counts.hit, "{name}");
        assert_eq!(policy["clients"], counts.clients.len(), "{name}");
        assert_eq!(policy["clients_blocked"], counts.hit_by_client.len(), "{name}");
        let limits = policy["limits"].as_array().unwrap();
        for (place, limit) in limits.iter().filter(|it| it["override"] == false).enumerate() {
            assert_eq!(limit[hit], counts.by_limit[place], "{name} {place}");
            let wait = limit["worst_wait"].as_f64().unwrap();
            let expected = counts.worst_wait_ns[place] as f64 / 1e9;
            assert!((wait - expected).abs() < 1e-6, "{name} {place}: {wait} {expected}");
        }
    }
    // All of them are in the list, if they are not too many.
    let listed = report["most_blocked"].as_array().unwrap();
    let expected: usize = naive.policies.iter().map(|counts| counts.hit_by_client.len()).sum();
    assert_eq!(listed.len(), expected.min(50));
    for client in listed {
        let place = policies.iter().position(|policy| client["policy"] == policy.name).unwrap();
        let hits = &naive.policies[place].hit_by_client;
        let name = client["client"].as_str().unwrap().split(',').next().unwrap();
        let counts = client["blocked"].as_u64().unwrap() + client["would_block"].as_u64().unwrap();
        let of_key = |key: &&String| key.split(',').next() == Some(name);
        let possible: Vec<_> = hits.keys().filter(of_key).map(|key| hits[key]).collect();
        assert!(possible.contains(&counts), "{client}: {possible:?}");
        let steps = client["timeline"]["blocked"].as_array().unwrap();
        assert_eq!(steps.iter().map(|it| it.as_u64().unwrap()).sum::<u64>(), counts);
    }
}

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// A file of policies, and the same as plainly as it can be written.
fn configurations() -> Vec<(&'static str, Vec<Plain>)> {
    let post = |line: &Line| line.method == "POST";
    let mut trial = Plain::new("check.observe", vec![(S, 3)]);
    trial.observes = true;
    vec![
        (
            "[policy.check]\nlimits = '10/s burst 5'\nkey = ['ip']\n",
            vec![Plain::new("check", vec![(100 * MS, 5)])],
        ),
        (
            "[policy.check]\nlimits = ['10/s burst 5', '60/m burst 30']\nkey = ['ip']\n\
             mode = 'observe'\n",
            vec![Plain { observes: true, ..Plain::new("check", vec![(100 * MS, 5), (S, 30)]) }],
        ),
        (
            "[policy.check]\nlimits = ['5/s burst 10', '30/m burst 20']\nkey = ['ip']\n\
             penalty = { cells = 2, ceiling = '1m' }\n\
             [policy.check.overrides]\n'192.0.2.0/24' = 'unlimited'\n\
             '198.51.100.1' = 'deny'\n'203.0.113.0/24' = '2/s burst 4'\n",
            vec![Plain {
                penalty: Some((2, 60 * S)),
                over: |line| match &*line.ip {
                    "198.51.100.1" => Over::Deny,
                    ip if ip.starts_with("192.0.2.") => Over::Unlimited,
                    ip if ip.starts_with("203.0.113.") => Over::Limits(vec![(500 * MS, 4)]),
                    _ => Over::Policy,
                },
                ..Plain::new("check", vec![(200 * MS, 10), (2 * S, 20)])
            }],
        ),
        (
            "[policy.check]\nlimits = '20/s burst 10'\nobserve = ['1/s burst 3']\nkey = ['ip']\n",
            vec![Plain { has_trial: true, ..Plain::new("check", vec![(50 * MS, 10)]) }, trial],
        ),
        (
            "[policy.post]\nmessage = 'check'\nwhen = { method = 'POST' }\n\
             limits = '1/s burst 2'\n\
             key = ['ip', 'path']\n[policy.rest]\nmessage = 'check'\nlimits = '4/s burst 6'\n\
             key = ['ip']\n",
            vec![
                Plain {
                    is_for: post,
                    key: |line| format!("{},{}", network(&line.ip), line.path),
                    ..Plain::new("post", vec![(S, 2)])
                },
                Plain::new("rest", vec![(250 * MS, 6)]),
            ],
        ),
        (
            "[policy.check]\nlimits = '10/s burst 8'\nkey = ['ip']\ncost = 'cost'\n",
            vec![Plain { has_cost: true, ..Plain::new("check", vec![(100 * MS, 8)]) }],
        ),
        (
            "[policy.check]\nlimits = '5/s burst 2'\nkey = ['ip']\nmax_delay = '1500ms'\n",
            vec![Plain { max_delay: 1_500 * MS, ..Plain::new("check", vec![(200 * MS, 2)]) }],
        ),
        (
            "[policy.check]\nlimits = ['5/s burst 3', '1/s burst 20']\nkey = ['ip']\n\
             max_delay = '700ms'\npenalty = { cells = 2, ceiling = '9s' }\n",
            vec![Plain {
                max_delay: 700 * MS,
                penalty: Some((2, 9 * S)),
                ..Plain::new("check", vec![(200 * MS, 3), (S, 20)])
            }],
        ),
    ]
}

#[test]
fn each_configuration_decides_as_a_naive_replay_does() {
    let folder = directory();
    let (log, file) = (folder.path().join("haproxy.log"), folder.path().join("new.toml"));
    for seed in 1..3 {
        let lines = lines(seed, 2_000);
        write_log(&log, &lines);
        for (text, policies) in configurations() {
            fs::write(&file, text).unwrap();
            let config = file.to_str().unwrap();
            let report =
                report(&["--config", config, "--map", "cost=hr.0", log.to_str().unwrap()]);
            assert_eq!(report["requests"], lines.len());
            let naive = naive(&policies, &lines);
            assert!(naive.blocked + naive.would_block > 50, "the limits hit nothing: {text}");
            assert_same(&report, &naive, &policies);
        }
    }
}

#[test]
fn what_changes_against_another_file_is_counted_request_by_request() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name);
    let lines = lines(7, 4_000);
    write_log(&path("haproxy.log"), &lines);
    let all = configurations();
    for (new, old) in [(0, 2), (2, 0), (4, 5), (3, 3)] {
        fs::write(path("new.toml"), all[new].0).unwrap();
        fs::write(path("old.toml"), all[old].0).unwrap();
        let [new_file, old_file, log] =
            ["new.toml", "old.toml", "haproxy.log"].map(|name| path(name).display().to_string());
        let report =
            report(&["--config", &new_file, "--against", &old_file, "--map", "cost=hr.0", &log]);
        let (new, old) = (naive(&all[new].1, &lines), naive(&all[old].1, &lines));
        let both = || new.each.iter().zip(&old.each);
        let newly_blocked = both().filter(|(new, old)| **new && !**old).count();
        let newly_allowed = both().filter(|(new, old)| !**new && **old).count();
        let against = &report["against"];
        assert_eq!(against["newly_blocked"], newly_blocked);
        assert_eq!(against["newly_allowed"], newly_allowed);
        // Both files read the same args, which have values.
        assert!(!notes(&report).contains("no value in any"), "{}", notes(&report));
        assert_eq!(against["total"]["blocked"], old.blocked);
        assert_eq!(report["total"]["blocked"], new.blocked);
        let before = report["timeline"]["blocked_before"].as_array().unwrap();
        let before: u64 = before.iter().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(before, old.blocked);
        let most = against["most_newly_blocked"].as_array().unwrap();
        let listed: u64 = most.iter().map(|it| it["requests"].as_u64().unwrap()).sum();
        assert!(most.len() == 50 || listed == newly_blocked as u64, "{listed} {newly_blocked}");
    }
}

#[test]
fn flags_group_addresses_as_the_shipped_configuration_does() {
    let folder = directory();
    let log = folder.path().join("haproxy.log");
    let lines = lines(11, 3_000);
    write_log(&log, &lines);
    let report = report(&["--rate", "10/s", "--burst", "5", log.to_str().unwrap()]);
    let policies = [Plain::new("default", vec![(100 * MS, 5)])];
    let mut naive = naive(&policies, &lines);
    // The name of a client has no prefix length here, because HAProxy has cut the address.
    let hits = &mut naive.policies[0].hit_by_client;
    *hits = std::mem::take(hits)
        .into_iter()
        .map(|(key, count)| (key.replace("::/64", "::"), count))
        .collect();
    assert_same(&report, &naive, &policies);
    assert_eq!(report["mapping"][0]["arg"], "ip");
    assert_eq!(report["mapping"][0]["field"], "ci,ipmask(32,64)");
    assert_eq!(report["configuration"]["new"], "--rate 10/s --burst 5");
}

/// Behind a proxy, `%ci` is the address of the proxy, and the shipped configuration logs both.
#[test]
fn the_client_behind_a_proxy_is_the_one_that_the_log_names() {
    let folder = directory();
    let log = folder.path().join("haproxy.log").display().to_string();
    let decision = "blocked=0 policy=- reason=- retry_after=- err=-";
    let of = |n: u64| decided_line(1, &format!(" client=192.0.2.{n} {decision}"));
    let lines = [1, 2, 3, 3].map(of).concat();
    fs::write(&log, lines).unwrap();
    let report = report(&["--rate", "1/d", "--burst", "1", &log]);
    assert_eq!(report["mapping"][0]["field"], "var(txn.client),ipmask(32,64)");
    let total = &report["total"];
    assert_eq!((&total["clients"], &total["blocked"]), (&3.into(), &1.into()));
}

/// Each `log-format` of the shipped configurations is found by its lines.
#[test]
fn the_formats_of_all_shipped_configurations_are_known() {
    let directory = directory();
    let files = fs::read_dir("haproxy").unwrap().map(|entry| entry.unwrap().path());
    let mut known = 0;
    for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "cfg")) {
        let text = fs::read_to_string(&file).unwrap();
        let formats = text.lines().filter_map(|line| line.trim().strip_prefix("log-format \""));
        for format in formats.filter_map(|rest| rest.strip_suffix('"')) {
            let log = directory.path().join(format!("{known}.log"));
            fs::write(&log, format!("{}\n", filled(format)).repeat(3)).unwrap();
            let report = report(&["--rate", "1/s", "--burst", "1", log.to_str().unwrap()]);
            assert_eq!(report["total"]["blocked"], 2, "{}: {report}", file.display());
            known += 1;
        }
    }
    assert!(known >= 15, "{known} formats");
}

/// A line that has this format.
pub(crate) fn filled(format: &str) -> String {
    let mut line = String::new();
    let mut rest = format;
    while let Some((before, tag)) = rest.split_once('%') {
        line += before;
        if let Some(expression) = tag.strip_prefix('[') {
            rest = expression.split_once(']').unwrap().1;
            line.push('-');
            continue;
        }
        let tag = tag.strip_prefix("{+Q}").unwrap_or(tag);
        let end = tag.find(|byte: char| !byte.is_ascii_alphabetic()).unwrap_or(tag.len());
        line += match &tag[..end] {
            "ci" => "192.0.2.1",
            "t" | "tr" => "21/Nov/2026:00:00:00.000",
            "ft" | "b" | "s" => "web",
            "ST" => "200",
            "ts" => "--",
            "tsc" => "----",
            "r" => "\"GET / HTTP/1.1\"",
            _ => "1",
        };
        rest = &tag[end..];
    }
    line + rest
}

/// The shipped configuration writes a log, and a real agent decides. Replay says the same requests
/// are blocked.
///
/// The agent decides later than the log says: by less than a request takes, which the log has in
/// %Ta, and the millisecond that the date is cut by. Both clients go on asking while they are
/// blocked, and never leave so long a pause that a bucket is idle. So in either account a client
/// is allowed its burst, and the cells that its rate gives from its first request to its last one.
/// The two can differ by the cells that the rate gives in twice the time by which the agent is
/// later, and by one more.
#[test]
fn what_a_real_agent_has_blocked_is_what_replay_says() {
    const PER_SECOND: f64 = 2.0;
    needs!(support::haproxy());
    let folder = directory();
    let limit = ["--rate", "2/s", "--burst", "20"];
    let agent = Agent::start(&folder.path().join("table"), &limit);
    let agents = [("GCRA_AGENT1", &*agent.address), ("GCRA_AGENT2", &*agent.address)];
    let haproxy = Haproxy::start("haproxy.cfg", &agents);
    let mut blocked = 0;
    let mut asked = 0;
    let sources = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];
    let mut clients = sources.map(|ip| Client::from(haproxy.frontend, IpAddr::V4(ip)));
    for _ in 0..150 {
        for client in &mut clients {
            let status = client.get("/").unwrap().status;
            assert!([200, 429].contains(&status), "{status}");
            blocked += u64::from(status == 429);
            asked += 1;
        }
    }
    let of_requests = |haproxy: &Haproxy| {
        let lines = haproxy.process.lines();
        lines.into_iter().filter(|line| line.contains(" blocked=")).collect::<Vec<_>>()
    };
    if !haproxy.has_logged(asked, |haproxy| of_requests(haproxy).len()) {
        return;
    }
    let lines = of_requests(&haproxy);
    let log = folder.path().join("haproxy.log");
    fs::write(&log, lines.join("\n") + "\n").unwrap();

    let report = report(&[&limit[..], &[log.to_str().unwrap()]].concat());
    assert_eq!(report["requests"], asked, "{}", report["bad"]);
    assert_eq!(report["log_answers"]["429"], blocked);
    assert_eq!(report["log_answers"]["blocked"], blocked);
    assert!(blocked > 100, "the limit was not used: {blocked}");
    let longest_ms = lines.iter().map(|line| {
        let times = line.split(' ').find(|word| word.matches('/').count() == 4).unwrap();
        times.rsplit('/').next().unwrap().trim_start_matches('+').parse::<u64>().unwrap()
    });
    let late_s = (longest_ms.max().unwrap() + 2) as f64 / 1e3;
    let most = 1 + (2.0 * late_s * PER_SECOND).ceil() as u64;
    for (ip, client) in sources.iter().zip(["127.0.0.1", "127.0.0.2"]) {
        let of_client = |line: &&String| line.starts_with(&format!("{ip}:"));
        let is_blocked = |line: &&String| line.contains(" blocked=1");
        let really = lines.iter().filter(of_client).filter(is_blocked).count() as u64;
        let listed = report["most_blocked"].as_array().unwrap();
        let replayed = listed.iter().find(|it| it["client"] == client).unwrap();
        let replayed = replayed["blocked"].as_u64().unwrap();
        assert!(
            really.abs_diff(replayed) <= most,
            "{client}: the agent has blocked {really}, and replay {replayed}; {late_s} s"
        );
    }
}

#[test]
fn a_wrong_command_line_or_log_is_one_sentence() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (log, file) = (path("haproxy.log"), path("new.toml"));
    write_log(Path::new(&log), &lines(1, 50));
    fs::write(&file, "[policy.api]\nlimits = '1/s'\nkey = ['token']\n").unwrap();

    let (said, status) = wrong(&["--config", &file, &log]);
    assert_eq!(status, 2);
    for part in ["'token'", "policy 'api'", "--map token=FIELD", "hr.0"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (said, status) = wrong(&["--config", &file, "--map", "token=%hx", &log]);
    assert_eq!(status, 2);
    assert!(said.contains("has no field 'hx' for --map token=%hx"), "{said}");
    let (said, _) = wrong(&["--config", &file, "--message", "other", &log]);
    assert!(said.contains("no policy is for the message 'other'"), "{said}");

    let other = path("other.log");
    fs::write(&other, "level=info msg=\"started\"\n".repeat(20)).unwrap();
    let (said, status) = wrong(&["--rate", "1/s", &other]);
    assert_eq!(status, 2);
    for part in ["level=info msg=", "--log-format", "HTTP"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let connect = "haproxy[1]: Connect from 192.0.2.7:1 to 192.0.2.1:80 (www/HTTP)\n";
    fs::write(&other, connect.repeat(20)).unwrap();
    for flags in [&[][..], &["--log-format", "http"]] {
        let (said, status) = wrong(&[&["--rate", "1/s", &other], flags].concat());
        assert_eq!(status, 2);
        assert!(said.contains("write 'option httplog'"), "{said}");
        assert!(!said.contains("log-format"), "{said}");
    }
    fs::write(&other, "{\"ip\":\"192.0.2.1\",\"took\":0.2}\n".repeat(20)).unwrap();
    let (said, status) = wrong(&["--rate", "1/s", &other]);
    assert_eq!(status, 2);
    assert!(said.contains("is a date that is known here"), "{said}");
    let (said, status) = wrong(&["--rate", "1/s", "--log-format", "\"$TIER %ci %tr\"", &log]);
    assert_eq!(status, 2);
    assert!(said.contains("the environment variable 'TIER' is not known here"), "{said}");
    let (said, status) = wrong(&["--rate", "1/s", "--log-format", "tcp", &log]);
    assert_eq!(status, 2);
    assert!(said.contains("is a request in the TCP format"), "{said}");
    let (said, status) = wrong(&["--rate", "1/s", &path("none.log")]);
    assert_eq!(status, 1);
    assert!(said.contains("none.log"), "{said}");
    let (said, _) = wrong(&["--rate", "1/s", "--html", &log, &log]);
    assert!(said.contains("is one of the logs"), "{said}");
    assert!(fs::metadata(&log).unwrap().len() > 0, "the log is there");
    let (said, status) = wrong(&["--suggest", "ip", "--against", &file, &log]);
    assert_eq!(status, 2);
    assert!(said.contains("write --config or --rate, too"), "{said}");
    let (said, status) = wrong(&[&log]);
    assert_eq!(status, 2);
    assert!(said.contains("--config"), "{said}");
    for (flags, sentence) in [
        (&["--map", "ip=ci", "--map", "ip=cp"][..], "--map gives the arg 'ip' twice"),
        (&["--captures", "host,host"], "--captures has 'host' twice"),
        (&["--captures", "host,,ua"], "--captures has '' for a name"),
        (&["--html", "-"], "--html writes a file"),
        (&["--log-format", ""], "--log-format is empty"),
        (&["--log-format", "TCP"], "compare it with the log-format of haproxy.cfg"),
        (&[&log], "is given twice"),
    ] {
        let (said, status) = wrong(&[&["--rate", "1/s", &log], flags].concat());
        assert_eq!(status, 2, "{said}");
        assert!(said.contains(sentence), "{said}");
    }
}

/// A line in the HTTP format, of one second of 21/Nov/2026.
fn line(ms: u64, ip: &str, header: &str) -> String {
    let (second, ms) = (ms / 1000, ms % 1000);
    format!(
        "{ip}:4711 [21/Nov/2026:10:00:{second:02}.{ms:03}] web app/srv1 0/0/0/1/1 200 99 - - ---- \
         1/1/0/0/0 0/0 {{{header}}} \"GET / HTTP/1.1\"\n"
    )
}

fn notes(report: &Value) -> String {
    report["notes"].to_string()
}

/// A frontend with `bind :::80 v4v6` logs IPv4 clients so, and ipmask() makes IPv4 addresses of
/// them.
#[test]
fn mapped_addresses_are_those_of_ipv4() {
    let folder = directory();
    let log = folder.path().join("haproxy.log");
    let lines: String = (1..=10).map(|n| line(n, &format!("::ffff:192.0.2.{n}"), "")).collect();
    fs::write(&log, lines).unwrap();
    let report = report(&["--rate", "1/s", "--burst", "1", log.to_str().unwrap()]);
    assert_eq!(
        (&report["total"]["allowed"], &report["total"]["clients"]),
        (&10.into(), &10.into())
    );
}

/// Texts that are no addresses are keys, also of a policy with a prefix for addresses.
#[test]
fn a_captured_header_is_a_key_although_a_policy_groups_addresses() {
    let folder = directory();
    let (log, file) = (folder.path().join("haproxy.log"), folder.path().join("new.toml"));
    let lines: String = (1..=4).map(|n| line(n, "192.0.2.1", &format!("key-{n}"))).collect();
    fs::write(&log, lines).unwrap();
    for more in ["ipv4_prefix = 24", "[policy.api.overrides]\n'198.51.100.0/24' = 'unlimited'"] {
        let text =
            format!("[policy.api]\nlimits = '1/s burst 1'\nkey = ['key', 'else ip']\n{more}\n");
        fs::write(&file, text).unwrap();
        let (log, file) = (log.to_str().unwrap(), file.to_str().unwrap());
        let report = report(&["--config", file, "--map", "key=hr.0", log]);
        assert_eq!(report["total"]["allowed"], 4, "{more}");
    }
}

#[test]
fn what_a_report_needs_beside_its_numbers_is_said() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let log = path("haproxy.log");
    let lines: String = (1..=4).map(|n| line(n * 100, &format!("192.0.2.{n}"), "key")).collect();
    fs::write(&log, lines).unwrap();

    // A cost is no part of the key.
    let costs = report(&["--rate", "1/s", "--cost", "c", "--map", "c=B", &log]);
    assert_eq!(costs["total"]["clients"], 4);
    let missing = report(&["--rate", "1/s", "--cost", "foo", &log]);
    assert!(notes(&missing).contains("gives the cost 'foo'"), "{}", notes(&missing));
    // No field gives what the key needs.
    let none = report(&["--rate", "1/s", "--map", "ip=hr.9", &log]);
    assert!(notes(&none).contains("no line has a value in 'hr.9'"), "{}", notes(&none));
    let other = report(&["--rate", "1/s", "--map", "ip=ST,ip", &log]);
    assert!(notes(&other).contains("the texts in 'ST' are no addresses"), "{}", notes(&other));
    assert!(!notes(&costs).contains("no value in any"), "{}", notes(&costs));

    let whole = path("whole.log");
    let lines: String = (1..=4).map(|n| line(n * 1000, "192.0.2.1", "key")).collect();
    fs::write(&whole, lines).unwrap();
    let whole = report(&["--rate", "1/s", &whole]);
    assert!(notes(&whole).contains("are whole seconds"), "{}", notes(&whole));
    assert!(!notes(&costs).contains("are whole seconds"), "{}", notes(&costs));
}

#[test]
fn a_bad_line_shows_no_long_word() {
    let folder = directory();
    let log = folder.path().join("haproxy.log");
    let bad = "a line with token=s3cr3t-4711-abcdefgh of 192.0.2.1\n";
    fs::write(&log, line(1, "192.0.2.1", "") + bad).unwrap();
    let report = report(&["--rate", "1/s", log.to_str().unwrap()]);
    let excerpt = report["bad"][0]["excerpt"].as_str().unwrap();
    assert_eq!(excerpt, "a line with toke… of 192.0.2.1");
}

/// A command that fails leaves the earlier page.
#[test]
fn a_page_is_replaced_only_by_a_whole_one() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (page, log) = (path("report.html"), path("haproxy.log"));
    fs::write(&page, "x".repeat(1_000_000)).unwrap();
    fs::write(&log, "not a log\n").unwrap();
    wrong(&["--rate", "1/s", "--html", &page, &log]);
    assert_eq!(fs::metadata(&page).unwrap().len(), 1_000_000);
    fs::write(&log, line(1, "192.0.2.1", "")).unwrap();
    report(&["--rate", "1/s", "--html", &page, &log]);
    let written = fs::read_to_string(&page).unwrap();
    assert!(written.trim_end().ends_with("</html>"), "{}", &written[written.len() - 50..]);
}

#[test]
fn a_log_that_cannot_be_decompressed_is_told() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for (name, bytes) in [("a.gz", &b"\x1f\x8b"[..]), ("a.zst", b"\x28\xb5\x2f\xfd\x04\x58")] {
        let log = path(name);
        fs::write(&log, bytes).unwrap();
        let (said, status) = wrong(&["--rate", "1/s", &log]);
        assert_eq!(status, 1, "{said}");
        assert!(said.contains("compressed data is damaged or ends early"), "{said}");
        // Another one is whole.
        let other = path("whole.log");
        fs::write(&other, line(1, "192.0.2.1", "")).unwrap();
        let report = report(&["--rate", "1/s", &log, &other]);
        assert_eq!(report["requests"], 1);
        assert_eq!(report["bad"][0]["kind"], "damaged compressed data");
    }
}

#[test]
fn standard_input_and_several_files_are_one_log() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let lines = lines(5, 2_000);
    let whole = path("whole.log");
    write_log(Path::new(&whole), &lines);
    let expected = report(&["--rate", "5/s", &whole]);
    let halves = [path("b.log"), path("a.log")];
    write_log(Path::new(&halves[1]), &lines[..900]);
    write_log(Path::new(&halves[0]), &lines[900..]);
    let of_halves = report(&["--rate", "5/s", &halves[0], &halves[1]]);
    let mut child = Command::new(agent_binary())
        .args(["replay", "--rate", "5/s", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(&whole).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    let of_stdin: Value = serde_json::from_slice(&output.stdout).unwrap();
    for other in [&of_halves, &of_stdin] {
        for part in ["total", "policies", "timeline", "requests"] {
            assert_eq!(other[part], expected[part], "{part}");
        }
    }
}

#[test]
fn a_message_may_be_sent_only_for_some_requests() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let lines = lines(9, 2_000);
    let (log, file) = (path("haproxy.log"), path("new.toml"));
    write_log(Path::new(&log), &lines);
    let text = "[policy.by-key]\nlimits = '1/s'\nkey = ['key']\n\
                [policy.by-ip]\nlimits = '1/s'\nkey = ['ip']\n";
    fs::write(&file, text).unwrap();
    let args = ["--config", &file, "--map", "key=hr.0", "--map", "none=null:", &log];
    let by = |report: &Value, place: usize| {
        let policy = &report["policies"][place];
        policy["allowed"].as_u64().unwrap() + policy["blocked"].as_u64().unwrap()
    };
    let all = lines.len() as u64;
    let both = report(&args);
    assert_eq!([by(&both, 0), by(&both, 1)], [all, all]);
    assert!(both["caution"].to_string().contains("--message"), "{}", both["caution"]);
    let with = |messages: [&str; 2]| {
        report(&[&args[..], &["--message", messages[0], "--message", messages[1]]].concat())
    };
    let some = with(["by-key if key", "by-ip unless key"]);
    assert_eq!([by(&some, 0), by(&some, 1)], [all, 0]);
    let some = with(["by-key if none", "by-ip unless none"]);
    assert_eq!([by(&some, 0), by(&some, 1)], [0, all]);
}

/// The address in a header is the one that HAProxy finds there, at each place of a list.
#[test]
fn the_client_in_a_captured_header_is_the_one_that_haproxy_finds() {
    needs!(support::haproxy());
    const HEADERS: [&str; 16] = [
        "192.0.2.1, 203.0.113.1",
        "192.0.2.2,203.0.113.2,198.51.100.2",
        " 192.0.2.3 ,\t203.0.113.3 ",
        "192.0.2.4:51234, 203.0.113.4:80",
        "192.0.2.5, 2001:db8:5::1",
        "2001:db8:6::1, 192.0.2.6",
        "2001:db8:7::1",
        "::ffff:192.0.2.8",
        "010.000.002.009",
        "192.0.2.10,",
        ",192.0.2.11",
        "192.0.2.12, unknown",
        "unknown, 192.0.2.13",
        "192.0.2.14;203.0.113.14",
        "192.0.2.15 x, 192.0.2.256",
        "\"a,b\", 192.0.2.16",
    ];
    let folder = directory();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "global\n log stdout format raw local0\n nbthread 1\n\
                defaults\n mode http\n timeout client 60s\n timeout server 60s\n \
                timeout connect 60s\n\
                frontend web\n log global\n bind \"${GCRA_HTTP}\"\n \
                capture request header X-Forwarded-For len 200\n \
                http-request set-var(txn.last) req.hdr_ip(x-forwarded-for,-1)\n \
                http-request set-var(txn.first) req.hdr_ip(x-forwarded-for,1)\n \
                http-request set-var(txn.second) req.hdr_ip(x-forwarded-for,2)\n \
                log-format \"%ci [%tr] %hr %[var(txn.last)] %[var(txn.first)] \
                %[var(txn.second)] %{+Q}r\"\n http-request return status 200\n";
    fs::write(path("lists.cfg"), text).unwrap();
    let haproxy = Haproxy::start(&path("lists.cfg"), &[]);
    for header in HEADERS {
        let mut stream = TcpStream::connect(haproxy.frontend).unwrap();
        let ask = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {header}\r\n\r\n");
        stream.write_all(ask.as_bytes()).unwrap();
        assert!(stream.read(&mut [0; 1000]).unwrap() > 0, "{header}");
    }
    let of_requests = |haproxy: &Haproxy| {
        let lines = haproxy.process.lines();
        lines.into_iter().filter(|line| line.contains(" \"GET / ")).collect::<Vec<_>>()
    };
    if !haproxy.has_logged(HEADERS.len(), |haproxy| of_requests(haproxy).len()) {
        return;
    }
    // Each line twice, so that each client is blocked and listed.
    let log = of_requests(&haproxy).join("\n") + "\n";
    fs::write(path("haproxy.log"), log.repeat(2)).unwrap();
    let format = text.split("log-format ").nth(1).unwrap().lines().next().unwrap();
    let by = |map: &str| {
        let log = path("haproxy.log");
        report(&["--rate", "1/d", "--burst", "1", "--map", map, "--log-format", format, &log])
    };
    for (ours, haproxys) in [
        ("ip=hr.0,ip", "ip=var(txn.last),ip"),
        ("ip=hr.0,ip,-1", "ip=var(txn.last),ip"),
        ("ip=hr.0,ip,1", "ip=var(txn.first),ip"),
        ("ip=hr.0,ip,2", "ip=var(txn.second),ip"),
    ] {
        let (ours, haproxys) = (by(ours), by(haproxys));
        let clients = |report: &Value| -> BTreeSet<String> {
            let listed = report["most_blocked"].as_array().unwrap();
            listed.iter().map(|it| it["client"].as_str().unwrap().to_owned()).collect()
        };
        assert!(clients(&haproxys).len() > 5, "{haproxys}");
        assert_eq!(clients(&ours), clients(&haproxys));
        assert_eq!(ours["total"], haproxys["total"]);
    }
}

/// The line of a shipped configuration, with HAProxy's words about the decision.
fn decided_line(place: u64, decision: &str) -> String {
    format!(
        "192.0.2.{place}:4711 [21/Nov/2026:10:00:00.{place:03}] web app/srv1 0/0/0/1/1 200 99 \
         ---- 1/1/0/0/0 0/0 \"GET /?k={place} HTTP/1.1\"{decision}\n"
    )
}

#[test]
fn requests_without_a_decision_are_counted_by_what_haproxy_says() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let fields = |blocked: &str, err: &str| {
        format!(" blocked={blocked} policy=- reason=- retry_after=- err={err}")
    };
    let mut log = String::new();
    for (place, decision) in [
        fields("0", "-"),
        fields("1", "-"),
        fields("-", "-"),
        fields("-", "1"),
        fields("-", "1"),
        fields("-", "257"),
        // The question about the response was lost; there was a decision.
        fields("0", "1"),
        // As in fingerprint.cfg.
        fields("-", "2") + " fingerprint=t13d_1 x",
        fields("-", "-") + " fingerprint=t13d_1 x",
        // Cut off by HAProxy.
        " blocked=- pol".to_owned(),
        String::new(),
    ]
    .iter()
    .enumerate()
    {
        log += &decided_line(place as u64 + 1, decision);
    }
    fs::write(path("haproxy.log"), &log).unwrap();
    let (log, page) = (path("haproxy.log"), path("report.html"));
    let args = ["--rate", "9/s", "--html", &page, &log];
    let report = report(&args);
    assert_eq!((&report["requests"], &report["truncated"]), (&11.into(), &2.into()));
    let answers = &report["log_answers"];
    assert_eq!(answers["blocked"], 1);
    let undecided = &answers["undecided"];
    assert_eq!((&undecided["requests"], &undecided["cut"]), (&4.into(), &2.into()));
    let by_err: Vec<_> = undecided["by_err"].as_array().unwrap().iter().collect();
    let of = |err: &Value| [err["err"].as_u64().unwrap(), err["requests"].as_u64().unwrap()];
    assert_eq!(by_err.iter().map(|it| of(it)).collect::<Vec<_>>(), [[1, 2], [2, 1], [257, 1]]);
    let text = String::from_utf8(replay(&args).stdout).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "It says of 4 requests (36.4 %) that HAProxy got no decision: 2 with err=1 (no answer \
         within timeout processing), 1 with err=2",
        "2 lines are cut before blocked= and err=",
        "with 'len 8192' in its 'log' line",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(fs::read_to_string(&page).unwrap().contains("no answer within timeout processing"));
    // A log without these fields.
    let http = path("http.log");
    fs::write(&http, line(1, "192.0.2.1", "")).unwrap();
    let report = self::report(&["--rate", "9/s", &http]);
    assert_eq!(report["log_answers"]["undecided"], Value::Null);
}

/// The log of a real HAProxy whose agents are gone.
#[test]
fn a_real_haproxy_without_agents_logs_requests_without_a_decision() {
    needs!(support::haproxy());
    let agents = [("GCRA_AGENT1", "127.0.0.1:1"), ("GCRA_AGENT2", "127.0.0.1:1")];
    let haproxy = Haproxy::start("haproxy.cfg", &agents);
    let mut client = Client::from(haproxy.frontend, IpAddr::V4(Ipv4Addr::LOCALHOST));
    for _ in 0..20 {
        assert_eq!(client.get("/").unwrap().status, 200);
    }
    let of_requests = |haproxy: &Haproxy| {
        let lines = haproxy.process.lines();
        lines.into_iter().filter(|line| line.contains(" blocked=")).collect::<Vec<_>>()
    };
    if !haproxy.has_logged(20, |haproxy| of_requests(haproxy).len()) {
        return;
    }
    let folder = directory();
    let log = folder.path().join("haproxy.log");
    fs::write(&log, haproxy.process.lines().join("\n") + "\n").unwrap();
    let report = report(&["--rate", "2/s", log.to_str().unwrap()]);
    assert_eq!(report["requests"], 20, "{}", report["bad"]);
    let undecided = &report["log_answers"]["undecided"];
    assert_eq!((&undecided["requests"], &undecided["cut"]), (&20.into(), &0.into()));
    let kinds = report["bad"].as_array().unwrap().iter().map(|bad| &bad["kind"]);
    assert!(kinds.into_iter().all(|kind| kind == "not a request"), "{}", report["bad"]);
}

/// A log with a part of the requests, as `option dontlog-normal` makes it.
#[test]
fn a_log_without_a_good_answer_gets_a_note() {
    let folder = directory();
    let log = folder.path().join("haproxy.log").display().to_string();
    for (status, is_noted) in [("503", true), ("429", true), ("200", false), ("304", false)] {
        let lines: String =
            (1..=4).map(|n| line(n, "192.0.2.1", "").replace(" 200 ", " 503 ")).collect();
        let last = line(9, "192.0.2.1", "").replace(" 200 ", &format!(" {status} "));
        fs::write(&log, lines + &last).unwrap();
        let report = report(&["--rate", "9/s", &log]);
        assert_eq!(notes(&report).contains("dontlog-normal"), is_noted, "{status}");
    }
}

/// The fields of logs that collectors export.
#[test]
fn logs_in_json_of_all_kinds_are_read() {
    let folder = directory();
    let log = folder.path().join("haproxy.log").display().to_string();
    let own = |n: u64| line(n, &format!("192.0.2.{n}"), "").trim_end().replace('"', "\\\"");
    let objects = |name: &str| -> Vec<String> {
        (1..=4).map(|n| format!("{{\"{name}\":\"{}\",\"id\":{n}}}", own(n))).collect()
    };
    for name in ["line", "textPayload", "_raw", "event", "short_message", "content"] {
        for text in [
            objects(name).join("\n") + "\n",
            format!("[{}]", objects(name).join(",")),
            format!("[\n  {}\n]\n", objects(name).join(",\n  ")),
        ] {
            fs::write(&log, &text).unwrap();
            let report = report(&["--rate", "9/s", &log]);
            let found = (&report["requests"], &report["total"]["clients"]);
            assert_eq!(found, (&4.into(), &4.into()), "{text}");
        }
    }
    // A list of addresses, and dates as HAProxy's http_date writes them.
    let lines: String = (1..=4)
        .map(|n| {
            format!(
                "{{\"when\":\"Sat, 21 Nov 2026 10:00:0{n} GMT\",\"xff\":\"198.51.100.7, \
                 192.0.2.{n}:4711\"}}\n"
            )
        })
        .collect();
    fs::write(&log, lines).unwrap();
    let report = report(&["--rate", "9/s", "--map", "ip=xff,ip", &log]);
    assert_eq!((&report["requests"], &report["total"]["clients"]), (&4.into(), &4.into()));
}

#[test]
fn a_message_for_one_path_counts_its_requests_alone() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (log, file) = (path("haproxy.log"), path("new.toml"));
    let lines: String = (1..=12)
        .map(|n| {
            let request = ["GET /login", "POST /login", "GET /a"][n as usize % 3];
            line(n, "192.0.2.1", "").replace("GET /", request)
        })
        .collect();
    fs::write(&log, lines).unwrap();
    let text = "[policy.login]\nlimits = '1/d burst 1'\nkey = ['ip']\n\
                [policy.all]\nlimits = '100/s'\nkey = ['ip']\n";
    fs::write(&file, text).unwrap();
    let all = report(&["--config", &file, &log]);
    assert_eq!(all["total"]["blocked"], 11);
    let caution = all["caution"].as_str().unwrap();
    assert!(caution.contains("'NAME if path=/login method=POST'"), "{caution}");
    let output = replay(&["--config", &file, &log]).stdout;
    let text = String::from_utf8(output).unwrap();
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(place("each request counts as each") < place("allowed"), "{text}");
    let messages = ["--message", "login if path=/login method=POST", "--message", "all"];
    let right = report(&[&["--config", &file, &log][..], &messages].concat());
    assert_eq!((&right["total"]["blocked"], &right["caution"]), (&3.into(), &Value::Null));
}

/// A terminal of 40 columns, and one that is wider than text is read well.
#[test]
fn the_report_is_plain_text_and_a_page() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (log, page) = (path("haproxy.log"), path("report.html"));
    write_log(Path::new(&log), &lines(1, 2_000));
    let output = replay(&["--rate", "2/s", "--suggest", "key=ip", "--html", &page, &log]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{text}");
    assert!(!text.contains('\x1b'), "no colors");
    for part in ["allowed", "blocked", "Policy default", "--rate 2/s --burst 2", "ip=ci"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(fs::read_to_string(&page).unwrap().contains("</html>"));

    let alone = replay(&["--suggest", "key=ip", &log]);
    let text = String::from_utf8(alone.stdout).unwrap();
    assert!(alone.status.success() && !text.contains("blocked  "), "{text}");
}

/// Days, and hours of another zone, are those of the log and not of this moment.
#[test]
fn counts_in_windows_go_by_the_times_of_the_log() {
    let folder = directory();
    let (log, file) = (folder.path().join("haproxy.log"), folder.path().join("new.toml"));
    // A request in every minute of two days, on which Berlin's clocks do not change.
    let lines: Vec<Line> = (0..2 * 24 * 60)
        .map(|minute| Line {
            ms: minute * 60_000,
            ip: "192.0.2.1".to_owned(),
            method: "GET",
            path: "/".to_owned(),
            cost: 1,
        })
        .collect();
    let text: String = lines
        .iter()
        .map(|line| {
            let day = 21 + line.ms / 86_400_000;
            line.written().replace("[21/Nov", &format!("[{day}/Nov")) + "\n"
        })
        .collect();
    fs::write(&log, text).unwrap();
    for (limit, allowed) in [
        // 24 hours of each day; those of Kolkata begin at half past.
        ("{ count = 7, window = 'hour' }", 2 * 24 * 7),
        ("{ count = 7, window = 'hour Asia/Kolkata' }", 49 * 7),
        // Berlin's midnight is at 23:00: two whole days, less an hour, which is of a third.
        ("{ count = 100, window = 'day Europe/Berlin' }", 2 * 100 + 60),
        ("{ count = 100, window = 'day' }", 2 * 100),
        // 2026-11-22 is a Sunday.
        ("{ count = 100, window = 'week' }", 100),
        ("{ count = 100, window = 'week Asia/Tokyo' }", 2 * 100),
        ("[{ count = 100, window = 'month' }, '1/h']", 48),
    ] {
        fs::write(&file, format!("[policy.api]\nlimits = {limit}\nkey = ['ip']\n")).unwrap();
        let report = report(&["--config", file.to_str().unwrap(), log.to_str().unwrap()]);
        assert_eq!(report["total"]["allowed"], allowed, "{limit}");
    }
}
