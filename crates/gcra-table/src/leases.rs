//! [`Leases`]: the cells that a store has lent to this host, in a file beside the table that all
//! agents of the host share.
//!
//! The page LEASES.md of the repository describes every byte of the file, and says why the limit
//! is exact. The protocol between hosts and store is in the crate `gcra-lease`; what its
//! [`Holding`] does is done here by one exchange each.

// ADR 44: What cannot be lent is charged in the store.

mod file;
#[cfg(all(test, gcra_model))]
mod model;
mod opening;
pub(crate) mod set;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use gcra_lease::{
    AskReply, Base, Demand, Holding, HostId, HostTime, Look, MOST_CELLS, Micros, Packed, Sent,
    SharedLimit, Step, Wish, next_step,
};

use crate::cpu::prefetch;
use crate::file::open::Opened;
use crate::file::open_error::{OpenError, OpenErrorKind};
use crate::file::region::Region;
use crate::file::{FileId, Role};
use crate::key::KeyHash;
use crate::leases::file::{Found, HEADER_BYTES, LeasesFile, LeasesHeader, Owner};
use crate::leases::opening::Use;
use crate::leases::set::{Memory, Place, SET_ENTRIES, Set};
use crate::quota::scramble;
use crate::sentences::sentences;
use crate::slots::Slots;
use crate::table::{Origin, Table};
use crate::time::{Nanos, Time};

pub use file::{Replaced, StoreId};
pub use set::Spent;

/// The holdings of this host for many keys, shared by every process that has the file open.
///
/// Everything takes `&self`, and nothing locks or waits.
#[derive(Debug)]
pub struct Leases {
    region: Region<HEADER_BYTES>,
    host: HostId,
    base: Base,
    /// The file that it is, and what its header says.
    file: Option<(FileId, LeasesHeader)>,
    /// Where it was; empty if these are in memory.
    path: PathBuf,
    replaced: Option<Replaced>,
    is_displaced: AtomicBool,
}

/// A key under the numbers of one limit, as leases find it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LeaseKey(u64);

/// The numbers of a limit, by which its leases differ from those of other numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeaseNumbers(u64);

impl LeaseNumbers {
    /// These numbers: all that the store tells its records apart by, and nothing else. So what is
    /// lent from one record belongs to one lease.
    pub fn new(numbers: &[u64]) -> Self {
        Self(numbers.iter().fold(0, |salt, number| scramble(salt ^ number)))
    }
}

impl LeaseKey {
    /// The key with this hash under these numbers. Keys under different numbers have nothing to do
    /// with each other.
    #[inline]
    pub fn new(key: KeyHash, numbers: LeaseNumbers) -> Self {
        Self((key.0 ^ numbers.0).max(1))
    }
}

/// The need of a request under one limit, for [`Leases::decide`].
#[derive(Clone, Copy, Debug)]
pub struct LeaseNeed {
    /// Its key.
    pub key: LeaseKey,
    /// Its cost in cells.
    pub cells: u32,
    /// The burst of the limit.
    pub burst: u32,
}

/// The entries of [`Leases`], by their content. They are counted one after another, so in use the
/// numbers are exact to a few entries.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct LeaseCounts {
    /// Entries with cells that may be spent, or with an ask under way.
    pub in_use: u64,
    /// Entries of keys that the store has told to come back later.
    pub blocked: u64,
    /// Entries that any key may take, and nothing is lost: they were never used, or hold nothing
    /// and have nothing to report.
    pub free: u64,
    /// Entries with cells to report that are not in use, or with an ask that was lost.
    pub over: u64,
    /// Entries that were announced and not used yet.
    pub announced: u64,
    /// Cells that may be spent.
    pub held: u64,
    /// Cells whose spending no reply has confirmed.
    pub unreported: u64,
}

sentences! {
    /// A fault of leases: see [`Leases::check`]. An entry is the number of its place.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[non_exhaustive]
    pub enum LeaseFault {
        Damaged { entry: usize } => "entry {entry}: it is damaged";
        Twice { entry: usize, other: usize }
            => "entry {entry}: a second entry of the key in entry {other}";
    }
}

impl From<Time> for HostTime {
    /// The time of a host is that of its table, in whole microseconds.
    #[inline]
    fn from(time: Time) -> Self {
        Self(time.0 / 1_000)
    }
}

impl From<Micros> for Nanos {
    /// At most [`u64::MAX`] nanoseconds.
    #[inline]
    fn from(micros: Micros) -> Self {
        Self(micros.0.saturating_mul(1_000))
    }
}

