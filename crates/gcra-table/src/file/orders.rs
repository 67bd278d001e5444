//! Orders: an operator wrote down that a client, or a network of clients, is exempt or blocked for
//! a while, or that all clients of a policy are reset. All processes that use the table follow.
//!
//! The table does not look at them when it charges. The processes read them about once a second,
//! and decide by them.

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv6Addr};
use std::collections::HashSet;

use crate::file::checked::{Checked, Checksum, Seen, text_in_words, text_to_words};
use crate::hash::SipHasher;
use crate::key::KeyHash;
use crate::sentences::sentences;
use crate::sync::{Ordering, fence};
use crate::time::{Nanos, Time};

/// How many orders a table can hold at a time.
pub const MOST_ORDERS: usize = 512;

/// The longest time for which an order can be in force.
pub const LONGEST_ORDER: Nanos = Nanos::from_secs(7 * 24 * 3600);

/// How much later than ours the clock reading of another process may be.
const CLOCK_SLACK: Nanos = Nanos::from_secs(10);

/// The most bytes of the texts of an order that are kept, in words of 8.
const KEY_WORDS: usize = 10;
const NOTE_WORDS: usize = 8;
const GIVER_WORDS: usize = 6;

/// The words before the texts: policy; kind; two of the target; until; given; the lengths of the
/// texts, and above them how many seconds later the table got it.
const NUMBERS: usize = 7;

const SECOND: u64 = Nanos::from_secs(1).0;

const WORDS: usize = NUMBERS + KEY_WORDS + NOTE_WORDS + GIVER_WORDS;

/// The most bytes of a note that are kept.
pub const LONGEST_NOTE: usize = 8 * NOTE_WORDS;

/// The kind of an entry that resets a policy.
const RESET: u64 = 3;

/// How often an order is written again if another process was faster in the same place. So many
/// write at once.
const ATTEMPTS: usize = 64;

/// What is ordered about a client.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum OrderKind {
    /// Its requests are allowed, and charged nothing.
    Exempt,
    /// Its requests are blocked, and charged nothing.
    Block,
}

/// The clients that an order is about.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum OrderTarget {
    /// The one with this key, as the policy makes it.
    Client {
        /// Not the key [under](KeyHash::under) a limit.
        key: KeyHash,
        /// How many bits the groups of addresses in this key have in common, of IPv4 and of IPv6:
        /// a larger group can have the same key. `None` where the key has no group of the policy.
        groups: [Option<u8>; 2],
    },
    /// Those whose address is in this network.
    Network {
        /// The first address of the network.
        first: IpAddr,
        /// How many bits of the address are those of the network.
        prefix: u8,
    },
}

/// An order about clients, until a certain time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Order {
    /// The [id](crate::limit_id) of the policy whose clients it is about.
    pub policy: u64,
    /// Whether they are exempt or blocked.
    pub kind: OrderKind,
    /// Which clients.
    pub target: OrderTarget,
    /// When it ends.
    pub until: Time,
    /// When it was given. Of two orders about the same clients, the later one counts.
    pub given: Time,
    /// When this table got it, in whole seconds after it was given. It may have been given on
    /// another machine.
    pub since: Time,
    /// The client or the network, for people. The table keeps the first 80 bytes, and only
    /// printable characters are read; so it is with the other texts.
    pub key: String,
    /// Why it was given, or an empty text. The table keeps the first 64 bytes.
    pub note: String,
    /// Who gave it. The table keeps the first 48 bytes.
    pub giver: String,
}

/// All clients of a policy were reset: its buckets from before count no more.
///
/// The table leaves these buckets as they are. The processes make the moment a part of the
/// [ids](crate::limit_id) of the policy's limits, so that each client has another bucket from then
/// on. Therefore a reset has no end: without it, the former buckets would count again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyReset {
    /// The [id](crate::limit_id) of the policy.
    pub policy: u64,
    /// When, in nanoseconds since 1970 by the wall clock. A later reset of the policy has a
    /// greater number, also if the wall clock was set back.
    pub at: u64,
    /// Who gave it. The table keeps the first 48 bytes.
    pub giver: String,
}

