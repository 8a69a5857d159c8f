//! The limit that the drive sets: direct reads of the model's own expert files,
//! of pieces that this process has not read yet or of the very records that a run read.
//!
//! The two differ where something beneath keeps what was read once: the host of
//! a virtual machine, the memory of a drive. A run that reads records again is
//! compared with a drive that does the same.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use moeflux_core::checkpoint::Extent;
use moeflux_core::{
    ExpertBank, ExpertId, ExpertKey, ExtentSource, HostBuf, PAGE_BYTES, SourceFile, SplitMix64,
};
use moeflux_store::{open_direct, read_at};

use crate::engine::Engine;

/// Reads at the same time that are tried; the best counts.
const DEPTHS: [usize; 4] = [1, 2, 4, 8];

const PAGE: u64 = PAGE_BYTES as u64;

const HUGE_BYTES: usize = 2 << 20;

/// A range of a file: its index, where it begins and where it ends.
type Run = (usize, u64, u64);

/// How fast a drive was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriveRate {
    /// Thousand million bytes a second.
    pub gb_s: f64,
    /// Reads at the same time.
    pub depth: usize,
}

/// Measures the drive under a model's experts.
#[derive(Debug)]
pub struct DriveProbe {
    bank: ExpertBank,
    /// For each reader, or for all of them.
    files: Vec<Vec<Option<File>>>,
    /// Pieces as long as a record, in random order.
    unread: Pieces,
    /// Bytes of such a piece.
    piece_bytes: usize,
    is_direct: bool,
}

/// What is read next, over and over.
#[derive(Debug, Default)]
struct Pieces {
    pieces: Vec<Piece>,
    n_read: usize,
}

/// Whole pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    file: usize,
    offset: u64,
    len: usize,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.len as u64
    }
}

impl DriveProbe {
    /// A probe of the files of an engine's experts; `None` where there are no
    /// experts or nothing can be read.
    pub fn new(engine: &Engine, seed: u64) -> Option<DriveProbe> {
        DriveProbe::of(engine.core().experts.bank().clone(), seed)
    }

    pub(crate) fn of(bank: ExpertBank, seed: u64) -> Option<DriveProbe> {
        let piece_bytes = bank.max_record_bytes().next_multiple_of(PAGE_BYTES);
        let taken = taken(&bank);
        DriveProbe::of_runs(bank, &taken, piece_bytes, seed)
    }

    /// A probe of runs of the files of a bank, in pieces of whole pages.
    fn of_runs(
        bank: ExpertBank,
        runs: &[Run],
        piece_bytes: usize,
        seed: u64,
    ) -> Option<DriveProbe> {
        let mut pieces = pieces(&bank, runs, piece_bytes as u64);
        shuffle(&mut pieces, seed);
        let first = *pieces.first()?;
        let mut probe = DriveProbe {
            files: open_for_readers(&bank, true),
            unread: Pieces { pieces, n_read: 1 },
            piece_bytes,
            is_direct: true,
            bank,
        };
        let mut buf = read_buffer(piece_bytes)?;
        if probe.read(0, first, &mut buf).is_err() {
            probe.files = open_for_readers(&probe.bank, false);
            probe.is_direct = false;
            probe.read(0, first, &mut buf).ok()?;
        }
        Some(probe)
    }

    /// A probe of one file, read in pieces of `piece_bytes` bytes, rounded up to whole pages; `None`
    /// where the file cannot be read or is shorter than a piece.
    pub fn of_file(path: &Path, piece_bytes: usize, seed: u64) -> Option<DriveProbe> {
        let len = path.metadata().ok()?.len();
        let piece_bytes = piece_bytes.max(1).next_multiple_of(PAGE_BYTES);
        let files = vec![SourceFile::new(path.to_path_buf(), len)];
        let bank = ExpertBank { files, layers: Vec::new() };
        DriveProbe::of_runs(bank, &[(0, 0, len)], piece_bytes, seed)
    }

    /// GB/s of the best number of reads at once, in the best of several passes of `time` for each
    /// number. Reads in flight take no more than `most_bytes` of memory.
    pub fn best(&mut self, most_bytes: u64, n_passes: usize, time: Duration) -> Option<f64> {
        let most = most_bytes / (self.piece_bytes.max(HUGE_BYTES) as u64);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let passes = (0..n_passes)
            .filter_map(|_| self.depths_up_to(most, time).first().map(|rate| rate.gb_s));
        passes.max_by(f64::total_cmp)
    }

