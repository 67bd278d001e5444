//! [`Task`]: what sends asks and charges to servers, takes their answers, and watches over the
//! servers. There is one in a process.

use core::pin::Pin;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use gcra_lease::{Ask, AskReply, Charge, Charged, Leap, Micros, StoreTime};
use redis::{Pipeline, Value};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::client::advice::advice;
use crate::client::clocks::{Clocks, Leapt};
use crate::client::connection::{Connection, Connector};
use crate::client::fault::{Fault, Reaction, in_words, reaction};
use crate::client::finder::{Finder, Seen, add_wait, confirmed, slot_of};
use crate::client::lines::Lines;
use crate::client::message::{AskAnswer, AskOutcome, Batch, Envelope, NotCharged, Pending, What};
use crate::client::script::{self, By, NotAReply, Script};
use crate::client::sentinels::Found;
use crate::client::shared::{FOUND_WITHIN, Health, RoundTrip, ServerHealth, Shared};
use crate::config::Address;

/// An ask or a charge is sent this often at most: with the text of the script, and to the server
/// that it moved to. A server does nothing with one that it answers with an error like that.
const MOST_TRIES: u32 = 3;

/// After an error, servers are looked for after this time at the latest, unless that was done less
/// than an interval ago.
const SOON: Duration = Duration::from_millis(50);

/// How often it is noted that a server has answered.
const NOTED_EVERY: Duration = Duration::from_millis(50);

/// How often the log says that a slot is being moved.
const TOLD_MOVING_EVERY: Duration = Duration::from_secs(60);

/// Servers are looked at more often until they could be used for this long.
const CALM_AFTER: Duration = Duration::from_secs(3);

pub(crate) struct Task {
    connector: Arc<Connector>,
    shared: Arc<Shared>,
    incoming: mpsc::UnboundedReceiver<Batch>,
    tell: watch::Sender<Health>,
    servers: Vec<Server>,
    /// For each tag the place of its server.
    owners: Box<[u16]>,
    /// How many servers there were.
    numbers: u64,
    calls: FuturesUnordered<Pin<Box<dyn Future<Output = Called> + Send>>>,
    look: Look,
    look_began: Instant,
    looked_soon: Option<Instant>,
    looks: u64,
    /// Why it cannot be found out where servers are.
    fault: Option<Fault>,
    lines: Lines,
    clocks: Clocks,
    /// Asks and charges that are sent again in a moment, or answered then, because their slot is
    /// being moved.
    paused: FuturesUnordered<Pin<Box<dyn Future<Output = Paused> + Send>>>,
    /// When the log last said that a slot is being moved.
    told_moving: Option<Instant>,
    /// Servers that are used when the state is published, in the words of the log.
    to_tell: Vec<[String; 3]>,
    /// A server could be used at some time.
    was_used: bool,
}

/// A finder that comes back, and what it found.
type Looked = (Finder, Result<Seen, Fault>);

/// An ask or a charge that waits until it is sent again: to which server, and if with `ASKING`.
type Paused = (Address, bool, Pending);

enum Look {
    /// The next one begins then.
    At(Instant, Finder),
    UnderWay(Pin<Box<dyn Future<Output = Looked> + Send>>),
    /// While the state changes.
    None,
}

impl Look {
    /// Waits until a look has ended, or (`None`) until the next one is to begin.
    async fn step(&mut self) -> Option<Looked> {
        match self {
            Self::At(at, _) => {
                sleep_until(*at).await;
                None
            }
            Self::UnderWay(look) => Some(look.await),
            Self::None => core::future::pending().await,
        }
    }
}

struct Server {
    address: Address,
    /// Another number than that of each other server.
    number: u64,
    state: Result<Link, Fault>,
    since: Instant,
    /// Since when its connection is there, and when the look at it began that last found it
    /// well.
    steady: Option<(Instant, Instant)>,
    /// It could be used at some time.
    was_used: bool,
    lines: Lines,
    round_trip: RoundTrip,
}

#[derive(Clone)]
struct Link {
    connection: Connection,
    replicas: u32,
}

enum Came {
    Reply(AskReply),
    Ignored,
    Charged(Charged),
    /// The store may have taken it.
    Void,
    /// It was not sent, or a server did nothing with it.
    NotTaken,
}