sentences! {
    /// Why an order could not be written down.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[non_exhaustive]
    pub enum OrderError {
        Full => "there are 512 orders already";
        /// The order could be lost in the move.
        BeingResized => "the table is being resized; try again";
    }
}

impl core::error::Error for OrderError {}

/// A place for an order in the header.
#[derive(Debug)]
#[repr(C, align(256))]
pub(crate) struct OrderEntry {
    words: Checked<WORDS>,
}

const _: () = assert!(cfg!(gcra_model) || size_of::<OrderEntry>() == 256);

/// The orders in a table's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders<'a> {
    entries: &'a [OrderEntry],
    checksum: Checksum,
    now: Time,
}

impl<'a> Orders<'a> {
    pub(crate) fn new(entries: &'a [OrderEntry], hasher: SipHasher, now: Time) -> Self {
        Self { entries, checksum: Checksum::new(hasher, b"gcra-table order"), now }
    }

    /// Those that have not ended, the one about each client or network that [stays](Self::put), in
    /// no particular order. Damaged ones are left out.
    pub(crate) fn all(self) -> Vec<Order> {
        let mut all = self.at_one_moment(|| self.entries.iter().filter_map(|it| self.read(it)));
        // A process may be killed before it removes an earlier one.
        all.sort_by_key(|order| Reverse(order.given));
        let mut known = HashSet::with_capacity(all.len());
        all.retain(|order| known.insert((order.policy, order.target)));
        all
    }

    /// All that the entries had at one moment. An order that is given anew gets another place, so
    /// a reader could come too late for the one and too early for the other.
    fn at_one_moment<T, I: Iterator<Item = T>>(self, read: impl Fn() -> I) -> Vec<T> {
        let seen = || self.places().map(|(_, seen)| seen);
        let mut all = Vec::new();
        for _ in 0..ATTEMPTS {
            let before: Vec<_> = seen().collect();
            all = read().collect();
            fence(Ordering::Acquire);
            if seen().eq(before) {
                break;
            }
        }
        all
    }

    /// The last reset of each policy.
    pub(crate) fn resets(self) -> Vec<PolicyReset> {
        let read = || self.entries.iter().filter_map(|entry| self.read_reset(entry));
        let mut all = self.at_one_moment(read);
        all.sort_by_key(|reset| (reset.policy, Reverse(reset.at)));
        all.dedup_by_key(|reset| reset.policy);
        all
    }

    /// Writes down a reset, unless a later one of the policy is known. False when there is no
    /// space.
    pub(crate) fn put_reset(self, reset: &PolicyReset) -> bool {
        let words = reset.to_words();
        for _ in 0..ATTEMPTS {
            let known = |entry: &OrderEntry| {
                self.read_reset(entry).filter(|known| known.policy == reset.policy)
            };
            if self.entries.iter().filter_map(known).any(|known| known.at >= reset.at) {
                return true;
            }
            // It gets a place of its own, and then the earlier one goes: so a process that is
            // killed here does not bring back what was forgiven before.
            let place = self.free_place();
            let place = place.or_else(|| self.places().find(|(it, _)| known(it).is_some()));
            let Some((entry, seen)) = place else { return false };
            if entry.words.write(self.checksum, seen, words) {
                for entry in self.entries {
                    entry.words.remove(self.checksum, |words| {
                        PolicyReset::from_words(words).is_some_and(|known| {
                            known.policy == reset.policy && known.at < reset.at
                        })
                    });
                }
                return true;
            }
        }
        false
    }