    /// Whether reads go around the system's page cache. Where the file system
    /// refuses that, each piece is dropped from it before it is read.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Bytes of one read.
    pub fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// Whether there were too few unread pieces, so that some were read again.
    pub fn has_reread(&self) -> bool {
        self.unread.n_read > self.unread.pieces.len()
    }

    /// Every depth for `time`, on pieces that have not been read yet; the best first.
    pub fn depths(&mut self, time: Duration) -> Vec<DriveRate> {
        self.depths_up_to(usize::MAX, time)
    }

    /// Every depth up to `most` for `time`: each read in flight takes memory for a record.
    fn depths_up_to(&mut self, most: usize, time: Duration) -> Vec<DriveRate> {
        let mut unread = std::mem::take(&mut self.unread);
        let rates = self.best_of(&mut unread, most, time);
        self.unread = unread;
        rates
    }

    /// Every depth for `time`, on the records of `keys` in their order, each
    /// range of a record a read of its own; the best first. None where there
    /// are no keys.
    pub fn again(&self, keys: &[ExpertKey], time: Duration) -> Vec<DriveRate> {
        let pieces: Vec<Piece> = keys.iter().flat_map(|key| ranges(&self.bank, *key)).collect();
        self.best_of(&mut Pieces { pieces, n_read: 0 }, usize::MAX, time)
    }

    fn best_of(&self, pieces: &mut Pieces, most: usize, time: Duration) -> Vec<DriveRate> {
        if pieces.pieces.is_empty() {
            return Vec::new();
        }
        let depths = DEPTHS.iter().filter(|depth| **depth <= most.max(1));
        let mut rates: Vec<DriveRate> =
            depths.filter_map(|depth| self.measure(pieces, *depth, time)).collect();
        rates.sort_by(|a, b| b.gb_s.total_cmp(&a.gb_s));
        rates
    }

    /// Reads for `time` with `depth` reads at the same time; `None` where
    /// reading fails, or where there is no memory to read into.
    fn measure(&self, pieces: &mut Pieces, depth: usize, time: Duration) -> Option<DriveRate> {
        let (next, n_bytes) = (AtomicUsize::new(pieces.n_read), AtomicU64::new(0));
        let longest = pieces.pieces.iter().map(|piece| piece.len).max()?;
        let buffers = (0..depth.max(1)).map(|_| read_buffer(longest));
        let buffers = buffers.collect::<Option<Vec<HostBuf>>>()?;
        let all = &pieces.pieces;
        let start = Instant::now();
        let done = thread::scope(|scope| {
            let read = |reader: usize, mut buf: HostBuf| {
                while start.elapsed() < time {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let n_read = self.read(reader, all[at % all.len()], &mut buf)?;
                    n_bytes.fetch_add(n_read as u64, Ordering::Relaxed);
                }
                Ok::<(), io::Error>(())
            };
            let buffers = buffers.into_iter().enumerate();
            let start = |(i, buf)| thread::Builder::new().spawn_scoped(scope, move || read(i, buf));
            // What was measured with fewer readers than asked for is no measurement.
            let readers: Vec<_> = buffers.map(start).collect();
            let mut ended = readers.into_iter().map(|reader| reader.ok()?.join().ok()?.ok());
            // The scope waits for those that are not looked at.
            ended.all(|one| one.is_some())
        });
        let elapsed = start.elapsed();
        pieces.n_read = next.into_inner();
        let gb_s = n_bytes.into_inner() as f64 / elapsed.as_nanos().max(1) as f64;
        done.then_some(DriveRate { gb_s, depth })
    }

    fn read(&self, reader: usize, piece: Piece, buf: &mut HostBuf) -> io::Result<usize> {
        let files = &self.files[reader % self.files.len()];
        let file = files[piece.file].as_ref().ok_or(io::ErrorKind::NotFound)?;
        if !self.is_direct {
            forget(file, piece.offset, piece.len);
        }
        let mut got = 0;
        while got < piece.len {
            match read_at(file, &mut buf[got..piece.len], piece.offset + got as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n_bytes) => got += n_bytes,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
        }
        Ok(got)
    }
}

/// Memory to read into, of huge pages as slots are: a drive is slower into small pages.
/// `None` where the system has none.
fn read_buffer(len: usize) -> Option<HostBuf> {
    let mut buf = HostBuf::try_zeroed(len.max(HUGE_BYTES)).ok()?;
    buf.fill(1);
    Some(buf)
}

