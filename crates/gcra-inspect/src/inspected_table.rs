//! A table and the policies of a command line, for the commands about single clients.
//!
//! The keys of an agent's buckets depend on its policies. With other policies a command would look
//! at other buckets, and say that all is well about a client that is blocked. So it is refused
//! where that is known, and notes the difference where the policies are similar.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::bail;
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::client_name::write_client;
use gcra_limiter::earlier_policies::PolicyHistory;
use gcra_limiter::question::Question;
use gcra_limiter::stats::Stats;
use gcra_limiter::written_message::WrittenMessage;
use gcra_policy::file::document;
use gcra_policy::flags::StoreFlags;
use gcra_policy::key::Key;
use gcra_policy::policy_text::MOST_TEXT;
use gcra_policy::secrets::Readers;
use gcra_policy::table_error::TableError;
use gcra_policy::{Policies, Policy};
use gcra_table::{Leases, Slots, Table};
use gcra_text::config_note::ConfigNote;
use gcra_text::count::Count;
use gcra_text::output::{Mistakes, WrongUsage, print_note};
use gcra_text::visible::Visible;
use spop_agent::Message;

use crate::explanation::{key_parts, of_a_group, written_key};
use crate::key_readings::{self, KeyReading, OtherForm, named, other_forms};
use crate::policies_file::{Chosen, Kept, KeptError};
use crate::process_state::{is_used, living};

/// A table, and the policies by which the command looks at it.
pub struct Inspected {
    pub table: Arc<Table>,
    pub path: PathBuf,
    pub in_force: Arc<ActivePolicies>,
    /// The leases of the machine, if it has any.
    pub leases: Option<Arc<Leases>>,
    pub source: PolicySource,
    /// The policies that agents keep beside the table, once they were read.
    kept: OnceLock<Kept>,
    /// The policies that they have or had besides those here, once these were asked for.
    others: OnceLock<Vec<Policies>>,
    /// Whether earlier configurations are missing.
    pub(crate) misses_history: bool,
}

pub struct InspectedClient {
    /// A request of this client, without the cost and the arg of `when`.
    message: WrittenMessage,
    /// The KEY, as it was written, and its args.
    pub written: String,
    reading: KeyReading,
    pub question: Question,
}

/// The source of a command's policies. In sentences: "no key of any policy in ...".
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PolicySource {
    File(PathBuf),
    /// The flags of agents. They make one policy, which nobody has named.
    Flags,
    /// The flags or the file of the agent that answers itself.
    Agent,
}

impl PolicySource {
    fn of(file: Option<&Path>) -> Self {
        file.map_or(Self::Flags, |file| Self::File(file.to_owned()))
    }

    /// Whether its policies have names that mean something to the operator.
    pub(crate) fn has_names(&self) -> bool {
        *self != Self::Flags
    }
}

impl fmt::Display for PolicySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.display().fmt(f),
            Self::Flags => f.write_str("the flags of the agents"),
            Self::Agent => f.write_str("the agent's configuration"),
        }
    }
}

/// Whether the agents that use the table now have their limits from a file, as each of them says.
fn have_files(table: &Table) -> Vec<bool> {
    living(table).iter().filter_map(|agent| Some(agent.profile?.has_file)).collect()
}

/// Fails if the command line has `--config`, and the agents of the table have no file. If no agent
/// says that now, this is about those that used it last, as far as they have kept something.
/// `what` is the command, for the sentence about that.
fn check_sources(
    table: &Table,
    path: &Path,
    kept: Option<&Chosen<'_>>,
    what: &str,
) -> anyhow::Result<()> {
    let (mut have_files, shown) = (have_files(table), path.display());
    let is_now = !have_files.is_empty();
    if !is_now {
        have_files.extend(kept.map(|chosen| chosen.entry.origin.file().is_some()));
    }
    // Where agents differ, or nothing is known, the command line may be right.
    if have_files.is_empty() || have_files.contains(&true) {
        return Ok(());
    }
    let (who, otherwise) = match is_now {
        true => (format!("the agents of table {shown} have"), ""),
        false => (
            format!("table {shown} was last used by agents that had"),
            ", or name the table of your agents with --table",
        ),
    };
    let sentence = format!(
        "{who} their limit from --rate, and not from a file; write '{what}' without \
         --config{otherwise}"
    );
    bail!(WrongUsage(sentence))
}

