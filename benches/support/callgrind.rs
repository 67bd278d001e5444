//! HAProxy in Valgrind, which counts its instructions.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use crate::support::{Client, Process};

/// Lets it forget what it has counted, or write it into a file of its own.
pub(crate) fn tell(process: &Process, what: &str) {
    let mut vgdb = Command::new("vgdb");
    let output = vgdb.arg(format!("--pid={}", process.id())).arg(what).output().expect("vgdb");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The connection of another client for each number.
pub(crate) fn new_client(frontend: SocketAddr, number: u64) -> Client {
    let [.., a, b] = number.to_be_bytes();
    Client::from(frontend, Ipv4Addr::new(127, 1, a, b.max(1)).into())
}

/// The instructions that the first dump of this profile has.
pub(crate) fn first_dump(profile: &Path) -> u64 {
    let text = fs::read_to_string(profile.with_extension("1")).expect("callgrind wrote a profile");
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: ")).expect("totals");
    totals.parse().expect("a number")
}

/// HAProxy in Valgrind. Where it is started by a script, because it has libraries of its own, the
/// last command of that is.
pub(crate) fn command(haproxy: &Path, profile: &Path, folder: &Path) -> Command {
    let valgrind = format!("valgrind --tool=callgrind --callgrind-out-file={}", profile.display());
    let bytes = fs::read(haproxy).unwrap();
    if !bytes.starts_with(b"#!/bin/sh") {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {valgrind} \"$0\" \"$@\"")]).arg(haproxy);
        return command;
    }
    let text = String::from_utf8(bytes).unwrap().replace("exec ", &format!("exec {valgrind} "));
    // Its own name is for reloads, and Valgrind does not know the option.
    let text = text.replace(&format!("--argv0 \"{}\"", haproxy.display()), "");
    let real = fs::canonicalize(haproxy).unwrap();
    let text = text.replace(&format!("--argv0 \"{}\"", real.display()), "");
    let script = folder.join("haproxy");
    fs::write(&script, text).unwrap();
    let mut command = Command::new("sh");
    command.arg(script);
    command
}
