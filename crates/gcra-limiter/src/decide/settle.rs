//! From the message of a response to what the client owes: charges what the request has cost more
//! than was reserved for it, or gives back the rest.

// ADR 41: A response settles what its request reserved.

use gcra_lease::Charge as StoreCharge;
use gcra_policy::calendar::Calendar;
use gcra_policy::settle::{RESERVED, Settle};
use gcra_policy::{Limit, LimitPlace, Price, RuleAt, Sharing};
use gcra_table::{KeyHash, Leases, Nanos, Quota, Reading, Table, Time, WallReading, WindowOver};
use spop_agent::Message;

use crate::active_policies::{ActivePolicies, ActivePolicy};
use crate::answer::{BucketStanding, LimitUsages};
use crate::decide::claim::SharedQuestion;
use crate::decide::direct_charge::{LOOK, SettledInStore};
use crate::decide::local::MOST_WINDOWS;
use crate::decide::shared_progress::{MustWait, Patience, SharedProgress};
use crate::earlier_policies::LimitedClient;
use crate::lease_client::LeaseClient;
use crate::limit_bucket::{LimitBucket, lacks_a_key, note_said};
use crate::message_key::hash_key;
use crate::question::Question;
use crate::reservations::{Marks, Reservation, read, wall_ms};
use crate::settlement::{SettledCells, Settlement};
use crate::stats::PolicyStats;
use crate::unsettled;

/// Settles a request of the policy with this index, as the message of its response says. Adds the
/// standing of each limit to `usage`, where an answer needs it. Returns how many cells were
/// charged, and how many were to be given back; `None` when an arg of the key has no value.
pub(crate) fn settle(
    table: &Table,
    now: &mut Reading,
    in_force: &ActivePolicies,
    index: usize,
    message: &Message<'_>,
    mut usages: Option<&mut LimitUsages>,
) -> Option<(u32, u32)> {
    let row = in_force.row(index);
    let policy = &row.policy;
    let settle = policy.settle()?;
    let (key, overridden) = hash_key(table.hasher(), policy, message)?;
    let rule = RuleAt::new(overridden);
    let mut reserved = reserved_for(&policy.name, message);
    unsettled::remove(table, now, policy, key, &mut reserved);
    let difference = difference(table, settle, reserved, message);
    let Difference { mut outcome, more, less, .. } = difference;
    // Under an order nothing is charged, as for a request. What was reserved before is given back.
    if less == 0 && row.order(key, message, now.time()).is_some() {
        return Some((0, 0));
    }
    let marks = &difference.reserved.marks;
    let mut cells = SettledCells::default();
    let limits = policy.rule(rule).limits();
    if row.reads_messages {
        if lacks_a_key(limits, message) {
            return None;
        }
        note_said(table, limits, message).for_each(drop);
    }
    let mut is_known = false;
    for (place, limit) in (0..).zip(limits) {
        let place = LimitPlace { policy: index, rule, limit: place };
        let current = LimitBucket::of(table, limit, key, Some(message));
        let LimitBucket { key: id, quota } = current;
        if let Some(calendar) = limit.calendar() {
            let counted = InWindow { table, calendar, key: id, most: quota.burst() };
            let (used, ends_in) = match (more, less) {
                (0, less) => {
                    let (is_ours, used, ends_in) = counted.give_back(less, marks, now, &mut cells);
                    is_known |= is_ours;
                    (used, ends_in)
                }
                (more, _) => counted.charge(more, now, &mut cells),
            };
            if let Some(usages) = &mut usages {
                let counted = BucketStanding::in_window(quota, used, ends_in, false);
                usages.add(&counted.of(place, quota), policy);
            }
            continue;
        }
        let asked = LimitedClient { table, policy, limit, current, message };
        if less > 0
            && let Some((id, quota)) = charged_bucket(row, asked, marks)
        {
            is_known = true;
            let settled = table.give_back(id, quota, less, now);
            cells.given_back = cells.given_back.max(settled.cells);
        }
        let least_tat = row.least_tat(asked, now.time());
        if more > 0 {
            charge_rate(table, (id, quota), more, now, least_tat, &mut cells);
        }
        if let Some(usages) = &mut usages {
            let owed = table.tat(id, quota).max(least_tat).saturating_since(now.time());
            let usage = BucketStanding::of_rate(owed, Nanos::ZERO).of(place, quota);
            usages.add(&usage, policy);
        }
    }
    if less > 0 && !is_known {
        outcome = difference.not_given_back(limits, table.wall_reading());
    }
    count(&row.stats, outcome, cells);
    Some((cells.charged, less))
}

fn count(stats: &PolicyStats, outcome: Settlement, cells: SettledCells) {
    stats.seldom.settled.add(outcome as usize, 1);
    count_cells(stats, cells);
}

pub(crate) fn count_cells(stats: &PolicyStats, cells: SettledCells) {
    for (place, cells) in cells.counts().into_iter().enumerate().filter(|(_, cells)| *cells > 0) {
        stats.seldom.settled_cells.add(place, cells.into());
    }
}

