//! The arithmetic and the table, compared with a model that is the promise itself.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;

use gcra_table::{Admission, Nanos, Quota, Slots, Table, Time};
use proptest::prelude::*;

/// The promise, word for word. It keeps all allowed cells. For each interval that begins with such
/// a cell and ends now, it checks whether the cells in the interval stay within `burst + t / T`.
/// Its times are nanoseconds, without the types of the crate.
struct Naive {
    interval_ns: u64,
    burst: u32,
    allowed: Vec<(u64, u32)>,
}

impl Naive {
    fn new((interval_ns, burst): (u64, u32)) -> Self {
        Self { interval_ns, burst, allowed: Vec::new() }
    }

    fn conforms(&self, now: u64, cells: u32) -> bool {
        let mut within = u64::from(cells);
        let fits = |within: u64, t: u64| {
            // within <= burst + t / T
            u128::from(within.saturating_sub(u64::from(self.burst))) * u128::from(self.interval_ns)
                <= u128::from(t)
        };
        cells <= self.burst
            && self.allowed.iter().rev().all(|&(at, cells)| {
                within += u64::from(cells);
                fits(within, now - at)
            })
    }

    fn charge(&mut self, now: u64, cells: u32) -> bool {
        let conforms = self.conforms(now, cells);
        if conforms && cells > 0 {
            self.allowed.push((now, cells));
        }
        conforms
    }
}

fn quotas() -> impl Strategy<Value = (u64, u32)> {
    (prop_oneof![1_u64..20, 1_u64..2_000_000_000], prop_oneof![1_u32..5, 1_u32..200])
}

fn quota((interval_ns, burst): (u64, u32)) -> Quota {
    Quota::new(Nanos(interval_ns), burst).unwrap()
}

/// Steps of time: none, a few nanoseconds, less than an emission interval, about one, up to a
/// burst.
fn steps() -> impl Strategy<Value = Vec<(u8, u64, u32)>> {
    prop::collection::vec(
        (0_u8..5, any::<u64>(), prop_oneof![9 => 1_u32..3, 1 => 0_u32..300]),
        1..120,
    )
}

fn step(kind: u8, random: u64, quota: Quota) -> Nanos {
    let interval = quota.emission_interval().0;
    Nanos(match kind {
        0 => 0,
        1 => random % 3,
        2 => random % interval,
        3 => interval - 1 + random % 3,
        _ => random % (quota.drain_time().0 + 2),
    })
}

