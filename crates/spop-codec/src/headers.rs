//! The header list in an arg such as `req.hdrs_bin`.

use crate::reader::Reader;

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
    /// The headers in the bytes of a [`Value::Binary`](crate::Value::Binary).
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
