//! One step of the algorithm taken away, so that the models can show that they notice.
//!
//! The code asks [`broken`] at each of these steps. Outside the models the answer is a constant,
//! and the compiler removes the question.

/// The step that is taken away.
#[cfg_attr(not(gcra_model), expect(dead_code, reason = "only the models break anything"))]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mutation {
    /// Charge by a load and a store instead of an exchange.
    StoreCharge,
    /// Charge by an exchange of the TAT alone, as with two words of 64 bits.
    HalfExchange,
    /// Confirm without a look after the announcement.
    NoLook,
    /// No fence between the announcement and the look.
    NoFence,
    /// Leave the other announcements of the key in place.
    KeepOthers,
    /// Evict the bucket that is paid off first, whatever its limit.
    EvictsByTime,
    /// Use one ticket again and again.
    TicketsRepeat,
    /// Refund, whatever the bucket holds by now.
    RefundWithoutLook,
    /// Give back by a store instead of an exchange.
    GivesBackByAStore,
    /// Reset by a store instead of an exchange.
    ResetStores,
    /// Seal by a store instead of an exchange.
    SealStores,
    /// Open a bucket in the successor without asking the predecessor.
    NothingInherited,
    /// Ask the predecessor also after all buckets were carried over.
    InheritsAfterTheMove,
    /// Carry over a bucket that has drained since it was sealed.
    CarriesWhatHasDrained,
    /// Open the bucket of a calendar window also after the window's end.
    OpensAfterTheEnd,
    /// Write words in the place of others than those that were seen.
    WritesOverAnything,
    /// Spend leased cells by a load and a store instead of an exchange.
    StoreSpend,
    /// Take any reply, not only one to the latest ask.
    ReplyToAny,
    /// Count held cells as kept, even if the reply does not.
    AllAreKept,
    /// Give an entry to another key with the cells that are held in it.
    EvictKeepsHeld,
    /// Draw the number of an ask before the word is loaded.
    NumberBeforeLoad,
    /// Take back the spending of cells that may have been reported.
    UnspendAnyTime,
}

#[cfg(not(gcra_model))]
pub(crate) const fn broken(_: Mutation) -> bool {
    false
}

#[cfg(gcra_model)]
pub(crate) use modelling::{Changes, broken, changes, model_with};

#[cfg(gcra_model)]
mod modelling {
    use super::Mutation;
    use std::sync::{Mutex, PoisonError};

    /// The changes of the models. The process has one set of them, so models run one at a time.
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct Changes {
        pub(crate) mutation: Option<Mutation>,
        /// Other keys may take an announcement. Time stands still in a model, so that no
        /// announcement grows old by itself.
        pub(crate) announcements_are_old: bool,
        /// Slots are loaded by an exchange that changes nothing.
        pub(crate) loads_are_exchanges: bool,
    }

    static CHANGES: Mutex<Changes> = Mutex::new(Changes {
        mutation: None,
        announcements_are_old: false,
        loads_are_exchanges: false,
    });
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    pub(crate) fn model_with(changes: Changes, model: impl FnOnce()) {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        *CHANGES.lock().unwrap() = changes;
        model();
    }

    pub(crate) fn changes() -> Changes {
        *CHANGES.lock().unwrap()
    }

    pub(crate) fn broken(mutation: Mutation) -> bool {
        changes().mutation == Some(mutation)
    }
}
