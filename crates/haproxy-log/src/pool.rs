//! The threads that read blocks of lines, ahead of the thread that wants them.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZero;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::bad::BadKind;
use crate::block::{Block, Cutter, Text};
use crate::input::{Count, DAMAGED, Input};
use crate::line::Lines;
use crate::options::{Options, Progress};
use crate::selection::Selection;

/// The longest `max_line`.
const LONGEST_LINE: usize = 16 << 20;

/// A block that was read.
pub(crate) struct Done {
    pub(crate) block: Block,
    /// The input ends with it.
    pub(crate) last: bool,
    /// The input cannot be read.
    pub(crate) error: Option<io::Error>,
}

/// Threads that read blocks. Each takes the log that is wanted most, cuts a block off, gives the
/// log back, and reads the lines.
pub(crate) struct Pool<'a> {
    inputs: &'a [Input],
    format: &'a Selection,
    options: &'a Options,
    progress: &'a Progress,
    threads: usize,
    max_line: usize,
    state: Mutex<State>,
    /// A block may be cut off.
    work: Condvar,
    /// A block was read.
    done: Condvar,
}

struct State {
    logs: Vec<Log>,
    /// Which logs to read, the most wanted first.
    wanted: Vec<usize>,
    /// The bytes of blocks that wait.
    waiting: usize,
    /// Buffers to use again.
    buffers: Vec<Vec<u8>>,
    stop: bool,
}

/// A log, as the threads share it.
struct Log {
    source: Source,
    /// How many blocks were cut off, and how many of them were wanted by now.
    cut: u64,
    taken: u64,
    done: BTreeMap<u64, Done>,
}

enum Source {
    Closed,
    Open(Cutter, Arc<Count>),
    /// A thread cuts a block off.
    Busy,
    Ended,
}

/// Ends the threads when it is dropped: when all is read, or a thread has panicked.
struct Stop<'a, 'b>(&'a Pool<'b>);

impl Drop for Stop<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().stop = true;
        self.0.work.notify_all();
        self.0.done.notify_all();
    }
}

impl<'a> Pool<'a> {
    pub(crate) fn new(
        inputs: &'a [Input],
        format: &'a Selection,
        options: &'a Options,
        progress: &'a Progress,
    ) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = if options.threads == 0 { processors } else { options.threads };
        let log = |_| Log { source: Source::Closed, cut: 0, taken: 0, done: BTreeMap::new() };
        let state = State {
            logs: inputs.iter().map(log).collect(),
            wanted: Vec::new(),
            waiting: 0,
            buffers: Vec::new(),
            stop: false,
        };
        Self {
            inputs,
            format,
            options,
            progress,
            threads: threads.min(1024),
            max_line: options.max_line.min(LONGEST_LINE),
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn logs_at_once(&self) -> usize {
        self.threads + 2
    }

    /// Starts the threads, and calls `body` with a function that gives the next block of a log. It
    /// is also given the logs that are wanted now, that one first, and gives `None` if a thread
    /// has died.
    pub(crate) fn run<T>(
        &self,
        body: impl FnOnce(&mut dyn FnMut(usize, &[usize]) -> Option<Done>) -> T,
    ) -> T {
        if self.threads == 1 {
            // The calling thread reads each block when it is wanted.
            let mut parser = Lines::new(self.format, self.options.utc_offset);
            let mut sources: Vec<Source> = self.inputs.iter().map(|_| Source::Closed).collect();
            let mut buffer = Vec::new();
            return body(&mut |log, _| {
                let source = std::mem::replace(&mut sources[log], Source::Busy);
                let (text, source, failed) = self.cut(log, source, std::mem::take(&mut buffer));
                sources[log] = source;
                let done = self.finish(&text, failed, &mut parser);
                buffer = text.bytes;
                Some(done)
            });
        }
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    let _stop = Stop(self);
                    self.work();
                });
            }
            let _stop = Stop(self);
            body(&mut |log, wanted| self.next(log, wanted))
        })
    }

    fn next(&self, log: usize, wanted: &[usize]) -> Option<Done> {
        let mut state = self.lock();
        if state.wanted != wanted {
            state.wanted.clear();
            state.wanted.extend_from_slice(wanted);
            self.work.notify_all();
        }
        loop {
            let taken = state.logs[log].taken;
            if let Some(done) = state.logs[log].done.remove(&taken) {
                state.logs[log].taken += 1;
                state.waiting = state.waiting.saturating_sub(done.block.size());
                drop(state);
                self.work.notify_one();
                return Some(done);
            }
            if state.stop {
                return None;
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The log to cut the next block from.
    fn choose(&self, state: &State) -> Option<usize> {
        let most_wanted = state.wanted.first().copied();
        state.wanted.iter().copied().find(|&at| {
            let log = &state.logs[at];
            let idle = matches!(log.source, Source::Closed | Source::Open(..));
            let ahead = log.cut - log.taken;
            let few = 2 * self.threads as u64 + 2;
            // Logs that are wanted later are read ahead while others cannot be, for the time that
            // it takes to decompress them.
            let some = || state.waiting < self.options.memory / 4 && ahead < 1024;
            idle && if Some(at) == most_wanted { ahead < few || some() } else { some() }
        })
    }

    /// The loop of each thread, until all stop.
    fn work(&self) {
        let mut parser = Lines::new(self.format, self.options.utc_offset);
        loop {
            let mut state = self.lock();
            let at = loop {
                if state.stop {
                    return;
                }
                if let Some(at) = self.choose(&state) {
                    break at;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            let source = std::mem::replace(&mut state.logs[at].source, Source::Busy);
            let number = state.logs[at].cut;
            state.logs[at].cut += 1;
            let buffer = state.buffers.pop().unwrap_or_default();
            drop(state);

            let (text, source, failed) = self.cut(at, source, buffer);
            let mut state = self.lock();
            state.logs[at].source = source;
            drop(state);
            self.work.notify_one();

            let done = self.finish(&text, failed, &mut parser);
            let mut state = self.lock();
            state.waiting += done.block.size();
            state.logs[at].done.insert(number, done);
            if state.buffers.len() <= self.threads {
                state.buffers.push(text.bytes);
            }
            drop(state);
            self.done.notify_one();
        }
    }

    /// Cuts a block off a log. Also tells whether an error is one of the file, not of its
    /// compressed data.
    fn cut(&self, at: usize, source: Source, buffer: Vec<u8>) -> (Text, Source, bool) {
        let (mut cutter, count) = match source {
            Source::Open(cutter, count) => (cutter, count),
            // To open a log reads its beginning.
            _ => match self.inputs[at].open() {
                Ok((reader, count)) => (Cutter::new(reader, self.max_line), count),
                Err(error) => {
                    let text = Text { last: true, error: Some(error), ..Text::default() };
                    return (text, Source::Ended, true);
                }
            },
        };
        let text = cutter.next(buffer);
        let bytes = count.bytes.swap(0, Ordering::Relaxed);
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
        let failed = count.failed.load(Ordering::Relaxed);
        let source = if text.last { Source::Ended } else { Source::Open(cutter, count) };
        (text, source, failed)
    }

    fn finish(&self, text: &Text, failed: bool, parser: &mut Lines<'_>) -> Done {
        let mut block = Block::read(text, parser, self.max_line);
        self.progress.lines.fetch_add(block.lines, Ordering::Relaxed);
        let mut error = None;
        if let Some(what) = &text.error {
            if failed {
                error = Some(io::Error::new(what.kind(), what.to_string()));
            } else {
                block.bad(BadKind::Damaged, DAMAGED.to_owned());
            }
        }
        Done { block, last: text.last, error }
    }
}
