//! Every byte vector, in both directions if it has two.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value as Json;
use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_disconnect, encode_hello};
use spop_codec::{
    AckWriter, Action, Connection, DecodeError, Event, Frame, FrameId, Limits, Scope, Status,
    Value, VarName, decode, encode_agent_disconnect, encode_agent_hello,
};

struct Vector {
    name: String,
    bytes: Vec<u8>,
    json: Json,
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn vectors(kind: &str) -> Vec<Vector> {
    let all: Vec<Json> = serde_json::from_str(include_str!("vectors/vectors.json")).unwrap();
    let vector = |json: Json| Vector {
        name: json["name"].as_str().unwrap().to_owned(),
        bytes: hex(json["hex"].as_str().unwrap()),
        json,
    };
    all.into_iter().filter(|json| json["kind"] == kind).map(vector).collect()
}

#[test]
fn there_are_as_many_of_each_kind_as_are_tested_here() {
    let all: Vec<Json> = serde_json::from_str(include_str!("vectors/vectors.json")).unwrap();
    let mut kinds = BTreeMap::new();
    for vector in &all {
        *kinds.entry(vector["kind"].as_str().unwrap()).or_insert(0) += 1;
    }
    let expected =
        [("frame", 33), ("malformed", 42), ("stream", 3), ("typed-data", 19), ("varint", 38)];
    assert_eq!(kinds, BTreeMap::from(expected));
}

/// A NOTIFY with one message and one arg, whose value is the last thing in the frame.
fn notify_with(value: &[u8]) -> Vec<u8> {
    let frame = [&[3, 0, 0, 0, 1, 1, 1, 1, b'm', 1, 0][..], value].concat();
    [&u32::try_from(frame.len()).unwrap().to_be_bytes(), &frame[..]].concat()
}

fn only_arg(frame: &[u8]) -> Result<Value<'_>, DecodeError> {
    let (frame, used) = decode(frame, 1 << 20)?.expect("a whole frame");
    let Frame::Notify(notify) = frame else { panic!("{frame:?}") };
    let message = notify.messages().next().unwrap();
    let arg = message.args().next().unwrap();
    assert!(used > 0);
    Ok(arg.value)
}

fn encoded(value: Value<'_>) -> Vec<u8> {
    let mut out = vec![0; 2048];
    let mut ack = AckWriter::new(&mut out, FrameId { stream: 1, frame: 1 }, 2000).unwrap();
    ack.set_var(Scope::Process, VarName::new("v").unwrap(), value).unwrap();
    let length = ack.finish();
    // LENGTH, type, flags, ids, then: action, args, scope, length and name.
    out[4 + 7 + 5..length].to_vec()
}

#[test]
fn varints() {
    for Vector { name, bytes, json } in vectors("varint") {
        let value = json["value"].as_u64().unwrap();
        let typed = [&[5], &bytes[..]].concat();
        assert_eq!(only_arg(&notify_with(&typed)), Ok(Value::Uint64(value)), "{name}");
        assert_eq!(encoded(Value::Uint64(value)), typed, "{name}");
        for cut in 1..typed.len() {
            assert_eq!(
                only_arg(&notify_with(&typed[..cut])),
                Err(DecodeError::Truncated),
                "{name}"
            );
        }
    }
}

/// The value of a type's name and its JSON.
fn value_of(json: &Json) -> Value<'static> {
    let (kind, value) = (json[0].as_str().unwrap(), &json[1]);
    match kind {
        "null" => Value::Null,
        "bool" => Value::Bool(value.as_bool().unwrap()),
        "int32" => Value::Int32(i32::try_from(value.as_i64().unwrap()).unwrap()),
        "uint32" => Value::Uint32(u32::try_from(value.as_u64().unwrap()).unwrap()),
        "int64" => Value::Int64(value.as_i64().unwrap()),
        "uint64" => Value::Uint64(value.as_u64().unwrap()),
        "ipv4" => Value::Ipv4(value.as_str().unwrap().parse().unwrap()),
        "ipv6" => Value::Ipv6(value.as_str().unwrap().parse().unwrap()),
        "string" => Value::String(value.as_str().unwrap().as_bytes().to_vec().leak()),
        "binary" => Value::Binary(hex(value.as_str().unwrap()).leak()),
        other => panic!("type {other}"),
    }
}

