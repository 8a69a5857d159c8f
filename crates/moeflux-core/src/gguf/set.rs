//! Opens the GGUF files of one model: a single file, all parts of a split one, or all pieces of one that was cut,
//! named by any of them or by their directory.

use std::collections::{BTreeSet, HashSet};
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::bytes::HeaderError;
use super::header::{GgufHeader, read_header};
use super::metadata::Metadata;
use super::pieces::{Pieces, pieces};
use super::split::{PartName, first_part, is_companion_name, is_gguf_name};
use crate::checkpoint::{FormatError, Tensor};
use crate::files::open_regular;
use crate::{FileIdx, SourceFile, StandIn};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// The key of a file's kind.
const TYPE_KEY: &str = "general.type";

const SPLIT_COUNT: &str = "split.count";

/// The most models of a directory whose headers are read to find the one.
const MAX_READ: usize = 32;

/// The most names of a folder that are looked at to find other models.
const MAX_NAMES: usize = 10_000;

/// The most names in a message.
const MAX_SHOWN: usize = 8;

/// The GGUF files of one model, whose headers were read and checked.
#[derive(Debug)]
pub(crate) struct GgufSet {
    /// The parts, in order.
    pub(crate) files: Vec<SourceFile>,
    /// The keys of the first part.
    pub(crate) metadata: Metadata,
    /// The tensors of all parts.
    pub(crate) tensors: Vec<Tensor>,
}

/// The keys of the model that a GGUF file is, or is a part of: those of its first part.
///
/// # Errors
/// If a part is missing or damaged, the parts contradict each other, or the file is not a model.
pub fn read_metadata(path: &Path) -> Result<Metadata, FormatError> {
    Ok(GgufSet::open(path)?.metadata)
}

/// A GGUF file with a part of a model other than its text, such as a vision tower.
#[derive(Debug)]
pub struct PartFile {
    pub(crate) file: SourceFile,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<Tensor>,
}

impl PartFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged, or is one of several.
    pub fn open(path: &Path) -> Result<PartFile, FormatError> {
        let OpenedFile { file, metadata, tensors, .. } = read_file(path, FileIdx(0))?;
        match metadata.number(SPLIT_COUNT)?.unwrap_or(1) {
            0 | 1 => Ok(PartFile { file, metadata, tensors }),
            n => Err(metadata.refuse(SPLIT_COUNT, &n.into(), "be 1: only models are split")),
        }
    }

    /// Its keys.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Its tensors, in the order of the file.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
}

/// Whether the folder of a GGUF file holds no model but the one that the file is, or is a part of. Files
/// that belong to models (vision projectors, importance matrices) are none.
pub fn is_only_model(path: &Path) -> bool {
    let own = first_part(path);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = dir.read_dir().into_iter().flatten().take(MAX_NAMES).flatten();
    let mut names = entries.map(|entry| entry.file_name());
    !names.any(|name| {
        name.to_str().is_some_and(|text| is_gguf_name(text) && !is_companion_name(text))
            && Some(name.as_os_str()) != path.file_name()
            && first_part(&path.with_file_name(&name)) != own
    })
}

/// The GGUF models of a directory.
pub(crate) struct Found {
    dir: PathBuf,
    /// The first parts of models.
    models: BTreeSet<PathBuf>,
    /// Files that belong to a model and are not one.
    n_companions: usize,
}

impl Found {
    /// Finds the models in a directory; if it has none, those in its folders. Links are followed.
    pub(crate) fn in_dir(dir: &Path) -> Result<Found, FormatError> {
        let mut found = Found { dir: dir.to_path_buf(), models: BTreeSet::new(), n_companions: 0 };
        let folders = found.add_files(dir)?;
        if found.is_empty() {
            for folder in folders {
                // A folder that may not be read has nothing to do with the model.
                let _ = found.add_files(&folder);
            }
        }
        Ok(found)
    }

    /// Whether there is no GGUF file at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.models.is_empty() && self.n_companions == 0
    }

    /// Adds the files of a directory, and returns its folders.
    fn add_files(&mut self, dir: &Path) -> Result<Vec<PathBuf>, FormatError> {
        let mut folders = Vec::new();
        for entry in dir.read_dir().map_err(FormatError::io(dir))? {
            let path = entry.map_err(FormatError::io(dir))?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if !is_gguf_name(name) {
                continue;
            }
            if is_companion_name(name) {
                self.n_companions += 1;
            } else {
                self.models.insert(first_part(&path));
            }
        }
        Ok(folders)
    }

    /// The first part of the only model.
    ///
    /// # Errors
    /// If there are several or none.
    pub(crate) fn only(self) -> Result<PathBuf, FormatError> {
        let Found { dir, mut models, n_companions } = self;
        if (2..=MAX_READ).contains(&models.len()) {
            // A file that cannot be read is listed with the others.
            models.retain(|path| read_file(path, FileIdx(0)).map_or(true, |file| file.is_model()));
        }
        let n = models.len();
        if n == 1
            && let Some(model) = models.pop_first()
        {
            return Ok(model);
        }
        if n == 0 {
            let what = format!(
                "{n_companions} GGUF files of projectors, importance matrices or layers of \
                 multi-token prediction, none of a model"
            );
            return Err(FormatError::malformed(&dir, what));
        }
        let shown = |path: &PathBuf| path.strip_prefix(&dir).unwrap_or(path).display().to_string();
        let names: Vec<String> = models.iter().take(MAX_SHOWN).map(shown).collect();
        let more =
            if n > MAX_SHOWN { format!(" and {} more", n - MAX_SHOWN) } else { String::new() };
        let what = format!("{n} models: {}{more}; name one of these files", names.join(", "));
        Err(FormatError::malformed(&dir, what))
    }
}

