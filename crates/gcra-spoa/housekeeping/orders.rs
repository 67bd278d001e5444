//! Orders about clients, and resets of policies: those of the table are put in force, and the log
//! says when an order begins and ends, and when a policy is reset.

use std::sync::Arc;

use gcra_inspect::order_state::{OrderState, OrderWords};
use gcra_policy::{Policy, policy_id};
use gcra_table::board::{Order, PolicyReset};
use gcra_text::visible::Visible;

use super::running::Running;

pub(super) struct Orders {
    /// Those that the table had.
    known: Vec<Order>,
    resets: Vec<PolicyReset>,
}

impl Orders {
    /// For an agent that has the resets of its table in force.
    pub(super) fn new(running: &Running) -> Self {
        Self { known: Vec::new(), resets: running.table.load().board().resets() }
    }

    /// Puts the orders and the resets of the table in force, and logs which have begun or ended.
    pub(super) fn follow(&mut self, running: &Running) {
        let table = running.table.load();
        let (orders, resets) = (table.board().orders(), table.board().resets());
        let in_force = running.policies.load();
        if let Some(next) = in_force.with_orders(&table, &running.stats) {
            running.policies.store(Arc::new(next));
        }
        let in_force = running.policies.load();
        for reset in resets.iter().filter(|reset| !self.resets.contains(reset)) {
            let mut policies = in_force.policies.without_trials();
            let is_it =
                |it: &&Policy| (policy_id(&it.name), it.reset_at) == (reset.policy, reset.at);
            if let Some(policy) = policies.find(is_it) {
                let (name, giver) = (&policy.name, Visible(&reset.giver));
                log::info!(
                    "policy '{name}' was reset by {giver}: all clients begin with no debts"
                );
            }
        }
        self.resets = resets;
        if orders == self.known {
            return;
        }
        let policy_of =
            |order: &Order| in_force.policies.list.iter().find(|policy| policy.is_meant_by(order));
        for order in orders.iter().filter(|one| !self.known.contains(one)) {
            if let Some(policy) = policy_of(order) {
                let words = OrderState::of(order, &table).in_words();
                log::info!("policy '{}': {} is {words}", policy.name, order.key);
            }
        }
        let is_of = |one: &Order, other: &Order| {
            (one.policy, one.target, one.kind) == (other.policy, other.target, other.kind)
        };
        let has_ended = |old: &&Order| !orders.iter().any(|one| is_of(one, old));
        for order in self.known.iter().filter(has_ended) {
            if let Some(policy) = policy_of(order) {
                let state = OrderWords::of(order.kind).state;
                log::info!("policy '{}': {} is no longer {state}", policy.name, order.key);
            }
        }
        self.known = orders;
    }
}
