//! The documents: every configuration that they show is valid, those that promise numbers are run
//! behind a real HAProxy, the commands of the tasks print what their page says, every line of the
//! log is explained, and every link leads somewhere.
//!
//! A block marked `toml` is a complete file of policies. A block marked `spoe` has messages and
//! groups for the `.conf`, and a block marked `haproxy` has frontends, backends, or rules of a
//! frontend. The blocks between two headings belong together.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use support::documents::{Recipe, blocks, haproxy_cfg, recipes, spoe_conf};
use support::log_sentences::{Level, Sentence, first_words, sentences_of_the_log, words};
use support::valkey::{Server, valkey};
use support::{
    Agent, Client, Haproxy, agent_binary, directory, haproxy_binary, haproxy_folder, needs, root,
    wait_until,
};
use tempfile::TempDir;

/// The documents with configurations.
fn documents() -> Vec<String> {
    let mut documents: Vec<_> =
        ["CONFIG", "RECIPES", "CLUSTER", "MIGRATING"].map(|it| format!("docs/{it}.md")).into();
    for guide in fs::read_dir(root().join("docs/guides")).unwrap() {
        documents.push(format!("docs/guides/{}", guide.unwrap().file_name().display()));
    }
    documents
}

/// Writes a complete haproxy.cfg around a block, and the spoe-gcra.conf beside it. Returns the
/// path of the former.
fn write_configuration(folder: &Path, recipe: &Recipe, frontend: &str) -> PathBuf {
    fs::write(folder.join("offices.lst"), "127.0.0.9\n").unwrap();
    fs::write(folder.join("countries.map"), "127.0.0.0/8 XX\n").unwrap();
    let in_folder =
        |text: String| text.replace("/etc/haproxy/", &format!("{}/", folder.display()));
    fs::write(folder.join("spoe-gcra.conf"), in_folder(spoe_conf(&recipe.messages))).unwrap();
    let shipped = root().join("haproxy/spoe-policies.conf");
    fs::copy(shipped, folder.join("spoe-policies.conf")).unwrap();
    let file = folder.join("haproxy.cfg");
    fs::write(&file, in_folder(haproxy_cfg(frontend))).unwrap();
    file
}

#[test]
fn every_configuration_in_the_documents_is_valid() {
    needs!(support::haproxy());
    let directory = directory();
    let folder = directory.path();
    for recipe in documents().iter().flat_map(|document| recipes(document).into_values()) {
        for policies in &recipe.policies {
            let file = folder.join("gcra-spoa.toml");
            fs::write(&file, policies).unwrap();
            let mut check = Command::new(agent_binary());
            let output = check.arg("check").arg("--config").arg(file).output().unwrap();
            assert!(output.status.success(), "above {}: {output:?}", recipe.place);
        }
        let mut frontends = recipe.frontends.clone();
        if frontends.is_empty() && !recipe.messages.is_empty() {
            frontends.push(String::new());
        }
        for frontend in frontends {
            let file = write_configuration(folder, &recipe, &frontend);
            let mut check = Command::new(haproxy_binary());
            let output = check.arg("-c").arg("-f").arg(file).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && !said.contains("WARNING"),
                "above {}: {said}\n{frontend}",
                recipe.place
            );
        }
    }
}

/// The page about a first agent has whole files.
#[test]
fn the_files_of_a_first_agent_are_valid() {
    needs!(support::haproxy());
    let directory = directory();
    let blocks = blocks("crates/spop-agent/TEN_MINUTES.md");
    let files = blocks.iter().filter(|block| block.language == "haproxy");
    let names = ["haproxy.cfg", "spoe.conf"];
    assert_eq!(files.clone().count(), names.len());
    for (block, name) in files.zip(names) {
        fs::write(directory.path().join(name), &block.text).unwrap();
    }
    let cfg = directory.path().join(names[0]);
    let output = Command::new(haproxy_binary()).arg("-c").arg("-f").arg(cfg).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("WARNING"), "{said}");
}

/// The printed files as an operator edits them.
fn edited(text: &str) -> String {
    let text = text.replace(" unless EDIT-THIS", " unless TRUE").replace(" if EDIT-THIS", "");
    let text = text.replace("} EDIT-THIS", "}").replace("=EDIT-THIS", "=str(known)");
    text.replace(") EDIT-THIS\n", ") str(known)\n")
}

