//! One run: a store, hosts, a network between them, requests that come, and faults.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use crate::charge::Charge;
use crate::demand::Demand;
use crate::holding::{Holding, Sent, Wish};
use crate::limit::SharedLimit;
use crate::message::{AskNumber, AskReply, HostId};
use crate::packed_holding::{Base, through_words};
use crate::police::Police;
use crate::record::Record;
use crate::request::Step;
use crate::request::unpacked::{Need, decide};
use crate::rule::{Rule, without};
use crate::simulate::random::Random;
use crate::time::{HostTime, Micros, StoreTime};
use crate::watch::ClockWatch;

/// The longest time that a request waits (`--store-wait`).
const PATIENCE: Micros = Micros::from_millis(50);
const SECOND: u64 = 1_000_000;
/// The time on the clocks at the beginning.
const START: u64 = 1_000_000 * SECOND;

/// The load and the faults of a run. Rates are per second; shares are between 0 and 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setting {
    pub(crate) seed: u64,
    pub(crate) hosts: usize,
    /// Requests of all hosts together.
    pub(crate) offered: f64,
    /// Emission interval in µs, and burst.
    pub(crate) limits: Vec<(u64, u32)>,
    pub(crate) round_trip: u64,
    pub(crate) seconds: f64,
    /// Requests come for this long, then for as long none.
    pub(crate) on_off: Option<f64>,
    pub(crate) all_on_one: bool,
    /// Hosts give nothing back.
    pub(crate) keeps: bool,
    /// Costs, each as likely as the others.
    pub(crate) costs: Vec<u32>,
    /// The share of allowed requests that are charged another cell afterwards.
    pub(crate) penalties: f64,
    /// Charges per second that are made in the store at once, beside the requests above.
    pub(crate) charges: f64,
    pub(crate) lost: f64,
    pub(crate) late: f64,
    pub(crate) doubled: f64,
    pub(crate) void: f64,
    /// Clocks of hosts run up to this much faster or slower than the store's.
    pub(crate) drift: f64,
    /// Of each host.
    pub(crate) crashes: f64,
    pub(crate) evictions: f64,
    pub(crate) freezes: f64,
    /// Of the store.
    pub(crate) losses: f64,
    pub(crate) strict: bool,
    pub(crate) leaps_forward: f64,
    pub(crate) leaps_back: f64,
    /// Hosts keep holdings and demands in words.
    pub(crate) words: bool,
}

impl Setting {
    /// Without faults.
    pub(crate) fn usual() -> Self {
        Self {
            seed: 1,
            hosts: 4,
            offered: 20_000.0,
            limits: vec![(1_000, 200)],
            round_trip: 500,
            seconds: 30.0,
            costs: vec![1],
            ..Self::default()
        }
    }
}

/// The results of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    /// Cells.
    pub(crate) allowed: u64,
    /// Cells that one exact bucket for all hosts would allow.
    pub(crate) ideal: u64,
    /// Allowed requests of the largest cost.
    pub(crate) large: u64,
    pub(crate) ideal_large: u64,
    pub(crate) asks: u64,
    /// Cells of charges that were made at once.
    pub(crate) charged: u64,
    pub(crate) waited: u64,
    pub(crate) waited_us: u64,
    /// Cells more than the promise allows, at worst.
    pub(crate) over: u32,
    /// How often there were too many.
    pub(crate) too_many: u64,
    /// Faults after which more is allowed.
    pub(crate) tolerated: u32,
    /// Cells more than without such faults, at worst.
    pub(crate) beyond: u32,
    /// How often a host noticed that the store's clock leapt.
    pub(crate) noticed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    serial: u64,
    since: u64,
    cells: u32,
    asked: [bool; 2],
}

