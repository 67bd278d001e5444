//! How machines share a policy, and a limit as the store of all of them computes it.

use std::time::Duration;

use gcra_lease::LimitError;
use gcra_table::{Nanos, Quota};
use gcra_text::duration::Exact;

use crate::calendar::Bounds;

/// How long a policy is open without the store, unless it is set.
const DEFAULT_OPEN_FOR: Duration = Duration::from_secs(10);

pub const WORDS: [&str; 3] = ["share", "closed", "open"];

#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Sharing {
    pub without_store: WithoutStore,
    /// Whether each request is charged in the store at once, because what all machines owe at this
    /// moment matters. Else the store lends cells.
    pub at_once: bool,
}

/// How a shared policy decides while the store cannot be used.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum WithoutStore {
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
    pub fn word(self) -> &'static str {
        let [share, closed, open] = WORDS;
        match self {
            Self::Share => share,
            Self::Closed => closed,
            Self::Open { .. } => open,
        }
    }
}

impl Sharing {
    /// "shared with all machines that use the store; without the store, requests are blocked".
    pub fn in_words(self) -> String {
        let how = if self.at_once { ", which is asked about each request" } else { "" };
        let without = self.without_store_in_words();
        format!("shared with all machines that use the store{how}; without the store, {without}")
    }

    /// "requests are blocked".
    pub fn without_store_in_words(self) -> String {
        const SHARE: &str = "each machine allows its share of the limit";
        // Cells that are charged at once are never lent, so no machine has a share.
        let then = if self.at_once { "they are blocked" } else { SHARE };
        match self.without_store {
            WithoutStore::Share if !self.at_once => SHARE.to_owned(),
            WithoutStore::Share | WithoutStore::Closed => "requests are blocked".to_owned(),
            WithoutStore::Open { for_ } => {
                format!("requests are allowed for {}, and then {then}", Exact(for_))
            }
        }
    }
}

/// A limit as the store computes it. The error is that it takes too long to drain for that.
pub fn lent(quota: Quota) -> Result<gcra_lease::SharedLimit, LimitError> {
    let interval = quota.emission_interval();
    let limit = gcra_lease::SharedLimit::new(interval.into(), quota.burst())?;
    // Penalties, and what responses charge, can be owed beyond a full burst; and what is delayed,
    // of which no part must be forgiven.
    let (most, interval) = (quota.most_owed().0, interval.0.max(1));
    let has_delay = quota.max_delay() > Nanos::ZERO;
    let ceiling = if has_delay { most.div_ceil(interval) } else { most / interval };
    limit.with_most_owed(u32::try_from(ceiling).unwrap_or(u32::MAX))
}

/// The most that a key owes in the store because of earlier numbers of its limit, as
/// [`Quota::carry_over`] says for the table, and
/// [`Quota::carry_over_up_to_cap`](Quota::carry_over_up_to_cap) where debts beyond the burst are
/// kept.
pub fn most_carried_over(
    quota: Quota,
    limit: &gcra_lease::SharedLimit,
    keeps_debts: bool,
) -> gcra_lease::Units {
    if keeps_debts {
        return limit.cells(limit.ceiling());
    }
    let delay = gcra_lease::Micros(quota.max_delay().0.div_ceil(1_000));
    limit.cells(limit.burst()).saturating_add(limit.drained_in(delay))
}

/// The same quota with a largest debt of whole cells, as the store has it, so that two limits are
/// the same in the store where they are the same in the table. A penalty loses a part of a cell,
/// and what is delayed loses none.
pub fn in_whole_cells(quota: Quota) -> Quota {
    let most = lent(quota).map(|limit| u64::from(limit.ceiling()));
    let most = most.map(|cells| Nanos(quota.emission_interval().0.saturating_mul(cells)));
    most.ok().and_then(|most| quota.with_most_owed(most).ok()).unwrap_or(quota)
}

/// A limit that counts in windows, as the store computes it for the window with these bounds. The
/// error is that these are no window, as by a clock before 1970.
pub fn counted(quota: Quota, bounds: Bounds) -> Result<gcra_lease::SharedLimit, LimitError> {
    let Bounds { start, end } = bounds;
    let [begin, end] = [start, end].map(|second| u64::try_from(second).unwrap_or_default());
    gcra_lease::SharedLimit::count(quota.burst(), gcra_lease::Window { begin, end })
}
