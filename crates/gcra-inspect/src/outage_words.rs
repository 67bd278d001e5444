//! [`OutageWords`]: what happens to a request now because the store is away, in words.

use std::time::Duration;

use gcra_lease::{HostTime, Micros};
use gcra_limiter::decide::without_store::{ForeseenWithoutStore, Instead};
use gcra_limiter::verdict::Reason;
use gcra_policy::sharing::Sharing;
use gcra_table::{Leases, Nanos, Table};
use gcra_text::count::Count;
use gcra_text::duration::{Left, Short};
use serde::Serialize;

use crate::lease_state::left;

/// Agents note several times a second that they use the store. One may be stopped for a moment.
const NOTED_EVERY: Micros = Micros::from_millis(3_000);

/// No share is used for about this time after the store was lost.
const BEGINS_AFTER: Nanos = Nanos::from_millis(4_000);

const NO_SHARE_YET: &str =
    "there is no share yet: it begins some seconds after the store was lost";

/// The words about a request now that would have to ask the store.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutageWords {
    /// For how long the store has been away, as an agent says; or for how long no agent of this
    /// machine has used it.
    pub(crate) for_ms: u64,
    pub(crate) agent_says_so: bool,
    /// Why the request is allowed or blocked. `None` if only an agent knows what is decided.
    pub because: Option<String>,
}

/// Whether an agent of this machine has used the store just now.
pub fn is_used(leases: &Leases, table: &Table) -> bool {
    leases.any_part_used_ago(HostTime::from(table.now())) <= NOTED_EVERY
}

impl OutageWords {
    /// The words about an agent's forecast. `least_burst` is that of the policy's limits.
    pub fn of_agent(preview: &ForeseenWithoutStore, least_burst: u32) -> Self {
        let ForeseenWithoutStore { away, instead, machines, reason, .. } = preview;
        let share = format!(
            "this machine's share (the limit divided by {})",
            Count(*machines, "machine", "machines")
        );
        let because = match (instead, reason) {
            (Instead::Closed | Instead::Open { .. }, _) => because(*instead),
            (Instead::Share, None) => Some(format!("{share} is not used up")),
            (Instead::Share, Some(Reason::Store)) => Some(match *machines {
                0 => "there is no share: it is not known how many machines there are".to_owned(),
                machines if least_burst < machines => format!(
                    "there is no share: a burst of {least_burst} cannot be divided by {machines} \
                     machines"
                ),
                _ if *away < BEGINS_AFTER => NO_SHARE_YET.to_owned(),
                _ => "there is no share: the store may be back, or another agent of this machine \
                      uses it"
                    .to_owned(),
            }),
            (Instead::Share, Some(Reason::Oversize)) => {
                Some(format!("it costs more than {share} has"))
            }
            (Instead::Share, Some(_)) => Some(format!("{share} allows no request yet")),
        };
        Self { for_ms: away.millis_ceil(), agent_says_so: true, because }
    }

    /// The words if no agent of this machine uses the store, and why a request is blocked then.
    /// `None` if an agent uses it, or if there is none.
    pub(crate) fn of_machine(
        leases: &Leases,
        table: &Table,
        sharing: Sharing,
    ) -> Option<(Self, Option<Reason>)> {
        let unused = leases.any_part_used_ago(HostTime::from(table.now()));
        let board = table.board();
        if unused <= NOTED_EVERY || unused == Micros(u64::MAX) || board.processes().is_empty() {
            return None;
        }
        let instead = Instead::of(sharing, Nanos::from(unused));
        let away = Self {
            for_ms: unused.0.div_ceil(1_000),
            agent_says_so: false,
            because: because(instead),
        };
        Some((away, (instead == Instead::Closed).then_some(Reason::Store)))
    }

    /// "the store has been away for 17 s; a request now is blocked, because ...".
    pub fn in_words(&self, is_blocked: bool, would_block: bool, wait_ms: u64) -> String {
        let time = Short(Duration::from_millis(self.for_ms));
        let away = match self.agent_says_so {
            true => format!("the store has been away for {time}"),
            false => format!("the agents of this machine have not used the store for {time}"),
        };
        let Some(because) = &self.because else {
            return format!(
                "{away}; this machine's share of the limit decides about a request now"
            );
        };
        let decided = match (is_blocked, would_block) {
            (true, _) => "is blocked",
            (false, true) => "is allowed, because the policy only observes; it would be blocked",
            (false, false) => "is allowed",
        };
        let next = match wait_ms {
            0 => String::new(),
            ms => format!("; the next one is allowed in {}", left(ms)),
        };
        format!("{away}; a request now {decided}, because {because}{next}")
    }
}

/// Why a policy allows or blocks a request without a share.
fn because(instead: Instead) -> Option<String> {
    match instead {
        Instead::Closed => Some("the policy is \"closed\" without the store".to_owned()),
        Instead::Open { left } => {
            Some(format!("the policy is \"open\" without the store for another {}", Left(left)))
        }
        Instead::Share => None,
    }
}
