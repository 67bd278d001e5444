//! One connection, from its first byte to its last: read what has come, answer all of it, write
//! once, wait or give way.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use arrayvec::ArrayVec;
use spop_codec::{
    Connection, Event, Fragment, FrameId, Place, ProtocolError, Status, Welcome,
    encode_agent_disconnect,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::agent::{Room, Shared};
use crate::buffers::Share;
use crate::handler::{Handler, LateAnswer, Reply, Request};
use crate::late::{Answered, Asked, How, Late};
use crate::shield::shielded;

/// Requests prepared together: enough for the memory of the first to have come when it is
/// answered.
const BATCH: usize = 32;

/// The most that is read at once, and the answers after which it is time to write.
const READ_BYTES: usize = 64 * 1024;
const WRITE_BYTES: usize = 128 * 1024;

/// The most that is read at once while other connections have turns too: how long they wait for
/// theirs depends on it. What has to be done once a turn takes a few µs, which are not much beside
/// this either.
const SHARED_READ_BYTES: usize = 16 * 1024;

/// The most that is kept of what comes while so many requests wait that no more may be answered.
/// It is read all the same, so that the end of the connection is noticed behind it.
const READ_AHEAD_BYTES: usize = 16 * 1024;

/// The longest beginning of a frame that is copied to the front of the buffer its rest is read
/// into.
const HELD_IN_FRONT_BYTES: usize = 4096;

/// Room for one frame of our own that is not an ACK.
const CONTROL_FRAME_BYTES: usize = 512;

/// HAProxy's have 36. Who sends more gets no more kept.
const MAX_ENGINE_ID_BYTES: usize = 255;

/// How long a peer may leave answers unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for HAProxy to close after our DISCONNECT. A FIN that arrives together with
/// the frame makes some versions (3.2 and later) overlook the frame.
const FAREWELL: Duration = Duration::from_millis(200);

/// How long a connection that can't begin is kept waiting for its refusal.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// How long a stopping agent waits for a connection's next NOTIFY, to say goodbye right behind
/// its ACK. At that moment HAProxy has nothing in flight on the connection, as a rule; a
/// DISCONNECT that crosses a NOTIFY costs that request its answer.
const LAST_NOTIFY: Duration = Duration::from_millis(100);

/// How often, and how long, a stopping agent goes on answering a connection on which more and more
/// arrives.
const LAST_TURNS: u32 = 64;
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The peer closed between two frames, or reset the connection: HAProxy's ordinary way from
    /// 3.1 on.
    Closed,
    /// The peer closed inside a frame.
    Truncated,
    /// HAPROXY-DISCONNECT, answered.
    Disconnected(Status),
    /// A health check, answered.
    HealthCheck,
    /// What came is not SPOP, or not in its place.
    Protocol(ProtocolError),
    /// The HELLO, or the rest of a frame, did not come in time.
    Late,
    /// The peer does not read.
    Unread,
    /// What it has to keep is more than is left of what all connections may keep.
    NoMemory,
    /// The agent stops.
    Stopped,
    /// The socket failed.
    Failed(io::Error),
}