/// Asks in one pipeline to one server.
struct Call {
    address: Address,
    link: Link,
    asks: Vec<Pending>,
    /// With `ASKING` before each.
    asking: bool,
}

struct Called {
    call: Call,
    answers: Result<Vec<Value>, Fault>,
}

impl Task {
    pub(crate) fn new(
        connector: Arc<Connector>,
        shared: Arc<Shared>,
        incoming: mpsc::UnboundedReceiver<Batch>,
        tell: watch::Sender<Health>,
    ) -> Self {
        let finder = Finder::new(connector.clone());
        let now = Instant::now();
        Self {
            connector,
            shared,
            incoming,
            tell,
            servers: Vec::new(),
            owners: Box::default(),
            numbers: 0,
            calls: FuturesUnordered::new(),
            look: Look::At(now, finder),
            look_began: now,
            looked_soon: None,
            looks: 0,
            fault: None,
            lines: Lines::default(),
            clocks: Clocks::new(),
            paused: FuturesUnordered::new(),
            told_moving: None,
            to_tell: Vec::new(),
            was_used: false,
        }
    }

    pub(crate) async fn run(mut self) {
        let mut batches = Vec::new();
        let mut open = true;
        while open || !self.calls.is_empty() || !self.paused.is_empty() {
            tokio::select! {
                Some(called) = self.calls.next() => self.called(called),
                Some(paused) = self.paused.next() => self.try_again(paused),
                count = self.incoming.recv_many(&mut batches, 1_024), if open => {
                    open = count > 0;
                    self.send(core::mem::take(&mut batches));
                }
                seen = self.look.step(), if open => match seen {
                    Some((finder, seen)) => self.looked(finder, seen),
                    None => self.begin_look(),
                },
            }
        }
        self.shared.away.store(true, Ordering::Relaxed);
        self.shared.parts.iter().for_each(|part| part.usable.store(false, Ordering::Relaxed));
    }

    // --- Asks ----------------------------------------------------------------------------------

    /// Sends the asks and charges of these batches, one pipeline to each server.
    fn send(&mut self, batches: Vec<Batch>) {
        let mut asks = Vec::new();
        for batch in batches {
            match batch {
                Batch::Asks(of_round) => asks.extend(of_round),
                Batch::Charge(charge) => asks.push(charge),
            }
        }
        let mut to_servers: Vec<Vec<Pending>> = Vec::new();
        to_servers.resize_with(self.servers.len(), Vec::new);
        for ask in asks {
            let owner = self.owners.get(usize::from(ask.bucket.tag()));
            let owner = owner.map_or(usize::MAX, |&owner| usize::from(owner));
            match to_servers.get_mut(owner) {
                Some(asks) => asks.push(ask),
                None => self.answer(ask, Came::NotTaken),
            }
        }
        for (place, asks) in to_servers.into_iter().enumerate() {
            if !asks.is_empty() {
                self.call(place, asks, false);
            }
        }
    }

    /// Sends asks to the server at this place.
    fn call(&mut self, place: usize, asks: Vec<Pending>, asking: bool) {
        let Some(server) = self.servers.get(place) else { return self.not_taken(asks) };
        let Ok(link) = server.state.clone() else { return self.not_taken(asks) };
        let mut commands = Pipeline::with_capacity(asks.len() + 1);
        let mut sent = Vec::with_capacity(asks.len());
        let mut by_text: Vec<Script> = Vec::new();
        for mut ask in asks {
            // The server knows a script from the first one on.
            let script = ask.what.script();
            let by = if by_text.contains(&script) { By::Hash } else { ask.by };
            let kind = self.connector.config.kind();
            let command = match &ask.what {
                What::Ask { sent, .. } => script::command(&ask.bucket, &sent.ask, kind, by),
                What::Charge { number, charge, .. } => {
                    script::charge_command(&ask.bucket, *number, charge, kind, by)
                }
            };
            let Some(command) = command else {
                self.answer(ask, Came::Void);
                continue;
            };
            ask.tries += 1;
            if by == By::Text {
                by_text.push(script);
            }
            if asking {
                commands.cmd("ASKING");
            }
            commands.add_command(command);
            sent.push(ask);
        }
        let asks = sent;
        let Some(first) = asks.first() else { return };
        let timeout = self.connector.config.timeout;
        let until = first.submitted + timeout;
        add_wait(&mut commands, link.replicas, timeout);
        let charges = charges_in(&asks);
        self.shared.counters.asks.add(asks.len() - charges);
        self.shared.counters.charges.add(charges);
        self.shared.counters.calls.add(1);
        let mut connection = link.connection.clone();
        let call = Call { address: server.address.clone(), link, asks, asking };
        self.calls.push(Box::pin(async move {
            let answers = connection.send_until(&commands, until).await;
            Called { call, answers }
        }));
    }

