//! For every input: frames that are written read back, frames that are cut wait, nothing panics.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    reason = "tests"
)]

mod generate;
mod roundtrip;

use std::time::Duration;

use arbitrary::Unstructured;
use generate::write_notify;
use proptest::prelude::*;
use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_hello};
use spop_codec::{
    AckWriter, Actions, BufferFull, Connection, DecodeError, Event, Frame, FrameId, HeaderList,
    HeaderListWriter, Limits, Notify, Scope, SetVar, Status, Value, VarName, decode,
    encode_agent_disconnect,
};

/// The names of variables.
const NAME: &str = "[A-Za-z0-9_.]{1,56}";

/// The headers of a whole list, read byte by byte as HAProxy does: `decode_varint` in its
/// include/haproxy/intops.h, and an end of two empty strings.
fn naive_headers(mut list: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    fn number(list: &mut &[u8]) -> Option<usize> {
        let mut next = || {
            let (first, rest) = list.split_first()?;
            *list = rest;
            Some(usize::from(*first))
        };
        let mut number = next()?;
        if number < 240 {
            return Some(number);
        }
        let mut shift = 4;
        loop {
            let byte = next()?;
            number += byte << shift;
            shift += 7;
            if byte < 128 {
                return Some(number);
            }
        }
    }
    let string = |list: &mut &[u8]| {
        let length = number(list)?;
        let (string, rest) = list.split_at_checked(length)?;
        *list = rest;
        Some(string.to_vec())
    };
    let mut headers = Vec::new();
    loop {
        let header = (string(&mut list)?, string(&mut list)?);
        match (header.0.is_empty(), header.1.is_empty()) {
            (true, true) => return list.is_empty().then_some(headers),
            (true, false) => return None,
            (false, _) => headers.push(header),
        }
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let of = |length| prop::collection::vec(any::<u8>(), length);
    prop_oneof![9 => of(0..20), 1 => of(230..2400)]
}

fn ids() -> impl Strategy<Value = FrameId> {
    let id = || prop_oneof![0_u64..300, any::<u64>()];
    (id(), id()).prop_map(|(stream, frame)| FrameId { stream, frame })
}

fn scopes() -> impl Strategy<Value = Scope> {
    prop::sample::select(vec![
        Scope::Process,
        Scope::Session,
        Scope::Transaction,
        Scope::Request,
        Scope::Response,
    ])
}

/// Bytes that values and messages are made of.
fn seeds() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..4000)
}

/// A NOTIFY of the messages that are made of these bytes, if there can be such a one, and how many
/// messages it has.
fn notify(id: FrameId, seed: &[u8]) -> Option<(Vec<u8>, usize)> {
    let messages = generate::messages(&mut Unstructured::new(seed)).unwrap();
    let mut out = vec![0; 1 << 20];
    let length = write_notify(&mut out, id, &messages).ok()?;
    out.truncate(length);
    Some((out, messages.len()))
}

fn hello_frame() -> Vec<u8> {
    let mut out = vec![0; 256];
    let fields = HelloFields { max_frame_size: 65_536, ..HelloFields::default() };
    let length = encode_hello(&mut out, &fields).unwrap();
    out.truncate(length);
    out
}

