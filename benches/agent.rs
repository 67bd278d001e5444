//! What a NOTIFY costs the agent: CPU of the real process, from the kernel's accounting, with every ACK checked.
//!
//! `cargo bench --bench agent`. Three loads: one burst (everything sent as fast as it is taken), windows of 64, and
//! one at a time; each on fresh keys (1 000 000 of them, in random order) and on one hot key. Throughput is of agent
//! and generator together and moves with the machine; CPU per NOTIFY is steadier.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench may end with a message")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_hello};
use spop_codec::{FrameId, Value};
use support::Agent;

const ROUNDS: usize = 5;
const KEYS: u32 = 1_000_000;

/// How a load is offered.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    notifies: usize,
    /// NOTIFYs sent before the answers to them are read; `None`: all of them.
    window: Option<usize>,
}

const LOADS: [Load; 3] = [
    Load { name: "burst", notifies: 2_000_000, window: None },
    Load { name: "windows of 64", notifies: 1_000_000, window: Some(64) },
    Load { name: "one at a time", notifies: 50_000, window: Some(1) },
];

fn main() {
    println!("{:<16} {:<12} {:>16} {:>18}", "load", "keys", "CPU ns/NOTIFY", "NOTIFYs/s");
    for load in LOADS {
        for (keys, name) in [(KEYS, "1 000 000"), (1, "1, denied")] {
            let mut rounds: Vec<_> = (0..ROUNDS).map(|_| run(load, keys)).collect();
            rounds.sort_by(|a, b| a.cpu_ns.total_cmp(&b.cpu_ns));
            let median = &rounds[ROUNDS / 2];
            println!("{:<16} {name:<12} {:>16.1} {:>18.0}", load.name, median.cpu_ns, median.per_second);
        }
    }
}

struct Result {
    cpu_ns: f64,
    per_second: f64,
}

fn run(load: Load, keys: u32) -> Result {
    let directory = support::directory();
    let args = ["--rate", "100/s", "--burst", "20", "--slots", "4194304", "--listen", "127.0.0.1:0"];
    let agent = Agent::start_with(&directory.path().join("table"), &args);
    let mut stream = connect(&agent);
    let (bytes, ends) = notifies(load.notifies.min(2_000_000), keys);

    // Warm: the table's pages are mapped, its keys known.
    exchange(&mut stream, &bytes, &ends, None);
    let (start, cpu_before) = (Instant::now(), cpu_time(&agent));
    exchange(&mut stream, &bytes, &ends, load.window);
    let (elapsed, cpu) = (start.elapsed(), cpu_time(&agent) - cpu_before);
    #[expect(clippy::cast_precision_loss, reason = "a few million")]
    let notifies = ends.len() as f64;
    Result { cpu_ns: cpu.as_secs_f64() * 1e9 / notifies, per_second: notifies / elapsed.as_secs_f64() }
}

fn connect(agent: &Agent) -> TcpStream {
    let mut stream = TcpStream::connect(&agent.address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut hello = [0; 256];
    let fields = HelloFields {
        versions: "2.0",
        max_frame_size: 16380,
        capabilities: "pipelining",
        engine_id: None,
        healthcheck: None,
    };
    let length = encode_hello(&mut hello, &fields).unwrap();
    stream.write_all(&hello[..length]).unwrap();
    let mut answer = [0; 68];
    stream.read_exact(&mut answer).unwrap();
    stream
}

/// The frames, one after another, and where each ends. One message, one IPv4 arg, as HAProxy's usual configuration.
fn notifies(count: usize, keys: u32) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    let mut random = 1_u64;
    for _ in 0..count {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = u32::try_from((random >> 32) * u64::from(keys) >> 32).unwrap();
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

/// Sends everything and checks every answer.
fn exchange(stream: &mut TcpStream, bytes: &[u8], ends: &[usize], window: Option<usize>) {
    match window {
        None => {
            let mut sender = stream.try_clone().unwrap();
            thread::scope(|scope| {
                scope.spawn(move || sender.write_all(bytes).unwrap());
                check_acks(stream, ends.len());
            });
        }
        Some(window) => {
            let mut sent = 0;
            for frames in ends.chunks(window) {
                let end = *frames.last().unwrap();
                stream.write_all(&bytes[sent..end]).unwrap();
                sent = end;
                check_acks(stream, frames.len());
            }
        }
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

/// Time that the agent's threads were on a CPU, user and kernel.
fn cpu_time(agent: &Agent) -> Duration {
    let tasks = format!("/proc/{}/task", agent.process.id());
    let on_cpu_ns = |task: fs::DirEntry| -> u64 {
        let schedstat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        schedstat.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(fs::read_dir(tasks).unwrap().map(|task| on_cpu_ns(task.unwrap())).sum())
}
