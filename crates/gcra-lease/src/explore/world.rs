//! [`World`]: a store, hosts and a network in a small model, and every step that can come next.

use core::fmt;
use core::time::Duration;

use crate::explore::fingerprint::Fingerprint;
use crate::holding::{Holding, Sent, Wish};
use crate::limit::SharedLimit;
use crate::message::{Ask, AskNumber, AskReply, HostId};
use crate::packed_holding::through_words_with_ticks;
use crate::police::Police;
use crate::record::Record;
use crate::request::Step;
use crate::request::unpacked::{Need, decide};
use crate::rule::{Rule, without};
use crate::time::{HostTime, Micros, StoreTime};

/// Clocks begin here, so that they can be set back.
pub(super) const START: u64 = 1_000_000;
/// Host ids of one host are next to each other.
const LIVES: u64 = 16;

/// The events that a model allows, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) hosts: usize,
    /// Limits of each request: with 2, requests are decided by `decide`.
    pub(crate) limits: usize,
    pub(crate) burst: u32,
    /// The emission interval, in µs.
    pub(crate) interval: u64,
    /// The cells that asks may want, with the least: (want, least).
    pub(crate) wants: &'static [(u32, u32)],
    /// In µs.
    pub(crate) validities: &'static [u64],
    /// The costs that a request may have.
    pub(crate) costs: &'static [u32],
    /// Asks of each host, for each limit.
    pub(crate) asks: u8,
    /// How many cells may be given back at once; `u32::MAX` means all.
    pub(crate) gives_back: &'static [u32],
    /// How often a host may lose its memory.
    pub(crate) crashes: u8,
    /// How often a host may forget a key.
    pub(crate) evictions: u8,
    /// How often an ask has no effect that lasts, and its reply is void.
    pub(crate) voids: u8,
    /// How often the store may lose its memory.
    pub(crate) losses: u8,
    /// Whether a store that has lost its memory knows it.
    pub(crate) strict: bool,
    /// How often the store's clock may leap, and by how much.
    pub(crate) leaps: u8,
    pub(crate) leap: i64,
    /// How often the key may get a penalty, of how many cells, and how many may be owed then. It
    /// comes at any moment, which is more than an ask that has it with it.
    pub(crate) penalties: u8,
    pub(crate) penalty: u32,
    pub(crate) ceiling: u32,
    /// How long a tick takes if holdings are kept in words, in µs (a power of two).
    pub(crate) words: Option<u64>,
}

impl Model {
    /// Two hosts, one limit, no faults but those of the network.
    pub(crate) const PLAIN: Self = Self {
        hosts: 2,
        limits: 1,
        burst: 2,
        interval: 2,
        wants: &[(2, 1)],
        validities: &[3],
        costs: &[1],
        asks: 2,
        gives_back: &[],
        crashes: 0,
        evictions: 0,
        voids: 0,
        losses: 0,
        strict: false,
        leaps: 0,
        leap: 0,
        penalties: 0,
        penalty: 0,
        ceiling: 0,
        words: None,
    };

    /// How often each fault may happen.
    pub(super) fn faults(&mut self) -> [&mut u8; 6] {
        let Self { crashes, evictions, voids, losses, leaps, penalties, .. } = self;
        [crashes, evictions, voids, losses, leaps, penalties]
    }

    pub(crate) fn limit(&self) -> SharedLimit {
        let longest = self.validities.iter().max().copied().unwrap_or(1);
        SharedLimit::new(Duration::from_micros(self.interval), self.burst)
            .unwrap()
            .with_most_owed(self.ceiling)
            .unwrap()
            .with_longest_validity(Micros(longest))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    pub(super) id: HostId,
    pub(super) next_number: u64,
    pub(super) asks_left: [u8; 2],
    pub(super) holdings: [Holding; 2],
}

/// A reply on its way. Its parts that only make asks rare are removed: in the model, hosts ask
/// whenever they like.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Travelling {
    pub(super) host: HostId,
    pub(super) limit: usize,
    pub(super) void: bool,
    pub(super) number: AskNumber,
    pub(super) kept: u32,
    pub(super) granted: u32,
}

