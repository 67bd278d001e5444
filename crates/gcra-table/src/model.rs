//! The interleavings of charging, opening, reclaiming, evicting, refunding, resetting and moving
//! buckets.
//!
//! * `make loom`: two or three actors on two lines of two slots, in every interleaving with at
//!   most three preemptions, and with the older values that a relaxed load may still see.
//! * `make shuttle`: random interleavings of four actors on eight slots, as in a real table.
//!
//! The models check that no key is allowed more than its burst and its forgiven cells, and that no
//! key is confirmed twice. They check that every allowed cell is owed somewhere, and that no
//! operation loses more than a few attempts. Each property has a twin that takes one step of the
//! algorithm away and must fail.
//!
//! Time stands still in most models: the clock says [`CLOCK`], but a process may have read it
//! earlier. If a bucket has to drain, one of the actors sets the clock forward.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(gcra_loom)]
use loom::{sync::Arc, thread};
#[cfg(gcra_shuttle)]
use shuttle::{sync::Arc, thread};

use crate::bucket::Bucket;
use crate::bucket::charge::ToCharge;
use crate::bucket::context::{Context, Moved};
use crate::bucket::seal::seal;
use crate::bucket::ticket::Announcer;
use crate::bucket::window::{Count, Window};
use crate::burst_class::{Class, IN_FINGERPRINT};
use crate::counters::Counters;
use crate::decision::Decision;
use crate::mutation::{Changes, Mutation, model_with};
use crate::quota::Quota;
use crate::slot::{BucketId, LINE_SLOTS, Line, Slot, Word};
use crate::time::{Nanos, Reading, Time};
use crate::used::Used;

const T: Nanos = Nanos(10);
const CLOCK: Time = Time(100);
/// The TAT of a key that owes one cell.
const OWES_1: Time = CLOCK.saturating_add(T);
/// And of one that owes two.
const OWES_2: Time = OWES_1.saturating_add(T);
/// The TATs of keys that owe nothing, and of keys that owe a lot.
const IDLE: Time = Time(50);
const LIVE: Time = Time(500);
const K: u64 = 7;
const OTHER: u64 = 8;
/// Slots of a table.
const SLOTS: usize = 2 * LINE_SLOTS;

fn quota(burst: u32) -> Quota {
    Quota::new(T, burst).unwrap()
}

/// The bucket of a key under a limit of this class.
fn id(key: u64, class: Class) -> BucketId {
    BucketId::new(key << 4, class)
}

fn one_cell(burst: u32) -> ToCharge<'static> {
    ToCharge { quota: Box::leak(Box::new(quota(burst))), cells: 1, least_tat: Time::ZERO }
}

/// The lines of a table, and what its header counts.
struct Table {
    lines: [Line; 2],
    counters: Counters,
    successor: AtomicU32,
    complete: AtomicU32,
    /// The time by the clock. (This is not one of the model's atomics: it changes between two
    /// steps.)
    clock: AtomicU64,
}

impl Table {
    fn new() -> Self {
        let line = || Line { slots: core::array::from_fn(|_| Slot::new()) };
        Self {
            lines: [line(), line()],
            counters: Counters::default(),
            successor: AtomicU32::new(0),
            complete: AtomicU32::new(0),
            clock: AtomicU64::new(CLOCK.0),
        }
    }

    fn bucket(&self, key: u64) -> Bucket<'_> {
        self.bucket_of(id(key, Class::of(T)))
    }

    fn bucket_of(&self, id: BucketId) -> Bucket<'_> {
        Bucket::new([&self.lines[0], &self.lines[1]], id)
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.lines.iter().flat_map(|line| &line.slots)
    }

    fn put(&self, position: usize, key: u64, tat: Time) {
        self.put_of(position, id(key, Class::of(T)), tat);
    }

    fn put_of(&self, position: usize, id: BucketId, tat: Time) {
        self.slots().nth(position).unwrap().store(Word::confirmed(id, tat));
    }

    fn announce(&self, position: usize, key: u64, ticket: u64) {
        let fingerprint = id(key, Class::of(T)).fingerprint;
        self.slots().nth(position).unwrap().store(Word::pending(fingerprint, ticket));
    }

    /// The TAT of the key's confirmed bucket. There is at most one.
    fn tat(&self, key: u64) -> Option<Time> {
        let of_hash = |word: &Word| word.fingerprint() % (1 << IN_FINGERPRINT);
        let words = self.slots().map(Slot::load).filter(|word| of_hash(word) == key);
        let tats: Vec<_> = words.filter_map(Word::tat).collect();
        assert!(tats.len() <= 1, "two buckets of one key: {tats:?}");
        tats.first().copied()
    }

    /// The debt of the key, in cells.
    fn owed(&self, key: u64) -> u64 {
        self.tat(key).unwrap_or_default().saturating_since(CLOCK).div_ceil(T)
    }

    fn forgiven(&self) -> u64 {
        self.counters.counted().evictions.forgiven.div_ceil(T)
    }
}

