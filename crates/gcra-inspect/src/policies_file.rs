//! The file beside a table in which its agents keep what is in force: `<table>.policies`.
//!
//! It has an entry for each set of limits that an agent has, by the digest that the table's list
//! of processes has, too. So a command makes the same policies, and needs to be told nothing.
//! An agent writes the whole file beside the one that is there, and renames it: what has the name
//! is complete, wherever a writer was killed. docs/internals/POLICIES.md says all of it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use gcra_limiter::policies_in_force::InForce;
use gcra_policy::Policies;
use gcra_policy::origin::Origin;
use gcra_table::{Name, Process, Table, Time};
use gcra_text::duration::Left;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::process_list;
use crate::process_state::living;

/// The first line, without the checksum. The number changes with the meaning of what follows.
const TITLE: &str = "gcra-spoa policies 2 ";

/// How many digits of the checksum follow, before the end of the line.
const DIGITS: usize = 16;

/// The most entries. Those of agents that run have one set of limits, or two during a change; but
/// each agent may have its own.
const MOST_ENTRIES: usize = 64;

/// The most bytes of a file: a few times the most that the texts of one entry have.
const MOST_BYTES: usize = 16 << 20;

/// How often a writer tries to be the only one, and how long it waits in between.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// The policies that an agent has in force.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct KeptEntry {
    /// The digest of the limits.
    pub(crate) limits: u64,
    /// Since when, by the table's clock; 0 if only an agent that has others now tells of it.
    since_ns: u64,
    /// When an agent last began to have it, or stopped with it.
    last_ns: u64,
    /// When an agent last had other policies instead, which remembers this; 0 if there is none.
    ended_ns: u64,
    /// Until when it matters although no agent has it any more: clients may owe something by it,
    /// or have exemptions.
    until_ns: u64,
    /// The policies that only observe because an action of `--admin` said so.
    switched: Vec<String>,
    pub(crate) origin: Origin,
}

impl KeptEntry {
    /// The policies in force since `now`. `None` if nothing says where they come from.
    pub fn new(policies: &Policies, now: Time) -> Option<Self> {
        Some(Self {
            limits: policies.limits_digest,
            since_ns: now.0,
            last_ns: now.0,
            ended_ns: 0,
            until_ns: 0,
            switched: policies.switched.iter().map(ToString::to_string).collect(),
            origin: policies.origin.as_deref()?.clone(),
        })
    }

    /// The policies. `None` if only the path of their file is known.
    ///
    /// # Errors
    ///
    /// The mistakes, a sentence each.
    pub fn policies(&self) -> Result<Option<Policies>, Vec<String>> {
        let Some(mut policies) = self.origin.policies()? else { return Ok(None) };
        for name in &self.switched {
            if let Some(next) = policies.observing(name, true).map_err(|mistake| vec![mistake])? {
                policies = next;
            }
        }
        Ok(Some(policies))
    }

    /// The earlier policies, as an agent remembers them.
    fn of_history(in_force: &InForce) -> Vec<Self> {
        let earlier = &in_force.earlier;
        let entry = |(policies, ended): &(Arc<Policies>, Time)| {
            let (ended_ns, until_ns) = (ended.0, earlier.kept_until().0);
            Some(Self { since_ns: 0, ended_ns, until_ns, ..Self::new(policies, *ended)? })
        };
        earlier.history().iter().filter_map(entry).collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.limits, &self.switched, &self.origin)
            == (other.limits, &other.switched, &other.origin)
    }

    /// Whether this one says as much as the other.
    fn has_all_of(&self, other: &Self) -> bool {
        self.is_same(other) && self.ended_ns >= other.ended_ns && self.until_ns >= other.until_ns
    }

    /// Notes what another one says about the same policies.
    fn merge(&mut self, other: &Self) {
        self.ended_ns = self.ended_ns.max(other.ended_ns);
        self.until_ns = self.until_ns.max(other.until_ns);
    }

    /// "--rate 1/s --burst 1", "those of /etc/gcra-spoa.toml, as it was 5 min ago".
    fn in_words(&self, now: Time) -> String {
        match &self.origin {
            Origin::Flags(flags) => flags.to_string(),
            Origin::File(_) => {
                let file = self.origin.file().unwrap_or(Path::new("")).display();
                let age = Left(now.saturating_since(Time(self.since_ns)).into());
                format!("the limits of {file} as it was {age} ago")
            }
        }
    }
}

