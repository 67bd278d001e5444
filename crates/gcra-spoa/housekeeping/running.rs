//! [`Running`]: the agent, as all parts of the housekeeping see it.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use gcra_inspect::policies_file::Keeper;
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::stats::Stats;
use gcra_limiter::undecided::Undecided;
use gcra_table::board::Profile;
use gcra_table::{Nanos, Table};
use gcra_text::count::Count;
use spop_agent::Counters;

/// The state that the agent serves with, and its counters.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) table: Arc<ArcSwap<Table>>,
    pub(crate) policies: Arc<ArcSwap<ActivePolicies>>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) undecided: Arc<Undecided>,
    /// How commands learn what is in force.
    pub(crate) keeper: Arc<Keeper>,
    /// Whether the policies come from a file, and not from the command line.
    pub(crate) has_file: bool,
    /// Where the agent serves its status.
    pub(crate) admin: Option<SocketAddr>,
}

impl Running {
    /// Tells the other agents of the table about this one.
    pub(super) fn introduce(&self) {
        let in_force = self.policies.load();
        self.table.load().board().introduce(&Profile {
            limits: in_force.policies.limits_digest,
            has_file: self.has_file,
            salt: in_force.policies.salt_digest(),
            admin: self.admin,
        });
    }

    /// The time since the start of the machine.
    pub(super) fn since_boot(&self) -> Nanos {
        let table = self.table.load();
        table.since_boot(table.now())
    }

    /// One line for `systemctl status`. It names no clients, because any user may read it.
    pub(super) fn status(&self, is_refused: bool) -> String {
        let policies = self.policies.load().policies.list.len() as u64;
        let now = self.counters.snapshot();
        let refused = match is_refused {
            false => "",
            true => "; the file was REFUSED when it was last read, see the log",
        };
        format!(
            "serving {} to {}, {} answered{refused}",
            Count(policies, "policy", "policies"),
            Count(now.open, "connection", "connections"),
            Count(now.notifies, "NOTIFY", "NOTIFYs")
        )
    }
}
