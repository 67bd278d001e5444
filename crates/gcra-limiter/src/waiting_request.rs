//! A request that waits for the store, and is answered later.

// ADR 35: Every message takes one path to its verdict.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use gcra_table::Table;
use spop_agent::{LateReply, OwnedRequest};
use tokio::time::{Instant, timeout_at};

use crate::active_policies::ActivePolicies;
use crate::answer::LimitUsages;
use crate::audit_lines::{AuditFile, Lines};
use crate::decide::request::{Deciding, Progress};
use crate::decide::shared_progress::Patience;
use crate::lease_client::LeaseClient;
use crate::stats::Lane;
use crate::undecided::Undecided;

pub(crate) struct WaitingRequest {
    pub lease_client: Arc<LeaseClient>,
    pub table: Arc<ArcSwap<Table>>,
    pub undecided: Arc<Undecided>,
    pub audit: Option<Arc<AuditFile>>,
    /// The policies that were in force when it came.
    pub in_force: Arc<ActivePolicies>,
    pub request: OwnedRequest,
    pub progress: Progress,
    /// The standings of limits so far.
    pub usages: LimitUsages,
}

impl WaitingRequest {
    /// Waits, for `--store-wait` at most, and writes the answer.
    pub(crate) async fn answer(self, mut reply: LateReply) -> LateReply {
        let Self { lease_client, table, undecided, audit, in_force, request, .. } = self;
        let Self { mut progress, mut usages, .. } = self;
        let until = Instant::now() + Duration::from(lease_client.wait());
        lease_client.counts.waited.fetch_add(1, Ordering::Relaxed);
        let mut patience = Patience::Asks;
        let mut looked_for = None;
        loop {
            let mut is_over = false;
            if let Some(under_way) = progress.so_far.under_way() {
                is_over = timeout_at(until, under_way.wait()).await.is_err();
            } else if let Some(waits) = &progress.so_far.waits {
                // The first one that waits for a key asks, and the others wait for it. One that
                // is charged in the store asks by itself.
                let asks = waits.is_first() || progress.so_far.at_once.is_some();
                let is_new = looked_for.replace(waits.key) != Some(waits.key);
                if asks && is_new {
                    tokio::task::yield_now().await;
                } else {
                    let next_look = asks.then(|| Instant::now() + waits.next_look());
                    let at = next_look.map_or(until, |next_look| next_look.min(until));
                    let _ = timeout_at(at, waits.woken.notified()).await;
                }
                is_over = Instant::now() >= until;
            }
            if is_over {
                lease_client.counts.timed_out.fetch_add(1, Ordering::Relaxed);
                patience = Patience::MustAnswer;
            }
            let (table, leases) = (table.load(), lease_client.leases());
            let deciding = Deciding {
                in_force: &in_force,
                table: &table,
                borrowing: Some((&lease_client, &leases)),
                undecided: &undecided,
                lane: Lane::of_this_thread(),
                patience,
            };
            let wanted = !in_force.policies.answers.others.is_empty();
            let wanted = wanted.then_some(&mut usages);
            // They are written before the answer leaves.
            let mut lines = audit.clone().map(Lines::new);
            let messages = request.as_request().messages();
            let now = &mut table.reading();
            let outcome =
                deciding.go_on(messages, None, now, &mut progress, wanted, lines.as_mut());
            if outcome.is_ok() {
                break;
            }
        }
        let messages = request.as_request().messages();
        progress.answer(&in_force, &usages, messages, &mut reply);
        reply
    }
}
