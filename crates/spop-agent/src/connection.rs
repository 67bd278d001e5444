//! One connection, from its first byte to its last. It is served in rounds: read what has come,
//! answer all of it, write once. Then it waits, or lets other connections have their rounds.

// ADR 4: Connections have their rounds in turn.
// ADR 9: Connections wait for epoll after a round.

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use arrayvec::ArrayVec;
use spop_codec::{Connection, Event, Fragment, FrameId, Place, Status, Welcome};
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

use crate::batch::{self, BATCH};
use crate::buffers::Share;
use crate::catch_panic::shielded;
use crate::end::{End, Ended};
use crate::handler::{Handler, Request};
use crate::inbox::Inbox;
use crate::late_replies::{Answered, LateReplies, Source};
use crate::round::{LATE_IS_LIKE, MORE_MESSAGES, Round, encode_farewell, farewell};
use crate::shaped::ShapedNotifies;
use crate::shared::{HandlerPermit, Shared, Stage};
use crate::stream::Socket;

/// The most bytes to read in one round.
const READ_BYTES: usize = 64 * 1024;

/// After this many bytes of answers it is time to write.
const WRITE_BYTES: usize = 128 * 1024;

/// The most bytes to read in one round while other connections have rounds too, because they wait
/// meanwhile. Besides its requests a round costs a few µs, which is little compared to this
/// many bytes of requests.
const SHARED_READ_BYTES: usize = 16 * 1024;

/// The most bytes that are kept while the connection has as many requests waiting for late replies
/// as it may. They are read only to notice when the peer closes.
const READ_AHEAD_BYTES: usize = 16 * 1024;

/// The longest beginning of a frame that is copied in front of the rest, into the buffer that the
/// rest is read into.
const COPIED_IN_FRONT_BYTES: usize = 4096;

/// The longest engine id that is kept. HAProxy's has 36 bytes.
const MAX_ENGINE_ID_BYTES: usize = 255;

/// How long a peer may leave answers unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for HAProxy to close after our DISCONNECT. If the socket were closed at once,
/// HAProxy 3.2 and later could overlook the frame.
const FAREWELL: Duration = Duration::from_millis(200);

/// How long to wait before rejecting a connection that sent no valid HELLO.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// How long a stopping agent waits for a connection's next NOTIFY, to send DISCONNECT right behind
/// its ACK. At that moment HAProxy usually has nothing in flight on the connection. A NOTIFY that
/// crosses a DISCONNECT gets no answer.
const LAST_NOTIFY: Duration = Duration::from_millis(100);

/// For how many rounds, and how long, a stopping agent answers a connection on which more and more
/// requests arrive.
const LAST_ROUNDS: u32 = 64;
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The buffers of the connection that has its round. A thread has one of these: between rounds a
/// connection keeps only what it could not finish.
#[derive(Default)]
struct Scratch {
    input: Vec<u8>,
    output: Vec<u8>,
    /// How many rounds the thread's connections have had in which there was something to answer.
    rounds: u64,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Serves one connection until either side ends it or the agent stops.
pub(crate) async fn serve<H: Handler, S: Socket>(
    stream: S,
    shared: &Shared<H>,
    permit: &mut HandlerPermit,
) -> Ended {
    let mut open = OpenConnection {
        stream,
        opened: Instant::now(),
        protocol: Connection::new(shared.settings.limits, Duration::ZERO),
        shared,
        permit,
        greeted: false,
        engine_id: Arc::default(),
        inbox: Inbox::Empty,
        payload: Vec::new(),
        late: LateReplies::default(),
        unsent: Vec::new(),
        unsent_since: None,
        kept: Share::new(&shared.counters),
        last_round: 0,
        farewell: Farewell::NotDue,
    };
    let mut stop = pin!(shared.reaches(Stage::Stopping));
    let mut woken_by_stop = None::<Waker>;
    let mut timer = pin!(None);
    let end = loop {
        let mut waited = false;
        let round = poll_fn(|cx| {
            // Once `stop` knows whom to wake, a look at the stage is enough, and costs less.
            if !woken_by_stop.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                let _ = stop.as_mut().poll(cx);
                woken_by_stop = Some(cx.waker().clone());
            }
            if shared.has_reached(Stage::Stopping) {
                return Poll::Ready(Err(End::Stopped.into()));
            }
            loop {
                match open.poll_round(cx) {
                    Poll::Ready(Ok(())) if waited => {
                        waited = false;
                        // Mostly there is nothing more to do, and that is found out here at less
                        // cost than by a round.
                        if open.is_at_rest() && open.stream.poll_readable(cx).is_pending() {
                            break;
                        }
                    }
                    Poll::Ready(round) => return Poll::Ready(round),
                    Poll::Pending => break,
                }
            }
            waited = true;
            open.poll_deadline(cx, timer.as_mut()).map(|end| Err(end.into()))
        });
        match round.await {
            // There was something to do at once, so there may be more. But other connections may
            // have waited meanwhile, so all of them have a round before this one has another.
            Ok(()) => yield_now().await,
            Err(end) => break end,
        }
    };
    open.finish(*end).await
}

