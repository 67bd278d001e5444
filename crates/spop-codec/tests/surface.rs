//! The parts that an author sees beside frames: values by kind, names, statuses, and errors that
//! say what is wrong.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_hello};
use spop_codec::{
    AckWriter, Actions, BufferFull, Connection, DecodeError, Event, Frame, FrameId, Limits,
    NameError, ProtocolError, Scope, Status, Value, VarName, decode,
};

#[test]
fn every_status_has_a_name_and_unknown_codes_pass_through() {
    let texts: Vec<_> = (0..14).chain([99]).map(|code| Status::new(code).text()).collect();
    assert_eq!(
        texts,
        [
            "normal",
            "I/O error",
            "a timeout occurred",
            "frame is too big",
            "invalid frame received",
            "version value not found",
            "max-frame-size value not found",
            "capabilities value not found",
            "unsupported version",
            "max-frame-size too big or too small",
            "fragmentation not supported",
            "invalid interlaced frames",
            "frame-id not found",
            "resource allocation error",
            "an unknown error occurred",
        ]
    );
    for code in [14, 98, 100, u32::MAX] {
        assert_eq!(Status::new(code).code(), code);
        assert_eq!(
            Status::new(code).to_string(),
            format!("status {code}, an unknown error occurred")
        );
    }
}

/// One of each type, and a string that is no text.
fn all_values() -> [Value<'static>; 11] {
    [
        Value::Null,
        true.into(),
        Value::Int32(-1),
        7_u32.into(),
        (-7_i64).into(),
        u64::MAX.into(),
        Ipv4Addr::LOCALHOST.into(),
        IpAddr::from(Ipv6Addr::LOCALHOST).into(),
        "text".into(),
        b"\xff"[..].into(),
        Value::String(b"\xff"),
    ]
}

