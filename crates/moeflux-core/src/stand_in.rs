//! What stands in the place of a model's file: pointers, error pages, archives and parts of downloads.
//!
//! Such a file has the right name and often a plausible length. Parsers would find damage in it and say
//! nothing of what happened.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

/// Bytes of a file's start that are looked at.
const START_BYTES: u64 = 1024;

/// The longest text that may lie in the place of weights, in bytes.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Characters of a text that messages show.
const MAX_SHOWN: usize = 40;

/// What a file is in place of what its name promises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StandIn {
    /// The text that git keeps of a file in large-file storage.
    #[error("this is a pointer of Git LFS, not the file: `git lfs pull` fetches it")]
    LfsPointer,
    /// The text that another tool keeps of a file that it stores elsewhere.
    #[error("this is a pointer of {tool}, not the file: fetch it with that tool")]
    OtherPointer {
        /// The tool.
        tool: &'static str,
    },
    /// A page in HTML.
    #[error("this is a web page, not the file: download it again, by its address with /resolve/")]
    WebPage,
    /// What a store of files answers in XML or JSON.
    #[error("this is the error message of a server ({code}), not the file: download it again")]
    ServerError {
        /// The server's code or message, shortened.
        code: String,
    },
    /// A compressed file or an archive.
    #[error("this is {what}, not the file: unpack it")]
    Archive {
        /// Which.
        what: &'static str,
    },
    /// The target of a symbolic link as text, which copies of the Hub's cache have on file systems without links.
    #[error(
        "this is the text of a symbolic link, not the file: copy the folder again with links \
         replaced by their files"
    )]
    LinkText,
    /// Nothing.
    #[error("the file is empty: download it again")]
    Empty,
    /// Zeros where a format has its mark.
    #[error("the file begins with zeros: its download has not finished; run it again")]
    Zeros,
    /// A file that a program downloads just now, or did not finish.
    #[error("its download has not finished ({notes} is beside it): run it again")]
    Unfinished {
        /// The name of the file in which the program notes what is missing.
        notes: String,
    },
    /// Some text.
    #[error("this is a text ({beginning:?}), not the file: download it again")]
    Text {
        /// Its first characters.
        beginning: String,
    },
}

impl StandIn {
    /// What the start of a file shows that is of no use whatever its name promises: pointers, pages and
    /// archives.
    pub fn of(start: &[u8]) -> Option<StandIn> {
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        let begins = |mark: &str| {
            text.get(..mark.len()).is_some_and(|head| head.eq_ignore_ascii_case(mark.as_bytes()))
        };
        if begins("version https://git-lfs.github.com/spec/")
            || begins("version https://hawser.github.com/spec/")
        {
            return Some(StandIn::LfsPointer);
        }
        for (mark, tool) in [("# xet version", "git-xet"), ("/annex/objects/", "git-annex")] {
            if begins(mark) {
                return Some(StandIn::OtherPointer { tool });
            }
        }
        if begins("<!doctype html") || begins("<html") {
            return Some(StandIn::WebPage);
        }
        if begins("<?xml") || begins("<error>") {
            let code =
                between(text, "<Code>", "</Code>").or_else(|| between(text, "<Message>", "</"));
            return Some(StandIn::ServerError { code: code.unwrap_or_else(|| "XML".to_owned()) });
        }
        archive(start).map(|what| StandIn::Archive { what })
    }

    /// As [`of`](StandIn::of), for a file of `len` bytes that should hold weights: no text is right there.
    pub fn of_weights(start: &[u8], len: u64) -> Option<StandIn> {
        if len == 0 {
            return Some(StandIn::Empty);
        }
        if let Some(found) = StandIn::of(start) {
            return Some(found);
        }
        if start.len() >= 64 && start.iter().all(|byte| *byte == 0) {
            return Some(StandIn::Zeros);
        }
        let text =
            str::from_utf8(start).ok().filter(|_| len <= MAX_TEXT_BYTES && start.len() >= 4)?;
        let text = text.trim();
        let is_text = |c: char| !c.is_control() || c.is_ascii_whitespace();
        if text.is_empty() || text.starts_with("GGUF") || !text.chars().all(is_text) {
            return None;
        }
        if text.starts_with("../") && !text.contains('\n') {
            return Some(StandIn::LinkText);
        }
        if text.starts_with('{') && text.contains("\"error\"") {
            let code = between(text.as_bytes(), "\"error\"", "}").unwrap_or_default();
            let code = code.trim_matches(|c: char| ": \"".contains(c)).to_owned();
            return Some(StandIn::ServerError { code });
        }
        Some(StandIn::Text { beginning: shortened(text) })
    }

