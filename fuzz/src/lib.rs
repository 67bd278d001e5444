//! What the targets share: values and frames made of the fuzzer's bytes, and a NOTIFY written again.

use arbitrary::{Result, Unstructured};
use spop_codec::haproxy::NotifyWriter;
use spop_codec::{Arg, BufferFull, FrameId, Notify, Value};

/// The first byte of each step in an input of `connection`, modulo [`COUNT`](step::COUNT).
pub mod step {
    /// A HAPROXY-HELLO.
    pub const HELLO: u8 = 0;
    /// A NOTIFY.
    pub const NOTIFY: u8 = 1;
    /// A NOTIFY in several frames.
    pub const FRAGMENTS: u8 = 2;
    /// A HAPROXY-DISCONNECT.
    pub const DISCONNECT: u8 = 3;
    /// A frame of any type and any payload.
    pub const FRAME: u8 = 4;
    /// Two bytes of length (little endian), and so many bytes as they are.
    pub const RAW: u8 = 5;
    /// Changes a byte that was written.
    pub const DAMAGE: u8 = 6;
    /// A piece ends here, or up to 255 bytes before; then time passes.
    pub const CUT: u8 = 7;
    /// How many there are.
    pub const COUNT: u8 = 8;
}

/// Up to 254 of the fuzzer's bytes; or up to 4 KiB of filling, because a length of three bytes needs more than a fuzzer likes
/// to try.
pub fn bytes<'a>(u: &mut Unstructured<'a>) -> Result<&'a [u8]> {
    static FILLING: [u8; 4096] = [b'x'; 4096];
    match u.arbitrary()? {
        u8::MAX => Ok(&FILLING[..usize::from(u.arbitrary::<u16>()?) % FILLING.len()]),
        length => u.bytes(u.len().min(usize::from(length))),
    }
}

/// A text made of [`bytes`].
pub fn text<'a>(u: &mut Unstructured<'a>) -> Result<&'a str> {
    let bytes = bytes(u)?;
    Ok(match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    })
}

/// A number, often a small one.
fn number(u: &mut Unstructured<'_>) -> Result<u64> {
    match u.arbitrary()? {
        small @ ..240_u8 => Ok(small.into()),
        _ => u.arbitrary(),
    }
}

pub fn id(u: &mut Unstructured<'_>) -> Result<FrameId> {
    Ok(FrameId { stream: number(u)?, frame: number(u)? })
}

/// A value of any type.
pub fn value<'a>(u: &mut Unstructured<'a>) -> Result<Value<'a>> {
    Ok(match u.arbitrary::<u8>()? % 10 {
        0 => Value::Null,
        1 => Value::Bool(u.arbitrary()?),
        2 => Value::Int32(u.arbitrary()?),
        3 => Value::Uint32(u.arbitrary()?),
        4 => Value::Int64(u.arbitrary()?),
        5 => Value::Uint64(number(u)?),
        6 => Value::Ipv4(u.arbitrary::<[u8; 4]>()?.into()),
        7 => Value::Ipv6(u.arbitrary::<[u8; 16]>()?.into()),
        8 => Value::String(bytes(u)?),
        _ => Value::Binary(bytes(u)?),
    })
}

/// The messages of a NOTIFY: their names and args.
pub type Messages<'a> = Vec<(&'a [u8], Vec<Arg<'a>>)>;

pub fn messages<'a>(u: &mut Unstructured<'a>) -> Result<Messages<'a>> {
    let mut messages = Messages::new();
    for _ in 0..u.arbitrary::<u8>()? % 4 {
        let name = bytes(u)?;
        // Sometimes one more than a message can have.
        let args = match u.arbitrary()? {
            u8::MAX => 256_u16,
            few => u16::from(few % 8),
        };
        let mut list = Vec::new();
        for _ in 0..args {
            list.push(Arg { name: bytes(u)?, value: value(u)? });
        }
        messages.push((name, list));
    }
    Ok(messages)
}

pub fn write_notify(out: &mut [u8], id: FrameId, messages: &Messages<'_>) -> Result<usize, BufferFull> {
    let mut writer = NotifyWriter::new(out, id)?;
    for (name, args) in messages {
        writer.message(name)?;
        for arg in args {
            writer.arg(arg.name, arg.value)?;
        }
    }
    Ok(writer.finish())
}

/// Writes a NOTIFY that was read from `used` bytes again. No number can be written in two ways, so it takes as many.
pub fn rewritten(notify: &Notify<'_>, used: usize) -> Vec<u8> {
    let mut out = vec![0; used];
    let mut writer = NotifyWriter::new(&mut out, notify.id).expect("the ids were read from so many bytes");
    for message in notify.messages() {
        writer.message(message.name).expect("the message was read from so many bytes");
        for arg in message.args() {
            writer.arg(arg.name, arg.value).expect("the arg was read from so many bytes");
        }
    }
    assert_eq!(writer.finish(), used, "something that was read is not given out");
    out
}
