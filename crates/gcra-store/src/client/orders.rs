//! [`OrderExchange`]: the orders that machines share through a store.
//!
//! The store keeps one list, and each machine a copy of it. An exchange takes what is new in the
//! store, and brings back what a store has lost that lost its memory.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, LazyLock};

use redis::{Pipeline, Value};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;

use crate::client::bucket::{Names, TAGS, tag_text};
use crate::client::connection::{Connection, Connector, LONG_ANSWER, fault_of, parts, text};
use crate::client::fault::Fault;
use crate::client::finder::{add_wait, confirmed, server_of, unusable};
use crate::client::script::{NotAReply, double, hash_of, take, whole};
use crate::config::{Address, Config};

/// The source of the script that merges orders, in Lua 5.1.
pub const ORDERS_SOURCE: &str = include_str!("orders.lua");

static ORDERS_HASH: LazyLock<String> = LazyLock::new(|| hash_of(ORDERS_SOURCE));

/// The most orders that a store keeps, without the ends of orders.
pub const MOST_SHARED_ORDERS: usize = 512;

/// The most ends of orders that a store keeps. Beyond it, those are left out that go first.
pub const MOST_SHARED_ENDS: usize = 2_048;

/// The most in a list.
const MOST_ENTRIES: usize = MOST_SHARED_ORDERS + MOST_SHARED_ENDS;

/// The most bytes of a list: the version, and of each order its id, whether it is an end, two
/// times, a length, and its sealed words.
const LONGEST_LIST: usize = 8 + MOST_ENTRIES * (16 + 1 + 16 + 2 + LONGEST_WORDS + NONCE_LEN + 16);

const _: () = assert!(LONGEST_LIST < LONG_ANSWER);

/// The most bytes of the words of an order.
pub const LONGEST_WORDS: usize = 1 << 10;

/// What tells an order from all others. A later one with the same id takes its place.
pub type OrderId = [u8; 16];

/// An order in a store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SharedOrder {
    /// Which order it is.
    pub id: OrderId,
    /// Whether it ends an order.
    pub is_end: bool,
    /// When it was given, in ms since 1970 by the clock of the store.
    pub given: u64,
    /// When it ends, by the same clock. An end of an order goes then.
    pub ends: u64,
    /// The words, sealed.
    sealed: Vec<u8>,
}

/// An order for [`OrderExchange::give`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NewOrder {
    /// Which order it is.
    pub id: OrderId,
    /// Whether it ends an order.
    pub is_end: bool,
    /// When it was given, in ms since 1970 by the clock of the store, if that was before: then one
    /// that was given later stays, and it is left out if there is no space. `None`: now.
    pub given: Option<u64>,
    /// How long the store keeps it, from when it was given.
    pub lasts: Duration,
    /// What is ordered, at most [`LONGEST_WORDS`] bytes.
    pub words: Vec<u8>,
}

/// Exchanges orders with a store, over a connection of its own.
pub struct OrderExchange {
    connector: Arc<Connector>,
    names: Names,
    seal: Seal,
    name: String,
    tag: u16,
    version: u64,
    /// The store's time at the last exchange, in ms since 1970.
    now: u64,
    list: Vec<SharedOrder>,
    /// The server that has the list, and how many replicas confirm.
    link: Option<(Address, Connection, u32)>,
}

impl std::fmt::Debug for OrderExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OrderExchange").field("name", &self.name).finish_non_exhaustive()
    }
}

impl OrderExchange {
    /// Nothing is connected yet. Machines whose names have another salt have another list.
    ///
    /// # Errors
    ///
    /// The certificates of the authorities cannot be read.
    pub fn new(config: Config, names: &Names) -> io::Result<Self> {
        let hash = names.digest(b"orders");
        let hash = hash.first_chunk().map_or(0, |half| u128::from_be_bytes(*half));
        let tag = u16::try_from(hash % u128::from(TAGS)).unwrap_or(0);
        Ok(Self {
            connector: Arc::new(Connector::new(config)?),
            names: names.clone(),
            seal: Seal::new(&names.digest(b"words of orders"))?,
            // The 1 is the layout.
            name: format!("{}:orders:1:{hash:032x}", tag_text(tag)),
            tag,
            version: 0,
            now: 0,
            list: Vec::new(),
            link: None,
        })
    }

