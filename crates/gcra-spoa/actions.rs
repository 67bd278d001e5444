//! What operators can do on the live page, if the agent was started with `--admin-actions`: clear
//! what a client owes, exempt a client for a while, and make a policy only observe.
//!
//! An action needs the token of the file, as `Authorization: Bearer`. A web site cannot send that
//! through a visitor's browser: it does not know the token, and a request with this header or with
//! a JSON body is asked for beforehand by the browser (CORS), to which the answer is no. What the
//! browser says about the origin is checked besides.
//!
//! Debts and exemptions are in the table, so one agent acts for all. The mode of a policy is in
//! the memory of each agent, so the agent that is asked asks the others, at their admin addresses.
//! It does not send them the token, because another process may have taken such an address. It
//! shows that it is an agent of the table by a digest that only these can compute.

use std::fmt::Write as _;
use std::fs;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use arc_swap::ArcSwap;
use gcra_table::{Exemption, Table, Time};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::ask::order;
use crate::duration::Exact;
use crate::exempt;
use crate::explain::{Explanation, SharedSources, decided};
use crate::explain_command::add_list;
use crate::in_force::InForce;
use crate::in_store::InStore;
use crate::inspected::{Client, Inspected, Wanted};
use crate::key::Key;
use crate::listed::{self, is_this_process};
use crate::output::Output;
use crate::policy::policy_id;
use crate::stats::lock;
use crate::status::Watched;
use crate::table_keys::{self, MACHINES_HOLD, Said};

/// The fewest characters of a token.
const SHORTEST: usize = 16;

/// The most bytes of a token's file.
const LONGEST: u64 = 4096;

/// For how long a client is exempt if the action does not say it, in seconds.
const HOUR: u64 = 3_600;

/// For how long a client can be exempt, in seconds, as with `gcra-spoa exempt`.
const EXEMPT: std::ops::RangeInclusive<u64> = 10..=7 * 24 * HOUR;

/// How old the order of another agent may be.
const FRESH: Duration = Duration::from_secs(5);

/// The time between two warnings about wrong tokens, at least.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

/// How long the housekeeping, or another agent, may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Only a digest of the token is kept.
#[derive(Clone, Copy)]
pub(crate) struct Token([u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the token from the first line of a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, other users can read it, or its token is too short.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        use std::io::Read as _;
        use std::os::unix::fs::MetadataExt as _;
        let shown = path.display();
        let file = fs::File::open(path);
        let file = file.with_context(|| format!("could not read the token of {shown}"))?;
        let metadata = file.metadata().with_context(|| format!("could not examine {shown}"))?;
        if metadata.is_file() && metadata.mode() & 0o004 != 0 {
            bail!(
                "every user of this machine can read the token of --admin-actions; run chmod o-r \
                 {shown}"
            );
        }
        let mut text = String::new();
        let read = file.take(LONGEST).read_to_string(&mut text);
        read.with_context(|| format!("could not read the token of {shown}"))?;
        let token = text.lines().next().unwrap_or_default().trim();
        if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!(
                "the first line of {shown} is not a token of at least {SHORTEST} visible ASCII \
                 characters; make one with: openssl rand -hex 24"
            );
        }
        Ok(Self::of(token.as_bytes()))
    }

    pub(crate) fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Whether the headers have the token. The time that this takes depends on the length of what
    /// was sent only.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let sent = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let sent = sent.strip_prefix(b"Bearer ").unwrap_or_default();
        let sent = Self::of(sent);
        let differing = self.0.iter().zip(&sent.0).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

/// What is to be done, by the path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    Forgive,
    Exempt,
    Observe,
}

impl Action {
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            "/actions/forgive" => Some(Self::Forgive),
            "/actions/exempt" => Some(Self::Exempt),
            "/actions/observe" => Some(Self::Observe),
            _ => None,
        }
    }
}

/// Why an action is refused, with the status for it.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) u16, pub(crate) String);

/// A sentence about what cannot be done as it was asked for.
fn wrong(error: &anyhow::Error) -> Refused {
    Refused(422, format!("{error:#}"))
}

/// What a request says. Each action reads what it needs.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Body {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// 0 ends an exemption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    for_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    observe: Option<bool>,
    /// In the order of another agent: when that was, in milliseconds after the start of the
    /// machine, and what shows that it is an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proof: Option<String>,
}

