//! The names of clients, and the files for them: `salt_file` and `names_file`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::support::spop::Spop;
use crate::support::{Agent, admin, agent_binary, directory, wait_until};

/// A machine: a folder with a configuration and a table of its own.
struct Machine(TempDir);

impl Machine {
    fn new(salt: &str) -> Self {
        let machine = Self(directory());
        machine.write("names.salt", salt);
        machine.write(
            "gcra.toml",
            "salt_file = \"names.salt\"\n[policy.check]\nlimits = \"2/d\"\nkey = [\"key\"]\n",
        );
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn start(&self) -> Agent {
        let config = self.path("gcra.toml");
        Agent::start(&self.path("table"), &["--config", config.to_str().unwrap()])
    }

    fn said(&self, args: &[&str]) -> String {
        let mut command = Command::new(agent_binary());
        let output = command.args(args).arg("--table").arg(self.path("table")).output().unwrap();
        String::from_utf8([output.stderr, output.stdout].concat()).unwrap()
    }

    fn name(&self) -> String {
        self.said(&["name", "sk_live_0123456789"]).trim_end().to_owned()
    }
}

fn has_said(agent: &Agent, words: &str) -> bool {
    agent.process.lines().iter().any(|line| line.contains(words))
}

const SALT: &str = "0123456789abcdef-0";

#[test]
fn with_the_same_salt_machines_name_a_client_alike() {
    let [one, two] = [Machine::new(SALT), Machine::new(SALT)];
    let (agent, _other) = (one.start(), two.start());
    let name = one.name();
    assert!(name.starts_with("policy 'check': sk_l…(18)#"), "{name}");
    assert_eq!(two.name(), name);
    let (_, digits) = name.split_once(": ").unwrap();
    let explained = one.said(&["explain", "key=sk_live_0123456789"]);
    assert!(explained.contains(&format!("\n  client in logs: {digits}\n")), "{explained}");
    let mut spop = Spop::connect(&agent.address);
    assert_eq!(spop.allowed(&[("key", "sk_live_0123456789".into())], 5), 2);
    agent.stop();
    fs::remove_file(one.path("table")).unwrap();
    let _agent = one.start();
    assert_eq!(one.name(), name, "also with a new table");
    assert!(!one.said(&["table", "info"]).contains(SALT));
}

#[test]
fn another_salt_on_one_table_is_said() {
    let machine = Machine::new(SALT);
    let one = machine.start();
    let name = machine.name();
    machine.write("names.salt", "0123456789abcdef-1");
    let two = machine.start();
    let warning = format!("agent {} has another salt than this agent", one.process.id());
    wait_until("it is said", || has_said(&two, &warning));
    let reloaded = machine.said(&["reload", machine.path("gcra.toml").to_str().unwrap()]);
    assert!(!reloaded.contains(SALT), "{reloaded}");
    let same = "all agents of the table have the same salt again";
    wait_until("both have the new one", || has_said(&two, same));
    assert_ne!(machine.name(), name, "a reload reads the salt again");
}

/// A machine with two clients of which one, by its secret key, is a customer.
fn with_customers(words: &str) -> (Machine, String) {
    let machine = Machine::new(SALT);
    let agent = machine.start();
    let (_, name) =
        machine.name().split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    drop(agent);
    machine.write("customers.txt", &format!("# ours\n{name} = {words}\n192.0.2.7 = office\n"));
    let file = fs::read_to_string(machine.path("gcra.toml")).unwrap();
    machine.write("gcra.toml", &format!("names_file = \"customers.txt\"\n{file}"));
    (machine, name)
}

#[test]
fn what_a_client_is_known_as_is_said_beside_its_name() {
    let (machine, name) = with_customers("customer 4711");
    let config = machine.path("gcra.toml");
    let (agent, admin) =
        admin::start(&machine.path("table"), &["--config", config.to_str().unwrap()]);
    let mut spop = Spop::connect(&agent.address);
    assert_eq!(spop.allowed(&[("key", "sk_live_0123456789".into())], 5), 2);
    let row = admin::status(&admin)["policies"][0]["top_blocked"][0].clone();
    assert_eq!(
        (&row["client"], &row["known_as"]),
        (&name.clone().into(), &"customer 4711".into())
    );
    let explained = machine.said(&["explain", "key=sk_live_0123456789"]);
    let line = format!("\n  client in logs: {name}, known as customer 4711\n");
    assert!(explained.contains(&line), "{explained}");
    let top =
        Command::new(agent_binary()).args(["top", "--once", "--admin", &admin]).output().unwrap();
    let top = String::from_utf8(top.stdout).unwrap();
    assert!(top.contains(&format!("{name} (customer 4711)")), "{top}");

    // A reload reads it again, and no word of it is a command to a terminal.
    machine.write("customers.txt", &format!("{name} = <b>a\u{1b}[2J\n"));
    machine.said(&["reload", config.to_str().unwrap()]);
    let known_as = || admin::status(&admin)["policies"][0]["top_blocked"][0]["known_as"].clone();
    wait_until("the new words are there", || known_as() == "<b>a\\u{1b}[2J");

    let log = machine.path("haproxy.log");
    let line = |client: &str| {
        format!(
            "127.0.0.1:1 [29/Nov/2026:05:00:00.000] web app/<NOSRV> 0/-1/-1/-1/0 429 1 PR-- \
             1/1/0/0/0 0/0 \"GET / HTTP/1.1\" blocked=true client={client}\n"
        )
    };
    let format = "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %tsc %ac/%fc/%bc/%sc/%rc \
                  %sq/%bq %{+Q}r blocked=%[var(txn.gcra.blocked)] \
                  client=%[var(txn.gcra.client)]";
    fs::write(&log, line("192.0.2.7") + &line("192.0.2.8")).unwrap();
    let words = "a customer in the city whose words need all of their characters";
    machine.write("customers.txt", &format!("192.0.2.7 = office\n192.0.2.8 = {words}\n"));
    let blocked = |key: &[&str]| {
        let mut blocked = Command::new(agent_binary());
        blocked.args(["blocked", "--log-format", format, "--names"]);
        let blocked = blocked.arg(machine.path("customers.txt")).arg(&log).args(key);
        let output = blocked.output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let said = blocked(&[]);
    // Nothing is cut where no terminal is.
    let (whole, _) = words.split_at(60);
    assert!(said.contains("192.0.2.7 (office)"), "{said}");
    assert!(said.contains(&format!("192.0.2.8 ({whole}…)")), "{said}");
    assert!(said.contains("longest wait") && !said.contains("wider"), "{said}");
    for key in ["office", words] {
        let said = blocked(&[key]);
        assert_eq!(said.contains("192.0.2.7 (office)"), key == "office", "{said}");
        assert_eq!(said.contains("192.0.2.8 (a cust"), key == words, "{said}");
    }
}

#[test]
fn a_file_with_a_salt_names_clients_without_a_table() {
    let machine = Machine::new(SALT);
    let config = machine.path("gcra.toml");
    let name =
        || machine.said(&["name", "--config", config.to_str().unwrap(), "sk_live_0123456789"]);
    let alone = name();
    assert!(alone.starts_with("policy 'check': sk_l…(18)#"), "{alone}");
    let _agent = machine.start();
    assert_eq!(name(), alone);
    let other = Machine::new(SALT);
    let file = fs::read_to_string(other.path("gcra.toml")).unwrap();
    other.write("gcra.toml", file.split_once('\n').unwrap().1);
    let said = other.said(&["name", "--config", other.path("gcra.toml").to_str().unwrap(), "key"]);
    assert!(said.contains("table"), "the digits would be others: {said}");
}

#[test]
fn a_wrong_line_of_the_names_is_a_warning_with_its_number() {
    let (machine, _) = with_customers("customer 4711");
    machine.write("customers.txt", "192.0.2.7 = office\nsk_live_0123456789 = secret\n");
    let config = machine.path("gcra.toml");
    let check = || {
        let output = Command::new(agent_binary()).arg("check").arg(&config).output().unwrap();
        let said = String::from_utf8([output.stderr, output.stdout].concat()).unwrap();
        (said, output.status.code())
    };
    let (said, status) = check();
    let line = "customers.txt:2 does not begin with the name of a client";
    assert!(said.contains(line) && !said.contains("sk_live"), "{said}");
    assert_eq!(status, Some(0), "limits do not depend on it");
    fs::remove_file(machine.path("customers.txt")).unwrap();
    assert!(check().0.contains("cannot read the names file "), "{}", check().0);
    let _agent = machine.start();
}
