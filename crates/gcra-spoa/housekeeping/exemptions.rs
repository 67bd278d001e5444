//! Clients that are exempt: those of the table are put in force, and the log says when that begins
//! and ends.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gcra_table::{Exemption, Time};
use gcra_text::duration::{Left, Utc};

use super::running::Running;

#[derive(Default)]
pub(super) struct Exemptions {
    /// Those that the table had.
    known: Vec<Exemption>,
}

impl Exemptions {
    /// Puts the exemptions of the table in force, and logs which have begun or ended.
    pub(super) fn follow(&mut self, running: &Running) {
        let table = running.table.load();
        let (exemptions, now) = (table.exemptions(), table.now());
        let in_force = running.policies.load();
        if let Some(next) = in_force.with_exemptions(&exemptions, &running.stats, now) {
            running.policies.store(Arc::new(next));
        }
        if exemptions == self.known {
            return;
        }
        let policy_of = |exemption: &Exemption| {
            in_force.policies.list.iter().find(|policy| policy.is_meant_by(exemption))
        };
        for exemption in exemptions.iter().filter(|one| !self.known.contains(one)) {
            if let Some(policy) = policy_of(exemption) {
                log::info!("{}", begins(exemption, &policy.name, now, SystemTime::now()));
            }
        }
        let is_of = |one: &Exemption, other: &Exemption| {
            (one.policy, one.key) == (other.policy, other.key)
        };
        let has_ended = |old: &&Exemption| !exemptions.iter().any(|one| is_of(one, old));
        for exemption in self.known.iter().filter(has_ended) {
            if let Some(policy) = policy_of(exemption) {
                let (client, policy) = (&exemption.client, &policy.name);
                log::info!("{client} is no longer exempt from the policy '{policy}'");
            }
        }
        self.known = exemptions;
    }
}

/// A sentence about an exemption that has begun, or that ends at another time than before.
fn begins(exemption: &Exemption, policy: &str, now: Time, wall: SystemTime) -> String {
    let rest = Duration::from(exemption.until.saturating_since(now));
    let end = (wall + rest).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!(
        "{} is exempt from the policy '{policy}' for {}, until {}",
        exemption.client,
        Left(rest),
        Utc(end)
    )
}
