//! Some whole lines of a log: cut off, and read.

use std::io::{self, Read};

use memchr::{memchr, memrchr};

use crate::bad::{BadKind, BadLine, excerpt};
use crate::line::{Lines, Parsed, Values};

/// The bytes of a block. A worker's cache holds it.
pub(crate) const BLOCK: usize = 256 << 10;

/// Cuts a log into blocks of whole lines. Where it cuts depends on the text alone, not on how much
/// a read gives.
pub(crate) struct Cutter {
    reader: Box<dyn Read + Send>,
    /// The beginning of a line that the last block did not have whole.
    begun: Vec<u8>,
    /// The block that is read has no beginning of a line: the line before is too long.
    within: bool,
    block: usize,
}

/// The lines of a block.
#[derive(Default)]
pub(crate) struct Text {
    pub(crate) bytes: Vec<u8>,
    /// The log ends with this block.
    pub(crate) last: bool,
    /// Why it ends, if not by its end.
    pub(crate) error: Option<io::Error>,
    /// The block begins with the rest of a line that is too long.
    pub(crate) within: bool,
}

impl Cutter {
    pub(crate) fn new(reader: Box<dyn Read + Send>, max_line: usize) -> Self {
        Self { reader, begun: Vec::new(), within: false, block: BLOCK.max(2 * max_line) }
    }

    /// The next block. `bytes` is a buffer to use again.
    pub(crate) fn next(&mut self, mut bytes: Vec<u8>) -> Text {
        bytes.clear();
        bytes.append(&mut self.begun);
        let space = self.block - bytes.len();
        bytes.reserve_exact(space);
        let read = self.reader.by_ref().take(space as u64).read_to_end(&mut bytes);
        let last = !matches!(read, Ok(count) if count == space);
        let error = read.err();
        let within = self.within;
        if last && error.is_none() {
            return Text { bytes, last, error, within };
        }
        // A line that an error cut off is not one.
        match memrchr(b'\n', &bytes) {
            Some(end) => {
                if error.is_none() {
                    self.begun.extend_from_slice(&bytes[end + 1..]);
                }
                bytes.truncate(end + 1);
                self.within = false;
            }
            None if error.is_none() => self.within = true,
            None => bytes.clear(),
        }
        Text { bytes, last, error, within }
    }
}

/// A request of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) at: i64,
    /// Counted from 0, in the order of the lines.
    pub(crate) number: u32,
    /// Counted from 0 in the block.
    pub(crate) line: u32,
}

/// Sorts requests, which are in the order of their lines, by time and then by line. Mostly each
/// lies a few places from where it belongs, and is moved there. Where that takes too many moves,
/// they are sorted as any others are.
fn sort(items: &mut [Item]) {
    let mut moves = items.len().saturating_mul(8);
    for place in 1..items.len() {
        let item = items[place];
        let later = items[..place].iter().rev().take_while(|before| before.at > item.at).count();
        if later > moves {
            items.sort_unstable_by_key(|item| (item.at, item.number));
            return;
        }
        moves -= later;
        items.copy_within(place - later..place, place - later + 1);
        items[place - later] = item;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Requests in the order of time, then of lines.
    pub(crate) items: Vec<Item>,
    pub(crate) values: Values,
    pub(crate) lines: u64,
    pub(crate) truncated: u64,
    /// The bad lines by kind. They name no file, and lines count from 0 in the block.
    pub(crate) bad: Vec<BadLine>,
}

impl Block {
    pub(crate) fn read(text: &Text, parser: &mut Lines<'_>, max_line: usize) -> Self {
        let mut block = Self::default();
        block.items.reserve(text.bytes.len() / 160);
        let mut rest = text.bytes.as_slice();
        let mut within = text.within;
        while !rest.is_empty() {
            let end = memchr(b'\n', rest);
            let line = &rest[..end.unwrap_or(rest.len())];
            rest = &rest[line.len() + usize::from(end.is_some())..];
            if within {
                // Its beginning was counted.
                within = false;
            } else {
                block.line(line, parser, max_line);
            }
            // A line that goes on in the next block is counted there.
            block.lines += u64::from(end.is_some() || text.last);
        }
        if within && text.last && text.bytes.is_empty() {
            block.lines += 1;
        }
        sort(&mut block.items);
        block.items.shrink_to_fit();
        block.values.shrink();
        block
    }

    fn line(&mut self, line: &[u8], parser: &mut Lines<'_>, max_line: usize) {
        let parsed = if line.len() > max_line {
            Parsed::Bad(BadKind::TooLong)
        } else {
            parser.parse(line, &mut self.values)
        };
        match parsed {
            Parsed::Entry { at, whole } => {
                // A block has fewer lines than bytes, and fewer bytes than 4 GiB.
                let number = u32::try_from(self.items.len()).unwrap_or(u32::MAX);
                let at_line = u32::try_from(self.lines).unwrap_or(u32::MAX);
                self.items.push(Item { at, number, line: at_line });
                self.truncated += u64::from(!whole);
            }
            Parsed::Bad(kind) => match self.bad.iter_mut().find(|bad| bad.kind == kind) {
                Some(bad) => bad.count += 1,
                None => self.bad(kind, excerpt(line)),
            },
            Parsed::Empty => {}
        }
    }

    /// Adds the first bad line of a kind, which is the next line.
    pub(crate) fn bad(&mut self, kind: BadKind, excerpt: String) {
        let (count, line) = (1, self.lines);
        self.bad.push(BadLine { kind, count, file: String::new(), line, excerpt });
    }

    /// Keeps the requests from this one on, in memory of their size.
    pub(crate) fn keep_from(&mut self, first: usize, fields: usize) {
        let mut items = Vec::with_capacity(self.items.len() - first);
        let mut values = Values::default();
        for item in &self.items[first..] {
            let from = item.number as usize * fields;
            (from..from + fields).for_each(|number| values.copy(self.values.get(number)));
            let number = u32::try_from(items.len()).unwrap_or(u32::MAX);
            items.push(Item { number, ..*item });
        }
        self.items = items;
        self.values = values;
    }

    /// The bytes that this takes.
    pub(crate) fn size(&self) -> usize {
        self.items.len() * size_of::<Item>() + self.values.size()
    }

    /// A time that the lines of this block are about, which a few wrong dates do not change.
    pub(crate) fn middle(&self) -> Option<i64> {
        self.items.get(self.items.len() / 2).map(|item| item.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that are in order, nearly so, and not at all.
    #[test]
    fn requests_come_into_the_order_of_time_then_of_lines() {
        let mut random = fastrand::Rng::with_seed(4);
        for spread in [1, 2, 10, 100, 100_000] {
            for count in [0_u32, 1, 2, 50, 3_000] {
                let item = |number| {
                    let at = i64::from(number / 4) + random.i64(..spread);
                    Item { at, number, line: number }
                };
                let mut items: Vec<_> = (0..count).map(item).collect();
                let mut expected = items.clone();
                expected.sort_by_key(|item| item.at);
                sort(&mut items);
                let same =
                    items.iter().map(|it| it.number).eq(expected.iter().map(|it| it.number));
                assert!(same, "{spread} {count}");
            }
        }
    }
}
