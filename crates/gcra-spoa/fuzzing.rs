//! Where the fuzz targets (`fuzz/`) enter the daemon. It may change or go at any time.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use gcra_table::{Slots, Table};
use spop_agent::{Agent, Reply, Request};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::admin::Answering;
use crate::policy::file;
use crate::stats::Stats;
use crate::status::Watched;

/// Reads a configuration, as if it stood in the file at `path`. Returns what `check` says about
/// it: what it means and what HAProxy has to be told, or each mistake as `FILE:LINE: what is
/// wrong`.
///
/// # Errors
///
/// The mistakes.
pub fn read_config(path: &Path, text: &str) -> Result<[String; 2], Vec<String>> {
    file::parse(path, text).map(|policies| [policies.in_words(), policies.for_haproxy()])
}

/// What `--admin` answers from: an agent that nobody asks, with a table in memory.
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
        // As an agent has at least one.
        let _ = stats.policy("fuzz");
        let table = Arc::new(ArcSwap::from_pointee(table));
        let watched = Watched::new(table, agent.counters(), Arc::default(), stats);
        Some(Self(Arc::new(Answering::new(Vec::new(), watched))))
    }

    /// Answers the one request of a connection, as the daemon does but without its time limit.
    /// Returns whether the request could be read and answered.
    pub async fn converse(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> bool {
        crate::admin::converse(stream, self.0.clone()).await.is_ok()
    }
}
