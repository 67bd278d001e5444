//! The memory that connections keep between their rounds, under one limit for all of them.

// ADR 5: One bound for all that connections keep.

use std::sync::Arc;

use crate::counters::Counters;

/// The bytes that are kept by one connection, or by one request that waits for a late reply. They
/// are given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    counters: Arc<Counters>,
    bytes: usize,
}

impl Share {
    /// No bytes.
    pub(crate) fn new(counters: &Arc<Counters>) -> Self {
        Self { counters: counters.clone(), bytes: 0 }
    }

    /// Changes the number of bytes, and returns whether that is allowed. Fewer bytes always are.
    /// More bytes are if all shares together stay within `limit`; if not, the share stays as it
    /// was.
    #[inline]
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: usize, limit: usize) -> bool {
        // A connection at rest keeps nothing, so it does not write to a counter that all workers
        // share.
        let allowed = bytes == self.bytes || self.counters.keep(self.bytes, bytes, limit);
        if allowed {
            self.bytes = bytes;
        }
        allowed
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Fewer bytes are always allowed.
        let _ = self.resize(0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_within_the_limit_together_and_give_all_of_it_back() {
        let counters = Arc::<Counters>::default();
        let kept = || counters.snapshot().buffered_bytes;
        let (mut one, mut other) = (Share::new(&counters), Share::new(&counters));
        assert!(one.resize(60, 100) && other.resize(40, 100));
        assert!(!other.resize(41, 100), "it is full");
        assert_eq!(kept(), 100);
        assert!(other.resize(40, 50), "what is kept stays, also with a smaller limit");
        assert!(one.resize(10, 0), "fewer bytes are always allowed");
        assert!(other.resize(90, 100));
        drop(one);
        assert_eq!(kept(), 90);
        drop(other);
        assert_eq!(kept(), 0);
    }
}
