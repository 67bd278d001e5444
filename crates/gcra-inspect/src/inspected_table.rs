//! A table and the policies of a command line, for the commands about single clients.
//!
//! The keys of an agent's buckets depend on its policies. With other policies a command would look
//! at other buckets, and say that all is well about a client that is blocked. So it is refused
//! where that is known, and notes the difference where the policies are similar.

use gcra_policy::file::document;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use gcra_limiter::counting::write_client;
use gcra_limiter::policies_in_force::InForce;
use gcra_limiter::question::Question;
use gcra_policy::key::{Key, NamedValue, OwnedValue};
use gcra_policy::rate_flags::RateFlags;
use gcra_policy::rate_words::numbers_in_words;
use gcra_policy::secrets::Readers;
use gcra_policy::sharing::Sharing;
use gcra_policy::{KeyParts, Limit, Policies, Policy};
use gcra_table::{Leases, Quota, Registered, Table};
use gcra_text::count::Count;
use gcra_text::output::{Mistakes, WrongUsage, print_note};
use gcra_text::table_error::TableError;
use gcra_text::visible::Visible;
use spop_agent::Message;

use crate::explanation::{key_parts, of_a_group, written_key};
use crate::key_meanings;
use crate::key_meanings::Meaning;
use crate::process_state::is_used;
use gcra_limiter::written_message::WrittenMessage;

/// A table, and the policies by which the command looks at it.
pub struct Inspected {
    pub table: Arc<Table>,
    pub path: PathBuf,
    pub in_force: Arc<InForce>,
    /// What the machine holds of shared limits, if there is anything.
    pub leases: Option<Arc<Leases>>,
    /// The file that the policies come from; `None` if they come from the command line.
    pub file: Option<PathBuf>,
    /// Whether the policies are all that agents have, and not only a rate.
    is_whole: bool,
}

/// A client of a policy.
#[derive(Debug)]
pub struct Client {
    /// A request of this client, without the cost and the arg of `when`.
    message: WrittenMessage,
    /// The args of the key, as they are written.
    args: Vec<NamedValue>,
    pub question: Question,
    /// Whether a KEY means this client in any case, or only where the table knows it.
    is_likely: bool,
    /// Whether an address of it is cut to its /64 network, and not as it was written.
    is_cut: bool,
    /// How its key is written, where the KEY does not say it.
    note: String,
}

/// Which of the clients that a KEY can mean a command is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wanted {
    /// Those that the table knows; if there are none, the one that is most likely.
    Known,
    /// Also those that the table does not know yet.
    All,
}

/// How the agents of a table get their limits.
#[derive(Clone, Copy, Debug, Default)]
struct Sources {
    flags: bool,
    file: bool,
}

impl Sources {
    /// What the agents that use the table now say about themselves.
    fn of(table: &Table) -> Self {
        let mut sources = Self::default();
        for profile in table.processes().into_iter().filter_map(|process| process.profile) {
            sources.flags |= !profile.has_file;
            sources.file |= profile.has_file;
        }
        sources
    }

    /// What the register has from all agents that have used the table.
    fn of_all_times(table: &Table) -> Self {
        let mut sources = Self::default();
        for Registered { limit, .. } in table.registered() {
            sources.flags |= limit == 0;
            sources.file |= limit != 0;
        }
        sources
    }
}

/// Opens the table at `path`, unless its agents get their limits in another way than the command
/// line says: from a file, or from flags. If no agent says that now, this is about those that used
/// it last. `what` is the command, for the sentence about that.
///
/// # Errors
///
/// There is no such table, or the command line does not fit its agents.
fn open(path: &Path, by_file: bool, what: &str) -> anyhow::Result<Table> {
    let table = Table::inspect(path).map_err(TableError)?;
    let (now, shown) = (Sources::of(&table), path.display());
    let is_now = now.flags || now.file;
    let sources = if is_now { now } else { Sources::of_all_times(&table) };
    let who = match is_now {
        true => format!("the agents of table {shown} have"),
        false => format!("table {shown} was last used by agents that had"),
    };
    let otherwise = match is_now {
        true => "",
        false => ", or name the table of your agents with --table",
    };
    match (by_file, sources) {
        (false, Sources { flags: false, file: true }) => bail!(WrongUsage(format!(
            "{who} their limits from a file, and the keys of its buckets depend on that; write \
             '{what} --config FILE' with the file of the agents{otherwise}"
        ))),
        (true, Sources { flags: true, file: false }) => bail!(WrongUsage(format!(
            "{who} their limit from --rate, and not from a file; write '{what}' without \
             --config{otherwise}"
        ))),
        _ => Ok(table),
    }
}

