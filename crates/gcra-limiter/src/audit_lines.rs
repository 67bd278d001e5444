//! The file of `--audit`: a line for each decision, so that others can check the limit.
//!
//! The lines of a burst of requests are written in one piece, and before their answers leave the
//! agent. So no request is allowed without a line, even if the agent is killed. The file begins
//! with a line about the clock; an agent that is started later, or shares the file, writes
//! another one. An agent that stops, or goes on in another file, writes a line about its end.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, bail};
use arc_swap::ArcSwap;
use gcra_policy::key::Shown;
use gcra_policy::{GroupedValue, Policy};
use gcra_table::{Table, Time};
use gcra_text::version;
use ring::digest::{SHA256, digest};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Resource, Uid, geteuid, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use spop_agent::{Message, Value};

use crate::verdict::Outcome;

/// The first words of a file, with the version of its format.
pub const MAGIC: &str = "# gcra-spoa audit 1";

/// The first words of a line that says how many decisions are missing at most.
pub const GAP: &str = "# missing";

/// The first words of the last line of an agent: before it, the file says all that is missing.
pub const END: &str = "# end";

gcra_text::words! {
    /// The outcome for the cells of a line, by its last word.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum AuditOutcome {
        Allowed = "allowed",
        WouldBlock = "would-block",
        Blocked = "blocked",
        /// They are of a client that is exempt.
        Exempt = "exempt",
        /// A response has charged them, whether the limit had them or not.
        Charged = "charged",
        /// A response has given them back.
        GivenBack = "given-back",
    }
}

impl From<Option<Outcome>> for AuditOutcome {
    /// `None` is that of a client that is exempt.
    fn from(outcome: Option<Outcome>) -> Self {
        match outcome {
            None => Self::Exempt,
            Some(Outcome::Allowed) => Self::Allowed,
            Some(Outcome::WouldBlock) => Self::WouldBlock,
            Some(Outcome::Blocked) => Self::Blocked,
        }
    }
}

impl FromStr for AuditOutcome {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::from_word(word).ok_or(())
    }
}

/// How many bytes of a digest stand for a string.
const DIGEST_BYTES: usize = 16;

/// An audit file that is being written.
pub struct AuditFile {
    path: PathBuf,
    file: ArcSwap<File>,
    /// How many decisions could not be written.
    lost: AtomicU64,
    /// How many of these the file still does not say.
    unsaid: AtomicU64,
}

impl AuditFile {
    /// Opens the file, or creates it for this user only, and writes the line about the clock.
    ///
    /// # Errors
    ///
    /// The file cannot be written to.
    pub fn open(path: PathBuf) -> anyhow::Result<Self> {
        let file = open(&path)
            .with_context(|| format!("could not write the audit file {}", path.display()))?;
        Ok(Self {
            path,
            file: ArcSwap::from_pointee(file),
            lost: AtomicU64::new(0),
            unsaid: AtomicU64::new(0),
        })
    }

    /// Opens the file again if it was renamed or removed, as `logrotate` does. To be called once a
    /// second.
    ///
    /// # Errors
    ///
    /// The file at the path cannot be written to. Lines still go to the file that was opened
    /// before.
    pub fn follow(&self) -> anyhow::Result<()> {
        let id = |metadata: io::Result<std::fs::Metadata>| {
            metadata.ok().map(|found| (found.dev(), found.ino()))
        };
        let at_path = id(std::fs::symlink_metadata(&self.path));
        if at_path != id(self.file.load().metadata()) {
            let old = self.file.swap(Arc::new(open(&self.path)?));
            // If this fails, the new file says how many are missing.
            let _ = self.end(&old);
        }
        Ok(())
    }

    /// Writes the line about the end, to be called when nothing is decided any more.
    ///
    /// # Errors
    ///
    /// The file has no line about its end, and does not say how many decisions are missing.
    pub fn finish(&self) -> io::Result<()> {
        self.end(&self.file.load())
    }

