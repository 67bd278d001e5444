//! [`Clocks`]: the clocks of all servers of a store, compared with the time that passes here.

use gcra_lease::{ClockWatch, HostTime, Leap, Micros, StoreTime};

use crate::client::bucket::TAGS;
use crate::config::Address;

/// How many servers are remembered. After one more, all are forgotten.
const MOST: usize = 1_024;

/// How often it is told that a server has another clock than the one before it.
const TOLD_EVERY: Micros = Micros::from_millis(60_000);

/// No server has replied yet.
const NONE: u16 = u16::MAX;

/// The last times on the clocks of servers. Servers that are lost, started again, or without keys
/// are kept, too: a leap of a key's clock does not depend on which server has the key.
pub(crate) struct Clocks {
    servers: Vec<Server>,
    /// For each tag the place of the server that replied last.
    by_tag: Box<[u16]>,
}

struct Server {
    address: Address,
    watch: ClockWatch,
    /// From which server it had taken over when this was told last, and when.
    told: Option<(u16, HostTime)>,
}

pub(crate) struct Leapt {
    pub(crate) leap: Leap,
    /// The server that replied before for the same keys, if it was another one.
    pub(crate) taken_over_from: Option<Address>,
}

impl Clocks {
    pub(crate) fn new() -> Self {
        Self { servers: Vec::new(), by_tag: vec![NONE; usize::from(TAGS)].into() }
    }

    /// Notes what the clock of a server said in a reply about a key with this tag. The question
    /// was sent at `sent`, and the reply came at `received`. Some: the clock that decides about
    /// the key differs from the clock before by more than 20 ms, and by more than clocks drift.
    pub(crate) fn note(
        &mut self,
        address: &Address,
        tag: u16,
        (sent, received): (HostTime, HostTime),
        now: StoreTime,
    ) -> Option<Leapt> {
        let place = self.place(address);
        let at = usize::from(place);
        let before = self.by_tag.get_mut(usize::from(tag));
        let before = before.map_or(NONE, |before| core::mem::replace(before, place));
        let server = self.servers.get_mut(at)?;
        if let Some(leap) = server.watch.note(sent, received, now) {
            return Some(Leapt { leap, taken_over_from: None });
        }
        if before == place {
            return None;
        }
        // The tag is one of many that the server has taken over.
        let was_told = server.told.is_some_and(|(from, told)| {
            from == before && received.saturating_since(told) < TOLD_EVERY
        });
        if was_told {
            return None;
        }
        let other = self.servers.get(usize::from(before))?;
        let mut watch = other.watch;
        let (leap, address) = (watch.note(sent, received, now)?, other.address.clone());
        self.servers.get_mut(at)?.told = Some((before, received));
        Some(Leapt { leap, taken_over_from: Some(address) })
    }

    fn place(&mut self, address: &Address) -> u16 {
        let known = self.servers.iter().position(|server| server.address == *address);
        let place = known.unwrap_or_else(|| {
            if self.servers.len() >= MOST {
                *self = Self::new();
            }
            let watch = ClockWatch::new();
            self.servers.push(Server { address: address.clone(), watch, told: None });
            self.servers.len() - 1
        });
        u16::try_from(place).unwrap_or(NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: u64 = 120_000;

    /// Notes replies of the servers with these ports about keys with these tags, one each 10 ms.
    /// The clock of the second one is ahead.
    fn noted(replies: &[(u16, u16)]) -> Vec<Option<(i64, Option<u16>)>> {
        let mut clocks = Clocks::new();
        let tcp = |port| Address::Tcp("store.example".to_owned(), port);
        let noted = replies.iter().zip(1..).map(|(&(port, tag), turn)| {
            let ms = turn * 10;
            let store = StoreTime((ms + if port == 2 { AHEAD } else { 0 }) * 1_000);
            let times = (HostTime(ms * 1_000), HostTime((ms + 1) * 1_000));
            let Leapt { leap, taken_over_from } = clocks.note(&tcp(port), tag, times, store)?;
            let by = match leap {
                Leap::Forward(by) => by.0.cast_signed() / 1_000,
                Leap::Back(by) => -by.0.cast_signed() / 1_000,
            };
            let port = taken_over_from.map(|address| match address {
                Address::Tcp(_, port) => port,
                other @ Address::Unix(_) => panic!("{other:?}"),
            });
            Some((by, port))
        });
        noted.collect()
    }

    #[test]
    fn a_server_that_takes_over_with_another_clock_is_told_once() {
        let forward = Some((119_999, Some(1)));
        let found = noted(&[(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 0)]);
        assert_eq!(found, [None, None, None, forward, None, None]);
        // And back again.
        let found = noted(&[(1, 0), (2, 0), (1, 0), (1, 0)]);
        assert_eq!(found, [None, forward, Some((-119_999, Some(2))), None]);
    }

    #[test]
    fn servers_with_other_clocks_may_have_other_keys() {
        assert_eq!(noted(&[(1, 0), (2, 1), (1, 0), (2, 1), (1, 2), (2, 3)]), [None; 6]);
        // A server with the same clock takes over.
        assert_eq!(noted(&[(1, 0), (3, 0), (1, 0)]), [None; 3]);
    }

    #[test]
    fn the_servers_that_are_remembered_are_bounded() {
        let replies: Vec<_> = (0..4_000).map(|port| (port + 3, 0)).collect();
        assert!(noted(&replies).iter().all(Option::is_none));
    }
}
