//! The rule by which sentinels are believed: which server is the primary, and which replicas must
//! confirm what it writes.
//!
//! One sentinel can be cut off from the others, or have an old or a wrong view. So an address
//! counts only if more than half of the sentinels name it. Then no other address counts anywhere,
//! and no replica is promoted without the vote of a sentinel that names the primary. A replica
//! must confirm all changes until it cannot be promoted any more. The leader of the sentinels
//! chooses by its own view, so a replica counts while a single sentinel would promote it.

// ADR 53: More than half of the sentinels must agree.

use std::sync::Arc;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::connection::{ANSWER, Connection, Connector, LONG_ANSWER, parts, text};
use crate::client::fault::Fault;
use crate::config::{Address, Place};

#[cfg(test)]
mod simulation;

/// The answer of one sentinel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Said {
    pub(crate) primary: Address,
    pub(crate) replicas: Vec<(Address, Fitness)>,
    /// Whether the primary does not answer this sentinel as it should.
    pub(crate) is_down: bool,
    /// How many sentinels it knows, itself included.
    pub(crate) sentinels: usize,
}

/// Whether a sentinel would promote a replica.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fitness {
    MayBePromoted,
    /// It has given the replica up.
    GivenUp,
}

/// A primary, as others say.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Found {
    pub(crate) address: Address,
    /// The replicas that may be promoted in its place.
    pub(crate) replicas: Vec<Address>,
    /// Those of which that is over.
    pub(crate) given_up: Vec<Address>,
}

impl Found {
    /// How many replicas must confirm, if these are connected. Confirmations are only counted. So
    /// for each replica that is connected and was given up, there must be one more.
    pub(crate) fn must_confirm(&self, connected: &[Address]) -> usize {
        let beside = connected.iter().filter(|it| self.given_up.contains(it)).count();
        connected.len().max(self.replicas.len() + beside)
    }

    /// More than half of the sentinels do not agree any more: any replica may have been promoted.
    pub(crate) fn gives_up_none(&mut self) {
        self.replicas.append(&mut self.given_up);
    }
}

/// The primary that more than half of `all` sentinels name, if these have answered.
pub(crate) fn agreed<'s>(
    said: impl Iterator<Item = &'s Said> + Clone,
    all: usize,
) -> Option<Found> {
    let is_most = |count: usize| count > all / 2;
    let names = |address: &Address| said.clone().filter(|it| it.primary == *address).count();
    let address = said.clone().map(|it| &it.primary).find(|it| is_most(names(it)))?;
    let (mut replicas, mut given_up) = (Vec::new(), Vec::new());
    let named =
        said.clone().flat_map(|it| it.replicas.iter().map(|(it, _)| it).chain([&it.primary]));
    for replica in named {
        if replica == address || replicas.contains(replica) || given_up.contains(replica) {
            continue;
        }
        // One that names this server as the primary may have promoted it already.
        let may_promote = |it: &&Said| match it.primary == *replica {
            true => !it.is_down,
            false => it.replicas.contains(&(replica.clone(), Fitness::MayBePromoted)),
        };
        let may = said.clone().filter(may_promote).count();
        let is_given_up = may == 0 && is_most(said.clone().count());
        if is_given_up { &mut given_up } else { &mut replicas }.push(replica.clone());
    }
    Some(Found { address: address.clone(), replicas, given_up })
}

/// The sentinels of a store. A task of its own asks each sentinel, so a sentinel that does not
/// answer does not hold up the others.
pub(crate) struct Sentinels {
    connector: Arc<Connector>,
    name: String,
    each: Vec<Sentinel>,
    asking: JoinSet<(usize, Asked)>,
}

struct Sentinel {
    address: Address,
    connection: Option<Connection>,
    is_asked: bool,
    /// It answered when it was asked last, so its answer is worth waiting for.
    is_prompt: bool,
}

/// The answer of one sentinel, and the connection for the next time.
type Asked = Result<(Connection, Said), Fault>;

/// The answer of each sentinel, or why it gives none.
pub(crate) type Answers = Vec<(Address, Result<Said, Fault>)>;

impl Sentinels {
    /// `None` if the store has none.
    pub(crate) fn new(connector: &Arc<Connector>) -> Option<Self> {
        let Place::Sentinel { sentinels, name } = &connector.config.url.place else { return None };
        let mut each: Vec<Sentinel> = Vec::new();
        for address in sentinels {
            // One that is named twice has one voice.
            if !each.iter().any(|it| it.address == *address) {
                let address = address.clone();
                each.push(Sentinel {
                    address,
                    connection: None,
                    is_asked: false,
                    is_prompt: true,
                });
            }
        }
        Some(Self {
            connector: connector.clone(),
            name: name.clone(),
            each,
            asking: JoinSet::new(),
        })
    }

