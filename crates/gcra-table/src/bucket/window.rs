//! Counting the cells of a key in a calendar window, such as a day from midnight to midnight.
//!
//! A key has a bucket for each window, in the same slots as the buckets of quotas: the number of
//! the window is part of its fingerprint. In the place of the TAT it has an expiry, which is a
//! moment of the table's time, and in the bits below that the cells that were counted
//! ([`used`](crate::used)).
//!
//! *Counting is one exchange*: {K, v} becomes {K, v + n} if the count in v and n are at most what
//! is allowed. It does not depend on the clock, so a process that was stopped in it for an hour
//! counts nothing too much.
//!
//! *The slot comes free by itself.* To everything else in the table the word is a TAT, which is
//! [`KEPT`](crate::KEPT) after the end of the window. From then on it may be reclaimed, and a resize no longer
//! carries it. Only a table that is full looks closer (`Class::part_owed`): it compares the used
//! part of the count with the debts of other buckets.
//!
//! # At most the count in each window
//!
//! A bucket that is gone must not be opened again: the cells in it would be allowed twice. A
//! bucket is opened only at a reading of the clock, taken after the look, that is before the end
//! of the window (`WindowOver` if not). Say the key had a bucket of the same window before that
//! look. Its expiry is after the end of the window, so it would not have been reclaimed yet, and
//! the look would have found it; unless it was evicted, which is counted, or reset.
//!
//! Each process works out the end of the window, by the table's clock, from a reading of the
//! table's clock and a reading of the wall clock after that. In this order, a process that is
//! stopped between the two readings takes the end for earlier than it is. If the wall clock is set
//! back by d, the same window ends d later. So the argument holds while the wall clock is set back
//! by no more than [`KEPT`](crate::KEPT) in all during the window. If the window ends later now, a
//! count also makes the expiry later. So a key that is used now and then is safe in any case.
//!
//! # What a process killed there leaves behind
//!
//! The same as after the opening of any bucket (`opening.rs`); else a cell that was counted, and
//! perhaps never answered.

// ADR 42: A calendar window is a bucket of its own.

use crate::bucket::context::{Context, Moved};
use crate::bucket::opening::Opening;
use crate::bucket::{Bucket, MAX_ATTEMPTS};
use crate::burst_class::Class;
use crate::clock::MAX_NS;
use crate::key::{KeyHash, mark};
use crate::mutation::{Mutation, broken};
use crate::quota::scramble;
use crate::slot::BucketId;
use crate::sync::{Ordering, fence};
use crate::time::{Nanos, Reading, Time};
use crate::used::Used;

/// One window of a calendar: a certain day, for example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Window {
    /// The number that tells the buckets of this window from all others of the same key.
    salt: u64,
    end: Time,
}

impl Window {
    /// The window of a calendar that begins `start` seconds after 1970 and ends at `end`, which is
    /// a moment of the table's clock: see [`WallReading::time_at`].
    ///
    /// `length` tells it from other windows that begin at the same moment: how long it is by the
    /// calendar, in seconds. Windows that differ in one of both never share a bucket.
    #[inline]
    pub const fn new(length: u64, start: i64, end: Time) -> Self {
        // The third step tells it from the salt of any quota.
        let salt = scramble(scramble(length) ^ start.cast_unsigned());
        Self { salt: scramble(salt ^ 0x7769_6e64_6f77), end }
    }

    /// When it ends, by the table's clock.
    pub const fn end(self) -> Time {
        self.end
    }

    /// The id that tells the key's bucket in this window from all others.
    #[inline]
    pub(crate) const fn bucket_id(self, key: KeyHash) -> BucketId {
        BucketId::new(key.0 ^ self.salt, Class::COUNT)
    }

    /// 32 bits that stand for the bucket of a key in this window, as [`KeyHash::mark`].
    pub fn mark(self, key: KeyHash) -> u32 {
        mark(self.bucket_id(key))
    }
}

/// The clock of a table and the wall clock, read together: see
/// [`Table::wall_reading`](crate::Table::wall_reading).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WallReading {
    pub(crate) time: Time,
    pub(crate) wall_ns: u64,
}

impl WallReading {
    /// The time by the table's clock.
    pub const fn time(self) -> Time {
        self.time
    }

    /// The time by the wall clock: nanoseconds since 1970.
    #[inline]
    pub const fn wall_ns(self) -> u64 {
        self.wall_ns
    }

    /// The whole seconds after 1970 of the wall clock.
    #[inline]
    pub const fn second(self) -> i64 {
        (self.wall_ns / 1_000_000_000).cast_signed()
    }

