//! How much memory this process may use.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

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
    let of_group = groups(root).into_iter().rev().find_map(|(version, dir)| {
        let pressure = version.pressure?;
        fs::read_to_string(dir.join(pressure)).ok()
    });
    let text = of_group.or_else(|| fs::read_to_string(root.join("proc/pressure/memory")).ok())?;
    let some = text.lines().find(|it| it.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|it| it.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

/// Returns the result of [`usable_memory`], with `/proc` and `/sys` looked up under `root`.
pub(crate) fn usable_memory_under(root: &Path) -> MemoryLimit {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let kib = |name: &str| labelled(&meminfo, name).map(|it| it.saturating_mul(1024));
    let told = kib("MemTotal:").map(|it| (it, kib("MemAvailable:").unwrap_or(it)));
    let unknown = (UNKNOWN_BYTES, UNKNOWN_BYTES);
    let (physical, available) = told.or_else(asked).unwrap_or(unknown);

    let mut limit = MemoryLimit { total: physical, available, cgroup: None };
    for group in limited_groups(root) {
        limit.tighten(&group);
    }
    limit
}

/// The directories of this process's control groups and of their ancestors, the mount first.
fn groups(root: &Path) -> Vec<(&'static Version, PathBuf)> {
    let lines = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    for (version, path) in lines.lines().filter_map(Version::of) {
        for mount in version.mounts {
            let dirs = ancestors(&root.join(mount), path).into_iter();
            groups.extend(dirs.map(|dir| (version, dir)));
        }
    }
    groups
}

/// This process's control groups, and their ancestors, that have a limit.
pub(crate) fn limited_groups(root: &Path) -> Vec<Group> {
    let groups = groups(root).into_iter();
    groups
        .filter_map(|(version, dir)| Some(Group { limit: version.limit(&dir)?, version, dir }))
        .collect()
}

/// A control group with a limit.
#[derive(Debug)]
pub(crate) struct Group {
    version: &'static Version,
    dir: PathBuf,
    limit: u64,
}

impl Group {
    /// The file with the bytes that the group uses.
    pub(crate) fn usage_file(&self) -> PathBuf {
        self.dir.join(self.version.usage)
    }

    /// The file that divides these bytes by kind.
    pub(crate) fn stat_file(&self) -> PathBuf {
        self.dir.join("memory.stat")
    }

    /// Bytes up to the limit when `used` bytes are in use, plus the used bytes that can be
    /// reclaimed according to `stat`, the content of [`Group::stat_file`].
    pub(crate) fn free(&self, used: u64, stat: &str) -> u64 {
        let files = self.version.reclaimable.iter().filter_map(|label| labelled(stat, label));
        let reclaimable = files.fold(0, u64::saturating_add);
        self.limit.saturating_sub(used.saturating_sub(reclaimable))
    }
}

/// The value of an entry of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo_bytes(text: &str, label: &str) -> Option<u64> {
    labelled(text, label).map(|kib| kib.saturating_mul(1024))
}

impl MemoryLimit {
    /// Applies the limit of one control group.
    fn tighten(&mut self, group: &Group) {
        if group.limit < self.total {
            self.total = group.limit;
            self.cgroup = Some(group.limit);
        }
        let used = number(&group.usage_file()).unwrap_or(0);
        let stat = fs::read_to_string(group.stat_file()).unwrap_or_default();
        self.available = self.available.min(group.free(used, &stat));
    }
}

/// The names of a control group's files, which depend on the version.
#[derive(Debug)]
struct Version {
    mounts: &'static [&'static str],
    /// The kernel ends processes above the first, and slows them down above the second.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Entries of the stat file that count pages of files.
    reclaimable: [&'static str; 2],
    /// The file with the time that the group's tasks waited for memory.
    pressure: Option<&'static str>,
}

const V1: Version = Version {
    mounts: &["sys/fs/cgroup/memory"],
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
    pressure: None,
};

const V2: Version = Version {
    mounts: &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
    pressure: Some("memory.pressure"),
};

impl Version {
    /// The lowest limit of one control group in bytes. Version 2 writes "max" for none, which is
    /// not a number.
    fn limit(&self, dir: &Path) -> Option<u64> {
        let limits = self.limits.iter().filter_map(|name| number(&dir.join(name)));
        limits.min().filter(|limit| *limit < NO_LIMIT_BYTES)
    }

    /// Reads a line of `/proc/self/cgroup`, `id:controllers:path`.
    fn of(line: &str) -> Option<(&'static Version, &str)> {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if id == "0" && controllers.is_empty() {
            Some((&V2, path))
        } else if controllers.split(',').any(|it| it == "memory") {
            Some((&V1, path))
        } else {
            None
        }
    }
}

/// The group's directory and its ancestors, the mount first. Inside a container the path may name
/// directories that only the host sees; the mount itself is then the container's group.
fn ancestors(mount: &Path, group: &str) -> Vec<PathBuf> {
    let mut dirs = vec![mount.to_owned()];
    for part in Path::new(group).components() {
        if let Component::Normal(name) = part {
            dirs.push(dirs[dirs.len() - 1].join(name));
        }
    }
    dirs
}

/// The number that a file consists of.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number after `label` at the start of a line.
fn labelled(text: &str, label: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == label).then(|| words.next()?.parse().ok())?)
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
