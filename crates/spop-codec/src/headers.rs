//! A header list, as in an arg such as `req.hdrs_bin`, and as `set-headers-bin` takes it.

use crate::reader::Reader;
use crate::value::Value;
use crate::writer::{BufferFull, Writer};

/// An iterator over the names and values in a binary arg from the samples `req.hdrs_bin` or
/// `res.hdrs_bin`.
///
/// A list ends with an empty name and an empty value. If it does not, HAProxy cut it because it
/// did not fit.
#[derive(Clone, Debug)]
pub struct HeaderList<'a> {
    reader: Reader<'a>,
    complete: Option<bool>,
}

impl<'a> HeaderList<'a> {
    /// The headers in the bytes of a [`Value::Binary`].
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { reader: Reader::new(bytes), complete: None }
    }

    /// Whether the list has its end. `None` before the iterator has returned `None`.
    #[must_use]
    pub const fn is_complete(&self) -> Option<bool> {
        self.complete
    }
}

impl<'a> Iterator for HeaderList<'a> {
    /// A header's name and value.
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.complete.is_some() {
            return None;
        }
        let pair = self.reader.string().and_then(|name| Ok((name, self.reader.string()?)));
        match pair {
            Ok(([], [])) => self.complete = Some(true),
            Ok(header) => return Some(header),
            Err(_) => self.complete = Some(false),
        }
        None
    }
}

impl<'a> Value<'a> {
    /// The names and values in a binary, as the samples `req.hdrs_bin` and `res.hdrs_bin` write
    /// them.
    #[must_use]
    pub const fn headers(&self) -> Option<HeaderList<'a>> {
        match self {
            Self::Binary(bytes) => Some(HeaderList::new(bytes)),
            _ => None,
        }
    }
}

/// Writes a header list into the caller's buffer, for HAProxy's actions `set-headers-bin` and
/// `add-headers-bin` (from version 3.4 on).
///
/// HAProxy does not check the names and values: a line break in a name or value would begin a
/// header of its own. Its `prefix` compares names byte for byte, so write them in lower case, as
/// HAProxy sends them.
///
/// ```
/// use spop_codec::{HeaderListWriter, Value};
///
/// let mut buffer = [0; 64];
/// let mut list = HeaderListWriter::new(&mut buffer);
/// list.header(b"retry-after", b"7")?;
/// let value = Value::Binary(list.finish()?);
/// assert_eq!(value, Value::Binary(b"\x0bretry-after\x017\0\0"));
/// # Ok::<(), spop_codec::BufferFull>(())
/// ```
#[derive(Debug)]
pub struct HeaderListWriter<'b> {
    writer: Writer<'b>,
}

impl<'b> HeaderListWriter<'b> {
    /// A list without headers.
    #[must_use]
    pub const fn new(buffer: &'b mut [u8]) -> Self {
        Self { writer: Writer::new(buffer) }
    }

    /// Adds a header. One without a name is left out, because HAProxy refuses the whole list if
    /// it has one.
    ///
    /// # Errors
    ///
    /// It does not fit into the buffer, and nothing is added.
    pub fn header(&mut self, name: &[u8], value: &[u8]) -> Result<(), BufferFull> {
        if name.is_empty() {
            return Ok(());
        }
        let before = self.writer.used();
        let written = self.writer.string(name).and_then(|()| self.writer.string(value));
        if written.is_err() {
            self.writer.rewind(before);
        }
        written
    }

    /// Writes the end, an empty name and an empty value, and returns the list for
    /// [`Value::Binary`]. HAProxy answers with status 500 if a list has no
    /// end.
    ///
    /// # Errors
    ///
    /// The end does not fit into the buffer.
    pub fn finish(mut self) -> Result<&'b [u8], BufferFull> {
        self.writer.string(b"")?;
        self.writer.string(b"")?;
        Ok(self.writer.into_written())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> (usize, Option<bool>) {
        let mut list = HeaderList::new(bytes);
        let headers = list.by_ref().count();
        assert_eq!(list.next(), None, "it continues after its end");
        (headers, list.is_complete())
    }

    #[test]
    fn a_list_ends_with_an_empty_pair() {
        assert_eq!(read(b"\x04host\x01a\x06accept\x00\x00\x00"), (2, Some(true)));
        assert_eq!(read(b"\x00\x00"), (0, Some(true)));
    }

    #[test]
    fn a_cut_list_gives_what_is_whole() {
        let whole = b"\x04host\x01a\x06accept\x00\x00\x00";
        for length in 0..whole.len() {
            let headers = [7, 15].iter().filter(|end| length >= **end).count();
            assert_eq!(read(&whole[..length]), (headers, Some(false)), "{length}");
        }
    }
}