/// The leases beside a table, if there are any. A note says so if they cannot be opened.
fn leases_of(table: &Table) -> Option<Arc<Leases>> {
    Leases::inspect(table).map(|leases| leases.map(Arc::new)).unwrap_or_else(|error| {
        let error = TableError(error);
        print_note(&format!("what this machine holds of shared limits is not known: {error}"));
        None
    })
}

/// A table, with what would be in force if an agent started now with these policies.
fn with_policies(table: Table, policies: Policies) -> (Arc<Table>, Arc<InForce>) {
    let in_force = InForce::if_started(policies, &table);
    (Arc::new(table), Arc::new(in_force))
}

/// Says so if no agent uses the table.
pub(crate) fn note_about_no_users(table: &Table, path: &Path) -> Option<String> {
    (!is_used(table)).then(|| {
        format!(
            "no agent uses the table {} now; name the table of the agents with --table, if they \
             have another one",
            path.display()
        )
    })
}

impl Inspected {
    /// Opens the table, and reads the file or makes the policies of the flags. Notes on standard
    /// error if these are not the policies of the agents. `keys` are those of the command line,
    /// and empty if the policies name the args of the keys; `what` is the command, for the
    /// sentence that says to use it differently.
    ///
    /// # Errors
    ///
    /// There is no such table, the file has mistakes, or the agents of the table get their limits
    /// in the other way.
    pub fn open(
        path: PathBuf,
        file: Option<&Path>,
        flags: impl FnOnce() -> Result<Policies, String>,
        keys: &[Key],
        what: &str,
    ) -> anyhow::Result<Self> {
        let policies = match file {
            Some(file) => read(file)?,
            None => flags().map_err(WrongUsage)?,
        };
        let table = open(&path, file.is_some(), what)?;
        let policies = match file {
            Some(_) => policies,
            None => shaped(shared_as_agents_do(policies, &table), keys),
        };
        let (table, in_force) = with_policies(table, policies);
        let is_whole = file.is_some() || keys.is_empty();
        let leases = leases_of(&table);
        let file = file.map(Path::to_owned);
        let inspected = Self { table, path, in_force, leases, file, is_whole };
        for note in [inspected.note_about_users(), inspected.note()].into_iter().flatten() {
            print_note(&note);
        }
        Ok(inspected)
    }

    /// The table with the policies that were read from a file, whatever its agents have.
    pub(crate) fn of_file(table: Table, path: PathBuf, policies: Policies, file: &Path) -> Self {
        let (table, in_force) = with_policies(table, policies);
        let leases = leases_of(&table);
        Self { table, path, in_force, leases, file: Some(file.to_owned()), is_whole: true }
    }

    /// What an agent itself has. The keys of a client are those of its policies, whether they come
    /// from a file or from its flags; `source` names that in sentences.
    pub fn of_agent(
        table: Arc<Table>,
        path: PathBuf,
        in_force: Arc<InForce>,
        leases: Option<Arc<Leases>>,
        source: &str,
    ) -> Self {
        Self { table, path, in_force, leases, file: Some(source.into()), is_whole: true }
    }

