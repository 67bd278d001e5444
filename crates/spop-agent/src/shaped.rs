//! The NOTIFYs of known shapes at the beginning of the bytes that a round has read.

// ADR 49: Usual requests are answered by their shapes.

use std::net::{Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use spop_codec::{
    AckWriter, Actions, Connection, Frame, FrameId, Message, RawIds, Shape, ack_space, decode,
};

use crate::reply::{Aside, Reply};

/// How many NOTIFYs the queue holds: enough that the memory of the first has arrived when it is
/// answered.
const QUEUE: usize = 32;

/// The bytes of LENGTH, which does not count itself.
const LENGTH_BYTES: usize = 4;

/// How many bytes are made room for when the space for ACKs runs out.
const MORE_SPACE: usize = 16 * 1024;

/// The NOTIFYs at the beginning of the bytes that a round has read, for a handler that knows their
/// shapes: see [`Handler::answer_shaped`](crate::Handler::answer_shaped).
///
/// It is a queue: [`read`](Self::read) puts the next NOTIFY at its end, and
/// [`answer`](Self::answer) takes the first one out. So a handler can read some, start to fetch
/// the memory that it needs for them, and then answer them. Those that are in the queue when the
/// handler returns are asked about as [requests](crate::Request).
#[derive(Debug)]
pub struct ShapedNotifies<'r, 'a> {
    protocol: &'r mut Connection,
    input: &'a [u8],
    /// How many bytes of the input are read, and how many are answered.
    read: usize,
    answered: usize,
    /// The NOTIFYs that were read since the queue was last empty: their ids, and where each ends.
    /// Of these, `first` are answered.
    queue: ArrayVec<(RawIds, usize), QUEUE>,
    first: usize,
    output: &'r mut Vec<u8>,
    /// How many bytes of the output are written, and how many may be before the round has to end.
    written: usize,
    most: usize,
    acks: usize,
    /// The largest LENGTH of an ACK.
    limit: u32,
    aside: Aside,
}

/// A NOTIFY of a known shape, from its first byte on.
#[derive(Clone, Copy, Debug)]
pub struct ShapedNotify<'a>(&'a [u8]);

impl<'a> ShapedNotify<'a> {
    /// Its message.
    #[cold]
    #[must_use]
    pub fn message(self) -> Option<Message<'a>> {
        match decode(self.0, u32::MAX) {
            Ok(Some((Frame::Notify(notify), _))) => notify.messages().next(),
            _ => None,
        }
    }
}

impl<'r, 'a> ShapedNotifies<'r, 'a> {
    /// How many NOTIFYs the queue holds.
    pub const QUEUE: usize = QUEUE;

    /// Those at the beginning of `input`, to be answered behind the first `written` bytes of
    /// `output`, until there are `most`.
    #[inline(always)]
    pub(crate) fn new(
        protocol: &'r mut Connection,
        input: &'a [u8],
        output: &'r mut Vec<u8>,
        written: usize,
        most: usize,
    ) -> Self {
        // None of these is answered yet.
        let limit = protocol.max_ack_size(0);
        Self {
            protocol,
            input,
            read: 0,
            answered: 0,
            queue: ArrayVec::new(),
            first: 0,
            output,
            written,
            most,
            acks: 0,
            limit,
            aside: Aside::default(),
        }
    }