/// Also under an umask by which nobody else could read them.
#[test]
fn the_files_that_are_written_for_haproxy_start() {
    needs!(support::haproxy());
    let directory = directory();
    let shipped = haproxy_folder().read_dir().unwrap().map(|entry| entry.unwrap().path());
    let shipped = shipped.filter(|path| path.extension().is_some_and(|it| it == "toml"));
    let mut texts: Vec<_> = shipped.map(|path| fs::read_to_string(path).unwrap()).collect();
    texts.extend(recipes("docs/RECIPES.md").into_values().flat_map(|it| it.policies));
    // An older HAProxy does not know the rule that delays.
    texts.retain(|text| !text.contains("max_delay") || support::haproxy_since((3, 2)).is_ok());
    let [mut ready, mut to_edit] = [0, 0];
    for (number, text) in texts.iter().enumerate() {
        let file = directory.path().join("gcra-spoa.toml");
        fs::write(&file, text).unwrap();
        let folder = directory.path().join(format!("{number}/haproxy"));
        let run = |more: &str| {
            let script =
                format!("umask 077; exec \"$0\" check \"$1\" --print-haproxy \"$2\" {more}");
            let mut check = Command::new("sh");
            let check = check.args(["-c", &script]).arg(agent_binary()).arg(&file).arg(&folder);
            check.output().unwrap()
        };
        let output = run("");
        assert!(output.status.success(), "{text}{output:?}");
        let accepts = || {
            let mut check = Command::new(haproxy_binary());
            let output = check.arg("-c").arg("-f").arg(folder.join("haproxy.cfg")).output();
            let said = String::from_utf8(output.as_ref().unwrap().stderr.clone()).unwrap();
            (output.unwrap().status.success() && !said.contains("WARNING"), said)
        };
        let written = String::from_utf8(output.stdout).unwrap();
        assert!(written.lines().count() >= 2, "{written}");
        for path in written.lines() {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o644, "{path}");
        }
        let notes = String::from_utf8(output.stderr).unwrap();
        let (is_ready, said) = accepts();
        assert_eq!(is_ready, !notes.contains("EDIT-THIS"), "{text}{notes}{said}");
        if is_ready {
            ready += 1;
        } else {
            to_edit += 1;
            assert!(said.contains("'EDIT-THIS'"), "{said}");
            for name in ["haproxy.cfg", "spoe-gcra.conf"].map(|name| folder.join(name)) {
                fs::write(&name, edited(&fs::read_to_string(&name).unwrap())).unwrap();
            }
            let (is_ready, said) = accepts();
            assert!(is_ready, "{text}{said}");
        }
        // What was edited stays, unless the operator says otherwise. Maps always stay.
        let cfg = folder.join("haproxy.cfg");
        fs::write(&cfg, "mine").unwrap();
        let map = written.lines().find(|path| path.ends_with(".map"));
        map.inspect(|map| fs::write(map, "192.0.2.7 mine\n").unwrap());
        let output = run("");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("conf exists, and nothing was written; name another"), "{said}");
        assert_eq!(fs::read_to_string(&cfg).unwrap(), "mine");
        assert!(run("--force").status.success());
        assert!(fs::read_to_string(&cfg).unwrap().contains("frontend web"));
        map.inspect(|map| assert_eq!(fs::read_to_string(map).unwrap(), "192.0.2.7 mine\n"));
    }
    assert!(ready > 3 && to_edit > 3, "{ready} ready, {to_edit} to be edited");
}

/// How the words of rules begin against which clients have tried something. What is printed for
/// HAProxy has each, and so have shipped files and documents.
const WORDS_OF_RULES: [&str; 8] = [
    "[^!-~]|",
    "[^A-Za-z0-9-]",
    "^(forwarded|x",
    "^([0-9A-Za-z._-]+",
    "^x.(http.",
    "^x.(original",
    "forward(ed)?",
    "path,url_dec,lower,regsub([[:space:]",
];

/// A cure of a rule must reach all places where it stands. It may go on behind its end there.
#[test]
fn a_rule_is_the_same_wherever_it_stands() {
    let directory = directory();
    let file = directory.path().join("gcra-spoa.toml");
    let policy = "[policy.a]\nlimits = \"1/s\"\nkey = [\"key\", \"path\", \"host\"]\n\
                  when = { method = \"GET\" }\noverrides = { a = \"2/s\" }\n";
    fs::write(&file, policy).unwrap();
    let check =
        Command::new(agent_binary()).arg("check").arg(file).arg("--print-haproxy").output();
    let printed = String::from_utf8(check.unwrap().stdout).unwrap();
    let words = |text: &str, begin: &str| -> Vec<String> {
        let found = text.match_indices(begin).map(|(at, _)| &text[at..]);
        found.filter_map(|rest| rest.split_whitespace().next()).map(str::to_owned).collect()
    };
    let mut places = documents();
    for entry in haproxy_folder().read_dir().unwrap() {
        places.push(format!("haproxy/{}", entry.unwrap().file_name().display()));
    }
    let texts: Vec<_> = places
        .into_iter()
        .filter_map(|place| Some((fs::read_to_string(root().join(&place)).ok()?, place)))
        .collect();
    for begin in WORDS_OF_RULES {
        let rule = words(&printed, begin).pop().unwrap_or_else(|| panic!("no {begin}\n{printed}"));
        let mut count = 0;
        for (text, place) in &texts {
            for word in words(text, begin) {
                assert!(word.starts_with(&rule), "{place} has another rule: {word}\nnot {rule}");
                count += 1;
            }
        }
        assert!(count > 0, "{rule} stands nowhere else");
    }
}

/// A recipe behind a running HAProxy.
struct Running {
    directory: TempDir,
    _agent: Agent,
    haproxy: Haproxy,
}

