//! A message as HAProxy would send it, written by a command. It is encoded and decoded again, so
//! that the code that decides about requests also answers about it.

use gcra_policy::key::NamedValue;
use spop_agent::{BufferFull, Message, Value};
use spop_codec::haproxy::NotifyWriter;
use spop_codec::{Frame, FrameId, decode};

/// The most bytes of a frame's own fields, of a name's or a value's length, and of an integer.
const MOST_OVERHEAD: usize = 32;

/// A NOTIFY with one message.
pub struct WrittenMessage(Vec<u8>);

impl WrittenMessage {
    /// Writes a message with these args.
    ///
    /// # Errors
    ///
    /// It has more than 255 args.
    pub fn new(name: &[u8], args: &[NamedValue]) -> Result<Self, BufferFull> {
        let sizes = args.iter().map(|arg| {
            let value = match arg.value.value() {
                Value::String(bytes) | Value::Binary(bytes) => bytes.len(),
                _ => 0,
            };
            arg.name.len() + value + 2 * MOST_OVERHEAD
        });
        let most = sizes.sum::<usize>() + name.len() + 2 * MOST_OVERHEAD;
        let mut frame = vec![0; most];
        let mut writer = NotifyWriter::new(&mut frame, FrameId { stream: 1, frame: 1 })?;
        writer.message(name)?;
        for NamedValue { name, value } in args {
            writer.arg(name.as_bytes(), value.value())?;
        }
        let length = writer.finish();
        frame.truncate(length);
        Ok(Self(frame))
    }

    /// The message. (It is always there.)
    pub fn message(&self) -> Option<Message<'_>> {
        match decode(&self.0, u32::MAX) {
            Ok(Some((Frame::Notify(notify), _))) => notify.messages().next(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let texts = ["ip=2001:db8::1", "n=int64:-9223372036854775808", "path=/", "b=hex:00ff"];
        let args = texts.map(|text| text.parse::<NamedValue>().unwrap());
        let written = WrittenMessage::new(b"api", &args).unwrap();
        let message = written.message().unwrap();
        assert_eq!(message.name, b"api");
        let read: Vec<_> = message.args().map(|arg| (arg.name, arg.value)).collect();
        let expected: Vec<_> =
            args.iter().map(|arg| (arg.name.as_bytes(), arg.value.value())).collect();
        assert_eq!(read, expected);
        assert!(WrittenMessage::new(b"", &[]).unwrap().message().is_some());
        let long: NamedValue = format!("x={}", "y".repeat(100_000)).parse().unwrap();
        assert!(WrittenMessage::new(b"api", &vec![long.clone(); 255]).is_ok());
        assert!(WrittenMessage::new(b"api", &vec![long; 256]).is_err());
    }
}