    /// Actions as an answer; `None` if an ACK with them may be too large.
    #[must_use]
    pub fn as_answer<'c>(&self, actions: &'c Actions) -> Option<Answer<'c>> {
        let fits = AckWriter::max_length(actions.length()) <= self.limit as usize;
        fits.then_some(Answer(actions))
    }

    /// Reads the next NOTIFY, and returns what `ipv4`, `ipv6` or `string` makes of the value of
    /// its arg. `None` if it does not have this shape, if there is none, or if the queue is full:
    /// when [`QUEUE`](Self::QUEUE) were read, all of them have to be answered first.
    #[inline(always)]
    pub fn read<R>(
        &mut self,
        shape: &Shape<impl AsRef<[u8]>>,
        ipv4: impl FnOnce(Ipv4Addr) -> R,
        ipv6: impl FnOnce(Ipv6Addr) -> R,
        string: impl FnOnce(&'a [u8]) -> R,
    ) -> Option<R> {
        let input = self.input.get(self.read..)?;
        let (ids, made, length) =
            self.protocol.receive_shaped(input, shape, ipv4, ipv6, string)?;
        let end = self.read + length;
        self.queue.try_push((ids, end)).ok()?;
        self.read = end;
        Some(made)
    }

    /// The first NOTIFY in the queue.
    #[inline]
    #[must_use]
    pub fn first(&self) -> ShapedNotify<'a> {
        ShapedNotify(self.input.get(self.begin()..).unwrap_or_default())
    }

    /// Answers the first NOTIFY in the queue, and takes it out. Returns whether there may be more
    /// answers.
    #[inline(always)]
    pub fn answer(&mut self, Answer(actions): Answer<'_>) -> bool {
        let Some((ids, _)) = self.queue.get(self.first) else { return false };
        let write = |output: &mut [u8]| ids.write_ack(output.get_mut(self.written..)?, actions);
        let Some(length) = write(self.output).or_else(|| {
            self.output.resize(self.written + ack_space(actions) + MORE_SPACE, 0);
            write(self.output)
        }) else {
            return false;
        };
        self.take_out(length)
    }

    /// As [`answer`](Self::answer), with the variables that `answer` sets. It cannot reply later.
    #[inline(always)]
    pub fn answer_with(&mut self, answer: impl FnOnce(&mut Reply<'_>)) -> bool {
        let Some((ids, _)) = self.queue.get(self.first) else { return false };
        let end = self.written + LENGTH_BYTES + self.limit as usize;
        if self.output.len() < end {
            self.output.resize(end + MORE_SPACE, 0);
        }
        let out = self.output.get_mut(self.written..).unwrap_or_default();
        let Some(ack) = ids.begin_ack(out, self.limit) else { return false };
        // Only a late reply would need the ids.
        let mut reply = Reply::of(ack, FrameId::default(), self.limit, &mut self.aside);
        answer(&mut reply);
        let length = reply.finish();
        self.aside.later = None;
        self.take_out(length)
    }

    /// Takes the first NOTIFY out, whose answer has this many bytes. Returns whether there may be
    /// more answers.
    #[inline(always)]
    fn take_out(&mut self, length: usize) -> bool {
        self.written += length;
        self.first += 1;
        if self.first == self.queue.len() {
            self.take_out_answered();
        }
        self.written < self.most
    }

    /// Where the first NOTIFY of the queue begins, or the last one that was answered ends.
    fn begin(&self) -> usize {
        let before = self.first.checked_sub(1).and_then(|before| self.queue.get(before));
        before.map_or(self.answered, |(_, end)| *end)
    }

    /// Counts those that are answered.
    #[inline]
    fn take_out_answered(&mut self) {
        self.answered = self.begin();
        self.acks += self.first;
        self.first = 0;
        self.queue.clear();
    }

    /// How many actions the ACKs had no space for.
    pub(crate) const fn left_out(&self) -> u64 {
        self.aside.left_out
    }

    /// How many bytes of the input are answered, how many ACKs there are, and how many bytes of
    /// the output are written.
    #[inline]
    pub(crate) fn finish(&mut self) -> (usize, usize, usize) {
        self.take_out_answered();
        // Now they are.
        let _ = self.protocol.max_ack_size(self.acks);
        (self.answered, self.acks, self.written)
    }
}

/// Actions that fit into an ACK: see [`ShapedNotifies::as_answer`].
#[derive(Clone, Copy, Debug)]
pub struct Answer<'c>(&'c Actions);
