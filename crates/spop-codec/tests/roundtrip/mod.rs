//! Frames of any content: what is written reads back the same, and a buffer of any size is enough
//! or refused.

use arbitrary::{Result, Unstructured};
use spop_codec::haproxy::{HelloFields, encode_disconnect, encode_hello};
use spop_codec::{
    AckWriter, Action, BufferFull, DecodeError, Disconnect, Frame, FrameId, MAX_MESSAGES, Scope,
    Status, Value, VarName, decode, encode_agent_disconnect, encode_agent_hello,
};

use crate::generate::{bytes, id, messages, text, value, write_notify};

/// A frame of any type.
pub fn any(u: &mut Unstructured<'_>) -> Result<()> {
    match u.arbitrary::<u8>()? % 4 {
        0 => notify(u),
        1 => ack(u),
        2 => hello(u),
        _ => disconnect(u),
    }
}

/// Writes a frame: into a buffer of `ample` bytes, and into ones of its own size and smaller,
/// which are refused.
fn written(
    ample: usize,
    room: usize,
    write: impl Fn(&mut [u8]) -> Result<usize, BufferFull>,
) -> Result<Vec<u8>, BufferFull> {
    let mut out = vec![0; ample];
    let length = write(&mut out)?;
    assert_eq!(u32::from_be_bytes([out[0], out[1], out[2], out[3]]) as usize, length - 4);
    out.truncate(length);
    for room in [room % length, length - 1, length] {
        // Of its own, so that a byte past its end is a byte past an allocation.
        let mut small = vec![0; room];
        match write(&mut small) {
            Ok(used) => assert!(room >= length && small[..used] == out[..]),
            Err(BufferFull) => assert!(room < length),
        }
    }
    Ok(out)
}

/// The whole of `bytes` as one frame.
fn read(bytes: &[u8]) -> Result<Frame<'_>, DecodeError> {
    let (frame, used) = decode(bytes, u32::MAX)?.expect("LENGTH is right");
    assert_eq!(used, bytes.len());
    Ok(frame)
}

pub fn notify(u: &mut Unstructured<'_>) -> Result<()> {
    let (id, room, messages) = (id(u)?, u.arbitrary::<u16>()?, messages(u)?);
    let args = messages.iter().flat_map(|(_, args)| args);
    // An arg is two strings at most, with a number in front of each; 32 bytes are more than the
    // rest of each part.
    let ample = messages.iter().map(|(name, _)| 32 + name.len()).sum::<usize>()
        + args
            .map(|arg| 32 + arg.name.len() + arg.value.as_bytes().map_or(0, <[u8]>::len))
            .sum::<usize>()
        + 32;
    let written = written(ample, room.into(), |out| write_notify(out, id, &messages));
    if messages.len() > MAX_MESSAGES || messages.iter().any(|(_, args)| args.len() > 255) {
        assert_eq!(written, Err(BufferFull));
        return Ok(());
    }
    let bytes = written.expect("ample room");
    let Ok(Frame::Notify(notify)) = read(&bytes) else { panic!("no NOTIFY") };
    assert_eq!((notify.id, notify.messages().len()), (id, messages.len()));
    for (message, (name, args)) in notify.messages().zip(&messages) {
        assert_eq!(message.name, *name);
        assert!(message.args().eq(args.iter().copied()));
        assert_eq!(message.args().len(), args.len());
        for arg in args {
            let first = args.iter().find(|other| other.name == arg.name);
            assert_eq!(message.arg(arg.name), first.map(|first| first.value));
        }
    }
    Ok(())
}

/// A name that HAProxy takes.
fn name(u: &mut Unstructured<'_>) -> Result<String> {
    const LETTERS: &[u8] = b"abcXYZ019_.";
    let letters = bytes(u)?
        .iter()
        .take(56)
        .map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]));
    let name: String = letters.collect();
    Ok(if name.is_empty() { "v".to_owned() } else { name })
}

const SCOPES: [Scope; 5] =
    [Scope::Process, Scope::Session, Scope::Transaction, Scope::Request, Scope::Response];

/// An action as it is to be read again. `None` stands for an unset.
type Planned<'a> = (Scope, String, Option<Value<'a>>);

fn set(ack: &mut AckWriter<'_>, (scope, name, value): &Planned<'_>) -> Result<(), BufferFull> {
    let name = VarName::new(name).expect("made of what is allowed");
    match value {
        Some(value) => ack.set_var(*scope, name, *value),
        None => ack.unset_var(*scope, name),
    }
}

/// The bytes that an action is said to need.
fn said_size((_, name, value): &Planned<'_>) -> usize {
    let name = VarName::new(name).expect("made of what is allowed");
    match value {
        Some(value) => AckWriter::set_var_size(name, value),
        None => AckWriter::unset_var_size(name),
    }
}

/// The bytes of an ACK with at most one action, where there is all the room it could need.
fn size(id: FrameId, action: Option<&Planned<'_>>) -> usize {
    let mut out = [0; 5000];
    let mut ack = AckWriter::new(&mut out, id, u32::MAX).expect("ample room");
    if let Some(action) = action {
        set(&mut ack, action).expect("ample room");
    }
    ack.finish()
}

