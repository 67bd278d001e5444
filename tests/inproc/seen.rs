//! Metrics and status of the module, alone and beside those of agents.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;

use crate::set_up::{BY_ADDRESS, SetUp, programs};
use crate::support::admin::{self, status};
use crate::support::{self, agent_binary, directory, free_port, needs, wait_until};

#[test]
fn it_has_the_metrics_of_an_agent_and_agents_sum_its_status() {
    needs!(support::haproxy());
    for program in programs() {
        let folder = directory();
        let table = folder.path().join("table");
        let address = free_port(Ipv4Addr::LOCALHOST.into()).to_string();
        let words = format!("--rate 9/d --slots 4096 --admin {address}");
        let mut set_up = SetUp::new(&table, &words, BY_ADDRESS);
        set_up.sections = format!(
            "frontend admin\n    bind {address}\n    http-request use-service lua.gcra_metrics\n"
        );
        let running = set_up.start(&program);
        assert_eq!(running.passed(30, "/", &[]), 9);

        // HAProxy would keep the connection.
        let ask = |method: &str, path: &str, host: &str| {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: \
                 close\r\n\r\n"
            );
            admin::send(&address, request.as_bytes())
        };
        let get = |path: &str| ask("GET", path, "localhost");
        let metrics = get("/metrics");
        assert_eq!(metrics.status, 200);
        for line in [
            "gcra_decisions_total{policy=\"default\",outcome=\"allowed\"} 9\n",
            "gcra_decisions_total{policy=\"default\",outcome=\"blocked\"} 21\n",
            "gcra_handler_panics_total 0\n",
        ] {
            assert!(metrics.body.contains(line), "{line} {}", metrics.body);
        }
        assert_eq!(get("/none").status, 404);
        assert_eq!(ask("POST", "/metrics", "localhost").status, 405);
        for (host, status) in [("127.0.0.1:9", 200), ("[::1]", 200), ("evil.example", 421)] {
            assert_eq!(ask("GET", "/status", host).status, status, "{host}");
        }

        // An agent of the table asks it, and adds it to its own.
        let (_agent, agent) = admin::start(&table, &["--rate", "9/d"]);
        let mut all = serde_json::Value::Null;
        wait_until("the agent sums both", || {
            all = status(&agent);
            all["agents"].as_array().is_some_and(|agents| agents.len() == 2)
        });
        let sum = &all["together"]["policies"][0]["decisions"];
        assert_eq!((&sum["allowed"], &sum["blocked"]), (&9.into(), &21.into()), "{all:#}");
        let is_seen = |agent: &serde_json::Value| agent["admin"] == *address;
        assert!(all["agents"].as_array().unwrap().iter().any(is_seen), "{all:#}");
    }
}

/// HAProxy reads its policies with its configuration only, and says so.
#[test]
fn an_order_to_reload_is_answered() {
    needs!(support::haproxy());
    for program in programs() {
        let folder = directory();
        let (table, file) = (folder.path().join("table"), folder.path().join("policies.toml"));
        fs::write(&file, "[policy.api]\nlimits = \"9/d\"\nkey = [\"ip\"]\n").unwrap();
        let words = format!("--config {}", file.display());
        let _running = SetUp::new(&table, &words, BY_ADDRESS).start(&program);
        let mut command = Command::new(agent_binary());
        command.arg("reload").arg(&file).arg("--table").arg(&table);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("reads its policies when it is reloaded"), "{said}");
    }
}
