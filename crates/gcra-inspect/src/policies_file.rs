//! The file beside a table in which its agents keep the policies that are and were in force:
//! `<table>.policies`.
//!
//! It has an entry for each set of policies. A command makes the policies of the agents from it,
//! and an agent that starts learns what was in force before: by that it knows what clients owe. An
//! agent writes a new file and renames it, so the file with this name is complete, even after a
//! writer was killed. docs/internals/POLICIES.md describes it.

// ADR 46: Agents keep what is in force beside the table.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::earlier_policies::{FormerPolicies, PolicyHistory, most_owed};
use gcra_policy::Policies;
use gcra_policy::policy_text::PolicyText;
use gcra_table::board::Process;
use gcra_table::{FilePath, Name, Table, Time};
use gcra_text::config_note::ConfigNote;
use gcra_text::count::Count;
use gcra_text::duration::Left;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::process_list;
use crate::process_state::living;

/// The first line, without the checksum. The number changes with the meaning of the bytes that
/// follow.
const TITLE: &str = "gcra-spoa policies 3 ";

/// How many digits of the checksum follow, before the end of the line.
const DIGITS: usize = 16;

/// The most entries: as many as agents that a table lists, of which each may have its own.
const MOST_ENTRIES: usize = 512;

/// The most bytes of a file: a few times the most that the texts of one entry have.
const MOST_BYTES: usize = 16 << 20;

/// How often a writer tries to be the only one, and how long it waits in between.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Policies that are or were in force, with times of the table's clock.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PublishedPolicies {
    /// The digest of the limits.
    pub(crate) limits: u64,
    /// When an agent last put them in force while they were not.
    since_ns: u64,
    /// When they last ended: another agent put others in force, or an agent ended with them after
    /// that. 0 if they never did. They are in force if this is before `since_ns`.
    ended_ns: u64,
    /// The most that a client can owe by them.
    most_owed_ns: u64,
    /// The policies that only observe because an action of `--admin` said so.
    switched: Vec<String>,
    pub(crate) origin: PolicyText,
}

impl PublishedPolicies {
    /// The policies in force since `now`. `None` if nothing says where they come from.
    pub fn new(policies: &Policies, now: Time) -> Option<Self> {
        Some(Self {
            limits: policies.limits_digest,
            since_ns: now.0,
            ended_ns: 0,
            most_owed_ns: most_owed(&policies.list).0,
            switched: policies.switched.iter().map(ToString::to_string).collect(),
            origin: policies.origin.as_deref()?.clone(),
        })
    }

    /// The policies. `None` if only the path of their file is known.
    ///
    /// # Errors
    ///
    /// The mistakes, a sentence each.
    pub fn policies(&self) -> Result<Option<Policies>, Vec<ConfigNote>> {
        let Some(mut policies) = self.origin.policies()? else { return Ok(None) };
        for name in &self.switched {
            let observing = policies.observing(name, true);
            if let Some(next) = observing.map_err(|error| vec![error.to_string().into()])? {
                policies = next;
            }
        }
        Ok(Some(policies))
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.limits, &self.switched, &self.origin)
            == (other.limits, &other.switched, &other.origin)
    }

    fn is_of(&self, policies: &Policies) -> bool {
        let switched = policies.switched.iter().map(|name| &**name);
        self.limits == policies.limits_digest
            && self.switched.iter().map(String::as_str).eq(switched)
            && policies.origin.as_deref() == Some(&self.origin)
    }

    const fn is_in_force(&self) -> bool {
        self.since_ns > self.ended_ns
    }

    /// Whether a client may owe something by them since before they ended.
    const fn matters(&self, now: Time) -> bool {
        self.ended_ns > 0 && self.ended_ns.saturating_add(self.most_owed_ns) > now.0
    }

    /// "--rate 1/s --burst 1", "those of /etc/gcra-spoa.toml, as it was 5 min ago".
    fn in_words(&self, now: Time) -> String {
        match &self.origin {
            PolicyText::Flags(flags) => flags.to_string(),
            PolicyText::File(_) => {
                let file = self.origin.file().unwrap_or(Path::new("")).display();
                let age = Left(now.saturating_since(Time(self.since_ns)).into());
                format!("the limits of {file} as it was {age} ago")
            }
        }
    }
}

/// The policies that a table's agents have kept.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Kept {
    entries: Vec<PublishedPolicies>,
}

/// Why a command cannot use the file.
#[derive(Clone, Debug)]
pub enum KeptError {
    /// There is none.
    Missing,
    /// A sentence about it.
    Unusable(String),
}

