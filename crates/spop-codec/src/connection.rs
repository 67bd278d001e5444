//! The agent's end of one connection: what may come next, under which limits, and until when.

use core::fmt;
use core::time::Duration;

use crate::disconnect::Disconnect;
use crate::error::DecodeError;
use crate::frame::{FrameId, RawFrame, kind};
use crate::hello::{Hello, MIN_MAX_FRAME_SIZE, encode_agent_hello};
use crate::notify::Notify;
use crate::reader::Reader;
use crate::status::Status;
use crate::writer::BufferFull;

/// How many NOTIFYs HAProxy has in flight on one connection at most.
const IN_FLIGHT: u32 = 20;

/// The max-frame-size of HAProxy from 3.1 on, and its default before.
const HAPROXY_FRAME_SIZE: u32 = 16_380;

/// The largest HELLO that is waited for. HAProxy's has 133 bytes at most; who is not HAProxy gets
/// no more room.
const MAX_HELLO_SIZE: u32 = 16_384;

/// The pieces that one payload may come in.
const MAX_FRAGMENTS: u32 = 64;

/// The smallest LENGTH that an ACK may be limited to: one without actions, with the largest ids.
const MIN_ACK_SIZE: u32 = 25;

/// What the agent allows a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// The largest LENGTH that the agent takes, 256 or more. HAProxy offers `tune.bufsize` - 4,
    /// which is 16380 unless configured; the smaller of the two holds, so a larger one has an
    /// effect only where HAProxy's is larger too. A message that does not fit comes in pieces
    /// from HAProxy up to 3.0, see [`max_payload_size`](Self::max_payload_size). Later ones do
    /// not send it, and the request goes on without an answer. Default: 16380.
    pub max_frame_size: u32,
    /// The largest LENGTH of an ACK that the agent will write. HAProxy from 3.1 on stops reading
    /// a connection for good once its receive buffer is completely full, so several NOTIFYs
    /// in flight are offered only where 20 such ACKs stay below that, or to who is known to
    /// be older. At least 25, an ACK without actions. Default: 815, which do with HAProxy's
    /// default buffer.
    pub max_ack_size: u32,
    /// The largest payload that is put together from pieces, in bytes; 0 not to offer it. HAProxy
    /// up to 3.0 cuts a message that is larger than a frame, and takes down the connection
    /// with all that is in flight on it where the agent does not offer this. Later ones never
    /// cut. Default: 1 MiB.
    pub max_payload_size: u32,
    /// How long after it was opened a connection must have sent its HELLO. Default: 10 s.
    pub hello_timeout: Duration,
    /// How long after its first byte a frame must be whole. Default: 10 s.
    pub frame_timeout: Duration,
    /// How long HAProxy may keep a connection open after its health check was answered. Default:
    /// 1 s.
    pub healthcheck_linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_frame_size: HAPROXY_FRAME_SIZE,
            max_ack_size: 815,
            max_payload_size: 1 << 20,
            hello_timeout: Duration::from_secs(10),
            frame_timeout: Duration::from_secs(10),
            healthcheck_linger: Duration::from_secs(1),
        }
    }
}

/// The state of a connection. Holds no socket, buffer or clock: feed it what has arrived, and do
/// as the events say.
///
/// Times are given as the time since any moment that stays the same.
#[derive(Clone, Debug)]
pub struct Connection {
    limits: Limits,
    state: State,
    /// The limit for frames of both sides: the agent's own until the HELLO, then what was agreed.
    max_frame_size: u32,
    /// When the current state ends by itself, or the current frame must be whole.
    deadline: Option<Duration>,
    unknown_frames: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    AwaitHello,
    Running,
    /// Pieces of a payload have come, and not the last one.
    Reassembling(Pieces),
    HealthCheck,
    /// Either side has said DISCONNECT, or an error calls for it. Whatever comes is ignored.
    Closing,
}

/// What has come of a payload in pieces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Pieces {
    id: FrameId,
    count: u32,
    bytes: u32,
}

/// A piece of a NOTIFY's payload. Keep the bytes of all of them, one behind the other; with the
/// last one, [`Connection::reassembled`] makes the NOTIFY of them.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// The NOTIFY's.
    pub id: FrameId,
    /// The piece.
    pub bytes: &'a [u8],
    /// Where it belongs.
    pub place: Place,
}

/// Where a [`Fragment`] belongs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// A payload begins.
    First,
    /// It goes on.
    Next,
    /// It is complete.
    Last,
    /// HAProxy has given it up. Drop what was kept; no ACK is waited for.
    Aborted,
}