impl End {
    /// Whether it is nothing that an operator should look at. HAProxy up to 3.0 says "I/O error"
    /// and "timeout" at the end of an ordinary life, too.
    pub(crate) fn is_ordinary(&self) -> bool {
        match self {
            Self::Closed | Self::HealthCheck | Self::Stopped => true,
            Self::Disconnected(status) => status.code() <= Status::TIMEOUT.code(),
            Self::Truncated
            | Self::Protocol(_)
            | Self::Late
            | Self::Unread
            | Self::NoMemory
            | Self::Failed(_) => false,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by HAProxy"),
            Self::Truncated => f.write_str("closed inside a frame"),
            Self::Disconnected(status) if !self.is_ordinary() => write!(
                f,
                "HAProxy finds fault with what this agent sent ({status}); that should not happen, please report it"
            ),
            Self::Disconnected(status) => write!(f, "HAPROXY-DISCONNECT, {status}"),
            Self::HealthCheck => f.write_str("health check answered"),
            Self::Protocol(error) => write!(f, "{error} ({})", error.status()),
            Self::Late => f.write_str("the HELLO, or the rest of a frame, did not come in time"),
            Self::Unread => write!(f, "answers were not read for {} s", WRITE_TIMEOUT.as_secs()),
            Self::NoMemory => f.write_str(
                "all connections together keep as much as they may of incomplete frames and unread answers, and this one needs more",
            ),
            Self::Stopped => f.write_str("the agent stops"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// The read and write buffers of the connection whose turn it is. A thread has one pair: between
/// turns a connection keeps only what it could not finish.
#[derive(Default)]
struct Scratch {
    input: Vec<u8>,
    output: Vec<u8>,
    /// How many turns the thread's connections have had, each of which read something.
    turns: u64,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Serves one connection until either side ends it or `stop` resolves. Says how it ended, and
/// whether a HELLO had come.
pub(crate) async fn serve<H: Handler, S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    shared: &Shared<H>,
    room: Room,
    stop: impl Future<Output = ()>,
) -> (End, bool) {
    let start = Instant::now();
    let mut link = Link {
        stream,
        start,
        connection: Connection::new(shared.limits, Duration::ZERO),
        shared,
        room,
        greeted: false,
        engine_id: Arc::default(),
        held: Vec::new(),
        unanswered: false,
        payload: Vec::new(),
        late: Late::default(),
        unsent: Vec::new(),
        unsent_since: None,
        kept: Share::new(&shared.counters),
        last_turn: 0,
        leaving: Leaving::No,
    };
    let mut stop = std::pin::pin!(stop);

    let end = loop {
        let deadline = match link.unsent_since {
            None => link.connection.deadline().map(|after| start + after),
            Some(since) => Some(since + WRITE_TIMEOUT),
        };
        let mut waited = false;
        let turn = poll_fn(|cx| {
            let turn = match stop.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Err(End::Stopped)),
                Poll::Pending => link.poll_turn(cx),
            };
            waited |= turn.is_pending();
            turn
        });
        let turn = match deadline {
            None => Ok(turn.await),
            Some(deadline) => timeout_at(deadline, turn).await,
        };
        match turn {
            Ok(Ok(())) if waited => {}
            // There was something to do at once, so there may be more, and others may have waited
            // meanwhile: all of them have their turn before this one has another, and
            // what has arrived is looked for.
            Ok(Ok(())) => yield_now().await,
            Ok(Err(end)) => break end,
            Err(_) => break link.late(),
        }
    };
    link.finish(end).await
}

/// A connection, and what of it is not finished yet.
struct Link<'h, H, S> {
    stream: S,
    /// When the connection was opened. The times of `connection` count from here.
    start: Instant,
    connection: Connection,
    shared: &'h Shared<H>,
    /// Whether its requests are shown to the handler.
    room: Room,
    /// The HELLO has come.
    greeted: bool,
    /// Who said it.
    engine_id: Arc<[u8]>,
    /// What has come and is not answered: the beginning of a frame, as a rule.
    held: Vec<u8>,
    /// What is held may have whole frames: their answers would have been too much for one write,
    /// or too many wait already, or they came behind a HELLO.
    unanswered: bool,
    /// The pieces of a payload that have come.
    payload: Vec<u8>,
    /// The requests that are answered later.
    late: Late,
    /// Answers that the peer has not taken yet, and since when there are any. While there are,
    /// nothing is read.
    unsent: Vec<u8>,
    unsent_since: Option<Instant>,
    /// The memory of `held`, `payload` and `unsent`. Requests that wait have shares of their own.
    kept: Share,
    /// The number of the thread's turn that was this connection's last.
    last_turn: u64,
    leaving: Leaving,
}

/// Whether the agent stops, and has said so.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Leaving {
    No,
    /// The next write of ACKs ends in AGENT-DISCONNECT.
    WithNextAck,
    /// AGENT-DISCONNECT is written, or part of what is unsent.
    Told,
}

