//! The work for the table and the counters once a second.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gcra_limiter::limit_bucket::write_down_said;
use gcra_policy::table_error::TableError;

use super::once_per_minute::OncePerMinute;
use super::running::Running;

/// This agent, as the others of its table see it.
#[derive(Default)]
pub(super) struct Beat {
    /// That the table's successor cannot be opened.
    lost: OncePerMinute,
}

impl Beat {
    /// Tells the other agents of the table that this one lives, and takes note of the counts.
    pub(super) fn begin(&mut self, running: &Running) {
        let Running { table, policies, stats, counters, undecided, .. } = running;
        table.load().beat();
        stats.beat();
        write_down_said(&policies.load().policies, &table.load());
        let unmatched = undecided.unmatched.load(Ordering::Relaxed);
        stats.remember(running.since_boot().into(), &counters.snapshot(), unmatched);
        self.follow(running);
        running.introduce();
    }

    /// Moves to the table that a resize has put in the place of ours.
    fn follow(&mut self, running: &Running) {
        let Running { table, policies, .. } = running;
        let successor = table.load().successor();
        let is_lost = self.lost.due(successor.is_err());
        match successor {
            Ok(None) => {}
            Ok(Some(next)) => {
                log::info!("the table was resized; it now has {} slots", next.slots().get());
                write_down_said(&policies.load().policies, &next);
                table.store(next);
            }
            Err(error) if is_lost => {
                let error = TableError(error);
                log::error!("{error}; requests with keys that have moved there are denied");
            }
            Err(_) => {}
        }
    }
}

/// Forgets the earlier policies under which no key can owe anything any more.
pub(super) fn forget_earlier(running: &Running) {
    let Running { table, policies, stats, .. } = running;
    if let Some(shorter) = policies.load().without_old(stats, table.load().now()) {
        policies.store(Arc::new(shorter));
    }
}

/// Lets the shapes of usual requests be learned anew, if others came first and have their places.
pub(super) fn forget_shapes(running: &Running) {
    let Running { table, policies, stats, .. } = running;
    if let Some(anew) = policies.load().without_shapes(stats, table.load().now()) {
        policies.store(Arc::new(anew));
        log::debug!("usual requests had unknown shapes: all shapes are learned anew");
    }
}
