//! The policies that decide now. Each has a row with its path, its counters and its orders. The
//! row also has earlier policies under which a client may still owe something.

// ADR 17: Debts survive a change of numbers without a conversion.
// ADR 37: A trial is a policy behind all others.

use std::collections::HashMap;
use std::sync::Arc;

use gcra_policy::answers::Answers;
use gcra_policy::key_parts::{KeyArg, Nat64};
use gcra_policy::orders::{OrderInForce, PolicyOrders};
use gcra_policy::{KeyParts, Limit, LimitNumbers, Policies, Policy, Price, Rule};
use gcra_table::board::Order;
use gcra_table::{
    BucketPlace, KeyHash, LeaseKey, LeaseNumbers, LimitSalt, Nanos, Quota, Table, Time,
};
use spop_agent::{Actions, Message};

use crate::answer::AnswerVars;
use crate::earlier_policies::{LimitedClient, PolicyChanges, PolicyHistory};
use crate::known_shapes::KnownShapes;
use crate::limit_bucket::lease_numbers;
use crate::mistaken_args::MistakenArgs;
use crate::stats::{PolicyStats, Stats};

#[derive(Debug)]
pub struct ActivePolicies {
    pub policies: Arc<Policies>,
    /// The earlier policies, as long as a key may owe something under them.
    pub history: PolicyHistory,
    /// The orders about clients, as the table has them.
    pub orders: Vec<Order>,
    /// In the order of `policies`.
    rows: Vec<ActivePolicy>,
    /// The variables of each answer.
    pub(crate) vars: AnswerVars,
    /// The whole answer where only `blocked` is set: when it is false, and when it is true.
    pub blocked: [Actions; 2],
    /// The shapes of requests that were seen since.
    pub(crate) shapes: KnownShapes,
}

/// One of the policies in force, with its state. A decision looks its row up once.
#[derive(Debug)]
pub struct ActivePolicy {
    pub policy: Arc<Policy>,
    pub(crate) hashing: Hashing,
    /// Whether a limit of the policy has a key or numbers of its own, which each message says.
    pub reads_messages: bool,
    pub changes: PolicyChanges,
    /// Whether a key may owe something because of these changes.
    pub has_changed: bool,
    pub path: DecisionPath,
    pub stats: Arc<PolicyStats>,
    pub mistaken: Arc<MistakenArgs>,
    /// Whether it has `max_delay`.
    pub(crate) may_delay: bool,
    /// Whether requests wait for its limits: it has `max_delay`, and is enforced.
    pub delays: bool,
    /// The number of the policy's rule and overrides. After a reload that has changed them it is a
    /// larger one.
    pub rules: u64,
    /// The orders about its clients, if there are any.
    pub orders: Option<Box<PolicyOrders>>,
}

/// How a message of a policy is decided: by the least work that is right for all messages of the
/// policy. It is found once, when the policy comes into force.
///
/// | request | usual | shared, usual | plain | full |
/// |---|---|---|---|---|
/// | of one message, with an agent | `decide_single` | `spend` | `decide` | `verdict` |
/// | the same, without lent cells | | `verdict` | | |
/// | of several messages | `decide` | `verdict` | `decide` | `verdict` |
/// | any, with an audit | `verdict` | `verdict` | `verdict` | `verdict` |
/// | inside HAProxy | `ChargeSingle` | | `decide` | `verdict` |
///
/// `OneMessage` in `decide/path.rs` takes the way of the first line, for a request that was
/// decoded and for one of a known shape. `Deciding` in `decide/request.rs` takes all others, and
/// `decide/in_process.rs` begins the last. `verdict`, of `Asked`, is right for each policy.
#[derive(Clone, Copy, Debug)]
pub enum DecisionPath {
    /// By one charge.
    SingleCharge(SingleCharge),
    /// By the spending of cells that the store has lent.
    SingleLease(SingleCharge),
    /// By the charge of all limits of the rule for the key: the policy has no trial, is not shared
    /// and not settled by responses, and there is no order about a client.
    Plain,
    /// By all that may be asked about it.
    Full,
}

