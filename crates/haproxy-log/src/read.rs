//! Reads logs in order of time.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::atomic::Ordering;

use crate::entry::{Entry, ReadCounts};
use crate::input::Input;
use crate::line::{Lines, Parsed, Values};
use crate::merge::Merge;
use crate::options::{Options, Progress};
use crate::pool::Pool;
use crate::selection::Selection;

/// Why reading stopped.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReadError {
    /// The name of the input.
    pub file: String,
    /// The error of the system.
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
/// several machines. The number of threads changes nothing.
///
/// # Errors
/// A file cannot be opened or read. Bad lines and damaged compressed data are no errors: the
/// counts have them.
pub fn read(
    inputs: &[Input],
    format: &Selection,
    options: &Options,
    progress: &Progress,
    each: &mut dyn FnMut(&Entry<'_>),
) -> Result<ReadCounts, ReadError> {
    let total = inputs.iter().filter_map(Input::size).sum();
    progress.total.store(total, Ordering::Relaxed);
    let mut merge = Merge::new(inputs.len(), format.names().len(), options, each);
    let pool = Pool::new(inputs, format, options, progress);
    let result = pool.run(|next| {
        // The inputs that have not ended, and how far each has come.
        let begins = |(at, input)| (first(input, inputs, format, options), at);
        let mut waiting: BTreeSet<_> = inputs.iter().enumerate().map(begins).collect();
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
    if inputs.len() == 1 || input.size().is_none() {
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
