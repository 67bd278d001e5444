//! One round of a connection: one read, the answers to what it brought, one write.

// ADR 8: Pipelining only where ACKs fit HAProxy's buffer.

use tokio::time::Instant;

use spop_codec::{Status, encode_agent_disconnect};

use crate::catch_panic::shielded;
use crate::end::End;
use crate::handler::{Handler, Request};
use crate::late_replies::{LateReplies, Waiting};
use crate::reply::LateFuture;
use crate::shared::Shared;

/// The most bytes of a frame of the agent that is not an ACK. Such frames have under 100.
const CONTROL_FRAME_BYTES: usize = 512;

/// After this many messages, besides the first of each request, a round ends, although not all is
/// answered that was read. One message for each request is bounded by what a round may read:
/// 16 KiB have about 600. Several in a NOTIFY need fewer bytes each, and as much time.
pub(crate) const MORE_MESSAGES: usize = 256;

/// A request that begins to wait for a late reply, or gets it, counts as this many messages more:
/// it is copied, and has a future and timers.
pub(crate) const LATE_IS_LIKE: usize = 8;

/// The state of a round so far.
pub(crate) struct Round<'r, H: Handler> {
    pub(crate) shared: &'r Shared<H>,
    /// The thread's buffer for answers. Its first `written` bytes are those of this round.
    pub(crate) output: &'r mut Vec<u8>,
    pub(crate) written: usize,
    /// How many ACKs are among these bytes.
    pub(crate) acks: usize,
    /// How many messages its requests have had, besides the first of each.
    pub(crate) more_messages: usize,
    /// When the requests had been read.
    pub(crate) asked: Instant,
    /// The value that the handler returned for this round; `None` before its first request.
    pub(crate) state: Option<H::Round>,
    /// Set if the connection ends with this round. In a box, because all rounds pass it on.
    pub(crate) end: Option<Box<End>>,
}

impl<'r, H: Handler> Round<'r, H> {
    /// A round whose requests have just been read.
    pub(crate) fn begin(shared: &'r Shared<H>, output: &'r mut Vec<u8>) -> Self {
        let asked = Instant::now();
        Self {
            shared,
            output,
            written: 0,
            acks: 0,
            more_messages: 0,
            asked,
            state: None,
            end: None,
        }
    }

    /// Space for this many more bytes behind what is written.
    #[inline]
    pub(crate) fn space(&mut self, bytes: usize) -> &mut [u8] {
        if self.output.len() < self.written + bytes {
            self.output.resize(self.written + bytes, 0);
        }
        &mut self.output[self.written..]
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.space(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.written += bytes.len();
    }

    /// Appends a frame that is not an ACK.
    pub(crate) fn append_control(&mut self, encode: impl FnOnce(&mut [u8]) -> usize) {
        let length = encode(self.space(CONTROL_FRAME_BYTES));
        self.written += length;
    }

    /// Lets the handler begin the round, unless it has.
    #[inline]
    pub(crate) fn begin_handler(&mut self) {
        if self.state.is_some() {
            return;
        }
        let Self { shared, state, .. } = self;
        // There was nothing to drop, which the compiler does not see.
        let begin = || std::mem::forget(state.replace(shared.handler.round()));
        if shielded(begin).is_none() {
            self.panicked(
                "the handler panicked; the requests of one read are answered without actions",
            );
        }
    }

    /// Lets the handler end the round. Everything is answered already.
    #[inline]
    pub(crate) fn end_handler(&mut self) {
        if shielded(|| self.state = None).is_none() {
            self.panicked("the handler panicked after it had answered the requests of one read");
        }
    }

    /// Makes a request wait for its late reply. The ACK of `length` bytes that was written last is
    /// its fallback, and is not sent now. Returns false if there is no memory to wait in: then
    /// that ACK is the answer.
    pub(crate) fn wait(
        &mut self,
        request: &Request<'_>,
        later: LateFuture,
        length: usize,
        late: &mut LateReplies,
    ) -> bool {
        let Shared { counters, settings, .. } = self.shared;
        let waiting = Waiting {
            request,
            fallback: &self.output[self.written..self.written + length],
            asked: self.asked,
            deadline: settings.deadline,
        };
        let Err(later) = late.push(later, &waiting, counters, settings.max_buffered_bytes) else {
            self.more_messages += LATE_IS_LIKE;
            return true;
        };
        counters.overdue();
        if shielded(|| drop(later)).is_none() {
            counters.handler_panic();
        }
        false
    }

    /// Counts and logs that ACKs had no space for some actions.
    #[cold]
    pub(crate) fn left_out(&self, actions: u64) {
        self.shared.counters.left_out(actions);
        self.shared.log.warn(format_args!(
            "an ACK had no space for a variable, which was left out; answer with fewer or shorter \
             variables"
        ));
    }

    /// Counts and logs that the handler panicked.
    pub(crate) fn panicked(&self, what: &str) {
        self.shared.counters.handler_panic();
        self.shared.log.warn(format_args!("{what}"));
    }
}

/// Writes an AGENT-DISCONNECT with a status and its text. Returns its length.
pub(crate) fn encode_farewell(output: &mut [u8], status: Status) -> usize {
    // It fits: it has under 100 bytes.
    encode_agent_disconnect(output, status, status.text()).unwrap_or(0)
}

/// An AGENT-DISCONNECT with a status and its text.
pub(crate) fn farewell(status: Status) -> Vec<u8> {
    let mut frame = vec![0; CONTROL_FRAME_BYTES];
    let length = encode_farewell(&mut frame, status);
    frame.truncate(length);
    frame
}
