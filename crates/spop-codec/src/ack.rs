//! ACK: the answer to one NOTIFY, a list of actions.

use crate::error::DecodeError;
use crate::reader::Reader;
use crate::value::Value;
use crate::var::{Scope, VarName};
use crate::varint;
use crate::wire::{self, FrameId, LENGTH_BYTES, kind};
use crate::writer::{BufferFull, Writer, value_in_two};

const SET_VAR: u8 = 1;
const UNSET_VAR: u8 = 2;

/// How many args an action has. The scope is an arg, too.
const SET_VAR_ARGS: u8 = 3;
const UNSET_VAR_ARGS: u8 = 2;

/// The bytes in front of an action's name: its type, the number of its args, and the scope.
const ACTION_HEADER: usize = 3;

/// Writes one ACK into the caller's buffer. The bytes are a frame after
/// [`finish`](Self::finish) was called.
///
/// HAProxy silently ignores all actions from the first one that it does not understand. It
/// understands everything that this type writes.
///
/// ```
/// use spop_codec::{AckWriter, FrameId, Scope, VarName};
///
/// let mut out = [0; 64];
/// let mut ack = AckWriter::new(&mut out, FrameId { stream: 1, frame: 1 }, 815)?;
/// ack.set_var(Scope::Transaction, VarName::new("allowed")?, true.into())?;
/// let length = ack.finish();
/// assert_eq!(&out[..length], b"\0\0\0\x13\x67\0\0\0\x01\x01\x01\x01\x03\x02\x07allowed\x11");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AckWriter<'b> {
    writer: Writer<'b>,
    header: usize,
    /// The bytes that may be used, LENGTH's own four among them.
    limit: usize,
}

impl<'b> AckWriter<'b> {
    /// The most bytes that an ACK without actions takes in a buffer: LENGTH, the type, the flags
    /// and two ids of ten bytes each.
    pub const HEADER_MAX: usize = wire::HEADER_MAX;

    /// The largest LENGTH of an ACK with these bytes of actions, to be used as a limit. (LENGTH
    /// does not count its own four bytes.)
    #[must_use]
    pub const fn max_length(action_bytes: usize) -> usize {
        Self::HEADER_MAX - LENGTH_BYTES + action_bytes
    }

    /// How many bytes [`set_var`](Self::set_var) adds for this name and value. They do not depend
    /// on the scope.
    #[must_use]
    pub const fn set_var_size(name: VarName<'_>, value: &Value<'_>) -> usize {
        Self::unset_var_size(name) + value.encoded_length()
    }

    /// How many bytes [`unset_var`](Self::unset_var) adds for this name.
    #[must_use]
    pub const fn unset_var_size(name: VarName<'_>) -> usize {
        let length = name.as_str().len();
        ACTION_HEADER + varint::length(length as u64) + length
    }

    /// Begins an ACK whose LENGTH is at most `limit`.
    ///
    /// # Errors
    ///
    /// An ACK without actions does not fit into `out`, or is longer than `limit`.
    #[inline]
    pub fn new(out: &'b mut [u8], id: FrameId, limit: u32) -> Result<Self, BufferFull> {
        let limit =
            usize::try_from(limit).map_or(usize::MAX, |limit| limit.saturating_add(LENGTH_BYTES));
        let writer = wire::begin(out, kind::ACK, id)?;
        let header = writer.used();
        if header > limit { Err(BufferFull) } else { Ok(Self { writer, header, limit }) }
    }

    /// Begins an ACK whose first `header` bytes are in `out`; `None` if it is longer than `limit`.
    #[inline]
    pub(crate) fn behind(out: &'b mut [u8], header: usize, limit: u32) -> Option<Self> {
        let limit = usize::try_from(limit).ok()?.saturating_add(LENGTH_BYTES);
        let mut writer = Writer::new(out);
        writer.advance(header);
        (header <= limit).then_some(Self { writer, header, limit })
    }