impl GgufSet {
    /// Opens the model that a GGUF file is, or is a part of.
    ///
    /// # Errors
    /// If a part is missing or damaged, the parts contradict each other, or the file is not a
    /// model.
    pub(crate) fn open(path: &Path) -> Result<GgufSet, FormatError> {
        if let Some(paths) = pieces(path)? {
            return GgufSet::open_pieces(&paths);
        }
        let name = PartName::of_path(path).filter(|name| name.n > 1);
        let first = match &name {
            Some(name) => part_path(path, name, 1)?,
            None => path.to_path_buf(),
        };
        let part = read_file(&first, FileIdx(0))?;
        check_kind(&part.metadata)?;
        let n = part.metadata.number(SPLIT_COUNT)?.unwrap_or(1);
        match name {
            Some(name) if n == name.n as usize => GgufSet::open_parts(&first, part, &name),
            None if n <= 1 => {
                let OpenedFile { file, metadata, tensors, .. } = part;
                Ok(GgufSet { files: vec![file], metadata, tensors })
            }
            Some(name) => {
                let what = format!("{SPLIT_COUNT} is {n}, its name says {} parts", name.n);
                Err(FormatError::malformed(&first, what))
            }
            None => GgufSet::open_concatenated(part, n),
        }
    }

    fn open_parts(first: &Path, part: OpenedFile, name: &PartName) -> Result<GgufSet, FormatError> {
        let paths: Vec<PathBuf> =
            (1..=name.n).map(|nth| part_path(first, name, nth)).collect::<Result<_, _>>()?;
        let mut parts = Parts::of(part, name.n as usize)?;
        for (nth, path) in (1u32..).zip(&paths[1..]) {
            let next = read_file(path, FileIdx(nth))?;
            parts.add(&next.metadata, next.tensors)?;
            parts.set.files.push(next.file);
        }
        parts.finish()
    }

    /// Opens a file with all parts of a set, one after the other, as `cat` joins them.
    fn open_concatenated(part: OpenedFile, n: usize) -> Result<GgufSet, FormatError> {
        let SourceFile { path, len, .. } = part.file.clone();
        let mut end = part.end;
        let mut parts = Parts::of(part, n)?;
        for _ in 1..n {
            let mut handle = open_regular(&path).map_err(FormatError::io(&path))?;
            handle.seek(SeekFrom::Start(end)).map_err(FormatError::io(&path))?;
            let mut magic = Vec::new();
            (&mut handle).take(4).read_to_end(&mut magic).map_err(FormatError::io(&path))?;
            if magic != b"GGUF" {
                let what = format!(
                    "{SPLIT_COUNT} is {n}, but the name is not PREFIX-00001-of-{n:05}.gguf, by \
                     which the other parts are found; give all parts their names"
                );
                return Err(FormatError::malformed(&path, what));
            }
            let rest = Cursor::new(magic).chain(handle);
            let mut header = parsed(&path, rest, FileIdx(0), len.saturating_sub(end))?;
            for tensor in &mut header.tensors {
                tensor.extent.offset += end;
            }
            end = end.saturating_add(header.data_end);
            parts.add(&Metadata::new(&path, header.values), header.tensors)?;
        }
        parts.finish()
    }

    /// Opens a file that was cut into pieces.
    fn open_pieces(paths: &[PathBuf]) -> Result<GgufSet, FormatError> {
        let pieces = Pieces::open(paths)?;
        let path = &paths[0];
        let GgufHeader { values, mut tensors, .. } =
            parsed(path, pieces.read()?, pieces.joined(), pieces.len())?;
        let metadata = Metadata::new(path, values);
        check_kind(&metadata)?;
        match metadata.number(SPLIT_COUNT)?.unwrap_or(1) {
            0 | 1 => Ok(GgufSet { files: pieces.place(&mut tensors), metadata, tensors }),
            n => {
                let what = format!(
                    "{SPLIT_COUNT} is {n}: these are pieces of one of several parts; join the pieces of each part first (cat)"
                );
                Err(FormatError::malformed(path, what))
            }
        }
    }

    /// The first file.
    pub(crate) fn path(&self) -> &Path {
        self.metadata.path()
    }
}