/// Which entry a command answers by.
pub struct Chosen<'k> {
    pub entry: &'k PublishedPolicies,
    /// The note if others of the agents have other limits.
    pub note: Option<String>,
}

impl Kept {
    /// Reads what the agents of the table at `path` have kept.
    ///
    /// # Errors
    ///
    /// There is no such file, it is damaged, or somebody else could have written it.
    pub fn read(table: &Table, path: &Path) -> Result<Self, KeptError> {
        Self::read_at(table, &path.into())
    }

    fn read_at(table: &Table, path: &FilePath) -> Result<Self, KeptError> {
        let name = beside(path);
        let unusable = |why: &str| KeptError::Unusable(format!("{} {why}", name.display()));
        let cannot = |error: io::Error| unusable(&format!("cannot be read: {error}"));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let (folder, entry) = name.at();
        let file = match rustix::fs::openat(folder, entry, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Err(KeptError::Missing),
            Err(Errno::LOOP) => return Err(unusable("is a link, and agents write a file")),
            Err(errno) => return Err(cannot(errno.into())),
        };
        let metadata = file.metadata().map_err(cannot)?;
        let (folder, entry) = path.at();
        let owner = rustix::fs::statat(folder, entry, AtFlags::empty());
        let owner = owner.map_err(|errno| cannot(errno.into()))?.st_uid;
        must_be_of(&metadata, owner).map_err(|why| unusable(&why))?;
        let (mut bytes, most) = (Vec::new(), MOST_BYTES as u64 + 1);
        file.take(most).read_to_end(&mut bytes).map_err(cannot)?;
        Self::from_bytes(table, &bytes).map_err(unusable)
    }