    fn called(&mut self, Called { call, answers }: Called) {
        let Call { address, link, asks, asking } = call;
        let stride = if asking { 2 } else { 1 };
        let wait = usize::from(link.replicas > 0);
        let answers = match answers {
            Ok(answers) if answers.len() == asks.len() * stride + wait => answers,
            other => {
                let fault = other.err().unwrap_or(Fault::Other("too few answers".to_owned()));
                if fault == Fault::Late {
                    let late = asks.len() - charges_in(&asks);
                    self.shared.counters.late.add(late);
                }
                self.close(&address, &link.connection, fault);
                return asks.into_iter().for_each(|ask| self.answer(ask, Came::Void));
            }
        };
        // The fault is known before the answers are: no thread asks again for nothing.
        let confirmed = confirmed(answers.last(), link.replicas);
        if let Err(fault) = confirmed.clone() {
            self.close(&address, &link.connection, fault);
        }
        let mut again: Vec<(Address, bool, Pending)> = Vec::new();
        let mut took = None;
        for (ask, answer) in asks.into_iter().zip(answers.iter().skip(stride - 1).step_by(stride))
        {
            match came(&ask, answer) {
                Ok(came @ (Came::Reply(_) | Came::Charged(_))) if confirmed.is_ok() => {
                    let micros = ask.submitted.elapsed().as_micros();
                    let micros = Micros(u64::try_from(micros).unwrap_or(u64::MAX));
                    match &came {
                        Came::Reply(reply) => {
                            self.clock(&address, &ask, reply.now);
                            self.shared.counters.granted.add(reply.granted);
                            self.shared.counters.micros.add(micros.0);
                        }
                        Came::Charged(charged) => self.clock(&address, &ask, charged.now),
                        Came::Ignored | Came::Void | Came::NotTaken => {}
                    }
                    // The first one waited for the longest. One that was sent twice is an
                    // exception.
                    if ask.tries == 1 && took.is_none() {
                        took = Some((micros, ask.submitted));
                    }
                    self.answer(ask, came);
                }
                Ok(Came::Ignored) => self.answer(ask, Came::Ignored),
                Ok(_) => self.answer(ask, Came::Void),
                Err(Reaction::SendText) => {
                    again.push((address.clone(), asking, Pending { by: By::Text, ..ask }));
                }
                Err(Reaction::Moved(other)) if self.connector.config.url.is_cluster() => {
                    self.look_soon();
                    again.push((other, false, ask));
                }
                Err(Reaction::Moved(other)) => {
                    let said =
                        format!("that it is a node of a cluster, and the key is at {other}");
                    self.close(&address, &link.connection, Fault::Other(said));
                    self.answer(ask, Came::Void);
                }
                Err(Reaction::Asking(other)) => again.push((other, true, ask)),
                Err(Reaction::Pause) => self.pause(&address, asking, ask),
                Err(Reaction::Nothing) => self.answer(ask, Came::Void),
                Err(Reaction::Close(fault)) => {
                    self.close(&address, &link.connection, fault);
                    self.answer(ask, Came::Void);
                }
            }
        }
        if let Some((took, submitted)) = took {
            self.note_there(&address, &link.connection, submitted);
            self.shared.round_trip.note(took);
            self.note_pace(&address, &link.connection, took);
        }
        self.send_again(again);
    }

    /// Sends asks again that a server did nothing with: to which server, and if with `ASKING`.
    fn send_again(&mut self, mut asks: Vec<(Address, bool, Pending)>) {
        // Each turn takes the first ask out of the list, and those that go the same way.
        while let Some((to, asking, _)) = asks.first() {
            let (to, asking) = (to.clone(), *asking);
            let place = self.servers.iter().position(|server| server.address == to);
            let mut together = Vec::new();
            for (other, other_asking, ask) in core::mem::take(&mut asks) {
                if (&other, other_asking) != (&to, asking) {
                    asks.push((other, other_asking, ask));
                } else if ask.tries < MOST_TRIES && place.is_some() {
                    together.push(ask);
                } else {
                    // The next look finds the server, and the next request asks again.
                    self.answer(ask, Came::NotTaken);
                }
            }
            if let (Some(place), false) = (place, together.is_empty()) {
                self.call(place, together, asking);
            }
        }
    }

