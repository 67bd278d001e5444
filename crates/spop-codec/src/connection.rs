//! The agent's end of one connection: which frames may come, under which limits, and until when.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use crate::ack::AckWriter;
use crate::disconnect::Disconnect;
use crate::error::DecodeError;
use crate::frame::RawFrame;
use crate::hello::{HAPROXY_FRAME_SIZE, Hello, MIN_MAX_FRAME_SIZE, encode_agent_hello};
use crate::notify::Notify;
use crate::reader::Reader;
use crate::shape::{RawIds, Shape};
use crate::status::Status;
use crate::wire::{FrameId, LENGTH_BYTES, kind};
use crate::writer::BufferFull;

/// How many NOTIFYs HAProxy has in flight on one connection at most.
const IN_FLIGHT: u32 = 20;

/// The largest LENGTH of a HELLO. HAProxy's HELLO has at most 133 bytes, and only HAProxy should
/// connect.
const MAX_HELLO_SIZE: u32 = 16_384;

/// The most pieces that one payload may come in.
const MAX_FRAGMENTS: u32 = 64;

/// The first ACKs of a connection may have this LENGTH with any offer of HAProxy, so that two
/// small variables always fit. A buffer of 2.3 kB has space for [`IN_FLIGHT`] such ACKs. A smaller
/// offer rather comes from a smaller max-frame-size than from such a buffer.
const MIN_EARLY_ACK_SIZE: u32 = 110;

/// The smallest limit for the LENGTH of an ACK: an ACK without actions always fits.
const MIN_ACK_SIZE: u32 = length(AckWriter::max_length(0));

/// The limit for the LENGTH of an ACK by default: [`IN_FLIGHT`] of them fit into HAProxy's default
/// buffer.
const DEFAULT_MAX_ACK_SIZE: u32 = in_flight_ack_size(HAPROXY_FRAME_SIZE);

/// The largest LENGTH of which [`IN_FLIGHT`] ACKs do not completely fill a buffer that takes one
/// frame of this size.
const fn in_flight_ack_size(max_frame_size: u32) -> u32 {
    let below_full = max_frame_size.saturating_add(length(LENGTH_BYTES) - 1);
    (below_full / IN_FLIGHT).saturating_sub(length(LENGTH_BYTES))
}

/// A small length, as LENGTH has it.
#[expect(clippy::cast_possible_truncation, reason = "only constants below 100")]
const fn length(bytes: usize) -> u32 {
    bytes as u32
}

/// The limits that an agent sets for a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest LENGTH that the agent accepts, 256 or more. HAProxy offers `tune.bufsize` - 4,
    /// which is 16380 unless it is configured, and the smaller of the two values is in force.
    /// HAProxy up to 3.0 sends a message that does not fit in pieces: see
    /// [`max_payload_size`](Self::max_payload_size). Later versions do not send it, and the
    /// request goes on without an answer. Default: 1 MiB, so that HAProxy decides.
    pub max_frame_size: u32,
    /// The largest LENGTH of an ACK that the agent writes, 25 (an ACK without actions) or more.
    /// HAProxy from 3.1 on stops reading a connection for ever once its receive buffer is
    /// completely full. So the agent offers several NOTIFYs in flight only if 20 ACKs of this size
    /// stay below a buffer for one frame of HAProxy's offer. It also offers them if HAProxy is
    /// known to be older. Where it does not, the first 20 ACKs of a connection are kept as small,
    /// because HAProxy may send 20 NOTIFYs before it has read the agent's HELLO. Default: 815,
    /// with which 20 fit if HAProxy offers 16380, its default.
    pub max_ack_size: u32,
    /// The largest payload that may come in pieces, in bytes; 0 to offer no such payloads.
    /// HAProxy up to 3.0 cuts a message that is larger than a frame. If the agent does not
    /// offer to accept the pieces, it closes the connection with everything that is in flight
    /// on it. Later versions never cut. Default: 1 MiB.
    pub max_payload_size: u32,
    /// How long after the connection was opened its HELLO must have come. Default: 10 s.
    pub hello_timeout: Duration,
    /// How long after its first byte a frame must be whole. A payload in pieces must be whole in
    /// the same time. Default: 10 s.
    pub frame_timeout: Duration,
    /// How long HAProxy may keep a connection open after its health check was answered. Default:
    /// 1 s.
    pub healthcheck_linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_frame_size: 1 << 20,
            max_ack_size: DEFAULT_MAX_ACK_SIZE,
            max_payload_size: 1 << 20,
            hello_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(10),
            healthcheck_linger: Duration::from_secs(1),
        }
    }
}