/// The policies that the agents keep, for a command that can do without them.
///
/// # Errors
///
/// It is known what they have, and cannot be used.
pub(crate) fn policies_of_agents(
    table: &Table,
    path: &Path,
) -> anyhow::Result<Option<(Policies, PolicySource)>> {
    let kept = Kept::read(table, path);
    let chosen = kept.as_ref().ok().and_then(|kept| kept.chosen(table, path));
    chosen.map(|chosen| of_agents(&kept, Some(chosen), path)).transpose()
}

/// The policies that the agents keep beside their table, and what they come from.
fn of_agents(
    kept: &Result<Kept, KeptError>,
    chosen: Option<Chosen<'_>>,
    path: &Path,
) -> anyhow::Result<(Policies, PolicySource)> {
    if let Err(KeptError::Unusable(why)) = kept {
        bail!(
            "{why}, so the limits of the agents are not known; name their file with --config, or \
             remove it: agents that run write another one"
        );
    }
    let Some(Chosen { entry, note }) = chosen else {
        bail!(WrongUsage(format!(
            "the limits of the agents of table {} are not known; name their file with --config, \
             or start an agent, which writes its limits beside the table",
            path.display()
        )));
    };
    note.iter().for_each(|note| print_note(note));
    let file = entry.origin.file();
    let unusable = |mut mistakes: Vec<ConfigNote>| {
        mistakes.push(ConfigNote::from(format!(
            "what the agents of table {} have in force cannot be used by this command; name a \
             copy of their file with --config",
            path.display()
        )));
        Mistakes(mistakes)
    };
    Ok(match entry.policies().map_err(unusable)? {
        Some(policies) => (policies, PolicySource::of(file)),
        None => {
            let file = file.unwrap_or(Path::new(""));
            let policies = read(file)?;
            print_note(&format!(
                "the configuration of the agents has more than {} MiB with its lists, so {} is \
                 read as it is now{}",
                MOST_TEXT >> 20,
                file.display(),
                if entry.limits == policies.limits_digest {
                    ""
                } else {
                    "; its limits are others"
                }
            ));
            (policies, PolicySource::File(file.to_owned()))
        }
    })
}