/// Charges cells under a limit, also beyond its burst or count.
pub(crate) fn charge_more(
    row: &ActivePolicy,
    asked: LimitedClient<'_, '_>,
    more: u32,
    now: &mut Reading,
    cells: &mut SettledCells,
) {
    let LimitedClient { table, limit, current: LimitBucket { key, quota }, .. } = asked;
    if let Some(calendar) = limit.calendar() {
        InWindow { table, calendar, key, most: quota.burst() }.charge(more, now, cells);
        return;
    }
    let least_tat = row.least_tat(asked, now.time());
    charge_rate(table, (key, quota), more, now, least_tat, cells);
}

fn charge_rate(
    table: &Table,
    (key, quota): (KeyHash, Quota),
    more: u32,
    now: &mut Reading,
    least_tat: Time,
    cells: &mut SettledCells,
) {
    let settled = table.charge_up_to_cap(key, quota, more, now, least_tat);
    cells.charged = cells.charged.max(settled.cells);
    cells.overdrawn = cells.overdrawn.max(settled.beyond_burst);
    cells.forgiven = cells.forgiven.max(more - settled.cells);
}

/// The bucket of the limit in which the request was charged: that of the numbers in force, or of
/// earlier ones. `None` if it is not known here.
fn charged_bucket(
    row: &ActivePolicy,
    asked: LimitedClient<'_, '_>,
    marks: &Marks,
) -> Option<(KeyHash, Quota)> {
    let is_it =
        |key: KeyHash, quota: Quota| marks.contains(&key.mark(quota)).then_some((key, quota));
    let LimitBucket { key, quota } = asked.current;
    let mut former = row.changes.buckets(asked).into_iter();
    is_it(key, quota).or_else(|| former.find_map(|former| is_it(former.key, former.quota)))
}

/// How often it is tried to count cells in a window.
const ATTEMPTS: u32 = 100;

/// A limit that counts in windows, and the key that it counts by.
struct InWindow<'t> {
    table: &'t Table,
    calendar: &'t Calendar,
    key: KeyHash,
    /// The count of the limit.
    most: u32,
}

impl InWindow<'_> {
    /// Counts what a request has cost more, in the window of this moment, also beyond the count of
    /// the limit, but not beyond 2^32 - 1. Returns how many cells are counted then, and how much
    /// longer the window lasts.
    fn charge(&self, more: u32, now: &mut Reading, cells: &mut SettledCells) -> (u32, Nanos) {
        let Self { table, calendar, key, most } = *self;
        let (mut at, mut fits, mut windows) = (table.wall_reading(), more, 0);
        // Another process must have counted cells for each attempt that is lost.
        for _ in 0..ATTEMPTS {
            match table.count(key, calendar.window(at), u32::MAX, fits, now) {
                Ok(tally) if tally.is_allowed() => {
                    let beyond = tally.used().saturating_sub(most).min(fits);
                    cells.charged = cells.charged.max(fits);
                    cells.overdrawn = cells.overdrawn.max(beyond);
                    cells.forgiven = cells.forgiven.max(more - fits);
                    return (tally.used(), calendar.ends_in(at));
                }
                Ok(tally) => fits = fits.min(u32::MAX - tally.used()),
                // It has ended meanwhile.
                Err(WindowOver) if windows < MOST_WINDOWS => {
                    (at, fits, windows) = (table.wall_reading(), more, windows + 1);
                }
                Err(WindowOver) => break,
            }
        }
        // This process is stopped again and again.
        cells.forgiven = cells.forgiven.max(more);
        (most, calendar.ends_in(at))
    }

    /// Gives back what a request has cost less, if it was reserved in the window of this moment. A
    /// count in an earlier one is over. Returns whether it was, how many cells are counted then,
    /// and how much longer the window lasts.
    fn give_back(
        &self,
        less: u32,
        marks: &Marks,
        now: &mut Reading,
        cells: &mut SettledCells,
    ) -> (bool, u32, Nanos) {
        let Self { table, calendar, key, .. } = *self;
        let at = table.wall_reading();
        let window = calendar.window(at);
        let is_ours = marks.contains(&window.mark(key));
        // After a reset there may be less than was reserved.
        let less = less.min(table.counted_in(key, window).unwrap_or(0));
        if less > 0 && is_ours && table.uncount(key, window, less, now) {
            cells.given_back = cells.given_back.max(less);
        }
        (is_ours, table.counted_in(key, window).unwrap_or(0), calendar.ends_in(at))
    }
}

/// A message that settles a request under limits that machines share.
pub(crate) struct SettlingInStore<'p, 't, 'm> {
    pub table: &'t Table,
    pub in_force: &'p ActivePolicies,
    /// The lease client and the leases of this host, if there is a store.
    pub borrowing: Option<(&'t LeaseClient, &'t Leases)>,
    pub sharing: Sharing,
    pub message: &'m Message<'m>,
}