impl<H: Handler, S: AsyncRead + AsyncWrite + Unpin> Link<'_, H, S> {
    /// One turn: writes what is unsent, or else what had to wait and is ready, or else reads once,
    /// answers all of it and writes once.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let turn = match self.unsent.is_empty() {
            true => self.poll_read_or_late(cx),
            false => self.poll_unsent(cx),
        };
        match turn {
            Poll::Ready(Ok(())) if !self.may_keep() => Poll::Ready(Err(End::NoMemory)),
            turn => turn,
        }
    }

    fn poll_read_or_late(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let mut scratch = SCRATCH.take().unwrap_or_default();
        let turn = match self.late.count() {
            0 => self.poll_read_and_answer(cx, &mut scratch),
            waiting => match self.poll_late(cx, &mut scratch.output) {
                Poll::Pending if waiting < self.shared.max_in_flight.get() => {
                    self.poll_read_and_answer(cx, &mut scratch)
                }
                Poll::Pending => self.poll_read_ahead(cx, &mut scratch),
                turn => turn,
            },
        };
        SCRATCH.set(Some(scratch));
        turn
    }

    /// Counts what is kept until the next turn, and says whether that is allowed. If not, it is
    /// dropped.
    fn may_keep(&mut self) -> bool {
        let bytes = self.held.capacity() + self.payload.capacity() + self.unsent.capacity();
        let allowed = self.kept.resize(bytes, self.shared.max_buffered_bytes);
        if !allowed {
            (self.held, self.payload) = (Vec::new(), Vec::new());
        }
        allowed
    }

    /// The most to read in this turn.
    fn turn_bytes(&self, scratch: &Scratch) -> usize {
        if scratch.turns == self.last_turn { READ_BYTES } else { SHARED_READ_BYTES }
    }

    /// Sends the answers that have become ready.
    fn poll_late(&mut self, cx: &mut Context<'_>, output: &mut Vec<u8>) -> Poll<Result<(), End>> {
        let mut answer = Answer::begin();
        while answer.written < WRITE_BYTES {
            let Poll::Ready(Some(answered)) = self.late.poll_next(cx) else { break };
            self.take_answered(&answered);
            reserve(output, answer.written, answered.ack.len())[..answered.ack.len()]
                .copy_from_slice(&answered.ack);
            answer.written += answered.ack.len();
        }
        if answer.written == 0 { Poll::Pending } else { self.poll_send(cx, output, answer) }
    }

    /// Counts an ACK that came later.
    fn take_answered(&self, answered: &Answered) {
        let Shared { counters, report, deadline, .. } = self.shared;
        match answered.how {
            How::InTime => {}
            How::Overdue => {
                counters.overdue();
                report.warn(format_args!(
                    "a handler took longer than {} ms; its request is answered with what was set at first",
                    deadline.as_millis()
                ));
            }
            How::Panicked => {
                counters.handler_panic();
                report.warn(format_args!(
                    "a handler panicked while it waited; its request is answered with what was set at first"
                ));
            }
        }
        counters.answered(1);
        counters.took(1, answered.ack.len(), answered.asked.elapsed());
    }

    /// The bytes of a frame that has begun, and has to be whole in time.
    fn unread(&self) -> usize {
        if self.unanswered { 0 } else { self.held.len() }
    }

    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let written =
            ready!(Pin::new(&mut self.stream).poll_write(cx, &self.unsent)).map_err(failed)?;
        self.unsent.drain(..written);
        if self.unsent.is_empty() {
            self.unsent = Vec::new();
            self.unsent_since = None;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read_and_answer(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
    ) -> Poll<Result<(), End>> {
        let begun = self.held.len();
        if self.unanswered || begun > HELD_IN_FRONT_BYTES {
            return self.poll_read_and_answer_held(cx, scratch);
        }
        let most = self.turn_bytes(scratch);
        let Scratch { input, output, turns } = scratch;
        input.resize(HELD_IN_FRONT_BYTES + READ_BYTES, 0);
        input[..begun].copy_from_slice(&self.held);
        let filled = begun + ready!(self.poll_read(cx, &mut input[begun..begun + most], turns))?;
        let (used, mut answer) = self.answer(&input[..filled], output);
        self.held.clear();
        self.held.extend_from_slice(&input[used..filled]);
        if self.held.is_empty() {
            // A connection at rest keeps no memory.
            self.held = Vec::new();
        }
        self.take_leave(output, &mut answer);
        self.poll_send(cx, output, answer)
    }

    /// Says goodbye behind the ACKs, if that is due, and if nothing that has come would go
    /// without one.
    fn take_leave(&mut self, output: &mut Vec<u8>, answer: &mut Answer) {
        let whole = self.held.is_empty() && self.payload.is_empty() && self.late.count() == 0;
        if self.leaving == Leaving::WithNextAck && answer.acks > 0 && answer.end.is_none() && whole
        {
            answer.written +=
                farewell(reserve(output, answer.written, CONTROL_FRAME_BYTES), Status::NORMAL);
            answer.end = Some(End::Stopped);
            self.leaving = Leaving::Told;
        }
    }

    /// The same, for what is too long to be copied to the front of a buffer each time a piece of
    /// the rest comes.
    fn poll_read_and_answer_held(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
    ) -> Poll<Result<(), End>> {
        if !self.unanswered {
            let most = self.turn_bytes(scratch);
            ready!(self.poll_read_behind(cx, scratch, most))?;
        }
        let held = std::mem::take(&mut self.held);
        let (used, answer) = self.answer(&held, &mut scratch.output);
        // In memory of its own size.
        self.held = if used == 0 { held } else { held[used..].to_vec() };
        self.poll_send(cx, &scratch.output, answer)
    }

    /// Reads what comes while nothing more may be answered, up to a bound.
    fn poll_read_ahead(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
    ) -> Poll<Result<(), End>> {
        let most = READ_AHEAD_BYTES.saturating_sub(self.held.len());
        if most == 0 {
            return Poll::Pending;
        }
        ready!(self.poll_read_behind(cx, scratch, most))?;
        self.unanswered = true;
        // It is not the peer that is late now, so a frame that has begun has no deadline. Nothing
        // can be received from no bytes.
        let _ = self.connection.receive(&[], self.start.elapsed());
        Poll::Ready(Ok(()))
    }

    /// Reads behind what is held.
    fn poll_read_behind(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
        most: usize,
    ) -> Poll<Result<(), End>> {
        let Scratch { input, turns, .. } = scratch;
        input.resize(HELD_IN_FRONT_BYTES + READ_BYTES, 0);
        let filled = ready!(self.poll_read(cx, &mut input[..most], turns))?;
        self.held.extend_from_slice(&input[..filled]);
        Poll::Ready(Ok(()))
    }

    /// Reads, and counts that as one of the thread's turns.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        turns: &mut u64,
    ) -> Poll<Result<usize, End>> {
        let mut buffer = ReadBuf::new(buffer);
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)).map_err(failed);
        *turns += 1;
        self.last_turn = *turns;
        if let Some(busy) = &self.shared.busy {
            busy.read();
        }
        Poll::Ready(match read.map(|()| buffer.filled().len()) {
            Ok(0) | Err(End::Closed) if self.unread() > 0 || !self.payload.is_empty() => {
                Err(End::Truncated)
            }
            Ok(0) => Err(End::Closed),
            read => read,
        })
    }

    /// Writes the answers, and keeps those that don't fit.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        output: &[u8],
        answer: Answer,
    ) -> Poll<Result<(), End>> {
        let output = &output[..answer.written];
        let mut sent = 0;
        if !output.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, output) {
                Poll::Ready(written) => sent = written.map_err(failed)?,
                Poll::Pending => {}
            }
        }
        if sent < output.len() {
            self.unsent.extend_from_slice(&output[sent..]);
            self.unsent_since = Some(Instant::now());
        }
        if answer.acks > 0 {
            self.shared.counters.took(answer.acks, output.len(), answer.asked.elapsed());
        }
        Poll::Ready(answer.end.map_or(Ok(()), Err))
    }

    /// Answers every whole frame of `input` into `output`, or as many as one write should have.
    /// Returns how much of the input that was.
    fn answer(&mut self, input: &[u8], output: &mut Vec<u8>) -> (usize, Answer) {
        let mut turn = None;
        let answered = self.answer_frames(input, output, &mut turn);
        if shielded(|| drop(turn)).is_none() {
            self.panicked(
                "the handler panicked behind the requests of a read; they are answered as they were",
            );
        }
        answered
    }

    fn panicked(&self, what: &str) {
        self.shared.counters.handler_panic();
        self.shared.report.warn(format_args!("{what}"));
    }

    fn answer_frames(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
        turn: &mut Option<H::Turn>,
    ) -> (usize, Answer) {
        let mut used = 0;
        let mut answer = Answer::begin();
        let now = answer.asked.duration_since(self.start);
        self.unanswered = false;
        let engine_id = self.engine_id.clone();
        loop {
            let mut batch = ArrayVec::<Request<'_>, BATCH>::new();
            // Each of them may turn out to be answered later.
            let room =
                BATCH.min(self.shared.max_in_flight.get().saturating_sub(self.late.count()));
            let more = loop {
                if batch.len() == room {
                    break true;
                }
                let (event, length) = match self.connection.receive(&input[used..], now) {
                    Ok(Some(event)) => event,
                    Ok(None) => break false,
                    Err(error) => {
                        answer.end = Some(End::Protocol(error));
                        break false;
                    }
                };
                used += length;
                match event {
                    Event::Notify(notify) => batch.push(Request::new(notify, &engine_id)),
                    Event::Hello(welcome) => {
                        self.welcome(&welcome, output, &mut answer);
                        // It wants a write of its own, and what may follow knows who asks.
                        self.unanswered = used < input.len() && answer.end.is_none();
                        return (used, answer);
                    }
                    Event::Disconnect(disconnect) => {
                        answer.end = Some(End::Disconnected(disconnect.status));
                        break false;
                    }
                    Event::Fragment(fragment) => {
                        self.keep(&fragment);
                        if fragment.place == Place::Last {
                            // In the order in which they came.
                            self.answer_batch(&batch, turn, output, &mut answer);
                            batch.clear();
                            self.answer_payload(fragment.id, turn, output, &mut answer);
                            break answer.end.is_none();
                        }
                    }
                    Event::Skipped => {}
                }
            };
            self.answer_batch(&batch, turn, output, &mut answer);
            if !more {
                return (used, answer);
            }
            if answer.written >= WRITE_BYTES || room == 0 {
                // Enough for one write, or for one connection; the rest of the input waits for the
                // next turn.
                self.unanswered = used < input.len();
                return (used, answer);
            }
        }
    }

    /// Keeps a piece of a payload. The state machine has bounded how much that can be.
    fn keep(&mut self, fragment: &Fragment<'_>) {
        match fragment.place {
            Place::First => self.payload = fragment.bytes.to_vec(),
            Place::Next | Place::Last => self.payload.extend_from_slice(fragment.bytes),
            Place::Aborted => self.payload = Vec::new(),
        }
    }

    /// Answers the NOTIFY whose pieces have all come.
    fn answer_payload(
        &mut self,
        id: FrameId,
        turn: &mut Option<H::Turn>,
        output: &mut Vec<u8>,
        answer: &mut Answer,
    ) {
        self.shared.counters.reassembled();
        let payload = std::mem::take(&mut self.payload);
        match self.connection.reassembled(id, &payload) {
            Ok(notify) => {
                let engine_id = self.engine_id.clone();
                self.answer_batch(&[Request::new(notify, &engine_id)], turn, output, answer);
            }
            Err(error) => answer.end = Some(End::Protocol(error)),
        }
    }

    fn welcome(&mut self, welcome: &Welcome<'_>, output: &mut Vec<u8>, answer: &mut Answer) {
        self.greeted = true;
        let engine_id = welcome.hello.engine_id.unwrap_or_default();
        if engine_id.len() <= MAX_ENGINE_ID_BYTES {
            self.engine_id = engine_id.into();
        }
        if welcome.hello.healthcheck {
            self.shared.counters.health_check();
            if self.shared.leaving.load(Ordering::Relaxed) {
                answer.end = Some(End::HealthCheck);
                return;
            }
        }
        let room = reserve(output, answer.written, CONTROL_FRAME_BYTES);
        // There is room for it: an AGENT-HELLO has under 100 bytes.
        answer.written += welcome.encode(room).unwrap_or(0);
    }

    /// Appends one ACK for each request, in order. A panic of the handler costs its own request
    /// the actions, and nobody else anything.
    fn answer_batch(
        &mut self,
        batch: &[Request<'_>],
        turn: &mut Option<H::Turn>,
        output: &mut Vec<u8>,
        answer: &mut Answer,
    ) {
        if batch.is_empty() {
            return;
        }
        let limit = self.connection.max_ack_size();
        reserve(output, answer.written, batch.len() * (limit as usize + 4));

        if !self.room.admits() {
            self.shared.counters.shed(batch.len());
            self.shared.report.warn(format_args!(
                "more connections ask than are served; the requests of the others are answered without actions"
            ));
        } else if turn.is_none() {
            *turn = shielded(|| self.shared.handler.turn());
            if turn.is_none() {
                self.panicked(
                    "the handler panicked; the requests of a read are answered without actions",
                );
            }
        }
        let mut prepared = ArrayVec::<Option<H::Prepared>, BATCH>::new();
        let (mut answered, mut acks) = (0, 0);
        let mut written = answer.written;
        // Not part of the reply: when the handler panics behind `later`, the future is dropped in
        // here, and not while the panic goes on.
        let mut later = None;
        // Ends: each round prepares or answers at least one request, be it by leaving the handler
        // out.
        while answered < batch.len() {
            let outcome = shielded(|| {
                while prepared.len() < batch.len() {
                    let request = &batch[prepared.len()];
                    prepared.push(
                        turn.as_mut().map(|turn| self.shared.handler.prepare(turn, request)),
                    );
                }
                while answered < batch.len() {
                    let request = &batch[answered];
                    let Some(mut reply) =
                        Reply::new(&mut output[written..], request.id(), limit, &mut later)
                    else {
                        return;
                    };
                    if let (Some(turn), Some(prepared)) =
                        (turn.as_mut(), prepared[answered].take())
                    {
                        self.shared.handler.answer(turn, prepared, request, &mut reply);
                    }
                    let length = reply.finish();
                    answered += 1;
                    let waits = match later.take() {
                        Some(later) => {
                            self.waits(later, &output[written..written + length], answer.asked)
                        }
                        None => false,
                    };
                    if !waits {
                        written += length;
                        acks += 1;
                    }
                }
            });
            if outcome.is_none() {
                let later = later.take();
                // It is the same request's, and counted once.
                let _ = shielded(|| drop(later));
                self.panicked("the handler panicked; its request is answered without actions");
                // Either it was being prepared; or it was taken to be answered, and what is left
                // there is `None`, so that the next round passes it by the
                // handler.
                if prepared.len() < batch.len() {
                    prepared.push(None);
                }
            } else if answered < batch.len() {
                // No room for even an empty ACK: `reserve` above makes that impossible.
                break;
            }
        }
        self.shared.counters.answered(acks);
        answer.acks += acks;
        answer.written = written;
    }

    /// Has a request wait for its answer. Says whether it does: where there is no memory for that,
    /// it is answered with what was set at first, and at once.
    fn waits(&mut self, later: LateAnswer, fallback: &[u8], asked: Instant) -> bool {
        let Shared { counters, deadline, max_buffered_bytes, .. } = self.shared;
        let request = Asked { fallback, asked, deadline: *deadline };
        let Err(later) = self.late.push(later, &request, counters, *max_buffered_bytes) else {
            return true;
        };
        counters.overdue();
        if shielded(|| drop(later)).is_none() {
            counters.handler_panic();
        }
        false
    }

    /// What a deadline that has passed means here.
    fn late(&self) -> End {
        if !self.unsent.is_empty() {
            End::Unread
        } else if self.connection.is_healthcheck() {
            End::HealthCheck
        } else {
            End::Late
        }
    }

    /// Says what there is to say at the end, and closes.
    async fn finish(mut self, mut end: End) -> (End, bool) {
        match end {
            End::Stopped => {
                let next = match self.shared.drain {
                    // HAProxy has nobody else to ask, and the next agent may wait for this one to
                    // end.
                    Duration::ZERO => Ok(Ok(())),
                    _ => {
                        self.leaving = Leaving::WithNextAck;
                        timeout(LAST_NOTIFY, poll_fn(|cx| self.poll_turn(cx))).await
                    }
                };
                end = match next {
                    Ok(Err(end)) => end,
                    _ => timeout(LAST_WORDS, self.answer_what_has_come())
                        .await
                        .unwrap_or(End::Stopped),
                };
            }
            // What came before it is answered first.
            End::Disconnected(_) => drop(timeout(LAST_WORDS, self.answer_late()).await),
            _ => {}
        }
        let greeted = self.greeted;
        let status = match &end {
            End::Disconnected(_) | End::Stopped if !self.connection.is_healthcheck() => {
                Status::NORMAL
            }
            End::Protocol(error) => error.status(),
            End::Late => Status::TIMEOUT,
            // Behind half an answer it could not be read.
            End::NoMemory if self.unsent.is_empty() => Status::RESOURCE,
            _ => return (end, greeted),
        };
        if !greeted && !matches!(end, End::Stopped) {
            // HAProxy up to 3.0 comes back at once, over and over for as long as a request waits.
            sleep(REFUSAL_PAUSE).await;
        }
        for answered in self.late.give_up() {
            self.take_answered(&answered);
            self.unsent.extend_from_slice(&answered.ack);
        }
        if self.leaving != Leaving::Told {
            let mut frame = [0; CONTROL_FRAME_BYTES];
            let length = farewell(&mut frame, status);
            self.unsent.extend_from_slice(&frame[..length]);
        }
        // The peer may well be gone: that is no news.
        let _ = timeout(FAREWELL, self.say_farewell()).await;
        (end, greeted)
    }

    /// What arrived before the agent was told to stop is still answered.
    async fn answer_what_has_come(&mut self) -> End {
        for _ in 0..LAST_TURNS {
            let turn = poll_fn(|cx| match self.poll_turn(cx) {
                Poll::Pending if self.unsent.is_empty() && self.late.count() == 0 => {
                    Poll::Ready(Err(End::Stopped))
                }
                turn => turn,
            });
            // Without tokio's budget, whose end would look like the end of what has come.
            if let Err(end) = unconstrained(turn).await {
                return end;
            }
        }
        End::Stopped
    }

    /// Answers what waits, and reads nothing more.
    async fn answer_late(&mut self) -> Result<(), End> {
        while self.late.count() > 0 {
            poll_fn(|cx| match self.unsent.is_empty() {
                true => self.poll_late(cx, &mut Vec::new()),
                false => self.poll_unsent(cx),
            })
            .await?;
        }
        Ok(())
    }

    /// Writes what is left and waits for the peer to close. Whatever it sends meanwhile is
    /// ignored.
    async fn say_farewell(&mut self) -> Result<(), End> {
        while !self.unsent.is_empty() {
            poll_fn(|cx| self.poll_unsent(cx)).await?;
        }
        self.held.clear();
        let mut ignored = [0; 4096];
        loop {
            poll_fn(|cx| self.poll_read(cx, &mut ignored, &mut 0)).await?;
        }
    }
}

