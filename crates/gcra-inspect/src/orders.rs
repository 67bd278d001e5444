//! Orders as operators give them: which clients a KEY means, and what the table has about them.

use std::time::Duration;

use anyhow::{anyhow, bail};
use gcra_policy::key::{Key, WrittenValue};
use gcra_policy::orders::PolicyOrders;
use gcra_policy::table_error;
use gcra_policy::{Policy, policy_id};
use gcra_table::Nanos;
use gcra_table::board::{LONGEST_ORDER, MOST_ORDERS, Order, OrderError, OrderKind, OrderTarget};
use gcra_text::count::Count;
use gcra_text::duration::{Exact, Left, nanoseconds};
use gcra_text::network::VALUE;
use gcra_text::output::WrongUsage;
use gcra_text::visible::Visible;
use ipnet::IpNet;

use crate::client_buckets::{has_bucket, is_known};
use crate::explanation::written_key;
use crate::inspected_table::{Inspected, InspectedClient, about};
use crate::order_state::OrderWords;

/// Agents follow within about two seconds, so a much shorter order would hold nowhere.
pub const SHORTEST_ORDER: Duration = Duration::from_secs(10);

/// The longest time of an order.
pub fn longest_order() -> Duration {
    LONGEST_ORDER.into()
}

/// The clients of a policy that an order is about.
pub struct Subject {
    /// The place of the policy.
    at: usize,
    pub target: OrderTarget,
    /// Their name in lists.
    pub name: String,
    /// `None` for a network.
    pub client: Option<InspectedClient>,
    /// The KEY, as it was written.
    pub written: String,
}

/// What an order says beside whom it is about.
#[derive(Clone, Debug)]
pub struct Terms {
    pub kind: OrderKind,
    pub time: Duration,
    pub note: String,
    pub giver: String,
}

/// The clients that a KEY means: in the policy with this name, or in each policy whose key it can
/// be.
///
/// # Errors
///
/// There is no such policy, or the key is not one of any of the policies.
pub fn subjects(
    inspected: &Inspected,
    policy: Option<&str>,
    key: &Key,
) -> anyhow::Result<Vec<Subject>> {
    inspected.for_each_meant(policy, key, |at, mut reading| {
        if let [arg] = &mut reading.args[..]
            && let WrittenValue::Net(net) = arg.value
        {
            let policy = &inspected.in_force.policies.list[at];
            match policy.client_in_group(net) {
                Some(ip) => arg.value = WrittenValue::Ip(ip),
                None => return of_network(policy, at, key, net),
            }
        }
        let client = inspected.client(at, &key.text, reading)?;
        Ok(Subject {
            at,
            target: target_of(inspected, &client),
            name: inspected.name(&client),
            written: client.written.clone(),
            client: Some(client),
        })
    })
}

/// The target of an order about a client.
fn target_of(inspected: &Inspected, client: &InspectedClient) -> OrderTarget {
    let groups =
        client.message().map(|message| inspected.policy(client).groups_of_client(&message));
    OrderTarget::Client { key: client.question.key, groups: groups.unwrap_or_default() }
}

fn of_network(policy: &Policy, at: usize, key: &Key, net: IpNet) -> Result<Subject, String> {
    let net = policy.network_of_clients(net).map_err(|group| {
        format!(
            "'{net}' is less than {group}, which counts as one client of policy '{}'; write \
             {group}",
            policy.name
        )
    })?;
    let target = OrderTarget::Network { first: net.network(), prefix: net.prefix_len() };
    Ok(Subject { at, target, name: net.to_string(), client: None, written: key.text.clone() })
}

