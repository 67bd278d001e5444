//! An explanation in words: for a client, for each of its limits, and for what decides.

use std::fmt::Write as _;

use gcra_limiter::verdict::Reason;
use gcra_table::board::OrderKind;
use gcra_text::count::Count;
use gcra_text::duration::Utc;
use gcra_text::visible::quoted;

use crate::explanation::{
    AppliedOverride, Decided, Explanation, KeyPart, LimitState, RuleKind, UnsettledState,
};
use crate::lease_state::left;
use crate::order_state::OrderState;

/// The words of `get` and `reset` about a key without a bucket.
pub(crate) const NO_BUCKET: &str = "no bucket: no request with this key was counted lately, or \
                                    its debt is paid off";

/// How `explain` begins to say what is left to a client without a bucket.
pub(crate) const NO_BUCKET_SO: &str = "no bucket, so";

impl LimitState {
    /// Whether the table knows anything about the client under this limit.
    pub(crate) fn is_known(&self) -> bool {
        self.bucket || self.carried_over
    }

    /// "6 of 10 left; all 10 again in 23 min". If an order decides, it does not say when a request
    /// is allowed.
    pub(crate) fn in_words(&self, observes: bool, is_ordered: bool) -> String {
        let words = self.state_in_words(observes, is_ordered);
        match &self.window_ends {
            Some(ends) if self.bucket => format!("{words}: the window ends at {ends}"),
            _ => words,
        }
    }

    fn state_in_words(&self, observes: bool, is_ordered: bool) -> String {
        let Self { remaining, burst, retry_after_ms, full_after_ms, .. } = self;
        let (wait, full_after) = (left(*retry_after_ms), left(*full_after_ms));
        let carried = match (self.carried_over, self.penalty_ms) {
            (true, _) => " (a debt from before the limits were changed)".to_owned(),
            (false, 0) => String::new(),
            (false, ms) if self.settled => {
                format!(" ({} of it is beyond the burst, charged by responses)", left(ms))
            }
            (false, ms) => format!(" (at least {} of it is penalty)", left(ms)),
        };
        match (*full_after_ms, *retry_after_ms) {
            (0, _) if !self.bucket => NO_BUCKET.to_owned(),
            (0, _) if self.window.is_some() => format!("{burst} of {burst} left"),
            (0, _) => format!("owes nothing; {burst} of {burst} left"),
            (_, 0) if self.delay_ms > 0 && !is_ordered => format!(
                "none of {burst} left; a request now {} {}, all {burst} again in \
                 {full_after}{carried}",
                if observes { "would be delayed by" } else { "is delayed by" },
                left(self.delay_ms)
            ),
            (_, wait_ms) if wait_ms == 0 || is_ordered => {
                format!("{remaining} of {burst} left; all {burst} again in {full_after}{carried}")
            }
            _ => format!(
                "{}; the next request is allowed in {wait}{}, all {burst} again in \
                 {full_after}{carried}",
                if observes { "over the limit, and only observed" } else { "blocked" },
                with_delay(self.next_delay_ms),
            ),
        }
    }
}

impl UnsettledState {
    /// "unsettled: no response yet: 500 cells may follow; too late for one: 100 cells are charged
    /// with the next request"; `None` if there is nothing.
    pub(crate) fn in_words(self) -> Option<String> {
        let Self { open, overdue } = self;
        let open = (open > 0)
            .then(|| format!("no response yet: {} may follow", Count(open, "cell", "cells")));
        let overdue = (overdue > 0).then(|| {
            let are = Count(overdue, "cell is", "cells are");
            format!("no response in time: {are} charged with the next request, and counted above")
        });
        let all: Vec<_> = open.into_iter().chain(overdue).collect();
        (!all.is_empty()).then(|| format!("unsettled requests: {}", all.join("; ")))
    }
}

impl Explanation {
    /// The explanation on a few lines.
    pub fn in_words(&self) -> String {
        self.in_words_with(&[])
    }

    /// The same, with notes behind what is decided.
    pub fn in_words_with(&self, notes: &[String]) -> String {
        let mut words = match &*self.message {
            "" => String::new(),
            message => format!("message '{message}': "),
        };
        match (&self.policy, &self.undecided) {
            (Some(policy), Some(why)) => {
                let _ = write!(words, "policy '{policy}' does not decide: {why}");
            }
            (None, Some(why)) => words.push_str(why),
            (policy, None) => {
                if let Some(policy) = policy {
                    let _ = write!(words, "policy '{policy}' decides: ");
                }
                if let Some(decided) = &self.decided {
                    words.push_str(&decided.verdict_in_words());
                }
            }
        }
        for note in notes {
            let _ = write!(words, "; {note}");
        }
        for passed_over in &self.passed_over {
            let _ = write!(words, "\n  passed over: {passed_over}");
        }
        if let Some(decided) = &self.decided {
            if decided.reset_at > 0 {
                let at = Utc(decided.reset_at / 1_000_000_000);
                let _ = write!(words, "\n  all clients of the policy were reset at {at}");
            }
            decided.add_details(&mut words);
        }
        words
    }
}