/// What has come.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The connection begins: send what [`Welcome::encode`] writes, in one piece.
    Hello(Welcome<'a>),
    /// HAProxy asks: send one ACK with this id.
    Notify(Notify<'a>),
    /// HAProxy (up to 3.0) begins to ask, or goes on.
    Fragment(Fragment<'a>),
    /// HAProxy ends the connection: answer what is in flight, send AGENT-DISCONNECT, wait for the
    /// close.
    Disconnect(Disconnect<'a>),
    /// Bytes that mean nothing here.
    Skipped,
}

impl Connection {
    /// A connection opened at `now`.
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
        }
    }

    /// The next event in `input` and the bytes it takes there, or `None` until more bytes have
    /// come. Call it again with what follows those bytes.
    ///
    /// # Errors
    ///
    /// What came is malformed, or may not come now. Send AGENT-DISCONNECT with the error's status;
    /// whatever comes after is ignored.
    // Inlined with the one event that matters: a value as large as an `Event` is slow to pass
    // through memory.
    #[inline(always)]
    pub fn receive<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<Option<(Event<'a>, usize)>, ProtocolError> {
        if self.state == State::Running
            && let Ok(Some((frame, used))) = RawFrame::split(input, self.max_frame_size)
            && let (kind::NOTIFY, true) = (frame.kind, frame.is_whole())
            && let Ok(notify) = frame.notify()
        {
            self.deadline = None;
            return Ok(Some((Event::Notify(notify), used)));
        }
        self.receive_other(input)
    }

    /// Anything but a good NOTIFY.
    #[cold]
    fn receive_other<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<Option<(Event<'a>, usize)>, ProtocolError> {
        if let State::HealthCheck | State::Closing = self.state {
            return Ok((!input.is_empty()).then_some((Event::Skipped, input.len())));
        }
        let event = match RawFrame::split(input, self.max_frame_size) {
            Ok(None) => return Ok(None),
            Ok(Some((frame, used))) => self.judge(frame).map(|event| Some((event, used))),
            Err(error) => Err(ProtocolError::Malformed(error)),
        };
        if event.is_err() {
            self.state = State::Closing;
        }
        event
    }

    /// Judges the frame's type by the state first: a second HELLO is out of place, however it
    /// looks inside.
    fn judge<'a>(&mut self, frame: RawFrame<'a>) -> Result<Event<'a>, ProtocolError> {
        let malformed = ProtocolError::Malformed;
        match (self.state, frame.kind) {
            (State::AwaitHello, kind::HAPROXY_HELLO) => {
                let hello = frame.haproxy_hello().map_err(malformed)?;
                Ok(Event::Hello(self.agree(hello)))
            }
            (State::AwaitHello, found) => Err(ProtocolError::NoHello { found }),
            // A good one does not come here.
            (State::Running, kind::NOTIFY) if frame.is_whole() => {
                frame.notify().map(Event::Notify).map_err(malformed)
            }
            (state, kind::NOTIFY | kind::UNSET) => self.piece(state, frame).map(Event::Fragment),
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
                // Between pieces it is their payload that must be complete in time.
                if state == State::Running {
                    self.deadline = None;
                }
                self.unknown_frames += 1;
                Ok(Event::Skipped)
            }
        }
    }

    /// A NOTIFY without FIN begins a payload, frames of type 0 with the same ids go on with it,
    /// the last of them with FIN. No other NOTIFY comes in between.
    fn piece<'a>(
        &mut self,
        state: State,
        frame: RawFrame<'a>,
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
            Place::First | Place::Next => State::Reassembling(pieces),
            Place::Last | Place::Aborted => {
                self.deadline = None;
                State::Running
            }
        };
        Ok(Fragment { id, bytes, place })
    }

    /// The NOTIFY that came in pieces, from the bytes of all of them.
    ///
    /// # Errors
    ///
    /// They are malformed. As for [`receive`](Self::receive).
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

    fn agree<'a>(&mut self, hello: Hello<'a>) -> Welcome<'a> {
        self.state = if hello.healthcheck { State::HealthCheck } else { State::Running };
        self.deadline = None;
        self.max_frame_size = self.limits.max_frame_size.min(hello.max_frame_size);
        // The bytes that may wait in HAProxy's buffer without filling it. The buffer is as large
        // as the frames that HAProxy offers, whatever the agent agrees to. It has 16 KiB
        // or more where that matters, from 3.1 on; a smaller max-frame-size can be set up
        // to 3.0 only.
        let offered = hello.max_frame_size.max(HAPROXY_FRAME_SIZE);
        let each = (offered.saturating_add(3) / IN_FLIGHT).saturating_sub(4);
        // What offers async, up to 3.0, has no such weakness.
        let fits = self.limits.max_ack_size <= each || hello.capabilities.asynchronous();
        let pipelining = hello.capabilities.pipelining() && fits;
        // A health check is answered with as little as will do.
        let fragmentation = self.limits.max_payload_size > 0 && !hello.healthcheck;
        Welcome { hello, max_frame_size: self.max_frame_size, pipelining, fragmentation }
    }

    /// When waiting for more bytes has to end, with `unread` bytes of a frame at hand; `None` to
    /// wait for ever. (There is no idle timeout: how long a connection lives is HAProxy's
    /// decision.)
    ///
    /// To be asked each time before waiting: that is how the beginning of a frame is noticed.
    #[inline]
    pub fn deadline(&mut self, unread: usize, now: Duration) -> Option<Duration> {
        match self.state {
            State::Running if unread == 0 => self.deadline = None,
            State::Running | State::Reassembling(_) => {
                self.deadline.get_or_insert(now.saturating_add(self.limits.frame_timeout));
            }
            State::HealthCheck => {
                self.deadline.get_or_insert(now.saturating_add(self.limits.healthcheck_linger));
            }
            State::AwaitHello | State::Closing => {}
        }
        self.deadline
    }

    /// The largest LENGTH of an ACK on this connection, to be given to
    /// [`AckWriter::new`](crate::AckWriter::new): the agent's own limit, and never all of what
    /// was agreed, because a frame of that size fills the buffer of HAProxy from 3.1 on.
    #[inline]
    #[must_use]
    pub const fn max_ack_size(&self) -> u32 {
        let agreed = self.max_frame_size - 1;
        if self.limits.max_ack_size < agreed { self.limits.max_ack_size } else { agreed }
    }

    /// Whether the connection is a health check that was answered.
    #[must_use]
    pub fn is_healthcheck(&self) -> bool {
        self.state == State::HealthCheck
    }

    /// Whether the HELLO has come, and no end yet.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running | State::Reassembling(_))
    }

    /// Whether no HELLO has come yet: this may be anybody.
    #[must_use]
    pub fn awaits_hello(&self) -> bool {
        self.state == State::AwaitHello
    }

    /// How many frames of unknown types were skipped.
    #[must_use]
    pub const fn unknown_frames(&self) -> u64 {
        self.unknown_frames
    }
}

