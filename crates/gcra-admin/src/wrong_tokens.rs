//! How many requests for actions had a wrong token in the last minute, and from where.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use gcra_text::count::Count;

/// Wrong tokens are counted over this time, which begins with the first of them.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// After this many in a window, the answer to a wrong token is 429.
const MANY: u64 = 10;

/// How many addresses are counted each for itself.
const ADDRESSES: usize = 8;

/// The counts since the window began.
#[derive(Debug, Default)]
pub(crate) struct WrongTokens {
    began: Option<Instant>,
    count: u64,
    by: BTreeMap<IpAddr, u64>,
}

/// The consequences of a wrong token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Noted {
    /// It is the first of a window, so the log names it, and `WrongTokens::end` is to be called
    /// when the window is over.
    pub is_first: bool,
    /// There were many before it.
    pub(crate) is_too_many: bool,
}

impl WrongTokens {
    pub(crate) fn note(&mut self, now: Instant, ip: Option<IpAddr>) -> Noted {
        let is_first = self.began.is_none();
        self.began.get_or_insert(now);
        self.count = self.count.saturating_add(1);
        if let Some(ip) = ip
            && (self.by.len() < ADDRESSES || self.by.contains_key(&ip))
        {
            let count = self.by.entry(ip).or_default();
            *count = count.saturating_add(1);
        }
        Noted { is_first, is_too_many: self.count > MANY }
    }

    /// In how many seconds the window ends, for `Retry-After`.
    pub(crate) fn left(&self, now: Instant) -> u64 {
        let passed = self.began.map_or(WINDOW, |began| now.saturating_duration_since(began));
        WINDOW.saturating_sub(passed).as_secs().max(1)
    }

    /// Ends the window. Returns what the log is to say, unless its first line has said it all.
    pub(crate) fn end(&mut self) -> Option<String> {
        let Self { count, by, .. } = std::mem::take(self);
        if count <= 1 {
            return None;
        }
        let named: u64 = by.values().sum();
        let mut from: Vec<_> = by.into_iter().collect();
        from.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut from: Vec<_> = match &from[..] {
            [(ip, all)] if *all == count => vec![ip.to_string()],
            several => several.iter().map(|(ip, count)| format!("{ip} ({count})")).collect(),
        };
        if named < count {
            from.push(format!("other addresses ({})", count - named));
        }
        let count = Count(count, "wrong token", "wrong tokens");
        Some(format!("actions of --admin: {count} in the last minute, from {}", from.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_tokens_are_counted_by_address_until_the_window_ends() {
        let (mut wrong, now) = (WrongTokens::default(), Instant::now());
        let ip = |last: u8| Some(IpAddr::from([192, 0, 2, last]));
        assert_eq!(wrong.note(now, ip(1)), Noted { is_first: true, is_too_many: false });
        assert_eq!(wrong.end(), None, "the log has named the one");
        for at in 0..1_000 {
            let noted = wrong.note(now, ip(1));
            assert_eq!(noted, Noted { is_first: at == 0, is_too_many: at >= MANY });
        }
        assert_eq!(wrong.left(now), 60);
        assert_eq!(wrong.left(now + WINDOW), 1, "until the window is ended");
        let said = wrong.end().unwrap();
        assert_eq!(
            said,
            "actions of --admin: 1000 wrong tokens in the last minute, from 192.0.2.1"
        );
        for last in 0..200 {
            wrong.note(now, ip(last));
        }
        wrong.note(now, ip(1));
        wrong.note(now, None);
        let said = wrong.end().unwrap();
        assert!(said.contains("202 wrong tokens") && said.contains("192.0.2.1 (2), "), "{said}");
        assert!(said.ends_with("other addresses (193)"), "{said}");
    }
}
