//! The commands about single clients, beside agents with a file: `table get` and `reset`,
//! `explain`, `exempt` and `name`.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value as Json;
use spop_codec::{Scope, Value};
use tempfile::TempDir;

use crate::support::spop::Spop;
use crate::support::{Agent, PATIENCE, directory, free_port, wait_until};

/// An agent with a file, a connection to it, and commands about its clients.
struct Scene {
    directory: TempDir,
    agent: Agent,
    spop: Spop,
}

fn ip(text: &str) -> Value<'static> {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

impl Scene {
    fn new(config: &str) -> Self {
        Self::with(config, &[])
    }

    fn with(config: &str, flags: &[&str]) -> Self {
        let directory = directory();
        fs::write(directory.path().join("gcra.toml"), config).unwrap();
        let file = directory.path().join("gcra.toml");
        let flags = [flags, &["--config", file.to_str().unwrap()]].concat();
        let agent = Agent::start(&directory.path().join("table"), &flags);
        let spop = Spop::connect(&agent.address);
        Self { directory, agent, spop }
    }

    /// Another agent takes the place of the one that runs.
    fn restart(&mut self) {
        let file = self.path("gcra.toml");
        let flags = ["--config", file.to_str().unwrap()];
        self.agent = Agent::start(&self.path("table"), &flags);
        self.spop = Spop::connect(&self.agent.address);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Whether a request is blocked.
    fn is_blocked(&mut self, message: &str, args: &[(&str, Value<'_>)]) -> bool {
        match &self.spop.ask(&[(message, args)])[..] {
            [(Scope::Transaction, name, blocked)] if name == "blocked" => *blocked,
            other => panic!("{other:?}"),
        }
    }

    /// Sends requests until one is blocked. Returns how many were allowed.
    fn exhaust(&mut self, message: &str, args: &[(&str, Value<'_>)]) -> usize {
        (0..100).position(|_| self.is_blocked(message, args)).expect("a limit")
    }

    /// Runs a command with the table, and with the file as well.
    fn run(&self, command: &[&str], args: &[&str]) -> Output {
        let config = self.path("gcra.toml");
        self.run_without_file(command, &[&["--config", config.to_str().unwrap()], args].concat())
    }

    fn run_without_file(&self, command: &[&str], args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
            .args(command)
            .arg("--table")
            .arg(self.path("table"))
            .args(args)
            .output()
            .unwrap()
    }

    /// What a command prints, and its exit status.
    fn said(&self, command: &[&str], args: &[&str]) -> (String, i32) {
        said(&self.run(command, args))
    }

    fn get(&self, args: &[&str]) -> (String, i32) {
        self.said(&["table", "get"], args)
    }

    fn reset(&self, args: &[&str]) -> (String, i32) {
        self.said(&["table", "reset"], args)
    }

    fn json(&self, command: &[&str], args: &[&str]) -> Vec<Json> {
        let (text, _) = self.said(command, &[&["--json"], args].concat());
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The error message of a command whose usage is wrong.
    fn complaint(&self, command: &[&str], args: &[&str]) -> String {
        let output = self.run(command, args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let sentence = String::from_utf8(output.stderr).unwrap();
        assert_eq!(sentence.trim_end().lines().count(), 1, "{sentence}");
        sentence
    }
}

fn said(output: &Output) -> (String, i32) {
    (String::from_utf8(output.stdout.clone()).unwrap(), output.status.code().unwrap())
}

/// Whether two waits are those of one client, of which one was said a little later.
fn is_about(later: &Json, wait_ms: u64) -> bool {
    let later = later.as_u64().unwrap();
    later <= wait_ms && wait_ms - later <= u64::try_from(PATIENCE.as_millis()).unwrap()
}

const POLICIES: &str = r#"
[policy.gold]
message = "api"
when = { plan = "gold" }
limits = "7/d"
key = ["user", "ip"]
lowercase = true

[policy.api]
limits = ["3/d", "1000/d"]
key = ["user", "ip"]
lowercase = true
ipv4_prefix = 24

[policy.api.overrides]
"198.51.0.0/16" = "4/d"
"2001:db8:0:0:1::/80" = "5/d"
"Bob" = ["6/d", "2000/d"]

[policy.null]
message = "keyed"
limits = "2/d"
key = ["key", "else ip"]
"#;

/// For each client: `get`, `explain` and the agent say the same, and after `reset` it is allowed.
#[test]
fn a_blocked_client_is_found_explained_and_reset() {
    let mut scene = Scene::new(POLICIES);
    let user = |name: &'static str| ("user", Value::from(name));
    let plan = ("plan", Value::from("gold"));
    let from = |address: &str| ("ip", ip(address));
    let key = [("key", Value::Null), ("ip", ip("192.0.2.1"))];
    for (message, args, command_line, key, policy, burst) in [
        (
            "api",
            &[user("Ann"), from("192.0.2.1")][..],
            "user=Ann ip=192.0.2.1",
            "ANN,192.0.2.9",
            "api",
            3,
        ),
        (
            "api",
            &[user("Ann"), from("192.0.2.1"), plan],
            "user=ann ip=192.0.2.1 plan=gold",
            "Ann,192.0.2.1",
            "gold",
            7,
        ),
        (
            "api",
            &[user("Ann"), from("2001:db8:5::1")],
            "user=Ann ip=2001:db8:5::2",
            "ann,2001:db8:5::3",
            "api",
            3,
        ),
        (
            "api",
            &[user("Ann"), from("198.51.7.1")],
            "user=Ann ip=198.51.7.1",
            "ann,198.51.7.9",
            "api",
            4,
        ),
        (
            "api",
            &[user("Ann"), from("2001:db8:0:0:1::1")],
            "user=Ann ip=2001:db8:0:0:1::2",
            "ann,2001:db8:0:0:1::3",
            "api",
            5,
        ),
        (
            "api",
            &[user("BOB"), from("192.0.2.1")],
            "user=boB ip=192.0.2.1",
            "user=bob,ip=192.0.2.1",
            "api",
            6,
        ),
        ("keyed", &key, "key=null: ip=192.0.2.1", "ip=192.0.2.1", "null", 2),
    ] {
        let case = format!("{command_line}, {key}");
        assert_eq!(scene.exhaust(message, args), burst, "{case}");
        let explained = || {
            let words: Vec<_> = command_line.split(' ').collect();
            scene.json(&["explain"], &[&["--message", message], &words[..]].concat()).remove(0)
        };
        let explanation = explained();
        assert_eq!(explanation["policy"], policy, "{case}");
        assert_eq!(explanation["blocked"], true, "{case}: {explanation}");
        let wait_ms = explanation["retry_after_ms"].as_u64().unwrap();
        // The limit is a day, and the wait one emission interval.
        let interval_ms = 86_400_000 / burst as u64;
        assert!(wait_ms <= interval_ms && wait_ms + 60_000 > interval_ms, "{case}: {wait_ms}");

        let named = ["--policy", policy, key];
        let got = scene.json(&["table", "get"], &named);
        let blocking = got.iter().find(|limit| limit["blocked"] == true);
        let blocking = blocking.unwrap_or_else(|| panic!("{case}: {got:?}"));
        assert!(is_about(&blocking["retry_after_ms"], wait_ms), "{case}: {blocking}");
        assert_eq!(blocking["burst"], burst, "{case}");
        let (words, status) = scene.get(&named);
        assert!(
            words.contains("blocked; the next request is allowed in ") && status == 0,
            "{words}"
        );

        let (words, status) = scene.reset(&named);
        assert!(words.contains(" was forgiven") && status == 0, "{case}: {words}");
        assert_eq!(explained()["blocked"], false, "{case}");
        assert!(!scene.is_blocked(message, args), "{case}");
        assert_eq!(scene.reset(&named).1, 0);
        assert_eq!(scene.reset(&named).1, 1, "{case}: no bucket is left");
    }
}

#[test]
fn two_policies_with_the_same_keys_are_both_shown_and_reset_one_by_one() {
    let mut scene = Scene::new(
        "[policy.a]\nlimits = \"2/d\"\nkey = [\"ip\"]\nobserve = [\"1/d\"]\n\
         [policy.b]\nlimits = \"3/d\"\nkey = [\"ip\"]\nmode = \"observe\"\n\
         [policy.c]\nlimits = \"3/d\"\nkey = [\"ip\", \"path\"]\n",
    );
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("a", &args), 2);
    (0..4).for_each(|_| assert!(!scene.is_blocked("b", &args), "it only observes"));
    let (words, _) = scene.get(&["192.0.2.1"]);
    let lines: Vec<_> = words.lines().collect();
    assert_eq!(lines.len(), 2, "{words}");
    let begin = "192.0.2.1: policy 'a', 2 per day, up to 2 at once: blocked; the next";
    assert!(lines[0].starts_with(begin), "{words}");
    let begin = "192.0.2.1: policy 'b', 3 per day, up to 3 at once: over the limit, and only \
                 observed; the next";
    assert!(lines[1].starts_with(begin), "{words}");
    let (words, _) = scene.said(&["explain"], &["ip=192.0.2.1"]);
    let begin = "message 'a': policy 'a' decides: a request now is blocked; the next one is";
    assert!(words.starts_with(begin), "{words}");
    assert!(words.contains("\n  limit 'a.observe', 1 per day, up to 1 at once: over "), "{words}");
    let begin = "message 'b': policy 'b' decides: a request now is allowed, because the policy \
                 only observes; it would be blocked; the next one is";
    assert!(words.contains(begin), "{words}");
    let begin = "message 'c': policy 'c' does not decide: the arg 'path' of its key is not given";
    assert!(words.contains(begin), "{words}");

    let (words, status) = scene.reset(&["--policy", "a", "192.0.2.1"]);
    assert_eq!(status, 0);
    assert!(words.lines().all(|line| line.starts_with("192.0.2.1: policy 'a', limit 'a")));
    assert_eq!(words.lines().count(), 2, "the limit that is only observed, too: {words}");
    assert!(!scene.is_blocked("a", &args));
    let (words, _) = scene.get(&["192.0.2.1"]);
    assert!(words.contains("policy 'a', 2 per day, up to 2 at once: 1 of 2 left"), "{words}");
    assert!(words.contains("only observed"), "{words}");
    let (words, status) = scene.reset(&["192.0.2.1", "192.0.2.9"]);
    assert_eq!((words.lines().count(), status), (5, 0), "{words}");
}

#[test]
fn a_debt_from_before_a_reload_is_shown_and_reset() {
    let config = |limit: &str| format!("[policy.check]\nlimits = \"{limit}\"\nkey = [\"ip\"]\n");
    let mut scene = Scene::new(&config("5/d"));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("check", &args), 5);
    fs::write(scene.path("gcra.toml"), config("4/d")).unwrap();
    // The file is not in force yet, and an agent without a file has buckets of its own.
    let other = Agent::start(&scene.path("table"), &["--rate", "2/d"]);
    let output = scene.run_without_file(&["table", "get"], &["--rate", "2/d", "192.0.2.1"]);
    assert_eq!(output.status.code(), Some(1));
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(
        note.contains("some agents of table") && note.contains("without --rate finds"),
        "{note}"
    );
    other.stop();
    let output = scene.run(&["explain"], &["ip=192.0.2.1"]);
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("1 of 1 agent of table") && note.contains("not reloaded"), "{note}");

    assert_eq!(scene.said(&["reload"], &[]).1, 0);
    let (words, status) = scene.get(&["192.0.2.1"]);
    assert!(words.contains("4 per day, up to 4 at once: blocked; "), "{words}");
    assert!(words.contains("(a debt from before the limits were changed)"), "{words}");
    assert_eq!(status, 0);
    assert!(scene.is_blocked("check", &args));
    assert_eq!(scene.reset(&["192.0.2.1"]).1, 0);
    assert_eq!(scene.exhaust("check", &args), 4);
}

/// The table does not say which buckets a client had by other groups, and the file beside it does.
#[test]
fn a_debt_by_former_groups_is_shown_without_asking_the_agents() {
    let config = |prefix: u8| {
        format!("[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\nipv4_prefix = {prefix}\n")
    };
    let mut scene = Scene::new(&config(24));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("check", &args), 5);
    // The groups in between are not those of any debt.
    for prefix in [16, 32] {
        reload(&scene, &config(prefix));
        assert!(scene.is_blocked("check", &args));
    }
    for (command, arg) in [(&["table", "get"][..], "192.0.2.1"), (&["explain"], "ip=192.0.2.1")] {
        let output = scene.run(command, &[arg]);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let words = said(&output).0;
        assert!(words.contains("(a debt from before the limits were changed)"), "{words}");
    }
    let words = scene.said(&["explain"], &["ip=192.0.2.1"]).0;
    assert!(words.contains("a request now is blocked; the next one is allowed in"), "{words}");

    // It is in the memory of the agent, too, which writes the file once more.
    fs::remove_file(scene.path("table.policies")).unwrap();
    wait_until("the file is whole again", || {
        let output = scene.run(&["table", "get"], &["192.0.2.1"]);
        output.stderr.is_empty() && said(&output).0.contains("a debt from before")
    });

    let (words, status) = scene.reset(&["192.0.2.1"]);
    let cleared = "all that it owed was cleared, also what it owed before the reload";
    assert!(words.contains(cleared) && status == 0, "{words}");
    let (words, _) = scene.get(&["192.0.2.9"]);
    assert!(words.contains("its debt is paid off"), "{words}");
    assert_eq!(scene.exhaust("check", &args), 5);

    // An agent that was started since does not remember it.
    reload(&scene, &config(31));
    let is_blocked = |scene: &Scene| {
        scene.said(&["explain"], &["ip=192.0.2.1"]).0.contains("a request now is blocked")
    };
    assert!(is_blocked(&scene));
    scene.restart();
    assert!(!is_blocked(&scene) && !scene.is_blocked("check", &args));
    // Nor does it after a reload of its own, which has another debt.
    reload(&scene, &config(30));
    assert!(!is_blocked(&scene) && !scene.is_blocked("check", &args));
}

/// Agents of which one was started after a change: the others count what that does not.
#[test]
fn a_younger_agent_is_said_not_to_count_former_debts() {
    let config = |key: &str| format!("[policy.check]\nlimits = \"5/d\"\nkey = [\"{key}\"]\n");
    let mut scene = Scene::new(&config("user"));
    let args = [("ip", ip("192.0.2.1")), ("user", "alice".into())];
    assert_eq!(scene.exhaust("check", &args), 5);
    reload(&scene, &config("ip"));
    let explain = || all_said(&scene.run(&["explain"], &["ip=192.0.2.1", "user=alice"])).0;
    let blocked = "a request now is blocked";
    assert!(explain().contains(blocked) && !explain().contains("started later"));
    let file = scene.path("gcra.toml");
    let younger = Agent::start(&scene.path("table"), &["--config", file.to_str().unwrap()]);
    let about = format!("agent {} started later and may allow more", younger.process.id());
    wait_until("the younger one has written", || explain().contains(&about));
    assert!(explain().contains(blocked));
}

/// A KEY that is that of a fallback does not tell whether the other arg was there.
#[test]
fn a_debt_by_a_former_key_with_fallbacks_is_not_silent() {
    let config = |key: &str| format!("[policy.check]\nlimits = \"5/d\"\nkey = [{key}]\n");
    let (fallbacks, plain) = ("\"user\", \"else ip\"", "\"ip\"");
    let args = [("ip", ip("192.0.2.1")), ("user", "alice".into())];
    for (before, after, key, lacks) in [
        (fallbacks, plain, "ip=192.0.2.1", "user=..."),
        (plain, fallbacks, "user=alice", "ip=..."),
    ] {
        let mut scene = Scene::new(&config(before));
        assert_eq!(scene.exhaust("check", &args), 5);
        reload(&scene, &config(after));
        assert!(scene.is_blocked("check", &args));
        let may_owe = format!("which 'gcra-spoa explain' shows with {lacks}");
        for command in [&["explain"][..], &["table", "get"]] {
            let (words, _) = all_said(&scene.run(command, &[key]));
            assert!(words.contains(&may_owe), "{words}");
        }
        let (_, status) = scene.reset(&[key]);
        assert_eq!(status, 1, "{key} does not say which client that was");
        let both = scene.said(&["explain"], &["ip=192.0.2.1", "user=alice"]).0;
        assert!(both.contains("a request now is blocked"), "{both}");
    }
    // The key that a policy has now says all of itself.
    let mut scene = Scene::new(&config(fallbacks));
    assert_eq!(scene.exhaust("check", &args), 5);
    reload(&scene, &config(&format!("{fallbacks}]\nlowercase = true\n#")));
    for key in ["ip=192.0.2.1", "user=alice"] {
        let (words, _) = all_said(&scene.run(&["table", "get"], &[key]));
        assert!(!words.contains("had another key"), "{words}");
    }
}

/// By a former key with other args a KEY says too little, and the args of a message may not.
#[test]
fn a_debt_by_a_former_key_is_shown_to_those_who_write_its_args() {
    let config = |key: &str| format!("[policy.check]\nlimits = \"5/d\"\nkey = [\"{key}\"]\n");
    let mut scene = Scene::new(&config("user"));
    let args = [("ip", ip("192.0.2.1")), ("user", "alice".into())];
    assert_eq!(scene.exhaust("check", &args), 5);
    reload(&scene, &config("ip"));
    assert!(scene.is_blocked("check", &args));
    let may_owe = "policy 'check' had another key before a reload; for up to 24 h its clients may \
                   owe more by that, which 'gcra-spoa explain' shows with user=...\n";
    for (command, arg) in [(&["table", "get"][..], "192.0.2.1"), (&["explain"], "ip=192.0.2.1")] {
        let (words, _) = all_said(&scene.run(command, &[arg]));
        assert!(words.contains(may_owe), "{words}");
        assert!(words.contains("no bucket that this command can see"), "{words}");
    }
    let output = scene.run(&["explain"], &["ip=192.0.2.1", "user=alice"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let words = said(&output).0;
    assert!(words.contains("a request now is blocked; the next one is allowed in"), "{words}");
    let (words, status) = all_said(&scene.run(&["table", "reset"], &["192.0.2.1"]));
    let unknown =
        "it is not known here which key 192.0.2.1 had before; what it owed by that under";
    assert!(words.contains(unknown) && status == 1, "{words}");
    assert!(scene.is_blocked("check", &args));
}

/// Reloads the file with this text. The command waits some seconds for the agent, which may not be
/// enough for a long file on a busy machine.
fn reload(scene: &Scene, config: &str) {
    fs::write(scene.path("gcra.toml"), config).unwrap();
    wait_until("the file is reloaded", || scene.said(&["reload"], &[]).1 == 0);
}

/// What a command prints on both outputs, and its exit status.
fn all_said(output: &Output) -> (String, i32) {
    let (words, status) = said(output);
    (String::from_utf8(output.stderr.clone()).unwrap() + &words, status)
}

const TOO_MANY_NUMBERS: &str = "the limits have had more numbers than the table has space for";

/// A client with other numbers, which had more numbers before it than the table can list.
#[test]
fn a_reset_is_not_silent_about_numbers_that_the_table_had_no_space_for() {
    let config = |first: usize| {
        let rule =
            |n: usize| format!("\"192.0.{}.{}\" = \"{}/d\"\n", n / 250, n % 250, 1000 * first + n);
        let overrides: String = (0..700).map(rule).collect();
        format!(
            "[policy.check]\nkey = [\"ip\"]\nlimits = \"9/d\"\n\
             [policy.check.overrides]\n{overrides}"
        )
    };
    let mut scene = Scene::new(&config(1));
    let args = [("ip", ip("192.0.2.199"))];
    // The last one of 700.
    for _ in 0..100 {
        assert!(!scene.is_blocked("check", &args));
    }
    let (words, status) = all_said(&scene.run(&["table", "reset"], &["192.0.2.199"]));
    assert!(words.contains("a debt of ") && status == 0, "nothing was changed yet: {words}");
    for _ in 0..100 {
        assert!(!scene.is_blocked("check", &args));
    }
    reload(&scene, &config(2));
    assert!(!scene.is_blocked("check", &args));
    let (words, status) = all_said(&scene.run(&["table", "reset"], &["192.0.2.199"]));
    assert!(words.contains(TOO_MANY_NUMBERS), "{words}");
    assert!(words.contains(" agents may still count what 192.0.2.199 "), "{words}");
    assert!(!words.contains("all that it owed was cleared"), "{words}");
    assert_eq!(status, 1, "{words}");
    // Now the table is full. By the longest debts, of a day before and a day after a change.
    reload(&scene, &config(3));
    let (words, status) = all_said(&scene.run(&["table", "reset"], &["192.0.2.199"]));
    assert!(words.contains("for up to 48 h agents") && status == 1, "{words}");
}

/// The numbers that a client was charged by have left the table, and its agent counts by them.
#[test]
fn a_client_without_a_listed_bucket_is_not_said_to_owe_nothing() {
    let config = |count: usize| {
        let policy = |n: usize| format!("[policy.p{n}]\nkey = [\"ip\"]\nlimits = \"{count}/d\"\n");
        (0..400).map(policy).collect::<String>()
    };
    let mut scene = Scene::new(&config(5));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("p0", &args), 5);
    let of_p0 = ["--policy", "p0", "192.0.2.1"];
    reload(&scene, &config(4));
    let (words, status) = all_said(&scene.run(&["table", "get"], &of_p0));
    assert!(words.contains("blocked; ") && status == 0, "it is listed: {words}");
    reload(&scene, &config(3));
    let (words, status) = all_said(&scene.run(&["table", "get"], &of_p0));
    assert!(words.contains(TOO_MANY_NUMBERS) && words.contains("blocked; "), "{words}");
    assert_eq!(status, 0, "the file says it: {words}");
    let of_another = ["--policy", "p0", "192.0.2.9"];
    let (words, status) = all_said(&scene.run(&["table", "get"], &of_another));
    let no_bucket = "no bucket that this command can see";
    assert!(words.contains(TOO_MANY_NUMBERS) && words.contains(no_bucket), "{words}");
    assert!(!words.contains("its debt is paid off") && status == 1, "{words}");
    let question = |ip: &str| {
        let (words, _) = all_said(&scene.run(&["explain"], &["--message", "p0", ip]));
        words
    };
    let words = question("ip=192.0.2.1");
    assert!(words.contains("a request now is blocked; "), "{words}");
    let words = question("ip=192.0.2.9");
    assert!(
        words.contains("no bucket that this command can see, and without one all 3"),
        "{words}"
    );
    let (words, status) = all_said(&scene.run(&["table", "reset"], &of_p0));
    assert!(words.contains(TOO_MANY_NUMBERS) && words.contains(no_bucket), "{words}");
    assert_eq!(status, 1, "{words}");
    assert!(scene.is_blocked("p0", &args));
}

/// The rest of the network has another bucket, which stays as it is.
#[test]
fn a_reset_of_an_address_with_an_override_clears_no_other_client() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\n\
         [policy.check.overrides]\n\"2001:db8::1\" = \"2/d\"\n",
    );
    assert_eq!(scene.exhaust("check", &[("ip", ip("2001:db8::1"))]), 2);
    assert_eq!(scene.exhaust("check", &[("ip", ip("2001:db8::2"))]), 5);
    let (words, status) = scene.reset(&["2001:db8::1"]);
    assert!(words.contains("a debt of 23 h was forgiven") && status == 0, "{words}");
    assert!(scene.is_blocked("check", &[("ip", ip("2001:db8::3"))]));
    assert_eq!(scene.exhaust("check", &[("ip", ip("2001:db8::1"))]), 2);
}

/// HAProxy may cut addresses to their /64, but other clients share that.
#[test]
fn a_reset_of_one_address_does_not_clear_its_network() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\n\
         [policy.check.overrides]\n\"2001:db8::1\" = \"2/d\"\n",
    );
    assert_eq!(scene.exhaust("check", &[("ip", ip("2001:db8::2"))]), 5);
    let output = scene.run(&["table", "reset"], &["2001:db8::1"]);
    let note = String::from_utf8(output.stderr).unwrap();
    let has = "the table has a bucket for 2001:db8:: in policy 'check', and none for 2001:db8::1";
    assert!(note.contains(has) && note.ends_with("the KEY to write is 2001:db8::\n"), "{note}");
    assert_eq!(output.status.code(), Some(1));
    assert!(scene.is_blocked("check", &[("ip", ip("2001:db8::2"))]));
    assert_eq!(scene.reset(&["2001:db8::"]).1, 0);
    assert_eq!(scene.exhaust("check", &[("ip", ip("2001:db8::2"))]), 5);
}