struct Host {
    id: HostId,
    number: u64,
    /// The number of the latest ask.
    sent: [AskNumber; 2],
    holdings: [Holding; 2],
    demands: [Demand; 2],
    waiting: Vec<Waiting>,
    /// Its clock runs faster by this share.
    drift: f64,
    /// How long its clock has stood still.
    stood: u64,
    frozen_until: u64,
    watch: ClockWatch,
}

impl Host {
    fn clock(&self, now: u64) -> HostTime {
        let elapsed = (now - START - self.stood) as f64 * (1.0 + self.drift);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        let elapsed = elapsed as u64;
        HostTime(START + elapsed)
    }
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    Request { host: usize },
    ChargeArrives { limit: usize },
    AskArrives { host: usize, limit: usize, sent: Sent },
    ReplyArrives { host: usize, limit: usize, sent: Sent, reply: AskReply, void: bool },
    GiveUp { host: usize, serial: u64 },
    GiveBack { host: usize, limit: usize, number: AskNumber },
    Crash { host: usize },
    Evict { host: usize },
    Freeze { host: usize },
    Loss,
    LeapForward,
    LeapBack,
}

struct Run<'a> {
    setting: &'a Setting,
    limits: Vec<SharedLimit>,
    random: Random,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    serial: u64,
    now: u64,
    hosts: Vec<Host>,
    records: [Option<Record>; 2],
    /// Records as they were a while ago: what a failover may bring back.
    copies: [Option<Record>; 2],
    epoch: StoreTime,
    /// How far the store's clock has leapt.
    leapt: i64,
    police: [Police; 2],
    /// The same, but without tolerance.
    strict: [Police; 2],
    ideal: [Police; 2],
    outcome: Outcome,
}

/// Runs it to the end.
pub(crate) fn run(setting: &Setting) -> Outcome {
    let mut random = Random::new(setting.seed);
    let hosts = (0..setting.hosts)
        .map(|index| Host {
            id: HostId(index as u64 + 1),
            number: 0,
            sent: [AskNumber(0); 2],
            holdings: [Holding::new(); 2],
            demands: [Demand::new(); 2],
            waiting: Vec::new(),
            drift: setting.drift * random.one_of(&[-1.0, 0.0, 1.0]),
            stood: 0,
            frozen_until: 0,
            watch: ClockWatch::new(),
        })
        .collect();
    let limit =
        |&(interval, burst)| SharedLimit::new(Duration::from_micros(interval), burst).unwrap();
    let mut run = Run {
        setting,
        limits: setting.limits.iter().map(limit).collect(),
        random,
        events: BinaryHeap::new(),
        serial: 0,
        now: START,
        hosts,
        records: [None, None],
        copies: [None, None],
        epoch: StoreTime(0),
        leapt: 0,
        police: [Police::default(); 2],
        strict: [Police::default(); 2],
        ideal: [Police::default(); 2],
        outcome: Outcome::default(),
    };
    run.begin();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
    let end = START + (setting.seconds * SECOND as f64) as u64;
    while let Some(Reverse((now, _, event))) = run.events.pop() {
        if now > end {
            break;
        }
        run.now = now;
        run.happen(event);
        if setting.words {
            run.put_into_words(event);
        }
    }
    run.outcome
}

