//! Explains why the system does not start a thread or a process, by the limits of this process.

use std::fmt::Write;
use std::io;
#[cfg(target_os = "linux")]
use std::path::Path;

#[cfg(target_os = "linux")]
use crate::system::{control_groups, number_in};

/// Adds to the error of a thread or process that could not be started the limits that can be its
/// cause. These are the number of processes and threads (of the control group, of the user) and the
/// address space, in which each thread needs a stack.
pub fn explain_thread_error(source: io::Error) -> io::Error {
    let mut text = source.to_string();
    for limit in limits() {
        // Writing into a string does not fail.
        let _ = write!(text, "; {limit}");
    }
    io::Error::new(source.kind(), text)
}

#[cfg(target_os = "linux")]
fn limits() -> Vec<String> {
    limits_under(Path::new("/"))
}

#[cfg(not(target_os = "linux"))]
fn limits() -> Vec<String> {
    Vec::new()
}

/// Returns the result of [`limits`], with `/proc` and `/sys` looked up under `root`.
#[cfg(target_os = "linux")]
fn limits_under(root: &Path) -> Vec<String> {
    let limits = std::fs::read_to_string(root.join("proc/self/limits")).unwrap_or_default();
    let of_group = group_limit(root).map(|n| (n, "pids.max of its control group"));
    let of_user = soft_limit(&limits, "Max processes").map(|n| (n, "ulimit -u"));
    let lowest = [of_group, of_user].into_iter().flatten().min_by_key(|(n, _)| *n);
    let of_number =
        lowest.map(|(n, name)| format!("at most {n} processes and threads are allowed ({name})"));
    let of_space = soft_limit(&limits, "Max address space")
        .map(|n| format!("its address space is limited to {} MiB (ulimit -v)", n >> 20));
    [of_number, of_space].into_iter().flatten().collect()
}

/// The lowest `pids.max` of this process's control groups, of version 1 or 2, and of their
/// ancestors.
#[cfg(target_os = "linux")]
fn group_limit(root: &Path) -> Option<u64> {
    let groups = control_groups(root, "pids").into_iter();
    groups.filter_map(|group| number_in(&group.dir.join("pids.max"))).min()
}

/// The soft limit in a line of `/proc/self/limits`; "unlimited" is not a number.
#[cfg(target_os = "linux")]
fn soft_limit(limits: &str, label: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// A directory with these files.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_lowest_limit_of_the_groups_counts() {
        let version_1 = tree(&[
            ("proc/self/cgroup", "7:cpu:/a\n4:pids:/a/b\n0::/c\n"),
            ("sys/fs/cgroup/pids/pids.max", "max\n"),
            ("sys/fs/cgroup/pids/a/pids.max", "12\n"),
            ("sys/fs/cgroup/pids/a/b/pids.max", "90\n"),
        ]);
        assert_eq!(group_limit(version_1.path()), Some(12));
        let version_2 =
            tree(&[("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/a/b/pids.max", "31\n")]);
        assert_eq!(group_limit(version_2.path()), Some(31));
        assert_eq!(group_limit(tree(&[]).path()), None);
    }

    #[test]
    fn limits_are_named_where_there_are_some() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max processes             77                   unlimited            processes\n\
                      Max address space         419430400            unlimited            bytes\n";
        let found = limits_under(tree(&[("proc/self/limits", limits)]).path());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("77") && found[1].contains("400 MiB"), "{found:?}");
        assert!(limits_under(tree(&[]).path()).is_empty());
    }
}