/// With another rate, burst, key or cost, a command looks at other buckets.
#[test]
fn a_command_with_other_flags_than_the_agents_says_so() {
    for (flags, command) in [
        (&["--rate", "deny"][..], &["--rate", "100/s"][..]),
        (&["--rate", "1/h", "--key", "key"], &["--rate", "1/h"]),
        (&["--rate", "1/h", "--cost", "n"], &["--rate", "1/h"]),
        (&["--rate", "1/h", "--key", "key"], &["--rate", "1/h", "--key", "key"]),
    ] {
        let directory = directory();
        let table = directory.path().join("table");
        let _agent = Agent::start(&table, flags);
        wait_until("the agent says which limits it has", || {
            let mut info = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
            let info = info.args(["table", "info", "--json", "--table"]).arg(&table).output();
            !String::from_utf8(info.unwrap().stdout).unwrap().contains("\"limits\":null")
        });
        let output = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
            .args(["explain", "--table", table.to_str().unwrap(), "key=alice"])
            .args(command)
            .output()
            .unwrap();
        let note = String::from_utf8(output.stderr).unwrap();
        let differs = "1 of 1 agent of table ";
        let wants = "another --rate, --burst, --key or --cost than this command";
        assert_eq!(note.contains(differs) && note.contains(wants), flags != command, "{note}");
    }
}

