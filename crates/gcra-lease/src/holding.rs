//! [`Holding`]: the host's end. The cells of one host for one key, and those that it still has to
//! report.
//!
//! One host has one holding for each key, however many processes and threads decide: it lies in
//! memory that they share. Each method is one exchange there, so a holding is small (see
//! `Packing` in the crate's README), and what only the process that asks needs to know is in
//! [`Sent`].

use crate::limit::SharedLimit;
use crate::message::{Ask, AskNumber, AskReply, HostId};
use crate::rule::{Rule, without};
use crate::time::{HostTime, Micros};

/// The cells that a host holds for one key under one limit, and those that it still has to report.
///
/// A holding that was forgotten (evicted from a table) begins again as [`Holding::new`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Holding {
    /// Cells that may be spent before `valid_until`.
    pub(crate) held: u32,
    pub(crate) valid_until: HostTime,
    /// Cells that were spent and whose report no reply has confirmed.
    pub(crate) spent: u32,
    /// Cells to charge that were not lent.
    pub(crate) debt: u32,
    /// Before this moment, `denied` cells or more need not be asked for.
    pub(crate) come_back: HostTime,
    pub(crate) denied: u32,
    /// They were denied only because other hosts hold cells.
    pub(crate) lent: bool,
    /// The latest ask, if its reply has not come.
    pub(crate) asking: Option<Asking>,
    /// No reply has come yet.
    pub(crate) fresh: bool,
}

/// An ask under way.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Asking {
    pub(crate) number: AskNumber,
    pub(crate) since: HostTime,
}

/// The next step for a request, as its holding allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Look {
    /// The cells are here: [`Holding::spend`].
    Enough,
    /// The store said when to come back, and that is later: the request is blocked.
    Blocked {
        /// When the host may ask again.
        until: HostTime,
    },
    /// An ask is under way: the request waits for its reply, but not for longer than the
    /// `patience` of [`Holding::look`].
    Waiting {
        /// When the ask was sent.
        since: HostTime,
    },
    /// The cells are not here: [`Holding::ask`].
    Lacking,
}

/// How much a host asks for. [`Demand`](crate::Demand) computes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wish {
    /// Cells to hold besides those held, at least `least`.
    pub want: u32,
    /// The cost of the first request that waits, 0 if none waits.
    pub least: u32,
    /// For how long.
    pub validity: Micros,
}

/// An ask that was sent, and when. The process that sent it keeps it for [`Holding::reply`]; if
/// the process dies, the reply is lost.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Sent {
    /// The ask to send.
    pub ask: Ask,
    /// When, by the host's clock.
    pub at: HostTime,
}

impl Default for Holding {
    fn default() -> Self {
        Self::new()
    }
}

impl Holding {
    /// The holding of a host that knows nothing about a key.
    pub const fn new() -> Self {
        Self {
            held: 0,
            valid_until: HostTime(0),
            spent: 0,
            debt: 0,
            come_back: HostTime(0),
            denied: 0,
            lent: false,
            asking: None,
            fresh: true,
        }
    }

    /// The next step for a request of `cells`. An ask that is under way for `patience`
    /// or longer counts as lost, and the next request asks in its place.
    pub fn look(&self, now: HostTime, cells: u32, patience: Micros) -> Look {
        let known = cells == 0 && !self.fresh;
        if known || (cells > 0 && self.held(now) >= cells) {
            return Look::Enough;
        }
        let lacking = cells.saturating_sub(self.held(now));
        if cells > 0 && lacking >= self.denied && now < self.come_back {
            return Look::Blocked { until: self.come_back };
        }
        match self.asking {
            Some(asking) if now.saturating_since(asking.since) < patience => {
                Look::Waiting { since: asking.since }
            }
            _ => Look::Lacking,
        }
    }

    /// Whether the store has denied cells only because other hosts hold some: the client of the
    /// key is within its limit.
    pub const fn waits_for_others(&self) -> bool {
        self.lent
    }

    /// Spends `cells`, all or none. `false`: they are not here.
    pub fn spend(&mut self, now: HostTime, cells: u32) -> bool {
        if self.held(now) < cells {
            return false;
        }
        self.held -= cells;
        self.spent = self.spent.saturating_add(cells);
        true
    }

    /// Notes cells that are to be charged and were not lent: a penalty, or a cost that is known
    /// only now. The next ask reports them; nobody has to wait, so one with an empty wish will do.
    pub fn charge(&mut self, cells: u32) {
        self.debt = self.debt.saturating_add(cells);
    }