impl Decided {
    /// Whether the client has a bucket, or owes something; under limits that machines share:
    /// whether this machine knows it.
    pub fn has_bucket(&self) -> bool {
        self.limits.iter().any(LimitState::is_known)
            || self.held.iter().any(|held| held.known)
            || self.unsettled.is_some_and(|it| it.open > 0 || it.overdue > 0)
    }

    /// Whether the table knows anything about the client.
    pub fn is_known(&self) -> bool {
        self.has_bucket() || self.order.is_some()
    }

    /// The same, where only the limits matter whose labels `counts` says yes to.
    pub(crate) fn is_known_by(&self, counts: impl Fn(&str) -> bool) -> bool {
        self.limits.iter().any(|limit| limit.is_known() && counts(&limit.limit))
            || self.held.iter().any(|held| held.known && counts(&held.limit))
            || self.order.is_some()
    }

    /// "a request now is blocked; the next one is allowed in 5.9 s".
    fn verdict_in_words(&self) -> String {
        if let Some(order) = &self.order {
            return self.order_in_words(order);
        }
        if let Some(away) = &self.away {
            return away.in_words(self.blocked, self.would_block, self.retry_after_ms);
        }
        let Some(reason) = self.reason else {
            return match (self.rule, self.cells, self.retry_after_ms) {
                (RuleKind::Unlimited, ..) => {
                    "every request is allowed, by \"unlimited\"".to_owned()
                }
                (_, cells, _) if self.settled_by.is_some() && !self.asks_store => {
                    let message = self.settled_by.as_deref().unwrap_or_default();
                    let reserves = match cells {
                        0 => "reserves no cell".to_owned(),
                        cells => format!("reserves {}", Count(cells, "cell", "cells")),
                    };
                    format!(
                        "a request now is allowed, and {reserves}; the message '{message}' \
                         settles its cost"
                    )
                }
                (_, 0, 0) if !self.asks_store => {
                    "a request now is allowed, and it costs nothing".to_owned()
                }
                (_, 0, wait_ms) if !self.asks_store => format!(
                    "a request now is allowed, because it costs nothing; one that costs 1 cell is \
                     allowed in {}",
                    left(wait_ms)
                ),
                _ if self.asks_store && self.observes => {
                    "a request now is allowed, because the policy only observes; the store is \
                     asked whether it would be blocked"
                        .to_owned()
                }
                _ if self.asks_store && self.store_is_there => {
                    "the store is asked about a request now, and decides".to_owned()
                }
                _ if self.asks_store => {
                    "the store decides about a request now, if agents can reach it".to_owned()
                }
                _ if self.held.iter().any(|held| held.at_once) => {
                    let delay = with_delay(self.delay_ms);
                    format!("a request now is allowed{delay}, by what the store has")
                }
                _ if !self.held.is_empty() => {
                    "a request now is allowed, by cells that this machine holds".to_owned()
                }
                _ if self.delay_ms > 0 => {
                    format!("a request now is allowed, with a delay of {}", left(self.delay_ms))
                }
                _ => "a request now is allowed".to_owned(),
            };
        };
        let mut words = match self.blocked {
            true => "a request now is blocked".to_owned(),
            false if !self.observes => {
                return "a request now is allowed; its trial ('observe') would block it"
                    .to_owned();
            }
            false => "a request now is allowed, because the policy only observes; it would be \
                      blocked"
                .to_owned(),
        };
        let _ = match reason {
            Reason::Denied => write!(words, ", because the limit is \"deny\""),
            Reason::Blocked => write!(words, " by an order"),
            Reason::Oversize => {
                write!(words, ", because it costs more than a burst, so it can never be allowed")
            }
            _ if self.held.iter().any(|held| !held.at_once) => {
                write!(words, "; the store is asked again in {}", left(self.retry_after_ms))
            }
            _ => {
                let limits = self.limits.iter();
                let delay_ms = limits.map(|limit| limit.next_delay_ms).max().unwrap_or_default();
                let wait = left(self.retry_after_ms);
                write!(words, "; the next one is allowed in {wait}{}", with_delay(delay_ms))
            }
        };
        words.push_str(&self.penalty_in_words());
        words
    }

