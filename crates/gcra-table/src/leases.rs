//! [`Leases`]: the cells that a store has lent to this host, in a file beside the table that all
//! agents of the host share.
//!
//! docs/internals/LEASES.md describes every byte of the file, and says why the limit is exact. The
//! protocol between hosts and store is in the crate `gcra-lease`; what its [`Holding`] does is
//! done here by one exchange each.

mod file;
#[cfg(all(test, gcra_model))]
mod model;
mod opening;
mod set;

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use gcra_lease::{
    Base, Demand, Holding, HostId, HostTime, Limit, Look, MOST_CELLS, Micros, Reply, Sent, Step,
    Wish, next_step,
};

use crate::cpu::prefetch;
use crate::file::{FileId, Role};
use crate::key::KeyHash;
use crate::leases::file::{HEADER_BYTES, Header, LeasesFile, Owner};
use crate::leases::opening::Use;
use crate::leases::set::{Memory, Place};
use crate::open::Opened;
use crate::open_error::{OpenError, OpenErrorKind};
use crate::quota::Quota;
use crate::region::Region;
use crate::slots::Slots;
use crate::table::Table;
use crate::time::Time;

pub(crate) use file::LEASES_SHARED_AT;
pub use set::Spent;
pub(crate) use set::{SET_ENTRIES, Set, Shared as LeasesShared};

/// What this host holds of many keys, shared by every process that has the file open.
///
/// Everything takes `&self`, and nothing locks or waits.
#[derive(Debug)]
pub struct Leases {
    region: Region<HEADER_BYTES>,
    host: HostId,
    base: Base,
    /// The file that it is, and what its header says.
    file: Option<(FileId, Header)>,
}

/// A key under one quota, as leases find it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeaseKey(u64);

impl LeaseKey {
    /// The key with this hash under this quota. Keys under quotas with different numbers have
    /// nothing to do with each other.
    #[inline]
    #[must_use]
    pub fn new(key: KeyHash, quota: Quota) -> Self {
        Self(key.fingerprint(quota))
    }
}

/// What a request needs under one limit, for [`Leases::decide`].
#[derive(Clone, Copy, Debug)]
pub struct LeaseNeed {
    /// Its key.
    pub key: LeaseKey,
    /// Its cost in cells.
    pub cells: u32,
    /// The burst of the limit.
    pub burst: u32,
}

/// What the entries of [`Leases`] hold. They are counted one after another, so in use the numbers
/// are exact to a few entries.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
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

impl From<Time> for HostTime {
    /// The time of a host is that of its table, in whole microseconds.
    #[inline]
    fn from(time: Time) -> Self {
        Self(time.0 / 1_000)
    }
}

impl Leases {
    /// Opens the leases beside a table, or makes them with `slots` slots of 16 bytes: an entry
    /// takes two. Leases that exist may have any number. Those of a table in memory are in memory.
    ///
    /// Leases that cannot be used are replaced: those of another table, of another boot of the
    /// machine, of another layout, damaged ones, and those that are older than 49 days.
    ///
    /// # Errors
    ///
    /// The file is not one of leases, belongs to another user or could be changed by one, or could
    /// not be made.
    pub fn open_or_create(table: &Table, slots: Slots) -> Result<(Self, Opened), OpenError> {
        let Some(owner) = Self::owner(table) else {
            let leases = Self::in_memory(slots, HostTime::from(table.now()));
            let failed = |source| OpenErrorKind::Io { doing: "make it", source };
            return leases
                .map(|leases| (leases, Opened::Created))
                .map_err(|source| OpenError::new(Path::new("in memory"), failed(source)));
        };
        let (file, opened) = file::open_or_create(owner, slots)?;
        Ok((Self::map(owner, &file)?, opened))
    }

    /// Opens the leases beside a table to look at them, if there are any. Root may do so with
    /// those of any user.
    ///
    /// # Errors
    ///
    /// As for [`open_or_create`](Self::open_or_create).
    pub fn inspect(table: &Table) -> Result<Option<Self>, OpenError> {
        let Some(owner) = Self::owner(table) else {
            return Ok(None);
        };
        let file = file::inspect(owner, Role::Inspector)?;
        file.map(|file| Self::map(owner, &file)).transpose()
    }