impl Running {
    /// Starts an agent with the recipe's policies, and HAProxy with its messages and this block.
    fn start(recipe: &Recipe, frontend: &str) -> Self {
        let directory = directory();
        let folder = directory.path();
        let file = folder.join("gcra-spoa.toml");
        fs::write(&file, &recipe.policies[0]).unwrap();
        let table = folder.join("table");
        let agent = Agent::start(&table, &["--config", file.to_str().unwrap()]);
        let config = write_configuration(folder, recipe, frontend);
        let origin = folder.join("origin");
        let environment = [
            ("GCRA_AGENT1", &agent.address[..]),
            ("GCRA_AGENT2", &agent.address),
            ("ORIGIN", origin.to_str().unwrap()),
        ];
        let haproxy = Haproxy::start(config.to_str().unwrap(), &environment);
        Self { directory, _agent: agent, haproxy }
    }

    /// Sends `count` requests from one client, one after another. Returns their statuses.
    fn statuses(
        &self,
        client: u8,
        path: &str,
        headers: &[(&str, &str)],
        count: usize,
    ) -> Vec<u16> {
        let ip: IpAddr = Ipv4Addr::new(127, 0, 0, client).into();
        let mut client = Client::from(self.haproxy.frontend, ip);
        (0..count).map(|_| client.get_with(path, headers).unwrap().status).collect()
    }
}

fn passed(statuses: &[u16]) -> usize {
    statuses.iter().filter(|status| **status == 200).count()
}

