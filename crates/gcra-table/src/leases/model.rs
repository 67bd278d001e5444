//! The interleavings of spending, asking, replies, evictions and openings of entries: `make loom`
//! and `make shuttle`, as for the table (`model.rs` there).
//!
//! The store is the real [`Record`], one for each key. In every order, no more cells are spent
//! than a burst, and a key has one word. That word says no more than the store's lease: no cell
//! that is not lent to this host, and no cell for longer. Each step that these checks depend on
//! has a twin that goes without the step, and must fail.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Mutex;

use gcra_lease::{
    AskNumber, AskReply, Base, HostId, HostTime, Look, Micros, NUMBERS, Packed, Record,
    RefillHint, Sent, SharedLimit, StoreTime, Wish, Word,
};
#[cfg(gcra_loom)]
use loom::{sync::Arc, thread};
#[cfg(gcra_shuttle)]
use shuttle::{sync::Arc, thread};

use crate::leases::set::{LeasesShared, Memory, Place, SET_ENTRIES, Set};
use crate::model::models;

const HOST: HostId = HostId(1);
const NOW: HostTime = HostTime(1 << 30);
const PATIENCE: Micros = Micros(50_000);
/// When an ask that was sent now counts as lost.
const LATER: HostTime = NOW.saturating_add(PATIENCE);
const VALIDITY: Micros = Micros(2_000_000);
const K: u64 = 7;
const OTHER: u64 = 8;
const KEYS: usize = 12;

/// One cell a minute: in a model none drains.
fn limit(burst: u32) -> SharedLimit {
    SharedLimit::new(Duration::from_secs(60), burst).unwrap()
}

/// A set, and what the store knows of its keys.
struct World {
    set: Set,
    shared: LeasesShared,
    records: [Mutex<Record>; KEYS],
    burst: u32,
    /// The largest number of an ask that was begun for each key.
    largest: [AtomicU64; KEYS],
    /// The store's clock, which does not go back.
    clock: AtomicU64,
    /// Whether replies or the store's memory are lost. Then hosts may report cells that the store
    /// has charged, or has forgotten.
    lossy: bool,
}

impl World {
    fn new(burst: u32) -> Self {
        Self {
            set: Set::new(),
            shared: LeasesShared::new(),
            records: core::array::from_fn(|_| Mutex::new(Record::new(StoreTime(NOW.0)))),
            burst,
            largest: Default::default(),
            clock: AtomicU64::new(NOW.0),
            lossy: false,
        }
    }

    fn place(&self, key: u64) -> Place<'_> {
        let memory = Memory { host: HOST, base: Base(HostTime(0)), shared: &self.shared };
        Place::new(&self.set, key, memory)
    }

    fn put(&self, position: usize, entry: &Packed) {
        self.set.words[position].store_bits(entry.word.bits());
        self.set.hint[position].store_bits(entry.hint.bits());
    }

    fn ask(&self, key: u64, now: HostTime, want: u32) -> Option<Sent> {
        let place = self.place(key);
        let wish = Wish { want, least: 1, validity: VALIDITY };
        let sent = place.begin(now, PATIENCE, true, |entry, number| {
            Some(entry.ask(place.memory.base, &limit(self.burst), now, HOST, number, wish))
        })?;
        self.largest[index(key)].fetch_max(sent.ask.number.0, Ordering::Relaxed);
        Some(sent)
    }

    /// The ask arrives at the store. `None`: it is ignored, because a later one came first.
    fn deliver(&self, key: u64, now: HostTime, sent: &Sent) -> Option<AskReply> {
        let now = now.max(sent.at).0;
        let clock = self.clock.fetch_max(now, Ordering::Relaxed).max(now);
        let mut record = self.records[index(key)].lock().unwrap();
        record.ask(&limit(self.burst), StoreTime(clock), &sent.ask)
    }

    /// Asks, waits for the reply, and takes it.
    fn ask_and_get(&self, key: u64, now: HostTime, want: u32) {
        let Some(sent) = self.ask(key, now, want) else {
            return;
        };
        if let Some(reply) = self.deliver(key, now, &sent) {
            self.place(key).reply(now, &sent, &reply);
        }
    }

    /// Spends a cell, if it is here.
    fn spend(&self, key: u64, now: HostTime) -> u64 {
        let place = self.place(key);
        place.spend(place.memory.base.tick(now), 1).is_some().into()
    }

    /// Decides about a request that costs a cell.
    fn request(&self, key: u64, now: HostTime) -> u64 {
        match self.place(key).look(now, 1, PATIENCE) {
            Look::Enough => self.spend(key, now),
            Look::Lacking => {
                self.ask_and_get(key, now, 1);
                self.spend(key, now)
            }
            Look::Blocked { .. } | Look::Waiting { .. } => 0,
        }
    }

    /// The word of the key says no more than the store's lease.
    fn must_be_sound(&self, key: u64) {
        let entries = self.place(key).entries();
        let mine: Vec<_> = entries
            .iter()
            .filter(|entry| entry.word.fingerprint() == key && !entry.word.is_announcement())
            .collect();
        assert!(mine.len() <= 1, "unsound: two words of one key: {mine:?}");
        let Some(entry) = mine.first() else {
            return;
        };
        let record = self.records[index(key)].lock().unwrap();
        let lease = record.leases().iter().find(|lease| lease.host == HOST);
        let holding = entry.holding(Base(HostTime(0)), NOW);
        let lent = lease.map_or(0, |lease| lease.cells);
        let unreported = if self.lossy { 0 } else { holding.unreported() };
        let says = holding.held(NOW) + unreported;
        assert!(says <= lent, "unsound: {says} cells of {lent} that are lent");
        if holding.held(NOW) > 0 {
            let expiry = lease.map_or(0, |lease| lease.expiry.0);
            assert!(holding.valid_until().0 <= expiry, "unsound: valid for longer than lent");
        }
        let largest = self.largest[index(key)].load(Ordering::Relaxed);
        let is_largest = entry.word.number() == largest % NUMBERS;
        assert!(is_largest, "unsound: the latest ask has not the largest number");
    }

    fn held(&self, key: u64) -> u32 {
        self.place(key).holding(NOW).held(NOW)
    }

    fn unreported(&self, key: u64) -> u32 {
        self.place(key).holding(NOW).unreported()
    }
}

