//! The variable `reserved`: what a request has reserved, for its response to bring back.
//!
//! Each entry is the name of the policy, the number of cells, and when they were reserved, in
//! milliseconds since 1970: `llm 500 1795408000123`. If several policies have reserved cells for
//! one request, a comma stands between their entries. HAProxy sends the text back as it is.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrayvec::{ArrayString, ArrayVec};

use crate::policy::Policies;

/// The most policies that reserve cells for one request. What a further one reserves is not
/// brought back.
pub(crate) const MOST: usize = 4;

/// The bytes of an entry besides the name: two numbers, and what stands between entries.
pub(crate) const LONGEST_NUMBERS: usize = " 4294967295 18446744073709551615, ".len();

/// The longest text of the variable. The name of a policy has at most 64 bytes.
const LONGEST: usize = MOST * (64 + LONGEST_NUMBERS);

/// What the messages of a request have reserved.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reserved {
    /// Whether a policy was asked that reserves cells.
    was_asked: bool,
    /// The places of policies, how many cells each has reserved, and when, since 1970.
    each: ArrayVec<(usize, u32, Duration), MOST>,
}

impl Reserved {
    /// Notes that the policy at this place has reserved so many cells at this time since 1970,
    /// which may be none.
    pub(crate) fn add(&mut self, policy: usize, reserved: Option<(u32, Duration)>) {
        self.was_asked = true;
        if let Some((cells, at)) = reserved.filter(|(cells, _)| *cells > 0) {
            let _ = self.each.try_push((policy, cells, at));
        }
    }

    /// Whether a policy was asked that reserves cells.
    pub(crate) fn was_asked(&self) -> bool {
        self.was_asked
    }

    /// The text of the variable; `None` if nothing is reserved.
    pub(crate) fn text(&self, policies: &Policies) -> Option<ArrayString<LONGEST>> {
        let mut text = ArrayString::new();
        for (policy, cells, at) in &self.each {
            let comma = if text.is_empty() { "" } else { ", " };
            let name = &policies.list.get(*policy)?.name;
            // There is space for the longest names.
            write!(text, "{comma}{name} {cells} {}", at.as_millis()).ok()?;
        }
        (!text.is_empty()).then_some(text)
    }
}

/// How many cells were reserved under the policy with this name, according to the text, and when,
/// since 1970; `None` if the text does not say that.
pub(crate) fn read(text: &[u8], policy: &str) -> Option<(u32, Duration)> {
    let entries = std::str::from_utf8(text).ok()?.split(", ");
    let read = |entry: &str| {
        let mut words = entry.split(' ');
        let (name, cells, at) = (words.next()?, words.next()?, words.next()?);
        let is_whole = name == policy && words.next().is_none();
        is_whole.then_some((cells.parse().ok()?, Duration::from_millis(at.parse().ok()?)))
    };
    entries.into_iter().find_map(read)
}

/// The time since 1970.
pub(crate) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
