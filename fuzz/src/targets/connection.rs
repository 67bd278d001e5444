//! A session of good, damaged and strange frames, in any pieces and with time between them: the
//! pieces change nothing.
//!
//! An input is a byte that chooses the limits, and then steps, each begun by a byte of `step`.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use spop_codec::haproxy::{HelloFields, encode_disconnect, encode_hello};
use spop_codec::{
    Connection, Event, Frame, FrameId, Limits, Place, ProtocolError, Status, Welcome, decode,
};

use crate::{Messages, bytes, id, messages, rewritten, step, text, write_notify};

/// When the connection is opened.
const OPENED: Duration = Duration::from_secs(1000);

/// No frame is longer, and no session, except its last step. It is more than HAProxy's 16384, and
/// not so much that the target is slow.
const LONGEST: usize = 20_000;

/// One input.
pub fn run(input: &[u8]) {
    // An input that ends inside a step gives zeros, and no error that matters.
    let Ok(script) = Script::read(&mut Unstructured::new(input)) else { return };
    let whole = script.deliver([(script.bytes.len(), Duration::ZERO)]);
    let end = (script.bytes.len(), Duration::ZERO);
    assert_eq!(script.deliver(script.cuts.iter().copied().chain([end])), whole);
    if script.bytes.len() < 2048 {
        assert_eq!(script.deliver((1..=script.bytes.len()).map(|at| (at, Duration::ZERO))), whole);
    }

    let seen: Vec<_> = whole.events.iter().filter_map(Noted::notify).collect();
    let sure = script
        .notifies
        .iter()
        .filter(|(end, _)| *end <= script.good)
        .map(|(_, notify)| &notify[..]);
    let sure: Vec<_> = sure.collect();
    assert!(seen.starts_with(&sure), "a good NOTIFY is not seen once, and in its turn");
    if script.good == script.bytes.len() {
        assert_eq!((seen.len(), whole.error), (sure.len(), None));
    }
}

/// The bytes that are sent, and how.
struct Script {
    limits: Limits,
    bytes: Vec<u8>,
    /// Where pieces end, and how much time passes before each.
    cuts: Vec<(usize, Duration)>,
    /// Up to here all is as HAProxy would send it.
    good: usize,
    /// The NOTIFYs and where they end.
    notifies: Vec<(usize, Vec<u8>)>,
}

impl Script {
    fn read(u: &mut Unstructured<'_>) -> Result<Self> {
        let choice = usize::from(u.arbitrary::<u8>()?);
        let mut limits = Limits::default();
        limits.max_frame_size = [1 << 20, 0, 256, 1000, 16380][choice % 5];
        limits.max_ack_size = [815, 0, 100, u32::MAX][choice / 5 % 4];
        let mut script =
            Self { limits, bytes: Vec::new(), cuts: Vec::new(), good: 0, notifies: Vec::new() };
        let mut out = vec![0; LONGEST];
        // The largest frame, once the HELLO was good.
        let mut agreed = None;
        while !u.is_empty() && script.bytes.len() < LONGEST {
            let start = script.bytes.len();
            let step = u.arbitrary::<u8>()? % step::COUNT;
            let good = match step {
                step::HELLO => {
                    let any_size = u.arbitrary::<u16>()?.into();
                    let fields = HelloFields {
                        versions: if u.ratio(15, 16)? { "2.0" } else { text(u)? },
                        max_frame_size: *u.choose(&[16380, 65535, 256, any_size])?,
                        capabilities: u.choose(&[
                            "pipelining",
                            "",
                            "pipelining,async",
                            " x , pipelining ",
                        ])?,
                        engine_id: if u.arbitrary()? { Some(text(u)?) } else { None },
                        healthcheck: *u.choose(&[None, None, Some(false), Some(true)])?,
                    };
                    let length =
                        encode_hello(&mut out, &fields).expect("three texts of 4 KiB at most");
                    script.bytes.extend_from_slice(&out[..length]);
                    // A HELLO may have 16 KiB, whatever frames may have later.
                    let own = limits.max_frame_size.max(256);
                    let good = start == 0
                        && fields.versions == "2.0"
                        && fields.max_frame_size >= 256
                        && length - 4 <= own.min(16_384) as usize;
                    if good && fields.healthcheck != Some(true) {
                        agreed = Some(fields.max_frame_size.min(own) as usize);
                    }
                    good
                }
                step::NOTIFY => {
                    let (id, messages) = (id(u)?, messages(u)?);
                    let Ok(length) = write_notify(&mut out, id, &messages) else { continue };
                    script.bytes.extend_from_slice(&out[..length]);
                    script.notifies.push((start + length, out[..length].to_vec()));
                    agreed.is_some_and(|agreed| length - 4 <= agreed)
                }
                step::FRAGMENTS => {
                    let (id, messages, pieces) = (id(u)?, messages(u)?, u.int_in_range(1..=80)?);
                    let Ok(length) = write_notify(&mut out, id, &messages) else { continue };
                    let (largest, count) = script.fragments(id, &out[..length], pieces);
                    script.notifies.push((script.bytes.len(), out[..length].to_vec()));
                    agreed.is_some_and(|agreed| largest <= agreed && count <= 64)
                }
                step::DISCONNECT => {
                    let length =
                        encode_disconnect(&mut out, Status::new(u.arbitrary()?), text(u)?)
                            .expect("at most 320 bytes");
                    script.bytes.extend_from_slice(&out[..length]);
                    agreed.take().is_some_and(|agreed| length - 4 <= agreed)
                }
                step::FRAME => {
                    let (kind, flags, payload) = (u.arbitrary()?, u.arbitrary()?, bytes(u)?);
                    script.frame(kind, flags, payload);
                    // Types that SPOP does not define are passed over.
                    let length = 5 + payload.len();
                    matches!(kind, 4..=100 | 104..)
                        && agreed.is_some_and(|agreed| (7..=agreed).contains(&length))
                }
                step::RAW => {
                    let length = usize::from(u.arbitrary::<u16>()?);
                    script.bytes.extend_from_slice(u.bytes(length.min(u.len()))?);
                    false
                }
                step::DAMAGE => {
                    let (at, change) = (usize::from(u.arbitrary::<u16>()?), u.arbitrary::<u8>()?);
                    if start > 0 {
                        script.bytes[at % start] ^= change;
                        script.good = script.good.min(at % start);
                    }
                    continue;
                }
                _ => {
                    let end = start.saturating_sub(u.arbitrary::<u8>()?.into());
                    let last = script.cuts.last().map_or(0, |(end, _)| *end);
                    let wait = Duration::from_millis(100) * u.arbitrary::<u8>()?.into();
                    script.cuts.push((end.max(last), wait));
                    continue;
                }
            };
            if good && script.good == start {
                script.good = script.bytes.len();
            }
        }
        Ok(script)
    }