/// Commands have no --store, and what they say of a shared policy is not all.
#[test]
fn a_command_says_that_a_policy_is_shared() {
    let directory = directory();
    let (table, file) = (directory.path().join("table"), directory.path().join("gcra.toml"));
    let policy = "[policy.api]\nlimits = \"1/h\"\nkey = [\"ip\"]\n";
    let store = "redis://127.0.0.1:1";
    let text = format!("[store]\nurl = \"{store}\"\n{policy}shared = true\n[policy.web]\n");
    fs::write(&file, text + "limits = \"1/h\"\nkey = [\"ip\"]\n").unwrap();
    let notes = |args: &[&str]| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        let output = run.args(args).arg("--table").arg(&table).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let note = |policy: &str| {
        format!(
            "policy '{policy}' is shared with other machines; this command knows what this \
             machine holds, and not what the store has"
        )
    };
    let flags = ["--rate", "1/h", "--store", store, "--without-store", "closed"];
    let agent = Agent::start(&table, &flags);
    for args in [&["explain", "ip=192.0.2.7"][..], &["table", "get", "192.0.2.7"]] {
        let said = notes(args);
        assert!(said.contains(&note("default")), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
    agent.stop();

    let config = ["--config", file.to_str().unwrap()];
    let _agent = Agent::start(&table, &config);
    for (command, key) in [(&["explain"][..], "ip=192.0.2.7"), (&["table", "get"], "192.0.2.7")] {
        let said = notes(&[command, &config, &[key]].concat());
        assert!(said.contains(&note("api")) && !said.contains("policy 'web'"), "{said}");
    }
    // Nothing listens there. The other policy is for this machine alone.
    let mut run = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    run.args(["table", "reset", "192.0.2.7", "--table"]).arg(&table).args(config);
    let output = run.output().unwrap();
    let [said, noted] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(noted.contains("; what 192.0.2.7 owes under policy 'api' was not cleared"), "{noted}");
    assert!(said.contains("policy 'web': no bucket"), "{said}");
}

/// The register has the numbers of agents that ended, and none of those that deny everything.
#[test]
fn the_limit_of_agents_that_ended_is_not_that_of_those_that_run() {
    let directory = directory();
    let table = directory.path().join("table");
    Agent::start(&table, &["--rate", "5/m"]).stop();
    let _agent = Agent::start(&table, &["--rate", "deny", "--key", "ip"]);
    for command in [&["explain", "ip=192.0.2.7"][..], &["table", "get", "192.0.2.7"]] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        let output = run.args(command).arg("--table").arg(&table).output().unwrap();
        let (words, status) = said(&output);
        assert!(words.contains("\"deny\"") && status == 0, "{command:?}: {words}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

/// Only what was in force before says which clients had an override that a reload has taken away.
#[test]
fn a_debt_under_a_former_override_is_explained_and_reset() {
    let config = |overrides: &str| {
        format!(
            "[policy.check]\nlimits = \"100/d\"\nkey = [\"ip\"]\n\
             [policy.check.overrides]\n{overrides}\n"
        )
    };
    let mut scene = Scene::new(&config("\"192.0.2.0/24\" = \"3/d\""));
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("check", &args), 3);
    fs::write(scene.path("gcra.toml"), config("\"192.0.2.1\" = \"2/d\"")).unwrap();
    assert_eq!(scene.said(&["reload"], &[]).1, 0);
    let explained = scene.json(&["explain"], &["ip=192.0.2.1"]).remove(0);
    assert_eq!(explained["blocked"], true, "{explained}");
    assert!(scene.is_blocked("check", &args));
    assert_eq!(scene.reset(&["192.0.2.1"]).1, 0);
    assert_eq!(scene.exhaust("check", &args), 2);
}

#[test]
fn a_key_without_a_bucket_is_told_from_one_that_owes_nothing() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"1000/s\"\nkey = [\"ip\"]\n\
         [policy.check.overrides]\n\"192.0.2.66\" = \"deny\"\n\"192.0.2.67\" = \"unlimited\"\n",
    );
    assert!(!scene.is_blocked("check", &[("ip", ip("192.0.2.1"))]));
    wait_until("the debt is paid off", || {
        let (words, status) = scene.get(&["192.0.2.1"]);
        let idle = "192.0.2.1: policy 'check', 1000 per second, up to 1000 at once: owes nothing; \
                    1000 of 1000 left\n";
        status == 0 && words == idle
    });
    let none = "192.0.2.2: policy 'check': no bucket: no request with this key was counted \
                lately, or its debt is paid off\n";
    assert_eq!(scene.get(&["192.0.2.2"]), (none.to_owned(), 1));
    assert_eq!(scene.reset(&["192.0.2.2"]), (none.to_owned(), 1));
    let (words, status) = scene.reset(&["192.0.2.2", "192.0.2.1"]);
    assert!(
        words.ends_with("192.0.2.1: policy 'check', limit 'check': owed nothing\n"),
        "{words}"
    );
    assert_eq!(status, 0, "one of them was found");
    let denied = "192.0.2.66: policy 'check': every request is blocked, because the limit is \
                  \"deny\" (override 192.0.2.66)\n";
    assert_eq!(scene.get(&["192.0.2.66"]), (denied.to_owned(), 0));
    let (words, status) = scene.reset(&["192.0.2.66"]);
    assert!(words.contains("\"deny\"; a reset does not change that") && status == 1, "{words}");
    assert!(scene.get(&["192.0.2.67"]).0.contains("every request is allowed"));
}

#[test]
fn an_exemption_is_followed_listed_and_ended() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\n");
    let args = [("ip", ip("2001:db8::1"))];
    assert_eq!(scene.exhaust("check", &args), 2);
    let (words, status) = scene.said(&["exempt"], &["--for", "1h", "2001:db8::2"]);
    assert_eq!(status, 0);
    let begin = "2001:db8::2 (counted as 2001:db8::/64): policy 'check': exempt for 1h, in all \
                 agents within about two seconds; to end it: gcra-spoa exempt --end --config ";
    assert!(words.starts_with(begin) && words.ends_with(" 2001:db8::2\n"), "{words}");
    wait_until("the agent follows", || !scene.is_blocked("check", &args));
    assert!(!scene.is_blocked("check", &args));
    let listed = scene.said(&["exempt"], &["--list"]).0;
    assert!(listed.starts_with("2001:db8::/64: policy 'check', for another 60 min"), "{listed}");
    let explanation = scene.said(&["explain"], &["ip=2001:db8::7"]).0;
    assert!(explanation.contains("is allowed, because the client is exempt for another 60 min"));
    assert!(scene.get(&["2001:db8::7"]).0.contains("; exempt for another 60 min"));

    let (words, status) = scene.said(&["exempt"], &["--end", "2001:db8::3"]);
    assert!(words.contains("policy 'check': the exemption has ended") && status == 0, "{words}");
    wait_until("the agent follows", || scene.is_blocked("check", &args));
    let (words, status) = scene.said(&["exempt"], &["--end", "2001:db8::3"]);
    assert!(words.contains("there was no exemption") && status == 1, "{words}");
    assert!(scene.said(&["exempt"], &["--list"]).0.contains("no client is exempt"));
    for time in ["8d", "0s", "9s", "soon", "3600", "-5m"] {
        let sentence = scene.complaint(&["exempt"], &["--for", time, "2001:db8::3"]);
        assert!(sentence.contains("is not a time from 10s to 7d"), "{sentence}");
    }
}

