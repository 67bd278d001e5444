//! Messages that got no decision: how many, and what was wrong with the last one.

// ADR 13: A message without an arg of the key has no decision.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayString;
use gcra_policy::key_parts::{KeyArg, NoValue};
use gcra_policy::settle::RESERVED;
use gcra_policy::{Policies, Policy, Price};
use gcra_text::count::Count;
use spop_agent::{Message, Value};

use crate::client_name::printable;
use crate::haproxy_undecided::HaproxyUndecided;

/// Counts messages that got no decision, and remembers the last one of each kind.
#[derive(Debug, Default)]
pub struct Undecided {
    /// An arg of the key had no value, or the cost was not a valid one.
    pub undecided: AtomicU64,
    /// No policy is for them.
    pub unmatched: AtomicU64,
    /// Messages that say too little to settle a request, or to reserve something for it.
    pub unsettled: AtomicU64,
    /// Requests that HAProxy got no answer for.
    pub haproxy: HaproxyUndecided,
    last_undecided: Mutex<Option<LastUndecided>>,
    last_unsettled: Mutex<Option<LastUnsettled>>,
    last_unmatched: Mutex<Option<LastUnmatched>>,
}

/// The longest name that is remembered, in bytes.
const MAX_NAME: usize = 64;

/// A name in printable characters, cut at `MAX_NAME` bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrintableName(ArrayString<MAX_NAME>);

impl PrintableName {
    pub fn new(bytes: &[u8]) -> Self {
        let mut name = ArrayString::new();
        // A printable character is one byte, and what does not fit is left out.
        for byte in bytes.iter().take(MAX_NAME) {
            let _ = name.try_push(printable(*byte));
        }
        Self(name)
    }
}

impl fmt::Display for PrintableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Copy, Debug)]
struct LastUndecided {
    policy: PrintableName,
    message: PrintableName,
    arg: PrintableName,
    /// The limit whose key has the arg; empty for the policy's key.
    limit: PrintableName,
    /// The message is one that settles requests of the policy.
    settles: bool,
    why: Why,
}

/// Why nothing could be decided about a message for which there is a policy.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// An arg of the key has no value; and whether the key names fallbacks for it.
    Key(NoValue, bool),
    /// The cost is negative or not an integer.
    Cost,
}

#[derive(Clone, Copy, Debug)]
struct LastUnsettled {
    policy: PrintableName,
    message: PrintableName,
    arg: PrintableName,
    /// Otherwise its value is not a number of cells.
    is_missing: bool,
    what_follows: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct LastUnmatched {
    message: PrintableName,
    /// The message is one that settles requests.
    settles: bool,
    /// Whether policies are for a message with this name, but only `when` an arg has a value that
    /// it did not have.
    is_known: bool,
}

impl Undecided {
    /// Counts a message that got no decision although this policy is for it.
    #[cold]
    pub(crate) fn count_undecided(&self, policy: &Policy, message: &Message<'_>) {
        self.undecided.fetch_add(1, Ordering::Relaxed);
        let lacks = |(label, arg): (&str, &KeyArg)| {
            let why = Why::Key(arg.lacks(message)?, arg.has_fallback());
            Some((PrintableName::new(label.as_bytes()), PrintableName::new(&arg.name), why))
        };
        let own = policy.key.args.iter().map(|arg| ("", arg));
        let of_limits = policy.limits().filter_map(|limit| Some((limit, limit.key.as_ref()?)));
        let of_limits =
            of_limits.flat_map(|(limit, key)| key.args.iter().map(|arg| (&*limit.label, arg)));
        let cost = || PrintableName::new(policy.price.arg().unwrap_or_default());
        let found = own.chain(of_limits).find_map(lacks);
        let (limit, arg, why) =
            found.unwrap_or_else(|| (PrintableName::default(), cost(), Why::Cost));
        let settles = policy.is_settled_by(message.name);
        let message = PrintableName::new(message.name);
        let policy = PrintableName::new(policy.name.as_bytes());
        let last = LastUndecided { policy, message, arg, limit, settles, why };
        remember(&self.last_undecided, last);
    }

    /// Counts a message that has settled a request of this policy, or was to, if it lacks an arg
    /// for that. HAProxy sends null for a value that it does not have. So an arg that is not there
    /// is a mistake in its configuration.
    pub(crate) fn count_unsettled(&self, policy: &Policy, message: &Message<'_>) {
        let cost = policy.settle().and_then(|settle| settle.cost.as_deref());
        let reserved = policy.reserves().then_some(RESERVED.as_bytes());
        for (arg, what_follows) in
            [(cost, "what is reserved stays charged"), (reserved, "each request is charged twice")]
        {
            if let Some(arg) = arg {
                self.count_if_lacking(policy, message, arg, what_follows);
            }
        }
    }

    /// Counts a message for which this policy reserves what an arg says, if the arg is not there.
    /// With a wrong number in it there was no decision, and nothing to reserve.
    pub(crate) fn count_unreserved(&self, policy: &Policy, message: &Message<'_>) {
        if let Some(arg) = policy.price.arg() {
            self.count_if_lacking(policy, message, arg, "nothing is reserved");
        }
    }

