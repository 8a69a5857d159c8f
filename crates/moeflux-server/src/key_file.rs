//! Keys with names: a file of their hashes and limits, which `moeflux keys` writes.

use std::io;
use std::path::{Path, PathBuf};

use moeflux_core::atomic_file::{self, Access, Durability};
use moeflux_core::files::read_text_bounded;
use moeflux_core::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bytes of a file of keys.
const MAX_BYTES: u64 = 1 << 20;

/// Keys of a file: each has its figures in `/metrics`.
const MAX_KEYS: usize = 1000;

/// Bytes of a name.
const LONGEST_NAME: usize = 64;

/// How a new key begins.
const PREFIX: &str = "mfx-";

/// Random bytes of a new key.
const KEY_BYTES: usize = 24;

/// What is wrong with a file of keys, or with what it should hold.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("cannot read the keys of {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("cannot write the keys to {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{path} is no file of keys: {reason}; `moeflux keys add NAME` makes one")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A name that a log could not show.
    #[error(
        "{name:?} is no name of a key: write 1 to 64 letters, digits or -_.@, the first a letter or a digit, and \
         not key-1 or the like, which the log calls keys without names"
    )]
    Name {
        /// What was written.
        name: String,
    },
    /// A key has the name.
    #[error("there is a key {name:?} already: choose another name, or remove that key first")]
    Taken {
        /// The name.
        name: String,
    },
    /// No key has the name.
    #[error("there is no key {name:?}: `moeflux keys list` shows the names")]
    Unknown {
        /// The name.
        name: String,
    },
    /// There are too many.
    #[error("there are {MAX_KEYS} keys, which is the most: remove one first")]
    Full,
    /// The system has no random numbers.
    #[error("the system gives no random numbers for a key: {0}")]
    Random(String),
}

/// What a key may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyLimits {
    /// Requests for answers in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Tokens of prompts, except reused ones, and of answers in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u32>,
    /// Answers that are made or wait at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
}

/// A key, without the key itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedKey {
    /// Whose key it is, for the log and for metrics.
    pub name: String,
    /// SHA-256 of the key, in hexadecimal digits.
    pub sha256: String,
    /// When it was made.
    pub created: String,
    /// What it may use.
    #[serde(default)]
    pub limits: KeyLimits,
}

/// The keys of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// The keys, in the order in which they were made.
    pub keys: Vec<NamedKey>,
}

impl KeyFile {
    /// Reads a file.
    ///
    /// # Errors
    /// Where it cannot be read, or is no file of keys.
    pub fn read(path: &Path) -> Result<KeyFile, KeyFileError> {
        let text = read_text_bounded(path, MAX_BYTES)
            .map_err(|source| KeyFileError::Read { path: path.to_owned(), source })?;
        let wrong = |reason: String| KeyFileError::Content { path: path.to_owned(), reason };
        let file: KeyFile = serde_json::from_str(&text).map_err(|err| wrong(err.to_string()))?;
        file.check().map_err(wrong)?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        if self.keys.len() > MAX_KEYS {
            return Err(format!("it has {} keys, more than {MAX_KEYS}", self.keys.len()));
        }
        let mut names = std::collections::HashSet::new();
        for key in &self.keys {
            let name = &key.name;
            if !is_name(name) {
                return Err(format!("{name:?} is no name"));
            }
            if !names.insert(name) {
                return Err(format!("two keys have the name {name:?}"));
            }
            if key.hash().is_none() {
                return Err(format!("sha256 of {name:?} is not 64 hexadecimal digits"));
            }
            let KeyLimits { requests_per_minute, tokens_per_minute, sessions } = key.limits;
            if [requests_per_minute, tokens_per_minute, sessions].contains(&Some(0)) {
                return Err(format!("a limit of {name:?} is 0: write 1 or more, or leave it out"));
            }
        }
        Ok(())
    }

    /// Writes the file, for its owner only.
    ///
    /// # Errors
    /// Where it cannot be written. Then an existing file stays.
    pub fn write(&self, path: &Path) -> Result<(), KeyFileError> {
        let mut text = serde_json::to_vec_pretty(self).expect("keys are plain data");
        text.push(b'\n');
        atomic_file::write(path, &text, Access::Private, Durability::Synced)
            .map_err(|source| KeyFileError::Write { path: path.to_owned(), source })
    }

