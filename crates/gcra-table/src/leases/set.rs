//! A set: the entries of a few keys whose hashes agree in some bits, and the operations on an
//! entry.
//!
//! An entry is two words: the [`Word`], which says what this host may spend and has to report, and
//! the [`RefillHint`], which makes asks rare. Strictness depends on the word alone, and each step
//! changes it by one exchange. So the machines of gcra-lease see only their own steps: an entry
//! goes from one [`Holding`] to the next as if there were one process.
//!
//! A key has at most one word that is not an announcement (`opening.rs` says why). A key without
//! one is a key of which this host knows nothing, [`Holding::new`]. Its next ask is *fresh*, and
//! the store counts as spent all that it had lent to this host. So an entry may be taken for
//! another key at any moment, and only the cells that it held are lost.
//!
//! # What a process killed here leaves behind
//!
//! * *Before its exchange of the word*: nothing; at most a number that no ask has.
//! * *After it has begun an ask*: an ask that gets no reply. Another process asks in its place
//!   once it is as old as the `patience` of its caller.
//! * *Before it has written when the ask began*: a word with the hint of an earlier ask. The
//!   next process that looks writes that the ask was seen now.
//! * *Before it took a reply*: cells that the store counts as lent to this host, and that no
//!   process can spend. With the next ask they are free again, or count as spent if that is fresh.
//! * *After it has spent cells*: cells whose request got no answer. Too strict by these.

// ADR 44: What cannot be lent is charged in the store.

use core::fmt;

use gcra_lease::{
    AskNumber, AskReply, Base, Demand, Holding, HostId, HostTime, Look, Micros, NUMBERS, Packed,
    RefillHint, Sent, Tick, Word,
};

use crate::mutation::{Mutation, broken};
use crate::slot::Slot;
use crate::sync::{AtomicU64, Ordering, fence};

/// Entries of a set: their words fill one cache line, their hint another. The loom models use
/// fewer.
pub(crate) const SET_ENTRIES: usize = if cfg!(gcra_loom) { 2 } else { 4 };

/// How many attempts an operation may lose before it gives up. The models need fewer, and fail
/// beyond that.
pub(super) const MAX_ATTEMPTS: u32 = if cfg!(gcra_model) { 24 } else { 1_000 };

/// The entries that share two cache lines.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Set {
    pub(super) words: [Slot; SET_ENTRIES],
    pub(super) hint: [Slot; SET_ENTRIES],
}

// As LEASES.md says.
#[cfg(not(gcra_model))]
const _: () = {
    assert!(size_of::<Set>() == 128);
    assert!(core::mem::offset_of!(Set, hint) == 64);
    assert!(core::mem::offset_of!(LeasesShared, evicted) == 64);
};

#[cfg(gcra_model)]
impl Set {
    pub(super) fn new() -> Self {
        Self {
            words: core::array::from_fn(|_| Slot::new()),
            hint: core::array::from_fn(|_| Slot::new()),
        }
    }
}

/// Where in the header the fields that change lie.
pub(crate) const SHARED_AT: usize = 1024;

/// The fields of the header that change while it is in use.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct LeasesShared {
    numbers: Numbers,
    _reserved: [core::sync::atomic::AtomicU64; 7],
    /// Entries that were taken for another key while they held cells, had cells to report or were
    /// asking.
    pub(super) evicted: core::sync::atomic::AtomicU64,
    /// How many hosts the store has seen lately: see [`Self::see_hosts`].
    hosts: [core::sync::atomic::AtomicU64; 2],
    /// When a process of this host last saw that the store was away, in tenths of a second, in the
    /// upper 32 bits. The lower 32 bits say how many hosts there were when the store went away.
    away: core::sync::atomic::AtomicU64,
    /// For each part of the store, when a process of this host last used the part: the lower 32
    /// bits of a time in tenths of a second.
    used: [core::sync::atomic::AtomicU32; PARTS],
}

/// How many parts a store has that may be away while others are not.
const PARTS: usize = 1024;

/// Tenths of a second, in µs.
const TENTH: u64 = 100_000;

/// The numbers of asks: see [`AskNumber`].
#[repr(transparent)]
struct Numbers(AtomicU64);

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Numbers")
    }
}