/// The policies that a table's agents have kept.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Kept {
    entries: Vec<KeptEntry>,
    /// Until when an entry would matter that there was no space for.
    lacks_until_ns: u64,
    agents: Vec<KeptAgent>,
}

#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
struct KeptAgent {
    /// As in [`Process`].
    attachment: u32,
    /// Since when it runs, by the table's clock. It remembers nothing that ended before.
    since_ns: u64,
}

/// Why a command cannot use the file.
pub enum KeptError {
    /// There is none.
    Missing,
    /// A sentence about it.
    Unusable(String),
}

/// Which entry a command answers by.
pub struct Chosen<'k> {
    pub entry: &'k KeptEntry,
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
        let name = path_beside(path);
        let unusable = |why: &str| KeptError::Unusable(format!("{} {why}", name.display()));
        let cannot = |error: io::Error| unusable(&format!("cannot be read: {error}"));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Err(KeptError::Missing),
            Err(Errno::LOOP) => return Err(unusable("is a link, and agents write a file")),
            Err(errno) => return Err(cannot(errno.into())),
        };
        let metadata = file.metadata().map_err(cannot)?;
        let owner = fs::metadata(path).map_err(cannot)?.uid();
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

    /// At most [`MOST_BYTES`]. For that the oldest entries are left out, and in the end the texts.
    fn bounded(&mut self, table: &Table) -> Vec<u8> {
        loop {
            let bytes = self.to_bytes(table);
            if bytes.len() <= MOST_BYTES {
                return bytes;
            }
            // This ends: an entry without texts has a few paths and flags.
            let has_less = match &mut self.entries[..] {
                [only] => only.origin.drop_texts(),
                all => {
                    let most = all.len().saturating_sub(1);
                    self.keep_first(most)
                }
            };
            if !has_less {
                return bytes;
            }
        }
    }

    /// Leaves out all entries but the first ones. Returns whether that changes anything.
    fn keep_first(&mut self, most: usize) -> bool {
        let left_out = self.entries.iter().skip(most).map(|entry| entry.until_ns).max();
        self.lacks_until_ns = self.lacks_until_ns.max(left_out.unwrap_or(0));
        self.entries.truncate(most);
        left_out.is_some()
    }

    /// Whether it has an entry that an agent remembers, or says that it lacks it.
    fn tells_of(&self, former: &KeptEntry) -> bool {
        self.lacks_until_ns >= former.until_ns
            || self.entries.iter().any(|entry| entry.has_all_of(former))
    }

    fn to_bytes(&self, table: &Table) -> Vec<u8> {
        // There are no maps in it, so this does not fail.
        let content = serde_json::to_vec(self).unwrap_or_default();
        let title = format!("{TITLE}{}\n", checksum(table, &content));
        [title.as_bytes(), &content].concat()
    }

    /// The entry of the most agents that use the table, because most requests are decided by it;
    /// of several such entries the newest. Without any agent it is that of the one that was last
    /// alive. `None` if there are agents, and none of them has kept anything.
    pub fn chosen(&self, table: &Table, path: &Path) -> Option<Chosen<'_>> {
        let now = table.now();
        let processes = living(table);
        let agents: Vec<&Process> = processes.iter().filter(|it| it.profile.is_some()).collect();
        let limits = |agent: &Process| agent.profile.map_or(0, |profile| profile.limits);
        let has =
            |entry: &KeptEntry| agents.iter().filter(|it| limits(it) == entry.limits).count();
        let entry = if agents.is_empty() {
            let listed = table.listed_processes();
            // Of an agent that was killed, only the table knows how long it lived.
            let last_alive = |entry: &&KeptEntry| {
                let silent = listed.iter().filter(|it| limits(it) == entry.limits);
                let silent = silent.filter_map(|it| it.silent).min();
                let beat = silent.map_or(0, |silent| now.0.saturating_sub(silent.0));
                entry.last_ns.max(beat)
            };
            self.entries.iter().max_by_key(last_alive)?
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

    /// The policies that are or were in force besides the limits with this digest.
    pub fn others(&self, limits: u64) -> impl Iterator<Item = Policies> {
        let others = self.entries.iter().filter(move |entry| entry.limits != limits);
        others.filter_map(|entry| entry.policies().ok().flatten())
    }

    /// The earlier policies that these agents remember, each until a moment, the earliest first;
    /// and whether these are all.
    pub(crate) fn history(&self, now: Time, agents: &[Process]) -> (Vec<(Policies, Time)>, bool) {
        let first = agents.iter().map(|agent| self.since_ns(agent)).min().unwrap_or(0);
        let ended = self.entries.iter().filter(|it| it.ended_ns > 0 && it.until_ns > now.0);
        let mut ended: Vec<_> = ended.filter(|entry| entry.ended_ns >= first).collect();
        ended.sort_by_key(|entry| entry.ended_ns);
        let policies = |entry: &&KeptEntry| {
            let policies = entry.policies().ok().flatten()?;
            Some((policies, Time(entry.ended_ns)))
        };
        let history: Vec<_> = ended.iter().filter_map(policies).collect();
        let is_whole = history.len() == ended.len() && self.lacks_until_ns <= now.0;
        (history, is_whole)
    }

    /// Since when an agent runs; 0 if the file does not tell.
    fn since_ns(&self, agent: &Process) -> u64 {
        let kept = self.agents.iter().find(|kept| kept.attachment == agent.attachment);
        kept.map_or(0, |kept| kept.since_ns)
    }

    /// Says that some agents do not count debts that others do, if the earliest of these is from
    /// before a change at the moment `changed`.
    pub(crate) fn note_about_younger(&self, table: &Table, changed: Time) -> Option<String> {
        let mut younger = living(table);
        younger.retain(|agent| self.since_ns(agent) > changed.0);
        (!younger.is_empty()).then(|| {
            format!(
                "agents that ran when the policies were changed by a reload count what clients \
                 owed before, as shown here; {} started later and may allow more",
                process_list::agents(&younger).0
            )
        })
    }

    /// The flags of agents without a file, if the entry that is chosen has some.
    pub fn flags(table: &Table, path: &Path) -> Option<String> {
        let kept = Self::read(table, path).ok()?;
        match &kept.chosen(table, path)?.entry.origin {
            Origin::Flags(flags) => Some(flags.to_string()),
            Origin::File(_) => None,
        }
    }
}

