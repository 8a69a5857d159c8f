//! A session as one file; `docs/reference/format.md` has its byte map.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use moeflux_backend::{Backend, Cache, CacheSpec, DeviceError, Sequence};
use moeflux_core::atomic_file::{Access, AtomicFile, Durability};
use moeflux_core::checkpoint::Checksum;
use moeflux_core::{TokenId, WriteError};
use moeflux_model::ModelShape;

use super::header::{
    BLOCK_POSITIONS, CHECKSUM_BYTES, Header, MAGIC, MAX_HEADER_BYTES, PRELUDE_BYTES, VERSION,
};
use super::host::{Facts, Host};
use crate::error::{EngineError, SnapshotError};
use crate::positions::checkpoints::States;
use crate::positions::pictures::Pictures;

/// Positions of a session that a prefix cache keeps recurrent states of, at most: where its first
/// prompt may part from others, where the last turn began, its answer, and its end.
const MAX_STATES: usize = 4;

/// The contents of a snapshot apart from keys and values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    /// Positions at the beginning whose tokens are not known.
    pub(crate) n_unknown: usize,
    /// The tokens after them.
    pub(crate) tokens: Vec<TokenId>,
    /// The pictures whose rows are among these.
    pub(crate) pictures: Pictures,
    /// Recurrent states by position, ascending; the last are those of the end. Empty states where
    /// windows, too, can only be cut at these positions.
    pub(crate) states: Vec<(usize, States)>,
}

impl Contents {
    pub(crate) fn n_positions(&self) -> usize {
        self.n_unknown + self.tokens.len()
    }

    /// Keeps at most [`MAX_STATES`] positions: the first, which other conversations may share, and the
    /// last, from which this one goes on.
    pub(crate) fn thin(&mut self) {
        let n_over = self.states.len().saturating_sub(MAX_STATES);
        if n_over > 0 {
            self.states.drain(1..=n_over);
        }
    }

    /// Bytes of its file.
    pub(crate) fn n_bytes(&self, facts: &dyn Facts) -> u64 {
        let header = self.header(facts);
        let json = serde_json::to_vec(&header).expect("a header is plain data");
        header.file_bytes(json.len(), &facts.shape().caches)
    }

    pub(super) fn header(&self, host: &dyn Facts) -> Header {
        let states = self.states.iter().map(|(position, _)| *position);
        Header::new(host, self.n_positions(), self.n_unknown, states, &self.pictures)
    }
}

/// A loaded snapshot in a new sequence.
pub(crate) struct Loaded {
    pub(crate) sequence: Sequence,
    pub(crate) contents: Contents,
}

/// Writes the first positions of a sequence to a file, whole or not at all.
pub(crate) fn write(
    host: &dyn Host,
    sequence: Sequence,
    contents: &Contents,
    path: &Path,
    durability: Durability,
) -> Result<(), EngineError> {
    let block = &mut |cache, positions| Ok(saved(host, sequence, cache, positions)?.into());
    write_blocks(host, contents, block, path, durability)
}

/// Keys and values of some positions of a sequence.
pub(super) fn saved(
    host: &dyn Host,
    sequence: Sequence,
    cache: Cache,
    positions: Range<usize>,
) -> Result<Vec<u8>, EngineError> {
    Ok(host.core().backend().save_cache(sequence, cache, positions)?)
}

/// Gives the keys and values of some positions of a cache.
pub(super) type NextBlock<'a, 'b> =
    dyn FnMut(Cache, Range<usize>) -> Result<Cow<'b, [u8]>, EngineError> + 'a;

/// Writes a file whose keys and values `block` gives, in the order of the file.
pub(super) fn write_blocks(
    host: &dyn Facts,
    contents: &Contents,
    block: &mut NextBlock<'_, '_>,
    path: &Path,
    durability: Durability,
) -> Result<(), EngineError> {
    let mut out = Output::create(path)?;
    let header = contents.header(host);
    let json = serde_json::to_vec(&header).expect("a header is plain data");
    out.write(&MAGIC)?;
    out.write(&VERSION.to_le_bytes())?;
    out.write(&u32::try_from(json.len()).expect("a short header").to_le_bytes())?;
    out.write(&json)?;
    for token in &contents.tokens {
        out.write(&token.0.to_le_bytes())?;
    }
    for (cache, _, positions) in stored_blocks(&header, &host.shape().caches) {
        out.write(&block(cache, positions)?)?;
    }
    for bytes in contents.states.iter().flat_map(|(_, states)| &**states) {
        out.write(bytes)?;
    }
    Ok(out.publish(durability)?)
}

