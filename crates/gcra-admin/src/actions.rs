//! The actions of operators on the live page, if the agent was started with `--admin-actions`:
//! clear what a client owes, exempt or block a client for a while, and make a policy only observe.
//!
//! An action needs the token of the file, as `Authorization: Bearer`. A web site cannot send that
//! through a visitor's browser: it does not know the token, and a request with this header or with
//! a JSON body is asked for beforehand by the browser (CORS), to which the answer is no. The
//! browser's header fields about the origin are checked besides.
//!
//! Debts and orders about clients are in the table, so one agent acts for all. The mode of a
//! policy is in the memory of each agent, so the agent that is asked asks the others, at their
//! admin addresses. It does not send them the token, because another process may have taken such
//! an address. It shows that it is an agent of the table by a digest that only these can compute.
//! The digest is for one agent and one moment. An agent follows only demands that are later than
//! the last one about the policy and than its last reload, so a listener cannot use one again. The
//! answer has such a digest, too, because another program may have taken the address.

use std::fmt::Write as _;
use std::iter;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::bail;
use futures_util::future::join_all;
use gcra_inspect::agent_client::{Unheard, demand};
use gcra_inspect::client_buckets;
use gcra_inspect::commands::explain::add_list;
use gcra_inspect::commands::reset::{self, ResetOutput};
use gcra_inspect::explanation::{Asked, Explanation, SharedSources, decided};
use gcra_inspect::former_orders;
use gcra_inspect::inspected_table::{Inspected, InspectedClient, PolicySource};
use gcra_inspect::order_state::{OrderWords, end_in_words};
use gcra_inspect::orders::{
    SHORTEST_ORDER, Terms, check, longest_order, notes_to_end, on_this_machine, subjects,
};
use gcra_inspect::process_list::{self, is_this_process};
use gcra_inspect::process_state::stopped_long_ago;
use gcra_inspect::store_orders::{
    GivesToStore, StateInStore, end_everywhere, was_ended, where_it_has_ended, where_it_holds,
};
use gcra_inspect::store_reader::InStore;
use gcra_limiter::stats::lock;
use gcra_policy::key::Key;
use gcra_table::Table;
use gcra_table::board::{LONGEST_NOTE, OrderKind, Process};
use gcra_text::output::Output;
use gcra_text::visible::Visible;
use hyper::StatusCode;
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Number, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::agent_view::AgentView;
use crate::status::digits_of;
use crate::token::Token;
use crate::wrong_tokens::{Noted, WINDOW, WrongTokens};

/// For how long an order is in force if the action does not say it, in seconds.
const HOUR: u64 = 3_600;

/// How `serde_json` begins to say that no number of its own is as large as one in a string.
const TOO_LARGE: &str = "number out of range";

/// How old the demand of another agent may be.
const FRESH: Duration = Duration::from_secs(5);

const FRESH_NS: u64 = FRESH.as_secs() * 1_000_000_000;

/// The header with which a browser says where a request comes from.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// How long the housekeeping, or another agent, may take.
const PATIENCE: Duration = Duration::from_secs(2);

gcra_text::words! {
    /// The actions, each with a path.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) enum Action {
        Forgive = "/actions/forgive",
        Exempt = "/actions/exempt",
        Block = "/actions/block",
        Observe = "/actions/observe",
    }
}

/// Why an action is refused, with the status for it.
#[derive(Debug)]
pub struct Refused(pub StatusCode, pub String);

impl Refused {
    /// The request is not understood.
    pub(crate) fn request(why: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, why.into())
    }

    fn forbidden(why: &str) -> Self {
        Self(StatusCode::FORBIDDEN, why.to_owned())
    }

    /// It cannot be done as it was asked for.
    fn wish(why: impl Into<String>) -> Self {
        Self(StatusCode::UNPROCESSABLE_ENTITY, why.into())
    }
}

/// The body of a request. Each action reads what it needs.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(deny_unknown_fields)]
struct Body {
    /// Without one, debts of all clients are forgiven. So null is refused, which a program may
    /// write that has lost the KEY.
    #[serde(default, deserialize_with = "not_null")]
    key: Option<String>,
    policy: Option<String>,
    /// 0 ends an order.
    for_seconds: Option<Number>,
    note: Option<String>,
    /// Who gives an order, instead of the address that it comes from.
    giver: Option<String>,
    observe: Option<bool>,
    /// In the demand of another agent: when that was, in nanoseconds after the start of the
    /// machine, the operator's address, and what shows that it is an agent.
    at_ns: Option<u64>,
    by: Option<String>,
    proof: Option<String>,
}