/// Where the agents of the table at `path` keep what is in force.
pub fn path_beside(path: &Path) -> PathBuf {
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
    table: PathBuf,
    /// When the agent wrote first.
    since: OnceLock<Time>,
    seen: Mutex<Option<OwnEntry>>,
}

/// A file that has this agent's entry.
#[derive(Debug)]
struct OwnEntry {
    stamp: Stamp,
    limits: u64,
    switched: Vec<Box<str>>,
    origin: Arc<Origin>,
}

impl OwnEntry {
    /// Whether it is that of these policies, which come from there.
    fn is_of(&self, policies: &Policies, origin: &Arc<Origin>) -> bool {
        (self.limits, &self.switched) == (policies.limits_digest, &policies.switched)
            && Arc::ptr_eq(&self.origin, origin)
    }
}

/// Numbers that change when another file takes the place, and when the mode, the owner or the
/// number of names changes.
type Stamp = (u64, u64, i64, i64);

fn stamp(path: &Path) -> io::Result<Stamp> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}

impl Keeper {
    /// For the table at `path`.
    pub fn new(path: &Path) -> Self {
        Self { table: path.to_owned(), since: OnceLock::new(), seen: Mutex::new(None) }
    }

    /// Whether the file is still the one that has these policies, or it is being written.
    pub fn has(&self, policies: &Policies) -> bool {
        let Some(origin) = &policies.origin else { return true };
        let Ok(seen) = self.seen.try_lock() else { return true };
        seen.as_ref().is_some_and(|seen| {
            seen.is_of(policies, origin)
                && stamp(&path_beside(&self.table)).is_ok_and(|now| now == seen.stamp)
        })
    }