/// The configurations in haproxy/ cut IPv6 addresses, and the commands name the network.
#[test]
fn a_client_of_an_agent_without_a_file_is_explained_and_exempt() {
    let directory = directory();
    let table = directory.path().join("table");
    let agent = Agent::start(&table, &["--rate", "2/d"]);
    let mut spop = Spop::connect(&agent.address);
    let args = [("ip", ip("2001:db8:1:2::"))];
    assert_eq!(spop.allowed(&args, 5), 2);
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        said(&command.args(args).arg("--table").arg(&table).output().unwrap())
    };
    let explain = |arg: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        let explain = command.args(["explain", "--rate", "2/d", arg, "--table"]).arg(&table);
        explain.output().unwrap()
    };
    // This is about exactly the args of a message.
    let output = explain("ip=2001:db8:1:2::7");
    let (words, status) = said(&output);
    let begin = "policy 'default' decides: a request now is allowed\n  key: 2001:db8:1:2::7\n";
    assert!(words.starts_with(begin) && status == 0, "{words}");
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("the table has a bucket for ip=2001:db8:1:2:: in policy"), "{note}");
    let output = explain("ip=2001:db8:1:2::");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let (words, status) = said(&output);
    let begin = "policy 'default' decides: a request now is blocked; the next one is allowed in \
                 12 h\n  key: 2001:db8:1:2::\n";
    assert!(words.starts_with(begin) && status == 0, "{words}");
    assert_eq!(run(&["explain", "--rate", "2/d", "--cost", "n", "ip=192.0.2.7", "n=x"]).1, 2);
    let (words, status) = run(&["exempt", "--for", "30m", "2001:db8:1:2::"]);
    let begin = "2001:db8:1:2::: exempt for 30m, in all agents";
    assert!(words.starts_with(begin) && words.lines().count() == 1 && status == 0, "{words}");
    wait_until("the agent follows", || spop.allowed(&args, 1) == 1);
    let listed = run(&["exempt", "--list"]).0;
    assert!(
        listed.starts_with("2001:db8:1:2::: policy 'default', for another 30 min"),
        "{listed}"
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    let output = command.args(["exempt", "--end", "2001:db8:1:2::8", "--table"]).arg(&table);
    let output = output.output().unwrap();
    let note = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(note.contains("the table has an exemption for 2001:db8:1:2::, and none"), "{note}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(run(&["exempt", "--end", "2001:db8:1:2::"]).1, 0);
    wait_until("the agent follows", || spop.allowed(&args, 1) == 0);
    assert_eq!(
        run(&["name", "2001:db8:1:2::7,alice-from-sales"]).0.split('#').next().unwrap(),
        "2001:db8:1:2::7,alic…(16)"
    );
}

#[test]
fn a_name_is_the_one_in_the_status() {
    let admin = free_port([127, 0, 0, 1].into()).to_string();
    let mut scene = Scene::with(
        "[policy.check]\nlimits = \"2/d\"\nkey = [\"user\"]\nlowercase = true\n\
         [policy.two]\nlimits = \"2/d\"\nkey = [\"a\", \"b\"]\n",
        &["--admin", &admin],
    );
    assert_eq!(scene.exhaust("check", &[("user", "sk_live_0123456789".into())]), 2);
    let name = scene.said(&["name"], &["sk_live_0123456789"]).0;
    let name = name.trim_end().strip_prefix("policy 'check': ").unwrap().to_owned();
    assert!(name.starts_with("sk_l…(18)#"), "{name}");
    let status = || {
        let mut stream = TcpStream::connect(&admin).unwrap();
        let request =
            format!("GET /status HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str::<Json>(body).unwrap()["policies"][0]["top_blocked"].to_string()
    };
    assert!(status().contains(&name), "{}, {name}", status());
    let explanation = scene.json(&["explain"], &["user=sk_live_0123456789"]).remove(0);
    assert_eq!(explanation["client"], name);
    let other_case = scene.said(&["name"], &["SK_live_0123456789"]).0;
    let digits = |name: &str| name.trim_end().split_once('#').unwrap().1.to_owned();
    assert_eq!(digits(&other_case), digits(&name), "the policy ignores case");
}

#[test]
fn explain_names_the_list_and_what_is_missing() {
    let scene = Scene::new("[policy.check]\nlimits = \"1/s\"\n");
    fs::write(scene.path("list.txt"), "# partners\n192.0.2.0/24 # HQ\n192.0.2.7\n").unwrap();
    let config = "[policy.check]\nlimits = \"1/s\"\nkey = [\"ip\"]\ncost = \"n\"\n\
                  [[policy.check.lists]]\nfile = \"list.txt\"\nlimits = \"2/s\"\n\
                  [policy.other]\nlimits = \"1/s\"\nkey = [\"user\"]\n\
                  when = { plan = \"gold\" }\n";
    fs::write(scene.path("gcra.toml"), config).unwrap();
    let list = scene.path("list.txt");
    let (words, status) = scene.said(&["explain"], &["ip=192.0.2.7", "n=int64:3"]);
    let line = format!("\n  override: 192.0.2.7, from {}:3: 2 per second", list.display());
    assert!(words.contains(&line) && status == 0, "{words}");
    assert!(words.contains("blocked, because it costs more than a burst"), "{words}");
    assert!(words.contains("\n  cost: 3 cells"), "{words}");
    let (words, _) = scene.said(&["explain"], &["--message", "check", "ip=192.0.2.9"]);
    assert!(words.contains(&format!("192.0.2.0/24, from {}:2:", list.display())), "{words}");
    let (words, status) =
        scene.said(&["explain"], &["--message", "check", "ip=192.0.2.9", "n=int64:-1"]);
    let cost = "does not decide: its cost, the arg 'n', is int64:-1, and not a whole number";
    assert!(words.contains(cost) && status == 1, "{words}");
    for written in ["x", "+3", "-1", "bool:true"] {
        let output = scene.run(&["explain"], &["ip=192.0.2.9", &format!("n={written}")]);
        let sentence = String::from_utf8(output.stderr).unwrap();
        assert!(
            sentence.contains("an integer or a string of digits; write a number"),
            "{sentence}"
        );
        assert_eq!(output.status.code(), Some(2));
    }
    for written in ["3", "str:3", "strhex:33", "int64:3", "uint32:3"] {
        let (words, status) = scene.said(&["explain"], &["ip=192.0.2.9", &format!("n={written}")]);
        assert!(words.contains("\n  cost: 3 cells") && status == 0, "{words}");
    }
    let other = |args: &[&str]| {
        let (words, status) = scene.said(&["explain"], &[&["--message", "other"], args].concat());
        assert_eq!(status, 1, "{words}");
        words
    };
    let words = other(&["user=a"]);
    let why = "message 'other': no policy is for it\n  passed over: 'other' is for plan 'gold', \
               and the arg 'plan' is not given\n";
    assert_eq!(words, why);
    assert!(other(&["user=a", "plan=free"]).contains("is for plan 'gold', and it is free"));
    let words = other(&["ip=192.0.2.7", "plan=gold"]);
    assert!(words.contains("the arg 'user' of its key is not given"), "{words}");
    let output = scene.run(&["explain"], &["ipp=192.0.2.7"]);
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("no policy uses the arg 'ipp'; the policies use ip, n, plan, user"));
}

#[test]
fn what_can_not_be_meant_is_refused() {
    let scene = Scene::new(POLICIES);
    for command in
        [&["table", "get"][..], &["table", "reset"], &["exempt", "--for", "1h"], &["name"]]
    {
        for (args, sentence) in [
            (&["--policy", "apy", "a,192.0.2.1"][..], "it has gold, api, null"),
            (
                &["--policy", "api", "192.0.2.1"],
                "policy 'api': '192.0.2.1' has 1 part, and the key has 2: user,ip",
            ),
            (&["a,b,c"], "'gold': 'a,b,c' has 3 parts, and the key has 2: user,ip; 'api': "),
            (&["a,b,c"], "; 'null': 'a,b,c' has 3 parts, and the key has 1: key (or ip)"),
            (&["--policy", "api", "user=a,src=192.0.2.1"], "the key has no arg 'src'"),
            (&["--policy", "api", "user=a,b"], "must name each arg of the key once"),
            (&["--policy", "null", "null:"], "is not a whole key, or has null in it"),
        ] {
            let said = scene.complaint(command, args);
            assert!(said.contains(sentence), "{command:?} {args:?}: {said}");
        }
    }
    for (command, args) in [
        (&["table", "get", "--rate", "1/s"][..], &["a"][..]),
        (&["explain", "--rate", "1/s"], &["ip=192.0.2.1"]),
    ] {
        let output = scene.run_without_file(command, args);
        let sentence = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(sentence.contains("have their limits from a file"), "{sentence}");
        assert!(sentence.contains("' without --rate, or with --config FILE"), "{sentence}");
    }
    let sentence = scene.complaint(&["explain", "--message", "apy"], &["ip=192.0.2.1"]);
    assert!(sentence.contains("there are policies for api, keyed"), "{sentence}");
    let sentence = scene.complaint(&["explain"], &["192.0.2.1"]);
    assert!(sentence.contains("is not ARG=VALUE, such as ip=192.0.2.7"), "{sentence}");
    fs::write(scene.path("gcra.toml"), "[policy.a]\nlimits = 3\n").unwrap();
    let output = scene.run(&["table", "get"], &["a"]);
    assert_eq!(output.status.code(), Some(1));
    let mistakes = String::from_utf8(output.stderr).unwrap();
    assert!(mistakes.starts_with("gcra-spoa: ") && mistakes.contains("gcra.toml:2"), "{mistakes}");
}

#[test]
fn a_broken_file_says_what_agents_do_and_what_can_be_done() {
    let scene = Scene::new(POLICIES);
    fs::write(scene.path("gcra.toml"), "[policy.a]\nlimits = 3\n").unwrap();
    let commands: [&[&str]; 6] = [
        &["table", "get", "192.0.2.1"],
        &["table", "reset", "192.0.2.1"],
        &["exempt", "--for", "1h", "192.0.2.1"],
        &["exempt", "--list"],
        &["name", "192.0.2.1"],
        &["explain", "ip=192.0.2.1"],
    ];
    for command in commands {
        let output = scene.run(command, &[]);
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        let mistakes = String::from_utf8(output.stderr).unwrap();
        let last = mistakes.lines().last().unwrap();
        assert!(last.contains("running agents keep the policies that they loaded before"));
        assert!(last.contains("name a copy of the file that they loaded with --config"), "{last}");
    }
}

/// One limit has one name, whether an override applies or not.
#[test]
fn the_limit_of_an_override_has_one_name() {
    let mut scene = Scene::new(
        "[policy.ip]\nlimits = [\"2/d\", \"1000/d burst 100\"]\nkey = [\"ip\"]\n\
         [policy.ip.overrides]\n\"192.0.2.1\" = \"3/d\"\n\
         \"2001:db8::/80\" = \"4/d\"\n",
    );
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(scene.exhaust("ip", &args), 3);
    let explanation = scene.json(&["explain"], &["ip=192.0.2.1"]).remove(0);
    assert_eq!(explanation["limits"][0]["limit"], "ip");
    let words = scene.reset(&["192.0.2.1"]).0;
    let expected = "192.0.2.1: policy 'ip', limit 'ip': a debt of ";
    assert!(words.starts_with(expected) && words.lines().count() == 1, "{words}");

    // A name says how the agent counts the client.
    let name = |address: &str| scene.said(&["name"], &[address]).0;
    assert_eq!(name("2001:db8::1"), "policy 'ip': 2001:db8::/80\n");
    assert_eq!(name("2001:db8:0:0:8000::1"), "policy 'ip': 2001:db8::/64\n");
    assert_eq!(name("192.0.2.1"), "policy 'ip': 192.0.2.1\n");
    assert_eq!(name("2001:db8::/80"), "policy 'ip': 2001:db8::/80\n");
    assert_eq!(name("2001:db8::/64"), "policy 'ip': 2001:db8::/64\n");
}

#[test]
fn a_request_that_costs_nothing_is_allowed() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\ncost = \"n\"\n");
    let args = [("ip", ip("192.0.2.1")), ("n", 1_i64.into())];
    let peek = [("ip", ip("192.0.2.1")), ("n", 0_i64.into())];
    assert!(!scene.is_blocked("check", &peek));
    let (words, status) = scene.said(&["explain"], &["ip=192.0.2.1", "n=int64:0"]);
    let said = "decides: a request now is allowed, and it costs nothing\n";
    assert!(words.contains(said) && status == 0, "{words}");
    assert_eq!(scene.exhaust("check", &args), 2);
    assert!(!scene.is_blocked("check", &peek));
    let words = scene.said(&["explain"], &["ip=192.0.2.1", "n=int64:0"]).0;
    let said = "a request now is allowed, because it costs nothing; one that costs 1 cell is \
                allowed in 12 h\n";
    assert!(words.contains(said), "{words}");
}

