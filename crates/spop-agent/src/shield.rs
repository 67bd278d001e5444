//! Running what an author of a handler wrote, so that a panic in it goes no further.

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the code. `None` when it panicked.
///
/// What it was working on may be left half done. The caller uses nothing of it afterwards but to
/// drop it, in here.
#[inline]
pub(crate) fn shielded<T>(code: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(result) => Some(result),
        Err(thrown) => {
            // What was thrown is the author's too, and may panic as it is dropped. What that
            // throws is not dropped any more.
            if let Err(thrown) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
                forget(thrown);
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    struct Thrown;

    impl Drop for Thrown {
        fn drop(&mut self) {
            panic_any(Self);
        }
    }

    #[test]
    fn a_panic_goes_no_further_even_if_what_it_throws_panics() {
        assert_eq!(shielded(|| 7), Some(7));
        assert_eq!(shielded(|| panic_any(7)), None::<()>);
        assert_eq!(shielded(|| panic_any(Thrown)), None::<()>);
    }
}
