//! Writes a log as HAProxy would, of traffic that looks real, and the truth about it.
//!
//! ```sh
//! cargo run --release -p haproxy-log --example generate -- \
//!     --requests 1000000 --seed 1 --log haproxy.log --truth truth.tsv
//! ```
//!
//! The same seed gives the same files. The truth has a line for each request, in the order of
//! time: microseconds since 1970, the client's address, the path, and what kind of client it is.
//! The log is in the order in which requests were done, and requests of the same millisecond have
//! that order in the truth, too.
//!
//! | kind | |
//! | --- | --- |
//! | `person` | clients by Zipf's law; pages with the files that belong to them |
//! | `bot` | steady gaps, day and night |
//! | `burst` | a client that sends hundreds of requests within a second, now and then |
//! | `crowd` | many people behind one address (NAT) |

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "sizes and times of a test log"
)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter, Write};

use fastrand::Rng;

/// Microseconds.
const SECOND: i64 = 1_000_000;
/// 2026-11-22 00:00:00 UTC, in seconds.
const START: i64 = 1_795_305_600;

const USAGE: &str = "usage: generate [--requests N] [--seed N] [--clients N] [--hours N] \
                     [--format http|syslog|tcp|json|shipped] [--log FILE] [--truth FILE]";

struct Settings {
    requests: u64,
    seed: u64,
    clients: usize,
    hours: f64,
    format: String,
    log: Option<String>,
    truth: Option<String>,
}