impl<'p> SettlingInStore<'p, '_, '_> {
    /// As [`settle`]. The third value is when that was, by the clock of the store, in ns since
    /// 1970, if anything was to be done.
    ///
    /// # Errors
    ///
    /// The message has to wait for the store.
    pub(crate) fn settle(
        self,
        policy: usize,
        so_far: &mut SharedProgress,
        patience: Patience,
        mut usages: Option<&mut LimitUsages>,
    ) -> Result<Option<(u32, u32, Option<u64>)>, MustWait> {
        let Self { table, in_force, borrowing, sharing, message } = self;
        let row = in_force.row(policy);
        let asked = &*row.policy;
        let Some(settle) = asked.settle() else { return Ok(None) };
        let Some((key, overridden)) = hash_key(table.hasher(), asked, message) else {
            return Ok(None);
        };
        let rule = RuleAt::new(overridden);
        let reserved = reserved_for(&asked.name, message);
        let difference = difference(table, settle, reserved, message);
        let Difference { mut outcome, more, less, .. } = difference;
        // As in `settle`.
        if less == 0 && row.order(key, message, table.now()).is_some() {
            return Ok(Some((0, 0, None)));
        }
        let limits = asked.rule(rule).limits();
        if row.reads_messages {
            if lacks_a_key(limits, message) {
                return Ok(None);
            }
            note_said(table, limits, message).for_each(drop);
        }
        let marks = &difference.reserved.marks;
        let no_store = || {
            count(&row.stats, Settlement::NoStore, SettledCells::default());
            Ok(Some((0, 0, None)))
        };
        let Some((lease_client, leases)) = borrowing else { return no_store() };
        let wants = usages.is_some();
        let charge = |mark: u32| match (more, less) {
            (0, 1..) if marks.contains(&mark) => {
                Some(StoreCharge::Less { cells: less, taken_at: None })
            }
            (0, _) => wants.then_some(LOOK),
            (_, _) => Some(StoreCharge::More { cells: more }),
        };
        let is_charged = |mark: u32| less > 0 && marks.contains(&mark);
        let question = Question { policy, rule, cells: 0, key };
        let shared =
            SharedQuestion { lease_client, leases, table, in_force, sharing, question, message };
        let Some(all) = shared.settle_at_once(limits, charge, is_charged, so_far, patience)?
        else {
            return no_store();
        };
        let (mut cells, mut store_ns) = (SettledCells::default(), None);
        if less > 0 && !all.iter().any(|it| matches!(it.charge, StoreCharge::Less { .. })) {
            outcome = difference.not_given_back(limits, table.wall_reading());
        }
        for SettledInStore { usage, charge, charged } in all {
            let done = charged.cells;
            store_ns = store_ns.max(Some(charged.now.0.saturating_mul(1_000)));
            match charge {
                StoreCharge::Take { .. } => {}
                StoreCharge::Less { .. } => cells.given_back = cells.given_back.max(done),
                StoreCharge::More { cells: more } => {
                    cells.charged = cells.charged.max(done);
                    cells.overdrawn = cells.overdrawn.max(charged.beyond_burst);
                    cells.forgiven = cells.forgiven.max(more - done);
                }
            }
            if let (Some(usages), Some(usage)) = (&mut usages, usage) {
                usages.add(&usage, asked);
            }
        }
        count(&row.stats, outcome, cells);
        Ok(Some((cells.charged, less, store_ns)))
    }
}

/// The cells that the request has cost more than was reserved for it, or less.
struct Difference {
    outcome: Settlement,
    more: u32,
    less: u32,
    reserved: Reservation,
}

impl Difference {
    /// Why no limit has a bucket in which cells were reserved.
    fn not_given_back(&self, limits: &[Limit], now: WallReading) -> Settlement {
        let is_over = |calendar: &Calendar| {
            let began = calendar.bounds(now).start;
            i64::try_from(self.reserved.at.as_secs()).is_ok_and(|at| at < began)
        };
        let mut windows = limits.iter().filter_map(|limit| limit.calendar());
        if windows.any(is_over) { Settlement::Late } else { Settlement::Unknown }
    }
}

/// The reservation that a response brings back, or that of no cells.
fn reserved_for(policy: &str, message: &Message<'_>) -> Reservation {
    let reserved = message.arg(RESERVED.as_bytes()).and_then(|value| value.as_bytes());
    reserved.and_then(|text| read(text, policy)).unwrap_or_default()
}

fn difference(
    table: &Table,
    settle: &Settle,
    reserved: Reservation,
    message: &Message<'_>,
) -> Difference {
    let cost = match &settle.cost {
        None => Some(1),
        Some(name) => message.arg(name).and_then(Price::cells_of),
    };
    let Reservation { cells, at, .. } = reserved;
    let settled = |outcome, more, less| Difference { outcome, more, less, reserved };
    let Some(cost) = cost else { return settled(Settlement::NoCost, 0, 0) };
    let (more, less) = (cost.saturating_sub(cells), cells.saturating_sub(cost));
    match (more, less) {
        (0, 0) => settled(Settlement::Equal, 0, 0),
        (0, _) if wall_ms(table).saturating_sub(at) > settle.within => {
            settled(Settlement::Late, 0, 0)
        }
        (0, _) => settled(Settlement::GivenBack, 0, less),
        (_, _) => settled(Settlement::Charged, more, 0),
    }
}