/// The leases beside a table, if there are any. A note says so if they cannot be opened.
fn leases_of(table: &Table) -> Option<Arc<Leases>> {
    Leases::inspect(table).map(|leases| leases.map(Arc::new)).unwrap_or_else(|error| {
        let error = TableError(error);
        print_note(&format!("what this machine holds of shared limits is not known: {error}"));
        None
    })
}

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
    /// Opens the table, and makes the policies: those that its agents keep, or those of the
    /// command line. Notes on standard error if these are not the policies of the agents. `what`
    /// is the command, for the sentence that says to use it differently.
    ///
    /// # Errors
    ///
    /// There is no such table, the file has mistakes, it is not known what the agents have, or
    /// they get their limits in another way than the command line says.
    pub fn open(path: PathBuf, config: Option<&Path>, what: &str) -> anyhow::Result<Self> {
        let given = config.map(read).transpose()?;
        let table = Table::inspect(&path).map_err(TableError)?;
        let kept = Kept::read(&table, &path);
        let chosen = kept.as_ref().ok().and_then(|kept| kept.chosen(&table, &path));
        let (policies, source) = match given {
            Some(policies) => {
                check_sources(&table, &path, chosen.as_ref(), what)?;
                (policies, PolicySource::of(config))
            }
            None => of_agents(&kept, chosen, &path)?,
        };
        let history = kept.as_ref().ok().and_then(|kept| kept.history_of(&policies, &table));
        let (history, missing) = history.unwrap_or_default();
        let stats = Stats::new(NonZeroUsize::MIN);
        let in_force = Arc::new(ActivePolicies::after(history, policies, &stats, &table));
        let (leases, table) = (leases_of(&table), Arc::new(table));
        let inspected = Self {
            kept: kept.unwrap_or_default().into(),
            misses_history: missing > 0,
            ..Self::of_parts(table, path, in_force, leases, source)
        };
        let differs = if config.is_some() { inspected.note() } else { None };
        let notes = [inspected.note_about_users(), differs, inspected.note_about_missing()];
        notes.iter().flatten().for_each(|note| print_note(note));
        Ok(inspected)
    }

    /// The policies of a file whose names of clients need no table, because it has a salt.
    ///
    /// # Errors
    ///
    /// The file has mistakes, or there is no memory.
    pub(crate) fn with_salt(config: &Path) -> anyhow::Result<Option<Self>> {
        let policies = read(config)?;
        if policies.list.iter().any(|policy| policy.name_salt.is_none()) {
            return Ok(None);
        }
        let table = Table::in_memory(Slots::new(64)?)?;
        let stats = Stats::new(NonZeroUsize::MIN);
        let in_force = ActivePolicies::after(PolicyHistory::default(), policies, &stats, &table);
        let source = PolicySource::of(Some(config));
        Ok(Some(Self::of_parts(table.into(), PathBuf::new(), in_force.into(), None, source)))
    }

    /// A table, and policies that are known, without the history of agents.
    pub fn of_parts(
        table: Arc<Table>,
        path: PathBuf,
        in_force: Arc<ActivePolicies>,
        leases: Option<Arc<Leases>>,
        source: PolicySource,
    ) -> Self {
        let (kept, others) = (OnceLock::new(), OnceLock::new());
        let misses_history = false;
        Self { table, path, in_force, leases, source, kept, others, misses_history }
    }

    /// Says so if it is not known what was in force before.
    fn note_about_missing(&self) -> Option<String> {
        self.misses_history.then(|| {
            format!(
                "a configuration that was in force before was too large to be kept beside the \
                 table {}, so a client may owe more than is shown",
                self.path.display()
            )
        })
    }

    /// All policies that agents have, or had before.
    pub(crate) fn others(&self) -> &[Policies] {
        self.others.get_or_init(|| {
            let read = || Kept::read(&self.table, &self.path).unwrap_or_default();
            let mut others: Vec<_> = self.kept.get_or_init(read).all().collect();
            others.iter_mut().for_each(|policies| policies.come_into_force(&self.table));
            others
        })
    }

    /// Refuses a `--store` if no policy is shared.
    pub(crate) fn check_store(&self, flags: &StoreFlags) -> Result<(), WrongUsage> {
        let is_used = self.in_force.policies.list.iter().any(|policy| policy.shared.is_some());
        let said = "no policy is shared, so --store has no effect; leave it out";
        if is_used || flags.store.is_none() { Ok(()) } else { Err(WrongUsage(said.to_owned())) }
    }

    /// The client that this key means in the policy with this name; without a name, the one in
    /// each policy whose key it can be.
    ///
    /// # Errors
    ///
    /// There is no such policy, or the key is not one of any of the policies.
    pub fn clients(
        &self,
        policy: Option<&str>,
        key: &Key,
    ) -> anyhow::Result<Vec<InspectedClient>> {
        self.for_each_meant(policy, key, |at, reading| self.client(at, &key.text, reading))
    }

    /// Makes something of the meaning of a key in the policy with this name; without a name, in
    /// each policy whose key it can be. `make` gets the place of the policy. Its error is a
    /// sentence.
    ///
    /// # Errors
    ///
    /// There is no such policy, or the key is not one of any of the policies.
    pub(crate) fn for_each_meant<T>(
        &self,
        policy: Option<&str>,
        key: &Key,
        make: impl Fn(usize, KeyReading) -> Result<T, String>,
    ) -> anyhow::Result<Vec<T>> {
        let policies = &self.in_force.policies.list;
        let source = &self.source;
        let is_meant = |found: &Policy| match policy {
            Some(name) => *name == *found.name,
            None => !found.is_trial,
        };
        let meant: Vec<_> = (0..policies.len()).filter(|at| is_meant(&policies[*at])).collect();
        if let (Some(name), []) = (policy, &meant[..]) {
            bail!(no_policy(name, &self.in_force.policies, source));
        }
        let made = |at: usize| make(at, named(key, &policies[at].key.args)?);
        let found: Vec<_> = meant.iter().map(|at| (*at, made(*at))).collect();
        if found.iter().any(|(_, made)| made.is_ok()) {
            return Ok(found.into_iter().filter_map(|(_, made)| made.ok()).collect());
        }
        let sentence = match &found[..] {
            [(at, Err(mistake))] if source.has_names() => {
                format!("policy '{}': {mistake}", policies[*at].name)
            }
            // A value that is wrong for each of them.
            [(_, Err(mistake)), rest @ ..]
                if rest.iter().all(|(_, other)| other.as_ref().err() == Some(mistake)) =>
            {
                mistake.clone()
            }
            _ => {
                let each: Vec<_> = found
                    .iter()
                    .filter_map(|(at, made)| {
                        let mistake = made.as_ref().err()?;
                        Some(format!("'{}': {mistake}", policies[*at].name))
                    })
                    .collect();
                let each = each.join("; ");
                format!("'{}' is not a key of any policy in {source}: {each}", key.text)
            }
        };
        bail!(WrongUsage(sentence))
    }

    /// The client with the key of this meaning in the policy at this place. The error is a
    /// sentence.
    pub(crate) fn client(
        &self,
        at: usize,
        key: &str,
        reading: KeyReading,
    ) -> Result<InspectedClient, String> {
        let policy = &self.in_force.policies.list[at];
        let name = policy.message.as_deref().unwrap_or_default();
        let (message, question) = of_a_group(policy, &reading.args, |args| {
            let message = WrittenMessage::new(name, args).ok();
            let message =
                message.ok_or_else(|| format!("'{key}' has too many parts; 255 are the most"))?;
            let question = message
                .message()
                .and_then(|message| Question::under(&self.in_force, &self.table, at, &message));
            let question = question.ok_or_else(|| {
                let args = key_readings::in_words(&policy.key.args);
                format!("'{key}' is not a whole key, or has null in it; it is {args}")
            })?;
            Ok((message, question))
        })?;
        Ok(InspectedClient { message, written: key.to_owned(), reading, question })
    }

    /// Says which KEY to write instead, if the table has `what` not of this client but of one that
    /// HAProxy may mean by it; or, if it has none of either, where many configurations of HAProxy
    /// send another key. `has` says whether the table has it of a client.
    pub fn notes_about_others(
        &self,
        client: &InspectedClient,
        what: &str,
        has: impl Fn(&InspectedClient) -> bool,
    ) -> Vec<String> {
        if has(client) {
            return Vec::new();
        }
        let (mut known, mut usual) = (Vec::new(), Vec::new());
        let (at, policy) = (client.question.policy, self.policy(client));
        let shown = self.shown(client);
        let place = match self.policy_in_words(client) {
            policy if policy.is_empty() => policy,
            policy => format!(" in {policy}"),
        };
        let args = client.reading.args.iter().enumerate();
        let forms = args.flat_map(|(number, arg)| {
            other_forms(arg, &policy.key.args).into_iter().map(move |form| (number, form))
        });
        for (number, OtherForm { arg, when, is_usual }) in forms {
            let mut reading = client.reading.clone();
            reading.args[number] = arg;
            let Ok(other) = self.client(at, &client.written, reading) else { continue };
            if other.question.key == client.question.key {
                continue;
            }
            let written = other.message().map(|message| written_key(policy, &message));
            let written = written.unwrap_or_default();
            let right = format!("if {when}, the KEY to write is {written}");
            if has(&other) {
                known.push(format!(
                    "the table has {what} for {written}{place}, and none for {shown}; {right}"
                ));
            } else if is_usual {
                usual.push(format!("this is about {shown}{place}; {right}"));
            }
        }
        if known.is_empty() { usual } else { known }
    }

    pub fn policy(&self, client: &InspectedClient) -> &Policy {
        &self.in_force.policies.list[client.question.policy]
    }

    /// Says so if no agent decides by the table, or if others decide by another file.
    fn note_about_users(&self) -> Option<String> {
        let path = self.path.display();
        if self.table.board().has_strangers() {
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
        let (all, others) = self.agents_with_other_limits();
        let agents = Count(all as u64, "agent", "agents");
        let have = if others == 1 { "has" } else { "have" };
        (others > 0).then(|| {
            format!(
                "{others} of {agents} of table {path} {have} other limits than those of {}; was \
                 it changed and not reloaded, or is it another file?",
                self.source
            )
        })
    }

    /// Whether the agents of the table do not know a policy: all have other limits, and none has
    /// had a policy of this name.
    pub(crate) fn is_unknown_policy(&self, policy: &Policy) -> bool {
        let (all, others) = self.agents_with_other_limits();
        let name = &policy.name;
        let mut known = self.others().iter().flat_map(|others| &others.list);
        self.source.has_names()
            && all > 0
            && others == all
            && !self.others().is_empty()
            && !known.any(|policy| policy.name == *name)
    }

    /// How many agents use the table and say which limits they have, and how many of them have
    /// others than the command's.
    pub(crate) fn agents_with_other_limits(&self) -> (usize, usize) {
        let agents = living(&self.table);
        let limits = || agents.iter().filter_map(|agent| Some(agent.profile.as_ref()?.limits));
        let ours = self.in_force.policies.limits_digest;
        (limits().count(), limits().filter(|limits| *limits != ours).count())
    }

    /// Says that the table does not have all that is counted, for each of these policies that is
    /// shared.
    pub(crate) fn print_which_are_shared<'n>(&self, names: impl Iterator<Item = &'n str>) {
        let names: BTreeSet<_> = names.collect();
        let policies = self.in_force.policies.without_trials();
        let shared: Vec<_> = policies
            .filter(|policy| policy.shared.is_some() && names.contains(&*policy.name))
            .map(|policy| &policy.name)
            .collect();
        for name in shared {
            print_note(&format!(
                "policy '{name}' is shared with other machines; this command knows what this \
                 machine holds, and not what the store has"
            ));
        }
    }

    /// The name of a client in logs, in `top` and in /status.
    pub fn name(&self, client: &InspectedClient) -> String {
        let mut name = String::new();
        let Question { key, .. } = client.question;
        write_client(&mut name, self.policy(client), key, client.message());
        name
    }

    /// A key as it was written, with what is meant by it and what the policy makes of it, if that
    /// is something else.
    pub(crate) fn shown(&self, client: &InspectedClient) -> String {
        let parts = client.message().map(|message| key_parts(self.policy(client), &message));
        let parts = parts.unwrap_or_default();
        let mut notes =
            Vec::from_iter(Some(client.reading.note.clone()).filter(|note| !note.is_empty()));
        let counted = parts.iter().map(|part| &*part.counted_as).collect::<Vec<_>>().join(",");
        if parts.iter().any(|part| part.value != part.counted_as) && counted != client.written {
            notes.push(format!("counted as {counted}"));
        }
        match &notes[..] {
            [] => Visible(&client.written).to_string(),
            notes => format!("{} ({})", Visible(&client.written), notes.join(", ")),
        }
    }

    /// A sentence about a client under a limit, or about the client itself: "192.0.2.7: policy
    /// 'api', 10 per second: ...". Without policy and limit for agents without a file.
    pub(crate) fn about(&self, client: &InspectedClient, limit: &str, said: &str) -> String {
        let shown = self.shown(client);
        about(&shown, &self.policy_in_words(client), limit, said)
    }

    pub(crate) fn policy_in_words(&self, client: &InspectedClient) -> String {
        self.name_in_words(self.policy(client))
    }

    /// "policy 'api'" where the policies come from a file, else nothing.
    pub(crate) fn name_in_words(&self, policy: &Policy) -> String {
        match self.source.has_names() {
            true => format!("policy '{}'", policy.name),
            false => String::new(),
        }
    }
}