    /// Writes the policies in force, unless the file has them. Policies that no agent has and that
    /// do not matter any more leave the file.
    ///
    /// # Errors
    ///
    /// The file cannot be written. The error names it.
    pub fn keep(&self, table: &Table, in_force: &InForce) -> io::Result<()> {
        self.write(table, in_force, false)
    }

    /// Writes once more what is in force, when the agent stops: until another one starts, commands
    /// answer by what was last in force.
    ///
    /// # Errors
    ///
    /// As [`keep`](Self::keep).
    pub fn keep_last(&self, table: &Table, in_force: &InForce) -> io::Result<()> {
        self.write(table, in_force, true)
    }

    fn write(&self, table: &Table, in_force: &InForce, stops: bool) -> io::Result<()> {
        // The file belongs to the table that has the name now.
        if table.name() != Name::Ours {
            return Ok(());
        }
        self.write_beside(table, in_force, stops).map_err(|error| {
            let name = path_beside(&self.table);
            io::Error::other(format!("{}: {error}", name.display()))
        })
    }

    fn write_beside(&self, table: &Table, in_force: &InForce, stops: bool) -> io::Result<()> {
        let (policies, now) = (&in_force.policies, table.now());
        let (Some(mut own), Some(origin)) = (KeptEntry::new(policies, now), &policies.origin)
        else {
            return Ok(());
        };
        let since_ns = self.since.get_or_init(|| now).0;
        // One for which the table's list has no space would be taken out by the others.
        let alive = living(table);
        let is_alive = |own: &u32| alive.iter().any(|agent| agent.attachment == *own);
        let agent = table.attachment().filter(is_alive);
        let agent = agent.map(|attachment| KeptAgent { attachment, since_ns });
        // Another thread of this process may be at it.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let name = path_beside(&self.table);
        let beside = Beside::lock(&name)?;
        let mut kept = Kept::read(table, &self.table).unwrap_or_default();
        let history = KeptEntry::of_history(in_force);
        let is_new = !seen.as_ref().is_some_and(|seen| seen.is_of(policies, origin));
        // The text of another agent with the same limits will do: two agents never write in turn.
        let has_own =
            |entry: &KeptEntry| (entry.limits, &entry.switched) == (own.limits, &own.switched);
        let has_history = history.iter().all(|former| kept.tells_of(former));
        let is_listed = agent.as_ref().is_none_or(|agent| kept.agents.contains(agent));
        let is_whole = has_history && is_listed && kept.entries.iter().any(has_own);
        if is_new || stops || !is_whole {
            if let Some(entry) = kept.entries.iter().find(|entry| stops && entry.is_same(&own)) {
                own.since_ns = entry.since_ns;
            }
            kept.put(own, history, table, &alive);
            kept.put_agent(agent, &alive);
            beside.put(&kept.bounded(table), &name)?;
        }
        *seen = Some(OwnEntry {
            stamp: stamp(&name)?,
            limits: policies.limits_digest,
            switched: policies.switched.clone(),
            origin: origin.clone(),
        });
        Ok(())
    }
}

impl Kept {
    /// Adds the entry of an agent, and those of what it had in force before.
    fn put(
        &mut self,
        mut own: KeptEntry,
        history: Vec<KeptEntry>,
        table: &Table,
        agents: &[Process],
    ) {
        let now = table.now().0;
        for former in history {
            match self.entries.iter_mut().find(|entry| entry.is_same(&former)) {
                Some(entry) => entry.merge(&former),
                None => self.entries.push(former),
            }
        }
        let exempt_until = table.exemptions().iter().map(|exemption| exemption.until.0).max();
        let of_agents = agents.iter().filter_map(|agent| Some(agent.profile?.limits));
        let of_agents: BTreeSet<u64> = of_agents.collect();
        self.entries.retain_mut(|entry| {
            entry.until_ns = entry.until_ns.max(exempt_until.unwrap_or(0));
            if entry.is_same(&own) {
                own.merge(entry);
                return false;
            }
            let is_remembered = entry.ended_ns > 0 && entry.until_ns > now;
            let matters = entry.until_ns > now || of_agents.contains(&entry.limits);
            matters && (entry.limits != own.limits || is_remembered)
        });
        self.entries.push(own);
        // The newest come first, and leave last.
        self.entries.sort_by_key(|entry| Reverse(entry.last_ns));
        self.keep_first(MOST_ENTRIES);
    }

