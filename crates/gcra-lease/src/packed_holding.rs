//! [`Packed`]: a holding as two words of 128 bits, for memory that processes share.
//!
//! Each word is changed whole, by one compare-exchange. They are not changed together, so all that
//! strictness depends on is in the first one, the [`Word`]. The second one, the [`RefillHint`],
//! makes asks rare and short; it may be overwritten or lost, and then a host asks once more than
//! necessary.
//!
//! Numbers that do not fit the words are rounded to the safe side: cells are valid for a little
//! less long than a [`Holding`] says, and a host comes back a little later. Every step but the
//! frequent ones ([`Word::spend`], [`Word::has`], [`RefillHint::blocks`]) unpacks the words, does
//! what the method of [`Holding`] with the same name does, and packs them again.

use core::fmt;

use crate::demand::Demand;
use crate::holding::{Asking, Holding, Look, Sent, Wish};
use crate::limit::SharedLimit;
use crate::message::{AskNumber, AskReply, HostId};
use crate::time::{HostTime, Micros};

/// The most cells that a host holds for one key, and so the most that a request may cost under a
/// limit that is shared. A wish for more is cut.
pub const MOST_CELLS: u32 = (1 << 13) - 1;

/// How many numbers an ask may have, as a word writes them.
pub const NUMBERS: u64 = 1 << NUMBER_BITS;

/// The moment from which words count time. All words of one memory have the same one.
///
/// They count in ticks of 1024 µs, with 32 bits, and never wrap: after [`LASTS`](Self::LASTS) the
/// last tick goes on for ever, and no cell is valid in it. So a word that is not touched for
/// months does not become valid again. A memory is replaced before that.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Base(pub HostTime);

/// A number of ticks since the [`Base`].
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Tick(u32);

const TICK_BITS: u32 = 10;
/// No lease is valid for longer than this number of ticks (2^30 µs): a word that says so is
/// damaged.
const LONGEST_TICKS: u32 = 1 << (30 - TICK_BITS);
/// The last tick. The ticks that could be written after it keep [`Word::held`] from taking the
/// first ones for later ones.
const LAST_TICK: u32 = u32::MAX - LONGEST_TICKS;
/// The store never tells a host to stay away for longer than a minute: 61 s.
const LONGEST_WAIT_TICKS: u32 = 61_000_000 >> TICK_BITS;
/// Clocks that are read at the same time on two CPUs, and readings that are a little old.
const MOST_AHEAD: Micros = Micros::from_millis(1_000);

impl Base {
    /// For how long words can be used: 50.8 days.
    pub const LASTS: Micros = Micros((LAST_TICK as u64) << TICK_BITS);

    /// The tick of a moment.
    #[inline]
    pub const fn tick(self, now: HostTime) -> Tick {
        Self::saturated(now.0.saturating_sub(self.0.0) >> TICK_BITS)
    }

    /// The first tick that begins at this moment or after it.
    const fn tick_after(self, then: HostTime) -> Tick {
        Self::saturated(then.0.saturating_sub(self.0.0).div_ceil(1 << TICK_BITS))
    }

    #[expect(clippy::cast_possible_truncation, reason = "it is checked")]
    const fn saturated(ticks: u64) -> Tick {
        Tick(if ticks < LAST_TICK as u64 { ticks as u32 } else { LAST_TICK })
    }

    /// When a tick begins.
    const fn time(self, tick: Tick) -> HostTime {
        HostTime(self.0.0.saturating_add((tick.0 as u64) << TICK_BITS))
    }
}

/// The cells that a host may spend and those that it still has to report for one key: all that
/// strictness depends on.
///
/// | bits | |
/// |---|---|
/// | 127..80 | fingerprint of the key, 0 if the word was never used |
/// | 79..67 | cells held |
/// | 66 | fresh |
/// | 65 | an ask is under way |
/// | 64..45 | the number of the latest ask, modulo 2^20 |
/// | 44..32 | cells spent whose report no reply has confirmed |
/// | 31..0 | the tick at which the held cells are over |
///
/// The number stays when the ask has ended. So a word that looks as it did a while ago is the same
/// word: no ask was sent meanwhile (unless 2^20 were, see [`Packed::reply`]).
///
/// A word that is fresh, and whose ask has ended or was never sent, is an *announcement*. It says
/// no more than that a process is about to ask for the key.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Word(u128);

/// Bits in a word: where they begin, and how many they are.
#[derive(Clone, Copy)]
struct Field {
    at: u32,
    bits: u32,
}

impl Field {
    const fn most(self) -> u128 {
        (1 << self.bits) - 1
    }

    #[expect(clippy::cast_possible_truncation, reason = "no field has more than 64 bits")]
    const fn get(self, word: u128) -> u64 {
        (word >> self.at & self.most()) as u64
    }

