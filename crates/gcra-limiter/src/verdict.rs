//! The verdict on a message: whether its request may pass, by which policy, and why.

// ADR 35: Every message takes one path to its verdict.

use gcra_table::Nanos;
use serde::{Serialize, Serializer};

/// Whether a request may pass. Each is stronger than the one before it: of a request with several
/// messages the strongest counts.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Outcome {
    Allowed,
    /// Denied by a policy that only observes.
    WouldBlock,
    Blocked,
}

impl Outcome {
    /// Its index in [`OUTCOMES`].
    #[inline]
    pub const fn index(self) -> usize {
        match self {
            Self::Allowed => 0,
            Self::WouldBlock => 1,
            Self::Blocked => 2,
        }
    }
}

/// The name of every outcome that is counted. The first `DECISIONS` are those of a decision.
pub const OUTCOMES: [&str; 4] = ["allowed", "would_block", "blocked", "undecided"];
pub(crate) const DECISIONS: usize = 3;
pub(crate) const UNDECIDED: usize = 3;

/// How many counts there are: one for each of [`OUTCOMES`], and at [`NEWLY_BLOCKED`] how many of
/// the messages that a trial would block were allowed by the policy whose trial it is.
pub(crate) const COUNTS: usize = OUTCOMES.len() + 1;
pub const NEWLY_BLOCKED: usize = OUTCOMES.len();