/// What the experts take of their files, in order.
fn taken(bank: &ExpertBank) -> Vec<Run> {
    let mut taken: Vec<Run> = Vec::new();
    for layer in bank.layers.iter().flatten() {
        for (source, &bytes) in layer.sources.iter().zip(&layer.layout.extents) {
            if is_derived(bank, source) {
                let extents = (0..layer.n_experts as u16).flat_map(|expert| {
                    let (file, offset) = source.locate(ExpertId(expert));
                    bank.stored_extents(Extent { file, offset, len: bytes })
                });
                let place = |extent: Extent| {
                    (extent.file.0 as usize, extent.offset, extent.offset + extent.len as u64)
                };
                taken.extend(extents.map(place));
                continue;
            }
            let bytes = bytes as u64;
            match source {
                ExtentSource::Strided { file, base, stride } => {
                    let n = layer.n_experts as u64;
                    let end = base + stride * n.saturating_sub(1) + bytes;
                    taken.push((file.0 as usize, *base, end));
                }
                ExtentSource::Listed(entries) => {
                    let extent = |(file, at): &(moeflux_core::FileIdx, u64)| {
                        (file.0 as usize, *at, at + bytes)
                    };
                    taken.extend(entries.iter().map(extent));
                }
            }
        }
    }
    taken.sort_unstable();
    taken
}

/// Runs in order, cut into whole pages of `len` bytes.
fn pieces(bank: &ExpertBank, runs: &[Run], len: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut runs = runs.iter().copied().peekable();
    while let Some((file, start, mut end)) = runs.next() {
        // Extents that lie side by side are one run.
        while let Some((_, _, next_end)) =
            runs.next_if(|run| run.0 == file && run.1 <= end.saturating_add(PAGE))
        {
            end = end.max(next_end);
        }
        let start = start / PAGE * PAGE;
        let end = end.next_multiple_of(PAGE).min(bank.files[file].len / PAGE * PAGE);
        let n = end.saturating_sub(start) / len.max(1);
        pieces.extend((0..n).map(|i| Piece { file, offset: start + i * len, len: len as usize }));
    }
    pieces
}

/// Whether a source is computed from others, and so on no drive itself.
fn is_derived(bank: &ExpertBank, source: &ExtentSource) -> bool {
    let (file, _) = source.locate(ExpertId(0));
    bank.files[file.0 as usize].derived.is_some()
}

/// The ranges of a record, widened to whole pages within their files. Adjacent ranges are
/// merged into one.
fn ranges(bank: &ExpertBank, key: ExpertKey) -> Vec<Piece> {
    let Some(Some(layer)) = bank.layers.get(key.layer.0 as usize) else { return Vec::new() };
    let mut all: Vec<Piece> = Vec::with_capacity(layer.sources.len());
    for (source, &len) in layer.sources.iter().zip(&layer.layout.extents) {
        let (file, offset) = source.locate(key.expert);
        for Extent { file, offset, len } in bank.stored_extents(Extent { file, offset, len }) {
            let start = offset / PAGE * PAGE;
            let whole = bank.files[file.0 as usize].len / PAGE * PAGE;
            let end = (offset + len as u64).next_multiple_of(PAGE).min(whole);
            let file = file.0 as usize;
            match all.last_mut() {
                Some(last) if last.file == file && last.end().abs_diff(start) <= PAGE => {
                    last.len = end.saturating_sub(last.offset) as usize;
                }
                _ => {
                    all.push(Piece { file, offset: start, len: end.saturating_sub(start) as usize })
                }
            }
        }
    }
    all.retain(|piece| piece.len > 0);
    all
}

/// Shuffles pieces (Fisher and Yates); the seed decides the order.
fn shuffle(pieces: &mut [Piece], seed: u64) {
    let mut random = SplitMix64::new(seed);
    for i in (1..pieces.len()).rev() {
        pieces.swap(i, random.below(i + 1));
    }
}

/// Windows lets one read at a time through a handle.
fn open_for_readers(bank: &ExpertBank, is_direct: bool) -> Vec<Vec<Option<File>>> {
    let n_readers = if cfg!(windows) { DEPTHS[DEPTHS.len() - 1] } else { 1 };
    (0..n_readers).map(|_| open_all(bank, is_direct)).collect()
}

/// The files of a bank that can be opened.
fn open_all(bank: &ExpertBank, is_direct: bool) -> Vec<Option<File>> {
    let direct = |path: &Path| open_direct(path).map(|(file, _)| file);
    let open = |path: &Path| if is_direct { direct(path) } else { File::open(path) };
    bank.files.iter().map(|file| open(&file.path).ok()).collect()
}

/// Drops some bytes of a file from the page cache, where the system knows how.
fn forget(file: &File, offset: u64, len: usize) {
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(
        file,
        offset,
        std::num::NonZero::new(len as u64),
        rustix::fs::Advice::DontNeed,
    );
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, len);
}
