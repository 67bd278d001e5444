//! [`Finder`]: finds out which servers there are, whether each can be used, and which has the
//! records of which tag.

use core::time::Duration;
use std::io;
use std::sync::{Arc, LazyLock};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, Value};
use tokio::time::{Instant, sleep};

use crate::client::advice::advice;
use crate::client::bucket::{TAGS, tag_text};
use crate::client::connection::{
    ANSWER, Connection, Connector, LONG_ANSWER, fault_of, parts, text,
};
use crate::client::fault::{Fault, in_words};
use crate::client::script::{self, By};
use crate::client::sentinels::{Answers, Found, Sentinels, found};
use crate::config::{Address, Config, Place};

/// Looks for servers, again and again. It moves into each look and comes back with the servers
/// that it found.
pub(crate) struct Finder {
    connector: Arc<Connector>,
    /// The node of a cluster to ask first.
    first: usize,
    sentinels: Option<Sentinels>,
    map: Option<Map>,
}

/// Which server has which tags.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub(crate) servers: Vec<Found>,
    /// For each tag the place of its server in the list; of none, if no server has it.
    pub(crate) owners: Box<[u16]>,
}

/// The findings of a look.
pub(crate) struct Seen {
    pub(crate) map: Map,
    /// For each server of the map a connection and the number of its replicas.
    pub(crate) servers: Vec<Result<(Connection, u32), Fault>>,
    /// Why the sentinels or the cluster could not tell where the servers are. The map is then
    /// what was known before.
    pub(crate) fault: Option<Fault>,
    /// The answers of the sentinels, if there are any.
    pub(crate) sentinels: Answers,
}

impl Map {
    /// One of the tags of the server at this place.
    pub(crate) fn tag_of(&self, place: usize) -> u16 {
        let mut owners = (0..).zip(&self.owners);
        owners.find(|&(_, &owner)| usize::from(owner) == place).map_or(0, |(tag, _)| tag)
    }
}

impl Finder {
    pub(crate) fn new(connector: Arc<Connector>) -> Self {
        let sentinels = Sentinels::new(&connector);
        Self { connector, first: 0, sentinels, map: None }
    }

    /// Looks once. `known` are the connections that there are.
    pub(crate) async fn look(&mut self, known: &[(Address, Connection)]) -> Result<Seen, Fault> {
        let sentinels = match &mut self.sentinels {
            Some(sentinels) => sentinels.ask().await,
            None => Vec::new(),
        };
        let fault = match self.find(known, &sentinels).await {
            Ok(map) => {
                self.map = Some(map);
                None
            }
            Err(fault) => {
                self.first = self.first.wrapping_add(1);
                for found in self.map.iter_mut().flat_map(|map| &mut map.servers) {
                    found.gives_up_none();
                }
                Some(fault)
            }
        };
        let Some(map) = self.map.clone() else {
            return Err(fault.unwrap_or(Fault::Late));
        };
        let servers = join_all(map.servers.iter().enumerate().map(|(place, found)| {
            let known = known.iter().find(|(address, _)| *address == found.address);
            self.check(found, known.map(|(_, connection)| connection.clone()), map.tag_of(place))
        }));
        let servers = servers.await;
        Ok(Seen { map, servers, fault, sentinels })
    }

    async fn find(
        &mut self,
        known: &[(Address, Connection)],
        sentinels: &Answers,
    ) -> Result<Map, Fault> {
        let connector = self.connector.clone();
        let all_tags = |found| Map { servers: vec![found], owners: vec![0; TAGS.into()].into() };
        match &connector.config.url.place {
            Place::Single(address) => {
                let (replicas, given_up) = (Vec::new(), Vec::new());
                Ok(all_tags(Found { address: address.clone(), replicas, given_up }))
            }
            Place::Sentinel { .. } => found(sentinels).map(all_tags),
            Place::Cluster { nodes } => self.ask_cluster(nodes, known).await,
        }
    }

