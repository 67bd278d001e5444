//! Agents that remember debts from before a change of their limits.
//!
//! After a reload a client keeps what it owed. Where the policies have overrides, or another `key`
//! than before, only the agents that were running then know which buckets these debts are in
//! (`earlier.rs`), and the table does not. The same is true of numbers that the table has had no
//! space for. So a command asks these agents, or says that a client may owe more than it can see.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gcra_policy::key::{NamedValue, OwnedValue};
use gcra_policy::{Limit, Policy};
use gcra_table::{Nanos, Process, Quota, Table, Time};
use gcra_text::duration::Left;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::agent_client::{Budget, ask};
use crate::explanation::Explanation;
use crate::process_list;

/// What is said of a client without a bucket, if there may be one that the table does not list.
pub(crate) const NO_LISTED_BUCKET: &str = "no bucket by the numbers that the table lists";

/// How long the agents may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many bytes all answers together may have. An explanation has about 1 KiB.
const MOST_BYTES: usize = 16 << 20;

pub(crate) struct Remembering {
    agents: Vec<Process>,
    /// How long one of them may do so at most.
    left: Nanos,
    /// Whether they say themselves that they do; or they only may, because the table has not had
    /// space for all numbers of limits.
    is_sure: bool,
}

/// Until when a client may owe something under earlier numbers of the limits of this policy that
/// the table has had no space for. The agents that had them count that, and the table does not
/// list them. `None` if it does, or if nobody can owe anything by them any more.
pub(crate) fn unlisted_until(table: &Table, policy: &Policy) -> Option<Time> {
    // What is counted in windows is found without a list. So is what messages say, as far as the
    // table has it; what it has not, is said on its own.
    let quotas = policy.limits().filter_map(Limit::fixed);
    // What is owed when other numbers come can last as long as these let anybody owe something.
    let longest = quotas.map(Quota::most_owed).max()?;
    let until = table.missing_until()?.saturating_add(longest);
    (until > table.now()).then_some(until)
}

impl Remembering {
    /// `None` if no agent of the table does.
    pub(crate) fn of(table: &Table) -> Option<Self> {
        let until = |process: &Process| {
            process.profile.map_or(Time::ZERO, |profile| profile.remembers_until)
        };
        let (mut agents, now) = (table.processes(), table.now());
        agents.retain(|process| until(process) > now);
        let last = agents.iter().map(until).max()?;
        Some(Self { left: last.saturating_since(now), agents, is_sure: true })
    }

    /// All agents, if they [may count](unlisted_until) what clients owed by earlier numbers of
    /// these policies.
    pub(crate) fn unlisted<'p>(
        table: &Table,
        policies: impl Iterator<Item = &'p Policy>,
    ) -> Option<Self> {
        let until = policies.filter_map(|policy| unlisted_until(table, policy)).max()?;
        let (agents, left) = (table.processes(), until.saturating_since(table.now()));
        (!agents.is_empty()).then_some(Self { agents, left, is_sure: false })
    }

    /// Asks these agents what they decide about messages with these args. The error says which
    /// agent did not answer, and why.
    pub(crate) fn explain(
        &self,
        message: Option<&str>,
        args: &[NamedValue],
    ) -> Result<Vec<Vec<Explanation>>, String> {
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for agent in &self.agents {
            let admin = agent.profile.and_then(|profile| profile.admin);
            let name = process_list::name(agent);
            addresses
                .push(admin.ok_or_else(|| format!("agent {name} was started without --admin"))?);
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("could not ask the agents: {error}"))?;
        runtime.block_on(ask_all(addresses, path(message, args)))
    }

    /// Says that the table has no bucket, and that this does not mean that there is no debt.
    pub(crate) fn no_bucket(&self) -> String {
        let names: Vec<_> = self.agents.iter().map(process_list::name).collect();
        let (agents, _) = process_list::agents(&names);
        if !self.is_sure {
            return format!(
                "{NO_LISTED_BUCKET}; {agents} may count a debt by earlier ones: use 'gcra-spoa \
                 explain'"
            );
        }
        format!(
            "no bucket in the table; {agents} may remember a debt from before a reload: use \
             'gcra-spoa explain'"
        )
    }

    /// Says that a client may owe more than a command can see, and what to do. `why` is why no
    /// agent was asked.
    pub(crate) fn note(&self, why: Option<&str>) -> String {
        let names: Vec<_> = self.agents.iter().map(process_list::name).collect();
        let (agents, _) = process_list::agents(&names);
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        let remember = if names.len() == 1 { "remembers" } else { "remember" };
        let left = Left(self.left.into());
        if !self.is_sure {
            return format!(
                "the limits have had more numbers than the table has space for; for up to {left} \
                 {agents} may count what clients owed by earlier ones, which this command cannot \
                 see{why}: a client may owe more than is shown"
            );
        }
        format!(
            "the policies' overrides or keys were changed by a reload; for up to {left} {agents} \
             {remember} what clients owed before, which this command cannot see{why}: a client \
             may owe more than is shown; 'gcra-spoa table reset' clears that too"
        )
    }
}

/// The path of the explanation in the agents' HTTP.
fn path(message: Option<&str>, args: &[NamedValue]) -> String {
    let mut query = form_urlencoded::Serializer::new("/explain?".to_owned());
    if let Some(message) = message {
        query.append_pair("message", message);
    }
    for arg in args {
        let NamedValue { name, value } = arg;
        let value = match value {
            OwnedValue::String(bytes) => match str::from_utf8(bytes) {
                Ok(text) => format!("str:{text}"),
                Err(_) => value.to_string(),
            },
            value => value.to_string(),
        };
        query.append_pair("arg", &format!("{name}={value}"));
    }
    query.finish()
}

async fn ask_all(
    addresses: Vec<SocketAddr>,
    path: String,
) -> Result<Vec<Vec<Explanation>>, String> {
    let budget = Arc::new(Budget::new(MOST_BYTES));
    let mut asked = JoinSet::new();
    for address in addresses {
        let (path, budget) = (path.clone(), budget.clone());
        asked.spawn(
            async move { ask::<Vec<Explanation>>(address, &path, PATIENCE, &budget).await },
        );
    }
    let mut answers = Vec::new();
    while let Some(answer) = asked.join_next().await {
        // A panic would be a bug.
        answers.push(answer.map_err(|error| error.to_string())??);
    }
    Ok(answers)
}
