//! Orders on several machines: each is an agent with a table of its own.

use std::fs;
use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gcra_text::duration::parse_moment;
use serde_json::Value as Json;
use spop_codec::Value;
use tempfile::TempDir;

use crate::support::proxy::Proxy;
use crate::support::server_groups::{cluster, cluster_url};
use crate::support::spop::Spop;
use crate::support::valkey::{Server, valkey};
use crate::support::{
    Agent, admin, again_while, directory, free_port, in_time, needs, wait_until,
};

/// A machine, whose agents may be stopped.
struct Machine {
    directory: TempDir,
    /// The agent and its admin address.
    agent: Option<(Agent, String)>,
    config: PathBuf,
}

impl Machine {
    /// A machine whose agents are not started yet.
    fn new(store: &str) -> Self {
        let directory = directory();
        let config = directory.path().join("gcra-spoa.toml");
        // A machine for tests may stand still for longer than a request should wait.
        let text = format!(
            "[store]\nurl = \"{store}\"\nwait = \"10s\"\nleast_replicas = 0\n\
             [policy.check]\nlimits = \"100000/d\"\nkey = [\"ip\"]\n\
             [policy.user]\nlimits = \"100000/d\"\nkey = [\"user\", \"ip\"]\n"
        );
        fs::write(&config, text).unwrap();
        Self { directory, agent: None, config }
    }

    fn start(mut self) -> Self {
        let token = token(&self.directory, "token", TOKEN);
        let flags = ["--config", self.config.to_str().unwrap(), "--admin-actions", &token];
        let (agent, address) = admin::start(&self.table(), &flags);
        let status = || -> Json { admin::status(&address) };
        wait_until("the store is used", || status()["together"]["store"]["up"] == true);
        self.agent = Some((agent, address));
        self
    }

    fn stop(&mut self) {
        self.agent = None;
    }

    fn table(&self) -> PathBuf {
        self.directory.path().join("table")
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        command.args(args).arg("--table").arg(self.table()).env("SUDO_USER", "anna");
        command.output().unwrap()
    }

