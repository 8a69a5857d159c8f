//! Files that were cut into pieces, whose bytes follow one another: `m.gguf.part1of2`, `m.gguf-split-a`, `m.gguf.001`.
//!
//! Tensors within a piece are read from it like those of any file. One that goes from a piece into the next is
//! joined when it is read.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bank::DerivedBytes;
use crate::checkpoint::{Extent, FileReader, FormatError, Tensor};
use crate::files::open_regular;
use crate::{FileIdx, SourceFile};

/// The end of the names of GGUF files.
pub(super) const EXTENSION: &str = ".gguf";

/// The most pieces of a file.
const MAX_PIECES: usize = 1000;

/// The name of a piece of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceName<'a> {
    /// The name up to the number.
    pub prefix: &'a str,
    number: Number<'a>,
}

/// How the pieces of a file are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number<'a> {
    /// From 1, with the number of all, which is at the end of `rest`.
    Of { nth: usize, width: usize, rest: &'a str, n: usize },
    /// From 0 or 1, with this many digits.
    Digits { nth: usize, width: usize },
    /// From `a`, `aa` or `aaa`.
    Letters { nth: usize, width: usize },
}

impl<'a> PieceName<'a> {
    /// The parts of a file's name; `None` if it is not that of a piece.
    pub fn parse(name: &'a str) -> Option<PieceName<'a>> {
        let lower = name.to_ascii_lowercase();
        let at = lower.rfind(EXTENSION)? + EXTENSION.len();
        let rest = &name[at..];
        let start = word(rest);
        let (start, number) = match start {
            // As other programs cut files, the name ends with the number.
            None => {
                let number = rest.strip_prefix('.')?;
                // As `split` counts; `gz` and the like are no numbers.
                let is_usual = if number.bytes().all(|byte| byte.is_ascii_digit()) {
                    (2..=5).contains(&number.len())
                } else {
                    (2..=3).contains(&number.len()) && number.starts_with('a')
                };
                is_usual.then_some((1, number))?
            }
            Some(start) => (start, &rest[start..]),
        };
        Some(PieceName { prefix: &name[..at + start], number: Number::parse(number)? })
    }

    /// The name of a piece of a path.
    fn of_path(path: &'a Path) -> Option<PieceName<'a>> {
        PieceName::parse(path.file_name()?.to_str()?)
    }

    /// The place of the piece, from 0 on where the first is called 0, else from 1 on.
    pub fn nth(&self) -> usize {
        match self.number {
            Number::Of { nth, .. } | Number::Digits { nth, .. } => nth,
            Number::Letters { nth, .. } => nth + 1,
        }
    }

    /// How many pieces there are, where names say it.
    pub fn n(&self) -> Option<usize> {
        match self.number {
            Number::Of { n, .. } => Some(n),
            _ => None,
        }
    }

    /// The name of the piece in another place, its number filled up with zeros or not; `None` where names have
    /// no more places.
    fn piece(&self, nth: usize, is_filled: bool) -> Option<String> {
        let digits = |width: usize| {
            let width = if is_filled { width } else { 1 };
            format!("{nth:0width$}")
        };
        let number = match self.number {
            Number::Of { width, rest, .. } => format!("{}{rest}", digits(width)),
            Number::Digits { width, .. } => digits(width),
            Number::Letters { width, .. } => letters(nth.checked_sub(1)?, width)?,
        };
        Some(format!("{}{number}", self.prefix))
    }

    /// Whether there is a first piece next to the path of another, by its place and whether its number is filled up.
    fn first(&self, path: &Path) -> Option<(usize, bool)> {
        let ways = [(0, true), (1, true), (0, false), (1, false)];
        ways.into_iter().find(|(nth, is_filled)| {
            let name = self.piece(*nth, *is_filled);
            name.is_some_and(|name| path.with_file_name(name).is_file())
        })
    }
}

/// Bytes of the word before a number, with what separates them: `-split-`, `.part`.
fn word(rest: &str) -> Option<usize> {
    let lower = rest.to_ascii_lowercase();
    let bare = lower.strip_prefix(['.', '-', '_'])?;
    let after = ["part", "split"].iter().find_map(|word| bare.strip_prefix(word))?;
    let number = after.strip_prefix(['.', '-', '_']).unwrap_or(after);
    Some(rest.len() - number.len())
}

impl<'a> Number<'a> {
    fn parse(text: &'a str) -> Option<Number<'a>> {
        let digits = |text: &str| {
            let is_number =
                (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| text.parse::<usize>().ok()).flatten()
        };
        let n_first = text.bytes().take_while(u8::is_ascii_digit).count();
        let n_last = text.bytes().rev().take_while(u8::is_ascii_digit).count();
        if n_first > 0 && n_first + n_last < text.len() {
            let between = &text[n_first..text.len() - n_last];
            let (nth, n) = (digits(&text[..n_first])?, digits(&text[text.len() - n_last..])?);
            let is_of = between.trim_matches(['-', '_', '.']).eq_ignore_ascii_case("of");
            let of = Number::Of { nth, width: n_first, rest: &text[n_first..], n };
            return (is_of && (1..=n).contains(&nth)).then_some(of);
        }
        if let Some(nth) = digits(text) {
            return Some(Number::Digits { nth, width: text.len() });
        }
        let is_word = (1..=3).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase());
        is_word.then(|| {
            let nth = text.bytes().fold(0, |nth, letter| nth * 26 + usize::from(letter - b'a'));
            Number::Letters { nth, width: text.len() }
        })
    }
}

/// A number in letters: `a`, `b`; `aa`, `ab`.
fn letters(nth: usize, width: usize) -> Option<String> {
    let mut left = nth;
    let mut text = vec![b'a'; width];
    for letter in text.iter_mut().rev() {
        *letter += (left % 26) as u8;
        left /= 26;
    }
    (left == 0).then(|| String::from_utf8(text).ok()).flatten()
}

/// The pieces of the file that `path` is a piece of, in order; `None` if it is no piece.
///
/// # Errors
/// If one of them is not there, or there are too many.
pub(super) fn pieces(path: &Path) -> Result<Option<Vec<PathBuf>>, FormatError> {
    let Some(name) = PieceName::of_path(path) else { return Ok(None) };
    let (first, is_filled) = name.first(path).unwrap_or((1, true));
    let piece = |nth: usize| Some(path.with_file_name(name.piece(nth, is_filled)?));
    let exists = |nth: &usize| piece(*nth).is_some_and(|path| path.is_file());
    let n_there = (first..=first + MAX_PIECES).take_while(exists).count();
    let n = name.n().unwrap_or(n_there.max((name.nth() + 1).saturating_sub(first)));
    if n > MAX_PIECES {
        let what = format!("a file in more than {MAX_PIECES} pieces; join them (cat)");
        return Err(FormatError::malformed(path, what));
    }
    if n_there < n {
        let missing = piece(first + n_there).unwrap_or_else(|| path.to_path_buf());
        let what = "this piece of a file is not there; is the download complete?";
        return Err(FormatError::malformed(&missing, what));
    }
    Ok(Some((first..first + n).filter_map(piece).collect()))
}

/// The path of the first piece of the file that `path` is a piece of.
pub(super) fn first_piece(path: &Path) -> Option<PathBuf> {
    let name = PieceName::of_path(path)?;
    let (first, is_filled) = name.first(path).unwrap_or((1, true));
    Some(path.with_file_name(name.piece(first, is_filled)?))
}

/// The pieces of a file, and the file that they make.
#[derive(Debug)]
pub(super) struct Pieces {
    files: Vec<SourceFile>,
}

impl Pieces {
    /// Looks at the pieces.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Pieces, FormatError> {
        let file = |path: &PathBuf| {
            let len = open_regular(path).and_then(|file| file.metadata()).map(|found| found.len());
            Ok(SourceFile::new(path.clone(), len.map_err(FormatError::io(path))?))
        };
        Ok(Pieces { files: paths.iter().map(file).collect::<Result<_, FormatError>>()? })
    }

    /// The index of the file that they make.
    pub(super) fn joined(&self) -> FileIdx {
        FileIdx(u32::try_from(self.files.len()).expect("few pieces"))
    }

    pub(super) fn len(&self) -> u64 {
        self.files.iter().map(|file| file.len).fold(0, u64::saturating_add)
    }

    /// The bytes from the start on.
    pub(super) fn read(&self) -> Result<Box<dyn Read>, FormatError> {
        let mut all: Box<dyn Read> = Box::new(io::empty());
        for file in &self.files {
            let piece = open_regular(&file.path).map_err(FormatError::io(&file.path))?;
            all = Box::new(all.chain(piece));
        }
        Ok(all)
    }

    /// The files of a model: the pieces, and the file of tensors that go over an end, which are those that
    /// stay in it.
    pub(super) fn place(self, tensors: &mut [Tensor]) -> Vec<SourceFile> {
        let mut starts = Vec::with_capacity(self.files.len());
        let mut end = 0;
        for file in &self.files {
            starts.push(end);
            end += file.len;
        }
        let joined = self.joined();
        let mut crossing = Vec::new();
        for tensor in tensors {
            let extent = tensor.extent;
            let piece = starts.partition_point(|start| *start <= extent.offset).saturating_sub(1);
            let offset = extent.offset - starts[piece];
            if offset + extent.len as u64 <= self.files[piece].len {
                tensor.extent = Extent { file: FileIdx(piece as u32), offset, ..extent };
            } else {
                crossing.push(extent);
            }
        }
        let mut files = self.files;
        let reader = FileReader::new(&files);
        let bytes = Joined { reader, starts, end, crossing };
        let path = files[0].path.clone();
        debug_assert_eq!(files.len(), joined.0 as usize);
        files.push(SourceFile::derived(&path, Arc::new(bytes)));
        files
    }
}

/// The bytes of pieces that follow one another.
#[derive(Debug)]
struct Joined {
    reader: FileReader,
    /// Where each piece begins.
    starts: Vec<u64>,
    /// Where the last one ends.
    end: u64,
    /// The tensors that go over the end of a piece.
    crossing: Vec<Extent>,
}

impl Joined {
    /// The tensor that has a byte.
    fn tensor(&self, offset: u64) -> Option<&Extent> {
        let has =
            |extent: &&Extent| (extent.offset..extent.offset + extent.len as u64).contains(&offset);
        self.crossing.iter().find(has)
    }