/// What is nearly an address, and the names of strings in logs, are refused as in the file. They
/// would be strings, of which the table knows none.
#[test]
fn a_key_that_is_nearly_an_address_is_refused() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\nipv4_prefix = 24\n\
         [policy.check.overrides]\n\"198.51.100.0/28\" = \"3/d\"\n",
    );
    let commands: [&[&str]; 5] = [
        &["table", "get"],
        &["table", "reset"],
        &["exempt", "--for", "1h"],
        &["name"],
        &["explain"],
    ];
    for (text, said) in [
        ("10.0.0.777", "'10.0.0.777' is not an address or network; write one, such as 192.0.2.1"),
        ("2001:db8::/65x", "is not an address or network; write "),
        ("192.0.2.1:80", "or str:192.0.2.1:80 for the text itself"),
        ("192.0.2.7/24", "write 192.0.2.0/24 for the network, or 192.0.2.7/32 for the one"),
        ("", "is empty; write "),
        ("sk_l…(24)#2dd53f", "which show only a part of a string; write the whole string"),
        (
            "10.0.0.0/8",
            "'10.0.0.0/8' is not a group of the policy, such as \
                        10.0.0.0/24; write one address, or str:10.0.0.0/8",
        ),
        ("192.0.2.0/28", "such as 192.0.2.0/24"),
        ("2001:db8::/56", "such as 2001:db8::/64"),
    ] {
        for command in commands {
            let arg = if command == ["explain"] { format!("ip={text}") } else { text.to_owned() };
            let sentence = scene.complaint(command, &[&arg]);
            assert!(sentence.contains(said), "{command:?} {text}: {sentence}");
        }
    }
    // The groups as the agent counts them.
    for (address, group, burst) in [
        ("192.0.2.1", "192.0.2.0/24", 2),
        ("2001:db8::1", "2001:db8::/64", 2),
        ("198.51.100.1", "198.51.100.0/28", 3),
        // Its first address is in the network of the override.
        ("198.51.100.200", "198.51.100.0/24", 2),
    ] {
        let args = [("ip", ip(address))];
        assert_eq!(scene.exhaust("check", &args), burst, "{group}");
        let (words, status) = scene.get(&[group]);
        assert!(words.starts_with(&format!("{group}: policy 'check', {burst} per")), "{words}");
        assert!(words.contains(": blocked; ") && status == 0, "{words}");
        let explanation = scene.said(&["explain"], &[&format!("ip={group}")]).0;
        assert!(explanation.contains("a request now is blocked"), "{explanation}");
        assert!(explanation.contains(&format!("counted as {group}\n")), "{explanation}");
        assert_eq!(scene.reset(&[group]).1, 0, "{group}");
        assert!(!scene.is_blocked("check", &args), "{group}");
    }
}