/// The state of a connection. It has no socket, buffer or clock: give it what has arrived, and do
/// what the events say.
///
/// All times are durations since one moment of the caller's choice.
#[derive(Clone, Debug)]
pub struct Connection {
    limits: Limits,
    state: State,
    /// The limit for LENGTH on both sides: the agent's own until the HELLO, then the agreed one.
    max_frame_size: u32,
    /// The time until which the HELLO, the rest of a frame or payload, or the end of a health
    /// check must have come.
    deadline: Option<Duration>,
    unknown_frames: u64,
    /// How many of the next ACKs must have at most this LENGTH.
    early_acks: (u32, u32),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    AwaitHello,
    Running,
    /// Pieces of a payload have come, but not the last one.
    Reassembling(Pieces),
    HealthCheck,
    /// Either side has sent DISCONNECT, or the agent must because of an error. Bytes that come now
    /// are skipped.
    Closing,
}

/// The pieces of a payload that have come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Pieces {
    id: FrameId,
    count: u32,
    bytes: u32,
}

/// A piece of a NOTIFY's payload. Keep the bytes of all pieces, in order. When the last piece has
/// come, [`Connection::reassembled`] makes a NOTIFY of them.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// The ids of the NOTIFY.
    pub id: FrameId,
    /// The bytes of the piece.
    pub bytes: &'a [u8],
    /// The piece's place in the payload.
    pub place: Place,
}

/// The place of a [`Fragment`] in its payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// The first piece.
    First,
    /// Neither the first piece nor the last.
    Next,
    /// The last piece: the payload is whole.
    Last,
    /// HAProxy has given up the payload, and waits for no ACK. Drop the pieces.
    Aborted,
}