gcra_text::words! {
    /// Why a request is blocked, or would be, with the word in the variable `reason`. Each is
    /// stronger than the one before it, because less would let the request pass: of several limits
    /// or messages the strongest counts.
    #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
    pub enum Reason {
        /// The limit is shared, the store could not be asked, and the policy says that requests
        /// are blocked then.
        Store = "store",
        /// A limit is used up.
        Limit = "limit",
        /// The request costs more cells than the burst, so it can never pass.
        Oversize = "oversize",
        /// The rule is `deny`.
        Denied = "denied",
        /// An operator has ordered it.
        Blocked = "blocked",
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The outcome of a message, and of a request once the verdicts on its messages are combined. The
/// counters, the answer and the log read this and nothing else.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// The index of the policy that decided.
    pub policy: usize,
    pub outcome: Outcome,
    /// `None` when the outcome is [`Outcome::Allowed`].
    pub reason: Option<Reason>,
    /// How long the request has to wait before it may go on by the limits, if it is allowed.
    pub delay: Nanos,
    /// Whether the policy only observes. Then nothing waits for its limits.
    only_observed: bool,
    /// Whether an enforced policy with `max_delay` has decided, so that the answer has the delay.
    delays: bool,
}

impl Verdict {
    /// The verdict of the policy with this index: `reason` is why it denies the message, if it
    /// does.
    #[inline]
    pub const fn new(policy: usize, observes: bool, reason: Option<Reason>) -> Self {
        let outcome = match (reason, observes) {
            (None, _) => Outcome::Allowed,
            (Some(_), false) => Outcome::Blocked,
            (Some(_), true) => Outcome::WouldBlock,
        };
        let delay = Nanos::ZERO;
        Self { policy, outcome, reason, delay, only_observed: observes, delays: false }
    }

    /// The same for a request that has to wait before it may go on.
    #[inline]
    pub fn after(self, delay: Nanos) -> Self {
        Self { delay, ..self }
    }

    /// The same of a policy that delays requests, if `delays` says so.
    #[inline]
    pub fn delaying(self, delays: bool) -> Self {
        Self { delays, ..self }
    }

    /// Combines this verdict with that on the next message of the same request. Of equally strong
    /// ones the first counts.
    pub fn and(self, next: Self) -> Self {
        let strongest = if self.is_weaker_than(next) { next } else { self };
        // A request waits until each of its messages may go on.
        let delay = self.delay_in_force().max(next.delay_in_force());
        let delays = self.delays || next.delays;
        Self { delay, only_observed: false, delays, ..strongest }
    }

    /// Whether the next message's verdict is the one that counts.
    pub(crate) fn is_weaker_than(self, next: Self) -> bool {
        (next.outcome, next.reason) > (self.outcome, self.reason)
    }

    fn delay_in_force(self) -> Nanos {
        if self.only_observed { Nanos::ZERO } else { self.delay }
    }

    /// The value of the variable `blocked`.
    #[inline]
    pub fn is_blocked(self) -> bool {
        self.outcome == Outcome::Blocked
    }

    /// The value of the variable `delay_ms`; `None` if it is not set. Where no policy that delays
    /// requests has decided, an earlier answer for the same request keeps its delay.
    pub(crate) fn delay_ms_to_answer(self) -> Option<u32> {
        (self.delays || self.is_blocked()).then(|| self.delay_ms())
    }

    /// How long the request has to wait, in milliseconds, rounded up. A blocked request does not
    /// wait.
    pub fn delay_ms(self) -> u32 {
        let delay = if self.is_blocked() { Nanos::ZERO } else { self.delay_in_force() };
        u32::try_from(delay.millis_ceil()).unwrap_or(u32::MAX)
    }

    /// Whether the request is blocked by no limit, but by a rule that is `deny` or by an order.
    #[inline]
    pub fn is_denied(self) -> bool {
        self.is_blocked() && matches!(self.reason, Some(Reason::Denied | Reason::Blocked))
    }

    /// Whether an order blocks the request.
    #[inline]
    pub(crate) fn is_by_order(self) -> bool {
        self.is_blocked() && self.reason == Some(Reason::Blocked)
    }

    /// Whether a request that was blocked could be allowed later.
    pub(crate) fn may_come_back(self) -> bool {
        !matches!(self.reason, Some(Reason::Oversize | Reason::Denied | Reason::Blocked))
    }

    /// The value of the variable `would_block`: whether the request would be blocked if no policy
    /// were in `mode = "observe"`.
    pub fn would_block(self) -> bool {
        self.outcome != Outcome::Allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Verdict = Verdict::new(0, false, None);
    const OBSERVED: Verdict = Verdict::new(1, true, Some(Reason::Oversize));
    const BLOCKED: Verdict = Verdict::new(2, false, Some(Reason::Limit));

    #[test]
    fn of_several_messages_the_strongest_verdict_counts() {
        for (first, second, strongest) in [
            (ALLOWED, OBSERVED, OBSERVED),
            (ALLOWED, BLOCKED, BLOCKED),
            (OBSERVED, BLOCKED, BLOCKED),
        ] {
            for both in [first.and(second), second.and(first)] {
                assert_eq!(
                    (both.policy, both.outcome, both.reason),
                    (strongest.policy, strongest.outcome, strongest.reason)
                );
            }
        }
        assert_eq!((BLOCKED.is_blocked(), BLOCKED.would_block()), (true, true));
        assert_eq!((OBSERVED.is_blocked(), OBSERVED.would_block()), (false, true));
        assert_eq!((ALLOWED.is_blocked(), ALLOWED.would_block()), (false, false));
    }

    #[test]
    fn a_request_waits_for_the_longest_delay_unless_it_is_blocked() {
        let [short, long] = [Nanos(1), Nanos(2_000_001)].map(|delay| ALLOWED.after(delay));
        assert_eq!((short.delay_ms(), long.delay_ms()), (1, 3), "rounded up");
        assert_eq!(OBSERVED.after(Nanos::from_secs(9)).delay_ms(), 0);
        for (first, second, delay_ms) in [
            (short, long, 3),
            (short, ALLOWED, 1),
            (long, OBSERVED, 3),
            (long, BLOCKED, 0),
            (short, Verdict::new(1, true, None).after(Nanos::from_secs(9)), 1),
        ] {
            assert_eq!(first.and(second).delay_ms(), delay_ms);
            assert_eq!(second.and(first).delay_ms(), delay_ms);
        }
    }

    #[test]
    fn a_delay_is_answered_by_policies_that_delay_and_for_what_is_blocked() {
        let delaying = ALLOWED.delaying(true);
        for (first, second, answered) in [
            (ALLOWED, ALLOWED, None),
            (ALLOWED, OBSERVED, None),
            (delaying, ALLOWED, Some(0)),
            (delaying.after(Nanos(1)), OBSERVED, Some(1)),
            (ALLOWED, BLOCKED, Some(0)),
            (delaying.after(Nanos(1)), BLOCKED, Some(0)),
        ] {
            assert_eq!(first.and(second).delay_ms_to_answer(), answered);
            assert_eq!(second.and(first).delay_ms_to_answer(), answered);
        }
    }

    #[test]
    fn of_equally_strong_verdicts_the_first_counts() {
        let other = Verdict { policy: 7, ..BLOCKED };
        assert_eq!(BLOCKED.and(other), BLOCKED);
        assert_eq!(other.and(BLOCKED), other);
    }

    #[test]
    fn what_can_never_be_allowed_is_the_stronger_reason_in_any_order() {
        let reasons =
            [Reason::Store, Reason::Limit, Reason::Oversize, Reason::Denied, Reason::Blocked];
        let said = |verdict: Verdict| (verdict.policy, verdict.reason);
        for observes in [false, true] {
            let of = |place: usize| Verdict::new(place, observes, Some(reasons[place]));
            for first in 0..reasons.len() {
                for second in 0..reasons.len() {
                    let both = of(first).and(of(second));
                    assert_eq!(said(both), said(of(first.max(second))));
                    for third in 0..reasons.len() {
                        let all = both.and(of(third));
                        assert_eq!(said(all), said(of(first.max(second).max(third))));
                    }
                }
            }
        }
        let observed = Verdict::new(9, true, Some(Reason::Denied));
        assert_eq!(observed.and(BLOCKED).policy, BLOCKED.policy, "the outcome is stronger");
        assert_eq!(BLOCKED.and(observed).reason, Some(Reason::Limit));
    }
}