fn not_null<'de, D: Deserializer<'de>>(json: D) -> Result<Option<String>, D::Error> {
    String::deserialize(json).map(Some)
}

impl Body {
    /// Reads JSON.
    ///
    /// # Errors
    ///
    /// It is no object, it has members that no action has, or a number in it is too large.
    fn read(json: &[u8]) -> Result<Self, Refused> {
        let wrong =
            |why: &str| Refused::request(format!("the body is not what is expected: {why}"));
        // A struct can be read from an array, too, which is not what anybody means.
        if json.trim_ascii_start().first() != Some(&b'{') {
            return Err(wrong("it is not a JSON object, such as {\"key\": \"192.0.2.7\"}"));
        }
        serde_json::from_slice(json).map_err(|error| {
            let said = error.to_string();
            match said.starts_with(TOO_LARGE) {
                true => Refused::wish(format!("the body cannot be obeyed: {said}")),
                false => wrong(&said),
            }
        })
    }

    /// For how long a client is to be exempt or blocked, in seconds; 0 ends it.
    fn seconds(&self) -> Result<u64, Refused> {
        let seconds = self.for_seconds.as_ref().map_or(Some(HOUR), Number::as_u64);
        let right = SHORTEST_ORDER.as_secs()..=longest_order().as_secs();
        seconds.filter(|it| *it == 0 || right.contains(it)).ok_or_else(|| {
            Refused::wish(
                "'for_seconds' is from 10 to 604800 (7 days), or 0 to end it; write it without a \
                 fraction",
            )
        })
    }

    /// What an order of the operator at this address says; for no time, which order ends.
    fn terms(&self, kind: OrderKind, by: &str) -> Result<Terms, Refused> {
        let (time, note) =
            (Duration::from_secs(self.seconds()?), self.note.clone().unwrap_or_default());
        if note.len() > LONGEST_NOTE {
            return Err(Refused::wish(format!("'note' has at most {LONGEST_NOTE} bytes")));
        }
        let mut giver = self.giver.clone().unwrap_or_else(|| on_this_machine(by));
        giver.truncate(giver.floor_char_boundary(LONGEST_NOTE));
        Ok(Terms { kind, time, note, giver })
    }

    /// Refuses members that the action would not obey.
    fn check(&self, action: Action, is_demand: bool) -> Result<(), Refused> {
        let Self { key, policy: _, for_seconds, note, giver, observe, at_ns, by, proof } = self;
        let is_about_client = matches!(action, Action::Exempt | Action::Block);
        let is_observe = action == Action::Observe;
        let only_in_demands = at_ns.is_some() || by.is_some() || proof.is_some();
        let members = [
            ("key", key.is_some() && is_observe),
            ("for_seconds", for_seconds.is_some() && !is_about_client),
            ("note", note.is_some() && !is_about_client),
            ("giver", giver.is_some() && !is_about_client),
            ("observe", observe.is_some() && !is_observe),
            ("at_ns, by or proof", only_in_demands && !is_demand),
        ];
        match members.into_iter().find(|(_, is_wrong)| *is_wrong) {
            None => Ok(()),
            Some(("key", _)) => Err(Refused::request(
                "'key' is not for 'observe', which is about a whole policy; to exempt one \
                 client, use /actions/exempt",
            )),
            Some((name, _)) => Err(Refused::request(format!("'{name}' is not for this action"))),
        }
    }
}

/// The answer to an action that was done.
#[derive(Debug, Default, Serialize)]
pub struct Done {
    pub said: Vec<String>,
    /// Whether all of it was done.
    pub whole: bool,
    /// `false` if a KEY was to be reset that has no bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentOutcome>,
    /// In the answer to another agent: what shows that this is the agent that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proof: Option<String>,
}

/// The outcome of an action in another agent.
#[derive(Debug, Serialize)]
pub struct AgentOutcome {
    pub agent: String,
    pub done: bool,
    /// Why it was not done, or is not known to be.
    pub why: Option<String>,
    /// Whether it may still be done, because the agent has the demand and has not answered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) may_follow: bool,
}