    /// The output of a command, and its exit status.
    fn said(&self, args: &[&str]) -> (String, i32) {
        let output = self.run(args);
        (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
    }

    fn is_blocked(&self, message: &str, args: &[(&str, Value<'_>)]) -> bool {
        let (agent, _) = self.agent.as_ref().unwrap();
        let answers = Spop::connect(&agent.address).ask(&[(message, args)]);
        answers.iter().any(|(.., is_blocked)| *is_blocked)
    }

    fn has_line(&self, said: &str) -> bool {
        let lines = self.agent.as_ref().unwrap().0.process.lines();
        lines.iter().any(|line| line.contains(said))
    }
}

const TOKEN: &str = "correct-horse-battery";

/// A file with a token.
fn token(directory: &TempDir, name: &str, text: &str) -> String {
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path.into_os_string().into_string().unwrap()
}

fn ip(text: &str) -> Value<'static> {
    Value::from(text.parse::<std::net::IpAddr>().unwrap())
}

#[test]
fn an_order_holds_on_all_machines_of_a_store_also_on_one_that_was_away() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let [one, two, mut three] = [(); 3].map(|()| Machine::new(&server.url()));
    let (one, two) = (one.start(), two.start());
    let client = [("ip", ip("2001:db8::7"))];
    let user = [("user", "alice-from-sales".into()), ("ip", ip("192.0.2.7"))];
    let block = ["block", "--for", "1h", "--note", "INC-4711"];

    let (words, status) = one.said(&[&block[..], &["2001:db8::1"]].concat());
    let holds =
        "on all machines of the store within about 5 seconds (one that is away follows when";
    assert!(words.contains(holds) && status == 0, "{words}");
    assert_eq!(one.said(&[&block[..], &["alice-from-sales,192.0.2.7"]].concat()).1, 0);
    assert_eq!(one.said(&[&block[..], &["--policy", "check", "10.1.0.0/16"]].concat()).1, 0);
    three = three.start();
    for machine in [&one, &two, &three] {
        wait_until("the client is blocked", || machine.is_blocked("check", &client));
        wait_until("the user is blocked", || machine.is_blocked("user", &user));
        wait_until("the network is blocked", || {
            machine.is_blocked("check", &[("ip", ip("10.1.2.3"))])
        });
        assert!(!machine.is_blocked("user", &[("user", "bob".into()), ("ip", ip("192.0.2.7"))]));
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (listed, _) = three.said(&["block", "--list"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let by = format!(", by anna@{host}");
    assert!(listed.contains(&by[..by.len().min(40)]) && listed.contains(", here since 20"));
    assert!(listed.contains("2001:db8::/64: policy 'check', blocked for another "), "{listed}");
    let (explained, _) = two.said(&["explain", "--message", "check", "ip=2001:db8::7"]);
    assert!(explained.contains(", here since 20"), "{explained}");

    // The end is given elsewhere, with another KEY of the client, while a machine is away.
    three.stop();
    let (words, status) = two.said(&["block", "--end", "2001:db8::3"]);
    assert!(words.contains(&format!("the block has ended, {holds}")) && status == 0, "{words}");
    wait_until("the client is not blocked", || !one.is_blocked("check", &client));
    three = three.start();
    wait_until("the client is not blocked", || !three.is_blocked("check", &client));
    assert!(one.is_blocked("user", &user) && three.is_blocked("user", &user));
    // The other kind takes the place of the block.
    assert_eq!(three.said(&["exempt", "--for", "1h", "alice-from-sales,192.0.2.7"]).1, 0);
    wait_until("the user is exempt", || {
        one.said(&["exempt", "--list"]).0.contains(": policy 'user', exempt for another ")
    });
    assert!(!one.said(&["block", "--list"]).0.contains("policy 'user'"));
    assert_eq!(two.said(&["block", "--end", "2001:db8:9::1"]).1, 1, "there was none");

    // An action of an agent goes through the store, too, and a machine may have several agents.
    let token = token(&two.directory, "token", TOKEN);
    let (_, address) = two.agent.as_ref().unwrap();
    let another = Machine { directory: two.directory, agent: None, config: two.config };
    let another = another.start();
    let there = ["exempt", "--end", "alice-from-sales,192.0.2.7", "--admin", address];
    let (words, status) = elsewhere(&[&there[..], &["--token", &token]].concat());
    assert!(words.contains(" is no longer exempt, on all machines") && status == 0, "{words}");
    for machine in [&one, &another, &three] {
        wait_until("the user is not exempt", || {
            machine.said(&["exempt", "--list"]).0.contains("no client is exempt")
        });
    }
}

#[test]
fn machines_of_one_store_that_get_the_same_order_at_once_all_have_done_it() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let machines = [(); 3].map(|()| Machine::new(&server.url()).start());
    let token = token(&machines[0].directory, "token", TOKEN);
    let admins = machines.iter().map(|machine| &*machine.agent.as_ref().unwrap().1);
    let named: Vec<_> = admins.flat_map(|address| ["--admin", address]).collect();
    let there = [&named[..], &["--token", &token]].concat();
    for client in 1..=20 {
        let key = format!("192.0.2.{client}");
        let (words, status) = elsewhere(&[&["block", "--for", "1h", &key], &there[..]].concat());
        assert!(words.matches(": done: ").count() == 3 && status == 0, "{words}");
        for machine in &machines {
            wait_until("it is blocked", || machine.is_blocked("check", &[("ip", ip(&key))]));
        }
        let (words, status) = elsewhere(&[&["block", "--end", &key], &there[..]].concat());
        assert!(words.matches(": done: ").count() == 3 && status == 0, "{words}");
    }
}

/// As it is when one machine is later than the others.
#[test]
fn the_end_of_an_order_that_another_machine_has_ended_is_done() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let (one, two) = (Machine::new(&server.url()).start(), Machine::new(&server.url()).start());
    let token = token(&two.directory, "token", TOKEN);
    let there = ["--admin", &*two.agent.as_ref().unwrap().1, "--token", &token];
    let end = |order: &str, key: &str| {
        let args = [order, "--end", "--policy", "check", key];
        (two.said(&args), elsewhere(&[&args[..], &there].concat()))
    };
    let client = [("ip", ip("192.0.2.1"))];
    assert_eq!(one.said(&["block", "--for", "1h", "192.0.2.1"]).1, 0);
    wait_until("it is blocked", || two.is_blocked("check", &client));
    assert_eq!(one.said(&["block", "--end", "192.0.2.1"]).1, 0);
    wait_until("it is not blocked", || !two.is_blocked("check", &client));
    let ((words, status), (said, status_there)) = end("block", "192.0.2.1");
    assert!(words.contains("the block was ended ") && status == 0, "{words}");
    let done = ": done: policy 'check': the block of 192.0.2.1 was ended ";
    assert!(said.contains(done) && status_there == 0, "{said}");
    // What never was, and what is no longer the last.
    assert_eq!(one.said(&["exempt", "--for", "1h", "192.0.2.3"]).1, 0);
    assert_eq!(one.said(&["exempt", "--end", "192.0.2.3"]).1, 0);
    assert_eq!(one.said(&["block", "--for", "1h", "192.0.2.3"]).1, 0);
    wait_until("it is blocked", || two.is_blocked("check", &[("ip", ip("192.0.2.3"))]));
    for (order, key) in [("exempt", "192.0.2.1"), ("block", "192.0.2.2"), ("exempt", "192.0.2.3")]
    {
        let ((words, status), (said, status_there)) = end(order, key);
        assert!(words.contains("there was no ") && status == 1, "{words}");
        assert!(said.contains(": refused: there is no ") && status_there == 1, "{said}");
    }
}

#[test]
fn without_the_store_an_order_holds_here_and_a_store_that_forgot_learns_the_others_again() {
    needs!(valkey());
    let mut server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let (mut one, mut two) =
        (Machine::new(&server.url()).start(), Machine::new(&server.url()).start());
    let client = |last: u8| [("ip", ip(&format!("192.0.2.{last}")))];
    let block = |machine: &Machine, key: &str| machine.said(&["block", "--for", "1h", key]);
    assert_eq!(block(&one, "192.0.2.1").1, 0);
    wait_until("it is blocked", || two.is_blocked("check", &client(1)));
    server.kill();
    let (words, status) = block(&one, "192.0.2.2");
    let here = "on this machine within about two seconds, and on the others when its agents can";
    assert!(words.contains(here) && status == 1, "{words}");
    // In JSON, too, it is not as if all machines had it.
    for (args, said) in [
        (&["block", "--for", "1h", "192.0.2.4"][..], here),
        (&["block", "--end", "192.0.2.4"], "on this machine only, in all agents within about"),
        (&["table", "reset", "--policy", "user"], here),
    ] {
        let (words, status) = one.said(&[args, &["--json"]].concat());
        let json: Json = serde_json::from_str(&words).unwrap();
        assert!(json["note"].as_str().unwrap().starts_with(said) && status == 1, "{words}");
    }
    // Others may have given an order that this machine does not have.
    let (address, missing) = (&*one.agent.as_ref().unwrap().1, "orders of other machines may be");
    wait_until("the agent knows it", || {
        elsewhere(&["block", "--list", "--admin", address]).0.contains(missing)
    });
    let token = token(&one.directory, "token", TOKEN);
    for (args, right) in [
        (&["block", "--list"][..], 0),
        (&["block", "--list", "--plain"], 0),
        (&["block", "--end", "192.0.2.9"], 1),
    ] {
        let output = one.run(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(missing) && output.status.code() == Some(right), "{said}");
    }
    let end = ["block", "--end", "192.0.2.9", "--admin", address, "--token", &token];
    assert!(elsewhere(&end).0.contains(missing));
    wait_until("it is blocked here", || one.is_blocked("check", &client(2)));
    assert!(!two.is_blocked("check", &client(2)));
    assert!(two.is_blocked("check", &client(1)), "it goes on to hold");
    // The memory of the server is lost. A machine that is new gets it from the others.
    server.restart();
    let three = Machine::new(&server.url()).start();
    wait_until("it is blocked", || three.is_blocked("check", &client(1)));
    for machine in [&two, &three] {
        wait_until("it has come there", || machine.is_blocked("check", &client(2)));
    }
    // The memory is lost while no agent runs: the tables have the orders.
    server.kill();
    one.stop();
    two.stop();
    drop(three);
    server.restart();
    let (one, two) = (one.start(), two.start());
    let three = Machine::new(&server.url()).start();
    wait_until("it is blocked", || three.is_blocked("check", &client(1)));
    wait_until("it is blocked", || three.is_blocked("check", &client(2)));
    assert_eq!(two.said(&["block", "--end", "192.0.2.2"]).1, 0);
    wait_until("it has ended", || !one.is_blocked("check", &client(2)));

    // The list of the store is not one.
    let keys = server.say(&["KEYS", "*:orders:1:*"]);
    let name = keys.lines().find(|line| line.starts_with("{gcra:")).unwrap().to_owned();
    server.say(&["SET", &name, "rubbish"]);
    let said = format!("has under {name} is not a list of orders; remove this key");
    wait_until("the log says it", || three.has_line(&said));
    let (words, status) = block(&one, "192.0.2.3");
    assert!(words.contains(&said) && status == 1, "{words}");
    server.say(&["DEL", &name]);
    wait_until("the log says it", || {
        three.has_line("orders of other machines are followed again")
    });
    assert!(two.is_blocked("check", &client(1)));
}

/// The store does not get the end: the command ends while that is on the way.
#[test]
fn an_end_that_is_killed_half_way_has_ended_on_no_machine_alone() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let proxy = Proxy::start((Ipv4Addr::LOCALHOST, server.port).into());
    let one = Machine::new(&format!("redis://{}", proxy.address())).start();
    let two = Machine::new(&server.url()).start();
    let client = [("ip", ip("192.0.2.1"))];
    assert_eq!(one.said(&["block", "--for", "1h", "192.0.2.1"]).1, 0);
    wait_until("it is blocked", || two.is_blocked("check", &client));
    wait_until("it is blocked", || one.is_blocked("check", &client));
    let token = token(&one.directory, "token", TOKEN);
    let (_, address) = one.agent.as_ref().unwrap();
    let end = ["block", "--end", "192.0.2.1"];
    // A call that gives the store nothing has an empty list.
    proxy.hold_these(|it| it.contains(":orders:1:") && !it.contains("\r\n$0\r\n\r\n"));
    let table = one.table();
    let here = ["--table", table.to_str().unwrap()];
    let there = ["--admin", &**address, "--token", &token];
    for (at, place) in (1..).zip([&here[..], &there]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        let mut command = command.args(end).args(place).spawn().unwrap();
        wait_until("the end is on the way", || proxy.held() == at);
        for machine in [&one, &two] {
            let (listed, _) = machine.said(&["block", "--list"]);
            assert!(listed.contains("192.0.2.1: policy 'check', blocked for "), "{listed}");
        }
        command.kill().unwrap();
        command.wait().unwrap();
    }
    proxy.cut(true);
    proxy.hold_these(|_| false);
    proxy.cut(false);
    assert_eq!(one.said(&end).1, 0);
    for machine in [&one, &two] {
        wait_until("it is not blocked", || !machine.is_blocked("check", &client));
    }
}

/// A command that is killed between two calls would leave the end of the earlier order alone.
#[test]
fn an_order_that_takes_the_place_of_a_longer_one_is_one_call() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let machine = Machine::new(&server.url()).start();
    let proxy = Proxy::start((Ipv4Addr::LOCALHOST, server.port).into());
    let text = fs::read_to_string(&machine.config).unwrap();
    let proxied = machine.directory.path().join("proxied.toml");
    let url = format!("redis://{}", proxy.address());
    fs::write(&proxied, text.replace(&server.url(), &url)).unwrap();
    let order = |time: &str, command: &str| {
        let config = proxied.to_str().unwrap();
        machine.said(&[command, "--for", time, "192.0.2.1", "--config", config])
    };
    assert_eq!(order("2h", "block").1, 0);
    // The first call that gives the store something passes, and no other.
    proxy.hold_these(|it| {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let gives = it.contains(":orders:1:") && !it.contains("\r\n$0\r\n\r\n");
        gives && CALLS.fetch_add(1, Ordering::Relaxed) > 0
    });
    let (said, status) = order("1h", "exempt");
    assert!(said.contains(", on all machines of the store within") && status == 0, "{said}");
    assert_eq!(proxy.held(), 0);
}