proptest! {
    /// The wait of a denial is exact too: a nanosecond less is too early, and then the cells
    /// conform.
    #[test]
    fn admit_is_the_promise(parameters in quotas(), steps in steps()) {
        let quota = quota(parameters);
        let mut naive = Naive::new(parameters);
        let (mut now, mut tat) = (0, 0);
        for (kind, random, cells) in steps {
            now += step(kind, random, quota).0;
            match quota.admit(Time(tat), Time(now), cells) {
                Admission::Conforming { tat: next } => {
                    prop_assert!(naive.charge(now, cells));
                    let cost = u64::from(cells) * parameters.0;
                    prop_assert_eq!(next.0, tat.max(now) + cost);
                    tat = next.0;
                }
                Admission::Early { wait } => {
                    prop_assert!(!naive.conforms(now, cells));
                    prop_assert!(!naive.conforms(now + wait.0 - 1, cells));
                    prop_assert!(naive.conforms(now + wait.0, cells));
                }
                Admission::Oversize => prop_assert!(cells > quota.burst()),
            }
            let remaining = quota.remaining(Time(tat).saturating_since(Time(now)));
            prop_assert!(remaining == 0 || naive.conforms(now, remaining));
            prop_assert!(!naive.conforms(now, remaining + 1));
        }
    }

    /// No number makes the arithmetic overflow.
    #[test]
    fn admit_is_total(parameters in quotas(), tat: u64, now in 0_u64..1 << 63, cells: u32) {
        let quota = quota(parameters);
        let (tat, now) = (Time(tat), Time(now));
        let _ = quota.admit(tat, now, cells);
        let _ = quota.remaining(tat.saturating_since(now));
    }

    /// Many keys in one table, each compared with a model of its own, while time passes and some
    /// cells are given back.
    #[test]
    fn a_table_is_a_model_for_each_key(
        parameters in quotas(),
        steps in prop::collection::vec(
            (0_u16..40, 0_u8..5, any::<u64>(), 0_u32..4, any::<u8>()),
            1..400,
        ),
    ) {
        let (table, clock) = Table::with_manual_clock(Slots::new(512).unwrap()).unwrap();
        let quota = quota(parameters);
        let mut models: Vec<_> = (0..40).map(|_| Naive::new(parameters)).collect();
        for (key, kind, random, cells, then) in steps {
            clock.advance(step(kind, random, quota));
            let (model, key) = (&mut models[usize::from(key)], table.hash(&key.to_ne_bytes()));
            let mut reading = table.reading();
            let decision = table.charge(key, quota, cells, &mut reading);
            let now = reading.time();
            prop_assert_eq!(decision.is_allowed(), model.charge(now.0, cells));
            if let Some(wait) = decision.retry_after() {
                let then = now.0 + wait.0;
                prop_assert!(model.conforms(then, cells) && !model.conforms(then - 1, cells));
            }
            prop_assert_eq!(table.owed(key, quota, now), decision.owed());
            match then {
                0..50 if decision.is_allowed() && cells > 0 => {
                    clock.advance(Nanos(then.into()));
                    prop_assert!(table.refund(key, quota, cells, &decision));
                    model.allowed.pop();
                }
                250.. => {
                    prop_assert_eq!(table.reset(key, quota, now), Some(decision.owed()));
                    model.allowed.clear();
                }
                _ => {}
            }
        }
        prop_assert_eq!(table.evictions(), gcra_table::Evictions::default());
        prop_assert!(table.check().is_empty());
    }

    /// A cell is given back only as long as the key was not used since.
    #[test]
    fn a_late_refund_is_refused(others in 1_usize..5) {
        let (table, _) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
        let quota = quota((1_000, 10));
        let key = table.hash(b"a");
        let mut now = table.reading();
        let first = table.charge(key, quota, 1, &mut now);
        let last = (0..others).map(|_| table.charge(key, quota, 1, &mut now)).last().unwrap();
        prop_assert!(!table.refund(key, quota, 1, &first));
        prop_assert!(table.refund(key, quota, 1, &last));
        prop_assert!(!table.refund(key, quota, 1, &last), "once");
        prop_assert_eq!(table.owed(key, quota, now.time()), Nanos(1_000 * others as u64));
    }
}

/// The attack on every limiter that forgets the key that was used least recently: to send new keys
/// until one's own is forgotten.
#[test]
fn a_flood_of_new_keys_frees_no_key_that_is_denied() {
    const SECONDS: u64 = 1;
    let (table, clock) = Table::with_manual_clock(Slots::new(4096).unwrap()).unwrap();
    let quota = quota((10_000_000, 20));
    let client = table.hash(b"client");
    let mut allowed = 0;
    // Every millisecond the client asks once, ten times its rate, and 1000 new keys come.
    for millisecond in 0..SECONDS * 1_000 {
        let mut now = table.reading();
        allowed += u64::from(table.charge(client, quota, 1, &mut now).is_allowed());
        for fresh in 0..1_000_u64 {
            let _ = table.charge(
                table.hash(&(millisecond * 1_000 + fresh).to_ne_bytes()),
                quota,
                1,
                &mut now,
            );
        }
        clock.advance(Nanos::from_millis(1));
    }
    assert!(table.evictions().evicted_live > 500_000, "{:?}", table.evictions());
    assert_eq!(
        allowed,
        20 + 100 * SECONDS - 1,
        "the bound, less the interval that has not passed"
    );
}

