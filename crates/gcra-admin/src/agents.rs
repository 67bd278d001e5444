//! The agents of a table: what the table says about each, and what each answers about itself.
//!
//! `/status` and `/live` of one agent tell about all of them. It asks the others at the admin
//! addresses in the table, all at the same time. Whatever is at these addresses, the time and the
//! memory that this takes are bounded. However many clients ask, the agents are asked for their
//! status twice a second at most, and once a second for what the live page shows.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use gcra_inspect::agent_client::{Budget, ask};
use gcra_inspect::former_orders::ListedOrder;
use gcra_inspect::orders::is_full;
use gcra_inspect::process_list::{is_this_process, pid_namespace};
use gcra_inspect::process_state::{killed_lately, stopped_long_ago};
use gcra_limiter::history::{self, Past};
use gcra_limiter::stats::lock;
use gcra_policy::{Policies, Policy};
use gcra_table::board::{Order, Process};
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::agent_view::AgentView;
use crate::log_lines::{self, Event};
use crate::status::Status;
use crate::status_sum::Together;

const MOST_ASKED: usize = 64;

/// How long the agents may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// An agent that beats once a second and has been silent for this long is probably stopped.
const SILENCE: Duration = Duration::from_secs(3);

/// How long such an agent may take.
const LITTLE_PATIENCE: Duration = Duration::from_millis(200);

/// How many bytes all answers together may have. A status has about 5 KiB, and up to 5 KiB more
/// for each policy.
const MOST_BYTES: usize = 16 << 20;

/// The questions to the agents.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wanted {
    Status,
    /// Also the last half minute, and what happened in it.
    Recent,
    /// Also all that is kept of the last minutes.
    All,
}