impl AgentOutcome {
    fn in_words(&self) -> Option<String> {
        let Self { agent, why, may_follow, .. } = self;
        let why = why.as_ref()?;
        Some(match may_follow {
            true => format!(
                "agent {agent}: {why}; it may still follow until {} s after the demand",
                FRESH.as_secs()
            ),
            false => format!("agent {agent} did not follow: {why}"),
        })
    }
}

/// An errand for the housekeeping, which alone changes what is in force.
pub enum Errand {
    Observe {
        policy: String,
        observe: bool,
        /// When the operator asked for it, in nanoseconds after the start of the machine.
        at_ns: u64,
        /// Gets whether anything has changed, or why it cannot be done.
        done: oneshot::Sender<Result<bool, String>>,
    },
    /// To put the orders of the table in force, which happens once a second otherwise.
    Orders { done: oneshot::Sender<()> },
}

/// The parts of an agent that actions work on.
pub struct ActionHandler {
    view: Arc<AgentView>,
    path: PathBuf,
    /// `None` if there are no actions.
    token: Option<Token>,
    errands: mpsc::Sender<Errand>,
    wrong_tokens: Arc<Mutex<WrongTokens>>,
}

impl ActionHandler {
    pub fn new(
        view: Arc<AgentView>,
        path: PathBuf,
        token: Option<Token>,
        errands: mpsc::Sender<Errand>,
    ) -> Self {
        Self { view, path, token, errands, wrong_tokens: Arc::default() }
    }

    pub(crate) fn are_on(&self) -> bool {
        self.token.is_some()
    }

    /// Checks whether a request of a client may act at all, before its body is read. `is_demand`
    /// is whether it is the demand of another agent, whose body shows that it may.
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub fn check(
        &self,
        headers: &HeaderMap,
        is_demand: bool,
        peer: Option<SocketAddr>,
    ) -> Result<(), Refused> {
        let Some(token) = &self.token else {
            return Err(Refused::forbidden(
                "actions are off; start the agent with --admin-actions FILE to allow them",
            ));
        };
        // Of two values, another program on the way may have read the other one.
        for name in [ORIGIN, SEC_FETCH_SITE, CONTENT_TYPE, AUTHORIZATION, HOST] {
            if headers.get_all(&name).iter().count() > 1 {
                return Err(Refused::request(format!("the request has two headers '{name}'")));
            }
        }
        // A browser says where a request comes from, other programs do not.
        let origin = headers.get(ORIGIN).map(HeaderValue::as_bytes);
        let host = headers.get(HOST).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_ours = |origin: &[u8]| {
            let rest = origin.strip_prefix(b"http://").or(origin.strip_prefix(b"https://"));
            rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
        };
        let site = headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
        if origin.is_some_and(|origin| !is_ours(origin))
            || site.is_some_and(|site| site != b"same-origin")
        {
            return Err(Refused::forbidden("an action must come from the agent's own page"));
        }
        let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
        if !kind.trim_ascii().eq_ignore_ascii_case(b"application/json") {
            return Err(Refused(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "write the body with Content-Type: application/json".into(),
            ));
        }
        if is_demand || token.is_in(headers) {
            return Ok(());
        }
        let about = "send 'Authorization: Bearer TOKEN' with the first line of the file of \
                     --admin-actions";
        match headers.contains_key(AUTHORIZATION) {
            false => {
                Err(Refused(StatusCode::UNAUTHORIZED, format!("the token is missing; {about}")))
            }
            true => Err(self.note_wrong_token(peer, about)),
        }
    }

    /// Counts and logs a wrong token. The right token is never refused, so nobody can keep an
    /// operator out by sending wrong ones.
    fn note_wrong_token(&self, peer: Option<SocketAddr>, about: &str) -> Refused {
        self.view.note_wrong_token();
        let ip = peer.map(|peer| peer.ip().to_canonical());
        let Noted { is_first, is_too_many } = lock(&self.wrong_tokens).note(Instant::now(), ip);
        if is_first {
            let by = who(peer);
            log::warn!("an action of --admin by {by} was refused, because its token is wrong");
            let wrong_tokens = self.wrong_tokens.clone();
            tokio::spawn(async move {
                sleep(WINDOW).await;
                if let Some(said) = lock(&wrong_tokens).end() {
                    log::warn!("{said}");
                }
            });
        }
        match is_too_many {
            false => Refused(StatusCode::UNAUTHORIZED, format!("the token is wrong; {about}")),
            true => Refused(
                StatusCode::TOO_MANY_REQUESTS,
                "the token is wrong, as others in the last minute were; the right token is still \
                 accepted"
                    .to_owned(),
            ),
        }
    }

