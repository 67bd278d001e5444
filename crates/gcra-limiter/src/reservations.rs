//! The variable `reserved`: what a request has reserved, for its response to bring back.
//!
//! An entry is `llm 500 1795408000123 5f0c9a7e`, for example. It has the name of the policy, the
//! number of cells, and when they were reserved, in milliseconds since 1970. Then it has a mark
//! for the bucket of each limit that was charged, in hexadecimal. Between several marks stands a
//! full stop. If several policies have reserved cells for one request, a comma stands between
//! their entries. HAProxy sends the string back as it is.

// ADR 41: A response settles what its request reserved.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrayvec::{ArrayString, ArrayVec};
use gcra_policy::answers::{LONGEST_NUMBERS, MOST_RESERVED};
use gcra_policy::{MAX_LIMITS, Policies};
use gcra_table::{KeyHash, Table};

/// The longest value of the variable. The name of a policy has at most 64 bytes.
const LONGEST: usize = MOST_RESERVED * (64 + LONGEST_NUMBERS);

/// The marks of the buckets that were charged, one for each limit.
pub(crate) type Marks = ArrayVec<u32, MAX_LIMITS>;

#[derive(Clone, Debug, Default)]
pub struct Reservation {
    pub cells: u32,
    /// When, since 1970.
    pub at: Duration,
    /// A response gives cells back in these buckets, and in no others: agents may have different
    /// numbers while a change is under way.
    pub marks: Marks,
    /// The client that has to settle it in time, if it has to. It is not sent back.
    pub client: Option<KeyHash>,
}

#[derive(Clone, Debug, Default)]
pub struct Reserved {
    /// Whether a policy was asked that reserves cells.
    was_asked: bool,
    /// The places of policies, and what each has reserved.
    each: ArrayVec<(usize, Reservation), MOST_RESERVED>,
}

impl Reserved {
    /// Notes what the policy at this place has reserved, which may be nothing.
    pub fn add(&mut self, policy: usize, reserved: Option<Reservation>) {
        self.was_asked = true;
        let is_settled = |reserved: &Reservation| reserved.cells > 0 || reserved.client.is_some();
        if let Some(reserved) = reserved.filter(is_settled) {
            let _ = self.each.try_push((policy, reserved));
        }
    }

    /// Whether a policy was asked that reserves cells.
    pub(crate) fn was_asked(&self) -> bool {
        self.was_asked
    }

    /// The reservations that are sent back, each with the place of its policy.
    pub(crate) fn each(&self) -> &[(usize, Reservation)] {
        &self.each
    }

    /// Whether a reservation must be settled in time.
    pub(crate) fn must_be_settled(&self) -> bool {
        self.each.iter().any(|(_, reserved)| reserved.client.is_some())
    }

    /// The value of the variable; `None` if nothing is reserved.
    pub fn text(&self, policies: &Policies) -> Option<ArrayString<LONGEST>> {
        let mut text = ArrayString::new();
        for (policy, Reservation { cells, at, marks, client: _ }) in &self.each {
            let comma = if text.is_empty() { "" } else { ", " };
            let name = &policies.list.get(*policy)?.name;
            // There is space for the longest names.
            write!(text, "{comma}{name} {cells} {}", at.as_millis()).ok()?;
            for (place, mark) in marks.iter().enumerate() {
                let between = if place == 0 { ' ' } else { '.' };
                write!(text, "{between}{mark:08x}").ok()?;
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

/// The reservation under the policy with this name, according to this value; `None` if it says
/// none.
pub fn read(text: &[u8], policy: &str) -> Option<Reservation> {
    let entries = std::str::from_utf8(text).ok()?.split(", ");
    let read = |entry: &str| {
        let mut words = entry.split(' ');
        let (name, cells, at) = (words.next()?, words.next()?, words.next()?);
        let marks = words.next().into_iter().flat_map(|marks| marks.split('.'));
        let marks = marks.take(MAX_LIMITS).map(|mark| u32::from_str_radix(mark, 16).ok());
        let marks = marks.collect::<Option<_>>()?;
        let is_whole = name == policy && words.next().is_none();
        let (cells, at) = (cells.parse().ok()?, Duration::from_millis(at.parse().ok()?));
        is_whole.then_some(Reservation { cells, at, marks, client: None })
    };
    entries.into_iter().find_map(read)
}

/// The time since 1970.
pub fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The same by the wall clock of a table, in whole milliseconds, as `reserved` has it.
pub(crate) fn wall_ms(table: &Table) -> Duration {
    Duration::from_millis(table.wall_reading().wall_ns() / 1_000_000)
}