    /// The clients that this key means in the policy with this name; without a name, in each
    /// policy whose key it can be. `is_known` says whether the table knows a client.
    ///
    /// # Errors
    ///
    /// There is no such policy, or the key is not one of any of the policies.
    pub fn clients(
        &self,
        policy: Option<&str>,
        key: &Key,
        wanted: Wanted,
        is_known: impl Fn(&Client) -> bool,
    ) -> anyhow::Result<Vec<Client>> {
        let by_policy = self.possible_clients(policy, key)?.into_iter();
        let chosen = by_policy.flat_map(|clients| {
            let known: Vec<_> = clients.iter().map(&is_known).collect();
            let is_any_known = known.contains(&true);
            // Otherwise a reset of one address would also clear what its network owes.
            let is_likely_known =
                clients.iter().zip(&known).any(|(client, is_known)| *is_known && client.is_likely);
            // Agents without a file have one of these keys, and it is not known which. Agents with
            // a file have all of them, and the client can send requests with each.
            let takes_likely = match (wanted, &self.file) {
                (Wanted::All, Some(_)) => true,
                (Wanted::Known, _) | (Wanted::All, None) => !is_any_known,
            };
            let mut chosen: Vec<_> = clients
                .into_iter()
                .zip(known)
                .filter(|(client, is_known)| match client.is_likely {
                    true => *is_known || takes_likely,
                    false => *is_known && !is_likely_known,
                })
                .map(|(client, _)| client)
                .collect();
            if wanted == Wanted::Known && !is_any_known {
                chosen.truncate(1);
                chosen.iter_mut().for_each(|client| client.note.clear());
            }
            chosen
        });
        Ok(chosen.collect())
    }

    /// As [`clients`](Self::clients) of those that the table knows, for commands that change what
    /// they owe: without the network that HAProxy may cut an address to, because other clients
    /// share it. The notes say which KEY is meant then.
    ///
    /// # Errors
    ///
    /// As for [`clients`](Self::clients).
    pub fn clients_to_change(
        &self,
        policy: Option<&str>,
        key: &Key,
        is_known: impl Fn(&Client) -> bool,
    ) -> anyhow::Result<(Vec<Client>, Vec<String>)> {
        let known = self.clients(policy, key, Wanted::Known, is_known)?;
        let (cut, rest): (Vec<_>, Vec<_>) = known.into_iter().partition(|client| client.is_cut);
        // Agents without a file group nothing, so HAProxy does.
        if cut.is_empty() || (self.file.is_none() && rest.is_empty()) {
            return Ok((if rest.is_empty() { cut } else { rest }, Vec::new()));
        }
        let note = |client: &Client| {
            let written = client.message().map(|it| written_key(self.policy(client), &it));
            format!(
                "the table also knows {0}, which other clients share; if HAProxy cuts addresses \
                 to their /64 network (ipmask(32,64)), that is the KEY to write",
                written.unwrap_or_default()
            )
        };
        let notes = cut.iter().filter(|_| self.file.is_some()).map(note).collect();
        let clients = match rest.is_empty() {
            true => self.clients(policy, key, Wanted::Known, |_| false)?,
            false => rest,
        };
        Ok((clients, notes))
    }

