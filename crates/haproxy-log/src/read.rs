//! Reads logs in order of time.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::bad::BadLine;
use crate::line::{Lines, Parsed, Values};
use crate::merge::Merge;
use crate::pool::Pool;
use crate::{Input, Selection};

/// One request of a log.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// When the request came: microseconds since 1970, UTC. [`Format::time`](crate::Format::time)
    /// says which date of the line this is.
    pub at: i64,
    /// The values of the selected fields, in the order of the selection. `None`: the line has no
    /// value ("-", `<NOSRV>`).
    pub fields: &'a [Option<&'a [u8]>],
    /// Which input, counted from 0.
    pub input: usize,
    /// The number of the line in its input, counted from 1.
    pub line: u64,
}

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

/// How far [`read`] has come, for another thread to show.
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

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Lines of all inputs, with empty ones.
    pub lines: u64,
    /// Requests that `each` was called with.
    pub entries: u64,
    /// Bad lines by kind.
    pub bad: Vec<BadLine>,
    /// Requests that lay too far behind later ones. They were not passed to `each`: to count them
    /// later than they came would make bursts that never were.
    pub late: u64,
    /// Requests whose line ends within a text, as HAProxy cuts lines off that are longer than
    /// `len` of its `log` directive. They are among `entries`; values that are cut off are
    /// absent.
    pub truncated: u64,
    /// A window for which no request would have been late, as far as the memory reaches. `None`:
    /// none was late.
    pub behind: Option<Duration>,
    /// The times of the first and the last request in microseconds since 1970, if there are any.
    pub first: Option<i64>,
    /// See `first`.
    pub last: Option<i64>,
}

/// Why reading stopped.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReadError {
    /// The name of the input.
    pub file: String,
    /// What failed.
    pub error: io::Error,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {}: {}", self.file, self.error)
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Reads logs, and calls `each` for every request in order of time, on the calling thread.
///
/// Requests of the same microsecond come in the order of the inputs, then of the lines. The inputs
/// are merged by time: they can be the rotated files of one HAProxy in any order, or files of
/// several machines. What comes does not depend on the number of threads.
///
/// # Errors
/// A file cannot be opened or read. Bad lines and damaged compressed data are no errors: the
/// outcome has them.
pub fn read(
    inputs: &[Input],
    format: &Selection,
    options: &Options,
    progress: &Progress,
    each: &mut dyn FnMut(&Entry<'_>),
) -> Result<Outcome, ReadError> {
    let total = inputs.iter().map(Input::size).sum();
    progress.total.store(total, Ordering::Relaxed);
    let mut merge = Merge::new(format.names().len(), options, each);
    let pool = Pool::new(inputs, format, options, progress);
    let result = pool.run(|next| {
        // The inputs that have not ended, and how far each has come.
        let mut waiting = BTreeSet::new();
        for (at, input) in inputs.iter().enumerate() {
            waiting.insert((first(input, inputs, format, options), at));
        }
        let mut wanted = Vec::new();
        while let Some((reached, input)) = waiting.pop_first() {
            let others = waiting.iter().map(|&(_, input)| input).take(pool.logs_at_once());
            wanted.clear();
            wanted.push(input);
            wanted.extend(others);
            let Some(done) = next(input, &wanted) else { break };
            if let Some(error) = done.error {
                return Err(ReadError { file: inputs[input].name().to_owned(), error });
            }
            let reached = reached.max(done.block.middle().unwrap_or(i64::MIN));
            if !done.last {
                waiting.insert((reached, input));
            }
            merge.add(input, inputs[input].name(), done.block);
            let earliest = waiting.first().map_or(i64::MAX, |&(reached, _)| reached);
            merge.pass_on(earliest);
        }
        Ok(())
    });
    result.map(|()| merge.finish())
}

/// When a log begins, from its first lines. A log that cannot be looked into begins before all
/// others.
fn first(input: &Input, inputs: &[Input], format: &Selection, options: &Options) -> i64 {
    if inputs.len() == 1 || !input.is_regular() {
        return i64::MIN;
    }
    let sample = input.sample().unwrap_or_default();
    let mut lines = Lines::new(format, options.utc_offset);
    let mut values = Values::default();
    let times = sample.split(|&byte| byte == b'\n').filter_map(|line| {
        match lines.parse(line, &mut values) {
            Parsed::Entry { at, .. } => Some(at),
            _ => None,
        }
    });
    times.take(100).min().unwrap_or(i64::MIN)
}
