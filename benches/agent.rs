//! What a NOTIFY costs the agent: CPU of the real process, from the kernel's accounting, with every ACK checked.
//!
//! `cargo bench --bench agent [-- PART-OF-A-ROW'S-NAME]`. Three loads: bursts of 8192 NOTIFYs, windows of 64, and
//! one at a time; each on 100 000 keys in random order and on one hot key, with the default table. Throughput is of agent
//! and generator together and moves with the machine; CPU per NOTIFY is steadier.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench may end with a message")]

#[path = "../tests/support/mod.rs"]
mod support;
#[path = "support/usage.rs"]
mod usage;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant;

use spop_codec::haproxy::NotifyWriter;
use spop_codec::{FrameId, Value};
use support::Agent;
use support::spop::Spop;
use usage::cpu_time;

const ROUNDS: usize = 5;
/// Each load is offered so often in a round: the kernel counts user time in hundredths of a second.
const REPEATS: usize = 4;
const KEYS: u32 = 100_000;

/// How a load is offered.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    notifies: usize,
    /// NOTIFYs sent before the answers to them are read.
    window: usize,
}

const LOADS: [Load; 3] = [
    Load { name: "bursts of 8192", notifies: 2_000_000, window: 8192 },
    Load { name: "windows of 64", notifies: 500_000, window: 64 },
    Load { name: "one at a time", notifies: 30_000, window: 1 },
];

fn main() {
    println!(
        "{:<16} {:<16} {:>14} {:>8} {:>8} {:>14}",
        "load", "keys", "CPU ns/NOTIFY", "user", "kernel", "NOTIFYs/s"
    );
    // Cargo adds an argument of its own.
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    for load in LOADS {
        for (keys, name) in [(KEYS, "100 000 keys"), (1, "one key")] {
            if !format!("{} {name}", load.name).contains(&wanted) {
                continue;
            }
            let mut rounds: Vec<_> = (0..ROUNDS).map(|_| run(load, keys)).collect();
            rounds.sort_by(|a, b| a.cpu_ns.total_cmp(&b.cpu_ns));
            let Round { cpu_ns, user_share, per_second } = rounds[ROUNDS / 2];
            let user_ns = cpu_ns * user_share;
            println!(
                "{:<16} {name:<16} {cpu_ns:>14.1} {user_ns:>8.1} {:>8.1} {per_second:>14.0}",
                load.name,
                cpu_ns - user_ns
            );
        }
    }
}

#[derive(Clone, Copy)]
struct Round {
    cpu_ns: f64,
    user_share: f64,
    per_second: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a few million")]
fn run(load: Load, keys: u32) -> Round {
    let directory = support::directory();
    // Further arguments for the agent, to compare.
    let more = std::env::var("AGENT_ARGS").unwrap_or_default();
    let mut args = vec!["--rate", "100/s", "--burst", "20", "--listen", "127.0.0.1:0"];
    args.extend(more.split_whitespace());
    let agent = Agent::start_with(&directory.path().join("table"), &args);
    let mut stream = Spop::connect(&agent.address).into_stream();
    let (bytes, ends) = notifies(load.notifies, keys);

    // Warm: the table's pages are mapped, its keys known.
    exchange(&mut stream, &bytes, &ends, 8192);
    let (start, cpu_before, ticks_before) = (Instant::now(), cpu_time(agent.process.id()), ticks(&agent));
    for _ in 0..REPEATS {
        exchange(&mut stream, &bytes, &ends, load.window);
    }
    let (elapsed, cpu, ticks) = (start.elapsed(), cpu_time(agent.process.id()) - cpu_before, ticks(&agent));
    let (user, system) = (ticks.0 - ticks_before.0, ticks.1 - ticks_before.1);
    let notifies = (ends.len() * REPEATS) as f64;
    Round {
        cpu_ns: cpu.as_secs_f64() * 1e9 / notifies,
        user_share: user as f64 / (user + system).max(1) as f64,
        per_second: notifies / elapsed.as_secs_f64(),
    }
}

/// The frames, one after another, and where each ends. One message, one IPv4 arg, as HAProxy's usual configuration.
fn notifies(count: usize, keys: u32) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    let mut random = 1_u64;
    for _ in 0..count {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = u32::try_from(((random >> 32) * u64::from(keys)) >> 32).unwrap();
        let mut out = [0; 64];
        // All ACKs have one length, so that a reader knows how many bytes to wait for.
        let mut notify = NotifyWriter::new(&mut out, FrameId { stream: 1, frame: 1 }).unwrap();
        notify.message(b"check").unwrap();
        notify.arg(b"ip", Value::Ipv4(Ipv4Addr::from(0x0a00_0000 + key))).unwrap();
        let length = notify.finish();
        bytes.extend_from_slice(&out[..length]);
        ends.push(bytes.len());
    }
    (bytes, ends)
}

/// Sends everything, a window at a time, and checks every answer.
fn exchange(stream: &mut TcpStream, bytes: &[u8], ends: &[usize], window: usize) {
    let mut sent = 0;
    for frames in ends.chunks(window) {
        let end = *frames.last().unwrap();
        stream.write_all(&bytes[sent..end]).unwrap();
        sent = end;
        check_acks(stream, frames.len());
    }
}

fn check_acks(stream: &mut TcpStream, count: usize) {
    const ACK: &[u8] = b"\0\0\0\x13\x67\0\0\0\x01\x01\x01\x01\x03\x02\x07blocked";
    let mut buffer = vec![0; (ACK.len() + 1) * count.min(4096)];
    let mut left = count;
    while left > 0 {
        let now = left.min(4096);
        let acks = &mut buffer[..(ACK.len() + 1) * now];
        stream.read_exact(acks).unwrap();
        for ack in acks.chunks(ACK.len() + 1) {
            assert!(ack.starts_with(ACK) && matches!(ack[ACK.len()], 0x01 | 0x11), "not an ACK: {ack:x?}");
        }
        left -= now;
    }
}

/// Hundredths of a second in user mode and in the kernel.
fn ticks(agent: &Agent) -> (u64, u64) {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.process.id())).unwrap();
    // The second field is a name in parentheses.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse().unwrap(), fields[12].parse().unwrap())
}