/// An event in the bytes that have arrived.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// HAProxy begins the connection: send what [`Welcome::encode`] writes, in one write.
    Hello(Welcome<'a>),
    /// HAProxy asks a question: send one ACK with these ids.
    Notify(Notify<'a>),
    /// HAProxy (up to 3.0) sends a piece of a question.
    Fragment(Fragment<'a>),
    /// HAProxy ends the connection: answer what is in flight, send AGENT-DISCONNECT, and wait
    /// until HAProxy closes.
    Disconnect(Disconnect<'a>),
    /// Bytes to be ignored: a frame of an unknown type, or anything after the end.
    Skipped,
}

impl Connection {
    /// A connection that was opened at `now`.
    #[must_use]
    pub fn new(limits: Limits, now: Duration) -> Self {
        let limits = Limits {
            max_frame_size: limits.max_frame_size.max(MIN_MAX_FRAME_SIZE),
            max_ack_size: limits.max_ack_size.max(MIN_ACK_SIZE),
            ..limits
        };
        Self {
            limits,
            state: State::AwaitHello,
            max_frame_size: limits.max_frame_size.min(MAX_HELLO_SIZE),
            deadline: Some(now.saturating_add(limits.hello_timeout)),
            unknown_frames: 0,
            early_acks: (0, 0),
        }
    }

    /// The next event in `input`, and the number of bytes that it takes there. Call this again
    /// with the bytes behind it, until it returns `None`: then `input` is empty or has only a part
    /// of a frame. When more bytes have come, call it with that part and them.
    ///
    /// `now` is when the bytes were read. If a part of a frame is left, its
    /// [`deadline`](Self::deadline) counts from the first call that saw it.
    ///
    /// # Errors
    ///
    /// A frame is malformed, or may not come now. Send AGENT-DISCONNECT with the error's status.
    /// All later bytes are [`Event::Skipped`].
    // Inlined for the one event on the data path: an `Event` that is returned through memory is
    // read back in other pieces than it was written in, so store-to-load forwarding fails.
    #[inline(always)]
    pub fn receive<'a>(
        &mut self,
        input: &'a [u8],
        now: Duration,
    ) -> Result<Option<(Event<'a>, usize)>, ProtocolError> {
        if self.state == State::Running
            && let Ok(Some((frame, used))) = RawFrame::split(input, self.max_frame_size)
            && let (kind::NOTIFY, true) = (frame.kind, frame.is_whole())
            && let Ok(notify) = frame.notify()
        {
            self.deadline = None;
            return Ok(Some((Event::Notify(notify), used)));
        }
        self.receive_other(input, now)
    }

    /// Reads the NOTIFY of this shape at the beginning of `input`. Gives its ids, the result of
    /// `ipv4`, `ipv6` or `string` for its value, and how many bytes it takes there.
    /// [`receive`](Self::receive) would find the same in more steps. `None` if there is no NOTIFY
    /// of this shape, or if it needs more steps: then call `receive`.
    ///
    /// Each kind of value has a function of its own, so that the value stays in registers.
    #[inline(always)]
    pub fn receive_shaped<'a, R>(
        &mut self,
        input: &'a [u8],
        shape: &Shape<impl AsRef<[u8]>>,
        ipv4: impl FnOnce(Ipv4Addr) -> R,
        ipv6: impl FnOnce(Ipv6Addr) -> R,
        string: impl FnOnce(&'a [u8]) -> R,
    ) -> Option<(RawIds, R, usize)> {
        // While pieces of a payload are awaited, no NOTIFY may come.
        if self.state != State::Running {
            return None;
        }
        let received = shape.read(input, self.max_frame_size, ipv4, ipv6, string)?;
        self.deadline = None;
        Some(received)
    }

    /// Receives anything but a whole, well-formed NOTIFY.
    #[cold]
    fn receive_other<'a>(
        &mut self,
        input: &'a [u8],
        now: Duration,
    ) -> Result<Option<(Event<'a>, usize)>, ProtocolError> {
        if let State::HealthCheck | State::Closing = self.state {
            return Ok((!input.is_empty()).then_some((Event::Skipped, input.len())));
        }
        let event = match RawFrame::split(input, self.max_frame_size) {
            Ok(None) => {
                // The HELLO and a payload in pieces have deadlines already.
                if self.state == State::Running && !input.is_empty() {
                    self.begin_frame(now);
                }
                return Ok(None);
            }
            Ok(Some((frame, used))) => self.judge(frame, now).map(|event| Some((event, used))),
            Err(error) => Err(ProtocolError::Malformed(error)),
        };
        if event.is_err() {
            self.state = State::Closing;
        }
        event
    }

    /// Sets the deadline for a frame of which a part has come, unless it was set for an earlier
    /// part.
    fn begin_frame(&mut self, now: Duration) {
        self.deadline.get_or_insert(now.saturating_add(self.limits.frame_timeout));
    }

    /// Decides whether a frame may come now before parsing it: a second HELLO is an error even if
    /// it is well formed.
    fn judge<'a>(
        &mut self,
        frame: RawFrame<'a>,
        now: Duration,
    ) -> Result<Event<'a>, ProtocolError> {
        let malformed = ProtocolError::Malformed;
        match (self.state, frame.kind) {
            (State::AwaitHello, kind::HAPROXY_HELLO) => {
                let hello = frame.haproxy_hello().map_err(malformed)?;
                Ok(Event::Hello(self.agree(hello, now)))
            }
            (State::AwaitHello, found) => Err(ProtocolError::NoHello { found }),
            // This one is malformed: `receive` returns the others.
            (State::Running, kind::NOTIFY) if frame.is_whole() => {
                frame.notify().map(Event::Notify).map_err(malformed)
            }
            (state, kind::NOTIFY | kind::UNSET) => {
                self.piece(state, frame, now).map(Event::Fragment)
            }
            (_, kind::HAPROXY_DISCONNECT) => {
                let disconnect = frame.haproxy_disconnect().map_err(malformed)?;
                self.state = State::Closing;
                Ok(Event::Disconnect(disconnect))
            }
            (
                _,
                found @ (kind::HAPROXY_HELLO
                | kind::AGENT_HELLO
                | kind::AGENT_DISCONNECT
                | kind::ACK),
            ) => Err(ProtocolError::OutOfPlace { found }),
            (state, _) => {
                // Between pieces the deadline is that of their payload.
                if state == State::Running {
                    self.deadline = None;
                }
                self.unknown_frames += 1;
                Ok(Event::Skipped)
            }
        }
    }

    /// A NOTIFY without FIN begins a payload. Frames of type 0 with the same ids continue it, and
    /// the last of them has FIN. No other NOTIFY may come in between.
    fn piece<'a>(
        &mut self,
        state: State,
        frame: RawFrame<'a>,
        now: Duration,
    ) -> Result<Fragment<'a>, ProtocolError> {
        if self.limits.max_payload_size == 0 {
            return Err(ProtocolError::Fragment);
        }
        let (id, bytes) = frame.fragment().map_err(ProtocolError::Malformed)?;
        let (before, place) = match (state, frame.kind) {
            (State::Reassembling(pieces), kind::UNSET) if pieces.id == id => {
                let place = if frame.is_aborted() {
                    Place::Aborted
                } else if frame.is_whole() {
                    Place::Last
                } else {
                    Place::Next
                };
                (pieces, place)
            }
            (State::Reassembling(_), _) => return Err(ProtocolError::Interlaced),
            (_, kind::NOTIFY) => (Pieces { id, count: 0, bytes: 0 }, Place::First),
            _ => return Err(ProtocolError::Fragment),
        };
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let pieces =
            Pieces { id, count: before.count + 1, bytes: before.bytes.saturating_add(length) };
        if pieces.count > MAX_FRAGMENTS || pieces.bytes > self.limits.max_payload_size {
            return Err(ProtocolError::PayloadTooBig { max: self.limits.max_payload_size });
        }
        self.state = match place {
            Place::First | Place::Next => {
                self.begin_frame(now);
                State::Reassembling(pieces)
            }
            Place::Last | Place::Aborted => {
                self.deadline = None;
                State::Running
            }
        };
        Ok(Fragment { id, bytes, place })
    }

    /// The NOTIFY that came in pieces, from the bytes of all pieces.
    ///
    /// # Errors
    ///
    /// The payload is malformed. Do what [`receive`](Self::receive) says about errors.
    pub fn reassembled<'b>(
        &mut self,
        id: FrameId,
        payload: &'b [u8],
    ) -> Result<Notify<'b>, ProtocolError> {
        Notify::parse(id, Reader::new(payload)).map_err(|error| {
            self.state = State::Closing;
            ProtocolError::Malformed(error)
        })
    }

    fn agree<'a>(&mut self, hello: Hello<'a>, now: Duration) -> Welcome<'a> {
        self.state = if hello.healthcheck { State::HealthCheck } else { State::Running };
        let linger = now.saturating_add(self.limits.healthcheck_linger);
        self.deadline = hello.healthcheck.then_some(linger);
        self.max_frame_size = self.limits.max_frame_size.min(hello.max_frame_size);
        // The ACKs in flight must not fill HAProxy's buffer. It takes one frame of the size that
        // HAProxy offers, even if the agent agrees to a smaller size. It takes more if a smaller
        // max-frame-size is configured, but then the agent cannot know how much more.
        let in_flight = in_flight_ack_size(hello.max_frame_size);
        let fits = self.limits.max_ack_size <= in_flight
            // Only versions up to 3.0 offer async, and they can empty a full buffer.
            || hello.capabilities.asynchronous();
        let pipelining = hello.capabilities.pipelining() && fits;
        // HAProxy from 3.1 on takes its own offer for granted until the agent's answer has come,
        // and may have that many requests on the connection by then. It sends the next one when
        // all of these have their ACKs.
        if hello.capabilities.pipelining() && !fits {
            self.early_acks = (IN_FLIGHT, in_flight.max(MIN_EARLY_ACK_SIZE));
        }
        // The answer to a health check needs no more than the keys. The check of HAProxy from 3.1
        // on always offers 16380, and fails if the answer is above its tune.bufsize - 4. The value
        // in the answer is used for nothing else.
        let fragmentation = self.limits.max_payload_size > 0 && !hello.healthcheck;
        let max_frame_size =
            if hello.healthcheck { MIN_MAX_FRAME_SIZE } else { self.max_frame_size };
        Welcome { hello, max_frame_size, pipelining, fragmentation }
    }

    /// When waiting for more bytes must end; `None` to wait for ever. (There is no idle timeout:
    /// HAProxy decides how long a connection lives.) If the time passes without new bytes, end the
    /// connection. After an error or a DISCONNECT it has no meaning.
    #[inline]
    #[must_use]
    pub const fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// The largest LENGTH of the ACKs to the next `notifies` NOTIFYs, for [`AckWriter::new`]. It
    /// is the agent's own limit, or one byte less than the agreed frame size if that is smaller. A
    /// frame of the full size fills the buffer of HAProxy from 3.1 on. The first ACKs may have to
    /// be smaller: see [`Limits::max_ack_size`].
    #[inline]
    #[must_use]
    pub fn max_ack_size(&mut self, notifies: usize) -> u32 {
        let most = self.limits.max_ack_size.min(self.max_frame_size - 1);
        let (left, early) = self.early_acks;
        if left == 0 {
            return most;
        }
        self.early_acks.0 = left.saturating_sub(u32::try_from(notifies).unwrap_or(u32::MAX));
        most.min(early)
    }

    /// Whether the connection is a health check whose HELLO has come.
    #[must_use]
    pub fn is_healthcheck(&self) -> bool {
        self.state == State::HealthCheck
    }

    /// Whether the HELLO has come and the connection has not ended. False for health checks.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running | State::Reassembling(_))
    }

    /// Whether no HELLO has come yet, so that the peer may not be HAProxy.
    #[must_use]
    pub fn awaits_hello(&self) -> bool {
        self.state == State::AwaitHello
    }

    /// How many frames of unknown types have come.
    #[must_use]
    pub const fn unknown_frames(&self) -> u64 {
        self.unknown_frames
    }
}