impl DecisionPath {
    fn of(
        policy: &Policy,
        has_changed: bool,
        answers: &Answers,
        orders: Option<&PolicyOrders>,
    ) -> Self {
        let Policy { trial, shared, .. } = policy;
        let is_plain = trial.is_none() && shared.is_none() && policy.settle().is_none();
        match SingleCharge::of(policy, has_changed, answers, orders) {
            Some(single) if shared.is_some() => Self::SingleLease(single),
            Some(single) => Self::SingleCharge(single),
            None if is_plain && orders.is_none() => Self::Plain,
            None => Self::Full,
        }
    }

    /// The place of the bucket of a key of its policy, on the usual path.
    #[inline(always)]
    pub(crate) fn place<'t>(&self, table: &'t Table, key: KeyHash) -> Option<BucketPlace<'t>> {
        let Self::SingleCharge(single) = self else { return None };
        Some(table.place(single.key(key), &single.quota))
    }

    /// Whether the charge of the limits of this host is all that a decision needs.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::SingleCharge(_) | Self::Plain)
    }
}

impl ActivePolicy {
    /// The order about the client of a message, whose key is `key`.
    #[inline]
    pub fn order(&self, key: KeyHash, message: &Message<'_>, now: Time) -> Option<OrderInForce> {
        let orders = self.orders.as_deref()?;
        orders.find(key, now, || self.policy.client_address(message))
    }

    /// The TAT that a key has at least under a limit of the policy, because of changes.
    #[inline]
    pub fn least_tat(&self, asked: LimitedClient<'_, '_>, now: Time) -> Time {
        if self.has_changed { self.changes.least_tat(asked, now) } else { Time::ZERO }
    }
}

/// How the key of a policy's messages is hashed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Hashing {
    /// The values as they are, which takes the fewest steps.
    Exact,
    /// Addresses are grouped, strings are in lower case, some args are left out or have fallbacks,
    /// some values have overrides, or limits have keys or numbers of their own. This
    /// is right for every policy.
    Mapped,
}

impl Hashing {
    fn of(policy: &Policy) -> Self {
        // Every field is named, so that a new one can't be forgotten here.
        let Policy {
            key,
            price,
            when,
            overrides,
            // Limits may have keys of their own, which are looked at there.
            rule: _,
            // These are no part of a key.
            name: _,
            message: _,
            observes: _,
            penalty: _,
            bandwidth: _,
            shared: _,
            trial: _,
            is_trial: _,
            name_salt: _,
            // It is a part of the salts.
            reset_at: _,
        } = policy;
        let KeyParts { args, ipv4_prefix, ipv6_prefix, lowercase, nat64 } = key;
        let groups =
            *ipv4_prefix < 32 || *ipv6_prefix < 128 || *lowercase || *nat64 != Nat64::default();
        let leaves_out = args.is_empty() && (price.arg().is_some() || when.is_some());
        let falls_back = args.iter().any(KeyArg::has_fallback);
        let reads_messages = policy.limits().any(Limit::reads_messages);
        if groups || leaves_out || falls_back || !overrides.is_empty() || reads_messages {
            Self::Mapped
        } else {
            Self::Exact
        }
    }
}

/// The one limit of a policy in the usual case. It holds for all keys, nothing is charged beside
/// it, and only `blocked` is answered. No request is delayed, no order is in force, and no key
/// owes anything because of a change. Then a decision is one charge, and its answer is prepared.
///
/// `make guard` shows what this saves.
#[derive(Clone, Copy, Debug)]
pub struct SingleCharge {
    salt: LimitSalt,
    pub quota: Quota,
    pub(crate) observes: bool,
    /// Those of its leases, if the policy is shared.
    numbers: LeaseNumbers,
}

