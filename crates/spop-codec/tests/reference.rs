//! The codec against a second decoder, on well-formed and damaged frames of all types.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    missing_docs,
    unreachable_pub,
    reason = "tests"
)]

#[path = "reference/compare.rs"]
mod compare;
#[path = "reference/mod.rs"]
mod reference;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use reference::{Data, Frame, Pair, Payload};
use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_disconnect, encode_hello};
use spop_codec::{
    AckWriter, FrameId, Scope, Status, Value, VarName, encode_agent_disconnect, encode_agent_hello,
};

const MAX_FRAME_SIZE: u32 = 16_380;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    // Lengths of one, two and three bytes.
    let of = |length| vec(any::<u8>(), length);
    prop_oneof![12 => of(0..20), 2 => of(235..250), 1 => of(2280..2300)]
}

/// Numbers at the bounds of each length, and any others.
fn number() -> impl Strategy<Value = u64> {
    let ends = [0, 239, 240, 2287, 2288, 264_431, 264_432, 1 << 31, 1 << 32, 1 << 63, u64::MAX];
    prop_oneof![
        (select(ends.to_vec()), -2..3_i64).prop_map(|(end, by)| end.wrapping_add_signed(by)),
        any::<u64>()
    ]
}

fn data() -> impl Strategy<Value = Data> {
    prop_oneof![
        Just(Data::Nothing),
        any::<bool>().prop_map(Data::Truth),
        any::<i32>().prop_map(|number| Data::Number(2, number.into())),
        any::<u32>().prop_map(|number| Data::Number(3, number.into())),
        number().prop_map(|number| Data::Number(4, number.cast_signed().into())),
        number().prop_map(|number| Data::Number(5, number.into())),
        // Beyond 32 bits.
        (2..4_u8, number()).prop_map(|(kind, number)| Data::Number(kind, number.into())),
        any::<[u8; 4]>().prop_map(|ip| Data::Bytes(6, ip.to_vec())),
        any::<[u8; 16]>().prop_map(|ip| Data::Bytes(7, ip.to_vec())),
        (8..10_u8, bytes()).prop_map(|(kind, bytes)| Data::Bytes(kind, bytes)),
    ]
}

/// The keys of all frames, and an unknown one.
const KEYS: [&str; 9] = [
    "supported-versions",
    "max-frame-size",
    "capabilities",
    "engine-id",
    "healthcheck",
    "status-code",
    "message",
    "version",
    "else",
];

/// Data that the codec can write: its integers have no more bits than their type.
fn valid_data() -> impl Strategy<Value = Data> {
    data().prop_filter("32 bits", |data| value(data).is_some())
}

/// Known keys, with values that may be right, and unknown ones.
fn hello_pair() -> impl Strategy<Value = Pair> {
    let text = |keys: &'static [&'static str], texts: &'static [&'static str]| {
        (select(keys), select(texts))
            .prop_map(|(key, text)| (key.into(), Data::Bytes(8, text.into())))
    };
    let versions = &[
        "2.0",
        "1.0",
        "2",
        "2.x",
        " 02.5 ,9",
        "1.0,2.1",
        "",
        ",",
        "\u{a0}2.0",
        "2.0.1",
        "\x0b2.0",
    ];
    prop_oneof![
        6 => text(&["supported-versions", "version"], versions),
        6 => (255..300_i128, 2..6_u8)
            .prop_map(|(size, kind)| (b"max-frame-size".to_vec(), Data::Number(kind, size))),
        1 => number().prop_map(|size| (b"max-frame-size".to_vec(), Data::Number(5, size.into()))),
        6 => text(&["capabilities"], &["", "pipelining", "async, pipelining"]),
        2 => text(&["engine-id"], &["e"]),
        2 => any::<bool>().prop_map(|truth| (b"healthcheck".to_vec(), Data::Truth(truth))),
        2 => number().prop_map(|status| (b"status-code".to_vec(), Data::Number(5, status.into()))),
        2 => text(&["message"], &["normal", ""]),
        1 => (select(KEYS.to_vec()), data()).prop_map(|(key, data)| (key.into(), data)),
    ]
}

fn pairs() -> impl Strategy<Value = Vec<Pair>> {
    vec(hello_pair(), 0..8)
}

/// A complete HELLO of either side among other pairs, in any order.
fn complete_hello() -> impl Strategy<Value = Vec<Pair>> {
    let known = |version: &str| {
        vec![
            (version.into(), Data::Bytes(8, b"2.0".to_vec())),
            (b"max-frame-size".to_vec(), Data::Number(3, 16_380)),
            (b"capabilities".to_vec(), Data::Bytes(8, b"pipelining".to_vec())),
        ]
    };
    (select(&["supported-versions", "version"][..]), vec(hello_pair(), 0..3))
        .prop_map(move |(version, more)| {
            known(version).into_iter().chain(more).collect::<Vec<_>>()
        })
        .prop_shuffle()
}

