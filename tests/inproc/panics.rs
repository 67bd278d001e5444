//! A bug of the module: HAProxy lives, and decides about all other requests.

use std::fs;
use std::net::Ipv4Addr;
use std::thread;

use crate::set_up::{SetUp, programs};
use crate::support::{self, Client, admin, directory, free_port, needs, wait_until};

/// The module panics when it is asked about the message 'bug'.
const POLICIES: &str = r#"
answer = ["policy"]
[policy.api]
limits = "9/d"
key = ["ip"]
[policy.bug]
limits = "9/d"
key = ["ip"]
"#;

/// A rule for each converter, by the path.
const RULES: &str = "http-request set-var(txn.wait) src,hex,lua.gcra_ip(api) if { path /api }
    http-request set-var(txn.wait) src,lua.gcra(bug) if { path /text }
    http-request set-var(txn.wait) src,hex,lua.gcra_ip(bug) if { path /ip }
    http-request set-var(txn.wait) src,concat(|,req.ver),lua.gcra(bug,ip,other) if { path /two }
    http-request set-var(txn.answer) src,lua.gcra_answer(bug) if { path /answer }
    http-request set-var(txn.wait) var(txn.answer),field(1,|) if { path /answer }
    http-request deny status 429 if { var(txn.wait) -m int gt 0 }
    http-request deny status 503 if { var(txn.wait) -m int lt 0 }";

#[test]
fn a_panic_costs_one_decision_and_is_logged_and_counted() {
    needs!(support::haproxy());
    const EACH: usize = 50;
    for program in programs() {
        let folder = directory();
        let file = folder.path().join("policies.toml");
        fs::write(&file, POLICIES).unwrap();
        let address = free_port(Ipv4Addr::LOCALHOST.into()).to_string();
        let words = format!("--config {} --slots 4096", file.display());
        let mut set_up = SetUp::new(&folder.path().join("table"), &words, RULES)
            .global("nbthread 2\n    setenv GCRA_LUA_PANICS \"bug beat\"");
        set_up.sections = format!(
            "frontend admin\n    bind {address}\n    http-request use-service lua.gcra_metrics\n"
        );
        let running = set_up.start(&program);
        let server = running.haproxy.frontend;
        // All at once, so that both threads of HAProxy meet it.
        thread::scope(|scope| {
            for path in ["/text", "/ip", "/two", "/answer"] {
                scope.spawn(move || {
                    for _ in 0..EACH {
                        let status = Client::new(server).get(path).unwrap().status;
                        assert_eq!(status, 503, "{path}: nothing is decided");
                    }
                });
            }
        });
        assert_eq!(running.passed(20, "/api", &[]), 9, "{:?}", program.version);
        // The work of once a second panics each time, too.
        let bug = "gcra.lua has a bug, and requests that meet it get no decision";
        wait_until("the log says so", || running.says(bug, "a test has asked for it"));
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let panics = || {
            let body = admin::send(&address, request).body;
            let count = body.lines().find_map(|it| it.strip_prefix("gcra_handler_panics_total "));
            count.unwrap().parse::<usize>().unwrap()
        };
        wait_until("each panic is counted", || panics() > 4 * EACH);
        assert_eq!(running.passed(5, "/api", &[]), 0, "{:?}", program.version);
        // HAProxy logs each line to standard error, too.
        let said = format!("gcra: {bug}");
        let lines = running.haproxy.process.lines();
        assert_eq!(lines.iter().filter(|line| line.starts_with(&said)).count(), 1, "{lines:?}");
    }
}