    /// Continues an ACK that begins `out`, and of which [`finish`](Self::finish) returned
    /// `written` as the length. With a `written` of 0 it begins one. `id` and `limit` are those
    /// that the ACK was begun with.
    ///
    /// # Errors
    ///
    /// `out` is shorter than `written`, or an error of [`new`](Self::new).
    pub fn resume(
        out: &'b mut [u8],
        id: FrameId,
        limit: u32,
        written: usize,
    ) -> Result<Self, BufferFull> {
        if written == 0 {
            return Self::new(out, id, limit);
        }
        if out.len() < written {
            return Err(BufferFull);
        }
        // `new` writes a header, and the one in `out` must stay. So this writes the same header
        // elsewhere, only to learn its length.
        let mut scratch = [0; Self::HEADER_MAX];
        let AckWriter { header, limit, .. } = AckWriter::new(&mut scratch, id, limit)?;
        let mut writer = Writer::new(out);
        writer.advance(written);
        Ok(Self { writer, header, limit })
    }

    /// Sets a variable. If a name is set twice, its last value counts.
    ///
    /// # Errors
    ///
    /// The action does not fit. The bytes before it stay as they were.
    #[inline]
    pub fn set_var(
        &mut self,
        scope: Scope,
        name: VarName<'_>,
        value: Value<'_>,
    ) -> Result<(), BufferFull> {
        self.action(|writer| set_var(writer, scope, name, value))
    }

    /// Sets a variable whose action was begun earlier.
    ///
    /// # Errors
    ///
    /// The action does not fit. The bytes before it stay as they were.
    #[inline(always)]
    pub fn set(&mut self, var: &SetVar, value: Value<'_>) -> Result<(), BufferFull> {
        // Not a closure, which would not be inlined: the value is often one of a known type.
        let before = self.writer.used();
        let written = match value_in_two(value) {
            Some((end, length))
                if self.writer.prefix_and(var.short(), var.length, end, length) =>
            {
                Ok(())
            }
            _ => var.write(&mut self.writer).and_then(|()| self.writer.value(value)),
        };
        self.keep(before, written)
    }

    /// Sets a variable to the string that `write` writes, piece by piece, into the ACK itself.
    ///
    /// # Errors
    ///
    /// The action does not fit, or `write` has failed. The bytes before it stay as they were.
    #[inline]
    pub fn set_text(
        &mut self,
        var: &SetVar,
        write: impl FnOnce(&mut TextWriter<'_, 'b>) -> Result<(), BufferFull>,
    ) -> Result<(), BufferFull> {
        self.action(|writer| {
            var.write(writer)?;
            writer.string_of(|writer| write(&mut TextWriter { writer }))
        })
    }

    /// Unsets a variable.
    ///
    /// # Errors
    ///
    /// The action does not fit. The bytes before it stay as they were.
    #[inline]
    pub fn unset_var(&mut self, scope: Scope, name: VarName<'_>) -> Result<(), BufferFull> {
        self.action(|writer| unset_var(writer, scope, name))
    }

    /// Appends actions that were encoded earlier: for an answer that is given many times.
    ///
    /// # Errors
    ///
    /// They do not all fit. The bytes before them stay as they were.
    #[inline]
    pub fn append(&mut self, actions: &Actions) -> Result<(), BufferFull> {
        self.action(|writer| match actions.bytes.first_chunk::<{ Actions::SHORT }>() {
            Some(bytes) if actions.length <= Actions::SHORT => {
                writer.prefix(bytes, actions.length)
            }
            _ => writer.any_bytes(&actions.bytes[..actions.length]),
        })
    }

    /// Writes the whole action, or nothing.
    #[inline(always)]
    fn action(
        &mut self,
        write: impl FnOnce(&mut Writer<'b>) -> Result<(), BufferFull>,
    ) -> Result<(), BufferFull> {
        let before = self.writer.used();
        let written = write(&mut self.writer);
        self.keep(before, written)
    }

    /// Ends an action. If it does not fit, the ACK has as many bytes as before it.
    #[inline(always)]
    fn keep(&mut self, before: usize, written: Result<(), BufferFull>) -> Result<(), BufferFull> {
        if written.is_err() || self.writer.used() > self.limit {
            self.writer.rewind(before);
            return Err(BufferFull);
        }
        Ok(())
    }

    /// Removes all actions.
    pub fn clear(&mut self) {
        self.writer.rewind(self.header);
    }

    /// Ends the ACK. Returns the bytes that it takes in the buffer.
    #[inline]
    #[must_use]
    pub fn finish(self) -> usize {
        self.writer.finish()
    }
}

#[inline]
fn set_var(
    writer: &mut Writer<'_>,
    scope: Scope,
    name: VarName<'_>,
    value: Value<'_>,
) -> Result<(), BufferFull> {
    set_var_begin(writer, scope, name)?;
    writer.value(value)
}

#[inline]
fn set_var_begin(
    writer: &mut Writer<'_>,
    scope: Scope,
    name: VarName<'_>,
) -> Result<(), BufferFull> {
    writer.bytes(&[SET_VAR, SET_VAR_ARGS, scope as u8])?;
    writer.string(name.as_str().as_bytes())
}

#[inline]
fn unset_var(writer: &mut Writer<'_>, scope: Scope, name: VarName<'_>) -> Result<(), BufferFull> {
    writer.bytes(&[UNSET_VAR, UNSET_VAR_ARGS, scope as u8])?;
    writer.string(name.as_str().as_bytes())
}

/// The action that sets a variable, encoded once up to the value: for one that many ACKs set.
#[derive(Clone, Copy, Debug)]
pub struct SetVar {
    bytes: [u8; Self::CAPACITY],
    length: usize,
}

impl SetVar {
    /// Enough for the longest name.
    const CAPACITY: usize = ACTION_HEADER + 1 + 60;

