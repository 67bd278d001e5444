//! [`StoreOrders`]: orders through the store, which hold on all machines that use it, and with
//! them the resets of policies.
//!
//! A machine makes the key of a client by its own policies, and puts the order into its own table.
//! So what is in the store is the KEY, and not the hash that one table has of it.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context as _;
use gcra_policy::store::StoreSettings;
use gcra_policy::{Policies, Policy, policy_id};
use gcra_store::{Names, NewOrder, OrderExchange, OrderId, SharedOrder};
use gcra_table::board::{LONGEST_ORDER, Order, OrderKind, OrderTarget, PolicyReset};
use gcra_table::{Nanos, Table, Time};
use gcra_text::duration::Short;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use crate::inspected_table::Inspected;
use crate::order_state::OrderWords;
use crate::orders::{self, Subject, Terms, obeyed, subjects};
use crate::store_resets::{self, StoredReset};

/// How soon an order that is in the store holds on all machines that use it.
pub const HOLDS_WITHIN: Duration = Duration::from_secs(5);

/// How long at least the store keeps the end of an order.
const LEAST_END: Duration = Duration::from_secs(60);

/// How much the times of one order may differ that came on two ways.
const SAME: Nanos = Nanos::from_secs(5);

/// The word for an order in the store that ends the one before.
const ENDED: &str = "ended";

/// The words of an order in the store, in JSON. An order with another word or member is of a later
/// version, and is left alone.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct StoredOrder {
    /// The [command](OrderWords::command) that gives it, or [`ENDED`].
    order: String,
    policy: String,
    /// The KEY or the network that it is about.
    key: String,
    /// Of an end, the command of the order that it ends. An earlier version leaves it empty.
    note: String,
    giver: String,
}

impl StoredOrder {
    /// `Some(None)` ends what was ordered. `None`: this version does not know it.
    fn kind(&self) -> Option<Option<OrderKind>> {
        match &*self.order {
            ENDED => Some(None),
            word => OrderWords::kind_of(word).map(Some),
        }
    }