/// A machine without agents has an exemption that the store does not have.
#[test]
fn an_end_leaves_orders_of_the_other_kind_alone() {
    needs!(valkey());
    let mut server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let (mut one, two) =
        (Machine::new(&server.url()).start(), Machine::new(&server.url()).start());
    let client = [("ip", ip("192.0.2.1"))];
    one.stop();
    server.kill();
    assert_eq!(one.said(&["exempt", "--for", "1h", "192.0.2.1"]).1, 1);
    server.restart();
    assert_eq!(two.said(&["block", "--for", "1h", "192.0.2.1"]).1, 0);
    let (words, status) = one.said(&["exempt", "--end", "192.0.2.1"]);
    assert!(words.contains("the exemption has ended, ") && status == 0, "{words}");
    assert!(one.said(&["exempt", "--list"]).0.contains("no client is exempt"));
    let three = Machine::new(&server.url()).start();
    for machine in [&one.start(), &two, &three] {
        wait_until("it is blocked", || machine.is_blocked("check", &client));
    }
}

#[test]
fn an_order_goes_through_a_cluster() {
    needs!(valkey());
    let nodes = cluster(3);
    let url = cluster_url(&nodes);
    let (one, two) = (Machine::new(&url).start(), Machine::new(&url).start());
    let (words, status) = one.said(&["block", "--for", "1h", "192.0.2.1"]);
    assert_eq!(status, 0, "{words}");
    wait_until("it is blocked", || two.is_blocked("check", &[("ip", ip("192.0.2.1"))]));
    assert_eq!(two.said(&["block", "--end", "192.0.2.1"]).1, 0);
    wait_until("it is not blocked", || !one.is_blocked("check", &[("ip", ip("192.0.2.1"))]));
}

