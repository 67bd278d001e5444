//! For every input: frames that are written read back, frames that are cut wait, nothing panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

use std::time::Duration;

use proptest::prelude::*;
use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_hello};
use spop_codec::{
    AckWriter, Action, Actions, BufferFull, Connection, DecodeError, Event, Frame, FrameId,
    HeaderList, HeaderListWriter, Limits, Notify, Scope, Status, Value, VarName, decode,
    encode_agent_disconnect, encode_agent_hello,
};

/// The names of variables.
const NAME: &str = "[A-Za-z0-9_.]{1,56}";

/// A value that owns its bytes.
#[derive(Clone, Debug)]
enum Owned {
    Plain(Value<'static>),
    String(Vec<u8>),
    Binary(Vec<u8>),
}

impl Owned {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Plain(value) => *value,
            Self::String(bytes) => Value::String(bytes),
            Self::Binary(bytes) => Value::Binary(bytes),
        }
    }
}

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

fn values() -> impl Strategy<Value = Owned> {
    prop_oneof![
        Just(Owned::Plain(Value::Null)),
        any::<bool>().prop_map(|value| Owned::Plain(value.into())),
        any::<i32>().prop_map(|value| Owned::Plain(value.into())),
        any::<u32>().prop_map(|value| Owned::Plain(value.into())),
        any::<i64>().prop_map(|value| Owned::Plain(value.into())),
        any::<u64>().prop_map(|value| Owned::Plain(value.into())),
        (any::<u64>(), 0_u32..64).prop_map(|(value, shift)| Owned::Plain((value >> shift).into())),
        any::<[u8; 4]>().prop_map(|ip| Owned::Plain(Value::Ipv4(ip.into()))),
        any::<[u8; 16]>().prop_map(|ip| Owned::Plain(Value::Ipv6(ip.into()))),
        bytes().prop_map(Owned::String),
        bytes().prop_map(Owned::Binary),
    ]
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

type Messages = Vec<(Vec<u8>, Vec<(Vec<u8>, Owned)>)>;

fn messages() -> impl Strategy<Value = Messages> {
    let args = prop::collection::vec((bytes(), values()), 0..8);
    prop::collection::vec((bytes(), args), 0..4)
}

fn write_notify(out: &mut [u8], id: FrameId, messages: &Messages) -> Result<usize, BufferFull> {
    let mut writer = NotifyWriter::new(out, id)?;
    for (name, args) in messages {
        writer.message(name)?;
        for (name, value) in args {
            writer.arg(name, value.value())?;
        }
    }
    Ok(writer.finish())
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
    fn a_notify_reads_back_in_order_with_empty_and_repeated_names(
        id in ids(),
        messages in messages(),
    ) {
        let mut out = vec![0; 200_000];
        let length = write_notify(&mut out, id, &messages).unwrap();
        let (frame, used) = decode(&out, 1 << 20).unwrap().unwrap();
        prop_assert_eq!(used, length);
        let Frame::Notify(notify) = frame else { panic!("{frame:?}") };
        prop_assert_eq!(notify.id, id);
        prop_assert_eq!(notify.messages().count(), messages.len());
        for (message, (name, args)) in notify.messages().zip(&messages) {
            prop_assert_eq!(message.name, name);
            prop_assert_eq!(message.args().len(), args.len());
            for (arg, (name, value)) in message.args().zip(args) {
                prop_assert_eq!((arg.name, arg.value), (&name[..], value.value()));
            }
            for (name, _) in args {
                let first = args.iter().find(|(other, _)| other == name);
                let first = first.map(|(_, value)| value.value());
                prop_assert_eq!(message.arg(name), first);
            }
        }
        for cut in 0..length.min(300) {
            prop_assert!(decode(&out[..cut], 1 << 20).unwrap().is_none());
        }
        // The same payload under a LENGTH that ends inside it is an error or a shorter list.
        for cut in 4..length.min(300) {
            let mut shorter = out[..cut].to_vec();
            shorter[..4].copy_from_slice(&u32::try_from(cut - 4).unwrap().to_be_bytes());
            if let Ok(Some((Frame::Notify(notify), _))) = decode(&shorter, 1 << 20) {
                prop_assert!(notify.messages().count() < messages.len());
            }
        }
    }

    #[test]
    fn an_ack_reads_back_and_never_passes_its_limit(
        id in ids(),
        actions in prop::collection::vec((scopes(), NAME, prop::option::of(values())), 0..12),
        limit in 0_u32..3_000,
        space in 0_usize..3_000,
    ) {
        let mut out = vec![0xee; space];
        let mut bytes = 0;
        let written = match AckWriter::new(&mut out, id, limit) {
            Err(BufferFull) => None,
            Ok(mut ack) => {
                let mut taken = Vec::new();
                for (scope, name, value) in &actions {
                    let name = VarName::new(name).unwrap();
                    let (outcome, size) = match value {
                        Some(value) => {
                            let size = AckWriter::set_var_size(name, &value.value());
                            (ack.set_var(*scope, name, value.value()), size)
                        }
                        None => (ack.unset_var(*scope, name), AckWriter::unset_var_size(name)),
                    };
                    if outcome.is_ok() {
                        taken.push((*scope, name, value));
                        bytes += size;
                    }
                }
                Some((ack.finish(), taken))
            }
        };
        let Some((length, taken)) = written else {
            prop_assert!(limit < 25 || space < AckWriter::HEADER_MAX);
            return Ok(());
        };
        prop_assert!(length <= space && length <= limit as usize + 4);
        let mut empty = [0; AckWriter::HEADER_MAX];
        let header = AckWriter::new(&mut empty, id, u32::MAX).unwrap().finish();
        prop_assert_eq!(length, header + bytes, "the sizes that the functions say");
        prop_assert!(length - 4 <= AckWriter::max_length(bytes));
        let (frame, used) = decode(&out[..length], limit).unwrap().unwrap();
        prop_assert_eq!(used, length);
        let Frame::Ack(ack) = frame else { panic!("{frame:?}") };
        prop_assert_eq!(ack.id, id);
        prop_assert_eq!(ack.actions().count(), taken.len());
        for (action, (scope, name, value)) in ack.actions().zip(taken) {
            let name = name.as_str().as_bytes();
            let expected = match value {
                Some(value) => Action::SetVar { scope, name, value: value.value() },
                None => Action::UnsetVar { scope, name },
            };
            prop_assert_eq!(action, expected);
        }
        if space >= 3_000 - 100 && limit >= 2_900 && length < 500 {
            prop_assert_eq!(ack.actions().count(), actions.len(), "all of them fit");
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

    /// What was written stays, for any ids, also if there is no space for more.
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

    #[test]
    fn frames_in_a_buffer_too_small_are_refused(messages in messages(), space in 0_usize..200) {
        let mut out = vec![0; 200_000];
        let id = FrameId { stream: 1, frame: 1 };
        let whole = write_notify(&mut out, id, &messages).unwrap();
        prop_assert_eq!(write_notify(&mut out[..space], id, &messages).is_ok(), space >= whole);
        let whole = encode_agent_hello(&mut out, 16380, "pipelining").unwrap();
        let hello = encode_agent_hello(&mut out[..space], 16380, "pipelining");
        prop_assert_eq!(hello.is_ok(), space >= whole);
        let whole = encode_agent_disconnect(&mut out, Status::NORMAL, "normal").unwrap();
        let disconnect = encode_agent_disconnect(&mut out[..space], Status::NORMAL, "normal");
        prop_assert_eq!(disconnect.is_ok(), space >= whole);
    }

    #[test]
    fn a_session_in_any_pieces_gives_the_same_events(
        requests in prop::collection::vec((ids(), messages()), 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut session = hello_frame();
        let mut out = vec![0; 200_000];
        let mut sent = Vec::new();
        for (id, messages) in &requests {
            let length = write_notify(&mut out, *id, messages).unwrap();
            // Another test has frames that are larger than agreed.
            if length <= 65_536 {
                session.extend_from_slice(&out[..length]);
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
        messages in messages(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut out = vec![0; 200_000];
        let length = write_notify(&mut out, FrameId { stream: 1, frame: 1 }, &messages).unwrap();
        for (at, byte) in damage {
            out[4 + at.index(length - 4)] = byte;
        }
        if let Ok(Some((Frame::Notify(notify), used))) = decode(&out[..length], 1 << 20) {
            prop_assert_eq!(used, length);
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
        (16380, true, 815),
        "which is 16380"
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