    /// For each policy that is meant, every client that a key can mean.
    fn possible_clients(
        &self,
        policy: Option<&str>,
        key: &Key,
    ) -> anyhow::Result<Vec<Vec<Client>>> {
        let policies = &self.in_force.policies.list;
        let Some(file) = self.file.as_deref().map(Path::display) else {
            let shape = key_meanings::nameless(key);
            let at = policies.iter().position(|policy| policy.key.args == shape);
            let clients = self.clients_of(at.unwrap_or_default(), key).map_err(WrongUsage)?;
            return Ok(vec![clients]);
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
        let found: Vec<_> = meant.iter().map(|at| (*at, self.clients_of(*at, key))).collect();
        if found.iter().any(|(_, clients)| clients.is_ok()) {
            return Ok(found.into_iter().filter_map(|(_, clients)| clients.ok()).collect());
        }
        match &found[..] {
            [(at, Err(mistake))] => {
                bail!(WrongUsage(format!("policy '{}': {mistake}", policies[*at].name)))
            }
            // A value that is wrong for each of them.
            [(_, Err(mistake)), rest @ ..]
                if rest.iter().all(|(_, other)| other.as_ref().err() == Some(mistake)) =>
            {
                bail!(WrongUsage(mistake.clone()))
            }
            _ => {
                let each: Vec<_> = found
                    .iter()
                    .filter_map(|(at, clients)| {
                        let mistake = clients.as_ref().err()?;
                        Some(format!("'{}': {mistake}", policies[*at].name))
                    })
                    .collect();
                bail!(WrongUsage(format!(
                    "'{}' is not a key of any policy in {file}: {}",
                    key.text,
                    each.join("; ")
                )))
            }
        }
    }

    /// Every client that a key can mean in the policy at this place. The error is a sentence.
    fn clients_of(&self, at: usize, key: &Key) -> Result<Vec<Client>, String> {
        let meanings = match &self.file {
            Some(_) => key_meanings::named(key, &self.in_force.policies.list[at].key.args)?,
            None => key_meanings::unnamed(key)?,
        };
        let typed = meanings.first().map(|first| first.args.clone()).unwrap_or_default();
        let client = |meaning: Meaning| {
            let is_cut = |(arg, typed): (&NamedValue, &NamedValue)| {
                typed.value.masked().as_ref() == Some(&arg.value)
            };
            let is_cut = meaning.args.iter().zip(&typed).any(is_cut);
            Ok(Client { is_cut, ..self.client(at, key, meaning)? })
        };
        let found: Vec<Result<Client, String>> = meanings.into_iter().map(client).collect();
        let is_good =
            |client: &Result<Client, String>| client.as_ref().is_ok_and(|client| client.is_likely);
        if found.iter().any(is_good) {
            let mut clients: Vec<Client> = Vec::new();
            for client in found.into_iter().flatten() {
                if clients.iter().all(|known| known.question.key != client.question.key) {
                    clients.push(client);
                }
            }
            return Ok(clients);
        }
        // Each of them has the mistake of the first, which is what was written.
        found.into_iter().next().map_or(Ok(Vec::new()), |first| first.map(|client| vec![client]))
    }

    /// The client with the key of this meaning in the policy at this place. The error is a
    /// sentence.
    fn client(&self, at: usize, key: &Key, meaning: Meaning) -> Result<Client, String> {
        let policy = &self.in_force.policies.list[at];
        let name = policy.message.as_deref().unwrap_or_default();
        let Meaning { args, is_likely, note } = meaning;
        let (message, question) = of_a_group(policy, &args, |args| {
            let message = WrittenMessage::new(name, args).ok();
            let message = message
                .ok_or_else(|| format!("'{}' has too many parts; 255 are the most", key.text))?;
            let question = message
                .message()
                .and_then(|message| Question::under(&self.in_force, &self.table, at, &message));
            let question = question.ok_or_else(|| {
                let args = key_meanings::in_words(&policy.key.args);
                format!("'{}' is not a whole key, or has null in it; it is {args}", key.text)
            })?;
            Ok((message, question))
        })?;
        Ok(Client { message, args, question, is_likely, is_cut: false, note })
    }

    /// What to know about a client with an IPv6 address that an override or the prefix of the
    /// policy tells apart from the rest of its /64 network: HAProxy may send only the network.
    /// `has_bucket` says whether a client has a bucket.
    pub(crate) fn note_about_mask(
        &self,
        client: &Client,
        key: &Key,
        has_bucket: impl Fn(&Client) -> bool,
    ) -> Option<String> {
        // The clients of agents without a file include the network already.
        self.file.as_ref()?;
        let Some(args) = masked(&client.args) else {
            let is_network = |arg: &NamedValue| matches!(arg.value, OwnedValue::Ip(IpAddr::V6(_)));
            let is_meant = !client.is_likely && client.args.iter().any(is_network);
            let written = written_key(self.policy(client), &client.message()?);
            return is_meant.then(|| {
                format!(
                    "this is about {written}, because the table has a bucket for that and none \
                     for {}: HAProxy probably cuts addresses to their /64 network with \
                     ipmask(32,64), as haproxy/haproxy.cfg does",
                    Visible(&key.text)
                )
            });
        };
        let meaning = Meaning { args, is_likely: true, note: String::new() };
        let network = self.client(client.question.policy, key, meaning).ok()?;
        let is_same = network.question.key == client.question.key;
        let knows_network = has_bucket(&network);
        if is_same || (has_bucket(client) && !knows_network) {
            return None;
        }
        let policy = self.policy(client);
        let written = written_key(policy, &network.message()?);
        let shown = Visible(&key.text);
        Some(match knows_network {
            true => format!(
                "the table has a bucket for {written} in policy '{}', and HAProxy probably cuts \
                 addresses to their /64 network with ipmask(32,64), as haproxy/haproxy.cfg does; \
                 if it does, this is not about that client, and the KEY to write is {written}",
                policy.name
            ),
            false => format!(
                "policy '{}' tells {shown} apart from the rest of its /64 network; if HAProxy \
                 cuts addresses to that with ipmask(32,64), as haproxy/haproxy.cfg does, the KEY \
                 to write is {written}",
                policy.name
            ),
        })
    }

    /// The policy that a client is of.
    pub fn policy(&self, client: &Client) -> &Policy {
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
        note_about_no_users(&self.table, &self.path)
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
            let (all, others) = self.agents_with_other_limits();
            if self.is_whole && others > 0 {
                return Some(format!(
                    "{others} of {} of table {path} {} another --rate, --burst, --key or --cost \
                     than this command; write those of the agents",
                    Count(all as u64, "agent", "agents"),
                    if others == 1 { "has" } else { "have" }
                ));
            }
            let has_had = flags_in_words(self.other_quota()?);
            return Some(format!(
                "the agents of table {path} were last started with another --rate and --burst: \
                 {has_had}"
            ));
        };
        const WHY: &str = "was it changed and not reloaded, or is it another file?";
        let (all, others) = self.agents_with_other_limits();
        if others > 0 {
            return Some(format!(
                "{others} of {} of table {path} {} other limits than those of {file}; {WHY}",
                Count(all as u64, "agent", "agents"),
                if others == 1 { "has" } else { "have" }
            ));
        }
        if all > 0 {
            return None;
        }
        let has_had = numbers_in_words(self.other_quota()?);
        Some(format!(
            "the agents of table {path} last had other limits than those of {file} ({has_had}); \
             {WHY}"
        ))
    }