    /// Up to this many bytes are copied without a call.
    const SHORT: usize = 32;

    /// The action for the variable with this scope and name.
    #[must_use]
    pub fn new(scope: Scope, name: VarName<'_>) -> Self {
        let mut bytes = [0; Self::CAPACITY];
        let mut writer = Writer::new(&mut bytes);
        // It fits: a name has at most 56 characters.
        let _ = set_var_begin(&mut writer, scope, name);
        let length = writer.used();
        Self { bytes, length }
    }

    /// How many bytes the action has with this value.
    #[must_use]
    pub const fn size(&self, value: &Value<'_>) -> usize {
        self.length + value.encoded_length()
    }

    /// The first bytes. Those behind the action are 0.
    #[inline(always)]
    fn short(&self) -> &[u8; Self::SHORT] {
        // It is there: the capacity is larger.
        self.bytes.first_chunk().unwrap_or(&[0; Self::SHORT])
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) -> Result<(), BufferFull> {
        match self.length {
            ..=Self::SHORT => writer.prefix(self.short(), self.length),
            _ => writer.any_bytes(self.bytes.get(..self.length).ok_or(BufferFull)?),
        }
    }
}

/// Writes a string piece by piece: see [`AckWriter::set_text`].
#[derive(Debug)]
pub struct TextWriter<'w, 'b> {
    writer: &'w mut Writer<'b>,
}

impl TextWriter<'_, '_> {
    /// The string that `write` writes, with `out` as the space for it.
    ///
    /// # Errors
    ///
    /// `out` is too short, or `write` has failed.
    pub fn text_in(
        out: &mut [u8],
        write: impl FnOnce(&mut TextWriter<'_, '_>) -> Result<(), BufferFull>,
    ) -> Result<&[u8], BufferFull> {
        let mut writer = Writer::new(out);
        write(&mut TextWriter { writer: &mut writer })?;
        Ok(writer.into_written())
    }

    /// Appends a piece. It is best for one whose length is known where this is called.
    ///
    /// # Errors
    ///
    /// It does not fit.
    #[inline]
    pub fn push(&mut self, piece: &[u8]) -> Result<(), BufferFull> {
        self.writer.bytes(piece)
    }

    /// As [`push`](Self::push), best for a piece of 8 to 16 bytes.
    ///
    /// # Errors
    ///
    /// It does not fit.
    #[inline]
    pub fn push_short(&mut self, piece: &[u8]) -> Result<(), BufferFull> {
        self.writer.piece(piece)
    }

    /// Appends these bytes, at most seven, and a number in decimal digits.
    ///
    /// # Errors
    ///
    /// They do not fit.
    #[inline(always)]
    pub fn push_with_number<const N: usize>(
        &mut self,
        before: [u8; N],
        number: u64,
    ) -> Result<(), BufferFull> {
        self.writer.with_decimal(before, number)
    }
}

/// Actions for many ACKs, encoded once. [`AckWriter::append`] copies them.
///
/// ```
/// use spop_codec::{AckWriter, Actions, FrameId, Scope, VarName};
///
/// let mut denied = Actions::new();
/// denied.set_var(Scope::Transaction, VarName::new("allowed")?, false.into())?;
///
/// let mut out = [0; 64];
/// let mut ack = AckWriter::new(&mut out, FrameId { stream: 1, frame: 1 }, 815)?;
/// ack.append(&denied)?;
/// let length = ack.finish();
/// assert_eq!(&out[..length], b"\0\0\0\x13\x67\0\0\0\x01\x01\x01\x01\x03\x02\x07allowed\x01");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Actions {
    bytes: [u8; Self::CAPACITY],
    length: usize,
}

