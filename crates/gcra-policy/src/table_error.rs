//! The errors of the table in sentences for operators: what is wrong, where, and which flag,
//! command or setting makes it right. The table itself knows none of these.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use gcra_table::{
    FaultKind, OpenError, OpenErrorKind, RateError, RateProblem, Slots, Table, TableFault,
};
use rustix::io::Errno;

/// Why the table cannot be used, for an operator.
#[derive(Debug)]
pub struct TableError(pub OpenError);

/// The sentence has the error of the system in it, so there is no source to be added.
impl Error for TableError {}

const BEGIN_ANEW: &str = "stop every agent that uses it and remove it, and a new one is made";

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sentence(&self.0))
    }
}

fn sentence(error: &OpenError) -> String {
    let (path, kind) = (error.path(), error.kind());
    let shown = path.display();
    let fact = match kind {
        OpenErrorKind::NotAFile { .. } if path.is_dir() => {
            let inside = path.join("gcra-spoa.table");
            return format!("{shown} is a directory; write {}", inside.display());
        }
        OpenErrorKind::Foreign => format!("{shown} is not a table of gcra-spoa"),
        OpenErrorKind::Missing => format!("there is no table {shown}"),
        OpenErrorKind::Slots { found, asked } => {
            let (found, asked) = (found.get(), asked.get());
            format!("table {shown} has {found} slots, and --slots asks for {asked}")
        }
        OpenErrorKind::Io { source, .. } | OpenErrorKind::Proc { source, .. } => {
            format!("{error}: {source}")
        }
        _ => error.to_string(),
    };
    let slots = match kind {
        OpenErrorKind::Slots { asked: slots, .. }
        | OpenErrorKind::ResizeInterrupted { to: slots } => slots.get().to_string(),
        _ => String::new(),
    };
    let remedy = remedy(kind).replace("<anew>", BEGIN_ANEW).replace("<slots>", &slots);
    fact + &remedy.replace("<path>", &shown.to_string())
}

/// The rest of the sentence: what makes it right; empty where only the fact is known.
fn remedy(kind: &OpenErrorKind) -> &'static str {
    match kind {
        OpenErrorKind::Foreign => "; choose another file with --table",
        OpenErrorKind::Missing => {
            "; start an agent, which creates it, or name the table of your agents with --table"
        }
        OpenErrorKind::Slots { .. } => {
            "; leave --slots out to take what it has, or change it with 'gcra-spoa table resize \
             --table <path> --slots <slots>'"
        }
        OpenErrorKind::Damaged { .. }
        | OpenErrorKind::Layout { .. }
        | OpenErrorKind::Hash
        | OpenErrorKind::NoSuccessor => "; <anew>",
        OpenErrorKind::Io { doing, source } => {
            remedy_of_io(doing, source.raw_os_error().map(Errno::from_raw_os_error))
        }
        OpenErrorKind::Proc { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            "; mount /proc, and all of it (ProcSubset=all)"
        }
        OpenErrorKind::NoTmpfile => "; put it on a tmpfs such as /dev/shm",
        OpenErrorKind::FileSize { .. } => {
            "; raise it (LimitFSIZE=, ulimit -f), or ask for fewer --slots (16 bytes each)"
        }
        OpenErrorKind::Memory { .. } => {
            "; raise it (MemoryMax=), or ask for fewer --slots (16 bytes each)"
        }
        OpenErrorKind::Symlink => ", which could lead anywhere; name the file itself",
        OpenErrorKind::NotAFile { .. } => "; name a regular file, or one that does not exist yet",
        OpenErrorKind::Owner { .. } => {
            "; run all agents of a table as one user, or choose another file with --table"
        }
        OpenErrorKind::Mode { .. } => {
            ", so others could read the hash key or change the buckets; choose another file with \
             --table, or, if it is a table that nobody else has opened, run 'chmod 600 <path>'"
        }
        OpenErrorKind::Links { .. } => {
            ", so another could be opened by mistake; remove the others"
        }
        OpenErrorKind::Length { .. } => ": it was cut or has grown; <anew>",
        OpenErrorKind::Clock { .. } => {
            "; run all agents of a table in one time namespace, or <anew>"
        }
        OpenErrorKind::SameSlots { .. } => ", so there is nothing to do",
        OpenErrorKind::Unlinked => "; try again",
        OpenErrorKind::Unfinished => {
            "; name that table, and finish its resize with 'gcra-spoa table resize', or <anew>"
        }
        OpenErrorKind::SuccessorTaken => "; move it away",
        OpenErrorKind::ResizeRuns { .. } => {
            "; wait until it has ended, and if it was stopped, continue or end it (fuser \
             <path>.next names it)"
        }
        OpenErrorKind::ResizeInterrupted { .. } => {
            "; finish it first: 'gcra-spoa table resize --table <path> --slots <slots>'"
        }
        OpenErrorKind::Displaced => {
            "; stop every agent that uses it, remove it and <path>.next, and a new one is made"
        }
        OpenErrorKind::Locked => {
            ": one that is attaching to it or has resized it; if that process is stopped, \
             continue or end it (fuser <path> names it)"
        }
        OpenErrorKind::Contended => "; find out which program removes it",
        OpenErrorKind::NotLeases | OpenErrorKind::Proc { .. } => "",
        // The enum may get more kinds, and a test below looks for each.
        _ => "",
    }
}

