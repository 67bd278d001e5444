//! A log that is one JSON list of objects: its objects become lines.

use std::io::{self, Read};

/// A log. If it begins with a list of objects, each of them is a line of its own.
pub(crate) struct JsonList<R> {
    raw: R,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// Nothing was read yet.
    Begin,
    Lines,
    List {
        /// How many objects and lists are open, with the outermost.
        depth: u32,
        in_string: bool,
        /// The next byte of the string belongs to a backslash.
        is_escaped: bool,
    },
}

impl<R: Read> JsonList<R> {
    pub(crate) fn new(raw: R) -> Self {
        Self { raw, state: State::Begin }
    }
}

impl<R: Read> Read for JsonList<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.raw.read(buffer)?;
        let bytes = &mut buffer[..count];
        if let State::Begin = self.state
            && count > 0
        {
            self.state = match is_list(bytes) {
                true => State::List { depth: 0, in_string: false, is_escaped: false },
                false => State::Lines,
            };
        }
        if let State::List { depth, in_string, is_escaped } = &mut self.state {
            for byte in bytes {
                *byte = of_line(*byte, depth, in_string, is_escaped);
            }
        }
        Ok(count)
    }
}

/// Whether the log is `[` and an object. A byte order mark may stand before it.
fn is_list(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(crate::prefix::MARK).unwrap_or(bytes).trim_ascii_start();
    let inside = bytes.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    let object = inside.and_then(|inside| inside.strip_prefix(b"{"));
    matches!(object.map(<[u8]>::trim_ascii_start), Some([b'"', ..]))
}

/// What a byte is in the lines: one ends where a comma stands between objects, and nowhere else.
fn of_line(byte: u8, depth: &mut u32, in_string: &mut bool, is_escaped: &mut bool) -> u8 {
    if *in_string {
        *in_string = *is_escaped || byte != b'"';
        *is_escaped = !*is_escaped && byte == b'\\';
        return byte;
    }
    let outside = *depth <= 1;
    match byte {
        b'"' => *in_string = true,
        b'[' | b'{' => *depth += 1,
        b']' | b'}' => *depth = depth.saturating_sub(1),
        _ => {}
    }
    match byte {
        b',' if outside => b'\n',
        b'[' | b']' if outside => b' ',
        b'\n' | b'\r' => b' ',
        other => other,
    }
}