fn frame() -> impl Strategy<Value = Frame> {
    let messages = vec((bytes(), vec((bytes(), data()), 0..5)), 0..4);
    let actions = vec((0..6_u8, bytes(), option::of(data())), 0..6);
    let payload = prop_oneof![
        3 => messages.prop_map(|messages| (3, Payload::Messages(messages))),
        3 => actions.prop_map(|actions| (103, Payload::Actions(actions))),
        3 => (select(&[1, 101_u8][..]), complete_hello())
            .prop_map(|(kind, pairs)| (kind, Payload::Pairs(pairs))),
        2 => (select(&[1, 2, 101, 102_u8][..]), pairs())
            .prop_map(|(kind, pairs)| (kind, Payload::Pairs(pairs))),
        1 => (any::<u8>(), bytes()).prop_map(|(kind, raw)| (kind, Payload::Raw(raw))),
        1 => (select(&[0, 3_u8][..]), bytes()).prop_map(|(kind, raw)| (kind, Payload::Raw(raw))),
    ];
    let flags = prop_oneof![10 => Just(1_u32), 1 => Just(0), 1 => any::<u32>()];
    let ids = prop_oneof![2 => Just((0, 0)), 3 => (number(), number())];
    (payload, flags, ids).prop_map(|((kind, payload), flags, (stream, frame))| {
        // Mostly as the types require.
        let ids_are_0 = matches!(payload, Payload::Pairs(_)) && stream % 8 != 1;
        let (stream, frame) = if ids_are_0 { (0, 0) } else { (stream, frame) };
        Frame { kind, flags, stream, frame, payload }
    })
}

/// Changes some bytes: replaces, inserts or removes them.
fn damaged(mut bytes: Vec<u8>, damage: &[(u8, Index, u8)]) -> Vec<u8> {
    for (how, at, byte) in damage {
        let at = at.index(bytes.len().max(1));
        match how % 4 {
            0 if at < bytes.len() => bytes[at] = *byte,
            1 if at < bytes.len() => bytes[at] ^= 1 << (byte % 8),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            _ => bytes.insert(at.min(bytes.len()), *byte),
        }
    }
    bytes
}

/// Puts the right length in front, so that the changed bytes are read.
fn with_length(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(length) = u32::try_from(bytes.len()).unwrap().checked_sub(4) {
        bytes[..4].copy_from_slice(&length.to_be_bytes());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn frames_read_alike(
        frame in frame(),
        damage in vec(any::<(u8, Index, u8)>(), 0..4),
        cut: Index,
    ) {
        let whole = reference::encode(&frame);
        compare::agree(&whole, MAX_FRAME_SIZE);
        compare::agree(&whole, u32::try_from(whole.len() - 5).unwrap());
        compare::agree(&whole[..cut.index(whole.len())], MAX_FRAME_SIZE);
        let damaged = damaged(whole, &damage);
        compare::agree(&damaged, MAX_FRAME_SIZE);
        compare::agree(&with_length(damaged), MAX_FRAME_SIZE);
    }

    #[test]
    fn any_bytes_read_alike(
        kind in select(&[0, 1, 2, 3, 101, 102, 103_u8][..]),
        payload in vec(any::<u8>(), 0..60),
    ) {
        let frame = [&[0; 4], &[kind, 0, 0, 0, 1][..], &payload].concat();
        compare::agree(&with_length(frame), MAX_FRAME_SIZE);
        compare::agree(&payload, MAX_FRAME_SIZE);
    }
}

fn value(data: &Data) -> Option<Value<'_>> {
    Some(match data {
        Data::Nothing => Value::Null,
        Data::Truth(truth) => Value::Bool(*truth),
        Data::Number(2, number) => Value::Int32((*number).try_into().ok()?),
        Data::Number(3, number) => Value::Uint32((*number).try_into().ok()?),
        Data::Number(4, number) => Value::Int64((*number).try_into().ok()?),
        Data::Number(_, number) => Value::Uint64((*number).try_into().ok()?),
        Data::Bytes(6, ip) => Value::Ipv4(<[u8; 4]>::try_from(&ip[..]).ok()?.into()),
        Data::Bytes(7, ip) => Value::Ipv6(<[u8; 16]>::try_from(&ip[..]).ok()?.into()),
        Data::Bytes(8, bytes) => Value::String(bytes),
        Data::Bytes(_, bytes) => Value::Binary(bytes),
    })
}