    /// In how many seconds wrong tokens are answered with 401 again.
    pub fn retry_after(&self) -> u64 {
        lock(&self.wrong_tokens).left(Instant::now())
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
        is_demand: bool,
        by: &str,
    ) -> Result<Done, Refused> {
        let body = Body::read(body)?;
        body.check(action, is_demand)?;
        let key = || {
            let text = body.key.as_deref().unwrap_or_default();
            if text.is_empty() {
                return Err(Refused::request("the body has no 'key'"));
            }
            key_of(text).map_err(Refused::wish)
        };
        if is_demand {
            return match action {
                Action::Observe => self.follow_demand(body).await,
                Action::Forgive | Action::Exempt | Action::Block => {
                    Err(Refused::request("agents demand only 'observe'"))
                }
            };
        }
        match action {
            Action::Observe => self.observe(body, by).await,
            Action::Forgive if body.key.is_none() && body.policy.is_some() => {
                let (inspected, policy) = (self.inspected(), policy_of(&body)?);
                let by = on_this_machine(by);
                let reset = move || {
                    let (output, whole) = reset::clear_policy(&inspected, &policy, &by)?;
                    Ok(Done { said: vec![output.words], whole, ..Done::default() })
                };
                let done = blocking(reset).await?;
                self.follow_orders().await;
                Ok(done)
            }
            Action::Forgive => {
                let (inspected, key, by) = (self.inspected(), key()?, by.to_owned());
                blocking(move || forgive(&inspected, body.policy.as_deref(), &key, &by)).await
            }
            Action::Exempt | Action::Block => {
                let kind = match action {
                    Action::Block => OrderKind::Block,
                    _ => OrderKind::Exempt,
                };
                let terms = body.terms(kind, by)?;
                let (inspected, key, by) = (self.inspected(), key()?, by.to_owned());
                let done =
                    blocking(move || order(&inspected, body.policy.as_deref(), &key, &terms, &by));
                let done = done.await?;
                self.follow_orders().await;
                Ok(done)
            }
        }
    }

    /// The decisions now about the clients that a KEY means, in each policy whose key it can be.
    ///
    /// # Errors
    ///
    /// The text is not a key of any of the policies. The error is a sentence.
    pub(crate) fn explain_key(&self, text: &str) -> Result<Vec<Explained>, String> {
        let (key, inspected) = (key_of(text)?, self.inspected());
        let Inspected { table, in_force, leases, .. } = &inspected;
        let lease_client = self.view.lease_client();
        let shared = SharedSources { leases: leases.as_deref(), store: None, lease_client };
        let clients = inspected.clients(None, &key);
        let explained = |client: &InspectedClient| {
            let (message, policy) = (&client.message()?, inspected.policy(client));
            let asked = Asked { in_force, table, shared, message };
            let mut explanation = Explanation {
                message: String::from_utf8_lossy(message.name).into_owned(),
                policy: Some(policy.name.to_string()),
                decided: Some(decided(asked, client.question)),
                ..Explanation::default()
            };
            add_list(&mut explanation, &in_force.policies);
            let notes = client_buckets::notes(&inspected, client);
            let words = explanation.in_words_with(&notes);
            Some(Explained { explanation, words })
        };
        clients
            .map(|clients| clients.iter().filter_map(explained).collect())
            .map_err(|error| format!("{error:#}"))
    }

    /// The policies in force and the table, for looking at clients.
    fn inspected(&self) -> Inspected {
        let leases = self.view.leases().map(|leases| leases.clone());
        let (table, in_force) = (self.view.table(), self.view.in_force());
        Inspected::of_parts(table, self.path.clone(), in_force, leases, PolicySource::Agent)
    }

