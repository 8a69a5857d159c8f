//! The drive of a directory that has no model yet: large files that are there, or one that is
//! written for a moment.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moeflux_core::SplitMix64;
use moeflux_core::atomic_file::{Access, AtomicFile, remove_abandoned};
use moeflux_engine::measure::DriveProbe;

use super::place::existing;
use crate::interrupt::RemovedOnInterrupt;

/// Reads are this long at least and at most. Longer records are read at the rate of the longest.
const SHORTEST_READ: u64 = 128 << 10;
const LONGEST_READ: u64 = 8 << 20;

/// How long a pass reads, for each number of reads at once, and how many passes there are.
const TIME: Duration = Duration::from_millis(50);
const PASSES: usize = 3;

/// The file that is written: its name, its size where the drive is fast enough, the least size that
/// says something, and how long writing may take.
const NAME: &str = "moeflux-drive-test";
const WANTED_BYTES: u64 = 256 << 20;
const LEAST_BYTES: u64 = 32 << 20;
const WRITING: Duration = Duration::from_millis(800);

/// What is written at once, and how much of it is handed to the drive at a time.
const CHUNK_BYTES: usize = 4 << 20;
const SYNC_BYTES: u64 = 16 << 20;

/// Room that stays free on the drive.
const ROOM: u64 = 1 << 30;

/// Entries of folders that are looked at for a large file.
const MOST_ENTRIES: usize = 2000;

/// The length of the reads by which a drive is measured for records of this many bytes.
pub(crate) fn request_bytes(record_bytes: u64) -> u64 {
    record_bytes.clamp(SHORTEST_READ, LONGEST_READ)
}

/// GB/s of direct reads of records of this many bytes from the drive of `dir`, the Hub's cache.
///
/// # Errors
/// Says why nothing was measured.
pub(crate) fn drive_gb_s(dir: &Path, record_bytes: u64) -> Result<f64, String> {
    if let Some(gb_s) = large_file(dir).and_then(|file| read(&file, record_bytes).ok()) {
        return Ok(gb_s);
    }
    let dir = existing(dir);
    let cannot = |err: io::Error| format!("cannot write a file in {} ({err})", dir.display());
    let free = fs4::available_space(dir).map_err(cannot)?;
    let most = WANTED_BYTES.min(free.saturating_sub(ROOM));
    if most < LEAST_BYTES {
        let free = crate::bytes::show(free);
        return Err(format!("only {free} are free in {}", dir.display()));
    }
    let target = dir.join(NAME);
    remove_abandoned(&target);
    let mut file = AtomicFile::create(&target, Access::Private).map_err(cannot)?;
    let removal = RemovedOnInterrupt::new(file.partial());
    let rate = match fill(&mut file, most) {
        Err(err) => Err(cannot(err)),
        Ok(n_bytes) if n_bytes < LEAST_BYTES => {
            Err(format!("the drive of {} is too slow for a short test", dir.display()))
        }
        Ok(_) => read(file.partial(), record_bytes),
    };
    // A signal finds nothing to remove before the watch over it ends.
    drop(file);
    drop(removal);
    rate
}

/// Writes bytes that no drive can compress until there are `most`, or the time is over; how many
/// there are.
fn fill(file: &mut AtomicFile, most: u64) -> io::Result<u64> {
    let mut random = SplitMix64::new(1);
    let mut chunk: Vec<u8> =
        (0..CHUNK_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    let start = Instant::now();
    let mut n_bytes = 0;
    while n_bytes + CHUNK_BYTES as u64 <= most && start.elapsed() < WRITING {
        // No block equals another.
        for block in chunk.chunks_exact_mut(4096) {
            block[..8].copy_from_slice(&random.next_u64().to_le_bytes());
        }
        file.write_all(&chunk)?;
        n_bytes += CHUNK_BYTES as u64;
        if n_bytes % SYNC_BYTES == 0 {
            file.file().sync_data()?;
        }
    }
    file.file().sync_data()?;
    Ok(n_bytes)
}

fn read(file: &Path, record_bytes: u64) -> Result<f64, String> {
    let what = || format!("the file system of {} has no direct reads", file.display());
    let n_bytes = usize::try_from(request_bytes(record_bytes)).map_err(|_| what())?;
    // Other places than those of the test before, which something beneath may have kept.
    let seed = u64::from(std::process::id());
    let probe = DriveProbe::of_file(file, n_bytes, seed).filter(DriveProbe::is_direct);
    let memory = moeflux_store::usable_memory().available / 4;
    probe.and_then(|mut probe| probe.best(memory, PASSES, TIME)).ok_or_else(what)
}

/// The largest file of a model in the Hub's cache, if it is large enough to be read at random.
fn large_file(dir: &Path) -> Option<PathBuf> {
    let entries = |dir: PathBuf| dir.read_dir().into_iter().flatten().flatten();
    let models = entries(dir.to_path_buf())
        .take(MOST_ENTRIES)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("models--"));
    let blobs = models.flat_map(|model| entries(model.path().join("blobs"))).take(MOST_ENTRIES);
    let sizes = blobs.filter_map(|entry| {
        let facts = entry.metadata().ok().filter(|facts| facts.is_file())?;
        let is_whole = !entry.file_name().to_string_lossy().contains("incomplete");
        is_whole.then(|| (facts.len(), entry.path()))
    });
    let largest = sizes.max_by_key(|(n_bytes, _)| *n_bytes);
    largest.filter(|(n_bytes, _)| *n_bytes >= WANTED_BYTES).map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_goes_away_and_differs_from_block_to_block() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a");
        let mut file = AtomicFile::create(&target, Access::Private).unwrap();
        let n_bytes = fill(&mut file, 9 << 20).unwrap();
        assert_eq!(n_bytes, 8 << 20);
        let bytes = std::fs::read(file.partial()).unwrap();
        assert_eq!(bytes.len(), 8 << 20);
        let blocks: std::collections::HashSet<&[u8]> = bytes.chunks_exact(4096).collect();
        assert_eq!(blocks.len(), (8 << 20) / 4096);
        drop(file);
        let gb_s = drive_gb_s(&dir.path().join("models/below"), 1 << 20);
        // A file system without direct reads has no rate.
        assert!(gb_s.is_err() || gb_s.is_ok_and(|gb_s| gb_s > 0.0));
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn of_the_hubs_cache_the_largest_whole_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = dir.path().join("models--org--name/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        let sized = |name: &str, n_bytes: u64| {
            std::fs::File::create(blobs.join(name)).unwrap().set_len(n_bytes).unwrap();
        };
        sized("small", 1 << 20);
        assert_eq!(large_file(dir.path()), None);
        sized("large", WANTED_BYTES);
        sized("larger.incomplete", 2 * WANTED_BYTES);
        assert_eq!(large_file(dir.path()), Some(blobs.join("large")));
        assert_eq!(large_file(&blobs), None);
    }

    #[test]
    fn reads_are_neither_tiny_nor_huge() {
        let of = |bytes| request_bytes(bytes);
        assert_eq!([of(1), of(1 << 20), of(1 << 30)], [SHORTEST_READ, 1 << 20, LONGEST_READ]);
    }
}
