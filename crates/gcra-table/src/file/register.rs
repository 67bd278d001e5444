//! Which quotas a limit has had. The header keeps them, so that a process that starts with another
//! quota than the one before it finds what its keys owe.
//!
//! A limit has one entry for each quota, with the time when it got it last: for the one that it
//! has, and at most [`MOST_BEFORE`] others. An entry stays until its place is needed for another.
//! No decision depends on a missing entry: then a debt is forgiven when the quota changes. But a
//! command that looks for all that a key owes must know that entries are missing, so one entry
//! says that.

use core::sync::atomic::AtomicU64;
use std::collections::{BTreeSet, HashMap, HashSet};

use crate::file::checked::{Checked, Checksum};
use crate::hash::SipHasher;
use crate::key::limit_id;
use crate::quota::Quota;
use crate::time::{Nanos, Time};

/// How many entries the header has space for.
pub(crate) const ENTRIES: usize = 1024;

/// How many limits of its configuration a process should [register](Register::put_in_force).
pub const MAX_REGISTERED: usize = ENTRIES / 2;

/// How many quotas are kept that a limit had before, without those of overrides. A limit whose
/// quota changes again and again does not push out what other limits had.
const MOST_BEFORE: usize = 8;

/// How often an entry is written again if another process wrote to the same place.
const ATTEMPTS: usize = 8;

/// A quota of a limit, and since when: see the fields of [`Registered`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    /// Limit; emission interval; burst (and 2^32 for an override); how far the cap on the debt is
    /// above the drain time; since when.
    words: Checked<5>,
    _reserved: [AtomicU64; 2],
}

const _: () = assert!(size_of::<Entry>() == 64);

/// How much later than ours the clock reading of another process may be.
const CLOCK_SLACK: Nanos = Nanos::from_secs(10);

/// Marks the burst of an override's quota.
const OVERRIDE: u64 = 1 << 32;

/// A quota that a limit has, or has had.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Registered {
    /// The limit's [id](crate::limit_id), or 0.
    pub limit: u64,
    /// Whether this is the quota of an override: of some of the keys under the limit. A limit may
    /// have any number of these at the same time.
    pub is_override: bool,
    /// The quota, without its [longest delay](Quota::with_max_delay): the register keeps what
    /// tells the buckets apart.
    pub quota: Quota,
    /// Since when.
    pub since: Time,
}

impl Registered {
    fn to_words(self) -> [u64; 5] {
        let mark = if self.is_override { OVERRIDE } else { 0 };
        [
            self.limit,
            self.quota.emission_interval().0,
            u64::from(self.quota.burst()) | mark,
            self.quota.most_owed().saturating_sub(self.quota.drain_time()).0,
            self.since.0,
        ]
    }

    fn from_words([limit, interval, burst, beyond_drain, since]: [u64; 5]) -> Option<Self> {
        let cells = u32::try_from(burst & !OVERRIDE).ok()?;
        let quota = Quota::new(Nanos(interval), cells).ok()?;
        let most_owed = quota.drain_time().saturating_add(Nanos(beyond_drain));
        let quota = quota.with_most_owed(most_owed).ok()?;
        Some(Self { limit, is_override: burst & OVERRIDE != 0, quota, since: Time(since) })
    }
}

/// The register of a table, as it was when it was read, with what was written to it since. Many
/// limits are looked up and put in force with one reading of the header.
#[derive(Debug)]
pub struct Register<'a> {
    entries: &'a [Entry],
    checksum: Checksum,
    now: Time,
    /// The content of each entry.
    known: Vec<Option<Registered>>,
    /// The entries of each limit, without those of overrides.
    of_limits: HashMap<u64, Vec<usize>>,
    /// The quotas of overrides, each with its limit.
    overrides: HashSet<(u64, Quota)>,
    /// The entries, that first whose place is taken first.
    order: BTreeSet<(Rank, Time, usize)>,
    /// By what each entry is found in that order.
    ranks: Vec<(Rank, Time)>,
}

/// How soon the place of an entry is taken for another one.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Rank {
    /// It holds nothing.
    Free,
    /// Its quota is no longer in force.
    Earlier,
    /// Its writer was killed, or is writing now.
    BeingWritten,
    InForce,
    /// It says that quotas are missing.
    Note,
}

