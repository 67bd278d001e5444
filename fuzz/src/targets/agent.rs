//! The agent's connection over a stream that cuts reads and writes anywhere. Each NOTIFY gets its
//! ACK, once, and in order if it is answered at once. The handler may do anything: no NOTIFY is
//! lost, and the connection ends.
//!
//! An input is how the connection ends, its limits, the cuts, and then what HAProxy sends.

use std::collections::HashMap;
use std::future::pending;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::pin::pin;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use spop_agent::testing::Streams;
use spop_agent::{Agent, Handler, Limits, Reply, Request, Scope, Value, VarName};
use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_disconnect, encode_hello};
use spop_codec::{Action, Frame, FrameId, Status, decode};
use tokio::time::{sleep, timeout};

use crate::{CutStream, runtime};

/// The ways of a handler with a request: its arg says which.
mod way {
    /// Sets `echo` to the token.
    pub(super) const NOW: u8 = 0;
    /// Sets it to a string of so many bytes, if that fits.
    pub(super) const LARGE: u8 = 1;
    /// Sets it so many milliseconds later.
    pub(super) const LATER: u8 = 2;
    /// Panics, when it is prepared, when it is answered, or later.
    pub(super) const PANIC_EARLY: u8 = 3;
    pub(super) const PANIC: u8 = 4;
    pub(super) const PANIC_LATER: u8 = 5;
    /// Never has an answer.
    pub(super) const NEVER: u8 = 6;
    pub(super) const COUNT: u8 = 7;
}

const ECHO: VarName<'_> = VarName::from_static("echo");

/// For requests that are answered later: what was set at first.
const EARLY: u64 = u64::MAX;

const DEADLINE: Duration = Duration::from_millis(100);

/// No input is worth more NOTIFYs.
const MOST: usize = 700;

#[derive(Clone, Copy)]
struct Asked {
    way: u8,
    size: u16,
    token: u64,
}

struct Echo;

impl Handler for Echo {
    type Round = ();
    type Prepared = Option<Asked>;

    fn round(&self) {}

    fn prepare(&self, (): &mut (), request: &Request<'_>) -> Option<Asked> {
        let message = request.messages().next()?;
        let number =
            |at| message.arg_at(at).and_then(|value| u64::try_from(value.as_integer()?).ok());
        let asked = Asked {
            way: u8::try_from(number(0)?).ok()?,
            size: u16::try_from(number(1)?).ok()?,
            token: number(2)?,
        };
        if asked.way == way::PANIC_EARLY {
            // Without the panic's message, which would end the fuzzer.
            resume_unwind(Box::new(()));
        }
        Some(asked)
    }

    fn answer(&self, (): &mut (), asked: Option<Asked>, _: &Request<'_>, reply: &mut Reply<'_>) {
        let Some(Asked { way, size, token }) = asked else { return };
        match way {
            // Where there is no room the answer is empty.
            way::NOW => {
                reply.set_var(Scope::Transaction, ECHO, token);
            }
            way::LARGE => {
                reply.set_var(Scope::Transaction, ECHO, &*"x".repeat(size.into()));
            }
            way::PANIC => {
                reply.set_var(Scope::Transaction, ECHO, token);
                resume_unwind(Box::new(()));
            }
            _ => {
                reply.set_var(Scope::Transaction, ECHO, EARLY);
                reply.later(async move |mut reply| {
                    if way == way::NEVER {
                        pending::<()>().await;
                    }
                    if size % 64 > 0 {
                        sleep(Duration::from_millis(u64::from(size % 64))).await;
                    }
                    if way == way::PANIC_LATER {
                        resume_unwind(Box::new(()));
                    }
                    reply.set_var(Scope::Transaction, ECHO, token);
                    reply
                });
            }
        }
    }
}

/// The bytes that HAProxy sends, and the requests in them.
struct Script {
    bytes: Vec<u8>,
    asked: Vec<(FrameId, Asked)>,
    /// Something was sent that HAProxy would not send.
    is_damaged: bool,
}