/// A command waits so long for an agent, which itself waits longer for the store.
const TOO_LATE: &str = " within 5000 ms";

/// A command about agents that are named, and its output and exit status. On a busy machine it is
/// run until no agent is late.
fn elsewhere(args: &[&str]) -> (String, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    command.args(args).env("SUDO_USER", "anna");
    let output = in_time(|| again_while(&[TOO_LATE], || command.output().unwrap()));
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8(said).unwrap(), output.status.code().unwrap())
}

/// Such orders are listed, so they can be ended.
#[test]
fn an_order_of_a_former_key_or_policy_is_named_and_ended_elsewhere() {
    let directory = directory();
    let token = token(&directory, "token", TOKEN);
    let [config, table] = ["gcra-spoa.toml", "table"].map(|name| directory.path().join(name));
    let check = "[policy.check]\nlimits = \"2/d\"\nkey = [\"ip\"]\n";
    let gone = check.replace("check", "gone");
    fs::write(&config, format!("{gone}{check}ipv4_prefix = 24\n")).unwrap();
    let file = ["--config", config.to_str().unwrap()];
    let (_agent, address) =
        admin::start(&table, &[&file[..], &["--admin-actions", &token]].concat());
    let there = ["--admin", &*address, "--token", &token];
    let block = |policy, key| {
        let args = ["block", "--for", "1h", "--policy", policy, key];
        assert_eq!(elsewhere(&[&args[..], &there].concat()).1, 0);
    };
    block("check", "10.9.0.0/24");
    block("gone", "192.0.2.1");
    let list = || elsewhere(&["block", "--list", "--admin", &address]).0;
    assert!(!list().contains("no client has this key"), "{}", list());
    fs::write(&config, format!("{check}ipv4_prefix = 16\n")).unwrap();
    let reload = [&["reload", "--table", table.to_str().unwrap()], &file[..]].concat();
    assert_eq!(elsewhere(&reload).1, 0);
    let misfit = "; no client has this key by the agent's configuration as it is now";
    wait_until("the list says it", || list().matches(misfit).count() == 1);
    for (key, of, listed) in [
        ("10.9.0.0/24", "policy 'check': ", "policy 'check', blocked for "),
        ("192.0.2.1", "", "a policy that the agent does not have, blocked for "),
    ] {
        assert!(list().contains(&format!("{address}: {key}: {listed}")), "{}", list());
        let (words, status) = elsewhere(&[&["block", "--end", key], &there[..]].concat());
        let done = format!(
            "{address}: done: {of}the block of {key}, from before the key was changed, has \
             ended, in all agents within about two seconds\n"
        );
        assert_eq!((words, status), (done, 0));
        wait_until("the list says it", || !list().contains(key));
        assert_eq!(elsewhere(&[&["block", "--end", key], &there[..]].concat()).1, 1);
    }
}

