//! What the module decides: the same as an agent, in the same buckets.

use std::fs;
use std::path::Path;
use std::process::Command;

use spop_agent::Scope;
use spop_agent::testing::Client as SpopClient;

use crate::set_up::{BY_ADDRESS, Running, SetUp, programs};
use crate::support::{self, Agent, agent_binary, directory, needs, wait_until};

/// Policies with numbers that do not come back while a test runs.
const POLICIES: &str = r#"
answer = ["policy", "reason", "limit", "remaining", "retry_after", "would_block"]
[policy.api]
limits = "40/d burst 20"
key = ["ip"]
[policy.api.overrides]
"10.0.0.0/8" = "unlimited"
"10.9.0.0/16" = "deny"
"192.0.2.0/24" = "12/d"
[policy.several]
limits = ["90/d burst 9", "60/d burst 6", { count = 7, window = "day" }]
key = ["ip"]
[policy.window]
limits = { count = 7, window = "day" }
key = ["ip"]
[policy.punished]
limits = "50/d burst 5"
key = ["ip"]
penalty = { cells = 1, ceiling = "2h" }
[policy.watched]
limits = "3/d"
mode = "observe"
key = ["ip"]
[policy.tried]
limits = "9/d"
observe = "3/d"
key = ["ip"]
[policy.path]
limits = "3/d"
key = ["ip", "path"]
[policy.cost]
limits = "10/d"
key = ["ip"]
cost = "n"
[policy.plan]
limits = { arg = "plan", default = "2/d", most = "100/d" }
key = ["user"]
[policy.key]
limits = "3/d"
key = ["key"]
"#;

/// A rule for each way of asking, by the path.
const RULES: &str = include_str!("limits.cfg");

/// HAProxy with these policies.
fn start(folder: &Path, program: &crate::set_up::Program) -> Running {
    let file = folder.join("policies.toml");
    fs::write(&file, POLICIES).unwrap();
    let words = format!("--config {} --slots 4096", file.display());
    SetUp::new(&folder.join("table"), &words, RULES).start(program)
}

#[test]
fn each_limit_is_that_of_the_file() {
    needs!(support::haproxy());
    for program in programs() {
        let folder = directory();
        let running = start(folder.path(), &program);
        for (path, headers, expected) in [
            ("/api", &[("ip", "198.51.100.1")][..], 20),
            ("/api", &[("ip", "10.1.1.1")], 30),
            ("/api", &[("ip", "10.9.1.1")], 0),
            ("/api", &[("ip", "192.0.2.1")], 12),
            ("/api", &[("ip", "2001:db8::1")], 20),
            ("/api", &[("ip", "2001:db8::2")], 0),
            ("/api", &[("ip", "::ffff:198.51.100.1")], 0),
            ("/ip", &[("ip", "198.51.100.1")], 0),
            ("/ip", &[("ip", "198.51.100.8")], 20),
            ("/api", &[("ip", "198.51.100.8")], 0),
            ("/named-ip", &[("ip", "198.51.100.8")], 0),
            ("/ip", &[("ip", "2001:db8:8::1")], 20),
            ("/api", &[("ip", "2001:db8:8::2")], 0),
            ("/named-ip", &[("ip", "2001:db8:8::3")], 0),
            ("/ip", &[("ip", "::ffff:198.51.100.8")], 0),
            // A string, and no address.
            ("/api", &[("ip", "C6336408")], 20),
            ("/several", &[("ip", "198.51.100.1")], 6),
            ("/window", &[("ip", "198.51.100.1")], 7),
            ("/punished", &[("ip", "198.51.100.1")], 5),
            ("/watched", &[("ip", "198.51.100.1")], 30),
            ("/tried", &[("ip", "198.51.100.1")], 9),
            ("/path/1", &[("ip", "198.51.100.1")], 3),
            ("/path/2", &[("ip", "198.51.100.1")], 3),
            ("/path/1|x", &[("ip", "198.51.100.1")], 3),
            ("/cost", &[("n", "3"), ("user", "198.51.100.1")], 3),
            ("/plan", &[("plan", "4/d"), ("user", "one")], 4),
            ("/plan", &[("plan", "5/d"), ("user", "two")], 5),
            ("/plan", &[("plan", "none"), ("user", "three")], 2),
            ("/plan", &[("plan", "1000/d burst 30"), ("user", "four")], 30),
        ] {
            let passed = running.passed(30, path, headers);
            assert_eq!(passed, expected, "{:?} {path} {headers:?}", program.version);
        }
        let mut client = running.client();
        let answer = |ip: &str| {
            let head = running.client().get_with("/answer", &[("ip", ip)]).unwrap().head;
            head.lines().find_map(|line| line.strip_prefix("x: ")).unwrap().to_owned()
        };
        assert_eq!(answer("198.51.100.2"), "0|api||20|19|0|0");
        let denied = answer("198.51.100.1");
        let (wait, rest) = denied.split_once('|').unwrap();
        let seconds = wait.parse::<u64>().unwrap().div_ceil(1_000);
        assert_eq!(rest, format!("api|limit|20|0|{seconds}|1"));
        assert_eq!(answer("10.9.1.1"), format!("{}|api|denied||||1", i32::MAX));
        assert_eq!(client.get_with("/both/1", &[]).unwrap().status, 200);
        assert_eq!(running.passed(5, "/both/1", &[]), 2, "one of three was charged before");
    }
}