    /// The slot of a key is being moved, and this server cannot do what was asked before more of
    /// the slot's records are on one side. It is asked again, but seldom; and the request learns
    /// nothing before its time is over, as it would only be sent again.
    fn pause(&mut self, address: &Address, asking: bool, ask: Pending) {
        let now = Instant::now();
        if self.told_moving.is_none_or(|told| now >= told + TOLD_MOVING_EVERY) {
            self.told_moving = Some(now);
            log::warn!(
                "slot {} is being moved, and the store at {address} does not have all records \
                 that a decision needs, so requests with keys in it may have to be decided \
                 without the store; finish the reshard ('--cluster fix')",
                slot_of(ask.bucket.tag())
            );
        }
        let timeout = self.connector.config.timeout;
        let until = ask.submitted + timeout;
        let next = if ask.tries < MOST_TRIES { until.min(now + timeout / 4) } else { until };
        let address = address.clone();
        self.paused.push(Box::pin(async move {
            sleep_until(next).await;
            (address, asking, ask)
        }));
    }

    /// Sends again what was paused, if there is time for a reply.
    fn try_again(&mut self, (address, asking, ask): Paused) {
        if ask.submitted.elapsed() < self.connector.config.timeout {
            self.send_again(vec![(address, asking, ask)]);
        } else {
            // The server did nothing with it.
            self.answer(ask, Came::NotTaken);
        }
    }

    /// Tells what came of an ask or a charge.
    fn answer(&self, pending: Pending, came: Came) {
        let Pending { what, permit, tries, .. } = pending;
        let counters = &self.shared.counters;
        match what {
            What::Ask { sent, to } => {
                let (outcome, counter) = match came {
                    Came::Reply(reply) => (AskOutcome::Reply(reply), &counters.replies),
                    Came::Ignored => (AskOutcome::Ignored, &counters.ignored),
                    Came::NotTaken if tries == 0 => (AskOutcome::Away, &counters.away),
                    Came::NotTaken | Came::Void | Came::Charged(_) => {
                        (AskOutcome::Void, &counters.void)
                    }
                };
                counter.add(1);
                // A line that was dropped needs no answers.
                let _ = to.send(Envelope { answer: AskAnswer { sent, outcome }, _permit: permit });
            }
            What::Charge { to, .. } => {
                let outcome = match came {
                    Came::Charged(charged) => Ok(charged),
                    Came::NotTaken => {
                        counters.charges_away.add(1);
                        Err(NotCharged::Away)
                    }
                    Came::Void | Came::Ignored | Came::Reply(_) => {
                        counters.charges_unknown.add(1);
                        Err(NotCharged::Unknown)
                    }
                };
                drop(permit);
                // If the other end was dropped, nothing waits for the outcome.
                let _ = to.send(outcome);
            }
        }
    }

    /// Answers what no server has done anything with.
    fn not_taken(&self, asks: Vec<Pending>) {
        asks.into_iter().for_each(|ask| self.answer(ask, Came::NotTaken));
    }

    /// Compares the clock that decides about a key with the time that passed here.
    fn clock(&mut self, address: &Address, ask: &Pending, now: StoreTime) {
        let passed = u64::try_from(ask.submitted.elapsed().as_micros()).unwrap_or(u64::MAX);
        let (at, received) = (ask.what.at(), ask.what.at().saturating_add(Micros(passed)));
        let leapt = self.clocks.note(address, ask.bucket.tag(), (at, received), now);
        let Some(Leapt { leap, taken_over_from }) = leapt else { return };
        let counters = &self.shared.counters;
        let (by, [went, is], what_happens) = match leap {
            Leap::Forward(by) => {
                counters.leaps_forward.add(1);
                let cells =
                    "for each key, as many more cells may be allowed as drain in that time";
                (by, ["went ahead by", "ahead of"], cells)
            }
            Leap::Back(by) => {
                counters.leaps_back.add(1);
                (by, ["went back by", "behind"], "keys may be blocked for longer")
            }
        };
        let milliseconds = by.get() / 1_000;
        match taken_over_from {
            None => log::warn!(
                "the clock of the store at {address} {went} {milliseconds} ms; {what_happens}"
            ),
            Some(other) => log::warn!(
                "the store at {address} has taken over keys, and its clock is {milliseconds} ms \
                 {is} that of the store at {other}; {what_happens}"
            ),
        }
    }

