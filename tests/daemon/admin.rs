//! The daemon's answers over HTTP, and `top` on a terminal: they are true, Prometheus can read
//! them, and they are bounded.

mod actions;

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::Signal;
use serde_json::Value as Json;
use spop_codec::Value;

use self::actions::{RIGHT, token_file};
use crate::support;
use crate::support::admin::{ADMIN, Answer, ask, get, of, send, start, status, top};
use crate::support::spop::Spop;
use crate::support::{Agent, Process, directory, find_promtool, needs, promtool, wait_until};

fn ip(text: &str) -> Value<'static> {
    Value::from(text.parse::<std::net::IpAddr>().unwrap())
}

/// Every series with its value.
fn scrape(address: &str) -> BTreeMap<String, f64> {
    let answer = get(address, "/metrics");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        })
        .collect()
}

#[test]
#[expect(clippy::float_cmp, reason = "they are counts")]
fn what_was_asked_is_what_is_told() {
    let directory = directory();
    let args = ["--rate", "10/h", "--key", "ip", "--threads", "2"];
    let (agent, admin) = start(&directory.path().join("table"), &args);
    // On both workers.
    let mut connections = [Spop::connect(&agent.address), Spop::connect(&agent.address)];
    for spop in &mut connections {
        spop.allowed(&[("ip", ip("192.0.2.1"))], 20);
        spop.allowed(&[("ip", ip("2001:db8::"))], 3);
    }
    connections[0].ask(&[("check", &[("path", "/".into())])]);
    connections[0].ask(&[]);
    drop(Spop::connect(&agent.address));
    // Something other than SPOP.
    send(&agent.address, b"GET / HTTP/1.1\r\n\r\n");

    let mut metrics = BTreeMap::new();
    wait_until("both have ended, and the agent counts itself", || {
        metrics = scrape(&admin);
        let ended = ["protocol_error", "closed"]
            .map(|end| metrics.get(&format!("gcra_connections_total{{end=\"{end}\"}}")).copied());
        ended == [Some(1.0); 2]
            && metrics["gcra_connections_open"] == 2.0
            && metrics["gcra_table_processes"] == 1.0
    });
    let decision = |outcome| {
        metrics[&format!("gcra_decisions_total{{policy=\"default\",outcome=\"{outcome}\"}}")]
    };
    assert_eq!(
        ["allowed", "blocked", "would_block", "undecided"].map(decision),
        [16.0, 30.0, 0.0, 1.0]
    );
    for (series, value) in [
        ("gcra_notifies_total", 48.0),
        ("gcra_latency_seconds_count", 48.0),
        ("gcra_latency_seconds_bucket{le=\"+Inf\"}", 48.0),
        ("gcra_connections_open", 2.0),
        ("gcra_connections_accepted_total", 4.0),
        ("gcra_handler_panics_total", 0.0),
        ("gcra_table_processes", 1.0),
        ("gcra_table_evictions_total", 0.0),
        ("gcra_config_reloads_total{result=\"refused\"}", 0.0),
        (concat!("gcra_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
    ] {
        assert_eq!(metrics[series], value, "{series}");
    }
    // Which status it is depends on the bytes, but there is exactly one.
    let errors =
        metrics.iter().filter(|(series, _)| series.starts_with("gcra_protocol_errors_total"));
    assert_eq!(errors.map(|(_, value)| value).sum::<f64>(), 1.0);
    let slots = ["live", "idle", "pending", "sealed"];
    let slots: f64 =
        slots.iter().map(|state| metrics[&format!("gcra_table_slots{{state=\"{state}\"}}")]).sum();
    assert_eq!(slots, 4096.0);

    let status = status(&admin);
    assert_eq!(status["state"], "serving");
    assert_eq!(status["policies"][0]["decisions"]["blocked"], 30);
    let top = |which: &str| {
        let clients = status["policies"][0][which].as_array().unwrap();
        clients
            .iter()
            .map(|client| {
                (client["client"].as_str().unwrap(), client["requests"].as_u64().unwrap())
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(top("top_blocked"), [("192.0.2.1", 30)]);
    assert_eq!(top("top_allowed"), [("192.0.2.1", 10), ("2001:db8::", 6)]);
    assert_eq!(status["policies"][0]["top_is_exact"]["blocked"], true);
}

/// Agents on the old file share no limits with an agent that is started later, and all of them say
/// so.
#[test]
#[expect(clippy::float_cmp, reason = "it is 0 or 1")]
fn a_table_that_is_removed_in_use_is_told_everywhere() {
    let directory = directory();
    let table = directory.path().join("table");
    let (old, old_admin) = start(&table, &["--rate", "5/h"]);
    let (other, _other_admin) = start(&table, &["--rate", "5/h"]);
    let allowed =
        |agent: &Agent| Spop::connect(&agent.address).allowed(&[("ip", ip("192.0.2.1"))], 9);
    assert_eq!(allowed(&old), 5);
    assert_eq!(scrape(&old_admin)["gcra_table_detached"], 0.0);
    assert_eq!(status(&old_admin)["table"]["detached"], false);

    fs::remove_file(&table).unwrap();
    let said = |agent: &Agent, what: &str| {
        let words = format!(
            "table {} was {what} while it is in use: agents that are started",
            table.display()
        );
        wait_until(what, || agent.process.lines().iter().any(|line| line.contains(&words)));
    };
    said(&old, "removed");
    said(&other, "removed");
    assert_eq!(scrape(&old_admin)["gcra_table_detached"], 1.0);
    // The answer for all agents is one of the last moments.
    wait_until("/status says it", || status(&old_admin)["table"]["detached"] == true);
    assert_eq!(allowed(&other), 0, "the agents on the old file still share the limit");

    let (new, new_admin) = start(&table, &["--rate", "5/h"]);
    assert_eq!(allowed(&new), 5);
    assert_eq!(scrape(&new_admin)["gcra_table_detached"], 0.0);
    let info = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        let output = command.args(["table", "info", "--table"]).arg(&table).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let warning =
        "not shared by all: agents that were started earlier use a file that had this name before";
    wait_until("an agent on the old file leaves its mark", || info().contains(warning));
    // After restarts in turn they share one table again.
    drop((old, other));
    let (old, old_admin) = start(&table, &["--rate", "5/h"]);
    assert_eq!(allowed(&old), 0);
    assert_eq!(scrape(&old_admin)["gcra_table_detached"], 0.0);
    wait_until("the mark grows old", || !info().contains("not shared by all"));
}

#[test]
fn prometheus_can_read_it_and_finds_nothing_to_improve() {
    needs!(promtool());
    let directory = directory();
    let (agent, admin) = start(&directory.path().join("table"), &["--rate", "10/h"]);
    Spop::connect(&agent.address).allowed(&[("ip", ip("192.0.2.1"))], 20);
    let mut check = Command::new(find_promtool().unwrap())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = get(&admin, "/metrics").body;
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{text}");
}

#[test]
#[expect(clippy::float_cmp, reason = "they are counts")]
fn each_policy_has_numbers_that_outlive_a_reload() {
    let directory = directory();
    let file = directory.path().join("gcra-spoa.toml");
    let policies = |burst: u32| {
        let text = format!(
            "[policy.login]\nmessage = \"login\"\nlimits = [\"{burst}/h\", \"1000/d\"]\n\
             key = [\"ip\"]\nipv6_prefix = 64\n\n\
             [policy.trial]\nmessage = \"trial\"\nlimits = [\"5/h\"]\nkey = [\"user\"]\n\
             mode = \"observe\"\n"
        );
        fs::write(&file, text).unwrap();
    };
    policies(10);
    let table = directory.path().join("table");
    let (agent, admin) = start(&table, &["--config", file.to_str().unwrap()]);
    let mut spop = Spop::connect(&agent.address);
    let mut ask = |message: &str, key: &str, value: Value<'_>, times: usize| {
        for _ in 0..times {
            spop.ask(&[(message, &[(key, value)])]);
        }
    };
    ask("login", "ip", ip("2001:db8:1:2:3:4:5:6"), 15);
    ask("login", "ip", ip("2001:db8:1:2:6:5:4:3"), 5);
    ask("login", "path", "/".into(), 2);
    ask("trial", "user", "somebody-known".into(), 8);
    ask("other", "ip", ip("192.0.2.1"), 3);
    let counts = |policy: &str| {
        let metrics = scrape(&admin);
        ["allowed", "blocked", "would_block", "undecided"].map(|outcome| {
            metrics[&format!("gcra_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}")]
        })
    };
    assert_eq!(counts("login"), [10.0, 10.0, 0.0, 2.0]);
    assert_eq!(counts("trial"), [5.0, 0.0, 3.0, 0.0]);
    assert_eq!(scrape(&admin)["gcra_unmatched_total"], 3.0);
    // Requests that were blocked and those that would have been are never in one list.
    let shown = status(&admin)["policies"].clone();
    let [login, trial] = [&shown[0], &shown[1]];
    assert_eq!(login["top_blocked"][0]["client"], "2001:db8:1:2::/64");
    assert_eq!(login["top_blocked"][0]["requests"], 10);
    assert_eq!(login["top_would_block"], Json::Array(Vec::new()));
    let client = &trial["top_would_block"][0]["client"];
    assert!(client.as_str().unwrap().starts_with("som…(14)#"), "{client}");
    assert_eq!(trial["top_blocked"], Json::Array(Vec::new()));

    let reloads = |result: &str| {
        scrape(&admin)[&format!("gcra_config_reloads_total{{result=\"{result}\"}}")]
    };
    policies(40);
    agent.process.signal(Signal::HUP);
    wait_until("it is read again", || reloads("ok") == 1.0);
    ask("login", "ip", ip("192.0.2.9"), 20);
    assert_eq!(counts("login"), [30.0, 10.0, 0.0, 2.0]);
    fs::write(&file, "nonsense").unwrap();
    agent.process.signal(Signal::HUP);
    wait_until("it is refused", || reloads("refused") == 1.0);
    assert_eq!(reloads("ok"), 1.0);
}

/// Of the requests that have passed, those that a trial would block; no request that its policy
/// has blocked.
#[test]
#[expect(clippy::float_cmp, reason = "they are counts")]
fn what_a_trial_would_block_in_addition_is_told_everywhere() {
    let directory = directory();
    let file = directory.path().join("gcra-spoa.toml");
    let text = "answer = [\"would_block\"]\n[policy.check]\nlimits = \"5/h\"\nkey = [\"ip\"]\n\
                observe = [\"2/h\"]\npenalty = { ceiling = \"1h\" }\n[policy.check.overrides]\n\
                \"192.0.2.8\" = \"deny\"\n\"192.0.2.9\" = \"3/h\"\n";
    fs::write(&file, text).unwrap();
    let table = directory.path().join("table");
    let args = ["--config", file.to_str().unwrap()];
    let agents = [start(&table, &args), start(&table, &args)];
    let mut links = agents.each_ref().map(|(agent, _)| Spop::connect(&agent.address));
    // Answers by `blocked` and `would_block`.
    let mut answers = BTreeMap::new();
    for request in 0..20 {
        for client in ["192.0.2.1", "192.0.2.8", "192.0.2.9"] {
            let args = [("ip", ip(client))];
            let answer = links[request % 2].ask(&[("check", &args)]);
            let is = |name| answer.iter().any(|(_, var, is)| var == name && *is);
            *answers.entry((is("blocked"), is("would_block"))).or_default() += 1;
        }
    }
    let passed_all = 2 + 3;
    let both = 15 + 20 + 17;
    assert_eq!(
        answers,
        BTreeMap::from([((false, false), passed_all), ((false, true), 3), ((true, true), both)])
    );

    let admins = agents.each_ref().map(|(_, admin)| &**admin);
    let metric = |series: &str| admins.map(|admin| scrape(admin)[series]).iter().sum::<f64>();
    assert_eq!(metric("gcra_newly_blocked_total{policy=\"check.observe\"}"), 3.0);
    assert!(!scrape(admins[0]).contains_key("gcra_newly_blocked_total{policy=\"check\"}"));
    let outcomes = |policy: &str| {
        ["allowed", "blocked", "would_block", "undecided"].map(|outcome| {
            metric(&format!("gcra_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}"))
        })
    };
    assert_eq!(outcomes("check"), [8.0, 52.0, 0.0, 0.0]);
    assert_eq!(outcomes("check.observe"), [2.0, 0.0, 18.0, 0.0], "all that the trial denies");

    let mut together = Json::Null;
    // The other agent was asked a moment ago at most, and may not have answered in time.
    wait_until("both are in the sum", || {
        together = status(admins[0])["together"]["policies"].clone();
        together[1]["decisions"]["would_block"] == 18
    });
    let [check, trial] = [&together[0], &together[1]];
    assert_eq!((&check["newly_blocked"], &trial["newly_blocked"]), (&Json::Null, &3.into()));
    let list = |policy: &Json, which: &str| -> Vec<_> {
        let clients = policy[which].as_array().unwrap().iter();
        clients
            .map(|it| (it["client"].as_str().unwrap().to_owned(), it["requests"].clone()))
            .collect()
    };
    assert_eq!(list(trial, "top_would_block"), [("192.0.2.1".to_owned(), 3.into())]);
    let blocked = [("192.0.2.8", 20), ("192.0.2.9", 17), ("192.0.2.1", 15)];
    let blocked = blocked.map(|(client, requests)| (client.to_owned(), Json::from(requests)));
    assert_eq!(list(check, "top_blocked"), blocked);

    // The page draws from this.
    let past = |policy: &str, which: &str| {
        let history: Json = serde_json::from_str(&get(admins[0], "/history").body).unwrap();
        let policies = history["policies"].as_array().unwrap();
        let found = policies.iter().find(|it| it["name"] == policy);
        found.map_or(0, |it| it[which].as_array().unwrap().iter().filter_map(Json::as_u64).sum())
    };
    // The slot in which an agent was started has no numbers, so these requests may have none.
    let later = || {
        links[0].ask(&[("check", &[("ip", ip("192.0.2.2"))])]);
        links[0].ask(&[("check", &[("ip", ip("192.0.2.1"))])]);
        past("check.observe", "would_block") > 0
    };
    wait_until("the history has some", later);
}

/// Whatever else the policy has, and after each reload.
#[test]
fn a_client_that_an_override_denies_is_shown_as_denied() {
    let directory = directory();
    let file = directory.path().join("gcra-spoa.toml");
    let policies = [
        ("plain", ""),
        ("tried", "observe = \"2/h\"\n"),
        ("punished", "penalty = { ceiling = \"1h\" }\n"),
        ("grouped", "ipv4_prefix = 30\n"),
        ("watched", "mode = \"observe\"\n"),
    ];
    let write = |denied: &str, others: &str| {
        let policy = |(name, more): (&str, &str)| {
            format!(
                "[policy.{name}]\nmessage = \"{name}\"\nkey = [\"ip\"]\nlimits = \"5/h\"\n{more}\
                 [policy.{name}.overrides]\n{denied}\"198.51.100.0/24\" = \"deny\"\n{others}"
            )
        };
        fs::write(&file, policies.map(policy).concat()).unwrap();
    };
    write("\"192.0.2.0/29\" = \"deny\"\n", "\"203.0.113.0/24\" = \"unlimited\"\n");
    let table = directory.path().join("table");
    let (agent, admin) = start(&table, &["--config", file.to_str().unwrap()]);
    let mut spop = Spop::connect(&agent.address);
    let mut ask = |client: &str, times: usize| {
        for (name, _) in policies {
            for _ in 0..times {
                spop.ask(&[(name, &[("ip", ip(client))])]);
            }
        }
    };
    ask("192.0.2.6", 7);
    ask("192.0.2.100", 7);
    ask("203.0.113.1", 7);
    // Each client with why it is blocked, and whether it has to wait.
    let shown = || {
        let all = status(&admin)["policies"].clone();
        policies.map(|(name, _)| {
            let policy = all.as_array().unwrap().iter().find(|it| it["name"] == name).unwrap();
            let list = if name == "watched" { "top_would_block" } else { "top_blocked" };
            let client = |it: &Json| {
                let reason = it["reason"].as_str().unwrap_or("none").to_owned();
                let address = it["client"].as_str().unwrap().split('/').next().unwrap();
                (address.to_owned(), reason, it["wait_ms"].as_u64().is_some_and(|wait| wait > 0))
            };
            let mut clients: Vec<_> =
                policy[list].as_array().unwrap().iter().map(client).collect();
            // A group of four addresses.
            clients.iter_mut().for_each(|(address, ..)| {
                *address = address.replace("2.4", "2.6").replace("100.8", "100.9");
            });
            clients.sort();
            clients
        })
    };
    let client =
        |address: &str, reason: &str| (address.to_owned(), reason.to_owned(), reason == "limit");
    // An answer can be half a second old.
    let wait_for = |clients: &[(String, String, bool)]| {
        wait_until(&format!("it shows {clients:?}"), || shown().iter().all(|it| it == clients));
    };
    let first = [client("192.0.2.100", "limit"), client("192.0.2.6", "denied")];
    wait_for(&first);

    let reloaded = || {
        let count = |it: &Json| it["config_reloads"]["ok"].as_u64().unwrap();
        let before = count(&status(&admin));
        agent.process.signal(Signal::HUP);
        wait_until("it is read again", || count(&status(&admin)) > before);
    };
    // Without the override, and with one that denies others, the client is allowed.
    write("", "");
    reloaded();
    let second = [client("192.0.2.100", "limit"), client("192.0.2.6", "none")];
    wait_for(&second);
    ask("198.51.100.9", 1);
    let third = [&second[..], &[client("198.51.100.9", "denied")]].concat();
    wait_for(&third);
    // A reload that leaves the overrides alone leaves that alone.
    reloaded();
    wait_for(&third);
}

#[test]
#[expect(clippy::float_cmp, reason = "they are counts")]
fn an_agent_with_an_admin_address_leaves_the_table_when_it_stops() {
    let directory = directory();
    let table = directory.path().join("table");
    let (left, _) = start(&table, &["--rate", "10/h"]);
    let (right, admin) = start(&table, &["--rate", "10/h"]);
    // One that is silent for 5 s, on a busy machine, is not among them for a moment.
    let wait_for = |processes: f64| {
        wait_until(&format!("there are {processes}"), || {
            scrape(&admin)["gcra_table_processes"] == processes
        });
    };
    wait_for(2.0);
    left.stop();
    wait_for(1.0);
    assert_eq!(status(&admin)["killed"], Json::Array(Vec::new()), "it has said that it leaves");
    drop(right);
}

#[test]
fn a_secret_is_not_told() {
    let directory = directory();
    let (agent, admin) =
        start(&directory.path().join("table"), &["--rate", "10/h", "--key", "key"]);
    let secret = "sk_live_0123456789abcdef";
    Spop::connect(&agent.address).allowed(&[("key", secret.into())], 12);
    let told = get(&admin, "/status").body;
    assert!(told.contains("sk_l…(24)#") && !told.contains("sk_li"), "{told}");
}

#[test]
fn an_agent_that_takes_its_leave_is_not_ready() {
    let directory = directory();
    let table = directory.path().join("table");
    let start = |drain: &str| {
        let args = ["--rate", "10/h", "--slots", "4096", "--listen", "127.0.0.1:0"];
        of(Agent::start_with(&table, &[&ADMIN[..], &args, &["--drain", drain]].concat()))
    };
    // So long that all of this is asked meanwhile.
    let (agent, admin) = start("5m");
    let mut spop = Spop::connect(&agent.address);
    agent.process.signal(Signal::TERM);
    wait_until("it is not ready any more", || get(&admin, "/readyz").status == 503);
    assert_eq!(get(&admin, "/readyz").body, "leaving\n");
    assert_eq!(get(&admin, "/healthz").status, 200, "it still works");
    assert_eq!(status(&admin)["state"], "leaving");
    assert!(!spop.is_blocked(&[("ip", ip("192.0.2.1"))]), "it still answers");
    drop(agent);
    let (mut agent, _) = start("1");
    let _spop = Spop::connect(&agent.address);
    assert!(agent.process.stop().success(), "and then it ends");
}

#[test]
fn paths_and_methods() {
    let directory = directory();
    let (_agent, admin) = start(&directory.path().join("table"), &["--rate", "10/h"]);
    for path in ["/metrics", "/status", "/healthz", "/readyz", "/", "/healthz?x=1"] {
        assert_eq!(get(&admin, path).status, 200, "{path}");
    }
    let missing = get(&admin, "/stats");
    assert!(
        missing.status == 404
            && missing.body.contains("/status")
            && missing.body.contains("/metrics")
    );
    let head = send(&admin, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.status == 200 && head.body.is_empty(), "{head:?}");
    let post =
        send(&admin, b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi");
    assert!(post.status == 405 && post.head.contains("allow: get, head"), "{post:?}");
}

#[test]
fn hostile_requests_cost_little_and_hurt_nobody() {
    let directory = directory();
    let (agent, admin) = start(&directory.path().join("table"), &["--rate", "10/h"]);
    let mut spop = Spop::connect(&agent.address);
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{}/status", agent.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let before = memory();

    // An endless line, an endless header, many headers, bytes that are not HTTP, an endless body.
    let line = [b"GET /", &[b'a'; 100_000][..]].concat();
    let long = [b"GET / HTTP/1.1\r\nx: ", &[b'a'; 100_000][..]].concat();
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(500)).into_bytes();
    let noise: Vec<u8> = (0..20_000_u32).map(|n| u8::try_from(n * 7919 % 251).unwrap()).collect();
    let body = [
        b"GET /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n",
        &[b'a'; 100_000][..],
    ]
    .concat();
    for request in [&line, &long, &many, &noise] {
        let mut stream = TcpStream::connect(&admin).unwrap();
        stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
        // The connection may be closed before all is written.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    let mut stream = TcpStream::connect(&admin).unwrap();
    let _ = stream.write_all(&body);
    drop(stream);

    // Many clients that send half a request and wait: few at a time have a place, and not for
    // ever.
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(&admin).unwrap();
            stream.write_all(b"GET /status HTTP/1.1\r\nHost:").unwrap();
            stream
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    let descriptors = fs::read_dir(format!("/proc/{}/fd", agent.process.id())).unwrap().count();
    assert!(descriptors < 60, "{descriptors} open files");
    assert!(!spop.is_blocked(&[("ip", ip("192.0.2.1"))]), "decisions go on");
    let mut first = waiting[0].try_clone().unwrap();
    first.set_read_timeout(Some(support::PATIENCE)).unwrap();
    if let Err(error) = first.read_to_end(&mut Vec::new()) {
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "it is cut off some time");
    }
    drop(waiting);
    assert_eq!(get(&admin, "/healthz").status, 200);
    let grown = memory().saturating_sub(before);
    assert!(grown < 8192, "{grown} KiB more");
}

/// Clients that send a byte now and then, and connect again when they are closed, must not keep
/// others out.
#[test]
fn slow_clients_keep_nobody_from_being_answered() {
    let directory = directory();
    let (_agent, admin) = start(&directory.path().join("table"), &["--rate", "10/h"]);
    let there = admin.parse().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let slow = || {
            let mut clients: Vec<Option<TcpStream>> = (0..200).map(|_| None).collect();
            while !stop.load(Ordering::Relaxed) {
                for client in &mut clients {
                    let goes_on =
                        client.as_mut().is_some_and(|stream| stream.write_all(b"x").is_ok());
                    if !goes_on {
                        // If the agent does not accept, this waits, but not for ever.
                        *client =
                            TcpStream::connect_timeout(&there, Duration::from_millis(500)).ok();
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                }
                thread::sleep(Duration::from_millis(200));
            }
        };
        scope.spawn(slow);
        let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\n\r\n");
        let mut refused = Vec::new();
        for _ in 0..10 {
            for path in ["/healthz", "/readyz", "/metrics", "/status"] {
                // On a busy machine so many clients can come while an answer is made that this one
                // loses its place. Without places for honest clients, every attempt would fail.
                if !(0..20).any(|_| send(&admin, request(path).as_bytes()).status == 200) {
                    refused.push(path);
                }
            }
            thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(refused.is_empty(), "{refused:?}");
    });
}

/// A browser sends another name if a web site has changed its own address to this machine's
/// address.
#[test]
fn what_is_told_is_told_under_known_names_only() {
    let directory = directory();
    let table = directory.path().join("table");
    let (_agent, admin) =
        start(&table, &["--rate", "10/h", "--admin-host", "limiter.example.com,Other"]);
    let ask = |path: &str, host: &str| {
        send(&admin, format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n").as_bytes())
    };
    for host in [
        "Host: 127.0.0.1\r\n",
        "Host: 203.0.113.9:9101\r\n",
        "Host: [::1]\r\n",
        "Host: [2001:db8::1]:9101\r\n",
        "Host: localhost\r\n",
        "Host: LocalHost:9101\r\n",
        "Host: limiter.example.com:9101\r\n",
        "Host: LIMITER.example.com.\r\n",
        "Host: other\r\n",
    ] {
        assert_eq!(ask("/status", host).status, 200, "{host}");
    }
    for host in [
        "evil.example.com",
        "evil.example.com:9101",
        "localhost.evil.example.com",
        "127.0.0.1.evil.example.com",
        "limiter.example.com.evil.example.com",
        "127.0.0.1@evil.example.com",
        "::1",
        "[::1].evil.example.com",
        "localhost:9101:9101",
        "",
    ] {
        for path in ["/status", "/metrics", "/", "/other"] {
            let answer = ask(path, &format!("Host: {host}\r\nOrigin: http://{host}\r\n"));
            assert!(answer.status == 421 || answer.status == 400, "{host}: {answer:?}");
            assert!(!answer.body.contains("policies"), "{answer:?}");
        }
        // Health is not a secret, and a load balancer may ask under any name.
        assert!(
            [200, 400].contains(&ask("/healthz", &format!("Host: {host}\r\n")).status),
            "{host}"
        );
    }
    let answer = ask("/metrics", "Host: prometheus-sees-this\r\n");
    assert_eq!(answer.status, 421);
    assert!(
        answer.body.contains("'prometheus-sees-this'")
            && answer.body.contains("--admin-host prometheus-sees-this"),
        "{answer:?}"
    );
    // The one in the request line counts, too.
    let absolute =
        send(&admin, b"GET http://evil.example.com/status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(absolute.status, 421);
}

/// RFC 9112, section 3.2.
#[test]
fn a_request_has_one_host() {
    let directory = directory();
    let token = token_file(directory.path());
    let flags = ["--rate", "10/h", "--key", "ip", "--admin-actions", &token];
    let (_agent, admin) = start(&directory.path().join("table"), &flags);
    let status = |first: &str, hosts: &[&str]| {
        let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
        send(&admin, format!("{first}\r\n{hosts}{RIGHT}\r\n").as_bytes()).status
    };
    for path in ["/status", "/metrics", "/", "/healthz", "/nothing"] {
        let (new, old) = (format!("GET {path} HTTP/1.1"), format!("GET {path} HTTP/1.0"));
        let right = if path == "/nothing" { 404 } else { 200 };
        assert_eq!(status(&new, &[]), 400, "{path}");
        assert_eq!(status(&old, &[]), right, "{path}");
        for first in [&new, &old] {
            assert_eq!(status(first, &["localhost"]), right, "{first}");
            for hosts in [
                ["localhost", "localhost"],
                ["localhost", "evil.example.com"],
                ["evil.example.com", "localhost"],
            ] {
                assert_eq!(status(first, &hosts), 400, "{first} {hosts:?}");
            }
        }
    }
    assert_eq!(status("POST /actions/forgive HTTP/1.1", &[]), 400);
    assert_eq!(status("GET http://localhost/status HTTP/1.1", &[]), 400);
    assert_eq!(status("GET /status HTTP/1.1", &["evil.example.com"]), 421);
}

/// A browser may load what the agent serves, and nothing else.
#[test]
fn the_page_is_protected_and_small() {
    let directory = directory();
    let (_agent, admin) = start(&directory.path().join("table"), &["--rate", "10/h"]);
    let mut bytes = 0;
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let Answer { status, head, body } = get(&admin, path);
        assert_eq!(status, 200, "{path}");
        assert!(head.contains(&format!("content-type: {kind}")), "{head}");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(head.contains(header), "{path}: {header}: {head}");
        }
        assert!(!head.contains("unsafe"), "{head}");
        // Content that such a policy would refuse.
        for refused in ["style=\"", "onclick=", "<style", "innerHTML"] {
            assert!(!body.contains(refused), "{path}: {refused}");
        }
        bytes += body.len();
    }
    assert!(bytes < 100_000, "{bytes}");
    let answer = get(&admin, "/status");
    assert!(answer.head.contains("x-content-type-options: nosniff"), "{answer:?}");
}

#[test]
fn the_page_has_the_last_minutes_and_the_log_in_json() {
    let directory = directory();
    let (agent, admin) =
        start(&directory.path().join("table"), &["--rate", "10/h", "--key", "ip"]);
    let mut spop = Spop::connect(&agent.address);
    let json = |path: &str| serde_json::from_str::<Json>(&get(&admin, path).body).unwrap();
    let counted = || {
        let history = json("/history");
        let policy = &history["policies"][0];
        let sum = |outcome: &str| {
            policy[outcome].as_array().into_iter().flatten().filter_map(Json::as_u64).sum::<u64>()
        };
        (sum("allowed"), sum("blocked"))
    };
    // The slot in which the agent was started has no numbers.
    wait_until("a slot is full", || {
        json("/history")["agents"].as_array().is_some_and(|agents| agents.contains(&1.into()))
    });
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.1"))], 13), 10);
    wait_until("they are in the history", || counted() == (10, 3));
    let live = json("/live?all");
    assert_eq!(live["status"]["policies"][0]["decisions"]["blocked"], 3);
    assert_eq!(live["configuration"]["policies"][0]["observes"], false);
    let wait = &live["status"]["policies"][0]["top_blocked"][0]["wait_ms"];
    assert!((300_000..=360_000).contains(&wait.as_u64().unwrap()), "{wait}");
    let events = json("/events");
    let events = events.as_array().unwrap();
    let has =
        |text: &str| events.iter().any(|event| event["text"].as_str().unwrap().contains(text));
    assert!(has("admin on http://") && has("created"), "{events:#?}");
    assert_eq!(events[0]["pid"], agent.process.id());

    let explained = json("/explain?key=192.0.2.1");
    assert_eq!(explained[0]["blocked"], true, "{explained:#?}");
    assert!(
        explained[0]["words"].as_str().unwrap().contains("a request now is blocked; the next")
    );
    assert_eq!(spop.allowed(&[("ip", "192.0.2.9".into())], 1), 1);
    let explained = json("/explain?key=192.0.2.9");
    let words = explained[0]["words"].as_str().unwrap().lines().next().unwrap();
    let right = "a request now is allowed; the table has a bucket for str:192.0.2.9";
    assert!(words.contains(right), "{words}");
    for (key, sentence) in [
        ("10.0.0.777", "10.0.0.777"),
        ("a,b,c", "3 parts"),
        ("sk_l%E2%80%A6(24)", "shortened name"),
    ] {
        let answer = get(&admin, &format!("/explain?key={key}"));
        assert!(answer.status == 400 && answer.body.contains(sentence), "{key}: {answer:?}");
    }
    let two = get(&admin, "/explain?message=check&key=192.0.2.1");
    assert_eq!(two.status, 400, "{two:?}");
}

/// The log and `/events` are read by more people than the file.
#[test]
fn a_mistake_beside_a_secret_does_not_tell_it() {
    let directory = directory();
    let (config, list) = (directory.path().join("c.toml"), directory.path().join("list.txt"));
    let right = "[policy.keyed]\nkey = [\"key\"]\nlimits = \"5/h\"\n";
    fs::write(&config, right).unwrap();
    let flags = ["--config", config.to_str().unwrap()];
    let (agent, admin) = start(&directory.path().join("table"), &flags);
    fs::write(&list, "; sk_list_A1-Secret\n'sk_list_B1-Secret'\n10.0.0.777\n").unwrap();
    let secrets = "[policy.keyed.overrides]\n\
                   \"sk_live_A2-Secret\" = \"unlimited\"\n";
    let wrongs = [
        "\"sk_live_A2-Secret\" = \"deny\"\n",
        "sk_live_A3$Secret = \"deny\"\n",
        "sk_live_A4-Secret.more = \"deny\"\n",
        "\"sk_live_A5-Secret\" = \"denny\"\n",
        "\"sk_live_A6-\\u0053ecret\" = 12\n",
        "\"deny\" = \"sk_live_A7-Secret\"\n",
        "sk_live_A8-Secret: deny\n",
        "[policy.keyed.sk_live_A9-Secret]\nsk_live_A9-Secret = sk_live_A9-Secret\n",
        "[[policy.keyed.lists]]\nfile = \"list.txt\"\nlimits = \"deny\"\n",
        "[[policy.keyed.lists]]\nfile = \"sk_live_B1-Secret\"\nlimits = \"deny\"\n",
        "[policy.sk_live_B2-Secret$]\nlimits = \"1/s\"\n",
        "[policy.\"sk_live_B3-Secret\u{20ac}\"]\nlimits = \"1/s\"\n",
        "[policy.other]\nlimits = \"sk_live_B4-Secret\"\n",
        "[policy.other]\nlimits = [\"1/s\", { rate = \"sk_live_B5-Secret-more\" }]\n",
        "[policy.o]\nlimits = { arg = \"a\", default = \"sk_live_B6-Secret\", most = \"1/s\" }\n",
        "[policy.o]\nlimits = { arg = \"a\", default=\"1/s\", most = \"sk_live_B7-Secret x\" }\n",
        "[store]\nurl = \"redis://127.0.0.1:1\"\nsalt_file = \"../sk_live_B8-Secret\"\n",
        "[store]\nurl = \"redis://127.0.0.1:1\"\npassword_file = \"sk_live_B9-Secret\"\nx = 1\n",
        "[store]\nurl = rediss://u:Secret2Secret2Secret2@h\n",
        "[store]\npassword = Secret3Secret3\nusername = Secret4Secret4\n",
        "[policy.o]\nwhen = { plan = Secret5Secret5 }\n",
        "[policy.o]\nwhen = {\n  plan = Secret6Secret6,\n}\n",
        "[policy.o]\nkey = [\n  \"a\",\n  Secret7Secret7,\n]\n",
    ];
    for (place, wrong) in wrongs.iter().enumerate() {
        fs::write(&config, format!("{right}{secrets}{wrong}")).unwrap();
        agent.process.signal(Signal::HUP);
        let refused = || {
            let lines = agent.process.lines();
            lines.iter().filter(|line| line.contains("c.toml was refused")).count()
        };
        wait_until("it is refused", || refused() == place + 1);
    }
    // This is only a warning.
    let store = "[store]\nurl = \"redis://127.0.0.1:1\"\npassword_file = \"sk_live_C1-Secret\"\n";
    fs::write(&config, format!("{right}{secrets}{store}")).unwrap();
    agent.process.signal(Signal::HUP);
    // The last line about it.
    let warning = "cannot read the password file ";
    let (mut log, mut events) = (String::new(), String::new());
    wait_until("it is read", || {
        (log, events) = (agent.process.lines().join("\n"), get(&admin, "/events").body);
        log.contains(warning) && events.contains(warning)
    });
    for said in [&log, &events] {
        assert!(!said.contains("Secret"), "{said}");
        assert!(said.contains("'sk_l…(17)' is defined twice, first in line 5; keep "), "{said}");
        assert!(said.contains("10.0.0.777"), "what is nearly an address is none: {said}");
    }
    // A command says it whole to who can read the file, unless it is another file.
    let check = |text: &str| {
        fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        let output = command.arg("check").arg(&config).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let said = check(&format!("{right}{secrets}{}", wrongs[0]));
    assert!(said.contains("'sk_live_A2-Secret' is defined twice"), "{said}");
    let said = check("root:$6$salt$Secret0123456789:19000:0:99999:7:::\nhalt:*:19000::::::\n");
    assert!(said.contains("is not a key") && !said.contains("Secret"), "{said}");
}

/// The name of a file can change the direction of the text around it.
#[test]
fn a_hidden_character_is_an_escape_in_the_log_and_in_the_events() {
    let directory = directory();
    let config = directory.path().join("a\u{202e}b.toml");
    fs::write(&config, "[policy.api]\nkey = [\"ip\"]\nlimits = \"5/h\"\n").unwrap();
    let flags = ["--config", config.to_str().unwrap()];
    let (agent, admin) = start(&directory.path().join("table"), &flags);
    fs::write(&config, "[policy.api]\nlimits = \"five\"\n").unwrap();
    agent.process.signal(Signal::HUP);
    let refused = "a\\u{202e}b.toml was refused";
    // A line is in the log a moment before it is among the events.
    let (mut lines, mut texts) = (Vec::new(), Vec::new());
    wait_until("the log and the events say it", || {
        lines = agent.process.lines();
        let events: Json = serde_json::from_str(&get(&admin, "/events").body).unwrap();
        let events = events.as_array().unwrap().iter();
        texts = events.map(|event| event["text"].as_str().unwrap().to_owned()).collect();
        [&lines, &texts].iter().all(|said| said.iter().any(|line| line.contains(refused)))
    });
    let all = format!("{}{}", texts.concat(), lines.concat());
    assert!(!all.contains('\u{202e}'), "{all}");
}

#[test]
fn a_key_that_is_not_utf_8_is_refused() {
    let directory = directory();
    let (_agent, admin) =
        start(&directory.path().join("table"), &["--rate", "10/h", "--key", "k"]);
    for query in ["key=%ff", "key=a%C3", "message=check&arg=k=%ff"] {
        let answer = get(&admin, &format!("/explain?{query}"));
        assert!(answer.status == 400 && answer.body.contains("strhex:ff"), "{query}: {answer:?}");
    }
    for query in ["key=strhex:ff", "key=%C3%a4", "key=100%25"] {
        assert_eq!(get(&admin, &format!("/explain?{query}")).status, 200, "{query}");
    }
}

/// As many clients as there may be, that ask for the most and read nothing.
#[test]
fn stuck_viewers_cost_little_and_hurt_nobody() {
    let directory = directory();
    let (agent, admin) = start(&directory.path().join("table"), &["--rate", "10/h"]);
    let mut spop = Spop::connect(&agent.address);
    let stuck: Vec<_> = (0..2_000)
        .filter_map(|_| {
            let mut stream = TcpStream::connect(&admin).ok()?;
            stream.write_all(b"GET /live?all HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
            Some(stream)
        })
        .collect();
    assert!(stuck.len() > 200, "{}", stuck.len());
    assert!(!spop.is_blocked(&[("ip", ip("192.0.2.1"))]));
    wait_until("a viewer that reads is answered", || get(&admin, "/live").status == 200);
    let open = fs::read_dir(format!("/proc/{}/fd", agent.process.id())).unwrap().count();
    assert!(open < 100, "{open} open files");
}

#[test]
fn an_address_that_others_reach_is_warned_about() {
    let directory = directory();
    let table = directory.path().join("table");
    for (address, warns) in [("0.0.0.0:0", true), ("127.0.0.1:0", false), ("127.8.0.1:0", false)] {
        let agent = Agent::start(&table, &["--rate", "10/h", "--admin", address]);
        let lines = agent.process.lines();
        let warned = lines
            .iter()
            .any(|line| line.contains("WARN") && line.contains("there is no authentication"));
        assert_eq!(warned, warns, "{address}: {lines:#?}");
    }
}

#[test]
fn a_taken_port_is_one_sentence() {
    let directory = directory();
    let (_agent, admin) = start(&directory.path().join("table"), &["--rate", "10/h"]);
    let output = Command::new(support::agent_binary())
        .args(["--rate", "10/h", "--listen", "127.0.0.1:0", "--admin", &admin, "--table"])
        .arg(directory.path().join("table"))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let sentence = said.lines().find(|line| line.starts_with("gcra-spoa: ")).expect(&said);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        sentence.contains(&format!("{admin} for --admin"))
            && sentence.contains("a port of its own"),
        "{said}"
    );
}

#[test]
fn top_once_is_a_page_of_plain_text() {
    let directory = directory();
    let (agent, admin) = start(&directory.path().join("table"), &["--rate", "10/h"]);
    let mut spop = Spop::connect(&agent.address);
    spop.allowed(&[("ip", ip("192.0.2.1"))], 25);
    let parts = [
        ": serving, up ",
        "\ndefault ",
        "\nBLOCKED, last ",
        "192.0.2.1 ",
        " 15 ",
        "Connections  1 open",
    ];
    let page = top(&["--admin", &admin], &parts);
    assert!(!page.contains('\x1b'), "{page:?}");

    // Where no program answers, and where another program does.
    let nowhere = support::free_port([127, 0, 0, 1].into()).to_string();
    for address in [&nowhere, &agent.address] {
        let mut top = Command::new(support::agent_binary());
        let output = top.args(["top", "--once", "--admin", address]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("gcra-spoa: ") && said.trim().lines().count() == 1, "{said}");
        assert!(said.contains(address), "{said}");
    }
}