impl Subject {
    pub fn policy<'i>(&self, inspected: &'i Inspected) -> &'i Policy {
        &inspected.in_force.policies.list[self.at]
    }

    /// The KEY or the network by which other machines find these clients.
    pub(crate) fn key_in_store(&self, policy: &Policy) -> String {
        let message = self.client.as_ref().and_then(InspectedClient::message);
        message.map_or_else(|| self.name.clone(), |message| written_key(policy, &message))
    }

    /// Whether an order is about exactly these clients.
    pub fn is_of(&self, inspected: &Inspected, order: &Order) -> bool {
        self.policy(inspected).is_meant_by(order) && order.target == self.target
    }

    /// The order about exactly these clients.
    pub fn order(&self, inspected: &Inspected) -> Option<Order> {
        inspected.table.board().orders().into_iter().find(|order| self.is_of(inspected, order))
    }

    /// The order that decides about these clients, which may be about a network around them.
    pub(crate) fn deciding(&self, inspected: &Inspected) -> Option<Order> {
        let Some(client) = &self.client else { return self.order(inspected) };
        let (policy, all) = (self.policy(inspected), inspected.table.board().orders());
        let orders = PolicyOrders::of(&all, |order| policy.follows(order))?;
        let address = || policy.client_address(&client.message()?);
        let order = orders.find(client.question.key, inspected.table.now(), address)?;
        all.get(order.place).cloned()
    }

    /// Whether the table has a bucket of the client, or an order about it.
    pub(crate) fn is_in_table(&self, inspected: &Inspected) -> bool {
        self.order(inspected).is_some()
            || self.client.as_ref().is_some_and(|client| has_bucket(inspected, client))
    }

    /// A sentence about these clients.
    pub(crate) fn about(&self, inspected: &Inspected, said: &str) -> String {
        match &self.client {
            Some(client) => inspected.about(client, "", said),
            None => {
                let policy = inspected.name_in_words(self.policy(inspected));
                about(&Visible(&self.written).to_string(), &policy, "", said)
            }
        }
    }

    /// Gives an order about these clients, in the place of the one before. Returns it.
    ///
    /// # Errors
    ///
    /// There is no space for it, or the table is being resized.
    pub fn give(&self, inspected: &Inspected, terms: &Terms) -> anyhow::Result<Order> {
        let Terms { kind, time, note, giver } = terms;
        let now = inspected.table.now();
        let order = Order {
            policy: policy_id(&self.policy(inspected).name),
            kind: *kind,
            target: self.target,
            until: now.saturating_add(Nanos(nanoseconds(*time))),
            given: now,
            since: now,
            key: self.name.clone(),
            note: note.clone(),
            giver: giver.clone(),
        };
        obeyed(inspected, inspected.table.board().give_order(&order))?;
        Ok(order)
    }
}

impl Terms {
    /// "1h", or "2.1 h" for one that no operator writes: the rest until a moment.
    pub fn time_in_words(&self) -> String {
        let seconds = self.time.as_secs() + u64::from(self.time.subsec_nanos() > 0);
        let time = Duration::from_secs(seconds);
        match seconds < 120 || seconds.is_multiple_of(60) {
            true => Exact(time).to_string(),
            false => Left(time).to_string(),
        }
    }
}

/// Ends an order, unless it has ended or a later one has taken its place.
///
/// # Errors
///
/// The table is being resized.
pub(crate) fn end(inspected: &Inspected, order: &Order) -> anyhow::Result<()> {
    match inspected.table.board().orders().contains(order) {
        true => obeyed(inspected, inspected.table.board().end_order(order)),
        false => Ok(()),
    }
}

pub(crate) fn obeyed<T>(
    inspected: &Inspected,
    outcome: Result<T, OrderError>,
) -> anyhow::Result<T> {
    let path = inspected.path.display();
    match outcome {
        Ok(done) => Ok(done),
        Err(OrderError::Full) => {
            let resets = inspected.table.board().resets().len();
            bail!(
                "table {path} has {} and {}, and {MOST_ORDERS} together are the most; end an \
                 order that 'gcra-spoa block --list' or 'gcra-spoa exempt --list' shows, because \
                 resets keep their places",
                Count(MOST_ORDERS.saturating_sub(resets), "order", "orders"),
                Count(resets, "reset of a policy", "resets of policies")
            )
        }
        Err(OrderError::BeingResized) => {
            bail!(table_error::being_resized(&inspected.path, &inspected.table))
        }
        Err(other) => bail!("table {path}: {other}"),
    }
}

/// Whether a table has no space for a further order.
pub fn is_full(table: &gcra_table::Table) -> bool {
    table.board().orders().len() + table.board().resets().len() >= MOST_ORDERS
}

/// Notes about a client that there is no order of this kind about.
pub fn notes_to_end(inspected: &Inspected, subject: &Subject, kind: OrderKind) -> Vec<String> {
    let Some(client) = &subject.client else { return Vec::new() };
    let policy = subject.policy(inspected);
    let orders = inspected.table.board().orders();
    let has =
        |client: &InspectedClient| has_order(&orders, policy, target_of(inspected, client), kind);
    let article = if kind == OrderKind::Exempt { "an" } else { "a" };
    let what = format!("{article} {}", OrderWords::of(kind).noun);
    inspected.notes_about_others(client, &what, has)
}

/// The mistake of an order for a policy that no agent has.
pub(crate) fn not_used(inspected: &Inspected, policy: &Policy) -> anyhow::Error {
    anyhow!(
        "no agent of table {} has used the policy '{}' of {}; name the file of the agents with \
         --config, or reload this one first",
        inspected.path.display(),
        policy.name,
        inspected.source
    )
}

fn has_order(orders: &[Order], policy: &Policy, target: OrderTarget, kind: OrderKind) -> bool {
    let is_it =
        |order: &Order| order.kind == kind && order.target == target && policy.is_meant_by(order);
    orders.iter().any(is_it)
}