    #[expect(clippy::cast_possible_truncation, reason = "for fields of at most 32 bits")]
    const fn get_u32(self, word: u128) -> u32 {
        self.get(word) as u32
    }

    const fn is_set(self, word: u128) -> bool {
        self.get(word) != 0
    }

    /// The value at its place, or the largest that there is space for.
    const fn put(self, value: u64) -> u128 {
        let value = value as u128;
        (if value < self.most() { value } else { self.most() }) << self.at
    }
}

const NUMBER_BITS: u32 = 20;
const VALID_UNTIL: Field = Field { at: 0, bits: 32 };
const SPENT: Field = Field { at: 32, bits: 13 };
const NUMBER: Field = Field { at: 45, bits: NUMBER_BITS };
const ASKING: Field = Field { at: 65, bits: 1 };
const FRESH: Field = Field { at: 66, bits: 1 };
const HELD: Field = Field { at: 67, bits: 13 };
const FINGERPRINT: Field = Field { at: 80, bits: 48 };

impl Word {
    /// A word that was never used: no key has fingerprint 0.
    pub const EMPTY: Self = Self(0);

    /// The word that has these bits.
    #[inline]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[inline]
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// An announcement of a key. The number tells it from others.
    pub const fn announcement(fingerprint: u64, number: AskNumber) -> Self {
        Self(FINGERPRINT.put(fingerprint) | FRESH.put(1) | NUMBER.put(in_word(number)))
    }

    /// The fingerprint of the key: 48 bits.
    #[inline]
    pub const fn fingerprint(self) -> u64 {
        FINGERPRINT.get(self.0)
    }

    /// Whether it announces a key.
    #[inline]
    pub const fn is_announcement(self) -> bool {
        FRESH.is_set(self.0) && !ASKING.is_set(self.0)
    }

    /// Whether an ask is under way, also one whose sender is dead.
    pub const fn is_asking(self) -> bool {
        ASKING.is_set(self.0)
    }

    /// Whether no sequence of steps leads to this word: more cells than a host holds, for longer
    /// than a lease is valid, or of which a host has not heard.
    pub const fn is_damaged(self, now: Tick) -> bool {
        let (held, spent) = (self.cells(), self.unreported());
        let latest = now.0.saturating_add(LONGEST_TICKS);
        held + spent > MOST_CELLS
            || (held > 0 && VALID_UNTIL.get_u32(self.0) > latest)
            || (held + spent > 0 && FRESH.is_set(self.0))
    }

    /// Cells whose spending no reply has confirmed.
    pub const fn unreported(self) -> u32 {
        SPENT.get_u32(self.0)
    }

    /// The cells in it, whether they are over or not.
    #[inline]
    pub const fn cells(self) -> u32 {
        HELD.get_u32(self.0)
    }

    /// Cells that may be spent now.
    #[inline]
    pub const fn held(self, now: Tick) -> u32 {
        // One comparison for "not over yet" and for "not later than a lease can be".
        let left = VALID_UNTIL.get_u32(self.0).wrapping_sub(now.0).wrapping_sub(1);
        if left < LONGEST_TICKS { self.cells() } else { 0 }
    }

    /// Whether these cells may be spent now, as [`Holding::look`] says. (A request of none is
    /// allowed by a host that has heard of its key.)
    #[inline]
    pub const fn has(self, now: Tick, cells: u32) -> bool {
        if cells > 0 { self.held(now) >= cells } else { !FRESH.is_set(self.0) }
    }

    /// Spends `cells`, all or none. `None`: they are not here.
    #[inline]
    #[must_use]
    pub const fn spend(self, now: Tick, cells: u32) -> Option<Self> {
        if self.held(now) < cells {
            return None;
        }
        // Cells held and cells spent are never more than MOST_CELLS together: no ask wants more
        // than there is space for, and a reply adds to the one what it takes from the other.
        let (cells, one) = (cells as u128, 1_u128);
        let more = cells * (one << SPENT.at);
        Some(Self(self.0.wrapping_add(more).wrapping_sub(cells * (one << HELD.at))))
    }

    /// Takes back the spending of `cells` that led to the word `after`, if nothing but spending
    /// (and taking it back) has happened since. `None`: it is too late, and the cells stay spent:
    /// they may have been reported, or the lease may be over.
    #[must_use]
    pub const fn unspend(self, after: Self, cells: u32) -> Option<Self> {
        let counts = SPENT.put(u64::MAX) | HELD.put(u64::MAX);
        if (self.0 ^ after.0) & !counts != 0 || self.unreported() < cells {
            return None;
        }
        let (cells, one) = (cells as u128, 1_u128);
        let more = cells * (one << HELD.at);
        Some(Self(self.0.wrapping_add(more).wrapping_sub(cells * (one << SPENT.at))))
    }

