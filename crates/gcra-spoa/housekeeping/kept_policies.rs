//! Keeps what is in force beside the table, where commands and agents that start find it.

use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::earlier_policies::PolicyHistory;

use super::once_per_minute::OncePerMinute;
use super::running::Running;

/// The lines of the log about it, and what others have written.
pub(super) struct KeptPolicies {
    /// That it cannot be written.
    unkept: OncePerMinute,
    /// The history before these policies, which the file has and the agent did not know.
    told: Arc<Mutex<Option<Told>>>,
}

/// A history, and the policies that it belongs to.
type Told = (Arc<ActivePolicies>, PolicyHistory);

impl KeptPolicies {
    /// Tells the other agents about this one, after its policies were kept: so a command finds the
    /// limits of each agent that the table lists.
    pub(super) fn begin(running: &Running) -> Self {
        running.introduce();
        Self { unkept: OncePerMinute::default(), told: Arc::default() }
    }

    /// Takes what other agents have written, and writes the policies once more if the file lacks
    /// them, on a thread that nothing waits for. To be called at each beat.
    pub(super) fn follow(&mut self, running: &Running) {
        let Running { table, policies, keeper, stats, .. } = running;
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).take();
        let current = policies.load_full();
        if let Some((_, history)) =
            told.filter(|(of, _)| of.policies.is_same_text(&current.policies))
        {
            let now = table.load().now();
            policies.store(Arc::new(current.with_history(history, stats, now)));
        }
        let is_kept = keeper.has(&current.policies);
        let says = self.unkept.due(!is_kept);
        if is_kept {
            return;
        }
        let (keeper, table, in_force) = (keeper.clone(), table.load_full(), policies.load_full());
        let told = self.told.clone();
        // Without a thread, it is tried again with the next beat.
        let _ = thread::Builder::new().name("keeper".to_owned()).spawn(move || {
            match keeper.keep(&table, &in_force) {
                Ok(Some(history)) => {
                    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                    *told = Some((in_force, history));
                }
                Err(error) if says => log::warn!("{}", about_unkept(&error)),
                Ok(None) | Err(_) => {}
            }
        });
    }
}

/// Says that commands and agents that start do not find what is in force.
fn about_unkept(error: &io::Error) -> String {
    format!(
        "could not write what is in force beside the table, so commands about clients need \
         --config FILE, and clients begin with no debts when an agent starts with other limits: \
         {error}"
    )
}