/// A sentence about clients under a limit, or about the clients themselves.
pub(crate) fn about(shown: &str, policy: &str, limit: &str, said: &str) -> String {
    match (policy, limit) {
        ("", _) => format!("{shown}: {said}"),
        (policy, "") => format!("{shown}: {policy}: {said}"),
        (policy, limit) => format!("{shown}: {policy}, {limit}: {said}"),
    }
}

impl InspectedClient {
    /// A message of this client. (It is always there.)
    pub fn message(&self) -> Option<Message<'_>> {
        self.message.message()
    }
}

/// The mistake of a command that names a policy that is not among these.
pub(crate) fn no_policy(name: &str, policies: &Policies, source: &PolicySource) -> WrongUsage {
    let names: Vec<_> = policies.without_trials().map(|policy| &*policy.name).collect();
    no_policy_among(name, &names, source)
}

/// As [`no_policy`], where only the names of the policies are known.
pub(crate) fn no_policy_among(name: &str, names: &[&str], source: &PolicySource) -> WrongUsage {
    let names = names.join(", ");
    WrongUsage(format!("there is no policy '{name}' in {source}; it has {names}"))
}

/// Reads the file of the agents for a command about them.
///
/// # Errors
///
/// The mistakes in the file, and what can be done while it has them.
pub fn read(file: &Path) -> Result<Policies, Mistakes> {
    document::read(file, Readers::OfFile).map_err(|mut mistakes| {
        mistakes.push(ConfigNote::from(format!(
            "{} cannot be used by this command; running agents keep the policies that they loaded \
             before; name a copy of the file that they loaded with --config, or mend this one",
            file.display()
        )));
        Mistakes(mistakes)
    })
}
