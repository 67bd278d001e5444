//! Demands of actions on the live page: to make a policy only observe, or no longer.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::running::Running;

/// When the agent last followed a demand about each policy, in nanoseconds after the start of the
/// machine. A demand is followed once, and demands are followed in the order of time: a listener
/// cannot repeat one. Only policies that there were at the time are in it.
#[derive(Debug, Default)]
pub(super) struct Followed(BTreeMap<String, u64>);

impl Followed {
    /// Makes a policy only observe, or no longer, as an action has demanded. Returns whether this
    /// has changed anything. `reloaded_at` is when the agent last read its file.
    ///
    /// # Errors
    ///
    /// Why this cannot be done, as a sentence.
    pub(super) fn observe(
        &mut self,
        running: &Running,
        (policy, observe): (&str, bool),
        at_ns: u64,
        reloaded_at: u64,
    ) -> Result<bool, String> {
        self.check(policy, at_ns, reloaded_at)?;
        let in_force = running.policies.load();
        let observing = in_force.policies.observing(policy, observe);
        let next = observing.map_err(|error| error.to_string())?;
        self.0.insert(policy.to_owned(), at_ns);
        let Some(next) = next else { return Ok(false) };
        let next = in_force.replaced_by(next, &running.stats, &running.table.load());
        running.policies.store(Arc::new(next));
        running.introduce();
        Ok(true)
    }

    fn check(&self, policy: &str, at_ns: u64, reloaded_at: u64) -> Result<(), String> {
        if at_ns <= reloaded_at {
            return Err("this agent has reloaded its configuration after the demand".to_owned());
        }
        match self.0.get(policy) {
            Some(last) if at_ns <= *last => Err(format!(
                "this agent has followed this or a later demand about policy '{policy}'"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_is_followed_once_and_not_after_a_later_one_or_a_reload() {
        let mut followed = Followed::default();
        followed.check("api", 10, 0).unwrap();
        followed.0.insert("api".to_owned(), 10);
        for (at_ns, what) in [(10, "repeated"), (9, "older")] {
            let said = followed.check("api", at_ns, 0).unwrap_err();
            assert!(said.contains("or a later demand"), "{what}: {said}");
        }
        followed.check("api", 11, 0).unwrap();
        followed.check("login", 9, 0).unwrap();
        for policy in ["api", "login"] {
            assert!(followed.check(policy, 20, 20).unwrap_err().contains("has reloaded"));
            followed.check(policy, 21, 20).unwrap();
        }
    }
}
