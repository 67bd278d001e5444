//! A table and the policies of a command line, for the commands about single clients.
//!
//! The keys of an agent's buckets depend on its policies. With other policies a command would look
//! at other buckets, and say that all is well about a client that is blocked. So it is refused
//! where that is known, and notes the difference where the policies are similar.

use std::path::{Path, PathBuf};

use anyhow::bail;
use gcra_table::{Quota, Registered, Table};
use spop_agent::Message;

use crate::duration::Short;
use crate::explain::key_parts;
use crate::halt::halt_of;
use crate::in_force::InForce;
use crate::key::Key;
use crate::limiter::write_client;
use crate::named_parts;
use crate::output::{Mistakes, WrongUsage};
use crate::plural::Count;
use crate::policy::{self, KeyParts, Policies, Policy};
use crate::question::Question;
use crate::table_error::TableError;
use crate::written_message::WrittenMessage;

/// A table, and the policies by which the command looks at it.
pub(crate) struct Inspected {
    pub(crate) table: Table,
    pub(crate) path: PathBuf,
    pub(crate) in_force: InForce,
    /// The file that the policies come from; `None` if they come from the command line.
    pub(crate) file: Option<PathBuf>,
}

/// A client of a policy.
#[derive(Debug)]
pub(crate) struct Client {
    /// A request of this client, without the cost and the arg of `when`.
    message: WrittenMessage,
    pub(crate) question: Question,
}

/// How the agents of a table get their limits.
#[derive(Clone, Copy, Debug, Default)]
struct Sources {
    flags: bool,
    file: bool,
}

impl Sources {
    /// What the agents that use the table now say about themselves; if none does, what the
    /// register has from all that have used it.
    fn of(table: &Table) -> Self {
        let mut sources = Self::default();
        for profile in table.processes().into_iter().filter_map(|process| process.profile) {
            sources.flags |= !profile.has_file;
            sources.file |= profile.has_file;
        }
        if !(sources.flags || sources.file) {
            for Registered { limit, .. } in table.registered() {
                sources.flags |= limit == 0;
                sources.file |= limit != 0;
            }
        }
        sources
    }
}

/// Opens the table at `path`, unless its agents get their limits in another way than the command
/// line says: from a file, or from flags. `what` is the command, for the sentence about that.
///
/// # Errors
///
/// There is no such table, or the command line does not fit its agents.
fn open(path: &Path, by_file: bool, what: &str) -> anyhow::Result<Table> {
    let table = Table::inspect(path).map_err(TableError)?;
    let sources = Sources::of(&table);
    let shown = path.display();
    match (by_file, sources) {
        (false, Sources { flags: false, file: true }) => bail!(WrongUsage(format!(
            "the agents of table {shown} have their limits from a file, and the keys of its \
             buckets depend on that; write '{what} --config FILE' with the file of the agents"
        ))),
        (true, Sources { flags: true, file: false }) => bail!(WrongUsage(format!(
            "the agents of table {shown} have their limit from --rate, and not from a file; write \
             '{what}' without --config"
        ))),
        _ => Ok(table),
    }
}

impl Inspected {
    /// Opens the table, and reads the file or makes the policies of the flags. Notes on standard
    /// error if these are not the policies of the agents. `keys` are those of the command line,
    /// and `what` is the command, for the sentence that says to use it differently.
    ///
    /// # Errors
    ///
    /// There is no such table, the file has mistakes, or the agents of the table get their limits
    /// in the other way.
    pub(crate) fn open(
        path: PathBuf,
        file: Option<&Path>,
        flags: impl FnOnce() -> Result<Policies, String>,
        keys: &[Key],
        what: &str,
    ) -> anyhow::Result<Self> {
        let policies = match file {
            Some(file) => policy::file::read(file).map_err(Mistakes)?,
            None => shaped(flags().map_err(WrongUsage)?, keys),
        };
        let table = open(&path, file.is_some(), what)?;
        let in_force = InForce::if_started(policies, &table);
        let inspected = Self { table, path, in_force, file: file.map(Path::to_owned) };
        for note in [inspected.note_about_users(), inspected.note()].into_iter().flatten() {
            eprintln!("gcra-spoa: note: {note}");
        }
        Ok(inspected)
    }