    /// Switches the mode of a policy in this agent, and then in the others.
    async fn observe(&self, body: Body, by: &str) -> Result<Done, Refused> {
        let (policy, observe) = (policy_of(&body)?, body.observe.unwrap_or(true));
        let at_ns = since_boot_ns(&self.view.table());
        let changed = self.switch(&policy, observe, at_ns, by).await?;
        let others = self.demand_of_others(&policy, observe, at_ns, by).await;
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
        said.extend(others.iter().filter_map(AgentOutcome::in_words));
        Ok(Done { said, whole: done == all, agents: others, ..Done::default() })
    }

    /// Does what another agent of the table has demanded.
    async fn follow_demand(&self, body: Body) -> Result<Done, Refused> {
        let (policy, observe) = (policy_of(&body)?, body.observe.unwrap_or(true));
        let (at_ns, by) = (body.at_ns.unwrap_or_default(), body.by.unwrap_or_default());
        let table = self.view.table();
        let is_fresh = since_boot_ns(&table).abs_diff(at_ns) <= FRESH_NS;
        let listed = table.clone();
        let me =
            spawn_blocking(move || listed.board().processes().into_iter().find(is_this_process));
        // An agent that is not in the list of the table can be given no demand.
        let me = me.await.ok().flatten().filter(|_| is_fresh);
        let demand =
            |me: &Process| Demand { policy: &policy, observe, at_ns, by: &by, to: id(me) };
        let Some(demand) = me.as_ref().map(demand) else { return Err(no_demand()) };
        if body.proof.as_deref() != Some(&demand.proof(&table)) {
            return Err(no_demand());
        }
        let by = format!("{}, through another agent", Visible(&by));
        self.switch(&policy, observe, at_ns, &by).await?;
        let proof = Some(demand.proof_of_answer(&table));
        Ok(Done { whole: true, proof, ..Done::default() })
    }

    async fn switch(
        &self,
        policy: &str,
        observe: bool,
        at_ns: u64,
        by: &str,
    ) -> Result<bool, Refused> {
        let (done, answer) = oneshot::channel();
        let errand = Errand::Observe { policy: policy.to_owned(), observe, at_ns, done };
        let busy = || {
            Refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "the agent is busy or stopping; try again".to_owned(),
            )
        };
        self.errands.try_send(errand).map_err(|_| busy())?;
        let answer = timeout(PATIENCE, answer).await.map_err(|_| busy())?.map_err(|_| busy())?;
        let changed = answer.map_err(Refused::wish)?;
        match (changed, observe) {
            (true, true) => log::warn!(
                "policy '{policy}' only observes from now on, and blocks no request, until the \
                 next reload: an action of --admin by {by}"
            ),
            (true, false) => {
                log::info!(
                    "policy '{policy}' blocks requests again: an action of --admin by {by}"
                );
            }
            (false, _) => {
                let does = if observe { "only observes" } else { "blocks requests" };
                log::info!(
                    "policy '{policy}' {does}, as before: an action of --admin by {by} has \
                     changed nothing"
                );
            }
        }
        Ok(changed)
    }

    /// Puts the orders of the table in force in this agent, so that what is shown next is what
    /// was done. If the housekeeping is busy, it follows them within a second.
    async fn follow_orders(&self) {
        let (done, followed) = oneshot::channel();
        if self.errands.try_send(Errand::Orders { done }).is_ok() {
            // Whether it was done in time makes no difference to the answer.
            let _ = timeout(PATIENCE, followed).await;
        }
    }

    /// Asks the other agents of the table to do the same.
    async fn demand_of_others(
        &self,
        policy: &str,
        observe: bool,
        at_ns: u64,
        by: &str,
    ) -> Vec<AgentOutcome> {
        let (table, path) = (self.view.table(), self.path.clone());
        let listed = table.clone();
        let listed =
            spawn_blocking(move || (listed.board().processes(), stopped_long_ago(&listed, &path)));
        let (alive, stopped) = listed.await.unwrap_or_default();
        let is_listed = |it: &&Process| alive.iter().any(|other| id(other) == id(it));
        let mut all: Vec<_> = stopped
            .iter()
            // It may have fallen silent just between the two looks.
            .filter(|process| !is_listed(process))
            .map(|process| AgentOutcome {
                agent: process_list::name(process),
                done: false,
                why: Some("it is stopped (SIGSTOP), so it was not asked".to_owned()),
                may_follow: false,
            })
            .collect();
        // The table's list bounds how many there are.
        let others = alive.into_iter().filter(|process| !is_this_process(process));
        let others = others.map(|process| {
            let demand = Demand { policy, observe, at_ns, by, to: id(&process) };
            let (body, proof) = (demand.body(&table), demand.proof_of_answer(&table));
            let agent = process_list::name(&process);
            let admin = process.profile.and_then(|it| it.admin);
            async move {
                let asked = match admin {
                    None => Err(Unheard::refused("it has no --admin")),
                    Some(address) => send_demand(address, &body, &proof).await,
                };
                let (done, asked) = (asked.is_ok(), asked.err());
                let may_follow = asked.as_ref().is_some_and(|unheard| unheard.is_sent);
                AgentOutcome { agent, done, why: asked.map(|unheard| unheard.why), may_follow }
            }
        });
        all.extend(join_all(others).await);
        all.sort_by(|a, b| a.agent.cmp(&b.agent));
        all
    }
}