#[test]
fn typed_data() {
    for Vector { name, bytes, json } in vectors("typed-data") {
        let value = value_of(&json["value"]);
        assert_eq!(only_arg(&notify_with(&bytes)), Ok(value), "{name}");
        assert_eq!(encoded(value), bytes, "{name}");
    }
}

/// A frame as JSON, to be compared with the vector's `decoded`.
fn described(frame: &Frame<'_>) -> (u64, FrameId, Json) {
    let text = |bytes: &[u8]| Json::from(String::from_utf8(bytes.to_vec()).unwrap());
    let value = |value: Value<'_>| match value {
        Value::Null => serde_json::json!(["null"]),
        Value::Bool(bool) => serde_json::json!(["bool", bool]),
        Value::Int32(integer) => serde_json::json!(["int32", integer]),
        Value::Uint32(integer) => serde_json::json!(["uint32", integer]),
        Value::Int64(integer) => serde_json::json!(["int64", integer]),
        Value::Uint64(integer) => serde_json::json!(["uint64", integer]),
        Value::Ipv4(ip) => serde_json::json!(["ipv4", ip.to_string()]),
        Value::Ipv6(ip) => serde_json::json!(["ipv6", ip.to_string()]),
        Value::String(bytes) => serde_json::json!(["string", text(bytes)]),
        Value::Binary(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            serde_json::json!(["binary", hex])
        }
    };
    let none = FrameId::default();
    match frame {
        Frame::Notify(notify) => {
            let messages = notify.messages().map(|message| {
                assert_eq!(message.args().len(), message.args().count());
                let args: Vec<_> = message
                    .args()
                    .map(|arg| serde_json::json!([text(arg.name), value(arg.value)]))
                    .collect();
                serde_json::json!([text(message.name), args])
            });
            (3, notify.id, messages.collect())
        }
        Frame::Ack(ack) => {
            let actions = ack.actions().map(|action| match action {
                Action::SetVar { scope, name, value: set } => {
                    serde_json::json!(["set-var", scope.as_str(), text(name), value(set)])
                }
                Action::UnsetVar { scope, name } => {
                    serde_json::json!(["unset-var", scope.as_str(), text(name)])
                }
            });
            (103, ack.id, actions.collect())
        }
        Frame::HaproxyDisconnect(disconnect) | Frame::AgentDisconnect(disconnect) => {
            let kind = if matches!(frame, Frame::HaproxyDisconnect(_)) { 2 } else { 102 };
            let pairs = serde_json::json!([
                ["status-code", ["uint32", disconnect.status.code()]],
                ["message", ["string", text(disconnect.message)]],
            ]);
            (kind, none, pairs)
        }
        Frame::AgentHello(hello) => {
            let pairs = serde_json::json!([
                ["version", ["string", text(hello.version)]],
                ["max-frame-size", ["uint32", hello.max_frame_size]],
                ["capabilities", ["string", text(hello.capabilities.text())]],
            ]);
            (101, none, pairs)
        }
        // Compared field by field: keys may come in any order.
        Frame::HaproxyHello(_) => (1, none, Json::Null),
        other => panic!("{other:?}"),
    }
}

/// Writes a frame again from its decoded parts.
fn again(frame: &Frame<'_>, json: &Json) -> Vec<u8> {
    let mut out = vec![0; 4096];
    let length = match frame {
        Frame::Notify(notify) => {
            let mut writer = NotifyWriter::new(&mut out, notify.id).unwrap();
            for message in notify.messages() {
                writer.message(message.name).unwrap();
                message.args().for_each(|arg| writer.arg(arg.name, arg.value).unwrap());
            }
            writer.finish()
        }
        Frame::Ack(ack) => {
            let mut writer = AckWriter::new(&mut out, ack.id, 4000).unwrap();
            for action in ack.actions() {
                let name = |name| VarName::new(std::str::from_utf8(name).unwrap()).unwrap();
                let written = match action {
                    Action::SetVar { scope, name: var, value } => {
                        writer.set_var(scope, name(var), value)
                    }
                    Action::UnsetVar { scope, name: var } => writer.unset_var(scope, name(var)),
                };
                written.unwrap();
            }
            writer.finish()
        }
        Frame::HaproxyDisconnect(disconnect) => encode_disconnect(
            &mut out,
            disconnect.status,
            std::str::from_utf8(disconnect.message).unwrap(),
        )
        .unwrap(),
        Frame::AgentDisconnect(disconnect) => {
            let message = std::str::from_utf8(disconnect.message).unwrap();
            encode_agent_disconnect(&mut out, disconnect.status, message).unwrap()
        }
        Frame::AgentHello(hello) => {
            let capabilities = str::from_utf8(hello.capabilities.text()).unwrap();
            encode_agent_hello(&mut out, hello.max_frame_size, capabilities).unwrap()
        }
        Frame::HaproxyHello(hello) => {
            let text = |key: &str| {
                let pairs = json["decoded"][4].as_array()?;
                pairs.iter().find(|pair| pair[0] == key)?[1][1].as_str()
            };
            let fields = HelloFields {
                versions: text("supported-versions").unwrap_or("2.0"),
                max_frame_size: hello.max_frame_size,
                capabilities: std::str::from_utf8(hello.capabilities.text()).unwrap(),
                engine_id: hello.engine_id.map(|id| std::str::from_utf8(id).unwrap()),
                healthcheck: json["meaning"]
                    .as_str()
                    .unwrap()
                    .contains("health")
                    .then_some(hello.healthcheck),
            };
            encode_hello(&mut out, &fields).unwrap()
        }
        other => panic!("{other:?}"),
    };
    out.truncate(length);
    out
}