fn index(key: u64) -> usize {
    usize::try_from(key - K).unwrap()
}

type Actor = fn(&World) -> u64;

/// Runs actors together, and returns what each of them returns.
fn together<const N: usize>(world: &Arc<World>, actors: [Actor; N]) -> [u64; N] {
    let threads: Vec<_> = actors[1..]
        .iter()
        .map(|actor| {
            let (world, actor) = (world.clone(), *actor);
            thread::spawn(move || actor(&world))
        })
        .collect();
    let mut all = [actors[0](world); N];
    for (thread, result) in threads.into_iter().zip(&mut all[1..]) {
        *result = thread.join().unwrap();
    }
    world.must_be_sound(K);
    world.must_be_sound(OTHER);
    all
}

/// Two processes spend what is held.
fn two_spenders() {
    let world = Arc::new(World::new(3));
    world.ask_and_get(K, NOW, 2);
    let spent = together(&world, [|world| world.spend(K, NOW) + world.spend(K, NOW); 2]);
    assert_eq!((spent.iter().sum::<u64>(), world.held(K)), (2, 0), "cells held");
    assert_eq!(world.unreported(K), 2, "cells to report");
}

/// Cells are spent while a reply brings more of them.
fn spend_beside_reply() {
    let world = Arc::new(World::new(4));
    world.ask_and_get(K, NOW, 1);
    let [spent, _] = together(
        &world,
        [
            |world| world.spend(K, NOW) + world.spend(K, NOW),
            |world| {
                world.ask_and_get(K, NOW, 1);
                0
            },
        ],
    );
    assert_eq!(spent + u64::from(world.held(K)), 2, "cells held");
    let reported = world.records[0].lock().unwrap().owed();
    let unreported = limit(4).cells(world.unreported(K));
    let all = reported.saturating_add(unreported);
    assert_eq!(all, limit(4).cells(u32::try_from(spent).unwrap()), "cells that were spent");
}

/// A reply comes when another process has given its ask up and asks in its place.
fn reply_beside_takeover() {
    let world = Arc::new(World::new(1));
    let [late, other] = together(
        &world,
        [
            |world| {
                let Some(sent) = world.ask(K, NOW, 1) else {
                    return 0;
                };
                if let Some(reply) = world.deliver(K, NOW, &sent) {
                    world.place(K).reply(NOW, &sent, &reply);
                }
                0
            },
            |world| {
                world.ask_and_get(K, LATER, 1);
                0
            },
        ],
    );
    assert_eq!(late + other, 0);
}

