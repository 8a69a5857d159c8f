//! How much memory this process may use.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moeflux_core::system::{
    ControlGroup, ControlGroupVersion, control_groups, kib_in_bytes, labelled_number, number_in,
};

/// Assumed for the machine's memory if the system does not report it.
const UNKNOWN_BYTES: u64 = 8 << 30;

/// A control group's limit of this many bytes or more stands for "none": version 1 writes the
/// largest page-aligned integer.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// Memory that this process may use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Physical memory or the tightest control group limit, whichever is less.
    pub total: u64,
    /// The part of `total` that is free or can be reclaimed at this moment.
    pub available: u64,
    /// The tightest control group limit, if there is one below physical memory.
    pub cgroup: Option<u64>,
}

/// Memory that this process may use: the machine's memory, bounded by the limits of its control
/// group (version 2 and 1) and of that group's ancestors.
pub fn usable_memory() -> MemoryLimit {
    usable_memory_under(Path::new("/"))
}

/// The total time that tasks of this process's control group, or of the machine, have waited for
/// memory; `None` if the system does not report it.
pub(crate) fn stalled() -> Option<Duration> {
    stalled_under(Path::new("/"))
}

/// Returns the result of [`stalled`], with `/proc` and `/sys` looked up under `root`.
pub(crate) fn stalled_under(root: &Path) -> Option<Duration> {
    let groups = control_groups(root, "memory").into_iter().rev();
    let of_group = groups
        .filter_map(|group| Some(group.dir.join(files_of(&group).pressure?)))
        .find_map(|pressure| fs::read_to_string(pressure).ok());
    let text = of_group.or_else(|| fs::read_to_string(root.join("proc/pressure/memory")).ok())?;
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

/// Returns the result of [`usable_memory`], with `/proc` and `/sys` looked up under `root`.
pub(crate) fn usable_memory_under(root: &Path) -> MemoryLimit {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let entry = |label: &str| kib_in_bytes(&meminfo, label);
    let reported = entry("MemTotal:").map(|total| (total, entry("MemAvailable:").unwrap_or(total)));
    let unknown = (UNKNOWN_BYTES, UNKNOWN_BYTES);
    let (physical, available) = reported.or_else(asked).unwrap_or(unknown);

    let mut limit = MemoryLimit { total: physical, available, cgroup: None };
    for group in limited_groups(root) {
        limit.tighten(&group);
    }
    limit
}

/// Bytes that this process can still allocate within its own limits of addresses (`ulimit -v`) and of
/// data (`ulimit -d`); `None` where it has none. Files that are mapped count as addresses, so this says
/// nothing of memory.
pub fn unallocated_bytes() -> Option<u64> {
    unallocated_bytes_under(Path::new("/"))
}

/// Returns the result of [`unallocated_bytes`], with `/proc` looked up under `root`.
pub(crate) fn unallocated_bytes_under(root: &Path) -> Option<u64> {
    /// A limit, and the entry of the status with what counts.
    const LIMITS: [(&str, &str); 2] =
        [("Max address space", "VmSize:"), ("Max data size", "VmData:")];
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let (limits, status) = (read("proc/self/limits"), read("proc/self/status"));
    let left = |(label, used): (&str, &str)| {
        let line = limits.lines().find_map(|line| line.strip_prefix(label))?;
        // "unlimited" is no number.
        let soft: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(soft.saturating_sub(kib_in_bytes(&status, used).unwrap_or(0)))
    };
    LIMITS.into_iter().filter_map(left).min()
}

/// This process's control groups, and their ancestors, that have a limit.
pub(crate) fn limited_groups(root: &Path) -> Vec<Group> {
    let limited = |group: ControlGroup| {
        let files = files_of(&group);
        Some(Group { limit: files.limit(&group.dir)?, files, dir: group.dir })
    };
    control_groups(root, "memory").into_iter().filter_map(limited).collect()
}

/// A control group with a limit.
#[derive(Debug)]
pub(crate) struct Group {
    files: &'static GroupFiles,
    dir: PathBuf,
    limit: u64,
}

impl Group {
    /// The file with the bytes that the group uses.
    pub(crate) fn usage_file(&self) -> PathBuf {
        self.dir.join(self.files.usage)
    }

    /// The file that divides these bytes by kind.
    pub(crate) fn stat_file(&self) -> PathBuf {
        self.dir.join("memory.stat")
    }

    /// Bytes up to the limit when `used` bytes are in use, plus the used bytes that can be
    /// reclaimed according to `stat`, the content of [`Group::stat_file`].
    pub(crate) fn free(&self, used: u64, stat: &str) -> u64 {
        let labels = self.files.reclaimable.iter();
        let reclaimable =
            labels.filter_map(|label| labelled_number(stat, label)).fold(0, u64::saturating_add);
        self.limit.saturating_sub(used.saturating_sub(reclaimable))
    }
}

impl MemoryLimit {
    /// Applies the limit of one control group.
    fn tighten(&mut self, group: &Group) {
        if group.limit < self.total {
            self.total = group.limit;
            self.cgroup = Some(group.limit);
        }
        let used = number_in(&group.usage_file()).unwrap_or(0);
        let stat = fs::read_to_string(group.stat_file()).unwrap_or_default();
        self.available = self.available.min(group.free(used, &stat));
    }
}

/// The names of a control group's files, which depend on the version.
#[derive(Debug)]
struct GroupFiles {
    /// The kernel ends processes above the first, and slows them down above the second.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Entries of the stat file that count pages of files.
    reclaimable: [&'static str; 2],
    /// The file with the time that the group's tasks waited for memory.
    pressure: Option<&'static str>,
}

const V1: GroupFiles = GroupFiles {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
    pressure: None,
};

const V2: GroupFiles = GroupFiles {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
    pressure: Some("memory.pressure"),
};

fn files_of(group: &ControlGroup) -> &'static GroupFiles {
    match group.version {
        ControlGroupVersion::V1 => &V1,
        ControlGroupVersion::V2 => &V2,
    }
}

impl GroupFiles {
    /// The lowest limit of one control group in bytes.
    fn limit(&self, dir: &Path) -> Option<u64> {
        let limits = self.limits.iter().filter_map(|name| number_in(&dir.join(name)));
        limits.min().filter(|limit| *limit < NO_LIMIT_BYTES)
    }
}

/// Physical memory, and the part of it that no program uses, in bytes, where there is no
/// `/proc/meminfo`.
#[cfg(not(target_os = "linux"))]
fn asked() -> Option<(u64, u64)> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory_specifics(sysinfo::MemoryRefreshKind::nothing().with_ram());
    // The value that macOS calls available counts pages that other programs are using.
    let (total, used) = (system.total_memory(), system.used_memory());
    (total > 0).then(|| (total, total.saturating_sub(used)))
}

/// On Linux, `/proc/meminfo` is the only source.
#[cfg(target_os = "linux")]
fn asked() -> Option<(u64, u64)> {
    None
}