/// Three agents without a store, of which one has another token, and an address where none is.
#[test]
fn without_a_store_each_machine_that_is_named_is_asked() {
    let directory = directory();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let right = token(&directory, "right", TOKEN);
    let wrong = token(&directory, "wrong", "battery-horse-correct");
    let start = |name: &str, token: &str| {
        let flags = ["--rate", "2/h", "--key", "ip", "--admin-actions", token];
        admin::start(&directory.path().join(name), &flags)
    };
    let (one, first) = start("one", &right);
    let (two, second) = start("two", &right);
    let (_three, third) = start("three", &wrong);
    let nobody = free_port("127.0.0.1".parse().unwrap()).to_string();
    let client = [("ip", ip("192.0.2.7"))];
    let is_blocked = |agent: &Agent| Spop::connect(&agent.address).is_blocked(&client);

    let both = ["--admin", &*first, "--admin", &*second, "--token", &*right];
    let block = ["block", "--for", "1h", "--note", "INC-4711", "192.0.2.7"];
    let (words, status) = elsewhere(&[&block[..], &both].concat());
    for address in [&first, &second] {
        let done =
            format!("{address}: done: policy 'default': 192.0.2.7 is blocked for 1h, until");
        assert!(words.contains(&done) && status == 0, "{words}");
    }
    wait_until("it is blocked", || is_blocked(&one) && is_blocked(&two));

    // A file names all, of which some do not do it.
    let agents = path("agents");
    let text = format!("# all\n{first}\n{second} # the second\n{third}\n{nobody}\n");
    fs::write(&agents, text).unwrap();
    let all = ["--agents", &*agents, "--token", &*right];
    let (words, status) = elsewhere(&[&["block", "--end", "192.0.2.7"], &all[..]].concat());
    for said in [
        format!("{first}: done: policy 'default': 192.0.2.7 is no longer blocked, "),
        format!("{third}: refused: the token is wrong; "),
        format!("{nobody}: not reached: no answer from {nobody}: no process listens there\n"),
    ] {
        assert!(words.contains(&said) && status == 1, "{said}: {words}");
    }
    let again = "some machines have not answered; end it there again";
    assert!(words.contains(again) && words.lines().count() == 5, "{words}");
    wait_until("it is not blocked", || !is_blocked(&one) && !is_blocked(&two));
    let block = ["block", "--for", "2h", "192.0.2.6", "--admin", &nobody, "--admin", &first];
    let (words, status) = elsewhere(&[&block[..], &["--token", &right]].concat());
    let until = words.split(" --until '").nth(1).and_then(|rest| rest.split('\'').next());
    assert!(words.contains("that changes nothing on machines") && status == 1, "{words}");
    let began = Instant::now();
    let block = ["block", "--until", until.unwrap(), "192.0.2.6", "--admin", &first];
    let (words, status) = elsewhere(&[&block[..], &["--token", &right]].concat());
    assert!(words.contains(" is blocked for ") && status == 0, "{words}");
    let (listed, _) = elsewhere(&["block", "--list", "--admin", &first]);
    // The time that is left is sent in whole seconds, and counts from when it arrives.
    let ends = listed.split(", until ").nth(1).and_then(|rest| rest.split(", here").next());
    let [least, ends] = [until, ends].map(|text| parse_moment(text.unwrap()).unwrap());
    let most = least + Duration::from_secs(1) + began.elapsed();
    assert!((least..=most).contains(&ends), "{listed}");
    assert_eq!(
        elsewhere(&[&["block", "--end", "192.0.2.6"], &both[..2], &both[4..]].concat()).1,
        0
    );
    let (words, status) = elsewhere(&[&["exempt", "--end", "192.0.2.7"], &both[..]].concat());
    assert!(words.contains(&format!("{first}: refused: there is no exemption")), "{words}");
    assert_eq!(status, 1);

    // The debt is cleared, and the list needs no token.
    let (mut spop, debtor) = (Spop::connect(&one.address), [("ip", ip("192.0.2.5"))]);
    assert_eq!(spop.allowed(&debtor, 3), 2);
    let (words, status) = elsewhere(&[&["table", "reset", "192.0.2.5"], &both[..]].concat());
    assert!(words.contains("was forgiven") && status == 0, "{words}");
    assert_eq!(spop.allowed(&debtor, 3), 2);
    let (words, status) = elsewhere(&[&["table", "reset", "192.0.2.99"], &both[..]].concat());
    let none = format!("{first}: not found: 192.0.2.99: policy 'default': no bucket: ");
    assert!(words.contains(&none) && status == 1, "{words}");
    let policy = ["table", "reset", "--policy", "default"];
    let (words, status) = elsewhere(&[&policy[..], &both].concat());
    for address in [&first, &second] {
        let done = format!("{address}: done: policy 'default': all clients begin with no debts");
        assert!(words.contains(&done) && status == 0, "{words}");
    }
    wait_until("the client owes nothing", || spop.allowed(&debtor, 1) == 1);
    let keys = ["exempt", "--for", "40h", "192.0.2.8", "192.0.2.9"];
    let (words, status) = elsewhere(&[&keys[..], &both].concat());
    assert!(words.contains(&format!("{first}: 192.0.2.9: done: ")) && status == 0, "{words}");
    let list = ["exempt", "--list", "--admin", &*first, "--admin", &*third];
    let (words, status) = elsewhere(&list);
    let begin = format!("{first}: 192.0.2.9: policy 'default', exempt for another 40 h, until ");
    assert!(words.contains(&begin) && words.contains(", by anna@"), "{words}");
    assert!(words.contains(&format!("{third}: no client is exempt\n")) && status == 0, "{words}");
    let (words, status) = elsewhere(&["exempt", "--list", "--policy", "nope", "--admin", &first]);
    let none = format!("{first}: refused: there is no policy 'nope' in the agent's configuration");
    assert!(words.starts_with(&none) && status == 2, "{words}");
    // In JSON, a machine without orders is not one that was not reached.
    let list = ["exempt", "--list", "--json", "--admin", &first, "--admin", &third];
    let (words, status) = elsewhere(&[&list[..], &["--admin", &nobody]].concat());
    let lines = words.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let lines: Vec<_> = lines.collect();
    let of = |address: &String| lines.iter().find(|line| line["agent"] == **address).unwrap();
    assert_eq!((lines.len(), status), (3, 1), "{words}");
    assert_eq!(of(&first)["orders"].as_array().unwrap().len(), 2, "{words}");
    assert_eq!(
        (&of(&third)["reached"], &of(&third)["orders"]),
        (&true.into(), &Json::Array(vec![]))
    );
    assert_eq!((&of(&nobody)["reached"], &of(&nobody)["orders"]), (&false.into(), &Json::Null));
    assert!(of(&nobody)["note"].as_str().unwrap().contains("no process listens"), "{words}");

    for (args, said) in [
        (&["block", "--for", "1h", "x", "--admin", "a:1"][..], "add --token FILE, a file with"),
        (&["block", "--list", "--token", &right], "--token is for agents on other machines"),
        (&["block", "--list", "--admin", "a:1", "--table", "t"], "--table"),
        (&["table", "reset", "x", "--admin", "a"], "'a' has no port; write HOST:PORT"),
    ] {
        let (words, status) = elsewhere(args);
        assert!(words.contains(said) && status == 2, "{args:?}: {words}");
    }
}