/// A HELLO, and what the agent answers.
#[derive(Clone, Copy, Debug)]
pub struct Welcome<'a> {
    /// What HAProxy said.
    pub hello: Hello<'a>,
    max_frame_size: u32,
    pipelining: bool,
    fragmentation: bool,
}

impl Welcome<'_> {
    /// The room that [`encode`](Self::encode) needs at most.
    pub const MAX_SIZE: usize = 96;

    /// Writes the AGENT-HELLO. It must leave in one write, and nothing may follow it before a
    /// NOTIFY has come: HAProxy from 3.1 on reads whatever it has got as one frame.
    ///
    /// # Errors
    ///
    /// `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, BufferFull> {
        let capabilities = match (self.pipelining, self.fragmentation) {
            (true, true) => "pipelining,fragmentation",
            (true, false) => "pipelining",
            (false, true) => "fragmentation",
            (false, false) => "",
        };
        encode_agent_hello(out, self.max_frame_size, capabilities)
    }

    /// Whether several NOTIFYs may be in flight.
    #[must_use]
    pub const fn pipelining(&self) -> bool {
        self.pipelining
    }
}

/// Why a connection has to end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The bytes are no frame.
    Malformed(DecodeError),
    /// The first frame is not HAPROXY-HELLO.
    NoHello {
        /// Its type.
        found: u8,
    },
    /// A second HELLO, or a frame that only agents send.
    OutOfPlace {
        /// Its type.
        found: u8,
    },
    /// A payload in pieces, which was not offered. HAProxy up to 3.0 sends it without asking when
    /// a message is larger than a frame.
    Fragment,
    /// Something came between the pieces of a payload, or a piece of another one.
    Interlaced,
    /// The pieces of a payload are too many, or too much.
    PayloadTooBig {
        /// [`Limits::max_payload_size`].
        max: u32,
    },
}

impl ProtocolError {
    /// The code to put into the AGENT-DISCONNECT that must follow.
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
            Self::NoHello { found } => write!(f, "the first frame is {}, not HAPROXY-HELLO", Name(*found)),
            Self::OutOfPlace { found } => write!(f, "{} came where it has no place", Name(*found)),
            Self::Fragment => f.write_str(
                "a piece of a message came that does not belong to any; set 'no option send-frag-payload' in the \
                 spoe-agent section, or send less",
            ),
            Self::Interlaced => f.write_str("something else came between the pieces of a message"),
            Self::PayloadTooBig { max } => write!(
                f,
                "a message has more than {max} bytes, or came in more than {MAX_FRAGMENTS} pieces; send less, or raise \
                 HAProxy's tune.bufsize"
            ),
        }
    }
}

impl core::error::Error for ProtocolError {}

/// A frame type as SPOE.txt names it.
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
