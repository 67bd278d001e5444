//! Charges requests that no response has settled in time, with a later request of the client.

// ADR 51: What no response settles is charged with a later request.

use gcra_table::{Reading, Table};
use spop_agent::Message;

use crate::active_policies::ActivePolicies;
use crate::decide::settle::{charge_more, count_cells};
use crate::earlier_policies::LimitedClient;
use crate::limit_bucket::LimitBucket;
use crate::question::Question;
use crate::settlement::SettledCells;
use crate::unsettled::take_overdue;

/// Charges what requests of a client cost that no response has settled in time, under each limit
/// for the client's message of now. Returns how many cells were charged.
pub(crate) fn charge_overdue(
    table: &Table,
    now: &mut Reading,
    in_force: &ActivePolicies,
    question: Question,
    message: &Message<'_>,
) -> u32 {
    let Question { policy: index, rule, key, .. } = question;
    let row = in_force.row(index);
    let policy = &row.policy;
    let limits = policy.rule(rule).limits();
    // Where requests are not limited, nothing is reserved.
    if limits.is_empty() {
        return 0;
    }
    let overdue = take_overdue(table, policy, key, now);
    if overdue == 0 {
        return 0;
    }
    let mut cells = SettledCells::default();
    for limit in limits {
        let current = LimitBucket::of(table, limit, key, Some(message));
        let asked = LimitedClient { table, policy, limit, current, message };
        charge_more(row, asked, overdue, now, &mut cells);
    }
    let SettledCells { charged, .. } = cells;
    let cells = SettledCells { charged: 0, unsettled: charged, ..cells };
    count_cells(&row.stats, cells);
    charged
}