    /// The leases that this process has to use from now on, if they are not these: the file has
    /// lost its name, or belongs to another table than `table` (the one that the process uses
    /// now), or its time is nearly over. `slots` is for a file that has to be made.
    ///
    /// To be called about once a second. What is held in these leases is lost with them: asks that
    /// are under way may be ended with them, and new ones are begun with the others.
    ///
    /// # Errors
    ///
    /// As for [`open_or_create`](Self::open_or_create). These leases can be used until their time
    /// is over.
    pub fn successor(&self, table: &Table, slots: Slots) -> Result<Option<Self>, OpenError> {
        let (Some((id, header)), Some(owner)) = (&self.file, Self::owner(table)) else {
            return Ok(None);
        };
        let path = file::path_beside(owner.path);
        let fits = header.belongs_to(owner.header) && !header.is_ending(owner.now());
        if fits && FileId::at(&path).is_ok_and(|found| found == *id) {
            return Ok(None);
        }
        // A file of another version, which took the place of this one, stays there: its processes
        // would replace ours in turn.
        let other = file::inspect(owner, Role::Decider)?;
        if fits && other.is_none() && FileId::at(&path).is_ok() {
            return Ok(None);
        }
        Self::open_or_create(table, slots).map(|(leases, _)| Some(leases))
    }

    fn owner(table: &Table) -> Option<Owner<'_>> {
        let origin = table.origin()?;
        Some(Owner { path: &origin.path, header: &origin.header, clock: table.clock() })
    }

    fn map(owner: Owner<'_>, file: &LeasesFile) -> Result<Self, OpenError> {
        let LeasesFile { file, id, header, slots } = file;
        let region = Region::map(file, *slots).map_err(|source| {
            let kind = OpenErrorKind::Io { doing: "map it", source };
            OpenError::new(&file::path_beside(owner.path), kind)
        })?;
        Ok(Self { region, host: header.host, base: header.base, file: Some((*id, *header)) })
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
        Ok(Self { region: Region::in_memory(slots)?, host, base: Base(now), file: None })
    }

    /// The host that these leases make. Processes that use another file are another host.
    #[must_use]
    pub const fn host(&self) -> HostId {
        self.host
    }

    /// Starts to fetch the memory that [`spend`](Self::spend) will need for this key.
    #[inline]
    pub fn prefetch(&self, key: LeaseKey) {
        prefetch(self.set(key));
    }

    /// What a request of `cells` is to do: see [`Holding::look`].
    #[inline]
    #[must_use]
    pub fn look(&self, key: LeaseKey, now: HostTime, cells: u32, patience: Micros) -> Look {
        self.place(key).look(now, cells, patience)
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
    /// [`gcra_lease::decide`]. After [`Step::Allow`], the cells are spent under all limits.
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

    /// What to ask for: see [`Demand::wish`]. The demand is estimated from the cells that this
    /// host has spent.
    #[must_use]
    pub fn wish(
        &self,
        key: LeaseKey,
        limit: &Limit,
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
        limit: &Limit,
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
        limit: &Limit,
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
    pub fn reply(&self, key: LeaseKey, now: HostTime, sent: &Sent, reply: &Reply) -> bool {
        self.place(key).reply(now, sent, reply)
    }

    /// Ends an ask that has failed, or whose reply is void: see [`Holding::void`].
    pub fn void(&self, key: LeaseKey, now: HostTime, sent: &Sent) -> bool {
        self.place(key).void(sent, now)
    }

    /// What is held of a key now; [`Holding::new`] if nothing is known. It says when cells are
    /// over that were asked for, and what is to be reported.
    #[must_use]
    pub fn holding(&self, key: LeaseKey, now: HostTime) -> Holding {
        self.place(key).holding(now)
    }

    /// What is known about the demand of this host for a key.
    #[must_use]
    pub fn demand(&self, key: LeaseKey, now: HostTime) -> Demand {
        self.place(key).demand(now)
    }

    /// The number of entries, one for each key.
    #[must_use]
    pub fn entries(&self) -> u64 {
        (self.region.sets().len() * SET_ENTRIES) as u64
    }

    /// The memory that they take in bytes, the header included: the length of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.region.len() as u64
    }

    /// How many asks were begun, of all processes, at most.
    #[must_use]
    pub fn asks(&self) -> u64 {
        self.region.leases_shared().newest().0
    }

    /// How often an entry was taken for another key while its own still needed it: there are too
    /// few entries. The next ask of a key whose entry was taken costs it what it held.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.region.leases_shared().evicted.load(Ordering::Relaxed)
    }

    /// Counts what the entries hold. An ask that was sent `patience` ago or earlier counts as
    /// lost.
    #[must_use]
    pub fn counts(&self, now: HostTime, patience: Micros) -> LeaseCounts {
        let mut counts = LeaseCounts::default();
        for set in self.region.sets() {
            for entry in Place::new(set, 0, self.memory()).entries() {
                *match Use::of(&entry, (self.base, now), patience) {
                    Use::Never | Use::Settled => &mut counts.free,
                    Use::Blocked => &mut counts.blocked,
                    Use::Over => &mut counts.over,
                    Use::Announced => &mut counts.announced,
                    Use::InUse => &mut counts.in_use,
                } += 1;
                counts.held += u64::from(entry.word.held(self.base.tick(now)));
                counts.unreported += u64::from(entry.word.unreported());
            }
        }
        counts
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
