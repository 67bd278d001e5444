//! Deciding takes no memory: the limiter itself, with a table, served over a socket.

use std::net::Ipv4Addr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use gcra_table::{Slots, Table};
use spop_agent::{Agent, Value};
use spop_codec::FrameId;
use spop_codec::haproxy::NotifyWriter;

use crate::config::{self, Task};
use crate::counting::Counting;
use crate::in_force::InForce;
use crate::limiter::Limiter;
use crate::stats::Stats;

/// Writes NOTIFYs that ask for so many addresses in turn.
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
        let Ok(Task::Serve(config)) =
            config::parse(["gcra-spoa", "--rate", "100/s", "--burst", "20"].map(Into::into))
        else {
            panic!("that is an agent's command line");
        };
        // So small that new keys soon have to take the slots of others.
        let table = Table::in_memory(Slots::new(4096).unwrap()).unwrap();
        let (policies, _) = config.policies.read().expect("the flags are good");
        let limits = Limiter::limits_for_blocked_only(&policies.answers);
        let stats = Stats::new(config.threads);
        let policies =
            Arc::new(ArcSwap::from_pointee(InForce::at_start(policies, &stats, &table)));
        let limiter = Limiter::new(Arc::new(ArcSwap::from_pointee(table)), policies);
        let agent = Agent::new(limiter).limits(limits);
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