    async fn ask_cluster(
        &mut self,
        nodes: &[Address],
        known: &[(Address, Connection)],
    ) -> Result<Map, Fault> {
        // Each look that fails begins at another place, so that a node that is cut off and knows
        // only what was is not asked for ever.
        let places = known.len() + nodes.len();
        let mut fault = Fault::Late;
        for place in (0..places).map(|place| (place + self.first) % places) {
            let (address, connected) = match known.get(place) {
                Some((address, connection)) => (address, Ok(connection.clone())),
                None => {
                    let Some(address) = nodes.get(place - known.len()) else { continue };
                    (address, self.connector.connect(address).await)
                }
            };
            let within = self.connector.config.connect_timeout;
            let slots = match connected {
                Ok(mut connection) => {
                    connection.send_one(&["CLUSTER", "SLOTS"], LONG_ANSWER, within).await
                }
                Err(fault) => Err(fault),
            };
            match slots.map(|slots| map_of(&slots, address)) {
                Ok(Some(map)) => {
                    self.first = place;
                    return Ok(map);
                }
                Ok(None) => fault = Fault::ClusterDown("no slot has a server".to_owned()),
                Err(error) => fault = named(address)(error),
            }
        }
        Err(fault)
    }

    /// Whether a server can be used, over the connection that there is or over another one.
    async fn check(
        &self,
        found: &Found,
        connection: Option<Connection>,
        tag: u16,
    ) -> Result<(Connection, u32), Fault> {
        let timeout = self.connector.config.timeout;
        if let Some(mut connection) = connection
            && let Ok(replicas) = self.role(&mut connection, found, timeout).await
            && self.probe(&mut connection, replicas, tag, By::Hash).await.is_ok()
        {
            return Ok((connection, replicas));
        }
        // An attempt that hangs, because what it has sent was lost, does not hold up the next one:
        // so all hosts find a server soon when it is back.
        let every = self.connector.config.look_every / 8;
        let mut attempts = FuturesUnordered::new();
        loop {
            attempts.push(self.attempt(found, tag));
            tokio::select! {
                Some(seen) = attempts.next() => return seen,
                () = sleep(every) => {}
            }
        }
    }

    async fn attempt(&self, found: &Found, tag: u16) -> Result<(Connection, u32), Fault> {
        let mut connection = self.connector.connect(&found.address).await?;
        let within = self.connector.config.connect_timeout;
        let replicas = self.role(&mut connection, found, within).await?;
        // From the text it learns the script.
        self.probe(&mut connection, replicas, tag, By::Text).await?;
        let sent = Instant::now();
        self.probe(&mut connection, replicas, tag, By::Hash).await?;
        let (takes, most) = (sent.elapsed(), self.connector.config.slow);
        if takes > most {
            return Err(Fault::Slow { takes, most });
        }
        Ok((connection, replicas))
    }

    /// Whether a server does what an ask needs: it knows the script, runs it and writes a record.
    async fn probe(
        &self,
        connection: &mut Connection,
        replicas: u32,
        tag: u16,
        by: By,
    ) -> Result<(), Fault> {
        let config = &self.connector.config;
        let mut commands = Pipeline::new();
        commands.add_command(script::probe(tag, by).ok_or(Fault::Late)?);
        add_wait(&mut commands, replicas, before_late(config.timeout));
        let answers = connection.send_until(&commands, Instant::now() + config.timeout).await?;
        match answers.first() {
            // The tag is on its way to another server.
            Some(Value::ServerError(error))
                if ["ASK", "MOVED"].contains(&error.code()) && config.url.is_cluster() =>
            {
                Ok(())
            }
            answer => {
                probed(answer)?;
                confirmed(answers.get(1), replicas)
            }
        }
    }