    /// The number of the latest ask, modulo [`NUMBERS`].
    #[inline]
    pub const fn number(self) -> u64 {
        NUMBER.get(self.0)
    }

    /// Whether `number` is that of the latest ask, and it is under way. `newest` is the newest
    /// number of the host, read after the word.
    fn waits_for(self, number: AskNumber, newest: AskNumber) -> bool {
        // If an ask whose number looks the same had been sent since, then before the word was
        // read.
        let is_unique = newest.0.saturating_sub(number.0) < NUMBERS;
        self.is_asking() && self.number() == in_word(number) && is_unique
    }
}

/// A number as a word writes it.
const fn in_word(number: AskNumber) -> u64 {
    number.0 % NUMBERS
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Word")
            .field("fingerprint", &self.fingerprint())
            .field("held", &HELD.get(self.0))
            .field("until", &VALID_UNTIL.get(self.0))
            .field("spent", &SPENT.get(self.0))
            .field("fresh", &FRESH.get(self.0))
            .field("asking", &ASKING.get(self.0))
            .field("number", &self.number())
            .finish()
    }
}

/// The part of a holding that makes asks rare and short. Strictness does not depend on it.
///
/// | bits | |
/// |---|---|
/// | 127..118 | the number of the ask that it is about, modulo 2^10 |
/// | 117 | cells were denied only because other hosts hold some |
/// | 116 | scarce |
/// | 115..106 | hosts, 1023 if more |
/// | 105..93 | debt, 8191 if more |
/// | 92..80 | cells that were denied |
/// | 79..64 | the estimated demand: a 32-bit float without its sign and its last 15 bits |
/// | 63..32 | the tick when the latest ask was sent |
/// | 31..0 | the tick when to come back |
///
/// A hint about another ask than the latest one, or about another key, is none: see
/// [`RefillHint::is_about`].
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct RefillHint(u128);

const COME_BACK: Field = Field { at: 0, bits: 32 };
const SINCE: Field = Field { at: 32, bits: 32 };
const DEMAND: Field = Field { at: 64, bits: 16 };
const DENIED: Field = Field { at: 80, bits: 13 };
const DEBT: Field = Field { at: 93, bits: 13 };
const HOSTS: Field = Field { at: 106, bits: 10 };
const SCARCE: Field = Field { at: 116, bits: 1 };
const LENT: Field = Field { at: 117, bits: 1 };
const ABOUT: Field = Field { at: 118, bits: 10 };
/// The low bits that a 32-bit float has and [`DEMAND`] has not.
const FLOAT_BITS_CUT: u32 = 15;

impl RefillHint {
    /// The hint that has these bits.
    #[inline]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// The hint for a key of which nothing else is known: when the latest ask was seen.
    #[must_use]
    pub const fn seen(word: Word, now: Tick) -> Self {
        Self(ABOUT.put(word.number() % (1 << ABOUT.bits)) | SINCE.put(now.0 as u64))
    }

    /// Whether it is about the latest ask of this word.
    #[inline]
    pub const fn is_about(self, word: Word) -> bool {
        ABOUT.get(self.0) == word.number() % (1 << ABOUT.bits)
    }

    /// Adds to the debt.
    #[must_use]
    pub const fn charge(self, cells: u32) -> Self {
        self.with_debt(self.debt().saturating_add(cells))
    }

    /// Whether the store has said to come back later for `cells` cells more than are held. `word`
    /// is the word beside this hint.
    #[inline]
    pub fn blocks(self, word: Word, base: Base, now: Tick, cells: u32) -> Option<HostTime> {
        let come_back = self.come_back();
        let blocks = self.is_about(word)
            && now < come_back
            && come_back.0 - now.0 <= LONGEST_WAIT_TICKS
            && cells >= DENIED.get_u32(self.0);
        blocks.then(|| base.time(come_back))
    }

    const fn come_back(self) -> Tick {
        Tick(COME_BACK.get_u32(self.0))
    }

    /// Cells to charge that were not lent.
    pub const fn debt(self) -> u32 {
        DEBT.get_u32(self.0)
    }

    /// The same hint with this debt.
    #[must_use]
    pub const fn with_debt(self, debt: u32) -> Self {
        Self(self.0 & !DEBT.put(u64::MAX) | DEBT.put(debt as u64))
    }

    /// When the latest ask was sent.
    pub const fn since(self) -> Tick {
        Tick(SINCE.get_u32(self.0))
    }
}

impl fmt::Debug for RefillHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefillHint")
            .field("about", &ABOUT.get(self.0))
            .field("come_back", &COME_BACK.get(self.0))
            .field("since", &SINCE.get(self.0))
            .field("debt", &DEBT.get(self.0))
            .finish_non_exhaustive()
    }
}