impl Leases {
    /// Opens the leases beside a table that `store` has lent, or makes them with `slots` slots of
    /// 16 bytes: an entry takes two. Leases that exist may have any number. Those of a table in
    /// memory are in memory.
    ///
    /// Leases that cannot be used are replaced. They belong to another store, to another table, or
    /// to another boot of the machine. Or they have another layout, or are copies, damaged, or
    /// older than 49 days.
    ///
    /// # Errors
    ///
    /// The file is not one of leases, belongs to another user or could be changed by one, or could
    /// not be made.
    pub fn open_or_create(
        table: &Table,
        store: StoreId,
        slots: Slots,
    ) -> Result<(Self, Opened), OpenError> {
        let Some(owner) = Self::owner(table) else {
            let leases = Self::in_memory(slots, HostTime::from(table.now()));
            return leases.map(|leases| (leases, Opened::Created)).map_err(not_in_memory);
        };
        let (file, opened) = file::open_or_create(owner, store, slots)?;
        Ok((Self::map(owner, &file)?, opened))
    }

    /// Opens the leases beside a table to look at them, if there are any, whichever store has lent
    /// them. Root may do so with those of any user.
    ///
    /// # Errors
    ///
    /// As for [`open_or_create`](Self::open_or_create).
    pub fn inspect(table: &Table) -> Result<Option<Self>, OpenError> {
        let Some(owner) = Self::owner(table) else {
            return Ok(None);
        };
        match file::inspect(owner, Role::Inspector)? {
            Found::Leases(file) => Self::map(owner, &file).map(Some),
            Found::Nothing | Found::Others(_) => Ok(None),
        }
    }

    /// The leases that this process has to use from now on, if they are not these. Others have to
    /// be used if the file has lost its name, or if its time is nearly over. Others also have to
    /// be used if the file belongs to another table than `table`, which the process uses now.
    /// `slots` is for a file that has to be made.
    ///
    /// To be called about once a second. Cells held in these leases are lost with them: asks that
    /// are under way may be ended with them, and new ones are begun with the others.
    ///
    /// # Errors
    ///
    /// As for [`open_or_create`](Self::open_or_create). These leases can be used until their time
    /// is over.
    pub fn successor(&self, table: &Table, slots: Slots) -> Result<Option<Self>, OpenError> {
        let (Some((id, header)), Some(owner)) = (&self.file, Self::owner(table)) else {
            let is_ending = file::is_ending(self.base, HostTime::from(table.now()));
            let next = is_ending.then(|| Self::in_memory(slots, HostTime::from(table.now())));
            return next.transpose().map_err(not_in_memory);
        };
        let owner = Owner { store: Some(header.store), ..owner };
        let path = file::path_beside(owner.path);
        let fits = header.belongs_to(owner.header) && !file::is_ending(self.base, owner.now());
        self.is_displaced.store(false, Ordering::Relaxed);
        if fits && FileId::at(&path).is_ok_and(|found| found == *id) {
            return Ok(None);
        }
        // A file of another version, or of another store, which took the place of this one, stays
        // there: its processes would replace ours in turn.
        // (A copy is nobody's.)
        match file::inspect(owner, Role::Decider)? {
            Found::Others(why) if fits && why != Some(Replaced::Copied) => {
                let is_of_other_store = why == Some(Replaced::OtherStore);
                self.is_displaced.store(is_of_other_store, Ordering::Relaxed);
                return Ok(None);
            }
            Found::Others(_) | Found::Leases(_) | Found::Nothing => {}
        }
        Self::open_or_create(table, header.store, slots).map(|(leases, _)| Some(leases))
    }

    /// Where the file was when it was opened; empty if these leases are in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a file of another store had taken the name of this one at the latest call of
    /// [`successor`](Self::successor).
    pub fn is_displaced(&self) -> bool {
        self.is_displaced.load(Ordering::Relaxed)
    }

    /// The fault of the file in whose place this one was made, if that is not what happens in the
    /// course of things.
    pub const fn replaced(&self) -> Option<Replaced> {
        self.replaced
    }