/// Sends a demand, and checks that the answer is that of the agent that it is for.
async fn send_demand(address: SocketAddr, body: &str, proof: &str) -> Result<(), Unheard> {
    let answer = demand(address, "/actions/observe?own", body, PATIENCE).await?;
    let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
    match answer["proof"] == proof {
        true => Ok(()),
        false => Err(Unheard::refused(&format!(
            "the program that answers at {address} is not this agent"
        ))),
    }
}

/// The demand of an agent to another one, as both digests have it.
#[derive(Debug, Serialize)]
struct Demand<'a> {
    policy: &'a str,
    observe: bool,
    at_ns: u64,
    /// The operator's address.
    by: &'a str,
    /// The place, attachment and process id of the agent that it is for.
    #[serde(skip)]
    to: (usize, u32, u32),
}

impl Demand<'_> {
    fn body(&self, table: &Table) -> String {
        #[derive(Serialize)]
        struct Body<'o> {
            #[serde(flatten)]
            demand: &'o Demand<'o>,
            proof: String,
        }
        let body = Body { demand: self, proof: self.proof(table) };
        // All keys are strings, so this does not fail.
        serde_json::to_string(&body).unwrap_or_default()
    }

    /// Digits that show that an agent of the table has demanded it.
    fn proof(&self, table: &Table) -> String {
        self.digits(table, "gcra-spoa demand")
    }

    /// Digits that show that the agent that it is for has followed it.
    fn proof_of_answer(&self, table: &Table) -> String {
        self.digits(table, "gcra-spoa demand followed")
    }

    /// Digits for all of it that only processes that can read the table can compute.
    fn digits(&self, table: &Table, what: &str) -> String {
        let Self { policy, observe, at_ns, by, to } = self;
        // As debug output strings are quoted, so no two demands have the same text.
        digits_of(&format!("{what}: {:?}", (policy, observe, at_ns, by, to)), table)
    }
}

/// The numbers that tell an agent of a table from all others: its place in the list, the number
/// of its attachment and its process id.
fn id(process: &Process) -> (usize, u32, u32) {
    (process.place, process.attachment, process.pid)
}

fn no_demand() -> Refused {
    let said = "this is not a demand that an agent of the table has just given to this agent";
    Refused::forbidden(said)
}

/// The decision about a client, in words too.
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
    Ok(text.parse()?)
}

fn policy_of(body: &Body) -> Result<String, Refused> {
    let policy = body.policy.clone().filter(|policy| !policy.is_empty());
    policy.ok_or_else(|| Refused::request("the body has no 'policy'"))
}

fn since_boot_ns(table: &Table) -> u64 {
    table.since_boot(table.now()).0
}

