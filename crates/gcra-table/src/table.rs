//! The table: keys in, decisions out.

// ADR 18: A slot is 128 bits and changes whole.
// ADR 25: No sweeper.

pub(crate) mod board;
pub(crate) mod succession;
mod unsettled;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::bucket::Bucket;
use crate::bucket::charge::ToCharge;
use crate::bucket::context::{Context, Moved};
use crate::bucket::ticket::Announcer;
use crate::bucket::window::{Count, Tally, WallReading, Window, WindowOver, count_in};
use crate::clock::{self, Clock, ManualClock};
use crate::counters::{Counted, Evictions};
use crate::cpu::{Loads, prefetch};
use crate::decision::{Decision, Settled};
use crate::file::header::{Header, Shared};
use crate::file::open::{self, Opened, TableFile};
use crate::file::open_error::{OpenError, OpenErrorKind};
use crate::file::region::Region;
use crate::file::{FileId, FilePath, Folder, Role};
use crate::hash::SipKey;
use crate::key::{KeyHash, KeyHasher, LimitSalt};
use crate::processes::Attachment;
use crate::quota::Quota;
use crate::slot::{BucketId, Line, Slot};
use crate::slots::Slots;
use crate::time::{Nanos, Reading, Time};

/// Buckets of many keys, shared by every process that has the file open.
///
/// Everything takes `&self`, and no decision locks or waits. Decisions take a
/// [`reading`](Self::reading) of the clock, so that one reading can serve many of them.
///
/// A long-lived process calls [`beat`](Self::beat) about once a second, and after that
/// [`successor`](Self::successor), because another process may have resized the table.
#[derive(Debug)]
pub struct Table {
    region: Region,
    hash_key: SipKey,
    pub(crate) clock: Clock,
    /// Kept here, because each decision needs it.
    pub(crate) loads: Loads,
    announcer: Announcer,
    /// How this process is listed as one that uses the table. An inspector is not listed.
    attachment: Option<Attachment>,
    pub(crate) file: Option<Origin>,
    successor: OnceLock<Arc<Table>>,
    /// When a successor that could not be opened is tried again, by the table's clock.
    retry_ns: AtomicU64,
}

/// Where a table in a file comes from.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) path: FilePath,
    pub(crate) file: FileId,
    pub(crate) header: Header,
    pub(crate) role: Role,
}

impl Table {
    /// Opens the table file at `path`, or makes one with `slots` slots. Without `slots`, a new one
    /// has [`Slots::DEFAULT`] and one that exists may have any number.
    ///
    /// The file belongs on a tmpfs (`/dev/shm`, `/run`). On a disk the kernel would keep writing
    /// it back.
    ///
    /// # Errors
    ///
    /// The file is not a table of this user, has another size or layout, can be changed by other
    /// users, or could not be made.
    pub fn open_or_create(path: &Path, slots: Option<Slots>) -> Result<(Self, Opened), OpenError> {
        Self::open_or_create_at(&path.into(), slots)
    }

    /// As [`open_or_create`](Self::open_or_create), for a process that has changed its root, or
    /// will: the file at `path`, and later its successor, are found by their names in this folder.
    /// The process must have called [`read_clock_files`](crate::read_clock_files) while it could
    /// see /proc.
    ///
    /// # Errors
    ///
    /// As for [`open_or_create`](Self::open_or_create).
    pub fn open_or_create_in(
        folder: &Folder,
        path: &Path,
        slots: Option<Slots>,
    ) -> Result<(Self, Opened), OpenError> {
        Self::open_or_create_at(&FilePath::new(path, Some(folder)), slots)
    }

    fn open_or_create_at(
        path: &FilePath,
        slots: Option<Slots>,
    ) -> Result<(Self, Opened), OpenError> {
        let (file, opened) = open::open_or_create(path, slots)?;
        Ok((Self::attach(path, &file, Role::Decider)?, opened))
    }

    /// Opens a table that exists, to look at it or to change single keys while other processes use
    /// it. This process is not listed as one of them, and root may inspect a table of any user.
    ///
    /// If a resize was killed when it had carried all buckets over and before it gave its file the
    /// name, this is the table of that file: other processes use it by then.
    ///
    /// # Errors
    ///
    /// As for [`open_or_create`](Self::open_or_create), and if there is no file.
    pub fn inspect(path: &Path) -> Result<Self, OpenError> {
        Self::inspect_at(&path.into())
    }

    /// As [`inspect`](Self::inspect), by the name in this folder.
    ///
    /// # Errors
    ///
    /// As for [`inspect`](Self::inspect).
    pub fn inspect_in(folder: &Folder, path: &Path) -> Result<Self, OpenError> {
        Self::inspect_at(&FilePath::new(path, Some(folder)))
    }