/// A process, or a thread of one.
struct Actor {
    /// Its next reading of the clock, if it read it before it came to the time that it says now.
    early_reading: Cell<Option<Time>>,
    announcer: Announcer,
}

impl Actor {
    fn new(number: usize) -> Self {
        Self {
            early_reading: Cell::new(None),
            announcer: Announcer::new(u16::try_from(number).unwrap()),
        }
    }

    /// An actor whose first reading of the clock was a moment ago, when fewer slots were idle.
    fn late(self) -> Self {
        self.early_reading.set(Some(CLOCK.saturating_sub(Nanos(1))));
        self
    }

    fn read_clock(&self, table: &Table) -> Time {
        self.early_reading.take().unwrap_or_else(|| Time(table.clock.load(Ordering::Relaxed)))
    }

    fn context<'a>(
        &'a self,
        table: &'a Table,
        predecessor: Option<Bucket<'a>>,
    ) -> Context<'a, impl Fn() -> Time> {
        Context {
            clock: || self.read_clock(table),
            announcer: &self.announcer,
            counters: &table.counters,
            successor: &table.successor,
            complete: &table.complete,
            predecessor,
        }
    }

    fn decide(&self, table: &Table, key: u64, burst: u32) -> Decision {
        let context = self.context(table, None);
        let mut now = Reading::at(self.read_clock(table));
        table.bucket(key).charge(one_cell(burst), &mut now, &context).unwrap()
    }

    /// Charges one cell. Returns 1 if it was allowed.
    fn charge(&self, table: &Table, key: u64, burst: u32) -> u64 {
        self.decide(table, key, burst).is_allowed().into()
    }

    fn charge_twice(&self, table: &Table, key: u64, burst: u32) -> u64 {
        self.charge(table, key, burst) + self.charge(table, key, burst)
    }

    /// As `charge`, in a table that is moving to another one.
    fn charge_moving(&self, tables: &[Table; 2], key: u64, burst: u32) -> u64 {
        let [old, new] = tables;
        let (charge, now) = (one_cell(burst), &mut Reading::at(CLOCK));
        let decision = match old.bucket(key).charge(charge, now, &self.context(old, None)) {
            Ok(decision) => decision,
            Err(Moved) => {
                let context = self.context(new, Some(old.bucket(key)));
                new.bucket(key).charge(charge, now, &context).unwrap()
            }
        };
        decision.is_allowed().into()
    }

    /// Moves all buckets and writes down that it is done, as a resize does.
    fn carry_all(&self, [old, new]: &[Table; 2]) {
        for slot in old.slots() {
            let word = seal(slot);
            if let Some(tat) = word.sealed_tat().filter(|tat| *tat > CLOCK) {
                new.bucket_of(word.id()).carry(
                    tat,
                    &mut Reading::at(CLOCK),
                    &self.context(new, None),
                );
            }
        }
        new.complete.store(1, Ordering::Release);
    }

    /// Gives one cell back, in a table that may be moving to another one. Returns how many cells
    /// were given back.
    fn give_back(&self, [old, new]: &[&Table; 2], key: u64) -> u64 {
        let now = &mut Reading::at(CLOCK);
        let given = match old.bucket(key).give_back(T, now, &self.context(old, None)) {
            Ok(given) => given,
            Err(Moved) => {
                let context = self.context(new, Some(old.bucket(key)));
                new.bucket(key).give_back(T, now, &context).unwrap()
            }
        };
        given.0.div_ceil(T)
    }

    /// Forgives the key what it owes, and returns how many cells that was.
    fn reset(&self, table: &Table, key: u64) -> u64 {
        let tat = table.bucket(key).reset(&self.context(table, None)).unwrap();
        tat.saturating_since(CLOCK).div_ceil(T)
    }
}

/// Runs the actors of a model together, and returns how many cells each was allowed.
fn together<M, const N: usize>(memory: &Arc<M>, actors: [fn(&M, Actor) -> u64; N]) -> [u64; N]
where
    M: Send + Sync + 'static,
{
    let run = |number: usize| {
        let (memory, actor) = (memory.clone(), actors[number]);
        move || actor(&memory, Actor::new(number))
    };
    let threads: Vec<_> = (1..N).map(|number| thread::spawn(run(number))).collect();
    let mut allowed = [run(0)(); N];
    for (thread, allowed) in threads.into_iter().zip(&mut allowed[1..]) {
        *allowed = thread.join().unwrap();
    }
    allowed
}

/// Checks a model, with one step of the algorithm taken away or with all of them.
pub(crate) fn model(mutation: Option<Mutation>, body: fn()) {
    model_with(Changes { mutation, ..Changes::default() }, || check(body));
    // loom remembers one access to each slot, and so misses that another actor could have come
    // between two loads of one actor. Loads as exchanges are never reordered, but loom goes
    // through every order of them.
    #[cfg(gcra_loom)]
    model_with(Changes { mutation, loads_are_exchanges: true, ..Changes::default() }, || {
        check(body)
    });
}