    /// Writes down an order, unless a later one about the same clients of the same policy is
    /// known. One that ends now, or has ended, only removes what was not given later. False when
    /// there is no space.
    ///
    /// Of several entries about the same clients, the one that was given last stays. Of equally
    /// late ones, the one in the first place stays. A process removes an entry only if it has seen
    /// another one that stays rather than this one. So the entry that stays is never removed.
    pub(crate) fn put(self, order: &Order) -> bool {
        let latest = self.now.saturating_add(LONGEST_ORDER);
        let words = order.to_words(order.until.min(latest));
        if order.until <= self.now {
            for (entry, _, known) in self.about(order) {
                if known.given <= order.given {
                    self.remove(entry, &known);
                }
            }
            return true;
        }
        for _ in 0..ATTEMPTS {
            let known = self.about(order).min_by_key(|(.., known)| Reverse(known.given));
            let is_there =
                |known: &Order| known.given > order.given || known.to_words(known.until) == words;
            let place = match known {
                Some((.., known)) if is_there(&known) => {
                    self.keep_latest(order);
                    return true;
                }
                // Given at the same time, as before this machine was started.
                Some((entry, seen, known)) if known.given == order.given => Some((entry, seen)),
                // A place of its own: a process that is killed here leaves the earlier one.
                Some((entry, seen, _)) => self.free_place().or(Some((entry, seen))),
                None => self.free_place(),
            };
            let Some((entry, seen)) = place else { return false };
            if entry.words.write(self.checksum, seen, words) {
                self.keep_latest(order);
                return true;
            }
        }
        false
    }

    /// Removes all about the same clients but the one that stays.
    fn keep_latest(self, order: &Order) {
        // Of two processes, one at least sees the other's.
        fence(Ordering::SeqCst);
        let mut known: Vec<_> = self.about(order).collect();
        known.sort_by_key(|(.., known)| Reverse(known.given));
        for (entry, _, known) in known.iter().skip(1) {
            self.remove(entry, known);
        }
    }

    /// The entries about the same clients of the same policy, in the order of their places.
    fn about(self, order: &Order) -> impl Iterator<Item = (&'a OrderEntry, Seen, Order)> {
        self.places().filter_map(move |(entry, seen)| {
            let known = self.read(entry).filter(|known| known.is_about(order))?;
            Some((entry, seen, known))
        })
    }

    /// Makes a place free if it has this order, and not if another process writes one there.
    fn remove(self, entry: &OrderEntry, known: &Order) {
        entry
            .words
            .remove(self.checksum, |words| Order::from_words(words).as_ref() == Some(known));
    }

    /// Writes down what another table says.
    pub(crate) fn take_over(self, other: Orders<'_>) {
        for order in other.all() {
            // There is space: the other table has no more of them.
            let _ = self.put(&order);
        }
        for reset in other.resets() {
            let _ = self.put_reset(&reset);
        }
    }

    fn read_reset(self, entry: &OrderEntry) -> Option<PolicyReset> {
        PolicyReset::from_words(entry.words.read(self.checksum)?)
    }

    fn read(self, entry: &OrderEntry) -> Option<Order> {
        let order = Order::from_words(entry.words.read(self.checksum)?)?;
        // A time that is too late is damage that the checksum does not show. (Another process may
        // have read its clock after we have read ours.)
        let latest = self.now.saturating_add(LONGEST_ORDER).saturating_add(CLOCK_SLACK);
        (self.now < order.until && order.until <= latest).then_some(order)
    }

    /// The places, each with its checksum from before it is read.
    fn places(self) -> impl Iterator<Item = (&'a OrderEntry, Seen)> {
        self.entries.iter().map(|entry| (entry, entry.words.seen()))
    }

    /// One that holds nothing or has ended; else one whose writer was killed, or is writing now:
    /// then, and so only if there is no other place, both orders may be lost.
    fn free_place(self) -> Option<(&'a OrderEntry, Seen)> {
        let is_unused = |(entry, _): &(&'a OrderEntry, Seen)| {
            self.read(entry).is_none() && self.read_reset(entry).is_none()
        };
        let unused = || self.places().filter(is_unused);
        unused().find(|(_, seen)| !seen.is_being_written()).or_else(|| unused().next())
    }
}

