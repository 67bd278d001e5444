//! Agents that write down each decision, and the command that holds their files against a limit.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use spop_agent::testing;
use spop_codec::Value;

use crate::support::spop::Spop;
use crate::support::{Agent, Process, directory, wait_until};

fn audit(files: &[&Path], args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
        .arg("audit")
        .args(files)
        .args(args)
        .output()
        .unwrap()
}

fn words(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn ip(text: &str) -> Value<'static> {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

/// Two agents share a limit, one is killed in the middle and started again, and the files say that
/// not one request too many was allowed.
#[test]
fn the_files_of_all_agents_together_keep_the_limit() {
    let directory = directory();
    let table = directory.path().join("table");
    let file = |name: &str| directory.path().join(name);
    let start = |audit: &Path| {
        Agent::start(
            &table,
            &["--rate", "200/s", "--burst", "7", "--audit", audit.to_str().unwrap()],
        )
    };
    let (one, two) = (file("one.audit"), file("two.audit"));
    let (mut first, second) = (start(&one), start(&two));
    let hammer = |address: &str, rounds: usize| {
        let mut spop = Spop::connect(address);
        (0..rounds).map(|_| spop.allowed(&[("ip", ip("192.0.2.1"))], 50)).sum::<usize>()
    };
    let answered = thread::scope(|scope| {
        let other = scope.spawn(|| hammer(&second.address, 40));
        let mut allowed = hammer(&first.address, 10);
        first.process.kill();
        first = start(&one);
        allowed += hammer(&first.address, 10);
        allowed + other.join().unwrap()
    });
    let limit = ["--rate", "200/s", "--burst", "7"];
    let output = audit(&[&one, &two], &limit);
    let said = words(&output);
    assert!(
        said.contains("none too many: no client got more than 7 at once and 200 per second\n"),
        "{said}"
    );
    assert!(said.starts_with(&format!("{answered} cells of 1 client in ")), "{answered}: {said}");
    assert!(said.contains(&format!("({} requests blocked, ", 60 * 50 - answered)), "{said}");
    assert_eq!(output.status.code(), Some(0));
    // The same decisions are too many for a smaller limit.
    let output = audit(&[&one, &two], &["--rate", "200/s", "--burst", "6", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["worst"]["cells"], &json["clients_over"]), (&1.into(), &1.into()), "{json}");
    assert_eq!(json["worst"]["key"], "default 192.0.2.1");
    assert_eq!(output.status.code(), Some(1));
    let output = audit(&[&table], &limit);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("is not an audit file; name files that agents with --audit"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

/// Each policy, trial and exempt client has lines of its own, in a form without secrets.
#[test]
fn a_line_has_the_policy_the_key_and_the_outcome() {
    let directory = directory();
    let config = directory.path().join("gcra.toml");
    fs::write(
        &config,
        "[policy.api]\nlimits = \"2/h\"\nobserve = \"1/h\"\nkey = [\"user\", \"else ip\"]\n\
         lowercase = true\ncost = \"n\"\n",
    )
    .unwrap();
    let (table, file) = (directory.path().join("table"), directory.path().join("audit"));
    let flags = ["--config", config.to_str().unwrap(), "--audit", file.to_str().unwrap()];
    let agent = Agent::start(&table, &flags);
    let mut spop = Spop::connect(&agent.address);
    for args in [
        [("user", Value::from("Alice")), ("n", 1_i64.into())],
        [("user", "aLICE".into()), ("n", 2_i64.into())],
        [("ip", ip("2001:db8::7")), ("n", 1_i64.into())],
    ] {
        spop.ask(&[("api", &args)]);
    }
    let text = fs::read_to_string(&file).unwrap();
    let (clock, lines) = text.split_once('\n').unwrap();
    assert!(clock.starts_with("# gcra-spoa audit 1 boot="), "{clock}");
    let lines: Vec<_> = lines.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    // The first 16 bytes of the SHA-256 of "alice".
    let alice = "str#2bd806c97f0e00af1a1fc3328fa763a9";
    let expected = [
        format!("api {alice} 1 allowed"),
        format!("api.observe {alice} 1 allowed"),
        format!("api {alice} 2 blocked"),
        format!("api.observe {alice} 2 would-block"),
        "api else1:2001:db8::/64 1 allowed".to_owned(),
        "api.observe else1:2001:db8::/64 1 allowed".to_owned(),
    ];
    assert_eq!(lines, expected);
    // A log rotation.
    let old = directory.path().join("audit.1");
    let lines_of = |path: &PathBuf| fs::read_to_string(path).unwrap().lines().count();
    let before = lines_of(&file);
    fs::rename(&file, &old).unwrap();
    wait_until("the file is there again", || file.exists());
    wait_until("it is written to", || {
        spop.ask(&[("api", &[("ip", ip("192.0.2.1")), ("n", 1_i64.into())])]);
        lines_of(&file) > 1
    });
    // Only its end is new.
    assert_eq!(lines_of(&old), before + 1);
    let output = audit(&[&old, &file], &["--rate", "2/h", "--policy", "api"]);
    assert!(words(&output).contains("none too many"), "{output:?}");
}

/// A policy whose requests the store decides about, and a machine while the store is away, has
/// times by two clocks. Their difference is no excess.
#[test]
fn times_by_two_clocks_are_told() {
    let directory = directory();
    let begins = "# gcra-spoa audit 1 boot=b booted=1000000000000000000\n";
    let by_machine = "7000000000 both a 1 allowed\n7000000000 local a 1 allowed\n";
    // 7 s after the start by the clock of the store, too.
    let by_store =
        "@1000000007000000000 both a 1 allowed\n@1000000007000000000 asked a 1 allowed\n";
    let file = directory.path().join("audit");
    fs::write(&file, [begins, by_machine, by_store].concat()).unwrap();
    let said = |policy: &str| {
        let output = audit(&[&file], &["--rate", "1/s", "--burst", "1", "--policy", policy]);
        (words(&output), output.status.code())
    };
    let remark = "times of 'both' are by two clocks, that of the store (lines with @) and that of \
                  a machine, which decided without the store: as far as these differ, this can be \
                  wrong";
    let (both, code) = said("both");
    assert!(both.contains("TOO MANY: 1 cell") && both.contains(remark), "{both}");
    assert_eq!(code, Some(1));
    for policy in ["local", "asked"] {
        let (one, code) = said(policy);
        assert!(one.contains("none too many") && !one.contains("clocks"), "{one}");
        assert_eq!(code, Some(0));
    }
}

/// A delayed request is written down with the moment at which it may go on. So the limit is found
/// to be kept by the requests that go on, and not by those that come.
#[test]
fn a_delayed_request_counts_when_it_goes_on() {
    let directory = directory();
    let config = directory.path().join("gcra.toml");
    let text = "[policy.api]\nlimits = \"10/s burst 5\"\nkey = [\"ip\"]\nmax_delay = \"1h\"\n";
    fs::write(&config, text).unwrap();
    let (table, file) = (directory.path().join("table"), directory.path().join("audit"));
    let flags = ["--config", config.to_str().unwrap(), "--audit", file.to_str().unwrap()];
    let agent = Agent::start(&table, &flags);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Cells for 200 s: they do not come back while they are asked about, on any machine.
    runtime.block_on(async {
        let mut client = testing::Client::connect(&agent.address).await.unwrap();
        for _ in 0..2_000 {
            client.ask(&[("api", &[("ip", ip("192.0.2.1"))])]).await.unwrap();
        }
    });
    let output = audit(&[&file], &["--policy", "api", "--rate", "10/s", "--burst", "5"]);
    let said = words(&output);
    assert!(said.starts_with("2000 cells of 1 client in "), "{said}");
    assert!(said.contains("none too many"), "{said}");
    assert_eq!(output.status.code(), Some(0));
    let output = audit(&[&file], &["--policy", "api", "--rate", "10/s", "--burst", "4"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// Each of several limits is kept by the moments in the file, also by that of a client's first
/// request. Its charges are not made at one time, because each new bucket reads the clock.
#[test]
fn several_limits_are_kept_by_the_same_moments() {
    let directory = directory();
    let config = directory.path().join("gcra.toml");
    let text = "[policy.api]\nlimits = [\"10/s burst 2\", \"1000/m burst 9\"]\nkey = [\"ip\"]\n\
                max_delay = \"1h\"\n";
    fs::write(&config, text).unwrap();
    let (table, file) = (directory.path().join("table"), directory.path().join("audit"));
    let flags = ["--config", config.to_str().unwrap(), "--audit", file.to_str().unwrap()];
    let agent = Agent::start(&table, &flags);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = testing::Client::connect(&agent.address).await.unwrap();
        for round in 0..2_000 {
            let args = [("ip", ip(&format!("192.0.2.{}", round % 100)))];
            client.ask(&[("api", &args)]).await.unwrap();
        }
    });
    for limit in [["10/s", "2"], ["1000/m", "9"]] {
        let [rate, burst] = limit;
        let output = audit(&[&file], &["--policy", "api", "--rate", rate, "--burst", burst]);
        let said = words(&output);
        assert!(said.starts_with("2000 cells of 100 clients in "), "{said}");
        assert!(said.contains("none too many"), "{said}");
    }
}

/// The agent would end, or wait for ever, at the next decision.
#[test]
fn a_file_that_cannot_hold_the_audit_is_refused() {
    let directory = directory();
    let start = |limit: &str, audit: &Path| {
        let command = format!(
            "ulimit -f {limit}; exec {} --rate 1/s --listen 127.0.0.1:0 --table {} --slots 64 \
             --audit {}",
            env!("CARGO_BIN_EXE_gcra-spoa"),
            directory.path().join("table").display(),
            audit.display()
        );
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = start("4000", &directory.path().join("audit"));
    assert!(said.contains("the size of files is limited to ") && said.contains("LimitFSIZE="));
    let fifo = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let said = start("unlimited", &fifo);
    assert!(said.contains("could not write the audit file"), "{said}");
}

/// Another user must not choose which file that is, nor change what is in it.
#[test]
fn an_audit_file_that_others_can_choose_or_change_is_refused() {
    let directory = directory();
    let path = |name: &str| directory.path().join(name);
    let refused = |audit: &Path, said: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        command.args(["--rate", "1/s", "--listen", "127.0.0.1:0", "--slots", "64", "--audit"]);
        command.arg(audit).arg("--table").arg(path("table"));
        let mut agent = Process::start("gcra-spoa", &mut command);
        assert_eq!(agent.wait().code(), Some(1), "{said}");
        wait_until("it says why", || agent.lines().iter().any(|line| line.contains(said)));
    };
    fs::write(path("victim"), "as it was\n").unwrap();
    fs::set_permissions(path("victim"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink(path("victim"), path("link")).unwrap();
    symlink(path("nothing"), path("dangling")).unwrap();
    for link in ["link", "dangling"] {
        refused(&path(link), "it is a symbolic link, which could lead anywhere");
    }
    assert!(!path("nothing").exists());
    fs::hard_link(path("victim"), path("other")).unwrap();
    refused(&path("other"), "it has other names (hard links)");
    assert_eq!(fs::read_to_string(path("victim")).unwrap(), "as it was\n");
    for mode in [0o666, 0o620] {
        fs::write(path("shared"), "").unwrap();
        fs::set_permissions(path("shared"), fs::Permissions::from_mode(mode)).unwrap();
        refused(&path("shared"), "run chmod go-w");
    }
    fs::set_permissions(path("shared"), fs::Permissions::from_mode(0o600)).unwrap();
    // Only root can give a file to another user.
    if chown(path("shared"), Some(65534), None).is_ok() {
        refused(&path("shared"), "it belongs to the user 65534, who could change");
    }
}

#[test]
fn an_audit_file_that_is_rotated_is_followed_and_a_link_in_its_place_is_not() {
    let directory = directory();
    let path = |name: &str| directory.path().join(name);
    let audit = path("audit");
    let agent = Agent::start(
        &path("table"),
        &["--rate", "1000/h", "--key", "ip", "--audit", audit.to_str().unwrap()],
    );
    let mut spop = Spop::connect(&agent.address);
    let lines = |path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter(|line| line.contains(" allowed")).count()
    };
    let mut ask = || assert!(!spop.is_blocked(&[("ip", ip("192.0.2.1"))]));
    ask();
    assert_eq!(lines(&audit), 1);
    fs::rename(&audit, path("audit.1")).unwrap();
    wait_until("it is there again", || audit.exists());
    wait_until("lines go there", || {
        ask();
        lines(&audit) > 0
    });
    let before = lines(&audit);
    fs::rename(&audit, path("audit.2")).unwrap();
    fs::write(path("victim"), "as it was\n").unwrap();
    // Meanwhile the agent may make a file, which this replaces.
    symlink(path("victim"), path("link")).unwrap();
    fs::rename(path("link"), &audit).unwrap();
    let said = "again: it is a symbolic link, which could lead anywhere";
    wait_until("it is said", || agent.process.lines().iter().any(|line| line.contains(said)));
    ask();
    assert_eq!(fs::read_to_string(path("victim")).unwrap(), "as it was\n");
    assert!(lines(&path("audit.2")) >= before);
}

/// A line that was cut off, and a gap, are no lines of the decisions after them.
#[test]
fn a_damaged_line_damages_no_other_and_a_gap_is_told() {
    let directory = directory();
    let file = directory.path().join("audit");
    fs::write(&file, "438").unwrap();
    let table = directory.path().join("table");
    let agent = Agent::start(&table, &["--rate", "1/d", "--audit", file.to_str().unwrap()]);
    let mut spop = Spop::connect(&agent.address);
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.1"))], 3), 1);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("438\n# gcra-spoa audit 1 boot="), "{text}");
    let whole = text.strip_prefix("438\n").unwrap();
    fs::write(&file, format!("{whole}12 default 192.0\n\n# missing 7\n")).unwrap();
    let output = audit(&[&file, &file], &["--rate", "1/d"]);
    let said = words(&output);
    assert!(said.contains("1 cell of 1 client in ") && said.contains("none too many"), "{said}");
    assert!(said.contains("up to 7 decisions could not be written, so this proves"), "{said}");
    assert!(said.contains("left out: 1 damaged line, so decisions may be missing, and"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    // Only a write that failed leaves a damaged line. Nobody knows which decision it should have
    // said.
    fs::write(&file, format!("{whole}12 default 192.0")).unwrap();
    assert_eq!(audit(&[&file], &["--rate", "1/d"]).status.code(), Some(1));
    fs::write(&file, format!("{whole}# end pid=")).unwrap();
    assert_eq!(audit(&[&file], &["--rate", "1/d"]).status.code(), Some(1), "its end is cut off");
}

/// A disk that is full to the end leaves no line about the gap. A file without an end is reported.
#[test]
fn an_agent_that_stops_writes_its_end_and_one_that_is_killed_does_not() {
    let directory = directory();
    let (table, file) = (directory.path().join("table"), directory.path().join("audit"));
    let start = || {
        let flags = ["--rate", "1/d", "--audit", file.to_str().unwrap()];
        let agent = Agent::start(&table, &flags);
        Spop::connect(&agent.address).allowed(&[("ip", ip("192.0.2.1"))], 1);
        agent
    };
    let told = || {
        let output = audit(&[&file], &["--rate", "1/d"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        words(&output).contains("1 part of an agent without its end: the agent runs still, or")
    };
    let mut agent = start();
    assert!(told(), "it runs");
    agent.process.stop();
    assert!(!told(), "it was stopped");
    let text = fs::read_to_string(&file).unwrap();
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("# end pid="), "{text}");
    start().process.kill();
    assert!(told(), "it was killed");
}

/// A script must be able to tell "too many" from "nothing is known".
#[test]
fn files_without_a_decision_are_not_files_with_too_many() {
    let directory = directory();
    let file = directory.path().join("audit");
    let clock = "# gcra-spoa audit 1 boot=a booted=0 pid=1 version=0.1.0\n";
    let limit = ["--rate", "1/d"];
    fs::write(&file, format!("{clock}12 api 192.0.2.1 1 blocked\n")).unwrap();
    let output = audit(&[&file], &limit);
    let said = words(&output);
    assert!(said.starts_with("0 cells of 0 clients in 0 ns allowed (1 request blocked"), "{said}");
    assert!(said.contains("none too many"), "{said}");
    assert_eq!(output.status.code(), Some(0), "the limit was kept");

    let output = audit(&[&file], &["--rate", "1/d", "--policy", "other"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("these files have no decision of the policy 'other', so"), "{said}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    fs::write(&file, clock).unwrap();
    let output = audit(&[&file], &limit);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("these files have no decisions, so"), "{said}");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));

    // The missing decisions may have been too many.
    fs::write(&file, format!("{clock}# missing 7\n")).unwrap();
    let output = audit(&[&file], &limit);
    assert!(words(&output).contains("up to 7 decisions could not be written"), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
}
