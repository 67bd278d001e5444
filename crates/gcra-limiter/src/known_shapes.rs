//! The shapes of requests that were decided in the usual way.

// ADR 49: Usual requests are answered by their shapes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use spop_agent::Shape;

/// The most shapes that are known. HAProxy has one for each message, and one more if the value is
/// an IPv4 address at one time and an IPv6 address at another.
pub(crate) const MOST_SHAPES: usize = 8;

/// How many rounds must have shown a shape that found no place before all shapes are forgotten. It
/// takes a few microseconds to learn them anew, which is nothing beside so many rounds.
const MANY: u32 = 1000;

/// The shapes that were learned since the policies came into force.
#[derive(Debug, Default)]
pub(crate) struct KnownShapes {
    /// The first ones stay until all are forgotten.
    pub(crate) list: [OnceLock<KnownShape>; MOST_SHAPES],
    /// How many rounds have shown a shape that found no place.
    missed: AtomicU32,
}

impl KnownShapes {
    /// Counts a round that has shown a shape for which there is no place.
    pub(crate) fn count_missed(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there were many rounds with shapes that found no place. If all are forgotten, those
    /// that are shown most often are the most likely to be learned.
    pub(crate) fn are_others_usual(&self) -> bool {
        self.missed.load(Ordering::Relaxed) >= MANY
    }
}

/// A shape whose requests are all decided by one policy in the usual way.
#[derive(Debug)]
pub(crate) struct KnownShape {
    pub(crate) shape: Shape<Box<[u8]>>,
    /// The index of the policy.
    pub(crate) policy: usize,
    pub(crate) cells: u32,
    /// Whether the key is the value as it is, whatever the policy's settings for keys are.
    pub(crate) is_as_sent: bool,
}