    /// Whether the agents of the table do not know the policy of a client, because all of them
    /// have other limits and no agent has registered a limit of this policy.
    pub(crate) fn is_unknown_policy(&self, client: &Client) -> bool {
        let (all, others) = self.agents_with_other_limits();
        let registered = self.table.registered();
        let is_registered = |limit: &Limit| registered.iter().any(|it| it.limit == limit.id);
        // Counts in windows are not registered.
        let limits = self.policy(client).limits().filter(|limit| limit.calendar.is_none());
        let mut limits = limits.peekable();
        let has_limits = limits.peek().is_some();
        self.file.is_some() && all > 0 && others == all && has_limits && !limits.any(is_registered)
    }

    /// How many agents use the table and say which limits they have, and how many of them have
    /// others than the command's.
    pub(crate) fn agents_with_other_limits(&self) -> (usize, usize) {
        let agents = self.table.processes();
        let limits = || agents.iter().filter_map(|agent| Some(agent.profile.as_ref()?.limits));
        let ours = self.in_force.policies.limits_digest;
        (limits().count(), limits().filter(|limits| *limits != ours).count())
    }

    /// The quota that a limit of the policies had last, according to the table's register, if it
    /// is another one.
    fn other_quota(&self) -> Option<Quota> {
        let registered = self.table.registered();
        let last = |id: u64| {
            let ours = registered.iter().filter(|known| known.limit == id && !known.is_override);
            ours.max_by_key(|known| known.since)
        };
        let limits = self.in_force.policies.list.iter().flat_map(|policy| policy.rule.limits());
        let mut others = limits
            .filter(|limit| limit.calendar.is_none())
            .filter_map(|limit| Some((limit, last(limit.id)?.quota)))
            .filter(|(limit, last)| limit.quota != *last);
        others.next().map(|(_, last)| last)
    }