/// A holding in two words.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Packed {
    /// The cells to spend and those to report.
    pub word: Word,
    /// The part that makes asks rare.
    pub hint: RefillHint,
}

impl Packed {
    /// The holding that the words stand for. A hint that cannot be right is not followed.
    pub fn holding(&self, base: Base, now: HostTime) -> Holding {
        let (word, hint) = (self.word.0, self.hint(base, now).0);
        let valid_until = Tick(VALID_UNTIL.get_u32(word));
        let is_possible = HELD.is_set(word) && self.word.held(base.tick(now)) > 0
            || valid_until <= base.tick(now);
        let since = base.time(Tick(SINCE.get_u32(hint)));
        // An ask that will be sent in the future counts as lost.
        let since = if since <= now.saturating_add(MOST_AHEAD) { since } else { HostTime(0) };
        let come_back = RefillHint(hint).come_back();
        let comes_back = come_back.0 <= base.tick(now).0.saturating_add(LONGEST_WAIT_TICKS);
        Holding {
            held: if is_possible { HELD.get_u32(word) } else { 0 },
            valid_until: base.time(valid_until),
            spent: SPENT.get_u32(word),
            debt: DEBT.get_u32(hint),
            come_back: if comes_back { base.time(come_back) } else { HostTime(0) },
            denied: DENIED.get_u32(hint),
            lent: LENT.is_set(hint),
            asking: ASKING
                .is_set(word)
                .then(|| Asking { number: AskNumber(self.word.number()), since }),
            fresh: FRESH.is_set(word),
        }
    }

    /// The known demand of this host. It is estimated from the spent cells: requests that are
    /// denied are not counted, because that would be an exchange for each of them.
    pub fn demand(&self, base: Base, now: HostTime) -> Demand {
        let hint = self.hint(base, now).0;
        let rate = f32::from_bits(DEMAND.get_u32(hint) << FLOAT_BITS_CUT);
        Demand {
            rate: if rate.is_finite() { f64::from(rate) } else { 0.0 },
            recent: self.word.unreported(),
            asked_at: SINCE.is_set(hint).then(|| base.time(Tick(SINCE.get_u32(hint)))),
            hosts: HOSTS.get_u32(hint),
            scarce: SCARCE.is_set(hint),
        }
    }

    /// The hint, if it is about this word.
    fn hint(&self, base: Base, now: HostTime) -> RefillHint {
        let is_about = self.hint.is_about(self.word);
        if is_about { self.hint } else { RefillHint::seen(self.word, base.tick(now)) }
    }

    /// The words of a holding. Of the key, and of a latest ask that has ended, they say what this
    /// one says.
    #[must_use]
    pub fn with(&self, base: Base, holding: &Holding, demand: &Demand) -> Self {
        let number = holding.asking.map_or(self.word.number(), |asking| in_word(asking.number));
        // No more than were asked for, whatever a store grants.
        let held = holding.held.min(MOST_CELLS.saturating_sub(holding.spent));
        let word = FINGERPRINT.put(self.word.fingerprint())
            | HELD.put(held.into())
            | FRESH.put(holding.fresh.into())
            | ASKING.put(holding.asking.is_some().into())
            | NUMBER.put(number)
            | SPENT.put(holding.spent.into())
            | VALID_UNTIL.put(base.tick(holding.valid_until).0.into());
        let since = match (holding.asking, demand.asked_at) {
            (Some(asking), _) => base.tick(asking.since),
            (None, Some(at)) => base.tick(at),
            (None, None) => Tick(0),
        };
        #[expect(clippy::cast_possible_truncation, reason = "it is an estimate")]
        let rate = (demand.rate.max(0.0) as f32).to_bits() >> FLOAT_BITS_CUT;
        let hint = ABOUT.put(number % (1 << ABOUT.bits))
            | LENT.put(holding.lent.into())
            | SCARCE.put(demand.scarce.into())
            | HOSTS.put(demand.hosts.into())
            | DEBT.put(holding.debt.into())
            | DENIED.put(holding.denied.into())
            | DEMAND.put(rate.into())
            | SINCE.put(since.0.into())
            | COME_BACK.put(base.tick_after(holding.come_back).0.into());
        Self { word: Word(word), hint: RefillHint(hint) }
    }

    /// The next step for a request of `cells`: see [`Holding::look`].
    pub fn look(&self, base: Base, now: HostTime, cells: u32, patience: Micros) -> Look {
        self.holding(base, now).look(now, cells, patience)
    }