/// What one turn has written so far, and whether it is the last.
struct Answer {
    /// When the requests had been read.
    asked: Instant,
    /// The ACKs among the bytes.
    acks: usize,
    written: usize,
    end: Option<End>,
}

impl Answer {
    fn begin() -> Self {
        Self { asked: Instant::now(), acks: 0, written: 0, end: None }
    }
}

/// Writes AGENT-DISCONNECT with a status and its text. Returns its length.
fn farewell(output: &mut [u8], status: Status) -> usize {
    // There is room for it: it has under 100 bytes.
    encode_agent_disconnect(output, status, status.text()).unwrap_or(0)
}

/// Room for `bytes` more in the buffer.
fn reserve(output: &mut Vec<u8>, written: usize, bytes: usize) -> &mut [u8] {
    if output.len() < written + bytes {
        output.resize(written + bytes, 0);
    }
    &mut output[written..]
}

/// HAProxy from 3.1 on ends connections with a reset; a broken pipe is the same, seen while
/// writing.
fn failed(error: io::Error) -> End {
    match error.kind() {
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionAborted => End::Closed,
        _ => End::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_an_ordinary_end_and_other_failures_are_not() {
        for kind in [
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::ConnectionAborted,
        ] {
            assert!(failed(kind.into()).is_ordinary());
        }
        let end = failed(io::Error::other("no route to host"));
        assert!(!end.is_ordinary());
        assert_eq!(end.to_string(), "no route to host");
    }
}