impl Wanted {
    /// The path where an agent answers about itself.
    fn path(self) -> &'static str {
        match self {
            Self::Status => "/status?own",
            Self::Recent => "/live?own",
            Self::All => "/live?own&all",
        }
    }

    /// How old an answer may be that is given again.
    fn max_age(self) -> Duration {
        Duration::from_millis(if self == Self::Status { 500 } else { 1_000 })
    }

    /// How many slots of the history are in an answer.
    fn slots(self) -> usize {
        match self {
            Self::Status => 0,
            Self::Recent => history::RECENT,
            Self::All => history::SLOTS,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ListedAgent {
    /// Its process id in its own pid namespace.
    pub pid: u32,
    /// "ours" if the id means the same process to the agent that says this.
    pub pid_namespace: String,
    /// Whether it is the agent that says this.
    pub(crate) this_agent: bool,
    /// Its place in the table's list, and the number of its attachment, which tell the agents of
    /// a table apart.
    pub entry: Option<(usize, u32)>,
    pub admin: Option<SocketAddr>,
    /// Whether its limits are those of the agent that says this, if that is known.
    pub(crate) same_limits: Option<bool>,
    /// How long ago it last wrote into the table that it is alive.
    pub(crate) silent_seconds: f64,
    pub status: Option<Status>,
    /// Why there is no status.
    pub why: Option<String>,
}

/// All that `/status` has: the agent's own status, and all agents of the table.
#[derive(Serialize)]
struct Everything {
    #[serde(flatten)]
    own: Status,
    together: Together,
    agents: Vec<ListedAgent>,
    killed: Vec<KilledAgent>,
}

/// The most agents that were killed of which a status tells.
const MOST_KILLED: usize = 20;

/// An agent that ended within the last ten minutes and did not say so.
#[derive(Serialize)]
struct KilledAgent {
    pid: u32,
    /// As in [`ListedAgent`]. Only of one of "ours" it is certain that it does not run.
    pid_namespace: &'static str,
    silent_seconds: f64,
}

impl KilledAgent {
    fn of(process: &Process) -> Self {
        Self {
            pid: process.pid,
            pid_namespace: pid_namespace(process),
            silent_seconds: silent_seconds(process),
        }
    }
}

/// How long ago a process last wrote into the table that it is alive.
fn silent_seconds(process: &Process) -> f64 {
    process.silent.map_or(0.0, |ns| Duration::from(ns).as_secs_f64())
}

/// The answer of an agent about itself for the live pages of all agents.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Own {
    pub status: Status,
    pub past: Past,
    pub(crate) events: Vec<Event>,
}

impl Own {
    pub(crate) fn of(view: &AgentView, wanted: Wanted) -> Self {
        let mut events = log_lines::EVENTS.all();
        if wanted == Wanted::Recent {
            let since = log_lines::now_ms().saturating_sub(RECENT_MS);
            events.retain(|event| event.at_ms >= since);
        }
        Self { status: view.status(), past: view.past(wanted.slots()), events }
    }
}

/// How long the events of a short answer go back.
const RECENT_MS: u64 = 1_000 * history::STEP * history::RECENT as u64;

#[derive(Clone, Debug, Default)]
pub struct AgentsAnswer {
    /// The body of `/status`.
    pub status: Bytes,
    /// The body of `/history`, unless only the status was wanted.
    pub history: Bytes,
    /// The body of `/events`, unless only the status was wanted.
    pub(crate) events: Bytes,
    /// The body of `/live`, unless only the status was wanted.
    pub live: Bytes,
}

/// The counts of all agents of a table, with what is needed to read it.
#[derive(Serialize)]
struct History {
    step_seconds: u64,
    /// When the first slot began, in seconds since 1970.
    start_seconds: f64,
    #[serde(flatten)]
    past: Past,
}

/// The policies and orders in force in this agent, in words.
#[derive(Default, Serialize)]
struct InWords {
    #[serde(flatten)]
    policies: Arc<PoliciesInWords>,
    orders: Vec<ListedOrder>,
    /// Whether the table has no space for a further order.
    is_full: bool,
}

#[derive(Debug, Default, Serialize)]
struct PoliciesInWords {
    policies: Vec<PolicyInWords>,
    /// The store and the variables.
    rest: Vec<String>,
}

/// The words about policies that were needed last, with the policies and the minute that they are
/// about. It takes long to count long lists of overrides, and the words say when windows end.
#[derive(Default)]
struct Described(std::sync::Mutex<(Weak<Policies>, u64, Arc<PoliciesInWords>)>);

impl Described {
    fn at(&self, now: SystemTime, all: &Arc<Policies>) -> Arc<PoliciesInWords> {
        let minute = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let mut latest = lock(&self.0);
        // The weak reference keeps the address from being used again.
        if !std::ptr::eq(latest.0.as_ptr(), Arc::as_ptr(all)) || latest.1 != minute {
            *latest = (Arc::downgrade(all), minute, PoliciesInWords::of(all, now).into());
        }
        latest.2.clone()
    }
}

#[derive(Debug, Serialize)]
struct PolicyInWords {
    name: String,
    /// Whether it blocks no request.
    observes: bool,
    /// Whether that is so because of an action.
    switched: bool,
    /// Its purpose, and a line for each fact.
    lines: Vec<String>,
}

impl PoliciesInWords {
    fn of(all: &Policies, now: SystemTime) -> Self {
        let policy = |policy: &Policy| PolicyInWords {
            name: policy.name.to_string(),
            observes: policy.observes,
            switched: all.switched.contains(&policy.name),
            lines: policy.lines(all, now).iter().map(|line| line.trim_start().into()).collect(),
        };
        Self {
            policies: all.without_trials().take(MOST_POLICIES).map(policy).collect(),
            rest: all.rest_in_words(),
        }
    }
}

impl InWords {
    fn of(view: &AgentView, described: &Described) -> Self {
        let (in_force, table) = (view.in_force(), view.table());
        let all = &in_force.policies;
        let policies = described.at(SystemTime::now(), all);
        let order = |order: &Order| {
            let policy = all.without_trials().find(|policy| policy.is_meant_by(order));
            ListedOrder::of(order, policy, &table)
        };
        let orders = in_force.orders.iter().map(order).collect();
        Self { policies, orders, is_full: is_full(&table) }
    }
}

const MOST_POLICIES: usize = 100;

/// The agents, as one of them sees them.
pub(crate) struct Agents {
    view: Arc<AgentView>,
    path: PathBuf,
    /// The latest answers: the status, and those for the live page.
    latest: [Mutex<Latest>; 3],
    /// How many actions there were. Each makes older answers useless.
    actions: AtomicU64,
    described: Arc<Described>,
}

#[derive(Debug, Default)]
struct Latest {
    answer: Option<(Instant, AgentsAnswer)>,
    /// The work that makes the next answer. It goes on when the client that wanted it has gone.
    work: Option<JoinHandle<(Instant, AgentsAnswer)>>,
    /// How many actions there were when that work began.
    actions: u64,
}

impl Agents {
    pub(crate) fn new(view: Arc<AgentView>, path: PathBuf) -> Self {
        let (latest, actions, described) = Default::default();
        Self { view, path, latest, actions, described }
    }

    /// After an action: what was gathered before it is answered to nobody any more.
    pub(crate) fn forget(&self) {
        self.actions.fetch_add(1, Ordering::Relaxed);
    }

    /// The answer now. Clients that come at the same time share an answer.
    pub(crate) async fn answer(&self, wanted: Wanted) -> AgentsAnswer {
        let mut latest = self.latest[wanted as usize].lock().await;
        let actions = self.actions.load(Ordering::Relaxed);
        if latest.actions != actions {
            *latest = Latest { actions, ..Latest::default() };
        }
        // Work that no client has waited for to the end may have ended long ago.
        for _ in 0..2 {
            if let Some((at, answer)) = &latest.answer
                && at.elapsed() < wanted.max_age()
            {
                return answer.clone();
            }
            let (view, path) = (self.view.clone(), self.path.clone());
            let described = self.described.clone();
            let gather = || tokio::spawn(everything(view, path, described, wanted));
            let answer = latest.work.get_or_insert_with(gather).await;
            latest.work = None;
            latest.answer = answer.ok();
        }
        // A panic would be a bug; there is an empty answer then.
        latest.answer.as_ref().map(|(_, answer)| answer.clone()).unwrap_or_default()
    }
}

/// The answer, and when it was made.
async fn everything(
    view: Arc<AgentView>,
    path: PathBuf,
    described: Arc<Described>,
    wanted: Wanted,
) -> (Instant, AgentsAnswer) {
    view.scan().await;
    let own = view.status();
    let table = view.table();
    // On another thread, because it reads files of /proc.
    let listed = spawn_blocking(move || {
        (table.board().processes(), stopped_long_ago(&table, &path), killed_lately(&table, &path))
    });
    let (alive, stopped, killed) = listed.await.unwrap_or_default();
    let killed = killed.iter().take(MOST_KILLED).map(KilledAgent::of).collect();
    let mut agents = agents(&own, &alive, &stopped);
    let (mut pasts, mut events) = ask_all(&own, &mut agents, wanted).await;
    // Again, because the others may have taken a second.
    let own = Own::of(&view, wanted);
    pasts.insert(0, own.past);
    events.push(own.events);
    let own = own.status;
    if let Some(me) = agents.first_mut() {
        me.status = Some(own.clone());
    }
    let table = view.table();
    let since_boot = Duration::from(table.since_boot(table.now()));
    let now_ms = log_lines::now_ms();
    // On another thread, because the others may have said a lot.
    let add_up = move || {
        let together = Together::of(agents.iter().filter_map(|agent| agent.status.as_ref()));
        let everything = Everything { own, together, agents, killed };
        // There are no maps with keys that are not strings, so this does not fail.
        let status: Bytes = serde_json::to_vec(&everything).unwrap_or_default().into();
        if wanted == Wanted::Status {
            return AgentsAnswer { status, ..AgentsAnswer::default() };
        }
        let past = Past::sum(pasts.iter(), wanted.slots());
        let start = Duration::from_secs(past.first.saturating_mul(history::STEP));
        let start = Duration::from_millis(now_ms).saturating_sub(since_boot.saturating_sub(start));
        let history =
            History { step_seconds: history::STEP, start_seconds: start.as_secs_f64(), past };
        let history = serde_json::to_vec(&history).unwrap_or_default();
        let events =
            serde_json::to_vec(&log_lines::merged(events.into_iter())).unwrap_or_default();
        let configuration = InWords::of(&view, &described);
        let configuration = serde_json::to_vec(&configuration).unwrap_or_default();
        let parts: [(&str, &[u8]); 4] = [
            ("configuration", &configuration),
            ("history", &history),
            ("events", &events),
            ("status", &status),
        ];
        let mut live = format!("{{\"now_ms\":{now_ms}").into_bytes();
        for (name, json) in parts {
            live.extend_from_slice(format!(",\"{name}\":").as_bytes());
            live.extend_from_slice(json);
        }
        live.push(b'}');
        AgentsAnswer { status, history: history.into(), events: events.into(), live: live.into() }
    };
    let answer = spawn_blocking(add_up).await.unwrap_or_default();
    (Instant::now(), answer)
}

/// The agents, as the table lists them. The one that answers comes first.
fn agents(own: &Status, alive: &[Process], stopped: &[Process]) -> Vec<ListedAgent> {
    let limits = |process: &Process| process.profile.map(|profile| profile.limits);
    let me = alive.iter().find(|process| is_this_process(process));
    let own_limits = me.and_then(limits);
    let mut agents = vec![ListedAgent {
        pid: own.pid,
        pid_namespace: "ours".to_owned(),
        this_agent: true,
        entry: me.map(|me| (me.place, me.attachment)),
        admin: me.and_then(|me| me.profile?.admin),
        same_limits: Some(true),
        silent_seconds: 0.0,
        status: Some(own.clone()),
        why: None,
    }];
    let others =
        alive.iter().filter(|process| !is_this_process(process)).map(|process| (process, false));
    let stopped = stopped.iter().map(|process| (process, true));
    agents.extend(others.chain(stopped).map(|(process, is_stopped)| ListedAgent {
        pid: process.pid,
        pid_namespace: pid_namespace(process).to_owned(),
        this_agent: false,
        entry: Some((process.place, process.attachment)),
        admin: process.profile.and_then(|profile| profile.admin),
        same_limits: limits(process).zip(own_limits).map(|(theirs, ours)| theirs == ours),
        silent_seconds: silent_seconds(process),
        status: None,
        why: why_silent(process, is_stopped).map(str::to_owned),
    }));
    agents
}

/// Why an agent cannot be asked, if that is known.
fn why_silent(process: &Process, is_stopped: bool) -> Option<&'static str> {
    match process.profile {
        _ if is_stopped => Some("it is stopped (SIGSTOP)"),
        None => Some(
            "it does not say whether it has an --admin: it has just started, or is an older \
             version",
        ),
        Some(profile) if profile.admin.is_none() => Some("it has no --admin"),
        Some(_) => None,
    }
}

