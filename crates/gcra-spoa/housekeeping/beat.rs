//! What the table and the counters need once a second.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gcra_limiter::earlier_policies;
use gcra_text::table_error::TableError;

use super::complaint::Complaint;
use super::running::Running;

/// This agent, as the others of its table see it.
pub(super) struct Beat {
    running: Running,
    /// That the table's successor cannot be opened.
    lost: Complaint,
}

impl Beat {
    pub(super) fn new(running: Running) -> Self {
        Self { running, lost: Complaint::default() }
    }

    /// Tells the other agents of the table that this one lives, and takes note of what was
    /// counted.
    pub(super) fn begin(&mut self) {
        let Running { table, policies, stats, .. } = &self.running;
        table.load().beat();
        stats.beat();
        earlier_policies::register_said(&policies.load().policies, &table.load());
        self.remember();
        self.follow();
        self.running.introduce();
    }

    /// Takes note of what was counted in the last second.
    fn remember(&self) {
        let table = self.running.table.load();
        let since_boot = table.since_boot(table.now()).into();
        let unmatched = self.running.undecided.unmatched.load(Ordering::Relaxed);
        self.running.stats.remember(since_boot, &self.running.counters.snapshot(), unmatched);
    }

    /// Moves to the table that a resize has put in the place of ours.
    fn follow(&mut self) {
        let Running { table, policies, .. } = &self.running;
        let successor = table.load().successor();
        let is_lost = self.lost.due(successor.is_err());
        match successor {
            Ok(None) => {}
            Ok(Some(next)) => {
                log::info!("the table was resized; it now has {} slots", next.slots().get());
                earlier_policies::register_said(&policies.load().policies, &next);
                table.store(next);
            }
            Err(error) if is_lost => {
                let error = TableError(error);
                log::error!("{error}; requests with keys that have moved there are denied");
            }
            Err(_) => {}
        }
    }

    /// Forgets the earlier policies under which no key can owe anything any more.
    pub(super) fn forget_earlier(&self) {
        let now = self.running.table.load().now();
        if let Some(shorter) = self.running.policies.load().without_old(&self.running.stats, now) {
            self.running.policies.store(Arc::new(shorter));
        }
    }
}
