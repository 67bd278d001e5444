//! NOTIFYs as HAProxy's usual configuration sends them, and answers that are checked.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use spop_codec::haproxy::NotifyWriter;
use spop_codec::{FrameId, Value};

/// NOTIFYs, one after another, and where each ends.
pub(crate) struct Notifies {
    pub bytes: Vec<u8>,
    pub ends: Vec<usize>,
}

impl Notifies {
    /// One message with one IPv4 arg each, of `keys` addresses in random order.
    pub(crate) fn new(count: usize, keys: u32) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let mut random = 1_u64;
        for _ in 0..count {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let key = u32::try_from(((random >> 32) * u64::from(keys)) >> 32).unwrap();
            let mut out = [0; 64];
            // All ACKs have one length, so that a reader knows how many bytes to wait for.
            let mut notify = NotifyWriter::new(&mut out, FrameId { stream: 1, frame: 1 }).unwrap();
            notify.message(b"check").unwrap();
            notify.arg(b"ip", Value::Ipv4(Ipv4Addr::from(0x0a00_0000 + key))).unwrap();
            let length = notify.finish();
            bytes.extend_from_slice(&out[..length]);
            ends.push(bytes.len());
        }
        Self { bytes, ends }
    }

    /// Sends all of them, a window at a time, and checks every answer.
    pub(crate) fn exchange(&self, stream: &mut TcpStream, window: usize) {
        let mut sent = 0;
        for frames in self.ends.chunks(window) {
            let end = *frames.last().unwrap();
            stream.write_all(&self.bytes[sent..end]).unwrap();
            sent = end;
            check_acks(stream, frames.len());
        }
    }
}

fn check_acks(stream: &mut TcpStream, count: usize) {
    const ACK: &[u8] = b"\0\0\0\x13\x67\0\0\0\x01\x01\x01\x01\x03\x02\x07blocked";
    let mut buffer = vec![0; (ACK.len() + 1) * count.min(4096)];
    let mut left = count;
    while left > 0 {
        let now = left.min(4096);
        let acks = &mut buffer[..(ACK.len() + 1) * now];
        stream.read_exact(acks).unwrap();
        for ack in acks.chunks(ACK.len() + 1) {
            assert!(
                ack.starts_with(ACK) && matches!(ack[ACK.len()], 0x01 | 0x11),
                "not an ACK: {ack:x?}"
            );
        }
        left -= now;
    }
}