    /// Begins an ask: see [`Holding::ask`]. No more is asked for than words can hold.
    #[must_use]
    pub fn ask(
        &self,
        base: Base,
        limit: &SharedLimit,
        now: HostTime,
        host: HostId,
        number: AskNumber,
        wish: Wish,
    ) -> (Self, Sent) {
        let (mut holding, mut demand) = (self.holding(base, now), self.demand(base, now));
        demand.ask(now);
        let space = MOST_CELLS.saturating_sub(holding.held(now));
        let wish = Wish {
            want: wish.want.max(wish.least).min(space),
            least: wish.least.min(space),
            ..wish
        };
        let sent = holding.ask(limit, now, host, number, wish);
        (self.with(base, &holding, &demand), sent)
    }

    /// Begins an ask that gives cells back: see [`Holding::give_back`].
    #[must_use]
    pub fn give_back(
        &self,
        base: Base,
        limit: &SharedLimit,
        now: HostTime,
        host: HostId,
        number: AskNumber,
        cells: u32,
    ) -> (Self, Sent) {
        let (mut holding, mut demand) = (self.holding(base, now), self.demand(base, now));
        demand.ask(now);
        let sent = holding.give_back(limit, now, host, number, cells);
        (self.with(base, &holding, &demand), sent)
    }

    /// Takes a reply: see [`Holding::reply`]. `None`: it is not taken.
    ///
    /// `newest` is the newest number that this host gave to an ask of any key, read after the
    /// word. A reply to an ask that is 2^20 asks old cannot be told from another reply, and is not
    /// taken.
    #[must_use]
    pub fn reply(
        &self,
        base: Base,
        now: HostTime,
        sent: &Sent,
        reply: &AskReply,
        newest: AskNumber,
    ) -> Option<Self> {
        if !self.word.waits_for(sent.ask.number, newest) {
            return None;
        }
        let (mut holding, mut demand) = (self.holding(base, now), self.demand(base, now));
        // The holding knows the number as the word writes it.
        let mut answered = *sent;
        answered.ask.number = AskNumber(in_word(sent.ask.number));
        demand.reply(reply.hosts, reply.scarce);
        let taken = holding.reply(now, &answered, reply);
        taken.then(|| self.with(base, &holding, &demand))
    }

    /// Ends an ask without a reply: see [`Holding::void`]. `None`: it was not the latest.
    #[must_use]
    pub fn void(&self, sent: &Sent, newest: AskNumber) -> Option<Self> {
        let latest = self.word.waits_for(sent.ask.number, newest);
        latest.then(|| Self { word: Word(self.word.0 & !ASKING.put(1)), ..*self })
    }
}

/// A holding and a demand as they come out of the words into which they were put. For tests in
/// which a tick takes 1024 µs.
#[cfg(test)]
pub(crate) fn through_words(
    base: Base,
    now: HostTime,
    holding: &Holding,
    demand: &Demand,
) -> (Holding, Demand) {
    let empty = Packed { word: Word::EMPTY, hint: RefillHint(0) };
    let packed = empty.with(base, holding, demand);
    assert!(holding.held(now) + holding.spent <= MOST_CELLS, "{holding:?}");
    (packed.holding(base, now), packed.demand(base, now))
}

