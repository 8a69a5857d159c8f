//! The drive that models stream from, measured for a moment as the engine reads it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use moeflux_core::SplitMix64;
use moeflux_engine::measure::{DriveProbe, DriveRate};
use serde_json::json;

use super::finding::{Finding, State};
use super::places::{existing, free_bytes};
use crate::bytes::show;
use crate::interrupt::RemovedOnInterrupt;

/// Bytes of one read: about an expert of a model of today in 4 bits.
const PIECE_BYTES: usize = 2 << 20;

/// How long each number of reads at a time is measured.
const TIME: Duration = Duration::from_millis(150);

/// A file of at least this size is measured where the folder has one; else one of that is written.
const LEAST_BYTES: u64 = 64 << 20;
const WRITTEN_BYTES: u64 = 256 << 20;

/// Entries of folders that are looked at for such a file, and how deep.
const MOST_ENTRIES: usize = 20_000;
const DEPTH: usize = 6;

/// From what rate on a drive is good for streaming, and below what it hardly serves, in GB/s.
const GOOD_GB_S: f64 = 2.0;
const POOR_GB_S: f64 = 0.5;

pub(super) fn findings(named: Option<&Path>, hub: &Path) -> Vec<Finding> {
    let wanted = named.unwrap_or(hub);
    let Some(folder) = existing(wanted) else {
        return vec![Finding::unknown("drive", format!("{} does not exist", wanted.display()))];
    };
    let mut all = vec![rate(&folder)];
    all.extend(system::findings(&folder));
    all
}

fn rate(folder: &Path) -> Finding {
    let name = folder.display();
    let unknown =
        |why: String| Finding::unknown("drive", format!("{name} was not measured: {why}"));
    let written;
    let (file, is_old) = match largest_file(folder) {
        Some(file) => (file, true),
        None => match TestFile::write(folder) {
            Ok(file) => {
                written = file;
                (written.path.clone(), false)
            }
            Err(err) => return unknown(err.to_string()),
        },
    };
    let Some(mut probe) = DriveProbe::of_file(&file, PIECE_BYTES, 1) else {
        return unknown(format!("{} cannot be read", file.display()));
    };
    let Some(DriveRate { gb_s, depth }) = probe.depths(TIME).first().copied() else {
        return unknown(format!("{} cannot be read", file.display()));
    };
    let how = match (probe.is_direct(), is_old) {
        (true, true) => "direct reads of a file that is there",
        (true, false) => "direct reads of a file that was just written",
        (false, _) => "reads through the page cache: this file system knows no direct ones",
    };
    let piece = show(probe.piece_bytes() as u64);
    let text = format!("{gb_s:.2} GB/s at {name}, {depth} reads of {piece} at a time ({how})");
    let state = match gb_s {
        rate if rate >= GOOD_GB_S => State::Good,
        rate if rate >= POOR_GB_S => State::Note,
        _ => State::Poor,
    };
    let finding = Finding::new("drive", state, text).facts(json!({
        "folder": folder,
        "gb_s": gb_s,
        "reads": depth,
        "piece_bytes": probe.piece_bytes(),
        "direct": probe.is_direct(),
    }));
    match state {
        State::Good => finding,
        _ => finding.remedy(
            "streamed models are as fast as the drive: put them on an NVMe drive (HF_HUB_CACHE=/its/folder), \
             or choose one that fits into memory",
        ),
    }
}

/// The largest file below a folder that is worth measuring.
fn largest_file(folder: &Path) -> Option<PathBuf> {
    let mut folders = vec![(folder.to_path_buf(), 0)];
    let (mut best, mut n_seen) = (None::<(u64, PathBuf)>, 0);
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            n_seen += 1;
            if n_seen > MOST_ENTRIES {
                return best.map(|(_, path)| path);
            }
            // Of links neither is true: files behind them may be on another drive.
            let Ok(facts) = entry.metadata() else { continue };
            if facts.is_dir() && depth < DEPTH && is_on_same_drive(&facts, entry.path().parent()) {
                folders.push((entry.path(), depth + 1));
            }
            let len = facts.len();
            let is_larger = best.as_ref().is_none_or(|(most, _)| len > *most);
            if facts.is_file() && len >= LEAST_BYTES && is_larger && has_blocks(&facts) {
                best = Some((len, entry.path()));
            }
        }
    }
    best.map(|(_, path)| path)
}

/// Whether most of a file is on the drive: holes are read without it.
#[cfg(unix)]
fn has_blocks(facts: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;

    facts.blocks().saturating_mul(512) >= facts.len() / 10 * 9
}

#[cfg(not(unix))]
fn has_blocks(_facts: &fs::Metadata) -> bool {
    true
}