    fn words(&self) -> Vec<u8> {
        // All keys are strings, so this does not fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// An order in the store that this version knows.
#[derive(Clone, Debug)]
struct Entry {
    id: OrderId,
    /// In ms since 1970 by the clock of the store, as the end.
    given: u64,
    ends: u64,
    kind: Option<OrderKind>,
    stored: StoredOrder,
}

impl Entry {
    /// Whether this order, which another machine has given a moment later, does what was asked
    /// for until then. Machines that are told the same find ends that differ by the time between.
    fn is_as_good(&self, asked: &StoredOrder, ends: u64) -> bool {
        let same = SAME.millis_ceil();
        self.stored.order == asked.order && self.ends.saturating_add(same) >= ends
    }
}

/// The order that stands about some clients: the one that was given last.
struct StandingOrder {
    entry: Entry,
    subject: Subject,
    /// When the last of all orders about these clients ends. Two machines may have given one at
    /// the same time, with different KEYs of one client.
    last_end: u64,
}

/// By the number of the policy and its clients.
type StandingOrders = HashMap<(u64, OrderTarget), StandingOrder>;

/// The orders of a store, and the resets of policies.
#[derive(Debug)]
pub struct StoreOrders {
    exchange: OrderExchange,
    followed: Followed,
    /// The resets that the table had, and the store did not.
    lacking: Vec<StoredReset>,
    /// As these, the orders.
    lacking_orders: Vec<NewOrder>,
    /// The orders of the table when those were looked for.
    looked_at: Vec<Order>,
    /// Whether the last exchange went well.
    is_well: bool,
}

/// The orders that were put into a table.
#[derive(Debug, Default)]
struct Followed {
    /// When each was given.
    given: HashMap<OrderId, u64>,
    table: Weak<Table>,
    /// The policies by which keys were made.
    policies: Weak<Policies>,
    /// Whether some could not be put there.
    misses: bool,
}

impl StoreOrders {
    /// Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// The certificates of the authorities cannot be read.
    pub fn new(settings: &StoreSettings) -> anyhow::Result<Self> {
        let exchange = OrderExchange::new(settings.config(), &Names::new(&settings.salt));
        let exchange = exchange.context("could not use the store for orders")?;
        Ok(Self {
            exchange,
            followed: Followed::default(),
            lacking: Vec::new(),
            lacking_orders: Vec::new(),
            looked_at: Vec::new(),
            is_well: false,
        })
    }

    /// Takes over what other machines have ordered, and gives what the store lacked when the table
    /// was last looked at. Returns whether something is new.
    ///
    /// # Errors
    ///
    /// The store cannot be used.
    pub async fn exchange(&mut self) -> anyhow::Result<bool> {
        self.is_well = false;
        let is_new = self.exchange.exchange().await?;
        let orders = std::mem::take(&mut self.lacking_orders);
        if !orders.is_empty() {
            let looked_at = std::mem::take(&mut self.looked_at);
            self.followed.misses = true;
            self.exchange.give(&orders).await?;
            self.looked_at = looked_at;
        }
        let lacking = std::mem::take(&mut self.lacking);
        let given = store_resets::give(&mut self.exchange, lacking).await;
        // What has come meanwhile is followed, too.
        self.followed.misses |= !matches!(given, Ok(false));
        given?;
        self.is_well = true;
        Ok(is_new)
    }

    /// Puts what is new into the table. Each order is put there once: one that was given later on
    /// this machine alone stays. Of the resets of a policy, the latest is put there.
    ///
    /// # Errors
    ///
    /// The table has no space for one of them, or is being resized. The next call tries it again.
    pub fn follow(&mut self, inspected: &Inspected, is_new: bool) -> anyhow::Result<()> {
        let Self { exchange, followed, lacking, .. } = self;
        let exchange = &*exchange;
        // Each order of the store is unsealed and read.
        let standing = LazyCell::new(|| standing(inspected, &entries(exchange)));
        let mut outcome = Ok(());
        let is_due = followed.are_due(inspected, is_new);
        if is_due {
            outcome = store_resets::take(inspected, &store_resets::all(exchange));
            let has_failed = outcome.is_err();
            outcome = outcome.and(followed.follow(inspected, &standing, exchange.now()));
            followed.misses |= has_failed;
        }
        *lacking = store_resets::lacking(inspected, |policy| store_resets::of(exchange, policy));
        let orders = inspected.table.board().orders();
        if self.is_well && (is_due || orders != self.looked_at) {
            let lacking = lacking_orders(inspected, &orders, &standing, exchange.now());
            let new = |(subject, given, lasts, stored): Lacking| NewOrder {
                id: exchange.id(&stored.policy, &subject.key_in_store(subject.policy(inspected))),
                is_end: false,
                given: Some(given),
                lasts,
                words: stored.words(),
            };
            self.lacking_orders = lacking.into_iter().map(new).collect();
            self.looked_at = orders;
        }
        outcome
    }
}

/// An order of the table that the store lacks: about whom, when it was given in ms since 1970 by
/// the clock of the store, for how long, and its words.
type Lacking = (Subject, u64, Duration, StoredOrder);

/// The orders of a table that the store does not have, or has only in an earlier form. One whose
/// KEY is shortened in the table is left out.
fn lacking_orders(
    inspected: &Inspected,
    orders: &[Order],
    standing: &StandingOrders,
    store_now: u64,
) -> Vec<Lacking> {
    let now = inspected.table.now();
    let lacking = |order: &Order| {
        let ends = store_now + order.until.saturating_since(now).millis_ceil();
        // One from before this machine was started has the time zero: it is the earliest that it
        // can be, so that any end of it is later.
        let given = match order.given {
            Time::ZERO => ends.saturating_sub(LONGEST_ORDER.millis_ceil()),
            given => store_now.saturating_sub(now.saturating_since(given).millis_ceil()),
        };
        let kept = standing.get(&(order.policy, order.target)).map(|standing| &standing.entry);
        if kept.is_some_and(|kept| {
            let until = by_table(now, store_now, kept.ends);
            let is_same = kept.kind.is_some_and(|kind| is_same(order, kind, until, &kept.stored));
            is_same || kept.given >= given
        }) {
            return None;
        }
        let policies = &inspected.in_force.policies;
        let policy = policies.list.iter().find(|policy| policy.is_meant_by(order))?;
        let stored = StoredOrder {
            order: OrderWords::of(order.kind).command.to_owned(),
            policy: policy.name.to_string(),
            key: order.key.clone(),
            note: order.note.clone(),
            giver: order.giver.clone(),
        };
        let subject = subject_of(inspected, &stored).filter(|it| it.target == order.target)?;
        let key = subject.key_in_store(policy);
        let lasts = Duration::from_millis(ends.saturating_sub(given));
        Some((subject, given, lasts, StoredOrder { key, ..stored }))
    };
    orders.iter().filter_map(lacking).collect()
}

impl Followed {
    fn are_due(&mut self, inspected: &Inspected, is_new: bool) -> bool {
        let Inspected { table, in_force, .. } = inspected;
        if self.table.as_ptr() != Arc::as_ptr(table) {
            *self = Self { table: Arc::downgrade(table), ..Self::default() };
        }
        let has_other_policies = self.policies.as_ptr() != Arc::as_ptr(&in_force.policies);
        self.policies = Arc::downgrade(&in_force.policies);
        is_new || has_other_policies || self.misses
    }

    fn follow(
        &mut self,
        inspected: &Inspected,
        standing: &StandingOrders,
        store_now: u64,
    ) -> anyhow::Result<()> {
        let before = std::mem::take(&mut self.given);
        let mut outcome = Ok(());
        for StandingOrder { entry, subject, .. } in standing.values() {
            let is_followed = before.get(&entry.id) == Some(&entry.given);
            match if is_followed { Ok(()) } else { put(inspected, entry, subject, store_now) } {
                Ok(()) => drop(self.given.insert(entry.id, entry.given)),
                Err(error) => outcome = Err(error),
            }
        }
        self.misses = outcome.is_err();
        outcome
    }
}

/// Puts an order into the table, unless one that was given later is there.
fn put(
    inspected: &Inspected,
    entry: &Entry,
    subject: &Subject,
    store_now: u64,
) -> anyhow::Result<()> {
    let Entry { given, ends, kind, stored, .. } = entry;
    let table = &inspected.table;
    let now = table.now();
    // No order is given in the future, unless the clock of the store was set back: any order that
    // comes from now on is later.
    let given = by_table(now, store_now, *given).min(now);
    let until = by_table(now, store_now, *ends);
    let known = subject.order(inspected);
    // All that was given before this machine was started has the time zero.
    let is_later = |known: &Order| known.given >= given && known.given > Time::ZERO;
    if known.as_ref().is_some_and(is_later) {
        return Ok(());
    }
    let outcome = match (kind, known) {
        (None, None) => Ok(()),
        (None, Some(known)) => table.board().end_order(&known),
        (Some(kind), Some(known)) if is_same(&known, *kind, until, stored) => Ok(()),
        (Some(kind), _) => table.board().give_order(&Order {
            policy: policy_id(&subject.policy(inspected).name),
            kind: *kind,
            target: subject.target,
            until,
            given,
            since: now,
            key: subject.name.clone(),
            note: stored.note.clone(),
            giver: stored.giver.clone(),
        }),
    };
    obeyed(inspected, outcome)
}

/// A time of the store, in ms since 1970, by the clock of a table. The clocks of machines differ,
/// but all see the time of the store.
fn by_table(now: Time, store_now: u64, ms: u64) -> Time {
    let nanos = |ms: u64| Nanos::from_millis(1).saturating_mul(ms);
    let later = now.saturating_add(nanos(ms.saturating_sub(store_now)));
    later.saturating_sub(nanos(store_now.saturating_sub(ms)))
}

/// The orders of the store that have not ended.
fn entries(exchange: &OrderExchange) -> Vec<Entry> {
    let entry = |order: &SharedOrder| {
        let stored: StoredOrder = serde_json::from_slice(&exchange.words(order)?).ok()?;
        let SharedOrder { id, given, ends, .. } = *order;
        Some(Entry { id, given, ends, kind: stored.kind()?, stored })
    };
    exchange.list().iter().filter(|it| it.ends > exchange.now()).filter_map(entry).collect()
}

/// What stands about clients of the policies here.
fn standing(inspected: &Inspected, entries: &[Entry]) -> StandingOrders {
    let mut standing = StandingOrders::new();
    for entry in entries {
        let Some(subject) = subject_of(inspected, &entry.stored) else { continue };
        let clients = (policy_id(&entry.stored.policy), subject.target);
        let order = StandingOrder { entry: entry.clone(), subject, last_end: entry.ends };
        let Some(other) = standing.get_mut(&clients) else {
            standing.insert(clients, order);
            continue;
        };
        let last_end = other.last_end.max(entry.ends);
        let when = |entry: &Entry| (entry.given, entry.kind.is_some());
        if when(&other.entry) < when(entry) {
            *other = order;
        }
        other.last_end = last_end;
    }
    standing
}

fn subject_of(inspected: &Inspected, stored: &StoredOrder) -> Option<Subject> {
    let key = stored.key.parse().ok()?;
    subjects(inspected, Some(&stored.policy), &key).ok()?.pop()
}

/// Whether a table has an order already, because the command has put it there, too.
fn is_same(known: &Order, kind: OrderKind, until: Time, stored: &StoredOrder) -> bool {
    let differs = until.saturating_since(known.until).max(known.until.saturating_since(until));
    // The table may have cut the texts.
    let has = |text: &str, known: &str| text.starts_with(known);
    known.kind == kind
        && differs <= SAME
        && has(&stored.note, &known.note)
        && has(&stored.giver, &known.giver)
}

/// The state of an order in a store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StateInStore {
    Stands,
    /// It was ended on all machines so long ago, and the store still has the end.
    Ended(Duration),
}

/// The orders of a store, for commands and actions. A store that cannot be used is not asked
/// again.
#[derive(Debug)]
pub struct GivesToStore {
    orders: StoreOrders,
    runtime: Runtime,
    /// Why the store cannot be used.
    fault: Option<String>,
    /// Whether the store has not taken an order.
    misses: bool,
}

impl GivesToStore {
    /// The store of the policies, if they have one.
    ///
    /// # Errors
    ///
    /// The certificates of the authorities cannot be read, or the system has no resources left.
    pub fn of(inspected: &Inspected) -> anyhow::Result<Option<Self>> {
        Self::of_policies(&inspected.in_force.policies)
    }