/// The statement of docs/MIGRATING.md about the first requests of a client, for the stick table,
/// for the policy that replaces it, and for both beside each other.
#[test]
fn a_policy_allows_what_the_stick_table_allowed() {
    needs!(support::haproxy());
    let recipes = recipes("docs/MIGRATING.md");
    let recipe = &recipes["From HAProxy stick tables"];
    let [old, new] = &recipe.frontends[..] else { panic!("two frontends") };
    for frontend in [old, new] {
        let running = Running::start(recipe, frontend);
        let start = Instant::now();
        let statuses = running.statuses(1, "/", &[], 30);
        // On a machine that stands still, more may have come due: one in 500 ms.
        let due = start.elapsed().as_millis() / 500;
        assert_eq!(passed(&statuses[..20]), 20, "{statuses:?}");
        assert!(passed(&statuses) as u128 <= 20 + due, "{statuses:?} {due}");
    }

    let recipe = &recipes["Stick table and gcra-spoa beside each other"];
    let running = Running::start(recipe, &recipe.frontends[0]);
    let logged = |words: &[&str]| {
        let lines = running.haproxy.process.lines();
        lines.iter().any(|line| words.iter().all(|word| line.contains(word)))
    };
    let statuses = running.statuses(1, "/", &[], 20);
    assert_eq!(passed(&statuses), 20, "{statuses:?}");
    wait_until("the stick table and the policy agree that it is too much", || {
        running.statuses(1, "/", &[], 1);
        logged(&[" 429 ", " blocked=0 would_block=1 "])
    });
    assert!(logged(&[" 200 ", " blocked=0 would_block=0 "]));
    assert!(!logged(&[" blocked=1 "]), "it only observes");

    // Step 3: without the line, it blocks.
    let file = running.directory.path().join("gcra-spoa.toml");
    let observing = fs::read_to_string(&file).unwrap();
    let enforcing = observing.replace("mode = \"observe\"\n", "");
    assert_ne!(observing, enforcing);
    fs::write(&file, enforcing).unwrap();
    let mut reload = Command::new(agent_binary());
    reload.arg("reload").arg("--config").arg(&file);
    let output =
        reload.arg("--table").arg(running.directory.path().join("table")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    wait_until("the agent blocks", || {
        running.statuses(2, "/", &[], 1);
        logged(&["127.0.0.2:", " 429 ", " blocked=1 "])
    });
}

/// The fields without which a browser hides the answer from the script that asked.
#[test]
fn a_script_of_another_origin_can_read_a_429() {
    needs!(support::haproxy());
    let mut recipe = recipes("docs/RECIPES.md").remove("Scripts of other origins (CORS)").unwrap();
    recipe.policies = vec![recipe.policies[0].replace("100/m", "1/d")];
    let running = Running::start(&recipe, &recipe.frontends[0]);
    let mut client = Client::new(running.haproxy.frontend);
    let mut head = |origin: &str| client.get_with("/", &[("Origin", origin)]).unwrap();
    for status in [200, 429] {
        let response = head("https://app.example");
        assert_eq!(response.status, status);
        for field in [
            "\naccess-control-allow-origin: https://app.example\r",
            "\naccess-control-expose-headers: retry-after, ratelimit\r",
            "\nratelimit: ",
        ] {
            assert!(response.head.contains(field), "{field}: {}", response.head);
        }
        assert_eq!(response.head.contains("\nretry-after: "), status == 429);
    }
    let other = head("https://other.example");
    assert!(!other.head.contains("access-control-allow-origin"), "{}", other.head);
}

/// A call of gRPC that is over its limit has a status of gRPC, and other requests have 429.
#[test]
fn a_call_of_grpc_gets_resource_exhausted() {
    needs!(support::haproxy());
    let mut recipe = recipes("docs/RECIPES.md").remove("gRPC").unwrap();
    recipe.policies = vec![recipe.policies[0].replace("50/s burst 100", "1/d")];
    let running = Running::start(&recipe, &recipe.frontends[0]);
    let mut client = Client::new(running.haproxy.frontend);
    let call = [("Content-Type", "application/grpc")];
    let allowed = client.get_with("/a.B/C", &call).unwrap();
    assert!(!allowed.head.contains("grpc-status"), "{}", allowed.head);
    let blocked = client.get_with("/a.B/C", &call).unwrap();
    assert_eq!(blocked.status, 200);
    for field in ["\ngrpc-status: 8\r", "\ncontent-type: application/grpc\r", "\nretry-after: "] {
        assert!(blocked.head.contains(field), "{field}: {}", blocked.head);
    }
    assert_eq!(client.get("/").unwrap().status, 429);
}

#[test]
fn of_two_messages_either_blocks() {
    needs!(support::haproxy());
    let mut recipe = recipes("docs/guides/keys.md").remove("Combining messages").unwrap();
    recipe.policies =
        recipes("docs/RECIPES.md").remove("Logins, by address and by account").unwrap().policies;
    for is_reversed in [false, true] {
        if is_reversed {
            let reversed = recipe
                .messages
                .replace("messages login-ip login-account", "messages login-account login-ip");
            assert_ne!(recipe.messages, reversed);
            recipe.messages = reversed;
        }
        let running = Running::start(&recipe, &recipe.frontends[0]);
        let login =
            |client, user: &str| running.statuses(client, "/login", &[("X-User", user)], 1)[0];
        // Ten logins of one account from ten addresses, and no eleventh.
        assert!((1..=10).all(|client| login(client, "alice") == 200));
        assert_eq!(login(11, "ALICE"), 429, "by account");
        assert_eq!(login(11, "bob"), 200);
        // One address, with another account each time.
        let mut account = 0;
        wait_until("an address is blocked", || {
            account += 1;
            login(12, &format!("user{account}")) == 429
        });
        assert!(account > 10, "the burst of the address: {account}");
    }
}

#[test]
fn the_plan_of_an_api_key_comes_from_a_map() {
    needs!(support::haproxy());
    let directory = directory();
    let policies = haproxy_folder().join("api-plans.toml");
    let args = ["--config", policies.to_str().unwrap()];
    let agent = Agent::start(&directory.path().join("table"), &args);
    let environment = [("GCRA_AGENT1", &agent.address[..]), ("GCRA_AGENT2", &agent.address)];
    let haproxy = Haproxy::start("api-plans.cfg", &environment);
    let statuses = |headers: &[(&str, &str)], count| -> Vec<u16> {
        let mut client = Client::new(haproxy.frontend);
        (0..count).map(|_| client.get_with("/", headers).unwrap().status).collect()
    };
    assert_eq!(statuses(&[], 1), [401]);
    assert_eq!(statuses(&[("X-Api-Key", "invented")], 1), [401]);
    assert_eq!(passed(&statuses(&[("X-Api-Key", "key-4711")], 100)), 100);
    let start = Instant::now();
    let free = statuses(&[("X-Api-Key", "key-4712")], 50);
    let due = usize::try_from(start.elapsed().as_millis() / 200).unwrap();
    assert!((10..=10 + due).contains(&passed(&free)), "{free:?}");
}

/// Only the CDN's own word counts about an address: what a client writes into the header, through
/// the CDN or past it, gives it no other bucket.
#[test]
fn the_address_in_a_header_counts_if_the_proxy_has_written_it() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &["--rate", "5/h"]);
    let environment = [("GCRA_AGENT1", &agent.address[..]), ("GCRA_AGENT2", &agent.address)];
    let haproxy = Haproxy::start("behind-proxy.cfg", &environment);
    let passing = |connection: u8, header: fn(usize) -> String| {
        let ip: IpAddr = Ipv4Addr::new(127, 0, 0, connection).into();
        let mut client = Client::from(haproxy.frontend, ip);
        (0..7)
            .filter(|number| {
                let header = header(*number);
                let headers = [("X-Forwarded-For", &header[..])];
                let sent = if header.is_empty() { &headers[..0] } else { &headers };
                client.get_with("/", sent).unwrap().status == 200
            })
            .count()
    };
    assert_eq!(passing(1, |_| "203.0.113.1".to_owned()), 5);
    assert_eq!(passing(1, |_| "203.0.113.1".to_owned()), 0);
    assert_eq!(passing(1, |number| format!("198.51.100.{number}, 203.0.113.2")), 5);
    assert_eq!(passing(1, |number| format!("203.0.113.2, 203.0.113.{}", 10 + number)), 7);
    // Past the CDN, a client is its own address, whatever it writes.
    assert_eq!(passing(2, |number| format!("203.0.113.{}", 20 + number)), 5);
    assert_eq!(passing(2, |_| String::new()), 0);
    // Without the header all count as the CDN, and with one that has no address nothing passes.
    assert_eq!(passing(1, |_| "unknown".to_owned()), 0);
    assert_eq!(passing(1, |_| String::new()), 5);
}