impl Travelling {
    const fn reply(self) -> AskReply {
        AskReply {
            number: self.number,
            kept: self.kept,
            granted: self.granted,
            free: 0,
            come_back_after: Micros::ZERO,
            scarce: false,
            lent: false,
            hosts: 0,
            now: StoreTime(0),
        }
    }
}

/// Everything that is, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(super) now: u64,
    pub(super) clock: u64,
    pub(super) records: [Record; 2],
    pub(super) hosts: Vec<Host>,
    /// All asks that were ever sent. A message that is lost never arrives; one that is late or
    /// doubled arrives at any time and any number of times. So none is ever removed.
    pub(super) asks: Vec<(usize, Sent)>,
    pub(super) replies: Vec<Travelling>,
    pub(super) police: [Police; 2],
    /// The events that are left.
    pub(super) left: Model,
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    Tick,
    Spend { host: usize, cells: u32 },
    Request { host: usize, cells: u32 },
    Ask { host: usize, wish: Wish },
    GiveBack { host: usize, cells: u32 },
    AskArrives { ask: usize },
    AskHasNoEffect { ask: usize },
    ReplyArrives { reply: usize },
    Crash { host: usize },
    Evict { host: usize },
    Loss,
    Leap,
    Penalty,
}

impl World {
    pub(crate) fn new(model: &Model) -> Self {
        let host = |index: usize| Host {
            id: HostId((index as u64 + 1) * LIVES),
            // If a host that loses its memory stays the same one, its numbers begin again below
            // those that it gave before.
            next_number: if without(Rule::AnotherHostAfterLoss) { 9 } else { 1 },
            asks_left: [model.asks; 2],
            holdings: [Holding::new(); 2],
        };
        Self {
            now: START,
            clock: START,
            records: [const { Record::new(StoreTime(START)) }; 2],
            hosts: (0..model.hosts).map(host).collect(),
            asks: Vec::new(),
            replies: Vec::new(),
            police: [Police::default(); 2],
            left: *model,
        }
    }

    /// Every step that can come next.
    pub(crate) fn moves(&self, model: &Model, moves: &mut Vec<Move>) {
        let now = HostTime(self.now);
        moves.clear();
        for (index, host) in self.hosts.iter().enumerate() {
            let holding = &host.holdings[0];
            for &cells in model.costs {
                if model.limits == 2 {
                    moves.push(Move::Request { host: index, cells });
                } else if holding.held(now) >= cells {
                    moves.push(Move::Spend { host: index, cells });
                }
            }
            if model.limits == 1 && host.asks_left[0] > 0 {
                for &(want, least) in model.wants {
                    for &validity in model.validities {
                        let wish = Wish { want, least, validity: Micros(validity) };
                        moves.push(Move::Ask { host: index, wish });
                    }
                }
                if holding.held(now) > 0 {
                    let gives = model.gives_back.iter();
                    moves.extend(gives.map(|&cells| Move::GiveBack { host: index, cells }));
                }
            }
            if self.left.crashes > 0 {
                moves.push(Move::Crash { host: index });
            }
            if self.left.evictions > 0 {
                moves.push(Move::Evict { host: index });
            }
        }
        moves.extend((0..self.replies.len()).map(|reply| Move::ReplyArrives { reply }));
        moves.extend((0..self.asks.len()).map(|ask| Move::AskArrives { ask }));
        if self.left.voids > 0 {
            moves.extend((0..self.asks.len()).map(|ask| Move::AskHasNoEffect { ask }));
        }
        let Model { losses, leaps, penalties, .. } = self.left;
        let faults = [(losses, Move::Loss), (leaps, Move::Leap), (penalties, Move::Penalty)];
        moves.extend(faults.into_iter().filter(|(left, _)| *left > 0).map(|(_, fault)| fault));
        moves.push(Move::Tick);
    }