    /// As [`of`](Self::of).
    ///
    /// # Errors
    ///
    /// See there.
    pub fn of_policies(policies: &Policies) -> anyhow::Result<Option<Self>> {
        let Some(settings) = &policies.store else { return Ok(None) };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("could not ask the store")?;
        let mut orders = StoreOrders::new(settings)?;
        let fault = runtime.block_on(orders.exchange()).err().map(|why| why.to_string());
        Ok(Some(Self { orders, runtime, fault, misses: false }))
    }

    /// Whether the store could be used so far, and has taken all orders.
    pub const fn is_well(&self) -> bool {
        self.fault.is_none() && !self.misses
    }

    /// What a list of orders may lack, if the store cannot be used.
    pub fn what_is_missing(&self) -> Option<String> {
        self.fault.as_deref().map(missing_orders)
    }

    /// The state of the order of this kind about exactly these clients. `None` if the store has
    /// none, or a later order of the other kind.
    pub fn state(
        &self,
        inspected: &Inspected,
        subject: &Subject,
        kind: OrderKind,
    ) -> Option<StateInStore> {
        let Entry { given, kind: last, stored, .. } = self.standing(inspected, subject)?.entry;
        match last {
            Some(last) => (last == kind).then_some(StateInStore::Stands),
            None => (stored.note == OrderWords::of(kind).command).then(|| {
                let ago = self.orders.exchange.now().saturating_sub(given);
                StateInStore::Ended(Duration::from_millis(ago))
            }),
        }
    }

