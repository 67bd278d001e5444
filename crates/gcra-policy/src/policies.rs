//! All policies of an agent, with its store and its answers.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, iter, ptr};

use gcra_table::Table;
use gcra_table::board::PolicyReset;
use gcra_text::config_note::ConfigNote;
use spop_codec::Message;

use crate::answers::Answers;
use crate::client_names::NameSalt;
use crate::client_names::known::KnownClients;
use crate::digest;
use crate::limit::Limit;
use crate::policy::{LimitPlace, Policy, policy_id};
use crate::policy_text::PolicyText;
use crate::store::StoreSettings;
use crate::watch::SeenFile;

/// All policies, in the order of the file. The first one that is for a message decides about it.
#[derive(Clone, Debug)]
pub struct Policies {
    /// Trials come last. Each is for the messages of a policy before it, so a message is never
    /// matched to one. What is in force for a policy keeps it beside its counters.
    pub list: Vec<Arc<Policy>>,
    pub answers: Answers,
    pub store: Option<StoreSettings>,
    /// What clients are known as.
    pub known: Arc<KnownClients>,
    /// Sentences about settings that are allowed in the file, and probably not meant; a line each,
    /// up to a number of lines.
    pub warnings: Vec<ConfigNote>,
    /// How many warnings there are, of which some may have no line.
    pub warning_count: usize,
    /// The files that they were read from, in their state before that.
    pub files: Vec<SeenFile>,
    /// Their origin, unless that is not known.
    pub origin: Option<Arc<PolicyText>>,
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
        mut list: Vec<Policy>,
        answers: Answers,
        files: Vec<SeenFile>,
        text_digest: u64,
    ) -> Self {
        list.iter_mut().for_each(Policy::put_key_into_ids);
        let list: Vec<_> = list.into_iter().map(Arc::new).collect();
        let limits_digest = digest::of_limits(&list);
        Self {
            list,
            answers,
            store: None,
            known: Arc::default(),
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
    /// table from now on, or on its successors, with the resets that the table has.
    pub fn come_into_force(&mut self, table: &Table) {
        let resets = self.resets_in(&table.board().resets());
        for (policy, reset_at) in self.list.iter_mut().map(Arc::make_mut).zip(resets) {
            policy.put_salts(table, reset_at);
        }
    }

    /// Whether the last resets of the policies are among these.
    pub fn have_resets(&self, all: &[PolicyReset]) -> bool {
        self.resets_in(all).into_iter().eq(self.list.iter().map(|policy| policy.reset_at))
    }

    /// When each policy was last reset, according to this list; 0 if it is not in it. A trial is
    /// reset with its policy.
    fn resets_in(&self, all: &[PolicyReset]) -> Vec<u64> {
        let mut each = vec![0; self.list.len()];
        for (place, policy) in self.list.iter().enumerate().filter(|(_, it)| !it.is_trial) {
            let id = policy_id(&policy.name);
            let at = all.iter().find(|reset| reset.policy == id).map_or(0, |reset| reset.at);
            for place in iter::once(place).chain(policy.trial) {
                each.get_mut(place).into_iter().for_each(|it| *it = at);
            }
        }
        each
    }

    /// Whether both were read at one time from one text, and have the same modes.
    pub fn is_same_text(&self, other: &Self) -> bool {
        let is_same = |one: &Arc<PolicyText>, other: &Arc<PolicyText>| Arc::ptr_eq(one, other);
        let both = self.origin.as_ref().zip(other.origin.as_ref());
        ptr::eq(self, other)
            || both.is_some_and(|(one, other)| is_same(one, other))
                && (self.limits_digest, &self.switched) == (other.limits_digest, &other.switched)
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
    /// no longer does because of an earlier call. `None` if that changes nothing.
    pub fn observing(&self, name: &str, observes: bool) -> Result<Option<Self>, ObserveError> {
        let mut changed = self.clone();
        let mut list = changed.list.iter_mut();
        let Some(policy) = list.find(|it| *it.name == *name && !it.is_trial) else {
            let known = self.without_trials().map(|policy| policy.name.clone()).collect();
            return Err(ObserveError::NoPolicy { name: name.into(), known });
        };
        let is_switched = self.switched.iter().any(|switched| **switched == *name);
        if policy.observes == observes {
            return Ok(None);
        }
        if !observes && !is_switched {
            return Err(ObserveError::InFile { name: name.into() });
        }
        Arc::make_mut(policy).observes = observes;
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
        self.list.iter().map(|policy| &**policy).filter(|policy| !policy.is_trial)
    }

    /// The policy with this name, if it is no trial.
    pub fn named(&self, name: &str) -> Option<&Policy> {
        self.without_trials().find(|policy| *policy.name == *name)
    }

    /// A number that stands for the salt of the names of clients; 0 without one.
    pub fn salt_digest(&self) -> u32 {
        self.list.first().and_then(|policy| policy.name_salt).map_or(0, NameSalt::digest)
    }

    pub fn limit_at(&self, place: LimitPlace) -> Option<&Limit> {
        self.list.get(place.policy)?.limit_at(place)
    }

    pub fn first_shared(&self) -> Option<&Policy> {
        self.list.iter().find(|policy| policy.shared.is_some()).map(|policy| &**policy)
    }
}

/// Why a policy cannot be made to observe, or no longer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ObserveError {
    /// There is none with this name, but there are these.
    NoPolicy { name: Box<str>, known: Vec<Box<str>> },
    /// It observes because of its file, and not because of an earlier call.
    InFile { name: Box<str> },
}

impl fmt::Display for ObserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPolicy { name, known } => {
                write!(f, "there is no policy '{name}'; there are {}", known.join(", "))
            }
            Self::InFile { name } => write!(
                f,
                "policy '{name}' observes because its file says so; change its mode there, and \
                 reload"
            ),
        }
    }
}

impl Error for ObserveError {}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gcra_table::Slots;

    use super::*;
    use crate::file::document;

    #[test]
    fn a_reset_is_for_a_policy_and_its_trial() {
        let text = "[policy.api]\nlimits = \"2/d\"\nobserve = \"1/d\"\nkey = [\"ip\"]\n\
                    [policy.login]\nlimits = \"2/d\"\nobserve = \"1/d\"\nkey = [\"ip\"]\n\
                    shared = true\n[policy.other]\nlimits = \"2/d\"\nkey = [\"ip\"]\n\
                    [store]\nurl = \"redis://192.0.2.1\"\n";
        let mut policies = document::parse(Path::new("f"), text).unwrap();
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        policies.come_into_force(&table);
        let before = policies.clone();
        for name in ["api", "login", "api.observe"] {
            table.board().reset_policy(policy_id(name), "anna").unwrap();
        }
        assert!(!policies.have_resets(&table.board().resets()));
        policies.come_into_force(&table);
        assert!(policies.have_resets(&table.board().resets()));
        let salts =
            |policy: &Policy| -> Vec<_> { policy.limits().map(|limit| limit.salt.0).collect() };
        let both = policies.list.iter().zip(&before.list);
        let changed = both.filter(|(now, before)| salts(now) != salts(before));
        let names: Vec<_> = changed.map(|(now, _)| &*now.name).collect();
        assert_eq!(names, ["api", "login", "api.observe", "login.observe"]);
        assert!(policies.is_same_text(&before) && policies.limits_digest == before.limits_digest);
        let both = policies.list.iter().zip(&before.list);
        assert!(both.into_iter().all(|(now, before)| now.has_buckets_of(before)));
    }
}