#[test]
fn a_client_that_invents_api_keys_is_limited_and_an_office_is_not() {
    needs!(support::haproxy());
    let recipes = recipes("docs/RECIPES.md");
    for (section, is_exempt) in
        [("By API key, or by address where there is no key", false), ("Exempt our offices", true)]
    {
        let recipe = &recipes[section];
        let running = Running::start(recipe, &recipe.frontends[0]);
        let send = |client, number: usize| {
            let key = format!("invented-{number}");
            running.statuses(client, "/", &[("X-Api-Key", &key)], 1)[0]
        };
        let start = Instant::now();
        let statuses: Vec<_> = (0..400).map(|number| send(8, number)).collect();
        let due = usize::try_from(start.elapsed().as_millis() / 20).unwrap();
        assert!(passed(&statuses) <= 100 + due, "{section}: {}", passed(&statuses));
        let statuses: Vec<_> = (0..400).map(|_| send(9, 1)).collect();
        assert_eq!(passed(&statuses) == 400, is_exempt, "{section}: one key of an office");
    }
}

/// A task of docs/TASKS.md.
struct Task {
    name: String,
    /// The files of `haproxy/` that it links.
    files: Vec<String>,
    /// The commands that are typed, and the output of each.
    commands: Vec<(String, String)>,
}

fn tasks() -> Vec<Task> {
    let text = fs::read_to_string(root().join("docs/TASKS.md")).unwrap();
    let task = |section: &str| {
        let files = section.split("](../haproxy/").skip(1);
        let mut commands: Vec<(String, String)> = Vec::new();
        for line in section.split_once("```console\n").unwrap().1.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                commands.push((command.to_owned(), String::new()));
            } else if let Some(more) = line.strip_prefix("> ") {
                let (command, _) = commands.last_mut().unwrap();
                *command += &format!("\n{more}");
            } else if line == "```" {
                break;
            } else {
                let (_, printed) = commands.last_mut().unwrap();
                *printed += &format!("{line}\n");
            }
        }
        Task {
            name: section.lines().next().unwrap().to_owned(),
            files: files.map(|rest| rest.split(')').next().unwrap().to_owned()).collect(),
            commands,
        }
    };
    text.split("\n## ").skip(1).map(task).collect()
}

/// An application whose logins all fail, and each of whose other responses costs 60 000 tokens.
const APPLICATION: &str = "defaults\n    mode http\n    timeout connect 5s\n    \
    timeout client 30s\n    timeout server 30s\nfrontend web\n    bind \"${GCRA_HTTP}\"\n    \
    http-request return status 401 if { path /login }\n    \
    http-request return status 200 hdr X-Tokens 60000\n";

impl Task {
    /// The words behind `gcra-spoa` and `haproxy -f`.
    fn started(&self, program: &str) -> Vec<&str> {
        let words = self.commands.iter().find_map(|(command, _)| command.strip_prefix(program));
        let words = words.unwrap_or_else(|| panic!("{}: no {program}", self.name));
        words.strip_suffix(" &").expect("it goes on").split_whitespace().collect()
    }

    /// Runs the commands on as many machines as they name, and compares what they print with the
    /// page.
    fn run(&self, store: &str, is_right: fn(&str, &str) -> bool) {
        let directory = directory();
        let application = directory.path().join("application.cfg");
        fs::write(&application, APPLICATION).unwrap();
        let application = Haproxy::start_as_shipped(application.to_str().unwrap(), &[]);
        let application = application.frontend.to_string();
        let start = Instant::now();
        let names = |machine: &&str| {
            *machine == "a.example" || self.commands.iter().any(|(it, _)| it.contains(machine))
        };
        let machines: Vec<_> = ["a.example", "b.example"]
            .into_iter()
            .filter(names)
            .map(|machine| {
                let given = self.started("gcra-spoa ").into_iter().map(|word| match word {
                    "127.0.0.1:9101" => "127.0.0.1:0".to_owned(),
                    "redis://store.example" => store.to_owned(),
                    file if file.ends_with(".toml") => {
                        haproxy_folder().join(file).display().to_string()
                    }
                    other => other.to_owned(),
                });
                let given: Vec<_> = given.collect();
                let mut args: Vec<_> = given.iter().map(String::as_str).collect();
                if args.contains(&"--store") {
                    // A busy machine may stand still for longer than a request should wait.
                    args.extend(["--store-wait", "10s"]);
                }
                let agent = Agent::start(&directory.path().join(machine), &args);
                let environment = [
                    ("GCRA_AGENT1", &agent.address[..]),
                    ("GCRA_AGENT2", &agent.address),
                    ("GCRA_APP", &application),
                ];
                let haproxy = Haproxy::start(self.started("haproxy -f ")[0], &environment);
                (machine, agent, haproxy)
            })
            .collect();
        let admin = machines[0].1.process.lines().into_iter().find_map(|line| {
            Some(line.split_once("admin on http://")?.1.trim_end_matches('/').to_owned())
        });
        // What is started here has begun to listen.
        let is_tried = |it: &str| !it.ends_with(" &") && !it.starts_with("sleep ");
        for (command, printed) in self.commands.iter().filter(|(it, _)| is_tried(it)) {
            let mut command = command.replace("$host:8080", "$host");
            for (machine, _, haproxy) in &machines {
                command = command.replace(machine, &haproxy.frontend.to_string());
            }
            command = command.replace("localhost:8080", &machines[0].2.frontend.to_string());
            if let Some(admin) = &admin {
                command = command.replace("127.0.0.1:9101", admin);
            }
            let output = Command::new("sh").args(["-c", &command]).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap().replace('\r', "");
            // A cell comes back in 12 s.
            if start.elapsed() < Duration::from_secs(10) {
                let (said, printed) = (said.trim(), printed.trim());
                assert!(is_right(said, printed), "{}: {command}\n{said}\n{printed}", self.name);
            }
        }
    }

