//! How much memory this process may use.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Taken for the machine's memory where the system does not tell.
const UNKNOWN_BYTES: u64 = 8 << 30;

/// From here on a control group's limit stands for "none": version 1 writes
/// the largest page-aligned integer.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// Memory that this process may use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Physical memory or the tightest control group limit, whichever is less.
    pub total: u64,
    /// What of `total` is free or can be reclaimed at this moment.
    pub available: u64,
    /// The tightest control group limit, if there is one below physical memory.
    pub cgroup: Option<u64>,
}

/// What this process may use: the machine's memory, bounded by the limits of
/// its control group (version 2 and 1) and of that group's ancestors.
pub fn usable_memory() -> MemoryLimit {
    usable_memory_under(Path::new("/"))
}

/// How long tasks of this machine have been waiting for memory since it
/// started, where the system tells.
pub(crate) fn stalled() -> Option<Duration> {
    stalled_under(Path::new("/"))
}

/// As [`stalled`], with `/proc` looked up under `root`.
pub(crate) fn stalled_under(root: &Path) -> Option<Duration> {
    let text = fs::read_to_string(root.join("proc/pressure/memory")).ok()?;
    let some = text.lines().find(|it| it.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|it| it.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

/// As [`usable_memory`], with `/proc` and `/sys` looked up under `root`.
pub(crate) fn usable_memory_under(root: &Path) -> MemoryLimit {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let kib = |name: &str| labelled(&meminfo, name).map(|it| it.saturating_mul(1024));
    let told = kib("MemTotal:").map(|it| (it, kib("MemAvailable:").unwrap_or(it)));
    let unknown = (UNKNOWN_BYTES, UNKNOWN_BYTES);
    let (physical, available) = told.or_else(asked).unwrap_or(unknown);

    let mut limit = MemoryLimit { total: physical, available, cgroup: None };
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    for line in groups.lines() {
        let Some((version, path)) = Version::of(line) else { continue };
        for mount in version.mounts {
            for dir in ancestors(&root.join(mount), path) {
                limit.tighten(version, &dir);
            }
        }
    }
    limit
}

impl MemoryLimit {
    /// Applies the limit of one control group.
    fn tighten(&mut self, version: &Version, dir: &Path) {
        let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok();
        // Version 2 writes "max" for no limit, which is no number.
        let Some(max) = number(version.limit).filter(|&it: &u64| it < NO_LIMIT_BYTES) else {
            return;
        };
        if max < self.total {
            self.total = max;
            self.cgroup = Some(max);
        }
        let used: u64 = number(version.usage).unwrap_or(0);
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let files = version.reclaimable.iter().filter_map(|it| labelled(&stat, it));
        let reclaimable = files.fold(0, u64::saturating_add);
        let free = max.saturating_sub(used.saturating_sub(reclaimable));
        self.available = self.available.min(free);
    }
}

/// The names that a version of control groups uses.
struct Version {
    mounts: &'static [&'static str],
    limit: &'static str,
    usage: &'static str,
    /// Pages of files.
    reclaimable: [&'static str; 2],
}

const V1: Version = Version {
    mounts: &["sys/fs/cgroup/memory"],
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

const V2: Version = Version {
    mounts: &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

impl Version {
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

/// The group's directory and those above it, up to the mount. Inside a
/// container the path may name directories that only the host sees; the mount
/// itself is then the container's own group.
fn ancestors(mount: &Path, group: &str) -> Vec<PathBuf> {
    let mut dirs = vec![mount.to_owned()];
    for part in Path::new(group).components() {
        if let Component::Normal(name) = part {
            dirs.push(dirs[dirs.len() - 1].join(name));
        }
    }
    dirs
}

/// The number behind `label` at the start of a line.
fn labelled(text: &str, label: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == label).then(|| words.next()?.parse().ok())?)
}

/// Physical memory, and what of it no program has, where there is no `/proc/meminfo`.
#[cfg(not(target_os = "linux"))]
fn asked() -> Option<(u64, u64)> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory_specifics(sysinfo::MemoryRefreshKind::nothing().with_ram());
    // What macOS calls available counts pages that other programs are using.
    let (total, used) = (system.total_memory(), system.used_memory());
    (total > 0).then(|| (total, total.saturating_sub(used)))
}

/// As on other systems.
#[cfg(target_os = "linux")]
fn asked() -> Option<(u64, u64)> {
    None
}