    /// Takes a step with the real machines. If holdings are kept in words, they are put there
    /// after each step. False: the world is as it was. The error is a sentence that says what must
    /// not be.
    pub(crate) fn take(
        &mut self,
        model: &Model,
        limit: &SharedLimit,
        step: Move,
    ) -> Result<bool, String> {
        let outcome = self.take_unpacked(model, limit, step);
        if let Some(tick) = model.words {
            let now = HostTime(self.now);
            for holding in self.hosts.iter_mut().flat_map(|host| &mut host.holdings) {
                *holding = through_words_with_ticks(HostTime(0), tick, now, holding);
            }
        }
        outcome
    }

    fn take_unpacked(
        &mut self,
        model: &Model,
        limit: &SharedLimit,
        step: Move,
    ) -> Result<bool, String> {
        let now = HostTime(self.now);
        match step {
            Move::Tick => {
                self.now += 1;
                self.clock += 1;
                for record in &mut self.records[..model.limits] {
                    record.settle(limit, StoreTime(self.clock));
                }
            }
            Move::Spend { host, cells } => {
                self.hosts[host].holdings[0].spend(now, cells);
                self.allowed(limit, 0, cells)?;
            }
            Move::Request { host, cells } => self.request(model, limit, host, cells)?,
            Move::Ask { host, wish } => self.ask(limit, host, 0, wish),
            Move::GiveBack { host, cells } => {
                let host = &mut self.hosts[host];
                host.asks_left[0] -= 1;
                let number = AskNumber(host.next_number);
                host.next_number += 1;
                let sent = host.holdings[0].give_back(limit, now, host.id, number, cells);
                self.send(0, sent);
            }
            Move::AskArrives { ask } => {
                let (which, sent) = self.asks[ask];
                let clock = StoreTime(self.clock);
                let Some(reply) = self.records[which].ask(limit, clock, &sent.ask) else {
                    return Ok(false);
                };
                self.travel(which, sent.ask.host, false, reply);
            }
            Move::AskHasNoEffect { ask } => {
                self.left.voids -= 1;
                let (which, sent) = self.asks[ask];
                let clock = StoreTime(self.clock);
                let forgotten = self.records[which].clone().ask(limit, clock, &sent.ask);
                if let Some(reply) = forgotten {
                    self.travel(which, sent.ask.host, true, reply);
                }
            }
            Move::ReplyArrives { reply } => {
                let reply = self.replies[reply];
                let Travelling { host: id, limit: which, void, number, .. } = reply;
                let sent = self
                    .asks
                    .iter()
                    .find(|(_, sent)| sent.ask.host == id && sent.ask.number == number);
                let sent = sent.unwrap().1;
                if let Some(host) = self.hosts.iter_mut().find(|host| host.id == id) {
                    let holding = &mut host.holdings[which];
                    if void && !without(Rule::VoidCountsAsNone) {
                        holding.void(&sent);
                    } else {
                        holding.reply(now, &sent, &reply.reply());
                    }
                }
                self.forget_old_replies();
            }
            Move::Crash { host } => {
                self.left.crashes -= 1;
                let host = &mut self.hosts[host];
                host.holdings = [Holding::new(); 2];
                host.next_number = 1;
                if !without(Rule::AnotherHostAfterLoss) {
                    host.id = HostId(host.id.0 + 1);
                }
                self.forget_old_replies();
            }
            Move::Evict { host } => {
                self.left.evictions -= 1;
                self.hosts[host].holdings = [Holding::new(); 2];
                self.forget_old_replies();
            }
            Move::Loss => {
                self.left.losses -= 1;
                let clock = StoreTime(self.clock);
                let record = if model.strict {
                    Record::after_loss(limit, clock, clock)
                } else {
                    for police in &mut self.police {
                        police.tolerate(limit.burst());
                    }
                    Record::new(clock)
                };
                self.records = [record.clone(), record];
            }
            Move::Leap => {
                self.left.leaps -= 1;
                self.clock = self.clock.saturating_add_signed(model.leap);
                for record in &mut self.records[..model.limits] {
                    record.settle(limit, StoreTime(self.clock));
                }
                let cells = model.leap.max(0).unsigned_abs().div_ceil(model.interval);
                let cells = u32::try_from(cells).unwrap().min(limit.burst());
                for police in &mut self.police {
                    police.tolerate(cells);
                }
            }
            Move::Penalty => {
                self.left.penalties -= 1;
                for record in &mut self.records[..model.limits] {
                    record.charge(limit, model.penalty);
                }
            }
        }
        Ok(true)
    }