/// Does something on a thread that may wait.
async fn blocking(
    work: impl FnOnce() -> anyhow::Result<Done> + Send + 'static,
) -> Result<Done, Refused> {
    match spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| Refused::wish(format!("{error:#}"))),
        // A panic would be a bug.
        Err(error) => Err(Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

fn forgive(
    inspected: &Inspected,
    policy: Option<&str>,
    key: &Key,
    by: &str,
) -> anyhow::Result<Done> {
    let store = inspected.in_force.policies.store.clone().map(InStore::new).transpose()?;
    let mut said = Vec::new();
    let cleared = reset::clear(inspected, policy, key, store.as_ref(), |it| {
        match it {
            ResetOutput::Note(note) => said.push(note),
            ResetOutput::Outputs(outputs) => {
                said.extend(outputs.into_iter().map(|Output { words, .. }| words));
            }
        }
        Ok(())
    })?;
    if let Some(after) = cleared.after.filter(|_| !cleared.has_failed) {
        said.push(after.in_words().to_owned());
    }
    for (client, policy) in &cleared.clients {
        log::info!(
            "what {client} owes under the policy '{policy}' was cleared: an action of --admin by \
             {by}"
        );
    }
    if cleared.clients.is_empty() {
        log::info!("an action of --admin by {by} to clear what a client owes has changed nothing");
    }
    let whole = !cleared.has_failed && !cleared.misses;
    let found = cleared.clients.is_empty().then_some(false);
    Ok(Done { said, whole, found, ..Done::default() })
}

/// Gives an order about the clients of a key, or ends those of its kind if its time is zero. `by`
/// is who asks, for the log.
fn order(
    inspected: &Inspected,
    policy: Option<&str>,
    key: &Key,
    terms: &Terms,
    by: &str,
) -> anyhow::Result<Done> {
    let Terms { kind, time, .. } = terms;
    let OrderWords { noun, state, .. } = OrderWords::of(*kind);
    let begins = *time > Duration::ZERO;
    let found = subjects(inspected, policy, key);
    let clients = found.as_deref().unwrap_or_default();
    let former = match begins {
        true => Vec::new(),
        false => former_orders::of_key(inspected, *kind, policy, key, clients),
    };
    // An order of a policy that is gone, or of a key that no policy has now, ends all the same.
    let subjects = if former.is_empty() { found? } else { found.unwrap_or_default() };
    let mut said = Vec::new();
    if begins {
        said = check(inspected, key, &subjects, *kind)?;
        let clients = subjects.iter().filter_map(|subject| subject.client.as_ref());
        said.extend(clients.flat_map(|client| client_buckets::notes(inspected, client)));
    }
    let mut store = GivesToStore::of(inspected)?;
    let (mut found, mut whole) = (false, true);
    for subject in &subjects {
        let here = subject.order(inspected).filter(|order| order.kind == *kind);
        let known = match begins {
            true => None,
            false => store.as_ref().and_then(|it| it.state(inspected, subject, *kind)),
        };
        let policy = subject.policy(inspected);
        if !begins && here.is_none() && known != Some(StateInStore::Stands) {
            if former.iter().any(|order| policy.is_meant_by(order)) {
                continue;
            }
            if let Some(StateInStore::Ended(ago)) = known {
                found = true;
                let (policy, client) = (&policy.name, &subject.name);
                said.push(format!("policy '{policy}': the {noun} of {client} {}", was_ended(ago)));
            }
            continue;
        }
        found = true;
        let mut words = format!("policy '{}': {} is ", policy.name, subject.name);
        // Writing to a string does not fail.
        let in_store = if begins {
            subject.give(inspected, terms)?;
            let (time, end) = (terms.time_in_words(), end_in_words(*time));
            let _ = write!(words, "{state} for {time}, until {end}");
            store.as_mut().map(|it| it.give(inspected, subject, terms))
        } else {
            let _ = write!(words, "no longer {state}");
            end_everywhere(inspected, store.as_mut(), subject, *kind, here.as_ref())?
        };
        log::info!("{words}: an action of --admin by {by}");
        whole &= in_store.as_ref().is_none_or(Result::is_ok);
        let where_now = if begins { where_it_holds } else { where_it_has_ended };
        said.push(format!("{words}, {}", where_now(in_store.as_ref())));
    }
    for order in &former {
        let ended = former_orders::end(inspected, store.as_mut(), order, key)?;
        let of = ended.policy.map(|name| format!("policy '{name}': ")).unwrap_or_default();
        let words = format!("{of}{}", ended.in_words(order));
        log::info!("{words}: an action of --admin by {by}");
        whole &= ended.in_store.is_none_or(|it| it.is_ok());
        said.push(words);
        found = true;
    }
    if !found {
        let notes = subjects.iter().flat_map(|it| notes_to_end(inspected, it, *kind));
        let said = iter::once(format!("there is no {noun} for this key"));
        let missing = store.as_ref().and_then(GivesToStore::what_is_missing);
        bail!(said.chain(notes).chain(missing).collect::<Vec<_>>().join("; "));
    }
    Ok(Done { said, whole, ..Done::default() })
}

pub fn who(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(|| "an unknown client".to_owned(), |peer| peer.to_string())
}

#[cfg(test)]
mod tests {
    use gcra_table::Slots;

    use super::*;

    #[test]
    fn an_order_is_known_by_digests_that_depend_on_all_of_it() {
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let of = |policy, observe, at_ns, by, to| Demand { policy, observe, at_ns, by, to };
        let demands = [
            of("api", true, 7, "192.0.2.1:1", (0, 1, 9)),
            of("api", false, 7, "192.0.2.1:1", (0, 1, 9)),
            of("api", true, 8, "192.0.2.1:1", (0, 1, 9)),
            of("login", true, 7, "192.0.2.1:1", (0, 1, 9)),
            of("api", true, 7, "192.0.2.2:1", (0, 1, 9)),
            of("api", true, 7, "192.0.2.1:1", (1, 1, 9)),
            of("api", true, 7, "192.0.2.1:1", (0, 2, 9)),
            of("api", true, 7, "192.0.2.1:1", (0, 1, 8)),
        ];
        let digests = |demand: &Demand<'_>| [demand.proof(&table), demand.proof_of_answer(&table)];
        let all: std::collections::BTreeSet<_> = demands.iter().flat_map(digests).collect();
        assert_eq!(all.len(), 2 * demands.len());
        let other = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        assert_ne!(demands[0].proof(&other), demands[0].proof(&table), "its key is its own");
        let body = Body::read(demands[0].body(&table).as_bytes()).unwrap();
        assert_eq!(body.proof, Some(demands[0].proof(&table)));
        body.check(Action::Observe, true).unwrap();
        body.check(Action::Observe, false).unwrap_err();
    }

    #[test]
    fn seconds_outside_of_their_range_can_be_read_and_not_obeyed() {
        let seconds = |json: &str| {
            let body = format!("{{\"key\": \"192.0.2.7\", \"for_seconds\": {json}}}");
            Body::read(body.as_bytes()).and_then(|body| body.seconds())
        };
        for (json, right) in [("10", 10), ("604800", 604_800), ("0", 0), ("null", HOUR)] {
            assert_eq!(seconds(json).unwrap(), right, "{json}");
        }
        let digits = "9".repeat(400);
        for wrong in [
            "9",
            "604801",
            "-1",
            "-10",
            "18446744073709551615",
            "18446744073709551626",
            "-18446744073709551626",
            "1e300",
            "1e400",
            "60.5",
            &digits,
        ] {
            assert!(
                matches!(seconds(wrong), Err(Refused(StatusCode::UNPROCESSABLE_ENTITY, _))),
                "{wrong}"
            );
        }
        for wrong in ["\"60\"", "true", "[60]", "NaN", "+60", "0x3c", "060"] {
            assert!(matches!(seconds(wrong), Err(Refused(StatusCode::BAD_REQUEST, _))), "{wrong}");
        }
    }

    #[test]
    fn a_body_has_only_what_its_action_obeys() {
        let read = |json: &str| Body::read(json.as_bytes());
        let null_key = "{\"key\": null, \"policy\": \"api\"}";
        for wrong in ["", "[\"192.0.2.7\"]", "\"key\"", "null", "{\"keys\": 1}", "{} {}", null_key]
        {
            assert!(matches!(read(wrong), Err(Refused(StatusCode::BAD_REQUEST, _))), "{wrong}");
        }
        let refused = |json: &str, action| read(json).unwrap().check(action, false).is_err();
        let (key, time) = ("{\"key\": \"192.0.2.7\"}", "{\"for_seconds\": 60}");
        let observe = " {\"policy\": \"api\", \"observe\": true}";
        for (json, right) in [
            (key, &[Action::Forgive, Action::Exempt, Action::Block][..]),
            (time, &[Action::Exempt, Action::Block]),
            ("{\"note\": \"INC-1\"}", &[Action::Exempt, Action::Block]),
            (observe, &[Action::Observe]),
        ] {
            for action in [Action::Forgive, Action::Exempt, Action::Block, Action::Observe] {
                assert_eq!(refused(json, action), !right.contains(&action), "{json} {action:?}");
            }
        }
    }
}