    fn frame(&mut self, kind: u8, flags: u32, after_flags: &[u8]) {
        let length = u32::try_from(5 + after_flags.len()).expect("short");
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&flags.to_be_bytes());
        self.bytes.extend_from_slice(after_flags);
    }

    /// Sends a NOTIFY as HAProxy up to 3.0 sends one that is too large: NOTIFY without FIN, then
    /// type 0, FIN at the last. Returns the largest LENGTH, and how many pieces there are.
    fn fragments(&mut self, id: FrameId, notify: &[u8], pieces: usize) -> (usize, usize) {
        let mut out = [0; 32];
        let header = write_notify(&mut out, id, &Messages::new()).expect("29 bytes at most");
        let (ids, payload) = (&out[9..header], &notify[header..]);
        let each = payload.len().div_ceil(pieces).max(1);
        let count = payload.chunks(each).len();
        if count == 0 {
            self.frame(3, 1, ids);
        }
        for (index, piece) in payload.chunks(each).enumerate() {
            let kind = if index == 0 { 3 } else { 0 };
            self.frame(kind, u32::from(index + 1 == count), &[ids, piece].concat());
        }
        (5 + ids.len() + each, count)
    }

    /// Feeds a connection piece by piece.
    fn deliver(&self, pieces: impl IntoIterator<Item = (usize, Duration)>) -> Outcome {
        let mut now = OPENED;
        let mut connection = Connection::new(self.limits, now);
        let mut clock = Clock::new(self.limits);
        let (mut outcome, mut at) = (Outcome::default(), 0);
        let mut payload = Vec::new();
        // Nothing that comes after means anything.
        let mut over = false;
        for (end, wait) in pieces {
            now += wait;
            // Ends: each turn takes bytes, except the one error.
            loop {
                let held = &self.bytes[at..end.max(at)];
                let received = connection.receive(held, now);
                if over {
                    match received {
                        Ok(None) => assert!(held.is_empty()),
                        Ok(Some((Event::Skipped, used))) => assert_eq!(used, held.len()),
                        other => panic!("after the end: {other:?}"),
                    }
                }
                match received {
                    Ok(None) => break,
                    Ok(Some((event, used))) => {
                        assert!((1..=held.len()).contains(&used));
                        at += used;
                        clock.event(&event, connection.is_running());
                        over |=
                            matches!(event, Event::Disconnect(_)) || connection.is_healthcheck();
                        outcome.note(&event, used);
                        if let Event::Fragment(fragment) = event {
                            if fragment.place == Place::First {
                                payload.clear();
                            }
                            payload.extend_from_slice(fragment.bytes);
                            if fragment.place == Place::Last {
                                match connection.reassembled(fragment.id, &payload) {
                                    Ok(notify) => {
                                        let mut out = [0; 32];
                                        let header =
                                            write_notify(&mut out, fragment.id, &Messages::new())
                                                .expect("29 bytes at most");
                                        let whole = rewritten(&notify, header + payload.len());
                                        outcome.events.push(Noted::Notify(whole));
                                    }
                                    Err(error) => {
                                        assert_eq!(outcome.error.replace(error), None);
                                        over = true;
                                    }
                                }
                            }
                        }
                    }
                    Err(error) => {
                        assert_eq!(outcome.error.replace(error), None);
                        assert!(!error.to_string().is_empty() && error.status() != Status::NORMAL);
                        over = true;
                    }
                }
            }
            clock.check(&connection, end.max(at) - at, now);
        }
        outcome.state =
            (connection.is_running(), connection.is_healthcheck(), connection.unknown_frames());
        outcome.max_ack_size = connection.max_ack_size(0);
        assert!(outcome.max_ack_size <= self.limits.max_ack_size.max(25));
        outcome
    }
}