    /// The same where HAProxy decides itself.
    fn run_in_process(&self) {
        let folder = directory();
        let (module, table) = (support::lua_module(), folder.path().join("table"));
        let environment = [
            ("GCRA_LIB", module.to_str().unwrap()),
            ("GCRA_SHARE", &format!("{}/crates/gcra-lua", root().display())),
            ("GCRA_TABLE", table.to_str().unwrap()),
            ("GCRA_RATE", "1/m"),
        ];
        let start = Instant::now();
        let haproxy = Haproxy::start(self.started(IN_PROCESS)[0], &environment);
        haproxy.process.wait_for_table();
        let (command, printed) = self.commands.last().unwrap();
        let command = command.replace("localhost:8080", &haproxy.frontend.to_string());
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        // A cell comes back in a minute.
        if start.elapsed() < Duration::from_secs(50) {
            assert_eq!(said.trim(), printed.trim(), "{}", self.name);
        }
    }
}

/// The beginning of the command of the task in which HAProxy decides itself.
const IN_PROCESS: &str = "GCRA_RATE=1/m haproxy -f ";

fn curl() -> Result<(), String> {
    let output = Command::new("curl").arg("--version").output();
    output.map(drop).map_err(|_| "curl is not installed".to_owned())
}

/// The promise to a reader: no more than two files, and the curl shows that they do it.
#[test]
fn each_task_is_done_by_its_files() {
    needs!(support::haproxy());
    needs!(curl());
    let tasks = tasks();
    assert_eq!(tasks.len(), 13);
    let text = fs::read_to_string(root().join("docs/TASKS.md")).unwrap();
    for task in tasks {
        let is_in_process = task.commands[0].0.starts_with(IN_PROCESS);
        let haproxy = if is_in_process { IN_PROCESS } else { "haproxy -f " };
        let [config] = task.started(haproxy)[..] else { panic!("{}", task.name) };
        let words = if is_in_process { Vec::new() } else { task.started("gcra-spoa ") };
        let used = words.into_iter().filter(|word| word.ends_with(".toml")).chain([config]);
        let others = task.files.iter().filter(|file| file.ends_with(".conf")).count();
        assert!(task.files.len() <= 2, "{}: {:?}", task.name, task.files);
        let used: Vec<_> = used.collect();
        assert!(used.iter().all(|file| task.files.iter().any(|it| it == file)), "{}", task.name);
        assert_eq!(used.len() + others, task.files.len(), "{}", task.name);
        let link = task.name.to_lowercase().replace(' ', "-").replace(',', "");
        assert!(text.contains(&format!("* [{}](#{link})", task.name)), "{}", task.name);

        let is_too_old = config == "delay.cfg" && support::haproxy_since((3, 2)).is_err();
        if is_in_process {
            task.run_in_process();
        } else if !is_too_old && !task.commands[0].0.contains("--store") {
            task.run("", |said, printed| said == printed);
        }
    }
}

#[test]
fn the_task_of_several_machines_is_done_by_its_files() {
    needs!(support::haproxy());
    needs!(curl());
    needs!(valkey());
    let server = Server::start(&[]);
    let is_of_several = |task: &Task| task.commands[0].0.contains("--store");
    let task = tasks().into_iter().find(is_of_several).expect("a task with --store");
    // Cells that one machine holds are of no use to the other one, so it may be less.
    task.run(&server.url(), |said, printed| {
        let [said, most] = [said, printed].map(|it| it.parse::<u32>().unwrap());
        (1..=most).contains(&said)
    });
}

#[test]
fn every_warning_and_error_of_the_log_is_explained() {
    let page = words(&fs::read_to_string(root().join("docs/TROUBLESHOOTING.md")).unwrap());
    let (mut found, mut missing) = (0, Vec::new());
    for Sentence { file, level, text } in sentences_of_the_log() {
        let Some(first) = first_words(&text).filter(|_| level != Level::Info) else { continue };
        found += 1;
        if !page.contains(&first) {
            missing.push(format!("{file}: {first}"));
        }
    }
    assert!(missing.is_empty(), "docs/TROUBLESHOOTING.md does not have: {missing:#?}");
    assert!(found > 30, "{found}");
}

