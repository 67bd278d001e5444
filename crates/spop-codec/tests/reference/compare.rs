//! Compares what the codec and the second decoder read.

use spop_codec::{Action, DecodeError, Disconnect, Frame, Value};

use super::reference::{self, Data, Payload, Refusal};

fn data(value: Value<'_>) -> Data {
    match value {
        Value::Null => Data::Nothing,
        Value::Bool(truth) => Data::Truth(truth),
        Value::Int32(number) => Data::Number(2, number.into()),
        Value::Uint32(number) => Data::Number(3, number.into()),
        Value::Int64(number) => Data::Number(4, number.into()),
        Value::Uint64(number) => Data::Number(5, number.into()),
        Value::Ipv4(ip) => Data::Bytes(6, ip.octets().to_vec()),
        Value::Ipv6(ip) => Data::Bytes(7, ip.octets().to_vec()),
        Value::String(bytes) => Data::Bytes(8, bytes.to_vec()),
        Value::Binary(bytes) => Data::Bytes(9, bytes.to_vec()),
    }
}

/// The content of a frame, in a form that both decoders can be converted to.
#[derive(Debug, Eq, PartialEq)]
enum Said {
    Hello(reference::Hello),
    AgentHello(reference::Hello),
    Disconnect(bool, u32, Vec<u8>),
    Notify(u64, u64, Payload),
    Ack(u64, u64, Payload),
    Piece(u64, u64),
    Unknown(u8),
}

fn by_codec(frame: &Frame<'_>) -> Said {
    let ending = |by_agent, disconnect: &Disconnect<'_>| {
        Said::Disconnect(by_agent, disconnect.status.code(), disconnect.message.to_vec())
    };
    match frame {
        Frame::HaproxyHello(hello) => Said::Hello(reference::Hello {
            max_frame_size: hello.max_frame_size,
            capabilities: hello.capabilities.text().to_vec(),
            engine_id: hello.engine_id.map(<[u8]>::to_vec),
            healthcheck: hello.healthcheck,
            version: Vec::new(),
        }),
        Frame::AgentHello(hello) => Said::AgentHello(reference::Hello {
            max_frame_size: hello.max_frame_size,
            capabilities: hello.capabilities.text().to_vec(),
            engine_id: None,
            healthcheck: false,
            version: hello.version.to_vec(),
        }),
        Frame::HaproxyDisconnect(disconnect) => ending(false, disconnect),
        Frame::AgentDisconnect(disconnect) => ending(true, disconnect),
        Frame::Notify(notify) => {
            let messages = notify.messages().map(|message| {
                let args = message.args().map(|arg| (arg.name.to_vec(), data(arg.value)));
                (message.name.to_vec(), args.collect())
            });
            Said::Notify(notify.id.stream, notify.id.frame, Payload::Messages(messages.collect()))
        }
        Frame::Ack(ack) => {
            let actions = ack.actions().map(|action| match action {
                Action::SetVar { scope, name, value } => {
                    (scope as u8, name.to_vec(), Some(data(value)))
                }
                Action::UnsetVar { scope, name } => (scope as u8, name.to_vec(), None),
            });
            Said::Ack(ack.id.stream, ack.id.frame, Payload::Actions(actions.collect()))
        }
        Frame::Fragment(id) => Said::Piece(id.stream, id.frame),
        Frame::Unknown(kind) => Said::Unknown(*kind),
        other => panic!("{other:?} is a frame that the second decoder does not know"),
    }
}

fn by_reference(frame: reference::Frame) -> Result<Said, Refusal> {
    let reference::Frame { kind, stream, frame, payload, .. } = frame;
    Ok(match (kind, payload) {
        (1, Payload::Pairs(pairs)) => {
            // The codec looks for a version 2.x, and keeps none.
            Said::Hello(reference::Hello {
                version: Vec::new(),
                ..reference::hello(&pairs, false)?
            })
        }
        (101, Payload::Pairs(pairs)) => Said::AgentHello(reference::hello(&pairs, true)?),
        (2 | 102, Payload::Pairs(pairs)) => {
            let (status, message) = reference::disconnect(&pairs)?;
            Said::Disconnect(kind == 102, status, message)
        }
        (3, payload @ Payload::Messages(_)) => Said::Notify(stream, frame, payload),
        (103, payload @ Payload::Actions(_)) => Said::Ack(stream, frame, payload),
        (0 | 3, Payload::Raw(_)) => Said::Piece(stream, frame),
        (unknown, _) => Said::Unknown(unknown),
    })
}

/// Reads the first frame of `input` with both decoders, and panics if they differ: in its content,
/// its length, or the status of the error. Returns how many bytes the frame has, if it is whole
/// and well formed.
pub fn agree(input: &[u8], max_frame_size: u32) -> Option<usize> {
    let codec = spop_codec::decode(input, max_frame_size);
    let ours = codec
        .map(|found| found.map(|(frame, used)| (by_codec(&frame), used)))
        .map_err(|error: DecodeError| error.status().code());
    let theirs = reference::decode(input, max_frame_size)
        .and_then(|found| found.map(|(frame, used)| Ok((by_reference(frame)?, used))).transpose());
    assert_eq!(ours, theirs, "the codec (left) and the second decoder differ about {input:02x?}");
    ours.ok().flatten().map(|(_, used)| used)
}