    fn from_bytes(table: &Table, bytes: &[u8]) -> Result<Self, &'static str> {
        const DAMAGED: &str = "is damaged, or belongs to another table";
        if bytes.len() > MOST_BYTES {
            return Err("is too large");
        }
        let rest = bytes
            .strip_prefix(TITLE.as_bytes())
            .ok_or("is not a file that agents of this version have written")?;
        let (digits, rest) = rest.split_at_checked(DIGITS).ok_or(DAMAGED)?;
        let content = rest.strip_prefix(b"\n").ok_or(DAMAGED)?;
        if digits != checksum(table, content).as_bytes() {
            return Err(DAMAGED);
        }
        serde_json::from_slice(content).map_err(|_| DAMAGED)
    }

    /// At most [`MOST_BYTES`]. For that the oldest entries lose their texts.
    fn bounded(&mut self, table: &Table) -> Vec<u8> {
        loop {
            let bytes = self.to_bytes(table);
            if bytes.len() <= MOST_BYTES {
                return bytes;
            }
            // This ends: an entry without texts has a few paths and flags.
            let mut oldest = self.entries.iter_mut().rev();
            if !oldest.any(|entry| entry.origin.drop_texts()) && self.entries.pop().is_none() {
                return bytes;
            }
        }
    }

    fn to_bytes(&self, table: &Table) -> Vec<u8> {
        // There are no maps in it, so this does not fail.
        let content = serde_json::to_vec(self).unwrap_or_default();
        let title = format!("{TITLE}{}\n", checksum(table, &content));
        [title.as_bytes(), &content].concat()
    }

    /// The entry of the most agents that use the table, because most requests are decided by it;
    /// of several such entries the newest. Without any agent it is the newest of all. `None` if
    /// there are agents, and no agent has kept anything.
    pub fn chosen(&self, table: &Table, path: &Path) -> Option<Chosen<'_>> {
        let now = table.now();
        let processes = living(table);
        let agents: Vec<&Process> = processes.iter().filter(|it| it.profile.is_some()).collect();
        let limits = |agent: &Process| agent.profile.map_or(0, |profile| profile.limits);
        let has = |entry: &PublishedPolicies| {
            agents.iter().filter(|it| limits(it) == entry.limits).count()
        };
        let entry = if agents.is_empty() {
            self.entries.iter().max_by_key(|entry| entry.since_ns)?
        } else {
            let of_agents = self.entries.iter().filter(|entry| has(entry) > 0);
            of_agents.max_by_key(|entry| (has(entry), entry.since_ns))?
        };
        let all: BTreeSet<u64> = agents.iter().map(|agent| limits(agent)).collect();
        let about = |digest: u64| {
            let have_it = agents.iter().copied().filter(|agent| limits(agent) == digest);
            process_list::agents(have_it)
        };
        let each = all.iter().map(|digest| {
            let (who, have) = about(*digest);
            let entry = self.entries.iter().find(|entry| entry.limits == *digest);
            let what = entry.map(|entry| entry.in_words(now));
            format!("{who} {have} {}", what.unwrap_or_else(|| "limits not known here".to_owned()))
        });
        let note = (all.len() > 1).then(|| {
            format!(
                "the agents of table {} have different limits: {}; this is about {}",
                path.display(),
                each.collect::<Vec<_>>().join(", "),
                about(entry.limits).0
            )
        });
        Some(Chosen { entry, note })
    }

    /// All policies that are or were in force.
    pub fn all(&self) -> impl Iterator<Item = Policies> {
        self.entries.iter().filter_map(|entry| entry.policies().ok().flatten())
    }

    /// The earlier configurations under which clients may still owe something. The number counts
    /// those that are missing because they were too large to be kept.
    pub(crate) fn history(&self, of: &PublishedPolicies, table: &Table) -> (PolicyHistory, u64) {
        self.history_with(of, &[], table)
    }

    /// The same for policies of a command.
    pub(crate) fn history_of(
        &self,
        policies: &Policies,
        table: &Table,
    ) -> Option<(PolicyHistory, u64)> {
        let own = PublishedPolicies::new(policies, table.now())?;
        Some(self.history(&own, table))
    }

    /// As [`history`](Self::history), with all that is known already.
    fn history_with(
        &self,
        of: &PublishedPolicies,
        known: &[FormerPolicies],
        table: &Table,
    ) -> (PolicyHistory, u64) {
        let told = self.told_of(of, table.now());
        let own = self.entries.iter().find(|entry| entry.is_same(of)).unwrap_or(of);
        let mut missing = 0;
        let mut all: Vec<(Arc<Policies>, Time, Time)> = Vec::new();
        for entry in &told {
            let is_it = |former: &&FormerPolicies| entry.is_of(&former.policies);
            let policies = match known.iter().find(is_it) {
                Some(former) => Some(former.policies.clone()),
                None => entry.policies().ok().flatten().map(Arc::new),
            };
            missing += u64::from(policies.is_none());
            let (since, ended) = (Time(entry.since_ns), Time(entry.ended_ns));
            all.extend(policies.map(|policies| (policies, since, ended)));
        }
        let is_told = |former: &FormerPolicies| told.iter().any(|it| it.is_of(&former.policies));
        let others = known.iter().filter(|former| !is_told(former));
        all.extend(others.map(|it| (it.policies.clone(), it.since, it.ended)));
        all.sort_by_key(|(.., ended)| *ended);
        let first = told.first().filter(|_| missing == 0).map(|entry| entry.since_ns);
        let begun = match (first, all.first()) {
            (None | Some(0), Some((.., ended))) => ended.0,
            (first, _) => first.unwrap_or(own.since_ns),
        };
        let mut history = PolicyHistory::since(Time(begun));
        all.into_iter().for_each(|(policies, since, ended)| history.push(policies, since, ended));
        (history, missing)
    }

    /// The entries from before these policies that matter, those that ended first in front.
    fn told_of(&self, of: &PublishedPolicies, now: Time) -> Vec<&PublishedPolicies> {
        let others = self.entries.iter().filter(|entry| !entry.is_same(of) && entry.matters(now));
        let mut told: Vec<_> = others.collect();
        told.sort_by_key(|entry| entry.ended_ns);
        told
    }

    /// The policies of the agents of the table at `path`, if they are known.
    pub(crate) fn in_force(table: &Table, path: &Path) -> Option<Policies> {
        Self::read(table, path).ok()?.chosen(table, path)?.entry.policies().ok()?
    }

    /// The flags of agents without a file, if the entry that is chosen has some.
    pub fn flags(table: &Table, path: &Path) -> Option<String> {
        let kept = Self::read(table, path).ok()?;
        match &kept.chosen(table, path)?.entry.origin {
            PolicyText::Flags(flags) => Some(flags.to_string()),
            PolicyText::File(_) => None,
        }
    }
}

/// Where the agents of the table at `path` keep what is in force.
pub fn path_beside(path: &Path) -> PathBuf {
    beside(&path.into()).to_path_buf()
}

fn beside(path: &FilePath) -> FilePath {
    path.with_added_extension("policies")
}

/// A checksum that only those can compute who can read the table, and that each change of the
/// content changes.
fn checksum(table: &Table, content: &[u8]) -> String {
    let mut hasher = table.hasher();
    hasher.write(TITLE.as_bytes());
    hasher.write(content);
    format!("{:0DIGITS$x}", hasher.finish().get())
}

