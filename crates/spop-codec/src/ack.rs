//! ACK: the answer to one NOTIFY, a list of actions.

use crate::error::DecodeError;
use crate::frame::{self, FrameId, kind};
use crate::name::{Scope, VarName};
use crate::reader::Reader;
use crate::value::Value;
use crate::writer::{BufferFull, Writer};

const SET_VAR: u8 = 1;
const UNSET_VAR: u8 = 2;

/// Prepared actions of so many bytes are appended without a call.
const SHORT: usize = 32;

/// Args of an action, counted with the scope.
const SET_VAR_ARGS: u8 = 3;
const UNSET_VAR_ARGS: u8 = 2;

/// Writes one ACK into the caller's buffer. It is a frame once [`finish`](Self::finish) was
/// called.
///
/// HAProxy stops reading actions, without a word, at the first that it does not understand. What
/// this writes it understands.
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
    /// The room that an ACK without actions needs at most: LENGTH, type, flags, two ids of ten
    /// bytes.
    pub const EMPTY: usize = 4 + 1 + 4 + 10 + 10;

    /// Begins an ACK of at most `limit` bytes (as LENGTH counts them).
    ///
    /// # Errors
    ///
    /// There is no room for an ACK without actions.
    #[inline]
    pub fn new(out: &'b mut [u8], id: FrameId, limit: u32) -> Result<Self, BufferFull> {
        let limit = usize::try_from(limit).map_or(usize::MAX, |limit| limit.saturating_add(4));
        let writer = frame::begin(out, kind::ACK, id)?;
        let header = writer.used();
        if header > limit { Err(BufferFull) } else { Ok(Self { writer, header, limit }) }
    }

    /// Goes on with an ACK of which `written` bytes are in `out`, as [`finish`](Self::finish)
    /// counted them.
    ///
    /// # Errors
    ///
    /// `out` is shorter than that, or has no room for an ACK without actions.
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
        // What is there stays: how long the header is comes from another one.
        let mut scratch = [0; Self::EMPTY];
        let AckWriter { header, limit, .. } = AckWriter::new(&mut scratch, id, limit)?;
        let mut writer = Writer::new(out);
        writer.advance(written);
        Ok(Self { writer, header, limit })
    }

    /// Sets a variable. The last value of a name wins.
    ///
    /// # Errors
    ///
    /// There is no room for it. What was written before stays as it was.
    #[inline]
    pub fn set_var(
        &mut self,
        scope: Scope,
        name: VarName<'_>,
        value: Value<'_>,
    ) -> Result<(), BufferFull> {
        self.action(|writer| set_var(writer, scope, name, value))
    }

    /// Unsets a variable.
    ///
    /// # Errors
    ///
    /// There is no room for it. What was written before stays as it was.
    #[inline]
    pub fn unset_var(&mut self, scope: Scope, name: VarName<'_>) -> Result<(), BufferFull> {
        self.action(|writer| unset_var(writer, scope, name))
    }

    /// Appends actions that were encoded before: for the answer that is given again and again.
    ///
    /// # Errors
    ///
    /// There is no room for all of them. What was written before stays as it was.
    #[inline]
    pub fn append(&mut self, actions: &Actions) -> Result<(), BufferFull> {
        self.action(|writer| match actions.bytes.first_chunk::<SHORT>() {
            Some(bytes) if actions.length <= SHORT => writer.prefix(bytes, actions.length),
            _ => writer.any_bytes(&actions.bytes[..actions.length]),
        })
    }

    /// Writes an action whole or not at all.
    #[inline]
    fn action(
        &mut self,
        write: impl FnOnce(&mut Writer<'b>) -> Result<(), BufferFull>,
    ) -> Result<(), BufferFull> {
        let before = self.writer.used();
        let written = write(&mut self.writer);
        if written.is_err() || self.writer.used() > self.limit {
            self.writer.rewind(before);
            return Err(BufferFull);
        }
        Ok(())
    }

    /// Forgets all actions.
    pub fn clear(&mut self) {
        self.writer.rewind(self.header);
    }

    /// Ends the ACK. Returns the bytes it takes in the buffer.
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
    writer.bytes(&[SET_VAR, SET_VAR_ARGS, scope as u8])?;
    writer.string(name.as_str().as_bytes())?;
    writer.value(value)
}

#[inline]
fn unset_var(writer: &mut Writer<'_>, scope: Scope, name: VarName<'_>) -> Result<(), BufferFull> {
    writer.bytes(&[UNSET_VAR, UNSET_VAR_ARGS, scope as u8])?;
    writer.string(name.as_str().as_bytes())
}

/// Actions that many ACKs have in common, encoded once. [`AckWriter::append`] then copies them.
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
    /// The bytes that all of them may take together. A boolean takes 5 beside its name.
    pub const CAPACITY: usize = 256;

    /// No action.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; Self::CAPACITY], length: 0 }
    }

    /// Sets a variable. The last value of a name wins.
    ///
    /// # Errors
    ///
    /// There is no room for it in [`CAPACITY`](Self::CAPACITY). What was there before stays as it
    /// was.
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

/// An ACK, as HAProxy reads it. (For agents' tests; and what was written can be checked with it.)
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// The NOTIFY it answers.
    pub id: FrameId,
    actions: Reader<'a>,
}

/// One thing that HAProxy is to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action<'a> {
    /// Sets a variable.
    SetVar {
        /// Where it lives.
        scope: Scope,
        /// Its name, without scope and prefix.
        name: &'a [u8],
        /// Its value.
        value: Value<'a>,
    },
    /// Unsets a variable.
    UnsetVar {
        /// Where it lives.
        scope: Scope,
        /// Its name, without scope and prefix.
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
        // The list is known to be well formed; its end is the only error left.
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