/// HAProxy may send a hash of what an operator writes. It would be "allowed" without this note.
#[test]
fn of_a_string_that_is_not_known_a_hash_may_be() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"2/d\"\nkey = [\"key\"]\n[policy.check.overrides]\n\
         partner = \"unlimited\"\n[policy.web]\nlimits = \"2/d\"\nkey = [\"ip\"]\n",
    );
    let note = |arg: &str| {
        let output = scene.run(&["explain"], &[arg]);
        String::from_utf8(output.stderr).unwrap()
    };
    let said = "nothing is known about key=cust-1; if HAProxy sends a hash of this value";
    assert!(note("key=cust-1").contains(said), "{}", note("key=cust-1"));
    // Not about an address, nor where nothing has to be known.
    for arg in ["ip=192.0.2.1", "key=partner"] {
        assert!(!note(arg).contains("hash"), "{}", note(arg));
    }
    let hash = "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08";
    assert_eq!(scene.exhaust("check", &[("key", hash.into())]), 2);
    let output = scene.run(&["explain"], &[&format!("key={hash}")]);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(!notes.contains("hash"), "{notes}");
}

/// An entry is one of a few, and most policies may never see such a client.
#[test]
fn an_exemption_without_a_policy_names_those_that_it_is_for() {
    let mut scene = Scene::new(
        "[policy.login]\nlimits = \"2/d\"\nkey = [\"ip\"]\n[policy.pro]\nlimits = \
         \"9/d\"\nkey = [\"key\"]\n[policy.free]\nlimits = \"3/d\"\nkey = [\"key\"]\n",
    );
    scene.exhaust("login", &[("ip", ip("192.0.2.4"))]);
    let notes = |args: &[&str]| {
        let output = scene.run(&["exempt", "--for", "1h"], args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = "without --policy, 192.0.2.4 is exempt from each policy whose key it can be: \
                login, pro, free, which takes 3 entries; the table knows this key under 'login' \
                only, for which --policy login is enough";
    let found = notes(&["192.0.2.4"]);
    assert!(found.contains(said), "{found}");
    let found = notes(&["192.0.2.5"]);
    assert!(found.contains("; for only one of these, add --policy NAME"), "{found}");
    assert!(!notes(&["--policy", "login", "192.0.2.4"]).contains("entries"));
}

#[test]
fn a_key_without_names_is_not_that_of_a_fallback() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"key\", \"else ip\"]\n");
    let as_key = [("key", "192.0.2.1".into()), ("ip", ip("192.0.2.9"))];
    let as_ip = [("key", Value::Null), ("ip", ip("192.0.2.1"))];
    let notes = |scene: &Scene, command: &[&str]| {
        let output = scene.run(command, &["192.0.2.1"]);
        let words = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(words.starts_with("192.0.2.1 (as key=192.0.2.1): policy 'check': "), "{words}");
        (String::from_utf8(output.stderr).unwrap(), output.status.code())
    };
    let may_be = "note: this is about 192.0.2.1 (as key=192.0.2.1) in policy 'check'; if HAProxy \
                  sends 192.0.2.1 in the arg 'ip', the KEY to write is ip=192.0.2.1\n";
    let (said, status) = notes(&scene, &["table", "get"]);
    assert!(said.ends_with(may_be) && status == Some(1), "{said}");
    assert_eq!(scene.exhaust("check", &as_ip), 2);
    for command in [&["table", "get"], &["table", "reset"]] {
        let (said, status) = notes(&scene, command);
        let has = "the table has a bucket for ip=192.0.2.1 in policy 'check', and none for ";
        assert!(said.contains(has) && status == Some(1), "{said}");
    }
    assert!(scene.is_blocked("check", &as_ip));
    assert_eq!(scene.exhaust("check", &as_key), 2);
    let (said, _) = notes(&scene, &["table", "get"]);
    assert!(said.contains("has a bucket for key=str:192.0.2.1 in policy"), "{said}");
    assert!(said.contains("has a bucket for ip=192.0.2.1 in policy"), "{said}");

    // `explain` writes the key as the other commands take it.
    let key = |args: &[&str]| {
        let explanation = scene.json(&["explain"], args).remove(0);
        explanation["written_key"].as_str().unwrap().to_owned()
    };
    let key_of_ip = key(&["ip=192.0.2.1"]);
    assert_eq!(key_of_ip, "ip=192.0.2.1");
    assert_eq!(key(&["key=str:192.0.2.1"]), "key=str:192.0.2.1");
    assert_eq!(scene.reset(&[&key_of_ip]).1, 0);
    assert!(!scene.is_blocked("check", &as_ip));
    assert!(scene.is_blocked("check", &as_key), "it is another client");
    assert_eq!(scene.exhaust("check", &as_ip), 1);
    assert_eq!(scene.reset(&["key=str:192.0.2.1"]).1, 0);
    assert_eq!(scene.exhaust("check", &as_key), 2);

    let (words, _) = scene.said(&["exempt"], &["--for", "1h", "ip=192.0.2.1"]);
    assert_eq!(words.lines().count(), 1, "{words}");
    wait_until("the agent follows", || !scene.is_blocked("check", &as_ip));
    assert!(scene.is_blocked("check", &as_key));
    let (said, status) = notes(&scene, &["exempt", "--end"]);
    assert!(said.contains("the table has an exemption for ip=192.0.2.1 in policy"), "{said}");
    assert_eq!(status, Some(1));
    // The name that a list has is a KEY.
    assert_eq!(scene.said(&["exempt"], &["--end", "else:192.0.2.1"]).1, 0);
    assert!(scene.said(&["exempt"], &["--list"]).0.contains("no client is exempt"));
}

#[test]
fn explain_writes_the_key_for_the_other_commands() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"2/d\"\nkey = [\"user\", \"path\"]\nlowercase = true\n",
    );
    for (user, path) in [
        ("a b", "/x,y"),
        ("ü=1", r"\d"),
        ("100%", "-x"),
        ("else:a", "192.0.2.1"),
        ("'quoted'", "…"),
        ("user=a", "#home"),
    ] {
        let args = [("user", user.into()), ("path", path.into())];
        assert_eq!(scene.exhaust("check", &args), 2);
        let words = [format!("user=str:{user}"), format!("path=str:{path}")];
        let explanation = scene.json(&["explain"], &[&words[0], &words[1]]).remove(0);
        assert_eq!(explanation["blocked"], true, "{explanation}");
        let key = explanation["written_key"].as_str().unwrap();
        assert_eq!(scene.reset(&[key]).1, 0, "{key}");
        assert!(!scene.is_blocked("check", &args), "{key}");
    }
    let words = scene.said(&["explain"], &["user=a b", "path=/it's"]).0;
    let line = "\n  KEY for table get, table reset and exempt: 'a b,/it'\\''s'\n";
    assert!(words.contains(line), "{words}");
}

#[test]
fn what_no_message_has_is_said() {
    let scene = Scene::new(
        "[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\n\
         [policy.check.overrides]\n\"192.0.2.0/24\" = \"3/d\"\n",
    );
    let sentence = scene.complaint(&["explain"], &["ip=192.0.2.1", "ip=192.0.2.2"]);
    assert!(sentence.contains("the arg 'ip' is given twice"), "{sentence}");
    let note = |args: &[&str]| String::from_utf8(scene.run(&["explain"], args).stderr).unwrap();
    let said = note(&["ip=192.0.2.1", "host=a"]);
    assert!(said.contains("no policy uses the arg 'host'; the policies use ip"), "{said}");
    let said = note(&["ip=a"]);
    assert!(said.contains("ip=a is a string, and policy 'check' has groups or overrides"));
    assert_eq!(note(&["ip=192.0.2.1"]), "");
}