impl SingleCharge {
    fn of(
        policy: &Policy,
        has_changed: bool,
        answers: &Answers,
        orders: Option<&PolicyOrders>,
    ) -> Option<Self> {
        // Every field is named, so that a new one can't be forgotten here.
        let Policy {
            // These have done their work when there is a question.
            name: _,
            message: _,
            when: _,
            key: _,
            observes,
            // It is charged by its own policy only.
            is_trial: _,
            name_salt: _,
            // It is a part of the salt.
            reset_at: _,
            // It is answered only beside other variables.
            bandwidth: _,
            rule,
            overrides,
            penalty,
            shared,
            price,
            trial,
        } = policy;
        let Answers { scope: _, blocked: _, others } = answers;
        let Rule::Limits(limits) = rule else { return None };
        let [limit] = &limits[..] else { return None };
        // A limit in force has a salt.
        let Limit { salt, numbers: LimitNumbers::Fixed(quota), key: None, .. } = limit else {
            return None;
        };
        let salt = salt.0?;
        let is_usual = overrides.is_empty()
            && penalty.is_none()
            && !matches!(price, Price::Settled(_))
            && quota.max_delay() == Nanos::ZERO
            && !shared.is_some_and(|shared| shared.at_once)
            && trial.is_none()
            && !has_changed
            && others.is_empty()
            && orders.is_none();
        let numbers = lease_numbers(limit, *quota);
        let (quota, observes) = (*quota, *observes);
        is_usual.then_some(Self { salt, quota, observes, numbers })
    }

    /// The key by which the limit counts, for a key of its policy.
    #[inline]
    pub(crate) fn key(&self, key: KeyHash) -> KeyHash {
        key.under(self.salt)
    }

    /// The key of what is lent, for a key of its policy.
    #[inline]
    pub(crate) fn lease_key(&self, key: KeyHash) -> LeaseKey {
        LeaseKey::new(self.key(key), self.numbers)
    }
}

impl ActivePolicies {
    /// A policy goes on with the counters that exist under its name, and with the number of its
    /// rules if they are as `before`.
    fn new(
        before: Option<&Self>,
        policies: Arc<Policies>,
        mut history: PolicyHistory,
        orders: Vec<Order>,
        stats: &Stats,
        now: Time,
    ) -> Self {
        let rows = || before.iter().flat_map(|before| &before.rows);
        let next = rows().map(|row| row.rules + 1).max().unwrap_or(0);
        let by_name: HashMap<&str, _> = rows().map(|row| (&*row.policy.name, row)).collect();
        // Lists may have a million entries, so they are not compared with themselves.
        let is_same_text = before.is_some_and(|before| before.policies.is_same_text(&policies));
        let rules = |before: &ActivePolicy, policy: &Arc<Policy>| {
            let (old, new) = (&before.policy, policy);
            let is_same = is_same_text
                || Arc::ptr_eq(old, new)
                || (&old.rule, &old.overrides) == (&new.rule, &new.overrides);
            is_same.then_some(before.rules)
        };
        let changes = history.changes_until(&policies, now);
        let rows = policies.list.iter().zip(changes).map(|(policy, changes)| {
            let before = by_name.get(&*policy.name);
            let of_policy = PolicyOrders::of(&orders, |order| policy.follows(order));
            let has_changed = changes.may_owe(now);
            let may_delay = policy.max_delay() > Nanos::ZERO;
            let (answers, orders) = (&policies.answers, of_policy.as_deref());
            ActivePolicy {
                policy: policy.clone(),
                hashing: Hashing::of(policy),
                reads_messages: policy.limits().any(Limit::reads_messages),
                changes,
                has_changed,
                path: DecisionPath::of(policy, has_changed, answers, orders),
                stats: stats.policy(&policy.name),
                mistaken: before
                    .filter(|before| Arc::ptr_eq(&before.policy, policy))
                    .map_or_else(Arc::default, |before| before.mistaken.clone()),
                may_delay,
                delays: !policy.observes && may_delay,
                rules: before.and_then(|before| rules(before, policy)).unwrap_or(next),
                orders: of_policy,
            }
        });
        let rows: Vec<_> = rows.collect();
        let blocked = [false, true].map(|blocked| {
            let mut actions = Actions::new();
            let answers = &policies.answers;
            // It fits: a name has at most 56 characters.
            let _ = actions.set_var(answers.scope, answers.blocked, blocked.into());
            actions
        });
        let (vars, shapes) = (AnswerVars::new(&policies.answers), KnownShapes::default());
        Self { policies, history, orders, rows, vars, blocked, shapes }
    }

