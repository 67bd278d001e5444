//! Keeps what is in force beside the table, where commands find it.

use std::{io, thread};

use super::complaint::Complaint;
use super::running::Running;

/// The lines of the log about it.
pub(super) struct KeptPolicies {
    /// That it cannot be written.
    unkept: Complaint,
}

impl KeptPolicies {
    /// Writes it, and then tells the other agents about this one: so a command finds the limits of
    /// each agent that the table lists.
    pub(super) fn begin(running: &Running) -> Self {
        // If this fails, the first beat tries it again, and says so.
        let _ = running.keeper.keep(&running.table.load(), &running.policies.load());
        running.introduce();
        Self { unkept: Complaint::default() }
    }

    /// Writes it once more if others cannot read it, on a thread that nothing waits for. To be
    /// called at each beat.
    pub(super) fn follow(&mut self, running: &Running) {
        let Running { table, policies, keeper, .. } = running;
        let is_kept = keeper.has(&policies.load().policies);
        let says = self.unkept.due(!is_kept);
        if is_kept {
            return;
        }
        let (keeper, table, in_force) = (keeper.clone(), table.load_full(), policies.load_full());
        // Without a thread, it is tried again with the next beat.
        let _ = thread::Builder::new().name("keeper".to_owned()).spawn(move || {
            match keeper.keep(&table, &in_force) {
                Err(error) if says => log::warn!("{}", about_unkept(&error)),
                _ => {}
            }
        });
    }
}

/// Says that commands do not find what is in force.
fn about_unkept(error: &io::Error) -> String {
    format!(
        "could not write what is in force beside the table, so commands about clients need \
         --config FILE: {error}"
    )
}