/// HAProxy sends some addresses as strings, such as those in headers, and ports as integers.
#[test]
fn a_value_that_is_sent_in_another_type_is_named() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\n");
    let args = [("ip", "192.0.2.1".into())];
    assert_eq!(scene.exhaust("check", &args), 2);
    let notes = |scene: &Scene, command: &[&str], arg: &str| {
        String::from_utf8(scene.run(command, &[arg]).stderr).unwrap()
    };
    let explain = &["explain"][..];
    let (get, reset) = (&["table", "get"][..], &["table", "reset"][..]);
    for (command, arg, right) in [
        (explain, "ip=192.0.2.1", "write ip=str:192.0.2.1\n"),
        (get, "192.0.2.1", "the KEY to write is str:192.0.2.1\n"),
        (reset, "192.0.2.1", "the KEY to write is str:192.0.2.1\n"),
        (reset, "ip=192.0.2.1", "the KEY to write is str:192.0.2.1\n"),
    ] {
        let note = notes(&scene, command, arg);
        let when = "; if HAProxy sends 192.0.2.1 as a string, ";
        assert!(note.contains(when) && note.ends_with(right), "{command:?}: {note}");
    }
    assert_eq!(scene.reset(&["str:192.0.2.1"]).1, 0);
    assert!(!scene.is_blocked("check", &args));
    let args = [("ip", 80_i64.into())];
    assert_eq!(scene.exhaust("check", &args), 2);
    for (command, arg, right) in [
        (explain, "ip=80", "; if HAProxy sends 80 as an integer, write ip=int64:80\n"),
        (get, "80", "; if HAProxy sends 80 as an integer, the KEY to write is int64:80\n"),
    ] {
        let note = notes(&scene, command, arg);
        assert!(note.contains(right), "{command:?}: {note}");
    }
    assert_eq!(scene.reset(&["ip=int64:80"]).1, 0);
    assert!(!scene.is_blocked("check", &args));
    // HAProxy has cut it to its /64, as in some files of haproxy/.
    let config = "[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\nipv6_prefix = 128\n";
    let mut scene = Scene::new(config);
    let args = [("ip", ip("2001:db8:1:2::"))];
    assert_eq!(scene.exhaust("check", &args), 2);
    let note = notes(&scene, explain, "ip=2001:db8:1:2::7");
    assert!(note.contains("the table has a bucket for ip=2001:db8:1:2:: in policy"), "{note}");
    let note = notes(&scene, get, "2001:db8:1:2::7");
    assert!(note.contains("the table has a bucket for 2001:db8:1:2:: in policy"), "{note}");
}

/// HAProxy sends the bytes of a header as a string, whatever they are.
#[test]
fn a_string_that_is_not_text_is_found() {
    let mut scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"key\"]\n");
    let args = [("key", Value::String(b"caf\xe9"))];
    let raw = OsStr::from_bytes(b"caf\xe9");
    assert_eq!(scene.exhaust("check", &args), 2);
    let run = |command: &[&str], arg: &OsStr| {
        let mut process = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        process.args(command).arg("--config").arg(scene.path("gcra.toml"));
        process.arg("--table").arg(scene.path("table")).arg(arg).output().unwrap()
    };
    for key in [OsStr::new("strhex:636166e9"), raw] {
        let (words, status) = said(&run(&["table", "get"], key));
        assert!(words.starts_with("strhex:636166e9: policy 'check', 2 per day, up"), "{words}");
        assert!(words.contains(": blocked; ") && status == 0, "{words}");
    }
    assert_eq!(said(&run(&["table", "get"], OsStr::new("hex:636166e9"))).1, 1, "that is binary");
    for arg in [&b"key=strhex:636166e9"[..], b"key=caf\xe9"] {
        let words = said(&run(&["explain"], OsStr::from_bytes(arg))).0;
        assert!(words.contains("a request now is blocked; "), "{words}");
        assert!(words.contains("\n  key: key strhex:636166e9\n"), "{words}");
        let key = "\n  KEY for table get, table reset and exempt: strhex:636166e9\n";
        assert!(words.contains(key), "{words}");
        let name = said(&run(&["name"], raw)).0;
        let name = name.trim_end().strip_prefix("policy 'check': c…(4)#").unwrap();
        assert!(words.contains(&format!("\n  client in logs: c…(4)#{name}\n")), "{words}");
    }
    let (words, status) = said(&run(&["exempt", "--for", "1h"], raw));
    assert_eq!(status, 0, "{words}");
    assert!(words.ends_with(" strhex:636166e9\n"), "{words}");
    assert_eq!(said(&run(&["exempt", "--end"], raw)).1, 0);
    assert_eq!(said(&run(&["table", "reset"], raw)).1, 0);
    let output = run(&["explain"], OsStr::from_bytes(b"\xe9=a"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(!scene.is_blocked("check", &args));
}

/// A KEY may have been copied from the log of a web server, to which a client has written.
#[test]
fn no_command_prints_what_a_terminal_obeys() {
    let scene = Scene::new("[policy.check]\nlimits = \"2/d\"\nkey = [\"key\"]\n");
    let hidden = "\u{202e}\u{2066}\u{200b}\u{2028}\u{e0001}\u{3164}\u{115f}\u{ffa0}\u{2800}";
    let hostile = &*format!("\u{1b}]0;a\u{7}\u{9b}31m{hidden}\n\rb");
    let with = |before: &str| format!("{before}{hostile}");
    let printed = |command: &[&str], args: &[&str]| {
        let output = scene.run(command, args);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        // The last of them is the end of the last line.
        let lines = text.lines().count();
        let hidden = |c: &char| c.is_control() || hidden.contains(*c);
        let hidden: Vec<_> = text.chars().filter(hidden).collect();
        assert_eq!(hidden, vec!['\n'; lines], "{text:?}");
        assert!(lines > 0 && !text.contains("\nb"), "{text:?}");
        text
    };
    for command in [
        &["table", "get"][..],
        &["table", "reset"],
        &["exempt", "--for", "1h"],
        &["exempt", "--end"],
        &["name"],
        &["name", "--policy", hostile],
    ] {
        printed(command, &[hostile]);
        printed(command, &[&with("a,")]);
        printed(command, &[&with("int32:")]);
        let json = printed(command, &["--json", hostile]);
        if let Ok(json) = serde_json::from_str::<Json>(&json) {
            assert_eq!(json["key"], hostile, "nothing is lost");
        }
    }
    printed(&["explain"], &[hostile]);
    printed(&["explain"], &[&with("key=")]);
    printed(&["explain", "--json"], &[&with("key=")]);
    printed(&["explain"], &["key=a", &with("b=")]);
    printed(&["explain"], &["key=a", &format!("{hostile}=b")]);
    printed(&["explain", "--message", hostile], &["key=a"]);
    printed(&["exempt", "--for", hostile], &["a"]);
    printed(&["exempt", "--list"], &[]);
    printed(&[hostile], &[]);
    let when = "\"a\\u202Eb\\u009B\"";
    let policy = format!("[policy.check]\nwhen = {{ plan = {when} }}\nlimits = \"2/d\"\n");
    fs::write(scene.path("gcra.toml"), policy).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    let output = check.arg("check").arg(scene.path("gcra.toml")).output().unwrap();
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(words.contains(r"a\u{202e}b\u{9b}") && !words.contains('\u{202e}'), "{words}");
}

/// An exemption stays with the key that its client had.
#[test]
fn an_exemption_of_a_former_key_is_named_and_ended() {
    const KEY: &str = "key = [\"ip\"]\n";
    let narrower = format!("{KEY}[policy.check.overrides]\n\"2001:db8::1\" = \"2/d\"\n");
    let (none, same) = ("; no client has this key by ", "\n");
    let first = "; only 2001:db8:: has this key by ";
    let shorter = "key = [\"ip\"]\nipv4_prefix = 24\n";
    let (longer, other) = ("key = [\"ip\"]\nipv6_prefix = 128\n", "key = [\"ip\", \"path\"]\n");
    for (settings, key, listed, misfit) in [
        (shorter, "10.1.2.3", "10.1.2.3", none),
        // This is now the key of one address, by which HAProxy may cut others.
        (longer, "2001:db8::1", "2001:db8::/64", first),
        (longer, "2001:db8::/64", "2001:db8::/64", first),
        (other, "2001:db8::1", "2001:db8::/64", none),
        (other, "10.1.2.3", "10.1.2.3", none),
        (&narrower, "2001:db8::1", "2001:db8::/64", same),
    ] {
        let config = |settings: &str| format!("[policy.check]\nlimits = \"2/d\"\n{settings}");
        let scene = Scene::new(&config(KEY));
        assert_eq!(scene.said(&["exempt"], &["--for", "1h", key]).1, 0);
        assert_eq!(scene.said(&["exempt"], &["--for", "1h", "192.0.2.1"]).1, 0);
        let list = || scene.said(&["exempt"], &["--list"]).0;
        assert!(!list().contains("no client has this key"), "{}", list());
        wait_until("the agent follows", || {
            let lines = scene.agent.process.lines();
            lines.iter().filter(|line| line.contains(" is exempt from the policy ")).count() == 2
        });
        fs::write(scene.path("gcra.toml"), config(settings)).unwrap();
        assert_eq!(scene.said(&["reload"], &[]).1, 0);
        let warning =
            "policy 'check' makes other keys than before, and 2 exemptions of it are for";
        wait_until("the log says it", || {
            scene.agent.process.lines().iter().any(|line| line.contains(warning))
        });
        let begin = format!("{listed}: policy 'check', for another 60 min{misfit}");
        assert!(list().contains(&begin), "{begin}: {}", list());
        let (words, status) = scene.said(&["exempt"], &["--end", key]);
        let ended = format!(
            "{key}: policy 'check': the exemption of {listed}, from before the key was changed, \
             has ended, in all agents within about two seconds\n"
        );
        assert_eq!(words, ended);
        assert_eq!(status, 0, "{words}");
        assert!(!list().contains(listed), "{}", list());
        assert!(list().contains("192.0.2.1"), "the other one stays");
        assert_ne!(scene.run(&["exempt"], &["--end", key]).status.code(), Some(0));
    }
}

/// Whether an exemption still fits is not known from a name that is not the whole key.
#[test]
fn an_exemption_with_a_shortened_name_may_fit() {
    let config =
        |more: &str| format!("[policy.check]\nlimits = \"2/d\"\nkey = [\"user\"]\n{more}");
    let scene = Scene::new(&config(""));
    assert_eq!(scene.said(&["exempt"], &["--for", "1h", "Alice"]).1, 0);
    fs::write(scene.path("gcra.toml"), config("lowercase = true\n")).unwrap();
    assert_eq!(scene.said(&["reload"], &[]).1, 0);
    let output = scene.run(&["exempt"], &["--list"]);
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("note: names with a '…' are not whole keys, so it is not"), "{note}");
    let json = scene.json(&["exempt", "--list"], &[]).remove(0);
    assert_eq!(json["fits"], Json::Null);
    let (words, status) = scene.said(&["exempt"], &["--end", "Alice"]);
    assert!(words.contains("the exemption of A…(5)#") && status == 0, "{words}");
}