    fn count_if_lacking(
        &self,
        policy: &Policy,
        message: &Message<'_>,
        arg: &[u8],
        what_follows: &'static str,
    ) {
        let value = message.arg(arg);
        let is_cost = arg != RESERVED.as_bytes();
        let is_wrong = |value| is_cost && value != Value::Null && Price::cells_of(value).is_none();
        if value.is_none_or(is_wrong) {
            self.unsettled.fetch_add(1, Ordering::Relaxed);
            let [policy, message, arg] =
                [policy.name.as_bytes(), message.name, arg].map(PrintableName::new);
            let is_missing = value.is_none();
            let last = LastUnsettled { policy, message, arg, is_missing, what_follows };
            remember(&self.last_unsettled, last);
        }
    }

    #[cold]
    pub(crate) fn count_unmatched(&self, policies: &Policies, message: &Message<'_>) {
        self.unmatched.fetch_add(1, Ordering::Relaxed);
        let mut list = policies.list.iter();
        let settles = list.clone().any(|policy| policy.is_settled_by(message.name));
        let is_known = list.any(|policy| policy.message.as_deref() == Some(message.name));
        let message = PrintableName::new(message.name);
        remember(&self.last_unmatched, LastUnmatched { message, settles, is_known });
    }

    /// A sentence about the `count` messages that got no decision although there was a policy.
    pub fn about_undecided(&self, count: u64) -> String {
        let got = Count(count, "message got", "messages got");
        let Some(last) = take(&self.last_undecided) else { return format!("{got} no decision") };
        let LastUndecided { policy, message, arg, limit, settles, why } = last;
        let (of, whose) = match &*limit.0 {
            "" => (String::new(), "policy"),
            label => (format!(" of the key of '{label}'"), "limit"),
        };
        let mut said = format!(
            "{got} no decision; of the last one, '{message}' for policy '{policy}', the arg \
             '{arg}'{of} "
        );
        // Writing to a string does not fail.
        let _ = match why {
            Why::Key(NoValue::Missing, _) => write!(
                said,
                "is missing; compare 'key' of the {whose} with the 'args' line of the spoe-message"
            ),
            Why::Key(NoValue::Null, _) if settles => write!(
                said,
                "is null, because HAProxy does not know it any more when the response comes; keep \
                 it with 'http-request set-var(txn.{arg})', and send {arg}=var(txn.{arg})"
            ),
            Why::Key(NoValue::Null, false) => write!(
                said,
                "is null, as for a header that the request does not have; write a fallback \
                 behind it in 'key', such as \"else ip\", or let HAProxy send this message only \
                 if there is a value"
            ),
            Why::Key(NoValue::Null, true) => write!(
                said,
                "and all its fallbacks in 'key' are null or missing; write another one, such as \
                 \"else ip\""
            ),
            Why::Cost => {
                write!(said, "is not a valid cost; let HAProxy send a whole number of 0 or more")
            }
        };
        said
    }

    /// A sentence about the `count` messages that said too little to settle or to reserve.
    pub fn about_unsettled(&self, count: u64) -> String {
        let said = Count(count, "message", "messages");
        let Some(last) = take(&self.last_unsettled) else {
            return format!("{said} said too little to settle a request");
        };
        let LastUnsettled { policy, message, arg, is_missing, what_follows } = last;
        let why = match is_missing {
            true => format!(
                "is missing, so {what_follows}; write it into the 'args' line of the spoe-message"
            ),
            false => format!(
                "is not a number of cells, so {what_follows}; let HAProxy send a whole number of \
                 0 or more, or null"
            ),
        };
        format!(
            "{said} for policy '{policy}' said too little: of the last one, '{message}', the arg \
             '{arg}' {why}"
        )
    }

    /// A sentence about the `count` messages that no policy is for.
    pub fn about_unmatched(&self, count: u64) -> String {
        let matched = Count(count, "message matched", "messages matched");
        let matched = format!("{matched} no policy and got no decision");
        match take(&self.last_unmatched) {
            None => matched,
            Some(LastUnmatched { message, settles: true, .. }) => format!(
                "{matched}; the last one was '{message}', and the 'when' of no policy that it \
                 settles fitted; let it have the arg of 'when', as the message of the request has"
            ),
            Some(LastUnmatched { message, is_known: true, .. }) => format!(
                "{matched}; the last one was '{message}', and the 'when' of no policy for it \
                 fitted; write a policy for '{message}' without 'when' below the others"
            ),
            Some(LastUnmatched { message, .. }) => format!(
                "{matched}; the last one was '{message}'; compare the names of the spoe-messages \
                 with the policies"
            ),
        }
    }
}

/// Remembers this one instead of the one before it. While another thread does the same, that
/// thread's is as good, and this one does not wait.
fn remember<T>(last: &Mutex<Option<T>>, this: T) {
    if let Ok(mut last) = last.try_lock() {
        *last = Some(this);
    }
}

fn take<T>(last: &Mutex<Option<T>>) -> Option<T> {
    last.lock().unwrap_or_else(PoisonError::into_inner).take()
}