/// The outcome of a session, which must not depend on the pieces it came in.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    events: Vec<Noted>,
    error: Option<ProtocolError>,
    state: (bool, bool, u64),
    max_ack_size: u32,
}

impl Outcome {
    fn note(&mut self, event: &Event<'_>, used: usize) {
        let noted = match event {
            Event::Hello(welcome) => {
                let engine_id = welcome.hello.engine_id.map(<[u8]>::to_vec);
                Noted::Hello {
                    answer: answer(welcome),
                    engine_id,
                    healthcheck: welcome.hello.healthcheck,
                }
            }
            Event::Notify(notify) => Noted::Notify(rewritten(notify, used)),
            Event::Disconnect(disconnect) => {
                Noted::Disconnect(disconnect.status, disconnect.message.to_vec())
            }
            _ => Noted::Skipped(used),
        };
        // In how many events bytes are skipped depends on the pieces.
        match (self.events.last_mut(), noted) {
            (Some(Noted::Skipped(before)), Noted::Skipped(used)) => *before += used,
            (_, noted) => self.events.push(noted),
        }
    }
}

/// An event that owns its bytes.
#[derive(Debug, PartialEq)]
enum Noted {
    Hello {
        answer: Vec<u8>,
        engine_id: Option<Vec<u8>>,
        healthcheck: bool,
    },
    /// Written again.
    Notify(Vec<u8>),
    Disconnect(Status, Vec<u8>),
    /// So many bytes.
    Skipped(usize),
}

impl Noted {
    fn notify(&self) -> Option<&[u8]> {
        match self {
            Self::Notify(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The AGENT-HELLO, which may claim no more than HAProxy offers.
fn answer(welcome: &Welcome<'_>) -> Vec<u8> {
    let mut out = [0; Welcome::MAX_SIZE];
    let length = welcome.encode(&mut out).expect("the room that is said to be enough");
    let Ok(Some((Frame::AgentHello(answer), used))) =
        decode(&out[..length], welcome.hello.max_frame_size)
    else {
        panic!("no AGENT-HELLO")
    };
    assert_eq!(used, length);
    assert!((256..=welcome.hello.max_frame_size).contains(&answer.max_frame_size));
    assert!(welcome.hello.capabilities.pipelining() || !answer.capabilities.pipelining());
    assert_eq!(answer.capabilities.pipelining(), welcome.pipelining());
    out[..length].to_vec()
}

/// The deadline that must be set.
struct Clock {
    limits: Limits,
    /// The deadline that is waited for. It does not move: who sends byte by byte wins no time.
    given: Option<Duration>,
    /// Pieces of a payload have come, and not the last one: it has one deadline.
    begun: bool,
}

impl Clock {
    fn new(limits: Limits) -> Self {
        Self { limits, given: Some(OPENED + limits.hello_timeout), begun: false }
    }

    /// The HELLO, or another frame, was whole in time.
    fn event(&mut self, event: &Event<'_>, running: bool) {
        if let Event::Fragment(fragment) = event {
            self.begun = matches!(fragment.place, Place::First | Place::Next);
        }
        if (running && !self.begun) || matches!(event, Event::Hello(_)) {
            self.given = None;
        }
    }

    fn check(&mut self, connection: &Connection, unread: usize, now: Duration) {
        if connection.is_running() {
            let begun = || now + self.limits.frame_timeout;
            self.given = (unread > 0 || self.begun).then(|| self.given.unwrap_or_else(begun));
        } else if connection.is_healthcheck() {
            self.given = self.given.or(Some(now + self.limits.healthcheck_linger));
        } else if !connection.awaits_hello() {
            // Nothing is awaited any more.
            return;
        }
        assert_eq!(connection.deadline(), self.given);
    }
}
