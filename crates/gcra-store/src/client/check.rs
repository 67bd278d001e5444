//! [`check`]: says in words whether a store can be used, and what is wrong with it.

use core::time::Duration;
use std::io;
use std::sync::Arc;

use gcra_lease::StoreTime;
use redis::{Pipeline, Value};
use tokio::time::Instant;

use crate::client::advice::advice;
use crate::client::connection::{ANSWER, Connection, Connector, LONG_ANSWER, parts};
use crate::client::fault::{Fault, in_words};
use crate::client::finder::{Finder, Seen, add_wait, address_in, before_late, confirmed, probed};
use crate::client::script::{self, By};
use crate::client::standing::time;
use crate::config::{Address, Config};

/// One thing that [`check`] has found out.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Finding {
    /// How good or bad it is.
    pub kind: Kind,
    /// One or two sentences without a full stop at the end.
    pub text: String,
    /// If it is about the time that calls of the script take: how long one took, by the median of
    /// ten.
    pub call: Option<Duration>,
}

/// How good or bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// As it should be.
    Good,
    /// It works, and the operator should know it.
    Remark,
    /// It does not work, or limits would not hold.
    Wrong,
}

/// Looks at all servers of a store. It writes what an agent writes when it connects, and nothing
/// else.
///
/// # Errors
///
/// The certificates of the authorities cannot be read.
pub async fn check(config: Config) -> io::Result<Vec<Finding>> {
    let slow = config.slow;
    // One reply that is late, for example because this machine is busy, says nothing about the
    // store. How long replies take is judged by most of several.
    let patience = config.timeout.max(config.connect_timeout);
    let config = Config { timeout: patience, slow: patience, ..config };
    let connector = Arc::new(Connector::new(config)?);
    let mut findings = Findings(Vec::new());
    let seen = match Finder::new(connector.clone()).look(&[]).await {
        Ok(seen) => seen,
        Err(fault) => {
            let advice = advice(&fault, &connector.config);
            findings.wrong(format!("it is not known where the servers are: {fault}{advice}"));
            return Ok(findings.0);
        }
    };
    findings.sentinels(&connector.config, &seen);
    let tags_without_server = seen.map.owners.iter().filter(|&&owner| owner == u16::MAX).count();
    if tags_without_server > 0 {
        findings.wrong(format!(
            "of 1024 parts of the keys, {tags_without_server} have no server in this cluster"
        ));
    }
    let mut clocks = Vec::new();
    for ((place, found), state) in seen.map.servers.iter().enumerate().zip(seen.servers) {
        let address = &found.address;
        match state {
            Ok((connection, replicas)) => {
                clocks.push((address.clone(), connection.clone()));
                let (config, address) = (&connector.config, &address.to_string());
                let tag = seen.map.tag_of(place);
                findings.server(config, slow, address, connection, replicas, tag).await;
            }
            Err(fault) => {
                let advice = advice(&fault, &connector.config);
                findings.wrong(format!("{address} cannot be used: {fault}{advice}"));
            }
        }
    }
    findings.clocks(&connector, clocks).await;
    Ok(findings.0)
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, kind: Kind, text: String) {
        self.0.push(Finding { kind, text, call: None });
    }

    fn good(&mut self, text: String) {
        self.add(Kind::Good, text);
    }

    fn remark(&mut self, text: String) {
        self.add(Kind::Remark, text);
    }

    fn wrong(&mut self, text: String) {
        self.add(Kind::Wrong, text);
    }

    /// Compares what all sentinels say.
    fn sentinels(&mut self, config: &Config, seen: &Seen) {
        let (all, Some(found)) = (seen.sentinels.len(), seen.map.servers.first()) else { return };
        if all == 0 {
            return;
        }
        let mut agree = 0;
        for (address, said) in &seen.sentinels {
            let why = match said {
                Ok(said) if said.primary != found.address => {
                    format!("names {} as the primary, not {}", said.primary, found.address)
                }
                Ok(said) if said.is_down => format!(
                    "cannot use {}: is it cut off, or does its auth-pass differ? It would promote \
                     a replica",
                    found.address
                ),
                Ok(_) => {
                    agree += 1;
                    continue;
                }
                Err(fault) => {
                    let of = Fault::Of(address.clone(), Box::new(fault.clone()));
                    format!("cannot be asked: {fault}{}", advice(&of, config))
                }
            };
            self.remark(format!("the sentinel at {address} {why}"));
        }
        let said = seen.sentinels.iter().filter_map(|(_, said)| said.as_ref().ok());
        let known = said.map(|it| it.sentinels).max().unwrap_or(all);
        if agree == all {
            self.good(format!("all sentinels of the address ({all}) name {}", found.address));
        }
        if known != all {
            self.remark(format!(
                "the address names {all} of {known} sentinels; more than half of those that it \
                 names must agree, so name all"
            ));
        } else if all < 3 {
            self.remark(format!(
                "more than half of the sentinels must agree, and there are only {all}; have \
                 three, so that one may fail"
            ));
        }
        for replica in &found.given_up {
            self.remark(format!(
                "the replica at {replica} was given up by the sentinels: it is down, or has not \
                 followed its primary for long; it does not confirm what is written"
            ));
        }
    }

    async fn server(
        &mut self,
        config: &Config,
        slow: Duration,
        address: &str,
        mut connection: Connection,
        replicas: u32,
        tag: u16,
    ) {
        let took = took(&mut connection, config, replicas, tag).await;
        if let Ok(Took { median: takes, .. }) = took
            && takes > slow
        {
            let fault = Fault::Slow { takes, most: slow };
            let advice = advice(&fault, config);
            self.wrong(format!("{address} cannot be used: {fault}{advice}"));
            return;
        }
        let info = connection.send_one(&["INFO"], LONG_ANSWER, config.connect_timeout).await;
        let info = match info {
            Ok(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            _ => String::new(),
        };
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let version = match (field("valkey_version"), field("redis_version")) {
            (Some(version), _) => format!("Valkey {}", in_words(version)),
            (None, Some(version)) => format!("Redis {}", in_words(version)),
            (None, None) => "its version is not known".to_owned(),
        };
        if field("cluster_enabled") == Some("1") && !config.url.is_cluster() {
            self.wrong(format!("{address} is a node of a cluster; use redis+cluster://"));
            return;
        }
        self.good(format!("{address} is a primary and can be used ({version})"));

        self.script(took, config, slow);
        let policy = field("maxmemory_policy").map(in_words);
        self.memory(field("maxmemory"), policy.as_deref());
        self.replicas(config, replicas);
        self.clock(config, &mut connection).await;
    }

    fn script(&mut self, took: Result<Took, Fault>, config: &Config, slow: Duration) {
        match took {
            Ok(Took { median, slowest }) => {
                let milliseconds = slowest.as_secs_f64() * 1e3;
                let text = format!(
                    "the script runs; the slowest of {CALLS} calls took {milliseconds:.1} ms"
                );
                if slowest > slow {
                    let most = slow.as_secs_f64() * 1e3;
                    self.remark(format!(
                        "{text}; at least half took no longer than the {most} ms for which \
                         requests wait"
                    ));
                } else {
                    self.good(text);
                }
                if let Some(finding) = self.0.last_mut() {
                    finding.call = Some(median);
                }
            }
            Err(fault) => {
                let advice = advice(&fault, config);
                self.wrong(format!("the script does not run: {fault}{advice}"));
            }
        }
    }

    fn memory(&mut self, most: Option<&str>, policy: Option<&str>) {
        match (most, policy) {
            (_, Some("noeviction")) => {
                self.good("maxmemory-policy is noeviction: no record is dropped".to_owned());
            }
            (Some("0"), Some(policy)) => self.remark(format!(
                "maxmemory-policy is {policy}, which does nothing because maxmemory is 0; if you \
                 set maxmemory, set maxmemory-policy to noeviction, too"
            )),
            (_, Some(policy)) => self.wrong(format!(
                "maxmemory-policy is {policy}, so the server drops records that are needed, and \
                 keys get more than their limit; set it to noeviction"
            )),
            (_, None) => self.remark(
                "the user may not use INFO, so maxmemory-policy is not known; it must be \
                 noeviction"
                    .to_owned(),
            ),
        }
    }

    fn replicas(&mut self, config: &Config, replicas: u32) {
        if !config.durable {
            self.remark("replies are used without the word of replicas".to_owned());
        } else if replicas == 0 {
            self.remark(
                "there is no replica: if this server loses its memory, each key may get one burst \
                 more than its limit"
                    .to_owned(),
            );
        } else {
            let s = if replicas == 1 { " has" } else { "s have" };
            self.good(format!("{replicas} replica{s} confirmed what was written"));
        }
        if replicas > 0 && replicas == config.least_replicas {
            let (s, are) = if replicas == 1 { ("", "is") } else { ("s", "are") };
            self.remark(format!(
                "there {are} only {replicas} replica{s}, and least_replicas is {replicas}: after \
                 a failover the store cannot be used until there is another one"
            ));
        }
        if config.least_replicas > 0 && 2 * config.least_replicas < replicas {
            let least = config.least_replicas;
            self.remark(format!(
                "there are {replicas} replicas, and least_replicas is {least}: a primary that has \
                 lost more than half of them is used; if one of those comes back and is promoted \
                 before it has caught up, each key may get one burst more than its limit"
            ));
        }
        if replicas > 0 && config.least_replicas == 0 {
            self.remark(
                "least_replicas is 0: if a replica is promoted while this server lives on, each \
                 of the two lends the whole limit to the agents that reach it; with \
                 least_replicas = 1 a primary is used only while it has a replica"
                    .to_owned(),
            );
        }
    }

    async fn clock(&mut self, config: &Config, connection: &mut Connection) {
        let said = connection.send_one(&["TIME"], ANSWER, config.connect_timeout).await;
        let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let Ok(Ok(StoreTime(micros))) = said.as_ref().map(time) else { return };
        let apart = (micros / 1_000_000).abs_diff(since_1970.as_secs());
        if apart > 5 {
            self.remark(format!(
                "its clock and the one of this machine are {apart} s apart; that does not matter, \
                 but when it is set right, keys may be blocked or get one burst more"
            ));
        }
    }

    /// Compares the clocks of all servers that keys can come to: those in use, and their replicas.
    async fn clocks(&mut self, connector: &Connector, primaries: Vec<(Address, Connection)>) {
        let within = connector.config.connect_timeout;
        let began = Instant::now();
        let (mut clocks, mut replicas) = (Vec::new(), Vec::new());
        for (address, mut connection) in primaries {
            replicas.extend(replicas_of(&mut connection, within).await);
            clocks.extend(Clock::of(address, connection, began, within).await);
        }
        for address in replicas {
            match connector.connect(&address).await {
                Ok(connection) => {
                    clocks.extend(Clock::of(address, connection, began, within).await);
                }
                Err(fault) => self.remark(format!(
                    "the replica at {address} cannot be reached from here, so its clock is not \
                     known: {fault}"
                )),
            }
        }
        let latest = clocks.iter().max_by_key(|clock| clock.least);
        let Some((latest, earliest)) = latest.zip(clocks.iter().min_by_key(|clock| clock.most))
        else {
            return;
        };
        let apart = latest.least.saturating_sub(earliest.most);
        if apart > MOST_APART {
            self.remark(format!(
                "the clock of {} is ahead of that of {} by {} ms; when one of the two takes over \
                 keys of the other, these may be blocked for longer, or get as many more cells as \
                 drain in that time, up to one burst; let chrony set the clocks of all servers",
                latest.address,
                earliest.address,
                apart / 1_000
            ));
        } else if clocks.len() > 1 {
            self.good(format!("the clocks of {} servers agree", clocks.len()));
        }
    }
}