    /// When it is `wall_s` seconds after 1970, by the table's clock, if nobody sets the wall
    /// clock.
    #[inline]
    pub const fn time_at(self, wall_s: i64) -> Time {
        let ahead_ns = wall_s as i128 * 1_000_000_000 - self.wall_ns as i128;
        let time = self.time.0 as i128 + ahead_ns;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let time = if time < 0 {
            0
        } else if time > MOST {
            MOST as u64
        } else {
            time as u64
        };
        Time(time)
    }
}

/// Beyond every time of a table.
const MOST: i128 = MAX_NS as i128;

/// The decision of the table about some cells in a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a decision that is not read limits nothing"]
pub struct Tally {
    allowed: bool,
    used: u64,
}

impl Tally {
    /// Whether the cells are allowed. If so they were counted; if not, nothing was counted.
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// How many cells of the key are counted in the window, after the decision.
    #[inline]
    pub const fn used(&self) -> u32 {
        if self.used > u32::MAX as u64 {
            return u32::MAX;
        }
        #[expect(clippy::cast_possible_truncation, reason = "compared before")]
        let used = self.used as u32;
        used
    }
}

/// The window ended before the cells could be counted in it. They belong to the next one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WindowOver;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    pub(crate) window: Window,
    /// The most cells in the window.
    pub(crate) most: u32,
    pub(crate) cells: u32,
}

impl Count {
    /// The value of the bucket after it held `value`, if the cells are allowed and not none; and
    /// the decision.
    #[inline]
    const fn after(self, value: Time) -> (Option<Time>, Tally) {
        let before = Used::in_bucket(value);
        let used = before.cells();
        let with_cells = used + self.cells as u64;
        if self.cells == 0 {
            return (None, Tally { allowed: true, used });
        }
        if with_cells > self.most as u64 {
            return (None, Tally { allowed: false, used });
        }
        let after = before.joined_with(Used::none(self.window.end, self.most));
        let after = after.with_cells(with_cells).to_value();
        (Some(after), Tally { allowed: true, used: with_cells })
    }
}

/// The cells in what a bucket of a window holds in the place of the TAT.
pub(crate) const fn count_in(value: Time) -> u32 {
    Tally { allowed: true, used: Used::in_bucket(value).cells() }.used()
}

/// Why a bucket of a window was not opened.
enum Unopened {
    Decided(Tally),
    Over,
}

impl Bucket<'_> {
    /// Decides about some cells and counts them: the usual case, in which the key has a bucket and
    /// no other process changes it at this moment. `None` in any other case.
    #[inline]
    pub(crate) fn try_count(&self, count: Count) -> Option<Tally> {
        let (slot, word, value) = self.find()?;
        match count.after(value) {
            (None, decision) => Some(decision),
            (Some(after), decision) => {
                Self::exchange(slot, word, self.confirmed(after)).then_some(decision)
            }
        }
    }

    /// As [`try_count`](Self::try_count), in every case. The clock is read again before a bucket
    /// is opened.
    pub(crate) fn count<C: Fn() -> Time>(
        &self,
        count: Count,
        now: &mut Reading,
        context: &Context<'_, C>,
    ) -> Result<Result<Tally, WindowOver>, Moved> {
        for _ in 0..MAX_ATTEMPTS {
            let look = self.look();
            if look.bucket().is_some() {
                match self.try_count(count) {
                    Some(decision) => return Ok(Ok(decision)),
                    None => continue,
                }
            }
            let opening = self.open(look, now, context, |now| {
                if now >= count.window.end && !broken(Mutation::OpensAfterTheEnd) {
                    return Err(Unopened::Over);
                }
                // Cells that were counted in the table before this one count here.
                let value = context.moving_from().map_or(Time::ZERO, Bucket::seal);
                match count.after(value) {
                    (Some(after), _) => Ok(after),
                    (None, decision) => Err(Unopened::Decided(decision)),
                }
            });
            match opening {
                Opening::Opened(value) => {
                    return Ok(Ok(Tally { allowed: true, used: Used::in_bucket(value).cells() }));
                }
                Opening::Decided(Unopened::Decided(decision)) => return Ok(Ok(decision)),
                Opening::Decided(Unopened::Over) => return Ok(Err(WindowOver)),
                Opening::Exists => {}
                Opening::Moved => return Err(Moved),
                Opening::GaveUp => break,
            }
        }
        context.counters.gave_up();
        Ok(Ok(Self::uncountable(count)))
    }

    /// Cells that the table cannot count are denied.
    pub(crate) const fn uncountable(count: Count) -> Tally {
        Tally { allowed: false, used: count.most as u64 }
    }

    /// Takes back cells that were counted. Cells of a window do not drain, so it makes no
    /// difference what other processes have counted since. False if the bucket is gone or was
    /// reset, or if it is full: how much there was that it could not hold is not known.
    ///
    /// A count that is sealed in the table before this one is opened here, less these cells, as
    /// `give_back.rs` does it.
    pub(crate) fn uncount<C: Fn() -> Time>(
        &self,
        cells: u32,
        now: &mut Reading,
        context: &Context<'_, C>,
    ) -> Result<bool, Moved> {
        let less = |value: Time| {
            let used = Used::in_bucket(value).cells();
            let has_them = used >= u64::from(cells) && used < u64::from(u32::MAX);
            has_them.then(|| value.saturating_sub(Nanos(cells.into())))
        };
        for _ in 0..MAX_ATTEMPTS {
            let look = self.look();
            if let Some((position, value)) = look.bucket() {
                let Some(left) = less(value) else { return Ok(false) };
                if self.slot(position).exchange(look.word(position), self.confirmed(left)) {
                    return Ok(true);
                }
                continue;
            }
            let opening = self.open(look, now, context, |now| {
                let value = context.moving_from().map_or(Time::ZERO, Bucket::seal);
                less(value).filter(|_| value > now).ok_or(())
            });
            match opening {
                Opening::Opened(_) => return Ok(true),
                Opening::Decided(()) => {
                    // The bucket may have been carried over after the look. Pairs with the release
                    // in which the move is written down as complete, if that was seen.
                    fence(Ordering::Acquire);
                    if self.find().is_none() {
                        return Ok(false);
                    }
                }
                Opening::Exists => {}
                Opening::Moved => return Err(Moved),
                Opening::GaveUp => break,
            }
        }
        context.counters.gave_up();
        Ok(false)
    }
}