impl<'a> Register<'a> {
    pub(crate) fn new(entries: &'a [Entry], hasher: SipHasher, now: Time) -> Self {
        let checksum = Checksum::new(hasher, b"gcra-table register");
        let ranks = vec![(Rank::Free, Time::ZERO); entries.len()];
        let order = ranks.iter().enumerate().map(|(place, (rank, since))| (*rank, *since, place));
        let mut register = Self {
            entries,
            checksum,
            now,
            known: vec![None; entries.len()],
            of_limits: HashMap::new(),
            overrides: HashSet::new(),
            order: order.collect(),
            ranks,
        };
        for place in 0..entries.len() {
            register.know(place, register.read(place));
        }
        register
    }

    /// All quotas that are registered, in no particular order. Damaged entries are left out.
    pub fn all(&self) -> impl Iterator<Item = Registered> {
        self.known.iter().flatten().copied()
    }

    /// Writes down that the limit with this [id](crate::limit_id) has this quota from now on,
    /// unless it has it already, and returns the others that it had before in this table: the
    /// earliest first, each with the time when it had it last. Debts under those can be [carried
    /// over](Quota::carry_over).
    ///
    /// There is space for [`MAX_REGISTERED`] limits and as many earlier quotas, eight for each
    /// limit. If there are more, the earliest are forgotten.
    pub fn put_in_force(&mut self, limit: u64, quota: Quota) -> Vec<(Quota, Time)> {
        let quota = quota.without_delay();
        let history = self.history(limit);
        if history.last().is_none_or(|(current, _)| *current != quota) {
            self.write(Registered { limit, is_override: false, quota, since: self.now });
        }
        earlier(history, quota, self.now)
    }

    /// The quotas that [`put_in_force`](Self::put_in_force) would return. Writes nothing.
    pub fn before(&self, limit: u64, quota: Quota) -> Vec<(Quota, Time)> {
        earlier(self.history(limit), quota.without_delay(), self.now)
    }

    /// Writes down that an override of a limit, for some of its keys, has this quota.
    pub fn add_override(&mut self, limit: u64, quota: Quota) {
        let quota = quota.without_delay();
        if !self.overrides.contains(&(limit, quota)) {
            self.write(Registered { limit, is_override: true, quota, since: self.now });
        }
    }

    /// Writes down that messages say this quota for a limit, if there is space beside what is in
    /// force. Returns whether it is written down. If it is not, [`has_all_said`] is false for the
    /// limit from now on.
    ///
    /// [`has_all_said`]: Self::has_all_said
    pub(crate) fn add_said(&mut self, limit: u64, quota: Quota) -> bool {
        let said = (limit, quota.without_delay());
        if !self.overrides.contains(&said) && self.has_space() {
            self.add_override(limit, quota);
        }
        let done = self.overrides.contains(&said);
        if !done && let Some(mark) = mark_of_missing() {
            self.add_override(missing_id(limit), mark);
        }
        done
    }

    /// Whether each quota is written down that messages have said for this limit.
    pub(crate) fn has_all_said(&self, limit: u64) -> bool {
        let id = missing_id(limit);
        !self.all().any(|entry| entry.limit == id)
    }

    /// Writes down that a quota is missing, under which a key may owe something for so long from
    /// now on.
    pub(crate) fn note_missing(&mut self, longest: Nanos) {
        // One entry says it for all.
        let left = self.missing_until().unwrap_or_default().saturating_since(self.now);
        if let Ok(quota) = Quota::new(longest.max(left).max(Nanos(1)), 1) {
            let limit = pushed_out_id();
            self.write(Registered { limit, is_override: false, quota, since: self.now });
        }
    }

    /// Until when a key may owe something under a quota that was pushed out of this register, or
    /// was noted as [missing](Self::note_missing). `None` if nothing was ever missing.
    pub(crate) fn missing_until(&self) -> Option<Time> {
        let notes = self.of_limit(pushed_out_id());
        notes.map(|(_, note)| note.since.saturating_add(note.quota.drain_time())).max()
    }

