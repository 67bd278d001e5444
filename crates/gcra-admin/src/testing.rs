//! What tests and fuzz targets use of the inside. It may change or go at any time.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use gcra_limiter::policies_in_force::InForce;
use gcra_limiter::stats::Stats;
use gcra_policy::flags;
use gcra_table::{Slots, Table};
use spop_agent::{Agent, Reply, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::actions::{Actions, Token};
use crate::server::{self, Answering};
use crate::status::Watched;

/// What `--admin` answers from: an agent without requests, with a table in memory.
#[derive(Clone)]
pub struct Admin(Arc<Answering>);

impl Admin {
    /// Makes one, with the smallest table.
    ///
    /// `None` when there is no memory for it.
    #[must_use]
    pub fn new() -> Option<Self> {
        let table = Table::in_memory(Slots::new(8).ok()?).ok()?;
        let agent = Agent::new(|_: &Request<'_>, _: &mut Reply<'_>| {});
        let stats = Arc::new(Stats::new(NonZeroUsize::MIN));
        // An agent has at least one policy.
        let _ = stats.policy("fuzz");
        let policies = flags::policies_of_rate("100/s".parse().ok()?, None).ok()?;
        let policies =
            Arc::new(ArcSwap::from_pointee(InForce::at_start(policies, &stats, &table)));
        let table = Arc::new(ArcSwap::from_pointee(table));
        let watched = Arc::new(Watched::new(table, agent.counters(), Arc::default(), stats));
        let path = Path::new("fuzz");
        let token = Some(Token::of(b"fuzz-fuzz-fuzz-fuzz"));
        // Orders of actions lead nowhere, because there is no housekeeping.
        let (orders, _) = mpsc::channel(1);
        let actions = Actions::new(watched.clone(), policies.clone(), path.into(), token, orders);
        Some(Self(Arc::new(Answering::new(Vec::new(), watched, policies, path.into(), actions))))
    }

    /// Answers the one request of a connection, as the daemon does but without its time limit.
    /// Returns whether the request could be read and answered.
    pub async fn converse(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> bool {
        server::converse(stream, None, self.0.clone()).await.is_ok()
    }
}
