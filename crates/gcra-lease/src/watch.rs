//! [`ClockWatch`]: notices when the store's clock leaps.

use crate::time::{HostTime, Micros, StoreTime};

/// A difference that is smaller is not a leap.
const TOLERANCE: Micros = Micros::from_millis(20);

/// Compares the store's clock with the time that passes on the host, from one reply to the next.
///
/// A clock that leaps forward by d forgives d of debt for each key, so a leap is worth a line in
/// the log. Nothing makes up for that, also not `strict`: hosts notice a leap too late.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ClockWatch {
    last: Option<Seen>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Seen {
    sent: HostTime,
    received: HostTime,
    store: StoreTime,
}

/// How far the store's clock is from where it should be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Leap {
    /// It is ahead by at least this.
    Forward(Micros),
    /// It is behind by at least this.
    Back(Micros),
}

impl ClockWatch {
    /// No reply has been seen.
    pub const fn new() -> Self {
        Self { last: None }
    }

    /// Notes what the store's clock said in a reply to an ask that was sent at `sent` and answered
    /// at `received`. Some: it has leapt since the reply before by more than 20 ms, and by more
    /// than clocks drift.
    pub fn note(&mut self, sent: HostTime, received: HostTime, store: StoreTime) -> Option<Leap> {
        let last = self.last.replace(Seen { sent, received, store })?;
        // The time between the two moments at which the store read its clock. It is at most the
        // time from the sending of the first ask to the second reply. It is at least the time from
        // the first reply to the sending of the second ask. If the two asks overlap, the clock may
        // have been read in the other order.
        let most = received.saturating_since(last.sent);
        let least = sent.saturating_since(last.received);
        let overlap = last.received.saturating_since(sent);
        let tolerance = TOLERANCE.saturating_add(Micros(most.0 / 500));
        let latest = last.store.saturating_add(most);
        let earliest = last.store.saturating_add(least).saturating_sub(overlap);
        let ahead = store.saturating_since(latest);
        let behind = earliest.saturating_since(store);
        if ahead > tolerance {
            Some(Leap::Forward(ahead))
        } else if behind > tolerance {
            Some(Leap::Back(behind))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leap_is_told_from_a_slow_reply_and_from_drift() {
        let ms = |milliseconds: u64| milliseconds * 1_000;
        let mut watch = ClockWatch::new();
        let mut note = |sent, received, store| {
            watch.note(HostTime(ms(sent)), HostTime(ms(received)), StoreTime(ms(store)))
        };
        assert_eq!(note(0, 1, 500_000), None, "nothing to compare with");
        assert_eq!(note(1_000, 1_200, 501_150), None, "a slow reply");
        assert_eq!(note(101_000, 101_001, 601_100), None, "0.1 % of drift");
        let leap = Some(Leap::Forward(Micros(ms(98))));
        assert_eq!(note(101_002, 101_003, 601_201), leap);
        assert_eq!(note(101_004, 101_005, 601_203), None, "told once");
        let leap = Some(Leap::Back(Micros(ms(3_001))));
        assert_eq!(note(101_006, 101_007, 598_203), leap);
        assert_eq!(note(101_100, 101_400, 598_590), None);
        assert_eq!(note(101_150, 101_410, 598_350), None, "a reply that was overtaken");
    }
}