    // --- Servers -------------------------------------------------------------------------------

    /// A server cannot be used over this connection, if it is still the one in use.
    fn close(&mut self, address: &Address, connection: &Connection, fault: Fault) {
        let uses = |server: &Server| {
            server.address == *address
                && server.state.as_ref().is_ok_and(|link| link.connection.is(connection))
        };
        let Some(place) = self.servers.iter().position(uses) else { return };
        self.set_state(place, Err(fault));
        self.look_soon();
        // The call that failed was sent after that.
        let timeout = self.connector.config.timeout;
        self.publish(Instant::now().checked_sub(timeout).unwrap_or_else(Instant::now));
    }

    /// Notes that a server has answered over this connection what was sent at `at` or later.
    fn note_there(&mut self, address: &Address, connection: &Connection, at: Instant) {
        let place = self.servers.iter().position(|server| server.address == *address);
        let Some((place, server)) = place.and_then(|it| Some((it, self.servers.get_mut(it)?)))
        else {
            return;
        };
        let is_it = server.state.as_ref().is_ok_and(|link| link.connection.is(connection));
        let Some((since, seen)) = server.steady.filter(|_| is_it) else { return };
        // A cluster has many parts, so not for each call.
        if at < seen + NOTED_EVERY {
            return;
        }
        server.steady = Some((since, at));
        if at >= since + FOUND_WITHIN {
            let steady = self.micros_until(at);
            for (part, &owner) in self.shared.parts.iter().zip(&self.owners) {
                if usize::from(owner) == place {
                    part.steady.fetch_max(steady, Ordering::Relaxed);
                }
            }
        }
    }

    /// Notes how long a server took to reply over this connection. One that is slow is not used.
    fn note_pace(&mut self, address: &Address, connection: &Connection, took: Micros) {
        let server = self.servers.iter().find(|server| server.address == *address);
        let Some(server) = server else { return };
        server.round_trip.note(took);
        let (takes, most) = (server.round_trip.get().into(), self.connector.config.slow);
        if takes > most {
            self.close(address, connection, Fault::Slow { takes, most });
        }
    }

    fn set_state(&mut self, place: usize, state: Result<Link, Fault>) {
        let Some(server) = self.servers.get_mut(place) else { return };
        let now = Instant::now();
        let address = &server.address;
        match &state {
            Err(fault) => {
                if let Some(times) = server.lines.fault(now, fault, server.state.is_ok()) {
                    let often = match times {
                        0 | 1 => String::new(),
                        times => format!(" (it was lost {times} times since the last warning)"),
                    };
                    let advice = advice(fault, &self.connector.config);
                    log::warn!("the store at {address} cannot be used: {fault}{advice}{often}");
                }
            }
            Ok(Link { replicas, .. }) if server.state.is_err() => {
                let was_told = server.lines.well();
                // After a failover, another server ends the time without one.
                let since = self.tell.borrow().away_since.filter(|_| self.was_used);
                let since = since.map(Instant::from_std);
                let since = since.or_else(|| server.was_used.then_some(server.since));
                let again = since.map_or_else(String::new, |since| {
                    format!(" again, after {:.1} s without it", (now - since).as_secs_f64())
                });
                let confirm = match replicas {
                    0 => ", without replicas".to_owned(),
                    1 => ", and 1 replica must confirm".to_owned(),
                    replicas => format!(", and {replicas} replicas must confirm"),
                };
                if was_told || !server.was_used {
                    self.to_tell.push([address.to_string(), again, confirm]);
                }
                server.was_used = true;
            }
            Ok(_) => {}
        }
        server.steady = match (&state, &server.state, server.steady) {
            (Err(_), ..) => None,
            (Ok(link), Ok(before), Some((since, _))) if link.connection.is(&before.connection) => {
                Some((since, self.look_began))
            }
            // It may have been away, and be back.
            (Ok(_), ..) => Some((now, now)),
        };
        if server.state.is_ok() != state.is_ok() {
            server.since = now;
            server.round_trip = RoundTrip::supposed();
        }
        server.state = state;
    }