impl Actions {
    /// The most bytes that all actions may take together.
    pub const CAPACITY: usize = 256;

    /// Up to this many bytes are copied without a call.
    pub(crate) const SHORT: usize = 32;

    /// No actions.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; Self::CAPACITY], length: 0 }
    }

    /// Sets a variable. If a name is set twice, its last value counts.
    ///
    /// # Errors
    ///
    /// All actions together would be larger than [`CAPACITY`](Self::CAPACITY). The actions before
    /// this one stay as they were.
    pub fn set_var(
        &mut self,
        scope: Scope,
        name: VarName<'_>,
        value: Value<'_>,
    ) -> Result<(), BufferFull> {
        self.add(|writer| set_var(writer, scope, name, value))
    }

    /// Unsets a variable.
    ///
    /// # Errors
    ///
    /// As [`set_var`](Self::set_var).
    pub fn unset_var(&mut self, scope: Scope, name: VarName<'_>) -> Result<(), BufferFull> {
        self.add(|writer| unset_var(writer, scope, name))
    }

    /// The bytes that all actions take together.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// The first bytes, all of them if the actions are short. The bytes behind them are 0.
    #[inline(always)]
    pub(crate) fn short(&self) -> &[u8; Self::SHORT] {
        const { assert!(Self::SHORT <= Self::CAPACITY) }
        // It is there: see above.
        self.bytes.first_chunk().unwrap_or(&[0; Self::SHORT])
    }

    /// All bytes, if they are not short.
    #[inline(always)]
    pub(crate) fn long(&self) -> Option<&[u8]> {
        if self.length > Self::SHORT { self.bytes.get(..self.length) } else { None }
    }

    fn add(
        &mut self,
        write: impl FnOnce(&mut Writer<'_>) -> Result<(), BufferFull>,
    ) -> Result<(), BufferFull> {
        let mut writer = Writer::new(&mut self.bytes[self.length..]);
        write(&mut writer)?;
        self.length += writer.used();
        Ok(())
    }
}

impl Default for Actions {
    fn default() -> Self {
        Self::new()
    }
}

/// An ACK, as HAProxy reads it: for clients and tests.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// The ids of the NOTIFY that it answers.
    pub id: FrameId,
    actions: Reader<'a>,
}

/// One instruction to HAProxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action<'a> {
    /// Sets a variable.
    SetVar {
        /// The variable's scope.
        scope: Scope,
        /// The variable's name, without scope and prefix.
        name: &'a [u8],
        /// The variable's value.
        value: Value<'a>,
    },
    /// Unsets a variable.
    UnsetVar {
        /// The variable's scope.
        scope: Scope,
        /// The variable's name, without scope and prefix.
        name: &'a [u8],
    },
}

impl<'a> Ack<'a> {
    pub(crate) fn parse(id: FrameId, payload: Reader<'a>) -> Result<Self, DecodeError> {
        let mut reader = payload;
        while !reader.is_empty() {
            action(&mut reader)?;
        }
        Ok(Self { id, actions: payload })
    }

    /// The actions, in order.
    pub fn actions(&self) -> impl Iterator<Item = Action<'a>> + use<'a> {
        let mut reader = self.actions;
        // `parse` has checked the list, so the only possible error is its end.
        core::iter::from_fn(move || action(&mut reader).ok())
    }
}

fn action<'a>(reader: &mut Reader<'a>) -> Result<Action<'a>, DecodeError> {
    match (reader.u8()?, reader.u8()?) {
        (SET_VAR, SET_VAR_ARGS) => {
            let scope = Scope::from_byte(reader.u8()?)?;
            Ok(Action::SetVar { scope, name: reader.string()?, value: reader.value()? })
        }
        (UNSET_VAR, UNSET_VAR_ARGS) => {
            let scope = Scope::from_byte(reader.u8()?)?;
            Ok(Action::UnsetVar { scope, name: reader.string()? })
        }
        _ => Err(DecodeError::BadAction),
    }
}
