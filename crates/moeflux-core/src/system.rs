//! What Linux reports in `/proc` and `/sys`: memory of this process, its control groups, numbers in their
//! files. Elsewhere there are no such files, and the functions find nothing.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The most memory that this process had since it began, in bytes, where the system reports it.
pub fn peak_memory_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// The memory that this process has, in bytes, where the system reports it.
pub fn resident_memory_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

fn status_bytes(label: &str) -> Option<u64> {
    kib_in_bytes(&fs::read_to_string("/proc/self/status").ok()?, label)
}

/// The value of an entry in KiB, such as those of `/proc/meminfo`, in bytes.
pub fn kib_in_bytes(text: &str, label: &str) -> Option<u64> {
    labelled_number(text, label).map(|kib| kib.saturating_mul(1024))
}

/// The number after `label` at the start of a line.
pub fn labelled_number(text: &str, label: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == label).then(|| words.next()?.parse().ok())?)
}

/// How many threads of all programs ran or waited for a core in the last minute, on average, where the
/// system reports it.
pub fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// What its maker calls the processor; the name of its architecture where the system does not say.
pub fn processor_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |label: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = lines.find(|(name, _)| name.trim() == label)?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let arm = || Some(format!("{} {}", value("CPU implementer")?, value("CPU part")?));
    value("model name").or_else(arm).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The number that a file consists of; `max`, where the system means no limit, is none.
pub fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Which interface a control group has: the names of its files depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlGroupVersion {
    /// A hierarchy for each controller.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

/// A directory of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    /// Its interface.
    pub version: ControlGroupVersion,
    /// Where its files are.
    pub dir: PathBuf,
}

/// The control groups of this process that a controller such as `memory` counts for, and their ancestors, the
/// mount first. `root` is `/` but in tests. A directory may not exist.
pub fn control_groups(root: &Path, controller: &str) -> Vec<ControlGroup> {
    let lines = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    for line in lines.lines() {
        // Lines are `id:controllers:path`; version 2 names no controllers.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (version, mounts) = match controllers {
            "" => (ControlGroupVersion::V2, vec!["".to_owned(), "unified".to_owned()]),
            names if names.split(',').any(|name| name == controller) => {
                (ControlGroupVersion::V1, vec![controller.to_owned()])
            }
            _ => continue,
        };
        for mount in mounts {
            let dirs = with_ancestors(&root.join("sys/fs/cgroup").join(mount), path).into_iter();
            groups.extend(dirs.map(|dir| ControlGroup { version, dir }));
        }
    }
    groups
}

/// The group's directory and its ancestors, the mount first. Inside a container the path may name
/// directories that only the host sees; the mount itself is then the container's group.
fn with_ancestors(mount: &Path, group: &str) -> Vec<PathBuf> {
    let mut dirs = vec![mount.to_owned()];
    for part in Path::new(group).components() {
        if let Component::Normal(name) = part {
            dirs.push(dirs[dirs.len() - 1].join(name));
        }
    }
    dirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_labels_that_begin_a_line() {
        let text = "Name:\tVmRSS: 5\nVmRSS:\t  12 kB\nempty:\nVmHWM: x kB\n";
        assert_eq!(kib_in_bytes(text, "VmRSS:"), Some(12 * 1024));
        for label in ["empty:", "VmHWM:", "Vm", "12"] {
            assert_eq!(labelled_number(text, label), None, "{label}");
        }
        assert_eq!(kib_in_bytes(&format!("a {}", u64::MAX), "a"), Some(u64::MAX));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_machine_has_a_load_and_a_processor() {
        assert!(load_average().unwrap() >= 0.0);
        assert!(!processor_name().trim().is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory() {
        let (now, peak) = (resident_memory_bytes().unwrap(), peak_memory_bytes().unwrap());
        assert!(now > 1 << 16 && peak >= now / 2, "{now} of {peak}");
    }

    #[test]
    fn groups_of_both_versions_come_with_their_ancestors() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        assert_eq!(control_groups(dir, "memory"), []);
        fs::create_dir_all(dir.join("proc/self")).unwrap();
        let lines = "7:cpu:/a\n4:pids,memory:/a/../b\nnonsense\n0::/c\n";
        fs::write(dir.join("proc/self/cgroup"), lines).unwrap();
        let found: Vec<(ControlGroupVersion, PathBuf)> = control_groups(dir, "memory")
            .into_iter()
            .map(|group| (group.version, group.dir))
            .collect();
        let at = |path: &str| dir.join("sys/fs/cgroup").join(path);
        let (v1, v2) = (ControlGroupVersion::V1, ControlGroupVersion::V2);
        let want = [
            (v1, at("memory")),
            (v1, at("memory/a")),
            (v1, at("memory/a/b")),
            (v2, at("")),
            (v2, at("c")),
            (v2, at("unified")),
            (v2, at("unified/c")),
        ];
        assert_eq!(found, want);
    }
}
