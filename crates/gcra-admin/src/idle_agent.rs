//! An agent without requests, for tests and fuzz targets.

use std::num::NonZeroUsize;
use std::sync::Arc;

use arc_swap::ArcSwap;
use gcra_limiter::policies_in_force::InForce;
use gcra_limiter::stats::Stats;
use gcra_policy::flags;
use gcra_table::{Slots, Table};
use spop_agent::{Agent, Reply, Request};

use crate::watched::Watched;

/// An agent with one policy and the smallest table, in memory. `None` when there is no memory.
pub(crate) fn watched() -> Option<Watched> {
    let table = Table::in_memory(Slots::new(8).ok()?).ok()?;
    let agent = Agent::new(|_: &Request<'_>, _: &mut Reply<'_>| {});
    let stats = Arc::new(Stats::new(NonZeroUsize::MIN));
    // An agent has at least one policy.
    let _ = stats.policy("fuzz");
    let policies = flags::policies_of_rate("100/s".parse().ok()?, None).ok()?;
    let policies = ArcSwap::from_pointee(InForce::at_start(policies, &stats, &table));
    let table = Arc::new(ArcSwap::from_pointee(table));
    let (counters, undecided) = (agent.counters(), Arc::default());
    Some(Watched::new(table, counters, undecided, stats, Arc::new(policies), None))
}
