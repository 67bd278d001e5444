//! From the fields of a log line to a client and its request, for suggestions.

use anyhow::Context as _;
use gcra_limiter::client_name::write_client;
use gcra_limiter::message_key::hash_key;
use gcra_policy::answers::Answers;
use gcra_policy::file::names::key_args;
use gcra_policy::{KeyParts, Policies, Policy, Rule};
use gcra_table::{Slots, Table};

use crate::mapping::Mapping;
use crate::suggest::collector::Collector;
use crate::suggest::suggestions::{self, Suggestions};
use crate::suggest::target::Target;

/// The name of the message that only suggestions are made from.
pub(crate) const MESSAGE: &str = "suggested";

pub(crate) struct Suggesting {
    collector: Collector,
    policies: Policies,
    mapping: Mapping,
    /// Hashes keys. Its table is not used for anything else.
    hasher: Table,
}

impl Suggesting {
    pub(crate) fn new(
        key: &str,
        target: Option<Target>,
        policies: Policies,
        mapping: Mapping,
    ) -> anyhow::Result<Self> {
        let least = Slots::new(Slots::MIN).context("there is no smallest table")?;
        let hasher = Table::in_memory(least).context("no memory")?;
        let collector = Collector::new(key_of_flag(key), target.unwrap_or_default());
        Ok(Self { collector, policies, mapping, hasher })
    }

    pub(crate) fn add(&mut self, at: i64, values: &[Option<&[u8]>]) {
        self.mapping.clear();
        self.mapping.write(values);
        let Self { collector, policies, mapping, hasher } = self;
        let policy = &policies.list[0];
        for message in mapping.written().messages {
            if let Some((key, _)) = hash_key(hasher.hasher(), policy, &message) {
                collector.add(key.get(), at, |name| {
                    write_client(name, policy, key, Some(message.clone()));
                });
            }
        }
    }

    pub(crate) fn finish(self) -> Suggestions {
        suggestions::find(self.collector)
    }
}

/// `ip,path` of `key=ip,path` and of `ip,path`.
fn key_of_flag(text: &str) -> &str {
    text.strip_prefix("key=").unwrap_or(text)
}

/// A policy without limits, for clients with this key. The error is a sentence.
pub(crate) fn policies_of(text: &str) -> Result<Policies, String> {
    let entries: Vec<_> = key_of_flag(text).split(',').collect();
    let mut mistakes = Vec::new();
    let args =
        key_args(&entries, "--suggest", "--suggest key=ip", |_, mistake| mistakes.push(mistake));
    if let Some(mistake) = mistakes.pop() {
        return Err(mistake);
    }
    let key = KeyParts { ipv6_prefix: 64, ..KeyParts::exact(args) };
    let policy = Policy {
        message: Some(MESSAGE.as_bytes().into()),
        ..Policy::new("suggest", key, Rule::Unlimited)
    };
    Ok(Policies::new(vec![policy], Answers::blocked_only(), Vec::new(), 0))
}