#[cfg(unix)]
fn is_on_same_drive(facts: &fs::Metadata, parent: Option<&Path>) -> bool {
    use std::os::unix::fs::MetadataExt;

    let parent = parent.and_then(|parent| parent.metadata().ok());
    parent.is_none_or(|parent| parent.dev() == facts.dev())
}

#[cfg(not(unix))]
fn is_on_same_drive(_facts: &fs::Metadata, _parent: Option<&Path>) -> bool {
    true
}

/// A file of random bytes, removed when dropped.
struct TestFile {
    path: PathBuf,
    _removal: Option<RemovedOnInterrupt>,
}

impl TestFile {
    fn write(folder: &Path) -> io::Result<TestFile> {
        // Never much of what is free.
        let bytes = free_bytes(folder).map_or(WRITTEN_BYTES, |free| (free / 8).min(WRITTEN_BYTES));
        if bytes < LEAST_BYTES {
            return Err(io::Error::other("too little room for a file to measure"));
        }
        let path = folder.join(format!(".moeflux-doctor-{}", std::process::id()));
        let removal = RemovedOnInterrupt::new(&path);
        let file = TestFile { path, _removal: removal };
        let mut open = fs::File::options().write(true).create_new(true).open(&file.path)?;
        let mut random = SplitMix64::new(1);
        let mut piece = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            for word in piece.as_chunks_mut::<8>().0 {
                *word = random.next_u64().to_le_bytes();
            }
            open.write_all(&piece)?;
        }
        open.sync_all()?;
        Ok(file)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        // Its name says what it is where it stays behind.
        let _ = fs::remove_file(&self.path);
    }
}

/// What Linux says of a drive.
#[cfg(target_os = "linux")]
mod system {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};

    use serde_json::json;

    use super::super::finding::{Finding, State};

    /// File systems by the number that `statfs` returns (`linux/magic.h`), and whether they are far away.
    const FILE_SYSTEMS: [(u32, &str, bool); 13] = [
        (0xef53, "ext4", false),
        (0x5846_5342, "XFS", false),
        (0x9123_683e, "Btrfs", false),
        (0xf2f5_2010, "F2FS", false),
        (0x2fc1_2fc1, "ZFS", false),
        (0xca45_1a4e, "bcachefs", false),
        (0x0102_1994, "tmpfs", false),
        (0x794c_7630, "overlay", false),
        (0x6969, "NFS", true),
        (0xff53_4d42, "CIFS", true),
        (0xfe53_4d42, "SMB", true),
        (0x6573_5546, "FUSE", true),
        (0x0102_1997, "9P", true),
    ];

    pub(super) fn findings(folder: &Path) -> Vec<Finding> {
        let mut all = Vec::new();
        all.extend(file_system(folder));
        let Some(queue) = queue(folder) else {
            all.push(Finding::unknown("readahead", "the system names no drive below this folder"));
            return all;
        };
        let number = |name: &str| moeflux_core::system::number_in(&queue.join(name));
        if number("rotational") == Some(1) {
            // Virtual machines say so of any drive.
            all.push(Finding::new(
                "drive kind",
                State::Note,
                "the system takes it for a hard disk",
            ));
        }
        all.push(match number("read_ahead_kb") {
            Some(kib) => {
                let text =
                    format!("{kib} KiB; only mapped experts (--expert-io mmap) depend on it");
                Finding::new("readahead", State::Good, text).facts(json!({ "kib": kib }))
            }
            None => Finding::unknown("readahead", "the system does not say"),
        });
        all
    }

    fn file_system(folder: &Path) -> Option<Finding> {
        let number = rustix::fs::statfs(folder).ok()?.f_type as u32;
        let known = FILE_SYSTEMS.iter().find(|(known, ..)| *known == number);
        let facts = json!({ "magic": format!("{number:#x}"), "name": known.map(|known| known.1) });
        Some(match known {
            Some((_, name, true)) => {
                let text = format!("{name}: reads come from another machine or program");
                Finding::new("file system", State::Poor, text)
                    .facts(facts)
                    .remedy("keep models on a drive of this machine (HF_HUB_CACHE=/its/folder)")
            }
            Some((_, name, false)) => Finding::new("file system", State::Good, *name).facts(facts),
            None => Finding::unknown("file system", format!("not a known one ({number:#x})"))
                .facts(facts),
        })
    }

    /// The queue of the drive below a folder, in `/sys`.
    fn queue(folder: &Path) -> Option<PathBuf> {
        let dev = fs::metadata(folder).ok()?.dev();
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        let block = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        // Partitions have none of their own.
        let queues = [block.join("queue"), block.parent()?.join("queue")];
        queues.into_iter().find(|queue| queue.is_dir())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::path::Path;

    use super::super::finding::Finding;

    pub(super) fn findings(_folder: &Path) -> Vec<Finding> {
        Vec::new()
    }
}