pub fn ack(u: &mut Unstructured<'_>) -> Result<()> {
    let (id, room, limit) =
        (id(u)?, usize::from(u.arbitrary::<u16>()? % 8192), u.arbitrary::<u16>()? % 8192);
    let most = room.min(usize::from(limit) + 4);
    let mut out = vec![0; room];
    let empty = size(id, None);
    let Ok(mut ack) = AckWriter::new(&mut out, id, limit.into()) else {
        assert!(most < empty, "an ACK that has room is refused");
        return Ok(());
    };
    let (mut taken, mut used) = (Vec::<Planned<'_>>::new(), empty);
    while !u.is_empty() {
        if u.ratio(1, 16)? {
            ack.clear();
            taken.clear();
            used = empty;
        }
        let (scope, name) = (*u.choose(&SCOPES)?, name(u)?);
        let planned = (scope, name, if u.arbitrary()? { Some(value(u)?) } else { None });
        let needs = size(id, Some(&planned)) - empty;
        assert_eq!(needs, said_size(&planned), "the size that the functions say");
        let outcome = set(&mut ack, &planned);
        assert_eq!(outcome.is_ok(), used + needs <= most, "an action has room, or has none");
        if outcome.is_ok() {
            taken.push(planned);
            used += needs;
        }
    }
    assert_eq!(ack.finish(), used);
    assert!(empty <= AckWriter::HEADER_MAX && used - 4 <= AckWriter::max_length(used - empty));
    let Ok(Frame::Ack(ack)) = read(&out[..used]) else { panic!("no ACK") };
    assert_eq!(ack.id, id);
    let expected = taken.iter().map(|(scope, name, value)| match value {
        Some(value) => Action::SetVar { scope: *scope, name: name.as_bytes(), value: *value },
        None => Action::UnsetVar { scope: *scope, name: name.as_bytes() },
    });
    assert!(ack.actions().eq(expected));
    Ok(())
}

pub fn hello(u: &mut Unstructured<'_>) -> Result<()> {
    let room = u.arbitrary::<u16>()?.into();
    let versions = if u.arbitrary()? { "2.0" } else { text(u)? };
    let fields = HelloFields {
        versions,
        max_frame_size: u.arbitrary()?,
        capabilities: text(u)?,
        engine_id: if u.arbitrary()? { Some(text(u)?) } else { None },
        healthcheck: u.arbitrary()?,
    };
    let bytes = written(20_000, room, |out| encode_hello(out, &fields)).expect("ample room");
    match read(&bytes) {
        Ok(Frame::HaproxyHello(hello)) => {
            assert_eq!(hello.max_frame_size, fields.max_frame_size);
            assert_eq!(hello.capabilities.text(), fields.capabilities.as_bytes());
            assert_eq!(hello.engine_id, fields.engine_id.map(str::as_bytes));
            assert_eq!(hello.healthcheck, fields.healthcheck.unwrap_or(false));
            assert!(versions.contains('2') && fields.max_frame_size >= 256);
        }
        Err(DecodeError::BadVersion) => assert_ne!(versions, "2.0"),
        Err(DecodeError::BadMaxFrameSize(size)) => {
            assert!(size == fields.max_frame_size && size < 256);
        }
        other => panic!("{other:?}"),
    }

    let capabilities = if u.arbitrary()? { "pipelining,fragmentation" } else { text(u)? };
    let bytes =
        written(20_000, room, |out| encode_agent_hello(out, fields.max_frame_size, capabilities));
    match read(&bytes.expect("ample room")) {
        Ok(Frame::AgentHello(hello)) => {
            assert_eq!(
                (hello.version, hello.max_frame_size),
                (&b"2.0"[..], fields.max_frame_size)
            );
            assert_eq!(hello.capabilities.text(), capabilities.as_bytes());
        }
        Err(DecodeError::BadMaxFrameSize(size)) => {
            assert!(size == fields.max_frame_size && size < 256);
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

pub fn disconnect(u: &mut Unstructured<'_>) -> Result<()> {
    let (room, status, message) = (u.arbitrary::<u16>()?, Status::new(u.arbitrary()?), text(u)?);
    let same = |disconnect: Disconnect<'_>| {
        let kept = disconnect.message.len();
        // A character has up to four bytes, and is not cut.
        assert!(kept == message.len() || message.len() > 255 && (252..=255).contains(&kept));
        assert_eq!((disconnect.status, disconnect.message), (status, &message.as_bytes()[..kept]));
    };
    let bytes = written(512, room.into(), |out| encode_disconnect(out, status, message))
        .expect("ample room");
    let Ok(Frame::HaproxyDisconnect(disconnect)) = read(&bytes) else { panic!("no DISCONNECT") };
    same(disconnect);
    let bytes = written(512, room.into(), |out| encode_agent_disconnect(out, status, message))
        .expect("ample room");
    assert!(bytes.len() <= 320, "320 bytes are said to be enough");
    let Ok(Frame::AgentDisconnect(disconnect)) = read(&bytes) else { panic!("no DISCONNECT") };
    same(disconnect);
    Ok(())
}