    fn standing(&self, inspected: &Inspected, subject: &Subject) -> Option<StandingOrder> {
        let policy = policy_id(&subject.policy(inspected).name);
        standing(inspected, &entries(&self.orders.exchange)).remove(&(policy, subject.target))
    }

    /// Gives an order about these clients, for all machines. Returns why that has failed.
    pub fn give(
        &mut self,
        inspected: &Inspected,
        subject: &Subject,
        terms: &Terms,
    ) -> Result<(), String> {
        let policy = subject.policy(inspected);
        let key = subject.key_in_store(policy);
        let exchange = &self.orders.exchange;
        let end_id = exchange.id(&policy.name, &format!("{key}\nbefore"));
        let standing = self.standing(inspected, subject);
        let id = standing.as_ref().map(|it| it.entry.id).filter(|id| *id != end_id);
        let id = id.unwrap_or_else(|| exchange.id(&policy.name, &key));
        let left = standing.map(|it| it.last_end.saturating_sub(exchange.now()));
        let left = left.map(Duration::from_millis).filter(|left| *left > terms.time);
        // A machine that is away until this order has ended does not bring back the longer one.
        // Both go together: the end alone would end this order on all machines.
        let end = left.map(|left| (end_id, ended_order(policy, key.clone(), None), left));
        let order = StoredOrder {
            order: OrderWords::of(terms.kind).command.to_owned(),
            policy: policy.name.to_string(),
            key,
            note: terms.note.clone(),
            giver: terms.giver.clone(),
        };
        let orders: Vec<_> = end.into_iter().chain([(id, order, terms.time)]).collect();
        self.send(&orders)
    }

