//! All policies of an agent, with its store and its answers.

use std::iter;
use std::sync::Arc;

use gcra_table::Table;
use spop_codec::Message;

use crate::answers::Answers;
use crate::digest;
use crate::limit::{Limit, Rule};
use crate::origin::Origin;
use crate::policy::{LimitPlace, Policy};
use crate::store::StoreSettings;
use crate::watch::SeenFile;

/// All policies, in the order of the file. The first one that is for a message decides about it.
#[derive(Clone, Debug)]
pub struct Policies {
    /// Trials come last. Each is for the messages of a policy before it, so a message is never
    /// matched to one.
    pub list: Vec<Policy>,
    pub answers: Answers,
    pub store: Option<StoreSettings>,
    /// Sentences about settings that are allowed in the file, and probably not meant; a line each,
    /// up to a number of lines.
    pub warnings: Vec<String>,
    /// How many warnings there are, of which some may have no line.
    pub warning_count: usize,
    /// The files that they were read from, in their state before that.
    pub files: Vec<SeenFile>,
    /// Their origin, unless that is not known.
    pub origin: Option<Arc<Origin>>,
    /// A digest of all text that they were read from. It is equal where nothing has changed.
    pub text_digest: u64,
    /// A digest of their limits, which other agents can compare with their own. Never 0.
    pub limits_digest: u64,
    /// The names of the policies that only observe because an action of `--admin` said so.
    pub switched: Vec<Box<str>>,
}

impl Policies {
    /// Policies without a store and without warnings. `text_digest` is of all that they were read
    /// from, or 0 if that was no file.
    pub fn new(
        list: Vec<Policy>,
        answers: Answers,
        files: Vec<SeenFile>,
        text_digest: u64,
    ) -> Self {
        let limits_digest = digest::of_limits(&list);
        Self {
            list,
            answers,
            store: None,
            warnings: Vec::new(),
            warning_count: 0,
            files,
            origin: None,
            text_digest,
            limits_digest,
            switched: Vec::new(),
        }
    }

    /// Works out what would be worked out for each request otherwise. They are in force on this
    /// table from now on, or on its successors.
    pub fn come_into_force(&mut self, table: &Table) {
        for Policy { rule, overrides, .. } in &mut self.list {
            let rules = iter::once(rule).chain(&mut overrides.rules);
            for limit in rules.flat_map(Rule::limits_mut) {
                limit.salt = Some(table.limit_salt(limit.id));
            }
        }
    }

    /// The place of the first policy that is for this message.
    #[inline]
    pub fn of(&self, message: &Message<'_>) -> Option<usize> {
        self.list.iter().position(|policy| policy.is_for(message))
    }

    /// The place of the first policy that this message settles.
    #[cold]
    pub fn settled_by(&self, message: &Message<'_>) -> Option<usize> {
        self.list
            .iter()
            .position(|policy| policy.is_settled_by(message.name) && policy.fits(message))
    }

    /// The same policies, of which the one with this name only observes until the next reload, or
    /// no longer does because of an earlier call. `None` if that changes nothing. The error is a
    /// sentence: there is no such policy, or it is not because of a call that it observes.
    pub fn observing(&self, name: &str, observes: bool) -> Result<Option<Self>, String> {
        let mut changed = self.clone();
        let mut list = changed.list.iter_mut();
        let Some(policy) = list.find(|it| *it.name == *name && !it.is_trial) else {
            let names: Vec<_> = self.without_trials().map(|policy| &*policy.name).collect();
            return Err(format!("there is no policy '{name}'; there are {}", names.join(", ")));
        };
        let is_switched = self.switched.iter().any(|switched| **switched == *name);
        if policy.observes == observes {
            return Ok(None);
        }
        if !observes && !is_switched {
            return Err(format!(
                "policy '{name}' observes because its file says so; change its mode there, and \
                 reload"
            ));
        }
        policy.observes = observes;
        match observes {
            true => changed.switched.push(name.into()),
            false => changed.switched.retain(|switched| **switched != *name),
        }
        changed.limits_digest = digest::of_limits(&changed.list);
        // No file says this, so the next reload puts the file in force even if it is the same.
        changed.text_digest = 0;
        Ok(Some(changed))
    }

    pub fn without_trials(&self) -> impl Iterator<Item = &Policy> {
        self.list.iter().filter(|policy| !policy.is_trial)
    }

    pub fn limit_at(&self, place: LimitPlace) -> Option<&Limit> {
        self.list.get(place.policy)?.limit_at(place)
    }

    pub fn first_shared(&self) -> Option<&Policy> {
        self.list.iter().find(|policy| policy.shared.is_some())
    }
}