/// The advice for an error of the system.
fn remedy_of_io(doing: &str, error: Option<Errno>) -> &'static str {
    match error {
        Some(Errno::NOSPC) => "; ask for fewer --slots (16 bytes each), or free some space",
        Some(Errno::ACCESS) if doing == "open it" => {
            "; run this as root or as the agents' user, or choose another file with --table"
        }
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            "; choose with --table a file in a directory that this user may write to"
        }
        Some(Errno::NOMEM) => {
            "; its slots take 16 bytes of address space each: raise the limit (LimitAS=, ulimit \
             -v), or ask for fewer --slots"
        }
        _ => "",
    }
}

/// Says how to finish a resize that was interrupted.
pub fn interrupted(path: &Path, to: Slots) -> String {
    format!(
        "a resize to {0} slots was interrupted; finish it: 'gcra-spoa table resize --table {1} \
         --slots {0}'",
        to.get(),
        path.display()
    )
}

/// Says why a table cannot be changed while it is being resized.
pub fn being_resized(path: &Path, table: &Table) -> String {
    match table.interrupted_resize() {
        Some(to) => format!("table {}: {}", path.display(), interrupted(path, to)),
        None => {
            format!("table {} is being resized; try again when that is done", path.display())
        }
    }
}

/// The fault of a table that can be opened, for an operator.
pub fn fault(fault: &TableFault) -> String {
    match fault.kind() {
        FaultKind::SuccessorGone => format!("{fault}; {BEGIN_ANEW}"),
        FaultKind::SuccessorUnusable { why } => {
            format!("it is being resized, and its successor cannot be opened: {}", sentence(why))
        }
        _ => fault.to_string(),
    }
}