/// The store has lost its memory, and so drops what is held. A cell is spent meanwhile, and that
/// is taken back.
fn spend_beside_loss() {
    let world = Arc::new(World { lossy: true, ..World::new(2) });
    world.ask_and_get(K, NOW, 1);
    *world.records[0].lock().unwrap() = Record::new(StoreTime(NOW.0));
    together(
        &world,
        [
            |world| {
                let place = world.place(K);
                let spent = place.spend(place.memory.base.tick(LATER), 1);
                spent.is_some_and(|spent| place.unspend(spent)).into()
            },
            |world| {
                world.ask_and_get(K, LATER, 1);
                0
            },
        ],
    );
}

/// An entry is taken for another key while its cell is spent.
fn spend_beside_evict() {
    let world = Arc::new(World::new(1));
    world.ask_and_get(K, NOW, 1);
    for key in OTHER + 1..OTHER + SET_ENTRIES as u64 {
        world.ask_and_get(key, LATER, 1);
    }
    let [mine, other] = together(
        &world,
        [
            |world| world.spend(K, LATER) + world.request(K, LATER),
            |world| world.request(OTHER, LATER),
        ],
    );
    assert!(mine <= 1 && other <= 1, "a burst of 1: {mine} and {other}");
}

/// An entry that holds nothing, and whose key the store lets come back after a while.
fn settled(key: u64, come_back_after: Micros) -> Packed {
    let base = Base(HostTime(0));
    let announced = Word::announcement(key, AskNumber(80));
    let entry = Packed { word: announced, hint: RefillHint::seen(announced, base.tick(NOW)) };
    let wish = Wish { want: 1, least: 1, validity: VALIDITY };
    let (entry, sent) = entry.ask(base, &limit(1), NOW, HOST, AskNumber(90), wish);
    let (number, now) = (sent.ask.number, StoreTime(NOW.0));
    let reply = AskReply {
        number,
        kept: 0,
        granted: 0,
        free: 0,
        come_back_after,
        scarce: false,
        lent: false,
        hosts: 1,
        now,
    };
    entry.reply(base, NOW, &sent, &reply, number).unwrap()
}

/// Processes meet a new key, and see different entries free, so that their announcements are
/// apart: the key in the first entry was to come back later until a moment ago.
fn apart<const N: usize>(actors: [Actor; N]) {
    let world = Arc::new(World::new(1));
    world.put(0, &settled(OTHER + 1, Micros(20_000)));
    world.put(1, &settled(OTHER + 2, Micros(10_000)));
    let spent = together(&world, actors);
    assert!(spent.iter().sum::<u64>() <= 1, "a burst of 1");
}

const EARLY: Actor = |world| world.request(K, NOW.saturating_add(Micros(15_000)));
const LATE: Actor = |world| world.request(K, LATER);

fn two_openers() {
    apart([EARLY, LATE]);
}

fn two_openers_at_once() {
    let world = Arc::new(World::new(1));
    let spent = together(&world, [LATE; 2]);
    assert!(spent.iter().sum::<u64>() <= 1, "a burst of 1");
}

#[cfg(gcra_shuttle)]
fn three_openers() {
    apart([EARLY, LATE, EARLY]);
}

/// An ask fails while another process is about to ask.
fn void_beside_ask() {
    let world = Arc::new(World::new(2));
    world.ask_and_get(K, NOW, 1);
    assert_eq!(world.spend(K, NOW), 1);
    together(
        &world,
        [
            |world| {
                world.ask_and_get(K, NOW, 1);
                0
            },
            |world| {
                if let Some(sent) = world.ask(K, NOW, 1) {
                    world.place(K).void(&sent, NOW);
                }
                0
            },
        ],
    );
}

/// A request spends a cell and gives it back, because another limit has none, while another
/// process reports what was spent.
fn unspend_beside_report() {
    let world = Arc::new(World::new(4));
    world.ask_and_get(K, NOW, 2);
    let [kept, _] = together(
        &world,
        [
            |world| {
                let place = world.place(K);
                let spent = place.spend(place.memory.base.tick(NOW), 1).unwrap();
                let is_back = place.unspend(spent);
                u64::from(!is_back)
            },
            |world| {
                world.ask_and_get(K, NOW, 1);
                0
            },
        ],
    );
    let owed = world.records[0].lock().unwrap().owed();
    let charged = u64::from(owed > gcra_lease::Units::ZERO);
    assert!(kept >= charged, "a cell that was charged can be spent");
}

