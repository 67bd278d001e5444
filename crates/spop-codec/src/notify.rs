//! NOTIFY: HAProxy's messages with their args.

// ADR 49: Usual requests are answered by their shapes.

use crate::error::{DecodeError, MAX_MESSAGES};
use crate::reader::Reader;
use crate::shape::Shape;
use crate::value::Value;
use crate::wire::FrameId;

/// One question of HAProxy: the messages of an event or a group whose conditions were true. That
/// is often one message, can be none, and is at most [`MAX_MESSAGES`].
#[derive(Clone, Copy, Debug)]
pub struct Notify<'a> {
    /// The ids that the ACK must have.
    pub id: FrameId,
    /// `parse` has checked these to the end.
    messages: Reader<'a>,
    count: usize,
}

impl<'a> Notify<'a> {
    /// Checks the whole list, so that iterating over it needs no errors.
    #[inline(always)]
    pub(crate) fn parse(id: FrameId, payload: Reader<'a>) -> Result<Self, DecodeError> {
        let (mut reader, mut count) = (payload, 0);
        if !reader.is_empty() {
            skip_message(&mut reader)?;
            count = 1;
            // Most NOTIFYs have one message, and pay nothing for the bound.
            if !reader.is_empty() {
                count += skip_more_messages(reader)?;
            }
        }
        Ok(Self { id, messages: payload, count })
    }

    /// A NOTIFY of so many messages whose bytes were [kept](Self::bytes). They are not checked
    /// again: of other bytes, there are messages up to the first that is malformed.
    #[must_use]
    pub const fn from_kept(id: FrameId, messages: usize, bytes: &'a [u8]) -> Self {
        Self { id, messages: Reader::new(bytes), count: messages }
    }

    /// The list of messages as HAProxy sent it: for an agent that keeps it while a request waits.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.messages.rest()
    }

    /// The [`Shape`] of the NOTIFY, if it has one message with one arg, whose value is an address
    /// or a string.
    #[must_use]
    #[doc(hidden)]
    pub fn shape(&self) -> Option<Shape<&'a [u8]>> {
        let mut reader = self.messages;
        reader.string().ok()?;
        reader.u8().ok()?;
        reader.string().ok()?;
        let value = reader.rest().len();
        reader.value().ok()?;
        let bytes = self.bytes();
        let shape = Shape::new(bytes.get(..(bytes.len() + 1).checked_sub(value)?)?)?;
        // Behind the first arg there is nothing else.
        reader.is_empty().then_some(shape)
    }

    /// The messages, in the order of HAProxy's configuration.
    #[inline]
    #[must_use]
    pub const fn messages(&self) -> Messages<'a> {
        Messages { reader: self.messages, left: self.count, args_left: 0 }
    }
}

#[inline(always)]
fn skip_message(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    reader.string()?;
    for _ in 0..reader.u8()? {
        reader.string()?;
        reader.value()?;
    }
    Ok(())
}

/// Checks the messages behind the first one, and counts them. Cold, so that registers are saved
/// only where it is called.
#[cold]
#[inline(never)]
fn skip_more_messages(mut reader: Reader<'_>) -> Result<usize, DecodeError> {
    for count in 1..MAX_MESSAGES {
        skip_message(&mut reader)?;
        if reader.is_empty() {
            return Ok(count);
        }
    }
    Err(DecodeError::TooManyMessages)
}

/// An iterator over the messages of a [`Notify`].
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    reader: Reader<'a>,
    left: usize,
    /// How many args the message returned last has. The next call of `next` skips them.
    args_left: usize,
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Message<'a>> {
        self.left = self.left.checked_sub(1)?;
        // `parse` has checked the list, so nothing is missing here.
        for _ in 0..core::mem::take(&mut self.args_left) {
            self.reader.string().ok()?;
            self.reader.value().ok()?;
        }
        let name = self.reader.string().ok()?;
        self.args_left = self.reader.u8().ok()?.into();
        Some(Message { name, args: Args { reader: self.reader, left: self.args_left } })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Messages<'_> {}

/// A message, as a `spoe-message` section of HAProxy's configuration describes it.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    /// The name of the `spoe-message` section.
    pub name: &'a [u8],
    args: Args<'a>,
}

impl<'a> Message<'a> {
    /// The args, in the order of the configuration. Their names may be empty, and may repeat.
    #[inline]
    #[must_use]
    pub fn args(&self) -> Args<'a> {
        self.args.clone()
    }

    /// The value of the arg at this index, counted from 0.
    #[inline]
    #[must_use]
    pub fn arg_at(&self, index: usize) -> Option<Value<'a>> {
        self.args().nth(index).map(|arg| arg.value)
    }

    /// The value of the first arg with this name.
    #[inline(always)]
    #[must_use]
    pub fn arg(&self, name: &[u8]) -> Option<Value<'a>> {
        self.args().find(|arg| arg.name == name).map(|arg| arg.value)
    }
}

/// An iterator over the args of a [`Message`].
#[derive(Clone, Debug)]
pub struct Args<'a> {
    reader: Reader<'a>,
    left: usize,
}

impl<'a> Iterator for Args<'a> {
    type Item = Arg<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Arg<'a>> {
        self.left = self.left.checked_sub(1)?;
        Some(Arg { name: self.reader.string().ok()?, value: self.reader.value().ok()? })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Args<'_> {}

/// One arg of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Arg<'a> {
    /// The arg's name, empty if the configuration gives none (`args src dst`).
    pub name: &'a [u8],
    /// The arg's value.
    pub value: Value<'a>,
}
