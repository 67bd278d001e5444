//! The parts that others build on: flags, settings, metrics, fields of JSON, exit codes, sentences
//! of the log, layouts, and variables. `tests/interfaces` records all of it, and these tests
//! compare it with the program as it is, so that each change is a decision. docs/STABILITY.md says
//! which are allowed.
//!
//!     GCRA_WRITE_INTERFACES=1 cargo test --test interfaces
//!
//! writes the files anew.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "interfaces/fields.rs"]
mod fields;
#[path = "interfaces/settings.rs"]
mod settings;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fields::{Fields, Groups};
use serde_json::Value as Json;
use spop_codec::Value;
use support::admin::{get, send, start};
use support::log_sentences::{Level, Sentence, first_words, sentences_of_the_log, words};
use support::recorded::{TITLE, compare};
use support::spop::Spop;
use support::valkey::{Server, valkey};
use support::{Agent, Process, agent_binary, directory, needs, wait_until};
use tempfile::TempDir;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The program, without what the environment of the tests could change.
fn program(args: &[&str]) -> Command {
    let mut command = Command::new(agent_binary());
    for name in ["COLUMNS", "RUST_LOG", "RUNTIME_DIRECTORY"] {
        command.env_remove(name);
    }
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    program(args).output().unwrap()
}

fn ip(text: &str) -> Value<'static> {
    text.parse::<IpAddr>().unwrap().into()
}

#[test]
fn commands_and_flags() {
    let mut content = String::new();
    add_help(&gcra_spoa::testing::command(), &[], &mut content);
    let about = "All commands and flags, with their defaults: what --help prints.";
    compare("commands.txt", about, &content);
}

