//! Deciding allocates no memory: the limiter itself, with a table, served over a socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

#[path = "../crates/spop-agent/tests/counting/mod.rs"]
mod counting;

use std::fs;
use std::net::Ipv4Addr;

use counting::Counting;
use gcra_limiter::decide::in_process::AskedRequest;
use gcra_spoa::testing::{in_process, limiter};
use gcra_table::Slots;
use spop_agent::Value;
use spop_codec::FrameId;
use spop_codec::haproxy::NotifyWriter;

/// Writes NOTIFYs that ask about this many addresses in turn.
fn notifies(addresses: u32) -> impl FnMut(&mut Vec<u8>) + Send {
    let mut asked = 0;
    move |bytes| {
        let mut out = [0; 64];
        let mut notify = NotifyWriter::new(&mut out, FrameId { stream: 1, frame: 1 }).unwrap();
        notify.message(b"check").unwrap();
        notify.arg(b"ip", Value::Ipv4(Ipv4Addr::from(0x0a00_0000 + asked % addresses))).unwrap();
        let length = notify.finish();
        bytes.extend_from_slice(&out[..length]);
        asked += 1;
    }
}

#[test]
fn known_and_new_keys_allowed_and_denied_are_decided_without_allocating() {
    for addresses in [1, u32::MAX] {
        // So small that new keys soon have to take the slots of others.
        let slots = Slots::new(4096).unwrap();
        let agent = limiter(&["--rate", "100/s", "--burst", "20"], slots).unwrap();
        let counting = Counting::new(agent, notifies(addresses));
        counting.allocations(1000, 10);
        for (together, times) in [(1, 1000), (64, 100), (1000, 50)] {
            let allocations = counting.allocations(together, times);
            assert_eq!(
                allocations, 0,
                "while {times} times {together} NOTIFYs for {addresses} addresses were answered"
            );
        }
    }
}

/// Neither do the texts of header fields, nor the names of clients.
#[test]
fn texts_of_an_answer_are_written_without_allocating() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gcra-spoa.toml");
    let allocations = |answer: &str| {
        let text = format!(
            "answer = [{answer}]\n[policy.check]\nlimits = [\"100/d burst 20\", \"1000/d\"]\n\
             key = [\"ip\"]\nbandwidth = {{ full = \"1m\", least = \"1\" }}\n"
        );
        fs::write(&file, text).unwrap();
        // Clients that owe all they can, and clients that owe nothing.
        let of_clients = |addresses| {
            let slots = Slots::new(4096).unwrap();
            let agent = limiter(&["--config", file.to_str().unwrap()], slots).unwrap();
            let counting = Counting::new(agent, notifies(addresses));
            counting.allocations(1, 1000);
            counting.allocations(1, 1000)
        };
        of_clients(10) + of_clients(u32::MAX)
    };
    for answer in [
        "\"retry_after\", \"bandwidth\"",
        "\"retry_after\", \"ratelimit\", \"ratelimit_policy\", \"client\"",
        "\"headers\"",
    ] {
        assert_eq!(allocations(answer), 0, "{answer}");
    }
}

/// Also where limits read the message themselves: the numbers of each value are parsed once.
#[test]
fn limits_by_other_keys_and_by_an_arg_are_decided_without_allocating() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gcra-spoa.toml");
    let text = "answer = [\"retry_after\"]\n[policy.check]\nkey = [\"ip\"]\nlimits = \
                [\"100/d\", { name = \"net\", rate = \"500/d\", ipv4_prefix = 24 }, { arg = \
                \"plan\", default = \"50/d\", most = \"200/d\" }]\n";
    fs::write(&file, text).unwrap();
    let slots = Slots::new(4096).unwrap();
    let agent = limiter(&["--config", file.to_str().unwrap()], slots).unwrap();
    let mut ip = 0_u32;
    let plans = ["20/d", "100/d burst 10", "1000/d", "", "deny"];
    let each = move |bytes: &mut Vec<u8>| {
        ip = (ip + 1) % 1000;
        let plan = plans[ip as usize % plans.len()].as_bytes();
        let mut out = [0; 64];
        let mut notify = NotifyWriter::new(&mut out, FrameId { stream: 1, frame: 1 }).unwrap();
        notify.message(b"check").unwrap();
        notify.arg(b"ip", Value::Ipv4(Ipv4Addr::from(0x0a00_0000 + ip))).unwrap();
        notify.arg(b"plan", Value::String(plan)).unwrap();
        let length = notify.finish();
        bytes.extend_from_slice(&out[..length]);
    };
    let counting = Counting::new(agent, each);
    // Until the names of the heaviest clients have their memory.
    counting.allocations(1, 3_000);
    assert_eq!(counting.allocations(1, 1000), 0);
}

/// A count in windows, alone and beside a limit with a rate.
#[test]
fn counts_in_windows_are_decided_without_allocating() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gcra-spoa.toml");
    let count = "{ count = 500, window = \"day Europe/Berlin\" }";
    for limits in [count.to_owned(), format!("[\"100/s burst 20\", {count}]")] {
        let text = format!(
            "answer = [\"retry_after\", \"remaining\"]\n[policy.check]\nlimits = {limits}\n\
             key = [\"ip\"]\n"
        );
        fs::write(&file, text).unwrap();
        for addresses in [1, u32::MAX] {
            let slots = Slots::new(4096).unwrap();
            let agent = limiter(&["--config", file.to_str().unwrap()], slots).unwrap();
            let counting = Counting::new(agent, notifies(addresses));
            // Until the names of the heaviest clients have their memory.
            counting.allocations(1, 3_000);
            assert_eq!(counting.allocations(1, 1000), 0, "{limits} {addresses}");
        }
    }
}

/// Inside HAProxy, by the usual path and by that of a message.
#[test]
fn requests_in_the_process_that_has_them_are_decided_without_allocating() {
    let slots = Slots::new(4096).unwrap();
    let limiter = in_process(&["--rate", "100/s", "--burst", "20"], slots).unwrap();
    let (mut found, mut space) = (limiter.found_in_force(), vec![0; 4096]);
    for names in [&["ip"][..], &["ip", "path"]] {
        let mut asked = 0_u32;
        let mut ask = |times: u32| {
            for _ in 0..times {
                asked += 1;
                let ip = Value::Ipv4(Ipv4Addr::from(0x0a00_0000 + asked % 5_000));
                let values = [ip, Value::String(b"/path")];
                let mut args = [(&b""[..], Value::Null); 2];
                for (arg, (name, value)) in args.iter_mut().zip(names.iter().zip(values)) {
                    *arg = (name.as_bytes(), value);
                }
                let args = &args[..names.len()];
                limiter.wait(&mut found, AskedRequest { message: None, args }, &mut space);
            }
        };
        // Until the names of the heaviest clients have their memory.
        ask(10_000);
        let counted = allocation_counter::measure(|| ask(10_000));
        assert_eq!(counted.count_total, 0, "{names:?}");
    }
}
