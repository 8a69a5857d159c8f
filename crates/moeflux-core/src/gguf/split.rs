//! Names of the parts of a model that is split into several GGUF files.

use std::path::{Path, PathBuf};

use super::pieces::{EXTENSION, PieceName, first_piece};

/// The name of a part: `PREFIX-00002-of-00003.gguf`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartName {
    prefix: String,
    /// Counted from 1.
    pub(super) nth: u32,
    /// Number of parts.
    pub(super) n: u32,
}

/// Digits of the numbers in the names of parts.
const DIGITS: usize = 5;

/// Beginnings of the names of files that belong to a model and are not one: vision projectors,
/// importance matrices, layers for multi-token prediction.
const COMPANIONS: [&str; 3] = ["mmproj", "imatrix", "mtp-"];

impl PartName {
    /// The parts of a file's name; `None` if it is not the name of a part.
    pub(super) fn parse(name: &str) -> Option<PartName> {
        let (rest, n) = cut_number(name.strip_suffix(EXTENSION)?)?;
        let (rest, nth) = cut_number(rest.strip_suffix("-of-")?)?;
        let prefix = rest.strip_suffix('-')?.to_owned();
        (1..=n).contains(&nth).then_some(PartName { prefix, nth, n })
    }

    /// The name of the part of a path.
    pub(super) fn of_path(path: &Path) -> Option<PartName> {
        PartName::parse(path.file_name()?.to_str()?)
    }

    /// The name of another part of the same model.
    pub(super) fn part(&self, nth: u32) -> String {
        let PartName { prefix, n, .. } = self;
        format!("{prefix}-{nth:05}-of-{n:05}{EXTENSION}")
    }
}

/// A text without the number at its end, and the number.
fn cut_number(text: &str) -> Option<(&str, u32)> {
    let (rest, digits) = text.split_at_checked(text.len().checked_sub(DIGITS)?)?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten().map(|number| (rest, number))
}

/// Whether a file's name is that of a GGUF file, or of a piece of one.
pub(crate) fn is_gguf_name(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(EXTENSION) || PieceName::parse(name).is_some()
}

/// Whether a file's name says that it belongs to a model and is not one.
pub(super) fn is_companion_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    COMPANIONS.iter().any(|start| name.starts_with(start)) || name.contains("mmproj")
}

/// The path of the first part, or the first piece, of the model that a file belongs to.
pub fn first_part(path: &Path) -> PathBuf {
    match PartName::of_path(path) {
        Some(name) => path.with_file_name(name.part(1)),
        None => first_piece(path).unwrap_or_else(|| path.to_path_buf()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_names_of_parts() {
        let name = PartName::parse("Kimi-K2-UD-Q2_K_XL-00002-of-00009.gguf").unwrap();
        assert_eq!((name.nth, name.n), (2, 9));
        assert_eq!(name.part(1), "Kimi-K2-UD-Q2_K_XL-00001-of-00009.gguf");
        let path = Path::new("a/m-00003-of-00003.gguf");
        assert_eq!(first_part(path), Path::new("a/m-00001-of-00003.gguf"));
        for odd in [
            "m.gguf",
            "m-00000-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-1-of-3.gguf",
            "m-00001-of-00003.bin",
            "m-+0001-of-00003.gguf",
            "-of-00003.gguf",
            "é0001-of-00003.gguf",
        ] {
            assert_eq!(PartName::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn knows_files_that_are_not_models() {
        for name in ["mmproj-F16.gguf", "model-mmproj-f16.gguf", "imatrix.gguf", "MTP-Q8_0.gguf"] {
            assert!(is_gguf_name(name) && is_companion_name(name), "{name}");
        }
        for name in ["model-mtp.gguf", "Qwen3-imatrix-Q4.gguf", "m.GGUF"] {
            assert!(is_gguf_name(name) && !is_companion_name(name), "{name}");
        }
    }
}