/// Reads a file into a new sequence, up to `until` where that is less than all.
///
/// Recurrent models, and those whose windows have passed positions, can be read up to positions
/// that the header lists.
pub(crate) fn read(
    host: &dyn Host,
    path: &Path,
    until: Option<usize>,
) -> Result<Loaded, EngineError> {
    let mut input = Input::open(path)?;
    input.header.check(path, host)?;
    input.check_length(&host.shape().caches)?;
    let end = until.unwrap_or(usize::MAX).min(input.header.n_positions());
    let (tokens, pictures) = input.read_tokens(host.shape())?;
    let sequence = host.core().backend().new_sequence(&host.shape().caches);
    match read_caches(host, &mut input, sequence, end) {
        Ok(states) => {
            let n_unknown = usize::try_from(input.header.unknown).unwrap_or(end).min(end);
            let tokens = tokens[..end - n_unknown].to_vec();
            let pictures = pictures.until(end);
            Ok(Loaded { sequence, contents: Contents { n_unknown, tokens, pictures, states } })
        }
        Err(err) => {
            host.core().backend().drop_sequence(sequence);
            Err(err)
        }
    }
}

/// Reads the part after the tokens, and verifies the checksum of the file.
fn read_caches(
    host: &dyn Host,
    input: &mut Input,
    sequence: Sequence,
    end: usize,
) -> Result<Vec<(usize, States)>, EngineError> {
    let caches = &host.shape().caches;
    for (cache, spec, block) in stored_blocks(&input.header, caches) {
        let bytes = input.read(spec.saved_bytes(&block))?;
        host.core().backend().load_cache(sequence, cache, block, &bytes)?;
    }
    let mut states = Vec::new();
    for position in input.header.states.clone() {
        let read = caches.iter().filter(|cache| cache.is_recurrent());
        let read: Result<Vec<Vec<u8>>, _> =
            read.map(|cache| input.read(cache.fixed_bytes())).collect();
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        if position <= end {
            states.push((position, States::from(read?)));
        }
    }
    input.check_sum()?;
    let core = &mut *host.core();
    if end < input.header.n_positions() {
        core.backend().truncate_sequence(sequence, end);
    }
    if !input.header.states.is_empty() && end > 0 {
        let last = states.last().filter(|(position, _)| *position == end);
        let Some((_, last)) = last else {
            return Err(input.damaged(format!("it has no state at position {end}")).into());
        };
        load_states(core.backend(), sequence, caches, last)?;
    }
    Ok(states)
}

/// Puts states into a sequence; none where they are empty.
pub(super) fn load_states(
    backend: &mut dyn Backend,
    sequence: Sequence,
    caches: &[CacheSpec],
    states: &States,
) -> Result<(), DeviceError> {
    let recurrent = caches.iter().zip(0..).filter(|(cache, _)| cache.is_recurrent());
    let mut loads = recurrent.zip(&**states);
    loads.try_for_each(|((_, i), bytes)| backend.load_cache(sequence, Cache(i), 0..0, bytes))
}

/// The part of a snapshot by which a prefix cache finds it.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) n_bytes: u64,
    /// All tokens, or none where some are unknown.
    pub(super) tokens: Vec<TokenId>,
    /// Positions that have recurrent states.
    pub(super) states: Vec<usize>,
}

/// Reads the beginning of a file, its checksum unchecked.
pub(super) fn summary(path: &Path, host: &dyn Facts) -> Result<Summary, SnapshotError> {
    let mut input = Input::open(path)?;
    input.header.check(path, host)?;
    input.check_length(&host.shape().caches)?;
    let (tokens, _) = input.read_tokens(host.shape())?;
    let states = input.header.states.iter().map(|state| *state as usize).collect();
    let tokens = if input.header.unknown > 0 { Vec::new() } else { tokens };
    Ok(Summary { n_bytes: input.n_bytes, tokens, states })
}

/// The family and the identity of the model that a file belongs to.
pub(crate) fn model_of(path: &Path) -> Result<(String, String), SnapshotError> {
    let header = Input::open(path)?.header;
    Ok((header.family, header.model))
}

/// The blocks of keys and values that a file has, in its order: their caches and positions.
pub(super) fn stored_blocks(
    header: &Header,
    caches: &[CacheSpec],
) -> Vec<(Cache, CacheSpec, Range<usize>)> {
    let of = |(cache, spec): (Cache, &CacheSpec)| {
        let stored = header.stored_positions(spec).into_iter().flat_map(blocks);
        stored.map(|block| (cache, *spec, block)).collect::<Vec<_>>()
    };
    growing(caches).flat_map(of).collect()
}

/// The caches that grow with every position.
fn growing(caches: &[CacheSpec]) -> impl Iterator<Item = (Cache, &CacheSpec)> {
    let growing = caches.iter().zip(0..).filter(|(cache, _)| !cache.is_recurrent());
    growing.map(|(spec, i)| (Cache(i), spec))
}

fn blocks(positions: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = positions.end;
    let starts = positions.step_by(BLOCK_POSITIONS);
    starts.map(move |start| start..end.min(start + BLOCK_POSITIONS))
}

/// A snapshot that is being written: a checksum of all that precedes it is its end.
struct Output {
    path: PathBuf,
    file: BufWriter<AtomicFile>,
    checksum: Checksum,
}

