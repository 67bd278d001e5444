//! How much memory the cgroup of this process has left.
//!
//! A file on a tmpfs is memory. If the cgroup allows less than a table takes, reserving the space
//! does not fail: the kernel kills a process instead. So the limit is read first.

use std::fs;
use std::path::Path;

/// The bytes left below the tightest memory limit of this process; `None` if there is no limit, or
/// it cannot be read.
pub(crate) fn memory_left() -> Option<u64> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    left_in(&cgroups, Path::new("/sys/fs/cgroup"))
}

/// The names of a cgroup version's files and of the counters in `memory.stat`.
struct Names {
    limit: &'static str,
    usage: &'static str,
    cached: &'static str,
    shmem: &'static str,
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: "total_cache",
    shmem: "total_shmem",
};
const V2: Names =
    Names { limit: "memory.max", usage: "memory.current", cached: "file", shmem: "shmem" };

/// As [`memory_left`], for a process with these lines in its `/proc/self/cgroup`.
fn left_in(cgroups: &str, root: &Path) -> Option<u64> {
    cgroups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            match controllers {
                "" => left_up_from(root, path, &V2),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    left_up_from(&root.join("memory"), path, &V1)
                }
                _ => None,
            }
        })
        .min()
}

/// The least that is left in the group at `path` and in the groups above it.
fn left_up_from(root: &Path, path: &str, names: &Names) -> Option<u64> {
    let group = root.join(path.trim_start_matches('/'));
    group
        .ancestors()
        .take_while(|group| group.starts_with(root))
        .filter_map(|group| left(group, names))
        .min()
}

fn left(group: &Path, names: &Names) -> Option<u64> {
    // "max" is not a number, and means that there is no limit.
    let read = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, usage) = (read(names.limit)?, read(names.usage)?);
    // The kernel can drop cached files. Files on a tmpfs count as cached, but it cannot drop them.
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let counter = |name: &str| {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        lines
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| value.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let droppable = counter(names.cached).saturating_sub(counter(names.shmem));
    Some(limit.saturating_sub(usage.saturating_sub(droppable)))
}

#[cfg(test)]
#[cfg(not(gcra_model))]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_tightest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let left = |cgroups: &str| left_in(cgroups, root.path());
        assert_eq!(left("0::/service\n"), None);

        write(at("service/memory.max"), "max\n");
        write(at("service/memory.current"), "1000\n");
        assert_eq!(left("0::/service\n"), None);
        write(at("service/memory.max"), "5000\n");
        assert_eq!(left("0::/service\n"), Some(4000));
        assert_eq!(left("0::/service/inner\n"), Some(4000), "a limit above");
        assert_eq!(left("0::/other\n"), None);
        write(at("service/memory.stat"), "anon 100\nfile 800\nshmem 300\n");
        assert_eq!(
            left("0::/service\n"),
            Some(4500),
            "cached files can be dropped, except those on a tmpfs"
        );

        write(at("memory/box/memory.limit_in_bytes"), "3000\n");
        write(at("memory/box/memory.usage_in_bytes"), "4000\n");
        assert_eq!(left("4:memory:/box\n0::/\n"), Some(0), "over its limit already");
        assert_eq!(left("not a line\n"), None);
    }
}
