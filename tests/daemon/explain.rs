//! The commands about single clients, beside agents with a file: `table get` and `reset`,
//! `explain`, `exempt`, `block` and `name`.

mod former_debts;
mod keys;
mod orders;

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value as Json;
use spop_codec::{Scope, Value};
use tempfile::TempDir;

use crate::support::spop::Spop;
use crate::support::{
    Agent, PATIENCE, admin, agent_binary, directory, output_beside_agents, wait_until,
};

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
        let mut process = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        process.args(command).arg("--table").arg(self.path("table")).args(args);
        output_beside_agents(&mut process)
    }

    /// The output of a command, and its exit status.
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

/// Reloads the file with this text. The command waits some seconds for the agent, which may not be
/// enough for a long file on a busy machine.
fn reload(scene: &Scene, config: &str) {
    fs::write(scene.path("gcra.toml"), config).unwrap();
    wait_until("the file is reloaded", || scene.said(&["reload"], &[]).1 == 0);
}

/// The output of a command on both outputs, and its exit status.
fn all_said(output: &Output) -> (String, i32) {
    let (words, status) = said(output);
    (String::from_utf8(output.stderr.clone()).unwrap() + &words, status)
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
        let output = output_beside_agents(run.args(args).arg("--table").arg(&table));
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
    // With a store that no policy uses.
    let alone = directory.path().join("alone");
    let agent_alone = Agent::start(&alone, &["--rate", "1/h"]);
    for args in [&["explain", "ip=192.0.2.7"][..], &["table", "reset", "192.0.2.7"]] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        let output = run.args(args).args(["--store", store, "--table"]).arg(&alone).output();
        let output = output.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("no policy is shared, so --store has no effect"), "{said}");
        assert_eq!(output.status.code(), Some(2));
    }
    agent_alone.stop();
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
        let output = output_beside_agents(run.args(command).arg("--table").arg(&table));
        let (words, status) = said(&output);
        assert!(words.contains("\"deny\"") && status == 0, "{command:?}: {words}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
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
fn a_name_is_the_one_in_the_status() {
    let mut scene = Scene::with(
        "[policy.check]\nlimits = [\"9/h\", { name = \"daily\", rate = \"2/d\" }]\n\
         key = [\"user\"]\nlowercase = true\n\
         [policy.two]\nlimits = \"2/d\"\nkey = [\"a\", \"b\"]\n",
        &admin::ADMIN,
    );
    let admin = admin::address(&scene.agent);
    assert_eq!(scene.exhaust("check", &[("user", "sk_live_0123456789".into())]), 2);
    let name = scene.said(&["name"], &["sk_live_0123456789"]).0;
    let name = name.trim_end().strip_prefix("policy 'check': ").unwrap().to_owned();
    assert!(name.starts_with("sk_l…(18)#"), "{name}");
    let status = || admin::status(&admin)["policies"][0]["top_blocked"].to_string();
    assert!(status().contains(&name), "{}, {name}", status());
    assert!(status().contains(r#""limit":"check.daily""#), "{}", status());
    let explanation = scene.json(&["explain"], &["user=sk_live_0123456789"]).remove(0);
    assert_eq!(explanation["client"], name);
    let both = scene.said(&["name"], &["sk_live_0123456789", "192.0.2.7"]).0;
    assert!(both.starts_with("sk_live_0123456789: "), "{both}");
    assert!(both.contains("\n192.0.2.7: "), "{both}");
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
        &["block", "--for", "1h"],
        &["block", "--end"],
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
    printed(&["block", "--for", "1h", "--note", hostile], &["a"]);
    printed(&["block", "--list"], &[]);
    printed(&[hostile], &[]);
    let when = "\"a\\u202Eb\\u009B\"";
    let policy = format!("[policy.check]\nwhen = {{ plan = {when} }}\nlimits = \"2/d\"\n");
    fs::write(scene.path("gcra.toml"), policy).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    let output = check.arg("check").arg(scene.path("gcra.toml")).output().unwrap();
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(words.contains(r"a\u{202e}b\u{9b}") && !words.contains('\u{202e}'), "{words}");
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
    let follow = ", but no agent uses the table now; agents that start on it will";
    assert!(words.contains(follow) && note.contains(none) && status == 1, "{words}{note}");
    for command in [&["table", "resize", "--slots", "8"][..], &["table", "reset", "192.0.2.7"]] {
        let (_, note, _) = run(command);
        assert!(note.contains(none), "{command:?}: {note}");
    }
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

impl Scene {
    /// Explains a line of HAProxy's log.
    fn explain_line(&self, line: &str, flags: &[&str]) -> Output {
        let mut command = Command::new(agent_binary());
        let table = self.path("table");
        command.args(["explain", "-", "--table", table.to_str().unwrap()]).args(flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        // A command that refuses its flags does not read it.
        let _ = process.stdin.take().unwrap().write_all(line.as_bytes());
        process.wait_with_output().unwrap()
    }
}

#[test]
fn a_line_of_the_log_is_explained() {
    let mut scene = Scene::new(
        "[policy.read]\nlimits = '2/d'\nkey = ['ip']\n\
         [policy.by-key]\nlimits = '1/d'\nkey = ['key']\n",
    );
    let client = [("ip", ip("192.0.2.7"))];
    for _ in 0..3 {
        scene.spop.ask(&[("read", &client)]);
    }
    let line = |said: &str| {
        format!(
            "192.0.2.7:4711 [21/Nov/2026:14:00:00.500] web app/srv1 0/0/0/1/1 429 99 ---- \
             1/1/0/0/0 0/0 \"GET / HTTP/1.1\" {said}\n"
        )
    };
    let blocked = "blocked=1 policy=read limit_name=read.2 client=192.0.2.7 reason=limit \
                   retry_after=602 err=-";
    let output = scene.explain_line(&line(blocked), &[]);
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{words}");
    for part in [
        "the line: 2026-11-21 14:00:00 UTC, blocked; policy read; limit read.2; reason limit; \
         client 192.0.2.7; told to wait 10 min 2 s\n",
        "message 'read': policy 'read' decides: a request now is blocked",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(!words.contains("by-key"), "{words}");
    let undecided = "blocked=- policy=- reason=- retry_after=- err=1";
    let output = scene.explain_line(&line(undecided), &["--message", "read", "--json"]);
    let words = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Json> = words.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(lines[0]["line"]["outcome"], "undecided");
    assert_eq!(lines[0]["line"]["err"], 1);
    assert_eq!(lines[1]["policy"], "read");

    let of_key = line("blocked=1 policy=by-key reason=limit retry_after=9 err=-");
    for (text, status, sentence) in [
        ("", 2, "standard input has no line"),
        ("a\nb\n", 2, "standard input has several lines"),
        ("a\n", 2, "none of the formats that are known here"),
        (&of_key, 2, "gives the arg 'key', which policy 'by-key' needs; write it: gcra-spoa"),
    ] {
        let output = scene.explain_line(text, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{text}: {said}");
        assert!(said.contains(sentence), "{text}: {said}");
    }
    let output = scene.explain_line("", &["ip=192.0.2.7"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("'-' is a line with all args"));
}