#[test]
fn values_are_had_by_kind_or_not_at_all() {
    let (v4, v6) = (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let all = all_values();
    let integers: Vec<_> = all.iter().filter_map(Value::as_integer).collect();
    assert_eq!(integers, [-1, 7, -7, u64::MAX.into()]);
    let ips: Vec<_> = all.iter().filter_map(Value::as_ip).collect();
    assert_eq!(ips, [IpAddr::V4(v4), IpAddr::V6(v6)]);
    assert_eq!(Value::from(IpAddr::from(v4)), Value::Ipv4(v4));
    let strings: Vec<_> = all.iter().filter_map(Value::as_str).collect();
    assert_eq!(strings, ["text"], "not what is binary, or no UTF-8");
    let bytes: Vec<_> = all.iter().filter_map(Value::as_bytes).collect();
    assert_eq!(bytes, [&b"text"[..], b"\xff", b"\xff"]);
    let bools: Vec<_> = all.iter().filter_map(Value::as_bool).collect();
    assert_eq!(bools, [true]);
    assert_eq!(all.iter().filter_map(Value::headers).count(), 1, "what is binary");
}

#[test]
fn args_are_had_by_place_and_name_whatever_their_types() {
    let values = all_values();
    let mut out = [0; 256];
    let mut writer = NotifyWriter::new(&mut out, FrameId { stream: 1, frame: 1 }).unwrap();
    writer.message(b"m").unwrap();
    for (name, value) in (b'a'..).zip(values) {
        writer.arg(&[name], value).unwrap();
    }
    let length = writer.finish();
    let frame = decode(&out[..length], 16_380).unwrap();
    let Some((Frame::Notify(notify), _)) = frame else { panic!("{frame:?}") };
    let message = notify.messages().next().unwrap();
    for ((index, name), value) in (0..).zip(b'a'..).zip(values) {
        assert_eq!((message.arg_at(index), message.arg(&[name])), (Some(value), Some(value)));
    }
    assert_eq!((message.arg_at(values.len()), message.arg(b"z")), (None, None));
}

#[test]
fn names_that_are_wrong_stop_the_compiler_or_the_caller() {
    assert_eq!(VarName::from_static("blocked").as_str(), "blocked");
    for wrong in ["", "no-dashes"] {
        assert!(std::panic::catch_unwind(|| VarName::from_static(wrong)).is_err());
    }
    let mut out = [0; 64];
    let mut ack = AckWriter::new(&mut out, FrameId::default(), 60).unwrap();
    ack.append(&Actions::default()).unwrap();
    assert_eq!(ack.finish(), 11, "no action");
    assert_eq!(
        AckWriter::resume(&mut [0; 4], FrameId::default(), 60, 11).unwrap_err(),
        BufferFull
    );
}

#[test]
fn names_and_scopes_are_parsed_or_explained() {
    for scope in ["proc", "sess", "txn", "req", "res"] {
        assert_eq!(scope.parse::<Scope>().unwrap().as_str(), scope);
    }
    let error = "global".parse::<Scope>().unwrap_err().to_string();
    assert_eq!(error, "a scope is one of proc, sess, txn, req, res");
    assert_eq!(VarName::new("ip_score.v2").unwrap().as_str(), "ip_score.v2");
    let long = "x".repeat(57);
    let errors = [&long[..], "", "no-dash"].map(|name| VarName::new(name).unwrap_err());
    assert_eq!(errors, [NameError::Length(57), NameError::Length(0), NameError::Character]);
    assert_eq!(errors[0].to_string(), "a variable's name must have 1 to 56 characters, not 57");
    assert_eq!(
        errors[2].to_string(),
        "a variable's name must have only letters, digits, underscores and dots"
    );
    assert_eq!(BufferFull.to_string(), "it does not fit into the frame");
}

/// A frame of any kind, with ids of one byte.
fn frame(kind: u8, flags: u32, ids: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(7 + payload.len()).unwrap();
    [&length.to_be_bytes()[..], &[kind], &flags.to_be_bytes(), &ids, payload].concat()
}

#[test]
fn each_decoding_error_has_a_sentence_and_a_status() {
    let status_code = b"\x0bstatus-code";
    let cases: [(Vec<u8>, DecodeError, Status, &str); 11] = [
        (vec![0, 0, 0, 3], DecodeError::TooShort(3), Status::INVALID, "claims 3 bytes"),
        (
            vec![0xff; 4],
            DecodeError::TooBig { length: u32::MAX, max_frame_size: 16380 },
            Status::TOO_BIG,
            "at most 16380 are allowed",
        ),
        (
            frame(3, 1, [1, 1], b"\x05a"),
            DecodeError::Truncated,
            Status::INVALID,
            "ends inside a field",
        ),
        (
            frame(2, 1, [0, 0], b"\x00\x00"),
            DecodeError::EmptyKey,
            Status::INVALID,
            "has an empty key",
        ),
        (
            frame(3, 1, [1, 1], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
            DecodeError::VarintOverflow,
            Status::INVALID,
            "above 2^64 - 1",
        ),
        (
            frame(3, 1, [1, 1], b"\x01m\x01\x00\x0a"),
            DecodeError::ReservedType(10),
            Status::INVALID,
            "type 10",
        ),
        (
            frame(3, 1, [1, 1], &b"\x01m\x00".repeat(65)),
            DecodeError::TooManyMessages,
            Status::TOO_BIG,
            "more than 64 messages",
        ),
        (frame(103, 0, [1, 1], b""), DecodeError::Fragmented, Status::FRAGMENTATION, "in pieces"),
        (frame(102, 1, [1, 0], b""), DecodeError::IdsNotZero, Status::INVALID, "ids other than 0"),
        (
            frame(2, 1, [0, 0], &[&status_code[..], b"\x08\x01x"].concat()),
            DecodeError::WrongType("status-code"),
            Status::INVALID,
            "the value of status-code",
        ),
        (
            frame(2, 1, [0, 0], b"\x07message\x11"),
            DecodeError::WrongType("message"),
            Status::INVALID,
            "the value of message",
        ),
    ];
    for (bytes, error, status, words) in cases {
        assert_eq!(decode(&bytes, 16380).unwrap_err(), error, "{bytes:02x?}");
        assert_eq!(error.status(), status);
        assert!(error.to_string().contains(words), "{error}");
    }
    for (error, words) in [
        (DecodeError::IntegerOutOfRange, "more than 32 bits"),
        (DecodeError::BadAction, "not a valid set-var or unset-var"),
        (DecodeError::BadScope(5), "scope 5"),
        (DecodeError::NoVersion, "has no version"),
        (DecodeError::NoMaxFrameSize, "has no max-frame-size"),
        (DecodeError::NoCapabilities, "has no capabilities"),
        (DecodeError::BadVersion, "version 2.0"),
        (DecodeError::BadMaxFrameSize(9), "max-frame-size is 9"),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(matches!(
        decode(&frame(50, 0, [9, 9], b"x"), 16380),
        Ok(Some((Frame::Unknown(50), 12)))
    ));
    let boolean =
        [&b"\x12supported-versions\x08\x032.0\x0bhealthcheck"[..], b"\x08\x011"].concat();
    assert_eq!(
        decode(&frame(1, 1, [0, 0], &boolean), 16380).unwrap_err(),
        DecodeError::WrongType("healthcheck")
    );
}

#[test]
fn each_protocol_error_has_a_sentence_and_a_status() {
    for (error, status, words) in [
        (
            ProtocolError::Malformed(DecodeError::Truncated),
            Status::INVALID,
            "a frame ends inside a field",
        ),
        (
            ProtocolError::NoHello { found: 3 },
            Status::INVALID,
            "the first frame is a NOTIFY, not HAPROXY-HELLO",
        ),
        (
            ProtocolError::NoHello { found: 0 },
            Status::INVALID,
            "the first frame is a fragment, not",
        ),
        (
            ProtocolError::NoHello { found: 2 },
            Status::INVALID,
            "the first frame is HAPROXY-DISCONNECT, not",
        ),
        (
            ProtocolError::NoHello { found: 77 },
            Status::INVALID,
            "the first frame is a frame of type 77, not",
        ),
        (
            ProtocolError::OutOfPlace { found: 1 },
            Status::INVALID,
            "HAPROXY-HELLO came at the wrong time",
        ),
        (ProtocolError::OutOfPlace { found: 101 }, Status::INVALID, "AGENT-HELLO came at"),
        (ProtocolError::OutOfPlace { found: 102 }, Status::INVALID, "AGENT-DISCONNECT came at"),
        (ProtocolError::OutOfPlace { found: 103 }, Status::INVALID, "an ACK came at"),
        (ProtocolError::Fragment, Status::FRAGMENTATION, "set 'no option send-frag-payload'"),
        (ProtocolError::Interlaced, Status::INTERLACED, "between the pieces of a message"),
        (
            ProtocolError::PayloadTooBig { max: 9 },
            Status::TOO_BIG,
            "more than 9 bytes, or came in more than 64",
        ),
    ] {
        assert_eq!(error.status(), status, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_connection_counts_what_it_skips_and_agrees_to_nothing_it_was_not_offered() {
    let mut limits = Limits::default();
    limits.max_payload_size = 0;
    let mut connection = Connection::new(limits, Duration::ZERO);
    assert!(connection.awaits_hello());
    let mut hello = [0; 256];
    let fields = HelloFields { max_frame_size: 500, capabilities: "", ..HelloFields::default() };
    let length = encode_hello(&mut hello, &fields).unwrap();
    let Ok(Some((Event::Hello(welcome), _))) =
        connection.receive(&hello[..length], Duration::ZERO)
    else {
        panic!()
    };
    let mut out = [0; 96];
    let length = welcome.encode(&mut out).unwrap();
    assert!(out[..length].ends_with(b"capabilities\x08\x00"));
    assert!(!connection.awaits_hello());
    for _ in 0..3 {
        assert!(matches!(
            connection.receive(&frame(50, 1, [0, 0], b""), Duration::ZERO),
            Ok(Some((Event::Skipped, 11)))
        ));
    }
    assert_eq!(connection.unknown_frames(), 3);
}

#[test]
fn actions_can_be_thought_over() {
    let mut out = [0; 64];
    let mut ack = AckWriter::new(&mut out, FrameId { stream: 1, frame: 1 }, 60).unwrap();
    ack.set_var(Scope::Transaction, VarName::new("a").unwrap(), 1_u32.into()).unwrap();
    assert_eq!(
        ack.set_var(Scope::Session, VarName::new("b").unwrap(), Value::Binary(&[0; 60])),
        Err(BufferFull)
    );
    ack.clear();
    let length = ack.finish();
    assert_eq!(out[..length], [0, 0, 0, 7, 103, 0, 0, 0, 1, 1, 1]);
}
