//! One of several machines that share a limit: an agent with a table file of its own, and the
//! HAProxy that asks it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Agent, Haproxy, admin, directory, haproxy_folder, patient};

/// The answer of an application in the shipped file. The second one also has the decision that
/// HAProxy knows: a request that got no decision passes, too.
const ANSWER: &str = "string \"Hello from your application.\\n\"";
const ANSWER_AND_DECISION: &str =
    "string \"Hello from your application.\\n\" hdr x-blocked \"%[var(txn.gcra.blocked)]\"";

/// A machine. Its agent listens on a Unix socket, which it finds again after a restart.
pub struct Host {
    /// The arguments of the agent besides its table, its socket and its audit file.
    args: Vec<String>,
    agent: Option<Agent>,
    haproxy: Haproxy,
    directory: TempDir,
}

impl Host {
    /// Starts one whose agent has these arguments, and waits until HAProxy asks it. HAProxy has
    /// the times that users get.
    pub fn start(args: &[String]) -> Self {
        Self::start_with(args, ToOwned::to_owned)
    }

    /// The same with the times for a busy machine.
    pub fn start_patient(args: &[String]) -> Self {
        Self::start_with(args, patient)
    }

    fn start_with(args: &[String], change: fn(&str) -> String) -> Self {
        let directory = directory();
        let copies = directory.path().join("haproxy");
        fs::create_dir(&copies).unwrap();
        let shipped = |name| fs::read_to_string(haproxy_folder().join(name)).unwrap();
        let config = shipped("unix-socket.cfg");
        assert!(config.contains(ANSWER), "the shipped file has another answer");
        let config = config.replace(ANSWER, ANSWER_AND_DECISION);
        // A line for each request would hide what agents and HAProxys say about each other.
        let config = config.replace("local0 info", "local0 notice");
        fs::write(copies.join("unix-socket.cfg"), change(&config)).unwrap();
        fs::write(copies.join("spoe-gcra.conf"), change(&shipped("spoe-gcra.conf"))).unwrap();
        let agent = start_agent(directory.path(), args);
        let haproxy = Haproxy::start_as_shipped(
            copies.join("unix-socket.cfg").to_str().unwrap(),
            &[("GCRA_SOCKET", directory.path().join("agent.sock").to_str().unwrap())],
        );
        haproxy.wait_for("gcra-agents", "agent1", "UP");
        Self { args: args.to_vec(), agent: Some(agent), haproxy, directory }
    }

    /// Where clients connect to.
    pub fn frontend(&self) -> SocketAddr {
        self.haproxy.frontend
    }

    /// The running agent.
    pub fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("the agent runs")
    }

    /// The file of `--audit`. All agents of this host have added to it.
    pub fn audit(&self) -> PathBuf {
        self.directory.path().join("audit")
    }

    /// Ends the agent with SIGKILL.
    pub fn kill_agent(&mut self) {
        drop(self.agent.take());
    }

    /// Starts an agent again after [`kill_agent`](Self::kill_agent), and waits until HAProxy asks
    /// it.
    pub fn restart_agent(&mut self) {
        self.agent = Some(start_agent(self.directory.path(), &self.args));
        self.haproxy.wait_for("gcra-agents", "agent1", "UP");
    }

    /// Removes the table and the leases, while no agent runs: a new agent does not know them.
    pub fn lose_memory(&self) {
        assert!(self.agent.is_none(), "the agent would go on with the files that it has open");
        for entry in fs::read_dir(self.directory.path()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_str().unwrap().starts_with("table") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }

    /// A figure of `/metrics`, with all its labels added up; `None` if no figure has that name, or
    /// there is no agent.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let lines = self.agent.as_ref()?.process.lines();
        let address = lines
            .iter()
            .find_map(|line| line.split_once("admin on http://")?.1.strip_suffix('/'))
            .expect("the agent has --admin");
        sum_of(&admin::get(address, "/metrics").body, name)
    }
}

fn sum_of(metrics: &str, name: &str) -> Option<f64> {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let value = rest.strip_prefix(' ').or_else(|| rest.split_once("} ").map(|(_, it)| it))?;
        (rest.starts_with([' ', '{'])).then(|| value.parse::<f64>().ok()).flatten()
    };
    metrics.lines().filter_map(value).reduce(|sum, value| sum + value)
}

fn start_agent(directory: &Path, args: &[String]) -> Agent {
    let listen = format!("unix:{}", directory.join("agent.sock").display());
    let audit = directory.join("audit");
    let mut command = Command::new(super::agent_binary());
    command.arg("--table").arg(directory.join("table")).arg("--audit").arg(audit);
    command.args(["--slots", "65536", "--drain", "0", "--listen", &listen]).args(args);
    command.args(admin::ADMIN);
    Agent::start_command(&mut command)
}
