//! `make demo`: two agents on one table, a real HAProxy in front of them, and two clients that ask
//! for three times what they may have. Shows what each of them gets, against what the limit
//! allows, and stops everything.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a demo may end with a message")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::net::IpAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use support::{Agent, Client, Haproxy, Tally};

const PER_SECOND: u32 = 100;
const BURST: u32 = 20;
const SECONDS: u32 = 6;
const CLIENTS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// The progress of a client.
#[derive(Clone, Copy, Default)]
struct Progress {
    passed: u64,
    denied: u64,
    elapsed: Duration,
}

fn main() {
    let directory = support::directory();
    let table = directory.path().join("table");
    let rate = format!("{PER_SECOND}/s");
    let args = ["--rate", &rate, "--burst", &BURST.to_string()];
    let agents = [Agent::start(&table, &args), Agent::start(&table, &args)];
    let haproxy = Haproxy::start_as_shipped(
        "haproxy.cfg",
        &[("GCRA_AGENT1", &agents[0].address), ("GCRA_AGENT2", &agents[1].address)],
    );

    println!("{}", haproxy_version());
    println!("  http://{}, haproxy/haproxy.cfg", haproxy.frontend);
    println!("two agents, one table");
    for agent in &agents {
        println!(
            "  gcra-spoa {} --listen {} --table {}",
            args.join(" "),
            agent.address,
            table.display()
        );
    }
    println!("two clients, each sending {} requests/s for {SECONDS} s", 3 * PER_SECOND);
    println!();
    println!("         {:^34}   {:^34}", CLIENTS[0], CLIENTS[1]);
    println!(
        "  time   {0:>8} {1:>8} {2:>16}   {0:>8} {1:>8} {2:>16}",
        "200", "429", "limit allows"
    );

    let start = Instant::now();
    let progress = Arc::new(Mutex::new([Progress::default(); 2]));
    let clients: Vec<_> = CLIENTS
        .iter()
        .enumerate()
        .map(|(number, source)| {
            let mut client = Client::from(haproxy.frontend, source.parse::<IpAddr>().unwrap());
            let progress = progress.clone();
            thread::spawn(move || {
                Tally::watched(
                    &mut client,
                    3 * PER_SECOND,
                    Duration::from_secs(SECONDS.into()),
                    |tally| {
                        let elapsed = tally.last_answered - tally.first_sent;
                        progress.lock().unwrap()[number] =
                            Progress { passed: tally.allowed, denied: tally.denied, elapsed };
                    },
                )
            })
        })
        .collect();
    for half_second in 1..=2 * SECONDS {
        let due = Duration::from_millis(500) * half_second;
        thread::sleep(due.saturating_sub(start.elapsed()));
        let columns = progress.lock().unwrap().map(|progress| {
            format!(
                "{:>8} {:>8} {:>16}",
                progress.passed,
                progress.denied,
                allowed(progress.elapsed)
            )
        });
        println!("{:>5.1}s   {}", due.as_secs_f64(), columns.join("   "));
    }

    println!();
    let mut exact = true;
    for (source, client) in CLIENTS.iter().zip(clients) {
        let tally = client.join().expect("the client ends");
        let elapsed = tally.last_answered - tally.first_sent;
        println!(
            "{source}: {} of {} requests were allowed; {BURST} at once + {:.2} s x \
             {PER_SECOND}/s = {}",
            tally.allowed,
            tally.allowed + tally.denied + tally.other,
            elapsed.as_secs_f64(),
            allowed(elapsed)
        );
        exact &= tally.allowed <= allowed(elapsed) && tally.other == 0;
    }
    let [first, second] = agents.map(Agent::stop);
    println!("The agents were asked {first} and {second} times. Everything is stopped.");
    assert!(exact, "more requests were allowed than the limit says, or some failed");
}

/// How many requests the limit allows in the time.
fn allowed(elapsed: Duration) -> u64 {
    u64::from(BURST) + u64::try_from(elapsed.as_millis()).unwrap() * u64::from(PER_SECOND) / 1000
}

fn haproxy_version() -> String {
    let output = Command::new(support::haproxy_binary()).arg("-v").output().expect("HAProxy runs");
    String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
}