/// What was done.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Done {
    /// Each sentence.
    pub(crate) said: Vec<String>,
    /// Whether all of it was done.
    pub(crate) whole: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) agents: Vec<OfAgent>,
}

/// What became of an action in another agent.
#[derive(Debug, Serialize)]
pub(crate) struct OfAgent {
    pub(crate) agent: String,
    pub(crate) done: bool,
    /// Why it was not done.
    pub(crate) why: Option<String>,
}

/// An order to the housekeeping, which alone changes what is in force.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) policy: String,
    pub(crate) observe: bool,
    /// Gets whether anything has changed, or why it cannot be done.
    pub(crate) done: oneshot::Sender<Result<bool, String>>,
}

/// What actions work on.
#[derive(Debug)]
pub(crate) struct Actions {
    watched: Arc<Watched>,
    policies: Arc<ArcSwap<InForce>>,
    /// The path of the table.
    path: PathBuf,
    /// `None` if there are no actions.
    token: Option<Token>,
    orders: mpsc::Sender<Order>,
    /// When the log last said that a token was wrong.
    warned: Mutex<Option<Instant>>,
}

impl Actions {
    pub(crate) fn new(
        watched: Arc<Watched>,
        policies: Arc<ArcSwap<InForce>>,
        path: PathBuf,
        token: Option<Token>,
        orders: mpsc::Sender<Order>,
    ) -> Self {
        Self { watched, policies, path, token, orders, warned: Mutex::default() }
    }

    pub(crate) fn are_on(&self) -> bool {
        self.token.is_some()
    }