impl OrderKind {
    const fn number(self) -> u64 {
        match self {
            Self::Exempt => 1,
            Self::Block => 2,
        }
    }

    const fn of_number(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Exempt),
            2 => Some(Self::Block),
            _ => None,
        }
    }
}

impl OrderTarget {
    /// What it is (0: a client, 4 and 6: a network) with the prefix lengths above it, and its key
    /// or address.
    fn to_words(self) -> (u64, [u64; 2]) {
        match self {
            Self::Client { key, groups: [v4, v6] } => {
                let number = |group: Option<u8>| group.map_or(0, |bits| u64::from(bits) + 1);
                (number(v4) << 8 | number(v6) << 16, [key.0, 0])
            }
            Self::Network { first, prefix } => {
                let (family, bits) = match first {
                    IpAddr::V4(ip) => (4, u128::from(ip.to_bits())),
                    IpAddr::V6(ip) => (6, ip.to_bits()),
                };
                let [low, high] = halves(bits);
                (family | u64::from(prefix) << 8, [low, high])
            }
        }
    }

    fn from_words(what: u64, [low, high]: [u64; 2]) -> Option<Self> {
        if what & 0xff == 0 {
            let (v4, v6) = (what >> 8 & 0xff, what >> 16);
            let group = |number: u64| u8::try_from(number).ok()?.checked_sub(1);
            let is_known = v4 <= 33 && v6 <= 129;
            let groups = [group(v4), group(v6)];
            return is_known.then_some(Self::Client { key: KeyHash(low), groups });
        }
        let prefix = u8::try_from(what >> 8).ok()?;
        let (first, most) = match what & 0xff {
            4 => (IpAddr::V4(u32::try_from(low).ok()?.into()), 32),
            6 => {
                let bits = u128::from(high) << 64 | u128::from(low);
                (IpAddr::V6(Ipv6Addr::from_bits(bits)), 128)
            }
            _ => return None,
        };
        (prefix <= most).then_some(Self::Network { first, prefix })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of the word")]
const fn halves(word: u128) -> [u64; 2] {
    [word as u64, (word >> 64) as u64]
}

impl Order {
    /// Whether both are about the same clients of the same policy.
    fn is_about(&self, other: &Self) -> bool {
        (self.policy, self.target) == (other.policy, other.target)
    }

    fn to_words(&self, until: Time) -> [u64; WORDS] {
        let (key, key_length) = text_to_words::<KEY_WORDS>(&self.key);
        let (note, note_length) = text_to_words::<NOTE_WORDS>(&self.note);
        let (giver, giver_length) = text_to_words::<GIVER_WORDS>(&self.giver);
        let (what, [low, high]) = self.target.to_words();
        let kind = self.kind.number() | what << 8;
        let lengths = [key_length, note_length, giver_length];
        let late = self.since.saturating_since(self.given).0 / SECOND;
        let lengths = lengths.iter().rev().fold(late, |all, length| all << 8 | *length as u64);
        let numbers = [self.policy, kind, low, high, until.0, self.given.0, lengths];
        let mut words = [0; WORDS];
        let all = numbers.iter().chain(&key).chain(&note).chain(&giver);
        words.iter_mut().zip(all).for_each(|(word, value)| *word = *value);
        words
    }

    /// `None` for an order that this version does not know.
    fn from_words(words: [u64; WORDS]) -> Option<Self> {
        let [policy, kind, low, high, until, given, lengths, texts @ ..] = words;
        let (key, texts) = texts.split_at(KEY_WORDS);
        let (note, giver) = texts.split_at(NOTE_WORDS);
        let text = |words: &[u64], place: u32| {
            text_in_words(words, (lengths >> (8 * place) & 0xff) as usize)
        };
        Some(Self {
            policy,
            kind: OrderKind::of_number(kind & 0xff)?,
            target: OrderTarget::from_words(kind >> 8, [low, high])?,
            until: Time(until),
            given: Time(given),
            since: Time(given).saturating_add(Nanos((lengths >> 24).saturating_mul(SECOND))),
            key: text(key, 0),
            note: text(note, 1),
            giver: text(giver, 2),
        })
    }
}

impl PolicyReset {
    fn to_words(&self) -> [u64; WORDS] {
        let (giver, length) = text_to_words::<GIVER_WORDS>(&self.giver);
        let numbers = [self.policy, RESET, self.at, 0, 0, 0, (length as u64) << 16];
        let none = [0; KEY_WORDS + NOTE_WORDS];
        let mut words = [0; WORDS];
        let all = numbers.iter().chain(&none).chain(&giver);
        words.iter_mut().zip(all).for_each(|(word, value)| *word = *value);
        words
    }

    /// `None` for another order.
    fn from_words(words: [u64; WORDS]) -> Option<Self> {
        let [policy, RESET, at, 0, 0, 0, lengths, texts @ ..] = words else { return None };
        let giver = text_in_words(
            texts.split_at(KEY_WORDS + NOTE_WORDS).1,
            (lengths >> 16 & 0xff) as usize,
        );
        Some(Self { policy, at, giver })
    }
}

#[cfg(all(test, not(gcra_model)))]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Barrier;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn entries(count: usize) -> Vec<OrderEntry> {
        (0..count).map(|_| OrderEntry { words: Checked::free() }).collect()
    }

