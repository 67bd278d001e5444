//! Values and messages made of any bytes: of random ones by the tests, of chosen ones by the fuzz
//! targets.

use arbitrary::{Result, Unstructured};
use spop_codec::haproxy::NotifyWriter;
use spop_codec::{Arg, BufferFull, FrameId, MAX_MESSAGES, Value};

/// Up to 254 of these bytes; or up to 4 KiB of filling, because a length of three bytes
/// needs more than a fuzzer likes to try.
pub fn bytes<'a>(u: &mut Unstructured<'a>) -> Result<&'a [u8]> {
    static FILLING: [u8; 4096] = [b'x'; 4096];
    match u.arbitrary()? {
        u8::MAX => Ok(&FILLING[..usize::from(u.arbitrary::<u16>()?) % FILLING.len()]),
        length => u.bytes(u.len().min(usize::from(length))),
    }
}

/// A string made of [`bytes`].
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
    // Sometimes one more than a NOTIFY can have.
    let count = match u.arbitrary()? {
        u8::MAX => MAX_MESSAGES + 1,
        few => usize::from(few % 4),
    };
    for _ in 0..count {
        let name = bytes(u)?;
        // Sometimes one more than a message can have.
        let args = match u.arbitrary()? {
            u8::MAX => 256_u16,
            few => u16::from(few % 8),
        };
        let mut list = Vec::new();
        for _ in 0..args {
            // Often without a name, so that names repeat.
            let name = if u.ratio(1, 4)? { b"" } else { bytes(u)? };
            list.push(Arg { name, value: value(u)? });
        }
        messages.push((name, list));
    }
    Ok(messages)
}

pub fn write_notify(
    out: &mut [u8],
    id: FrameId,
    messages: &Messages<'_>,
) -> Result<usize, BufferFull> {
    let mut writer = NotifyWriter::new(out, id)?;
    for (name, args) in messages {
        writer.message(name)?;
        for arg in args {
            writer.arg(arg.name, arg.value)?;
        }
    }
    Ok(writer.finish())
}