impl LeasesShared {
    #[cfg(gcra_model)]
    pub(super) fn new() -> Self {
        Self {
            numbers: Numbers(AtomicU64::new(0)),
            _reserved: Default::default(),
            evicted: Default::default(),
            hosts: Default::default(),
            away: Default::default(),
            used: core::array::from_fn(|_| Default::default()),
        }
    }

    /// A number above all that were drawn before.
    pub(super) fn draw(&self) -> AskNumber {
        AskNumber(self.numbers.0.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Notes how many hosts a reply has seen. The most of a minute counts, and of the
    /// minute with replies before it. It is an estimate: two processes that begin a minute at
    /// once may forget one of the numbers.
    pub(super) fn see_hosts(&self, hosts: u32, now: HostTime) {
        let [this, before] = &self.hosts;
        let minute = (now.0 / 60_000_000) << 32;
        let noted = this.load(Ordering::Relaxed);
        if noted >> 32 == minute >> 32 {
            this.fetch_max(minute | u64::from(hosts), Ordering::Relaxed);
        } else if this
            .compare_exchange(
                noted,
                minute | u64::from(hosts),
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok()
        {
            before.store(noted, Ordering::Relaxed);
        }
    }

    /// The most hosts that were seen lately, 0 if no reply has come yet.
    pub(super) fn hosts(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let most = self.hosts.iter().map(|noted| noted.load(Ordering::Relaxed) as u32).max();
        most.unwrap_or(0)
    }

    /// Notes that a process of this host uses a part of the store.
    pub(super) fn use_part(&self, part: usize, now: HostTime) {
        let Some(used) = self.used.get(part) else { return };
        let tenth = tenths(now);
        // Few of many calls write to the memory that all processes read.
        if used.load(Ordering::Relaxed) != tenth {
            used.store(tenth, Ordering::Relaxed);
        }
    }

    /// How long ago a process of this host used a part of the store, to within a tenth of a
    /// second; [`u64::MAX`] if none has.
    pub(super) fn part_used_ago(&self, part: usize, now: HostTime) -> Micros {
        let used = self.used.get(part).map_or(0, |used| used.load(Ordering::Relaxed));
        if used == 0 {
            return Micros(u64::MAX);
        }
        let ago = tenths(now).wrapping_sub(used);
        // Another process has read the clock a moment later.
        let ago = if ago == u32::MAX { 0 } else { ago };
        Micros(u64::from(ago) * TENTH)
    }

    /// The same for the part that was used last.
    pub(super) fn any_part_used_ago(&self, now: HostTime) -> Micros {
        let ago = (0..self.used.len()).map(|part| self.part_used_ago(part, now));
        ago.min().unwrap_or(Micros(u64::MAX))
    }

    /// Notes that the store is away now, and how many hosts there were when it went away.
    pub(super) fn see_away(&self, hosts: u32, now: HostTime) {
        self.away.store(u64::from(tenths(now)) << 32 | u64::from(hosts), Ordering::Relaxed);
    }

    /// How many hosts there were when the store went away, if a process of this host has seen
    /// within `within` that it is away.
    #[expect(clippy::cast_possible_truncation, reason = "the halves")]
    pub(super) fn hosts_before(&self, within: Micros, now: HostTime) -> Option<u32> {
        let away = self.away.load(Ordering::Relaxed);
        let ago = u64::from(tenths(now).wrapping_sub((away >> 32) as u32)) * TENTH;
        (away > 0 && ago <= within.0).then_some(away as u32)
    }

    /// The largest number that was drawn.
    pub(super) fn newest(&self) -> AskNumber {
        AskNumber(self.numbers.0.load(Ordering::Relaxed))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower digits")]
const fn tenths(time: HostTime) -> u32 {
    (time.0 / TENTH) as u32
}

/// The values that all entries of one memory have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory<'a> {
    pub(crate) host: HostId,
    pub(crate) base: Base,
    pub(crate) shared: &'a LeasesShared,
}

/// Where the entry of a key is, if it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(super) set: &'a Set,
    /// 48 bits, never 0.
    pub(super) fingerprint: u64,
    pub(super) memory: Memory<'a>,
}

/// Cells that were spent, by which spending them can be taken back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Spent {
    after: Word,
    cells: u32,
}

impl Spent {
    /// How many cells were left of the key. If they will not last until a reply could come, it is
    /// time to ask for more ([`Demand::needs_more`]).
    #[inline]
    pub const fn left(self) -> u32 {
        self.after.cells()
    }
}

impl<'a> Place<'a> {
    pub(crate) const fn new(set: &'a Set, fingerprint: u64, memory: Memory<'a>) -> Self {
        Self { set, fingerprint, memory }
    }

    #[inline]
    fn word(&self, position: usize) -> Word {
        Word::from_bits(self.set.words[position].load_bits())
    }

    fn hint(&self, position: usize) -> RefillHint {
        RefillHint::from_bits(self.set.hint[position].load_bits())
    }

    /// Puts one word in the place of another. Those that see the new word and fence also see what
    /// this process did before.
    pub(super) fn exchange(&self, position: usize, current: Word, new: Word) -> bool {
        fence(Ordering::Release);
        self.set.words[position].exchange_bits(current.bits(), new.bits())
    }

    pub(super) fn exchange_hint(
        &self,
        position: usize,
        current: RefillHint,
        new: RefillHint,
    ) -> bool {
        self.set.hint[position].exchange_bits(current.bits(), new.bits())
    }

    /// The word of the key that is not an announcement.
    #[inline]
    fn find(&self) -> Option<(usize, Word)> {
        (0..SET_ENTRIES).find_map(|position| {
            let word = self.word(position);
            let is_mine = word.fingerprint() == self.fingerprint && !word.is_announcement();
            is_mine.then_some((position, word))
        })
    }

    /// All entries of the set, one after another.
    pub(super) fn entries(&self) -> [Packed; SET_ENTRIES] {
        let words: [Word; SET_ENTRIES] = core::array::from_fn(|position| self.word(position));
        // So all is seen that led to these words, such as the numbers that they were made with.
        fence(Ordering::Acquire);
        core::array::from_fn(|position| Packed {
            word: words[position],
            hint: self.hint(position),
        })
    }

    /// The entry of the key. If its hint was not written, or was lost, it is from now on what
    /// can be said without it.
    fn packed(&self, now: HostTime) -> Option<(usize, Packed)> {
        let (position, word) = self.find()?;
        fence(Ordering::Acquire);
        Some((position, self.advised(position, word, now)))
    }

    pub(super) fn advised(&self, position: usize, word: Word, now: HostTime) -> Packed {
        let hint = self.hint(position);
        if hint.is_about(word) {
            return Packed { word, hint };
        }
        // Otherwise an ask whose process was killed before it wrote when it began would never grow
        // old.
        let seen = RefillHint::seen(word, self.memory.base.tick(now));
        self.exchange_hint(position, hint, seen);
        Packed { word, hint: seen }
    }

    /// See [`Holding::look`].
    #[inline]
    pub(crate) fn look(&self, now: HostTime, cells: u32, patience: Micros) -> Look {
        let tick = self.memory.base.tick(now);
        match self.find() {
            Some((_, word)) if word.has(tick, cells) => Look::Enough,
            _ => self.look_closely(now, cells, patience),
        }
    }

    #[cold]
    fn look_closely(&self, now: HostTime, cells: u32, patience: Micros) -> Look {
        self.holding(now).look(now, cells, patience)
    }

    pub(crate) fn holding(&self, now: HostTime) -> Holding {
        let base = self.memory.base;
        self.packed(now).map_or_else(Holding::new, |(_, packed)| packed.holding(base, now))
    }

    /// The demand for the key, as far as it is known.
    pub(crate) fn demand(&self, now: HostTime) -> Demand {
        let base = self.memory.base;
        self.packed(now).map_or_else(Demand::new, |(_, packed)| packed.demand(base, now))
    }

    /// Spends cells, at least one, or says what else is to be done.
    #[inline]
    pub(crate) fn take(&self, now: HostTime, cells: u32, patience: Micros) -> Result<Spent, Look> {
        let base = self.memory.base;
        let tick = base.tick(now);
        if let Some((position, word)) = self.find() {
            match word.spend(tick, cells) {
                Some(after) if self.exchange_spent(position, word, after) => {
                    return Ok(Spent { after, cells });
                }
                Some(_) => {}
                None => {
                    let lacking = cells - word.held(tick);
                    if let Some(until) = self.hint(position).blocks(word, base, tick, lacking) {
                        return Err(Look::Blocked { until });
                    }
                }
            }
        }
        self.take_anyhow(now, cells, patience)
    }

    #[cold]
    fn take_anyhow(&self, now: HostTime, cells: u32, patience: Micros) -> Result<Spent, Look> {
        let spent = self.spend_anyhow(self.memory.base.tick(now), cells);
        spent.ok_or_else(|| match self.look_closely(now, cells, patience) {
            // They came, or were taken back, just now. An ask will find them.
            Look::Enough => Look::Lacking,
            look => look,
        })
    }

    /// See [`Holding::spend`].
    #[inline]
    pub(crate) fn spend(&self, now: Tick, cells: u32) -> Option<Spent> {
        let (position, word) = self.find()?;
        let after = word.spend(now, cells)?;
        if self.exchange_spent(position, word, after) {
            return Some(Spent { after, cells });
        }
        self.spend_anyhow(now, cells)
    }

    /// Another process was faster.
    #[cold]
    fn spend_anyhow(&self, now: Tick, cells: u32) -> Option<Spent> {
        for _ in 0..MAX_ATTEMPTS {
            let (position, word) = self.find()?;
            let after = word.spend(now, cells)?;
            if self.exchange_spent(position, word, after) {
                return Some(Spent { after, cells });
            }
        }
        None
    }

    #[inline]
    fn exchange_spent(&self, position: usize, word: Word, after: Word) -> bool {
        #[cfg(gcra_model)]
        if broken(Mutation::StoreSpend) {
            let unchanged = self.word(position) == word;
            if unchanged {
                self.set.words[position].store_bits(after.bits());
            }
            return unchanged;
        }
        // No fence: nothing was done before that others have to see.
        self.set.words[position].exchange_bits(word.bits(), after.bits())
    }

    /// See [`Word::unspend`].
    pub(crate) fn unspend(&self, spent: Spent) -> bool {
        for _ in 0..MAX_ATTEMPTS {
            let Some((position, word)) = self.find() else {
                return false;
            };
            let after = if broken(Mutation::UnspendAnyTime) { word } else { spent.after };
            let Some(before) = word.unspend(after, spent.cells) else {
                return false;
            };
            if self.exchange(position, word, before) {
                return true;
            }
        }
        false
    }

    /// See [`Holding::charge`]. False if there is no entry to note it in.
    pub(crate) fn charge(&self, now: HostTime, cells: u32) -> bool {
        for _ in 0..MAX_ATTEMPTS {
            let Some((position, packed)) = self.packed(now) else {
                return false;
            };
            if self.exchange_hint(position, packed.hint, packed.hint.charge(cells)) {
                return true;
            }
        }
        false
    }

    /// See [`Holding::reply`].
    pub(crate) fn reply(&self, now: HostTime, sent: &Sent, reply: &AskReply) -> bool {
        let base = self.memory.base;
        let (mut sent, mut reply) = (*sent, *reply);
        let mut is_advised = false;
        for _ in 0..MAX_ATTEMPTS {
            let Some((position, packed)) = self.packed(now) else {
                return false;
            };
            // After the word: a number that was given to an ask before that is not above it.
            let newest = self.memory.shared.newest();
            if broken(Mutation::ReplyToAny) {
                let later = packed.word.number().wrapping_sub(sent.ask.number.0) % NUMBERS;
                sent.ask.number = AskNumber(sent.ask.number.0 + later);
            }
            if broken(Mutation::AllAreKept) {
                reply.kept = sent.ask.holds;
            }
            let Some(after) = packed.reply(base, now, &sent, &reply, newest) else {
                return false;
            };
            // First, so that a process that sees that the ask has ended sees when to come back.
            // Once, because a debt that was paid is taken away there.
            if !is_advised {
                if !self.exchange_hint(position, packed.hint, after.hint) {
                    continue;
                }
                is_advised = true;
            }
            if self.exchange(position, packed.word, after.word) {
                return true;
            }
        }
        false
    }

    /// See [`Holding::void`].
    pub(crate) fn void(&self, sent: &Sent, now: HostTime) -> bool {
        for _ in 0..MAX_ATTEMPTS {
            let Some((position, packed)) = self.packed(now) else {
                return false;
            };
            let newest = self.memory.shared.newest();
            let Some(after) = packed.void(sent, newest) else {
                return false;
            };
            if self.exchange(position, packed.word, after.word) {
                return true;
            }
        }
        false
    }
}