/// Fails unless only this user or root can have written the file. The error is the rest of a
/// sentence.
fn must_be_of(metadata: &Metadata, owner: u32) -> Result<(), String> {
    if !metadata.is_file() {
        return Err("is not a regular file".to_owned());
    }
    if ![0, owner].contains(&metadata.uid()) {
        return Err(format!(
            "belongs to the user {}, and the table to the user {owner}",
            metadata.uid()
        ));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err("can be written by others than the table's user".to_owned());
    }
    if metadata.nlink() > 1 {
        return Err("has a second name (a hard link)".to_owned());
    }
    Ok(())
}

/// How an agent keeps what it has in force.
#[derive(Debug)]
pub struct Keeper {
    table: FilePath,
    seen: Mutex<Option<OwnEntry>>,
}

/// A file that has this agent's entry.
#[derive(Debug)]
struct OwnEntry {
    stamp: Stamp,
    limits: u64,
    switched: Vec<Box<str>>,
    origin: Arc<PolicyText>,
}

impl OwnEntry {
    /// Whether it is that of these policies, which come from there.
    fn is_of(&self, policies: &Policies, origin: &Arc<PolicyText>) -> bool {
        (self.limits, &self.switched) == (policies.limits_digest, &policies.switched)
            && Arc::ptr_eq(&self.origin, origin)
    }
}

/// An agent's note about its policies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    /// They come into force.
    Begin,
    /// They are in force.
    Stay,
    /// The agent stops.
    End,
}

/// Numbers that change when another file takes the place, and when the mode, the owner or the
/// number of names changes.
type Stamp = (u64, u64, i64, i64);

fn stamp(path: &FilePath) -> io::Result<Stamp> {
    let (folder, name) = path.at();
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let size = u64::try_from(found.st_size).unwrap_or_default();
    Ok((found.st_ino, size, found.st_ctime, found.st_ctime_nsec.cast_signed()))
}

impl Keeper {
    /// For the table at this path.
    pub fn new(table: FilePath) -> Self {
        Self { table, seen: Mutex::new(None) }
    }

    /// Whether the file is still the one that has these policies, or it is being written.
    pub fn has(&self, policies: &Policies) -> bool {
        let Some(origin) = &policies.origin else { return true };
        let Ok(seen) = self.seen.try_lock() else { return true };
        seen.as_ref().is_some_and(|seen| {
            seen.is_of(policies, origin)
                && stamp(&beside(&self.table)).is_ok_and(|now| now == seen.stamp)
        })
    }

    /// Puts the policies of an agent that starts in force, and returns what was in force before.
    /// The sentence says why clients may begin with no debts.
    pub fn begin(&self, table: &Table, policies: &Policies) -> (PolicyHistory, Option<String>) {
        let begun = PolicyHistory::since(table.now());
        let Some(own) = PublishedPolicies::new(policies, begun.begun) else {
            return (begun, None);
        };
        let mut read = Kept::read_at(table, &self.table);
        // Another agent that starts now writes the file before it charges a client.
        let are_debts = matches!(read, Err(KeptError::Missing)) && table.occupancy().live > 0;
        if are_debts {
            read = Kept::read_at(table, &self.table);
        }
        let why = match &read {
            Err(KeptError::Unusable(why)) => Some(why.clone()),
            Err(KeptError::Missing) if are_debts => {
                Some(format!("there is no file {}", beside(&self.table).display()))
            }
            Err(KeptError::Missing) | Ok(_) => None,
        };
        let anew = "so clients begin with no debts under limits that were changed since";
        let why = why.map(|why| format!("{why}, {anew}"));
        // If it cannot be written, the next beat tries it again, and says so. Its content counts
        // all the same.
        let kept = self.write(table, policies, &begun, Event::Begin);
        let kept = kept.or_else(|_| {
            let mut kept = read.unwrap_or_default();
            kept.note(&own, &begun, Event::Begin, table);
            io::Result::Ok(kept)
        });
        let (history, missing) = kept.unwrap_or_default().history(&own, table);
        let why = why.or_else(|| {
            (missing > 0).then(|| {
                let were = Count(missing, "configuration that was", "configurations that were");
                let was = if missing == 1 { "was" } else { "were" };
                format!("{were} in force before {was} too large to be kept, {anew} by them")
            })
        });
        (history, why)
    }