/// By how much clocks may differ without a remark, in microseconds.
const MOST_APART: i64 = 20_000;

/// How often a clock is read. The shortest round trip says most.
const CLOCK_READINGS: u32 = 5;

/// The most replicas of one server whose clocks are read.
const MOST_REPLICAS: usize = 16;

/// The time on a server's clock, in microseconds: at least and at most so much more than one that
/// said 0 when the check began. The true value is between them, because the clock was read while
/// the answer was waited for.
struct Clock {
    address: Address,
    least: i64,
    most: i64,
}

impl Clock {
    /// `None` if the server does not say.
    async fn of(
        address: Address,
        mut connection: Connection,
        began: Instant,
        within: Duration,
    ) -> Option<Self> {
        let mut clock: Option<Self> = None;
        let now = || i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX);
        for _ in 0..CLOCK_READINGS {
            let sent = now();
            let said = connection.send_one(&["TIME"], ANSWER, within).await.ok()?;
            let received = now();
            let said = i64::try_from(time(&said).ok()?.0).ok()?;
            let [least, most] = [received, sent].map(|at| said.saturating_sub(at));
            let is_better =
                |it: &Self| most.saturating_sub(least) < it.most.saturating_sub(it.least);
            if clock.as_ref().is_none_or(is_better) {
                clock = Some(Self { address: address.clone(), least, most });
            }
        }
        clock
    }
}