    /// Ends the order of this kind about these clients, for all machines, also for those whose
    /// tables have one that the store does not have. `here` is the one of the table. An order of
    /// the other kind stays. Returns why that has failed.
    pub fn end(
        &mut self,
        inspected: &Inspected,
        subject: &Subject,
        kind: OrderKind,
        here: Option<&Order>,
    ) -> Result<(), String> {
        let standing = self.standing(inspected, subject);
        if standing.as_ref().is_some_and(|it| it.entry.kind.is_some_and(|it| it != kind)) {
            return self.fault.clone().map_or(Ok(()), Err);
        }
        let policy = subject.policy(inspected);
        let key = subject.key_in_store(policy);
        let exchange = &self.orders.exchange;
        let id = standing.as_ref().map(|it| it.entry.id);
        let id = id.unwrap_or_else(|| exchange.id(&policy.name, &key));
        let left = here.map(|it| it.until.saturating_since(inspected.table.now()).into());
        let left_in_store = standing.map(|it| it.last_end.saturating_sub(exchange.now()));
        let left = left.max(left_in_store.map(Duration::from_millis)).unwrap_or_default();
        self.send(&[(id, ended_order(policy, key, Some(kind)), left.max(LEAST_END))])
    }

    /// Resets a policy in the table, later than all that the store has, and then for all machines.
    /// The second value is why the store does not have it.
    ///
    /// # Errors
    ///
    /// The table has no space for it, or is being resized.
    pub fn reset(
        &mut self,
        inspected: &Inspected,
        policy: &str,
        giver: &str,
    ) -> anyhow::Result<(PolicyReset, Result<(), String>)> {
        let exchange = &mut self.orders.exchange;
        store_resets::take(inspected, &store_resets::all(exchange))?;
        let reset = inspected.table.board().reset_policy(policy_id(policy), giver);
        let reset = obeyed(inspected, reset)?;
        let given = match &self.fault {
            Some(fault) => Err(fault.clone()),
            None => {
                let new = vec![StoredReset::new(policy, &reset)];
                let given = self.runtime.block_on(store_resets::give(exchange, new));
                given.map(drop).map_err(|error| error.to_string())
            }
        };
        Ok((reset, given))
    }

    /// Ends the orders that were given with this KEY when it meant other clients.
    pub fn end_former(&mut self, order: &Order, policy: &Policy, key: &str) -> Result<(), String> {
        let (all, now) = (entries(&self.orders.exchange), self.orders.exchange.now());
        let is_former = |it: &&Entry| {
            *it.stored.policy == *policy.name
                && (it.stored.key == key || it.stored.key == order.key)
                && it.kind == Some(order.kind)
        };
        let former = all.iter().filter(is_former).map(|it| (it.id, it.ends.saturating_sub(now)));
        let former: Vec<_> = former.collect();
        former.into_iter().try_for_each(|(id, left)| {
            let end = ended_order(policy, key.to_owned(), Some(order.kind));
            self.send(&[(id, end, Duration::from_millis(left))])
        })
    }

    /// Gives all of these, or none.
    fn send(&mut self, orders: &[(OrderId, StoredOrder, Duration)]) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let new = |(id, stored, lasts): &(OrderId, StoredOrder, Duration)| NewOrder {
            id: *id,
            is_end: stored.order == ENDED,
            given: None,
            lasts: *lasts,
            words: stored.words(),
        };
        let new: Vec<_> = orders.iter().map(new).collect();
        let Self { orders: StoreOrders { exchange, .. }, runtime, .. } = self;
        let Err(error) = runtime.block_on(exchange.give(&new)) else { return Ok(()) };
        let kind = error.kind();
        if kind == io::ErrorKind::AlreadyExists {
            let (now, kept) = (exchange.now(), entries(exchange));
            if orders.iter().all(|(id, stored, lasts)| {
                let ends = now.saturating_add(u64::try_from(lasts.as_millis()).unwrap_or(0));
                let mut kept = kept.iter().filter(|entry| entry.id == *id);
                kept.any(|kept| kept.is_as_good(stored, ends))
            }) {
                return Ok(());
            }
        }
        let said = error.to_string();
        self.misses = true;
        // The store may take the next one all the same.
        let is_about_this = matches!(
            kind,
            io::ErrorKind::AlreadyExists
                | io::ErrorKind::StorageFull
                | io::ErrorKind::InvalidInput
        );
        self.fault = (!is_about_this).then(|| said.clone());
        Err(said)
    }
}