/// The headings of a document as GitHub writes them in addresses.
fn anchors(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let mut fenced = false;
    let mut anchors = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && line.starts_with('#') {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = |it: &char| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_');
            anchors.push(heading.chars().filter(kept).collect::<String>().replace(' ', "-"));
        }
    }
    anchors
}

/// Whether a file is in the archive of a release, beside the program.
fn packed() -> impl Fn(&Path) -> bool {
    let script = fs::read_to_string(root().join("deploy/release/release")).unwrap();
    let (_, rest) = script.split_once("cp -R --parents ").unwrap();
    let (names, _) = rest.split_once("\"$files").unwrap();
    let names: Vec<_> =
        names.split_whitespace().filter(|name| *name != "\\").map(str::to_owned).collect();
    move |path: &Path| {
        let path = fs::canonicalize(path).unwrap();
        let path = path.strip_prefix(fs::canonicalize(root()).unwrap()).unwrap();
        names.iter().any(|name| match name.split_once('*') {
            None => path.starts_with(name),
            Some((first, last)) => path.starts_with(first) && path.ends_with(&last[1..]),
        })
    }
}

/// All files in these folders of the project, and in those within them.
fn files_below(folders: &[&str]) -> Vec<PathBuf> {
    let mut folders: Vec<_> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// All pages that a reader is offered.
fn all_documents() -> Vec<PathBuf> {
    let mut documents: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
            .map(|name| root().join(name))
            .into();
    let mut below = files_below(&["docs", "haproxy", "deploy", "crates", "site/pages"]);
    below.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.append(&mut below);
    documents
}

/// The flags in a text, each from its dashes to its last letter.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    let is_in_name = |letter: char| letter.is_ascii_lowercase() || "-0123456789".contains(letter);
    text.match_indices("--").filter_map(move |(at, _)| {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|letter| letter == '-' || letter.is_alphanumeric()) {
            return None;
        }
        let name = &text[at + 2..];
        let end = name.find(|letter| !is_in_name(letter)).unwrap_or(name.len());
        name.starts_with(|letter: char| letter.is_ascii_lowercase())
            .then(|| &text[at..at + 2 + end])
    })
}