/// Why a rate or a burst is not valid, for an operator.
pub fn rate(error: &RateError) -> String {
    match error {
        RateError::Text { problem: RateProblem::Zero, .. } => {
            format!("{error}; to block everything write 'deny'")
        }
        RateError::Text { problem: RateProblem::TooFast, .. } => {
            format!("{error}; for no limit write 'unlimited'")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcra_table::{Rate, Slots};
    use std::path::Path;

    /// Every sentence names the table, the facts, and what to do.
    #[test]
    fn each_error_says_what_to_do() {
        let slots = |slots: u64| Slots::new(slots).unwrap();
        let io = |code: i32| OpenErrorKind::Io {
            doing: "open it",
            source: io::Error::from_raw_os_error(code),
        };
        let proc = OpenErrorKind::Proc {
            file: "/proc/x",
            source: io::Error::from_raw_os_error(Errno::NOENT.raw_os_error()),
        };
        for (kind, sentence) in [
            (
                io(Errno::NOSPC.raw_os_error()),
                "table /t: could not open it: No space left on device (os error 28); ask for \
                 fewer --slots (16 bytes each), or free some space",
            ),
            (
                io(Errno::ROFS.raw_os_error()),
                "table /t: could not open it: Read-only file system (os error 30); choose with \
                 --table a file in a directory that this user may write to",
            ),
            (
                io(Errno::ACCESS.raw_os_error()),
                "table /t: could not open it: Permission denied (os error 13); run this as \
                 root or as the agents' user, or choose another file with --table",
            ),
            (
                io(Errno::NOMEM.raw_os_error()),
                "table /t: could not open it: NOMEM; its slots take 16 bytes of address \
                 space each: raise the limit (LimitAS=, ulimit -v), or ask for fewer --slots",
            ),
            (
                proc,
                "table /t: could not read /proc/x, which its clock needs: No such file or \
                 directory (os error 2); mount /proc, and all of it (ProcSubset=all)",
            ),
            (
                OpenErrorKind::Memory { needed: 10, left: 5 },
                "table /t: it takes 10 bytes of memory, and the cgroup's limit leaves 5; raise it \
                 (MemoryMax=), or ask for fewer --slots (16 bytes each)",
            ),
            (
                OpenErrorKind::FileSize { needed: 10, limit: 5 },
                "table /t: it takes a file of 10 bytes, and the limit for a file is 5; raise it \
                 (LimitFSIZE=, ulimit -f), or ask for fewer --slots (16 bytes each)",
            ),
            (
                OpenErrorKind::Foreign,
                "/t is not a table of gcra-spoa; choose another file with --table",
            ),
            (
                OpenErrorKind::Missing,
                "there is no table /t; start an agent, which creates it, or name the table of \
                 your agents with --table",
            ),
            (
                OpenErrorKind::Symlink,
                "table /t: it is a symbolic link, which could lead anywhere; name the file itself",
            ),
            (
                OpenErrorKind::Mode { found: 0o644 },
                "table /t: it has mode 0644 instead of 0600, so others could read the hash key or \
                 change the buckets; choose another file with --table, or, if it is a table that \
                 nobody else has opened, run 'chmod 600 /t'",
            ),
            (
                OpenErrorKind::Owner { found: 5, expected: 0 },
                "table /t: it belongs to user 5, and this is user 0; run all agents of a table as \
                 one user, or choose another file with --table",
            ),
            (
                OpenErrorKind::Damaged { how: "its time is out of range" },
                "table /t: its header is damaged: its time is out of range; stop every agent that \
                 uses it and remove it, and a new one is made",
            ),
            (
                OpenErrorKind::Slots { found: slots(64), asked: slots(128) },
                "table /t has 64 slots, and --slots asks for 128; leave --slots out to take what \
                 it has, or change it with 'gcra-spoa table resize --table /t --slots 128'",
            ),
            (
                OpenErrorKind::ResizeRuns { to: slots(64) },
                "table /t: another process is resizing it to 64 slots; wait until it has ended, \
                 and if it was stopped, continue or end it (fuser /t.next names it)",
            ),
            (
                OpenErrorKind::ResizeInterrupted { to: slots(64) },
                "table /t: a resize to 64 slots was interrupted; finish it first: 'gcra-spoa \
                 table resize --table /t --slots 64'",
            ),
            (
                OpenErrorKind::Locked,
                "table /t: another process has held its lock for 5 s: one that is attaching to it \
                 or has resized it; if that process is stopped, continue or end it (fuser /t \
                 names it)",
            ),
            (
                OpenErrorKind::SameSlots { slots: slots(64) },
                "table /t: it has 64 slots already, so there is nothing to do",
            ),
        ] {
            let error = TableError(OpenError::new(Path::new("/t"), kind));
            // glibc and musl have other words for it.
            let sentence = sentence.replace("NOMEM", &io::Error::from(Errno::NOMEM).to_string());
            assert_eq!(error.to_string(), sentence);
            assert!(error.source().is_none());
        }
    }

    /// A kind that is not named here would be told without advice.
    #[test]
    fn each_kind_is_named() {
        let kinds = include_str!("../../gcra-table/src/file/open_error.rs");
        let kinds = kinds.split_once("pub enum OpenErrorKind {").unwrap().1;
        let kinds = kinds.split_once("\n    }\n").unwrap().0.lines();
        let names = kinds.filter_map(|line| {
            let name = line.strip_prefix("        ")?.split([' ', ';']).next()?;
            name.starts_with(|first: char| first.is_ascii_uppercase()).then_some(name)
        });
        let (here, _) = include_str!("table_error.rs").split_once("mod tests").unwrap();
        let mut count = 0;
        for name in names {
            count += 1;
            assert!(here.contains(&format!("OpenErrorKind::{name}")), "{name} has no remedy");
        }
        assert!(count > 25, "{count}");
    }

    #[test]
    fn a_rate_that_is_not_valid_has_a_remedy() {
        let sentence = |text: &str| rate(&text.parse::<Rate>().unwrap_err());
        assert!(sentence("0/s").ends_with("; to block everything write 'deny'"));
        assert!(sentence("1000001/ms").ends_with("; for no limit write 'unlimited'"));
        assert!(sentence("fast").starts_with("'fast' is not a rate: it has no '/'"));
    }
}
