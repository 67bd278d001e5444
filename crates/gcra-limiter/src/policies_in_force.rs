//! The policies that decide now, with what belongs to them: counters, prepared answers, and the
//! earlier policies that some client may still owe something under.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use gcra_policy::answers::Answers;
use gcra_policy::key_parts::{KeyArg, Nat64};
use gcra_policy::{KeyParts, Limit, LimitNumbers, Policies, Policy, Price, Rule};
use gcra_table::{
    Exemption, KeyHash, LeaseKey, LeaseNumbers, LimitSalt, Nanos, Quota, Table, Time,
};
use spop_agent::{Actions, Message};

use crate::earlier_policies::{Earlier, LimitedClient};
use crate::known_shapes::KnownShapes;
use crate::limit_bucket::lease_numbers;
use crate::mistaken_args::MistakenArgs;
use crate::stats::{PolicyStats, Stats};

#[derive(Debug)]
pub struct InForce {
    pub policies: Arc<Policies>,
    /// The earlier policies, as long as a key may owe something under them.
    pub earlier: Earlier,
    /// The clients that are not limited for a while, as the table has them.
    pub exemptions: Vec<Exemption>,
    pub each: Vec<Each>,
    /// The whole answer where only `blocked` is set: when it is false, and when it is true.
    pub blocked: [Actions; 2],
    /// The shapes of requests that were seen since.
    pub(crate) shapes: KnownShapes,
}

/// The state of one of the policies in force.
#[derive(Debug)]
pub struct Each {
    pub(crate) hashing: Hashing,
    /// Whether a limit of the policy has a key or numbers of its own, which each message says.
    pub reads_messages: bool,
    /// Whether a key may owe something because of changes of the policy.
    pub has_changed: bool,
    pub path: DecisionPath,
    pub stats: Arc<PolicyStats>,
    pub mistaken: MistakenArgs,
    /// Whether requests wait for its limits: it has `max_delay`, and is enforced.
    pub delays: bool,
    /// The number of the policy's rule and overrides. After a reload that has changed them it is a
    /// larger one.
    pub rules: u64,
    /// The keys that are exempt from it, each until a moment of the table's clock.
    exempt: Vec<(KeyHash, Time)>,
}

/// How a message of a policy is decided.
#[derive(Clone, Copy, Debug)]
pub enum DecisionPath {
    /// By one charge.
    Usual(Usual),
    /// By the spending of cells that the store has lent.
    UsualShared(Usual),
    /// By the charge of all limits of the rule for the key: the policy has no trial, is not shared
    /// and not settled by responses, and no client is exempt from it.
    Plain,
    /// By all that may be asked about it.
    Full,
}

