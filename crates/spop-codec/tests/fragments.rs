//! Payloads in pieces, as HAProxy up to 3.0 sends them when a message is larger than a frame.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use proptest::prelude::*;
use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_hello};
use spop_codec::{Connection, Event, FrameId, Limits, Place, ProtocolError, Status, Value};

const FIN: u32 = 1;
const ABORT: u32 = 2;
const NOTIFY: u8 = 3;
const UNSET: u8 = 0;

/// A frame with ids of one byte each.
fn frame(kind: u8, flags: u32, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(7 + payload.len()).unwrap();
    [&length.to_be_bytes()[..], &[kind], &flags.to_be_bytes(), &[stream, 1], payload].concat()
}

/// A connection past its HELLO.
fn connection(limits: Limits, max_frame_size: u32) -> Connection {
    let mut connection = Connection::new(limits, Duration::ZERO);
    let mut out = [0; 256];
    let fields =
        HelloFields { max_frame_size, capabilities: "pipelining,async", ..HelloFields::default() };
    let length = encode_hello(&mut out, &fields).unwrap();
    let Some((Event::Hello(welcome), used)) =
        connection.receive(&out[..length], Duration::ZERO).unwrap()
    else {
        panic!()
    };
    assert_eq!(used, length);
    let mut answer = [0; 96];
    let length = welcome.encode(&mut answer).unwrap();
    let offered = String::from_utf8_lossy(&answer[..length]).contains("fragmentation");
    assert_eq!(offered, limits.max_payload_size > 0);
    connection
}

/// Receives frames, and keeps pieces as an agent does. Returns the ids and first messages of the
/// NOTIFYs, or the error.
fn converse(
    connection: &mut Connection,
    frames: &[Vec<u8>],
) -> Result<Vec<(u64, Vec<u8>)>, ProtocolError> {
    let mut kept = Vec::new();
    let mut notifies = Vec::new();
    for frame in frames {
        let (event, used) = connection.receive(frame, Duration::ZERO)?.unwrap();
        assert_eq!(used, frame.len());
        match event {
            Event::Notify(notify) => notifies.push((notify.id.stream, message(&notify))),
            Event::Fragment(fragment) => {
                if fragment.place == Place::First {
                    kept.clear();
                }
                kept.extend_from_slice(fragment.bytes);
                match fragment.place {
                    Place::Last => {
                        let notify = connection.reassembled(fragment.id, &kept)?;
                        notifies.push((notify.id.stream, message(&notify)));
                    }
                    Place::Aborted => kept.clear(),
                    _ => {}
                }
            }
            Event::Skipped => {}
            other => panic!("{other:?}"),
        }
    }
    Ok(notifies)
}

fn message(notify: &spop_codec::Notify<'_>) -> Vec<u8> {
    notify.messages().next().map(|message| message.arg(b"blob").unwrap()).map_or(vec![], |value| {
        match value {
            Value::Binary(bytes) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    })
}

/// The payload of a NOTIFY with one binary arg of this many bytes.
fn payload(bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes + 100];
    let mut writer = NotifyWriter::new(&mut out, FrameId { stream: 1, frame: 1 }).unwrap();
    writer.message(b"check").unwrap();
    writer.arg(b"blob", Value::Binary(&vec![7; bytes])).unwrap();
    let length = writer.finish();
    out[11..length].to_vec()
}

/// Cuts a payload into frames of one NOTIFY.
fn pieces(stream: u8, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
    let count = payload.len().div_ceil(size);
    payload
        .chunks(size)
        .enumerate()
        .map(|(number, piece)| {
            let flags = if number + 1 == count { FIN } else { 0 };
            frame(if number == 0 { NOTIFY } else { UNSET }, flags, stream, piece)
        })
        .collect()
}

fn ended(frames: &[Vec<u8>]) -> Status {
    let mut connection = connection(Limits::default(), 16380);
    let status = converse(&mut connection, frames).unwrap_err().status();
    // Everything that comes then is skipped.
    assert!(matches!(
        connection.receive(&pieces(1, &payload(9), 99)[0], Duration::ZERO),
        Ok(Some((Event::Skipped, _)))
    ));
    status
}

proptest! {
    #[test]
    fn pieces_of_any_size_make_the_notify(
        bytes in 0_usize..5_000,
        size in 90_usize..2_000,
        stream in 0_u8..200,
    ) {
        let mut connection = connection(Limits::default(), 16380);
        let frames = pieces(stream, &payload(bytes), size);
        let notifies = converse(&mut connection, &frames).unwrap();
        prop_assert_eq!(notifies, [(u64::from(stream), vec![7; bytes])]);
        // And the connection continues normally.
        let next = frame(NOTIFY, FIN, 9, &payload(3));
        prop_assert_eq!(converse(&mut connection, &[next]).unwrap(), [(9, vec![7; 3])]);
    }
}