/// Adds the help of a command and of those below it. `words` lead to it.
fn add_help(command: &clap::Command, words: &[&str], content: &mut String) {
    let args = [words, &["--help"]].concat();
    let output = run(&args);
    assert!(output.status.success(), "{output:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    writeln!(content, "{TITLE}gcra-spoa {}\n{help}", args.join(" ")).unwrap();
    for command in command.get_subcommands() {
        add_help(command, &[words, &[command.get_name()]].concat(), content);
    }
}

/// An agent with the configuration that uses everything.
struct Everything {
    directory: TempDir,
    file: String,
    table: PathBuf,
    agent: Agent,
    admin: String,
}

/// A store at which nothing listens.
const NO_STORE: &str = "redis://127.0.0.1:1";

impl Everything {
    fn start(store: &str, wait: &str, change: impl Fn(String) -> String, flags: &[&str]) -> Self {
        let directory = directory();
        let text = fs::read_to_string(root().join("tests/interfaces/everything.toml")).unwrap();
        let text = change(text.replace("STORE", store).replace("WAIT", wait));
        let file = directory.path().join("gcra-spoa.toml");
        fs::write(&file, text).unwrap();
        fs::write(directory.path().join("partners.txt"), "192.0.2.99\n").unwrap();
        fs::write(directory.path().join("names.salt"), "0123456789abcdef").unwrap();
        fs::write(directory.path().join("customers.txt"), "192.0.2.1 = office\n").unwrap();
        let file = file.into_os_string().into_string().unwrap();
        let table = directory.path().join("table");
        let (agent, admin) = start(&table, &[&["--config", &file], flags].concat());
        Self { directory, file, table, agent, admin }
    }

    /// Asks about messages of all kinds, and settles one. Returns the variables, with their types.
    fn ask(&self) -> BTreeSet<String> {
        let client = ("ip", ip("192.0.2.1"));
        let mut spop = Spop::connect(&self.agent.address);
        let mut variables = BTreeSet::new();
        let mut reserved = Vec::new();
        let mut ask = |message: &str, args: &[(&str, Value<'_>)]| {
            variables.extend(spop.ask_by(&[(message, args)], |scope, name, value| {
                if let ("reserved", Value::String(text)) = (&*name, value) {
                    reserved = text.to_vec();
                }
                format!("{}.{name} {}", scope.as_str(), type_of(value))
            }));
            reserved.clone()
        };
        let check = [("key", Value::from("alice")), client, ("asn", 7.into()), ("cost", 1.into())];
        for _ in 0..6 {
            ask("check", &check);
            for message in ["slow", "lent", "counted", "window"] {
                ask(message, &[client]);
            }
            ask("api", &[client, ("plan", "gold".into()), ("limit", "2/d".into())]);
            ask("api", &[client, ("plan", "silver".into())]);
        }
        for limit in ["9/d", "x"] {
            ask("api", &[client, ("plan", "gold".into()), ("limit", limit.into())]);
        }
        ask("api", &[client, ("plan", "gold".into())]);
        ask("check", &[("ip", ip("198.51.100.7")), ("key", Value::Null), ("asn", 7.into())]);
        ask("check", &[client]);
        ask("nobody", &[client]);
        for cost in [9, 2] {
            let reserved = ask("llm", &[client]);
            ask("llm-done", &[client, ("tokens", cost.into()), ("reserved", reserved[..].into())]);
        }
        variables
    }
}

fn type_of(value: Value<'_>) -> &'static str {
    match value {
        Value::Null => "unset",
        Value::Bool(_) => "bool",
        Value::Int32(_) => "int32",
        Value::Uint32(_) => "uint32",
        Value::Int64(_) => "int64",
        Value::Uint64(_) => "uint64",
        Value::Ipv4(_) => "ipv4",
        Value::Ipv6(_) => "ipv6",
        Value::String(_) => "string",
        Value::Binary(_) => "binary",
    }
}

#[test]
fn variables() {
    let mut variables = Everything::start(NO_STORE, "1ms", |text| text, &[]).ask();
    // These are too long to be sent beside all others.
    let (begin, end) = ("answer = [", "]\n");
    for names in ["\"headers\"", "\"limit_name\", \"client\""] {
        let only_these = |text: String| {
            let (before, rest) = text.split_once(begin).unwrap();
            format!("{before}answer = [{names}]\n{}", rest.split_once(end).unwrap().1)
        };
        variables.extend(Everything::start(NO_STORE, "1ms", only_these, &[]).ask());
    }
    // Of a name that is none, the program says which there are.
    let directory = directory();
    let file = directory.path().join("gcra-spoa.toml");
    fs::write(&file, "answer = [\"none\"]\n[policy.a]\nlimits = \"1/s\"\n").unwrap();
    let said = String::from_utf8(run(&["check", file.to_str().unwrap()]).stderr).unwrap();
    let (_, names) = said.trim_end().split_once("use one of ").unwrap();
    let set: BTreeSet<_> =
        variables.iter().filter_map(|found| found.split(['.', ' ']).nth(1)).collect();
    for name in names.split(", ") {
        assert!(
            set.contains(name),
            "let tests/interfaces/everything.toml or this test answer '{name}': {set:?}"
        );
    }
    let variables: Vec<_> = variables.into_iter().collect();
    let about = "The variables that an answer sets, with their types in SPOP.";
    compare("variables.txt", about, &variables.join("\n"));
}

/// The labels whose values are not from a fixed list.
const FREE_LABELS: [&str; 3] = ["policy", "version", "le"];

/// A metric, with the values that each of its labels has.
#[derive(Default)]
struct Family<'a> {
    help: &'a str,
    kind: &'a str,
    labels: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

#[test]
fn metrics() {
    let everything = Everything::start(NO_STORE, "1ms", |text| text, &[]);
    everything.ask();
    let body = get(&everything.admin, "/metrics").body;
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    for line in body.lines() {
        let of = |comment| line.strip_prefix(comment).and_then(|rest| rest.split_once(' '));
        if let Some((name, help)) = of("# HELP ") {
            families.entry(name).or_default().help = help;
        } else if let Some((name, kind)) = of("# TYPE ") {
            families.entry(name).or_default().kind = kind;
        } else if let Some((name, rest)) = line.split_once('{') {
            let ends = ["_bucket", "_sum", "_count"];
            let family = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let labels = &mut families.get_mut(family).unwrap().labels;
            for label in rest.split_once('}').unwrap().0.split(',') {
                let (label, value) = label.split_once('=').unwrap();
                let values = labels.entry(label).or_default();
                if !FREE_LABELS.contains(&label) {
                    values.insert(value.trim_matches('"'));
                }
            }
        }
    }
    let mut content = String::new();
    for (name, Family { help, kind, labels }) in families {
        writeln!(content, "{name} {kind}").unwrap();
        for (label, values) in labels {
            let values: Vec<_> = values.into_iter().collect();
            let values = if values.is_empty() { "any" } else { &values.join(" | ") };
            writeln!(content, "    {label}: {values}").unwrap();
        }
        writeln!(content, "    {help}").unwrap();
    }
    compare("metrics.txt", "All metrics: types, labels with their values, and help.", &content);
}

fn parse(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The values that a command prints with `--json`, one a line, and its exit status.
fn run_json(args: &[&str]) -> (Vec<Json>, i32) {
    let output = run(&[args, &["--json"]].concat());
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(!text.is_empty(), "{args:?}: {output:?}");
    (text.lines().map(parse).collect(), output.status.code().unwrap())
}

/// A token for actions.
fn token(directory: &Path) -> String {
    let token = directory.join("token");
    fs::write(&token, "correct-horse-battery\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    token.into_os_string().into_string().unwrap()
}

fn post(admin: &str, action: &str, body: &str) -> Json {
    let request = format!(
        "POST /actions/{action} HTTP/1.1\r\nHost: {admin}\r\nContent-Length: {}\r\n\
         Content-Type: application/json\r\nAuthorization: Bearer correct-horse-battery\r\n\r\n\
         {body}",
        body.len()
    );
    let answer = send(admin, request.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    parse(&answer.body)
}

#[test]
fn json() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let other = directory();
    let (token, audit) = (token(other.path()), other.path().join("audit"));
    let audit = audit.to_str().unwrap();
    let flags = ["--admin-actions", &token, "--audit", audit];
    let everything = Everything::start(&server.url(), "10s", |text| text, &flags);
    let Everything { file, table, admin, agent, .. } = &everything;
    let is_used = |line: &String| line.contains("is used");
    wait_until("the store is used", || agent.process.lines().iter().any(is_used));
    everything.ask();
    let away = Everything::start(NO_STORE, "1ms", |text| text, &[]);
    // An agent without a file on another table, and one without --admin and with other limits that
    // will refuse its file.
    let other_table = other.path().join("table");
    let _by_flags = Agent::start(&other_table, &["--rate", "5/s"]);
    let other_file = other.path().join("other.toml");
    fs::write(&other_file, "[policy.check]\nlimits = \"5/s\"\n").unwrap();
    let _refusing = Agent::start(table, &["--config", other_file.to_str().unwrap()]);
    fs::write(&other_file, "[policy.check]\nlimits = \"5\"\n").unwrap();
    let table = table.to_str().unwrap();

    let mut groups = Groups::default();
    let ask = |path: &str| parse(&get(admin, path).body);
    // Messages that were asked about before the first beat are in no slot.
    let mut spop = Spop::connect(&agent.address);
    wait_until("there is a history", || {
        spop.ask_by(&[("window", &[("ip", ip("192.0.2.1"))])], |_, _, _| ());
        ask("/history")["policies"].as_array().is_some_and(|policies| !policies.is_empty())
    });
    // Which counts the slots.
    let _ = (ask("/status"), get(&away.admin, "/status"));
    post(admin, "block", "{\"key\": \"192.0.2.77\", \"policy\": \"slow\", \"note\": \"a\"}");
    groups.add_until_complete("/status?own", || {
        vec![ask("/status?own"), parse(&get(&away.admin, "/status?own").body)]
    });
    groups.add_until_complete("/status", || {
        vec![ask("/status"), parse(&get(&away.admin, "/status").body)]
    });
    groups.add_until_complete("/history", || vec![ask("/history")]);
    groups.add_until_complete("/events", || vec![ask("/events")]);
    groups.add_until_complete("/live", || {
        vec![ask("/live?all"), parse(&get(&away.admin, "/live?all").body)]
    });
    groups.add_until_complete("/live?own", || {
        vec![ask("/live?own&all"), parse(&get(&away.admin, "/live?own&all").body)]
    });
    // Of clients that owe something, are denied, have no value, and are nobody's.
    let explained = [
        ("check", "arg=key=ALICE&arg=asn=int64:7"),
        ("check", "arg=ip=198.51.100.7&arg=asn=int64:7"),
        ("check", "arg=key=null:"),
        ("api", "arg=ip=192.0.2.1&arg=plan=gold&arg=limit=2/d"),
        ("api", "arg=ip=192.0.2.1&arg=plan=silver"),
        ("lent", "arg=ip=192.0.2.1"),
        ("counted", "arg=ip=192.0.2.1"),
        ("window", "arg=ip=192.0.2.1"),
        ("slow", "arg=ip=192.0.2.77"),
        ("llm", "arg=ip=192.0.2.1"),
        ("check", "arg=ip=192.0.2.99&arg=asn=int64:7"),
    ];
    groups.add_until_complete("/explain", || {
        let here =
            explained.map(|(message, args)| ask(&format!("/explain?message={message}&{args}")));
        let lent = get(&away.admin, "/explain?message=lent&arg=ip=192.0.2.1").body;
        here.into_iter().chain([parse(&lent)]).collect()
    });
    groups.add_until_complete("/explain?key=", || vec![ask("/explain?key=192.0.2.1")]);
    groups.add("/actions", &Fields::of(&[ask("/actions")]));
    for (action, body) in [
        ("exempt", "{\"key\": \"192.0.2.1\", \"policy\": \"slow\"}"),
        ("block", "{\"key\": \"192.0.2.1\", \"policy\": \"slow\"}"),
        ("observe", "{\"policy\": \"slow\", \"observe\": true}"),
        ("forgive", "{\"key\": \"192.0.2.1\", \"policy\": \"slow\"}"),
    ] {
        let fields = Fields::of(&[post(admin, action, body)]);
        groups.add(&format!("POST /actions/{action}"), &fields);
    }

    let at = ["--table", table];
    let of = ["--config", file, "--table", table];
    let repeated = |groups: &mut Groups, name: &str, commands: &[Vec<&str>]| {
        groups.add_until_complete(&format!("gcra-spoa {name} --json"), || {
            commands.iter().flat_map(|args| run_json(args).0).collect()
        });
    };
    let of_flags = ["--table", other_table.to_str().unwrap()];
    let info = ["table", "info"];
    let both = [[&info, &at[..]].concat(), [&info, &of_flags[..]].concat()];
    repeated(&mut groups, "table info", &both);
    let get_key = |policy, key| [&["table", "get", "--policy", policy, key], &of[..]].concat();
    repeated(
        &mut groups,
        "table get",
        &[
            get_key("check", "alice"),
            get_key("check", "else:198.51.100.7"),
            get_key("lent", "192.0.2.1"),
            get_key("counted", "192.0.2.1"),
            get_key("window", "192.0.2.1"),
            get_key("slow", "192.0.2.77"),
        ],
    );
    let explain = |message, args: &[&'static str]| {
        let store = ["explain", "--ask-store", "--message", message];
        [&store[..], args, &of[..]].concat()
    };
    repeated(
        &mut groups,
        "explain",
        &[
            explain("check", &["key=ALICE", "asn=int64:7"]),
            explain("check", &["ip=192.0.2.99", "asn=int64:7"]),
            explain("lent", &["ip=192.0.2.1"]),
            explain("counted", &["ip=192.0.2.1"]),
            explain("window", &["ip=192.0.2.1"]),
            explain("llm", &["ip=192.0.2.1"]),
            explain("check", &["key=null:"]),
        ],
    );
    repeated(&mut groups, "name", &[[&["name", "alice", "--policy", "check"], &of[..]].concat()]);
    let top =
        ["top", "--once", "--admin", admin, "--admin", &away.admin, "--admin", "127.0.0.1:1"];
    repeated(&mut groups, "top --once", &[top.to_vec()]);
    repeated(
        &mut groups,
        "store check",
        &[vec!["store", "check", "--config", file], vec!["store", "check", "--store", NO_STORE]],
    );
    let wrong = other.path().join("wrong.toml");
    fs::write(&wrong, "[policy.check]\nlimit = \"5/s\"\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    repeated(&mut groups, "check", &[vec!["check", file], vec!["check", wrong]]);
    repeated(&mut groups, "reload", &[[&["reload"], &of[..]].concat()]);
    let audited =
        |policy| vec!["audit", audit, "--rate", "2/d", "--burst", "1", "--policy", policy];
    repeated(&mut groups, "audit", &[audited("check"), audited("llm")]);
    let log = other.path().join("log");
    fs::write(&log, log_to_replay()).unwrap();
    let [new, old] = [("new", "1/m"), ("old", "9/m")].map(|(name, rate)| {
        let text =
            format!("[policy.web]\nlimits = \"{rate}\"\nkey = [\"ip\"]\nobserve = \"1/h\"\n");
        let path = other.path().join(name);
        fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    });
    let log = log.to_str().unwrap();
    let replay = ["replay", log, "--config", &new, "--against", &old, "--suggest", "key=ip"];
    // A log with the log-format of the shipped configurations, and two messages.
    let [decided, two] = ["decided.log", "two.toml"].map(|name| other.path().join(name));
    fs::write(&decided, decided_log()).unwrap();
    let text = ["a", "b"].map(|name| format!("[policy.{name}]\nlimits='1/m'\nkey=['ip']\n"));
    fs::write(&two, text.concat()).unwrap();
    let [decided, two] = [&decided, &two].map(|path| path.to_str().unwrap());
    repeated(&mut groups, "replay", &[replay.to_vec(), vec!["replay", decided, "--config", two]]);

    let words = fs::read_to_string(decided).unwrap();
    let said = "blocked=1 policy=a reason=limit retry_after=9 err=-\n";
    let blocked = words.replace("blocked=- policy=- reason=- retry_after=- err=1\n", said);
    fs::write(decided, format!("a line\n{words}{blocked}")).unwrap();
    let times = ["--from", "2026-11-21", "--to", "2026-11-22"];
    let blocked = [&["blocked", decided, "192.0.2.1"][..], &times].concat();
    repeated(&mut groups, "blocked", &[blocked]);

    let once = |groups: &mut Groups, name: &str, args: &[&str]| {
        groups.add(&format!("gcra-spoa {name} --json"), &Fields::of(&run_json(args).0));
    };
    for command in ["exempt", "block"] {
        let order =
            |more: &[&'static str]| [&[command, "--policy", "api"], more, &of[..]].concat();
        once(&mut groups, &format!("{command} --for"), &order(&["--for", "1h", "192.0.2.1"]));
        once(&mut groups, &format!("{command} --list"), &order(&["--list"]));
        let listed = format!("\"order\":\"{command}\"");
        wait_until("the agent follows", || get(admin, "/live").body.contains(&listed));
        let there = [command, "--list", "--admin", admin];
        once(&mut groups, &format!("{command} --list --admin"), &there);
        let there = [command, "--end", "192.0.2.9", "--admin", admin, "--token", &token];
        once(&mut groups, &format!("{command} --end --admin"), &there);
        once(&mut groups, &format!("{command} --end"), &order(&["--end", "192.0.2.1"]));
    }
    let reset = [&["table", "reset", "--policy", "check", "alice"], &of[..]].concat();
    once(&mut groups, "table reset", &reset);
    let reset = [&["table", "reset", "--policy", "lent", "192.0.2.1"], &of[..]].concat();
    once(&mut groups, "table reset, of a shared limit", &reset);
    let reset = [&["table", "reset", "--policy", "check"], &of[..]].concat();
    once(&mut groups, "table reset, of a policy", &reset);
    once(&mut groups, "table info, after that", &[&["table", "info"], &at[..]].concat());
    once(&mut groups, "table check", &[&["table", "check"], &at[..]].concat());
    let resize = [&["table", "resize", "--slots", "8192"], &at[..]].concat();
    once(&mut groups, "table resize", &resize);
    let about = "All fields of JSON: what the admin listener answers, and what commands print.";
    compare("json.txt", about, &groups.text);
}

/// A short log of HAProxy: one client that asks too often, and a line that is none.
fn log_to_replay() -> String {
    let line = |second: u32, client: u32| {
        format!(
            "192.0.2.{client}:4711 [21/Nov/2026:00:00:{second:02}.000] web app/srv1 0/0/0/1/1 200 \
             99 - - ---- 1/1/0/0/0 0/0 \"GET / HTTP/1.1\"\n"
        )
    };
    let busy = (0..40).map(|second| line(second, 1));
    busy.chain((2..30).map(|client| line(50, client))).chain(["nothing\n".to_owned()]).collect()
}

/// A log whose lines say what HAProxy got from an agent: nothing.
fn decided_log() -> String {
    "192.0.2.1:4711 [21/Nov/2026:00:00:00.000] web app/srv1 0/0/0/1/1 200 99 ---- 1/1/0/0/0 0/0 \
     \"GET / HTTP/1.1\" blocked=- policy=- reason=- retry_after=- err=1\n"
        .repeat(3)
}

#[test]
fn log() {
    let page = words(&fs::read_to_string(root().join("docs/TROUBLESHOOTING.md")).unwrap());
    let mut lines = BTreeSet::new();
    for Sentence { level, text, .. } in sentences_of_the_log() {
        if first_words(&text).is_none_or(|first| !page.contains(&first)) {
            continue;
        }
        // How the code calls a value is no matter.
        let pieces: Vec<_> = text.split(['{', '}']).step_by(2).collect();
        let text = pieces.join("…");
        let level = match level {
            Level::Error => "ERROR",
            Level::Warn => "WARN ",
            Level::Info => "INFO ",
            Level::Part => "PART ",
        };
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        lines.insert(format!("{level} {text}"));
    }
    let about = "The sentences of the log that docs/TROUBLESHOOTING.md names, by level.\n\
                 PART: of one that is put together.";
    compare("log.txt", about, &lines.into_iter().collect::<Vec<_>>().join("\n"));
}

/// The commands whose exit status is recorded. DIRECTORY is one with the files that they name.
const COMMANDS: &str = "\
gcra-spoa --version
gcra-spoa --help
gcra-spoa
gcra-spoa --no-such-flag
gcra-spoa --rate 1/x
gcra-spoa --rate 1/s --listen 127.0.0.1:0 --table DIRECTORY/no/such/folder
gcra-spoa --rate 1/s --listen 127.0.0.1:0 --table DIRECTORY/other-layout
gcra-spoa --config DIRECTORY/missing.toml
gcra-spoa --config DIRECTORY/wrong.toml
gcra-spoa check DIRECTORY/right.toml
gcra-spoa check DIRECTORY/warned.toml
gcra-spoa check DIRECTORY/wrong.toml
gcra-spoa check
gcra-spoa table info --table DIRECTORY/table
gcra-spoa table info --table DIRECTORY/missing
gcra-spoa table get --config DIRECTORY/right.toml --table DIRECTORY/table 192.0.2.1
gcra-spoa table get --config DIRECTORY/right.toml --table DIRECTORY/table 192.0.2.2
gcra-spoa table get --config DIRECTORY/right.toml --table DIRECTORY/table
gcra-spoa table check --table DIRECTORY/table
gcra-spoa table check --table DIRECTORY/missing
gcra-spoa explain --config DIRECTORY/right.toml --table DIRECTORY/table ip=192.0.2.1
gcra-spoa explain --config DIRECTORY/right.toml --table DIRECTORY/table ip=null:
gcra-spoa explain --config DIRECTORY/right.toml --message no --table DIRECTORY/table ip=192.0.2.1
gcra-spoa explain --config DIRECTORY/right.toml --table DIRECTORY/table
gcra-spoa name --config DIRECTORY/right.toml --table DIRECTORY/table 192.0.2.1
gcra-spoa name --config DIRECTORY/right.toml --table DIRECTORY/missing 192.0.2.1
gcra-spoa exempt --config DIRECTORY/right.toml --table DIRECTORY/table --for 1h 192.0.2.3
gcra-spoa exempt --config DIRECTORY/right.toml --table DIRECTORY/table --list
gcra-spoa exempt --config DIRECTORY/right.toml --table DIRECTORY/table --end 192.0.2.3
gcra-spoa exempt --config DIRECTORY/right.toml --table DIRECTORY/table --end 192.0.2.3
gcra-spoa exempt --config DIRECTORY/right.toml --table DIRECTORY/table 192.0.2.3
gcra-spoa block --config DIRECTORY/right.toml --table DIRECTORY/table --for 1h 192.0.2.0/24
gcra-spoa block --config DIRECTORY/right.toml --table DIRECTORY/table --list
gcra-spoa block --table DIRECTORY/table --list --plain
gcra-spoa block --config DIRECTORY/right.toml --table DIRECTORY/table --end 192.0.2.0/24
gcra-spoa block --config DIRECTORY/right.toml --table DIRECTORY/table --end 192.0.2.0/24
gcra-spoa block --config DIRECTORY/right.toml --table DIRECTORY/table 192.0.2.3
gcra-spoa reload --config DIRECTORY/right.toml --table DIRECTORY/table
gcra-spoa reload --config DIRECTORY/warned.toml --table DIRECTORY/table
gcra-spoa reload --config DIRECTORY/wrong.toml --table DIRECTORY/table
gcra-spoa replay --config DIRECTORY/right.toml DIRECTORY/log
gcra-spoa replay --config DIRECTORY/right.toml DIRECTORY/missing
gcra-spoa replay DIRECTORY/log
gcra-spoa blocked DIRECTORY/decided
gcra-spoa blocked DIRECTORY/decided 192.0.2.2
gcra-spoa blocked DIRECTORY/log
gcra-spoa blocked DIRECTORY/missing
gcra-spoa audit DIRECTORY/audit --rate 3/d
gcra-spoa audit DIRECTORY/audit --rate 1/d
gcra-spoa audit DIRECTORY/empty --rate 3/d
gcra-spoa audit DIRECTORY/missing --rate 3/d
gcra-spoa audit DIRECTORY/audit
gcra-spoa top --once --admin 127.0.0.1:1
gcra-spoa top --json
gcra-spoa store check --store redis://127.0.0.1:1
gcra-spoa store check --config DIRECTORY/right.toml
gcra-spoa store check
gcra-spoa table reset --config DIRECTORY/right.toml --table DIRECTORY/table 192.0.2.1
gcra-spoa table reset --config DIRECTORY/right.toml --table DIRECTORY/table 192.0.2.2
gcra-spoa table resize --slots 8192 --table DIRECTORY/table
gcra-spoa table resize --slots 0 --table DIRECTORY/table
";

#[test]
fn exit_codes() {
    let directory = directory();
    let path = |name: &str| directory.path().join(name);
    let right = "[policy.check]\nlimits = \"3/d\"\nkey = [\"ip\"]\n";
    fs::write(path("right.toml"), right).unwrap();
    // HAProxy's address is most often cut to its /64.
    let warned = format!("{right}[policy.check.overrides]\n\"2001:db8::1\" = \"deny\"\n");
    fs::write(path("warned.toml"), warned).unwrap();
    fs::write(path("wrong.toml"), "[policy.check]\n").unwrap();
    fs::write(path("log"), log_to_replay()).unwrap();
    fs::write(path("decided"), decided_log()).unwrap();
    fs::write(path("empty"), "").unwrap();
    let mut agent = Agent::start(&path("other-layout"), &["--rate", "1/s"]);
    let mut content = format!("{} | SIGTERM\n", agent.process.stop().code().unwrap());
    let table = fs::OpenOptions::new().write(true).open(path("other-layout")).unwrap();
    table.write_all_at(&u32::MAX.to_ne_bytes(), LAYOUT_AT).unwrap();
    let (file, audit) = (path("right.toml"), path("audit"));
    let flags = ["--config", file.to_str().unwrap(), "--audit", audit.to_str().unwrap()];
    let agent = Agent::start(&path("table"), &flags);
    assert_eq!(Spop::connect(&agent.address).allowed(&[("ip", ip("192.0.2.1"))], 2), 2);
    wait_until("the agent is listed", || {
        let output = run(&["table", "info", "--table", path("table").to_str().unwrap()]);
        String::from_utf8_lossy(&output.stdout).contains("used by process")
    });
    for line in COMMANDS.lines() {
        let written = line.replace("DIRECTORY", directory.path().to_str().unwrap());
        let mut command = program(&written.split(' ').skip(1).collect::<Vec<_>>());
        let status = Process::start(line, &mut command).wait();
        writeln!(content, "{} | {line}", status.code().unwrap()).unwrap();
    }
    compare("exit.txt", "Exit codes, and what they are for.", &content);
}

/// Where the number of the layout is in a table, and in a file of leases.
const LAYOUT_AT: u64 = 8;

fn layout(path: &Path) -> u32 {
    let mut bytes = [0; 4];
    fs::File::open(path).unwrap().read_exact_at(&mut bytes, LAYOUT_AT).unwrap();
    u32::from_ne_bytes(bytes)
}

/// Configurations whose limits get one message from each of two clients. (The buckets of a window
/// have other places in each window.)
const FIXED: [&str; 3] = [
    "[policy.check]\nlimits = \"100/d burst 20\"\nkey = [\"ip\"]\n",
    "[policy.check]\nlimits = [{ name = \"day\", rate = \"9/d\" }, \
     { name = \"net\", rate = \"99/d\", key = [\"ip\"], ipv4_prefix = 24 }]\n\
     key = [\"ip\", \"path\"]\nlowercase = true\nobserve = \"2/d\"\n\
     [policy.check.overrides]\n\"198.51.100.7\" = \"deny\"\n",
    "[policy.check]\nlimits = \"9/d\"\n",
];

/// A hash key of a table, and its hash check: SipHash-1-3 of `gcra-table hash check`. They are at
/// `HASH_KEY_AT` (docs/internals/TABLE.md).
const HASH_KEY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const HASH_CHECK: u64 = 0x5ca5_0eb2_b9a3_3701;
const HASH_KEY_AT: u64 = 24;

/// Where the slots of a table begin.
const SLOTS_AT: usize = 0x60000;

/// The number that stands for the limits of the only agent of a table.
fn limits_digest(table: &Path) -> String {
    let mut digest = String::new();
    wait_until("the agent says which limits it has", || {
        let (info, _) = run_json(&["table", "info", "--table", table.to_str().unwrap()]);
        digest = info[0]["processes"][0]["limits"].as_str().unwrap_or_default().to_owned();
        !digest.is_empty()
    });
    digest
}

#[test]
fn layouts_digests_and_fingerprints() {
    let Everything { directory, table, agent: _agent, .. } =
        &Everything::start(NO_STORE, "1ms", |text| text, &[]);
    let mut content = format!("layout of a table: {}\n", layout(table));
    let leases = layout(&directory.path().join("table.leases"));
    writeln!(content, "layout of a file of leases: {leases}").unwrap();
    let policies = fs::read_to_string(directory.path().join("table.policies")).unwrap();
    let policies = policies.split(' ').nth(2).unwrap();
    writeln!(content, "layout of a file of policies: {policies}").unwrap();
    writeln!(content, "limits of everything.toml: {}", limits_digest(table)).unwrap();
    for text in FIXED {
        let directory = support::directory();
        let (table, file) = (directory.path().join("table"), directory.path().join("file.toml"));
        fs::write(&file, text).unwrap();
        let flags = ["--config", file.to_str().unwrap()];
        let _ = Agent::start(&table, &flags).stop();
        // That of a new table is random.
        let opened = fs::OpenOptions::new().write(true).open(&table).unwrap();
        let fixed = [&HASH_KEY[..], &HASH_CHECK.to_ne_bytes()].concat();
        opened.write_all_at(&fixed, HASH_KEY_AT).unwrap();
        let agent = Agent::start(&table, &flags);
        let mut spop = Spop::connect(&agent.address);
        for address in ["192.0.2.1", "2001:db8:1:2:3::4"] {
            spop.ask(&[("check", &[("ip", ip(address)), ("path", "/Login".into())])]);
        }
        writeln!(content, "\n{text}limits: {}", limits_digest(&table)).unwrap();
        let _ = agent.stop();
        let bytes = fs::read(&table).unwrap();
        let slots = bytes[SLOTS_AT..].as_chunks::<16>().0.iter().enumerate();
        let taken: BTreeSet<_> = slots
            .filter(|(_, slot)| **slot != [0; 16])
            // Without the two bits that say whether it is confirmed.
            .map(|(place, slot)| {
                (place / 4, (u128::from_ne_bytes(*slot) >> 64) & (u128::MAX >> 66))
            })
            .collect();
        for (line, fingerprint) in taken {
            writeln!(content, "line {line}: fingerprint {fingerprint:016x}").unwrap();
        }
    }
    let about = "The layouts of files; for a few configurations the number that stands for their \
                 limits;\nand where the buckets of two clients are in a table of 4096 slots with \
                 the hash key 00 01 ... 0f.";
    compare("layouts.txt", about, &content);

    for (document, layout) in [("TABLE.md", layout(table)), ("LEASES.md", leases)] {
        let text = fs::read_to_string(root().join("docs/internals").join(document)).unwrap();
        let row = text.lines().find(|line| line.contains("| layout ")).unwrap();
        let said = row.split('|').nth(4).unwrap().trim();
        assert_eq!(said, layout.to_string(), "the layout in docs/internals/{document}");
    }
}

#[test]
fn names_of_records() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let everything = Everything::start(&server.url(), "10s", |text| text, &[]);
    let is_used = |line: &String| line.contains("is used");
    wait_until("the store is used", || everything.agent.process.lines().iter().any(is_used));
    everything.ask();
    let table = everything.table.to_str().unwrap();
    run(&["block", "--for", "1h", "192.0.2.1", "--table", table]);
    let mut names = BTreeSet::new();
    wait_until("the store has records of all kinds", || {
        let keys = server.say(&["KEYS", "*"]);
        let keys = keys.lines().filter(|line| line.starts_with('{') && !line.contains(":probe:"));
        names.extend(keys.map(|name| match name.split_once(":count-") {
            Some((name, _)) => format!("{name}:count-BEGIN-END"),
            None => name.to_owned(),
        }));
        names.len() >= 5
    });
    let about = "The names of the records in a store. The number behind the tag is their layout.";
    compare("records.txt", about, &names.into_iter().collect::<Vec<_>>().join("\n"));
}