    fn request(
        &mut self,
        model: &Model,
        limit: &SharedLimit,
        host: usize,
        cells: u32,
    ) -> Result<(), String> {
        let now = HostTime(self.now);
        let holdings = &mut self.hosts[host].holdings;
        let held = holdings.map(|holding| holding.held(now));
        let mut needs: Vec<_> = holdings
            .iter_mut()
            .take(model.limits)
            .map(|holding| Need { holding, cells, burst: limit.burst() })
            .collect();
        // Without patience, each ask that is under way counts as lost.
        match decide(now, &mut needs, Micros::ZERO) {
            Step::Allow => {
                return (0..model.limits).try_for_each(|which| self.allowed(limit, which, cells));
            }
            Step::Ask { limit: which, least } if self.hosts[host].asks_left[which] > 0 => {
                let validity = Micros(model.validities[0]);
                self.ask(limit, host, which, Wish { want: least, least, validity });
            }
            _ => {}
        }
        let after = self.hosts[host].holdings.map(|holding| holding.held(now));
        match after == held {
            true => Ok(()),
            false => Err("cells were spent, and the request is not allowed".into()),
        }
    }

    fn ask(&mut self, limit: &SharedLimit, host: usize, which: usize, wish: Wish) {
        let host = &mut self.hosts[host];
        host.asks_left[which] -= 1;
        let number = AskNumber(host.next_number);
        host.next_number += 1;
        let now = HostTime(self.now);
        let sent = host.holdings[which].ask(limit, now, host.id, number, wish);
        self.send(which, sent);
    }

    fn send(&mut self, which: usize, sent: Sent) {
        self.asks.push((which, sent));
        self.asks.sort_unstable_by_key(|(_, sent)| (sent.ask.host, sent.ask.number));
        self.forget_old_replies();
    }

    fn travel(&mut self, limit: usize, host: HostId, void: bool, reply: AskReply) {
        let AskReply { number, kept, granted, .. } = reply;
        let travelling = Travelling { host, limit, void, number, kept, granted };
        if let Err(place) = self.replies.binary_search(&travelling) {
            self.replies.insert(place, travelling);
            self.forget_old_replies();
        }
    }

    /// A reply to an ask that is not the latest one of its holding is never taken again, because
    /// numbers only grow, so it need not be kept. (Where a rule about this is taken away, all
    /// are kept.)
    fn forget_old_replies(&mut self) {
        if without(Rule::LatestOnly) || without(Rule::TakenOnce) {
            return;
        }
        let mut replies = core::mem::take(&mut self.replies);
        replies.retain(|reply| self.waits_for(reply.limit, reply.host, reply.number));
        self.replies = replies;
    }

    /// Whether a host may still take a reply to an ask.
    fn waits_for(&self, which: usize, host: HostId, number: AskNumber) -> bool {
        let host = self.hosts.iter().find(|one| one.id == host);
        let asking = host.and_then(|host| host.holdings[which].asking);
        asking.is_some_and(|asking| asking.number == number || without(Rule::LatestOnly))
    }

