//! Requests that no response settles. Their cost is written down in the table when they go on, and
//! their response removes it. If no response comes, a later request of the client takes the cost
//! and charges it.

// ADR 51: What no response settles is charged with a later request.

use std::time::Duration;

use gcra_policy::settle::{Settle, UnsettledCost};
use gcra_policy::{Limit, Policy, id_since};
use gcra_table::{KeyHash, Nanos, Reading, Table, Term, UnsettledCells};
use gcra_text::duration::nanoseconds;

use crate::active_policies::ActivePolicies;
use crate::question::Question;
use crate::reservations::{Reservation, Reserved, wall_ms};

/// The key and the settings for the unsettled requests of a client.
#[derive(Clone, Copy)]
struct Client<'p> {
    settle: &'p Settle,
    unsettled: UnsettledCost,
    /// By which they are found in the table.
    key: KeyHash,
}

impl<'p> Client<'p> {
    /// `None` if the policy does not charge them.
    #[inline]
    fn of(table: &Table, policy: &'p Policy, key: KeyHash) -> Option<Self> {
        let settle = policy.settle()?;
        let unsettled = settle.unsettled?;
        let key = key.under(table.limit_salt(id_since(unsettled.id, policy.reset_at)));
        Some(Self { settle, unsettled, key })
    }

    fn term(&self, at: Duration) -> Term {
        Term::at(at, self.settle.within)
    }
}

/// Takes what requests of a client cost that no response has settled in time. The caller charges
/// it. A process that is killed before it has done so has forgiven it.
pub(crate) fn take_overdue(
    table: &Table,
    policy: &Policy,
    key: KeyHash,
    now: &mut Reading,
) -> u32 {
    let client = Client::of(table, policy, key);
    client.map_or(0, |it| table.take_overdue(it.key, it.term(wall_ms(table)), now))
}

/// Writes down what the requests cost that go on with these reservations, if no response settles
/// them.
#[cold]
pub(crate) fn add(
    table: &Table,
    now: &mut Reading,
    in_force: &ActivePolicies,
    reserved: &Reserved,
) {
    for (index, reservation) in reserved.each() {
        let policy = &in_force.row(*index).policy;
        let client = reservation.client.and_then(|key| Client::of(table, policy, key));
        let Some(client) = client else { continue };
        let cells = client.unsettled.cells.saturating_sub(reservation.cells);
        if cells == 0 {
            continue;
        }
        // Until the debt would be paid off, and until the windows end in which it would count.
        let at = table.wall_reading();
        let Settle { within, max_debt, .. } = client.settle;
        let paid_off = Nanos(nanoseconds(*within * 2 + *max_debt));
        let windows = policy.limits().filter_map(Limit::calendar);
        let ends = windows.map(|calendar| calendar.window(at).end());
        let until = ends.chain([at.time().saturating_add(paid_off)]).max().unwrap_or(at.time());
        let most = policy.limits().map(Limit::burst).max().unwrap_or(1);
        table.add_unsettled(client.key, client.term(reservation.at), cells, (until, most), now);
    }
}

/// Takes a request whose response has come out of those that are unsettled. If it was charged as
/// one already, as much was reserved for it.
pub(crate) fn remove(
    table: &Table,
    now: &mut Reading,
    policy: &Policy,
    key: KeyHash,
    reserved: &mut Reservation,
) {
    // Without a time there is no reservation, and one from before a reset is forgiven. If the
    // clock of the machine that gave the reset is ahead, nobody knows which are from before.
    let reset = Duration::from_nanos(policy.reset_at);
    let is_ahead = reset.as_millis() > wall_ms(table).as_millis();
    let since = if is_ahead { Duration::ZERO } else { reset };
    let client = Client::of(table, policy, key).filter(|_| reserved.at > since);
    let Some(client) = client else { return };
    let most = client.unsettled.cells;
    let cells = most.saturating_sub(reserved.cells);
    let is_late = || wall_ms(table).saturating_sub(reserved.at) > client.settle.within;
    if cells > 0
        && !table.remove_unsettled(client.key, client.term(reserved.at), cells, now)
        && is_late()
    {
        reserved.cells = most;
    }
}

/// The cells that unsettled requests of the client of a question may still cost; `None` if its
/// policy does not charge them. Changes nothing.
pub fn unsettled(
    table: &Table,
    in_force: &ActivePolicies,
    question: Question,
) -> Option<UnsettledCells> {
    let policy = &in_force.row(question.policy).policy;
    let client = Client::of(table, policy, question.key)?;
    Some(table.unsettled(client.key, client.term(wall_ms(table))))
}

/// Whether a client has requests that are unsettled.
pub fn is_any(table: &Table, policy: &Policy, key: KeyHash) -> bool {
    let client = Client::of(table, policy, key);
    client.is_some_and(|client| {
        let UnsettledCells { open, overdue } =
            table.unsettled(client.key, client.term(wall_ms(table)));
        open > 0 || overdue > 0
    })
}

/// Forgets the unsettled requests of a client, and returns how many cells they may have cost;
/// `None` while the table is being resized.
pub fn reset(table: &Table, policy: &Policy, key: KeyHash) -> Option<u32> {
    match Client::of(table, policy, key) {
        None => Some(0),
        Some(client) => table.reset_unsettled(client.key),
    }
}