    /// What stands in the place of the weights at `path`, which are open as `file`. The file is then at its
    /// start again.
    ///
    /// # Errors
    /// Those of the system.
    pub fn find(path: &Path, file: &mut File) -> io::Result<Option<StandIn>> {
        let mut start = Vec::new();
        file.by_ref().take(START_BYTES).read_to_end(&mut start)?;
        file.rewind()?;
        let found = StandIn::of_weights(&start, file.metadata()?.len());
        Ok(found.or_else(|| unfinished(path)))
    }
}

impl From<StandIn> for io::Error {
    fn from(found: StandIn) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, found)
    }
}

/// Endings of files that programs write to until a download is whole.
const UNFINISHED: [&str; 8] = [
    ".incomplete",
    ".part",
    ".partial",
    ".crdownload",
    ".download",
    ".aria2",
    ".!qB",
    ".opdownload",
];

/// Whether the name of a file says that its download has not finished.
pub fn is_unfinished_name(name: &str) -> bool {
    UNFINISHED.iter().any(|end| name.ends_with(end))
}

/// Programs that write to a file of the full length note in another file what is missing.
fn unfinished(path: &Path) -> Option<StandIn> {
    let name = path.file_name()?.to_str()?;
    let notes = format!("{name}.aria2");
    path.with_file_name(&notes).exists().then_some(StandIn::Unfinished { notes })
}

fn archive(start: &[u8]) -> Option<&'static str> {
    let marks: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "compressed with gzip"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
        (b"\xfd7zXZ\x00", "compressed with xz"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"BZh91AY&SY", "compressed with bzip2"),
    ];
    let marked = marks.iter().find(|(mark, _)| start.starts_with(mark)).map(|(_, what)| *what);
    let is_tar = start.get(257..262) == Some(b"ustar");
    marked.or_else(|| is_tar.then_some("a tar archive"))
}

/// The text between two marks, shortened.
fn between(text: &[u8], before: &str, after: &str) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let (_, rest) = text.split_once(before)?;
    let (found, _) = rest.split_once(after)?;
    Some(shortened(found.trim()))
}

/// The first characters of a text, in one line.
fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SHOWN).collect();
    if let Some(end) = shown.find('\n') {
        shown.truncate(end);
    }
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_recognised_by_its_start() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
        assert_eq!(StandIn::of(pointer), Some(StandIn::LfsPointer));
        assert_eq!(StandIn::of(b"\xef\xbb\xbf\n <!DOCTYPE html><html>"), Some(StandIn::WebPage));
        let denied = b"<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code></Error>";
        let found = StandIn::of(denied).unwrap().to_string();
        assert!(found.contains("(AccessDenied)"), "{found}");
        assert_eq!(
            StandIn::of(b"\x1f\x8b\x08\x00"),
            Some(StandIn::Archive { what: "compressed with gzip" })
        );
        for good in
            [&b"{\"model_type\": \"x\"}"[..], b"", b"#version: 0.2\na b", b"{% if x %}", b"../x"]
        {
            assert_eq!(StandIn::of(good), None, "{good:?}");
        }
    }

    #[test]
    fn no_text_is_weights() {
        let of = |start: &[u8]| StandIn::of_weights(start, start.len() as u64);
        assert_eq!(of(b""), Some(StandIn::Empty));
        assert_eq!(of(&[0; 64]), Some(StandIn::Zeros));
        assert_eq!(of(b"../../blobs/0a1b"), Some(StandIn::LinkText));
        assert!(
            of(b"{\"error\":\"Repository not found\"}")
                .unwrap()
                .to_string()
                .contains("(Repository not found)")
        );
        assert!(of(b"Entry not found").unwrap().to_string().contains("\"Entry not found\""));
        for good in [&b"\x10\0\0\0\0\0\0\0{\"a\":1}"[..], b"GGUF\x03\0\0\0", b"abc", &[0; 8]] {
            assert_eq!(of(good), None, "{good:?}");
        }
    }
}
