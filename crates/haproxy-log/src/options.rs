//! How logs are read, and how far that has come.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How logs are read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// How far a line may lie behind later ones (default 1 hour). HAProxy writes a line when the
    /// request is done, so this is the longest request that is put back into its place.
    pub window: Duration,
    /// How many bytes of requests are held for that (default 128 MiB). Where this is less than
    /// the window needs, the window is shorter.
    pub memory: usize,
    /// The longest line in bytes (default 65,536, at most 16 MiB). Longer ones are bad.
    pub max_line: usize,
    /// Seconds east of UTC of dates that name no time zone (default 0). HAProxy writes %t and %tr
    /// in the time zone of its process.
    pub utc_offset: i32,
    /// How many threads read lines, beside the calling one. 0 (default): as many as the process
    /// has processors. 1: the calling thread does it.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(3600),
            memory: 128 << 20,
            max_line: 1 << 16,
            utc_offset: 0,
            threads: 0,
        }
    }
}

/// How far [`read`](crate::read()) has come, for another thread to show.
#[derive(Debug, Default)]
pub struct Progress {
    pub(crate) total: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) lines: AtomicU64,
}

impl Progress {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The size of all files in bytes, as they are stored. 0 if it is not known (streams).
    pub fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// How many of these bytes were read.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many lines were parsed.
    pub fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }
}