fn frame(kind: u8, flags: u32, id: FrameId, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    // The ids as the codec writes them, in a NOTIFY of its own.
    let header = NotifyWriter::new(&mut bytes, id).expect("room").finish();
    bytes.truncate(header);
    bytes[4] = kind;
    bytes[5..9].copy_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(payload);
    let length = u32::try_from(bytes.len() - 4).expect("small");
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

impl Script {
    fn new(u: &mut Unstructured<'_>, max_frame_size: u32) -> Result<Self> {
        let mut script = Self { bytes: Vec::new(), asked: Vec::new(), is_damaged: false };
        let mut out = [0; 512];
        let fields = HelloFields {
            max_frame_size,
            capabilities: if u.arbitrary()? { "pipelining,async" } else { "pipelining" },
            engine_id: Some("fuzz"),
            ..HelloFields::default()
        };
        let length = encode_hello(&mut out, &fields).expect("room");
        script.bytes.extend_from_slice(&out[..length]);
        while !u.is_empty() && script.asked.len() < MOST {
            match u.arbitrary::<u8>()? % 16 {
                0..8 => script.notifies(u, 1)?,
                8 | 9 => {
                    let count = u.arbitrary::<u8>()?;
                    script.notifies(u, count.into())?;
                }
                10 | 11 => script.pieces(u)?,
                12 => {
                    // Skipped, as it is of no known type.
                    let id = FrameId { stream: 3, frame: 1 };
                    script.bytes.extend(frame(50, 1, id, &[7; 20]));
                }
                13 => {
                    // No message.
                    let id = script.next_id(u)?;
                    script.bytes.extend(frame(3, 1, id, &[]));
                    script.asked.push((id, Asked { way: way::COUNT, size: 0, token: 0 }));
                }
                14 if u.ratio(1, 4)? => {
                    let count = u.arbitrary::<u8>()? % 32;
                    let bytes = u.bytes(usize::from(count).min(u.len()))?;
                    script.bytes.extend_from_slice(bytes);
                    script.is_damaged |= !bytes.is_empty();
                }
                _ => {}
            }
        }
        Ok(script)
    }

    fn next_id(&self, u: &mut Unstructured<'_>) -> Result<FrameId> {
        let stream = match u.arbitrary()? {
            // Repeated ids are answered again.
            0_u8 => 1,
            1 => u.arbitrary()?,
            _ => self.asked.len() as u64,
        };
        Ok(FrameId { stream, frame: 1 })
    }

    /// A NOTIFY's payload: one message, padded.
    fn payload(&mut self, u: &mut Unstructured<'_>) -> Result<(FrameId, Vec<u8>)> {
        let id = self.next_id(u)?;
        let asked = Asked {
            way: u.arbitrary::<u8>()? % way::COUNT,
            size: u.arbitrary()?,
            token: self.asked.len() as u64,
        };
        let padding = match u.arbitrary()? {
            255_u8 => 5000,
            less => usize::from(less % 64),
        };
        let mut out = vec![0; 6000];
        let mut writer = NotifyWriter::new(&mut out, FrameId::default()).expect("room");
        let header = 4 + 1 + 4 + 2;
        writer.message(b"m").expect("room");
        for number in [asked.way.into(), asked.size.into(), asked.token] {
            writer.arg(b"", Value::Uint64(number)).expect("room");
        }
        writer.arg(b"", Value::Binary(&vec![7; padding])).expect("room");
        let length = writer.finish();
        self.asked.push((id, asked));
        Ok((id, out[header..length].to_vec()))
    }

    fn notifies(&mut self, u: &mut Unstructured<'_>, count: usize) -> Result<()> {
        for _ in 0..count.min(MOST - self.asked.len()) {
            let (id, payload) = self.payload(u)?;
            self.bytes.extend(frame(3, 1, id, &payload));
        }
        Ok(())
    }

    /// A NOTIFY in up to four pieces.
    fn pieces(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (id, mut payload) = self.payload(u)?;
        let mut kind = 3;
        for _ in 0..u.arbitrary::<u8>()? % 3 {
            let rest = payload.split_off(u.choose_index(payload.len() + 1)?);
            self.bytes.extend(frame(kind, 0, id, &payload));
            (kind, payload) = (0, rest);
        }
        self.bytes.extend(frame(kind, if kind == 3 { 0 } else { 1 }, id, &payload));
        if kind == 3 {
            self.bytes.extend(frame(0, 1, id, &[]));
        }
        Ok(())
    }
}

/// One input.
pub fn run(input: &[u8]) {
    // An input that ends early gives zeros, and no error that matters.
    let _ = chosen(&mut Unstructured::new(input));
}

fn chosen(u: &mut Unstructured<'_>) -> Result<()> {
    let ending = u.arbitrary::<u8>()? % 3;
    let max_in_flight =
        NonZeroUsize::new(1 + usize::from(u.arbitrary::<u8>()? % 80)).expect("at least 1");
    let max_frame_size = if u.arbitrary()? { 16_380 } else { 6_000 };
    let max_ack_size = *u.choose(&[25, 40, 815, 5_000, 100_000])?;
    let stop_after = Duration::from_millis(u.arbitrary::<u8>()?.into());
    let cuts = u.arbitrary::<u8>()? % 12;
    let cuts = u.bytes(usize::from(cuts).min(u.len()))?.to_vec();
    let mut script = Script::new(u, max_frame_size)?;

    let (disconnects, stops) = (ending == 0, ending == 2);
    if disconnects {
        let mut out = [0; 512];
        let length = encode_disconnect(&mut out, Status::NORMAL, "").expect("room");
        script.bytes.extend_from_slice(&out[..length]);
    }
    let sent = script.bytes.len();
    let mut stream = CutStream::new(std::mem::take(&mut script.bytes), cuts, ending == 1);
    let mut limits = Limits::default();
    limits.max_ack_size = max_ack_size;
    let agent = Agent::new(Echo).limits(limits).deadline(DEADLINE).max_in_flight(max_in_flight);
    let counters = agent.counters();
    let agent = Streams::new(agent);
    let stop = async {
        match stops {
            true => sleep(stop_after).await,
            false => pending().await,
        }
    };
    let end = runtime().block_on(async {
        // More than all that it ever waits for together.
        timeout(Duration::from_secs(600), pin!(agent.serve(&mut stream, stop))).await
    });
    let end = end.expect("the connection ends");
    let counted = counters.snapshot();
    assert_eq!((counted.open, counted.waiting), (0, 0), "{end}");
    let most = 100 + 20 * (sent + stream.output.len());
    assert!(
        stream.polls < most,
        "{} polls for {sent} bytes and {}",
        stream.polls,
        stream.output.len()
    );
    check(&script, &stream, ending, &end);
    Ok(())
}

fn check(script: &Script, stream: &CutStream, ending: u8, end: &str) {
    let mut acks = Vec::new();
    let (mut hellos, mut goodbye) = (0, None);
    let mut at = 0;
    while let Some((frame, used)) = decode(&stream.output[at..], 1 << 20).expect("good frames") {
        assert!(goodbye.is_none(), "nothing follows a DISCONNECT");
        match frame {
            Frame::AgentHello(_) => hellos += 1,
            Frame::Ack(ack) => acks.push(ack),
            Frame::AgentDisconnect(disconnect) => goodbye = Some(disconnect.status),
            other => panic!("{other:?}"),
        }
        at += used;
    }
    // A frame that is cut off at the end can only be cut by an end that comes from outside.
    assert!(hellos <= 1 && (at == stream.output.len() || ending != 0), "{end}");

    // Where something else was sent, less may have been asked, or other things.
    if script.is_damaged {
        return;
    }
    let mut unanswered: HashMap<FrameId, Vec<usize>> = HashMap::new();
    for (place, (id, _)) in script.asked.iter().enumerate().rev() {
        unanswered.entry(*id).or_default().push(place);
    }
    // Of answers to the same ids nobody knows which is to which: they are only counted.
    let is_unique: HashMap<FrameId, bool> =
        unanswered.iter().map(|(id, places)| (*id, places.len() == 1)).collect();
    let mut at_once = Vec::new();
    for ack in &acks {
        let actions: Vec<_> = ack.actions().collect();
        let place = unanswered.get_mut(&ack.id).and_then(Vec::pop);
        let Some(place) = place else { panic!("{:?} was not asked so often: {end}", ack.id) };
        if !is_unique[&ack.id] {
            continue;
        }
        let asked = &script.asked[place].1;
        assert!(is_answer(asked, &actions), "{actions:?} is no answer to {:?}: {end}", ack.id);
        if is_at_once(asked) {
            at_once.push(place);
        }
    }
    assert!(at_once.is_sorted(), "what is answered at once is answered in order: {at_once:?}");
    let missing: Vec<_> = unanswered.values().flatten().copied().collect();
    match ending {
        // All that came before the DISCONNECT is answered first.
        0 => {
            assert_eq!(missing, [0_usize; 0], "{end}");
            assert_eq!(goodbye, Some(Status::NORMAL), "{end}");
        }
        // A peer that has closed hears no late answers, but had all others.
        1 => {
            let lost = missing.iter().find(|place| {
                let (id, asked) = &script.asked[**place];
                is_unique[id] && is_at_once(asked)
            });
            assert!(lost.is_none() || is_held_up(script), "{lost:?}: {end}");
        }
        _ => {}
    }
}

fn is_at_once(asked: &Asked) -> bool {
    !matches!(asked.way, way::LATER | way::PANIC_LATER | way::NEVER)
}

/// Whether some may wait, so that what is behind them may not be read before the peer is gone.
fn is_held_up(script: &Script) -> bool {
    script.asked.iter().any(|(_, asked)| !is_at_once(asked))
}

fn is_answer(asked: &Asked, actions: &[Action<'_>]) -> bool {
    let set = match actions {
        [] => None,
        [Action::SetVar { scope: Scope::Transaction, name: b"echo", value }] => Some(*value),
        _ => return false,
    };
    match (asked.way, set) {
        // There may be no room for it.
        (way::NOW, None) => true,
        (way::NOW, Some(value)) => value == Value::Uint64(asked.token),
        (way::LARGE, None) => true,
        (way::LARGE, Some(Value::String(text))) => text.len() == usize::from(asked.size),
        (way::LATER, Some(value)) => {
            [Value::Uint64(asked.token), Value::Uint64(EARLY)].contains(&value)
        }
        (way::PANIC_LATER | way::NEVER, Some(value)) => value == Value::Uint64(EARLY),
        (way::LATER | way::PANIC_LATER | way::NEVER, None) => true,
        (way::PANIC | way::PANIC_EARLY | way::COUNT, None) => true,
        _ => false,
    }
}
