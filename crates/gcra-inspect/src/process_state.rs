//! Whether a process of a table's list is dead or stopped, according to the kernel.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use gcra_table::board::{PidNamespace, Process};
use gcra_table::{Nanos, Table};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How many bytes of the list of a process's mappings are read. An agent's list takes a few KiB.
const MAX_MAPPINGS: u64 = 1 << 20;

/// Why a process does not run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Halt {
    Dead,
    /// By SIGSTOP, or by a debugger. It will continue to decide when it continues.
    Stopped,
}

/// Whether a process is dead or stopped. `None` if it runs, or if that is not known. This does
/// nothing to the process.
pub(crate) fn halt_of(process: &Process) -> Option<Halt> {
    // The kernel can be asked only about an id that means the same process here.
    if process.pid_namespace != PidNamespace::Ours {
        return None;
    }
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw)?;
    if let Err(Errno::SRCH) = pidfd_open(pid, PidfdFlags::empty()) {
        return Some(Halt::Dead);
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // "PID (name) STATE ...", where the name may contain any characters.
    match stat.rsplit_once(") ")?.1.as_bytes().first()? {
        b'Z' | b'X' => Some(Halt::Dead),
        b'T' | b't' => Some(Halt::Stopped),
        _ => None,
    }
}

/// The processes that use the table, without those that the kernel knows to be dead.
pub(crate) fn living(table: &Table) -> Vec<Process> {
    let mut processes = table.board().processes();
    processes.retain(|process| halt_of(process) != Some(Halt::Dead));
    processes
}

/// Whether a process that runs uses the table.
pub fn is_used(table: &Table) -> bool {
    table.board().processes().iter().any(|process| halt_of(process).is_none())
}

/// The agents that have been silent for 5 s because they are stopped, the latest first: they will
/// decide again when they continue.
pub fn stopped_long_ago(table: &Table, path: &Path) -> Vec<Process> {
    let mut stopped = table.board().listed_processes();
    stopped.retain(|process| {
        process.silent.is_some()
            && !process.is_alive()
            && halt_of(process) == Some(Halt::Stopped)
            && maps(process.pid, path).unwrap_or(true)
    });
    stopped.sort_by_key(|process| process.silent);
    stopped
}

/// For how long an agent that was killed is named.
const LATELY: Nanos = Nanos::from_secs(600);

/// The agents that ended lately and did not say so, the latest first: they were killed, or have
/// crashed. Of one in another pid namespace that is not certain, because it may be stopped.
pub fn killed_lately(table: &Table, path: &Path) -> Vec<Process> {
    let mut killed = table.board().listed_processes();
    killed.retain(|process| {
        process.profile.is_some()
            && !process.is_alive()
            && process.silent.is_some_and(|silent| silent < LATELY)
            && (process.pid_namespace != PidNamespace::Ours
                || halt_of(process) == Some(Halt::Dead)
                || maps(process.pid, path).is_ok_and(|maps| !maps))
    });
    killed.sort_by_key(|process| process.silent);
    killed
}

/// Whether a process maps the table. (Another process may have the id of an agent that was
/// killed.)
fn maps(pid: u32, table: &Path) -> io::Result<bool> {
    // Either the inode or the path is enough: in another mount namespace the table may have
    // another path. Devices are not compared: on Btrfs a mapping shows another device than its
    // file.
    let path = fs::canonicalize(table)?;
    let inode = fs::metadata(&path)?.ino().to_string();
    let mut mappings = BufReader::new(File::open(format!("/proc/{pid}/maps"))?.take(MAX_MAPPINGS));
    let mut line = Vec::new();
    // "ADDRESSES PERMISSIONS OFFSET DEVICE INODE   PATH"
    while mappings.read_until(b'\n', &mut line)? > 0 {
        let mut fields = line.trim_ascii_end().splitn(6, |byte| *byte == b' ').skip(4);
        if fields.next() == Some(inode.as_bytes())
            || fields.next().map(<[u8]>::trim_ascii_start) == Some(path.as_os_str().as_bytes())
        {
            return Ok(true);
        }
        line.clear();
    }
    // If the list was cut, the table may be in the rest.
    Ok(mappings.into_inner().limit() == 0)
}
