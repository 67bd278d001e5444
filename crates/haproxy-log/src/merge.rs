//! Puts the requests of blocks into the order of time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bad::BadLine;
use crate::block::Block;
use crate::entry::{Entry, ReadCounts};
use crate::options::Options;

/// When the next request of a run is, and what decides between equal times: the input, then the
/// order of blocks.
type Key = (i64, usize, u64);

/// A block, whose requests are in the order of time.
struct Run {
    block: Block,
    /// How many of its requests were passed on.
    next: usize,
    /// How many bytes one request takes.
    each: usize,
    /// The number of the block's first line.
    line: u64,
}

/// The requests that were read and not passed on yet.
pub(crate) struct Merge<'a> {
    fields: usize,
    window: i64,
    memory: usize,
    each: &'a mut dyn FnMut(&Entry<'_>),
    runs: BTreeMap<Key, Box<Run>>,
    /// The bytes of the requests that are held.
    held: usize,
    /// How many blocks came.
    blocks: u64,
    /// How many lines of each input came.
    lines: Vec<u64>,
    counts: ReadCounts,
    /// For each kind of bad lines, the input of the first one.
    bad_inputs: Vec<usize>,
    /// How far all inputs had come when requests were passed on last.
    reached: i64,
    behind: i64,
}

impl Run {
    /// Gives back the memory of requests that were passed on, once they are most of the block: a
    /// single request that lies far ahead must not hold all the others.
    fn shrink(&mut self, fields: usize) {
        let count = self.block.items.len();
        if count >= 64 && self.next < count && self.next >= count / 4 * 3 {
            self.block.keep_from(self.next, fields);
            self.next = 0;
        }
    }
}

impl<'a> Merge<'a> {
    pub(crate) fn new(
        inputs: usize,
        fields: usize,
        options: &Options,
        each: &'a mut dyn FnMut(&Entry<'_>),
    ) -> Self {
        Self {
            fields,
            window: i64::try_from(options.window.as_micros()).unwrap_or(i64::MAX),
            memory: options.memory,
            each,
            runs: BTreeMap::new(),
            held: 0,
            blocks: 0,
            lines: vec![0; inputs],
            counts: ReadCounts::default(),
            bad_inputs: Vec::new(),
            reached: i64::MIN,
            behind: 0,
        }
    }

    pub(crate) fn add(&mut self, input: usize, name: &str, mut block: Block) {
        let line = self.lines[input];
        self.lines[input] += block.lines;
        self.counts.lines += block.lines;
        self.counts.truncated += block.truncated;
        for bad in block.bad.drain(..) {
            let (file, line) = (name.to_owned(), line + bad.line + 1);
            self.bad(input, BadLine { file, line, ..bad });
        }
        let mut next = 0;
        if let Some(passed) = self.counts.last {
            next = block.items.partition_point(|item| item.at < passed);
            self.counts.late += next as u64;
            if next > 0 {
                let reached = self.reached.max(passed);
                self.behind = self.behind.max(reached.saturating_sub(block.items[0].at));
            }
        }
        let Some(first) = block.items.get(next).map(|item| item.at) else { return };
        let each = block.size() / block.items.len();
        self.held += each * (block.items.len() - next);
        let mut run = Box::new(Run { block, next, each, line });
        run.shrink(self.fields);
        self.runs.insert((first, input, self.blocks), run);
        self.blocks += 1;
    }

    fn bad(&mut self, input: usize, first: BadLine) {
        let bad = &mut self.counts.bad;
        match bad.iter_mut().zip(&mut self.bad_inputs).find(|(bad, _)| bad.kind == first.kind) {
            Some((bad, known)) => {
                let count = bad.count + first.count;
                // Blocks of an input come in their order, inputs do not.
                if input < *known {
                    *known = input;
                    *bad = first;
                }
                bad.count = count;
            }
            None => {
                bad.push(first);
                self.bad_inputs.push(input);
            }
        }
    }

    /// Passes on what lies before the window, whose end all inputs have reached, and what does not
    /// fit the memory.
    pub(crate) fn pass_on(&mut self, reached: i64) {
        let limit = if reached == i64::MAX {
            reached
        } else {
            self.reached = reached;
            reached.saturating_sub(self.window)
        };
        self.pass_on_before(limit, self.memory);
    }

    fn pass_on_before(&mut self, limit: i64, memory: usize) {
        while let Some(first) = self.runs.first_entry() {
            let (at, input, order) = *first.key();
            if at >= limit && self.held <= memory {
                return;
            }
            let mut run = first.remove();
            let bound = self.runs.first_key_value().map(|(key, _)| *key);
            let bound = bound.unwrap_or((i64::MAX, usize::MAX, u64::MAX));
            let mut fields: Vec<Option<&[u8]>> = Vec::with_capacity(self.fields);
            let mut count = 0;
            for item in &run.block.items[run.next..] {
                let within = item.at < limit || self.held > memory;
                if count > 0 && (!within || (item.at, input, order) > bound) {
                    break;
                }
                fields.clear();
                let first = item.number as usize * self.fields;
                fields.extend((first..first + self.fields).map(|at| run.block.values.get(at)));
                let line = run.line + u64::from(item.line) + 1;
                (self.each)(&Entry { at: item.at, fields: &fields, input, line });
                self.held -= run.each;
                self.counts.last = Some(item.at);
                count += 1;
            }
            self.counts.first = self.counts.first.or(Some(at));
            self.counts.entries += count as u64;
            run.next += count;
            run.shrink(self.fields);
            if let Some(item) = run.block.items.get(run.next) {
                self.runs.insert((item.at, input, order), run);
            }
        }
    }

    /// Passes on all that is left.
    pub(crate) fn finish(mut self) -> ReadCounts {
        self.pass_on_before(i64::MAX, 0);
        self.counts.bad.sort_by_key(|bad| bad.kind);
        if self.behind > 0 {
            let micros = u64::try_from(self.behind).unwrap_or(u64::MAX);
            self.counts.behind = Some(Duration::from_micros(micros));
        }
        debug_assert_eq!(self.held, 0);
        self.counts
    }
}