/// HAProxy's HELLO, and the agent's answer to it.
#[derive(Clone, Copy, Debug)]
pub struct Welcome<'a> {
    /// The HELLO of HAProxy.
    pub hello: Hello<'a>,
    max_frame_size: u32,
    pipelining: bool,
    fragmentation: bool,
}

impl Welcome<'_> {
    /// The most bytes that [`encode`](Self::encode) writes.
    pub const MAX_SIZE: usize = 96;

    /// Writes the AGENT-HELLO. Send it in one write, and send nothing more before a NOTIFY has
    /// come: HAProxy from 3.1 on reads everything that has arrived as one frame. Returns the
    /// length of the frame.
    ///
    /// # Errors
    ///
    /// `out` is too short: see [`MAX_SIZE`](Self::MAX_SIZE).
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, BufferFull> {
        let capabilities = match (self.pipelining, self.fragmentation) {
            (true, true) => "pipelining,fragmentation",
            (true, false) => "pipelining",
            (false, true) => "fragmentation",
            (false, false) => "",
        };
        encode_agent_hello(out, self.max_frame_size, capabilities)
    }

    /// Whether the agent accepts several NOTIFYs in flight.
    #[must_use]
    pub const fn pipelining(&self) -> bool {
        self.pipelining
    }
}