    /// The client with this key in the policy with this name; without a name, in each policy whose
    /// key it can be.
    ///
    /// # Errors
    ///
    /// There is no such policy, or the key is not one of any of the policies.
    pub(crate) fn clients(&self, policy: Option<&str>, key: &Key) -> anyhow::Result<Vec<Client>> {
        let policies = &self.in_force.policies.list;
        let Some(file) = self.file.as_deref().map(Path::display) else {
            let shape = named_parts::nameless(key);
            let at = policies.iter().position(|policy| policy.key.args == shape);
            let client = self.client(at.unwrap_or_default(), key).map_err(WrongUsage)?;
            return Ok(vec![client]);
        };
        let is_meant = |found: &Policy| match policy {
            Some(name) => *name == *found.name,
            None => !found.is_trial,
        };
        let meant: Vec<_> = (0..policies.len()).filter(|at| is_meant(&policies[*at])).collect();
        if let (Some(name), []) = (policy, &meant[..]) {
            let all = self.in_force.policies.without_trials();
            let names: Vec<_> = all.map(|policy| &*policy.name).collect();
            let names = names.join(", ");
            bail!(WrongUsage(format!("there is no policy '{name}' in {file}; it has {names}")));
        }
        let clients: Vec<_> = meant.iter().map(|at| (*at, self.client(*at, key))).collect();
        if clients.iter().any(|(_, client)| client.is_ok()) {
            return Ok(clients.into_iter().filter_map(|(_, client)| client.ok()).collect());
        }
        match &clients[..] {
            [(at, Err(mistake))] => {
                bail!(WrongUsage(format!("policy '{}': {mistake}", policies[*at].name)))
            }
            _ => {
                let keys: Vec<_> = meant
                    .iter()
                    .map(|at| &policies[*at])
                    .map(|policy| {
                        format!("'{}': {}", policy.name, named_parts::in_words(&policy.key.args))
                    })
                    .collect();
                bail!(WrongUsage(format!(
                    "'{}' is not a key of any policy in {file}; write the parts of the key of one \
                     of them: {}",
                    key.text,
                    keys.join("; ")
                )))
            }
        }
    }

    /// The client with this key in the policy at this place. The error is a sentence.
    pub(crate) fn client(&self, at: usize, key: &Key) -> Result<Client, String> {
        let policy = &self.in_force.policies.list[at];
        let args = match &self.file {
            Some(_) => named_parts::named(key, &policy.key.args)?,
            None => named_parts::unnamed(key)?,
        };
        let name = policy.message.as_deref().unwrap_or_default();
        let message = WrittenMessage::new(name, &args).ok();
        let message = message
            .ok_or_else(|| format!("'{}' has too many parts; 255 are the most", key.text))?;
        let question = message
            .message()
            .and_then(|message| Question::under(&self.in_force, &self.table, at, &message));
        let question = question.ok_or_else(|| {
            let args = named_parts::in_words(&policy.key.args);
            format!("'{}' is not a whole key, or has null in it; it is {args}", key.text)
        })?;
        Ok(Client { message, question })
    }

    /// The policy that a client is of.
    pub(crate) fn policy(&self, client: &Client) -> &Policy {
        &self.in_force.policies.list[client.question.policy]
    }

    /// Says so if no agent decides by the table, or if others decide by another file.
    fn note_about_users(&self) -> Option<String> {
        let path = self.path.display();
        if self.table.has_strangers() {
            return Some(format!(
                "some agents do not use the table {path}, but a file that had this name before; \
                 this is not about them; restart them one after the other"
            ));
        }
        let is_used = self.table.processes().iter().any(|process| halt_of(process).is_none());
        (!is_used).then(|| {
            format!(
                "no agent uses the table {path} now; name the table of the agents with --table, \
                 if they have another one"
            )
        })
    }

