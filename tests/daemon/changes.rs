//! Limits that differ, in real processes on one table: agents that restart with other numbers,
//! agents that change at different times, overrides within groups.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spop_agent::Value;

use crate::support::spop::Spop;
use crate::support::{Agent, directory, wait_until};

fn ip(text: &str) -> Value<'static> {
    Value::from(text.parse::<IpAddr>().unwrap())
}

fn limited(table: &Path, rate: &str, burst: &str) -> Agent {
    Agent::start(table, &["--rate", rate, "--burst", burst])
}

fn configured(table: &Path, config: &Path, more: &[&str]) -> Agent {
    let args = ["--config", config.to_str().unwrap(), "--drain", "0", "--listen", "127.0.0.1:0"];
    Agent::start_with(table, &[&args[..], more].concat())
}

/// During a rolling restart both limits are in force for a while: each agent allows what its own
/// limit allows, and no more.
#[test]
fn two_limits_in_force_on_one_table_forgive_nothing() {
    for [(rate, burst), (other_rate, other_burst)] in [
        [("100/s", 20), ("100/s", 30)],
        [("100/s", 20), ("200/s", 20)],
        [("1000/d", 1000), ("100/d", 10)],
    ] {
        let directory = directory();
        let table = directory.path().join("table");
        let limits = [(rate, burst), (other_rate, other_burst)];
        let agents = limits.map(|(rate, burst)| limited(&table, rate, &burst.to_string()));
        let client = [("ip", ip("192.0.2.1"))];
        let began = Instant::now();
        let mut peers = agents.each_ref().map(|agent| Spop::connect(&agent.address));
        let mut allowed = [0; 2];
        for _ in 0..40 {
            for (peer, allowed) in peers.iter_mut().zip(&mut allowed) {
                *allowed += peer.allowed(&client, 100);
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        for ((rate, burst), allowed) in limits.iter().zip(allowed) {
            let per_second = match *rate {
                "100/s" => 100.0,
                "200/s" => 200.0,
                _ => 0.02,
            };
            let most = f64::from(*burst) + per_second * seconds;
            #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
            let allowed = allowed as f64;
            assert!(
                allowed <= most,
                "{rate} burst {burst}: {allowed} allowed in {seconds} s, of {most}"
            );
        }
    }
}

/// Each restart changes the numbers. A client that has used up its limit gets no more than a
/// larger burst adds.
#[test]
fn restarts_with_other_numbers_forgive_nothing() {
    let directory = directory();
    let table = directory.path().join("table");
    let client = [("ip", ip("192.0.2.1"))];
    let mut allowed = 0;
    for (rate, burst) in [
        ("10/d", "10"),
        ("10/d", "15"),
        ("20/d", "15"),
        ("10/d", "10"),
        ("5/d", "12"),
        ("10/d", "15"),
    ] {
        let agent = limited(&table, rate, burst);
        allowed += Spop::connect(&agent.address).allowed(&client, 40);
        agent.stop();
    }
    assert_eq!(allowed, 15, "the largest burst");
    // A limit ten times as high helps at once: 15 of its 150 are used.
    let agent = limited(&table, "100/d", "150");
    assert_eq!(Spop::connect(&agent.address).allowed(&client, 300), 135);
}

/// Two agents that watch one file, and read it one after the other.
#[test]
fn agents_that_read_a_change_one_after_the_other_forgive_nothing() {
    let directory = directory();
    let (table, file) = (directory.path().join("table"), directory.path().join("gcra-spoa.toml"));
    let config = |limit: &str| {
        fs::write(&file, format!("[policy.check]\nlimits = \"{limit}\"\nkey = [\"ip\"]\n"))
            .unwrap();
    };
    config("1000/d burst 1000");
    let first = configured(&table, &file, &["--watch"]);
    thread::sleep(Duration::from_millis(500));
    let agents = [first, configured(&table, &file, &["--watch"])];
    // Bounded, so that a failure below does not wait for ever.
    let (stop, latest) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(60));
    let hammer = |agent: &Agent| {
        let mut peer = Spop::connect(&agent.address);
        let mut allowed = 0;
        while !stop.load(Ordering::Relaxed) && Instant::now() < latest {
            allowed += peer.allowed(&[("ip", ip("192.0.2.1"))], 50);
            thread::sleep(Duration::from_millis(2));
        }
        allowed
    };
    let began = Instant::now();
    let allowed: usize = thread::scope(|scope| {
        let hammers = agents.each_ref().map(|agent| scope.spawn(|| hammer(agent)));
        for limit in ["100/d burst 10", "1000/d burst 1000", "100/d burst 10"] {
            let read = |agent: &Agent| {
                agent.process.lines().iter().filter(|line| line.contains("was read again")).count()
            };
            let before = agents.each_ref().map(read);
            config(limit);
            wait_until("both have read it", || {
                agents.iter().zip(before).all(|(agent, before)| read(agent) > before)
            });
        }
        stop.store(true, Ordering::Relaxed);
        hammers.into_iter().map(|hammer| hammer.join().unwrap()).sum()
    });
    // The larger burst, and what drains in the meantime. The smaller burst may come on top, but
    // does not have to.
    let drained = usize::try_from(began.elapsed().as_secs() * 1100 / 86_400).unwrap() + 1;
    assert!((1000..=1010 + 2 * drained).contains(&allowed), "{allowed}");
}

/// Every override within every group, for both kinds of addresses: the requests of one are not
/// charged to the other.
#[test]
fn every_override_within_every_group_has_a_bucket_of_its_own() {
    let directory = directory();
    let agents: Vec<_> = [(0, 4), (16, 8), (24, 31), (32, 33)]
        .into_iter()
        .flat_map(|(v4, step)| [(v4, 64 + step), (v4, 128 - step)])
        .map(|(v4_prefix, v6_prefix)| {
            let mut config = format!(
                "[policy.check]\nlimits = \"10/d burst 3\"\nkey = [\"ip\"]\n\
                 ipv4_prefix = {v4_prefix}\n\
                 ipv6_prefix = {v6_prefix}\n[policy.check.overrides]\n"
            );
            for length in [8, 16, 24, 25, 31, 32] {
                config += &format!("\"10.0.0.0/{length}\" = \"10/d burst {}\"\n", 4 + length);
            }
            for length in [32, 63, 64, 65, 96, 127, 128] {
                config += &format!("\"2001:db8::/{length}\" = \"10/d burst {}\"\n", 4 + length);
            }
            let name = format!("{v4_prefix}-{v6_prefix}");
            let file = directory.path().join(format!("{name}.toml"));
            fs::write(&file, config).unwrap();
            configured(&directory.path().join(name), &file, &["--slots", "1024"])
        })
        .collect();
    for agent in agents {
        let mut peer = Spop::connect(&agent.address);
        // An address outside of all overrides, and for each override one that is not in a narrower
        // one.
        let v4 = |length: u32| {
            u32::from_be_bytes([10, 0, 0, 0])
                | 31_u32.checked_sub(length).map_or(0, |shift| 1 << shift)
        };
        let mut expected = vec![(Value::from(IpAddr::V4([192, 0, 2, 1].into())), 3)];
        for length in [8, 16, 24, 25, 31, 32] {
            expected.push((Value::Ipv4(v4(length).into()), 4 + length as usize));
        }
        let base = u128::from("2001:db8::".parse::<Ipv6Addr>().unwrap());
        for length in [32_u32, 63, 64, 65, 96, 127, 128] {
            let outside = 127_u32.checked_sub(length).map_or(0, |shift| 1_u128 << shift);
            expected.push((Value::Ipv6((base | outside).into()), 4 + length as usize));
        }
        // In turn, so that two that shared a bucket would be charged for each other.
        let mut allowed = vec![0; expected.len()];
        for _ in 0..140 {
            for ((address, _), allowed) in expected.iter().zip(&mut allowed) {
                *allowed += peer.allowed(&[("ip", *address)], 1);
            }
        }
        let expected: Vec<_> = expected.into_iter().map(|(_, burst)| burst).collect();
        assert_eq!(allowed, expected);
        agent.stop();
    }
}

/// Writes the file of an agent that has these policies.
fn write(file: &Path, policies: &[(&str, &str)]) {
    let policy = |(name, limit): &(&str, &str)| {
        format!("[policy.{name}]\nmessage = \"{name}\"\nkey = [\"ip\"]\nlimits = \"{limit}\"\n")
    };
    fs::write(file, policies.iter().map(policy).collect::<String>()).unwrap();
}

fn allowed(peer: &mut Spop, message: &str, requests: usize) -> usize {
    let args = [("ip", ip("192.0.2.1"))];
    let answers = peer.ask_all(&vec![&[(message, &args[..])][..]; requests]);
    answers.iter().filter(|variables| matches!(&variables[..], [(_, _, false)])).count()
}

/// The agent reads its file again.
fn reload(agent: &Agent) {
    let read = || {
        let lines = agent.process.lines();
        lines.iter().filter(|line| line.contains("was read again, and is in force")).count()
    };
    let before = read();
    agent.process.signal(Signal::HUP);
    wait_until("the file is in force", || read() > before);
}

/// All debts of a client survive a change, however many policies are changed at once, and also
/// that the agent is killed after it.
#[test]
fn a_crash_after_a_change_forgets_no_debt_of_any_policy() {
    let directory = directory();
    let file = directory.path().join("gcra-spoa.toml");
    let names: Vec<String> = (0..20).map(|number| format!("p{number}")).collect();
    let with = |limit| {
        let policies: Vec<_> = names.iter().map(|name| (name.as_str(), limit)).collect();
        write(&file, &policies);
    };
    for reloads in [false, true] {
        let table = directory.path().join(format!("table-{reloads}"));
        with("500/d burst 50");
        let mut agent = configured(&table, &file, &[]);
        let mut peer = Spop::connect(&agent.address);
        for name in &names {
            assert!(allowed(&mut peer, name, 60) >= 50);
        }
        with("500/d burst 60");
        if reloads {
            reload(&agent);
        }
        agent.process.kill();
        let agent = configured(&table, &file, &[]);
        let mut peer = Spop::connect(&agent.address);
        for name in &names {
            let more = allowed(&mut peer, name, 80);
            assert!((10..15).contains(&more), "{name}: {more}, with a reload: {reloads}");
        }
    }
}

/// A client that owes nothing has its whole burst after a change, whatever was changed before.
#[test]
fn a_client_that_owes_nothing_has_its_burst_after_a_change() {
    let directory = directory();
    let (table, file) = (directory.path().join("table"), directory.path().join("gcra-spoa.toml"));
    let (fast, slow) = ("1000/s burst 200", "10/h burst 100");
    write(&file, &[("login", "1/h"), ("api", fast)]);
    let agent = configured(&table, &file, &[]);
    write(&file, &[("login", "2/h"), ("api", fast)]);
    reload(&agent);
    thread::sleep(Duration::from_millis(500));
    let mut peer = Spop::connect(&agent.address);
    assert_eq!(allowed(&mut peer, "api", 1), 1);
    // It owes nothing after 1 ms.
    thread::sleep(Duration::from_millis(100));
    write(&file, &[("login", "2/h"), ("api", slow)]);
    reload(&agent);
    assert!(allowed(&mut peer, "api", 110) >= 100);
}

/// The same during a rolling restart, at the agents that have been restarted.
#[test]
fn a_client_that_owes_nothing_has_its_burst_during_a_rolling_restart() {
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [limited(&table, "1000/s", "200"), limited(&table, "10/h", "100")];
    let mut peers = agents.each_ref().map(|agent| Spop::connect(&agent.address));
    thread::sleep(Duration::from_millis(500));
    let client = [("ip", ip("192.0.2.1"))];
    assert_eq!(peers[0].allowed(&client, 1), 1);
    thread::sleep(Duration::from_millis(100));
    assert!(peers[1].allowed(&client, 110) >= 100);
    // The first one is restarted as well. By now the client has used up its burst.
    let [first, _second] = agents;
    first.stop();
    let first = limited(&table, "10/h", "100");
    assert!(Spop::connect(&first.address).allowed(&client, 110) < 10);
}