/// A flag that went, or never was, would be a command that fails.
#[test]
fn every_flag_in_the_documents_exists() {
    const OF_OTHERS: [&str; 12] = [
        "--create-namespace",
        "--from-literal",
        "--hostname",
        "--memory",
        "--namespace",
        "--network",
        "--replicaof",
        "--reuse-values",
        "--set",
        "--set-file",
        "--user",
        "--userns",
    ];
    let interface = fs::read_to_string(root().join("tests/interfaces/commands.txt")).unwrap();
    let known: BTreeSet<_> = flags(&interface).collect();
    let (mut found, mut wrong) = (0, Vec::new());
    for document in all_documents() {
        // A decision may be about a flag that it removed, and writers have tools of their own.
        if document.components().any(|it| it.as_os_str() == "adr")
            || document.ends_with("CONTRIBUTING.md")
        {
            continue;
        }
        let text = fs::read_to_string(&document).unwrap().replace("\\\n", " ");
        // A flag as a word of its own, and all flags of a command of ours.
        let words = text.split('`').filter(|it| it.starts_with("--") && !it.contains('\n'));
        let commands = text.split("gcra-spoa ").skip(1);
        let commands =
            commands.map(|rest| rest.split(['`', '\n', '|', ';', '&', '#']).next().unwrap());
        for flag in
            words.map(|word| flags(word).next().unwrap_or(word)).chain(commands.flat_map(flags))
        {
            found += 1;
            if !known.contains(flag) && !OF_OTHERS.contains(&flag) {
                wrong.push(format!("{}: {flag}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "no command of the program has these flags: {wrong:#?}");
    assert!(found > 200, "{found}");
}

/// A source that was renamed would be looked for in vain.
#[test]
fn every_source_in_the_documents_exists() {
    let sources = files_below(&["benches", "crates", "examples", "fuzz", "site", "tests"]);
    let (mut found, mut wrong) = (0, Vec::new());
    for document in all_documents() {
        // A new agent of a reader has one.
        if document.ends_with("TEN_MINUTES.md") {
            continue;
        }
        let text = fs::read_to_string(&document).unwrap();
        for name in text.split('`').filter(|it| it.ends_with(".rs") || it.ends_with(".lua")) {
            let is_name = name.chars().all(|it| it.is_alphanumeric() || "_-./".contains(it));
            if !is_name || name.starts_with(['.', '/']) {
                continue;
            }
            found += 1;
            if !sources.iter().any(|path| path.ends_with(name)) {
                wrong.push(format!("{}: {name}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "there are no such sources: {wrong:#?}");
    assert!(found > 50, "{found}");
}

/// The number of tasks, files or tables changes, and the sentence about it stays.
#[test]
fn no_document_counts_what_a_reader_can_see() {
    const NUMBERS: &str = " two three four five six seven eight nine ten eleven twelve thirteen \
                           fourteen fifteen sixteen eighteen twenty ";
    const THINGS: [&str; 9] = [
        "tasks",
        "recipes",
        "examples",
        "guides",
        "questions",
        "tables",
        "sections",
        "alerts",
        "panels",
    ];
    let mut wrong = Vec::new();
    for document in all_documents() {
        let text = fs::read_to_string(&document).unwrap().to_lowercase();
        let words: Vec<_> = text.split_whitespace().collect();
        for pair in words.windows(2) {
            let thing = pair[1].trim_matches(|letter: char| !letter.is_alphanumeric());
            let is_number = NUMBERS.contains(&format!(" {} ", pair[0]))
                || pair[0].parse::<u32>().is_ok_and(|number| number > 1);
            let is_known = matches!(pair, ["two", "tasks" | "tasks,"]);
            if THINGS.contains(&thing) && is_number && !is_known {
                wrong.push(format!("{}: {} {thing}", document.display(), pair[0]));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let is_packed = packed();
    let (mut found, mut wrong) = (0, Vec::new());
    for document in all_documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let (file, anchor) = link.0.split_once('#').unwrap_or((link.0, ""));
            if file.contains("://") {
                continue;
            }
            let target =
                if file.is_empty() { document.clone() } else { document.with_file_name(file) };
            let leads = target.exists()
                && (is_packed(&target) || !is_packed(&document))
                && (anchor.is_empty() || anchors(&target).iter().any(|known| known == anchor));
            found += 1;
            if !leads {
                let name = document.strip_prefix(root()).unwrap();
                wrong.push(format!("{}: {}", name.display(), link.0));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(found > 50, "{found}");
}

/// A reference is looked things up in, and a guide is read at once.
#[test]
fn documents_are_as_long_as_their_readers_have_time() {
    let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
    assert!(lines(&root().join("docs/CONFIG.md")) <= 700);
    let guides = std::fs::read_dir(root().join("docs/guides")).unwrap();
    let guides: Vec<_> = guides.map(|guide| guide.unwrap().path()).collect();
    assert!(guides.len() >= 7, "{guides:?}");
    for guide in guides {
        assert!(lines(&guide) <= 150, "{}: {}", guide.display(), lines(&guide));
    }
}

/// The number before `unit` in the first line of a text that has `words`. Spaces within the number
/// count for nothing.
fn figure(text: &str, words: &str, unit: &str) -> f64 {
    let line = text.split_once(words).unwrap_or_else(|| panic!("no {words:?}")).1;
    let before = line.split(unit).next().unwrap();
    let digits =
        before.rfind(|letter: char| !" .0123456789".contains(letter)).map_or(0, |at| at + 1);
    let number: String = before[digits..].split_whitespace().collect();
    number.parse().unwrap_or_else(|_| panic!("no number of {unit} behind {words:?}: {before}"))
}

/// A limit of memory below the sum of what an agent may take would let its peers have it killed.
#[test]
fn the_limits_of_memory_in_the_charts_are_above_all_bounds() {
    const MIB: f64 = 1_048_576.0;
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let protocol = read("docs/internals/PROTOCOL.md");
    let bounds = protocol.split_once("## Bounds").unwrap().1;
    let served = figure(bounds, "**Connections**:", " are served");
    let more = figure(bounds, " are served, and", " more get empty ACKs");
    let at_rest =
        figure(bounds, "**A connection at rest**: no buffer; about", " kB") * 1000.0 / MIB;
    let buffers = figure(bounds, "**Bytes kept by all connections**:", " MiB");
    let worker = figure(bounds, "`--buffers`, and", " MiB for each worker");
    let program = figure(bounds, "lends\n  for it, and", " MiB for the program");

    let chart = read("deploy/helm/gcra-spoa/values.yaml");
    let slots = figure(&chart, "\n  slots:", "\n");
    let threads = figure(&chart, "\nthreads:", "\n");
    assert!(chart.contains("\n  sizeLimit: \"\"\n"), "the default of five tables and 8 MiB");
    let volume = 5.0 * slots * 16.0 / MIB + 8.0;
    let sidecar = read("deploy/kubernetes/sidecar/values.yaml");
    let volume_of_sidecar =
        figure(&sidecar, "- name: gcra-table\n      emptyDir: {medium: Memory, sizeLimit:", "Mi");

    let others = buffers + worker * threads + (served + more) * at_rest + program;
    for (what, needed, limit) in [
        ("the chart", others + volume, figure(&chart, "  limits:\n    memory:", "Mi")),
        ("the sidecar", others + volume_of_sidecar, figure(&sidecar, "limits: {memory:", "Mi")),
    ] {
        println!("{what}: at most {needed:.0} of {limit} MiB");
        assert!(needed <= limit, "{what} needs up to {needed:.0} MiB, and may have {limit}");
    }
}
