//! `gcra-spoa blocked`: held against a log whose numbers are known, and against what a real agent
//! has blocked behind a real HAProxy.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Output};

use fastrand::Rng;
use serde_json::Value as Json;
use spop_agent::Value;

use crate::replay::filled;
use crate::support::spop::{Messages, Spop};
use crate::support::{self, Agent, Client, Haproxy, agent_binary, directory, needs};

/// A request of a log that is made here, with the decision that HAProxy got.
struct Line {
    second: u64,
    ip: String,
    policy: &'static str,
    said: Said,
}

#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum Said {
    Allowed,
    /// For this reason, with this `retry_after`.
    Blocked(&'static str, u64),
    Undecided(u32),
    NotAsked,
}

impl Line {
    /// As the shipped configurations write it.
    fn written(&self) -> String {
        let Self { second, ip, policy, said } = self;
        let time = format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
        let said = match said {
            Said::Allowed => format!("blocked=0 policy={policy} reason=- retry_after=0 err=-"),
            Said::Blocked("denied", _) => {
                format!("blocked=1 policy={policy} reason=denied retry_after=- err=-")
            }
            Said::Blocked(reason, wait) => {
                format!("blocked=1 policy={policy} reason={reason} retry_after={wait} err=-")
            }
            Said::Undecided(err) => {
                format!("blocked=- policy=- reason=- retry_after=- err={err}")
            }
            Said::NotAsked => "blocked=- policy=- reason=- retry_after=- err=-".to_owned(),
        };
        format!(
            "{ip}:4711 [21/Nov/2026:{time}.500] web app/srv1 0/0/0/1/1 200 99 ---- 1/1/0/0/0 0/0 \
             \"GET /?blocked=1 HTTP/1.1\" {said}\n"
        )
    }
}

/// A log from 13:50 to 14:20.
fn lines(seed: u64) -> Vec<Line> {
    let mut random = Rng::with_seed(seed);
    let mut lines: Vec<_> = (0..3_000)
        .map(|_| Line {
            second: 13 * 3600 + 50 * 60 + random.u64(..1_800),
            ip: match random.u64(..9) {
                0 => format!("2001:db8::{}", random.u64(1..4)),
                host => format!("192.0.2.{host}"),
            },
            policy: if random.bool() { "read" } else { "login" },
            said: match random.u64(..20) {
                0..4 => Said::Blocked("limit", random.u64(1..900)),
                4 => Said::Blocked("denied", 0),
                5 => Said::Undecided([1, 1, 4, 259][random.usize(..4)]),
                6 => Said::NotAsked,
                _ => Said::Allowed,
            },
        })
        .collect();
    lines.sort_by_key(|line| line.second);
    lines
}

fn run(args: &[&str]) -> Output {
    Command::new(agent_binary()).arg("blocked").args(args).output().unwrap()
}