/// A connection, and everything of it that is not finished.
struct OpenConnection<'h, H, S> {
    stream: S,
    /// When the connection was opened. The times of `protocol` count from here.
    opened: Instant,
    protocol: Connection,
    shared: &'h Shared<H>,
    permit: &'h mut HandlerPermit,
    /// Whether the HELLO has come.
    greeted: bool,
    /// The name of HAProxy's engine, from the HELLO.
    engine_id: Arc<[u8]>,
    inbox: Inbox,
    /// The pieces of a payload that have come.
    payload: Vec<u8>,
    late: LateReplies,
    /// Answers that the peer has not read yet, and since when there are any. While there are any,
    /// nothing is read.
    unsent: Vec<u8>,
    unsent_since: Option<Instant>,
    /// The memory of `inbox`, `payload` and `unsent`. Requests that wait for late replies have
    /// shares of their own.
    kept: Share,
    /// The number, among the thread's rounds, of the last round of this connection.
    last_round: u64,
    farewell: Farewell,
}

/// Whether the connection has had its last answer, because the agent stops.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Farewell {
    NotDue,
    /// An AGENT-DISCONNECT must follow the next ACKs.
    WithNextAck,
    /// The AGENT-DISCONNECT is sent, or part of `unsent`.
    Written,
}

/// Which part of some bytes was answered.
struct Taken {
    /// The bytes that were answered.
    used: usize,
    /// Whether the others may have whole frames. If not, they are the beginning of one.
    more: bool,
}

impl<'h, H: Handler, S: Socket> OpenConnection<'h, H, S> {
    /// When waiting for the peer must end.
    fn deadline(&self) -> Option<Instant> {
        match self.unsent_since {
            None => self.protocol.deadline().map(|after| self.opened + after),
            Some(since) => Some(since + WRITE_TIMEOUT),
        }
    }

    /// Whether waiting for the peer must end, and with which end. There is a timer only while
    /// there is a deadline, and the timer stays the same while the deadline does not change.
    fn poll_deadline(
        &self,
        cx: &mut Context<'_>,
        mut timer: Pin<&mut Option<Sleep>>,
    ) -> Poll<End> {
        let deadline = self.deadline();
        if timer.as_ref().as_pin_ref().map(|timer| timer.deadline()) != deadline {
            timer.set(deadline.map(sleep_until));
        }
        match timer.as_pin_mut() {
            Some(timer) => timer.poll(cx).map(|()| self.timed_out()),
            None => Poll::Pending,
        }
    }

    /// Whether there is nothing to do until there is something to read.
    fn is_at_rest(&self) -> bool {
        self.unsent.is_empty() && self.late.count() == 0 && !self.inbox.is_whole()
    }