proptest! {
    #[test]
    fn what_is_written_reads_back_the_same(seed in seeds()) {
        roundtrip::any(&mut Unstructured::new(&seed)).unwrap();
    }

    #[test]
    fn a_notify_that_is_cut_waits_or_has_fewer_messages(id in ids(), seed in seeds()) {
        let Some((out, count)) = notify(id, &seed) else { return Ok(()) };
        for cut in 0..out.len().min(300) {
            prop_assert!(decode(&out[..cut], 1 << 20).unwrap().is_none());
        }
        // The same payload under a LENGTH that ends inside it is an error or a shorter list.
        for cut in 4..out.len().min(300) {
            let mut shorter = out[..cut].to_vec();
            shorter[..4].copy_from_slice(&u32::try_from(cut - 4).unwrap().to_be_bytes());
            if let Ok(Some((Frame::Notify(notify), _))) = decode(&shorter, 1 << 20) {
                prop_assert!(notify.messages().count() < count);
            }
        }
    }

    /// The same bytes or the same error, for any ids, limit and space.
    #[test]
    fn actions_encoded_before_are_those_written_one_by_one(
        id in ids(),
        actions in prop::collection::vec((scopes(), NAME, prop::option::of(any::<bool>())), 0..6),
        first in any::<bool>(),
        limit in 0_u32..300,
        space in 0_usize..300,
    ) {
        const FIRST: VarName<'_> = VarName::from_static("first");
        let mut prepared = Actions::new();
        let mut taken = Vec::new();
        for (scope, name, value) in &actions {
            let name = VarName::new(name).unwrap();
            let outcome = match value {
                Some(value) => prepared.set_var(*scope, name, (*value).into()),
                None => prepared.unset_var(*scope, name),
            };
            if outcome.is_ok() {
                taken.push((*scope, name, *value));
            }
        }
        let write = |out: &mut [u8], all_at_once: bool| -> Option<(usize, bool)> {
            let mut ack = AckWriter::new(out, id, limit).ok()?;
            if first {
                ack.set_var(Scope::Session, FIRST, 7_u32.into()).ok()?;
            }
            let fits = match all_at_once {
                true => ack.append(&prepared).is_ok(),
                false => taken.iter().all(|(scope, name, value)| match value {
                    Some(value) => ack.set_var(*scope, *name, (*value).into()).is_ok(),
                    None => ack.unset_var(*scope, *name).is_ok(),
                }),
            };
            Some((ack.finish(), fits))
        };
        let (mut one, mut other) = (vec![0; space], vec![0; space]);
        match (write(&mut one, true), write(&mut other, false)) {
            (Some((length, true)), Some(expected)) => {
                prop_assert_eq!((length, true), expected);
                prop_assert_eq!(&one[..length], &other[..length]);
                prop_assert!(length <= limit as usize + 4);
            }
            (Some((length, false)), Some((_, fits))) => {
                prop_assert!(!fits);
                let frame = decode(&one[..length], limit).unwrap();
                let Some((Frame::Ack(ack), _)) = frame else { panic!("{frame:?}") };
                prop_assert_eq!(ack.actions().count(), usize::from(first), "all of them or none");
            }
            (None, None) => {}
            outcomes => prop_assert!(false, "{outcomes:?}"),
        }
    }

    /// The actions that were written stay, for any ids, also if there is no space for more.
    #[test]
    fn an_ack_resumed_after_each_action_is_the_one_written_in_one_go(
        id in ids(),
        actions in prop::collection::vec((scopes(), NAME, any::<u32>()), 0..6),
        limit in 25_u32..300,
    ) {
        let (mut one, mut other) = ([0; 400], [0; 400]);
        let mut whole = AckWriter::new(&mut one, id, limit).unwrap();
        let mut written = 0;
        for (scope, name, value) in &actions {
            let name = VarName::new(name).unwrap();
            let mut resumed = AckWriter::resume(&mut other, id, limit, written).unwrap();
            let outcome = resumed.set_var(*scope, name, (*value).into());
            prop_assert_eq!(outcome, whole.set_var(*scope, name, (*value).into()));
            written = resumed.finish();
        }
        let length = whole.finish();
        if !actions.is_empty() {
            prop_assert_eq!(&one[..length], &other[..written]);
        }
    }

    /// It fits where that fits, and a string may come in pieces.
    #[test]
    fn a_variable_that_was_begun_earlier_is_the_one_written_in_one_go(
        scope in scopes(),
        name in NAME,
        number in any::<u64>(),
        text in prop::collection::vec(any::<u8>(), 0..2400),
        cut in any::<prop::sample::Index>(),
        limit in 0_u32..2600,
        space in 0_usize..2600,
    ) {
        let (id, name) = (FrameId { stream: 1, frame: 1 }, VarName::new(&name).unwrap());
        let (pieces, number) = (text.split_at(cut.index(text.len() + 1)), number >> (number % 64));
        let var = SetVar::new(scope, name);
        prop_assert_eq!(var.size(&number.into()), AckWriter::set_var_size(name, &number.into()));
        let small = u32::try_from(number % 256).unwrap();
        let values = [number.into(), small.into(), (small > 99).into()];
        let write = |out: &mut [u8], is_begun: bool| -> Option<(usize, bool, [bool; 3])> {
            let mut ack = AckWriter::new(out, id, limit).ok()?;
            let fit = match is_begun {
                true => {
                    let text = ack.set_text(&var, |it| {
                        it.push(pieces.0)?;
                        it.push(pieces.1)
                    });
                    (text.is_ok(), values.map(|value| ack.set(&var, value).is_ok()))
                }
                false => {
                    let text = ack.set_var(scope, name, Value::String(&text));
                    let set = |value| ack.set_var(scope, name, value).is_ok();
                    (text.is_ok(), values.map(set))
                }
            };
            Some((ack.finish(), fit.0, fit.1))
        };
        let (mut one, mut other) = (vec![0; space], vec![0; space]);
        let (begun, whole) = (write(&mut one, true), write(&mut other, false));
        prop_assert_eq!(begun, whole);
        let length = begun.map_or(0, |it| it.0);
        prop_assert_eq!(&one[..length], &other[..length]);
    }

    #[test]
    fn a_session_in_any_pieces_gives_the_same_events(
        requests in prop::collection::vec((ids(), seeds()), 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut session = hello_frame();
        let mut sent = Vec::new();
        for (id, seed) in &requests {
            // Another test has frames that are larger than agreed.
            let made = notify(*id, seed).filter(|(frame, _)| frame.len() <= 65_536);
            if let Some((frame, _)) = made {
                session.extend_from_slice(&frame);
                sent.push(*id);
            }
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(session.len())).collect();
        cuts.extend([0, session.len()]);
        cuts.sort_unstable();

        let mut connection = Connection::new(Limits::default(), Duration::ZERO);
        let (mut held, mut hellos, mut answered) = (Vec::new(), 0, Vec::new());
        for piece in cuts.windows(2) {
            held.extend_from_slice(&session[piece[0]..piece[1]]);
            while let Some((event, used)) = connection.receive(&held, Duration::ZERO).unwrap() {
                match event {
                    Event::Hello(_) => hellos += 1,
                    Event::Notify(notify) => answered.push(notify.id),
                    other => panic!("{other:?}"),
                }
                held.drain(..used);
            }
        }
        prop_assert_eq!((hellos, answered, held.len()), (1, sent, 0));
    }

    #[test]
    fn a_header_list_is_what_a_naive_reader_reads(
        headers in prop::collection::vec((bytes(), bytes()), 0..6),
        cut in 1_usize..40,
    ) {
        let mut buffer = vec![0; 16_384];
        let mut list = HeaderListWriter::new(&mut buffer);
        for (name, value) in &headers {
            list.header(name, value).unwrap();
        }
        let list = list.finish().unwrap().to_vec();
        // A header without a name is left out.
        let named: Vec<_> = headers.into_iter().filter(|(name, _)| !name.is_empty()).collect();
        let naive = naive_headers(&list);
        prop_assert_eq!(naive.as_ref(), Some(&named));
        let mut read = HeaderList::new(&list);
        for (name, value) in &named {
            prop_assert_eq!(read.next(), Some((&name[..], &value[..])));
        }
        prop_assert_eq!((read.next(), read.is_complete()), (None, Some(true)));

        // In a buffer that is too small, nothing is written in part.
        let mut small = vec![0; list.len().saturating_sub(cut)];
        let mut list = HeaderListWriter::new(&mut small);
        let fits: Vec<_> =
            named.iter().take_while(|(name, value)| list.header(name, value).is_ok()).collect();
        match list.finish() {
            Ok(short) => {
                let read = naive_headers(short).unwrap();
                prop_assert_eq!(read.iter().collect::<Vec<_>>(), fits);
                prop_assert!(read.len() < named.len());
            }
            Err(BufferFull) => {
                prop_assert!(cut <= 2 || fits.len() < named.len() || named.is_empty());
            }
        }
    }

    #[test]
    fn no_bytes_panic(
        input in prop::collection::vec(any::<u8>(), 0..200),
        frame_type in any::<u8>(),
        running: bool,
    ) {
        let _ = decode(&input, 16380);
        HeaderList::new(&input).for_each(drop);
        // As the rest of a frame, so that more than its LENGTH is read.
        let mut frame = u32::try_from(input.len() + 5).unwrap().to_be_bytes().to_vec();
        frame.extend_from_slice(&[frame_type, 0, 0, 0, 1]);
        frame.extend_from_slice(&input);
        if let Ok(Some((frame, _))) = decode(&frame, 16380) {
            let _ = format!("{frame:?}");
            match frame {
                Frame::Notify(notify) => {
                    notify.messages().for_each(|message| message.args().for_each(drop));
                }
                Frame::Ack(ack) => ack.actions().for_each(drop),
                _ => {}
            }
        }
        let mut connection = Connection::new(Limits::default(), Duration::ZERO);
        if running {
            connection.receive(&hello_frame(), Duration::ZERO).unwrap();
        }
        let _ = connection.receive(&frame, Duration::ZERO);
    }

    #[test]
    fn a_damaged_notify_is_read_or_refused(
        seed in seeds(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let id = FrameId { stream: 1, frame: 1 };
        let Some((mut out, _)) = notify(id, &seed) else { return Ok(()) };
        for (at, byte) in damage {
            let place = 4 + at.index(out.len() - 4);
            out[place] = byte;
        }
        if let Ok(Some((Frame::Notify(notify), used))) = decode(&out, 1 << 20) {
            prop_assert_eq!(used, out.len());
            for message in notify.messages() {
                prop_assert_eq!(message.args().len(), message.args().count());
            }
        }
    }
}

/// The AGENT-HELLO's frame size and pipelining, and the largest ACK behind the first ones, for an
/// offer and limits.
fn agreed(max_frame_size: u32, capabilities: &str, limits: Limits) -> (u32, bool, u32) {
    let (frame_size, pipelining, mut connection) =
        connection_of(max_frame_size, capabilities, limits);
    let _ = connection.max_ack_size(20);
    (frame_size, pipelining, connection.max_ack_size(1))
}

fn connection_of(
    max_frame_size: u32,
    capabilities: &str,
    limits: Limits,
) -> (u32, bool, Connection) {
    let mut out = [0; 256];
    let fields = HelloFields { max_frame_size, capabilities, ..HelloFields::default() };
    let length = encode_hello(&mut out, &fields).unwrap();
    let mut connection = Connection::new(limits, Duration::ZERO);
    let Ok(Some((Event::Hello(welcome), _))) = connection.receive(&out[..length], Duration::ZERO)
    else {
        panic!("no HELLO")
    };
    let mut answer = [0; 96];
    let length = welcome.encode(&mut answer).unwrap();
    let Ok(Some((Frame::AgentHello(hello), _))) = decode(&answer[..length], 256) else {
        panic!("no AGENT-HELLO")
    };
    assert_eq!(hello.version, b"2.0");
    assert!(!hello.capabilities.asynchronous() && hello.capabilities.fragmentation());
    (hello.max_frame_size, hello.capabilities.pipelining(), connection)
}

/// HAProxy may send 20 NOTIFYs before it has read that it may send one.
#[test]
fn the_first_acks_fit_haproxys_buffer_together_although_there_is_no_pipelining() {
    let limits = |max_ack_size| {
        let mut limits = Limits::default();
        limits.max_ack_size = max_ack_size;
        limits
    };
    for (offered, capabilities, max_ack_size, early) in [
        (4092, "pipelining", 815, 200),
        (8188, "pipelining", 815, 405),
        (16380, "pipelining", 2000, 815),
        (1020, "pipelining", 815, 110),
        (4092, "pipelining,async", 815, 815),
        (4092, "", 815, 815),
        (16380, "pipelining", 815, 815),
        (4092, "pipelining", 60, 60),
    ] {
        let (_, _, mut connection) = connection_of(offered, capabilities, limits(max_ack_size));
        let sizes = [1, 17, 0, 2, 1].map(|notifies| connection.max_ack_size(notifies));
        assert_eq!(sizes, [early, early, early, early, max_ack_size], "{offered} {capabilities}");
        // At once.
        let (_, _, mut connection) = connection_of(offered, capabilities, limits(max_ack_size));
        let sizes = [30, 1].map(|notifies| connection.max_ack_size(notifies));
        assert_eq!(sizes, [early, max_ack_size], "{offered} {capabilities}");
        if early > 110 && max_ack_size > early {
            assert!((19..=20).contains(&(offered / (early + 4))), "{offered} {early}");
        }
    }
}

#[test]
fn the_smaller_frame_size_holds_and_pipelining_is_offered_where_20_acks_fit() {
    let limits = |max_frame_size, max_ack_size| {
        let mut limits = Limits::default();
        limits.max_frame_size = max_frame_size;
        limits.max_ack_size = max_ack_size;
        limits
    };
    assert_eq!(agreed(16380, "pipelining", Limits::default()), (16380, true, 815));
    assert_eq!(agreed(16380, "pipelining,async", Limits::default()), (16380, true, 815));
    assert_eq!(agreed(16380, "", Limits::default()), (16380, false, 815));
    assert_eq!(agreed(16380, "pipelining", limits(4096, 100)), (4096, true, 100));
    assert_eq!(
        agreed(16380, "pipelining", limits(1 << 20, 816)),
        (16380, false, 816),
        "20 of them fill the buffer"
    );
    assert_eq!(
        agreed(16380, "pipelining,async", limits(1 << 20, 816)),
        (16380, true, 816),
        "HAProxy up to 3.0 has no such buffer"
    );
    assert_eq!(
        agreed(16380, "pipelining", limits(1 << 20, 20_000)),
        (16380, false, 16379),
        "and one of 16380 does"
    );
    assert_eq!(
        agreed(4092, "pipelining", limits(16380, 201)),
        (4092, false, 201),
        "HAProxy's buffer is smaller, or may be"
    );
    assert_eq!(agreed(4092, "pipelining", limits(16380, 200)), (4092, true, 200));
    assert_eq!(agreed(4092, "pipelining,async", limits(16380, 815)), (4092, true, 815));
    assert_eq!(
        agreed(u32::MAX, "pipelining", limits(1 << 20, 815)),
        (1 << 20, true, 815),
        "the agent's own limit"
    );
    assert_eq!(
        agreed(u32::MAX, "pipelining", Limits::default()),
        (1 << 20, true, 815),
        "which is 1 MiB unless it is set"
    );
    assert_eq!(
        agreed(65532, "pipelining", limits(16380, 2000)),
        (16380, true, 2000),
        "smaller frames do not make HAProxy's buffer smaller than it offered"
    );
}

#[test]
fn a_connection_waits_as_long_as_its_state_says() {
    let second = Duration::from_secs(1);
    let hello = hello_frame();
    let notify = b"\0\0\0\x0a\x03\0\0\0\x01\x01\x01\x01m\0";
    let mut connection = Connection::new(Limits::default(), 5 * second);
    assert_eq!(connection.deadline(), Some(15 * second), "the HELLO");
    assert!(connection.receive(&hello[..50], 7 * second).unwrap().is_none());
    assert_eq!(connection.deadline(), Some(15 * second), "half of it is not enough");
    connection.receive(&hello, 8 * second).unwrap();
    assert!(connection.is_running());
    assert_eq!(connection.deadline(), None, "no idle timeout");
    assert!(connection.receive(&notify[..3], 20 * second).unwrap().is_none());
    assert_eq!(connection.deadline(), Some(30 * second), "a frame has begun");
    assert!(connection.receive(&notify[..4], 29 * second).unwrap().is_none());
    assert_eq!(connection.deadline(), Some(30 * second), "another byte of it");
    connection.receive(notify, 30 * second).unwrap();
    assert_eq!(connection.deadline(), None, "it is whole");
    assert!(connection.receive(&notify[..2], 31 * second).unwrap().is_none());
    assert_eq!(connection.deadline(), Some(41 * second), "the next frame has begun");
}

#[test]
fn a_health_check_is_answered_and_nothing_more() {
    let mut out = [0; 256];
    let fields =
        HelloFields { capabilities: "", healthcheck: Some(true), ..HelloFields::default() };
    let length = encode_hello(&mut out, &fields).unwrap();
    let mut connection = Connection::new(Limits::default(), Duration::ZERO);
    let Ok(Some((Event::Hello(welcome), _))) =
        connection.receive(&out[..length], Duration::from_secs(3))
    else {
        panic!("no HELLO")
    };
    assert!(welcome.hello.healthcheck && !welcome.pipelining());
    assert!(connection.is_healthcheck() && !connection.is_running());
    assert_eq!(connection.deadline(), Some(Duration::from_secs(4)));
    assert!(matches!(
        connection.receive(&hello_frame(), Duration::ZERO),
        Ok(Some((Event::Skipped, _)))
    ));
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let mut out = [0; 1024];
    let message = "ä".repeat(200);
    let length = encode_agent_disconnect(&mut out, Status::INVALID, &message).unwrap();
    let Ok(Some((Frame::AgentDisconnect(disconnect), _))) = decode(&out[..length], 1024) else {
        panic!("nothing")
    };
    assert_eq!(disconnect.message, "ä".repeat(127).as_bytes());
}

#[test]
fn names_that_haproxy_drops_can_not_be_written() {
    for name in ["a", "A.b_9", &"x".repeat(56)] {
        assert_eq!(VarName::new(name).unwrap().as_str(), name);
    }
    for name in ["", "a-b", "a b", "ä", "a\0", &"x".repeat(57)] {
        assert!(VarName::new(name).is_err(), "{name}");
    }
    for scope in ["proc", "sess", "txn", "req", "res"] {
        assert_eq!(scope.parse::<Scope>().unwrap().as_str(), scope);
    }
    assert!("TXN".parse::<Scope>().is_err());
}

#[test]
fn more_than_255_args_are_refused() {
    let mut out = vec![0; 4096];
    let mut notify = NotifyWriter::new(&mut out, FrameId::default()).unwrap();
    assert_eq!(notify.arg(b"", Value::Null), Err(BufferFull), "there is no message yet");
    notify.message(b"m").unwrap();
    for _ in 0..255 {
        notify.arg(b"", Value::Null).unwrap();
    }
    assert_eq!(notify.arg(b"", Value::Null), Err(BufferFull));
    let length = notify.finish();
    let Ok(Some((Frame::Notify(notify), _))) = decode(&out[..length], 4096) else {
        panic!("no NOTIFY")
    };
    assert_eq!(notify.messages().next().unwrap().args().count(), 255);
}

#[test]
fn more_than_64_messages_are_refused_in_both_directions() {
    let (mut out, id) = (vec![0; 4096], FrameId { stream: 1, frame: 1 });
    let mut writer = NotifyWriter::new(&mut out, id).unwrap();
    for _ in 0..64 {
        writer.message(b"m").unwrap();
    }
    assert_eq!(writer.message(b"m"), Err(BufferFull));
    let length = writer.finish();
    let Ok(Some((Frame::Notify(notify), _))) = decode(&out[..length], 4096) else {
        panic!("64 are read")
    };
    assert_eq!((notify.messages().len(), notify.messages().count()), (64, 64));
    let kept = Notify::from_kept(id, 64, notify.bytes());
    assert_eq!(kept.messages().count(), 64);
    // One more: LENGTH is in the first four bytes.
    out.truncate(length);
    out.extend_from_slice(b"\x01m\x00");
    let longer = u32::try_from(out.len() - 4).unwrap();
    out[..4].copy_from_slice(&longer.to_be_bytes());
    assert_eq!(decode(&out, 4096).unwrap_err(), DecodeError::TooManyMessages);
    // The copy is not checked again, so other bytes are no reason to panic.
    assert_eq!(Notify::from_kept(id, 3, b"\x01m\x00\x05m").messages().count(), 1);
}
