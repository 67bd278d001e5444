//! The requests of a connection whose handler waits for something.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream as _};
use tokio::time::{Instant, Sleep, sleep};

use crate::handler::LateAnswer;

/// The requests that wait, and what they wait for. Allocates nothing while there are none.
#[derive(Default)]
pub(crate) struct Late {
    waiting: Option<FuturesUnordered<Waiting>>,
}

struct Waiting {
    answer: LateAnswer,
    deadline: Pin<Box<Sleep>>,
    fallback: Vec<u8>,
    asked: Instant,
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

impl Late {
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.waiting.as_ref().map_or(0, FuturesUnordered::len)
    }

    /// Waits for an answer, at most so long, and then makes do with the fallback.
    pub(crate) fn push(&mut self, answer: LateAnswer, fallback: &[u8], asked: Instant, deadline: Duration) {
        let deadline = Box::pin(sleep(deadline));
        let waiting = self.waiting.get_or_insert_default();
        waiting.push(Waiting { answer, deadline, fallback: fallback.to_vec(), asked });
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
        self.waiting.take().into_iter().flatten().map(|mut waiting| waiting.fall_back(How::Overdue))
    }
}

impl Waiting {
    fn fall_back(&mut self, how: How) -> Answered {
        Answered { ack: std::mem::take(&mut self.fallback), asked: self.asked, how }
    }
}

impl Future for Waiting {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let this = &mut *self;
        Poll::Ready(match catch_unwind(AssertUnwindSafe(|| this.answer.as_mut().poll(cx))) {
            Ok(Poll::Ready(reply)) => Answered { ack: reply.finish(), asked: this.asked, how: How::InTime },
            Ok(Poll::Pending) => {
                ready!(this.deadline.as_mut().poll(cx));
                this.fall_back(How::Overdue)
            }
            Err(_) => this.fall_back(How::Panicked),
        })
    }
}
