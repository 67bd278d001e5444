//! The resources that a process has used, by the kernel's accounting.

use std::fs;
use std::time::Duration;

/// Time that its threads were on a CPU, user and kernel.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let on_cpu_ns = |task: fs::DirEntry| -> u64 {
        let schedstat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        schedstat.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0)
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    Duration::from_nanos(tasks.map(|task| on_cpu_ns(task.unwrap())).sum())
}