    /// Begins an ask. It takes the place of one that is under way, whose reply is then never
    /// taken.
    pub fn ask(
        &mut self,
        limit: &SharedLimit,
        now: HostTime,
        host: HostId,
        number: AskNumber,
        wish: Wish,
    ) -> Sent {
        self.held = self.held(now);
        self.asking = Some(Asking { number, since: now });
        let ask = Ask {
            host,
            number,
            fresh: self.fresh && !without(Rule::FreshUntilReply),
            spent: self.spent,
            debt: self.debt,
            owed_ago: Ask::NOTHING_OWED,
            holds: self.held,
            want: wish.want.max(wish.least),
            least: wish.least,
            validity: wish.validity.min(limit.longest_validity()),
        };
        if without(Rule::FreshUntilReply) {
            self.fresh = false;
        }
        if without(Rule::SpentStaysCounted) {
            self.spent = 0;
        }
        Sent { ask, at: now }
    }

    /// Begins an ask that gives `cells` back, or all that are held if they are fewer. From here on
    /// they cannot be spent, whether the ask arrives or not.
    pub fn give_back(
        &mut self,
        limit: &SharedLimit,
        now: HostTime,
        host: HostId,
        number: AskNumber,
        cells: u32,
    ) -> Sent {
        let held = self.held(now);
        self.held = held.saturating_sub(cells);
        let wish = Wish { want: 0, least: 0, validity: limit.longest_validity() };
        let sent = self.ask(limit, now, host, number, wish);
        if without(Rule::GiveBackAtSending) {
            self.held = held;
        }
        sent
    }

    /// Takes a reply to an ask of this host. `false`: the ask is not the latest one, or was
    /// answered before, and nothing has changed.
    pub fn reply(&mut self, now: HostTime, sent: &Sent, reply: &AskReply) -> bool {
        let answers = self
            .asking
            .is_some_and(|asking| asking.number == sent.ask.number || without(Rule::LatestOnly));
        if !answers {
            return false;
        }
        if !without(Rule::TakenOnce) {
            self.asking = None;
        }
        self.fresh = false;
        if !without(Rule::SpentStaysCounted) {
            self.spent = self.spent.saturating_sub(sent.ask.spent);
        }
        self.debt = self.debt.saturating_sub(sent.ask.debt);

        // Cells whose time ended while the ask was under way are valid again if the store kept
        // them: it did so before their lease expired, and for longer.
        if !without(Rule::UnknownAreDropped) {
            let unknown = sent.ask.holds.saturating_sub(reply.kept);
            self.held = self.held.saturating_sub(unknown);
        }
        self.held = self.held.saturating_add(reply.granted);
        let start = if without(Rule::ValidFromSending) { now } else { sent.at };
        let valid_until = start.saturating_add(by_any_clock(sent.ask.validity));
        let knows = reply.kept > 0 || (without(Rule::UnknownAreDropped) && sent.ask.holds > 0);
        self.valid_until = if knows || without(Rule::OnlyHeldKeepLater) {
            valid_until.max(self.valid_until)
        } else {
            valid_until
        };

        if reply.come_back_after > Micros::ZERO {
            self.come_back = now.saturating_add(reply.come_back_after);
            self.denied = if reply.granted == 0 { sent.ask.least } else { 0 };
        } else {
            self.come_back = HostTime(0);
            self.denied = 0;
        }
        self.lent = reply.lent;
        true
    }

    /// The ask has failed, or its reply is void: it is as if none had come. `false`: it was not
    /// the latest.
    pub fn void(&mut self, sent: &Sent) -> bool {
        let latest = self.asking.is_some_and(|asking| asking.number == sent.ask.number);
        if latest {
            self.asking = None;
        }
        latest
    }

    /// Cells that may be spent now.
    pub fn held(&self, now: HostTime) -> u32 {
        if now < self.valid_until { self.held } else { 0 }
    }

    /// When the held cells are over.
    pub const fn valid_until(&self) -> HostTime {
        self.valid_until
    }

    /// Cells whose spending no reply has confirmed.
    pub const fn unreported(&self) -> u32 {
        self.spent
    }

    /// Cells of penalties and settlements that no reply has confirmed.
    pub const fn debt(&self) -> u32 {
        self.debt
    }

    /// Whether no reply has come yet: what the store has lent to this host is not known.
    pub const fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// When the store said to come back; in the past if it did not.
    pub const fn come_back(&self) -> HostTime {
        self.come_back
    }

    /// Whether an ask was sent less than `patience` ago whose reply has not come.
    pub fn is_asking(&self, now: HostTime, patience: Micros) -> bool {
        self.asking.is_some_and(|asking| now.saturating_since(asking.since) < patience)
    }
}