#[cfg(test)]
#[cfg(not(gcra_model))]
mod tests {
    use super::*;
    use crate::bucket::seal::seal;
    use crate::file::open;
    use crate::slots::Slots;
    use crate::table::Table;

    #[test]
    fn windows_of_other_calendars_and_days_are_others() {
        let key = KeyHash(5);
        let all: std::collections::HashSet<_> = (0..10)
            .flat_map(|calendar| (0..10).map(move |day| (calendar, day * 86_400)))
            .map(|(calendar, start)| {
                Window::new(calendar, start, Time(1)).bucket_id(key).fingerprint
            })
            .collect();
        assert_eq!(all.len(), 100);
        let ends = |end| Window::new(1, 0, Time(end)).bucket_id(key);
        assert_eq!(ends(5), ends(6), "where it ends is an estimate");
    }

    #[test]
    fn a_moment_of_the_wall_clock_is_one_of_the_tables_clock() {
        let reading = WallReading { time: Time(7_000_000_000), wall_ns: 100_500_000_000 };
        assert_eq!(reading.time_at(102), Time(8_500_000_000));
        assert_eq!(reading.time_at(100), Time(6_500_000_000));
        assert_eq!(reading.time_at(i64::MIN), Time::ZERO);
        assert_eq!(reading.time_at(i64::MAX), Time(MAX_NS));
    }

    #[test]
    fn a_count_that_a_resize_has_sealed_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        let (table, _) = Table::open_or_create(&path, Some(Slots::new(64).unwrap())).unwrap();
        let window = Window::new(1, 0, table.now().saturating_add(Nanos::from_secs(3600)));
        let keys = [1, 2, 3].map(|number| KeyHash(number << 8));
        for key in keys {
            let counted = table.count(key, window, 10, 7, &mut table.reading());
            assert!(counted.unwrap().is_allowed());
        }
        // As if the process that resizes the table was stopped here.
        let file = open::inspect(&path.as_path().into()).unwrap();
        open::create_successor(&path.as_path().into(), &file, Slots::new(256).unwrap()).unwrap();
        drop(file);
        table.shared().successor.store(1, std::sync::atomic::Ordering::Release);
        assert!(table.each_slot().all(|slot| seal(slot).sealed_tat().is_some()));

        assert!(table.uncount(keys[0], window, 3, &mut table.reading()));
        assert!(table.uncount(keys[1], window, 7, &mut table.reading()));
        assert!(!table.uncount(keys[2], window, 8, &mut table.reading()), "more than was counted");
        assert!(
            !table.uncount(KeyHash(4 << 8), window, 1, &mut table.reading()),
            "was not counted"
        );
        let counted = |table: &Table| keys.map(|key| table.counted_in(key, window));
        assert_eq!(counted(&table), [Some(4), Some(0), Some(7)]);
        Table::resize(&path, Slots::new(256).unwrap(), std::time::Duration::ZERO).unwrap();
        assert_eq!(counted(&table), [Some(4), Some(0), Some(7)]);
        assert_eq!(counted(&Table::inspect(&path).unwrap()), [Some(4), Some(0), Some(7)]);
    }
}
