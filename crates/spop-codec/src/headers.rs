//! The headers in an arg such as `req.hdrs_bin`.

use crate::reader::Reader;

/// Iterates over the names and values of a binary arg that HAProxy made with `req.hdrs_bin` or
/// `res.hdrs_bin`.
///
/// The list ends with an empty name and value. One that does not was cut by its sender.
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

    /// Whether the list was there to its end. `None` until the iterator has come there.
    #[must_use]
    pub const fn is_complete(&self) -> Option<bool> {
        self.complete
    }
}

impl<'a> Iterator for HeaderList<'a> {
    /// A name and its value.
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
        assert_eq!(list.next(), None, "it goes on after its end");
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
