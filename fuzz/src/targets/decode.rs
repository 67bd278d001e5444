//! Any bytes through `decode`: it takes what is there and no more, knows a frame as soon as it is
//! whole, and what it takes can be walked to its end.

use allocation_counter::measure;
use spop_codec::{AckWriter, Action, DecodeError, Frame, HeaderList, Notify, VarName, decode};

use crate::rewritten;

/// Small enough to be passed by a small input; HAProxy's; none.
const LIMITS: [u32; 4] = [64, 256, 16380, u32::MAX];

/// One input.
pub fn run(input: &[u8]) {
    let counted = measure(|| look(input));
    assert_eq!(counted.count_total, 0, "the codec allocates");

    let unlimited = decode(input, u32::MAX);
    match unlimited {
        Ok(Some((Frame::Notify(notify), used))) => {
            let again = rewritten(&notify, used);
            assert!(
                same(&decode(&again, u32::MAX), &unlimited),
                "written again it reads otherwise"
            );
        }
        Ok(Some((Frame::Ack(ack), used))) => {
            let mut out = vec![0; used];
            let mut writer =
                AckWriter::new(&mut out, ack.id, u32::MAX).expect("so many bytes had them");
            for action in ack.actions() {
                let (Action::SetVar { name, .. } | Action::UnsetVar { name, .. }) = action;
                let Some(name) =
                    str::from_utf8(name).ok().and_then(|name| VarName::new(name).ok())
                else {
                    return;
                };
                let written = match action {
                    Action::SetVar { scope, value, .. } => writer.set_var(scope, name, value),
                    Action::UnsetVar { scope, .. } => writer.unset_var(scope, name),
                };
                written.expect("so many bytes had it");
            }
            assert_eq!(writer.finish(), used, "something that was read is not given out");
            assert!(same(&decode(&out, u32::MAX), &unlimited), "written again it reads otherwise");
        }
        Err(error) => assert!(!error.to_string().is_empty() && error.status().code() != 0),
        _ => {}
    }
}

/// Reads it with each limit, and each part of it.
fn look(input: &[u8]) {
    walk_headers(input);
    let unlimited = decode(input, u32::MAX);
    if let Ok(Some((frame, _))) = &unlimited {
        walk(frame);
    }
    for limit in LIMITS {
        let outcome = decode(input, limit);
        match outcome {
            Err(DecodeError::TooBig { length, max_frame_size }) => {
                assert!(length > limit && max_frame_size == limit);
            }
            _ => assert!(same(&outcome, &unlimited)),
        }
        if let Ok(Some((_, used))) = outcome {
            assert!((11..=input.len()).contains(&used) && used - 4 <= limit as usize);
        }
        // Whatever the bytes are, every prefix waits or has the outcome of the whole.
        let decided =
            (0..=input.len()).find(|cut| !matches!(decode(&input[..*cut], limit), Ok(None)));
        let first = decode(&input[..decided.unwrap_or(input.len())], limit);
        assert!(same(&first, &outcome));
        match (decided, outcome) {
            (None, outcome) => assert!(matches!(outcome, Ok(None))),
            (Some(cut), Ok(Some((_, used)))) => assert_eq!(cut, used),
            (Some(cut), Err(DecodeError::TooShort(_) | DecodeError::TooBig { .. })) => {
                assert_eq!(cut, 4);
            }
            (Some(cut), _) => assert!(cut >= 11),
        }
    }
}

type Outcome<'a> = Result<Option<(Frame<'a>, usize)>, DecodeError>;

fn same(one: &Outcome<'_>, other: &Outcome<'_>) -> bool {
    match (one, other) {
        (Ok(None), Ok(None)) => true,
        (Err(one), Err(other)) => one == other,
        (Ok(Some((one, used))), Ok(Some((other, also)))) => used == also && same_frame(one, other),
        _ => false,
    }
}

fn same_frame(one: &Frame<'_>, other: &Frame<'_>) -> bool {
    match (one, other) {
        (Frame::HaproxyHello(one), Frame::HaproxyHello(other)) => one == other,
        (Frame::AgentHello(one), Frame::AgentHello(other)) => one == other,
        (Frame::HaproxyDisconnect(one), Frame::HaproxyDisconnect(other))
        | (Frame::AgentDisconnect(one), Frame::AgentDisconnect(other)) => one == other,
        (Frame::Notify(one), Frame::Notify(other)) => same_notify(one, other),
        (Frame::Ack(one), Frame::Ack(other)) => {
            one.id == other.id && one.actions().eq(other.actions())
        }
        (Frame::Fragment(one), Frame::Fragment(other)) => one == other,
        (Frame::Unknown(one), Frame::Unknown(other)) => one == other,
        _ => false,
    }
}

fn same_notify(one: &Notify<'_>, other: &Notify<'_>) -> bool {
    one.id == other.id
        && one.messages().len() == other.messages().len()
        && one
            .messages()
            .zip(other.messages())
            .all(|(one, other)| one.name == other.name && one.args().eq(other.args()))
}

fn walk(frame: &Frame<'_>) {
    match frame {
        Frame::Notify(notify) => {
            let mut left = notify.messages();
            while let Some(message) = left.next() {
                // Asked for after its args were walked and after they were not.
                let mut args = message.args();
                assert_eq!(message.args().len(), message.args().count());
                while let Some(arg) = args.next() {
                    arg.value.as_bytes().map(walk_headers);
                    assert!(args.len() < message.args().len());
                }
                if let Some(arg) = message.args().last() {
                    let first =
                        message.args().find(|other| other.name == arg.name).map(|arg| arg.value);
                    assert_eq!(message.arg(arg.name), first);
                }
                assert_eq!(left.len(), left.clone().count());
            }
            assert_eq!(notify.messages().len(), notify.messages().count());
        }
        Frame::Ack(ack) => ack.actions().for_each(drop),
        Frame::HaproxyHello(hello) => {
            assert!(hello.max_frame_size >= 256);
            let _ = (hello.capabilities.pipelining(), hello.capabilities.fragmentation());
        }
        Frame::AgentHello(hello) => assert!(hello.max_frame_size >= 256),
        _ => {}
    }
}

fn walk_headers(bytes: &[u8]) {
    let mut headers = HeaderList::new(bytes);
    let taken: usize = headers.by_ref().map(|(name, value)| 2 + name.len() + value.len()).sum();
    assert!(taken <= bytes.len());
    assert!(headers.is_complete().is_some() && headers.next().is_none());
}