/// The name of a client shows bytes that the client has chosen.
#[test]
fn no_client_writes_a_field_of_the_answer() {
    needs!(support::haproxy());
    let policies = "answer = [\"client\", \"policy\", \"remaining\"]\n[policy.api]\nlimits = \
                    \"3/d\"\nkey = [\"key\"]\n";
    let rules = "    http-request return status 200 hdr x \
                 %[req.hdr(key),lua.gcra_answer(api,key:str)]";
    for program in programs() {
        let folder = directory();
        let file = folder.path().join("policies.toml");
        fs::write(&file, policies).unwrap();
        let words = format!("--config {} --slots 4096", file.display());
        let running = SetUp::new(&folder.path().join("table"), &words, rules).start(&program);
        let answer = running.client().get_with("/", &[("key", "|9|x|9|x|9|x|9|x|9|x|9")]).unwrap();
        let line = answer.head.lines().find_map(|line| line.strip_prefix("x: ")).unwrap();
        let fields: Vec<_> = line.split('|').collect();
        assert!(fields[1].starts_with("_9_"), "{line}");
        assert_eq!((fields.len(), fields[2], fields[3]), (4, "api", "2"), "{line}");
    }
}

#[test]
fn a_wait_is_in_milliseconds_and_what_has_no_decision_is_minus_one() {
    needs!(support::haproxy());
    for program in programs() {
        let folder = directory();
        let running = start(folder.path(), &program);
        let waits = |ip: &str| {
            let answer = running.client().get_with("/waits", &[("ip", ip)]).unwrap();
            ["wait", "none", "wrong", "many", "text", "unknown", "types", "two"].map(|name| {
                let field = |line: &&str| line.starts_with(&format!("{name}: "));
                let line = answer.head.lines().find(field).unwrap_or_else(|| panic!("{name}"));
                line.split(' ').nth(1).unwrap().parse::<i64>().unwrap()
            })
        };
        assert_eq!(waits("198.51.100.7"), [0, -1, -1, -1, -1, -1, -1, -1]);
        wait_until("the log says why", || {
            running.says("matched no policy", "the last one was 'none'")
                && running.says("got no decision", "for policy 'path', the arg 'path'")
        });
        assert_eq!(running.passed(30, "/api", &[("ip", "198.51.100.7")]), 19);
        let wait = waits("198.51.100.7")[0];
        // A cell takes 36 minutes.
        assert!((1_000_000..=2_160_000).contains(&wait), "{wait}");
        assert_eq!(waits("10.9.1.1")[0], i64::from(i32::MAX), "never");
    }
}