    /// Writes the policies in force, unless the file has them, and what was in force before.
    /// Policies that no agent has and that do not matter any more leave the file. Returns the
    /// history, if the file tells more of it than the agent knows.
    ///
    /// # Errors
    ///
    /// The file cannot be written. The error names it.
    pub fn keep(
        &self,
        table: &Table,
        in_force: &ActivePolicies,
    ) -> io::Result<Option<PolicyHistory>> {
        let ActivePolicies { policies, history, .. } = in_force;
        let event = if self.has_written(policies) { Event::Stay } else { Event::Begin };
        let kept = self.write(table, policies, history, event)?;
        let Some(own) = PublishedPolicies::new(policies, table.now()) else { return Ok(None) };
        let is_known = |told: &&PublishedPolicies| {
            let mut former = history.former().iter();
            former.any(|it| told.is_of(&it.policies) && it.ended.0 == told.ended_ns)
        };
        let told = kept.told_of(&own, table.now());
        let has_more = told.iter().any(|told| told.origin.has_texts() && !is_known(told));
        Ok(has_more.then(|| kept.history_with(&own, history.former(), table).0))
    }

    /// Writes that an agent stops which has had these policies in force.
    ///
    /// # Errors
    ///
    /// As [`keep`](Self::keep).
    pub fn keep_last(&self, table: &Table, in_force: &ActivePolicies) -> io::Result<()> {
        let ActivePolicies { policies, history, .. } = in_force;
        // While they came into force, another thread may have written the ones before once more.
        let event = if self.has_written(policies) { Event::End } else { Event::Begin };
        self.write(table, policies, history, event).map(drop)
    }

    /// Whether this process has written these policies last.
    fn has_written(&self, policies: &Policies) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        policies
            .origin
            .as_ref()
            .is_none_or(|origin| seen.as_ref().is_some_and(|seen| seen.is_of(policies, origin)))
    }

    /// Writes the file if it changes by that, and returns what is in it then.
    fn write(
        &self,
        table: &Table,
        policies: &Policies,
        history: &PolicyHistory,
        event: Event,
    ) -> io::Result<Kept> {
        // The file belongs to the table that has the name now.
        let since = history.since_last();
        let (Some(origin), Some(own), Name::Ours) =
            (&policies.origin, PublishedPolicies::new(policies, since), table.name())
        else {
            return Ok(Kept::default());
        };
        let name = beside(&self.table);
        let written = || {
            // Another thread of this process may be at it.
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let beside = Beside::lock(&name)?;
            let read = Kept::read_at(table, &self.table).ok();
            let mut kept = read.clone().unwrap_or_default();
            kept.note(&own, history, event, table);
            if read.as_ref() != Some(&kept) {
                kept.leave_out(&own, table);
                beside.put(&kept.bounded(table), &name)?;
            } else {
                beside.path.remove()?;
            }
            *seen = Some(OwnEntry {
                stamp: stamp(&name)?,
                limits: policies.limits_digest,
                switched: policies.switched.clone(),
                origin: origin.clone(),
            });
            Ok(kept)
        };
        written()
            .map_err(|error: io::Error| io::Error::other(format!("{}: {error}", name.display())))
    }
}

impl Kept {
    /// Notes an agent's present policies, and those that it had before.
    fn note(
        &mut self,
        own: &PublishedPolicies,
        history: &PolicyHistory,
        event: Event,
        table: &Table,
    ) {
        let now = table.now();
        let has_space = self.entries.len() < MOST_ENTRIES;
        for former in history.former() {
            match self.entries.iter_mut().find(|entry| entry.is_of(&former.policies)) {
                Some(entry) => entry.ended_ns = entry.ended_ns.max(former.ended.0),
                None if has_space && now < former.matter_until => {
                    let entry = PublishedPolicies::new(&former.policies, former.since);
                    self.entries.extend(
                        entry.map(|entry| PublishedPolicies { ended_ns: former.ended.0, ..entry }),
                    );
                }
                None => {}
            }
        }
        if event == Event::Begin {
            let others = self.entries.iter_mut().filter(|entry| !entry.is_same(own));
            others.filter(|it| it.is_in_force()).for_each(|entry| entry.ended_ns = now.0);
        }
        match self.entries.iter_mut().find(|entry| entry.is_same(own)) {
            None => self.entries.push(own.clone()),
            Some(entry) => match event {
                Event::Begin if !entry.is_in_force() => entry.since_ns = now.0,
                // Others were put in force since, and by these it is decided until now.
                Event::End if !entry.is_in_force() => entry.ended_ns = now.0,
                Event::Begin | Event::Stay | Event::End => {}
            },
        }
    }