    /// Asks all, and waits until more than half agree, and then a little for those that answered
    /// before. An answer that comes later counts the next time.
    pub(crate) async fn ask(&mut self) -> Answers {
        let mut answers: Vec<Result<Said, Fault>> = vec![Err(Fault::Late); self.each.len()];
        for (place, sentinel) in self.each.iter_mut().enumerate().filter(|(_, it)| !it.is_asked) {
            sentinel.is_asked = true;
            let (connector, name) = (self.connector.clone(), self.name.clone());
            let (address, connection) = (sentinel.address.clone(), sentinel.connection.take());
            self.asking
                .spawn(async move { (place, ask(&connector, &address, connection, &name).await) });
        }
        loop {
            let said = answers.iter().filter_map(|it| it.as_ref().ok());
            let is_enough = agreed(said, self.each.len()).is_some();
            let waits = |it: &Sentinel| it.is_asked && (it.is_prompt || !is_enough);
            if !self.each.iter().any(waits) {
                break;
            }
            let (next, within) = (self.asking.join_next(), 2 * self.connector.config.timeout);
            let next = if is_enough { timeout(within, next).await } else { Ok(next.await) };
            let Ok(next) = next else {
                self.each.iter_mut().filter(|it| it.is_asked).for_each(|it| it.is_prompt = false);
                break;
            };
            let Some(Ok((place, answer))) = next else { break };
            let Some(sentinel) = self.each.get_mut(place) else { continue };
            (sentinel.is_asked, sentinel.is_prompt) = (false, answer.is_ok());
            answers[place] = answer.map(|(connection, said)| {
                sentinel.connection = Some(connection);
                said
            });
        }
        self.each.iter().map(|it| it.address.clone()).zip(answers).collect()
    }
}

/// The primary that more than half of the sentinels name.
pub(crate) fn found(answers: &Answers) -> Result<Found, Fault> {
    let said = answers.iter().filter_map(|(_, said)| said.as_ref().ok());
    agreed(said, answers.len()).ok_or_else(|| {
        let said = |(address, said): &(Address, Result<Said, Fault>)| {
            (address.clone(), said.as_ref().map(|said| said.primary.clone()).map_err(Fault::clone))
        };
        match answers.as_slice() {
            [(address, Err(fault))] => Fault::Of(address.clone(), Box::new(fault.clone())),
            _ => Fault::NoMajority(answers.iter().map(said).collect()),
        }
    })
}

async fn ask(
    connector: &Connector,
    address: &Address,
    connection: Option<Connection>,
    name: &str,
) -> Asked {
    let mut connection = match connection {
        Some(connection) => connection,
        None => connector.connect_to_sentinel(address).await?,
    };
    let within = connector.config.connect_timeout;
    let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name];
    let answer = connection.send_one(&words, ANSWER, within).await?;
    let primary = match parts(&answer) {
        [host, port] => text(host).zip(text(port).and_then(|port| port.parse().ok())),
        _ => None,
    };
    let primary = primary.and_then(|(host, port)| Address::said(host, port));
    let primary = primary.ok_or_else(|| Fault::UnknownName(name.to_owned()))?;
    let of_primary =
        connection.send_one(&["SENTINEL", "MASTER", name], LONG_ANSWER, within).await?;
    let replicas =
        connection.send_one(&["SENTINEL", "REPLICAS", name], LONG_ANSWER, within).await?;
    // While the sentinel fails over, it still says here what it knows of the one before.
    let is_same = address_of(&of_primary).is_some_and(|it| it == primary);
    let down = number(&of_primary, "s-down-time").unwrap_or(0);
    let replica = |fields: &Value| Some((address_of(fields)?, fitness(fields, down)));
    let others = number(&of_primary, "num-other-sentinels").unwrap_or(0);
    let said = Said {
        primary,
        replicas: parts(&replicas).iter().filter_map(replica).collect(),
        is_down: is_same && is_down(&of_primary),
        sentinels: usize::try_from(others).unwrap_or(0).saturating_add(1),
    };
    Ok((connection, said))
}

/// The value of a field, where a sentinel says names and values in turn.
fn field<'v>(fields: &'v Value, name: &str) -> Option<&'v str> {
    let mut pairs = parts(fields).chunks_exact(2);
    pairs.find(|pair| text(&pair[0]) == Some(name)).and_then(|pair| text(&pair[1]))
}

fn address_of(fields: &Value) -> Option<Address> {
    Address::said(field(fields, "ip")?, field(fields, "port")?.parse().ok()?)
}

fn number(fields: &Value, name: &str) -> Option<i64> {
    field(fields, name)?.parse().ok()
}