#[test]
fn a_reset_of_a_policy_is_followed() {
    needs!(support::haproxy());
    for program in programs() {
        let folder = directory();
        let running = start(folder.path(), &program);
        let passed = |count| running.passed(count, "/api", &[("ip", "198.51.100.7")]);
        assert_eq!(passed(30), 20);
        let mut reset = Command::new(agent_binary());
        reset.args(["table", "reset", "--policy", "api", "--table"]);
        let output = reset.arg(folder.path().join("table")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        wait_until("the client has its burst again", || passed(1) == 1);
        assert_eq!(passed(30), 19);
    }
}

/// Both ways ask about one bucket, whatever bytes a key has.
#[test]
fn a_key_of_any_bytes_has_the_bucket_that_it_has_over_spoe() {
    needs!(support::haproxy());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for program in programs() {
        let folder = directory();
        let running = start(folder.path(), &program);
        let config = folder.path().join("policies.toml");
        let args = ["--config", config.to_str().unwrap()];
        let agent = Agent::start(&folder.path().join("table"), &args);
        let mut spop = runtime.block_on(SpopClient::connect(&agent.address)).unwrap();
        let mut blocked_over_spoe = |name: &str, key: spop_agent::Value<'_>| {
            let (message, arg) = match name {
                "api" => ("api", "ip"),
                name => (name, "key"),
            };
            let args = [(arg, key)];
            let answer = runtime.block_on(spop.ask(&[(message, &args)])).unwrap();
            answer.var(Scope::Transaction, "blocked").and_then(|it| it.as_bool()).unwrap()
        };
        let keys: [&[u8]; 11] = [
            b"plain",
            b"127.0.0.1",
            b"||",
            b"%00",
            b"a%00b",
            b"a%00c",
            b"%ff%fe%fd",
            b"%0a%0d",
            b"'\"\\",
            b"%25s%25n",
            &[b'x'; 3_000],
        ];
        for key in keys {
            let text = std::str::from_utf8(key).unwrap();
            let bytes: Vec<u8> = percent_decoded(key);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
            let (version, value) = (program.version, spop_agent::Value::String(&bytes));
            // The url_dec of some versions has no value with a zero byte in it.
            let (path, headers) = match bytes.contains(&0) {
                true => ("/hex", [("hex", hex.as_str())]),
                false => ("/decoded", [("key", text)]),
            };
            assert_eq!(running.passed(2, path, &headers), 2, "{version:?} {text:.20}");
            assert!(!blocked_over_spoe("key", value), "{version:?} {text:.20}");
            assert!(blocked_over_spoe("key", value), "{version:?} {text:.20}");
            assert_eq!(running.passed(1, path, &headers), 0, "{version:?} {text:.20}");
            assert_eq!(running.passed(1, "/hex", &[("hex", &hex)]), 0, "{version:?} {text:.20}");
        }
        for ip in ["198.51.100.9", "2001:db8:1::1"] {
            assert_eq!(running.passed(19, "/api", &[("ip", ip)]), 19);
            let key = match ip.parse().unwrap() {
                std::net::IpAddr::V4(ip) => spop_agent::Value::Ipv4(ip),
                std::net::IpAddr::V6(ip) => spop_agent::Value::Ipv6(ip),
            };
            assert!(!blocked_over_spoe("api", key));
            assert!(blocked_over_spoe("api", key));
            assert_eq!(running.passed(1, "/api", &[("ip", ip)]), 0);
        }
        assert_eq!(running.passed(1, "/none", &[]), 1, "HAProxy lives");
    }
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let hex = [*high, *low];
                bytes.push(u8::from_str_radix(str::from_utf8(&hex).unwrap(), 16).unwrap());
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[test]
fn what_is_evaluated_twice_is_charged_twice() {
    needs!(support::haproxy());
    for program in programs() {
        let folder = directory();
        let rules = format!("{BY_ADDRESS}\n    http-request set-var(txn.again) src,lua.gcra");
        let words = "--rate 10/d --slots 4096";
        let running = SetUp::new(&folder.path().join("table"), words, &rules).start(&program);
        assert_eq!(running.passed(20, "/", &[]), 5, "{:?}", program.version);
    }
}

#[test]
fn a_client_that_is_exempt_passes_within_seconds_and_is_not_charged() {
    needs!(support::haproxy());
    for program in programs() {
        let folder = directory();
        let running = start(folder.path(), &program);
        let client = [("ip", "198.51.100.3")];
        assert_eq!(running.passed(30, "/api", &client), 20);
        let table = folder.path().join("table");
        let command = |words: &[&str]| {
            let mut command = Command::new(agent_binary());
            command.args(words).arg("--table").arg(&table);
            command.arg("--config").arg(folder.path().join("policies.toml"));
            let output = command.args(["--policy", "api", "198.51.100.3"]).output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            text(&output.stdout) + &text(&output.stderr)
        };
        let said = command(&["exempt", "--for", "1h"]);
        wait_until(&format!("the client is exempt: {said}"), || {
            running.passed(1, "/api", &client) == 1
        });
        assert_eq!(running.passed(30, "/api", &client), 30, "{said}");
        let said = command(&["exempt", "--end"]);
        wait_until(&format!("the exemption ends: {said}"), || {
            running.passed(1, "/api", &client) == 0
        });
        let said = command(&["table", "get"]);
        assert!(said.contains("blocked"), "{said}");
        let said = command(&["block", "--for", "1h"]);
        wait_until(&format!("the client is blocked: {said}"), || {
            // So it is not the limit that blocks it.
            command(&["table", "reset"]);
            running.passed(1, "/api", &client) == 0
        });
        assert_eq!(running.passed(30, "/api", &client), 0, "{said}");
        let said = command(&["block", "--end"]);
        wait_until(&format!("the block ends: {said}"), || running.passed(1, "/api", &client) == 1);
        let said = command(&["table", "reset"]);
        assert_eq!(running.passed(30, "/api", &client), 20, "{said}");
    }
}