/// A charge up to the cap keeps a key denied for longer. Without a cap the same debt is forgiven.
#[test]
fn a_debt_goes_up_to_its_cap() {
    const fn ms(milliseconds: u64) -> Nanos {
        Nanos::from_millis(milliseconds)
    }
    let (table, clock) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
    let plain = quota((ms(100).0, 5));
    let capped = plain.with_most_owed(ms(10_500)).unwrap();
    assert_eq!((capped.most_owed(), capped.up_to_cap().burst()), (ms(10_500), 105));
    let key = table.hash(b"a");
    let mut now = table.reading();
    assert!(table.charge(key, capped, 5, &mut now).is_allowed());
    for _ in 0..200 {
        assert!(!table.charge(key, capped, 1, &mut now).is_allowed());
        let _ = table.charge(key, capped.up_to_cap(), 1, &mut now);
    }
    assert_eq!(table.owed(key, capped, now.time()), ms(10_500), "the cap");
    clock.advance(ms(10_099));
    let mut now = table.reading();
    assert!(!table.charge(key, capped, 1, &mut now).is_allowed());
    clock.advance(ms(1));
    let mut now = table.reading();
    assert!(table.charge(key, capped, 1, &mut now).is_allowed(), "one cell, as the wait said");
    assert!(!table.charge(key, capped, 1, &mut now).is_allowed(), "and no burst");

    let _ = table.charge(key, capped.up_to_cap(), 100, &mut now);
    // The cap is taken away: a full burst is owed, and nothing beyond it.
    let least_tat = plain.carry_over(capped, table.tat(key, capped), now.time(), now.time());
    assert_eq!(least_tat, now.time().saturating_add(plain.drain_time()));
    assert!(!table.charge_owing(key, plain, 1, &mut now, least_tat).is_allowed());
    clock.advance(ms(100));
    let mut now = table.reading();
    assert!(table.charge_owing(key, plain, 1, &mut now, least_tat).is_allowed());
}

/// If two quotas shared a bucket, each would take the other's debts for damage, and forgive them.
#[test]
fn two_quotas_in_turn_forgive_nothing() {
    let (table, clock) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
    let key = table.hash(b"a");
    let pairs = [
        (1_000_000, [quota((1_000_000, 20)), quota((1_000_000, 30))]),
        (10_000, [quota((86_400_000_000, 1_000)), quota((864_000_000_000, 100))]),
        (
            10_000,
            [
                quota((1_000_000, 20)),
                quota((1_000_000, 20)).with_most_owed(Nanos::from_millis(21)).unwrap(),
            ],
        ),
    ];
    for (turns, pair) in pairs {
        clock.advance(Nanos::from_secs(1_000_000));
        let mut allowed = [0_u32; 2];
        for turn in 0..turns {
            let which = turn % 2;
            allowed[which] +=
                u32::from(table.charge(key, pair[which], 1, &mut table.reading()).is_allowed());
        }
        assert_eq!(allowed, pair.map(Quota::burst));
    }
}