/// Reads what the codec wrote with the second decoder.
fn reread(written: &[u8]) -> Frame {
    let (frame, used) = reference::decode(written, u32::MAX).unwrap().unwrap();
    assert_eq!((used, frame.flags), (written.len(), 1));
    frame
}

const SCOPES: [Scope; 5] =
    [Scope::Process, Scope::Session, Scope::Transaction, Scope::Request, Scope::Response];

proptest! {
    #[test]
    fn a_notify_that_is_written_reads_alike(
        stream in number(),
        frame in number(),
        messages in vec((bytes(), vec((bytes(), valid_data()), 0..5)), 0..3),
    ) {
        let mut out = vec![0; 100_000];
        let mut writer = NotifyWriter::new(&mut out, FrameId { stream, frame }).unwrap();
        for (name, args) in &messages {
            writer.message(name).unwrap();
            args.iter().for_each(|(name, data)| writer.arg(name, value(data).unwrap()).unwrap());
        }
        let length = writer.finish();
        let payload = Payload::Messages(messages);
        let expected = Frame { kind: 3, flags: 1, stream, frame, payload };
        assert_eq!(reread(&out[..length]), expected);
        assert_eq!(reference::encode(&expected), &out[..length], "no byte differs");
    }

    #[test]
    fn an_ack_that_is_written_reads_alike(
        stream in number(),
        frame in number(),
        actions in vec((0..5_u8, "[a-zA-Z0-9_.]{1,56}", option::of(data())), 0..6),
    ) {
        let mut out = vec![0; 100_000];
        let mut ack = AckWriter::new(&mut out, FrameId { stream, frame }, u32::MAX).unwrap();
        let mut expected = Vec::new();
        for (scope, name, data) in actions {
            let var = VarName::new(&name).unwrap();
            let at = SCOPES[usize::from(scope)];
            match data {
                None => ack.unset_var(at, var).unwrap(),
                Some(ref data) => match value(data) {
                    Some(value) => ack.set_var(at, var, value).unwrap(),
                    None => continue,
                },
            }
            expected.push((scope, name.into_bytes(), data));
        }
        let length = ack.finish();
        let payload = Payload::Actions(expected);
        let expected = Frame { kind: 103, flags: 1, stream, frame, payload };
        assert_eq!(reread(&out[..length]), expected);
        assert_eq!(reference::encode(&expected), &out[..length], "no byte differs");
    }

    #[test]
    fn what_concerns_a_connection_reads_alike_when_it_is_written(
        versions in "[0-9a-z., ]{0,20}",
        max_frame_size: u32,
        capabilities in "[a-z, ]{0,300}",
        engine_id in option::of("[a-z0-9-]{0,40}"),
        healthcheck: Option<bool>,
        status: u32,
        message in "[ -~]{0,250}",
    ) {
        let text = |text: &str| Data::Bytes(8, text.into());
        let control = |kind, pairs| {
            Frame { kind, flags: 1, stream: 0, frame: 0, payload: Payload::Pairs(pairs) }
        };
        let pair = |key: &str, data| (Vec::from(key), data);
        let mut out = vec![0; 2000];

        let fields = HelloFields {
            versions: &versions,
            max_frame_size,
            capabilities: &capabilities,
            engine_id: engine_id.as_deref(),
            healthcheck,
        };
        let length = encode_hello(&mut out, &fields).unwrap();
        let mut pairs = vec![
            pair("supported-versions", text(&versions)),
            pair("max-frame-size", Data::Number(3, max_frame_size.into())),
            pair("capabilities", text(&capabilities)),
        ];
        pairs.extend(engine_id.as_ref().map(|id| pair("engine-id", text(id))));
        pairs.extend(healthcheck.map(|truth| pair("healthcheck", Data::Truth(truth))));
        assert_eq!(reread(&out[..length]), control(1, pairs));

        let length = encode_agent_hello(&mut out, max_frame_size, &capabilities).unwrap();
        let pairs = vec![
            pair("version", text("2.0")),
            pair("max-frame-size", Data::Number(3, max_frame_size.into())),
            pair("capabilities", text(&capabilities)),
        ];
        assert_eq!(reread(&out[..length]), control(101, pairs));

        let pairs = vec![
            pair("status-code", Data::Number(3, status.into())),
            pair("message", text(&message)),
        ];
        let length = encode_disconnect(&mut out, Status::new(status), &message).unwrap();
        assert_eq!(reread(&out[..length]), control(2, pairs.clone()));
        let length = encode_agent_disconnect(&mut out, Status::new(status), &message).unwrap();
        assert_eq!(reread(&out[..length]), control(102, pairs));
    }
}