fn settings() -> Result<Settings, Box<dyn std::error::Error>> {
    let mut settings = Settings {
        requests: 100_000,
        seed: 1,
        clients: 10_000,
        hours: 24.0,
        format: "http".to_owned(),
        log: None,
        truth: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match flag.as_str() {
            "--requests" => settings.requests = value.parse()?,
            "--seed" => settings.seed = value.parse()?,
            "--clients" => settings.clients = value.parse::<usize>()?.max(10),
            "--hours" => settings.hours = value.parse()?,
            "--format" => settings.format = value,
            "--log" => settings.log = Some(value),
            "--truth" => settings.truth = Some(value),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(settings)
}

fn output(path: Option<&String>) -> io::Result<Box<dyn Write>> {
    Ok(match path {
        Some(path) => Box::new(BufWriter::with_capacity(1 << 20, File::create(path)?)),
        None => Box::new(BufWriter::new(io::stdout().lock())),
    })
}

struct Request {
    at: i64,
    client: String,
    path: String,
    kind: &'static str,
    /// HAProxy's measured times, in milliseconds.
    receive: i64,
    queue: i64,
    connect: i64,
    respond: i64,
    active: i64,
    status: u16,
    bytes: u64,
}

/// Where the next requests of some clients come from.
#[derive(Clone, Copy)]
enum Source {
    People,
    Bot(usize),
    Burst(usize),
    Crowd(usize),
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let settings = settings()?;
    let mut rng = Rng::with_seed(settings.seed);
    let mut log = output(settings.log.as_ref())?;
    let mut truth: Box<dyn Write> = match &settings.truth {
        Some(_) => output(settings.truth.as_ref())?,
        None => Box::new(io::sink()),
    };
    let writer = Writer { format: settings.format.clone() };

    let duration = settings.hours * 3600.0;
    let rate = settings.requests as f64 / duration;
    let zipf = Zipf::new(settings.clients, 1.1);
    // A share of the requests for each source; the rest are people.
    let bots = (settings.clients / 500).clamp(1, 50);
    let bursts = (settings.clients / 1000).clamp(1, 20);
    let crowds = 2;
    let mut next: BinaryHeap<Reverse<(i64, u8, usize)>> = BinaryHeap::new();
    let start = START * SECOND;
    next.push(Reverse((start, 0, 0)));
    for bot in 0..bots {
        next.push(Reverse((start + rng.i64(0..SECOND * 10), 1, bot)));
    }
    for burst in 0..bursts {
        next.push(Reverse((start + rng.i64(0..(duration as i64 + 1) * SECOND), 2, burst)));
    }
    for crowd in 0..crowds {
        next.push(Reverse((start + rng.i64(0..SECOND), 3, crowd)));
    }
    // Lines that are not written yet, by the time at which their requests are done.
    let mut open: BinaryHeap<Reverse<(i64, u64)>> = BinaryHeap::new();
    let mut lines: std::collections::HashMap<u64, Vec<u8>> = std::collections::HashMap::new();
    // The same for the truth, by the time at which they come.
    let mut facts: BinaryHeap<Reverse<(i64, i64, u64, String)>> = BinaryHeap::new();
    let mut count = 0;
    while count < settings.requests {
        let Some(Reverse((at, kind, number))) = next.pop() else { break };
        let source = match kind {
            0 => Source::People,
            1 => Source::Bot(number),
            2 => Source::Burst(number),
            _ => Source::Crowd(number),
        };
        // Half as many by night as by day.
        let hour = ((at - start) as f64 / (3600.0 * SECOND as f64)) % 24.0;
        let load = 1.0 - 0.6 * (std::f64::consts::TAU * hour / 24.0).cos();
        let (client, kind_name, gap, many) = match source {
            Source::People => {
                let client = zipf.sample(&mut rng);
                let many = if rng.u8(0..4) == 0 { rng.i64(2..12) } else { 1 };
                let gap = exponential(&mut rng, 2.4 / (rate * 0.75 * load));
                (address(client), "person", gap, many)
            }
            Source::Bot(bot) => {
                let gap = bots as f64 / (rate * 0.1);
                let jitter = 1.0 + (rng.f64() - 0.5) * 0.01;
                (format!("198.51.100.{}", bot + 1), "bot", gap * jitter, 1)
            }
            Source::Burst(burst) => {
                let many = rng.i64(100..600);
                let gap = exponential(&mut rng, 350.0 * bursts as f64 / (rate * 0.05));
                (format!("203.0.113.{}", burst + 1), "burst", gap, many)
            }
            Source::Crowd(crowd) => {
                let gap = exponential(&mut rng, f64::from(crowds as u32) / (rate * 0.1 * load));
                (format!("192.0.2.{}", crowd + 1), "crowd", gap, 1)
            }
        };
        // Never less than a millisecond, so that time goes on.
        next.push(Reverse((at + ((gap * SECOND as f64) as i64).max(1000), kind, number)));
        let mut moment = at;
        for part in 0..many {
            if count == settings.requests {
                break;
            }
            // HAProxy's dates have milliseconds.
            let date = moment / 1000 * 1000;
            let request = request(&mut rng, date, &client, kind_name, part > 0);
            let mut line = Vec::with_capacity(256);
            writer.line(&request, &mut rng, &mut line);
            let done = date + (request.receive + request.active) * 1000;
            open.push(Reverse((done, count)));
            lines.insert(count, line);
            let fact = format!("{date}\t{client}\t{}\t{kind_name}\n", request.path);
            facts.push(Reverse((date, done, count, fact)));
            count += 1;
            moment += match source {
                Source::Burst(_) => rng.i64(500..3000),
                _ => rng.i64(5_000..120_000),
            };
        }
        while let Some(&Reverse((done, number))) = open.peek() {
            if done > at {
                break;
            }
            open.pop();
            log.write_all(&lines.remove(&number).unwrap_or_default())?;
        }
        while facts.peek().is_some_and(|Reverse((date, ..))| *date < at / 1000 * 1000)
            && let Some(Reverse((.., fact))) = facts.pop()
        {
            truth.write_all(fact.as_bytes())?;
        }
    }
    while let Some(Reverse((.., fact))) = facts.pop() {
        truth.write_all(fact.as_bytes())?;
    }
    while let Some(Reverse((_, number))) = open.pop() {
        log.write_all(&lines.remove(&number).unwrap_or_default())?;
    }
    log.flush()?;
    truth.flush()?;
    Ok(())
}

/// Seconds until the next of events that come independently, `mean` apart on average.
fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -(1.0 - rng.f64()).ln() * mean
}

/// The address of a person: a tenth have IPv6.
fn address(client: usize) -> String {
    let hash = (client as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let [a, b, c, d, e, ..] = hash.to_le_bytes();
    if client % 10 == 9 {
        format!(
            "2001:db8:{:x}:{:x}::{:x}",
            u16::from_le_bytes([a, b]),
            c,
            u16::from_le_bytes([d, e])
        )
    } else {
        format!("10.{a}.{b}.{c}")
    }
}

const PATHS: [&str; 12] = [
    "/",
    "/index.html",
    "/login",
    "/api/v1/items",
    "/api/v1/items/",
    "/api/v1/search?q=",
    "/cart",
    "/static/app.js",
    "/static/style.css",
    "/images/",
    "/feed.xml",
    "/api/v1/session",
];

fn request(rng: &mut Rng, at: i64, client: &str, kind: &'static str, file: bool) -> Request {
    let path = match kind {
        "bot" => format!("/api/v1/items/{}", rng.u32(1..100_000)),
        "burst" => "/login".to_owned(),
        _ if file => format!("/static/{}.js?v={}", rng.u32(1..200), rng.u32(1..9)),
        _ => {
            let path = PATHS[rng.usize(0..PATHS.len())];
            if path.ends_with(['/', '=']) && path.len() > 1 {
                format!("{path}{}", rng.u32(1..10_000))
            } else {
                path.to_owned()
            }
        }
    };
    // Most take some ms, some take seconds, few hang for most of a minute.
    let scale = match rng.u32(0..10_000) {
        0..=4 => 20_000.0,
        5..=199 => 1_500.0,
        _ => 25.0,
    };
    let respond = (exponential(rng, scale) as i64).min(59_000);
    let (queue, connect) = (i64::from(rng.u8(0..20) == 0), rng.i64(0..2));
    Request {
        at,
        client: client.to_owned(),
        path,
        kind,
        receive: if rng.u8(0..50) == 0 { rng.i64(1..50) } else { 0 },
        queue,
        connect,
        respond,
        active: queue + connect + respond + rng.i64(0..3),
        status: [200, 200, 200, 200, 200, 200, 304, 301, 404, 500][rng.usize(0..10)],
        bytes: rng.u64(150..60_000),
    }
}

struct Writer {
    format: String,
}

impl Writer {
    fn line(&self, request: &Request, rng: &mut Rng, out: &mut Vec<u8>) {
        let Request { at, client, path, receive, queue, connect, respond, active, .. } = request;
        let (status, bytes) = (request.status, request.bytes);
        let date = date(*at);
        let port = rng.u16(1024..65_535);
        let server = rng.u8(1..5);
        let load = rng.u16(1..400);
        let version = if client.contains(':') { "2.0" } else { "1.1" };
        let method = if path == "/login" { "POST" } else { "GET" };
        let timers = format!("{receive}/{queue}/{connect}/{respond}/{active}");
        let counts = format!("{load}/{load}/1/1/0 0/0");
        // Writing to a Vec does not fail.
        let _ = match self.format.as_str() {
            "tcp" => writeln!(
                out,
                "{client}:{port} [{date}] fe be/s{server} {queue}/{connect}/{active} {bytes} -- \
                 {counts}"
            ),
            "json" => writeln!(
                out,
                "{{\"time\":\"{date}\",\"client\":\"{client}\",\"port\":{port},\"method\":\
                 \"{method}\",\"path\":\"{path}\",\"status\":{status},\"bytes\":{bytes},\
                 \"kind\":\"{}\"}}",
                request.kind
            ),
            "shipped" => writeln!(
                out,
                "{client}:{port} [{date}] fe~ be/s{server} {timers} {status} {bytes} ---- \
                 {counts} \"{method} {path} HTTP/{version}\" blocked=0 policy=- reason=- \
                 retry_after=- err=-"
            ),
            format => {
                if format == "syslog" {
                    let second = &date[12..20];
                    let _ = write!(out, "Nov 22 {second} lb1 haproxy[1234]: ");
                }
                writeln!(
                    out,
                    "{client}:{port} [{date}] fe~ be/s{server} {timers} {status} {bytes} - - ---- \
                     {counts} \"{method} {path} HTTP/{version}\""
                )
            }
        };
    }
}

/// `22/Nov/2026:21:39:33.123`. The log begins on 22 November and ends in that month.
fn date(at: i64) -> String {
    let milliseconds = at / 1000 - START * 1000;
    let (day, rest) = (22 + milliseconds / 86_400_000, milliseconds % 86_400_000);
    let (month, day) = if day <= 30 { ("Nov", day) } else { ("Dec", day - 30) };
    format!(
        "{day:02}/{month}/2026:{:02}:{:02}:{:02}.{:03}",
        rest / 3_600_000,
        rest / 60_000 % 60,
        rest / 1000 % 60,
        rest % 1000
    )
}

/// Numbers from 0 by Zipf's law, from a table of the sums.
struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    fn new(count: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        Self { sums }
    }

    fn sample(&self, rng: &mut Rng) -> usize {
        let total = self.sums.last().copied().unwrap_or(1.0);
        let drawn = rng.f64() * total;
        self.sums.partition_point(|&sum| sum < drawn).min(self.sums.len() - 1)
    }
}