proptest! {
    /// However processes with different quotas take turns on one key, each allows exactly what it
    /// would allow alone. So all processes together allow at most the sum of these cells.
    #[test]
    fn each_of_several_quotas_allows_what_it_would_alone(
        parameters in prop::collection::vec(quotas(), 2..5),
        steps in prop::collection::vec((0_usize..4, 0_u8..5, any::<u64>(), 0_u32..4), 1..400),
    ) {
        let (table, clock) = Table::with_manual_clock(Slots::new(512).unwrap()).unwrap();
        let key = table.hash(b"a");
        let mut distinct = parameters.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let mut models: Vec<_> = distinct.iter().copied().map(Naive::new).collect();
        for (which, kind, random, cells) in steps {
            let which = which % models.len();
            let quota = quota(distinct[which]);
            clock.advance(step(kind, random, quota));
            let mut now = table.reading();
            let decision = table.charge(key, quota, cells, &mut now);
            prop_assert_eq!(decision.is_allowed(), models[which].charge(now.time().0, cells));
        }
        prop_assert!(table.check().is_empty());
    }

    /// For each key every limit is apart from every other, whether that has the same numbers or
    /// others; also from the limit without a name. No limit owes what another is charged.
    #[test]
    fn several_limits_of_several_keys_are_apart(
        parameters in prop::collection::hash_set(quotas(), 1..3),
        ids in prop::collection::hash_set(any::<u64>(), 1..4),
        charges in prop::collection::vec((0_u8..6, any::<u8>(), any::<u8>(), 1_u32..3), 1..80),
    ) {
        let (table, clock) = Table::with_manual_clock(Slots::new(4096).unwrap()).unwrap();
        let quotas: Vec<_> = parameters.into_iter().collect();
        let ids: Vec<_> = [0].into_iter().chain(ids).collect();
        let mut models: HashMap<_, Naive> = HashMap::new();
        for (key, id, which, cells) in charges {
            clock.advance(Nanos(1));
            let id = ids[usize::from(id) % ids.len()];
            let parameters = quotas[usize::from(which) % quotas.len()];
            let model =
                models.entry((key, id, parameters)).or_insert_with(|| Naive::new(parameters));
            let key = table.hash(&[key]).under(table.limit_salt(id));
            let mut now = table.reading();
            let decision = table.charge(key, quota(parameters), cells, &mut now);
            prop_assert_eq!(decision.is_allowed(), model.charge(now.time().0, cells));
        }
        prop_assert!(table.check().is_empty());
    }

    /// After a change of the quota, the debt of a key is the larger of two debts. One is the debt
    /// at the change, paid off at the faster of both rates. The other is the cells that the key
    /// has sent since the change. (The rest of a cell counts as a part. So there are two ledgers:
    /// one in which it counts as nothing, and one in which it counts as a whole cell.)
    #[test]
    fn a_debt_survives_a_change_of_the_quota(
        before in quotas(),
        after in quotas(),
        cells_before in 0_u32..40,
        idle in any::<u64>(),
        steps in steps(),
    ) {
        prop_assume!(before != after);
        let (table, clock) = Table::with_manual_clock(Slots::new(512).unwrap()).unwrap();
        let key = table.hash(b"a");
        let (quota_before, quota_after) = (quota(before), quota(after));
        for _ in 0..cells_before {
            let _ = table.charge(key, quota_before, 1, &mut table.reading());
        }
        clock.advance(Nanos(idle % (quota_before.drain_time().0 + 2)));
        let changed = table.now();
        let owed_ns = table.owed(key, quota_before, changed).0;
        // The cells that were sent since the change, in nanoseconds of the new quota.
        let (mut fewer, mut more, mut last) = (0_u64, 0_u64, changed.0);
        for (kind, random, cells) in steps {
            clock.advance(step(kind, random, quota_after));
            let mut reading = table.reading();
            let tat = table.tat(key, quota_before);
            let least_tat = quota_after.carry_over(quota_before, tat, changed, reading.time());
            let decision = table.charge_owing(key, quota_after, cells, &mut reading, least_tat);
            let now = reading.time().0;
            let passed = now - changed.0;
            // In nanoseconds of the new quota: cell for cell, by each of the rates.
            let carried = |cells: u64, cells_now: u64| {
                let by_new = (cells.min(after.1.into()) * after.0).saturating_sub(passed);
                by_new.min(cells_now * after.0)
            };
            let owed_now = owed_ns.saturating_sub(passed);
            let least = carried(owed_ns / before.0, owed_now / before.0);
            let most = carried(owed_ns.div_ceil(before.0), owed_now.div_ceil(before.0));
            (fewer, more) = (fewer.saturating_sub(now - last), more.saturating_sub(now - last));
            last = now;
            let (cost, burst) = (u64::from(cells) * after.0, u64::from(after.1) * after.0);
            if decision.is_allowed() {
                prop_assert!(cells == 0 || fewer.max(least) + cost <= burst);
                if cells > 0 {
                    (fewer, more) = (fewer.max(least) + cost, more.max(most) + cost);
                }
            } else {
                prop_assert!(more.max(most) + cost > burst);
            }
        }
    }
}

/// Mostly small ones; now and then none, or more than a burst.
fn costs() -> impl Strategy<Value = u32> {
    prop_oneof![9 => 1_u32..4, 1 => 0_u32..210]
}

/// A shaper as one would draw it: requests stand in a queue, in the order in which they came. Each
/// leaves at the earliest moment at which the cells that left in each interval before it stay
/// within `burst + t / T`. A request that would have to wait for longer than the longest delay is
/// turned away. The shaper knows no TAT. Its times are nanoseconds.
struct Shaper {
    limit: Naive,
    max_delay: u64,
}

impl Shaper {
    /// When a request that comes now would leave.
    fn leaves(&self, now: u64, cells: u32) -> u64 {
        let Naive { interval_ns, burst, allowed } = &self.limit;
        let mut within = u64::from(cells);
        let earliest = allowed.iter().rev().map(|&(at, cells)| {
            within += u64::from(cells);
            at + within.saturating_sub(u64::from(*burst)) * interval_ns
        });
        let behind_the_last = allowed.last().map_or(0, |(at, _)| *at);
        earliest.max().unwrap_or(0).max(behind_the_last).max(now)
    }