    /// Writes down what another register says and this one does not.
    pub(crate) fn take_over(&mut self, other: &Register<'_>) {
        if let Some(until) = other.missing_until() {
            self.note_missing(until.saturating_since(self.now));
        }
        let is_new = |entry: &Registered| {
            entry.limit != pushed_out_id() && !self.all().any(|ours| ours == *entry)
        };
        let mut missing: Vec<_> = other.all().filter(is_new).collect();
        missing.sort_by_key(|entry| entry.since);
        missing.into_iter().for_each(|entry| self.write(entry));
    }

    /// The quotas of a limit, each with the time from which it had it, the earliest first.
    fn history(&self, limit: u64) -> Vec<(Quota, Time)> {
        let ours = self.of_limit(limit);
        let mut history: Vec<_> = ours.map(|(_, entry)| (entry.quota, entry.since)).collect();
        history.sort_by_key(|(_, since)| *since);
        // Processes that start at the same time write the same quota.
        history.dedup_by_key(|(quota, _)| *quota);
        history
    }

    /// The entries of a limit with their places, without those of overrides.
    fn of_limit(&self, limit: u64) -> impl Iterator<Item = (usize, Registered)> {
        let places = self.of_limits.get(&limit).into_iter().flatten();
        places.filter_map(|place| Some((*place, self.known[*place]?)))
    }

    /// The content of an entry now.
    fn read(&self, place: usize) -> Option<Registered> {
        let words = self.entries[place].words.read(self.checksum)?;
        // A time far in the future is damage that the checksum does not show. (Another process may
        // have read its clock after we have read ours.)
        let latest = self.now.saturating_add(CLOCK_SLACK);
        Registered::from_words(words).filter(|registered| registered.since <= latest)
    }

    /// Takes note of what an entry says.
    fn know(&mut self, place: usize, says: Option<Registered>) {
        let said = std::mem::replace(&mut self.known[place], says);
        if let Some(Registered { limit, is_override, quota, .. }) = said {
            if is_override {
                // A quota that two processes have written is written once more.
                self.overrides.remove(&(limit, quota));
            } else if let Some(places) = self.of_limits.get_mut(&limit) {
                places.retain(|other| *other != place);
                self.rank_all(limit);
            }
        }
        match says {
            Some(Registered { limit, is_override: true, quota, .. }) => {
                self.overrides.insert((limit, quota));
            }
            Some(Registered { limit, .. }) => {
                let places = self.of_limits.entry(limit).or_default();
                places.push(place);
                places.sort_unstable();
                self.rank_all(limit);
                return;
            }
            None => {}
        }
        self.rank(place, None);
    }

    /// Ranks the entries of a limit, one of which has changed.
    fn rank_all(&mut self, limit: u64) {
        let places: Vec<_> = self.of_limit(limit).collect();
        let latest = places.iter().map(|(_, entry)| entry.since).max();
        places.iter().for_each(|(place, _)| self.rank(*place, latest));
    }

    /// Ranks an entry whose limit got its quota at `latest`. Most are free, and stay so.
    fn rank(&mut self, place: usize, latest: Option<Time>) {
        let rank = match self.known[place] {
            None if self.entries[place].words.is_being_written() => {
                (Rank::BeingWritten, Time::ZERO)
            }
            None => (Rank::Free, Time::ZERO),
            Some(old) if latest.is_some_and(|latest| latest > old.since) => {
                (Rank::Earlier, old.since)
            }
            Some(old) if old.limit == pushed_out_id() => (Rank::Note, old.since),
            Some(old) => (Rank::InForce, old.since),
        };
        let before = std::mem::replace(&mut self.ranks[place], rank);
        if before != rank {
            self.order.remove(&(before.0, before.1, place));
            self.order.insert((rank.0, rank.1, place));
        }
    }

    fn write(&mut self, new: Registered) {
        // Each attempt that is lost shows what another process has written to one entry.
        for _ in 0..ATTEMPTS + self.entries.len() {
            let Some(place) = self.place_for(new) else { return };
            if self.has_changed(place) {
                self.know(place, self.read(place));
                continue;
            }
            let is_written = self.entries[place].words.write(self.checksum, new.to_words());
            self.know(place, self.read(place));
            if is_written {
                return;
            }
        }
    }

