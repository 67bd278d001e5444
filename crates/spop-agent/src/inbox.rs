//! Bytes received and not yet answered, kept between two rounds.

// ADR 1: A frame is whole or it is nothing.

use std::mem::take;

#[derive(Debug, Default)]
pub(crate) enum Inbox {
    /// No bytes, and no memory: this is the state of a connection at rest.
    #[default]
    Empty,
    /// The beginning of a frame. Only more bytes from the peer help.
    Partial(Vec<u8>),
    /// Bytes that may have whole frames. The answers to them would have been too much for one
    /// write, or they have too many messages for one round. Or too many requests wait for late
    /// replies, or the bytes came behind a HELLO.
    Whole(Vec<u8>),
}

impl Inbox {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Empty => &[],
            Self::Partial(bytes) | Self::Whole(bytes) => bytes,
        }
    }

    /// How much memory the bytes take.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Partial(bytes) | Self::Whole(bytes) => bytes.capacity(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Whether a frame has begun whose rest is waited for.
    pub(crate) fn is_partial(&self) -> bool {
        matches!(self, Self::Partial(_))
    }

    /// Whether there may be whole frames, so that there is work without reading.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }

    /// Takes the bytes out.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        match take(self) {
            Self::Empty => Vec::new(),
            Self::Partial(bytes) | Self::Whole(bytes) => bytes,
        }
    }

    /// Keeps these bytes instead, in the same memory.
    #[inline]
    pub(crate) fn replace(&mut self, rest: &[u8], may_be_whole: bool) {
        if rest.is_empty() {
            *self = Self::Empty;
        } else {
            self.keep(rest, may_be_whole);
        }
    }

    #[inline(never)]
    fn keep(&mut self, rest: &[u8], may_be_whole: bool) {
        let mut bytes = self.take();
        bytes.clear();
        bytes.extend_from_slice(rest);
        *self = Self::new(bytes, may_be_whole);
    }

    /// An inbox with these bytes.
    pub(crate) fn new(bytes: Vec<u8>, may_be_whole: bool) -> Self {
        match (bytes.is_empty(), may_be_whole) {
            (true, _) => Self::Empty,
            (false, false) => Self::Partial(bytes),
            (false, true) => Self::Whole(bytes),
        }
    }

    pub(crate) fn append(&mut self, more: &[u8], may_be_whole: bool) {
        let may_be_whole = may_be_whole || self.is_whole();
        let mut bytes = self.take();
        bytes.extend_from_slice(more);
        *self = Self::new(bytes, may_be_whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_without_bytes_keeps_no_memory() {
        let mut inbox = Inbox::default();
        inbox.replace(b"abc", false);
        assert!(inbox.is_partial() && inbox.bytes() == b"abc");
        inbox.append(b"de", true);
        assert!(inbox.is_whole() && inbox.bytes() == b"abcde");
        inbox.append(b"f", false);
        assert!(inbox.is_whole(), "whole frames do not go away");
        inbox.replace(b"", true);
        assert!(inbox.is_empty() && inbox.capacity() == 0);
        assert_eq!(inbox.take(), b"");
    }
}
