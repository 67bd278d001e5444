//! What the tests, benches and fuzz targets of this repository use of the daemon's inside. It may
//! change or go at any time.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use gcra_table::{KeyHash, Slots, Table};
use spop_agent::{Agent, Handler, Limits, Reply, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::actions::{Actions, Token};
use crate::admin::Answering;
use crate::cli::{self, Task};
use crate::heaviest::Under;
use crate::in_force::InForce;
use crate::limiter::Limiter;
use crate::policy::file;
use crate::policy::secrets::Readers;
use crate::stats::{self, PolicyStats};
use crate::status::Watched;
use crate::verdict::Outcome;

/// Reads a configuration, as if it stood in the file at `path`. Returns what `check` prints about
/// it: what it means, and a HAProxy configuration that fits.
///
/// # Errors
///
/// Each mistake, as `FILE:LINE: what is wrong`.
pub fn read_config(path: &Path, text: &str) -> Result<[String; 2], Vec<String>> {
    file::parse(path, text).map(|policies| [policies.in_words(), policies.for_haproxy()])
}

/// The command line, for what is written about it.
#[must_use]
pub fn command() -> clap::Command {
    cli::command()
}

/// An agent with the daemon's limiter, by the flags of a command line, on a table in memory.
///
/// `None` when the flags are not those of an agent, or there is no memory for the table.
#[must_use]
pub fn limiter(flags: &[&str], table: Slots) -> Option<Agent<impl Handler>> {
    let args = ["gcra-spoa"].iter().chain(flags).map(Into::into);
    let Ok(Task::Serve(config)) = cli::parse(args) else { return None };
    let table = Table::in_memory(table).ok()?;
    let (policies, _) = config.policies.read(Readers::OfFile).ok()?;
    let limits = match policies.answers.others[..] {
        [] => Limiter::limits_for_blocked_only(&policies.answers),
        _ => Limits::default(),
    };
    let stats = stats::Stats::new(config.threads);
    let policies = Arc::new(ArcSwap::from_pointee(InForce::at_start(policies, &stats, &table)));
    let limiter = Limiter::new(Arc::new(ArcSwap::from_pointee(table)), policies);
    Some(Agent::new(limiter).limits(limits))
}

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
        let stats = Arc::new(stats::Stats::new(NonZeroUsize::MIN));
        // An agent has at least one policy.
        let _ = stats.policy("fuzz");
        let policies = cli::policies_of_rate("100/s".parse().ok()?, None).ok()?;
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
        crate::admin::converse(stream, None, self.0.clone()).await.is_ok()
    }
}

/// The counts of one policy, as each worker keeps them on a lane of its own.
pub struct Stats(Arc<PolicyStats>);

/// The lane of a thread.
#[derive(Clone, Copy)]
pub struct Lane(stats::Lane);

impl Lane {
    /// The lane of the calling thread.
    #[must_use]
    #[inline]
    pub fn of_this_thread() -> Self {
        Self(stats::Lane::of_this_thread())
    }
}

impl Stats {
    /// Counts of nothing, for threads with lanes below `lanes`.
    #[must_use]
    pub fn new(lanes: NonZeroUsize) -> Self {
        Self(stats::Stats::new(lanes).policy("default"))
    }

    /// Counts a request that was blocked or allowed, of a client that is named by its address.
    #[inline(always)]
    pub fn count(&self, lane: Lane, is_blocked: bool, client: KeyHash, ip: Ipv4Addr) {
        let outcome = if is_blocked { Outcome::Blocked } else { Outcome::Allowed };
        self.0.count(lane.0, outcome, client, Under::own, |name| {
            // Writing to a string does not fail.
            let _ = write!(name, "{ip}");
        });
    }

    /// How many requests were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.counts().iter().sum()
    }
}
