//! NOTIFYs as HAProxy sends them with its usual configuration, and checks of the answers.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::ops::Range;

use spop_codec::haproxy::NotifyWriter;
use spop_codec::{FrameId, Value};

/// HAProxy up to 3.0 counts streams over the life of its process, so in production a stream id has
/// three or four bytes. From this one on to 33 million all ids have four.
const FIRST_STREAM: u64 = 3_000_000;

/// Where the ids are in a NOTIFY and in its ACK: behind length, type and flags.
const STREAM: Range<usize> = 9..13;
const ACK_HEAD: &[u8] = b"\0\0\0\x16\x67\0\0\0\x01";
/// The frame id is always 1, as HAProxy's own. One action sets txn.blocked.
const ACK_TAIL: &[u8] = b"\x01\x01\x03\x02\x07blocked";
/// All ACKs have one length, so that a reader knows how many bytes to wait for.
pub(crate) const ACK_BYTES: usize = STREAM.end + ACK_TAIL.len() + 1;

/// NOTIFYs, one after another, and where each ends.
pub(crate) struct Notifies {
    pub bytes: Vec<u8>,
    pub ends: Vec<usize>,
}

/// The kind of messages that a load has.
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "not every bench has each kind")]
pub(crate) enum Kind {
    /// With one of so many IPv4 addresses.
    Ipv4 { keys: u32 },
    /// With an IPv6 address.
    Ipv6,
    /// With a string of 20 bytes.
    Text,
    /// Of two names by turns, with an IPv4 address.
    TwoMessages,
}

impl Notifies {
    /// One message with one IPv4 arg each, of `keys` addresses in random order.
    pub(crate) fn new(count: usize, keys: u32) -> Self {
        Self::of(Kind::Ipv4 { keys }, count)
    }

    /// One message with one arg of this kind each.
    pub(crate) fn of(kind: Kind, count: usize) -> Self {
        let keys = if let Kind::Ipv4 { keys } = kind { keys } else { 1 };
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let mut random = 1_u64;
        for stream in (FIRST_STREAM..).take(count) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let key = u32::try_from(((random >> 32) * u64::from(keys)) >> 32).unwrap();
            let mut out = [0; 64];
            let mut notify = NotifyWriter::new(&mut out, FrameId { stream, frame: 1 }).unwrap();
            let is_other = matches!(kind, Kind::TwoMessages) && stream % 2 == 0;
            notify.message(if is_other { b"login" } else { b"check" }).unwrap();
            let value = match kind {
                Kind::Ipv4 { .. } | Kind::TwoMessages => {
                    Value::Ipv4(Ipv4Addr::from(0x0a00_0000 + key))
                }
                Kind::Ipv6 => Value::Ipv6(Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 6)),
                Kind::Text => Value::String(b"k-7f3a90c2e15b4d8866"),
            };
            notify.arg(b"ip", value).unwrap();
            let length = notify.finish();
            bytes.extend_from_slice(&out[..length]);
            ends.push(bytes.len());
        }
        Self { bytes, ends }
    }

    /// Sends all of them, a window at a time, and checks every answer.
    pub(crate) fn exchange(&self, stream: &mut TcpStream, window: usize) {
        self.send(stream, window, check_acks);
    }

    /// The same with an agent whose ACKs may come in any order.
    #[allow(dead_code, reason = "not every bench has such an agent")]
    pub(crate) fn exchange_in_any_order(&self, stream: &mut TcpStream, window: usize) {
        self.send(stream, window, |stream, notifies, notify_bytes| {
            let mut acks = vec![0; ACK_BYTES * (notifies.len() / notify_bytes)];
            stream.read_exact(&mut acks).unwrap();
            for ack in acks.chunks(ACK_BYTES) {
                assert!(ack.starts_with(ACK_HEAD) && ack[..ACK_BYTES - 1].ends_with(ACK_TAIL));
            }
        });
    }

    /// Sends `window` at a time, and reads as many ACKs of any length.
    #[allow(dead_code, reason = "not every bench has longer answers")]
    pub(crate) fn exchange_of_any_length(&self, stream: &mut TcpStream, window: usize) {
        let mut ack = Vec::new();
        self.send(stream, window, |stream, notifies, notify_bytes| {
            let mut stream = BufReader::new(stream);
            for _ in 0..notifies.len() / notify_bytes {
                let mut length = [0; 4];
                stream.read_exact(&mut length).unwrap();
                ack.resize(usize::try_from(u32::from_be_bytes(length)).unwrap(), 0);
                stream.read_exact(&mut ack).unwrap();
                assert_eq!(ack[0], ACK_HEAD[4], "an ACK");
            }
        });
    }

    fn send(
        &self,
        stream: &mut TcpStream,
        window: usize,
        mut check: impl FnMut(&mut TcpStream, &[u8], usize),
    ) {
        let mut sent = 0;
        for frames in self.ends.chunks(window) {
            let end = *frames.last().unwrap();
            let notifies = &self.bytes[sent..end];
            stream.write_all(notifies).unwrap();
            check(stream, notifies, notifies.len() / frames.len());
            sent = end;
        }
    }
}

/// Reads an ACK for each of the NOTIFYs, which must come in the same order.
fn check_acks(stream: &mut TcpStream, notifies: &[u8], notify_bytes: usize) {
    let mut buffer = vec![0; ACK_BYTES * 4096.min(notifies.len() / notify_bytes)];
    for notifies in notifies.chunks(notify_bytes * 4096) {
        let acks = &mut buffer[..ACK_BYTES * (notifies.len() / notify_bytes)];
        stream.read_exact(acks).unwrap();
        for (ack, notify) in acks.chunks(ACK_BYTES).zip(notifies.chunks(notify_bytes)) {
            let (rest, blocked) = ack.split_at(ACK_BYTES - 1);
            assert!(
                rest.starts_with(ACK_HEAD)
                    && rest[STREAM] == notify[STREAM]
                    && rest.ends_with(ACK_TAIL)
                    && matches!(blocked, [0x01 | 0x11]),
                "not the ACK of {notify:x?}: {ack:x?}"
            );
        }
    }
}
