//! Requests that are prepared together and then answered in order, even if the handler panics.
//!
//! # When the handler panics
//!
//! A panic costs its own request the actions, and no other request anything. The loop in
//! [`answer_all`] calls the handler again for the requests that are left, and it ends: each pass
//! either answers all requests, or ends in a panic that was
//!
//! * in `prepare`: then the request is marked as prepared, with nothing, so the next pass begins
//!   behind it;
//! * in `answer`: then what was prepared for the request had been taken out, so the next pass
//!   answers it without the handler, which cannot panic.
//!
//! So a request can cause at most one panic, and a batch ends after at most as many panics as it
//! has requests.

// ADR 11: The handler may prepare a batch.

use arrayvec::ArrayVec;

use crate::catch_panic::shielded;
use crate::handler::{Handler, Request};
use crate::late_replies::LateReplies;
use crate::reply::{Aside, Reply};
use crate::round::Round;

/// Requests that are prepared together: enough that the memory of the first request has arrived
/// when it is answered.
pub(crate) const BATCH: usize = 32;

/// A batch, and how far it has come.
struct Batch<'b, 'a, H: Handler> {
    requests: &'b [Request<'a>],
    /// For each of the first requests, what the handler prepared. `None` if the handler must not
    /// be asked about the request (any more).
    prepared: ArrayVec<Option<H::Prepared>, BATCH>,
    /// How many of the first requests are answered.
    answered: usize,
    /// With the late reply to the request that is being answered. It is here and not in the
    /// `Reply`, so that it is not dropped while a panic unwinds: it may panic itself.
    aside: Aside,
}

/// Appends to the round one ACK for each request, in order, whose LENGTH is at most `limit`; or
/// makes the request wait for its late reply. Without a handler's state in the round, the ACKs
/// have no actions.
pub(crate) fn answer_all<H: Handler>(
    requests: &[Request<'_>],
    limit: u32,
    round: &mut Round<'_, H>,
    late: &mut LateReplies,
) {
    round.space(requests.len() * (limit as usize + 4));
    let acks = round.acks;
    let (prepared, aside) = (ArrayVec::new(), Aside::default());
    let mut batch = Batch::<H> { requests, prepared, answered: 0, aside };
    // For why this ends see above.
    while shielded(|| batch.pass(limit, round, late)).is_none() {
        let later = batch.aside.later.take();
        // A panic here belongs to the same request, and is counted once with the other.
        let _ = shielded(|| drop(later));
        round.panicked("the handler panicked; its request is answered without actions");
        if batch.prepared.len() < requests.len() {
            batch.prepared.push(None);
        }
    }
    round.shared.counters.answered(round.acks - acks);
    if batch.aside.left_out > 0 {
        round.left_out(batch.aside.left_out);
    }
}

impl<H: Handler> Batch<'_, '_, H> {
    /// Prepares and answers all requests that are left.
    #[inline]
    fn pass(&mut self, limit: u32, round: &mut Round<'_, H>, late: &mut LateReplies) {
        let handler = &round.shared.handler;
        while self.prepared.len() < self.requests.len() {
            let request = &self.requests[self.prepared.len()];
            let state = round.state.as_mut();
            self.prepared.push(state.map(|state| handler.prepare(state, request)));
        }
        while self.answered < self.requests.len() {
            let request = &self.requests[self.answered];
            let output = &mut round.output[round.written..];
            let Some(mut reply) = Reply::new(output, request.id(), limit, &mut self.aside) else {
                // `answer_all` has made space for all of them, so this does not happen.
                return;
            };
            let prepared = self.prepared[self.answered].take();
            if let (Some(state), Some(prepared)) = (round.state.as_mut(), prepared) {
                handler.answer(state, prepared, request, &mut reply);
            }
            let length = reply.finish();
            self.answered += 1;
            let waits = match self.aside.later.take() {
                Some(later) => round.wait(request, later, length, late),
                None => false,
            };
            if !waits {
                round.written += length;
                round.acks += 1;
            }
        }
    }
}
