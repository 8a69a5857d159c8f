//! Free memory, measured with a few small reads, so that it can be measured every few milliseconds.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use moeflux_core::system::kib_in_bytes;

use super::limit::{Group, limited_groups, usable_memory_under};

/// How long the limits of control groups are assumed to stay the same.
const LIMITS_FOR: Duration = Duration::from_millis(500);

/// Size of the read buffer: more than the kernel writes into any of the files.
const TEXT_BYTES: usize = 16 << 10;

/// Measures the same bytes as [`usable_memory`](crate::usable_memory), through files that stay
/// open.
///
/// The usage of a control group alone says too little. A group that is full of file pages stays
/// full while programs take memory, because the kernel drops those pages for them.
#[derive(Debug)]
pub(crate) struct Gauge<'a> {
    root: &'a Path,
    meminfo: Option<File>,
    groups: Vec<OpenGroup>,
    opened: Instant,
    text: Vec<u8>,
}

#[derive(Debug)]
struct OpenGroup {
    group: Group,
    usage: File,
    stat: Option<File>,
}

impl Gauge<'static> {
    pub(crate) fn open() -> Gauge<'static> {
        Gauge::open_under(Path::new("/"))
    }
}

impl<'a> Gauge<'a> {
    /// Opens the files, with `/proc` and `/sys` looked up under `root`.
    pub(crate) fn open_under(root: &'a Path) -> Gauge<'a> {
        let meminfo = File::open(root.join("proc/meminfo")).ok();
        let (groups, opened) = (open_groups(root), Instant::now());
        Gauge { root, meminfo, groups, opened, text: vec![0; TEXT_BYTES] }
    }

    /// Bytes that are free or can be reclaimed.
    pub(crate) fn available(&mut self) -> u64 {
        let text = &mut self.text;
        let Some(meminfo) = &self.meminfo else {
            // A system without these files has no control groups either.
            return usable_memory_under(self.root).available;
        };
        if self.opened.elapsed() > LIMITS_FOR {
            self.groups = open_groups(self.root);
            self.opened = Instant::now();
        }
        let of_machine = kib_in_bytes(read(meminfo, text), "MemAvailable:");
        let mut available = of_machine.unwrap_or(u64::MAX);
        for OpenGroup { group, usage, stat } in &self.groups {
            let used = read(usage, text).trim().parse().unwrap_or(0);
            let stat = stat.as_ref().map_or("", |file| read(file, text));
            available = available.min(group.free(used, stat));
        }
        available
    }
}

fn open_groups(root: &Path) -> Vec<OpenGroup> {
    let opened = limited_groups(root).into_iter().filter_map(|group| {
        let usage = File::open(group.usage_file()).ok()?;
        let stat = File::open(group.stat_file()).ok();
        Some(OpenGroup { group, usage, stat })
    });
    opened.collect()
}

/// Reads a file of the kernel, which generates the content at every read.
fn read<'a>(file: &File, text: &'a mut [u8]) -> &'a str {
    let mut n_bytes = 0;
    while n_bytes < text.len() {
        match read_at(file, &mut text[n_bytes..], n_bytes as u64) {
            0 => break,
            more => n_bytes += more,
        }
    }
    std::str::from_utf8(&text[..n_bytes]).unwrap_or("")
}

#[cfg(unix)]
fn read_at(file: &File, buf: &mut [u8], offset: u64) -> usize {
    std::os::unix::fs::FileExt::read_at(file, buf, offset).unwrap_or(0)
}

#[cfg(not(unix))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> usize {
    0
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use super::*;

    fn write(root: &Path, path: &str, content: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[test]
    fn every_look_finds_what_is_there_now() {
        let dir = tempfile::TempDir::new().unwrap();
        let root = dir.path();
        let set = |name: &str, text: &str| write(root, &format!("sys/fs/cgroup/job/{name}"), text);
        write(root, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n");
        write(root, "proc/self/cgroup", "0::/job\n");
        set("memory.max", "5000000\n");
        set("memory.current", "1000000\n");
        set("memory.stat", "anon 1000000\ninactive_file 0\nactive_file 0\n");
        let mut gauge = Gauge::open_under(root);
        assert_eq!(gauge.available(), 4_000_000);
        set("memory.current", "5000000\n");
        set("memory.stat", "anon 1000000\ninactive_file 3000000\nactive_file 1000000\n");
        assert_eq!(gauge.available(), 4_000_000);
        // As full as before, with fewer pages that can be dropped.
        set("memory.stat", "anon 4500000\ninactive_file 500000\nactive_file 0\n");
        assert_eq!(gauge.available(), 500_000);
        write(root, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 300 kB\n");
        assert_eq!(gauge.available(), 307_200);
        assert_eq!(usable_memory_under(root).available, 307_200);
        set("memory.max", "4800000\n");
        std::thread::sleep(LIMITS_FOR + Duration::from_millis(1));
        assert_eq!(gauge.available(), 300_000);
    }
}