    /// Whether another process has written to an entry meanwhile.
    fn has_changed(&self, place: usize) -> bool {
        self.read(place) != self.known[place]
    }

    /// The place of the entry to write to. If a quota becomes missing by that, this is written
    /// down.
    fn place_for(&mut self, new: Registered) -> Option<usize> {
        if let Some(own) = self.own_place(new) {
            return Some(own);
        }
        let place = self.first_place()?;
        if self.known[place].is_none() || new.limit == pushed_out_id() || self.has_changed(place) {
            return Some(place);
        }
        self.note(place);
        // The first note takes this place itself.
        let place = self.first_place()?;
        if !self.has_changed(place) {
            self.note(place);
        }
        Some(place)
    }

    /// Writes down that the quota of this entry becomes missing, if a key may owe something under
    /// it.
    fn note(&mut self, place: usize) {
        match self.known[place].map(|old| self.may_be_owed_for(old)) {
            None | Some(Nanos(0)) => {}
            Some(longest) => self.note_missing(longest),
        }
    }

    /// How long from now on a key may owe something under a quota: it may be charged now, unless
    /// its limit has got another one.
    fn may_be_owed_for(&self, old: Registered) -> Nanos {
        let later = self.of_limit(old.limit).filter(|(_, entry)| entry.since > old.since);
        let ended = later.map(|(_, entry)| entry.since).min().filter(|_| !old.is_override);
        let until = ended.unwrap_or(self.now).saturating_add(old.quota.most_owed());
        until.saturating_since(self.now)
    }

    /// The place of the entry that one about the same limit takes the place of: that of the same
    /// quota; or the earliest of all, if the limit has as many as it may.
    fn own_place(&self, new: Registered) -> Option<usize> {
        if new.is_override {
            return None;
        }
        let mut ours: Vec<_> = self.of_limit(new.limit).collect();
        ours.sort_by_key(|(_, old)| old.since);
        let is_note = new.limit == pushed_out_id();
        let same = ours.iter().find(|(_, old)| old.quota == new.quota || is_note);
        let earliest = ours.first().filter(|_| ours.len() > MOST_BEFORE);
        same.or(earliest).map(|(place, _)| *place)
    }

    /// The place of the entry for a quota that has none: the earliest of those that are taken
    /// first.
    fn first_place(&self) -> Option<usize> {
        self.order.first().map(|(.., place)| *place)
    }

    /// Whether there are so few quotas in force that one more takes the place of none of them,
    /// and a quarter of the entries is left for earlier ones.
    fn has_space(&self) -> bool {
        let in_force = self.ranks.iter().filter(|(rank, _)| *rank >= Rank::InForce).count();
        in_force < self.entries.len() / 4 * 3
    }
}

/// By which it is found that quotas are missing which messages have said for a limit.
fn missing_id(limit: u64) -> u64 {
    limit_id(&[b"quotas are missing of", &limit.to_le_bytes()])
}

/// By which it is found that quotas of any limit are missing.
fn pushed_out_id() -> u64 {
    limit_id(&[b"quotas were pushed out"])
}

/// The quota of an entry that says no more than that it is there.
fn mark_of_missing() -> Option<Quota> {
    Quota::new(Nanos(1), 1).ok()
}