impl Run<'_> {
    fn begin(&mut self) {
        for host in 0..self.setting.hosts {
            if host == 0 || !self.setting.all_on_one {
                self.schedule_every(self.offered_to_one(), Event::Request { host });
            }
            self.schedule_every(self.setting.crashes, Event::Crash { host });
            self.schedule_every(self.setting.evictions, Event::Evict { host });
            self.schedule_every(self.setting.freezes, Event::Freeze { host });
        }
        for limit in 0..self.limits.len() {
            self.schedule_every(self.setting.charges, Event::ChargeArrives { limit });
        }
        self.schedule_every(self.setting.losses, Event::Loss);
        self.schedule_every(self.setting.leaps_forward, Event::LeapForward);
        self.schedule_every(self.setting.leaps_back, Event::LeapBack);
    }

    fn offered_to_one(&self) -> f64 {
        let hosts = if self.setting.all_on_one { 1.0 } else { self.setting.hosts as f64 };
        self.setting.offered / hosts
    }

    fn schedule(&mut self, after: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((self.now + after, self.serial, event)));
    }

    fn schedule_every(&mut self, per_second: f64, event: Event) {
        if per_second > 0.0 {
            let after = self.random.next(per_second);
            self.schedule(after, event);
        }
    }

    fn store_clock(&self) -> StoreTime {
        StoreTime(self.now.saturating_add_signed(self.leapt))
    }

    /// Packs the holdings of the event's host into words, and unpacks them.
    fn put_into_words(&mut self, event: Event) {
        let host = match event {
            Event::Request { host }
            | Event::ReplyArrives { host, .. }
            | Event::GiveUp { host, .. }
            | Event::GiveBack { host, .. }
            | Event::Crash { host }
            | Event::Evict { host } => host,
            _ => return,
        };
        let host = &mut self.hosts[host];
        // Its clock stands still.
        if host.frozen_until > self.now {
            return;
        }
        let now = host.clock(self.now);
        for (holding, demand) in host.holdings.iter_mut().zip(&mut host.demands) {
            (*holding, *demand) =
                through_words(Base(HostTime(START - SECOND)), now, holding, demand);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request { host }
            | Event::ReplyArrives { host, .. }
            | Event::GiveUp { host, .. }
            | Event::GiveBack { host, .. }
                if self.hosts[host].frozen_until > self.now =>
            {
                self.schedule(self.hosts[host].frozen_until - self.now, event);
            }
            Event::Request { host } => {
                self.schedule_every(self.offered_to_one(), event);
                let since = (self.now - START) as f64 / SECOND as f64;
                #[expect(clippy::cast_possible_truncation, reason = "in range")]
                let off = self.setting.on_off.is_some_and(|on| (since / on) as i64 % 2 == 1);
                if !off {
                    self.request(host);
                }
            }
            Event::ChargeArrives { limit } => {
                self.schedule_every(self.setting.charges, event);
                self.charge_arrives(limit);
            }
            Event::AskArrives { host, limit, sent } => self.ask_arrives(host, limit, &sent),
            Event::ReplyArrives { host, limit, sent, reply, void } => {
                self.reply_arrives(host, limit, &sent, &reply, void);
            }
            Event::GiveUp { host, serial } => {
                let waiting = &mut self.hosts[host].waiting;
                let place = waiting.iter().position(|request| request.serial == serial);
                if let Some(place) = place {
                    let request = waiting.remove(place);
                    self.count_wait(&request);
                    self.give_back_unused(host, &request);
                }
            }
            Event::GiveBack { host, limit, number } => {
                let clock = self.hosts[host].clock(self.now);
                let one = &self.hosts[host];
                if one.sent[limit] == number && one.holdings[limit].held(clock) > 0 {
                    self.give_back(host, limit, u32::MAX);
                }
            }
            Event::Crash { host } => {
                self.schedule_every(self.setting.crashes, event);
                let hosts = self.setting.hosts as u64;
                let host = &mut self.hosts[host];
                host.id = HostId(host.id.0 + hosts);
                host.number = 0;
                host.holdings = [Holding::new(); 2];
                host.demands = [Demand::new(); 2];
                host.waiting.clear();
                host.watch = ClockWatch::new();
            }
            Event::Evict { host } => {
                self.schedule_every(self.setting.evictions, event);
                let limit = self.random.one_of(&[0, 1]);
                self.hosts[host].holdings[limit] = Holding::new();
                if self.setting.words {
                    self.hosts[host].demands[limit] = Demand::new();
                }
            }
            Event::Freeze { host } => {
                self.schedule_every(self.setting.freezes, event);
                let frozen = self.random.between(1e3, 4e6);
                let host = &mut self.hosts[host];
                if host.frozen_until <= self.now {
                    let clock = host.clock(self.now);
                    host.frozen_until = self.now + frozen;
                    host.stood += frozen;
                    for (police, holding) in self.police.iter_mut().zip(&host.holdings) {
                        police.tolerate(holding.held(clock));
                        self.outcome.tolerated += 1;
                    }
                }
            }
            Event::Loss => self.lose_memory(event),
            Event::LeapForward => {
                self.schedule_every(self.setting.leaps_forward, event);
                let leap = self.random.one_of(&[1_000, 50_000, 700_000, 20_000_000]);
                self.leapt += i64::try_from(leap).unwrap();
                self.outcome.tolerated += 1;
                for (police, limit) in self.police.iter_mut().zip(&self.limits) {
                    let drained = limit.drained_in(Micros(leap));
                    let cells = drained.0.div_ceil(limit.cells(1).0);
                    let most = limit.burst();
                    police.tolerate(u32::try_from(cells).unwrap_or(most).min(most));
                }
            }
            Event::LeapBack => {
                self.schedule_every(self.setting.leaps_back, event);
                self.leapt -= self.random.one_of(&[1_000, 50_000, 700_000, 20_000_000]);
            }
        }
    }

    fn lose_memory(&mut self, event: Event) {
        self.schedule_every(self.setting.losses, event);
        self.epoch = self.store_clock();
        // Without `strict`, also a failover to a replica that lags.
        if !self.setting.strict && self.random.chance(0.5) {
            self.records = self.copies.clone();
        } else {
            self.records = [None, None];
        }
        if !self.setting.strict {
            for (police, limit) in self.police.iter_mut().zip(&self.limits) {
                police.tolerate(limit.burst());
                self.outcome.tolerated += 1;
            }
        }
    }

    fn request(&mut self, host: usize) {
        let cells = self.random.one_of(&self.setting.costs);
        self.outcome.requests += 1;
        let mut after = self.ideal;
        let mut ideal = after.iter_mut().zip(&self.limits);
        if ideal.all(|(police, limit)| police.would_allow(limit, self.now, cells)) {
            self.ideal = after;
            self.outcome.ideal += u64::from(cells);
            let largest = self.setting.costs.iter().max().copied().unwrap_or(1);
            self.outcome.ideal_large += u64::from(cells == largest);
        }
        if !self.setting.words {
            for demand in &mut self.hosts[host].demands {
                demand.note(cells);
            }
        }
        self.serial += 1;
        let serial = self.serial;
        let mut request = Waiting { serial, since: self.now, cells, asked: [false; 2] };
        if self.goes_on(host, &mut request, 0) {
            self.hosts[host].waiting.push(request);
            self.schedule(PATIENCE.0, Event::GiveUp { host, serial });
        }
    }

    /// Takes a request as far as it goes. Whether it waits. `others`: cells of requests that wait
    /// besides.
    fn goes_on(&mut self, host: usize, request: &mut Waiting, others: u32) -> bool {
        let clock = self.hosts[host].clock(self.now);
        let limits = self.limits.iter();
        let mut needs: Vec<_> = self.hosts[host]
            .holdings
            .iter_mut()
            .zip(limits)
            .map(|(holding, limit)| Need { holding, cells: request.cells, burst: limit.burst() })
            .collect();
        let reversed = without(Rule::OneOrder) && host % 2 == 1;
        if reversed {
            needs.reverse();
        }
        let place = |limit: usize| if reversed { self.limits.len() - 1 - limit } else { limit };
        match decide(clock, &mut needs, PATIENCE) {
            Step::Allow => {
                self.count_wait(request);
                self.allow(host, request);
                false
            }
            Step::Block { .. } | Step::TooLarge { .. } => {
                self.count_wait(request);
                self.give_back_unused(host, request);
                false
            }
            Step::Wait { .. } => true,
            Step::Ask { limit, least } => {
                let limit = place(limit);
                request.asked[limit] = true;
                let wish = self.hosts[host].demands[limit].wish(
                    &self.limits[limit],
                    clock,
                    others.saturating_add(least),
                    least,
                    Micros(self.setting.round_trip),
                );
                self.ask(host, limit, wish);
                true
            }
        }
    }

    fn allow(&mut self, host: usize, request: &Waiting) {
        self.outcome.allowed += u64::from(request.cells);
        let largest = self.setting.costs.iter().max().copied().unwrap_or(1);
        self.outcome.large += u64::from(request.cells == largest);
        let penalty = self.random.chance(self.setting.penalties);
        for limit in 0..self.limits.len() {
            self.police(limit, request.cells);

            let clock = self.hosts[host].clock(self.now);
            let one = &mut self.hosts[host];
            let holding = &mut one.holdings[limit];
            if penalty {
                holding.charge(1);
            }
            if holding.is_asking(clock, PATIENCE) {
                continue;
            }
            let round_trip = Micros(self.setting.round_trip);
            let ahead = one.demands[limit].needs_more(holding.held(clock), round_trip)
                && clock >= holding.come_back();
            let report = penalty
                || (holding.held(clock) == 0
                    && one.demands[limit].reports_at_once(&self.limits[limit], round_trip));
            let wish = if ahead {
                one.demands[limit].wish(&self.limits[limit], clock, 0, 0, round_trip)
            } else {
                let validity = self.limits[limit].longest_validity();
                Wish { want: 0, least: 0, validity }
            };
            if wish.want > 0 || report {
                self.ask(host, limit, wish);
            }
        }
    }

    /// Cells of a limit are allowed now.
    fn police(&mut self, limit: usize, cells: u32) {
        let over = self.police[limit].allow(&self.limits[limit], self.now, cells);
        self.outcome.too_many += u64::from(over > 0);
        self.outcome.over = self.outcome.over.max(over);
        let beyond = self.strict[limit].allow(&self.limits[limit], self.now, cells);
        self.outcome.beyond = self.outcome.beyond.max(beyond);
    }

    fn count_wait(&mut self, request: &Waiting) {
        let waited = self.now - request.since;
        self.outcome.waited += u64::from(waited > 0);
        self.outcome.waited_us += waited;
    }

    fn give_back_unused(&mut self, host: usize, request: &Waiting) {
        for limit in 0..self.limits.len() {
            if request.asked[limit] {
                self.give_back(host, limit, request.cells);
            }
        }
    }

    fn give_back(&mut self, host: usize, limit: usize, cells: u32) {
        let clock = self.hosts[host].clock(self.now);
        let one = &mut self.hosts[host];
        let holding = &mut one.holdings[limit];
        if self.setting.keeps || holding.held(clock) == 0 || holding.is_asking(clock, PATIENCE) {
            return;
        }
        one.number += 1;
        let (id, number) = (one.id, AskNumber(one.number));
        let sent = holding.give_back(&self.limits[limit], clock, id, number, cells);
        self.send(host, limit, sent);
    }

    fn ask(&mut self, host: usize, limit: usize, wish: Wish) {
        let clock = self.hosts[host].clock(self.now);
        let one = &mut self.hosts[host];
        one.number += 1;
        let (id, number) = (one.id, AskNumber(one.number));
        let sent = one.holdings[limit].ask(&self.limits[limit], clock, id, number, wish);
        self.send(host, limit, sent);
    }

    fn send(&mut self, host: usize, limit: usize, sent: Sent) {
        self.outcome.asks += 1;
        self.hosts[host].sent[limit] = sent.ask.number;
        self.travel(Event::AskArrives { host, limit, sent });
    }

    /// Half a round trip, and what a bad network does.
    fn travel(&mut self, event: Event) {
        if self.random.chance(self.setting.lost) {
            return;
        }
        let half = self.setting.round_trip as f64 / 2.0;
        let mut after = self.random.between(0.8 * half, 1.5 * half);
        if self.random.chance(self.setting.late) {
            after += self.random.between(0.0, 200e3);
        }
        self.schedule(after, event);
        if self.random.chance(self.setting.doubled) {
            let later = after + self.random.between(0.0, 300e3);
            self.schedule(later, event);
        }
    }

    /// The record of a limit, taken out of the store.
    fn open(&mut self, which: usize) -> Record {
        let clock = self.store_clock();
        let limit = &self.limits[which];
        let kept = self.records[which]
            .take()
            .filter(|record| clock.saturating_since(record.at) <= record.kept_for(limit));
        kept.unwrap_or_else(|| {
            if self.setting.strict {
                Record::after_loss(limit, self.epoch, clock)
            } else {
                Record::new(clock)
            }
        })
    }

    /// A charge: its cells are allowed when the store takes it, whether the reply arrives or not.
    fn charge_arrives(&mut self, which: usize) {
        let mut record = self.open(which);
        let cells = self.random.one_of(&self.setting.costs);
        let charge = if self.random.chance(self.setting.penalties) {
            Charge::More { cells }
        } else {
            Charge::Take { cells, needs: 0, max_delay: Micros::ZERO }
        };
        let charged = record.charge_at_once(&self.limits[which], self.store_clock(), &charge);
        self.records[which] = Some(record);
        if matches!(charge, Charge::Take { .. }) {
            self.outcome.charged += u64::from(charged.cells);
            self.police(which, charged.cells);
        }
    }

    fn ask_arrives(&mut self, host: usize, which: usize, sent: &Sent) {
        let mut record = self.open(which);
        let clock = self.store_clock();
        let limit = &self.limits[which];
        let void = self.random.chance(self.setting.void);
        // A void ask has an effect that lasts, or not.
        let before = (void && self.random.chance(0.5)).then(|| record.clone());
        let reply = record.ask(limit, clock, &sent.ask);
        self.records[which] = Some(before.unwrap_or(record));
        if self.random.chance(0.05) {
            self.copies[which].clone_from(&self.records[which]);
        }
        if let Some(reply) = reply {
            let sent = *sent;
            self.travel(Event::ReplyArrives { host, limit: which, sent, reply, void });
        }
    }

    fn reply_arrives(
        &mut self,
        host: usize,
        limit: usize,
        sent: &Sent,
        reply: &AskReply,
        void: bool,
    ) {
        let clock = self.hosts[host].clock(self.now);
        let one = &mut self.hosts[host];
        if one.id != sent.ask.host {
            return;
        }
        if one.watch.note(sent.at, clock, reply.now).is_some() {
            self.outcome.noticed += 1;
        }
        let holding = &mut one.holdings[limit];
        if void && !without(Rule::VoidCountsAsNone) {
            holding.void(sent);
        } else {
            if !holding.reply(clock, sent, reply) {
                return;
            }
            // Sent to a host that was frozen: for its clock, no time has passed.
            if one.stood > 0 && one.frozen_until + 1_000 >= self.now {
                self.police[limit].tolerate(reply.granted);
            }
            one.demands[limit].reply(reply.hosts, reply.scarce);
            if let Some(at) = Demand::gives_back_at(holding, sent.at) {
                let after = at.saturating_since(clock).0;
                let number = sent.ask.number;
                self.schedule(after, Event::GiveBack { host, limit, number });
            }
        }
        // Those that wait go on, the first one first.
        let mut waiting = core::mem::take(&mut self.hosts[host].waiting);
        let mut others: u32 = waiting.iter().map(|request| request.cells).sum();
        waiting.retain_mut(|request| {
            others -= request.cells;
            self.goes_on(host, request, others)
        });
        self.hosts[host].waiting.append(&mut waiting);
        if reply.scarce && self.hosts[host].waiting.is_empty() {
            self.give_back(host, limit, u32::MAX);
        }
    }
}