/// A start that failed can leave a table that no agent uses, with a register.
#[test]
fn a_table_that_no_agent_uses_is_not_taken_for_one_of_agents() {
    let directory = directory();
    let (table, file) = (directory.path().join("table"), directory.path().join("gcra.toml"));
    fs::write(&file, "[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\n").unwrap();
    Agent::start(&table, &["--rate", "5/m"]).stop();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        let output = command.args(args).arg("--table").arg(&table).output().unwrap();
        let (words, status) = said(&output);
        (words, String::from_utf8(output.stderr).unwrap(), status)
    };
    let (_, sentence, status) = run(&["explain", "--config", file.to_str().unwrap(), "ip=::1"]);
    assert_eq!(status, 2);
    assert!(sentence.contains(" was last used by agents that had their limit from --rate,"));
    assert!(sentence.contains(", or name the table of your agents with --table"), "{sentence}");
    let none = "note: no agent uses the table ";
    let (words, note, status) = run(&["exempt", "--for", "1h", "192.0.2.7"]);
    let follow = "exempt for 1h, but no agent uses the table now; agents that start on it will";
    assert!(words.contains(follow) && note.contains(none) && status == 1, "{words}{note}");
    for command in [&["table", "resize", "--slots", "8"][..], &["table", "reset", "192.0.2.7"]] {
        let (_, note, _) = run(command);
        assert!(note.contains(none), "{command:?}: {note}");
    }
}

/// The configurations in haproxy/ cut addresses to their /64, and an override for one address
/// never applies then.
#[test]
fn a_client_whose_address_haproxy_cuts_is_named_by_its_network() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\n\
         [policy.check.overrides]\n\"2001:db8::7\" = \"unlimited\"\n",
    );
    let notes = |command: &[&str], arg: &str| {
        String::from_utf8(scene.run(command, &[arg]).stderr).unwrap()
    };
    let unknown = "this is about ";
    for (command, network) in [
        (&["explain"][..], "write ip=2001:db8::\n"),
        (&["table", "get"], "the KEY to write is 2001:db8::\n"),
        (&["exempt", "--for", "1h"], "the KEY to write is 2001:db8::\n"),
    ] {
        let arg = if command == ["explain"] { "ip=2001:db8::7" } else { "2001:db8::7" };
        let note = notes(command, arg);
        assert!(note.contains(unknown) && note.ends_with(network), "{command:?}: {note}");
        assert_eq!(notes(command, &arg.replace("::7", "::8")), "", "{command:?}");
    }
    for address in ["2001:db8::7", "2001:db8::8"] {
        assert_eq!(scene.run(&["exempt"], &["--end", address]).status.code(), Some(0));
    }
    let cut = [("ip", ip("2001:db8::"))];
    wait_until("the exemption has ended", || scene.is_blocked("check", &cut));
    for (command, arg, has) in [
        (&["explain"][..], "ip=2001:db8::7", "the table has a bucket for ip=2001:db8:: in"),
        (&["table", "get"], "2001:db8::7", "the table has a bucket for 2001:db8:: in"),
        (&["exempt", "--for", "1h"], "2001:db8::7", "the table has a bucket for 2001:db8:: in"),
    ] {
        let output = scene.run(command, &[arg]);
        let note = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(note.contains(has) && note.contains("ipmask(32,64)"), "{command:?}: {note}");
        if command == ["explain"] {
            let words = said(&output).0;
            assert!(words.contains("is allowed, by \"unlimited\""), "{words}");
        }
    }
}

#[test]
fn an_exemption_that_helps_no_client_is_refused() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = \"5/d\"\nkey = [\"ip\"]\nipv4_prefix = 24\n\
         [policy.user]\nlimits = \"5/d\"\nkey = [\"user\", \"ip\"]\n",
    );
    let exempt = ["exempt", "--for", "1h"];
    let sentence = scene.complaint(&exempt, &["office"]);
    assert!(
        sentence.contains("'office' is a string, and policy 'check' has groups"),
        "{sentence}"
    );
    assert_eq!(scene.said(&exempt, &["str:office"]).1, 0);
    // That is what explain writes, and one that has a bucket is a client in any case.
    let explanation = scene.json(&["explain"], &["--message", "check", "ip=bob"]).remove(0);
    assert_eq!(explanation["written_key"], "str:bob");
    assert!(!scene.is_blocked("check", &[("ip", "bob".into())]));
    assert_eq!(scene.said(&exempt, &["bob"]).1, 0);
    assert_eq!(scene.said(&exempt, &["192.0.2.0/24"]).1, 0, "a group is a client");
    let sentence = scene.complaint(&exempt, &["192.0.0.0/16"]);
    assert!(sentence.contains("; an exemption is for one client: for the network"), "{sentence}");
    let other = scene.path("other.toml");
    fs::write(&other, "[policy.other]\nlimits = \"5/d\"\nkey = [\"ip\"]\n").unwrap();
    let args = ["--config", other.to_str().unwrap(), "192.0.2.7"];
    let output = scene.run_without_file(&exempt, &args);
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert!(sentence.contains(" has used the policy 'other' of "), "{sentence}");
    assert_eq!(output.status.code(), Some(1));
}

/// Otherwise an operator sees a wait of hours under a limit of 5 per hour, and not where it comes
/// from.
#[test]
fn the_penalty_is_said_beside_the_wait() {
    let mut scene = Scene::new(
        "[policy.check]\nlimits = [\"5/h\", { name = \"daily\", rate = \"50/d\", burst = 20 }]\n\
         key = [\"ip\"]\npenalty = { cells = 1, ceiling = \"10h\" }\n",
    );
    let args = [("ip", ip("192.0.2.7"))];
    for _ in 0..6 {
        scene.is_blocked("check", &args);
    }
    let (said, _) = scene.said(&["explain"], &["ip=192.0.2.7"]);
    assert!(said.contains(". If there is a request before that, the wait is "), "{said}");
    for _ in 0..100 {
        scene.is_blocked("check", &args);
    }
    let (said, _) = scene.said(&["explain"], &["ip=192.0.2.7"]);
    let verdict = said.lines().next().unwrap();
    assert!(verdict.contains(" of that is penalty, which is at its ceiling"), "{said}");
    assert!(said.contains(" of it is penalty)"), "{said}");
}

#[test]
fn an_exempt_client_is_allowed_without_a_value_for_the_key_of_a_limit() {
    let mut scene = Scene::new(
        "[policy.check]\nkey = [\"ip\"]\n\
         limits = [{ name = \"a\", rate = \"1/d\" }, \
         { name = \"t\", rate = \"9/d\", key = [\"t\"] }]\n",
    );
    let args = |client| [("ip", ip(client)), ("t", Value::Null)];
    assert_eq!(scene.run(&["exempt"], &["--for", "1h", "192.0.2.7"]).status.code(), Some(0));
    let decided =
        |scene: &mut Scene, client| !scene.spop.ask(&[("check", &args(client))]).is_empty();
    wait_until("the exemption is in force", || decided(&mut scene, "192.0.2.7"));
    for _ in 0..3 {
        assert!(!scene.is_blocked("check", &args("192.0.2.7")));
    }
    assert!(!decided(&mut scene, "192.0.2.8"), "it is not exempt");
    let (words, status) = scene.said(&["explain"], &["ip=192.0.2.7"]);
    assert!(words.contains("because the client is exempt for another "), "{words}");
    assert_eq!(status, 0);
    let (words, status) = scene.said(&["explain"], &["ip=192.0.2.8"]);
    assert!(words.contains("does not decide: "), "{words}");
    assert_eq!(status, 1);
}

#[test]
fn a_bucket_that_others_share_is_not_taken_for_that_of_another_type() {
    let mut scene = Scene::new(
        "[policy.check]\nkey = [\"ip\"]\nmode = \"observe\"\n\
         limits = [{ name = \"a\", rate = \"4/d\" }, \
         { name = \"n\", rate = \"9/d\", key = [\"t\"] }]\n\
         [policy.check.overrides]\n\"192.0.2.1\" = \"unlimited\"\n",
    );
    let note = |scene: &Scene| {
        let output = scene.run(&["explain"], &["ip=192.0.2.1", "t=str:A"]);
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(!scene.is_blocked("check", &[("ip", ip("192.0.2.2")), ("t", "A".into())]));
    assert_eq!(note(&scene), "");
    // But one that it has is found.
    assert!(!scene.is_blocked("check", &[("ip", "192.0.2.1".into()), ("t", "B".into())]));
    let said = note(&scene);
    assert!(said.contains("the table has a bucket for ip=str:192.0.2.1 in policy"), "{said}");
}
