//! Tickets: what tells one announcement of a bucket from every other.

// ADR 19: An announcement belongs to no process.

use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(gcra_model)]
use crate::mutation::{Mutation, broken, changes};
use crate::time::Time;

/// The age in milliseconds, by the clock reading of its author, from which another key may take
/// over the slot of an announcement. It bounds nothing but how long the announcement of a dead
/// process occupies a slot: if the author is alive, removing its announcement only makes it start
/// over.
const PENDING_MS: u32 = 10;

/// Where one attachment to the table gets the tickets of its announcements.
///
/// A ticket has 18 bits of time in milliseconds, 16 bits that name the attachment, and 28 bits
/// that count. A repeated ticket does harm only to a process that has seen the first one and was
/// stopped between its look and its exchange. Meanwhile the attachment would have to announce
/// exactly a multiple of 268 million keys. The last announcement would have to be for the same key
/// in the same slot, and in the same millisecond of 275 s. Instead of the same millisecond, a
/// thread of the attachment may have been stopped for as long, between reading the clock and
/// announcing. Or two attachments would have to live at once that are 65 536 apart *and* agree in
/// millisecond and count.
#[derive(Debug)]
pub(crate) struct Announcer {
    attachment: u16,
    count: AtomicU32,
}

const STAMP_BITS: u32 = 18;
const STAMP_SHIFT: u32 = 44;
const ATTACHMENT_SHIFT: u32 = 28;
const STAMP_MASK: u32 = (1 << STAMP_BITS) - 1;

impl Announcer {
    /// For the `attachment`-th attachment to a table.
    pub(crate) const fn new(attachment: u16) -> Self {
        Self { attachment, count: AtomicU32::new(0) }
    }

    pub(crate) const fn attachment(&self) -> u16 {
        self.attachment
    }

    #[cfg(not(gcra_model))]
    pub(crate) fn ticket(&self, now: Time) -> u64 {
        let count = self.count.fetch_add(1, Ordering::Relaxed) & ((1 << ATTACHMENT_SHIFT) - 1);
        u64::from(stamp_ms(now)) << STAMP_SHIFT
            | u64::from(self.attachment) << ATTACHMENT_SHIFT
            | u64::from(count)
    }

    /// A ticket of a model has 31 bits: no time (nothing grows old there), 8 bits of attachment,
    /// 8 of count.
    #[cfg(gcra_model)]
    pub(crate) fn ticket(&self, _now: Time) -> u64 {
        if broken(Mutation::TicketsRepeat) {
            return 0;
        }
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        u64::from(self.attachment) << 8 | u64::from(count)
    }
}

/// The time in milliseconds (of 2^20 ns), as a ticket keeps it: it wraps after four and a half
/// minutes.
#[expect(clippy::cast_possible_truncation, reason = "masked to 18 bits")]
const fn stamp_ms(now: Time) -> u32 {
    (now.0 >> 20) as u32 & STAMP_MASK
}

/// Whether an announcement is so old that its author is dead, or was stopped, or had read its
/// clock long before. (For 20 ms of each four and a half minutes the announcement of a dead
/// process looks young again, and its slot is not free during that time.)
pub(crate) fn is_stale(ticket: u64, now: Time) -> bool {
    #[cfg(gcra_model)]
    if cfg!(gcra_model) {
        return changes().announcements_are_old;
    }
    let announced_ms = (ticket >> STAMP_SHIFT) as u32;
    // The clock readings of two processes may be a moment apart, either way.
    let age_ms = stamp_ms(now).wrapping_sub(announced_ms).wrapping_add(PENDING_MS) & STAMP_MASK;
    age_ms >= 2 * PENDING_MS
}