    /// The ranges of pieces that have `len` bytes from `offset` on.
    fn ranges(&self, mut offset: u64, mut len: usize) -> Vec<Extent> {
        let mut ranges = Vec::new();
        while len > 0 && offset < self.end {
            let piece = self.starts.partition_point(|start| *start <= offset).saturating_sub(1);
            let piece_end = self.starts.get(piece + 1).copied().unwrap_or(self.end);
            let n = (piece_end - offset).min(len as u64) as usize;
            let start = self.starts[piece];
            ranges.push(Extent { file: FileIdx(piece as u32), offset: offset - start, len: n });
            (offset, len) = (offset + n as u64, len - n);
        }
        ranges
    }
}

impl DerivedBytes for Joined {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FormatError> {
        // Reads of whole blocks begin before a tensor and end after it.
        let mut filled = 0;
        for range in self.ranges(offset, out.len()) {
            self.reader.read_at(range.file, range.offset, &mut out[filled..filled + range.len])?;
            filled += range.len;
        }
        Ok(filled)
    }

    fn inputs(&self, offset: u64) -> Vec<Extent> {
        self.tensor(offset).map_or_else(Vec::new, |tensor| self.ranges(tensor.offset, tensor.len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_names_of_pieces() {
        for (name, nth, n, next) in [
            ("m.i1-Q6_K.gguf.part1of2", 1, Some(2), "m.i1-Q6_K.gguf.part2of2"),
            ("m.gguf.part-1-of-12", 1, Some(12), "m.gguf.part-2-of-12"),
            ("m.Q6_K.gguf-split-a", 1, None, "m.Q6_K.gguf-split-b"),
            ("m.gguf.partaz", 26, None, "m.gguf.partba"),
            ("m.GGUF.aa", 1, None, "m.GGUF.ab"),
            ("m.gguf.001", 1, None, "m.gguf.002"),
            ("m.gguf.part9", 9, None, "m.gguf.part10"),
            ("m.gguf.part-00", 0, None, "m.gguf.part-01"),
            ("m.gguf.00", 0, None, "m.gguf.01"),
            ("m.gguf.aaa", 1, None, "m.gguf.aab"),
            ("m.gguf.part01of03", 1, Some(3), "m.gguf.part02of03"),
            ("m.gguf.part-00001-of-00003", 1, Some(3), "m.gguf.part-00002-of-00003"),
        ] {
            let piece = PieceName::parse(name).expect(name);
            assert_eq!((piece.nth(), piece.n()), (nth, n), "{name}");
            assert_eq!(piece.piece(nth, true).as_deref(), Some(name));
            assert_eq!(piece.piece(nth + 1, true).as_deref(), Some(next));
        }
        assert_eq!(PieceName::parse("m.gguf-split-z").unwrap().piece(27, true), None);
        for name in [
            "m.gguf",
            "m.gguf.gz",
            "m.gguf.part",
            "m.gguf.part0of2",
            "m.gguf.part3of2",
            "m.gguf.part1to2",
            "m.gguf.incomplete",
            "m.gguf.sha256",
            "m.gguf.1",
            "m.part1of2",
            "gguf.part",
            "m.gguf.partéa",
        ] {
            assert_eq!(PieceName::parse(name), None, "{name}");
        }
    }
}