    fn owner(table: &Table) -> Option<Owner<'_>> {
        let Origin { path, header, .. } = table.file.as_ref()?;
        Some(Owner { path, header, clock: &table.clock, store: None })
    }

    fn map(owner: Owner<'_>, file: &LeasesFile) -> Result<Self, OpenError> {
        let LeasesFile { file, id, header, slots, replaced } = file;
        let region = Region::map(file, *slots).map_err(|source| {
            let kind = OpenErrorKind::Io { doing: "map it", source };
            OpenError::new(&file::path_beside(owner.path), kind)
        })?;
        Ok(Self {
            region,
            host: header.host,
            base: header.base,
            file: Some((*id, *header)),
            path: file::path_beside(owner.path).to_path_buf(),
            replaced: *replaced,
            is_displaced: AtomicBool::new(false),
        })
    }

    /// Leases of this process alone. `now` is the time of their table.
    ///
    /// # Errors
    ///
    /// There is not enough memory, or no randomness for the id of the host.
    pub fn in_memory(slots: Slots, now: HostTime) -> io::Result<Self> {
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
        let host = HostId(u64::from_ne_bytes(id));
        Ok(Self {
            region: Region::in_memory(slots)?,
            host,
            base: Base(now),
            file: None,
            path: PathBuf::new(),
            replaced: None,
            is_displaced: AtomicBool::new(false),
        })
    }

    /// The host that these leases make. Processes that use another file are another host.
    pub const fn host(&self) -> HostId {
        self.host
    }

    /// Starts to fetch the memory that [`spend`](Self::spend) will need for this key.
    #[inline]
    pub fn prefetch(&self, key: LeaseKey) {
        prefetch(self.set(key));
    }

    /// The next step of a request of `cells`: see [`Holding::look`].
    #[inline]
    pub fn look(&self, key: LeaseKey, now: HostTime, cells: u32, patience: Micros) -> Look {
        self.place(key).look(now, cells, patience)
    }

    /// Spends `cells`, of which there is at least one, if they are here, and says what else the
    /// request is to do if they are not: [`spend`](Self::spend) and [`look`](Self::look) in one.
    ///
    /// # Errors
    ///
    /// The cells are not here.
    #[inline]
    pub fn take(
        &self,
        key: LeaseKey,
        now: HostTime,
        cells: u32,
        patience: Micros,
    ) -> Result<Spent, Look> {
        self.place(key).take(now, cells, patience)
    }

    /// Spends `cells`, all or none: see [`Holding::spend`]. `None`: they are not here.
    ///
    /// `now` is a reading of the clock that was taken after the request came. A cell counts as
    /// spent at a moment between that reading and the end of this call.
    #[inline]
    #[must_use = "the request is allowed only if the cells were spent"]
    pub fn spend(&self, key: LeaseKey, now: HostTime, cells: u32) -> Option<Spent> {
        self.place(key).spend(self.base.tick(now), cells)
    }

    /// Takes back what [`spend`](Self::spend) has just spent, for example because cells were
    /// missing under another limit. False if it is too late: perhaps they were reported already,
    /// and they stay spent.
    pub fn unspend(&self, key: LeaseKey, spent: Spent) -> bool {
        self.place(key).unspend(spent)
    }

    /// Decides about a request under several limits, or goes one step further with it: see
    /// [`gcra_lease::next_step`]. After [`Step::Allow`], the cells are spent under all limits.
    ///
    /// If another process spends cells meanwhile, what was spent under the other limits is taken
    /// back, and it begins again. Cells that cannot be taken back stay spent.
    #[must_use]
    pub fn decide(&self, now: HostTime, needs: &[LeaseNeed], patience: Micros) -> Step {
        const ATTEMPTS: u32 = 16;
        let costs = needs.iter().map(|need| (need.cells, need.burst.min(MOST_CELLS)));
        let tick = self.base.tick(now);
        for _ in 0..ATTEMPTS {
            let step = next_step(costs.clone(), |limit| {
                let LeaseNeed { key, cells, .. } = needs[limit];
                match self.look(key, now, cells, patience) {
                    Look::Lacking => (Look::Lacking, self.place(key).holding(now).held(now)),
                    found => (found, 0),
                }
            });
            if step != Step::Allow || self.spend_all(tick, needs) {
                return step;
            }
        }
        // Others have spent the cells each time: the request may ask for more.
        Step::Ask { limit: 0, least: needs.first().map_or(0, |need| need.cells) }
    }

    fn spend_all(&self, tick: gcra_lease::Tick, needs: &[LeaseNeed]) -> bool {
        let Some((first, others)) = needs.split_first() else {
            return true;
        };
        let place = self.place(first.key);
        if first.cells == 0 {
            return self.spend_all(tick, others);
        }
        let Some(spent) = place.spend(tick, first.cells) else {
            return false;
        };
        let all = self.spend_all(tick, others);
        if !all {
            place.unspend(spent);
        }
        all
    }

    /// Notes cells that are to be charged and were not lent: see [`Holding::charge`]. False if
    /// nothing is known about the key, and they are lost.
    pub fn charge(&self, key: LeaseKey, now: HostTime, cells: u32) -> bool {
        self.place(key).charge(now, cells)
    }

    /// The wish of the next ask: see [`Demand::wish`]. The demand is estimated from the cells that
    /// this host has spent.
    pub fn wish(
        &self,
        key: LeaseKey,
        limit: &SharedLimit,
        now: HostTime,
        waiting: u32,
        least: u32,
        round_trip: Micros,
    ) -> Wish {
        self.demand(key, now).wish(limit, now, waiting, least, round_trip)
    }

    /// Begins an ask: see [`Holding::ask`]. It takes the place of one that was sent `patience` ago
    /// or earlier. `None`: a later one is under way (or, in a set of entries that others take all
    /// the time, none could be begun), and the request may [`look`](Self::look) again.
    ///
    /// The caller sends the ask to the store, and keeps it for [`reply`](Self::reply) or
    /// [`void`](Self::void).
    #[must_use = "an ask that is not sent keeps others waiting"]
    pub fn ask(
        &self,
        key: LeaseKey,
        limit: &SharedLimit,
        now: HostTime,
        patience: Micros,
        wish: Wish,
    ) -> Option<Sent> {
        let Memory { host, base, .. } = self.memory();
        self.place(key).begin(now, patience, true, |entry, number| {
            Some(entry.ask(base, limit, now, host, number, wish))
        })
    }

    /// Begins an ask that gives cells back: see [`Holding::give_back`]. `None`: none are held, or
    /// an ask is under way.
    #[must_use = "cells that are given back are lost if the ask is not sent"]
    pub fn give_back(
        &self,
        key: LeaseKey,
        limit: &SharedLimit,
        now: HostTime,
        patience: Micros,
        cells: u32,
    ) -> Option<Sent> {
        let Memory { host, base, .. } = self.memory();
        self.place(key).begin(now, patience, false, |entry, number| {
            let holds = entry.word.held(base.tick(now)) > 0;
            holds.then(|| entry.give_back(base, limit, now, host, number, cells))
        })
    }

    /// Takes a reply: see [`Holding::reply`]. False if it is too late: another ask has taken the
    /// place of this one, or the entry is another key's by now.
    pub fn reply(&self, key: LeaseKey, now: HostTime, sent: &Sent, reply: &AskReply) -> bool {
        self.place(key).reply(now, sent, reply)
    }

    /// Ends an ask that has failed, or whose reply is void: see [`Holding::void`].
    pub fn void(&self, key: LeaseKey, now: HostTime, sent: &Sent) -> bool {
        self.place(key).void(sent, now)
    }

    /// The holding for a key now; [`Holding::new`] if nothing is known. It says when cells are
    /// over that were asked for, and what is to be reported.
    pub fn holding(&self, key: LeaseKey, now: HostTime) -> Holding {
        self.place(key).holding(now)
    }

    /// The demand of this host for a key, if it is known.
    pub fn demand(&self, key: LeaseKey, now: HostTime) -> Demand {
        self.place(key).demand(now)
    }

    /// The number of entries, one for each key.
    pub fn entries(&self) -> u64 {
        (self.region.sets().len() * SET_ENTRIES) as u64
    }

    /// The memory that they take in bytes, the header included: the length of the file.
    pub fn bytes(&self) -> u64 {
        self.region.len() as u64
    }

    /// How many asks were begun, of all processes, at most.
    pub fn asks(&self) -> u64 {
        self.region.leases_shared().newest().0
    }

    /// How often an entry was taken for another key while its own still needed it: there are too
    /// few entries. The next ask of a key whose entry was taken costs it what it held.
    pub fn evictions(&self) -> u64 {
        self.region.leases_shared().evicted.load(Ordering::Relaxed)
    }

    /// Counts what the entries hold. An ask that was sent `patience` ago or earlier counts as
    /// lost.
    pub fn counts(&self, now: HostTime, patience: Micros) -> LeaseCounts {
        let mut counts = LeaseCounts::default();
        for set in self.region.sets() {
            for entry in Place::new(set, 0, self.memory()).entries() {
                *match Use::of(&entry, self.base, now, patience) {
                    Use::Never | Use::Settled => &mut counts.free,
                    Use::Blocked => &mut counts.blocked,
                    Use::Over => &mut counts.over,
                    Use::Announced => &mut counts.announced,
                    Use::Busy => &mut counts.in_use,
                } += 1;
                counts.held += u64::from(entry.word.held(self.base.tick(now)));
                counts.unreported += u64::from(entry.word.unreported());
            }
        }
        counts
    }

    /// Verifies what must hold at every moment, in leases that may be in use: a key has one entry
    /// at most, and none says what no sequence of steps leads to.
    ///
    /// Damaged entries may allow too much, until the cells that they say are over.
    pub fn check(&self, now: HostTime) -> Vec<LeaseFault> {
        let mut faults = Vec::new();
        for (number, set) in self.region.sets().iter().enumerate() {
            let place = Place::new(set, 0, self.memory());
            let entries = place.entries();
            for (position, entry) in entries.iter().enumerate() {
                let number = |position| number * SET_ENTRIES + position;
                if entry.word.is_damaged(self.base.tick(now)) {
                    faults.push(LeaseFault::Damaged { entry: number(position) });
                }
                let is_first = |other: &usize| {
                    let is_same = |entries: &[Packed]| {
                        let [one, two] = [entries[*other].word, entries[position].word];
                        let is_used = one.fingerprint() != 0;
                        is_used
                            && one.fingerprint() == two.fingerprint()
                            && !one.is_announcement()
                            && !two.is_announcement()
                    };
                    // They were loaded one after the other, and an entry may have moved.
                    is_same(&entries) && is_same(&place.entries()) && is_same(&place.entries())
                };
                if let Some(other) = (0..position).find(is_first) {
                    let (entry, other) = (number(position), number(other));
                    faults.push(LeaseFault::Twice { entry, other });
                }
            }
        }
        faults
    }

    /// Notes how many hosts have a lease of a key, as a reply says.
    pub fn see_hosts(&self, hosts: u32, now: HostTime) {
        self.region.leases_shared().see_hosts(hosts, now);
    }

    /// Notes that a process of this host uses a part of the store: asks it, or may. A store of one
    /// server is one part, 0; a cluster has up to 1024.
    pub fn use_part(&self, part: usize, now: HostTime) {
        self.region.leases_shared().use_part(part, now);
    }

    /// Notes that the store is away now, and how many hosts there were when it went away.
    pub fn see_away(&self, hosts: u32, now: HostTime) {
        self.region.leases_shared().see_away(hosts, now);
    }

    /// How many hosts there were when the store went away, if a process of this host has seen
    /// within the time `within` that it is away.
    pub fn hosts_before(&self, within: Micros, now: HostTime) -> Option<u32> {
        self.region.leases_shared().hosts_before(within, now)
    }

    /// How long ago a process of this host last used a part of the store, to within 100 ms;
    /// [`u64::MAX`] µs if none has.
    pub fn part_used_ago(&self, part: usize, now: HostTime) -> Micros {
        self.region.leases_shared().part_used_ago(part, now)
    }

    /// The same for the part that was used last.
    pub fn any_part_used_ago(&self, now: HostTime) -> Micros {
        self.region.leases_shared().any_part_used_ago(now)
    }

    /// How many hosts share keys with this one, itself included: the most that replies have said
    /// in a minute, and in the minute with replies before that. 0 if there was none.
    pub fn hosts(&self) -> u32 {
        self.region.leases_shared().hosts()
    }

    fn memory(&self) -> Memory<'_> {
        Memory { host: self.host, base: self.base, shared: self.region.leases_shared() }
    }

    #[inline]
    fn place(&self, key: LeaseKey) -> Place<'_> {
        Place::new(self.set(key), (key.0 >> 16).max(1), self.memory())
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "there are fewer than 2^28 sets")]
    fn set(&self, key: LeaseKey) -> &Set {
        let sets = self.region.sets();
        // A power of two.
        &sets[key.0 as usize & (sets.len() - 1)]
    }
}

