//! How long a well-behaved connection waits beside others that send as fast as they can: the real
//! agent, over TCP.
//!
//! `cargo bench -p benches --bench fairness [-- FLOODS] [many|pieces] [--quick]`. A probe sends
//! one NOTIFY a millisecond and waits for each ACK. Beside it are 0, 1, 8, 100 and 1000 floods:
//! connections whose peers write NOTIFYs without a pause and read every answer. One thread drives
//! all of them, so floods, probe and agent share the machine's cores. Then further connections are
//! opened, one after another, and timed from connecting to the ACK of their first NOTIFY. Figures
//! are quantiles of a round, and medians of the rounds, each with an agent of its own.
//!
//! NOTIFYs of floods have one message, or with `many` as many as they may have; with `pieces`
//! each of these comes in two frames, as HAProxy up to 3.0 sends large ones.
//!
//! `BESIDE=/path/to/another/gcra-spoa` measures that program too, in turn with this one, and
//! prints the ratio of the floods' answers. `AGENT_ARGS` replaces the agent's
//! `--rate 100/s --burst 20`. `--quick` only tries it out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "a bench may end with a message, and its numbers are small"
)]

#[path = "support/asked.rs"]
mod asked;
#[path = "support/limit.rs"]
mod limit;
#[path = "support/notifies.rs"]
mod notifies;
#[path = "support/program.rs"]
mod program;
#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use notifies::{ACK_BYTES, Notifies};
use rustix::event::epoll::{self, EventData, EventFlags};
use spop_codec::MAX_MESSAGES;
use support::Agent;
use support::spop::Spop;

const FLOODS: [usize; 5] = [0, 1, 8, 100, 1000];
const ROUNDS: usize = 5;
/// How long the probe asks in a round, and how long connections are opened afterwards.
const PROBING: Duration = Duration::from_secs(2);
const OPENING: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_millis(1);
/// How long a flood runs before the probe begins.
const WARMING: Duration = Duration::from_millis(500);

/// The bytes that a flood sends.
#[derive(Clone, Copy)]
enum Sends {
    One,
    Many,
    Pieces,
}

impl Sends {
    fn notifies(self) -> Vec<u8> {
        let singly = Notifies::new(4096, 1_000_000);
        if let Self::One = self {
            return singly.bytes;
        }
        let bytes = singly.ends[0];
        let (head, payload) = (HEAD_BYTES, HEAD_BYTES..bytes);
        let messages: Vec<u8> = singly
            .bytes
            .chunks(bytes)
            .flat_map(|notify| notify[payload.clone()].iter().copied())
            .collect();
        let frame = |kind: u8, flags: u8, payload: &[u8]| {
            let ids = &singly.bytes[9..head];
            let length = u32::try_from(5 + ids.len() + payload.len()).unwrap();
            [&length.to_be_bytes()[..], &[kind, 0, 0, 0, flags], ids, payload].concat()
        };
        messages
            .chunks(payload.len() * MAX_MESSAGES)
            .flat_map(|messages| match self {
                Self::One | Self::Many => frame(3, 1, messages),
                Self::Pieces => {
                    let (first, last) = messages.split_at(messages.len() / 2);
                    [frame(3, 0, first), frame(0, 1, last)].concat()
                }
            })
            .collect()
    }
}

/// The bytes of a NOTIFY in front of its messages: LENGTH, type, flags, and ids of 4 bytes and 1.
const HEAD_BYTES: usize = 14;

/// The figures of one round.
#[derive(Default)]
struct Round {
    /// Of the probe's NOTIFYs, and of new connections, in µs.
    asked: Vec<f64>,
    opened: Vec<f64>,
    /// ACKs a second that the floods have read.
    flooded: f64,
}

fn main() {
    let wanted = std::env::args().skip(1).find_map(|arg| arg.parse::<usize>().ok());
    let sends = match (asked::flag("many"), asked::flag("pieces")) {
        (false, false) => Sends::One,
        (true, _) => Sends::Many,
        (_, true) => Sends::Pieces,
    };
    let quick = asked::quick();
    let (rounds, scale, most) = if quick { (1, 20, 8) } else { (ROUNDS, 1, usize::MAX) };
    program::build();
    let mut programs = vec![support::agent_binary()];
    programs.extend(std::env::var_os("BESIDE").map(PathBuf::from));
    println!("{HEAD}");
    let is_wanted = |floods: &usize| wanted.map_or(*floods <= most, |wanted| wanted == *floods);
    for floods in FLOODS.into_iter().filter(is_wanted) {
        let mut done: Vec<Vec<Round>> = programs.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (program, done) in programs.iter().zip(&mut done) {
                done.push(round(program, floods, sends, scale));
            }
        }
        for rounds in &done {
            println!("{}", row(floods, rounds));
        }
        if let [this, other] = &done[..] {
            let ratios = this.iter().zip(other).map(|(this, other)| this.flooded / other.flooded);
            println!(
                "    the floods' answers, this / beside: {:.3}",
                quantile(ratios.collect(), 0.5)
            );
        }
    }
}