/// The parts of a set that were read so far.
struct Parts {
    set: GgufSet,
    /// Parts, and tensors of all of them.
    n: usize,
    n_tensors: usize,
    n_read: usize,
}

impl Parts {
    /// A set of `n` parts whose first was read.
    fn of(first: OpenedFile, n: usize) -> Result<Parts, FormatError> {
        let n_tensors = first.split_tensors()?;
        check_part(&first.metadata, 0, n, n_tensors)?;
        let OpenedFile { file, metadata, tensors, .. } = first;
        Ok(Parts { set: GgufSet { files: vec![file], metadata, tensors }, n, n_tensors, n_read: 1 })
    }

    /// Adds the next part.
    fn add(&mut self, metadata: &Metadata, tensors: Vec<Tensor>) -> Result<(), FormatError> {
        check_part(metadata, self.n_read, self.n, self.n_tensors)?;
        self.n_read += 1;
        self.set.tensors.extend(tensors);
        Ok(())
    }

    fn finish(self) -> Result<GgufSet, FormatError> {
        let Parts { set, n_tensors, .. } = self;
        if set.tensors.len() != n_tensors {
            let n = set.tensors.len();
            let what = format!("split.tensors.count is {n_tensors}, the parts have {n}");
            return Err(FormatError::malformed(set.path(), what));
        }
        let mut names = HashSet::new();
        if let Some(twice) = set.tensors.iter().find(|tensor| !names.insert(&tensor.stored_name)) {
            let path = &set.files[twice.extent.file.0 as usize].path;
            let what = format!("tensor {} is in another part, too", twice.stored_name);
            return Err(FormatError::malformed(path, what));
        }
        Ok(set)
    }
}

/// A file whose header was read.
struct OpenedFile {
    file: SourceFile,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    /// Where the data of the tensors ends.
    end: u64,
}

impl OpenedFile {
    fn is_model(&self) -> bool {
        check_kind(&self.metadata).is_ok()
    }

    /// Tensors of all parts.
    fn split_tensors(&self) -> Result<usize, FormatError> {
        let key = "split.tensors.count";
        let rule = "be the number of tensors of all parts";
        self.metadata.number(key)?.ok_or_else(|| self.metadata.missing(key, rule))
    }
}

/// Refuses files that say that they are something other than a model.
fn check_kind(metadata: &Metadata) -> Result<(), FormatError> {
    match metadata.text(TYPE_KEY)? {
        None | Some("model") => Ok(()),
        Some(other) => {
            let what = format!(
                "{TYPE_KEY} is {other:?}: this file belongs to a model and is not one; name the \
                 model's file"
            );
            Err(FormatError::malformed(metadata.path(), what))
        }
    }
}

/// The path of a part, which must exist.
fn part_path(path: &Path, name: &PartName, nth: u32) -> Result<PathBuf, FormatError> {
    let part = path.with_file_name(name.part(nth));
    match part.try_exists() {
        Ok(true) => Ok(part),
        Ok(false) => {
            let what = format!("part {nth} of {} is not there; is the download complete?", name.n);
            Err(FormatError::malformed(&part, what))
        }
        Err(source) => Err(FormatError::Io { path: part, source }),
    }
}

/// Checks what a part says of itself: its place, counted from 0, and the numbers of parts and of
/// tensors of the whole set.
fn check_part(
    metadata: &Metadata,
    nth: usize,
    n: usize,
    n_tensors: usize,
) -> Result<(), FormatError> {
    let keys = [("split.no", nth), (SPLIT_COUNT, n), ("split.tensors.count", n_tensors)];
    for (key, want) in keys {
        let rule = format!("be {want}, as its name and the first part say");
        match metadata.number(key)? {
            Some(number) if number == want => {}
            Some(number) => return Err(metadata.refuse(key, &number.into(), &rule)),
            None => return Err(metadata.missing(key, &rule)),
        }
    }
    Ok(())
}

fn read_file(path: &Path, idx: FileIdx) -> Result<OpenedFile, FormatError> {
    let mut handle = open_regular(path).map_err(FormatError::io(path))?;
    if let Some(found) = StandIn::find(path, &mut handle).map_err(FormatError::io(path))? {
        return Err(FormatError::io(path)(found.into()));
    }
    let len = handle.metadata().map_err(FormatError::io(path))?.len();
    let GgufHeader { values, tensors, data_end, .. } = parsed(path, handle, idx, len)?;
    let file = SourceFile::new(path.to_path_buf(), len);
    Ok(OpenedFile { file, metadata: Metadata::new(path, values), tensors, end: data_end })
}

/// The header at the start of a source, of `len` bytes with what follows.
fn parsed(
    path: &Path,
    source: impl Read,
    file: FileIdx,
    len: u64,
) -> Result<GgufHeader, FormatError> {
    let header = read_header(BufReader::with_capacity(BUFFER_BYTES, source), file, len);
    header.map_err(|err| match err {
        HeaderError::Io(source) => FormatError::Io { path: path.to_path_buf(), source },
        HeaderError::Malformed(what) => FormatError::malformed(path, what),
    })
}
