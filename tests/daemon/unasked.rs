//! Agents of which HAProxy does not ask about each request (`unasked`): what they decide, and the
//! limit that they name.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value as Json;
use spop_codec::Value;
use tempfile::TempDir;

use crate::support::spop::Spop;
use crate::support::{Agent, agent_binary, directory};

struct Scene {
    directory: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { directory: directory() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&self, flags: &[&str]) -> Agent {
        Agent::start(&self.path("table"), flags)
    }

    /// The output of a command on both outputs, and its exit status.
    fn said(&self, args: &[&str]) -> (String, i32) {
        let output = Command::new(agent_binary()).args(args).output().unwrap();
        let text = [output.stderr, output.stdout].concat();
        (String::from_utf8(text).unwrap(), output.status.code().unwrap())
    }

    fn of_table(&self, args: &[&str]) -> String {
        let table = self.path("table");
        self.said(&[args, &["--table", table.to_str().unwrap()]].concat()).0
    }
}

fn args(cost: i32) -> [(&'static str, Value<'static>); 2] {
    let ip = "192.0.2.7".parse::<IpAddr>().unwrap();
    [("ip", ip.into()), ("cost", Value::Int32(cost))]
}

const FLAGS: [&str; 8] = ["--rate", "10/d", "--burst", "20", "--cost", "cost", "--unasked", "7"];

#[test]
fn flags_keep_requests_in_reserve_and_commands_name_the_limit_that_was_written() {
    let scene = Scene::new();
    let agent = scene.start(&FLAGS);
    let in_words = "10 per day, up to 20 at once, for each value of the message's args";
    let begins = |line: &String| line.contains(in_words) && line.contains("7 cells in reserve");
    assert!(agent.process.lines().iter().any(begins), "{:?}", agent.process.lines());
    let mut spop = Spop::connect(&agent.address);
    assert_eq!(spop.allowed(&args(8), 3), 1, "13 are left, and the second question has 5");
    assert_eq!(spop.allowed(&args(1), 3), 3);
    let got = scene.of_table(&["table", "get", "192.0.2.7"]);
    assert!(got.contains(": 9 of 20 left, 7 of them in reserve; all 20 again in"), "{got}");
    let explained = scene.of_table(&["explain", "ip=192.0.2.7", "cost=int64:8"]);
    assert!(
        explained.contains("a request now is blocked; the next one is allowed"),
        "{explained}"
    );
    assert!(
        explained.contains("limit 'default', 10 per day, up to 20 at once: 9 of 20 left, 7 of"),
        "{explained}"
    );
    let json: Json =
        serde_json::from_str(&scene.of_table(&["table", "get", "--json", "192.0.2.7"])).unwrap();
    assert_eq!(
        (&json["burst"], &json["remaining"], &json["reserve"]),
        (&20.into(), &2.into(), &7.into())
    );
    // The debt goes along to an agent without a reserve.
    let without = scene.start(&FLAGS[..6]);
    let mut other = Spop::connect(&without.address);
    assert_eq!(other.allowed(&args(1), 20), 9);
}

#[test]
fn a_file_keeps_a_reserve_after_a_reload() {
    let scene = Scene::new();
    let file = scene.path("gcra.toml");
    let write = |more: &str| {
        let text = "[policy.api]\nlimits = \"10/d burst 20\"\nkey = [\"ip\"]\n\
                    cost = \"cost\"\n";
        fs::write(&file, format!("{text}{more}")).unwrap();
    };
    write("");
    let path = file.to_str().unwrap();
    let agent = scene.start(&["--config", path]);
    let mut spop = Spop::connect(&agent.address);
    let passes = |spop: &mut Spop| {
        spop.ask(&[("api", &args(1))]).iter().any(|(_, name, value)| name == "blocked" && !value)
    };
    assert!((0..4).all(|_| passes(&mut spop)));
    write("unasked = 20\n");
    let (refused, status) = scene.said(&["check", path]);
    let sentence = format!(
        "{path}:5: policy 'api': unasked = 20 keeps 20 cells in reserve, and then a question \
         costs up to 21: that is more than the burst of 20 of the limit '10 per day, up to 20 at \
         once'; write a burst of at least 41, or unasked = 9 or less"
    );
    assert!(refused.contains(&sentence) && status == 1, "{refused}");
    write("unasked = 7\n");
    let (checked, status) = scene.said(&["check", path]);
    assert!(checked.contains("with 7 cells in reserve agents decide with up to 13 at once"));
    assert_eq!(status, 0, "{checked}");
    let table = scene.path("table");
    let (said, status) = scene.said(&["reload", path, "--table", table.to_str().unwrap()]);
    assert_eq!(status, 0, "{said}");
    assert_eq!((0..20).filter(|_| passes(&mut spop)).count(), 9, "4 of 13 were used");
    let explained = scene.of_table(&["explain", "ip=192.0.2.8"]);
    assert!(explained.contains("no bucket, so all 20 are left, 7 of them in reserve"));
}