impl Each {
    /// Whether a key of the policy is exempt.
    #[inline]
    pub fn is_exempt(&self, key: KeyHash, now: Time) -> bool {
        self.exempt.iter().any(|(exempt, until)| *exempt == key && now < *until)
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

/// The one limit of a policy in the usual case: it holds for all keys, nothing is charged beside
/// it, no request is delayed, no client is exempt, no key owes anything because of a change,
/// and only `blocked` is answered. Then a decision is one charge, and its answer is prepared.
///
/// `make guard` shows what this saves.
#[derive(Clone, Copy, Debug)]
pub struct Usual {
    salt: LimitSalt,
    pub quota: Quota,
    pub(crate) observes: bool,
    /// Those of its leases, if the policy is shared.
    numbers: LeaseNumbers,
}

impl Usual {
    fn of(
        policy: &Policy,
        has_changed: bool,
        answers: &Answers,
        exempt: &[(KeyHash, Time)],
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
        let Limit { salt: Some(salt), numbers: LimitNumbers::Fixed(quota), key: None, .. } = limit
        else {
            return None;
        };
        let is_usual = overrides.is_empty()
            && penalty.is_none()
            && !matches!(price, Price::Settled(_))
            && quota.max_delay() == Nanos::ZERO
            && !shared.is_some_and(|shared| shared.at_once)
            && trial.is_none()
            && !has_changed
            && others.is_empty()
            && exempt.is_empty();
        let numbers = lease_numbers(limit, *quota);
        let (salt, quota, observes) = (*salt, *quota, *observes);
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

impl InForce {
    /// A policy goes on with the counters that exist under its name, and with the number of its
    /// rules if they are as `before`.
    fn new(
        before: Option<&Self>,
        policies: Arc<Policies>,
        earlier: Earlier,
        exemptions: Vec<Exemption>,
        stats: &Stats,
        now: Time,
    ) -> Self {
        let next = before.iter().flat_map(|before| &before.each).map(|each| each.rules + 1);
        let next = next.max().unwrap_or(0);
        let with_rules = before.into_iter().flat_map(|it| it.policies.list.iter().zip(&it.each));
        let with_rules: HashMap<&str, _> = with_rules.map(|it| (&*it.0.name, it)).collect();
        let rules = |place: usize, policy: &Policy| {
            let before = before?;
            // Lists may have a million entries.
            if Arc::ptr_eq(&before.policies, &policies) {
                return before.each.get(place).map(|each| each.rules);
            }
            let (before, each) = with_rules.get(&*policy.name)?;
            let is_same = (&before.rule, &before.overrides) == (&policy.rule, &policy.overrides);
            is_same.then_some(each.rules)
        };
        let is_plain = |policy: &Policy| {
            policy.trial.is_none() && policy.shared.is_none() && policy.settle().is_none()
        };
        let changed: HashSet<_> = earlier.mattering(now).collect();
        let each = policies.list.iter().enumerate().map(|(place, policy)| {
            let exempt = exemptions.iter().filter(|exemption| policy.is_meant_by(exemption));
            let exempt: Vec<_> =
                exempt.map(|Exemption { key, until, .. }| (*key, *until)).collect();
            let has_changed = changed.contains(&place);
            let path = match Usual::of(policy, has_changed, &policies.answers, &exempt) {
                Some(usual) if policy.shared.is_some() => DecisionPath::UsualShared(usual),
                Some(usual) => DecisionPath::Usual(usual),
                None if is_plain(policy) && exempt.is_empty() => DecisionPath::Plain,
                None => DecisionPath::Full,
            };
            Each {
                hashing: Hashing::of(policy),
                reads_messages: policy.limits().any(Limit::reads_messages),
                has_changed,
                path,
                stats: stats.policy(&policy.name),
                mistaken: MistakenArgs::default(),
                delays: !policy.observes && policy.max_delay() > Nanos::ZERO,
                rules: rules(place, policy).unwrap_or(next),
                exempt,
            }
        });
        let each: Vec<Each> = each.collect();
        let blocked = [false, true].map(|blocked| {
            let mut actions = Actions::new();
            let answers = &policies.answers;
            // It fits: a name has at most 56 characters.
            let _ = actions.set_var(answers.scope, answers.blocked, blocked.into());
            actions
        });
        let shapes = KnownShapes::default();
        Self { policies, earlier, exemptions, each, blocked, shapes }
    }

    /// Looks whether a message shows that texts of the policies can never match.
    #[cold]
    pub(crate) fn look_for_misfits(&self, message: &Message<'_>) {
        for (policy, each) in self.policies.list.iter().zip(&self.each) {
            each.mistaken.look_for_misfit(policy, message);
        }
    }

    /// The policies that a process starts with.
    pub fn at_start(mut policies: Policies, stats: &Stats, table: &Table) -> Self {
        policies.come_into_force(table);
        let earlier = Earlier::at_start(&policies, table);
        Self::new(None, Arc::new(policies), earlier, table.exemptions(), stats, table.now())
    }

    /// The policies in force for a process with these policies and with this
    /// [history](Earlier::history); without any, for one that starts now. It changes nothing in
    /// the table, and only looks at clients.
    pub fn of_history(
        history: Vec<(Policies, Time)>,
        mut policies: Policies,
        table: &Table,
    ) -> Self {
        let come_into_force = |(mut former, ended): (Policies, Time)| {
            former.come_into_force(table);
            (Arc::new(former), ended)
        };
        let history: Vec<_> = history.into_iter().map(come_into_force).collect();
        policies.come_into_force(table);
        let earlier = Earlier::of_history(&history, &policies, table);
        let stats = Stats::new(NonZeroUsize::MIN);
        Self::new(None, Arc::new(policies), earlier, table.exemptions(), &stats, table.now())
    }

    /// The policies in force after a reload has read these. Clients keep their debts.
    pub fn replaced_by(&self, mut policies: Policies, stats: &Stats, table: &Table) -> Self {
        policies.come_into_force(table);
        let policies = Arc::new(policies);
        let earlier = self.earlier.after_change(&self.policies, &policies, table);
        Self::new(Some(self), policies, earlier, table.exemptions(), stats, table.now())
    }

    /// The TAT that a key has at least under a limit of the policy at this place, because of
    /// changes.
    #[cold]
    pub fn least_tat(&self, policy: usize, asked: LimitedClient<'_, '_>, now: Time) -> Time {
        let keeps_debts =
            self.policies.list.get(policy).is_some_and(|policy| policy.settle().is_some());
        let changes = self.earlier.of(policy);
        changes.map_or(Time::ZERO, |changes| changes.least_tat(asked, keeps_debts, now))
    }

    /// The same after the last key has paid off what it owed because of changes of a policy;
    /// `None` if that is so for none.
    pub fn without_old(&self, stats: &Stats, now: Time) -> Option<Self> {
        // This is asked once a second, and there is seldom anything to leave out.
        let before = self.each.iter().filter(|each| each.has_changed).count();
        if self.earlier.mattering(now).count() == before {
            return None;
        }
        let mut earlier = self.earlier.clone();
        earlier.forget_old(now);
        let (policies, exemptions) = (self.policies.clone(), self.exemptions.clone());
        Some(Self::new(Some(self), policies, earlier, exemptions, stats, now))
    }

    /// The same with the exemptions that the table has now; `None` when they are the same.
    pub fn with_exemptions(
        &self,
        exemptions: &[Exemption],
        stats: &Stats,
        now: Time,
    ) -> Option<Self> {
        (self.exemptions != exemptions).then(|| {
            let (policies, earlier) = (self.policies.clone(), self.earlier.clone());
            Self::new(Some(self), policies, earlier, exemptions.to_vec(), stats, now)
        })
    }
}
