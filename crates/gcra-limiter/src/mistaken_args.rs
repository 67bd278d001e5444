//! Args of messages that do not go with the file. One has a type for which a text of the file can
//! never stand; another one should have a limit in it, and has none.

use std::sync::{Mutex, OnceLock};

use gcra_policy::Policy;
use gcra_policy::limit_from_arg::{ByArg, NoLimit};
use gcra_policy::texts::Misfit;
use gcra_text::count::Count;
use spop_agent::{Message, Value};

use crate::stats::lock;
use crate::undecided::PrintableName;

/// The args that were found since the policy came into force.
#[derive(Debug, Default)]
pub struct MistakenArgs {
    misfit: OnceLock<Misfit>,
    /// The last limit that was none, unless the log has said it.
    no_limit: Mutex<Option<(PrintableName, NoLimit)>>,
}

impl MistakenArgs {
    /// Looks whether a message shows that a text of the file can never match, unless one has.
    #[cold]
    pub(crate) fn look_for_misfit(&self, policy: &Policy, message: &Message<'_>) {
        if self.misfit.get().is_none()
            && let Some(misfit) = policy.misfit(message)
        {
            let _ = self.misfit.set(misfit);
        }
    }

    /// Remembers what a message has in the arg of a limit, which is none. While another thread
    /// does the same, that thread's is as good, and this one does not wait.
    #[cold]
    pub(crate) fn note_no_limit(&self, by_arg: &ByArg, message: &Message<'_>) {
        let Ok(mut last) = self.no_limit.try_lock() else { return };
        let value = message.arg(&by_arg.arg).unwrap_or(Value::Null);
        *last = Some((PrintableName::new(&by_arg.arg), NoLimit::of(value)));
    }

    /// A sentence about a text that can never match, if a message has shown one.
    pub fn about_misfit(&self, policy: &Policy) -> Option<String> {
        let Misfit { args, is_in_when } = self.misfit.get()?;
        let name = &policy.name;
        let are: Vec<_> = args
            .iter()
            .map(|(arg, kind)| {
                format!("the arg '{}' is {}", PrintableName::new(arg), kind.in_words())
            })
            .collect();
        let are = are.join(", and ");
        let write: Vec<_> = args.iter().map(|(_, kind)| kind.as_written()).collect();
        let write = write.join(", ");
        Some(match is_in_when {
            true => format!(
                "{are}, and a value in 'when' of policy '{name}' can never be one; write {write}, \
                 or let HAProxy send a string"
            ),
            false => format!(
                "{are}, and an override of policy '{name}' can never be for one; write {write}, \
                 or let HAProxy send a string"
            ),
        })
    }

    /// A sentence about the `count` messages of a policy that had no limit in the arg for it.
    pub fn about_no_limit(&self, policy: &str, count: u64) -> String {
        let had = Count(count, "message", "messages");
        let Some((arg, value)) = lock(&self.no_limit).take() else {
            return format!(
                "{had} for policy '{policy}' had no limit in an arg, so its default counted"
            );
        };
        format!(
            "{had} for policy '{policy}' had no limit in the arg '{arg}', so its default counted; \
             the last had {value}"
        )
    }
}
