//! Whether machines share a policy: `shared`, `without_store` and `open_for`.

use std::ops::RangeInclusive;
use std::time::Duration;

use gcra_lease::MOST_CELLS;

use crate::duration::Exact;
use crate::policy::reader::{Entries, Node, Reader};
use crate::policy::{Limit, Policy};

/// How long a policy is open without the store, unless it is set.
const DEFAULT_OPEN_FOR: Duration = Duration::from_secs(10);

/// How long a policy may be open without the store.
const OPEN_FOR: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);

/// The words for [`WithoutStore`].
pub(crate) const WORDS: [&str; 3] = ["share", "closed", "open"];

/// The settings of a policy that are read here.
pub(super) const SETTINGS: [&str; 3] = ["shared", "without_store", "open_for"];

/// How a policy is shared.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Sharing {
    pub(crate) without_store: WithoutStore,
}

/// What a shared policy does while the store cannot be used.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) enum WithoutStore {
    /// Each machine allows its share of the limit.
    #[default]
    Share,
    /// It blocks.
    Closed,
    /// It allows every request for this time, and then does as `Share` does.
    Open { for_: Duration },
}

impl WithoutStore {
    /// One of [`WORDS`].
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        match word {
            "share" => Some(Self::Share),
            "closed" => Some(Self::Closed),
            "open" => Some(Self::Open { for_: DEFAULT_OPEN_FOR }),
            _ => None,
        }
    }

    /// One of [`WORDS`].
    pub(crate) fn word(self) -> &'static str {
        let [share, closed, open] = WORDS;
        match self {
            Self::Share => share,
            Self::Closed => closed,
            Self::Open { .. } => open,
        }
    }

    fn in_words(self) -> String {
        const SHARE: &str = "each machine allows its share of the limit";
        match self {
            Self::Share => SHARE.to_owned(),
            Self::Closed => "requests are blocked".to_owned(),
            Self::Open { for_ } => {
                format!("requests are allowed for {}, and then {SHARE}", Exact(for_))
            }
        }
    }
}

impl Sharing {
    /// All that the flags of a command line can say.
    pub(crate) fn all_of_flags() -> impl Iterator<Item = Self> {
        let each = WORDS.into_iter().filter_map(WithoutStore::of_word);
        each.map(|without_store| Self { without_store })
    }

    /// "shared with all machines that use the store; without the store, requests are blocked".
    pub(crate) fn in_words(self) -> String {
        let without = self.without_store.in_words();
        format!("shared with all machines that use the store; without the store, {without}")
    }
}

/// Why a limit cannot be shared, if it cannot: a sentence that begins with the limit.
pub(crate) fn not_shareable(limit: &Limit) -> Option<String> {
    let (quota, text) = (limit.quota, &limit.words.text);
    if quota.burst() > MOST_CELLS {
        return Some(format!(
            "the limit '{text}' cannot be shared, because a machine can hold at most {MOST_CELLS} \
             cells; give it a burst of at most {MOST_CELLS}, or do not share it"
        ));
    }
    let interval = Duration::from(quota.emission_interval());
    let error = gcra_lease::Limit::new(interval, quota.burst()).err()?;
    Some(format!("the limit '{text}' cannot be shared: {error}; lower its burst"))
}

/// Takes the settings of the policy with this name. Returns how it is shared, if it is, and where
/// that stands.
pub(super) fn sharing<'t>(
    reader: &mut Reader<'t>,
    entries: &mut Entries<'_, 't>,
    policy: &str,
    has_store: bool,
) -> Option<(usize, Sharing)> {
    let [shared, without, open_for] = SETTINGS.map(|name| entries.take(name));
    let is_shared = shared.and_then(|value| reader.boolean(value, "shared"));
    if is_shared != Some(true) {
        // If `shared` is wrong, it may have been meant.
        let needs = [("without_store", without), ("open_for", open_for)];
        let needs = needs.iter().filter(|_| shared.is_none() || is_shared.is_some());
        for (name, value) in needs.filter_map(|(name, value)| Some((name, (*value)?))) {
            let what = format!("{name} has no effect without shared = true; leave it out");
            reader.wrong(value.span().start, &what);
        }
        return None;
    }
    let at = shared.map_or(0, |value| value.span().start);
    if !has_store {
        let what = format!(
            "policy '{policy}' is shared, and the file has no store; write [store], and below it \
             url = \"redis://HOST:PORT\""
        );
        reader.wrong(at, &what);
    }
    let without_store = without.map(|value| word(reader, value));
    let without_store = match (without_store, open_for) {
        (Some(Some(WithoutStore::Open { for_ })), Some(value)) => {
            let time = reader.time(value, "open_for", OPEN_FOR, "10s");
            WithoutStore::Open { for_: time.unwrap_or(for_) }
        }
        // If the word is wrong, "open" may have been meant.
        (Some(None), _) => WithoutStore::default(),
        (_, Some(value)) => {
            let what = "open_for has no effect without without_store = \"open\"; leave it out";
            reader.wrong(value.span().start, what);
            WithoutStore::default()
        }
        (Some(Some(without_store)), None) => without_store,
        (None, None) => WithoutStore::default(),
    };
    Some((at, Sharing { without_store }))
}

fn word<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<WithoutStore> {
    let like = "\"share\", \"closed\" or \"open\"";
    let word = reader.string(value, "without_store", like)?;
    let found = WithoutStore::of_word(&word);
    if found.is_none() {
        let at = value.span().start;
        reader.unknown(at, "a way to do without the store", &word, &WORDS);
    }
    found
}

/// Notes what makes it impossible to share a policy, or its trial with these limits.
pub(super) fn check(reader: &mut Reader<'_>, at: usize, policy: &Policy, trial: &[Limit]) {
    if policy.limits().next().is_none() && trial.is_empty() {
        let what = format!(
            "policy '{}' has no limit that could be shared; leave shared out",
            policy.name
        );
        reader.wrong(at, &what);
    }
    let mut said = Vec::new();
    for what in policy.limits().chain(trial).filter_map(not_shareable) {
        // The same limit may stand in several overrides.
        if !said.contains(&what) {
            reader.wrong(at, &format!("policy '{}': {what}", policy.name));
            said.push(what);
        }
    }
}