#[test]
fn a_payload_that_haproxy_gives_up_is_dropped() {
    let mut connection = connection(Limits::default(), 16380);
    let mut frames = pieces(1, &payload(500), 100);
    frames.truncate(3);
    frames.push(frame(UNSET, FIN | ABORT, 1, &[]));
    frames.push(frame(NOTIFY, FIN, 3, &payload(5)));
    assert_eq!(converse(&mut connection, &frames).unwrap(), [(3, vec![7; 5])]);
}

#[test]
fn what_comes_between_pieces_ends_the_connection() {
    let begun = || pieces(1, &payload(500), 100)[0].clone();
    assert_eq!(ended(&[begun(), frame(NOTIFY, FIN, 3, &payload(5))]), Status::INTERLACED);
    assert_eq!(ended(&[begun(), begun()]), Status::INTERLACED);
    assert_eq!(ended(&[begun(), frame(UNSET, FIN, 3, &[7])]), Status::INTERLACED);
    assert_eq!(ended(&[frame(UNSET, FIN, 3, &[7])]), Status::FRAGMENTATION);
    assert_eq!(ended(&[frame(UNSET, 0, 3, &[7])]), Status::FRAGMENTATION);
    // Frames of unknown types may come anywhere.
    let mut connection = connection(Limits::default(), 16380);
    let mut frames = pieces(1, &payload(500), 400);
    frames.insert(1, frame(50, FIN, 0, &[1, 2, 3]));
    assert_eq!(converse(&mut connection, &frames).unwrap(), [(1, vec![7; 500])]);
}

#[test]
fn pieces_are_bounded_in_number_and_size() {
    let most = pieces(1, &payload(6_300), 100);
    assert_eq!(most.len(), 64);
    assert!(converse(&mut connection(Limits::default(), 16380), &most).is_ok());
    assert_eq!(ended(&pieces(1, &payload(6_400), 100)), Status::TOO_BIG);

    let messages = |count: usize| pieces(1, &b"\x01m\x01\x04blob\x09\x00".repeat(count), 100);
    assert!(converse(&mut connection(Limits::default(), 16380), &messages(64)).is_ok());
    assert_eq!(ended(&messages(65)), Status::TOO_BIG);

    let limits = payloads_up_to(1_000);
    let ended = |bytes: usize| {
        converse(&mut connection(limits, 16380), &pieces(1, &payload(bytes), 300)).err()
    };
    assert_eq!(ended(900), None);
    assert_eq!(ended(1_000), Some(ProtocolError::PayloadTooBig { max: 1_000 }));
}

#[test]
fn a_payload_that_is_no_notify_ends_the_connection() {
    let mut cut = payload(500);
    cut.truncate(400);
    assert_eq!(ended(&pieces(1, &cut, 100)), Status::INVALID);
}

#[test]
fn without_reassembly_a_piece_ends_the_connection() {
    let limits = payloads_up_to(0);
    let mut connection = connection(limits, 16380);
    assert_eq!(
        converse(&mut connection, &pieces(1, &payload(500), 100)),
        Err(ProtocolError::Fragment)
    );
}

#[test]
fn a_payload_must_be_complete_in_time() {
    let second = Duration::from_secs(1);
    let mut connection = connection(Limits::default(), 16380);
    let frames = pieces(1, &payload(500), 100);
    assert_eq!(connection.deadline(), None);
    connection.receive(&frames[0], 2 * second).unwrap();
    assert_eq!(connection.deadline(), Some(12 * second));
    connection.receive(&frames[1], 3 * second).unwrap();
    connection.receive(&frame(50, FIN, 0, &[]), 4 * second).unwrap();
    connection.receive(&frames[2][..3], 5 * second).unwrap();
    assert_eq!(connection.deadline(), Some(12 * second), "counted from the first piece");
    connection.receive(&[], 5 * second).unwrap();
    assert_eq!(connection.deadline(), Some(12 * second), "also while nothing of a piece is there");
    for frame in &frames[2..] {
        connection.receive(frame, 6 * second).unwrap();
    }
    assert_eq!(connection.deadline(), None);
}

#[test]
fn a_payload_has_no_longer_than_the_frame_that_begins_it() {
    let second = Duration::from_secs(1);
    let mut connection = connection(Limits::default(), 16380);
    let frames = pieces(1, &payload(500), 100);
    connection.receive(&frames[0][..9], second).unwrap();
    connection.receive(&frames[0], 4 * second).unwrap();
    assert_eq!(connection.deadline(), Some(11 * second), "counted from the first byte");
}

#[test]
fn a_piece_that_is_refused_sets_no_deadline() {
    let limits = payloads_up_to(99);
    let mut connection = connection(limits, 16380);
    let frames = pieces(1, &payload(500), 100);
    let error = connection.receive(&frames[0], Duration::from_secs(1)).unwrap_err();
    assert_eq!(error, ProtocolError::PayloadTooBig { max: 99 });
    assert_eq!(connection.deadline(), None, "the connection ends, and waits for nothing");
}

fn payloads_up_to(max_payload_size: u32) -> Limits {
    let mut limits = Limits::default();
    limits.max_payload_size = max_payload_size;
    limits
}