impl Output {
    fn create(path: &Path) -> Result<Output, SnapshotError> {
        let file = AtomicFile::create(path, Access::Private).map_err(WriteError::at(path))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Output { path: path.to_path_buf(), file, checksum: Checksum::default() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.checksum.update(bytes);
        Ok(self.file.write_all(bytes).map_err(WriteError::at(&self.path))?)
    }

    fn publish(mut self, durability: Durability) -> Result<(), SnapshotError> {
        let checksum = self.checksum.hex();
        self.write(checksum.as_bytes())?;
        let at = WriteError::at(&self.path);
        let file = self.file.into_inner().map_err(|err| at(err.into_error()))?;
        Ok(file.publish(durability).map_err(at)?)
    }
}

/// A file that is read front to back, its checksum taken on the way.
struct Input {
    path: PathBuf,
    file: File,
    n_bytes: u64,
    header: Header,
    header_bytes: usize,
    checksum: Checksum,
}

impl Input {
    /// Reads as far as the header's end. Every length is checked against the
    /// file's before memory is taken for it.
    fn open(path: &Path) -> Result<Input, SnapshotError> {
        let io_error = |source| SnapshotError::Io { path: path.to_path_buf(), source };
        let not_a_snapshot = || SnapshotError::NotASnapshot { path: path.to_path_buf() };
        // To open a pipe is to wait for its writer.
        if !std::fs::metadata(path).map_err(io_error)?.is_file() {
            return Err(not_a_snapshot());
        }
        let mut file = File::open(path).map_err(io_error)?;
        let n_bytes = file.metadata().map_err(io_error)?.len();
        let at_least = |want: u64| {
            if n_bytes >= want {
                Ok(())
            } else {
                Err(SnapshotError::Length { path: path.to_path_buf(), want, got: n_bytes })
            }
        };
        if n_bytes < MAGIC.len() as u64 {
            return Err(not_a_snapshot());
        }
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic).map_err(io_error)?;
        if magic != MAGIC {
            return Err(not_a_snapshot());
        }
        at_least(PRELUDE_BYTES as u64)?;
        let mut words = [0; PRELUDE_BYTES - MAGIC.len()];
        file.read_exact(&mut words).map_err(io_error)?;
        let [version, header_bytes] = [0, 4]
            .map(|at| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]));
        if version != VERSION {
            let (got, known) = (version, VERSION);
            return Err(SnapshotError::Version { path: path.to_path_buf(), got, known });
        }
        if header_bytes > MAX_HEADER_BYTES {
            let what = format!("a header of {header_bytes} bytes");
            return Err(SnapshotError::Damaged { path: path.to_path_buf(), what });
        }
        let header_bytes = header_bytes as usize;
        at_least((PRELUDE_BYTES + header_bytes + CHECKSUM_BYTES) as u64)?;
        let mut json = vec![0; header_bytes];
        file.read_exact(&mut json).map_err(io_error)?;
        let mut checksum = Checksum::default();
        for bytes in [&magic[..], &words, &json] {
            checksum.update(bytes);
        }
        let header = Header::from_slice(path, &json)?;
        Ok(Input { path: path.to_path_buf(), file, n_bytes, header, header_bytes, checksum })
    }

    /// Checks the length of a file whose header was checked.
    fn check_length(&self, caches: &[CacheSpec]) -> Result<(), SnapshotError> {
        let want = self.header.file_bytes(self.header_bytes, caches);
        if self.n_bytes != want {
            let (path, got) = (self.path.clone(), self.n_bytes);
            return Err(SnapshotError::Length { path, want, got });
        }
        Ok(())
    }

    /// The tokens, and the pictures whose rows are among them.
    fn read_tokens(
        &mut self,
        shape: &ModelShape,
    ) -> Result<(Vec<TokenId>, Pictures), SnapshotError> {
        let bytes = self.read(4 * self.header.n_tokens() as usize)?;
        let tokens = bytes.as_chunks::<4>().0.iter().map(|chunk| u32::from_le_bytes(*chunk));
        let tokens: Vec<TokenId> = tokens.map(TokenId).collect();
        let pictures = self.header.pictures(&self.path, shape, &tokens)?;
        Ok((tokens, pictures))
    }

    /// The next bytes.
    fn read(&mut self, len: usize) -> Result<Vec<u8>, SnapshotError> {
        let mut bytes = vec![0; len];
        self.read_exact(&mut bytes)?;
        self.checksum.update(&bytes);
        Ok(bytes)
    }

    fn read_exact(&mut self, out: &mut [u8]) -> Result<(), SnapshotError> {
        self.file.read_exact(out).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged(String::from("it became shorter")),
            _ => SnapshotError::Io { path: self.path.clone(), source },
        })
    }

    fn check_sum(&mut self) -> Result<(), SnapshotError> {
        let mut stored = [0; CHECKSUM_BYTES];
        self.read_exact(&mut stored)?;
        if stored != self.checksum.hex().as_bytes() {
            return Err(self.damaged(String::from("its checksum differs")));
        }
        Ok(())
    }

    fn damaged(&self, what: String) -> SnapshotError {
        SnapshotError::Damaged { path: self.path.clone(), what }
    }
}