    /// One round. It writes what is unsent; or else it writes late replies that have become ready;
    /// or else it reads once, answers everything and writes once.
    fn poll_round(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Box<End>>> {
        let round = match self.unsent.is_empty() {
            true => self.poll_late_or_read(cx),
            false => self.poll_unsent(cx),
        };
        match round {
            Poll::Ready(Ok(())) if !self.may_keep() => Poll::Ready(Err(End::NoMemory.into())),
            round => round,
        }
    }

    fn poll_late_or_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Box<End>>> {
        let mut scratch = SCRATCH.take().unwrap_or_default();
        let round = self.poll_with(cx, &mut scratch);
        // Not `SCRATCH.set`, which is a call.
        SCRATCH.with(|kept| kept.set(Some(scratch)));
        round
    }

    fn poll_with(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
    ) -> Poll<Result<(), Box<End>>> {
        let waiting = self.late.count();
        if waiting > 0 {
            match self.poll_late(cx, &mut scratch.output) {
                Poll::Pending if waiting < self.shared.settings.max_in_flight.get() => {}
                Poll::Pending => return self.poll_read_ahead(cx, scratch),
                round => return round,
            }
        }
        self.poll_read_and_answer(cx, scratch)
    }

    /// Counts the memory that is kept until the next round, and returns whether that is allowed.
    /// If not, the memory is freed.
    fn may_keep(&mut self) -> bool {
        let bytes = self.inbox.capacity() + self.payload.capacity() + self.unsent.capacity();
        let allowed = self.kept.resize(bytes, self.shared.settings.max_buffered_bytes);
        if !allowed {
            (self.inbox, self.payload) = (Inbox::Empty, Vec::new());
        }
        allowed
    }

    /// Sends the late replies that have become ready.
    fn poll_late(
        &mut self,
        cx: &mut Context<'_>,
        output: &mut Vec<u8>,
    ) -> Poll<Result<(), Box<End>>> {
        let mut round = Round::begin(self.shared, output);
        while round.written < WRITE_BYTES && round.more_messages < MORE_MESSAGES {
            let Poll::Ready(Some(answered)) = self.late.poll_next(cx) else { break };
            self.count_late(&answered);
            round.more_messages += LATE_IS_LIKE + answered.more_messages;
            round.append(&answered.ack);
        }
        if round.written == 0 { Poll::Pending } else { self.poll_send(cx, &mut round) }
    }

    /// Counts an ACK that leaves after its round.
    fn count_late(&self, answered: &Answered) {
        let Shared { counters, log, settings, .. } = self.shared;
        match answered.source {
            Source::Future => {}
            Source::Overdue => {
                counters.overdue();
                log.warn(format_args!(
                    "a late reply took longer than {} ms; its request is answered with what was \
                     set at first",
                    settings.deadline.as_millis()
                ));
            }
            Source::Panicked => {
                counters.handler_panic();
                log.warn(format_args!(
                    "the handler panicked in a late reply; its request is answered with what was \
                     set at first"
                ));
            }
        }
        counters.answered(1);
        counters.took(1, answered.ack.len(), answered.asked.elapsed());
    }

    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Box<End>>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.unsent))?;
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
    ) -> Poll<Result<(), Box<End>>> {
        let begun = self.inbox.bytes().len();
        if self.inbox.is_whole() || begun > COPIED_IN_FRONT_BYTES {
            return self.poll_answer_inbox(cx, scratch);
        }
        let most = self.read_bytes(scratch);
        let Scratch { input, output, rounds } = scratch;
        input.resize(COPIED_IN_FRONT_BYTES + READ_BYTES, 0);
        if begun > 0 {
            input[..begun].copy_from_slice(self.inbox.bytes());
        }
        let filled = begun + ready!(self.poll_read(cx, &mut input[begun..begun + most], rounds))?;
        let mut round = Round::begin(self.shared, output);
        let Taken { used, more } = self.answer(&input[..filled], &mut round);
        self.inbox.replace(&input[used..filled], more);
        self.append_farewell(&mut round);
        self.poll_send(cx, &mut round)
    }

    /// Answers what is in the inbox, without copying it. If that is the beginning of a frame,
    /// reads more of it first.
    fn poll_answer_inbox(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
    ) -> Poll<Result<(), Box<End>>> {
        if self.inbox.is_whole() {
            self.count_round(&mut scratch.rounds);
        } else {
            let most = self.read_bytes(scratch);
            ready!(self.poll_read_behind(cx, scratch, most, false))?;
        }
        let bytes = self.inbox.take();
        let mut round = Round::begin(self.shared, &mut scratch.output);
        let Taken { used, more } = self.answer(&bytes, &mut round);
        // The rest goes into memory of its own size.
        let rest = if used == 0 { bytes } else { bytes[used..].to_vec() };
        self.inbox = Inbox::new(rest, more);
        self.poll_send(cx, &mut round)
    }

    /// Reads up to a bound while no more requests may be answered, to notice when the peer closes.
    fn poll_read_ahead(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
    ) -> Poll<Result<(), Box<End>>> {
        let most = READ_AHEAD_BYTES.saturating_sub(self.inbox.bytes().len());
        if most == 0 {
            return Poll::Pending;
        }
        // `protocol` does not see these bytes yet, so no frame in them has a deadline: it is not
        // the peer that is late.
        self.poll_read_behind(cx, scratch, most, true)
    }

    /// Reads bytes behind those in the inbox.
    fn poll_read_behind(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Scratch,
        most: usize,
        may_be_whole: bool,
    ) -> Poll<Result<(), Box<End>>> {
        let Scratch { input, rounds, .. } = scratch;
        input.resize(COPIED_IN_FRONT_BYTES + READ_BYTES, 0);
        let filled = ready!(self.poll_read(cx, &mut input[..most], rounds))?;
        self.inbox.append(&input[..filled], may_be_whole);
        Poll::Ready(Ok(()))
    }

    /// The most bytes to read in this round: fewer if another connection of this thread has had a
    /// round since this one.
    fn read_bytes(&self, scratch: &Scratch) -> usize {
        if scratch.rounds == self.last_round { READ_BYTES } else { SHARED_READ_BYTES }
    }

    fn count_round(&mut self, rounds: &mut u64) {
        *rounds += 1;
        self.last_round = *rounds;
    }

    /// Reads, and counts that as one of the thread's rounds.
    #[inline(always)]
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        rounds: &mut u64,
    ) -> Poll<Result<usize, Box<End>>> {
        let read = ready!(self.stream.poll_receive(cx, buffer));
        self.count_round(rounds);
        if let Some(busy) = &self.shared.busy {
            busy.read();
        }
        let end = match read.map_err(End::from) {
            Ok(0) | Err(End::Closed) if self.inbox.is_partial() || !self.payload.is_empty() => {
                End::Truncated
            }
            Ok(0) => End::Closed,
            Ok(read) => return Poll::Ready(Ok(read)),
            Err(end) => end,
        };
        Poll::Ready(Err(end.into()))
    }

    /// Writes what the round has to send, and keeps what the socket does not accept.
    #[inline(always)]
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        round: &mut Round<'_, H>,
    ) -> Poll<Result<(), Box<End>>> {
        let output = &round.output[..round.written];
        let mut sent = 0;
        if !output.is_empty() {
            match self.stream.write_at_once(cx, output) {
                Poll::Ready(written) => sent = written?,
                Poll::Pending => {}
            }
        }
        if sent < output.len() {
            self.unsent.extend_from_slice(&output[sent..]);
            self.unsent_since = Some(Instant::now());
        }
        if round.acks > 0 {
            self.shared.counters.took(round.acks, output.len(), round.asked.elapsed());
        }
        Poll::Ready(round.end.take().map_or(Ok(()), Err))
    }

    /// Answers the whole frames of `input`, or as many as one write should have.
    #[inline]
    fn answer(&mut self, input: &[u8], round: &mut Round<'_, H>) -> Taken {
        let used = self.answer_shaped(input, round);
        let taken = match used == input.len() {
            true => Taken { used, more: false },
            false => self.answer_frames(input, used, round),
        };
        round.end_handler();
        taken
    }

    /// Answers the frames behind the first `used` bytes.
    fn answer_frames(&mut self, input: &[u8], mut used: usize, round: &mut Round<'_, H>) -> Taken {
        let now = round.asked.duration_since(self.opened);
        let engine_id = self.engine_id.clone();
        // Each pass uses up a batch of the input, or is the last.
        loop {
            let mut batch = ArrayVec::<Request<'_>, BATCH>::new();
            // Each of these requests may have to wait for a late reply.
            let waiting = self.late.count();
            let most = BATCH.min(self.shared.settings.max_in_flight.get().saturating_sub(waiting));
            // Whether there may be more whole frames.
            let more = loop {
                if batch.len() == most {
                    break true;
                }
                let (event, length) = match self.protocol.receive(&input[used..], now) {
                    Ok(Some(event)) => event,
                    Ok(None) => break false,
                    Err(error) => {
                        round.end = Some(End::Protocol(error).into());
                        break false;
                    }
                };
                used += length;
                match event {
                    Event::Notify(notify) => {
                        let messages = notify.messages().len();
                        batch.push(Request::new(notify, &engine_id));
                        if messages > 1 {
                            round.more_messages += messages - 1;
                            if round.more_messages >= MORE_MESSAGES {
                                break true;
                            }
                        }
                    }
                    Event::Hello(welcome) => {
                        self.welcome(&welcome, round);
                        // The AGENT-HELLO must have a write of its own, and the requests behind it
                        // need the new engine id.
                        return Taken { used, more: round.end.is_none() };
                    }
                    Event::Disconnect(disconnect) => {
                        round.end = Some(End::Disconnected(disconnect.status).into());
                        break false;
                    }
                    Event::Fragment(fragment) => {
                        self.keep(&fragment);
                        if fragment.place == Place::Last {
                            // The requests before it are answered before it.
                            self.answer_batch(&batch, round);
                            batch.clear();
                            self.answer_payload(fragment.id, round);
                            break round.end.is_none();
                        }
                    }
                    Event::Skipped => {}
                }
            };
            self.answer_batch(&batch, round);
            let is_full = round.written >= WRITE_BYTES || round.more_messages >= MORE_MESSAGES;
            if !more || is_full || most == 0 {
                return Taken { used, more };
            }
            used += self.answer_shaped(&input[used..], round);
        }
    }

    /// Lets the handler answer requests of shapes that it knows. Returns how many bytes of the
    /// input these take.
    fn answer_shaped(&mut self, input: &[u8], round: &mut Round<'_, H>) -> usize {
        let may_wait = self.shared.settings.max_in_flight.get();
        let is_full = round.written >= WRITE_BYTES || self.late.count() >= may_wait;
        if input.is_empty() || is_full || !self.permit.is_held() {
            return 0;
        }
        round.begin_handler();
        let Round { shared, output, written, state, acks, .. } = round;
        let Some(state) = state else { return 0 };
        let protocol = &mut self.protocol;
        let mut notifies = ShapedNotifies::new(protocol, input, output, *written, WRITE_BYTES);
        // NOTIFYs that it has answered before a panic are answered.
        let done = shielded(|| shared.handler.answer_shaped(state, &mut notifies));
        let (used, answered, length) = notifies.finish();
        let left_out = notifies.left_out();
        shared.counters.answered(answered);
        *written = length;
        *acks += answered;
        if left_out > 0 {
            round.left_out(left_out);
        }
        if done.is_none() {
            round.panicked("the handler panicked; the request is asked about once more");
        }
        used
    }

    /// Keeps a piece of a payload. `protocol` limits how large a payload can become.
    fn keep(&mut self, fragment: &Fragment<'_>) {
        match fragment.place {
            Place::First => self.payload = fragment.bytes.to_vec(),
            Place::Next | Place::Last => self.payload.extend_from_slice(fragment.bytes),
            Place::Aborted => self.payload = Vec::new(),
        }
    }

    /// Answers the NOTIFY whose pieces have all come.
    fn answer_payload(&mut self, id: FrameId, round: &mut Round<'_, H>) {
        self.shared.counters.reassembled();
        let payload = std::mem::take(&mut self.payload);
        match self.protocol.reassembled(id, &payload) {
            Ok(notify) => {
                let engine_id = self.engine_id.clone();
                let request = Request::new(notify, &engine_id);
                round.more_messages += request.more_messages();
                self.answer_batch(&[request], round);
            }
            Err(error) => round.end = Some(End::Protocol(error).into()),
        }
    }

    /// Answers the HELLO.
    fn welcome(&mut self, welcome: &Welcome<'_>, round: &mut Round<'_, H>) {
        self.greeted = true;
        let engine_id = welcome.hello.engine_id.unwrap_or_default();
        if engine_id.len() <= MAX_ENGINE_ID_BYTES {
            self.engine_id = engine_id.into();
        }
        if welcome.hello.healthcheck && self.shared.has_reached(Stage::Leaving) {
            round.end = Some(End::HealthCheck.into());
            return;
        }
        // It fits: see `Welcome::MAX_SIZE`.
        round.append_control(|space| welcome.encode(space).unwrap_or(0));
    }

    /// Answers requests, in order.
    fn answer_batch(&mut self, requests: &[Request<'_>], round: &mut Round<'_, H>) {
        if requests.is_empty() {
            return;
        }
        if self.permit.acquire() {
            round.begin_handler();
        } else {
            self.shared.counters.shed(requests.len());
            self.shared.log.warn(format_args!(
                "there are more connections than may use the handler; the requests of the others \
                 are answered without actions"
            ));
        }
        let limit = self.protocol.max_ack_size(requests.len());
        batch::answer_all(requests, limit, round, &mut self.late);
    }

    /// Appends AGENT-DISCONNECT to the ACKs if that is due, and if no request that has begun to
    /// arrive would go without an answer.
    fn append_farewell(&mut self, round: &mut Round<'_, H>) {
        if self.farewell != Farewell::WithNextAck || round.acks == 0 || round.end.is_some() {
            return;
        }
        if self.inbox.is_empty() && self.payload.is_empty() && self.late.count() == 0 {
            round.append_control(|space| encode_farewell(space, Status::NORMAL));
            round.end = Some(End::Stopped.into());
            self.farewell = Farewell::Written;
        }
    }

    /// The end that a passed deadline means now.
    fn timed_out(&self) -> End {
        if !self.unsent.is_empty() {
            End::Unread(WRITE_TIMEOUT)
        } else if self.protocol.is_healthcheck() {
            End::HealthCheck
        } else {
            End::TimedOut
        }
    }

    /// Sends what must still be sent, and closes.
    async fn finish(mut self, mut end: End) -> Ended {
        match end {
            End::Stopped => end = self.last_answers().await,
            // NOTIFYs that came before the DISCONNECT are answered before ours.
            End::Disconnected(_) => drop(timeout(LAST_WORDS, self.answer_late()).await),
            _ => {}
        }
        let greeted = self.greeted;
        let status = match &end {
            // However a health check leaves, it was answered, and expects nothing more.
            End::Closed | End::Disconnected(_) | End::Stopped
                if self.protocol.is_healthcheck() =>
            {
                return Ended { end: End::HealthCheck, greeted };
            }
            End::Disconnected(_) | End::Stopped => Status::NORMAL,
            End::Protocol(error) => error.status(),
            End::TimedOut => Status::TIMEOUT,
            // If a part of an answer is unsent, a frame behind it could not be read.
            End::NoMemory if self.unsent.is_empty() => Status::RESOURCE,
            _ => return Ended { end, greeted },
        };
        if !greeted && !matches!(end, End::Stopped) {
            // HAProxy up to 3.0 connects again at once, in a loop, as long as a request waits.
            sleep(REFUSAL_PAUSE).await;
        }
        for answered in self.late.give_up() {
            self.count_late(&answered);
            self.unsent.extend_from_slice(&answered.ack);
        }
        if self.farewell != Farewell::Written {
            self.unsent.extend_from_slice(&farewell(status));
        }
        // An error here only means that the peer is gone already.
        let _ = timeout(FAREWELL, self.send_and_wait()).await;
        Ended { end, greeted }
    }

    /// Answers what has come before the agent was told to stop. With a drain, waits a moment for
    /// the connection's next NOTIFY first, to end the connection right behind its ACK.
    async fn last_answers(&mut self) -> End {
        // Without a drain HAProxy has no other agent to ask, and the next agent may wait for this
        // one to end.
        if !self.shared.settings.drain.is_zero() {
            self.farewell = Farewell::WithNextAck;
            let round = timeout(LAST_NOTIFY, poll_fn(|cx| self.poll_round(cx))).await;
            if let Ok(Err(end)) = round {
                return *end;
            }
        }
        timeout(LAST_WORDS, self.answer_what_has_come()).await.unwrap_or(End::Stopped)
    }

    async fn answer_what_has_come(&mut self) -> End {
        for _ in 0..LAST_ROUNDS {
            let round = poll_fn(|cx| match self.poll_round(cx) {
                Poll::Pending if self.unsent.is_empty() && self.late.count() == 0 => {
                    Poll::Ready(Err(End::Stopped.into()))
                }
                round => round,
            });
            // With tokio's budget, the end of the budget would look like the end of the bytes that
            // have come.
            if let Err(end) = unconstrained(round).await {
                return *end;
            }
        }
        End::Stopped
    }

    /// Sends late replies until no request waits, and reads nothing.
    async fn answer_late(&mut self) -> Result<(), Box<End>> {
        while self.late.count() > 0 {
            poll_fn(|cx| match self.unsent.is_empty() {
                true => self.poll_late(cx, &mut Vec::new()),
                false => self.poll_unsent(cx),
            })
            .await?;
        }
        Ok(())
    }

    /// Writes what is unsent, and waits for the peer to close. Ignores what it sends meanwhile.
    async fn send_and_wait(&mut self) -> Result<(), Box<End>> {
        while !self.unsent.is_empty() {
            poll_fn(|cx| self.poll_unsent(cx)).await?;
        }
        self.inbox = Inbox::Empty;
        let mut ignored = [0; 4096];
        // Ends when the peer closes; the caller limits the time.
        loop {
            poll_fn(|cx| self.poll_read(cx, &mut ignored, &mut 0)).await?;
        }
    }
}