fn report(args: &[&str]) -> Json {
    let output = run(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn write(path: &Path, lines: &[Line]) -> String {
    fs::write(path, lines.iter().map(Line::written).collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Compares a report with these lines of a log.
fn assert_same(report: &Json, lines: &[&Line]) {
    let count = |is: &dyn Fn(&Line) -> bool| lines.iter().filter(|line| is(line)).count();
    let is_blocked = |line: &Line| matches!(line.said, Said::Blocked(..));
    let is_undecided = |line: &Line| matches!(line.said, Said::Undecided(_));
    assert_eq!(report["requests"], lines.len());
    assert_eq!(report["allowed"], count(&|line| line.said == Said::Allowed));
    assert_eq!(report["blocked"], count(&is_blocked));
    assert_eq!(report["no_decision"]["requests"], count(&is_undecided));
    assert_eq!(report["not_asked"], count(&|line| line.said == Said::NotAsked));
    for err in [1, 4, 259] {
        let of = report["no_decision"]["by_err"].as_array().unwrap();
        let of = of.iter().find(|of| of["err"] == err).map(|of| of["requests"].as_u64().unwrap());
        let expected = count(&|line| line.said == Said::Undecided(err)) as u64;
        assert_eq!(of.unwrap_or(0), expected, "{err}");
    }
    /// How many, the first, the last, and the longest wait.
    type Row = (u64, u64, u64, Option<u64>);
    let mut rows: BTreeMap<(&str, &str, &str), Row> = BTreeMap::new();
    for line in lines {
        let Said::Blocked(reason, wait) = line.said else { continue };
        let key = (&*line.ip, line.policy, reason);
        let row = rows.entry(key).or_insert((0, line.second, line.second, None));
        row.0 += 1;
        row.2 = line.second;
        row.3 = row.3.max((reason != "denied").then_some(wait));
    }
    let clients = report["clients"].as_array().unwrap();
    assert_eq!(clients.len(), rows.len());
    for row in clients {
        let text = |name: &str| row[name].as_str().unwrap();
        let of = &rows[&(text("client"), text("policy"), text("reason"))];
        let time = |name: &str| row[name].as_u64().unwrap() % 86_400;
        assert_eq!(row["blocked"], of.0, "{row}");
        assert_eq!((time("first"), time("last")), (of.1, of.2), "{row}");
        assert_eq!(row["longest_wait"].as_u64(), of.3, "{row}");
        assert_eq!(row["limit"], Json::Null);
    }
    let causes = report["causes"].as_array().unwrap();
    let sum: u64 = causes.iter().map(|cause| cause["blocked"].as_u64().unwrap()).sum();
    assert_eq!(report["blocked"], sum);
    for (name, of) in [("blocked", &report["blocked"]), ("allowed", &report["allowed"])] {
        let steps = report["timeline"][name].as_array().unwrap();
        assert_eq!(of, steps.iter().map(|step| step.as_u64().unwrap()).sum::<u64>());
    }
}

#[test]
fn each_blocked_request_is_counted_for_its_client_and_time() {
    let folder = directory();
    let lines = lines(1);
    let log = write(&folder.path().join("haproxy.log"), &lines);
    assert_same(&report(&[&log]), &Vec::from_iter(&lines));
    let (ten, twelve) = (14 * 3600, 14 * 3600 + 600);
    let is_in = |line: &&Line| (ten..twelve).contains(&line.second);
    let in_time: Vec<_> = lines.iter().filter(is_in).collect();
    assert_same(&report(&["--from", "14:00", &log, "--to", "14:10"]), &in_time);
    let dated = ["--from", "2026-11-21T14:00", "--to", "2026-11-21 14:10:00", &log];
    assert_same(&report(&dated), &in_time);
    for (key, begin) in
        [("192.0.2.3", "192.0.2.3"), ("192.0.2.0/24", "192."), ("2001:db8::/64", "2001:")]
    {
        let is_it = |line: &&Line| line.ip.starts_with(begin);
        let of_client: Vec<_> = lines.iter().filter(is_it).collect();
        assert!(!of_client.is_empty());
        assert_same(&report(&[&log, key]), &of_client);
    }
}

#[test]
fn nothing_of_a_log_is_lost_silently() {
    let folder = directory();
    let path = folder.path().join("haproxy.log");
    let lines = lines(2);
    let mut text: String = lines.iter().map(Line::written).collect();
    let cut = lines[0].written();
    // Two bad lines, and one that HAProxy has cut within the request.
    let _ = write!(text, "a line\nanother one\n{}\n", &cut[..cut.find("?blocked").unwrap()]);
    fs::write(&path, text).unwrap();
    let log = path.to_str().unwrap();
    let found = report(&[log]);
    assert_eq!(found["lines"], lines.len() + 3);
    assert_eq!(found["requests"], lines.len() + 1);
    assert_eq!(found["bad"][0]["count"], 2);
    assert_eq!(found["bad"][0]["line"], lines.len() + 1);
    assert_eq!(found["truncated"], 1);
    let sum: u64 =
        ["allowed", "blocked", "not_asked"].map(|it| found[it].as_u64().unwrap()).iter().sum();
    let sum = sum + found["no_decision"]["requests"].as_u64().unwrap();
    assert_eq!(found["requests"], sum);
    let words = String::from_utf8(run(&[log]).stdout).unwrap();
    for part in ["2 lines of 3,003 were not used", "a line", "1 line is cut", "not asked"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(words.contains("the log has no field with limit_name"), "{words}");
}

#[test]
fn what_cannot_be_answered_is_said_with_what_would_be_right() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let log = write(&folder.path().join("haproxy.log"), &lines(3));
    let plain = path("plain.log");
    let line = "192.0.2.1:4711 [21/Nov/2026:14:00:00.000] web app/srv1 0/0/0/1/1 200 99 - - ---- \
                1/1/0/0/0 0/0 \"GET / HTTP/1.1\"\n";
    fs::write(&plain, line.repeat(9)).unwrap();
    let days = path("days.log");
    let of_day = |day: u32| lines(4)[0].written().replace("21/Nov", &format!("{day}/Nov"));
    fs::write(&days, (20..24).map(of_day).collect::<String>()).unwrap();
    for (args, status, sentence) in [
        (&[&*plain][..], 2, "has no field with the variable 'blocked'"),
        (&[&log, "198.51.100.1"], 1, "no request of the client '198.51.100.1' is in"),
        (
            &[&log, "192.0.2.7/24"],
            1,
            "write 192.0.2.0/24 for the network, or 192.0.2.7/32 for the",
        ),
        (&[&log, "alice"], 1, "no file has the name 'alice'"),
        (&[&log, "alice"], 1, "'gcra-spoa name KEY' prints the name that they have"),
        (&[&log, "--from", "15:00"], 1, "from 2026-11-21 15:00:00 UTC is in"),
        (
            &[&log, "--from", "06:00", "--to", "06:10"],
            1,
            "write the date, too, such as --from 2026-11-21T06:00:00 --to 2026-11-21T06:10:00",
        ),
        (&[&log, "--from", "15 o'clock"], 2, "write 14:00, 14:00:30 or 2026-11-28T14:00"),
        (&[&log, "--from", "2026-11-21", "--to", "2026-11-20"], 2, "--to is not later"),
        (&[&days, "--from", "13:00"], 2, "--from 2026-11-23T13:00:00"),
        (&[&log, "--client", "hr.3"], 2, "no field 'hr.3' for --client; it has ci, cp"),
        (&[&path("none.log")], 1, "none.log"),
        (&[&log, "--html", &log], 2, "is one of the logs"),
    ] {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        assert!(said.contains(sentence), "{args:?}: {said}");
    }
}

#[test]
fn forms_of_a_client_and_of_blocked_are_told_apart() {
    let folder = directory();
    let path = folder.path().join("haproxy.log");
    let line = |ip: &str, blocked: &str| {
        let said = Said::Blocked("limit", 3);
        let line = Line { second: 50_400, ip: ip.to_owned(), policy: "read", said };
        line.written().replace(" blocked=1 ", &format!(" blocked={blocked} "))
    };
    let mut text = line("::ffff:192.0.2.7", "1") + &line("192.0.2.7", "true");
    for unreadable in ["2", "TRUE", "0x1", "\"1\""] {
        text += &line("192.0.2.8", unreadable);
    }
    text += &line("192.0.2.8", "false");
    fs::write(&path, text).unwrap();
    let log = path.to_str().unwrap();
    let found = report(&[log]);
    assert_eq!(found["clients_blocked"], 1, "{found}");
    assert_eq!(
        (&found["clients"][0]["client"], &found["blocked"]),
        (&"192.0.2.7".into(), &2.into())
    );
    assert_eq!((&found["allowed"], &found["not_readable"]), (&1.into(), &4.into()));
    let words = String::from_utf8(run(&[log]).stdout).unwrap();
    assert!(words.contains("of 1 client"), "{words}");
    assert!(words.contains("'blocked' is neither 0 nor 1"), "{words}");
}

/// The variables of an agent's answer to messages that name limits and clients.
fn names(agent: &Agent, messages: Messages<'_>) -> [Option<String>; 3] {
    let mut found = [None, None, None];
    Spop::connect(&agent.address).ask_by(messages, |_, name, value| {
        let place = ["policy", "limit_name", "client"].iter().position(|it| *it == name);
        if let (Some(place), Value::String(text)) = (place, value) {
            found[place] = Some(String::from_utf8(text.to_vec()).unwrap());
        }
    });
    found
}

#[test]
fn an_answer_names_the_limit_and_the_client_that_it_is_about() {
    let folder = directory();
    let file = folder.path().join("gcra-spoa.toml");
    let text = "answer = ['policy', 'limit_name', 'client']\n\
                [policy.read]\nlimits = ['2/d', { name = 'hourly', rate = '4/h' }]\n\
                key = ['key']\n[policy.all]\nmessage = 'all'\nlimits = '3/d'\nkey = ['ip']\n\
                [policy.all.overrides]\n'192.0.2.9' = 'deny'\n";
    fs::write(&file, text).unwrap();
    let (config, table) = (file.to_str().unwrap(), folder.path().join("table"));
    let agent = Agent::start(&table, &["--config", config]);
    let named = Command::new(agent_binary())
        .args(["name", "--config", config, "--table", table.to_str().unwrap()])
        .args(["--policy", "read", "sk_live_0123456789"])
        .output()
        .unwrap();
    let named = String::from_utf8(named.stdout).unwrap();
    let name = named.trim().rsplit(' ').next().unwrap();
    assert!(name.starts_with("sk_l…(18)#"), "{name}");

    let ip = |last: u8| ("ip", std::net::IpAddr::from([192, 0, 2, last]).into());
    let key = [("key", "sk_live_0123456789".into())];
    let read = ("read", &key[..]);
    let said = |policy: &str, limit: &str, client: &str| {
        [policy, limit, client].map(|text| (!text.is_empty()).then(|| text.to_owned()))
    };
    for _ in 0..3 {
        assert_eq!(names(&agent, &[read]), said("read", "read.1", name));
    }
    // Of two messages, the one that blocks.
    let first = [ip(1)];
    assert_eq!(names(&agent, &[("all", &first), read]), said("read", "read.1", name));
    assert_eq!(names(&agent, &[read, ("all", &first)]), said("read", "read.1", name));
    assert_eq!(names(&agent, &[("all", &first)]), said("all", "all", "192.0.2.1"));
    // A client that is denied is blocked by no limit.
    let denied = [ip(9)];
    assert_eq!(names(&agent, &[("all", &denied), read]), said("all", "", "192.0.2.9"));
    // Nobody decides.
    assert_eq!(names(&agent, &[("other", &first)]), [None, None, None]);
}

/// The field of each variable is found in the lines of each shipped configuration.
#[test]
fn the_lines_of_all_shipped_configurations_are_read() {
    let folder = directory();
    let mut with_names = 0;
    for file in fs::read_dir("haproxy").unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|ending| ending != "cfg") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let format = text.lines().find_map(|line| line.trim().strip_prefix("log-format \""));
        let format = format.unwrap().strip_suffix('"').unwrap();
        let mut line = format.to_owned();
        for (name, value) in [
            ("blocked", "1"),
            ("policy", "read"),
            ("limit_name", "read.hourly"),
            ("reason", "limit"),
            ("retry_after", "9"),
            ("client", "192.0.2.7"),
        ] {
            for scope in ["txn", "sess"] {
                line = line.replace(&format!("%[var({scope}.gcra.{name})]"), value);
            }
        }
        let log = folder.path().join("haproxy.log");
        fs::write(&log, (filled(&line) + "\n").repeat(3)).unwrap();
        let report = report(&[log.to_str().unwrap()]);
        let name = file.display();
        let [cause] = &report["causes"].as_array().unwrap()[..] else {
            panic!("{name}: {report}")
        };
        assert_eq!(cause["blocked"], 3, "{name}");
        assert_eq!(cause["longest_wait"], 9, "{name}: {report}");
        assert_eq!((&cause["policy"], &cause["reason"]), (&"read".into(), &"limit".into()));
        if format.contains("limit_name") {
            with_names += 1;
            assert_eq!(cause["limit"], "read.hourly", "{name}");
            assert_eq!(report["clients"][0]["client"], "192.0.2.7", "{name}");
        }
    }
    assert!(with_names >= 7, "{with_names}");
}

/// The shipped configuration writes a log, and a real agent decides.
#[test]
fn what_a_real_haproxy_logs_says_who_was_blocked() {
    needs!(support::haproxy());
    let folder = directory();
    let file = folder.path().join("gcra-spoa.toml");
    let shipped = fs::read_to_string("haproxy/contract.toml").unwrap();
    // So slow that no request more is allowed during the test.
    let limit = "{ count = 100, window = \"day Europe/Berlin\" }";
    let slow = shipped.replace(limit, "[\"99/s burst 500\", \"9/d burst 12\"]");
    fs::write(&file, slow).unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let agent = Agent::start(&folder.path().join("table"), &config);
    let agents = [("GCRA_AGENT1", &*agent.address), ("GCRA_AGENT2", &*agent.address)];
    let haproxy = Haproxy::start("contract.cfg", &agents);
    let mut blocked = 0;
    let mut client = Client::from(haproxy.frontend, Ipv4Addr::LOCALHOST.into());
    for _ in 0..30 {
        blocked += u64::from(client.get("/").unwrap().status == 429);
    }
    assert_eq!(blocked, 18);
    let of_requests = |haproxy: &Haproxy| {
        let lines = haproxy.process.lines();
        lines.into_iter().filter(|line| line.contains(" blocked=")).count()
    };
    if !haproxy.has_logged(30, of_requests) {
        return;
    }
    let log = folder.path().join("haproxy.log");
    fs::write(&log, haproxy.process.lines().join("\n") + "\n").unwrap();
    let report = report(&[log.to_str().unwrap(), "127.0.0.1"]);
    assert_eq!((&report["requests"], &report["blocked"]), (&30.into(), &18.into()));
    let [client] = &report["clients"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!(client["client"], "127.0.0.1");
    assert_eq!((&client["policy"], &client["limit"]), (&"by-ip".into(), &"by-ip.2".into()));
    assert!(client["longest_wait"].as_u64().unwrap() > 8_000, "{client}");
}
