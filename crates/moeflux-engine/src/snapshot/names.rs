//! Names of snapshots in the prefix cache: they say what a file has.

use std::path::Path;

use moeflux_core::checkpoint::Checksum;

use super::file::Contents;
use super::header::{Header, VERSION};
use super::host::Facts;
use crate::positions::pictures::Pictures;

/// The extension of the names of snapshots.
pub(super) const EXTENSION: &str = "snapshot";

/// Digits of the hashes in file names.
const KEY_DIGITS: usize = 16;

/// A hash of all that a snapshot's header must agree with: the beginning of the names of a model.
#[derive(Clone, Debug)]
pub(super) struct ModelKey(String);

impl ModelKey {
    pub(super) fn of(facts: &dyn Facts) -> ModelKey {
        let header = Header::new(facts, 0, 0, std::iter::empty(), &Pictures::default());
        let json = serde_json::to_string(&header).expect("a header is plain data");
        ModelKey(hash(format!("{VERSION} {json}").as_bytes()))
    }

    /// The name of the file with these tokens and positions of states.
    pub(super) fn name_of(&self, contents: &Contents) -> String {
        let mut bytes = Vec::new();
        for token in &contents.tokens {
            bytes.extend(token.0.to_le_bytes());
        }
        for (position, _) in &contents.states {
            bytes.extend((*position as u64).to_le_bytes());
        }
        format!("{}-{}.{EXTENSION}", self.0, hash(&bytes))
    }

    /// Whether a file is of this model.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&self.0))
    }
}

fn hash(bytes: &[u8]) -> String {
    let mut checksum = Checksum::default();
    checksum.update(bytes);
    let mut hex = checksum.hex();
    hex.truncate(KEY_DIGITS);
    hex
}
