//! SIGHUP, by which an agent reads its file again. It ends a process that has no handler for it.

use nix::sys::signal::{SigSet, Signal};

/// Lets SIGHUP wait from now on, in this thread and in those that it starts. To be called before
/// anything else, because a signal can come at any moment.
///
/// A process that is started by this one would let it wait, too. Agents start none.
pub(crate) fn hold() {
    // It fails only for a wrong argument.
    let _ = SigSet::from(Signal::SIGHUP).thread_block();
}

/// Lets SIGHUP reach this thread, and with it the process: also one that has come meanwhile.
/// Several of these are one.
pub(crate) fn release() {
    let _ = SigSet::from(Signal::SIGHUP).thread_unblock();
}