    /// The key of the list in the store.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The id of orders about these clients of a policy.
    pub fn id(&self, policy: &str, clients: &str) -> OrderId {
        self.id_of(&format!("order\n{policy}\n{clients}"))
    }

    /// The id of resets of a policy.
    pub fn reset_id(&self, policy: &str) -> OrderId {
        self.id_of(&format!("reset\n{policy}"))
    }

    fn id_of(&self, what: &str) -> OrderId {
        self.names.digest(what.as_bytes()).first_chunk().copied().unwrap_or_default()
    }

    /// The orders that the last exchange has found, those that have ended lately included.
    pub fn list(&self) -> &[SharedOrder] {
        &self.list
    }

    /// The words of an order; `None` if they were not sealed with the salt of this machine.
    pub fn words(&self, order: &SharedOrder) -> Option<Vec<u8>> {
        self.seal.open(order)
    }

    /// The store's time at the last exchange, in ms since 1970.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// Takes over what is new in the store, and gives back what the store has lost. Returns
    /// whether the list has changed.
    ///
    /// # Errors
    ///
    /// The store cannot be used. The list is as before. The error says why, in a sentence without
    /// a full stop.
    pub async fn exchange(&mut self) -> io::Result<bool> {
        let Some(theirs) = self.call(&[]).await? else { return Ok(false) };
        let lost = newer(&self.list, &theirs, self.now);
        self.list = match lost.is_empty() {
            true => theirs,
            false => self.call(&lost).await?.unwrap_or(theirs),
        };
        Ok(true)
    }

    /// Gives orders. One that is given now is later than all with the same id that the store has.
    ///
    /// # Errors
    ///
    /// The store cannot be used, or, by the kind of the error: `InvalidInput`, the words of an
    /// order are too long; `StorageFull`, the store has no space; `AlreadyExists`, another machine
    /// has given one with the same id meanwhile, which [`list`](Self::list) has. The error says
    /// why, as that of [`exchange`](Self::exchange).
    pub async fn give(&mut self, orders: &[NewOrder]) -> io::Result<()> {
        self.exchange().await?;
        let given: Vec<_> =
            orders.iter().map(|order| self.sealed(order)).collect::<Result<_, _>>()?;
        if let Some(list) = self.call(&given).await? {
            self.list = list;
        }
        // One that was given before may be left out.
        let new = orders.iter().zip(given).filter(|(order, _)| order.given.is_none());
        taken(&new.map(|(_, order)| order).collect::<Vec<_>>(), &self.list)
    }

