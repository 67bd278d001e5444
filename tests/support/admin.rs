//! Agents with `--admin`, and a client that asks them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::{Agent, PATIENCE, agent_binary, wait_until};

pub const ADMIN: [&str; 2] = ["--admin", "127.0.0.1:0"];

/// Starts an agent with an admin address, and waits until it is ready.
pub fn start(table: &Path, args: &[&str]) -> (Agent, String) {
    of(Agent::start(table, &[&ADMIN, args].concat()))
}

/// An agent that was started with [`ADMIN`], and its admin address, once it is ready.
pub fn of(agent: Agent) -> (Agent, String) {
    let address = address(&agent);
    (agent, address)
}

/// The admin address of an agent that was started with [`ADMIN`], once it is ready.
pub fn address(agent: &Agent) -> String {
    let lines = agent.process.lines();
    let address =
        lines.iter().find_map(|line| line.split_once("admin on http://")?.1.strip_suffix('/'));
    let address = address.expect("the log has the address").to_owned();
    // The log names the listeners before they are served.
    wait_until("it is ready", || get(&address, "/readyz").status == 200);
    address
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

pub fn send(address: &str, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect_timeout(&address.parse().unwrap(), PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // Both may be a reset: if the client has lost its place, or the server did not read the whole
    // request. A part of an answer counts.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

pub fn get(address: &str, path: &str) -> Answer {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

/// Asks again while there is no answer: an agent ends a connection whose request is not there in
/// time, and a busy machine may let the client send it too late. The same if the agent says "try
/// again", because it could not do in time what it was asked for.
pub fn ask(address: &str, request: &str) -> Answer {
    let start = Instant::now();
    loop {
        let answer = send(address, request.as_bytes());
        let is_late = answer.status == 503 && answer.body.contains("try again");
        if !is_late && answer.status != 0 || start.elapsed() > PATIENCE {
            return answer;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The output of `top --once`, as soon as it has all of these parts. It waits for an agent for
/// 3 s, and an agent waits for the others for 1 s, so on a busy machine some may be missing.
pub fn top(args: &[&str], parts: &[&str]) -> String {
    let mut page = String::new();
    wait_until(&format!("top tells of {parts:?}"), || {
        let mut command = Command::new(agent_binary());
        let output = command.args(["top", "--once"]).args(args).output().unwrap();
        page = String::from_utf8(output.stdout).unwrap();
        let has_all = output.status.success() && parts.iter().all(|part| page.contains(part));
        if !has_all {
            println!("{page}{}", String::from_utf8_lossy(&output.stderr));
        }
        has_all
    });
    page
}

pub fn status(address: &str) -> Json {
    serde_json::from_str(&get(address, "/status").body).unwrap()
}
