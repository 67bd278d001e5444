//! [`guarded`]: a panic of our code costs a decision, and nothing else.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::worker::{Running, Worker};

/// The result of our code; `None` if it has panicked. The hook has written that down.
#[inline]
pub(crate) fn guarded<T>(code: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(result) => Some(result),
        Err(payload) => {
            // Its drop could panic in turn.
            mem::forget(payload);
            if let Some(Running { counters, .. }) = Worker::running() {
                counters.handler_panic();
            }
            None
        }
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests")]
mod tests {
    use std::iter;

    use log::Level;

    use super::*;
    use crate::log_lines;

    #[test]
    fn a_panic_gets_no_further_and_is_logged_once() {
        log_lines::start();
        assert_eq!(guarded(|| 7), Some(7));
        for _ in 0..3 {
            assert_eq!(guarded(|| -> i64 { panic!("a bug") }), None);
        }
        let lines: Vec<_> = iter::from_fn(log_lines::next).collect();
        assert!(
            matches!(&lines[..], [(Level::Error, line)] if line.contains("a bug")),
            "{lines:?}"
        );
    }
}
