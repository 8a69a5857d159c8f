//! Whose request it is.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use moeflux_core::hex;
use sha2::{Digest, Sha256};

/// Whose requests a response is kept for: those that show the same keys, or all where the server has no
/// keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner(String);

/// Bytes of the hash of keys.
const HASH_BYTES: usize = 16;

impl Owner {
    /// Of all requests to a server without keys.
    pub(crate) fn everyone() -> Owner {
        Owner(String::from("all"))
    }

    /// Of the keys in a request's headers, which were checked before.
    pub(crate) fn of(headers: &HeaderMap) -> Owner {
        let bearers = headers.get_all(AUTHORIZATION).iter();
        let bearers = bearers.filter_map(|value| {
            let value = value.as_bytes().trim_ascii();
            let end = value.iter().position(u8::is_ascii_whitespace)?;
            Some(value[end..].trim_ascii())
        });
        let plain = headers.get_all("x-api-key").iter();
        let plain = plain.map(|value| value.as_bytes().trim_ascii());
        let mut keys: Vec<&[u8]> = bearers.chain(plain).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut hash = Sha256::new();
        hash.update(b"moeflux: owner of responses");
        for key in keys {
            hash.update(key.len().to_le_bytes());
            hash.update(key);
        }
        Owner(hex(&hash.finalize()[..HASH_BYTES]))
    }

    /// A word for the names of files.
    pub(super) fn word(&self) -> &str {
        &self.0
    }
}