    fn inspect_at(path: &FilePath) -> Result<Self, OpenError> {
        let mut table = Self::attach(path, &open::inspect(path)?, Role::Inspector)?;
        let has_moved = matches!(table.successor(), Ok(Some(_)));
        let next = std::mem::take(&mut table.successor);
        Ok(next.into_inner().filter(|_| has_moved).and_then(Arc::into_inner).unwrap_or(table))
    }

    /// A table of this process alone.
    ///
    /// # Errors
    ///
    /// There is not enough memory, or no randomness for the hash key.
    pub fn in_memory(slots: Slots) -> io::Result<Self> {
        Self::with_clock(slots, Clock::Boot { base_ns: 0 })
    }

    /// A table of this process alone whose clock stands still until it is advanced, for tests and
    /// simulations.
    ///
    /// # Errors
    ///
    /// As for [`in_memory`](Self::in_memory).
    pub fn with_manual_clock(slots: Slots) -> io::Result<(Self, ManualClock)> {
        let clock = ManualClock::default();
        Ok((Self::with_clock(slots, Clock::Manual(clock.clone()))?, clock))
    }

    fn with_clock(slots: Slots, clock: Clock) -> io::Result<Self> {
        let mut hash_key = [0; 16];
        getrandom::fill(&mut hash_key).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self::new(Region::in_memory(slots)?, &hash_key, clock, None))
    }

    pub(crate) fn attach(
        path: &FilePath,
        file: &TableFile,
        role: Role,
    ) -> Result<Self, OpenError> {
        let TableFile { file, id, header, slots } = file;
        let region = Region::map(file, *slots).map_err(|source| {
            OpenError::new(path, OpenErrorKind::Io { doing: "map it", source })
        })?;
        let clock = Clock::Boot { base_ns: header.base_ns };
        let origin = Origin { path: path.clone(), file: *id, header: header.clone(), role };
        let mut table = Self::new(region, &header.hash_key, clock, Some(origin));
        if role == Role::Decider {
            table.attachment = Some(Attachment::new(table.announcer.attachment()));
            table.beat();
        }
        Ok(table)
    }

    #[expect(clippy::cast_possible_truncation, reason = "attachments are named modulo 2^16")]
    fn new(region: Region, hash_key: &[u8; 16], clock: Clock, file: Option<Origin>) -> Self {
        let attachment = region.shared().attachments.fetch_add(1, Ordering::Relaxed) as u16;
        Self {
            region,
            hash_key: SipKey::new(hash_key),
            clock,
            loads: Loads::of_this_cpu(),
            announcer: Announcer::new(attachment),
            attachment: None,
            file,
            successor: OnceLock::new(),
            retry_ns: AtomicU64::new(0),
        }
    }

    /// The table's time: the same for all processes. It never goes back, and continues across
    /// reboots.
    #[inline]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// How long the machine had been running at a moment of this table's clock, with the time for
    /// which it was suspended (CLOCK_BOOTTIME). All tables of a machine agree about that.
    pub fn since_boot(&self, time: Time) -> Nanos {
        self.clock.since_boot(time)
    }

    /// A reading of the table's clock, for the decisions that are to be made now.
    #[inline]
    pub fn reading(&self) -> Reading {
        Reading::at(self.now())
    }

    /// Hashes a key (SipHash-1-3 with the table's random key).
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        let mut hasher = self.hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// As [`hash`](Self::hash), for a key that is in pieces.
    #[inline]
    pub fn hasher(&self) -> KeyHasher {
        KeyHasher(self.hash_key.hasher())
    }

    /// The salt that tells the keys of the limit with this [id](crate::limit_id) from those of
    /// others ([`KeyHash::under`]); [`LimitSalt::NONE`] for 0, which is the id of no name. It is
    /// the same for all processes that use the table and its successors, so it can be worked out
    /// once.
    pub fn limit_salt(&self, limit_id: u64) -> LimitSalt {
        if limit_id == 0 {
            return LimitSalt::NONE;
        }
        // The hashed bytes begin with a secret, so that no bytes of a key have this hash.
        let mut hasher = self.hasher();
        hasher.write(&self.hash(b"gcra-table limit").0.to_le_bytes());
        hasher.write(&limit_id.to_le_bytes());
        LimitSalt(hasher.finish().0)
    }

    /// Starts to fetch the memory that [`charge`](Self::charge) will need for this key under this
    /// quota. Worth it when a few other keys are decided in between.
    #[inline]
    pub fn prefetch(&self, key: KeyHash, quota: Quota) {
        let [first, second] = self.candidate_lines(key.bucket_id(quota).fingerprint);
        prefetch(first);
        prefetch(second);
    }

    /// Decides about `cells` cells of `key`, and charges them if they are allowed. Zero cells are
    /// a peek.
    ///
    /// A key has a bucket for each quota by which it is charged. The numbers of the quota tell
    /// them apart, and what is charged by one quota is not seen by another.
    ///
    /// `now` is a [`reading`](Self::reading) of this table's clock, taken after the cells came. It
    /// is advanced if the clock had to be read again: see [`Reading`].
    ///
    /// Lock-free: only a process that got further can make another one try again.
    #[inline]
    pub fn charge(&self, key: KeyHash, quota: Quota, cells: u32, now: &mut Reading) -> Decision {
        self.charge_owing(key, quota, cells, now, Time::ZERO)
    }

    /// As [`charge`](Self::charge), for a key that is taken to have at least the TAT `least_tat`:
    /// what it owed under another quota, as [`Quota::carry_over`] has carried it over to this one.
    /// [`Time::ZERO`] for nothing.
    #[inline]
    pub fn charge_owing(
        &self,
        key: KeyHash,
        quota: Quota,
        cells: u32,
        now: &mut Reading,
        least_tat: Time,
    ) -> Decision {
        self.charge_at(&self.place(key, &quota), &quota, cells, now, least_tat)
    }

    /// The cases other than the usual one: there is no bucket yet, or no longer in this table, or
    /// another process was faster.
    #[cold]
    pub(crate) fn charge_anyhow(
        &self,
        id: BucketId,
        quota: &Quota,
        cells: u32,
        now: &mut Reading,
        least_tat: Time,
    ) -> Decision {
        let charge = ToCharge { quota, cells, least_tat };
        let decided = self.follow(id, |table, before| {
            table.bucket(id).charge(charge, now, &table.context(before))
        });
        decided.unwrap_or(Decision::undecidable(*quota))
    }

    /// Takes back a charge that [`charge`](Self::charge) has just made with this quota and this
    /// number of cells, for example because the same cells are denied under another limit.
    ///
    /// False if it was too late: another process has used the key since, and the cells stay
    /// charged. This is never too generous, and at worst too strict by these cells until they
    /// drain.
    pub fn refund(&self, key: KeyHash, quota: Quota, cells: u32, decision: &Decision) -> bool {
        let cost = quota.emission_interval().saturating_mul(u64::from(cells));
        let bucket = self.bucket(key.bucket_id(quota));
        decision.charged_tat().is_some_and(|tat| cells > 0 && bucket.refund(tat, cost))
    }

    /// Charges `key` as many of `cells` cells as fit below the [cap on the
    /// debt](Quota::with_most_owed), also beyond the burst: for what was found out after the key
    /// was allowed. Cells that do not fit are not charged.
    ///
    /// `now` and `least_tat` are as for [`charge_owing`](Self::charge_owing).
    ///
    /// ```
    /// use gcra_table::{Nanos, Quota, Slots, Table, Time};
    ///
    /// // 10 per second, 5 at once. A key may owe 1 s beyond that, which are 10 cells.
    /// let quota = Quota::new(Nanos::from_millis(100), 5)?;
    /// let quota = quota.with_most_owed(Nanos::from_millis(1_500))?;
    /// let table = Table::in_memory(Slots::new(64)?)?;
    /// let (key, mut now) = (table.hash(b"a"), table.reading());
    /// let settled = table.charge_up_to_cap(key, quota, 20, &mut now, Time::ZERO);
    /// assert_eq!((settled.cells, settled.beyond_burst), (15, 10));
    /// assert!(!table.charge(key, quota, 1, &mut now).is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge_up_to_cap(
        &self,
        key: KeyHash,
        quota: Quota,
        cells: u32,
        now: &mut Reading,
        least_tat: Time,
    ) -> Settled {
        // Another process must have charged or paid for each attempt that is lost.
        const ATTEMPTS: u32 = 100;
        let cap = quota.up_to_cap();
        let mut fits = cells.min(cap.burst());
        let mut owed = Nanos::ZERO;
        for _ in 0..ATTEMPTS {
            // Without cells, this looks.
            let decision = self.charge_owing(key, cap, fits, now, least_tat);
            owed = decision.owed();
            if decision.is_allowed() {
                return Settled::charged(quota, fits, owed);
            }
            // As many as fit now. If they do not fit any more, others have been charged.
            fits = fits.min(cap.remaining(owed));
        }
        Settled::charged(quota, 0, owed)
    }

    /// Gives `key` back what `cells` cells cost it under this quota, some time after they were
    /// [charged](Self::charge), for example because a request has cost less than was reserved for
    /// it. A key is never given more than it owes, so what has been paid off is not given back
    /// where nothing else is owed.
    ///
    /// The cells that are charged less those that are given back keep to the rate and the burst.
    /// The caller has to see that cells were charged, and are given back once. To undo a charge at
    /// once, use [`refund`](Self::refund).
    ///
    /// ```
    /// use gcra_table::{Nanos, Quota, Slots, Table};
    ///
    /// let quota = Quota::new(Nanos::from_secs(60), 5)?;
    /// let table = Table::in_memory(Slots::new(64)?)?;
    /// let (key, mut now) = (table.hash(b"a"), table.reading());
    /// assert!(table.charge(key, quota, 5, &mut now).is_allowed());
    /// assert_eq!(table.give_back(key, quota, 3, &mut now).cells, 3);
    /// assert!(table.charge(key, quota, 3, &mut now).is_allowed());
    /// assert!(!table.charge(key, quota, 1, &mut now).is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn give_back(&self, key: KeyHash, quota: Quota, cells: u32, now: &mut Reading) -> Settled {
        let cost = quota.emission_interval().saturating_mul(cells.into());
        let id = key.bucket_id(quota);
        let given = self.follow(id, |table, before| {
            table.bucket(id).give_back(cost, now, &table.context(before))
        });
        // Without the other table nothing is given back: too strict, and never too generous.
        let (given_back, tat) = given.unwrap_or((Nanos::ZERO, Time::ZERO));
        Settled::given_back(quota, given_back, tat.saturating_since(now.time()))
    }

    /// The table's clock and the wall clock, for the windows in which cells are
    /// [counted](Self::count).
    #[inline]
    pub fn wall_reading(&self) -> WallReading {
        // In this order: see `window.rs`.
        let time = self.now();
        WallReading { time, wall_ns: self.clock.wall_ns() }
    }

    /// As [`prefetch`](Self::prefetch), for [`count`](Self::count).
    #[inline]
    pub fn prefetch_count(&self, key: KeyHash, window: Window) {
        let [first, second] = self.candidate_lines(window.bucket_id(key).fingerprint);
        prefetch(first);
        prefetch(second);
    }

    /// Decides about `cells` cells of `key` in a calendar window, and counts them if they are
    /// allowed: if no more than `most` are counted then. Zero cells are a peek.
    ///
    /// `most` may differ from call to call: the count is the same. Until [`KEPT`](crate::KEPT)
    /// after the end of the window the count is known, so that nothing is allowed twice when the
    /// wall clock is set back by no more than that.
    ///
    /// `now` is advanced if the clock had to be read again.
    ///
    /// # Errors
    ///
    /// The key has no bucket, and the window has ended meanwhile. The caller takes another
    /// [`wall_reading`](Self::wall_reading), and counts the cells in the window of that.
    #[inline]
    pub fn count(
        &self,
        key: KeyHash,
        window: Window,
        most: u32,
        cells: u32,
        now: &mut Reading,
    ) -> Result<Tally, WindowOver> {
        let count = Count { window, most, cells };
        let id = window.bucket_id(key);
        match self.bucket(id).try_count(count) {
            Some(counted) => Ok(counted),
            None => self.count_anyhow(id, count, now),
        }
    }

    /// The cases other than the usual one, as for [`charge_anyhow`](Self::charge_anyhow).
    #[cold]
    fn count_anyhow(
        &self,
        id: BucketId,
        count: Count,
        now: &mut Reading,
    ) -> Result<Tally, WindowOver> {
        let counted = self.follow(id, |table, before| {
            table.bucket(id).count(count, now, &table.context(before))
        });
        counted.unwrap_or(Ok(Bucket::uncountable(count)))
    }

    /// Takes back cells that [`count`](Self::count) has counted in this window, for example
    /// because another limit denies the same cells.
    ///
    /// False if it was too late: the bucket was reset or evicted, or is gone with its window. Then
    /// the cells stay counted, if anything does. Also false if the table is being resized and the
    /// other one cannot be opened.
    pub fn uncount(&self, key: KeyHash, window: Window, cells: u32, now: &mut Reading) -> bool {
        let id = window.bucket_id(key);
        let done = self.follow(id, |table, before| {
            table.bucket(id).uncount(cells, now, &table.context(before))
        });
        done.unwrap_or(false)
    }

    /// How many cells of `key` are counted in this window; `None` if there is no bucket. Counts
    /// nothing.
    pub fn counted_in(&self, key: KeyHash, window: Window) -> Option<u32> {
        let value = self.tat_of(window.bucket_id(key));
        (value != Time::ZERO).then(|| count_in(value))
    }

    /// Sets the count of `key` in this window to 0, and returns what it was: 0 if there was no
    /// bucket. `None` while the table is being resized, as for [`reset`](Self::reset).
    #[must_use]
    pub fn reset_count(&self, key: KeyHash, window: Window) -> Option<u32> {
        self.reset_bucket(window.bucket_id(key)).map(count_in)
    }

    /// The TAT of `key` under this quota; [`Time::ZERO`] if there is no bucket. Charges nothing.
    #[inline(always)]
    pub fn tat(&self, key: KeyHash, quota: Quota) -> Time {
        self.tat_at(&self.place(key, &quota), &quota)
    }

    /// The same in any case.
    #[cold]
    pub(crate) fn tat_of(&self, id: BucketId) -> Time {
        match self.bucket(id).tat(&self.context(None)) {
            Ok(tat) => tat,
            Err(Moved) => self.moved_tat(id),
        }
    }

    /// The case other than the usual one: the bucket may be in the table that takes over.
    #[cold]
    fn moved_tat(&self, id: BucketId) -> Time {
        // The TAT until the bucket is opened in another table.
        let mut last = Time::ZERO;
        let found = self.follow(id, |table, _| {
            if table.is_complete() {
                last = Time::ZERO;
            }
            let bucket = table.bucket(id);
            bucket.tat(&table.context(None)).inspect_err(|Moved| last = bucket.seal())
        });
        found.filter(|tat| *tat != Time::ZERO).unwrap_or(last)
    }

    /// The debt of `key` under this quota at `now`: after that time it has its full burst again.
    /// Charges nothing.
    pub fn owed(&self, key: KeyHash, quota: Quota, now: Time) -> Nanos {
        self.tat(key, quota).saturating_since(now)
    }

    /// The debt of the bucket of `key` under this quota at `now`; `None` if there is no bucket:
    /// the key was never charged, or has paid off its debt and its slot was taken for another key.
    /// Charges nothing.
    pub fn look_up(&self, key: KeyHash, quota: Quota, now: Time) -> Option<Nanos> {
        let tat = self.tat(key, quota);
        // The TAT of a bucket is never 0, because a cell was charged to it.
        (tat != Time::ZERO).then(|| tat.saturating_since(now))
    }

    /// Forgives `key` all that it owes under this quota, and returns how much that was at `now`.
    ///
    /// `None` while the table is being resized, when the move could undo a reset. Once the resize
    /// is done a reset holds, also against processes that have not noticed the resize yet.
    #[must_use]
    pub fn reset(&self, key: KeyHash, quota: Quota, now: Time) -> Option<Nanos> {
        self.reset_bucket(key.bucket_id(quota)).map(|tat| tat.saturating_since(now))
    }

    fn reset_bucket(&self, id: BucketId) -> Option<Time> {
        // These load with acquire: the reset passes on that the move to this table is complete.
        if self.is_superseded() || !self.is_complete() {
            return None;
        }
        self.bucket(id).reset(&self.context(None)).ok()
    }

    /// The cost of evictions so far because the table was too small: counted over all processes
    /// since it was made, and through all resizes.
    pub fn evictions(&self) -> Evictions {
        self.counted().evictions
    }

    /// The part of [`evictions`](Self::evictions) that was counted before the table was last
    /// resized: it says nothing about the table's size now.
    pub fn evictions_before_resize(&self) -> Evictions {
        self.shared().inherited.counted().evictions
    }

    /// How many operations, of all processes, gave up because others got ahead of them too often;
    /// their cells were denied. This is not expected to happen.
    pub fn gave_up(&self) -> u64 {
        self.counted().gave_up
    }

    /// The counts of this table, of those before it, and of those that take over from it, as far
    /// as they are open here.
    fn counted(&self) -> Counted {
        self.later().fold(self.counted_until_here(), |sum, next| {
            let Shared { inherited, counters, .. } = next.shared();
            sum.with(inherited.counted(), u64::max).with(counters.counted(), u64::saturating_add)
        })
    }

    /// The counts of this table and of those before it.
    pub(crate) fn counted_until_here(&self) -> Counted {
        let Shared { inherited, counters, .. } = self.shared();
        inherited.counted().with(counters.counted(), u64::saturating_add)
    }

    /// How many slots it has, one for each bucket.
    pub fn slots(&self) -> Slots {
        self.region.slots()
    }

    /// The memory it takes in bytes, its header included: the length of its file.
    pub fn bytes(&self) -> u64 {
        self.region.len() as u64
    }

    /// Writes down how far time has advanced, and that this process is alive.
    ///
    /// To be called about once a second. It lets limits of hours and days go on after a reboot, if
    /// the file survives one.
    pub fn beat(&self) {
        let now = self.now();
        self.shared().last_ns.store(now.0, Ordering::Relaxed);
        self.shared().last_wall_ns.store(clock::wall_ns(), Ordering::Relaxed);
        if let Some(attachment) = &self.attachment {
            attachment.beat(self.region.processes(), &self.shared().unlisted_beats, now);
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        self.region.shared()
    }

    pub(crate) fn context<'a>(
        &'a self,
        predecessor: Option<Bucket<'a>>,
    ) -> Context<'a, impl Fn() -> Time> {
        Context {
            clock: || self.now(),
            announcer: &self.announcer,
            counters: &self.shared().counters,
            successor: &self.shared().successor,
            complete: &self.shared().complete,
            predecessor,
        }
    }

    #[inline]
    pub(crate) fn bucket(&self, id: BucketId) -> Bucket<'_> {
        Bucket::new(self.candidate_lines(id.fingerprint), id)
    }

    pub(crate) fn each_slot(&self) -> impl Iterator<Item = &Slot> {
        self.region.lines().iter().flat_map(|line| &line.slots)
    }

    /// The two lines, never the same, that may hold the key.
    #[inline]
    pub(crate) fn candidate_lines(&self, fingerprint: u64) -> [&Line; 2] {
        let lines = self.region.lines();
        // A power of two, and at least two lines.
        let mask = lines.len() as u64 - 1;
        // A step of 1 to `mask` lines: the upper 32 bits of the hash in the fingerprint, scaled.
        let step = 1 + ((((fingerprint >> 28) & u64::from(u32::MAX)) * mask) >> 32);
        let line = |place: u64| {
            #[expect(clippy::cast_possible_truncation, reason = "masked to the number of lines")]
            let index = (place & mask) as usize;
            &lines[index]
        };
        [line(fingerprint), line(fingerprint.wrapping_add(step))]
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.board().leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst_class::Class;
    use crate::slot::{LINE_SLOTS, Word};

    const T: Nanos = Nanos::from_secs(1);
    const HOUR: Nanos = Nanos::from_secs(3_600);

    /// One cell a second.
    fn quota(burst: u32) -> Quota {
        every(T, burst)
    }

    fn every(interval: Nanos, burst: u32) -> Quota {
        Quota::new(interval, burst).unwrap()
    }

    fn table(slots: u64) -> Table {
        Table::in_memory(Slots::new(slots).unwrap()).unwrap()
    }

    /// All words of the table that carry this key's fingerprint under this quota.
    fn words_of(table: &Table, key: KeyHash, quota: Quota) -> Vec<Word> {
        let fingerprint = key.bucket_id(quota).fingerprint;
        table
            .each_slot()
            .map(Slot::load)
            .filter(|word| word.fingerprint() == fingerprint)
            .collect()
    }

    #[test]
    fn a_key_has_one_bucket_and_two_different_lines() {
        let table = table(8);
        for n in 0..1_000_u32 {
            let key = table.hash(&n.to_ne_bytes());
            let id = key.bucket_id(quota(3));
            let [first, second] = table.candidate_lines(id.fingerprint);
            assert!(!core::ptr::eq(first, second));
        }
        let key = table.hash(b"a");
        let mut now = table.reading();
        for _ in 0..3 {
            assert!(table.charge(key, quota(3), 1, &mut now).is_allowed());
        }
        let denied = table.charge(key, quota(3), 1, &mut now);
        assert!(!denied.is_allowed());
        assert!(denied.owed() <= T.saturating_mul(3));
        assert_eq!(words_of(&table, key, quota(3)).len(), 1);
    }

    #[test]
    fn a_peek_or_an_oversize_cost_opens_no_bucket() {
        let table = table(8);
        let key = table.hash(b"a");
        let mut now = table.reading();
        assert!(table.charge(key, quota(3), 0, &mut now).is_allowed());
        let oversize = table.charge(key, quota(3), 4, &mut now);
        assert!(!oversize.is_allowed());
        assert_eq!(oversize.retry_after(), None);
        assert_eq!(words_of(&table, key, quota(3)), []);
    }

    #[test]
    fn idle_slots_are_reclaimed_and_nothing_is_evicted() {
        let table = table(8);
        for n in 0..1_000_u32 {
            let mut now = table.reading();
            assert!(
                table
                    .charge(table.hash(&n.to_ne_bytes()), every(Nanos(1_000), 1), 1, &mut now)
                    .is_allowed()
            );
            while table.now() <= now.time().saturating_add(Nanos(1_000)) {}
        }
        assert_eq!(table.evictions(), Evictions::default());
    }

    #[test]
    fn with_all_slots_live_the_one_that_owes_least_goes_and_is_counted() {
        let table = table(8);
        let hour = every(HOUR, 10);
        let mut now = table.reading();
        let keys: Vec<_> = (0..8_u32).map(|n| table.hash(&n.to_ne_bytes())).collect();
        for (n, key) in keys.iter().enumerate() {
            for _ in 0..=n {
                assert!(table.charge(*key, hour, 1, &mut now).is_allowed());
            }
        }
        assert!(table.charge(table.hash(b"the ninth"), hour, 1, &mut now).is_allowed());
        assert_eq!(words_of(&table, keys[0], hour), []);
        assert!(keys[1..].iter().all(|key| words_of(&table, *key, hour).len() == 1));
        let evictions = table.evictions();
        assert_eq!(evictions.evicted_live, 1);
        assert_eq!(evictions.forgiven.div_ceil(hour.emission_interval()), 1);
    }

    /// So that a key that comes back soon finds its own.
    #[test]
    fn of_idle_slots_the_oldest_goes() {
        let (table, clock) = Table::with_manual_clock(Slots::new(8).unwrap()).unwrap();
        let keys: Vec<_> = (0..9_u32).map(|n| table.hash(&n.to_ne_bytes())).collect();
        for key in &keys[..8] {
            assert!(table.charge(*key, quota(1), 1, &mut table.reading()).is_allowed());
            // All before it are idle by now, but a slot that was never used is taken.
            clock.advance(T);
        }
        let known = |table: &Table| -> Vec<_> {
            keys.iter().map(|key| words_of(table, *key, quota(1)).len()).collect()
        };
        assert_eq!(known(&table), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
        assert!(table.charge(keys[8], quota(1), 1, &mut table.reading()).is_allowed());
        assert_eq!(known(&table), [0, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(table.evictions(), Evictions::default());
    }

    /// A process read its clock, was stopped, and meanwhile the bucket drained and went to other
    /// keys.
    #[test]
    fn a_stale_now_does_not_give_a_second_burst() {
        let table = table(8);
        let key = table.hash(b"a");
        let read_long_ago = table.now();
        let brief = every(Nanos(1_000), 3);
        let mut now = Reading::at(read_long_ago);
        for _ in 0..3 {
            assert!(table.charge(key, brief, 1, &mut now).is_allowed());
        }
        let drained = words_of(&table, key, brief)[0].tat().unwrap();
        while table.now() <= drained {}
        // All slots are taken by keys that owe a lot.
        let hour = every(HOUR, 1);
        for n in 0..8_u32 {
            assert!(
                table
                    .charge(table.hash(&n.to_ne_bytes()), hour, 1, &mut table.reading())
                    .is_allowed()
            );
        }
        assert_eq!(words_of(&table, key, brief), []);
        // One slot is free at any time, so that it is found without another reading.
        assert!(table.reset(table.hash(&0_u32.to_ne_bytes()), hour, table.now()).is_some());
        let late = table.charge(key, brief, 1, &mut Reading::at(read_long_ago));
        assert!(late.is_allowed());
        assert!(words_of(&table, key, brief)[0].tat().unwrap() > drained, "the TAT went back");
    }

    /// The resizer seals a slot and is stopped. Before it goes on the key's bucket is opened in
    /// the new table, used up, drained and reclaimed there.
    #[test]
    fn what_has_drained_since_it_was_sealed_is_not_carried() {
        let (old, clock) = Table::with_manual_clock(Slots::new(8).unwrap()).unwrap();
        let mut new =
            Table::with_clock(Slots::new(16).unwrap(), Clock::Manual(clock.clone())).unwrap();
        new.hash_key = old.hash_key;
        let (key, quota) = (old.hash(b"a"), quota(5));
        let bucket = key.bucket_id(quota);
        let one = ToCharge { quota: &quota, cells: 1, least_tat: Time::ZERO };
        let read_long_ago = old.now();
        let now = &mut Reading::at(read_long_ago);
        assert!(old.charge(key, quota, 1, now).is_allowed());
        old.shared().successor.store(1, Ordering::Relaxed);
        let tat = old.bucket(bucket).seal();
        let charge = |now: &mut Reading| {
            let context = new.context(Some(old.bucket(bucket)));
            new.bucket(bucket).charge(one, now, &context).unwrap().is_allowed()
        };
        assert_eq!((0..9).filter(|_| charge(now)).count(), 4, "one of 5 was used");
        // It drains, and others need its slot.
        for n in 0..50_u32 {
            clock.advance(T);
            let _ = new.charge(new.hash(&n.to_ne_bytes()), quota, 1, &mut new.reading());
        }
        assert_eq!(words_of(&new, key, quota), []);
        // The resizer goes on.
        new.bucket(bucket).carry(tat, &mut Reading::at(read_long_ago), &new.context(None));
        // And a process that was stopped as long.
        let mut now = Reading::at(read_long_ago);
        while charge(&mut now) {
            assert!(now.time() > read_long_ago, "another cell by that reading of the clock");
        }
    }

    #[test]
    fn a_tat_beyond_the_quota_heals() {
        let table = table(8);
        let key = table.hash(b"a");
        let mut now = table.reading();
        assert!(table.charge(key, quota(3), 1, &mut now).is_allowed());
        let id = key.bucket_id(quota(3));
        let fingerprint = id.fingerprint;
        let slot =
            table.each_slot().find(|slot| slot.load().fingerprint() == fingerprint).unwrap();
        slot.store(Word::confirmed(id, Time(u64::MAX)));
        // It counts as owing τ now: one cell, and then one each T.
        let mut now = table.reading();
        assert!(table.charge(key, quota(3), 1, &mut now).is_allowed());
        let denied = table.charge(key, quota(3), 1, &mut now);
        assert!(!denied.is_allowed());
        assert!(denied.retry_after().unwrap() <= T);
    }

    #[test]
    fn a_table_full_of_garbage_still_answers() {
        for byte in [0xff_u8, 0x7f, 0x80, 0x01] {
            let table = table(64);
            let word = u64::from_ne_bytes([byte; 8]);
            for slot in table.region.lines().iter().flat_map(|line| &line.slots) {
                slot.store(if word >> 63 == 0 {
                    Word::confirmed(BucketId::new(word, Class::from_number(9)), Time(word))
                } else {
                    Word::pending(word >> 2, word)
                });
            }
            let key = table.hash(b"a");
            let mut now = table.reading();
            let allowed =
                (0..10).filter(|_| table.charge(key, quota(3), 1, &mut now).is_allowed()).count();
            assert_eq!(allowed, 3, "{byte:x}");
            assert_eq!(words_of(&table, key, quota(3)).len(), 1);
        }
    }

    /// The announcement that a process leaves if it is killed before it confirms.
    #[test]
    fn an_abandoned_announcement_is_completed_by_the_same_key_and_reclaimed_by_others() {
        let table = table(8);
        let key = table.hash(b"a");
        let id = key.bucket_id(quota(3));
        let fingerprint = id.fingerprint;
        let [_, second] = table.candidate_lines(fingerprint);
        second.slots[LINE_SLOTS - 1].store(Word::pending(fingerprint, 12345));
        second.slots[0].store(Word::pending(fingerprint, 12346));
        assert!(table.charge(key, quota(3), 1, &mut table.reading()).is_allowed());
        let words = words_of(&table, key, quota(3));
        assert_eq!(words.len(), 1);
        assert!(words[0].tat().is_some());
        assert_eq!(second.slots[0].load(), words[0], "the lower announcement was confirmed");

        // Eight others of no key at all, long dead (ticket 0 is from the first millisecond).
        let full = self::table(8);
        for slot in full.region.lines().iter().flat_map(|line| &line.slots) {
            slot.store(Word::pending(100, 0));
        }
        assert!(full.charge(full.hash(b"b"), quota(3), 1, &mut full.reading()).is_allowed());
        assert_eq!(full.evictions(), Evictions::default());
    }

    /// Four threads, and enough keys for these few slots that buckets are opened and reclaimed all
    /// the time.
    #[test]
    fn under_constant_reclaiming_each_key_keeps_its_bound_and_one_bucket() {
        const KEYS: usize = 24;
        const BURST: u32 = 3;
        const INTERVAL: Nanos = Nanos(50_000);
        let table = table(64);
        let keys: Vec<_> = (0..KEYS).map(|n| table.hash(&n.to_ne_bytes())).collect();
        let start = table.now();
        let hammer = |mut random: u32| {
            let mut allowed = [0_u64; KEYS];
            for _ in 0..1_000_000 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let key = (random >> 16) as usize % KEYS;
                let mut now = table.reading();
                allowed[key] += u64::from(
                    table.charge(keys[key], every(INTERVAL, BURST), 1, &mut now).is_allowed(),
                );
            }
            allowed
        };
        let allowed = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=4).map(|seed| scope.spawn(move || hammer(seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let elapsed = table.now().saturating_since(start);
        let forgiven =
            table.evictions().forgiven.div_ceil(INTERVAL) + table.evictions().evicted_live;
        for (number, key) in keys.iter().enumerate() {
            let allowed: u64 = allowed.iter().map(|thread| thread[number]).sum();
            let bound = u64::from(BURST) + elapsed.0 / INTERVAL.0 + forgiven;
            assert!(allowed <= bound, "key {number}: {allowed} allowed, {bound} would be right");
            assert!(allowed > 0);
            let words = words_of(&table, *key, every(INTERVAL, BURST));
            assert!(words.len() <= 1, "{words:?}");
        }
    }
}
