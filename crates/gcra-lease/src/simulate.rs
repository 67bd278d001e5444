//! Many hosts, one store and a network between them, in time that follows from a seed. What the
//! real machines allow on all hosts together is policed by one exact bucket.
//!
//! Here is what the search of small models (`explore`) cannot show: drift of clocks, many hosts,
//! large bursts, and how rare the asks are.

mod random;
mod run;

use run::{Setting, run};

/// The cases of a table.
fn cases() -> Vec<(&'static str, Setting)> {
    let usual = Setting::default;
    let small = || Setting { limits: vec![(10_000, 20)], ..usual() };
    vec![
        ("4 hosts, 20k/s, limit 1000/s b200", usual()),
        ("same, 1 s on 1 s off", Setting { on_off: Some(1.0), ..usual() }),
        ("same, RTT 5 ms", Setting { round_trip: 5_000, ..usual() }),
        ("4 hosts, 900/s (under the limit)", Setting { offered: 900.0, ..usual() }),
        (
            "all on 1 of 4 hosts, 900/s",
            Setting { offered: 900.0, all_on_one: true, ..usual() },
        ),
        (
            "16 hosts, 50k/s, limit 10k/s b2000",
            Setting {
                hosts: 16,
                offered: 50e3,
                limits: vec![(100, 2_000)],
                seconds: 10.0,
                ..usual()
            },
        ),
        (
            "64 hosts, 20k/s, limit 1000/s b200",
            Setting { hosts: 64, seconds: 10.0, ..usual() },
        ),
        ("4 hosts, 2k/s, limit 100/s b20", Setting { offered: 2e3, ..small() }),
        (
            "4 hosts, 80/s, limit 100/s b20 (under)",
            Setting { offered: 80.0, seconds: 120.0, ..small() },
        ),
        (
            "4 hosts, 20/s, limit 100/s b20",
            Setting { offered: 20.0, seconds: 300.0, ..small() },
        ),
        (
            "4 hosts, 5/s, limit 10/s b5",
            Setting {
                offered: 5.0,
                limits: vec![(100_000, 5)],
                seconds: 600.0,
                ..usual()
            },
        ),
        (
            "4 hosts, 1/s, limit 10/m b5",
            Setting {
                offered: 1.0,
                limits: vec![(6_000_000, 5)],
                seconds: 3_000.0,
                ..usual()
            },
        ),
        ("2 % of messages lost", Setting { lost: 0.02, ..usual() }),
        ("hosts crash every 2 s", Setting { crashes: 0.5, ..usual() }),
        (
            "5 % lost, 5 % late by up to 200 ms, crashes, 100/s b20",
            Setting {
                offered: 2e3,
                lost: 0.05,
                late: 0.05,
                crashes: 0.5,
                seconds: 120.0,
                ..small()
            },
        ),
    ]
}

#[test]
fn print_table() {
    println!("| case | allowed, of what one exact bucket would | asks/request | asks/allowed |");
    for (name, setting) in cases() {
        let found = run(&setting);
        let per = |count: u64, of: u64| count as f64 / of.max(1) as f64;
        println!(
            "| {name} | {:.1} % | {:.4} | {:.3} | {:.2} % | {:.1} | {} {} |",
            100.0 * per(found.allowed, found.ideal),
            per(found.asks, found.requests),
            per(found.asks, found.allowed),
            100.0 * per(found.waited, found.requests),
            per(found.waited_us, found.requests),
            found.too_many, found.over
        );
    }
}
