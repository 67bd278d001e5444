//! [`StoredReset`]: a reset of a policy in the store, which holds on all machines that use it.
//!
//! Of two resets of a policy the later one counts, in each table and in the store. A machine takes
//! over a later one. It gives its own if the store has none, or an earlier one. So all come to the
//! same, in any sequence of exchanges.

use std::time::Duration;

use gcra_policy::{Policies, policy_id};
use gcra_store::{NewOrder, OrderExchange, SharedOrder};
use gcra_table::board::PolicyReset;
use serde::{Deserialize, Serialize};

use crate::inspected_table::Inspected;
use crate::orders::obeyed;

/// How long the store keeps a reset after it was last given: a policy that no machine has any more
/// leaves its place.
const LASTS: Duration = Duration::from_secs(7 * 24 * 3600);

/// A reset that ends in the store so soon is given again.
const RENEWED_BEFORE: u64 = 3 * 24 * 3600 * 1_000;

/// A later moment, after the year 2200, would leave none for the resets after it.
const LATEST: u64 = 1 << 63;

/// The words of a reset in the store, in JSON. Programs that know only orders leave it alone.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredReset {
    /// The name of the policy.
    reset: String,
    /// As in [`PolicyReset`].
    at: u64,
    giver: String,
}

/// A reset that the store has.
#[derive(Clone, Debug)]
pub(crate) struct KeptReset {
    stored: StoredReset,
    /// For how many ms the store keeps it.
    left: u64,
}

impl StoredReset {
    pub(crate) fn new(policy: &str, reset: &PolicyReset) -> Self {
        let PolicyReset { policy: _, at, giver } = reset;
        Self { reset: policy.to_owned(), at: *at, giver: giver.clone() }
    }

    /// Whether the store, which has that of the policy, should be given this one.
    fn is_lacking(&self, kept: Option<&KeptReset>) -> bool {
        kept.is_none_or(|kept| {
            kept.stored.at < self.at || kept.stored.at == self.at && kept.left < RENEWED_BEFORE
        })
    }
}

fn kept(exchange: &OrderExchange, order: &SharedOrder) -> Option<KeptReset> {
    let left = order.ends.checked_sub(exchange.now())?;
    let stored: StoredReset = serde_json::from_slice(&exchange.words(order)?).ok()?;
    (stored.at < LATEST).then_some(KeptReset { stored, left })
}

/// All resets that the store had at the last exchange.
pub(crate) fn all(exchange: &OrderExchange) -> Vec<KeptReset> {
    exchange.list().iter().filter_map(|order| kept(exchange, order)).collect()
}

/// The reset of a policy that the store had at the last exchange.
pub(crate) fn of(exchange: &OrderExchange, policy: &str) -> Option<KeptReset> {
    let id = exchange.reset_id(policy);
    kept(exchange, exchange.list().iter().find(|order| order.id == id)?)
}

/// Puts resets into the table, where it has no later ones. Those of policies that are not there
/// are left alone.
///
/// # Errors
///
/// The table has no space for one of them, or is being resized.
pub(crate) fn take(inspected: &Inspected, all: &[KeptReset]) -> anyhow::Result<()> {
    let mut outcome = Ok(());
    for StoredReset { reset, at, giver } in all.iter().map(|kept| &kept.stored) {
        if inspected.in_force.policies.named(reset).is_some() {
            let reset = PolicyReset { policy: policy_id(reset), at: *at, giver: giver.clone() };
            let taken = obeyed(inspected, inspected.table.board().take_reset(&reset));
            outcome = outcome.and(taken);
        }
    }
    outcome
}

/// The resets of the table that the store lacks. `kept` is what it has of a policy.
pub(crate) fn lacking(
    inspected: &Inspected,
    kept: impl Fn(&str) -> Option<KeptReset>,
) -> Vec<StoredReset> {
    let policies: &Policies = &inspected.in_force.policies;
    let stored = |reset: &PolicyReset| {
        let policy = policies.without_trials().find(|it| policy_id(&it.name) == reset.policy)?;
        Some(StoredReset::new(&policy.name, reset))
    };
    let resets = inspected.table.board().resets();
    let all = resets.iter().filter_map(stored);
    all.filter(|it| it.is_lacking(kept(&it.reset).as_ref())).collect()
}