/// Four actors send requests of six keys to four entries. Asks fail, arrive twice or late; replies
/// are lost, and other actors ask in the place of those that take too long.
#[cfg(gcra_shuttle)]
fn many_keys() {
    use shuttle::rand::Rng as _;

    const BURST: u32 = 2;
    let world = Arc::new(World { lossy: true, ..World::new(BURST) });
    let sent: Arc<Mutex<Vec<(u64, Sent)>>> = Arc::default();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (world, all_sent) = (world.clone(), sent.clone());
            thread::spawn(move || {
                let mut spent = [0_u32; 6];
                for _ in 0..8 {
                    let random = |below: u64| shuttle::rand::thread_rng().gen_range(0..below);
                    let key = K + random(6);
                    let now = NOW.saturating_add(Micros(random(4) * PATIENCE.0));
                    let place = world.place(key);
                    let get = |sent: &Sent| {
                        if let Some(reply) = world.deliver(key, now, sent)
                            && random(5) > 0
                        {
                            place.reply(now, sent, &reply);
                        }
                    };
                    if random(6) == 0 {
                        // An ask that arrives twice, or late.
                        let old = all_sent
                            .lock()
                            .unwrap()
                            .iter()
                            .rev()
                            .find(|old| old.0 == key)
                            .copied();
                        old.iter().for_each(|(_, sent)| get(sent));
                    }
                    if place.look(now, 1, PATIENCE) == Look::Lacking
                        && let Some(sent) = world.ask(key, now, 1)
                    {
                        all_sent.lock().unwrap().push((key, sent));
                        match random(6) {
                            0 => drop(place.void(&sent, now)),
                            1 => {}
                            _ => get(&sent),
                        }
                    }
                    let tick = place.memory.base.tick(now);
                    if let Some(cell) = place.spend(tick, 1)
                        && (random(4) > 0 || !place.unspend(cell))
                    {
                        spent[index(key)] += 1;
                    }
                }
                spent
            })
        })
        .collect();
    let mut spent = [0_u32; 6];
    for thread in threads {
        thread.join().unwrap().iter().zip(&mut spent).for_each(|(more, sum)| *sum += more);
    }
    assert!(spent.iter().all(|cells| *cells <= BURST), "unsound: {spent:?} cells, burst {BURST}");
    (K..K + 6).for_each(|key| world.must_be_sound(key));
}

#[cfg(gcra_shuttle)]
models! {
    many_keys_in_four_entries_keep_their_bounds: many_keys {
        spending_by_a_store_among_many_keys_is_caught = StoreSpend, "unsound";
        asking_without_a_look_among_many_keys_is_caught = NoLook, "unsound";
        taking_any_reply_among_many_keys_is_caught = ReplyToAny, "unsound";
        evicting_with_the_cells_among_many_keys_is_caught = EvictKeepsHeld, "unsound";
        taking_back_what_was_reported_among_many_keys_is_caught = UnspendAnyTime, "unsound";
    }
    three_openers_ask_from_one_entry: three_openers {}
}

#[cfg(gcra_loom)]
models! {
    spenders_add_up: two_spenders {
        spending_by_a_store_is_caught = StoreSpend, "cells";
    }
    a_reply_and_spending_agree: spend_beside_reply {
        spending_by_a_store_beside_a_reply_is_caught = StoreSpend, "cells";
    }
    a_reply_that_is_too_late_is_not_taken: reply_beside_takeover {
        taking_any_reply_is_caught = ReplyToAny, "that are lent";
    }
    what_the_store_forgot_is_dropped: spend_beside_loss {
        keeping_what_the_store_forgot_is_caught = AllAreKept, "that are lent";
    }
    an_evicted_entry_loses_its_cells: spend_beside_evict {
        evicting_with_the_cells_is_caught = EvictKeepsHeld, "that are lent";
    }
    two_openers_ask_from_one_entry: two_openers {
        asking_without_a_fence_is_caught = NoFence, "two words";
        asking_without_a_look_is_caught = NoLook, "two words";
        leaving_other_announcements_is_caught = KeepOthers, "two words";
    }
    openers_at_once_ask_from_one_entry: two_openers_at_once {}
    numbers_follow_the_order_of_asks: void_beside_ask {
        drawing_a_number_early_is_caught = NumberBeforeLoad, "not the largest number";
    }
    what_was_reported_stays_spent: unspend_beside_report {
        taking_back_what_was_reported_is_caught = UnspendAnyTime, "lent";
    }
}
