//! Runs code of a handler's author, and stops a panic in it.

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the code. `None` if it panicked.
///
/// After a panic the values that the code changed may be inconsistent. Those of the author are
/// only lent to the handler again, or dropped (in here, because that may panic too). Values of
/// this crate are changed by single assignments that cannot panic halfway.
#[inline]
pub(crate) fn shielded<T>(code: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(result) => Some(result),
        Err(thrown) => {
            // The panic's payload is the author's too, and may panic when it is dropped. The
            // payload of that second panic is leaked.
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