/// Of the quotas that a limit has had, each with the time from which it had it, those other than
/// `quota`, which it has now, each with the time when it had it last.
fn earlier(mut history: Vec<(Quota, Time)>, quota: Quota, now: Time) -> Vec<(Quota, Time)> {
    if history.last().is_none_or(|(current, _)| *current != quota) {
        history.push((quota, now));
    }
    // A quota that came and went several times counts once, so that it does not push out others;
    // and one that is in force again is not an earlier one.
    let mut earlier: Vec<(Quota, Time)> = Vec::new();
    for pair in history.windows(2) {
        earlier.retain(|(before, _)| *before != pair[0].0);
        earlier.push((pair[0].0, pair[1].1));
    }
    earlier.retain(|(before, _)| *before != quota);
    earlier.drain(..earlier.len().saturating_sub(MOST_BEFORE));
    earlier
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: usize) -> Vec<Entry> {
        (0..count)
            .map(|_| Entry {
                words: Checked::free(),
                _reserved: core::array::from_fn(|_| AtomicU64::new(0)),
            })
            .collect()
    }

    fn quota(burst: u32) -> Quota {
        Quota::new(Nanos(1_000), burst).unwrap()
    }

    fn at(entries: &[Entry], now: u64) -> Register<'_> {
        Register::new(entries, SipHasher::new(b"0123456789abcdef"), Time(now))
    }

    /// The quotas that were put in force before this one, each with the end of it.
    fn put(entries: &[Entry], now: u64, limit: u64, quota: Quota) -> Vec<(Quota, u64)> {
        let foreseen = at(entries, now).before(limit, quota);
        let earlier = at(entries, now).put_in_force(limit, quota);
        assert_eq!(earlier, foreseen);
        earlier.into_iter().map(|(quota, end)| (quota, end.0)).collect()
    }

    #[test]
    fn a_limit_has_a_history() {
        let entries = entries(16);
        assert_eq!(put(&entries, 10, 7, quota(1)), []);
        assert_eq!(put(&entries, 20, 7, quota(1)), [], "nothing has changed");
        assert_eq!(put(&entries, 25, 8, quota(9)), [], "another limit");
        assert_eq!(put(&entries, 30, 7, quota(2)), [(quota(1), 30)]);
        assert_eq!(put(&entries, 40, 7, quota(2)), [(quota(1), 30)], "a second process");
        let capped = quota(2).with_most_owed(quota(2).drain_time() + Nanos(5)).unwrap();
        assert_eq!(put(&entries, 50, 7, capped), [(quota(1), 30), (quota(2), 50)]);
        assert_eq!(put(&entries, 60, 7, quota(1)), [(quota(2), 50), (capped, 60)], "and back");
        for flip in 0..50 {
            put(&entries, 100 + flip, 9, quota(1 + u32::try_from(flip % 2).unwrap()));
        }
        assert_eq!(put(&entries, 200, 9, quota(3)), [(quota(1), 149), (quota(2), 200)]);
        let delaying = capped.with_max_delay(Nanos(5)).unwrap();
        assert_eq!(at(&entries, 60).before(7, delaying), at(&entries, 60).before(7, capped));
        at(&entries, 70).add_override(7, quota(3));
        at(&entries, 80).add_override(7, quota(3));
        let overrides: Vec<_> = at(&entries, 90).all().filter(|entry| entry.is_override).collect();
        assert_eq!(
            overrides,
            [Registered { limit: 7, is_override: true, quota: quota(3), since: Time(70) }]
        );
    }

    #[test]
    fn a_full_register_keeps_what_is_in_force() {
        let entries = entries(4);
        for now in 0..100 {
            put(&entries, now, 7, quota(1 + u32::try_from(now).unwrap()));
        }
        put(&entries, 100, 8, quota(5));
        for now in 101..200 {
            put(&entries, now, 7, quota(1 + u32::try_from(now).unwrap()));
        }
        assert_eq!(put(&entries, 200, 8, quota(6)), [(quota(5), 200)]);
        assert_eq!(put(&entries, 201, 7, quota(1)).last(), Some(&(quota(200), 201)));
    }

    /// Of a limit whose quota changes all the time, only the latest are kept, each once. Those of
    /// other limits stay.
    #[test]
    fn a_limit_pushes_out_nothing_of_others() {
        let entries = entries(32);
        for (limit, burst) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
            put(&entries, 10 * u64::from(burst), limit, quota(burst));
        }
        for now in 100..400 {
            let burst = u32::try_from(now % 13).unwrap() + 1;
            let earlier = put(&entries, now, 7, quota(burst));
            assert_eq!(earlier.len(), usize::try_from(now - 100).unwrap().min(8));
            assert_eq!(earlier.last().map(|last| last.1), (now > 100).then_some(now));
        }
        for limit in [1, 2] {
            assert_eq!(put(&entries, 500, limit, quota(3)), [(quota(1), 20), (quota(2), 500)]);
        }
        for flip in 0..200_u32 {
            put(&entries, 600 + u64::from(flip), 9, quota(1 + flip % 2));
        }
        assert_eq!(put(&entries, 900, 9, quota(3)), [(quota(1), 799), (quota(2), 900)]);
        assert_eq!(at(&entries, 900).all().count(), 3 + 3 + 9 + 3);
    }

    #[test]
    fn what_is_damaged_or_half_written_counts_as_free() {
        let entries = entries(4);
        put(&entries, 10, 7, quota(1));
        for word in 0..5 {
            entries[0].words.flip(word);
            assert_eq!(at(&entries, 20).all().count(), 0, "word {word}");
            entries[0].words.flip(word);
        }
        assert_eq!(at(&entries, 20).all().count(), 1);
        put(&entries, CLOCK_SLACK.0 + 20, 8, quota(1));
        assert_eq!(at(&entries, 20).all().count(), 2);
        assert_eq!(at(&entries, 19).all().count(), 1, "from the future");
        entries[0].words.break_off();
        assert_eq!(put(&entries, 19, 7, quota(2)), []);
        assert_eq!(at(&entries, 19).all().count(), 1);
    }

    #[test]
    fn what_messages_say_takes_no_place_of_what_is_in_force() {
        let entries = entries(16);
        for limit in 0..8 {
            assert_eq!(put(&entries, 10 + limit, limit, quota(1)), []);
        }
        let delaying = quota(9).with_max_delay(Nanos(5)).unwrap();
        for _ in 0..2 {
            for said in [quota(2), quota(3), quota(4), delaying] {
                assert!(at(&entries, 30).add_said(7, said), "{said:?}");
            }
        }
        assert!(at(&entries, 30).has_all_said(7));
        assert!(!at(&entries, 31).add_said(7, quota(5)), "a quarter is left for earlier ones");
        assert!(!at(&entries, 31).add_said(7, quota(6)));
        assert!(at(&entries, 31).add_said(7, quota(2)), "it is known");
        assert!(!at(&entries, 32).has_all_said(7));
        assert!(at(&entries, 32).has_all_said(6));
        let next = self::entries(16);
        at(&next, 33).take_over(&at(&entries, 33));
        assert!(!at(&next, 33).has_all_said(7), "nor after a resize");
        let known = at(&next, 33).all().filter(|it| it.limit == 7 && it.is_override).count();
        assert_eq!(known, 4);
        assert_eq!(at(&next, 33).all().filter(|it| !it.is_override).count(), 8);
    }

    #[test]
    fn a_register_says_that_quotas_were_pushed_out() {
        let entries = entries(8);
        let until = |now: u64| at(&entries, now).missing_until().map(|until| until.0);
        put(&entries, 10, 100, quota(50));
        for limit in 0..7 {
            put(&entries, 20 + limit, limit, quota(5));
        }
        assert_eq!(until(30), None, "full, and nothing is missing");
        for now in 31..60 {
            put(&entries, now, 3, quota(5));
        }
        assert_eq!(until(60), None, "nothing has changed");
        // The note takes the place of limit 100, of which a key can owe 50 cells of 1000 ns, and
        // the override that of limit 0.
        at(&entries, 60).add_override(3, quota(2));
        assert_eq!(until(60), Some(60 + 50_000));
        assert_eq!(at(&entries, 60).all().count(), 8);
        for burst in 3..60 {
            at(&entries, 60 + u64::from(burst)).add_override(4, quota(burst));
        }
        assert_eq!(until(200), Some(119 + 52_000), "the override with 52 cells was pushed out");
        assert_eq!(at(&entries, 200).all().count(), 8);
        let next = self::entries(8);
        for _ in 0..2 {
            at(&next, 300).take_over(&at(&entries, 300));
            assert_eq!(at(&next, 300).missing_until(), Some(Time(119 + 52_000)), "after a resize");
        }
        at(&next, 400).note_missing(Nanos(7));
        assert_eq!(at(&next, 400).missing_until(), Some(Time(119 + 52_000)));
        at(&next, 100_000).note_missing(Nanos(7));
        assert_eq!(at(&next, 100_000).missing_until(), Some(Time(100_007)));
    }

    #[test]
    fn a_quota_that_nobody_can_owe_anything_by_is_not_missing() {
        let entries = entries(4);
        put(&entries, 10, 1, quota(5));
        put(&entries, 20, 1, quota(6));
        put(&entries, 20, 2, quota(5));
        put(&entries, 20, 3, quota(5));
        // The 5 cells of limit 1 take 5000 ns after it got another quota.
        put(&entries, 5_020, 2, quota(6));
        assert_eq!(at(&entries, 5_020).missing_until(), None);
        assert_eq!(at(&entries, 5_020).all().count(), 4);
        at(&entries, 5_020).note_missing(Nanos(1));
        assert_eq!(at(&entries, 5_020).missing_until(), Some(Time(5_021)));
        // The note took the place of the 5 cells of limit 2. The 6 of limit 1 are in force.
        assert_eq!(at(&entries, 5_020).all().count(), 4);
        put(&entries, 6_000, 1, quota(7));
        assert_eq!(at(&entries, 6_000).missing_until(), Some(Time(6_000 + 6_000)));
    }

    /// Those of a limit whose quota changes again and again are not looked for by anybody.
    #[test]
    fn the_ninth_earlier_quota_of_a_limit_is_not_missing() {
        let entries = entries(32);
        for now in 100..200 {
            put(&entries, now, 7, quota(u32::try_from(now).unwrap()));
        }
        assert_eq!(at(&entries, 300).missing_until(), None);
        at(&entries, 300).note_missing(Nanos(7));
        assert_eq!(at(&entries, 301).missing_until(), Some(Time(307)));
    }

    #[test]
    fn a_register_takes_over_another() {
        let (old, new) = (entries(8), entries(8));
        put(&old, 10, 7, quota(1));
        put(&new, 20, 7, quota(2));
        for _ in 0..2 {
            at(&new, 30).take_over(&at(&old, 30));
            assert_eq!(at(&new, 30).all().count(), 2);
        }
        assert_eq!(put(&new, 40, 7, quota(3)), [(quota(1), 20), (quota(2), 40)]);
    }

    /// The content that was read once is kept up to date by what is written.
    #[test]
    fn one_reading_is_as_good_as_one_for_each_limit() {
        let (one, each) = (entries(24), entries(24));
        for now in 1..40_u64 {
            let mut register = at(&one, now * 1_000);
            for step in 0..30 {
                let (limit, kind) = ((now * 7 + step * 5) % 11, (now + step * step) % 4);
                let quota = quota(1 + u32::try_from((now * step) % 6).unwrap());
                let again = &mut at(&each, now * 1_000);
                match kind {
                    0 => {
                        register.add_override(limit, quota);
                        again.add_override(limit, quota);
                    }
                    1 => assert_eq!(register.add_said(limit, quota), again.add_said(limit, quota)),
                    _ => {
                        let before = register.before(limit, quota);
                        assert_eq!(before, again.before(limit, quota));
                        assert_eq!(register.put_in_force(limit, quota), before);
                        assert_eq!(again.put_in_force(limit, quota), before);
                    }
                }
                assert_eq!(register.missing_until(), again.missing_until());
            }
            assert!(register.all().eq(at(&one, now * 1_000).all()), "as it is written");
            assert!(register.all().eq(at(&each, now * 1_000).all()));
        }
        assert!(at(&one, 40_000).missing_until().is_some(), "it was full");
    }

    #[test]
    fn what_another_process_has_written_meanwhile_stays() {
        let entries = entries(8);
        let mut ours = at(&entries, 10);
        put(&entries, 10, 7, quota(1));
        put(&entries, 10, 8, quota(1));
        assert_eq!(ours.put_in_force(9, quota(1)), []);
        assert_eq!(ours.put_in_force(7, quota(2)), [(quota(1), Time(10))]);
        assert_eq!(at(&entries, 10).all().count(), 4);
    }

    #[test]
    fn processes_that_start_together_write_the_same() {
        let entries = entries(64);
        std::thread::scope(|scope| {
            for now in 10..18 {
                let entries = &entries;
                scope.spawn(move || {
                    let mut register = at(entries, now);
                    for limit in 0..4 {
                        let _ = register.put_in_force(limit, quota(1));
                    }
                });
            }
        });
        assert_eq!(at(&entries, 20).missing_until(), None);
        for limit in 0..4 {
            assert_eq!(put(&entries, 20, limit, quota(2)), [(quota(1), 20)]);
        }
    }
}
