//! How a message has settled what its request had reserved, and how many cells that were.

// ADR 41: A response settles what its request reserved.

gcra_text::words! {
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) enum Settlement {
        /// The request has cost more, and that was charged as far as possible.
        Charged = "charged",
        /// It has cost less, and the rest was given back as far as possible.
        GivenBack = "given_back",
        /// It has cost what was reserved.
        Equal = "equal",
        /// It has cost less, and it is too late to give the rest back, or its window is over.
        Late = "late",
        /// It has cost less, and this agent does not know the buckets that were charged: another
        /// one has reserved the cells by other numbers. They stay charged there.
        Unknown = "unknown",
        /// The message does not say what it has cost. The reservation stays charged.
        NoCost = "no_cost",
        /// The limits are shared, and the store has not answered. The reservation stays charged,
        /// unless the store has settled it and only the reply was lost.
        NoStore = "no_store",
    }
}

/// The cells that a message has settled. With several limits, those of the limit with the most.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct SettledCells {
    pub charged: u32,
    pub given_back: u32,
    /// Of those charged, or unsettled: beyond the burst.
    pub overdrawn: u32,
    /// Not charged, because they are beyond the largest debt.
    pub forgiven: u32,
    /// Charged for requests that no response has settled.
    pub unsettled: u32,
}

impl SettledCells {
    /// The names of their counts, in this order.
    pub(crate) const NAMES: [&str; 5] =
        ["charged", "given_back", "overdrawn", "forgiven", "unsettled"];

    pub(crate) fn counts(self) -> [u32; 5] {
        let Self { charged, given_back, overdrawn, forgiven, unsettled } = self;
        [charged, given_back, overdrawn, forgiven, unsettled]
    }
}