#[test]
fn frames() {
    for Vector { name, bytes, json } in vectors("frame") {
        for cut in 0..bytes.len() {
            assert!(matches!(decode(&bytes[..cut], 16380), Ok(None)), "{name}, cut to {cut}");
        }
        let longer = [&bytes[..], b"more"].concat();
        let (frame, used) = decode(&longer, 16380).unwrap().unwrap();
        assert_eq!(used, bytes.len(), "{name}");
        if let Some(decoded) = json["decoded"].as_array() {
            let (kind, id, payload) = described(&frame);
            assert_eq!(kind, decoded[0].as_u64().unwrap(), "{name}");
            assert_eq!(
                (id.stream, id.frame),
                (decoded[2].as_u64().unwrap(), decoded[3].as_u64().unwrap()),
                "{name}"
            );
            if let Frame::HaproxyHello(hello) = &frame {
                let field = |key: &str| {
                    let pairs = decoded[4].as_array().unwrap();
                    pairs.iter().find(|pair| pair[0] == key).map(|pair| pair[1][1].clone())
                };
                assert_eq!(field("max-frame-size"), Some(hello.max_frame_size.into()), "{name}");
                let capabilities = std::str::from_utf8(hello.capabilities.text()).unwrap();
                assert_eq!(field("capabilities"), Some(capabilities.into()), "{name}");
                let engine_id =
                    hello.engine_id.map(|id| Json::from(std::str::from_utf8(id).unwrap()));
                assert_eq!(field("engine-id"), engine_id, "{name}");
                assert_eq!(
                    field("healthcheck").unwrap_or(false.into()),
                    hello.healthcheck,
                    "{name}"
                );
            } else {
                assert_eq!(payload, decoded[4], "{name}");
            }
        } else {
            assert!(name.starts_with("captured_"), "{name}");
        }
        // The written frame is byte for byte what HAProxy writes, except for flags and orders that
        // the codec never writes.
        if !["ack_abort_flag", "ha_hello_reordered_extra"].contains(&&name[..]) {
            assert_eq!(again(&frame, &json), bytes, "{name}");
        }
    }
}

/// An event in words; nothing for bytes that are skipped.
fn noted(event: &Event<'_>) -> Option<String> {
    match event {
        Event::Hello(_) => Some("hello".to_owned()),
        Event::Notify(notify) => Some(format!("notify {}/{}", notify.id.stream, notify.id.frame)),
        Event::Disconnect(disconnect) => Some(format!("disconnect {}", disconnect.status.code())),
        Event::Fragment(fragment) => Some(format!("piece {:?}", fragment.place)),
        Event::Skipped => None,
    }
}

/// The events in some bytes, and the status of the error that ends them.
fn converse(connection: &mut Connection, bytes: &[u8]) -> (Vec<String>, Option<Status>) {
    let (mut events, mut used) = (Vec::new(), 0);
    loop {
        match connection.receive(&bytes[used..], Duration::ZERO) {
            Ok(Some((event, length))) => {
                assert!(length > 0);
                used += length;
                events.extend(noted(&event));
            }
            Ok(None) => return (events, None),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                // Everything that comes after is skipped.
                assert!(matches!(
                    connection.receive(b"more", Duration::ZERO),
                    Ok(Some((Event::Skipped, 4)))
                ));
                return (events, Some(error.status()));
            }
        }
    }
}

