//! The requests of a connection that wait for late replies.

use std::future::Future;
use std::mem::{size_of, take};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream as _};
use tokio::time::{Instant, Sleep, sleep};

use crate::buffers::Share;
use crate::catch_panic::shielded;
use crate::counters::Counters;
use crate::handler::Request;
use crate::reply::{LateFuture, LateReply};

/// The requests that wait, and the futures that will answer them. It allocates nothing while there
/// are none.
#[derive(Default)]
pub(crate) struct LateReplies {
    requests: Option<FuturesUnordered<WaitingRequest>>,
}

/// A request that is about to wait.
pub(crate) struct Waiting<'a> {
    pub(crate) request: &'a Request<'a>,
    /// The ACK that is sent if the future does not answer.
    pub(crate) fallback: &'a [u8],
    /// When the request had been read.
    pub(crate) asked: Instant,
    /// How long the request may wait.
    pub(crate) deadline: Duration,
}

/// An ACK that leaves after its round.
pub(crate) struct Answered {
    pub(crate) ack: Vec<u8>,
    pub(crate) asked: Instant,
    /// How many messages the request has besides the first.
    pub(crate) more_messages: usize,
    pub(crate) source: Source,
}

/// Where the actions of an ACK are from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Source {
    /// The future returned them.
    Future,
    /// They are the fallback, because the deadline has passed.
    Overdue,
    /// They are the fallback, because the future panicked.
    Panicked,
}

impl LateReplies {
    /// How many requests wait.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.requests.as_ref().map_or(0, FuturesUnordered::len)
    }

    /// Lets a request wait for its answer. Returns the future if there is no memory to wait in:
    /// all memory that is kept has `limit` bytes at most.
    pub(crate) fn push(
        &mut self,
        answer: LateFuture,
        request: &Waiting<'_>,
        counters: &Arc<Counters>,
        limit: usize,
    ) -> Result<(), LateFuture> {
        let mut share = Share::new(counters);
        let bytes = size_of::<WaitingRequest>()
            + size_of::<Sleep>()
            + size_of_val(&*answer)
            // The future may keep a copy of the request. The ACK that it writes may be as long as
            // the fallback.
            + request.request.bytes()
            + 2 * request.fallback.len();
        if !share.resize(bytes, limit) {
            return Err(answer);
        }
        counters.waits();
        self.requests.get_or_insert_default().push(WaitingRequest {
            answer: Some(answer),
            deadline: Box::pin(sleep(request.deadline)),
            fallback: request.fallback.to_vec(),
            asked: request.asked,
            more_messages: request.request.more_messages(),
            counters: counters.clone(),
            _share: share,
        });
        Ok(())
    }

    /// The next ACK, in the order in which they become ready; `None` if no request waits.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Answered>> {
        match &mut self.requests {
            Some(requests) => Pin::new(requests).poll_next(cx),
            None => Poll::Ready(None),
        }
    }

    /// Ends the waiting: the fallbacks of all requests that still wait.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = Answered> + use<> {
        self.requests
            .take()
            .into_iter()
            .flatten()
            .map(|mut request| request.fall_back(Source::Overdue))
    }
}

/// A request that waits. It is counted from its creation until it is dropped.
struct WaitingRequest {
    /// `None` after the request was answered.
    answer: Option<LateFuture>,
    deadline: Pin<Box<Sleep>>,
    fallback: Vec<u8>,
    asked: Instant,
    more_messages: usize,
    counters: Arc<Counters>,
    _share: Share,
}

impl WaitingRequest {
    fn answered(&self, ack: Vec<u8>, source: Source) -> Answered {
        Answered { ack, asked: self.asked, more_messages: self.more_messages, source }
    }

    fn fall_back(&mut self, source: Source) -> Answered {
        let fallback = take(&mut self.fallback);
        self.answered(fallback, source)
    }

    /// Polls the future. `None` if it panicked.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Option<Poll<LateReply>> {
        let answer = self.answer.as_mut()?;
        shielded(|| answer.as_mut().poll(cx))
    }

    /// Drops the future. Returns false if that panicked.
    fn drop_future(&mut self) -> bool {
        let answer = self.answer.take();
        shielded(|| drop(answer)).is_some()
    }
}

impl Future for WaitingRequest {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let this = &mut *self;
        let answered = match this.poll_answer(cx) {
            Some(Poll::Ready(reply)) => {
                let (ack, left_out) = reply.finish();
                this.counters.left_out(left_out);
                this.answered(ack, Source::Future)
            }
            Some(Poll::Pending) => match this.deadline.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => this.fall_back(Source::Overdue),
            },
            None => this.fall_back(Source::Panicked),
        };
        // A request counts at most one panic.
        if !this.drop_future() && answered.source != Source::Panicked {
            this.counters.handler_panic();
        }
        Poll::Ready(answered)
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        if !self.drop_future() {
            self.counters.handler_panic();
        }
        self.counters.waits_no_more();
    }
}