    /// Adds a new key, which is returned: the file has only its hash.
    ///
    /// # Errors
    /// Where the name is none or is taken, or there are too many keys.
    pub fn add(&mut self, name: &str, limits: KeyLimits) -> Result<String, KeyFileError> {
        if !is_name(name) {
            return Err(KeyFileError::Name { name: name.to_owned() });
        }
        if self.keys.iter().any(|key| key.name == name) {
            return Err(KeyFileError::Taken { name: name.to_owned() });
        }
        if self.keys.len() == MAX_KEYS {
            return Err(KeyFileError::Full);
        }
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(|err| KeyFileError::Random(err.to_string()))?;
        let key = format!("{PREFIX}{}", hex(&bytes));
        self.keys.push(NamedKey {
            name: name.to_owned(),
            sha256: hex(&hash(key.as_bytes())),
            created: crate::log::time(),
            limits,
        });
        Ok(key)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// Where no key has the name.
    pub fn remove(&mut self, name: &str) -> Result<(), KeyFileError> {
        let at = self.keys.iter().position(|key| key.name == name);
        let at = at.ok_or_else(|| KeyFileError::Unknown { name: name.to_owned() })?;
        self.keys.remove(at);
        Ok(())
    }
}

impl NamedKey {
    /// The hash as bytes; `None` where it is none.
    pub(crate) fn hash(&self) -> Option<[u8; 32]> {
        let digits = self.sha256.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
        bytes?.try_into().ok()
    }
}

/// The hash of a key, or of what a client shows. Keys are random and long, so that no one can try all.
pub(crate) fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Whether a name can stand in a log and in a label, and stands for no other key there.
fn is_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    let begins_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let number = name.strip_prefix("key-").unwrap_or_default();
    let is_numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    begins_well && name.len() <= LONGEST_NAME && name.bytes().all(is_fine) && !is_numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_hashes_alone_and_only_its_owner_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        let mut file = KeyFile::default();
        let limits = KeyLimits { requests_per_minute: Some(60), ..KeyLimits::default() };
        let key = file.add("anna", limits).unwrap();
        let other = file.add("build-server", KeyLimits::default()).unwrap();
        assert!(key != other && key.len() == 52 && key.starts_with("mfx-"), "{key}");
        file.write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&key[4..]) && text.contains("anna"), "{text}");
        let read = KeyFile::read(&path).unwrap();
        assert_eq!(read, file);
        assert_eq!(read.keys[0].hash(), Some(hash(key.as_bytes())));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(matches!(file.add("anna", limits), Err(KeyFileError::Taken { .. })));
        for name in [
            "",
            "two words",
            "é",
            "a/b",
            "-",
            "-x",
            ".hidden",
            "@",
            "key-1",
            "key-007",
            &"x".repeat(65),
        ] {
            assert!(matches!(file.add(name, limits), Err(KeyFileError::Name { .. })), "{name}");
        }
        file.remove("anna").unwrap();
        assert!(matches!(file.remove("anna"), Err(KeyFileError::Unknown { .. })));
    }

    #[test]
    fn what_is_no_file_of_keys_is_refused_in_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        let sha256 = "0".repeat(64);
        let key = |rest: &str| {
            format!(r#"{{"keys":[{{"name":"a","sha256":"{sha256}","created":"now"{rest}}}]}}"#)
        };
        std::fs::write(&path, key("")).unwrap();
        KeyFile::read(&path).unwrap();
        for text in [
            String::new(),
            String::from("a-plain-key\n"),
            String::from("{}"),
            String::from(r#"{"keys": [], "more": 1}"#),
            key(r#","limits":{"requests":3}"#),
            key(r#","limits":{"sessions":0}"#),
            key("").replace(r#""name":"a""#, r#""name":"a b""#),
            key("").replace("0000", "000"),
            format!("{{\"keys\":[{0},{0}]}}", &key("")[9..key("").len() - 2]),
        ] {
            std::fs::write(&path, &text).unwrap();
            let message = KeyFile::read(&path).unwrap_err().to_string();
            assert!(message.contains("keys.json") && message.lines().count() == 1, "{message}");
        }
        let missing = KeyFile::read(&dir.path().join("none")).unwrap_err();
        assert!(matches!(missing, KeyFileError::Read { .. }));
    }
}