/// Fails if an order can be about no client: no agent has the policy, or the policy counts
/// addresses and the key is a string. The notes say that it may be so, or that it has no effect.
///
/// # Errors
///
/// See above.
pub fn check(
    inspected: &Inspected,
    key: &Key,
    subjects: &[Subject],
    kind: OrderKind,
) -> anyhow::Result<Vec<String>> {
    let source = &inspected.source;
    let policies = || subjects.iter().map(|subject| subject.policy(inspected));
    let observing = policies().filter(|policy| policy.observes && kind == OrderKind::Block);
    let only_observes = |policy: &Policy| {
        format!(
            "policy '{}' only observes, so it blocks no request, by an order neither",
            policy.name
        )
    };
    let mut notes: Vec<_> = observing.map(only_observes).collect();
    if !source.has_names() {
        return Ok(notes);
    }
    if let Some(first) = policies().next()
        && policies().all(|policy| inspected.is_unknown_policy(policy))
    {
        bail!(not_used(inspected, first));
    }
    let (text, value) = only_value(key).unwrap_or(("", WrittenValue::Null));
    if let WrittenValue::Net(_) = value {
        notes.extend(note_about_network(inspected, text, subjects));
    }
    let WrittenValue::String(_) = value else { return Ok(notes) };
    if text.starts_with(VALUE) || text.starts_with("strhex:") {
        return Ok(notes);
    }
    let clients = || subjects.iter().filter_map(|subject| subject.client.as_ref());
    let is_for_addresses =
        |policy: &Policy| policy.is_for_addresses() && policy.key.names().count() <= 1;
    if let Some(first) = policies().next()
        && policies().all(is_for_addresses)
        && !clients().any(|client| is_known(inspected, client))
    {
        bail!(WrongUsage(format!(
            "'{text}' is a string, and policy '{}' has groups or overrides of addresses; write an \
             address, such as 192.0.2.7, or {VALUE}{text} if HAProxy sends this string",
            first.name
        )));
    }
    // Cells that the store counts are not in the table.
    let may_have_bucket = |client: &InspectedClient| {
        let shared = inspected.policy(client).shared;
        has_bucket(inspected, client) || shared.is_some_and(|shared| shared.at_once)
    };
    if !clients().any(may_have_bucket) {
        notes.push(format!(
            "the table does not know '{text}', which is a string; if the policy counts addresses, \
             write an address"
        ));
    }
    Ok(notes)
}

/// Says so if nothing suggests that one of the policies counts addresses.
fn note_about_network(inspected: &Inspected, net: &str, subjects: &[Subject]) -> Option<String> {
    let may_be_known = |subject: &Subject| {
        subject.policy(inspected).may_count_addresses()
            || subject.client.as_ref().is_some_and(|client| is_known(inspected, client))
    };
    if subjects.iter().any(may_be_known) {
        return None;
    }
    let names = subjects.iter().map(|it| format!("'{}'", it.policy(inspected).name));
    Some(format!(
        "'{net}' is a network, and nothing shows that policy {} counts by addresses; the order is \
         about no string and no number",
        names.collect::<Vec<_>>().join(", ")
    ))
}

/// The value of a key with one part, without the name of its arg.
fn only_value(key: &Key) -> Option<(&str, WrittenValue)> {
    let [written] = &key.parts[..] else { return None };
    let text = written.text.split_once('=').map_or(&*written.text, |(_, value)| value);
    Some((text, text.parse().ok()?))
}

/// Who gives an order, and where: "anna@limiter1".
pub fn on_this_machine(giver: &str) -> String {
    format!("{giver}@{}", rustix::system::uname().nodename().to_string_lossy())
}

/// Who gives an order on a command line: the user who is logged in, as far as that is known.
pub fn this_user() -> String {
    let names = ["SUDO_USER", "USER", "LOGNAME"].into_iter();
    let mut names = names.filter_map(|name| std::env::var(name).ok());
    let number = || format!("uid {}", rustix::process::getuid().as_raw());
    names.find(|name| !name.is_empty()).unwrap_or_else(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_until_a_moment_is_said_in_one_way() {
        let said = |ms| {
            let (time, text) = (Duration::from_millis(ms), String::new);
            Terms { kind: OrderKind::Block, time, note: text(), giver: text() }.time_in_words()
        };
        // A command about this machine has milliseconds, and one about others whole seconds.
        assert_eq!([said(7_353_200), said(7_354_000)], ["2.1 h", "2.1 h"]);
        assert_eq!([said(3_600_000), said(90_000), said(44_100)], ["1h", "90s", "45s"]);
    }
}