/// Ends the order of this kind about these clients on all machines of the store, if there is one,
/// and then here, where `here` is the order. The agents follow an end that the store has. So a
/// command that is killed in between leaves no order that has ended here alone. Returns what came
/// of giving it to the store.
///
/// # Errors
///
/// The table is being resized.
pub fn end_everywhere(
    inspected: &Inspected,
    store: Option<&mut GivesToStore>,
    subject: &Subject,
    kind: OrderKind,
    here: Option<&Order>,
) -> anyhow::Result<Option<Result<(), String>>> {
    let in_store = store.map(|store| store.end(inspected, subject, kind, here));
    here.map_or(Ok(()), |order| orders::end(inspected, order))?;
    Ok(in_store)
}

/// The entry that ends an order in the store: one of this kind, or any.
fn ended_order(policy: &Policy, key: String, kind: Option<OrderKind>) -> StoredOrder {
    StoredOrder {
        order: ENDED.to_owned(),
        policy: policy.name.to_string(),
        key,
        note: kind.map(|kind| OrderWords::of(kind).command.to_owned()).unwrap_or_default(),
        giver: String::new(),
    }
}

/// What a list of orders may lack while the store cannot be used.
pub(crate) fn missing_orders(why: &str) -> String {
    format!("orders of other machines may be missing, because the store cannot be asked: {why}")
}

/// The same of a table that has no space for a further one.
pub(crate) const NO_SPACE: &str = "orders of other machines may be missing, because the table has \
                                   no space for more; end orders that are not needed";

/// As [`where_it_holds`], and the same as a note, if it does not hold as it should: `is_used` is
/// whether agents use the table now.
pub(crate) fn where_it_holds_if(
    is_used: bool,
    in_store: Option<&Result<(), String>>,
) -> (String, Option<String>) {
    let holds = where_it_holds(in_store);
    let unused = "but no agent uses the table now; agents that start on it will follow";
    let said = match (is_used, in_store) {
        (true, _) => holds,
        (false, None) => unused.to_owned(),
        (false, Some(_)) => format!("{holds}, {unused}"),
    };
    let is_well = is_used && !matches!(in_store, Some(Err(_)));
    (said.clone(), (!is_well).then_some(said))
}

/// The note on an end that the store does not have.
pub(crate) fn note_on_end(in_store: Option<&Result<(), String>>) -> Option<String> {
    matches!(in_store, Some(Err(_))).then(|| where_it_has_ended(in_store))
}

/// Where the order or the reset that was just given holds, as the end of a sentence: `in_store` is
/// what came of giving it to the store, if there is one.
pub fn where_it_holds(in_store: Option<&Result<(), String>>) -> String {
    match in_store {
        None => "in all agents within about two seconds".to_owned(),
        Some(Ok(())) => format!(
            "on all machines of the store within about {} seconds (one that is away follows when \
             it is back)",
            HOLDS_WITHIN.as_secs()
        ),
        Some(Err(why)) => format!(
            "on this machine within about two seconds, and on the others when its agents can use \
             the store: {why}"
        ),
    }
}

/// Where an order has ended, as [`where_it_holds`].
pub fn where_it_has_ended(in_store: Option<&Result<(), String>>) -> String {
    match in_store {
        Some(Err(why)) => format!(
            "on this machine only, in all agents within about two seconds, because the store does \
             not have the end: {why}; end it again when the store can be used, or on each machine \
             with --admin"
        ),
        in_store => where_it_holds(in_store),
    }
}