fn is_down(fields: &Value) -> bool {
    let downs = ["s_down", "o_down", "disconnected"];
    field(fields, "flags").is_some_and(|flags| flags.split(',').any(|it| downs.contains(&it)))
}

/// Whether a sentinel would promote this replica, if its primary has been down for so many ms. A
/// sentinel waits for some time before it calls a server down. It does not promote a replica whose
/// link was down for ten times as long (`sentinelSelectSlave` of Valkey).
fn fitness(fields: &Value, primary_down: i64) -> Fitness {
    let most = number(fields, "down-after-milliseconds").map(|after| after.saturating_mul(10));
    let most = most.map_or(i64::MAX, |most| most.saturating_add(primary_down));
    let is_behind = number(fields, "master-link-down-time").is_some_and(|down| down > most);
    match is_behind || is_down(fields) || field(fields, "slave-priority") == Some("0") {
        true => Fitness::GivenUp,
        false => Fitness::MayBePromoted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_is_not_promoted_is_given_up() {
        let fit = |flags: &str, priority: &str, link_down: &str, primary_down| {
            let words = [
                ["flags", flags],
                ["slave-priority", priority],
                ["down-after-milliseconds", "2000"],
                ["master-link-down-time", link_down],
            ];
            let words = words.as_flattened().iter();
            let words = words.map(|word| Value::BulkString(word.as_bytes().to_vec()));
            fitness(&Value::Array(words.collect()), primary_down) == Fitness::MayBePromoted
        };
        assert!(fit("slave", "100", "0", 0) && fit("slave", "100", "-1000", 0));
        assert!(!fit("s_down,slave", "100", "0", 0) && !fit("slave,disconnected", "100", "0", 0));
        assert!(!fit("slave", "0", "0", 0));
        assert!(fit("slave", "100", "20000", 0) && !fit("slave", "100", "20001", 0));
        assert!(fit("slave", "100", "21000", 1_000), "its primary was down meanwhile");
        assert_eq!(fitness(&Value::Nil, 0), Fitness::MayBePromoted, "nothing is known");
    }

    fn said(primary: u16, replicas: &[(u16, Fitness)]) -> Said {
        let at = |port| Address::Tcp("server".to_owned(), port);
        let replicas = replicas.iter().map(|&(port, fitness)| (at(port), fitness)).collect();
        Said { primary: at(primary), replicas, is_down: false, sentinels: 3 }
    }

    #[test]
    fn more_than_half_must_name_the_primary_and_none_may_promote_what_is_given_up() {
        use Fitness::{GivenUp, MayBePromoted};
        let at = |port| Address::Tcp("server".to_owned(), port);
        let [fit, lost] = [[(2, MayBePromoted)], [(2, GivenUp)]].map(|it| said(1, &it));
        let other = said(2, &[(1, GivenUp)]);
        let agree = |said: &[&Said], all| {
            let found = agreed(said.iter().copied(), all)?;
            Some((found.address, found.replicas.len(), found.given_up.len()))
        };
        assert_eq!(agree(&[&lost], 3), None);
        assert_eq!(agree(&[&lost], 1), Some((at(1), 0, 1)));
        assert_eq!(agree(&[&lost, &other], 2), None);
        assert_eq!(agree(&[&fit, &fit], 3), Some((at(1), 1, 0)));
        assert_eq!(agree(&[&lost, &lost], 3), Some((at(1), 0, 1)));
        assert_eq!(agree(&[&lost, &lost, &fit], 3), Some((at(1), 1, 0)));
        assert_eq!(agree(&[&lost, &lost, &other], 3), Some((at(1), 1, 0)));
        let old = Said { is_down: true, ..other.clone() };
        assert_eq!(agree(&[&lost, &lost, &old], 3), Some((at(1), 0, 1)));
        assert_eq!(agree(&[&other, &lost, &other], 3), Some((at(2), 1, 0)));
    }

    #[test]
    fn a_replica_that_was_given_up_does_not_confirm_for_another_one() {
        let at = |port| Address::Tcp("server".to_owned(), port);
        let found = Found { address: at(1), replicas: vec![at(2)], given_up: vec![at(3)] };
        let must = |connected: &[u16]| {
            found.must_confirm(&connected.iter().copied().map(at).collect::<Vec<_>>())
        };
        assert_eq!((must(&[2]), must(&[]), must(&[2, 3])), (1, 1, 2));
        assert_eq!(must(&[3]), 2, "2 is missing");
        assert_eq!(must(&[2, 4, 5]), 3);
        let mut found = found;
        found.gives_up_none();
        assert_eq!(found.must_confirm(&[at(2)]), 2);
    }
}