/// A time that is surely over on our clock before the validity is over on the store's clock. It is
/// 0.2 % shorter, because one clock may run 0.1 % too fast and the other one 0.1 % too slowly.
fn by_any_clock(validity: Micros) -> Micros {
    if without(Rule::CountedShort) {
        return validity;
    }
    validity.saturating_sub(Micros(validity.0 / 500))
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::record::Record;
    use crate::time::StoreTime;

    const STORE: StoreTime = StoreTime(1_800_000_000_000_000);

    /// 100/s, burst 20.
    fn limit() -> SharedLimit {
        SharedLimit::new(Duration::from_millis(10), 20).unwrap()
    }

    fn wish(want: u32) -> Wish {
        Wish { want, least: 1, validity: Micros::from_millis(1_000) }
    }

    fn at(milliseconds: u64) -> HostTime {
        HostTime(milliseconds * 1_000)
    }

    fn sends(holding: &mut Holding, now: HostTime, number: u64, wish: Wish) -> Sent {
        holding.ask(&limit(), now, HostId(1), AskNumber(number), wish)
    }

    /// The store's clock is a constant ahead of the host's.
    fn answers(record: &mut Record, now: HostTime, sent: &Sent) -> AskReply {
        let now = STORE.saturating_add(Micros(now.0));
        record.ask(&limit(), now, &sent.ask).unwrap()
    }

    #[test]
    fn cells_are_valid_from_when_the_ask_was_sent() {
        let (mut holding, mut record) = (Holding::new(), Record::new(STORE));
        let sent = sends(&mut holding, at(0), 1, wish(4));
        assert!(sent.ask.fresh);
        let reply = answers(&mut record, at(300), &sent);
        assert!(holding.reply(at(900), &sent, &reply));
        assert_eq!(holding.valid_until(), at(998), "0.2 % short");
        assert!(holding.spend(at(997), 3));
        assert!(!holding.spend(at(997), 2), "all or none");
        assert_eq!((holding.held(at(997)), holding.held(at(998))), (1, 0));
        assert_eq!(holding.unreported(), 3);
    }

    #[test]
    fn a_reply_is_taken_once_and_only_to_the_latest_ask() {
        let (mut holding, mut record) = (Holding::new(), Record::new(STORE));
        let lost = sends(&mut holding, at(0), 1, wish(4));
        let late = answers(&mut record, at(1), &lost);
        let sent = sends(&mut holding, at(60), 2, wish(4));
        assert!(sent.ask.fresh, "nothing has come yet");
        let reply = answers(&mut record, at(61), &sent);
        assert!(!holding.reply(at(62), &lost, &late));
        assert!(holding.reply(at(62), &sent, &reply));
        assert!(!holding.reply(at(62), &sent, &reply));
        assert_eq!(holding.held(at(62)), 4);
    }

    #[test]
    fn what_was_spent_is_reported_until_a_reply_confirms_it() {
        let (mut holding, mut record) = (Holding::new(), Record::new(STORE));
        let sent = sends(&mut holding, at(0), 1, wish(5));
        let reply = answers(&mut record, at(0), &sent);
        holding.reply(at(0), &sent, &reply);
        holding.spend(at(1), 2);
        holding.charge(1);
        let void = sends(&mut holding, at(2), 2, wish(1));
        assert_eq!((void.ask.spent, void.ask.debt, void.ask.holds), (2, 1, 3));
        assert!(holding.void(&void));
        holding.spend(at(3), 1);
        let sent = sends(&mut holding, at(4), 3, wish(1));
        assert_eq!((sent.ask.spent, sent.ask.debt, sent.ask.holds), (3, 1, 2));
        let reply = answers(&mut record, at(5), &sent);
        holding.spend(at(6), 1);
        assert!(holding.reply(at(7), &sent, &reply));
        assert_eq!((holding.unreported(), holding.debt(), holding.held(at(7))), (1, 0, 2));
        assert_eq!(record.owed(), limit().cells(4));
    }

    #[test]
    fn what_is_given_back_is_gone_at_once() {
        let (mut holding, mut record) = (Holding::new(), Record::new(STORE));
        let sent = sends(&mut holding, at(0), 1, wish(5));
        let reply = answers(&mut record, at(0), &sent);
        holding.reply(at(0), &sent, &reply);
        let sent = holding.give_back(&limit(), at(1), HostId(1), AskNumber(2), 2);
        assert_eq!((holding.held(at(1)), sent.ask.holds, sent.ask.want), (3, 3, 0));
        let reply = answers(&mut record, at(2), &sent);
        assert_eq!((reply.kept, record.leases()[0].cells), (3, 3));
        holding.reply(at(3), &sent, &reply);
        holding.give_back(&limit(), at(4), HostId(1), AskNumber(3), u32::MAX);
        assert_eq!(holding.held(at(4)), 0);
    }

    #[test]
    fn cells_that_the_store_forgot_are_dropped() {
        let (mut holding, mut record) = (Holding::new(), Record::new(STORE));
        let sent = sends(&mut holding, at(0), 1, wish(5));
        let reply = answers(&mut record, at(0), &sent);
        holding.reply(at(0), &sent, &reply);
        let mut record = Record::new(STORE);
        let sent = sends(&mut holding, at(1), 2, wish(3));
        holding.spend(at(1), 1);
        let reply = answers(&mut record, at(2), &sent);
        assert_eq!((reply.kept, reply.granted), (0, 3));
        holding.reply(at(3), &sent, &reply);
        assert_eq!(holding.held(at(3)), 3);
    }
}
