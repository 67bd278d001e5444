//! A number that stands for the limits of all policies. Agents with different limits write
//! different numbers into the table, so that they can be told apart.

// ADR 16: The numbers of a limit are part of its buckets' identity.

use std::collections::HashMap;
use std::sync::Arc;

use gcra_table::{Nanos, limit_id};

use crate::bandwidth::Bandwidth;
use crate::key_parts::{KeyArg, KeyParts};
use crate::limit::{Limit, LimitNumbers, Rule};
use crate::overrides::Overrides;
use crate::policy::{Penalty, Policy, Price, When};
use crate::settle::Settle;
use crate::sharing::{Sharing, WithoutStore};

/// The digest of the limits of the policies. It is the same in every process.
///
/// The words in which it was written do not count, and neither do comments, the variables of
/// the answer, trials, or the order of policies for different messages.
pub(crate) fn of_limits(list: &[Arc<Policy>]) -> u64 {
    let mut of_messages: HashMap<_, u64> = HashMap::new();
    let each = list.iter().filter(|policy| !policy.is_trial).map(|policy| {
        let before = of_messages.entry(&policy.message).or_default();
        let mut digest = Digest(0);
        // Of policies for the same message, the first that fits decides.
        digest.number(*before);
        *before += 1;
        digest.policy(policy);
        digest.0
    });
    let mut each: Vec<u64> = each.collect();
    each.sort_unstable();
    let mut digest = Digest(0);
    each.into_iter().for_each(|policy| digest.number(policy));
    // 0 stands for no digest.
    digest.0.max(1)
}

impl Overrides {
    /// A digest of which clients have which other limits.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest(0);
        digest.overrides(self);
        digest.0
    }
}

impl Policy {
    /// A digest of the args and settings that make a key of a message: with another digest,
    /// clients begin anew. The networks of overrides are told apart in the keys themselves.
    pub fn key_digest(&self) -> u64 {
        let mut digest = Digest(0);
        digest.key(&self.key);
        if self.key.args.is_empty() {
            // All args make the key, except these.
            for left_out in self.left_out_of_key() {
                digest.add(left_out.unwrap_or_default());
            }
        }
        digest.0
    }
}

/// A digest of all that was added so far, in order.
struct Digest(u64);

impl Digest {
    fn add(&mut self, bytes: &[u8]) {
        self.0 = limit_id(&[&self.0.to_le_bytes(), bytes]);
    }

    fn number(&mut self, number: u64) {
        self.add(&number.to_le_bytes());
    }

    fn policy(&mut self, policy: &Policy) {
        // Every field is named, so that a new one can't be forgotten here.
        let Policy {
            name,
            message,
            when,
            key,
            price,
            rule,
            overrides,
            observes,
            penalty,
            bandwidth,
            shared,
            // A trial decides nothing.
            trial: _,
            is_trial: _,
            name_salt: _,
            // The table says it to all agents.
            reset_at: _,
        } = policy;
        self.add(name.as_bytes());
        self.add(message.as_deref().unwrap_or_default());
        if let Some(When { arg, values, .. }) = when {
            self.add(arg);
            let mut values: Vec<_> = values.iter().collect();
            values.sort_unstable();
            values.into_iter().for_each(|value| self.add(value));
        }
        self.key(key);
        self.add(price.arg().unwrap_or_default());
        self.rule(rule);
        self.overrides(overrides);
        self.number((*observes).into());
        if let Some(Penalty { cells, ceiling_ns }) = penalty {
            self.number((*cells).into());
            self.number(*ceiling_ns);
        }
        if let Some(Bandwidth { full, least }) = bandwidth {
            self.add(b"bandwidth");
            self.number((*full).into());
            self.number((*least).into());
        }
        if let Price::Settled(settle) = price {
            // The arg is added above, and the largest debt is part of the quotas.
            let Settle { message, cost, reserve: _, cells, within, unsettled, max_debt: _ } =
                &**settle;
            self.add(b"settle");
            self.number((*cells).into());
            self.add(message);
            self.add(cost.as_deref().unwrap_or_default());
            self.add(&within.as_nanos().to_le_bytes());
            if let Some(unsettled) = unsettled {
                self.add(b"unsettled");
                self.number(unsettled.cells.into());
            }
        }
        if let Some(Sharing { without_store, .. }) = shared {
            self.add(b"shared");
            match without_store {
                WithoutStore::Share => self.add(b"share"),
                WithoutStore::Closed => self.add(b"closed"),
                WithoutStore::Open { for_ } => self.add(&for_.as_nanos().to_le_bytes()),
            }
        }
    }

    fn key(&mut self, key: &KeyParts) {
        let KeyParts { args, ipv4_prefix, ipv6_prefix, lowercase, nat64 } = key;
        self.number(args.len() as u64);
        for KeyArg { name, fallbacks, or_null } in args {
            self.add(name);
            fallbacks.iter().for_each(|fallback| self.add(fallback));
            self.number((*or_null).into());
        }
        self.add(&[*ipv4_prefix, *ipv6_prefix, u8::from(*lowercase)]);
        for prefix in &nat64.0 {
            self.add(prefix.to_string().as_bytes());
        }
    }

    fn rule(&mut self, rule: &Rule) {
        match rule {
            Rule::Deny => self.add(b"deny"),
            Rule::Unlimited => self.add(b"unlimited"),
            Rule::Limits(limits) => {
                self.number(limits.len() as u64);
                // The others say the same in words.
                for limit in limits {
                    let Limit {
                        label: _,
                        member: _,
                        id,
                        salt: _,
                        record_name: _,
                        numbers,
                        key,
                        words: _,
                    } = limit;
                    let quota = limit.quota(None);
                    if let LimitNumbers::PerWindow(counts) = numbers {
                        self.add(b"window");
                        self.add(counts.calendar.as_written().as_bytes());
                        self.number(counts.calendar.rules());
                    }
                    self.number(*id);
                    self.number(quota.emission_interval().0);
                    self.number(quota.burst().into());
                    self.number(quota.most_owed().0);
                    if let Some(key) = key {
                        self.add(b"key");
                        self.key(key);
                    }
                    if let LimitNumbers::ByArg(by_arg) = numbers {
                        self.add(b"arg");
                        self.add(&by_arg.arg);
                        self.number(by_arg.default.emission_interval().0);
                        self.number(by_arg.default.burst().into());
                    }
                    if quota.max_delay() > Nanos::ZERO {
                        self.add(b"max_delay");
                        self.number(quota.max_delay().0);
                    }
                }
            }
        }
    }

    fn overrides(&mut self, overrides: &Overrides) {
        let Overrides { rules, lists: _, files: _, kinds: _, v4: _, v6: _, values } = overrides;
        // By the rule itself and not by its place, which depends on the order in the file.
        let rules: Vec<_> = rules
            .iter()
            .map(|rule| {
                let mut digest = Digest(0);
                digest.rule(rule);
                digest.0
            })
            .collect();
        let networks = overrides.networks();
        let networks = networks.map(|(net, place)| (net.to_string().into_bytes(), place));
        let values = values.iter().map(|(value, place)| ([b"str:", &**value].concat(), *place));
        let digest_of = |place: u32| rules.get(place as usize).copied().unwrap_or_default();
        let all = networks.chain(values).map(|(key, place)| (key, digest_of(place)));
        let mut all: Vec<(Vec<u8>, u64)> = all.collect();
        all.sort_unstable();
        for (key, rule) in all {
            self.add(&key);
            self.number(rule);
        }
    }
}