    /// Says that the table does not have all that is counted, for each of these policies that is
    /// shared.
    pub(crate) fn print_which_are_shared<'n>(&self, names: impl Iterator<Item = &'n str>) {
        let names: BTreeSet<_> = names.collect();
        let policies = self.in_force.policies.without_trials();
        let mut shared: Vec<_> = policies
            .filter(|policy| policy.shared.is_some() && names.contains(&*policy.name))
            .map(|policy| &policy.name)
            .collect();
        // The flags have a policy for each key.
        shared.dedup();
        for name in shared {
            print_note(&format!(
                "policy '{name}' is shared with other machines; this command knows what this \
                 machine holds, and not what the store has"
            ));
        }
    }

    /// The name of a client in logs, in `top` and in /status.
    pub fn name(&self, client: &Client) -> String {
        let mut name = String::new();
        let Question { key, .. } = client.question;
        write_client(&mut name, self.policy(client), key, client.message());
        name
    }

    /// A key as it was written, with what is meant by it and what the policy makes of it, if that
    /// is something else.
    pub fn shown(&self, client: &Client, key: &Key) -> String {
        let parts = client.message().map(|message| key_parts(self.policy(client), &message));
        let parts = parts.unwrap_or_default();
        let mut notes = Vec::from_iter(Some(client.note.clone()).filter(|note| !note.is_empty()));
        let counted = parts.iter().map(|part| &*part.counted_as).collect::<Vec<_>>().join(",");
        if parts.iter().any(|part| part.value != part.counted_as) && counted != key.text {
            notes.push(format!("counted as {counted}"));
        }
        match &notes[..] {
            [] => Visible(&key.text).to_string(),
            notes => format!("{} ({})", Visible(&key.text), notes.join(", ")),
        }
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
    pub fn message(&self) -> Option<Message<'_>> {
        self.message.message()
    }
}

/// These args with their IPv6 addresses cut to the /64 network, as by `ipmask(32,64)`; `None` if
/// that changes nothing.
pub fn masked(args: &[NamedValue]) -> Option<Vec<NamedValue>> {
    let mask = |NamedValue { name, value }: &NamedValue| NamedValue {
        name: name.clone(),
        value: value.masked().unwrap_or_else(|| value.clone()),
    };
    let masked: Vec<_> = args.iter().map(mask).collect();
    (masked != args).then_some(masked)
}

/// Reads the file of the agents for a command about them.
///
/// # Errors
///
/// The mistakes in the file, and what can be done while it has them.
pub fn read(file: &Path) -> Result<Policies, Mistakes> {
    document::read(file, Readers::OfFile).map_err(|mut mistakes| {
        mistakes.push(format!(
            "{} cannot be used by this command; running agents keep the policies that they loaded \
             before; name a copy of the file that they loaded with --config, or mend this one",
            file.display()
        ));
        Mistakes(mistakes)
    })
}

/// A quota of agents without a file, as the flags that give it where there are some.
pub(crate) fn flags_in_words(quota: Quota) -> String {
    let flags = RateFlags::of(quota).map(|flags| flags.to_string());
    flags.unwrap_or_else(|| numbers_in_words(quota))
}

/// The flags of the agents of a table, for a command line that has none; a note says so.
/// `policies` are those of an agent with these flags.
pub(crate) fn flags_of_agents(
    path: &Path,
    policies: impl Fn(&RateFlags) -> Result<Policies, String>,
) -> anyhow::Result<Option<RateFlags>> {
    let table = Table::inspect(path).map_err(TableError)?;
    let flags = RateFlags::of_agents(&table, policies);
    if let Some(flags) = &flags {
        print_note(&format!(
            "the agents of table {} were started with {flags}, so this is about that",
            path.display()
        ));
    }
    Ok(flags)
}

/// The policy of the flags, shared as the agents share it: commands have no `--store`.
fn shared_as_agents_do(policies: Policies, table: &Table) -> Policies {
    let mut agents = table.processes().into_iter().filter_map(|process| process.profile);
    let limits = agents.next().map(|profile| profile.limits);
    let mut ways = Sharing::all_of_flags().map(|shared| policies.shared_as(Some(shared)));
    let found = ways.find(|shared| Some(shared.limits_digest) == limits);
    found.unwrap_or(policies)
}

/// The policy of the flags, once for each shape of a key, so that each key has one whose buckets
/// are those of the agents. (Which args make the key of an agent without a file is not known.)
fn shaped(policies: Policies, keys: &[Key]) -> Policies {
    let [policy] = &policies.list[..] else { return policies };
    let mut list: Vec<Policy> = Vec::new();
    for key in keys {
        let args = key_meanings::nameless(key);
        if list.iter().all(|known| known.key.args != args) {
            let mut policy = policy.with_rule(policy.rule.clone());
            policy.key = KeyParts::exact(args);
            list.push(policy);
        }
    }
    if list.is_empty() { policies } else { policies.with_list(list) }
}
