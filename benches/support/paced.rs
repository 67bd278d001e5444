//! A load generator that sends NOTIFYs at a steady rate, one connection on one thread, and
//! measures how long each answer takes.

use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spop_codec::haproxy::NotifyWriter;
use spop_codec::{Action, Frame, FrameId, Value, decode};

use crate::support::spop::Spop;

/// As in a HAProxy that has run for a while.
const FIRST_STREAM: u64 = 300_000;

/// How long an agent may leave NOTIFYs unanswered before a run has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The figures of one run.
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    /// From the write of a NOTIFY to the read of its ACK, in ns.
    pub(crate) latency: Histogram<u64>,
}

impl Outcome {
    pub(crate) fn new() -> Self {
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        Self { requests: 0, allowed: 0, latency }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.allowed += other.allowed;
        self.latency.add(&other.latency).unwrap();
    }
}

/// Asks about one key after the other, `per_second` times a second.
pub(crate) fn run(address: &str, keys: &[u32], per_second: u32) -> Outcome {
    let mut socket = Spop::connect(address).into_stream();
    let start = Instant::now();
    let due = |number: usize| Duration::from_secs(1) * u32::try_from(number).unwrap() / per_second;
    let mut outcome = Outcome::new();
    let mut sent_at: Vec<Instant> = Vec::with_capacity(keys.len());
    let (mut input, mut filled) = (vec![0; 65_536], 0);
    while outcome.requests < keys.len() as u64 {
        while let Some(key) = keys.get(sent_at.len())
            && due(sent_at.len()) <= start.elapsed()
        {
            let notify = notify(FIRST_STREAM + sent_at.len() as u64, *key);
            sent_at.push(Instant::now());
            socket.write_all(&notify).unwrap();
        }
        let wait = if sent_at.len() < keys.len() {
            due(sent_at.len()).saturating_sub(start.elapsed())
        } else {
            PATIENCE
        };
        let wait = Timespec::try_from(wait).unwrap();
        let ready = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&wait)).unwrap();
        if ready == 0 {
            assert!(sent_at.len() < keys.len(), "NOTIFYs were not answered");
            continue;
        }
        let read = socket.read(&mut input[filled..]).unwrap();
        assert!(read > 0, "the agent closed the connection");
        let now = Instant::now();
        filled += read;
        let mut used = 0;
        while let Some((frame, length)) = decode(&input[used..filled], 16_380).unwrap() {
            let Frame::Ack(ack) = frame else { panic!("{frame:?}") };
            let number = usize::try_from(ack.id.stream - FIRST_STREAM).unwrap();
            let took = now - sent_at[number];
            outcome.latency.record(u64::try_from(took.as_nanos()).unwrap()).unwrap();
            outcome.requests += 1;
            outcome.allowed += u64::from(ack.actions().any(|action| {
                matches!(
                    action,
                    Action::SetVar { name: b"blocked", value: Value::Bool(false), .. }
                )
            }));
            used += length;
        }
        input.copy_within(used..filled, 0);
        filled -= used;
    }
    outcome
}

fn notify(stream: u64, key: u32) -> Vec<u8> {
    let mut out = [0; 64];
    let mut notify = NotifyWriter::new(&mut out, FrameId { stream, frame: 1 }).unwrap();
    notify.message(b"check").unwrap();
    notify.arg(b"ip", Value::Ipv4(Ipv4Addr::from(0x0a00_0000 + key))).unwrap();
    let length = notify.finish();
    out[..length].to_vec()
}