    fn looked(&mut self, finder: Finder, seen: Result<Seen, Fault>) {
        self.looks += 1;
        let mut closed = false;
        let fault = match seen {
            Ok(Seen { map, servers, fault, .. }) => {
                self.take_map(map.servers);
                self.owners = map.owners;
                for (place, state) in servers.into_iter().enumerate() {
                    let state = state.map(|(connection, replicas)| Link { connection, replicas });
                    closed |= !self.take_state(place, state);
                }
                fault
            }
            Err(fault) => Some(fault),
        };
        match &fault {
            Some(fault) => {
                let lost = self.fault.is_none();
                if self.lines.fault(Instant::now(), fault, lost).is_some() {
                    let advice = advice(fault, &self.connector.config);
                    log::warn!(
                        "it is not known where the servers of the store are: {fault}{advice}"
                    );
                }
            }
            None => {
                if self.lines.well() {
                    log::info!("it is known again where the servers of the store are");
                }
            }
        }
        self.fault = fault;
        // All hosts should know at about the same time when a server is back, and when one comes
        // and goes.
        let is_calm =
            |server: &Server| server.state.is_ok() && server.since.elapsed() >= CALM_AFTER;
        let is_well = self.servers.iter().all(is_calm);
        let every = self.connector.config.look_every;
        let every = if is_well && self.fault.is_none() { every } else { every / 8 };
        let next = self.look_began + jitter(every);
        self.look = Look::At(next, finder);
        if closed {
            self.look_soon();
        }
        self.publish(self.look_began);
    }

    /// Makes the list of servers that of the map, in its order.
    fn take_map(&mut self, found: Vec<Found>) {
        let mut before = core::mem::take(&mut self.servers);
        for Found { address, .. } in found {
            let place = before.iter().position(|server| server.address == address);
            self.servers.push(match place {
                Some(place) => before.swap_remove(place),
                None => Server {
                    address,
                    number: {
                        self.numbers += 1;
                        self.numbers
                    },
                    state: Err(Fault::Connection("it was not used before".to_owned())),
                    since: Instant::now(),
                    steady: None,
                    was_used: false,
                    lines: Lines::default(),
                    round_trip: RoundTrip::supposed(),
                },
            });
        }
    }

    /// Takes what a look says about a server. `false`: more is known, because the connection over
    /// which the look found the server well was closed meanwhile.
    fn take_state(&mut self, place: usize, state: Result<Link, Fault>) -> bool {
        let Some(server) = self.servers.get(place) else { return true };
        let closed = match (&server.state, &state) {
            (Err(_), Ok(link)) => link.connection.is_older_than(self.look_began),
            _ => false,
        };
        if !closed {
            self.set_state(place, state);
        }
        !closed
    }

    /// Begins the next look soon; but if one was begun soon less than an interval ago, there is
    /// no haste.
    fn look_soon(&mut self) {
        let now = Instant::now();
        let interval = self.connector.config.look_every;
        if self.looked_soon.is_some_and(|before| now.duration_since(before) < interval) {
            return;
        }
        if let Look::At(at, _) = &mut self.look {
            *at = now + jitter(SOON);
            self.looked_soon = Some(now);
        }
    }

    fn begin_look(&mut self) {
        match core::mem::replace(&mut self.look, Look::None) {
            Look::At(_, mut finder) => {
                let links = self.servers.iter().filter_map(|server| {
                    let link = server.state.as_ref().ok()?;
                    Some((server.address.clone(), link.connection.clone()))
                });
                let links: Vec<_> = links.collect();
                self.look_began = Instant::now();
                self.look = Look::UnderWay(Box::pin(async move {
                    let seen = finder.look(&links).await;
                    (finder, seen)
                }));
            }
            look => self.look = look,
        }
    }

    /// The time from when the store was opened to a moment, in microseconds.
    fn micros_until(&self, moment: Instant) -> u64 {
        let time = moment.into_std().saturating_duration_since(self.shared.opened);
        u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
    }