    fn at(entries: &[OrderEntry], now: Time) -> Orders<'_> {
        Orders::new(entries, SipHasher::new(b"0123456789abcdef"), now)
    }

    fn s(seconds: u64) -> Time {
        Time(Nanos::from_secs(seconds).0)
    }

    fn client(key: u64, groups: [Option<u8>; 2]) -> OrderTarget {
        OrderTarget::Client { key: KeyHash(key), groups }
    }

    fn order(policy: u64, key: u64, until: Time) -> Order {
        Order {
            policy,
            kind: if key.is_multiple_of(2) { OrderKind::Exempt } else { OrderKind::Block },
            target: client(key, [None; 2]),
            until,
            given: s(1),
            since: s(1 + key),
            key: format!("client {key}"),
            note: String::new(),
            giver: "anna".to_owned(),
        }
    }

    #[test]
    fn an_order_begins_is_changed_and_ends() {
        let entries = entries(4);
        let all = |now| at(&entries, now).all();
        assert_eq!(all(s(1)), []);
        let first = order(1, 7, s(10));
        assert!(at(&entries, s(1)).put(&first));
        assert_eq!(all(s(2)), std::slice::from_ref(&first));
        let other_policy = order(2, 7, s(10));
        assert!(at(&entries, s(1)).put(&other_policy));
        assert_eq!(all(s(9)), [first, other_policy.clone()]);
        assert_eq!(all(s(10)), [], "both have ended");

        let other_kind = Order { kind: OrderKind::Exempt, ..order(1, 7, s(20)) };
        assert!(at(&entries, s(2)).put(&other_kind));
        assert_eq!(all(s(3)), [other_kind, other_policy.clone()], "a client has one order");
        assert!(at(&entries, s(4)).put(&order(1, 7, s(4))), "ends now");
        assert_eq!(all(s(4)), [other_policy]);
        assert!(at(&entries, s(4)).put(&order(3, 3, s(1))), "there is none to end");
    }

    /// As processes do that write at the same time.
    fn three_at_once(write: impl Fn(u64) + Sync) {
        let barrier = Barrier::new(3);
        thread::scope(|scope| {
            for number in 0..3 {
                let (barrier, write) = (&barrier, &write);
                scope.spawn(move || {
                    barrier.wait();
                    write(number);
                });
            }
        });
    }

    /// As agents of one table do that learn of an order at the same time.
    #[test]
    fn an_order_that_several_write_at_once_is_there_once() {
        for round in 0..2_000 {
            let entries = entries(8);
            three_at_once(|late| {
                let given = s(1 + late * (round % 2));
                assert!(at(&entries, s(4)).put(&Order { given, ..order(1, 7, s(10)) }));
            });
            let all = at(&entries, s(4)).all();
            assert_eq!(all.len(), 1, "{all:?}");
        }
    }

    #[test]
    fn of_two_that_a_killed_process_left_the_later_counts_and_ends_with_the_other() {
        let entries = entries(4);
        let later = Order { kind: OrderKind::Exempt, given: s(2), ..order(1, 7, s(20)) };
        let orders = at(&entries, s(3));
        for (place, left) in [order(1, 7, s(10)), later.clone()].into_iter().enumerate() {
            let words = left.to_words(left.until);
            let place = &entries[place].words;
            assert!(place.write(orders.checksum, place.seen(), words));
        }
        assert_eq!(orders.all(), std::slice::from_ref(&later));
        assert!(orders.put(&Order { until: Time::ZERO, ..later }));
        assert_eq!(orders.all(), []);
    }

    #[test]
    fn an_order_that_is_given_anew_is_seen_once_at_each_moment() {
        let entries = entries(8);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        assert!(at(&entries, s(4)).put(&order(1, 7, s(10))));
        let wrong = thread::scope(|scope| {
            for key in [7, 8] {
                let (entries, is_over) = (&entries, &is_over);
                scope.spawn(move || {
                    // Another one comes and goes, so that other places are free.
                    for given in 2.. {
                        let until = if key == 8 && given % 2 == 0 { s(0) } else { s(10) };
                        let again = Order { given: Time(s(1).0 + given), ..order(1, key, until) };
                        assert!(at(entries, s(4)).put(&again));
                        if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            let once =
                |all: &Vec<Order>| all.iter().filter(|it| it.key == "client 7").count() == 1;
            let wrong = (0..20_000).map(|_| at(&entries, s(4)).all()).find(|all| !once(all));
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            wrong
        });
        assert_eq!(wrong, None);
    }

    #[test]
    fn orders_that_several_write_at_once_are_all_there() {
        for _ in 0..2_000 {
            let entries = entries(4);
            three_at_once(|number| match number {
                0 => assert!(at(&entries, s(4)).put_reset(&reset(1, 5))),
                _ => assert!(at(&entries, s(4)).put(&order(1, number, s(10)))),
            });
            let mut all: Vec<_> =
                at(&entries, s(4)).all().into_iter().map(|order| order.key).collect();
            all.sort_unstable();
            assert_eq!(all, ["client 1", "client 2"]);
            assert_eq!(at(&entries, s(4)).resets(), [reset(1, 5)]);
        }
    }

    #[test]
    fn there_is_a_bound_in_number_and_time() {
        let entries = entries(4);
        for key in 0..4 {
            assert!(at(&entries, s(1)).put(&order(1, key, s(5))));
        }
        assert!(!at(&entries, s(1)).put(&order(1, 4, s(5))), "no space");
        assert!(at(&entries, s(1)).put(&order(1, 3, s(6))), "one that is known has its place");
        assert!(at(&entries, s(5)).put(&order(1, 4, Time(u64::MAX))), "others have ended");
        let latest = s(5).saturating_add(LONGEST_ORDER);
        assert!(at(&entries, s(5)).all().iter().any(|found| found.until == latest));
        assert_eq!(at(&entries, latest).all().len(), 0);
    }

    #[test]
    fn what_is_damaged_is_free_and_hostile_texts_are_harmless() {
        let entries = entries(2);
        let hostile = Order {
            key: format!("\x1b[2J\n{}ä", "x".repeat(74)),
            note: "\u{202e}note\r".to_owned(),
            giver: "g".repeat(60),
            ..order(1, 1, s(10))
        };
        assert!(at(&entries, s(1)).put(&hostile));
        let read = at(&entries, s(1)).all().remove(0);
        assert_eq!(read.key, format!("?[2J?{}", "x".repeat(74)));
        assert!(!read.note.contains(['\r', '\n']), "{:?}", read.note);
        assert_eq!(read.giver, "g".repeat(48));
        entries[0].words.flip(2);
        assert_eq!(at(&entries, s(1)).all().len(), 0);
        entries[1].words.break_off();
        for key in 0..2 {
            assert!(at(&entries, s(1)).put(&order(1, key, s(10))));
        }
        assert_eq!(at(&entries, s(1)).all().len(), 2);
    }

    #[test]
    fn what_a_newer_version_wrote_is_no_order() {
        let known = order(1, 1, s(10)).to_words(s(10));
        assert!(Order::from_words(known).is_some());
        let with = |kind: u64| {
            let mut words = known;
            words[1] = kind;
            Order::from_words(words)
        };
        let of_clients = [0x22_0001, 0x8200_0001, 0x1_0000_0001];
        let of_networks = [0, 3, 0x0501, 0x21_0401, 0x81_0601, 0x100_0401];
        for unknown in of_clients.into_iter().chain(of_networks) {
            assert_eq!(with(unknown), None, "{unknown:x}");
        }
        assert!(with(0x20_0401).is_some() && with(0x80_0602).is_some());
        let target = |kind| with(kind).unwrap().target;
        assert_eq!(target(0x8121_0001), client(1, [Some(32), Some(128)]));
        assert_eq!(target(0x4100_0001), client(1, [None, Some(64)]));
        assert_eq!(target(0x0001_0001), client(1, [Some(0), None]));
    }

    #[test]
    fn a_successor_takes_them_over() {
        let (old, new) = (entries(4), entries(4));
        for key in 0..3 {
            assert!(at(&old, s(1)).put(&order(1, key, s(10 + key))));
        }
        at(&new, s(10)).take_over(at(&old, s(10)));
        assert_eq!(at(&new, s(10)).all().len(), 2);
    }

    fn reset(policy: u64, at: u64) -> PolicyReset {
        PolicyReset { policy, at, giver: "anna".to_owned() }
    }

    #[test]
    fn the_last_reset_of_a_policy_counts_and_has_no_end() {
        let (entries, new) = (entries(4), entries(4));
        assert!(at(&entries, s(1)).put(&order(1, 7, s(10))));
        for (policy, moment) in [(1, 5), (2, 9), (1, 8), (1, 6)] {
            assert!(at(&entries, s(1)).put_reset(&reset(policy, moment)));
        }
        let all = |entries: &[OrderEntry], now| at(entries, now).resets();
        assert_eq!(all(&entries, s(1)), [reset(1, 8), reset(2, 9)], "and 6 was earlier than 8");
        assert_eq!(at(&entries, s(1)).all().len(), 1, "a client's order is another thing");
        assert_eq!(all(&entries, Time(u64::MAX)), [reset(1, 8), reset(2, 9)]);
        at(&new, s(20)).take_over(at(&entries, s(20)));
        assert_eq!(all(&new, s(20)), [reset(1, 8), reset(2, 9)]);
        assert_eq!(at(&new, s(20)).all().len(), 0);
    }

    #[test]
    fn a_reset_that_breaks_off_leaves_the_earlier_one() {
        let entries = entries(2);
        let put = |policy, moment| at(&entries, s(1)).put_reset(&reset(policy, moment));
        assert!(put(1, 5));
        entries[1].words.break_off();
        assert_eq!(at(&entries, s(1)).resets(), [reset(1, 5)]);
        assert!(put(1, 6));
        assert_eq!(at(&entries, s(1)).resets(), [reset(1, 6)]);
        assert!(at(&entries, s(1)).put(&order(1, 7, s(10))), "the place of the earlier is free");
        assert!(!put(2, 6) && !at(&entries, s(1)).put(&order(1, 8, s(10))), "no space");
        assert!(put(1, 7), "a policy that has a place keeps it");
        assert_eq!(at(&entries, s(1)).resets(), [reset(1, 7)]);
    }

    fn any_target() -> impl Strategy<Value = OrderTarget> {
        let v4 = (0_u32..2, 30_u8..=32).prop_map(|(ip, prefix)| OrderTarget::Network {
            first: IpAddr::V4(ip.into()),
            prefix,
        });
        let v6 = (0_u128..2, 127_u8..=128).prop_map(|(ip, prefix)| OrderTarget::Network {
            first: IpAddr::V6(ip.into()),
            prefix,
        });
        let group = |most: u8| prop::option::of(prop_oneof![Just(0), most - 1..=most]);
        let clients = (0_u64..2, group(32), group(128));
        prop_oneof![clients.prop_map(|(key, v4, v6)| client(key, [v4, v6])), v4, v6]
    }

    proptest! {
        /// The entries are a map from policy and target to the order that was given last, which
        /// forgets what has ended.
        #[test]
        fn the_entries_are_a_map(
            steps in prop::collection::vec(
                (0_u64..2, any_target(), any::<bool>(), 0_u64..20, "[a-z]{0,90}"), 1..60
            ),
        ) {
            let (entries, mut model) = (entries(8), BTreeMap::new());
            for (now, (policy, target, blocks, lasts, text)) in (1..).zip(steps) {
                let order = Order {
                    policy,
                    kind: if blocks { OrderKind::Block } else { OrderKind::Exempt },
                    target,
                    until: s(now + lasts),
                    given: s(now),
                    since: s(now + lasts),
                    key: text[..text.len().min(80)].to_owned(),
                    note: text[..text.len().min(64)].to_owned(),
                    giver: text[..text.len().min(48)].to_owned(),
                };
                model.retain(|_, (known, _): &mut (Order, u64)| known.until > s(now));
                let place = format!("{policy} {target:?}");
                let fits = lasts == 0 || model.contains_key(&place) || model.len() < 8;
                prop_assert_eq!(at(&entries, s(now)).put(&order), fits);
                match lasts {
                    0 => drop(model.remove(&place)),
                    _ if fits => drop(model.insert(place, (order, now))),
                    _ => {}
                }
                let mut found = at(&entries, s(now)).all();
                found.sort_by_key(|order| format!("{} {:?}", order.policy, order.target));
                let right: Vec<_> = model.values().map(|(order, _)| order.clone()).collect();
                prop_assert_eq!(found, right);
            }
        }
    }
}

/// An entry has 30 words, which is too much for loom.
#[cfg(all(test, gcra_shuttle))]
mod model {
    use shuttle::{sync::Arc, thread};

    use super::*;

    fn at(entries: &[OrderEntry]) -> Orders<'_> {
        Orders::new(entries, SipHasher::new(b"0123456789abcdef"), Time(10))
    }

    fn order(given: u64, until: u64) -> Order {
        Order {
            policy: 1,
            kind: OrderKind::Block,
            target: OrderTarget::Client { key: KeyHash(7), groups: [None; 2] },
            until: Time(until),
            given: Time(given),
            since: Time(given),
            key: String::new(),
            note: String::new(),
            giver: String::new(),
        }
    }

    /// Three processes give orders about the same client at once, or end an earlier one.
    fn three_give() {
        for orders in
            [[(1, 90), (1, 90), (1, 90)], [(1, 90), (2, 90), (3, 90)], [(1, 90), (2, 90), (1, 0)]]
        {
            let entries = Arc::new([(); 4].map(|()| OrderEntry { words: Checked::free() }));
            let put = |(given, until)| {
                let entries = entries.clone();
                move || assert!(at(&*entries).put(&order(given, until)), "there is space")
            };
            let others: Vec<_> = orders[1..].iter().map(|it| thread::spawn(put(*it))).collect();
            put(orders[0])();
            others.into_iter().for_each(|other| other.join().unwrap());
            let all = at(&*entries).all();
            let last = orders.iter().max_by_key(|(given, _)| given).unwrap();
            assert_eq!(all, [order(last.0, last.1)], "the last one is there, once");
        }
    }

    #[test]
    fn of_orders_that_several_give_the_last_is_there_once() {
        crate::model::model(None, three_give);
    }
}