fn not_in_memory(source: io::Error) -> OpenError {
    OpenError::new(Path::new("in memory"), OpenErrorKind::Io { doing: "make it", source })
}

#[cfg(test)]
#[cfg(not(gcra_model))]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use gcra_lease::{RefillHint, StoreTime, Word};
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Micros = Micros::from_millis(50);

    fn limit() -> SharedLimit {
        SharedLimit::new(Duration::from_millis(10), 20).unwrap()
    }

    fn leases() -> Leases {
        Leases::in_memory(Slots::new(8).unwrap(), HostTime(1_000_000)).unwrap()
    }

    /// Keys that are all in one set.
    fn key(number: u64) -> LeaseKey {
        LeaseKey((number + 1) << 32)
    }

    fn reply(sent: &Sent, granted: u32, wait: u64) -> AskReply {
        AskReply {
            number: sent.ask.number,
            kept: sent.ask.holds,
            granted: granted.min(sent.ask.want),
            free: 0,
            come_back_after: Micros(wait),
            scarce: false,
            lent: false,
            hosts: 2,
            now: StoreTime(0),
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Do {
        Spend(u32),
        SpendAndTakeBack(u32),
        Charge(u32),
        Ask(u32),
        GiveBack(u32),
        Reply(u32, u64),
        Void,
    }

    fn waits() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 0..100_000_u64]
    }

    fn anything() -> impl Strategy<Value = Do> {
        prop_oneof![
            4 => (0..4_u32).prop_map(Do::Spend),
            1 => (1..3_u32).prop_map(Do::SpendAndTakeBack),
            1 => (0..3_u32).prop_map(Do::Charge),
            4 => (0..9_000_u32).prop_map(Do::Ask),
            1 => (0..5_u32).prop_map(Do::GiveBack),
            4 => (0..9_000_u32, waits()).prop_map(|(granted, wait)| Do::Reply(granted, wait)),
            1 => Just(Do::Void),
        ]
    }

    /// Each key goes from one holding to the next, unless its entry is taken for another key.
    fn do_what_holdings_do(steps: Vec<(u64, Do, u64)>) -> Result<(), TestCaseError> {
        let leases = leases();
        let (base, host) = (leases.base, leases.host());
        let mut now = HostTime(2_000_000);
        let mut there: HashMap<u64, Packed> = HashMap::new();
        let mut latest: HashMap<u64, Sent> = HashMap::new();
        for (number, step, passes) in steps {
            now = now.saturating_add(Micros(passes));
            let (key, tick) = (key(number), base.tick(now));
            let new = Packed { word: Word::EMPTY, hint: RefillHint::from_bits(0) };
            let before = there.get(&number).copied();
            let is_asking =
                before.is_some_and(|entry| entry.holding(base, now).is_asking(now, PATIENCE));
            match step {
                Do::Spend(cells) => {
                    let after = before.and_then(|entry| entry.word.spend(tick, cells));
                    if cells.is_multiple_of(2) {
                        let spent = leases.spend(key, now, cells);
                        prop_assert_eq!(spent.is_some(), after.is_some());
                    } else {
                        let look = leases.look(key, now, cells, PATIENCE);
                        let taken = leases.take(key, now, cells, PATIENCE).err();
                        prop_assert_eq!(taken, (look != Look::Enough).then_some(look));
                    }
                    if let Some(word) = after {
                        there.entry(number).and_modify(|entry| entry.word = word);
                    }
                }
                Do::SpendAndTakeBack(cells) => {
                    let spent = leases.spend(key, now, cells);
                    prop_assert!(spent.is_none_or(|spent| leases.unspend(key, spent)));
                }
                // A debt outlives an ask that is void, in an announcement.
                Do::Charge(_)
                    if before.is_some_and(|entry| entry.holding(base, now).is_fresh()) => {}
                Do::Charge(cells) => {
                    prop_assert_eq!(leases.charge(key, now, cells), before.is_some());
                    there.entry(number).and_modify(|entry| entry.hint = entry.hint.charge(cells));
                }
                Do::Ask(want) => {
                    let wish = Wish { want, least: 1, validity: Micros(500_000) };
                    let sent = leases.ask(key, &limit(), now, PATIENCE, wish);
                    prop_assert_eq!(sent.is_none(), is_asking);
                    if let Some(sent) = sent {
                        let fresh =
                            Packed { word: Word::announcement(77, sent.ask.number), ..new };
                        let entry = before.unwrap_or(fresh);
                        let (entry, same) =
                            entry.ask(base, &limit(), now, host, sent.ask.number, wish);
                        prop_assert_eq!(sent, same);
                        there.insert(number, entry);
                        latest.insert(number, sent);
                    }
                }
                Do::GiveBack(cells) => {
                    let holds = before.is_some_and(|entry| entry.word.held(tick) > 0);
                    let sent = leases.give_back(key, &limit(), now, PATIENCE, cells);
                    prop_assert_eq!(sent.is_some(), holds && !is_asking);
                    if let (Some(sent), Some(entry)) = (sent, before) {
                        let (entry, same) =
                            entry.give_back(base, &limit(), now, host, sent.ask.number, cells);
                        prop_assert_eq!(sent, same);
                        there.insert(number, entry);
                        latest.insert(number, sent);
                    }
                }
                Do::Reply(granted, wait) => {
                    let Some(sent) = latest.get(&number) else { continue };
                    let reply = reply(sent, granted, wait);
                    let newest = leases.region.leases_shared().newest();
                    let after =
                        before.and_then(|entry| entry.reply(base, now, sent, &reply, newest));
                    prop_assert_eq!(leases.reply(key, now, sent, &reply), after.is_some());
                    there.extend(after.map(|entry| (number, entry)));
                }
                Do::Void => {
                    let Some(sent) = latest.get(&number) else { continue };
                    let newest = leases.region.leases_shared().newest();
                    let after = before.and_then(|entry| entry.void(sent, newest));
                    prop_assert_eq!(leases.void(key, now, sent), after.is_some());
                    there.extend(after.map(|entry| (number, entry)));
                }
            }
            // An announcement is as good as nothing.
            there.retain(|_, entry| !entry.word.is_announcement());
            let before = there.len();
            there.retain(|number, _| leases.holding(self::key(*number), now) != Holding::new());
            // An ask for a new key takes one entry.
            let lost = before - there.len();
            prop_assert!(lost <= usize::from(matches!(step, Do::Ask(_))), "{lost} are lost");
            for (number, entry) in &there {
                let key = self::key(*number);
                prop_assert_eq!(leases.holding(key, now), entry.holding(base, now));
                prop_assert_eq!(leases.demand(key, now), entry.demand(base, now));
                for cells in 0..3 {
                    let look = entry.look(base, now, cells, PATIENCE);
                    prop_assert_eq!(leases.look(key, now, cells, PATIENCE), look);
                }
            }
            prop_assert_eq!(leases.check(now), []);
            let counts = leases.counts(now, PATIENCE);
            let all =
                counts.free + counts.blocked + counts.over + counts.announced + counts.in_use;
            prop_assert_eq!(all, leases.entries());
            let held: u64 = there.values().map(|entry| u64::from(entry.word.held(tick))).sum();
            prop_assert_eq!(counts.held, held);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn leases_do_what_holdings_do(
            steps in prop::collection::vec((0..5_u64, anything(), 0..40_000_u64), 1..120),
        ) {
            do_what_holdings_do(steps)?;
        }
    }

    /// Asks for a cell, and gets it.
    fn get(leases: &Leases, key: LeaseKey, now: HostTime, cells: u32) {
        let wish = Wish { want: cells, least: cells, validity: Micros(500_000) };
        let sent = leases.ask(key, &limit(), now, PATIENCE, wish).unwrap();
        assert!(leases.reply(key, now, &sent, &reply(&sent, cells, 0)));
    }

    #[test]
    fn the_entry_of_least_use_is_taken() {
        let (leases, now) = (leases(), HostTime(2_000_000));
        let later = |milliseconds: u64| now.saturating_add(Micros::from_millis(milliseconds));
        get(&leases, key(0), now, 1);
        get(&leases, key(1), later(10), 1);
        // One with nothing held, of which the store has said when to come back; and one more.
        let wish = Wish { want: 1, least: 1, validity: Micros(500_000) };
        let sent = leases.ask(key(2), &limit(), later(20), PATIENCE, wish).unwrap();
        assert!(leases.reply(key(2), later(20), &sent, &reply(&sent, 0, 100_000)));
        let sent = leases.ask(key(3), &limit(), later(30), PATIENCE, wish).unwrap();
        assert!(leases.reply(key(3), later(30), &sent, &reply(&sent, 0, 0)));
        let counts = leases.counts(later(30), PATIENCE);
        assert_eq!((counts.in_use, counts.blocked, counts.free, counts.held), (2, 1, 1, 2));

        let is_there = |number| leases.holding(key(number), later(40)) != Holding::new();
        let all = || [0, 1, 2, 3, 4, 5, 6, 7].map(is_there);
        get(&leases, key(4), later(40), 1);
        assert_eq!(all(), [true, true, true, false, true, false, false, false], "it is free");
        get(&leases, key(5), later(50), 1);
        assert_eq!(all(), [true, true, false, false, true, true, false, false], "it is blocked");
        assert_eq!(leases.evictions(), 0);
        get(&leases, key(6), later(60), 1);
        assert_eq!(all(), [false, true, false, false, true, true, true, false], "oldest");
        assert_eq!(leases.evictions(), 1);
        // Spent cells have to be reported, so they are kept longer than settled ones.
        assert!(leases.spend(key(4), later(70), 1).is_some());
        let sent = leases.give_back(key(1), &limit(), later(70), PATIENCE, 1).unwrap();
        assert!(leases.reply(key(1), later(70), &sent, &reply(&sent, 0, 0)));
        get(&leases, key(7), later(80), 1);
        assert_eq!(all(), [false, false, false, false, true, true, true, true]);
        assert_eq!(leases.counts(later(80), PATIENCE).unreported, 1);
    }

    #[test]
    fn a_cost_is_spent_under_all_limits_or_under_none() {
        let (leases, now) = (leases(), HostTime(2_000_000));
        get(&leases, key(0), now, 3);
        get(&leases, key(1), now, 1);
        let need = |number, cells| LeaseNeed { key: key(number), cells, burst: 20 };
        let decide = |needs: &[LeaseNeed]| leases.decide(now, needs, PATIENCE);
        assert_eq!(decide(&[need(0, 2), need(1, 2)]), Step::Ask { limit: 1, least: 1 });
        assert_eq!(decide(&[need(0, 1), need(1, 1)]), Step::Allow);
        let held = [0, 1].map(|number| leases.holding(key(number), now).held(now));
        assert_eq!(held, [2, 0]);
        assert_eq!(decide(&[need(0, 0), need(1, 0)]), Step::Allow);
        assert_eq!(decide(&[need(0, 1), need(2, 0)]), Step::Ask { limit: 1, least: 0 });
        assert_eq!(decide(&[need(0, 21)]), Step::TooLarge { limit: 0 });
        let costly = LeaseNeed { key: key(0), cells: MOST_CELLS + 1, burst: u32::MAX };
        assert_eq!(decide(&[costly]), Step::TooLarge { limit: 0 });
        assert_eq!(decide(&[]), Step::Allow);
        // The same key twice: the second of two cells is missing.
        assert!(leases.spend(key(0), now, 1).is_some());
        assert_eq!(decide(&[need(0, 1), need(0, 1)]), Step::Ask { limit: 0, least: 1 });
        assert_eq!(leases.holding(key(0), now).held(now), 1, "what was spent is taken back");
    }

    #[test]
    fn an_ask_whose_process_is_dead_is_taken_over() {
        let (leases, now) = (leases(), HostTime(2_000_000));
        let wish = Wish { want: 1, least: 1, validity: Micros(500_000) };
        let ask = |now| leases.ask(key(0), &limit(), now, PATIENCE, wish);
        let dead = ask(now).unwrap();
        let soon = now.saturating_add(Micros::from_millis(48));
        assert_eq!(ask(soon), None);
        assert!(matches!(leases.look(key(0), soon, 1, PATIENCE), Look::Waiting { .. }));
        let late = now.saturating_add(Micros::from_millis(52));
        assert_eq!(leases.look(key(0), late, 1, PATIENCE), Look::Lacking);
        let sent = ask(late).unwrap();
        assert!(!leases.reply(key(0), late, &dead, &reply(&dead, 1, 0)));
        assert!(leases.reply(key(0), late, &sent, &reply(&sent, 1, 0)));

        // Killed before it wrote when it asked: that is from when another process looks.
        let sets = leases.region.sets();
        let place = Place::new(&sets[0], 1 << 16, leases.memory());
        let position =
            place.entries().iter().position(|entry| entry.word.fingerprint() == 1 << 16);
        let hint = &sets[0].hint[position.unwrap()];
        ask(late).unwrap();
        hint.store_bits(0);
        let later = |milliseconds: u64| late.saturating_add(Micros::from_millis(milliseconds));
        let look = |now| leases.look(key(0), now, 2, PATIENCE);
        assert!(matches!(look(later(500)), Look::Waiting { .. }));
        assert!(matches!(look(later(540)), Look::Waiting { .. }));
        assert_eq!(look(later(560)), Look::Lacking);
    }

    #[test]
    fn faults_are_told() {
        let (leases, now) = (leases(), HostTime(2_000_000));
        get(&leases, key(0), now, 3);
        assert_eq!(leases.check(now), []);
        let words = &leases.region.sets()[0].words;
        let position = words.iter().position(|word| word.load_bits() != 0).unwrap();
        let word = words[position].load_bits();
        let other = (position + 1) % SET_ENTRIES;
        words[other].store_bits(word);
        let (entry, first) = (position.max(other), position.min(other));
        let twice = LeaseFault::Twice { entry, other: first };
        assert_eq!(leases.check(now), [twice]);
        assert!(twice.to_string().contains(&format!("in entry {first}")));
        words[other].store_bits(0);
        // It ends too late.
        words[position].store_bits(word | 1 << 31);
        assert_eq!(leases.check(now), [LeaseFault::Damaged { entry: position }]);
    }

    /// Whatever the bytes of the entries are, operations end.
    #[test]
    fn damaged_entries_hold_nothing_up() {
        let bits = prop::collection::vec(any::<u128>(), 8);
        proptest!(|(bits in bits, mine: u8, cells in 0..5_u32)| {
            hold_nothing_up(&bits, mine, cells)?;
        });
    }

    /// `mine` has a bit for each entry that is to be the key's.
    fn hold_nothing_up(bits: &[u128], mine: u8, cells: u32) -> Result<(), TestCaseError> {
        let (leases, now) = (leases(), HostTime(2_000_000));
        let set = &leases.region.sets()[0];
        for (slot, bits) in set.words.iter().chain(&set.hint).zip(bits) {
            slot.store_bits(*bits);
        }
        for (position, slot) in set.words.iter().enumerate().filter(|(at, _)| mine >> at & 1 == 1)
        {
            slot.store_bits(bits[position] << 48 >> 48 | 1 << 96);
        }
        let _ = leases.decide(now, &[LeaseNeed { key: key(0), cells, burst: 20 }], PATIENCE);
        let _ = leases.charge(key(0), now, cells);
        let later = HostTime(10_000_000);
        let wish = Wish { want: cells, least: 0, validity: Micros(500_000) };
        let sent = leases.ask(key(0), &limit(), later, PATIENCE, wish).unwrap();
        prop_assert!(leases.reply(key(0), later, &sent, &reply(&sent, cells, 0)));
        let _ = (leases.counts(now, PATIENCE), leases.check(now));
        Ok(())
    }
}
