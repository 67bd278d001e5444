//! [`Denials`]: what the store has denied not long ago, where it is asked about each request. A
//! client that is blocked and goes on asking costs the store one charge a second then, and not one
//! for each request.

// ADR 44: What cannot be lent is charged in the store.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::AHashMap;
use gcra_lease::{Charge, Charged, HostTime, Micros, SharedLimit, Window};
use gcra_table::LeaseKey;

/// How long a denial is used. Cells that another process gives back by then, or a reset, have an
/// effect that much later.
const USED_FOR: Micros = Micros::from_millis(1_000);

/// The most denials that are remembered. About further keys the store is asked each time.
const MOST: usize = 65_536;

/// How often those that are over are taken out, at most: all threads wait for that.
const SWEEP_EVERY: Micros = Micros::from_millis(100);

/// The keys that the store has denied, as this process knows.
#[derive(Debug, Default)]
pub(crate) struct Denials(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    keys: AHashMap<Key, Denial>,
    /// When those that were over were last taken out.
    swept: HostTime,
}

/// A key under the numbers of a limit, and the window, if it counts in windows.
type Key = (LeaseKey, Option<Window>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Denial {
    pub charged: Charged,
    pub at: HostTime,
    /// The cells that were not free.
    needs: u32,
    until: HostTime,
}

impl Denials {
    pub(crate) fn note(
        &self,
        key: LeaseKey,
        limit: &SharedLimit,
        charge: &Charge,
        charged: Charged,
        now: HostTime,
    ) {
        let Some(needs) = needs(charge) else { return };
        // A count in a window stays until the window ends.
        let used_for = match limit.window() {
            None => charged.wait(limit, charge).min(USED_FOR),
            Some(_) => USED_FOR,
        };
        let until = now.saturating_add(used_for);
        let mut all = self.all();
        if all.keys.len() >= MOST && now.saturating_since(all.swept) >= SWEEP_EVERY {
            all.swept = now;
            all.keys.retain(|_, denial| now < denial.until);
        }
        if all.keys.len() < MOST {
            all.keys.insert(key_of(key, limit), Denial { charged, at: now, needs, until });
        }
    }

    /// The denial of as many cells of the key, or of fewer, if that is not long ago.
    pub(crate) fn of(
        &self,
        key: LeaseKey,
        limit: &SharedLimit,
        charge: &Charge,
        now: HostTime,
    ) -> Option<Denial> {
        let needs = needs(charge)?;
        let denial = self.all().keys.get(&key_of(key, limit)).copied()?;
        (denial.needs <= needs && now < denial.until).then_some(denial)
    }

    /// Forgets what is known of a key, of which something is given back.
    pub(crate) fn forget(&self, key: LeaseKey, limit: &SharedLimit) {
        self.all().keys.remove(&key_of(key, limit));
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_of(key: LeaseKey, limit: &SharedLimit) -> Key {
    (key, limit.window())
}

/// The cells that must be free. `None` if none must.
fn needs(charge: &Charge) -> Option<u32> {
    match *charge {
        Charge::Take { cells, needs, .. } => Some(cells.max(needs)).filter(|&needs| needs > 0),
        Charge::More { .. } | Charge::Less { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use gcra_lease::{StoreTime, Units, Window};
    use gcra_table::{LeaseNumbers, Slots, Table};

    use super::*;

    #[test]
    fn a_denial_is_used_until_the_cells_are_free_and_not_for_long() {
        let table = Table::in_memory(Slots::new(64).unwrap()).unwrap();
        let key = LeaseKey::new(table.hash(b"a"), LeaseNumbers::new(&[5]));
        let limit = SharedLimit::new(Duration::from_millis(100), 5).unwrap();
        let take = |cells| Charge::Take { cells, needs: 0, max_delay: Micros::ZERO };
        let denied = |taken| Charged {
            allowed: false,
            cells: 0,
            beyond_burst: 0,
            taken,
            now: StoreTime(0),
        };
        let denials = Denials::default();
        let at = |milliseconds: u64| HostTime(7_000_000 + milliseconds * 1_000);
        let is = |cells, now| denials.of(key, &limit, &take(cells), now).is_some();
        // 3 are free.
        denials.note(key, &limit, &take(4), denied(limit.cells(2)), at(0));
        assert!(is(4, at(99)) && is(5, at(99)) && !is(3, at(0)) && !is(0, at(0)));
        assert!(!is(4, at(100)), "the fourth is free");
        denials.note(key, &limit, &take(1), denied(limit.cells(400)), at(0));
        assert!(is(1, at(999)) && !is(1, at(1_000)));
        denials.forget(key, &limit);
        assert!(!is(1, at(0)));
        let count = |begin| SharedLimit::count(5, Window { begin, end: begin + 10 }).unwrap();
        denials.note(key, &count(10), &take(1), denied(Units(5)), at(0));
        let is = |begin| denials.of(key, &count(begin), &take(1), at(999)).is_some();
        assert!(is(10) && !is(20), "another window");
    }
}
