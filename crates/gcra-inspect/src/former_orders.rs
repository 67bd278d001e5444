//! Orders that were given with a KEY when it meant other clients, or for a policy that is gone.

use gcra_limiter::message_key::hash_key;
use gcra_limiter::written_message::WrittenMessage;
use gcra_policy::key::{Key, NamedValue};
use gcra_policy::{Policy, policy_id};
use gcra_table::board::{Order, OrderKind, OrderTarget};
use gcra_table::{KeyHash, Table};
use serde::Serialize;

use crate::explanation::of_a_group;
use crate::inspected_table::Inspected;
use crate::key_readings;
use crate::order_state::{OrderState, OrderWords};
use crate::orders::{self, Subject};
use crate::store_orders::{GivesToStore, where_it_has_ended};

/// The orders of a kind that are not about exactly these clients, which a KEY means now: those
/// that were made with this KEY while the policies made other keys, and those that are listed
/// under this name. With a policy, only those of it.
pub fn of_key(
    inspected: &Inspected,
    kind: OrderKind,
    policy: Option<&str>,
    key: &Key,
    subjects: &[Subject],
) -> Vec<Order> {
    let is_asked = |order: &Order| {
        order.kind == kind && policy.is_none_or(|it| order.policy == policy_id(it))
    };
    let is_exact = |order: &Order| subjects.iter().any(|it| it.is_of(inspected, order));
    let listed = inspected.table.board().orders().into_iter();
    let (exact, mut others): (Vec<_>, Vec<_>) =
        listed.filter(|order| is_asked(order)).partition(is_exact);
    if others.is_empty() {
        return others;
    }
    let policies = inspected.others().iter().flat_map(|others| &others.list);
    let of = |policy| Some((policy, hash_of(&inspected.table, policy, key)?));
    let former_keys: Vec<_> = policies.map(|policy| &**policy).filter_map(of).collect();
    others.retain(|other| {
        let has_exact = exact.iter().any(|exact| exact.policy == other.policy);
        let is_of_key = match other.target {
            OrderTarget::Client { key, .. } => former_keys
                .iter()
                .any(|(policy, former)| *former == key && policy.groups_as(&other.target)),
            OrderTarget::Network { .. } => false,
        };
        other.key == key.text || (!has_exact && is_of_key)
    });
    others
}

/// An order in a list.
#[derive(Serialize)]
pub struct ListedOrder {
    /// `None` if no policy is in force that it is for.
    pub policy: Option<String>,
    /// Whether clients of the policy have this key; `None` if that is not known.
    pub fits: Option<bool>,
    #[serde(flatten)]
    pub state: OrderState,
}

impl ListedOrder {
    pub fn of(order: &Order, policy: Option<&Policy>, table: &Table) -> Self {
        Self {
            policy: policy.map(|policy| policy.name.to_string()),
            fits: policy.and_then(|policy| fits(table, policy, order)),
            state: OrderState::of(order, table),
        }
    }
}

/// The end of such an order.
pub struct EndedFormer<'i> {
    /// The name of its policy, if that is still there.
    pub policy: Option<&'i str>,
    /// Whether the store has taken the end, or why it has not. `None` without a store.
    pub in_store: Option<Result<(), String>>,
}

impl EndedFormer<'_> {
    /// "the block of 10.1.0.0/24, from before the key was changed, has ended, ...".
    pub fn in_words(&self, order: &Order) -> String {
        format!(
            "the {} of {}, from before the key was changed, has ended, {}",
            OrderWords::of(order.kind).noun,
            order.key,
            where_it_has_ended(self.in_store.as_ref())
        )
    }
}

/// Ends such an order of a KEY, on all machines of the store first.
///
/// # Errors
///
/// The table is being resized.
pub fn end<'i>(
    inspected: &'i Inspected,
    store: Option<&mut GivesToStore>,
    order: &Order,
    key: &Key,
) -> anyhow::Result<EndedFormer<'i>> {
    let policies = &inspected.in_force.policies.list;
    let policy = policies.iter().find(|policy| policy.is_meant_by(order));
    let in_store = store.zip(policy);
    let in_store = in_store.map(|(store, policy)| store.end_former(order, policy, &key.text));
    orders::end(inspected, order)?;
    Ok(EndedFormer { policy: policy.map(|policy| &*policy.name), in_store })
}

/// The hash of the key that a KEY means in a policy.
fn hash_of(table: &Table, policy: &Policy, key: &Key) -> Option<KeyHash> {
    let args = key_readings::named(key, &policy.key.args).ok()?.args;
    let name = policy.message.as_deref().unwrap_or_default();
    let written = |args: &[NamedValue]| {
        let message = WrittenMessage::new(name, args).map_err(|_| String::new())?;
        Ok((message, ()))
    };
    let (message, ()) = of_a_group(policy, &args, written).ok()?;
    Some(hash_key(table.hasher(), policy, &message.message()?)?.0)
}

/// Whether clients of a policy have the key of an order. `None` if the name of the order does not
/// say the whole key.
pub(crate) fn fits(table: &Table, policy: &Policy, order: &Order) -> Option<bool> {
    let OrderTarget::Client { key: client, .. } = order.target else { return Some(true) };
    if !policy.groups_as(&order.target) {
        return Some(false);
    }
    let key: Key = order.key.parse().ok()?;
    // Without its overrides, too: a group may have overrides for the addresses by which its key
    // would be found.
    let plain = policy.with_rule(policy.rule.clone());
    Some([policy, &plain].iter().any(|it| hash_of(table, it, &key) == Some(client)))
}