    /// Tells what is known. A server that cannot be used could not be used at `missed`.
    fn publish(&mut self, missed: Instant) {
        let usable = self.servers.iter().any(|server| server.state.is_ok());
        self.was_used |= usable;
        self.shared.away.store(!usable, Ordering::Relaxed);
        for (part, place) in self.shared.parts.iter().zip(0..) {
            let owner = self.owners.get::<usize>(place).map(|&owner| usize::from(owner));
            let server = owner.and_then(|owner| self.servers.get(owner));
            let is_usable = server.is_some_and(|server| server.state.is_ok());
            if !is_usable {
                part.missed.fetch_max(self.micros_until(missed), Ordering::Relaxed);
            }
            if let Some((server, (since, seen))) = server.zip(server.and_then(|it| it.steady)) {
                part.server.store(server.number, Ordering::Relaxed);
                part.connected.store(self.micros_until(since), Ordering::Relaxed);
                if seen >= since + FOUND_WITHIN {
                    part.steady.fetch_max(self.micros_until(seen), Ordering::Relaxed);
                }
            }
            part.usable.store(is_usable, Ordering::Release);
        }
        let servers = self.servers.iter().map(|server| ServerHealth {
            address: server.address.to_string(),
            fault: server.state.as_ref().err().cloned(),
            replicas: server.state.as_ref().map_or(0, |link| link.replicas),
            since: server.since.into_std(),
        });
        let servers = servers.collect();
        self.tell.send_modify(|health| {
            health.servers = servers;
            health.fault.clone_from(&self.fault);
            health.looks = self.looks;
            health.note(usable);
        });
        // Only now it is true, and a reader of the log may ask.
        for [address, again, confirm] in self.to_tell.drain(..) {
            log::info!("the store at {address} is used{again}{confirm}");
        }
    }
}

fn charges_in(asks: &[Pending]) -> usize {
    asks.iter().filter(|ask| ask.what.script() == Script::Charge).count()
}

/// Reads a server's answer to an ask or a charge.
fn came(ask: &Pending, answer: &Value) -> Result<Came, Reaction> {
    match answer {
        Value::BulkString(bytes) => read(&ask.what, bytes).map_err(|NotAReply| not_a_reply()),
        Value::ServerError(error) => {
            let detail = error.details().unwrap_or_default();
            let reaction = reaction(error.code(), detail);
            if reaction == Reaction::Nothing {
                let (name, said) = (ask.bucket.name(), format!("{} {detail}", error.code()));
                log::debug!("the store answers an ask for {name} with {}", in_words(&said));
            }
            Err(reaction)
        }
        _ => Err(not_a_reply()),
    }
}

fn read(what: &What, bytes: &[u8]) -> Result<Came, NotAReply> {
    match what {
        What::Ask { sent, .. } => match script::reply(bytes)? {
            Some(reply) if answers(&reply, &sent.ask) => Ok(Came::Reply(reply)),
            Some(_) => Err(NotAReply),
            None => Ok(Came::Ignored),
        },
        What::Charge { number, charge, .. } => match script::charged(bytes)? {
            (said, charged) if said == *number && is_of(&charged, charge) => {
                Ok(Came::Charged(charged))
            }
            _ => Err(NotAReply),
        },
    }
}

/// Whether a record can have given this reply to this ask.
const fn answers(reply: &AskReply, ask: &Ask) -> bool {
    reply.number.0 == ask.number.0 && reply.kept <= ask.holds && reply.granted <= ask.want
}

/// Whether this charge can have had this outcome.
fn is_of(charged: &Charged, charge: &Charge) -> bool {
    let (allowed, cells, beyond_burst) = (charged.allowed, charged.cells, charged.beyond_burst);
    match *charge {
        Charge::Take { cells: all, .. } => {
            cells == if allowed { all } else { 0 } && beyond_burst == 0
        }
        Charge::More { cells: most } => allowed && cells <= most && beyond_burst <= cells,
        Charge::Less { cells: most, .. } => allowed && cells <= most && beyond_burst == 0,
    }
}

/// The answers do not belong to the questions, so later answers cannot be relied upon.
fn not_a_reply() -> Reaction {
    Reaction::Close(Fault::not_a_reply())
}

/// An interval that is up to a quarter shorter or longer, so that hosts do not look all at once.
fn jitter(interval: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    interval.mul_f64(0.75 + f64::from(random) / f64::from(u32::MAX) / 2.0)
}
