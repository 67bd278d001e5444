//! The requests of a connection whose handler waits for something.

use std::future::Future;
use std::mem::size_of;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream as _};
use tokio::time::{Instant, Sleep, sleep};

use crate::buffers::Share;
use crate::counters::Counters;
use crate::handler::{LateAnswer, LateReply};
use crate::shield::shielded;

/// The requests that wait, and what they wait for. Allocates nothing while there are none.
#[derive(Default)]
pub(crate) struct Late {
    waiting: Option<FuturesUnordered<Waiting>>,
}

/// A request that waits. It is counted from [`Waiting::new`] until it is dropped.
struct Waiting {
    /// `None` once there is an ACK.
    answer: Option<LateAnswer>,
    deadline: Pin<Box<Sleep>>,
    fallback: Vec<u8>,
    asked: Instant,
    counters: Arc<Counters>,
    _share: Share,
}

/// An ACK that came later.
pub(crate) struct Answered {
    pub(crate) ack: Vec<u8>,
    pub(crate) asked: Instant,
    pub(crate) how: How,
}

/// Where an ACK is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum How {
    InTime,
    /// The fallback, because the deadline has passed.
    Overdue,
    /// The fallback, because the future panicked.
    Panicked,
}

/// A request that is about to wait.
pub(crate) struct Asked<'a> {
    pub(crate) fallback: &'a [u8],
    pub(crate) asked: Instant,
    /// How long it may wait.
    pub(crate) deadline: Duration,
}

impl Late {
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.waiting.as_ref().map_or(0, FuturesUnordered::len)
    }

    /// Waits for an answer until its deadline, and then makes do with the fallback. Gives the
    /// future back when there is no memory for it: all that is kept has `limit` bytes at most.
    pub(crate) fn push(
        &mut self,
        answer: LateAnswer,
        request: &Asked<'_>,
        counters: &Arc<Counters>,
        limit: usize,
    ) -> Result<(), LateAnswer> {
        let mut share = Share::new(counters);
        let bytes = size_of::<Waiting>()
            + size_of::<Sleep>()
            + size_of_val(&*answer)
            // There may be as many for the ACK that the future writes.
            + 2 * request.fallback.len();
        if !share.resize(bytes, limit) {
            return Err(answer);
        }
        self.waiting.get_or_insert_default().push(Waiting::new(answer, request, counters, share));
        Ok(())
    }

    /// The next ACK, in the order in which they become ready; `None` when nothing waits.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Answered>> {
        match &mut self.waiting {
            Some(waiting) => Pin::new(waiting).poll_next(cx),
            None => Poll::Ready(None),
        }
    }

    /// Waits for nobody any more: the fallbacks of all that still do.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = Answered> + use<> {
        self.waiting
            .take()
            .into_iter()
            .flatten()
            .map(|mut waiting| waiting.fall_back(How::Overdue))
    }
}

impl Waiting {
    fn new(
        answer: LateAnswer,
        request: &Asked<'_>,
        counters: &Arc<Counters>,
        share: Share,
    ) -> Self {
        counters.waits();
        Self {
            answer: Some(answer),
            deadline: Box::pin(sleep(request.deadline)),
            fallback: request.fallback.to_vec(),
            asked: request.asked,
            counters: counters.clone(),
            _share: share,
        }
    }

    fn fall_back(&mut self, how: How) -> Answered {
        Answered { ack: std::mem::take(&mut self.fallback), asked: self.asked, how }
    }

    /// One step of the future. `None` when it panicked.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Option<Poll<LateReply>> {
        let answer = self.answer.as_mut()?;
        shielded(|| answer.as_mut().poll(cx))
    }

    /// Drops the future. Says whether that went well.
    fn let_go(&mut self) -> bool {
        let answer = self.answer.take();
        shielded(|| drop(answer)).is_some()
    }
}

impl Future for Waiting {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let this = &mut *self;
        let answered = match this.poll_answer(cx) {
            Some(Poll::Ready(reply)) => {
                Answered { ack: reply.finish(), asked: this.asked, how: How::InTime }
            }
            Some(Poll::Pending) => match this.deadline.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => this.fall_back(How::Overdue),
            },
            None => this.fall_back(How::Panicked),
        };
        // Counted once for each request.
        if !this.let_go() && answered.how != How::Panicked {
            this.counters.handler_panic();
        }
        Poll::Ready(answered)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.let_go() {
            self.counters.handler_panic();
        }
        self.counters.waits_no_more();
    }
}