    /// How many replicas must confirm. An error if the server is not a primary.
    async fn role(
        &self,
        connection: &mut Connection,
        found: &Found,
        within: Duration,
    ) -> Result<u32, Fault> {
        let config = &self.connector.config;
        let Value::Array(role) = connection.send_one(&["ROLE"], ANSWER, within).await? else {
            return Err(Fault::Other("no role".to_owned()));
        };
        match role.first().and_then(text) {
            Some("master") => {}
            Some("sentinel") => {
                let names = role.get(1).map_or(&[][..], parts);
                return Err(Fault::Sentinel(names.first().and_then(text).map(in_words)));
            }
            _ => return Err(Fault::Replica),
        }
        let connected: Vec<_> =
            role.get(2).map_or(&[][..], parts).iter().map(address_in).collect();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let are = number(connected.len());
        if are < config.least_replicas {
            return Err(Fault::FewReplicas { are, least: config.least_replicas });
        }
        if !config.durable {
            return Ok(0);
        }
        let connected: Vec<_> = connected.into_iter().flatten().collect();
        let needed = number(found.must_confirm(&connected)).max(are);
        // Then they cannot confirm, and this says which of them.
        if needed > are
            && let Some(missing) = found.replicas.iter().find(|it| !connected.contains(it))
        {
            return Err(Fault::NotFollowing { replica: missing.clone(), are, needed });
        }
        Ok(needed)
    }
}

/// Looks once for the server that has the keys of a tag, such as `name`. Returns its address, a
/// connection and the number of its replicas. The error is a sentence without a full stop.
pub(crate) async fn server_of(
    connector: &Arc<Connector>,
    tag: u16,
    name: &str,
) -> io::Result<(Address, Connection, u32)> {
    let config = &connector.config;
    let seen = Finder::new(connector.clone()).look(&[]).await.map_err(|fault| {
        let advice = advice(&fault, config);
        io::Error::other(format!(
            "it is not known where the servers of the store are: {fault}{advice}"
        ))
    })?;
    let place = seen.map.owners.get(usize::from(tag)).map_or(0, |&place| place.into());
    let server = seen.map.servers.get(place).zip(seen.servers.into_iter().nth(place));
    let none = || io::Error::other(format!("no server of the cluster has the key {name}"));
    let (Found { address, .. }, state) = server.ok_or_else(none)?;
    let (connection, replicas) = state.map_err(|fault| unusable(config, address, &fault))?;
    Ok((address.clone(), connection, replicas))
}

/// Says that a server cannot be used.
pub(crate) fn unusable(config: &Config, address: &Address, fault: &Fault) -> io::Error {
    let advice = advice(fault, config);
    io::Error::other(format!("the store at {address} cannot be used: {fault}{advice}"))
}

/// The address with which an element of a list begins.
pub(crate) fn address_in(element: &Value) -> Option<Address> {
    let [host, port, ..] = parts(element) else { return None };
    let port = match port {
        Value::Int(port) => u16::try_from(*port).ok()?,
        port => text(port)?.parse().ok()?,
    };
    Address::said(text(host)?, port)
}

/// Whether this is what the script answers to the probe.
pub(crate) fn probed(answer: Option<&Value>) -> Result<(), Fault> {
    match answer {
        Some(Value::BulkString(bytes))
            if script::reply(bytes).is_ok_and(|reply| {
                reply.is_none_or(|reply| (reply.number.0, reply.granted) == (0, 0))
            }) =>
        {
            Ok(())
        }
        answer => Err(answer.and_then(fault_of).unwrap_or_else(Fault::not_a_reply)),
    }
}

/// Adds the command that waits until `replicas` have what was sent before.
pub(crate) fn add_wait(commands: &mut Pipeline, replicas: u32, within: Duration) {
    if replicas > 0 {
        let milliseconds = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
        commands.cmd("WAIT").arg(replicas).arg(milliseconds);
    }
}

/// For how long to wait for replicas, so that the answer says how many have confirmed before it is
/// late.
pub(crate) fn before_late(within: Duration) -> Duration {
    within - within / 10
}

/// Whether the answer to [`add_wait`]'s command is what was waited for.
pub(crate) fn confirmed(answer: Option<&Value>, replicas: u32) -> Result<(), Fault> {
    let are = match answer {
        Some(Value::Int(are)) => u32::try_from(*are).unwrap_or(0),
        _ => 0,
    };
    if are < replicas { Err(Fault::Replicas { are, needed: replicas }) } else { Ok(()) }
}

/// Says in a fault which other server it is about.
fn named(address: &Address) -> impl Fn(Fault) -> Fault {
    move |fault| Fault::Of(address.clone(), Box::new(fault))
}