    /// Says so if agents of the table have other limits than the command's policies: what the
    /// command says then is not what these agents answer.
    fn note(&self) -> Option<String> {
        let path = self.path.display();
        let Some(file) = self.file.as_deref().map(Path::display) else {
            if Sources::of(&self.table).file {
                return Some(format!(
                    "some agents of table {path} have their limits from a file; this is not about \
                     their buckets, which a command with --config finds"
                ));
            }
            let has_had = self.other_quota()?;
            return Some(format!(
                "the agents of table {path} were last started with another --rate and --burst: \
                 {has_had}"
            ));
        };
        const WHY: &str = "was it changed and not reloaded, or is it another file?";
        let agents = self.table.processes();
        let digests: Vec<_> =
            agents.iter().filter_map(|agent| agent.profile.as_ref()).map(|it| it.limits).collect();
        let ours = self.in_force.policies.limits_digest;
        let others = digests.iter().filter(|limits| **limits != ours).count();
        if others > 0 {
            return Some(format!(
                "{others} of {} of table {path} {} other limits than those of {file}; {WHY}",
                Count(digests.len() as u64, "agent", "agents"),
                if others == 1 { "has" } else { "have" }
            ));
        }
        if !digests.is_empty() {
            return None;
        }
        let has_had = self.other_quota()?;
        Some(format!(
            "the agents of table {path} last had other limits than those of {file} ({has_had}); \
             {WHY}"
        ))
    }

    /// The quota that a limit of the policies had last, according to the table's register, if it
    /// is another one.
    fn other_quota(&self) -> Option<String> {
        let registered = self.table.registered();
        let last = |id: u64| {
            let ours = registered.iter().filter(|known| known.limit == id && !known.is_override);
            ours.max_by_key(|known| known.since)
        };
        let limits = self.in_force.policies.list.iter().flat_map(|policy| policy.rule.limits());
        let mut others = limits
            .filter_map(|limit| Some((limit, last(limit.id)?.quota)))
            .filter(|(limit, last)| limit.quota != *last);
        others.next().map(|(_, last)| quota_in_words(last))
    }

    /// The name of a client in logs, in `top` and in /status.
    pub(crate) fn name(&self, client: &Client) -> String {
        let mut name = String::new();
        let Question { key, .. } = client.question;
        write_client(&mut name, self.policy(client), key, client.message());
        name
    }

    /// A key as it was written, with what the policy makes of it if that is something else.
    pub(crate) fn shown(&self, client: &Client, key: &Key) -> String {
        let parts = client.message().map(|message| key_parts(self.policy(client), &message));
        let parts = parts.unwrap_or_default();
        if parts.iter().all(|part| part.value == part.counted_as) {
            return key.text.clone();
        }
        let counted: Vec<_> = parts.iter().map(|part| &*part.counted_as).collect();
        format!("{} (counted as {})", key.text, counted.join(","))
    }

    /// "policy 'api'" where the policies come from a file, else nothing.
    pub(crate) fn policy_in_words(&self, client: &Client) -> String {
        match &self.file {
            Some(_) => format!("policy '{}'", self.policy(client).name),
            None => String::new(),
        }
    }
}

impl Client {
    /// A message of this client. (It is always there.)
    pub(crate) fn message(&self) -> Option<Message<'_>> {
        self.message.message()
    }
}

/// A quota of which only the numbers are known.
pub(crate) fn quota_in_words(quota: Quota) -> String {
    let interval = Short(quota.emission_interval().into());
    format!("one request per {interval}, up to {} at once", quota.burst())
}

/// The policy of the flags, once for each shape of a key, so that each key has one whose buckets
/// are those of the agents. (Which args make the key of an agent without a file is not known.)
fn shaped(policies: Policies, keys: &[Key]) -> Policies {
    let [policy] = &policies.list[..] else { return policies };
    let mut list: Vec<Policy> = Vec::new();
    for key in keys {
        let args = named_parts::nameless(key);
        if list.iter().all(|known| known.key.args != args) {
            let mut policy = policy.with_rule(policy.rule.clone());
            policy.key = KeyParts::exact(args);
            list.push(policy);
        }
    }
    if list.is_empty() { policies } else { policies.with_list(list) }
}
