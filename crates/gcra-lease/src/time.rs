//! Times: [`Micros`], how long something takes; and a moment by the clock of the store
//! ([`StoreTime`]) or of a host ([`HostTime`]).
//!
//! The two clocks are never compared, so they are two types. Messages between the two ends have
//! only lengths of time.

/// A length of time, in whole microseconds.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Micros(pub u64);

impl From<Micros> for core::time::Duration {
    fn from(micros: Micros) -> Self {
        Self::from_micros(micros.0)
    }
}

impl Micros {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// This number of milliseconds.
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(milliseconds.saturating_mul(1_000))
    }

    /// The number of microseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, or the longest time that can be written.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, [`ZERO`](Self::ZERO) if `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

macro_rules! moment {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(pub u64);

        impl $name {
            /// How long after `earlier` this is; [`Micros::ZERO`] if it is not after it.
            pub const fn saturating_since(self, earlier: Self) -> Micros {
                Micros(self.0.saturating_sub(earlier.0))
            }

            /// The moment that is this much later.
            #[must_use]
            pub const fn saturating_add(self, later: Micros) -> Self {
                Self(self.0.saturating_add(later.0))
            }

            /// The moment that is this much earlier, but not before the clock began.
            #[must_use]
            pub const fn saturating_sub(self, earlier: Micros) -> Self {
                Self(self.0.saturating_sub(earlier.0))
            }
        }
    };
}

moment! {
    /// A moment by the clock of the store, in whole microseconds since any fixed moment. (`TIME`
    /// of Redis counts from 1970.)
    StoreTime
}

moment! {
    /// A moment by the clock of one host, in whole microseconds since any fixed moment.
    ///
    /// The clock must not go back and must count while the machine is suspended
    /// (`CLOCK_BOOTTIME`). It need not agree with any other clock; it must run neither faster nor
    /// slower than the store's by more than 0.1 %.
    HostTime
}