    fn end(&self, mut file: &File) -> io::Result<()> {
        let missing = self.unsaid.swap(0, Ordering::Relaxed);
        let gap = gap(missing).unwrap_or_default();
        let ended = file.write_all(format!("{gap}{END} pid={}\n", process::id()).as_bytes());
        if ended.is_err() {
            self.unsaid.fetch_add(missing, Ordering::Relaxed);
        }
        ended
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many decisions could not be written so far, because the disk was full, for example.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The line about decisions that are missing.
fn gap(missing: u64) -> Option<String> {
    // A line may have been cut off before it.
    (missing > 0).then(|| format!("\n{GAP} {missing}\n"))
}

/// Opens a file at its end. Another user must not be able to choose which file that is, nor to
/// change what is in it.
fn open(path: &Path) -> anyhow::Result<File> {
    if let Some(limit) = getrlimit(Resource::Fsize).current {
        bail!(
            "the size of files is limited to {limit} bytes, and the kernel ends an agent whose \
             file reaches that; start it without the limit (LimitFSIZE=infinity, ulimit -f \
             unlimited)"
        );
    }
    let mut options = OpenOptions::new();
    // Without a reader, opening a FIFO would wait for one.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = options
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let mut file = file.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => {
            anyhow!("it is a symbolic link, which could lead anywhere; name the file itself")
        }
        _ => error.into(),
    })?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        bail!("it is not a regular file; name one, or a path where there is none yet");
    }
    let (owner, user) = (metadata.uid(), geteuid());
    if ![Uid::ROOT.as_raw(), user.as_raw()].contains(&owner) {
        bail!(
            "it belongs to the user {owner}, who could change what is in it; run chown {}, or \
             name a path where there is no file yet",
            user.as_raw()
        );
    }
    if metadata.mode() & 0o022 != 0 {
        bail!("other users than its owner can change what is in it; run chmod go-w");
    }
    if metadata.nlink() > 1 {
        bail!("it has other names (hard links), so it may be another file as well; remove them");
    }
    // The last line may have been cut off.
    let mut last = [b'\n'];
    if let Some(end) = metadata.len().checked_sub(1) {
        file.read_exact_at(&mut last, end)?;
    }
    let separator = if last == *b"\n" { "" } else { "\n" };
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let up = clock_gettime(ClockId::Boottime);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let up_ns = i128::from(up.tv_sec) * 1_000_000_000 + i128::from(up.tv_nsec);
    let booted_ns = i128::try_from(wall.as_nanos()).unwrap_or_default() - up_ns;
    // One write, so that no line of another agent gets into it.
    let line = format!(
        "{separator}{MAGIC} boot={} booted={booted_ns} pid={} version={}\n",
        boot.trim(),
        process::id(),
        version::NUMBER
    );
    file.write_all(line.as_bytes())?;
    Ok(file)
}

/// When something was decided.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    /// By the clock of the table. It is written as ns since the machine booted.
    Table(Time),
    /// By the clock of the store, in ns since 1970. It is written with [`BY_STORE`] before it.
    Store(u64),
}

/// The first character of a time that is by the clock of the store.
pub const BY_STORE: char = '@';

/// The lines of one burst of requests. They are written when this is dropped.
pub struct Lines {
    audit: Arc<AuditFile>,
    text: String,
    count: u64,
}

impl Lines {
    pub fn new(audit: Arc<AuditFile>) -> Self {
        Self { audit, text: String::new(), count: 0 }
    }

    /// Adds what was decided about a message at `now`, or when it may go on if it is delayed.
    pub fn add(
        &mut self,
        table: &Table,
        now: Moment,
        policy: &Policy,
        cells: u32,
        outcome: AuditOutcome,
        message: &Message<'_>,
    ) {
        // Writing to a string does not fail.
        let _ = match now {
            Moment::Table(now) => write!(self.text, "{}", table.since_boot(now).0),
            Moment::Store(ns) => write!(self.text, "{BY_STORE}{ns}"),
        };
        let _ = write!(self.text, " {} ", policy.name);
        write_key(&mut self.text, policy, message);
        let _ = writeln!(self.text, " {cells} {}", outcome.as_str());
        self.count += 1;
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if self.text.is_empty() {
            return;
        }
        let AuditFile { file, lost, unsaid, .. } = &*self.audit;
        let missing = unsaid.swap(0, Ordering::Relaxed);
        if let Some(gap) = gap(missing) {
            self.text.insert_str(0, &gap);
        }
        if (&**file.load()).write_all(self.text.as_bytes()).is_err() {
            lost.fetch_add(self.count, Ordering::Relaxed);
            unsaid.fetch_add(self.count + missing, Ordering::Relaxed);
        }
    }
}

/// Writes the key of a message as its policy makes it, in a form without spaces. Strings and
/// binary values are digests: they may be secrets, and the same value has the same digest on every
/// machine.
fn write_key(text: &mut String, policy: &Policy, message: &Message<'_>) {
    let begin = text.len();
    let part = |text: &mut String, GroupedValue { value, narrowed }: GroupedValue<'_>| {
        let _ = match value {
            Value::Ipv4(ip) => {
                write_network(text, ip, narrowed.unwrap_or(policy.key.ipv4_prefix), 32)
            }
            Value::Ipv6(ip) => {
                write_network(text, ip, narrowed.unwrap_or(policy.key.ipv6_prefix), 128)
            }
            Value::String(bytes) if policy.key.lowercase => {
                write_digest(text, "str", &bytes.to_ascii_lowercase())
            }
            Value::String(bytes) => write_digest(text, "str", bytes),
            Value::Binary(bytes) => write_digest(text, "hex", bytes),
            value => write!(text, "{}", Shown(value)),
        };
        text.push(',');
    };
    let fallback = |text: &mut String, number: u8| {
        let _ = write!(text, "else{number}:");
    };
    let _ = policy.for_each_part(message, text, part, fallback);
    match text.len() > begin {
        // The last comma.
        true => drop(text.pop()),
        false => text.push('-'),
    }
}

fn write_network(
    text: &mut String,
    ip: impl std::fmt::Display,
    prefix: u8,
    whole: u8,
) -> std::fmt::Result {
    match prefix < whole {
        true => write!(text, "{ip}/{prefix}"),
        false => write!(text, "{ip}"),
    }
}

fn write_digest(text: &mut String, kind: &str, bytes: &[u8]) -> std::fmt::Result {
    write!(text, "{kind}#")?;
    let digest = digest(&SHA256, bytes);
    digest.as_ref().iter().take(DIGEST_BYTES).try_for_each(|byte| write!(text, "{byte:02x}"))
}