    fn sealed(&self, order: &NewOrder) -> io::Result<SharedOrder> {
        let NewOrder { id, is_end, given, lasts, words } = order;
        if words.len() > LONGEST_WORDS {
            let said = format!(
                "the KEY is too long for the store: an order with its note has {} bytes there, \
                 and {LONGEST_WORDS} are the most",
                words.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
        }
        // The clock of the server that took the other one may have been ahead.
        let other = self.list.iter().find(|other| other.id == *id);
        let next = other.map_or(self.now, |other| self.now.max(other.given + 1));
        let lasts = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        // It lasts from now on, also if that clock was ahead.
        let ends = given.unwrap_or(self.now).saturating_add(lasts).min(LATEST);
        let given = given.unwrap_or(next).min(LATEST);
        Ok(SharedOrder {
            id: *id,
            is_end: *is_end,
            given,
            ends,
            sealed: self.seal.close(id, words)?,
        })
    }

    /// Calls the script. `None`: the store has the version that is known here.
    async fn call(&mut self, orders: &[SharedOrder]) -> io::Result<Option<Vec<SharedOrder>>> {
        let was_connected = self.link.is_some();
        let (mut address, mut answer) = self.try_call(orders).await?;
        // Once more, over another connection: the server may have been restarted or replaced.
        if answer.is_err() && was_connected {
            (address, answer) = self.try_call(orders).await?;
        }
        let answer = answer.map_err(|fault| match fault {
            Fault::Other(said) if is_about_value(&said) => self.no_orders(&address),
            Fault::Other(said) if said.starts_with(TOO_LONG) => self.too_long(&address, &said),
            fault => unusable(&self.connector.config, &address, &fault),
        })?;
        let read = read(&answer).map_err(|NotAReply| self.no_orders(&address));
        let (version, now, list) = read?;
        self.now = now;
        if version == self.version {
            return Ok(None);
        }
        self.version = version;
        Ok(Some(list))
    }

    /// The address of the server, and its answer.
    async fn try_call(
        &mut self,
        orders: &[SharedOrder],
    ) -> io::Result<(Address, Result<Vec<u8>, Fault>)> {
        let (address, mut connection, replicas) = self.link().await?;
        let answer = self.ask(&mut connection, replicas, orders).await;
        if answer.is_ok() {
            self.link = Some((address.clone(), connection, replicas));
        }
        Ok((address, answer))
    }

    async fn ask(
        &self,
        connection: &mut Connection,
        replicas: u32,
        orders: &[SharedOrder],
    ) -> Result<Vec<u8>, Fault> {
        let within = self.connector.config.connect_timeout;
        let written = orders.iter().flat_map(SharedOrder::written).collect::<Vec<_>>();
        let mut by_hash = true;
        loop {
            let mut commands = Pipeline::new();
            // A replica would answer with what it has.
            commands.cmd("ROLE");
            match by_hash {
                true => commands.cmd("EVALSHA").arg(ORDERS_HASH.as_str()),
                false => commands.cmd("EVAL").arg(ORDERS_SOURCE),
            };
            commands.arg(1).arg(&self.name).arg(&double(self.version)[..]);
            commands.arg(&written);
            commands.arg(MOST_SHARED_ORDERS).arg(MOST_SHARED_ENDS).arg(LONGEST_LIST);
            let wait_for = if orders.is_empty() { 0 } else { replicas };
            add_wait(&mut commands, wait_for, within / 2);
            let answers = connection.answers_for_long(&commands, within).await?;
            let mut answers = answers.into_iter();
            let role = answers.next();
            if let Some(fault) = role.as_ref().and_then(fault_of) {
                return Err(fault);
            }
            if role.as_ref().and_then(|role| text(parts(role).first()?)) != Some("master") {
                return Err(Fault::Replica);
            }
            match answers.next() {
                Some(Value::ServerError(error)) if error.code() == "NOSCRIPT" && by_hash => {
                    by_hash = false;
                }
                Some(Value::BulkString(answer)) => {
                    confirmed(answers.next().as_ref(), wait_for)?;
                    return Ok(answer);
                }
                answer => {
                    let fault = answer.as_ref().and_then(fault_of);
                    return Err(fault.unwrap_or_else(Fault::not_a_reply));
                }
            }
        }
    }

    /// The connection that there is, or another one. It is taken, to be put back if it was of use.
    async fn link(&mut self) -> io::Result<(Address, Connection, u32)> {
        if let Some(link) = self.link.take() {
            return Ok(link);
        }
        server_of(&self.connector, self.tag, &self.name).await
    }

    fn too_long(&self, address: &Address, said: &str) -> io::Error {
        let (name, bytes) = (&self.name, said.trim_start_matches(TOO_LONG).trim());
        io::Error::other(format!(
            "the store at {address} has {bytes} bytes under {name}, and a list of orders has at \
             most {LONGEST_LIST}; remove this key"
        ))
    }

    fn no_orders(&self, address: &Address) -> io::Error {
        let name = &self.name;
        io::Error::other(format!(
            "what the store at {address} has under {name} is not a list of orders; remove this key"
        ))
    }
}

/// Begins the error of the script about a value that it does not read.
const TOO_LONG: &str = "TOOLONG";

/// Whether an error of the script is about what is under the key.
fn is_about_value(said: &str) -> bool {
    said.starts_with("WRONGTYPE") || said.contains("data string too short")
}

/// Greater numbers cannot be written.
const LATEST: u64 = (1 << 53) - 1;

impl SharedOrder {
    fn written(&self) -> Vec<u8> {
        let length = u16::try_from(self.sealed.len()).unwrap_or(u16::MAX);
        let numbers = [double(self.given), double(self.ends)].concat();
        [&self.id[..], &[self.is_end.into()], &numbers, &length.to_le_bytes(), &self.sealed]
            .concat()
    }
}

/// Those of our orders that have not ended, and that the others do not have or have only in an
/// earlier form.
fn newer(ours: &[SharedOrder], theirs: &[SharedOrder], now: u64) -> Vec<SharedOrder> {
    let theirs: BTreeMap<_, _> = theirs.iter().map(|order| (order.id, order.given)).collect();
    let is_newer = |order: &&SharedOrder| {
        order.ends > now && theirs.get(&order.id).is_none_or(|given| *given < order.given)
    };
    ours.iter().filter(is_newer).cloned().collect()
}

/// Fails if the store has not taken all that it was given.
fn taken(given: &[SharedOrder], list: &[SharedOrder]) -> io::Result<()> {
    let mut missing = given.iter().filter(|order| !list.contains(order)).peekable();
    if missing.peek().is_none() {
        return Ok(());
    }
    let is_later = |other: &SharedOrder, order: &SharedOrder| {
        other.id == order.id && other.given >= order.given
    };
    if missing.all(|order| list.iter().any(|other| is_later(other, order))) {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "another machine has just given another order about the same clients, which takes \
             its place within seconds",
        ));
    }
    let full = format!(
        "the store has {MOST_SHARED_ORDERS} orders or {MOST_SHARED_ENDS} ends, which are the \
         most; end one that is not needed"
    );
    Err(io::Error::new(io::ErrorKind::StorageFull, full))
}