/// Behind an order: that it was ended before this was asked, as all machines of a store may be at
/// once.
pub fn was_ended(ago: Duration) -> String {
    let ago = Short(ago);
    format!(
        "was ended {ago} ago on all machines of the store (one that is away follows when it is \
         back)"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gcra_limiter::active_policies::ActivePolicies;
    use gcra_limiter::stats::Stats;
    use gcra_policy::file::document;
    use gcra_table::{ManualClock, Slots};
    use proptest::collection;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::inspected_table::PolicySource;

    /// The time of the store, in ms since 1970.
    const NOW: u64 = 1_800_000_000_000;

    fn machine() -> Inspected {
        machine_with_clock().0
    }

    /// Its clock stands still, as that of the store does.
    fn machine_with_clock() -> (Inspected, ManualClock) {
        let text = "[policy.api]\nlimits = \"9/d\"\nkey = [\"ip\"]\n\
                    [policy.user]\nlimits = \"9/d\"\nkey = [\"user\"]\n";
        let policies = document::parse("gcra-spoa.toml".as_ref(), text).unwrap();
        let (table, clock) = Table::with_manual_clock(Slots::new(8).unwrap()).unwrap();
        // The machine is up for longer than any order that the tests give.
        clock.advance(Nanos::from_secs(100_000));
        let stats = Stats::new(std::num::NonZeroUsize::MIN);
        let in_force = Arc::new(ActivePolicies::at_start(policies, &stats, &table));
        let path = "/table".into();
        let source = PolicySource::Agent;
        (Inspected::of_parts(Arc::new(table), path, in_force, None, source), clock)
    }

    /// An order that was given so many seconds ago.
    fn entry(id: u8, order: &str, (policy, key): (&str, &str), ago: u64) -> Entry {
        let stored = StoredOrder {
            order: order.to_owned(),
            policy: policy.to_owned(),
            key: key.to_owned(),
            note: String::new(),
            giver: "anna@limiter1".to_owned(),
        };
        let (given, ends) = (NOW - 1_000 * ago, NOW + 3_600_000);
        Entry { id: [id; 16], given, ends, kind: stored.kind().unwrap(), stored }
    }

    fn follow(machine: &Inspected, followed: &mut Followed, entries: &[Entry]) {
        followed.follow(machine, &standing(machine, entries), NOW).unwrap();
    }

    fn orders(machine: &Inspected) -> Vec<(String, OrderKind)> {
        let orders = machine.table.board().orders();
        let mut all: Vec<_> = orders.into_iter().map(|order| (order.key, order.kind)).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    #[test]
    fn what_was_ordered_here_alone_and_later_stays() {
        let (machine, mut followed) = (machine(), Followed::default());
        let client = ("api", "192.0.2.7");
        let block = [entry(1, "block", client, 60)];
        follow(&machine, &mut followed, &block);
        let known = machine.table.board().orders().remove(0);
        let minute = Nanos::from_secs(60);
        assert_eq!(known.since, known.given.saturating_add(minute), "it came a minute later");
        assert_eq!(known.until, known.since.saturating_add(Nanos::from_secs(3_600)));
        // The store is away, and an operator ends it here.
        machine.table.board().end_order(&known).unwrap();
        follow(&machine, &mut followed, &block);
        assert_eq!(orders(&machine), []);
        let exempt = Order { kind: OrderKind::Exempt, given: machine.table.now(), ..known };
        machine.table.board().give_order(&exempt).unwrap();
        for order in ["block", ENDED] {
            follow(&machine, &mut followed, &[entry(1, order, client, 30)]);
            assert_eq!(orders(&machine), [("192.0.2.7".to_owned(), OrderKind::Exempt)]);
        }
        // Of a policy that this machine does not have, and of a later version.
        follow(&machine, &mut followed, &[entry(1, "block", ("web", "192.0.2.8"), 0)]);
        assert_eq!(orders(&machine).len(), 1);
        for unknown in [
            "{\"order\":\"block\",\"policy\":\"api\",\"note\":\"\",\"giver\":\"\"}",
            "{\"order\":\"block\",\"policy\":\"api\",\"key\":\"x\",\"note\":\"\",\"giver\":\"\",\
             \"limit\":\"day\"}",
        ] {
            serde_json::from_str::<StoredOrder>(unknown).unwrap_err();
        }
        let stored = StoredOrder { order: "slow".to_owned(), ..block[0].stored.clone() };
        assert_eq!(stored.kind(), None);
    }

    /// It is set back by an hour, and set right again after an order was given.
    #[test]
    fn what_is_given_later_counts_when_the_clock_of_the_store_is_set_back_and_right_again() {
        let ((machine, clock), mut followed) = (machine_with_clock(), Followed::default());
        let client = ("api", "192.0.2.7");
        let block = entry(1, "block", client, 0);
        let set_back = standing(&machine, std::slice::from_ref(&block));
        followed.follow(&machine, &set_back, NOW - 3_600_000).unwrap();
        assert_eq!(orders(&machine).len(), 1);
        let mut end = entry(1, ENDED, client, 0);
        end.given += 25_000;
        clock.advance(Nanos::from_secs(25));
        followed.follow(&machine, &standing(&machine, &[end]), NOW + 25_000).unwrap();
        assert_eq!(orders(&machine), []);
    }

    #[test]
    fn the_store_lacks_what_a_table_has_and_what_is_later_there() {
        let (machine, mut followed) = (machine(), Followed::default());
        let (one, two) = (("api", "2001:db8::7"), ("api", "10.1.0.0/16"));
        let all = [
            entry(1, "block", one, 60),
            entry(2, "exempt", two, 50),
            entry(3, "block", ("user", "alice"), 40),
        ];
        follow(&machine, &mut followed, &all);
        let lacking = |entries: &[Entry]| {
            let lacking = lacking_orders(
                &machine,
                &machine.table.board().orders(),
                &standing(&machine, entries),
                NOW,
            );
            let mut all: Vec<_> = lacking
                .into_iter()
                .map(|(_, given, lasts, stored)| {
                    let ends = given + u64::try_from(lasts.as_millis()).unwrap();
                    assert!(ends.abs_diff(NOW + 3_600_000) < 5_000, "{ends}");
                    (stored.key, NOW.saturating_sub(given + 1_000).div_ceil(10_000))
                })
                .collect();
            all.sort();
            all
        };
        let (first, second) = (("2001:db8::".to_owned(), 6), ("10.1.0.0/16".to_owned(), 5));
        assert_eq!(lacking(&[]), [second.clone(), first.clone()], "one KEY is shortened");
        assert_eq!(lacking(&all), []);
        assert_eq!(lacking(&[entry(1, ENDED, one, 30), entry(2, ENDED, two, 70)]), [second]);
        assert_eq!(lacking(&[all[1].clone(), entry(1, "exempt", one, 90)]), [first]);
        // The machine was started anew: any end is later.
        for mut order in machine.table.board().orders() {
            machine.table.board().end_order(&order).unwrap();
            order.given = Time::ZERO;
            machine.table.board().give_order(&order).unwrap();
        }
        assert_eq!(lacking(&[entry(1, ENDED, one, 3_600), entry(2, ENDED, two, 3_600)]), []);
        assert_eq!(lacking(&[]).len(), 2);
    }

    proptest! {
        /// Each table comes to what was given last. Its machine may hear of orders in another
        /// sequence, and under another KEY of a client. The naive model is a map.
        #[test]
        fn tables_agree_on_what_was_given_last(
            given in collection::vec((0_usize..5, 0_usize..3, 1_u64..1_000), 1..12),
            heard in collection::vec(collection::vec(any::<Index>(), 0..8), 3),
        ) {
            // Two of them are one client.
            let clients = [
                ("api", "2001:db8::1"), ("api", "2001:db8::2"), ("api", "10.1.2.3"),
                ("api", "10.1.0.0/16"), ("user", "alice"),
            ];
            let mut all = Vec::new();
            let mut model = BTreeMap::new();
            for (client, order, ago) in given {
                let id = u8::try_from(client).unwrap();
                // No two orders are given at the same time.
                let ago = 8 * ago + client as u64;
                if all.iter().any(|known: &Entry| known.given == NOW - 1_000 * ago) {
                    continue;
                }
                all.push(entry(id, ["block", "exempt", ENDED][order], clients[client], ago));
                let order = [Some(OrderKind::Block), Some(OrderKind::Exempt), None][order];
                let known = model.entry(client.max(1)).or_insert((ago, order));
                if ago <= known.0 {
                    *known = (ago, order);
                }
            }
            for heard in heard {
                let (machine, mut followed) = (machine(), Followed::default());
                // What a machine has at a moment: of each id the latest that it has heard of.
                let mut list = BTreeMap::<_, Entry>::new();
                let some = heard.iter().map(|index| index.get(&all).clone());
                for entry in some.chain(all.iter().cloned()) {
                    let known = list.entry(entry.id).or_insert_with(|| entry.clone());
                    if known.given < entry.given {
                        *known = entry;
                    }
                    let now: Vec<_> = list.values().cloned().collect();
                    follow(&machine, &mut followed, &now);
                }
                let names = ["", "2001:db8::/64", "10.1.2.3", "10.1.0.0/16"];
                let mut found = orders(&machine);
                let user = found.iter().position(|(key, _)| key.starts_with('a'));
                let user = user.map(|at| found.remove(at).1);
                prop_assert_eq!(user, model.get(&4).and_then(|(_, kind)| *kind));
                let right = model.iter().filter(|(client, _)| **client < 4);
                let mut right: Vec<_> = right
                    .filter_map(|(client, (_, kind))| Some((names[*client].to_owned(), (*kind)?)))
                    .collect();
                right.sort_by(|one, other| one.0.cmp(&other.0));
                prop_assert_eq!(found, right);
            }
        }
    }
}