/// Gives the store the resets that it still lacks. Returns whether there was one.
///
/// # Errors
///
/// The store cannot be used, or has no space.
pub(crate) async fn give(
    exchange: &mut OrderExchange,
    mut resets: Vec<StoredReset>,
) -> anyhow::Result<bool> {
    resets.retain(|it| it.is_lacking(of(exchange, &it.reset).as_ref()));
    if resets.is_empty() {
        return Ok(false);
    }
    let new = |it: &StoredReset| {
        // All keys are strings, so this does not fail.
        let words = serde_json::to_vec(it).unwrap_or_default();
        let id = exchange.reset_id(&it.reset);
        NewOrder { id, is_end: false, given: None, lasts: LASTS, words }
    };
    let new: Vec<_> = resets.iter().map(new).collect();
    let given = exchange.give(&new).await;
    // Another machine may have been faster with the same one.
    let is_there = |it: &StoredReset| !it.is_lacking(of(exchange, &it.reset).as_ref());
    if !resets.iter().all(is_there) {
        given?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use gcra_limiter::active_policies::ActivePolicies;
    use gcra_limiter::stats::Stats;
    use gcra_policy::file::document;
    use gcra_table::{Slots, Table};
    use proptest::prelude::*;

    use super::*;
    use crate::inspected_table::PolicySource;

    /// A machine, and the resets that it will give the store.
    struct Machine(Inspected, Vec<StoredReset>);

    type Store = BTreeMap<String, KeptReset>;

    const POLICIES: [&str; 2] = ["api", "login"];

    impl Machine {
        fn new() -> Self {
            let text = "[policy.api]\nlimits = \"9/d\"\nkey = [\"ip\"]\n\
                        [policy.login]\nlimits = \"9/d\"\nkey = [\"ip\"]\nshared = true\n\
                        [store]\nurl = \"redis://192.0.2.1\"\n";
            let policies = document::parse("gcra-spoa.toml".as_ref(), text).unwrap();
            let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
            let stats = Stats::new(std::num::NonZeroUsize::MIN);
            let in_force = Arc::new(ActivePolicies::at_start(policies, &stats, &table));
            let path = "/table".into();
            let source = PolicySource::Agent;
            Self(Inspected::of_parts(Arc::new(table), path, in_force, None, source), Vec::new())
        }

        fn exchange(&mut self, store: &mut Store) {
            let Self(inspected, lacking) = self;
            for stored in lacking.drain(..) {
                if stored.is_lacking(store.get(&stored.reset)) {
                    store.insert(stored.reset.clone(), KeptReset { stored, left: u64::MAX });
                }
            }
            take(inspected, &store.values().cloned().collect::<Vec<_>>()).unwrap();
            *lacking = super::lacking(inspected, |policy| store.get(policy).cloned());
        }

        fn resets(&self) -> BTreeMap<u64, (u64, String)> {
            let all = self.0.table.board().resets().into_iter();
            all.map(|reset| (reset.policy, (reset.at, reset.giver))).collect()
        }
    }

    fn stored(policy: &str, at: u64) -> StoredReset {
        StoredReset { reset: policy.to_owned(), at, giver: format!("anna@{at}") }
    }

    #[test]
    fn a_reset_is_renewed_before_the_store_forgets_it_and_only_of_a_policy_that_is_here() {
        let mut machine = Machine::new();
        let mut store = Store::new();
        for policy in ["api", "web"] {
            let left = RENEWED_BEFORE;
            store.insert(policy.to_owned(), KeptReset { stored: stored(policy, 7), left });
        }
        machine.exchange(&mut store);
        let right = BTreeMap::from([(policy_id("api"), (7, "anna@7".to_owned()))]);
        assert_eq!(machine.resets(), right);
        assert_eq!(machine.1, []);
        store.get_mut("api").unwrap().left -= 1;
        machine.exchange(&mut store);
        assert_eq!(machine.1, [stored("api", 7)]);
        // Another one was faster.
        store.get_mut("api").unwrap().left += 1;
        machine.exchange(&mut store);
        assert_eq!((machine.1, store["api"].left), (vec![], RENEWED_BEFORE));
    }

    #[test]
    fn words_of_a_later_version_are_no_reset() {
        let words = serde_json::to_string(&stored("api", 7)).unwrap();
        assert_eq!(words, "{\"reset\":\"api\",\"at\":7,\"giver\":\"anna@7\"}");
        for unknown in [
            "{\"reset\":\"api\",\"at\":7}",
            "{\"reset\":\"api\",\"at\":-7,\"giver\":\"\"}",
            "{\"reset\":\"api\",\"at\":7,\"giver\":\"\",\"limit\":\"day\"}",
        ] {
            serde_json::from_str::<StoredReset>(unknown).unwrap_err();
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// By a clock of its own.
        Reset(usize, usize, u64),
        Exchange(usize),
        /// The store loses all.
        Flush,
    }

    proptest! {
        /// The naive model is a map in which the latest reset of a policy stands. Each table and
        /// the store come to it, in whichever order machines exchange.
        #[test]
        fn machines_agree_on_the_latest_reset(
            steps in prop::collection::vec(prop_oneof![
                4 => (0_usize..3, 0_usize..2, 1_u64..50)
                    .prop_map(|(machine, policy, at)| Step::Reset(machine, policy, at)),
                6 => (0_usize..3).prop_map(Step::Exchange),
                1 => Just(Step::Flush),
            ], 1..30),
        ) {
            let (mut machines, mut store) = ([(); 3].map(|()| Machine::new()), Store::new());
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Reset(at, policy, moment) => {
                        let policy = policy_id(POLICIES[policy]);
                        let giver = format!("anna@{moment}");
                        let reset = PolicyReset { policy, at: moment, giver: giver.clone() };
                        machines[at].0.table.board().take_reset(&reset).unwrap();
                        let known = model.entry(policy).or_default();
                        *known = (moment, giver).max(std::mem::take(known));
                    }
                    Step::Exchange(at) => machines[at].exchange(&mut store),
                    Step::Flush => store.clear(),
                }
            }
            for _ in 0..3 {
                machines.iter_mut().for_each(|machine| machine.exchange(&mut store));
            }
            for machine in &machines {
                prop_assert_eq!(machine.resets(), model.clone());
            }
            let kept = store.values().map(|kept| &kept.stored);
            let kept: BTreeMap<_, _> =
                kept.map(|it| (policy_id(&it.reset), (it.at, it.giver.clone()))).collect();
            prop_assert_eq!(kept, model);
        }
    }
}