/// The replicas that follow a primary, as the primary says.
async fn replicas_of(connection: &mut Connection, within: Duration) -> Vec<Address> {
    let role = connection.send_one(&["ROLE"], LONG_ANSWER, within).await.unwrap_or(Value::Nil);
    let replicas = parts(&role).get(2).map_or(&[][..], parts);
    replicas.iter().filter_map(address_in).take(MOST_REPLICAS).collect()
}

const CALLS: usize = 10;

/// How long calls of the script took.
#[derive(Clone, Copy)]
struct Took {
    /// At least half of them took this or less.
    median: Duration,
    slowest: Duration,
}

/// Calls the script as an ask does, with the confirmation of the replicas.
async fn took(
    connection: &mut Connection,
    config: &Config,
    replicas: u32,
    tag: u16,
) -> Result<Took, Fault> {
    let mut times = [Duration::ZERO; CALLS];
    for time in &mut times {
        let mut commands = Pipeline::new();
        commands.add_command(script::probe(tag, By::Text).ok_or(Fault::Late)?);
        add_wait(&mut commands, replicas, before_late(config.timeout));
        let start = Instant::now();
        let answers = connection.send(&commands, config.timeout).await?;
        probed(answers.first())?;
        confirmed(answers.get(1), replicas)?;
        *time = start.elapsed();
    }
    times.sort_unstable();
    Ok(Took { median: times[(CALLS - 1) / 2], slowest: times[CALLS - 1] })
}