/// Asks the agents that have an admin address, all at the same time. Returns the histories and
/// the events of those that answered.
async fn ask_all(
    own: &Status,
    agents: &mut [ListedAgent],
    wanted: Wanted,
) -> (Vec<Past>, Vec<Vec<Event>>) {
    let budget = &Budget::new(MOST_BYTES);
    let mut questions = Vec::new();
    for (place, agent) in agents.iter_mut().enumerate() {
        let Some(address) = agent.admin.filter(|_| agent.status.is_none() && agent.why.is_none())
        else {
            continue;
        };
        if questions.len() == MOST_ASKED {
            agent.why = Some(format!("only {MOST_ASKED} agents are asked"));
            continue;
        }
        let is_silent = agent.silent_seconds > SILENCE.as_secs_f64();
        let patience = if is_silent { LITTLE_PATIENCE } else { PATIENCE };
        questions.push(async move {
            let answer = match wanted {
                Wanted::Status => {
                    let status = ask::<Status>(address, wanted.path(), patience, budget).await;
                    status.map(|status| (status, None))
                }
                Wanted::Recent | Wanted::All => {
                    let own = ask::<Own>(address, wanted.path(), patience, budget).await;
                    own.map(|Own { status, past, events }| (status, Some((past, events))))
                }
            };
            (place, address, answer)
        });
    }
    let (mut pasts, mut events) = (Vec::new(), Vec::new());
    let mut known = HashSet::from([own.identity()]);
    for (place, address, answer) in join_all(questions).await {
        let Some(agent) = agents.get_mut(place) else { continue };
        match answer {
            Ok((status, _)) if status.pid != agent.pid || status.table.id != own.table.id => {
                agent.why = Some(elsewhere(address, &status));
            }
            // Two containers can have the same process ids and addresses.
            Ok((status, _)) if !known.insert(status.identity()) => {
                agent.why = Some(elsewhere(address, &status));
            }
            Ok((status, more)) => {
                agent.status = Some(status);
                if let Some((past, said)) = more {
                    pasts.push(past);
                    // It says what it likes about others, and its own process id is known.
                    events.push(
                        said.into_iter().map(|event| Event { pid: agent.pid, ..event }).collect(),
                    );
                }
            }
            Err(why) => agent.why = Some(why),
        }
    }
    (pasts, events)
}

