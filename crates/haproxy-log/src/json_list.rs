//! A log that is one JSON list of objects: its objects become lines.

use std::io::{self, Read};

/// A log. If it begins with a list of objects, each of them is a line of its own.
pub(crate) struct JsonList<R> {
    raw: R,
    state: State,
}

enum State {
    /// Nothing was read yet.
    Begin,
    Lines,
    List(Place),
}

/// A place in a list.
#[derive(Default)]
struct Place {
    /// How many objects and lists are open, with the outermost.
    depth: u32,
    in_string: bool,
    /// The next byte of the string belongs to a backslash.
    is_escaped: bool,
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
            let is_list = is_list(bytes);
            self.state = if is_list { State::List(Place::default()) } else { State::Lines };
        }
        if let State::List(place) = &mut self.state {
            bytes.iter_mut().for_each(|byte| *byte = place.in_lines(*byte));
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

impl Place {
    /// The byte that stands for the next byte in the lines: a line ends where a comma stands
    /// between objects, and nowhere else.
    fn in_lines(&mut self, byte: u8) -> u8 {
        if self.in_string {
            self.in_string = self.is_escaped || byte != b'"';
            self.is_escaped = !self.is_escaped && byte == b'\\';
            return byte;
        }
        let is_between = self.depth <= 1;
        match byte {
            b'"' => self.in_string = true,
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        match byte {
            b',' if is_between => b'\n',
            b'[' | b']' if is_between => b' ',
            b'\n' | b'\r' => b' ',
            other => other,
        }
    }
}
