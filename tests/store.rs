//! `gcra-spoa store check`: what it prints, and its exit status.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::process::{Command, Output};

use support::needs;
use support::valkey::{Server, valkey};

fn check(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    command.args(["store", "check"]).args(arguments).env("GCRA_TEST_PASSWORD", "secret");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn store_check_says_whether_a_store_can_be_used() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    // The time for an answer is not what is tested here, so a slow machine may take several runs.
    support::wait_until("the store answers in time", || {
        let run = check(&["--store", &server.url()]);
        let said = text(&run.stdout);
        run.status.success() && said.ends_with("limits can be shared through this store\n")
    });

    server.say(&["CONFIG", "SET", "requirepass", "secret"]);
    let run = check(&["--store", &server.url(), "--json"]);
    assert_eq!(run.status.code(), Some(1));
    let said: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(said["ok"], false);
    let why = said["findings"][0]["text"].as_str().unwrap();
    assert!(why.contains("cannot be used") && !why.contains("secret"), "{why}");
    support::wait_until("the password is taken from the environment", || {
        let run = check(&["--store", &server.url(), "--store-password-env", "GCRA_TEST_PASSWORD"]);
        run.status.success()
    });
}

#[test]
fn store_check_says_what_is_wrong_with_its_arguments() {
    for (arguments, expected) in [
        (&["--store", "redis://u:secret@a"][..], "must not have a password in it"),
        (&["--store", "http://a"], "begins with redis://"),
        (&[], "--store URL"),
    ] {
        let run = check(arguments);
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && !said.contains("secret"), "{said}");
    }
    let run = check(&["--store", "rediss://a", "--store-ca", "/nonexistent/ca.pem"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("cannot read the certificates: /nonexistent/ca.pem"));
}