fn elsewhere(address: SocketAddr, status: &Status) -> String {
    format!(
        "another agent answers at {address} (pid {}); this one is in another network namespace, \
         or has ended",
        status.pid
    )
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use std::path::Path;

    use gcra_policy::file::document;

    use super::*;
    use crate::testing::idle_agent;

    #[test]
    fn the_end_of_a_window_is_told_anew_when_it_is_over() {
        let text = "[policy.api]\nkey = [\"ip\"]\nlimits = { count = 5, window = \"day\" }\n";
        let policies = Arc::new(document::parse(Path::new("gcra-spoa.toml"), text).unwrap());
        let described = Described::default();
        let ends_on = |hours: u64| {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(hours * 3_600);
            let words = described.at(now, &policies);
            let end =
                words.policies[0].lines.iter().find_map(|line| line.split_once("begins at "));
            end.map(|(_, day)| day[..10].to_owned()).unwrap()
        };
        assert_eq!([1, 2, 25].map(ends_on), ["1970-01-02", "1970-01-02", "1970-01-03"]);
    }

    /// A viewer can leave while the agents are asked, and the next one may come much later.
    #[tokio::test]
    async fn an_answer_that_nobody_waited_for_is_not_given_later() {
        let view = Arc::new(idle_agent().unwrap());
        let agents = Agents::new(view.clone(), PathBuf::new());
        tokio::select! {
            biased;
            _ = agents.answer(Wanted::Status) => panic!("it takes more than one poll"),
            () = std::future::ready(()) => {}
        }
        // The work ends, however long it takes.
        let latest = &agents.latest[Wanted::Status as usize];
        while !latest.lock().await.work.as_ref().unwrap().is_finished() {
            sleep(Duration::from_millis(5)).await;
        }
        let (ended, max_age) = (view.status().uptime_seconds.0, Wanted::Status.max_age());
        sleep(2 * max_age).await;
        let answer = agents.answer(Wanted::Status).await.status;
        let answer: Status = serde_json::from_slice(&answer).unwrap();
        let later = ended + 1.5 * max_age.as_secs_f64();
        assert!(answer.uptime_seconds.0 > later, "after {ended}: {answer:?}");
    }
}