/// The same for tests in which a tick takes `tick` µs (a power of two) and times count from
/// `begin`.
#[cfg(test)]
pub(crate) fn through_words_with_ticks(
    begin: HostTime,
    tick: u64,
    now: HostTime,
    holding: &Holding,
) -> Holding {
    let long = |time: HostTime| HostTime(time.saturating_since(begin).0 * 1024 / tick);
    let short = |time: HostTime| HostTime(begin.0 + time.0 * tick / 1024);
    let asking = |holding: &Holding, scale: &dyn Fn(HostTime) -> HostTime| {
        holding.asking.map(|asking| Asking { since: scale(asking.since), ..asking })
    };
    let scaled = Holding {
        valid_until: long(holding.valid_until),
        come_back: long(holding.come_back),
        asking: asking(holding, &long),
        ..*holding
    };
    let (packed, _) = through_words(Base(HostTime(0)), long(now), &scaled, &Demand::new());
    Holding {
        valid_until: short(packed.valid_until),
        come_back: short(packed.come_back),
        asking: asking(&packed, &short),
        ..packed
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::time::StoreTime;

    const BASE: Base = Base(HostTime(5_000_000));
    /// The longest time that the store may name.
    const LONGEST_WAIT: Micros = Micros::from_millis(60_000);
    const DAMAGED_WAIT: Micros = Micros::from_millis(61_001);
    const TICK: u64 = 1 << TICK_BITS;
    /// The moment of most tests: in the middle of a tick.
    const NOW: HostTime = HostTime(5_000_000 + 100_000 * TICK + 300);

    fn limit() -> SharedLimit {
        SharedLimit::new(Duration::from_millis(10), 20_000).unwrap()
    }

    /// A moment around now.
    fn moment() -> impl Strategy<Value = HostTime> {
        prop_oneof![
            4 => (0..8_000_u64).prop_map(|later| HostTime(NOW.0 - 4_000 + later)),
            2 => (0..120_000_000_u64).prop_map(|later| HostTime(NOW.0 - 60_000_000 + later)),
            1 => Just(HostTime(0)),
        ]
    }

    /// Cells held and cells spent.
    fn counts() -> impl Strategy<Value = (u32, u32)> {
        (0..=MOST_CELLS).prop_flat_map(|held| (Just(held), 0..=MOST_CELLS - held))
    }

    prop_compose! {
        fn any_holding()(
            (held, spent) in counts(),
            [valid_until, come_back, since] in [moment(), moment(), moment()],
            [debt, denied] in [0..9_000_u32, 0..8_192],
            number in prop::option::of(0..40_u64),
            lent: bool,
            fresh: bool,
        ) -> Holding {
            let come_back = come_back.min(NOW.saturating_add(LONGEST_WAIT));
            let since = since.min(NOW);
            let asking = number.map(|number| Asking { number: AskNumber(number), since });
            Holding { held, valid_until, spent, debt, come_back, denied, lent, asking, fresh }
        }
    }

    prop_compose! {
        fn any_reply()(
            number in 0..4_u64,
            [spent, debt, holds, kept, granted, least] in
                [0..40_u32, 0..40, 0..9_000, 0..9_000, 0..9_000, 0..9_000],
            at in moment(),
            validity in prop_oneof![20_000..30_000_u64, Just(500_000), Just(2_000_000)],
            wait in prop_oneof![Just(0), 1..60_000_000_u64],
            hosts in 0..2_000_u32,
            scarce: bool,
            lent: bool,
        ) -> (Sent, AskReply) {
            let number = AskNumber(number);
            let ask = crate::message::Ask {
                host: HostId(1), number, fresh: false, spent, debt, holds,
                owed_ago: crate::Ask::NOTHING_OWED,
                want: granted, least, validity: Micros(validity),
            };
            let come_back_after = Micros(wait);
            let now = StoreTime(0);
            let free = 0;
            let reply = AskReply {
                number, kept, granted, free, come_back_after, scarce, lent, hosts, now,
            };
            (Sent { ask, at: at.min(NOW) }, reply)
        }
    }

    fn packed(holding: &Holding) -> Packed {
        let empty = Packed { word: Word::announcement(77, AskNumber(3)), hint: RefillHint(0) };
        let (rate, asked_at) = (1e-4, Some(NOW));
        empty.with(BASE, holding, &Demand { rate, recent: 0, asked_at, hosts: 3, scarce: true })
    }

    /// Times that a word cannot hold are rounded to the safe side, by less than a tick.
    fn is_rounded_to_the_safe_side(holding: Holding, now: HostTime) -> Result<(), TestCaseError> {
        let now = now.max(BASE.0);
        let there = packed(&holding).holding(BASE, NOW);
        prop_assert!(there.held(now) <= holding.held(now));
        let tick_earlier = now.saturating_add(Micros(TICK));
        prop_assert!(there.held(now) >= holding.held(tick_earlier));
        prop_assert_eq!((there.spent, there.fresh), (holding.spent, holding.fresh));
        prop_assert_eq!(
            (there.debt, there.denied),
            (holding.debt.min(MOST_CELLS), holding.denied)
        );
        let number = |holding: &Holding| holding.asking.map(|asking| asking.number);
        prop_assert_eq!(number(&there), number(&holding));
        if holding.come_back > BASE.0 {
            prop_assert!((0..TICK).contains(&(there.come_back.0 - holding.come_back.0)));
        }
        if let (Some(there), Some(asking)) = (there.asking, holding.asking)
            && asking.since > BASE.0
        {
            prop_assert!((0..TICK).contains(&(asking.since.0 - there.since.0)));
        }
        prop_assert_eq!(packed(&there), packed(&holding), "rounding twice changes nothing");
        Ok(())
    }

    /// The steps that do not unpack the words.
    fn spends_as_a_holding(
        holding: Holding,
        now: HostTime,
        cells: u32,
    ) -> Result<(), TestCaseError> {
        let before = packed(&holding);
        let mut holding = before.holding(BASE, NOW);
        let (now, tick) = (now.max(BASE.0), BASE.tick(now));
        prop_assert_eq!(before.word.held(tick), holding.held(now));
        let look = before.look(BASE, now, cells, Micros::ZERO);
        prop_assert_eq!(before.word.has(tick, cells), look == Look::Enough);
        let lacking = cells.saturating_sub(before.word.held(tick));
        if lacking > 0 {
            let blocks = before.hint.blocks(before.word, BASE, tick, lacking);
            let until = match look {
                Look::Blocked { until } => Some(until),
                _ => None,
            };
            prop_assert_eq!(blocks, until);
        }
        let after = before.word.spend(tick, cells);
        prop_assert_eq!(after.is_some(), holding.spend(now, cells));
        let word = after.unwrap_or(before.word);
        let there = Packed { word, ..before }.holding(BASE, NOW);
        prop_assert_eq!(there, holding);
        if let Some(after) = after {
            prop_assert_eq!(after.fingerprint(), 77);
            prop_assert_eq!(after.unspend(after, cells), Some(before.word));
            let more = after.spend(tick, 1).unwrap_or(after);
            prop_assert!(more.unspend(after, cells).is_some(), "others spend as well");
        }
        Ok(())
    }

    /// The other steps, one after another.
    fn steps_as_a_holding(
        holding: Holding,
        now: HostTime,
        cells: u32,
        want: u32,
        (sent, reply): (Sent, AskReply),
    ) -> Result<(), TestCaseError> {
        // Not before the ask was sent.
        let now = now.max(NOW);
        let (host, number, newest) = (HostId(1), AskNumber(41), AskNumber(41));
        let before = packed(&holding);
        let holding = before.holding(BASE, now);
        let demand = before.demand(BASE, now);
        let stepped = |step: &dyn Fn(&mut Holding)| {
            let mut after = holding;
            step(&mut after);
            let number = after.asking.map(|asking| asking.number);
            let packed = before.with(BASE, &after, &demand);
            (packed.holding(BASE, now), number)
        };
        let is = |after: Packed| after.holding(BASE, now);
        prop_assert_eq!(
            before.look(BASE, now, cells, Micros(900)),
            holding.look(now, cells, Micros(900))
        );

        let wish = Wish { want, least: cells.min(want), validity: Micros(500_000) };
        let (after, asked) = before.ask(BASE, &limit(), now, host, number, wish);
        let space = MOST_CELLS - holding.held(now);
        let cut = Wish { want: want.min(space), least: cells.min(want).min(space), ..wish };
        prop_assert_eq!(asked, {
            let mut holding = holding;
            holding.ask(&limit(), now, host, number, cut)
        });
        prop_assert_eq!(
            is(after),
            stepped(&|holding| {
                holding.ask(&limit(), now, host, number, cut);
            })
            .0
        );
        prop_assert!(asked.ask.holds + asked.ask.want <= MOST_CELLS);

        let (after, _) = before.give_back(BASE, &limit(), now, host, number, cells);
        prop_assert_eq!(
            is(after),
            stepped(&|holding| {
                holding.give_back(&limit(), now, host, number, cells);
            })
            .0
        );

        let answered = stepped(&|holding| {
            holding.reply(now, &sent, &reply);
        })
        .0;
        let after = before.reply(BASE, now, &sent, &reply, newest);
        if let Some(after) = after {
            let all = after.word.cells() + after.word.unreported();
            prop_assert!(all <= MOST_CELLS, "{all}");
        }
        prop_assert_eq!(
            after.is_some(),
            holding.asking.is_some_and(|asking| asking.number == sent.ask.number)
        );
        prop_assert_eq!(after.map_or(holding, is), answered);

        let ended = stepped(&|holding| {
            holding.void(&sent);
        })
        .0;
        prop_assert_eq!(before.void(&sent, newest).map_or(holding, is), ended);

        let charged = Packed { hint: before.hint.charge(cells), ..before };
        prop_assert_eq!(is(charged), stepped(&|holding| holding.charge(cells)).0);
        Ok(())
    }

    /// Whatever the words hold, nothing is valid for longer than a lease can be, and a request
    /// waits no longer than for one.
    fn does_bounded_harm(word: u128, hint: u128, cells: u32) -> Result<(), TestCaseError> {
        let packed = Packed { word: Word(word), hint: RefillHint(hint) };
        let holding = packed.holding(BASE, NOW);
        let longest = NOW.saturating_add(Micros(1 << 30)).saturating_add(Micros(TICK));
        prop_assert_eq!(holding.held(longest), 0);
        prop_assert!(holding.come_back() <= NOW.saturating_add(DAMAGED_WAIT));
        let patience = Micros(50_000);
        prop_assert!(
            !holding.is_asking(NOW.saturating_add(MOST_AHEAD).saturating_add(patience), patience)
        );
        let _ = packed.word.spend(BASE.tick(NOW), cells);
        let (after, sent) = packed.ask(
            BASE,
            &limit(),
            NOW,
            HostId(1),
            AskNumber(9),
            Wish { want: cells, least: 1, validity: Micros(500) },
        );
        prop_assert!(sent.ask.holds <= MOST_CELLS && after.word.is_asking());
        let rate = packed.demand(BASE, NOW).rate;
        prop_assert!(rate.is_finite() && rate >= 0.0);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn rounding_is_on_the_safe_side(holding in any_holding(), now in moment()) {
            is_rounded_to_the_safe_side(holding, now)?;
        }

        #[test]
        fn spending_is_that_of_a_holding(
            holding in any_holding(),
            now in moment(),
            cells in prop_oneof![0..3_u32, 0..9_000_u32],
        ) {
            spends_as_a_holding(holding, now, cells)?;
        }

        #[test]
        fn steps_are_those_of_a_holding(
            holding in any_holding(),
            now in moment(),
            cells in 0..40_u32,
            want in 0..9_000_u32,
            answer in any_reply(),
        ) {
            steps_as_a_holding(holding, now, cells, want, answer)?;
        }

        #[test]
        fn damaged_words_do_bounded_harm(word: u128, hint: u128, cells in 0..9_000_u32) {
            does_bounded_harm(word, hint, cells)?;
        }
    }

    #[test]
    fn no_word_becomes_valid_again() {
        let holding = Holding { held: 3, valid_until: NOW, ..Holding::new() };
        let word = packed(&holding).word;
        assert_eq!(word.held(Tick(99_999)), 3);
        for now in [100_000, 100_001, 1 << 31, LAST_TICK - 1, LAST_TICK] {
            assert_eq!(word.held(Tick(now)), 0, "{now}");
        }
        // The last tick goes on for ever.
        let late = HostTime(BASE.0.0 + Base::LASTS.0 + 10_000_000);
        assert_eq!(BASE.tick(late), Tick(LAST_TICK));
        let holding = Holding { held: 3, valid_until: HostTime(late.0 + 1_000), ..Holding::new() };
        assert_eq!(packed(&holding).word.held(Tick(LAST_TICK)), 0);
        for now in [LAST_TICK - LONGEST_TICKS, LAST_TICK - 1] {
            assert_eq!(packed(&holding).word.held(Tick(now)), 3, "{now}");
            assert_eq!(
                packed(&Holding { valid_until: BASE.0, ..holding }).word.held(Tick(now)),
                0
            );
        }
    }

    #[test]
    fn a_reply_that_is_too_old_cannot_be_told_from_another() {
        let wish = Wish { want: 1, least: 1, validity: Micros(20_000) };
        let empty = Packed { word: Word::announcement(77, AskNumber(3)), hint: RefillHint(0) };
        assert!(empty.word.is_announcement());
        let (asking, sent) = empty.ask(BASE, &limit(), NOW, HostId(1), AskNumber(7), wish);
        assert!(!asking.word.is_announcement());
        let newest = |more: u64| AskNumber(7 + more);
        assert!(asking.void(&sent, newest(NUMBERS - 1)).is_some());
        assert!(asking.void(&sent, newest(NUMBERS)).is_none());
        let ended = asking.void(&sent, newest(0)).unwrap();
        assert!(ended.word.is_announcement() && ended.word != empty.word, "the number stays");
        assert!(ended.void(&sent, newest(0)).is_none(), "once");
    }

    #[test]
    fn cells_that_were_reported_stay_spent() {
        let holding =
            Holding { held: 3, valid_until: HostTime(NOW.0 + 500_000), ..Holding::new() };
        let before = packed(&Holding { fresh: false, ..holding });
        let tick = BASE.tick(NOW);
        let after = before.word.spend(tick, 2).unwrap();
        let wish = Wish { want: 1, least: 1, validity: Micros(20_000) };
        let spent = Packed { word: after, ..before };
        let (asking, sent) = spent.ask(BASE, &limit(), NOW, HostId(1), AskNumber(7), wish);
        assert_eq!(sent.ask.spent, 2);
        assert_eq!(asking.word.unspend(after, 2), None);
        let ended = asking.void(&sent, AskNumber(7)).unwrap();
        assert_eq!(ended.word.unspend(after, 2), None, "perhaps they were reported");
        assert_eq!(after.unspend(after, 2), Some(before.word));
    }

    #[test]
    fn advice_about_another_ask_is_none() {
        let holding = Holding {
            come_back: HostTime(NOW.0 + 500_000),
            fresh: false,
            debt: 3,
            asking: Some(Asking { number: AskNumber(8), since: HostTime(0) }),
            ..Holding::new()
        };
        let before = packed(&holding);
        assert!(before.hint.is_about(before.word));
        let other = Packed { word: Word::announcement(77, AskNumber(9)), ..before };
        let there = other.holding(BASE, NOW);
        assert_eq!((there.come_back, there.debt), (BASE.0, 0));
        // An ask of which nothing is known was sent just now.
        let hint = RefillHint::seen(Word::announcement(1, AskNumber(7)), Tick(0));
        let since = Packed { hint, ..before }.look(BASE, NOW, 1, Micros(2_000));
        assert!(matches!(since, Look::Waiting { .. }), "{since:?}");
    }
}