/// Reads the answer of the script: the version, the time, and the orders. One with numbers that
/// the script does not write is left out.
fn read(answer: &[u8]) -> Result<(u64, u64, Vec<SharedOrder>), NotAReply> {
    let mut rest = answer;
    let (version, now) = (whole(&mut rest)?, whole(&mut rest)?);
    let mut list = Vec::new();
    while !rest.is_empty() && list.len() < MOST_ENTRIES {
        let (id, [is_end]) = (take(&mut rest)?, take(&mut rest)?);
        let (given, ends) = (whole(&mut rest)?, whole(&mut rest)?);
        let length = u16::from_le_bytes(take(&mut rest)?).into();
        let (sealed, behind) = rest.split_at_checked(length).ok_or(NotAReply)?;
        rest = behind;
        list.push(SharedOrder { id, is_end: is_end == 1, given, ends, sealed: sealed.to_owned() });
    }
    Ok((version, now, list))
}

fn not_sealed(_: Unspecified) -> io::Error {
    io::Error::other("an order could not be sealed for the store")
}

/// Seals words, so that only machines with the same salt read and write them.
struct Seal(LessSafeKey);

impl Seal {
    fn new(key: &[u8]) -> io::Result<Self> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).map_err(not_sealed)?;
        Ok(Self(LessSafeKey::new(key)))
    }

    fn close(&self, id: &OrderId, words: &[u8]) -> io::Result<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let mut sealed = words.to_owned();
        let nonces = Nonce::assume_unique_for_key(nonce);
        self.0.seal_in_place_append_tag(nonces, Aad::from(id), &mut sealed).map_err(not_sealed)?;
        Ok([&nonce[..], &sealed].concat())
    }

    fn open(&self, order: &SharedOrder) -> Option<Vec<u8>> {
        let (nonce, sealed) = order.sealed.split_first_chunk()?;
        let (nonce, mut words) = (Nonce::assume_unique_for_key(*nonce), sealed.to_owned());
        let length = self.0.open_in_place(nonce, Aad::from(&order.id), &mut words).ok()?.len();
        words.truncate(length);
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Url;

    fn machine(salt: &[u8]) -> OrderExchange {
        let config = Config::new(Url::parse("redis://a").unwrap());
        OrderExchange::new(config, &Names::new(salt)).unwrap()
    }

    fn new(words: &str) -> NewOrder {
        NewOrder {
            id: [7; 16],
            is_end: false,
            given: None,
            lasts: Duration::from_secs(10),
            words: words.into(),
        }
    }

    #[test]
    fn an_order_is_later_than_one_from_a_clock_that_was_ahead() {
        let mut machine = machine(b"");
        machine.now = 1_000;
        let order = machine.sealed(&new("one")).unwrap();
        assert_eq!((order.given, order.ends), (1_000, 11_000));
        machine.list = vec![SharedOrder { given: 5_000, ..order }];
        let two = machine.sealed(&new("two")).unwrap();
        assert_eq!((two.given, two.ends), (5_001, 11_000));
        let other = NewOrder { id: [8; 16], ..new("three") };
        assert_eq!(machine.sealed(&other).unwrap().given, 1_000, "it is about other clients");
        machine.now = 9_000;
        assert_eq!(machine.sealed(&new("four")).unwrap().given, 9_000);
        let before = machine.sealed(&NewOrder { given: Some(700), ..new("five") }).unwrap();
        assert_eq!((before.given, before.ends), (700, 10_700));
    }

    #[test]
    fn a_store_gets_back_what_it_lacks_and_what_has_not_ended() {
        let order = |id, given, ends| SharedOrder {
            id: [id; 16],
            is_end: false,
            given,
            ends,
            sealed: vec![id],
        };
        let ours = [order(1, 5, 100), order(2, 5, 100), order(3, 5, 100), order(4, 5, 50)];
        let theirs = [order(1, 5, 100), order(2, 4, 100), order(3, 6, 100)];
        assert_eq!(newer(&ours, &theirs, 50), [order(2, 5, 100)]);
        assert_eq!(newer(&ours, &[], 49), ours);
    }

    #[test]
    fn a_full_store_is_not_one_that_has_another_order() {
        let order = |id, given| SharedOrder {
            id: [id; 16],
            is_end: false,
            given,
            ends: 100,
            sealed: vec![id],
        };
        taken(&[order(1, 5)], &[order(1, 5), order(2, 5)]).unwrap();
        let other = taken(&[order(1, 5), order(2, 5)], &[order(1, 6), order(2, 5)]).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::AlreadyExists);
        let full = taken(&[order(1, 5), order(3, 5)], &[order(1, 6), order(2, 5)]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn words_are_sealed_with_the_salt_for_one_order() {
        let machine = machine(b"salt");
        let order = machine.sealed(&new("block 192.0.2.7")).unwrap();
        assert_eq!(machine.words(&order).unwrap(), b"block 192.0.2.7");
        assert_eq!(self::machine(b"other").words(&order), None);
        assert_eq!(machine.words(&SharedOrder { id: [8; 16], ..order.clone() }), None);
        for length in 0..order.sealed.len() {
            let sealed = order.sealed[..length].to_vec();
            assert_eq!(machine.words(&SharedOrder { sealed, ..order.clone() }), None, "{length}");
        }
    }

    #[test]
    fn what_the_script_does_not_answer_is_no_list() {
        let machine = machine(b"");
        let orders = [machine.sealed(&new("one")).unwrap(), machine.sealed(&new("two")).unwrap()];
        let head = [double(7), double(9)].concat();
        let answer = [&head[..], &orders[0].written(), &orders[1].written()].concat();
        assert_eq!(read(&answer), Ok((7, 9, orders.to_vec())));
        let whole = [head.len(), head.len() + orders[0].written().len(), answer.len()];
        for length in 0..=answer.len() {
            assert_eq!(read(&answer[..length]).is_ok(), whole.contains(&length), "{length}");
        }
        assert_eq!(read(&[0xff; 16]), Err(NotAReply), "not numbers");
    }
}