/// Why a connection must end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame is malformed.
    Malformed(DecodeError),
    /// The first frame is not HAPROXY-HELLO.
    NoHello {
        /// The frame's type.
        found: u8,
    },
    /// A second HELLO came, or a frame that only agents send.
    OutOfPlace {
        /// The frame's type.
        found: u8,
    },
    /// A piece of a payload came that the agent did not offer to accept, or that belongs to no
    /// payload. HAProxy up to 3.0 sends pieces whenever a message is larger than a frame.
    Fragment,
    /// Another NOTIFY, or a piece of another payload, came between the pieces of a payload.
    Interlaced,
    /// A payload has too many pieces, or too many bytes.
    PayloadTooBig {
        /// [`Limits::max_payload_size`].
        max: u32,
    },
}

impl ProtocolError {
    /// The status of the AGENT-DISCONNECT that must follow.
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::Malformed(error) => error.status(),
            Self::NoHello { .. } | Self::OutOfPlace { .. } => Status::INVALID,
            Self::Fragment => Status::FRAGMENTATION,
            Self::Interlaced => Status::INTERLACED,
            Self::PayloadTooBig { .. } => Status::TOO_BIG,
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => error.fmt(f),
            Self::NoHello { found } => {
                write!(f, "the first frame is {}, not HAPROXY-HELLO", Name(*found))
            }
            Self::OutOfPlace { found } => write!(f, "{} came at the wrong time", Name(*found)),
            Self::Fragment => f.write_str(
                "a piece of a message came, but the agent accepts no pieces or not this one; set \
                 'no option send-frag-payload' in the spoe-agent section, or send smaller \
                 messages",
            ),
            Self::Interlaced => f.write_str("another frame came between the pieces of a message"),
            Self::PayloadTooBig { max } => write!(
                f,
                "a message has more than {max} bytes, or came in more than {MAX_FRAGMENTS} \
                 pieces; send smaller messages, or raise HAProxy's tune.bufsize"
            ),
        }
    }
}

impl core::error::Error for ProtocolError {}

/// A frame's type by its name in SPOE.txt.
struct Name(u8);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            kind::UNSET => "a fragment",
            kind::HAPROXY_HELLO => "HAPROXY-HELLO",
            kind::HAPROXY_DISCONNECT => "HAPROXY-DISCONNECT",
            kind::NOTIFY => "a NOTIFY",
            kind::AGENT_HELLO => "AGENT-HELLO",
            kind::AGENT_DISCONNECT => "AGENT-DISCONNECT",
            kind::ACK => "an ACK",
            unknown => return write!(f, "a frame of type {unknown}"),
        })
    }
}