    /// Leaves out what no agent has and what does not matter any more.
    fn leave_out(&mut self, own: &PublishedPolicies, table: &Table) {
        let (now, agents) = (table.now(), living(table));
        let of_agents: BTreeSet<u64> =
            agents.iter().filter_map(|agent| Some(agent.profile?.limits)).collect();
        // By a former key a command ends an order.
        let has_orders = !table.board().orders().is_empty();
        self.entries.retain(|entry| {
            entry.is_same(own)
                || entry.is_in_force()
                || entry.matters(now)
                || has_orders
                || of_agents.contains(&entry.limits)
        });
        // The newest come first, and leave last. Those of agents stay.
        self.entries.sort_by_key(|entry| {
            let is_of_agent = of_agents.contains(&entry.limits);
            Reverse((entry.is_same(own), is_of_agent, entry.since_ns.max(entry.ended_ns)))
        });
        self.entries.truncate(MOST_ENTRIES);
    }
}

/// A file that is written before it gets the name. One process has it at a time.
struct Beside {
    path: FilePath,
    file: File,
}

/// Why there is no lock after all attempts.
const ALWAYS_LOCKED: &str = "other agents write it all the time";

impl Beside {
    fn lock(of: &FilePath) -> io::Result<Self> {
        let path = of.with_added_extension("new");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Each attempt waits for another writer, which writes once.
        for _ in 0..ATTEMPTS {
            let Some((file, metadata)) = Self::open(&path, flags | OFlags::NONBLOCK)? else {
                // Anybody may have made it, where anybody may make files.
                match path.remove() {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        let path = path.display();
                        return Err(io::Error::other(format!(
                            "{path} is not a file of this agent, and cannot be removed \
                             ({error}); remove it"
                        )));
                    }
                    _ => continue,
                }
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The one that had the lock before may have given the file its name.
                Ok(()) if stamp(&path).is_ok_and(|(inode, ..)| inode == metadata.ino()) => {
                    return Ok(Self { path, file });
                }
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(PAUSE),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::Error::other(ALWAYS_LOCKED))
    }

    /// `None` if there is something else than a file of this user with one name.
    fn open(path: &FilePath, flags: OFlags) -> io::Result<Option<(File, Metadata)>> {
        let (folder, name) = path.at();
        let file = match rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Ok(None),
            // With fs.protected_regular, also a file of another user in /dev/shm, even for root.
            Err(Errno::ACCESS) if stamp(path).is_ok() => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let metadata = file.metadata()?;
        let user = rustix::process::geteuid().as_raw();
        // It has no name any more if another writer has given it the name and replaced it since.
        let is_own = metadata.is_file() && metadata.uid() == user && metadata.nlink() <= 1;
        Ok(is_own.then_some((file, metadata)))
    }

    /// Writes it, and gives it the name.
    fn put(&self, bytes: &[u8], name: &FilePath) -> io::Result<()> {
        // Whatever a writer that was killed has left, and whatever the umask took away.
        self.file.set_len(0)?;
        rustix::fs::fchmod(&self.file, Mode::RUSR | Mode::WUSR)?;
        self.file.write_all_at(bytes, 0)?;
        self.path.rename(name)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicBool, Ordering};

    use gcra_limiter::stats::Stats;
    use gcra_policy::file::document;
    use gcra_table::{Nanos, Slots};
    use proptest::prelude::*;

    use super::*;

    fn table() -> Table {
        Table::in_memory(Slots::new(8).unwrap()).unwrap()
    }

    fn kept() -> Kept {
        let text = "[policy.api]\nlimits = \"3/d\"\nkey = [\"ip\"]\n";
        let policies = document::parse(Path::new("/etc/gcra-spoa.toml"), text).unwrap();
        Kept { entries: vec![PublishedPolicies::new(&policies, Time(7)).unwrap()] }
    }

    #[test]
    fn what_was_written_is_read_by_those_who_have_the_same_table() {
        let (one, other, kept) = (table(), table(), kept());
        let bytes = kept.to_bytes(&one);
        let read = Kept::from_bytes(&one, &bytes).unwrap();
        assert_eq!(read.entries, kept.entries);
        let policies = read.entries[0].policies().unwrap().unwrap();
        assert_eq!(policies.limits_digest, kept.entries[0].limits);
        assert!(Kept::from_bytes(&other, &bytes).unwrap_err().contains("another table"));
    }