    /// The row of the policy at this place in the list.
    #[inline]
    pub fn row(&self, place: usize) -> &ActivePolicy {
        &self.rows[place]
    }

    /// All rows, in the order of the policies.
    pub fn rows(&self) -> &[ActivePolicy] {
        &self.rows
    }

    /// Looks whether a message shows that texts of the policies can never match.
    #[cold]
    pub(crate) fn look_for_misfits(&self, message: &Message<'_>) {
        for row in &self.rows {
            row.mistaken.look_for_misfit(&row.policy, message);
        }
    }

    /// The policies that a process starts with on a new table.
    pub fn at_start(policies: Policies, stats: &Stats, table: &Table) -> Self {
        Self::after(PolicyHistory::since(table.now()), policies, stats, table)
    }

    /// The policies in force for a process that starts with these, or for a command about clients.
    /// The history is that which agents keep beside the table.
    pub fn after(
        history: PolicyHistory,
        mut policies: Policies,
        stats: &Stats,
        table: &Table,
    ) -> Self {
        policies.come_into_force(table);
        Self::new(None, policies.into(), history, table.board().orders(), stats, table.now())
    }

    /// The policies in force after a reload has read these. Clients keep their debts.
    pub fn replaced_by(&self, mut policies: Policies, stats: &Stats, table: &Table) -> Self {
        policies.come_into_force(table);
        let (mut history, now) = (self.history.clone(), table.now());
        history.push_current(self.policies.clone(), now);
        Self::new(Some(self), policies.into(), history, table.board().orders(), stats, now)
    }

    /// The same with another history: an agent has kept more beside the table.
    pub fn with_history(&self, history: PolicyHistory, stats: &Stats, now: Time) -> Self {
        let (policies, orders) = (self.policies.clone(), self.orders.clone());
        Self::new(Some(self), policies, history, orders, stats, now)
    }

    /// The same after the last key has paid off what it owed because of changes of a policy;
    /// `None` if that is so for none.
    pub fn without_old(&self, stats: &Stats, now: Time) -> Option<Self> {
        // This is asked once a second, and there is seldom anything to leave out.
        let is_over = self.rows.iter().any(|row| row.has_changed && !row.changes.may_owe(now));
        (is_over || self.history.is_too_long(now))
            .then(|| self.with_history(self.history.clone(), stats, now))
    }

    /// The same without the known shapes, so that they are learned anew: if many requests were of
    /// others, for which there was no place. Otherwise `None`.
    pub fn without_shapes(&self, stats: &Stats, now: Time) -> Option<Self> {
        let others_are_usual = self.shapes.are_others_usual();
        others_are_usual.then(|| self.with_history(self.history.clone(), stats, now))
    }

    /// The same with the orders and the resets that the table has now; `None` when they are the
    /// same.
    pub fn with_orders(&self, table: &Table, stats: &Stats) -> Option<Self> {
        let (orders, has_resets) =
            (table.board().orders(), self.policies.have_resets(&table.board().resets()));
        if self.orders == orders && has_resets {
            return None;
        }
        let (mut policies, history) = (self.policies.clone(), self.history.clone());
        if !has_resets {
            // Requests are being decided by the former ones.
            let mut reset = Policies::clone(&policies);
            reset.come_into_force(table);
            policies = Arc::new(reset);
        }
        Some(Self::new(Some(self), policies, history, orders, stats, table.now()))
    }
}
