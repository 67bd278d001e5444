//! A request that waits for the store, and is answered later.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use gcra_table::Table;
use spop_agent::{LateReply, OwnedRequest};
use tokio::time::{Instant, timeout_at};

use crate::answer;
use crate::answer::Standings;
use crate::audit_lines::{AuditFile, Lines};
use crate::borrower::Borrower;
use crate::decide::attempt::{MustWait, Patience};
use crate::decide::request::{Deciding, Progress};
use crate::policies_in_force::InForce;
use crate::stats::Lane;
use crate::undecided::Undecided;

/// How often to look whether another process of this host has got cells. (What this process gets
/// wakes the request at once.)
const LOOK_EVERY: Duration = Duration::from_millis(2);

pub(crate) struct WaitingRequest {
    pub borrower: Arc<Borrower>,
    pub table: Arc<ArcSwap<Table>>,
    pub undecided: Arc<Undecided>,
    pub audit: Option<Arc<AuditFile>>,
    /// The policies that were in force when it came.
    pub in_force: Arc<InForce>,
    pub request: OwnedRequest,
    pub progress: Progress,
    /// What limits have said so far.
    pub standings: Standings,
}

impl WaitingRequest {
    /// Waits, for `--store-wait` at most, and writes the answer.
    pub(crate) async fn answer(self, mut reply: LateReply) -> LateReply {
        let Self { borrower, table, undecided, audit, in_force, request, .. } = self;
        let Self { mut progress, mut standings, .. } = self;
        let until = Instant::now() + Duration::from(borrower.wait());
        borrower.counts.waited.fetch_add(1, Ordering::Relaxed);
        let mut patience = Patience::Asks;
        loop {
            // What is said from here on wakes the request, also before it waits.
            let waits =
                progress.attempt.waits.as_ref().map(|waits| (waits.key(), waits.answered()));
            let outcome = {
                let (table, leases) = (table.load(), borrower.leases());
                let deciding = Deciding {
                    in_force: &in_force,
                    table: &table,
                    borrowing: Some((&borrower, &leases)),
                    undecided: &undecided,
                    lane: Lane::of_this_thread(),
                    patience,
                };
                let wanted = !in_force.policies.answers.others.is_empty();
                let wanted = wanted.then_some(&mut standings);
                // They are written before the answer leaves.
                let mut lines = audit.clone().map(Lines::new);
                let messages = request.as_request().messages();
                let now = &mut table.reading();
                deciding.go_on(messages, None, now, &mut progress, wanted, lines.as_mut())
            };
            let Err(MustWait) = outcome else { break };
            if let Some(under_way) = progress.attempt.under_way() {
                if timeout_at(until, under_way.wait()).await.is_err() {
                    borrower.counts.timed_out.fetch_add(1, Ordering::Relaxed);
                    patience = Patience::Over;
                }
                continue;
            }
            let key = progress.attempt.waits.as_ref().map(|waits| waits.key());
            match waits {
                Some((before, answered)) if Some(before) == key => {
                    let next_look = (Instant::now() + LOOK_EVERY).min(until);
                    let _ = timeout_at(next_look, pin!(answered)).await;
                }
                // It waits for another limit than before.
                _ => tokio::task::yield_now().await,
            }
            if Instant::now() >= until {
                borrower.counts.timed_out.fetch_add(1, Ordering::Relaxed);
                patience = Patience::Over;
            }
        }
        let Progress { verdict, reserved, .. } = &progress;
        answer::write(&in_force.policies, *verdict, &standings, reserved, &mut reply);
        reply
    }
}