    /// Checks whether a request of `by` may act at all, before its body is read. `is_order` is
    /// whether it is the order of another agent, whose body shows that it may.
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub(crate) fn check(
        &self,
        headers: &HeaderMap,
        is_order: bool,
        by: &str,
    ) -> Result<(), Refused> {
        let Some(token) = &self.token else {
            return Err(Refused(
                403,
                "actions are off; start the agent with --admin-actions FILE to allow them"
                    .to_owned(),
            ));
        };
        // A browser says where a request comes from, other programs do not.
        let origin = headers.get(ORIGIN).map(HeaderValue::as_bytes);
        let host = headers.get(HOST).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_ours = |origin: &[u8]| {
            let rest = origin.strip_prefix(b"http://").or(origin.strip_prefix(b"https://"));
            rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
        };
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        if origin.is_some_and(|origin| !is_ours(origin))
            || site.is_some_and(|site| site != b"same-origin")
        {
            return Err(Refused(403, "an action must come from the agent's own page".to_owned()));
        }
        let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
        if !kind.trim_ascii().eq_ignore_ascii_case(b"application/json") {
            return Err(Refused(415, "write the body with Content-Type: application/json".into()));
        }
        if !is_order && !token.is_in(headers) {
            self.warn_about_token(by);
            return Err(Refused(
                401,
                "the token is missing or wrong; send 'Authorization: Bearer TOKEN' with the \
                 first line of the file of --admin-actions"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Logs a wrong token, at most once a minute.
    fn warn_about_token(&self, by: &str) {
        let mut warned = lock(&self.warned);
        if warned.is_none_or(|at| at.elapsed() > BETWEEN_WARNINGS) {
            *warned = Some(Instant::now());
            log::warn!("an action of --admin by {by} was refused, because its token is wrong");
        }
    }

    /// Does what a request asks for that was [checked](Self::check). `by` is who asks, for the log.
    ///
    /// # Errors
    ///
    /// Why it is not done.
    pub(crate) async fn act(
        &self,
        action: Action,
        body: &[u8],
        is_order: bool,
        by: &str,
    ) -> Result<Done, Refused> {
        let body: Body = serde_json::from_slice(body)
            .map_err(|error| Refused(400, format!("the body is not what is expected: {error}")))?;
        let key = || {
            let text = body.key.as_deref().unwrap_or_default();
            if text.is_empty() {
                return Err(Refused(400, "the body has no 'key'".to_owned()));
            }
            key_of(text).map_err(|mistake| Refused(422, mistake))
        };
        if is_order {
            return match action {
                Action::Observe => self.follow_order(body, by).await,
                Action::Forgive | Action::Exempt => {
                    Err(Refused(400, "agents order only 'observe'".to_owned()))
                }
            };
        }
        match action {
            Action::Observe => self.observe(body, by).await,
            Action::Forgive => {
                let (inspected, key, by) = (self.inspected(), key()?, by.to_owned());
                blocking(move || forgive(&inspected, body.policy.as_deref(), &key, &by)).await
            }
            Action::Exempt => {
                let seconds = body.for_seconds.unwrap_or(HOUR);
                if seconds != 0 && !EXEMPT.contains(&seconds) {
                    let said = "'for_seconds' is from 10 to 604800 (7 days), or 0 to end it";
                    return Err(Refused(422, said.to_owned()));
                }
                let (inspected, key, by) = (self.inspected(), key()?, by.to_owned());
                let time = Duration::from_secs(seconds);
                blocking(move || exempt(&inspected, body.policy.as_deref(), &key, time, &by)).await
            }
        }
    }

    /// What is decided now about the clients that a KEY means, in each policy whose key it can be.
    ///
    /// # Errors
    ///
    /// The text is not a key of any of the policies. The error is a sentence.
    pub(crate) fn explain_key(&self, text: &str) -> Result<Vec<Explained>, String> {
        let (key, inspected) = (key_of(text)?, self.inspected());
        let Inspected { table, in_force, leases, .. } = &inspected;
        let borrower = self.watched.borrower();
        let shared = SharedSources { leases: leases.as_deref(), store: None, borrower };
        let is_known = |client: &Client| {
            table_keys::decide(&inspected, client).is_some_and(|decided| decided.is_known())
        };
        let clients = inspected.clients(None, &key, Wanted::Known, is_known);
        let explained = |client: &Client| {
            let (message, policy) = (client.message()?, inspected.policy(client));
            let mut explanation = Explanation {
                message: String::from_utf8_lossy(message.name).into_owned(),
                policy: Some(policy.name.to_string()),
                decided: Some(decided(in_force, table, shared, client.question, &message)),
                ..Explanation::default()
            };
            add_list(&mut explanation, &in_force.policies.list);
            let words = explanation.in_words();
            Some(Explained { explanation, words })
        };
        clients
            .map(|clients| clients.iter().filter_map(explained).collect())
            .map_err(|error| format!("{error:#}"))
    }

    /// The policies in force and the table, for looking at clients.
    fn inspected(&self) -> Inspected {
        let leases = self.watched.leases().map(|leases| leases.clone());
        let (table, in_force) = (self.watched.table(), self.policies.load_full());
        Inspected::of_agent(table, self.path.clone(), in_force, leases, SOURCE)
    }

    /// Switches the mode of a policy in this agent, and then in the others.
    async fn observe(&self, body: Body, by: &str) -> Result<Done, Refused> {
        let (policy, observe) = (policy_of(&body)?, body.observe.unwrap_or(true));
        let changed = self.switch(&policy, observe, by).await?;
        let others = self.order_others(&policy, observe).await;
        let (done, all) = (others.iter().filter(|agent| agent.done).count() + 1, others.len() + 1);
        let mode = match observe {
            true => "only observes now, and blocks no request, until the next reload",
            false => "blocks requests again",
        };
        let unchanged = if changed { "" } else { " (as it did before)" };
        let mut said = vec![match all {
            1 => format!("policy '{policy}' {mode}{unchanged}"),
            _ => format!("policy '{policy}' {mode}{unchanged}, in {done} of {all} agents"),
        }];
        for OfAgent { agent, why, .. } in &others {
            if let Some(why) = why {
                said.push(format!("agent {agent} did not follow: {why}"));
            }
        }
        Ok(Done { said, whole: done == all, agents: others })
    }

    /// Does what another agent of the table has ordered.
    async fn follow_order(&self, body: Body, by: &str) -> Result<Done, Refused> {
        let (policy, observe) = (policy_of(&body)?, body.observe.unwrap_or(true));
        let (at_ms, table) = (body.at_ms.unwrap_or_default(), self.watched.table());
        let right = proof(&table, &policy, observe, at_ms);
        let age = since_boot_ms(&table).abs_diff(at_ms);
        if body.proof.as_deref() != Some(&right) || u128::from(age) > FRESH.as_millis() {
            return Err(Refused(403, "this is not the order of an agent of the table".to_owned()));
        }
        self.switch(&policy, observe, by).await?;
        Ok(Done { said: Vec::new(), whole: true, agents: Vec::new() })
    }

    async fn switch(&self, policy: &str, observe: bool, by: &str) -> Result<bool, Refused> {
        let (done, answer) = oneshot::channel();
        let order = Order { policy: policy.to_owned(), observe, done };
        let busy = || Refused(503, "the agent is busy or stopping; try again".to_owned());
        self.orders.try_send(order).map_err(|_| busy())?;
        let answer = timeout(PATIENCE, answer).await.map_err(|_| busy())?.map_err(|_| busy())?;
        let changed = answer.map_err(|mistake| Refused(422, mistake))?;
        if changed && observe {
            log::warn!(
                "policy '{policy}' only observes from now on, and blocks no request, until the \
                 next reload: an action of --admin by {by}"
            );
        } else if changed {
            log::info!("policy '{policy}' blocks requests again: an action of --admin by {by}");
        }
        Ok(changed)
    }

    /// Asks the other agents of the table to do the same.
    async fn order_others(&self, policy: &str, observe: bool) -> Vec<OfAgent> {
        let table = self.watched.table();
        let at_ms = since_boot_ms(&table);
        let body = Body {
            policy: Some(policy.to_owned()),
            observe: Some(observe),
            at_ms: Some(at_ms),
            proof: Some(proof(&table, policy, observe, at_ms)),
            ..Body::default()
        };
        let body = serde_json::to_string(&body).unwrap_or_default();
        let mut others = JoinSet::new();
        let alive = spawn_blocking(move || table.processes()).await.unwrap_or_default();
        // The table's list bounds how many there are.
        for process in alive.into_iter().filter(|process| !is_this_process(process)) {
            let agent = listed::name(&process);
            let (admin, body) = (process.profile.and_then(|it| it.admin), body.clone());
            others.spawn(async move {
                let asked = match admin {
                    None => Err("it has no --admin".to_owned()),
                    Some(address) => order(address, "/actions/observe?own", &body, PATIENCE).await,
                };
                OfAgent { agent, done: asked.is_ok(), why: asked.err() }
            });
        }
        let mut all = others.join_all().await;
        all.sort_by(|a, b| a.agent.cmp(&b.agent));
        all
    }
}

/// Where an agent's policies come from, in sentences: "is not a key of any policy in ...".
const SOURCE: &str = "the agent's configuration";

/// What is decided about a client, in words too.
#[derive(Debug, Serialize)]
pub(crate) struct Explained {
    #[serde(flatten)]
    explanation: Explanation,
    words: String,
}

/// A KEY as commands take it. The error is a sentence.
fn key_of(text: &str) -> Result<Key, String> {
    if text.contains('…') {
        return Err(format!(
            "'{text}' is a shortened name, which leads to no key; write the whole key (gcra-spoa \
             name KEY prints how it is shortened)"
        ));
    }
    text.parse()
}

fn policy_of(body: &Body) -> Result<String, Refused> {
    let policy = body.policy.clone().filter(|policy| !policy.is_empty());
    policy.ok_or_else(|| Refused(400, "the body has no 'policy'".to_owned()))
}

/// Digits that only processes that can read the table can compute.
fn proof(table: &Table, policy: &str, observe: bool, at_ms: u64) -> String {
    let text = format!("gcra-spoa order: observe {observe} {at_ms} {policy}");
    let hash =
        BuildHasherDefault::<DefaultHasher>::default().hash_one(table.hash(text.as_bytes()));
    format!("{hash:016x}")
}

fn since_boot_ms(table: &Table) -> u64 {
    table.since_boot(table.now()).millis_ceil()
}

/// Does something on a thread that may wait.
async fn blocking(
    work: impl FnOnce() -> anyhow::Result<Done> + Send + 'static,
) -> Result<Done, Refused> {
    match spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| wrong(&error)),
        // A panic would be a bug.
        Err(error) => Err(Refused(500, error.to_string())),
    }
}

/// Clears what the clients of a key owe.
fn forgive(
    inspected: &Inspected,
    policy: Option<&str>,
    key: &Key,
    by: &str,
) -> anyhow::Result<Done> {
    let store = inspected.in_force.policies.store.clone().map(InStore::new).transpose()?;
    let mut said = Vec::new();
    let cleared = table_keys::clear(inspected, policy, key, store.as_ref(), |it| {
        match it {
            Said::Note(note) => said.push(note),
            Said::Outputs(outputs) => {
                said.extend(outputs.into_iter().map(|Output { words, .. }| words));
            }
        }
        Ok(())
    })?;
    if cleared.has_shared && !cleared.has_failed {
        said.push(MACHINES_HOLD.to_owned());
    }
    for (client, policy) in &cleared.clients {
        log::info!(
            "what {client} owes under the policy '{policy}' was cleared: an action of --admin by \
             {by}"
        );
    }
    Ok(Done { said, whole: !cleared.has_failed, agents: Vec::new() })
}

/// Exempts the clients of a key for a time, or ends their exemptions if that is zero.
fn exempt(
    inspected: &Inspected,
    policy: Option<&str>,
    key: &Key,
    time: Duration,
    by: &str,
) -> anyhow::Result<Done> {
    let is_exempt = |client: &Client| exempt::is_exempt(inspected, client);
    let is_known =
        |client: &Client| is_exempt(client) || table_keys::has_bucket(inspected, client);
    let begins = time > Duration::ZERO;
    let (clients, mut said) = match begins {
        true => {
            let clients = inspected.clients(policy, key, Wanted::All, is_known);
            let clients = clients.map_err(|error| exempt::about_network(key, error))?;
            let note = exempt::check(inspected, key, &clients)?;
            (clients, Vec::from_iter(note))
        }
        false => {
            let (mut clients, notes) = inspected.clients_to_change(policy, key, is_exempt)?;
            clients.retain(is_exempt);
            if clients.is_empty() {
                return Err(anyhow!("there is no exemption for this key"));
            }
            (clients, notes)
        }
    };
    for client in &clients {
        let (policy, name) = (inspected.policy(client), inspected.name(client));
        let now = inspected.table.now();
        let until = if begins { now.saturating_add(exempt::nanos(time)) } else { Time::ZERO };
        let id = policy_id(&policy.name);
        let exemption = Exemption { policy: id, key: client.question.key, until, client: name };
        exempt::write(inspected, &exemption)?;
        let name = &exemption.client;
        let mut words = format!("policy '{}': {name} is ", policy.name);
        // Writing to a string does not fail.
        let _ = match begins {
            true => write!(words, "exempt for {}", Exact(time)),
            false => write!(words, "no longer exempt"),
        };
        log::info!("{words}: an action of --admin by {by}");
        words.push_str(", in all agents within about two seconds");
        if policy.shared.is_some() {
            words.push_str("; the policy is shared, so do this on each machine");
        }
        said.push(words);
    }
    Ok(Done { said, whole: true, agents: Vec::new() })
}

/// Who asks, for the log.
pub(crate) fn who(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(|| "an unknown client".to_owned(), |peer| peer.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use gcra_table::Slots;

    use super::*;

    const TOKEN: &str = "correct-horse-battery";

    #[test]
    fn only_a_file_with_a_long_token_is_read_that_others_cannot_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let read = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map_err(|error| format!("{error:#}"))
        };
        let token = read(&format!(" {TOKEN} \nanother line\n"), 0o600).unwrap();
        let has = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            token.is_in(&headers)
        };
        assert!(has(&format!("Bearer {TOKEN}")));
        for wrong in ["", "Bearer ", TOKEN, "Bearer correct-horse-batterz", "Bearer correct"] {
            assert!(!has(wrong), "{wrong}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
        assert!(!format!("{token:?}").contains("horse"));
        assert!(read("short", 0o600).unwrap_err().contains("openssl rand"));
        assert!(read(&"ä".repeat(20), 0o600).unwrap_err().contains("openssl rand"));
        assert!(read(TOKEN, 0o644).unwrap_err().contains("chmod o-r"));
        assert!(Token::read(&directory.path().join("nothing")).is_err());
    }

    #[test]
    fn an_order_is_known_by_a_digest_that_depends_on_all_of_it() {
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let proofs = [("api", true, 7), ("api", false, 7), ("api", true, 8), ("login", true, 7)]
            .map(|(policy, observe, at_ms)| proof(&table, policy, observe, at_ms));
        for (at, one) in proofs.iter().enumerate() {
            assert!(proofs.iter().skip(at + 1).all(|other| other != one));
        }
        let other = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        assert_ne!(proof(&other, "api", true, 7), proofs[0], "the key of a table is its own");
    }
}