    /// The ask whose reply a holding waits for.
    fn latest(&self, host: &Host, which: usize) -> Option<&Ask> {
        let number = host.holdings[which].asking?.number;
        let asks = self.asks.iter().map(|(_, sent)| &sent.ask);
        asks.into_iter().find(|ask| ask.host == host.id && ask.number == number)
    }

    fn allowed(&mut self, limit: &SharedLimit, which: usize, cells: u32) -> Result<(), String> {
        match self.police[which].allow(limit, self.now, cells) {
            0 => Ok(()),
            over => Err(format!("{over} too many are allowed")),
        }
    }

    /// How far the tick has gone by which words are rounded.
    pub(super) fn in_tick(&self, model: &Model) -> u8 {
        model.words.map_or(0, |tick| u8::try_from(self.now % tick).unwrap())
    }

    /// The same for worlds from which the same can come. Times are written relative to now, and
    /// no further back than it matters; and it does not matter which host is which.
    pub(crate) fn fingerprint(&self, model: &Model, limit: &SharedLimit) -> u64 {
        const ORDERS: [[u8; 3]; 6] =
            [[0, 1, 2], [1, 0, 2], [0, 2, 1], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let orders = match model.hosts {
            1 => &ORDERS[..1],
            2 => &ORDERS[..2],
            _ => &ORDERS[..],
        };
        orders.iter().map(|order| self.written(model, limit, order)).min().unwrap_or(0)
    }

    fn written(&self, model: &Model, limit: &SharedLimit, order: &[u8; 3]) -> u64 {
        let name = |id: HostId| u64::from(order[index(id)]) * LIVES + id.0 % LIVES;
        let until = |then: HostTime| then.0.saturating_sub(self.now);
        let mut print = Fingerprint::new();
        let in_tick = self.in_tick(model);
        let mut left = self.left;
        let [a, b, c, d, e, f] = left.faults().map(|times| *times);
        print.add(u64::from_le_bytes([a, b, c, d, e, in_tick, f, 0]));
        for which in 0..model.limits {
            let police = &self.police[which];
            let record = &self.records[which];
            print.add(police.owed(limit, self.now));
            print.add(record.owed.0);
            let denied = record.denied.map_or(0, |denied| {
                name(denied.host) << 32 | denied.until.0.saturating_sub(self.clock)
            });
            print.add(denied << 16 | u64::from(police.extra));
            let mut leases = [0; 8];
            for (word, lease) in leases.iter_mut().zip(&record.leases) {
                *word = name(lease.host) << 48
                    | lease.number.0 << 32
                    | u64::from(lease.cells) << 16
                    | lease.expiry.0.saturating_sub(self.clock);
            }
            leases.sort_unstable();
            leases.iter().filter(|&&word| word > 0).for_each(|&word| print.add(word));
        }
        for place in 0..model.hosts {
            let host = &self.hosts[(0..3).find(|&at| order[at] as usize == place).unwrap_or(0)];
            print.add(name(host.id) << 32 | host.next_number);
            for which in 0..model.limits {
                let holding = &host.holdings[which];
                let asking = holding.asking.map_or(0, |asking| asking.number.0);
                // If no cells are held, and none were when the latest ask was sent, nothing has
                // the old time any more.
                let held_when_asked = self.latest(host, which).is_some_and(|ask| ask.holds > 0);
                let has_time = holding.held > 0
                    || held_when_asked
                    || without(Rule::OnlyHeldKeepLater)
                    || without(Rule::LatestOnly);
                let valid_for = if has_time { until(holding.valid_until) } else { 0 };
                print.add(
                    u64::from(holding.held) << 48
                        | u64::from(holding.spent) << 32
                        | valid_for << 16
                        | asking << 8
                        | u64::from(host.asks_left[which]) << 1
                        | u64::from(holding.fresh),
                );
            }
        }
        // Messages stand in the order of the hosts' ids. With other names it is another one, so
        // each is mixed by itself, and the sum does not depend on the order.
        let mut messages: u64 = 0;
        for (which, sent) in &self.asks {
            let ask = &sent.ask;
            let mut one = Fingerprint::new();
            one.add(name(ask.host) << 8 | ask.number.0);
            // When it was sent matters only to the host that waits for the reply.
            let waits = self.waits_for(*which, ask.host, ask.number);
            let age = if waits { (self.now - sent.at.0).min(ask.validity.0) } else { 0 };
            one.add(
                ask.validity.0 << 56
                    | age << 48
                    | u64::from(ask.least) << 40
                    | u64::from(ask.want) << 32
                    | u64::from(ask.holds) << 24
                    | u64::from(ask.spent) << 16
                    | (*which as u64) << 1
                    | u64::from(ask.fresh),
            );
            messages = messages.wrapping_add(one.finish());
        }
        for reply in &self.replies {
            let mut one = Fingerprint::new();
            one.add(1 << 63 | name(reply.host) << 8 | reply.number.0);
            one.add(
                u64::from(reply.kept) << 32
                    | u64::from(reply.granted) << 16
                    | (reply.limit as u64) << 1
                    | u64::from(reply.void),
            );
            messages = messages.wrapping_add(one.finish());
        }
        print.add(messages);
        print.finish()
    }

    /// A step in words, as it comes next in this world.
    pub(crate) fn tell(&self, step: Move) -> String {
        let host = |index: usize| format!("host {}", index + 1);
        let ask = |ask: usize| {
            let ask = &self.asks[ask].1.ask;
            format!("ask {} of {}", ask.number.0, Named(ask.host))
        };
        match step {
            Move::Tick => "time passes: 1 µs".into(),
            Move::Spend { host: index, cells } => format!("{} spends {cells}", host(index)),
            Move::Request { host: index, cells } => {
                format!("{} decides about a request of {cells}", host(index))
            }
            Move::Ask { host: index, wish } => {
                let host = &self.hosts[index];
                let (holding, now) = (&host.holdings[0], HostTime(self.now));
                format!(
                    "{} sends ask {}: spent {}, holds {}, wants {}, at least {}, for {} µs{}",
                    Named(host.id),
                    host.next_number,
                    holding.spent,
                    holding.held(now),
                    wish.want,
                    wish.least,
                    wish.validity.0,
                    if holding.fresh { ", fresh" } else { "" }
                )
            }
            Move::GiveBack { host: index, cells } => {
                let held = self.hosts[index].holdings[0].held(HostTime(self.now));
                format!(
                    "{} gives {} back, with ask {}",
                    host(index),
                    cells.min(held),
                    self.hosts[index].next_number
                )
            }
            Move::AskArrives { ask: index } => format!("{} arrives", ask(index)),
            Move::AskHasNoEffect { ask: index } => {
                format!("{} arrives; the store will lose it, and the reply is void", ask(index))
            }
            Move::ReplyArrives { reply } => {
                let Travelling { host, void, number, kept, granted, .. } = self.replies[reply];
                let void = if void { "void " } else { "" };
                format!(
                    "the {void}reply to ask {} arrives at {}: kept {kept}, granted {granted}",
                    number.0,
                    Named(host)
                )
            }
            Move::Crash { host: index } => format!("{} loses its memory", host(index)),
            Move::Evict { host: index } => format!("{} forgets the key", host(index)),
            Move::Loss => "the store loses its memory".into(),
            Move::Leap => "the store's clock leaps".into(),
            Move::Penalty => "the key gets a penalty".into(),
        }
    }
}

fn index(id: HostId) -> usize {
    usize::try_from(id.0 / LIVES).unwrap() - 1
}

struct Named(HostId);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}", self.0.0 / LIVES)?;
        let primes = usize::try_from(self.0.0 % LIVES).unwrap_or(0);
        f.write_str(&"'".repeat(primes))
    }
}