/// Reads the answer to `CLUSTER SLOTS`: a list of `[first, last, [host, port, ...], replicas...]`.
/// A host that is not known is that of the server that was asked.
fn map_of(slots: &Value, asked: &Address) -> Option<Map> {
    let mut map = Map { servers: Vec::new(), owners: vec![u16::MAX; TAGS.into()].into() };
    for range in parts(slots) {
        let [Value::Int(first), Value::Int(last), Value::Array(primary), replicas @ ..] =
            parts(range)
        else {
            continue;
        };
        let [host, Value::Int(port), ..] = primary.as_slice() else { continue };
        let host = match (text(host), asked) {
            (Some(host), _) if !host.is_empty() && host != "?" => host,
            (_, Address::Tcp(host, _)) => host,
            (_, Address::Unix(_)) => continue,
        };
        let Some(address) = u16::try_from(*port).ok().and_then(|port| Address::said(host, port))
        else {
            continue;
        };
        let slots = *first..=*last;
        let mut tags =
            (0..TAGS).filter(|&tag| slots.contains(&SLOTS[usize::from(tag)])).peekable();
        // A server of which no tag is needed is none of ours.
        if tags.peek().is_none() {
            continue;
        }
        let place = map.servers.iter().position(|found| found.address == address);
        let place = place.unwrap_or_else(|| {
            let replicas = replicas.iter().map(|it| address_in(it).unwrap_or(asked.clone()));
            let (replicas, given_up) = (replicas.collect(), Vec::new());
            map.servers.push(Found { address, replicas, given_up });
            map.servers.len() - 1
        });
        let Ok(owner) = u16::try_from(place) else { continue };
        for tag in tags {
            map.owners[usize::from(tag)] = owner;
        }
    }
    (!map.servers.is_empty()).then_some(map)
}

/// The slot of each tag. A map may have thousands of ranges, and all tags are compared with each.
static SLOTS: LazyLock<Box<[i64]>> =
    LazyLock::new(|| (0..TAGS).map(|tag| slot_of(tag).into()).collect());

/// The slot of a cluster in which a tag lies: CRC-16/XMODEM of the text between the braces, modulo
/// 16384 (Redis cluster specification, "Key distribution model").
pub(crate) fn slot_of(tag: u16) -> u16 {
    let text = tag_text(tag);
    let inner = text.trim_matches(['{', '}']);
    let crc = inner.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_the_slot_that_a_cluster_gives_it() {
        // As CLUSTER KEYSLOT of Valkey 9.1 says.
        assert_eq!([0, 7, 1023].map(slot_of), [11_848, 7_855, 518]);
    }

    fn range(first: i64, last: i64, hosts: &[(&str, i64)]) -> Value {
        let mut range = vec![Value::Int(first), Value::Int(last)];
        range.extend(hosts.iter().map(|(host, port)| {
            Value::Array(vec![Value::BulkString(host.as_bytes().to_vec()), Value::Int(*port)])
        }));
        Value::Array(range)
    }

    #[test]
    fn slots_become_owners_of_tags() {
        let asked = Address::Tcp("asked".into(), 1);
        let slots = Value::Array(vec![
            // Slot 1 has no tag.
            range(1, 1, &[("b", 1)]),
            range(0, 0, &[("a", 1), ("r", 2)]),
            range(2, 8_000, &[("a", 1), ("r", 2)]),
            range(8_001, 12_000, &[("", 7)]),
            range(12_001, 12_100, &[("a", 1), ("r", 2)]),
        ]);
        let map = map_of(&slots, &asked).unwrap();
        let at = |host: &str, port| Address::Tcp(host.to_owned(), port);
        let servers = [("a", 1, vec![at("r", 2)]), ("asked", 7, vec![])];
        let servers = servers.map(|(host, port, replicas)| Found {
            address: at(host, port),
            replicas,
            given_up: Vec::new(),
        });
        assert_eq!(map.servers, servers);
        for tag in 0..TAGS {
            let owner = match slot_of(tag) {
                0..=8_000 | 12_001..=12_100 => 0,
                8_001..=12_000 => 1,
                _ => u16::MAX,
            };
            assert_eq!(map.owners[usize::from(tag)], owner);
        }
        assert!(map_of(&Value::Array(Vec::new()), &asked).is_none());
        assert!(map_of(&Value::Nil, &asked).is_none());
    }
}