    /// How long the request has to stand, or else how long it has to stay away until it may stand.
    fn ask(&self, now: u64, cells: u32) -> Result<u64, u64> {
        let delay = self.leaves(now, cells) - now;
        if delay <= self.max_delay { Ok(delay) } else { Err(delay - self.max_delay) }
    }
}

proptest! {
    /// With a longest delay the table is a shaper for each key. Each delay is the one of the
    /// queue, to the nanosecond, so nobody overtakes and the outflow keeps to the limit. A request
    /// is turned away while the queue is too long, and not longer.
    #[test]
    fn with_a_longest_delay_a_table_is_a_queue_for_each_key(
        parameters in quotas(),
        max_delay in (0_u8..5, any::<u64>()),
        beyond in 0_u64..1_000,
        steps in prop::collection::vec(
            (0_u16..4, 0_u8..5, any::<u64>(), costs(), 0_u8..9),
            1..200,
        ),
    ) {
        let (table, clock) = Table::with_manual_clock(Slots::new(512).unwrap()).unwrap();
        let plain = quota(parameters);
        let max_delay = step(max_delay.0, max_delay.1, plain);
        let quota = plain.with_max_delay(max_delay).unwrap();
        let quota = quota.with_most_owed(quota.most_owed() + Nanos(beyond)).unwrap();
        let shaper = || Shaper { limit: Naive::new(parameters), max_delay: max_delay.0 };
        let mut models: Vec<_> = (0..4).map(|_| shaper()).collect();
        for (key, kind, random, cells, then) in steps {
            clock.advance(step(kind, random, quota));
            let (model, key) = (&mut models[usize::from(key)], table.hash(&key.to_ne_bytes()));
            let mut reading = table.reading();
            let decision = table.charge(key, quota, cells, &mut reading);
            let now = reading.time().0;
            if cells == 0 {
                prop_assert!(decision.is_allowed());
                continue;
            }
            if cells > quota.burst() {
                prop_assert!(!decision.is_allowed() && decision.retry_after().is_none());
                continue;
            }
            match model.ask(now, cells) {
                Ok(delay) => {
                    prop_assert!(decision.is_allowed());
                    prop_assert_eq!(quota.delay(decision.owed()), Nanos(delay));
                    let leaves = now + delay;
                    // The promise about the outflow, and about the order.
                    prop_assert!(model.limit.conforms(leaves, cells));
                    prop_assert!(model.limit.allowed.last().is_none_or(|(at, _)| *at <= leaves));
                    if then == 0 {
                        prop_assert!(table.refund(key, quota, cells, &decision));
                    } else {
                        model.limit.charge(leaves, cells);
                    }
                }
                Err(wait) => {
                    prop_assert_eq!(decision.retry_after(), Some(Nanos(wait)));
                    prop_assert_eq!(model.ask(now + wait, cells), Ok(max_delay.0));
                    prop_assert!(model.ask(now + wait - 1, cells).is_err());
                }
            }
        }
        prop_assert_eq!(table.evictions(), gcra_table::Evictions::default());
        prop_assert!(table.check().is_empty());
    }
}

/// A request that was reserved for: when, by its place in the order of all events, how many cells,
/// what it turned out to cost, and when that was known.
#[derive(Clone, Copy, Debug)]
struct Reserved {
    at: usize,
    cells: u64,
    cost: u64,
    settled_at: usize,
}

