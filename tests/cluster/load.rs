//! Clients that ask all hosts at the same time, and what they are answered.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::support::{Client, wait_until};

/// A client that is the same one for all hosts: its address is the key.
#[derive(Clone, Copy)]
pub(crate) struct Pattern {
    pub(crate) source: Ipv4Addr,
    /// Requests to each host.
    pub(crate) per_second: u32,
    /// For how long it sends, and then does not.
    pub(crate) on_and_off: Option<Duration>,
}

/// The answers to the clients of one host.
#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) allowed: AtomicU64,
    pub(crate) blocked: AtomicU64,
    /// Requests that passed because HAProxy had no answer of the agent.
    pub(crate) undecided: AtomicU64,
    /// The same, while nothing was wrong with the agent itself.
    pub(crate) undecided_by_a_well_agent: AtomicU64,
    /// The longest time that a decision took in µs, while nothing was wrong with the agent itself.
    pub(crate) slowest_us: AtomicU64,
    /// Whether a test does something to the agent now.
    pub(crate) agent_is_disturbed: AtomicBool,
}

/// Clients that ask until they are stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    /// For each host.
    pub(crate) answers: Vec<Arc<Answers>>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Each of the clients asks each of the HAProxys.
    pub(crate) fn start(frontends: &[SocketAddr], patterns: &[Pattern]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answers: Vec<Arc<Answers>> = frontends.iter().map(|_| Arc::default()).collect();
        let mut threads = Vec::new();
        for (frontend, answers) in frontends.iter().zip(&answers) {
            for pattern in patterns {
                let client = Client::from(*frontend, IpAddr::V4(pattern.source));
                let (pattern, answers, stop) = (*pattern, answers.clone(), stop.clone());
                threads.push(thread::spawn(move || ask(client, pattern, &answers, &stop)));
            }
        }
        Self { stop, answers, threads }
    }

    pub(crate) fn sum(&self, of: impl Fn(&Answers) -> &AtomicU64) -> u64 {
        self.answers.iter().map(|answers| of(answers).load(Ordering::Relaxed)).sum()
    }

    /// Waits until so many more requests have been allowed.
    pub(crate) fn allows_more(&self, count: u64, when: &str) {
        self.counts_more(count, when, |answers| &answers.allowed);
    }

    /// Waits until so many more requests have been blocked.
    pub(crate) fn blocks_more(&self, count: u64, when: &str) {
        self.counts_more(count, when, |answers| &answers.blocked);
    }

    fn counts_more(&self, count: u64, when: &str, of: impl Fn(&Answers) -> &AtomicU64) {
        let before = self.sum(&of);
        wait_until(&format!("{count} more are counted: {when}"), || {
            self.sum(&of) >= before + count
        });
    }

    /// Ends the clients. Each request has got its answer then.
    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("each request is answered with 200 or 429");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn ask(mut client: Client, pattern: Pattern, answers: &Answers, stop: &AtomicBool) {
    let pause = Duration::from_secs(1) / pattern.per_second;
    let start = Instant::now();
    let mut due = start;
    while !stop.load(Ordering::Relaxed) {
        // Requests that a busy machine did not send in time are not sent later.
        due = (due + pause).max(Instant::now());
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if let Some(time) = pattern.on_and_off
            && (start.elapsed().as_nanos() / time.as_nanos()) % 2 == 1
        {
            continue;
        }
        let disturbed = || answers.agent_is_disturbed.load(Ordering::Relaxed);
        let (sent, before) = (Instant::now(), disturbed());
        // HAProxy closes a connection on which nothing came for long, on a machine that stood
        // still. A client may send its request again then.
        let response = client.get("/").or_else(|_| client.get("/")).expect("an answer");
        let took_us = u64::try_from(sent.elapsed().as_micros()).unwrap();
        let is_disturbed = before || disturbed();
        let counter = match (response.status, response.head.contains("x-blocked: 0")) {
            (200, true) => &answers.allowed,
            (429, false) => &answers.blocked,
            (200, false) => {
                if !is_disturbed {
                    answers.undecided_by_a_well_agent.fetch_add(1, Ordering::Relaxed);
                }
                &answers.undecided
            }
            (status, _) => panic!("answered with {status}: {}", response.head),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if !is_disturbed && !std::ptr::eq(counter, &answers.undecided) {
            answers.slowest_us.fetch_max(took_us, Ordering::Relaxed);
        }
    }
}