    /// "a request now is blocked, because the client is blocked for another 60 min, until ...".
    fn order_in_words(&self, order: &OrderState) -> String {
        let because = format!("because the client is {}", order.in_words_for(&self.client));
        match order.kind {
            OrderKind::Exempt => {
                let otherwise = match self.blocked_otherwise {
                    true => "; without the exemption it would be blocked",
                    false => "",
                };
                format!("a request now is allowed, {because}{otherwise}")
            }
            OrderKind::Block if self.observes => format!(
                "a request now is allowed, because the policy only observes; it would be \
                 blocked, {because}"
            ),
            OrderKind::Block => format!("a request now is blocked, {because}"),
        }
    }

    /// "; at least 9.9 min of that is penalty. Each request before that starts the wait again".
    fn penalty_in_words(&self) -> String {
        let (wait, if_asked) = (left(self.retry_after_ms), left(self.retry_after_ms_if_asked));
        let longest = self.limits.iter().max_by_key(|limit| limit.retry_after_ms);
        let penalty = longest.map_or(0, |limit| limit.penalty_ms);
        let grows = self.retry_after_ms_if_asked > self.retry_after_ms;
        let settled = longest.is_some_and(|limit| limit.settled);
        let mut words = match (penalty, grows) {
            (0, _) => String::new(),
            (ms, _) if settled => {
                format!("; {} of that is beyond the burst, charged by responses", left(ms))
            }
            (ms, true) => format!("; at least {} of that is penalty", left(ms)),
            (ms, false) => format!("; {} of that is penalty, which is at its ceiling", left(ms)),
        };
        if grows && wait.to_string() == if_asked.to_string() {
            words.push_str(". Each request before that starts the wait again (penalty)");
        } else if grows {
            // Writing to a string does not fail.
            let _ = write!(
                words,
                ". If there is a request before that, the wait is {if_asked} from then on \
                 (penalty)"
            );
        }
        words
    }

    fn add_details(&self, words: &mut String) {
        for KeyPart { arg, instead_of, value, counted_as } in &self.key {
            let arg = arg.as_deref().map(|arg| format!("{arg} ")).unwrap_or_default();
            // Writing to a string does not fail.
            let _ = write!(words, "\n  key: {arg}{value}");
            if let Some(missing) = instead_of {
                let _ = write!(words, ", because there is no {missing}");
            }
            if value != counted_as {
                let _ = write!(words, ", counted as {counted_as}");
            }
        }
        let _ = write!(words, "\n  client in logs: {}", self.client);
        if let Some(known_as) = &self.known_as {
            let _ = write!(words, ", known as {known_as}");
        }
        let _ = write!(
            words,
            "\n  KEY for table get, table reset, exempt and block: {}",
            quoted(&self.written_key)
        );
        if self.cells != 1 {
            let _ = write!(words, "\n  cost: {} cells", self.cells);
        }
        if let Some(AppliedOverride { entry, limits, list, .. }) = &self.applied_override {
            let list = list.as_ref().map(|list| format!(", from {list}")).unwrap_or_default();
            let _ = write!(words, "\n  override: {entry}{list}: {limits}");
        }
        let limits = self.limits.iter().map(|state| (state, self.observes));
        let observed = self.observed.iter().map(|state| (state, true));
        for (state, observes) in limits.chain(observed) {
            let said = match state.is_known() {
                true => state.in_words(observes, self.order.is_some()),
                false => format!("{NO_BUCKET_SO} all {} are left", state.burst),
            };
            let _ = write!(words, "\n  limit '{}', {}: {said}", state.limit, state.text);
        }
        for held in self.held.iter().chain(&self.observed_held) {
            let said = held.in_words();
            let _ = write!(words, "\n  limit '{}', {}: {said}", held.limit, held.text);
        }
        if let Some(unsettled) = self.unsettled.and_then(UnsettledState::in_words) {
            let _ = write!(words, "\n  {unsettled}");
        }
        if let Some(without_store) = &self.without_store {
            let _ = write!(
                words,
                "\n  shared: all machines that use the store count together, and what the client \
                 owes is there; without the store, {without_store}"
            );
        }
    }
}

/// " with a delay of 2 s", unless there is none.
fn with_delay(milliseconds: u64) -> String {
    match milliseconds {
        0 => String::new(),
        _ => format!(" with a delay of {}", left(milliseconds)),
    }
}
