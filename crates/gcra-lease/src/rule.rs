//! The rules of the protocol, each of which the tests take away once to show that they notice.
//!
//! The code asks [`without`] at each of these steps. Outside the tests the answer is a constant,
//! and the compiler removes the question.

/// A rule that can be taken away.
#[cfg_attr(not(test), expect(dead_code, reason = "only the tests take rules away"))]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Rule {
    // The store's end.
    /// Cells of a lease that expires are charged.
    ChargeAtExpiry,
    /// Cells that were spent are charged when they are reported.
    ChargeOnReport,
    /// Cells that are lent are not free, whichever host holds them.
    LentIsNotFree,
    /// An ask whose number is not above the last one is ignored.
    Numbers,
    /// A lease of which cells are kept does not expire sooner than before.
    ExpiryNotSooner,
    /// The cells that were lent to a host that forgot the key count as spent.
    FreshCountsAsSpent,
    /// `strict`: a record that begins soon after the store lost its memory begins with all that
    /// could be owed.
    Epoch,
    /// A clock that went back does not keep debts and leases for longer than they can last.
    ClampWhenClockGoesBack,
    /// A request that is charged at once does not wait while cells are lent.
    LentIsNotWaitedFor,
    /// When a request is denied after all, the part of its cells that has drained is not given
    /// back.
    DrainedIsGone,
    /// A denied ask is noted, and nobody else gets cells ahead of need meanwhile.
    NoteDenied,
    /// A debt under other numbers becomes one under these when something is granted.
    GrantIsWritten,
    // The host's end.
    /// Validity counts from when the ask was sent.
    ValidFromSending,
    /// It is counted 0.2 % short.
    CountedShort,
    /// Only cells that were held when the ask was sent keep a later time.
    OnlyHeldKeepLater,
    /// Held cells that the store does not know of are dropped.
    UnknownAreDropped,
    /// Spent cells stay counted until a reply confirms them.
    SpentStaysCounted,
    /// Only a reply to the latest ask is taken.
    LatestOnly,
    TakenOnce,
    /// Giving back takes the cells away when the ask is sent.
    GiveBackAtSending,
    /// An ask is fresh until a reply has come.
    FreshUntilReply,
    /// With several limits, cells are spent in all or in none.
    AllOrNone,
    // The host around them.
    /// A host that lost its memory is another host.
    AnotherHostAfterLoss,
    VoidCountsAsNone,
    /// Several limits are asked for in one order on all hosts.
    OneOrder,
}

#[cfg(not(test))]
pub(crate) const fn without(_: Rule) -> bool {
    false
}

#[cfg(test)]
pub(crate) use taken_away::{take_away, without};

#[cfg(test)]
mod taken_away {
    use super::Rule;
    use core::cell::Cell;

    thread_local! {
        static RULE: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    pub(crate) fn without(rule: Rule) -> bool {
        RULE.get() == Some(rule)
    }

    /// Takes a rule away, in this thread, until the result is dropped.
    #[must_use]
    pub(crate) fn take_away(rule: Option<Rule>) -> impl Drop {
        struct Back;
        impl Drop for Back {
            fn drop(&mut self) {
                RULE.set(None);
            }
        }
        RULE.set(rule);
        Back
    }
}