const HEAD: &str = "\
| floods | probe p50 µs | p99 µs | most µs | new connection p50 µs | p99 µs | flooding NOTIFYs/s |
| -----: | -----------: | -----: | ------: | --------------------: | -----: | -----------------: |\
";

fn row(floods: usize, rounds: &[Round]) -> String {
    let median = |of: &dyn Fn(&Round) -> f64| quantile(rounds.iter().map(of).collect(), 0.5);
    let asked = |share: f64| median(&|round| quantile(round.asked.clone(), share));
    let opened = |share: f64| median(&|round| quantile(round.opened.clone(), share));
    format!(
        "| {floods:>6} | {:>12.0} | {:>6.0} | {:>7.0} | {:>21.0} | {:>6.0} | {:>18.0} |",
        asked(0.5),
        asked(0.99),
        asked(1.0),
        opened(0.5),
        opened(0.99),
        median(&|round| round.flooded)
    )
}

fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list"
    )]
    let place = (share * values.len() as f64) as usize;
    values.get(place.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// All times are divided by `scale`.
fn round(program: &PathBuf, floods: usize, sends: Sends, scale: u32) -> Round {
    let directory = support::directory();
    let mut command = Command::new(program);
    command.arg("--table").arg(directory.path().join("table")).args([
        "--listen",
        "127.0.0.1:0",
        "--drain",
        "0",
    ]);
    command.args(limit::args().split_whitespace());
    let agent = Agent::start_command(&mut command);
    let mut probe = Spop::connect(&agent.address).into_stream();
    let question = Notifies::new(1, 1);
    let streams: Vec<_> =
        (0..floods).map(|_| Spop::connect(&agent.address).into_stream()).collect();
    let (ended, acks) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            if !streams.is_empty() {
                flood(&streams, &sends.notifies(), &ended, &acks).unwrap();
            }
        });
        // Ends the flood also when the probe fails.
        let _ended = End(&ended);
        thread::sleep(WARMING / scale);
        let (began, before) = (Instant::now(), acks.load(Ordering::Relaxed));
        let mut round = Round::default();
        for number in 0.. {
            let due = PERIOD * number;
            if began.elapsed() > PROBING / scale {
                break;
            }
            thread::sleep(due.saturating_sub(began.elapsed()));
            let sent = Instant::now();
            question.exchange(&mut probe, 1);
            round.asked.push(sent.elapsed().as_secs_f64() * 1e6);
        }
        round.flooded =
            (acks.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
        let began = Instant::now();
        while began.elapsed() < OPENING / scale {
            let sent = Instant::now();
            let address = agent.address.clone();
            let asked = thread::spawn(move || {
                Notifies::new(1, 1).exchange(&mut Spop::connect(&address).into_stream(), 1);
            });
            // An agent that does not answer at all has a figure too: how long it was waited for.
            let answered = asked.join().is_ok();
            round.opened.push(sent.elapsed().as_secs_f64() * 1e6);
            if !answered {
                break;
            }
            thread::sleep(10 * PERIOD);
        }
        round
    })
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes NOTIFYs to all of them without a pause, reads what comes, and counts the ACKs.
fn flood(
    streams: &[TcpStream],
    notifies: &[u8],
    ended: &AtomicBool,
    acks: &AtomicU64,
) -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (index, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true)?;
        epoll::add(
            &epoll,
            stream,
            EventData::new_u64(index as u64),
            EventFlags::IN | EventFlags::OUT,
        )?;
    }
    let mut sent = vec![0; streams.len()];
    let mut read = 0_usize;
    let mut input = vec![0; 256 * 1024];
    let mut events = Vec::with_capacity(256);
    let again = |result: io::Result<usize>| match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        result => result,
    };
    while !ended.load(Ordering::Relaxed) {
        events.clear();
        let patience = Duration::from_millis(100).try_into().unwrap();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience))?;
        for event in &events {
            let index = usize::try_from(event.data.u64()).unwrap();
            let (mut stream, flags) = (&streams[index], event.flags);
            if flags.contains(EventFlags::IN) {
                read += again(stream.read(&mut input))?;
            }
            if flags.contains(EventFlags::OUT) {
                let from = &mut sent[index];
                *from = (*from + again(stream.write(&notifies[*from..]))?) % notifies.len();
            }
        }
        acks.store((read / ACK_BYTES) as u64, Ordering::Relaxed);
    }
    Ok(())
}
