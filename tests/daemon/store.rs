//! `gcra-spoa store check`: what it prints, and its exit status.

use std::fs;
use std::process::{Command, Output};

use crate::support;
use crate::support::needs;
use crate::support::valkey::{Server, valkey};

fn command(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    command.args(arguments).env("GCRA_TEST_PASSWORD", "secret").output().unwrap()
}

fn check(arguments: &[&str]) -> Output {
    command(&[&["store", "check"], arguments].concat())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Waits until nothing is wrong with a store but the time that its replies take. That is not what
/// is tested here, and a slow machine may always take longer than a request waits.
fn wait_until_well(arguments: &[&str]) {
    support::wait_until("the store can be used", || {
        let run = check(arguments);
        let said = text(&run.stdout);
        (run.status.success() && said.ends_with("limits can be shared through this store\n"))
            || said.contains("cannot be used: its replies take ")
    });
}

#[test]
fn store_check_says_whether_a_store_can_be_used() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    wait_until_well(&["--store", &server.url()]);

    server.say(&["CONFIG", "SET", "requirepass", "secret"]);
    let run = check(&["--store", &server.url(), "--json"]);
    assert_eq!(run.status.code(), Some(1));
    let said: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(said["ok"], false);
    let why = said["findings"][0]["text"].as_str().unwrap();
    assert!(why.contains("cannot be used") && !why.contains("secret"), "{why}");
    // The password is taken from the environment.
    wait_until_well(&["--store", &server.url(), "--store-password-env", "GCRA_TEST_PASSWORD"]);
}

#[test]
fn store_check_says_what_is_wrong_with_its_arguments() {
    for (arguments, expected) in [
        (&["--store", "redis://u:secret@a"][..], "must not have a password in it"),
        (&["--store", "http://a"], "begins with redis://"),
        (&[], "--store URL or --config FILE"),
    ] {
        let run = check(arguments);
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && !said.contains("secret"), "{said}");
    }
    // As agents do, and without a store.
    let run = check(&["--store", "redis://gcra@127.0.0.1:1"]);
    let said = text(&run.stderr);
    assert!(said.contains("names the user 'gcra' and there is no password, so"), "{said}");
    let run = check(&["--store", "rediss://a", "--store-ca", "/nonexistent/ca.pem"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("cannot read the certificates: /nonexistent/ca.pem"));
}

#[test]
fn the_store_of_a_file_is_checked_only_when_that_is_asked_for() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let directory = support::directory();
    let file = directory.path().join("gcra-spoa.toml");
    let policy = "[policy.api]\nlimits = \"1/s\"\n";
    let store = format!("[store]\nurl = \"{}\"\n", server.url());
    fs::write(&file, format!("{store}{policy}shared = true\n")).unwrap();
    let path = file.to_str().unwrap();
    wait_until_well(&["--config", path]);

    // `check` says what is meant, and needs no store.
    drop(server);
    let run = command(&["check", path]);
    let said = text(&run.stdout);
    assert!(run.status.success(), "{said}");
    assert!(said.contains("\n    shared with all machines that use the store; "), "{said}");
    let end = format!(
        "the store was not asked: 'gcra-spoa store check --config {path}' does that\n{path} is \
         valid: 1 policy, 0 warnings\n"
    );
    assert!(said.ends_with(&end), "{said}");
    assert_eq!(check(&["--config", path]).status.code(), Some(1));
    let haproxy = command(&["check", path, "--print-haproxy"]).stdout;
    fs::write(&file, policy).unwrap();
    assert_eq!(text(&haproxy), text(&command(&["check", path, "--print-haproxy"]).stdout));
    // HAProxy waits for longer than the agent does.
    fs::write(&file, format!("{store}wait = \"1s\"\n{policy}shared = true\n")).unwrap();
    let patient = command(&["check", path, "--print-haproxy"]).stdout;
    let timeouts = ["timeout processing 1300ms", "timeout idle 1950ms", "timeout server 3900ms"];
    for timeout in timeouts {
        assert!(text(&patient).contains(timeout), "{timeout}: {}", text(&patient));
    }
    fs::write(&file, policy).unwrap();

    let run = check(&["--config", path]);
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1));
    assert!(said.contains("has no store; write [store], and below it url ="), "{said}");
    fs::write(&file, format!("[store]\nurl = \"x\"\n{policy}")).unwrap();
    let run = check(&["--config", path]);
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1));
    assert!(said.contains("gcra-spoa.toml:2: the address of a store begins with"), "{said}");
}