#[cfg(gcra_loom)]
fn check(body: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// `GCRA_SHUTTLE_RUNS` asks for more than the usual number of schedules.
#[cfg(gcra_shuttle)]
fn check(body: fn()) {
    let runs = std::env::var("GCRA_SHUTTLE_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(100_000);
    shuttle::check_random(body, runs / 2);
    shuttle::check_pct(body, runs / 2, 3);
}

/// Each property, and the mutations that it must notice, with words of the message in which it
/// says so.
macro_rules! models {
    ($($name:ident: $body:ident { $($twin:ident = $mutation:ident, $words:literal;)* })*) => {
        $(
            #[test]
            fn $name() {
                $crate::model::model(None, $body);
            }
            $(
                #[test]
                #[should_panic(expected = $words)]
                fn $twin() {
                    $crate::model::model(Some($crate::mutation::Mutation::$mutation), $body);
                }
            )*
        )*
    };
}
pub(crate) use models;

mod unsettled;

/// Two processes charge a bucket that exists.
fn two_charges() {
    let table = Arc::new(Table::new());
    table.put(0, K, OWES_1);
    let allowed = together(&table, [|table, actor| actor.charge_twice(table, K, 3); 2]);
    assert_eq!(allowed.iter().sum::<u64>(), 2, "a burst of 3, of which 1 was used");
    assert_eq!(table.owed(K), 3);
}

/// Two processes meet a new key at once.
fn two_first_comers() {
    let table = Arc::new(Table::new());
    // Let the lines differ, so that processes may see different slots free.
    table.put(0, OTHER, OWES_1);
    let allowed = together(&table, [|table, actor| actor.charge(table, K, 1); 2]);
    assert_eq!(allowed.iter().sum::<u64>(), 1, "a burst of 1");
    assert_eq!(table.owed(K), 1);
}

/// Two first-comers, and a third process that takes the only idle slots for another key.
fn first_comers_and_reclaim() {
    let table = Arc::new(Table::new());
    table.put(0, OTHER, IDLE);
    table.put(1, OTHER + 1, LIVE);
    let first_comer: fn(&Table, Actor) -> u64 = |table, actor| actor.charge(table, K, 1);
    let [one, two, other] = together(
        &table,
        [first_comer, first_comer, |table, actor| actor.charge(table, OTHER + 2, 1)],
    );
    assert_eq!((one + two, other), (1, 1), "a burst of 1 each");
    assert_eq!((table.owed(K), table.owed(OTHER + 2)), (1, 1));
}

/// Three other keys in the slots after the first, each owing a little more than the one before it.
fn put_others(table: &Table) {
    for position in 1..4 {
        let more = Nanos(position as u64);
        table.put(position, OTHER + position as u64, LIVE.saturating_add(more));
    }
}

/// A process charges an idle bucket, whose slot another key is about to take.
fn charge_against_reclaim() {
    let table = Arc::new(Table::new());
    table.put(0, K, IDLE);
    put_others(&table);
    let [mine, other] = together(
        &table,
        [
            |table, actor| actor.charge_twice(table, K, 1),
            |table, actor| actor.charge(table, OTHER, 1),
        ],
    );
    // All four slots are needed: the one that comes second evicts a bucket, perhaps the other
    // one's. That is counted.
    let forgiven = u64::from(table.counters.counted().evictions.evicted_live > 1);
    assert!(mine == 1 || mine == 1 + forgiven, "{mine} allowed");
    assert_eq!(other, 1);
}

/// Another key evicts the live slot that is being charged.
fn charge_against_eviction() {
    let table = Arc::new(Table::new());
    // The first cell of the other key leads to the same TAT as K has.
    table.put(0, K, OWES_1);
    put_others(&table);
    let [mine, other] = together(
        &table,
        [|table, actor| actor.charge(table, K, 2), |table, actor| actor.charge(table, OTHER, 2)],
    );
    assert_eq!((mine, other), (1, 1));
    // K owed 1. Every cell is owed by its own key, or was forgiven and counted.
    let (owed, owed_other) = (table.owed(K), table.owed(OTHER));
    if table.counters.counted().evictions.evicted_live == 1 {
        assert_eq!((owed, owed_other), (0, 1), "K was evicted after its charge, with all it owed");
        assert_eq!(table.forgiven(), 2);
    } else {
        // K was evicted, came back and evicted the bucket that owed least: the other actor's or a
        // stranger's.
        assert!(owed == 1 && owed_other <= 1, "{owed} {owed_other}");
    }
}

/// A fast limit: all that it allows at once is paid off in a second.
fn fast() -> Quota {
    Quota::new(Nanos::from_millis(500), 2).unwrap()
}

/// And one that takes 100 000 times as long.
fn slow() -> Quota {
    Quota::new(Nanos::from_secs(1_000), 100).unwrap()
}

/// The debt of a key with its first cell under the slow limit. It is a hundredth of the limit, and
/// takes a thousand times as long as the whole fast limit.
const OWES_SLOWLY: Time = CLOCK.saturating_add(Nanos::from_secs(1_000));

impl Actor {
    /// Charges one cell by this quota.
    fn charge_by(&self, table: &Table, key: u64, quota: Quota) -> u64 {
        let charge = ToCharge { quota: &quota, cells: 1, least_tat: Time::ZERO };
        let (now, context) = (&mut Reading::at(self.read_clock(table)), self.context(table, None));
        let bucket = table.bucket_of(id(key, quota.class()));
        bucket.charge(charge, now, &context).unwrap().is_allowed().into()
    }
}

/// A client asks that has used up a fast limit, while new keys of a slow one need slots.
fn eviction_among_limits() {
    let table = Arc::new(Table::new());
    let used_up = CLOCK.saturating_add(fast().drain_time());
    table.put_of(0, id(K, fast().class()), used_up);
    for position in 1..SLOTS {
        table.put_of(position, id(OTHER + position as u64, slow().class()), OWES_SLOWLY);
    }
    let allowed = together(
        &table,
        [
            |table, actor| actor.charge_by(table, K, fast()) + actor.charge_by(table, K, fast()),
            |table, actor| actor.charge_by(table, OTHER + 20, slow()),
        ],
    );
    assert_eq!(allowed, [0, 1], "a burst of 2, which was used up");
    assert_eq!(table.tat(K), Some(used_up), "a burst of 2, which was used up, is owed");
    assert_eq!(table.counters.counted().evictions.evicted_live, 1);
}

/// Several processes meet a new key and see different slots free, so that their announcements are
/// apart.
fn apart<const N: usize>(actors: [fn(&Table, Actor) -> u64; N]) {
    let table = Arc::new(Table::new());
    table.put(0, OTHER, CLOCK);
    table.put(1, OTHER + 1, CLOCK);
    table.put(3, OTHER + 2, LIVE);
    let allowed = together(&table, actors);
    assert_eq!(allowed.iter().sum::<u64>(), 1, "a burst of 1");
    assert_eq!(table.owed(K), 1);
}

/// A moment ago the first line was not idle, so this actor announces in the second.
const EARLIER: fn(&Table, Actor) -> u64 = |table, actor| actor.late().charge(table, K, 1);
const NOW: fn(&Table, Actor) -> u64 = |table, actor| actor.charge(table, K, 1);

fn announcements_apart() {
    apart([EARLIER, NOW]);
}

/// With a third actor, an announcement is removed while its author is stopped, and made again.
/// Only the ticket tells the second from the first.
fn announced_again() {
    apart([EARLIER, NOW, EARLIER]);
}

/// A dead process has left an announcement in the last slot, and two processes come for its key.
fn abandoned_announcement() {
    let table = Arc::new(Table::new());
    table.announce(3, K, 9 << 8);
    let allowed = together(&table, [NOW; 2]);
    assert_eq!(allowed.iter().sum::<u64>(), 1, "a burst of 1");
    assert_eq!(table.owed(K), 1);
}

/// Two processes come for a key whose announcer is stopped, and a third takes the announcement for
/// another key, because it is old.
fn announcement_taken() {
    let table = Arc::new(Table::new());
    table.announce(0, K, 9 << 8);
    (1..3).for_each(|position| table.put(position, OTHER + position as u64, LIVE));
    let [one, two, other] =
        together(&table, [NOW, NOW, |table, actor| actor.charge(table, OTHER, 1)]);
    let forgiven = table.counters.counted().evictions.evicted_live;
    assert!(one + two == 1 || one + two <= 1 + forgiven, "a burst of 1");
    assert_eq!(other, 1);
    assert_eq!((table.owed(K), table.owed(OTHER)), (1, 1));
}

#[test]
fn an_old_announcement_is_taken_by_another_key() {
    model_with(Changes { announcements_are_old: true, ..Changes::default() }, || {
        check(announcement_taken)
    });
}

/// Requests under two limits: the cell of the first is given back when the second denies.
fn refund_after_denial() {
    let table = Arc::new(Table::new());
    table.put(0, K, CLOCK);
    table.put(2, OTHER, OWES_1);
    // Two cells of K are allowed, and one more of OTHER.
    let both: fn(&Table, Actor) -> u64 = |table, actor| {
        let first = actor.decide(table, K, 2);
        if !first.is_allowed() {
            return 0;
        }
        let second = actor.charge(table, OTHER, 2);
        if second == 0 {
            table.bucket(K).refund(first.charged_tat().unwrap(), T);
        }
        second
    };
    let allowed = together(&table, [both, both, |table, actor| actor.charge(table, K, 2)]);
    let [one, two, plain] = allowed;
    assert_eq!(one + two, 1);
    assert!(one + two + plain <= 2, "a burst of 2");
    // Allowed cells are owed. A refund that came too late leaves one cell more.
    assert!(table.owed(K) >= one + two + plain, "{allowed:?} allowed, {} owed", table.owed(K));
}

/// A key is reset while it is charged, and while another key takes its idle slot.
fn reset_against_charges() {
    let table = Arc::new(Table::new());
    table.put(0, K, IDLE);
    (1..4).for_each(|position| table.put(position, OTHER + position as u64, LIVE));
    let [other, reset] = together(
        &table,
        [
            |table, actor| actor.charge_twice(table, OTHER, 1),
            |table, actor| {
                table
                    .bucket(K)
                    .reset(&actor.context(table, None))
                    .unwrap()
                    .saturating_since(CLOCK)
                    .0
            },
        ],
    );
    assert_eq!((other, reset), (1, 0), "the other key's burst of 1");
    assert_eq!(table.owed(OTHER), 1);

    let table = Arc::new(Table::new());
    table.put(0, K, OWES_2);
    let [mine, forgiven] = together(
        &table,
        [|table, actor| actor.charge_twice(table, K, 3), |table, actor| actor.reset(table, K)],
    );
    // Every cell is owed or was forgiven: the 2 before, and those allowed now.
    assert_eq!(table.owed(K) + forgiven, 2 + mine, "what was not forgiven is owed");
    assert!(mine <= 3 && mine >= 1);
}

/// A cell is given back while the key is charged.
fn give_back_against_charges() {
    let table = Arc::new(Table::new());
    table.put(0, K, OWES_2);
    let [mine, given] = together(
        &table,
        [
            |table, actor| actor.charge_twice(table, K, 3),
            |table, actor| actor.give_back(&[table, table], K),
        ],
    );
    assert_eq!(given, 1);
    assert_eq!(table.owed(K), 2 + mine - given, "what was charged and not given back is owed");
    assert!((1..=2).contains(&mine), "a burst of 3, of which 2 or 1 were used");
}

/// A cell is given back while the table is moved to another one.
fn give_back_against_a_move() {
    let tables = Arc::new([Table::new(), Table::new()]);
    tables[0].successor.store(1, Ordering::Relaxed);
    tables[0].put(0, K, OWES_2);
    let [mine, given, _] = together(
        &tables,
        [
            |tables, actor| actor.charge_moving(tables, K, 3),
            |[old, new], actor| actor.give_back(&[old, new], K),
            |tables, actor| {
                actor.carry_all(tables);
                0
            },
        ],
    );
    assert!(mine == 1 && given <= 1, "a burst of 3, of which 2 or 1 were used");
    // `complete` is no atomic of the model, so it may show the slots as they were before the move.
    // Then nothing is given back, and the result says so.
    assert_eq!(tables[1].owed(K), 2 + mine - given, "what was charged and not given back");
}

/// The table is moved to another one while a bucket of it is charged.
fn move_against_charges() {
    let tables = Arc::new([Table::new(), Table::new()]);
    tables[0].successor.store(1, Ordering::Relaxed);
    tables[0].put(0, K, OWES_1);
    let [mine, _] = together(
        &tables,
        [
            |tables, actor| actor.charge_moving(tables, K, 3) + actor.charge_moving(tables, K, 3),
            |tables, actor| {
                actor.carry_all(tables);
                0
            },
        ],
    );
    assert_eq!(mine, 2, "a burst of 3, of which 1 was used");
    assert_eq!(tables[1].owed(K), 3, "no charge was left behind");
    assert_eq!(tables[0].tat(K), None, "all are sealed");
}

/// The table is moved while two processes open a bucket.
fn move_against_first_comers() {
    let tables = Arc::new([Table::new(), Table::new()]);
    tables[0].successor.store(1, Ordering::Relaxed);
    let first_comer: fn(&[Table; 2], Actor) -> u64 =
        |tables, actor| actor.charge_moving(tables, K, 1);
    let [one, two] = together(
        &tables,
        [first_comer, |tables, actor| {
            // The resize has come as far as half of the slots when this process goes on.
            tables[0].slots().take(2).for_each(|slot| {
                seal(slot);
            });
            actor.charge_moving(tables, K, 1)
        }],
    );
    assert_eq!(one + two, 1, "a burst of 1");
    Actor::new(2).carry_all(&tables);
    assert_eq!(tables[1].owed(K), 1);
}

/// A bucket is sealed. Before it is carried over, it is opened in the new table, used up, drained
/// and reclaimed there.
fn carry_against_a_drained_bucket() {
    const LATER: Time = CLOCK.saturating_add(T.saturating_mul(10));
    let tables = Arc::new([Table::new(), Table::new()]);
    tables[0].successor.store(1, Ordering::Relaxed);
    tables[0].put(0, K, OWES_1);
    tables[0].slots().for_each(|slot| {
        seal(slot);
    });
    // A process has inherited one cell and charged another one.
    tables[1].put(0, K, OWES_2);
    let live = LATER.saturating_add(LIVE.saturating_since(CLOCK));
    (1..SLOTS).for_each(|position| tables[1].put(position, OTHER + position as u64, live));
    let [too_many, _] = together(
        &tables,
        [
            |[_, new], actor| {
                new.clock.store(LATER.0, Ordering::Relaxed);
                // K has drained, and its slot is needed.
                let _ = actor.charge(new, OTHER, 2);
                // A decision by an older reading of the clock, when K had used up its burst.
                let now = &mut Reading::at(CLOCK);
                let decision =
                    new.bucket(K).charge(one_cell(2), now, &actor.context(new, None)).unwrap();
                u64::from(decision.is_allowed() && now.time() == CLOCK)
            },
            |tables, actor| {
                actor.carry_all(tables);
                0
            },
        ],
    );
    assert_eq!(too_many, 0, "a burst of 2 by readings of one moment");
}

/// A key is reset in the new table as soon as all was carried over, while a process still uses the
/// old one.
fn reset_after_a_move() {
    let tables = Arc::new([Table::new(), Table::new()]);
    tables[0].successor.store(1, Ordering::Relaxed);
    tables[0].put(0, K, OWES_2);
    let [mine, forgiven] = together(
        &tables,
        [
            |tables, actor| actor.charge_moving(tables, K, 3) + actor.charge_moving(tables, K, 3),
            |tables, actor| {
                actor.carry_all(tables);
                actor.reset(&tables[1], K)
            },
        ],
    );
    assert_eq!(tables[1].owed(K) + forgiven, 2 + mine, "what was not forgiven is owed, and once");
    assert!((1..=2).contains(&mine), "{mine}: one before the reset, or one or two after it");
}

/// A calendar window that ends a while after what the clock says.
const WINDOW: Window = Window::new(1, 0, CLOCK.saturating_add(Nanos(100)));

/// The value of a bucket with this count in the window.
fn counted(cells: u64) -> Time {
    counted_of(3, cells)
}

fn counted_of(most: u32, cells: u64) -> Time {
    Used::none(WINDOW.end(), most).with_cells(cells).to_value()
}

impl Actor {
    /// Counts one cell. Returns 1 if it was allowed.
    fn count(&self, table: &Table, key: u64, most: u32) -> u64 {
        let (count, now) = (Count { window: WINDOW, most, cells: 1 }, &mut Reading::at(CLOCK));
        let tally = table.bucket(key).count(count, now, &self.context(table, None)).unwrap();
        tally.is_ok_and(|tally| tally.is_allowed()).into()
    }

    /// As `count`, in a table that is moving to another one.
    fn count_moving(&self, [old, new]: &[Table; 2], key: u64, most: u32) -> u64 {
        let (count, now) = (Count { window: WINDOW, most, cells: 1 }, &mut Reading::at(CLOCK));
        let tally = match old.bucket(key).count(count, now, &self.context(old, None)) {
            Ok(tally) => tally,
            Err(Moved) => {
                let context = self.context(new, Some(old.bucket(key)));
                new.bucket(key).count(count, now, &context).unwrap()
            }
        };
        tally.unwrap().is_allowed().into()
    }

    /// Takes one counted cell back, in a table that may be moving to another one. Returns how many
    /// cells were taken back.
    fn uncount(&self, [old, new]: &[&Table; 2], key: u64) -> u64 {
        let now = &mut Reading::at(CLOCK);
        let done = match old.bucket(key).uncount(1, now, &self.context(old, None)) {
            Ok(done) => done,
            Err(Moved) => {
                let context = self.context(new, Some(old.bucket(key)));
                new.bucket(key).uncount(1, now, &context).unwrap()
            }
        };
        done.into()
    }
}

/// Two processes count in a window, and the second gives its first cell back.
fn two_counts() {
    let table = Arc::new(Table::new());
    table.put(0, K, counted(1));
    let allowed = together(
        &table,
        [
            |table, actor| actor.count(table, K, 3) + actor.count(table, K, 3),
            |table, actor| {
                let first = actor.count(table, K, 3);
                if first == 0 { 0 } else { first - actor.uncount(&[table, table], K) }
            },
        ],
    );
    let kept = allowed.iter().sum::<u64>();
    assert!(kept <= 2, "3 in the window, of which 1 was used");
    assert_eq!(table.tat(K), Some(counted(1 + kept)), "what is allowed is counted");
}

/// Two processes come with the first cells of a key in a window, and see different slots free.
fn first_counts() {
    let table = Arc::new(Table::new());
    table.put(0, OTHER, OWES_1);
    let allowed = together(&table, [|table, actor| actor.count(table, K, 1); 2]);
    assert_eq!(allowed.iter().sum::<u64>(), 1, "1 in the window");
    assert_eq!(table.tat(K), Some(counted_of(1, 1)));
}

/// The table is moved to another one while cells are counted in a window.
fn move_against_counts() {
    let tables = Arc::new([Table::new(), Table::new()]);
    tables[0].successor.store(1, Ordering::Relaxed);
    tables[0].put(0, K, counted(1));
    let [mine, _] = together(
        &tables,
        [
            |tables, actor| actor.count_moving(tables, K, 3) + actor.count_moving(tables, K, 3),
            |tables, actor| {
                actor.carry_all(tables);
                0
            },
        ],
    );
    assert_eq!(mine, 2, "3 in the window, of which 1 was used");
    assert_eq!(tables[1].tat(K), Some(counted(3)), "no cell was left behind");
}

/// A cell of a window is taken back while the table is moved to another one.
fn move_against_an_uncount() {
    let tables = Arc::new([Table::new(), Table::new()]);
    tables[0].successor.store(1, Ordering::Relaxed);
    tables[0].put(0, K, counted(2));
    let [mine, back, _] = together(
        &tables,
        [
            |tables, actor| actor.count_moving(tables, K, 3),
            |[old, new], actor| actor.uncount(&[old, new], K),
            |tables, actor| {
                actor.carry_all(tables);
                0
            },
        ],
    );
    assert_eq!(mine, 1, "3 in the window, of which 2 or 1 were used");
    // As in `give_back_against_a_move`: then nothing is taken back, and nothing is said to be.
    assert_eq!(tables[1].tat(K), Some(counted(3 - back)), "what was counted and not taken back");
}

/// A process is about to count a cell in a window that is used up, and is stopped until the
/// window is long over and its slot was taken for another key.
fn count_against_the_end() {
    let table = Arc::new(Table::new());
    table.put(0, K, counted(1));
    let later = counted(2).saturating_add(LIVE.saturating_since(CLOCK));
    (1..SLOTS).for_each(|position| table.put(position, OTHER + position as u64, later));
    let [late, other] = together(
        &table,
        [
            |table, actor| actor.count(table, K, 1),
            |table, actor| {
                table.clock.store(counted(2).0, Ordering::Relaxed);
                actor.charge(table, OTHER, 1)
            },
        ],
    );
    assert_eq!((late, other), (0, 1), "1 in the window, which was used");
}

#[cfg(gcra_loom)]
models! {
    counts_add_up: two_counts {
        counting_by_a_store_is_caught = StoreCharge, "counted";
    }
    first_counts_open_one_bucket: first_counts {}
    a_cell_is_uncounted_beside_a_move: move_against_an_uncount {}
    a_count_that_moves_is_kept: move_against_counts {
        moving_by_a_store_loses_counts = SealStores, "left behind";
        counting_without_the_inheritance_is_caught = NothingInherited, "left behind";
    }
    a_window_is_not_opened_after_its_end: count_against_the_end {
        opening_after_the_end_is_caught = OpensAfterTheEnd, "which was used";
    }
    charges_add_up: two_charges {
        charging_by_a_store_is_caught = StoreCharge, "of which 1 was used";
    }
    two_first_comers_open_one_bucket: two_first_comers {}
    first_comers_and_a_reclaim_open_one_bucket_each: first_comers_and_reclaim {
        confirming_without_a_look_is_caught = NoLook, "a burst of 1 each";
    }
    a_charge_and_a_reclaim_of_the_same_slot_agree: charge_against_reclaim {}
    a_charge_and_an_eviction_of_the_same_slot_agree: charge_against_eviction {
        exchanging_the_tat_alone_is_caught = HalfExchange, "evicted";
    }
    announcements_in_two_lines_open_one_bucket: announcements_apart {
        announcing_without_a_fence_is_caught = NoFence, "a burst of 1";
        leaving_other_announcements_in_place_is_caught = KeepOthers, "a burst of 1";
    }
    an_eviction_compares_parts_of_limits: eviction_among_limits {
        evicting_by_the_time_is_caught = EvictsByTime, "which was used up";
    }
    an_abandoned_announcement_is_completed_once: abandoned_announcement {}
    an_announcement_made_again_is_another: announced_again {
        repeating_a_ticket_is_caught = TicketsRepeat, "a burst of 1";
    }
    a_refund_gives_back_its_own_cell: refund_after_denial {
        refunding_without_a_look_is_caught = RefundWithoutLook, "allowed";
    }
    a_reset_forgives_one_key: reset_against_charges {
        resetting_by_a_store_is_caught = ResetStores, "what was not forgiven";
    }
    a_cell_is_given_back_beside_charges: give_back_against_charges {
        giving_back_by_a_store_is_caught = GivesBackByAStore, "what was charged";
    }
    a_cell_is_given_back_beside_a_move: give_back_against_a_move {}
    a_bucket_that_moves_keeps_its_charges: move_against_charges {
        sealing_by_a_store_is_caught = SealStores, "left behind";
        opening_without_the_inheritance_is_caught = NothingInherited, "left behind";
    }
    first_comers_meet_a_move: move_against_first_comers {}
    a_bucket_that_has_drained_is_not_carried: carry_against_a_drained_bucket {
        carrying_what_has_drained_is_caught = CarriesWhatHasDrained, "by readings of one moment";
    }
    a_reset_after_a_move_holds: reset_after_a_move {
        inheriting_after_the_move_is_caught = InheritsAfterTheMove, "and once";
    }
}

/// Four actors charge six keys in eight slots, and give some of the cells back. Now and then all
/// slots are live.
#[cfg(gcra_shuttle)]
fn many_keys() {
    use shuttle::rand::Rng as _;

    const KEYS: u64 = 6;
    const BURST: u32 = 2;
    let table = Arc::new(Table::new());
    (0..3).for_each(|position| table.put(position, OTHER + 10 + position as u64, LIVE));
    let actor: fn(&Table, Actor) -> u64 = |table, actor| {
        let mut kept = 0;
        for _ in 0..6 {
            let random: u64 = shuttle::rand::thread_rng().gen_range(0..100);
            let key = K + random % KEYS;
            let decision = actor.decide(table, key, BURST);
            let given_back = decision.is_allowed()
                && random >= 80
                && table.bucket(key).refund(decision.charged_tat().unwrap(), T);
            // One byte counts each key.
            kept += u64::from(decision.is_allowed() && !given_back) << (8 * (key - K));
        }
        kept
    };
    let kept: u64 = together(&table, [actor; 4]).iter().sum();
    let allowed = |key: u64| kept >> (8 * (key - K)) & 0xff;
    let evicted = table.counters.counted().evictions.evicted_live;
    let mut owed = 0;
    for key in K..K + KEYS {
        owed += table.owed(key);
        assert!(
            allowed(key) <= u64::from(BURST) + table.forgiven(),
            "{} cells of key {key}",
            allowed(key)
        );
        assert!(
            evicted > 0 || allowed(key) == table.owed(key),
            "{} cells of key {key}",
            allowed(key)
        );
    }
    // Every cell that was allowed and not given back is owed, or was forgiven and counted.
    let strangers_forgiven =
        3 - (0..3).filter(|stranger| table.tat(OTHER + 10 + stranger).is_some()).count() as u64;
    let total: u64 = (K..K + KEYS).map(allowed).sum();
    let stranger_owed = LIVE.saturating_since(CLOCK).div_ceil(T);
    assert_eq!(
        owed + table.forgiven() - strangers_forgiven * stranger_owed,
        total,
        "cells of some key were lost"
    );
}

/// Three actors charge six keys, some of which owe something, while a fourth moves the table.
#[cfg(gcra_shuttle)]
fn many_keys_move() {
    use shuttle::rand::Rng as _;

    const KEYS: u64 = 6;
    const BURST: u32 = 3;
    let tables = Arc::new([Table::new(), Table::new()]);
    tables[0].successor.store(1, Ordering::Relaxed);
    (0..3).for_each(|position| tables[0].put(2 * position, K + position as u64, OWES_1));
    let actor: fn(&[Table; 2], Actor) -> u64 = |tables, actor| {
        let random = |_| shuttle::rand::thread_rng().gen_range(0..KEYS);
        (0..6)
            .map(random)
            .map(|key| actor.charge_moving(tables, K + key, BURST) << (8 * key))
            .sum()
    };
    let resize: fn(&[Table; 2], Actor) -> u64 = |tables, actor| {
        actor.carry_all(tables);
        0
    };
    let allowed: u64 = together(&tables, [actor, actor, actor, resize]).iter().sum();
    assert_eq!(tables[1].counters.counted().evictions.evicted_live, 0);
    for key in 0..KEYS {
        let owed_before = u64::from(key < 3);
        let owed = owed_before + (allowed >> (8 * key) & 0xff);
        assert!(owed <= u64::from(BURST), "{owed} of key {key}");
        assert_eq!(tables[1].owed(K + key), owed, "of key {key}, a charge was left behind");
    }
}

#[cfg(gcra_shuttle)]
models! {
    counts_of_eight_slots_add_up: two_counts {
        counting_by_a_store_in_eight_slots_is_caught = StoreCharge, "counted";
    }
    first_counts_in_eight_slots_open_one_bucket: first_counts {
        counting_without_a_look_is_caught = NoLook, "in the window";
    }
    a_count_of_eight_slots_that_moves_is_kept: move_against_counts {
        counting_in_eight_slots_without_the_inheritance_is_caught = NothingInherited,
            "left behind";
    }
    a_window_of_eight_slots_is_not_opened_after_its_end: count_against_the_end {
        opening_eight_slots_after_the_end_is_caught = OpensAfterTheEnd, "which was used";
    }
    an_eviction_of_eight_slots_compares_parts_of_limits: eviction_among_limits {
        evicting_from_eight_slots_by_the_time_is_caught = EvictsByTime, "which was used up";
    }
    many_keys_in_eight_slots_keep_their_bounds: many_keys {
        a_store_among_many_keys_is_caught = StoreCharge, "cells of";
        no_look_among_many_keys_is_caught = NoLook, "two buckets";
        a_refund_without_a_look_among_many_keys_is_caught = RefundWithoutLook, "cells of";
    }
    many_keys_move_with_all_they_owe: many_keys_move {
        sealing_by_a_store_among_many_keys_is_caught = SealStores, "of key";
        opening_without_the_inheritance_among_many_keys_is_caught = NothingInherited, "of key";
    }
    a_drained_bucket_of_eight_slots_is_not_carried: carry_against_a_drained_bucket {
        carrying_what_has_drained_into_eight_slots_is_caught = CarriesWhatHasDrained,
            "by readings of one moment";
    }
    a_reset_after_a_move_of_eight_slots_holds: reset_after_a_move {
        inheriting_after_a_move_of_eight_slots_is_caught = InheritsAfterTheMove, "and once";
    }
}