proptest! {
    /// Requests reserve cells, and their responses correct that, late and in any order. In any
    /// interval, the charged cells less the cells given back keep to the limit, except cells that
    /// responses have charged beyond the burst. The real cost of the requests keeps to the limit,
    /// too. Its one exception is the cells that requests under way at the beginning had reserved
    /// too much.
    #[test]
    fn what_is_settled_keeps_to_the_limit(
        parameters in quotas(),
        beyond in (0_u8..5, any::<u64>()),
        steps in prop::collection::vec(
            (0_u8..5, any::<u64>(), costs(), prop_oneof![4 => 0_u32..4, 1 => 0_u32..300], 0_u8..6),
            1..80,
        ),
    ) {
        let (table, clock) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
        let plain = quota(parameters);
        let cap = plain.drain_time() + step(beyond.0, beyond.1, plain);
        let quota = plain.with_most_owed(cap).unwrap();
        let interval = i128::from(quota.emission_interval().0);
        let burst = i128::from(quota.drain_time().0);
        let key = table.hash(b"a");
        // The naive model: what is owed goes down with the time, to nothing. In nanoseconds.
        let (mut owed, mut last) = (0_i128, 0_i128);
        // For each event: when, what it charged or gave back, and of that what is beyond the
        // burst.
        let mut events: Vec<(i128, i128, i128)> = Vec::new();
        let mut requests: Vec<Reserved> = Vec::new();
        for (kind, random, cells, cost, then) in steps {
            clock.advance(step(kind, random, quota));
            let mut reading = table.reading();
            let now = i128::from(reading.time().0);
            owed = (owed - (now - last)).max(0);
            last = now;
            let under_way: Vec<usize> = (0..requests.len())
                .filter(|at| requests[*at].settled_at == usize::MAX)
                .collect();
            if then < 3 || under_way.is_empty() {
                let decision = table.charge(key, quota, cells, &mut reading);
                let costs = i128::from(cells) * interval;
                prop_assert_eq!(decision.is_allowed(), cells == 0 || owed + costs <= burst);
                if decision.is_allowed() {
                    let (at, cells, cost) = (events.len(), cells.into(), cost.into());
                    requests.push(Reserved { at, cells, cost, settled_at: usize::MAX });
                    events.push((now, costs, 0));
                    owed += costs;
                }
            } else {
                let which = usize::try_from(random % 1_000).unwrap() % under_way.len();
                let request = &mut requests[under_way[which]];
                request.settled_at = events.len();
                let (more, less) =
                    (cost_of(request.cost, request.cells), cost_of(request.cells, request.cost));
                if more > 0 {
                    let settled =
                        table.charge_up_to_cap(key, quota, more, &mut reading, Time::ZERO);
                    let whole_cells = i128::from(cap.0) / interval * interval;
                    let fits = (whole_cells - owed) / interval;
                    let charged = i128::from(more).min(fits.max(0));
                    prop_assert_eq!(i128::from(settled.cells), charged);
                    // Forgiven cells have cost nothing.
                    request.cost = request.cells + u64::from(settled.cells);
                    let beyond = (owed + charged * interval - burst).clamp(0, charged * interval);
                    prop_assert_eq!(
                        i128::from(settled.beyond_burst),
                        (beyond + interval - 1) / interval
                    );
                    owed += charged * interval;
                    events.push((now, charged * interval, beyond));
                } else {
                    let settled = table.give_back(key, quota, less, &mut reading);
                    let given = (i128::from(less) * interval).min(owed);
                    prop_assert_eq!(i128::from(settled.cells), given / interval);
                    owed -= given;
                    events.push((now, -given, 0));
                }
            }
            prop_assert_eq!(i128::from(table.owed(key, quota, reading.time()).0), owed);
        }
        let real = |at: usize| {
            requests.iter().map(move |request| {
                // A cost that is not known yet counts as it was reserved.
                let is_settled = request.settled_at != usize::MAX;
                let cost = if is_settled { request.cost } else { request.cells };
                let (first, more) = (cost.min(request.cells), cost.saturating_sub(request.cells));
                let mut now = 0;
                if request.at == at {
                    now += first;
                }
                if request.settled_at == at {
                    now += more;
                }
                i128::from(now) * interval
            }).sum::<i128>()
        };
        for from in 0..events.len() {
            let reserved_too_much: u64 = requests
                .iter()
                .filter(|request| request.at < from && from <= request.settled_at)
                .filter(|request| request.settled_at != usize::MAX)
                .map(|request| request.cells.saturating_sub(request.cost))
                .sum();
            let (mut net, mut overdrawn, mut cost) = (0, 0, 0);
            for (to, &(at, charged, beyond)) in events.iter().enumerate().skip(from) {
                net += charged;
                overdrawn += beyond;
                cost += real(to);
                let most = burst + (at - events[from].0) + overdrawn;
                prop_assert!(net <= most, "{net} charged, and not given back; {most} at most");
                let most = most + i128::from(reserved_too_much) * interval;
                prop_assert!(cost <= most, "a real cost of {cost}, and {most} at most");
            }
        }
        prop_assert!(table.check().is_empty());
    }
}

/// How many cells `cells` are more than `others`.
fn cost_of(cells: u64, others: u64) -> u32 {
    u32::try_from(cells.saturating_sub(others)).unwrap()
}