    /// Lists an agent, and of the others those that are alive.
    fn put_agent(&mut self, agent: Option<KeptAgent>, alive: &[Process]) {
        let own = agent.as_ref().map(|agent| agent.attachment);
        self.agents.retain(|kept| {
            let is_alive = alive.iter().any(|process| process.attachment == kept.attachment);
            is_alive && Some(kept.attachment) != own
        });
        self.agents.extend(agent);
    }
}

/// A file that is written before it gets the name. One process has it at a time.
struct Beside {
    path: PathBuf,
    file: File,
}

impl Beside {
    fn lock(of: &Path) -> io::Result<Self> {
        let path = of.with_added_extension("new");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Each attempt waits for another writer, which writes once.
        for _ in 0..ATTEMPTS {
            let Some((file, metadata)) = Self::open(&path, flags | OFlags::NONBLOCK)? else {
                // Anybody may have made it, where anybody may make files.
                match fs::remove_file(&path) {
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
                Ok(())
                    if fs::symlink_metadata(&path).is_ok_and(|it| it.ino() == metadata.ino()) =>
                {
                    return Ok(Self { path, file });
                }
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(PAUSE),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::Error::other("other agents write it all the time"))
    }

    /// `None` if there is something else than a file of this user with one name.
    fn open(path: &Path, flags: OFlags) -> io::Result<Option<(File, Metadata)>> {
        let file = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Ok(None),
            // With fs.protected_regular, also a file of another user in /dev/shm, even for root.
            Err(Errno::ACCESS) if fs::symlink_metadata(path).is_ok() => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let metadata = file.metadata()?;
        let user = rustix::process::geteuid().as_raw();
        // It has no name any more if another writer has given it the name and replaced it since.
        let is_own = metadata.is_file() && metadata.uid() == user && metadata.nlink() <= 1;
        Ok(is_own.then_some((file, metadata)))
    }

    /// Writes it, and gives it the name.
    fn put(&self, bytes: &[u8], name: &Path) -> io::Result<()> {
        // Whatever a writer that was killed has left, and whatever the umask took away.
        self.file.set_len(0)?;
        rustix::fs::fchmod(&self.file, Mode::RUSR | Mode::WUSR)?;
        self.file.write_all_at(bytes, 0)?;
        fs::rename(&self.path, name)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicBool, Ordering};

    use gcra_limiter::stats::Stats;
    use gcra_policy::file::document;
    use gcra_table::Slots;
    use proptest::prelude::*;

    use super::*;

    fn table() -> Table {
        Table::in_memory(Slots::new(8).unwrap()).unwrap()
    }

    fn kept() -> Kept {
        let text = "[policy.api]\nlimits = \"3/d\"\nkey = [\"ip\"]\n";
        let policies = document::parse(Path::new("/etc/gcra-spoa.toml"), text).unwrap();
        Kept {
            entries: vec![KeptEntry::new(&policies, Time(7)).unwrap()],
            lacks_until_ns: 0,
            agents: Vec::new(),
        }
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
        let bytes = kept().to_bytes(&table);
        let write = || Beside::lock(&name).unwrap().put(&bytes, &name).unwrap();
        write();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let writers = [(); 2].map(|()| scope.spawn(|| (0..500).for_each(|_| write())));
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    Kept::from_bytes(&table, &fs::read(&name).unwrap()).unwrap();
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
        let own = KeptEntry::new(&policies, Time(7)).unwrap();
        let mut kept =
            Kept { entries: vec![own.clone(), own], lacks_until_ns: 0, agents: Vec::new() };
        let read = Kept::from_bytes(&table, &kept.bounded(&table)).unwrap();
        assert_eq!(read.entries.len(), 1);
        assert!(read.entries[0].policies().unwrap().is_none(), "the path is left");
        assert_eq!(read.entries[0].origin.file(), Some(&*path));
    }

    /// Agents that were started with these prefixes of a group, and reloaded: the last one is in
    /// force.
    fn reloaded(table: &Table, prefixes: &[u8]) -> InForce {
        let policies = |prefix: &u8| {
            let text = format!(
                "[policy.api]\nlimits = \"3/d\"\nkey = [\"ip\"]\nipv4_prefix = {prefix}\n"
            );
            document::parse(Path::new("/etc/gcra-spoa.toml"), &text).unwrap()
        };
        let stats = Stats::new(NonZeroUsize::MIN);
        let start = InForce::at_start(policies(&prefixes[0]), &stats, table);
        prefixes[1..]
            .iter()
            .fold(start, |before, prefix| before.replaced_by(policies(prefix), &stats, table))
    }

    fn put(kept: &mut Kept, table: &Table, in_force: &InForce) {
        let own = KeptEntry::new(&in_force.policies, table.now()).unwrap();
        kept.put(own, KeptEntry::of_history(in_force), table, &[]);
    }

    #[test]
    fn what_agents_remember_stays_with_the_time_when_it_ended() {
        let (table, mut kept) = (table(), Kept::default());
        let prefixes = |kept: &Kept| {
            let (history, is_whole) = kept.history(table.now(), &[]);
            let prefix = |(policies, _): &(Policies, Time)| policies.list[0].key.ipv4_prefix;
            (history.iter().map(prefix).collect::<Vec<_>>(), is_whole)
        };
        let agent = reloaded(&table, &[16, 24, 32]);
        let history = KeptEntry::of_history(&agent);
        put(&mut kept, &table, &agent);
        assert_eq!(prefixes(&kept), (vec![16, 24], true));
        let ended: Vec<_> = agent.earlier.history().iter().map(|(_, ended)| *ended).collect();
        let told: Vec<_> =
            kept.history(table.now(), &[]).0.iter().map(|(_, ended)| *ended).collect();
        assert_eq!(told, ended);
        // Others take nothing of it away: one that was started since, and one that has what this
        // one had before.
        for other in [&[32][..], &[24], &[8, 16]] {
            put(&mut kept, &table, &reloaded(&table, other));
            assert!(history.iter().all(|former| kept.tells_of(former)), "{other:?}");
        }
        assert_eq!(prefixes(&kept), (vec![16, 24, 8], true));
        // Without space for all, it says so, and an agent writes it no second time.
        kept.keep_first(1);
        assert!(!prefixes(&kept).1);
        assert!(history.iter().all(|former| kept.tells_of(former)));
    }

    #[test]
    fn entries_have_a_bound_and_the_newest_stay() {
        let (table, mut kept) = (table(), Kept::default());
        let (last, most) = (80, MOST_ENTRIES as u64);
        for burst in 1..=last {
            let text = format!("[policy.api]\nlimits = \"3/d burst {burst}\"\nkey = [\"ip\"]\n");
            let policies = document::parse(Path::new("/etc/gcra-spoa.toml"), &text).unwrap();
            let in_force = InForce::of_history(Vec::new(), policies, &table);
            let own = KeptEntry::new(&in_force.policies, Time(burst)).unwrap();
            kept.entries.iter_mut().for_each(|entry| entry.until_ns = u64::MAX);
            kept.put(own, Vec::new(), &table, &[]);
        }
        let since: Vec<_> = kept.entries.iter().map(|entry| entry.since_ns).collect();
        assert_eq!(since, (last - most + 1..=last).rev().collect::<Vec<_>>());
        kept.entries.iter_mut().for_each(|entry| entry.until_ns = 0);
        let text = "[policy.api]\nlimits = \"4/d\"\nkey = [\"ip\"]\n";
        let policies = document::parse(Path::new("/etc/gcra-spoa.toml"), text).unwrap();
        let in_force = InForce::of_history(Vec::new(), policies, &table);
        kept.put(
            KeptEntry::new(&in_force.policies, Time(last + 1)).unwrap(),
            Vec::new(),
            &table,
            &[],
        );
        assert_eq!(kept.entries.len(), 1, "no agent has the others");
    }
}
