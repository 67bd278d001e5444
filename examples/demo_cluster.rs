//! `make demo-cluster`: three hosts that share one limit through a store, each with an agent, a
//! table and a HAProxy of its own. One client asks all three for three times what it may have.
//! Then the store is killed, so that after a while each host goes on with its share, and it comes
//! back. Shows what the client gets from each host, and the sum beside what the limit allows.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a demo may end with a message")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use support::Client;
use support::host::Host;
use support::valkey::Server;

const PER_SECOND: u32 = 100;
const BURST: u32 = 20;
const SECONDS: u32 = 20;
/// The seconds after which the store is killed, and started again.
const KILLED: u32 = 5;
const BACK: u32 = 14;
/// A host uses its share only if the store has counted it this long ago.
const COUNTED: Duration = Duration::from_secs(8);
const CLIENT: &str = "127.0.0.1";

/// The answers that the client gets from one host.
#[derive(Default)]
struct Answers {
    allowed: AtomicU64,
    blocked: AtomicU64,
    other: AtomicU64,
}

fn main() {
    support::valkey::valkey().expect("tests/get-valkey.sh fetches a server");
    // Each change is on the disk before the server answers, so it loses nothing when it is killed.
    let mut store = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let rate = format!("{PER_SECOND}/s");
    let args = ["--rate", &rate, "--burst", &BURST.to_string(), "--store", &store.url()];
    let args = args.map(ToOwned::to_owned);
    println!("store: {}", store.version());
    println!("three hosts, each with a HAProxy, an agent and a table of its own:");
    println!("  gcra-spoa {}", args.join(" "));
    let hosts: Vec<_> = (0..3).map(|_| Host::start(&args)).collect();
    println!("The hosts get to know each other, which takes {} s.", COUNTED.as_secs());
    support::wait_until("each host knows the others", || {
        let machines = |host: &Host| host.metric("gcra_lease_machines");
        hosts.iter().all(|host| machines(host) == Some(3.0))
    });
    thread::sleep(COUNTED);
    println!("one client, which sends {PER_SECOND} requests/s to each of them for {SECONDS} s");
    println!("Requests allowed so far:");
    println!();
    println!(
        "  time   {:>8} {:>8} {:>8}   {:>8} {:>16}",
        "host 1", "host 2", "host 3", "sum", "limit allows"
    );

    let mut logged = hosts[0].agent().process.lines().len();
    let start = Instant::now();
    let clients: Vec<_> = hosts.iter().map(|host| ask(host, start)).collect();
    for second in 1..=SECONDS {
        thread::sleep(Duration::from_secs(second.into()).saturating_sub(start.elapsed()));
        // The answers first: what comes due in between is more than was counted.
        let allowed = allowed(&clients);
        let limit = limit_allows(start.elapsed());
        println!(
            "{:>5}s   {:>8} {:>8} {:>8}   {:>8} {limit:>16}",
            second,
            allowed[0],
            allowed[1],
            allowed[2],
            allowed.iter().sum::<u64>()
        );
        for line in hosts[0].agent().process.lines().iter().skip(logged) {
            let (_, said) = line.split_once("] ").unwrap_or_default();
            println!("         host 1 logs: {said}");
            logged += 1;
        }
        match second {
            KILLED => {
                store.kill();
                println!(
                    "         The store is killed. 3.5 s later, when all is spent that it has \
                     lent, each host goes on\n         with its share, a third of the limit."
                );
            }
            BACK => {
                store.restart();
                println!(
                    "         The store is back. The hosts find it again by themselves, and ask \
                     it 1.5 s later,\n         when all of them have."
                );
            }
            _ => {}
        }
    }

    println!();
    let answers: Vec<_> =
        clients.into_iter().map(|(answers, thread)| (answers, thread.join().unwrap())).collect();
    let elapsed = answers.iter().map(|(_, elapsed)| *elapsed).max().unwrap();
    let sum = |of: fn(&Answers) -> &AtomicU64| -> u64 {
        answers.iter().map(|(answers, _)| of(answers).load(Ordering::Relaxed)).sum()
    };
    let (allowed, other) = (sum(|it| &it.allowed), sum(|it| &it.other));
    let all = allowed + sum(|it| &it.blocked) + other;
    println!(
        "{allowed} of {all} requests were allowed; {BURST} at once + {:.2} s x {PER_SECOND}/s = \
         {}",
        elapsed.as_secs_f64(),
        limit_allows(elapsed)
    );
    if other > 0 {
        println!("HAProxy got no answer in time for {other} more, and let them pass.");
    }
    let asks = hosts.iter().filter_map(|host| host.metric("gcra_store_asks_total"));
    let asks = asks.fold(0.0, |sum, asks| sum + asks);
    println!("The hosts asked the store {asks} times. Everything is stopped.");
    assert!(allowed <= limit_allows(elapsed), "more requests were allowed than the limit says");
}

/// Sends requests to one host until the time is over. The thread returns when the last one was
/// answered.
fn ask(host: &Host, start: Instant) -> (Arc<Answers>, JoinHandle<Duration>) {
    let mut client = Client::from(host.frontend(), CLIENT.parse::<IpAddr>().unwrap());
    let answers = Arc::new(Answers::default());
    let of_thread = answers.clone();
    let thread = thread::spawn(move || {
        for number in 0..PER_SECOND * SECONDS {
            let due = Duration::from_secs(1) * number / PER_SECOND;
            thread::sleep(due.saturating_sub(start.elapsed()));
            let response = client.get("/").expect("HAProxy answers");
            let counter = match (response.status, response.head.contains("x-blocked: 0")) {
                (200, true) => &of_thread.allowed,
                (429, _) => &of_thread.blocked,
                _ => &of_thread.other,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        start.elapsed()
    });
    (answers, thread)
}

fn allowed(clients: &[(Arc<Answers>, JoinHandle<Duration>)]) -> Vec<u64> {
    clients.iter().map(|(answers, _)| answers.allowed.load(Ordering::Relaxed)).collect()
}

/// How many requests the limit allows in the time.
fn limit_allows(elapsed: Duration) -> u64 {
    u64::from(BURST) + u64::try_from(elapsed.as_millis()).unwrap() * u64::from(PER_SECOND) / 1000
}
