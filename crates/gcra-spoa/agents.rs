//! The agents of a table: what the table says about each, and what each answers about itself.
//!
//! `/status` of one agent tells about all of them. It asks the others at the admin addresses in
//! the table, all at the same time. Whatever is at these addresses, the time and the memory that
//! this takes are bounded, and however many clients ask, the agents are asked twice a second at
//! most.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gcra_table::Process;
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};

use crate::ask::{Budget, ask};
use crate::halt::stopped_long_ago;
use crate::listed::{is_this_process, pid_namespace};
use crate::status::{Status, Watched};
use crate::together::Together;

/// How many agents are asked.
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

/// How old an answer may be that is given again.
const MAX_AGE: Duration = Duration::from_millis(500);

/// An agent of the table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Agent {
    /// Its process id in its own pid namespace.
    pub(crate) pid: u32,
    /// "ours" if the id means the same process to the agent that says this.
    pub(crate) pid_namespace: String,
    /// Whether it is the agent that says this.
    pub(crate) this_agent: bool,
    /// Its place in the table's list, and the number of its attachment, which tell the agents of
    /// a table apart.
    pub(crate) entry: Option<(usize, u32)>,
    /// Its `--admin`.
    pub(crate) admin: Option<SocketAddr>,
    /// Whether its limits are those of the agent that says this, if that is known.
    pub(crate) same_limits: Option<bool>,
    /// How long ago it last wrote into the table that it is alive.
    pub(crate) silent_seconds: f64,
    pub(crate) status: Option<Status>,
    /// Why there is no status.
    pub(crate) why: Option<String>,
}

/// All that `/status` has: the agent's own status, and all agents of the table.
#[derive(Serialize)]
struct Everything {
    #[serde(flatten)]
    own: Status,
    together: Together,
    agents: Vec<Agent>,
}

/// The agents, as one of them sees them.
#[derive(Debug)]
pub(crate) struct Agents {
    watched: Arc<Watched>,
    /// The path of the table.
    path: PathBuf,
    latest: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    answer: Option<(Instant, Bytes)>,
    /// The work that makes the next answer. It goes on when the client that wanted it has gone.
    work: Option<JoinHandle<(Instant, Bytes)>>,
}

impl Agents {
    pub(crate) fn new(watched: Arc<Watched>, path: PathBuf) -> Self {
        Self { watched, path, latest: Mutex::default() }
    }

    /// What `/status` answers.
    pub(crate) async fn status(&self) -> Bytes {
        let mut latest = self.latest.lock().await;
        // Work that no client has waited for to the end may have ended long ago.
        for _ in 0..2 {
            if let Some((at, answer)) = &latest.answer
                && at.elapsed() < MAX_AGE
            {
                return answer.clone();
            }
            let gather = || tokio::spawn(everything(self.watched.clone(), self.path.clone()));
            let answer = latest.work.get_or_insert_with(gather).await;
            latest.work = None;
            latest.answer = answer.ok();
        }
        // A panic would be a bug; there is an empty answer then.
        latest.answer.as_ref().map(|(_, answer)| answer.clone()).unwrap_or_default()
    }
}

/// The answer, and when it was made.
async fn everything(watched: Arc<Watched>, path: PathBuf) -> (Instant, Bytes) {
    watched.scan().await;
    let own = watched.status();
    let table = watched.table();
    // On another thread, because it reads files of /proc.
    let listed = spawn_blocking(move || (table.processes(), stopped_long_ago(&table, &path)));
    let (alive, stopped) = listed.await.unwrap_or_default();
    let mut agents = agents(&own, &alive, &stopped);
    ask_all(&own, &mut agents).await;
    // Again, because the others may have taken a second.
    let own = watched.status();
    if let Some(me) = agents.first_mut() {
        me.status = Some(own.clone());
    }
    // On another thread, because the others may have said a lot.
    let add_up = move || {
        let together = Together::of(agents.iter().filter_map(|agent| agent.status.as_ref()));
        let everything = Everything { own, together, agents };
        // It has no maps with keys that are not strings, so this does not fail.
        serde_json::to_vec(&everything).unwrap_or_default()
    };
    let answer = spawn_blocking(add_up).await.unwrap_or_default();
    (Instant::now(), answer.into())
}

/// What the table says about its agents. The one that answers comes first.
fn agents(own: &Status, alive: &[Process], stopped: &[Process]) -> Vec<Agent> {
    let limits = |process: &Process| process.profile.map(|profile| profile.limits);
    let me = alive.iter().find(|process| is_this_process(process));
    let own_limits = me.and_then(limits);
    let mut agents = vec![Agent {
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
    agents.extend(others.chain(stopped).map(|(process, is_stopped)| Agent {
        pid: process.pid,
        pid_namespace: pid_namespace(process).to_owned(),
        this_agent: false,
        entry: Some((process.place, process.attachment)),
        admin: process.profile.and_then(|profile| profile.admin),
        same_limits: limits(process).zip(own_limits).map(|(theirs, ours)| theirs == ours),
        silent_seconds: process.silent.map_or(0.0, |ns| Duration::from(ns).as_secs_f64()),
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

/// Asks the agents that have an admin address, all at the same time.
async fn ask_all(own: &Status, agents: &mut [Agent]) {
    let budget = Arc::new(Budget::new(MOST_BYTES));
    let mut questions = JoinSet::new();
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
        let budget = budget.clone();
        questions.spawn(async move {
            (place, ask::<Status>(address, "/status?own", patience, &budget).await)
        });
    }
    let mut known = HashSet::from([own.identity()]);
    // One answer for each question.
    while let Some(answer) = questions.join_next().await {
        let Ok((place, answer)) = answer else { continue };
        let Some(agent) = agents.get_mut(place) else { continue };
        let Some(address) = agent.admin else { continue };
        match answer {
            Ok(status) if status.pid != agent.pid || status.table.id != own.table.id => {
                agent.why = Some(elsewhere(address, &status));
            }
            // Two containers can have the same process ids and addresses.
            Ok(status) if !known.insert(status.identity()) => {
                agent.why = Some(elsewhere(address, &status));
            }
            Ok(status) => agent.status = Some(status.bounded()),
            Err(why) => agent.why = Some(why),
        }
    }
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
    use std::num::NonZeroUsize;

    use arc_swap::ArcSwap;
    use gcra_table::{Slots, Table};
    use spop_agent::{Reply, Request};
    use tokio::time::sleep;

    use super::*;
    use crate::stats::Stats;

    /// A viewer can leave while the agents are asked, and the next one may come much later.
    #[tokio::test]
    async fn an_answer_that_nobody_waited_for_is_not_given_later() {
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let agent = spop_agent::Agent::new(|_: &Request<'_>, _: &mut Reply<'_>| {});
        let watched = Watched::new(
            Arc::new(ArcSwap::from_pointee(table)),
            agent.counters(),
            Arc::default(),
            Arc::new(Stats::new(NonZeroUsize::MIN)),
        );
        let agents = Agents::new(Arc::new(watched), PathBuf::new());
        tokio::select! {
            biased;
            _ = agents.status() => panic!("it takes more than one poll"),
            () = std::future::ready(()) => {}
        }
        sleep(2 * MAX_AGE).await;
        let answer: Status = serde_json::from_slice(&agents.status().await).unwrap();
        assert!(answer.uptime_seconds > 1.5 * MAX_AGE.as_secs_f64(), "{answer:?}");
    }
}