fn hello() -> Vec<u8> {
    vectors("frame").into_iter().find(|vector| vector.name == "ha_hello_ge_3_1").unwrap().bytes
}

#[test]
fn streams_give_the_same_events_however_they_are_split() {
    for Vector { name, bytes, .. } in vectors("stream") {
        if name == "stream_two_acks" {
            let (first, used) = decode(&bytes, 16380).unwrap().unwrap();
            let (second, rest) = decode(&bytes[used..], 16380).unwrap().unwrap();
            assert!(matches!((first, second), (Frame::Ack(_), Frame::Ack(_))));
            assert_eq!(used + rest, bytes.len());
            continue;
        }
        let session =
            if name == "stream_full_session" { bytes } else { [hello(), bytes].concat() };
        let whole = converse(&mut Connection::new(Limits::default(), Duration::ZERO), &session);
        assert_eq!(whole.1, None, "{name}");
        assert!(whole.0.len() >= 2, "{name}: {whole:?}");
        for split in 0..=session.len() {
            let mut connection = Connection::new(Limits::default(), Duration::ZERO);
            let (mut events, mut held) = (Vec::new(), Vec::new());
            for part in [&session[..split], &session[split..]] {
                held.extend_from_slice(part);
                while let Some((event, used)) = connection.receive(&held, Duration::ZERO).unwrap()
                {
                    events.extend(noted(&event));
                    held.drain(..used);
                }
            }
            assert_eq!(events, whole.0, "{name}, split at {split}");
        }
    }
}

/// The vectors are for an agent that accepts no pieces.
fn without_fragments() -> Limits {
    let mut limits = Limits::default();
    limits.max_payload_size = 0;
    limits
}

#[test]
fn malformed_input_ends_with_the_right_status_or_is_tolerated() {
    for Vector { name, bytes, json } in vectors("malformed") {
        let expected =
            json["status"].as_u64().map(|status| Status::new(u32::try_from(status).unwrap()));
        // A HELLO, or what comes in its place, begins a connection; everything else follows a good
        // HELLO.
        let first = name.contains("hello") && bytes.get(4) == Some(&1)
            || name == "bad_notify_before_hello"
            || name.ends_with("_on_port");
        let session = if first { bytes.clone() } else { [hello(), bytes.clone()].concat() };
        let (events, status) =
            converse(&mut Connection::new(without_fragments(), Duration::ZERO), &session);
        assert_eq!(status, expected, "{name}: {events:?}");
        match &name[..] {
            "bad_type_unknown_50" => assert_eq!(events, ["hello"], "{name}"),
            "bad_truncated_header_eof" => assert_eq!(events, ["hello"]),
            "bad_ids_repeated" => assert_eq!(events, ["hello", "notify 1/1", "notify 1/1"]),
            "bad_notify_stream_0" => assert_eq!(events, ["hello", "notify 0/1"]),
            "bad_notify_frame_0" => assert_eq!(events, ["hello", "notify 1/0"]),
            "bad_hello_twice" => assert_eq!(events, ["hello"]),
            _ if status.is_some() && first => assert!(events.is_empty(), "{name}: {events:?}"),
            _ if status.is_none() && first => assert_eq!(events, ["hello"], "{name}"),
            _ if status.is_none() => assert_eq!(events, ["hello", "notify 1/1"], "{name}"),
            _ => assert_eq!(events, ["hello"], "{name}"),
        }
        // No prefix panics, and none has more events than the whole.
        for cut in 0..session.len() {
            let mut connection = Connection::new(without_fragments(), Duration::ZERO);
            assert!(
                converse(&mut connection, &session[..cut]).0.len() <= events.len(),
                "{name}, cut to {cut}"
            );
        }
    }
}

#[test]
fn a_length_is_refused_from_its_four_bytes() {
    for (length, error) in [
        (0_u32, DecodeError::TooShort(0)),
        (6, DecodeError::TooShort(6)),
        (16381, DecodeError::TooBig { length: 16381, max_frame_size: 16380 }),
        (u32::MAX, DecodeError::TooBig { length: u32::MAX, max_frame_size: 16380 }),
    ] {
        assert_eq!(decode(&length.to_be_bytes(), 16380).unwrap_err(), error);
    }
    assert!(decode(&16380_u32.to_be_bytes(), 16380).unwrap().is_none());
}