    #[test]
    fn damage_at_any_place_is_noticed() {
        let table = table();
        let bytes = kept().to_bytes(&table);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Kept::from_bytes(&table, &damaged).is_err(), "byte {at}");
            assert!(Kept::from_bytes(&table, &bytes[..at]).is_err(), "{at} bytes");
        }
    }

    proptest! {
        #[test]
        fn bytes_that_nobody_has_written_are_refused(bytes: Vec<u8>, content: Vec<u8>) {
            let table = table();
            prop_assert!(Kept::from_bytes(&table, &bytes).is_err());
            // Also with the right checksum.
            let title = format!("{TITLE}{}\n", checksum(&table, &content));
            let _ = Kept::from_bytes(&table, &[title.as_bytes(), &content].concat());
        }
    }

    /// So it is whole, too, when its writer is killed at any moment.
    #[test]
    fn a_reader_finds_a_whole_file_while_others_write() {
        let directory = tempfile::tempdir().unwrap();
        let (table, name) = (table(), directory.path().join("table.policies"));
        let name = FilePath::from(&*name);
        let bytes = kept().to_bytes(&table);
        // The other writer may have the lock each time that this one wants it.
        let lock = || loop {
            match Beside::lock(&name) {
                Err(error) if error.to_string() == ALWAYS_LOCKED => {}
                locked => return locked.unwrap(),
            }
        };
        let write = || lock().put(&bytes, &name).unwrap();
        write();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let writers = [(); 2].map(|()| scope.spawn(|| (0..500).for_each(|_| write())));
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    Kept::from_bytes(&table, &std::fs::read(&*name).unwrap()).unwrap();
                }
            });
            let ended = writers.map(thread::ScopedJoinHandle::join);
            is_over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
    }

    /// A control character takes six bytes.
    #[test]
    fn what_is_too_large_as_json_is_written_without_its_texts() {
        let directory = tempfile::tempdir().unwrap();
        let (table, path) = (table(), directory.path().join("gcra.toml"));
        std::fs::write(directory.path().join("list"), format!("# {}", "\u{1}".repeat(3 << 20)))
            .unwrap();
        let text = "[policy.api]\nlimits = \"3/d\"\nkey = [\"ip\"]\n[[policy.api.lists]]\n\
                    file = \"list\"\nlimits = \"4/d\"\n";
        let policies = document::parse(&path, text).unwrap();
        let own = PublishedPolicies::new(&policies, Time(7)).unwrap();
        let mut kept = Kept { entries: vec![own.clone(), own] };
        let read = Kept::from_bytes(&table, &kept.bounded(&table)).unwrap();
        assert_eq!(read.entries.len(), 2);
        assert!(read.entries[1].policies().unwrap().is_none(), "the path is left");
        assert_eq!(read.entries[1].origin.file(), Some(&*path));
    }

    fn policies(limit: &str) -> Policies {
        let text = format!("[policy.api]\nlimits = \"{limit}\"\nkey = [\"ip\"]\n");
        document::parse(Path::new("/etc/gcra-spoa.toml"), &text).unwrap()
    }

    /// An agent on this table, as it starts or reloads.
    fn begin(
        kept: &mut Kept,
        table: &Table,
        history: &PolicyHistory,
        limit: &str,
    ) -> PublishedPolicies {
        let own = PublishedPolicies::new(&policies(limit), table.now()).unwrap();
        kept.note(&own, history, Event::Begin, table);
        own
    }

    fn limits(history: &PolicyHistory) -> Vec<String> {
        let words = |former: &FormerPolicies| {
            former.policies.list[0].rule.limits()[0].quota(None).burst().to_string()
        };
        history.former().iter().map(words).collect()
    }

    #[test]
    fn what_comes_into_force_ends_all_others() {
        let (table, clock) = Table::with_manual_clock(Slots::new(8).unwrap()).unwrap();
        let (mut kept, nothing) = (Kept::default(), PolicyHistory::since(Time::ZERO));
        let mut begin = |limit: &str| {
            clock.advance(Nanos::from_secs(1));
            let own = begin(&mut kept, &table, &nothing, limit);
            let (history, missing) = kept.history(&own, &table);
            assert_eq!(missing, 0);
            (limits(&history), history.former().last().map(|last| last.ended))
        };
        assert_eq!(begin("1/d"), (vec![], None));
        assert_eq!(begin("2/d"), (vec!["1".to_owned()], Some(table.now())));
        let since = table.now();
        assert_eq!(begin("2/d"), (vec!["1".to_owned()], Some(since)), "another agent");
        assert_eq!(begin("1/d"), (vec!["2".to_owned()], Some(table.now())), "and back");
        assert_eq!(begin("3/d").0, ["2", "1"], "those that ended first in front");
        clock.advance(Nanos::from_secs(86_400));
        assert_eq!(begin("4/d"), (vec!["3".to_owned()], Some(table.now())), "a day later");
    }

    #[test]
    fn an_agent_that_stops_has_decided_until_then() {
        let (table, clock) = Table::with_manual_clock(Slots::new(8).unwrap()).unwrap();
        let (mut kept, nothing) = (Kept::default(), PolicyHistory::since(Time::ZERO));
        clock.advance(Nanos::from_secs(1));
        let one = begin(&mut kept, &table, &nothing, "1/d");
        clock.advance(Nanos::from_secs(1));
        kept.note(&one, &nothing, Event::End, &table);
        assert_eq!(kept.entries[0].ended_ns, 0, "nothing else is in force");
        let two = begin(&mut kept, &table, &nothing, "2/d");
        clock.advance(Nanos::from_secs(1));
        kept.note(&one, &nothing, Event::End, &table);
        let (history, _) = kept.history(&two, &table);
        assert_eq!(history.former()[0].ended, table.now());
    }

    /// A thread that writes what is in force may be so slow that a reload comes first.
    #[test]
    fn what_an_agent_had_in_force_last_is_known_whatever_it_wrote_late() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        let slots = Some(Slots::new(8).unwrap());
        let (table, _) = Table::open_or_create(&path, slots).unwrap();
        let keeper = Keeper::new(path.as_path().into());
        let stats = Stats::new(NonZeroUsize::MIN);
        let old = ActivePolicies::at_start(policies("1/d"), &stats, &table);
        keeper.begin(&table, &old.policies);
        let new = old.replaced_by(policies("2/d"), &stats, &table);
        for written in [&new, &old] {
            keeper.keep(&table, written).unwrap();
        }
        keeper.keep_last(&table, &new).unwrap();
        let kept = Kept::read(&table, &path).unwrap();
        let chosen = kept.chosen(&table, &path).unwrap();
        assert_eq!(chosen.entry.limits, new.policies.limits_digest);
    }

    #[test]
    fn two_agents_come_to_know_the_same_and_never_write_in_turn() {
        let (table, clock) = Table::with_manual_clock(Slots::new(8).unwrap()).unwrap();
        let stats = Stats::new(NonZeroUsize::MIN);
        let mut kept = Kept::default();
        clock.advance(Nanos::from_secs(1));
        let start = ActivePolicies::at_start(policies("1/d"), &stats, &table);
        clock.advance(Nanos::from_secs(1));
        let reloaded = start.replaced_by(policies("2/d"), &stats, &table);
        // The file was lost, and the other agent has written it anew.
        let own = begin(&mut kept, &table, &PolicyHistory::since(table.now()), "2/d");
        let history = &reloaded.history;
        kept.note(&own, history, Event::Stay, &table);
        assert_eq!(limits(&kept.history(&own, &table).0), ["1"]);
        let before = kept.clone();
        for known in [history, &kept.history(&own, &table).0] {
            kept.note(&own, known, Event::Stay, &table);
            assert_eq!(kept, before);
        }
        // The agent keeps the entries that the file does not have.
        let merged = before.history_with(&own, history.former(), &table).0;
        assert_eq!(limits(&merged), ["1"]);
        let lost = Kept::default().history_with(&own, history.former(), &table).0;
        assert_eq!((limits(&lost), lost.former()[0].ended), (vec!["1".to_owned()], table.now()));
    }

    #[test]
    fn entries_have_a_bound_and_the_newest_stay() {
        let (table, clock) = Table::with_manual_clock(Slots::new(8).unwrap()).unwrap();
        let (mut kept, nothing) = (Kept::default(), PolicyHistory::since(Time::ZERO));
        let most = u64::try_from(MOST_ENTRIES).unwrap();
        for burst in 1..=most + 8 {
            clock.advance(Nanos::from_secs(1));
            let own = begin(&mut kept, &table, &nothing, &format!("3/d burst {burst}"));
            kept.leave_out(&own, &table);
        }
        let since: Vec<_> = kept.entries.iter().map(|it| it.since_ns / 1_000_000_000).collect();
        assert_eq!(since, (10..=most + 9).rev().collect::<Vec<_>>());
        clock.advance(Nanos::from_secs(400 * 86_400));
        let own = begin(&mut kept, &table, &nothing, "1/s");
        kept.leave_out(&own, &table);
        assert_eq!(limits(&kept.history(&own, &table).0), [format!("{}", most + 8)]);
        assert_eq!(kept.entries.len(), 2, "nobody can owe anything by the others");
    }
}
