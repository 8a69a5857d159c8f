//! Names of answers and calls that clients see.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use moeflux_core::hex;
use sha2::{Digest, Sha256};

/// Draws ids that differ from all others, also from those before a restart.
#[derive(Debug)]
pub(crate) struct Ids {
    seed: u128,
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn new() -> Ids {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        Ids { seed: now ^ (u128::from(std::process::id()) << 96), next: AtomicU64::new(0) }
    }

    /// `prefix` and 24 hexadecimal digits.
    pub(crate) fn draw(&self, prefix: &str) -> String {
        prefix.to_owned() + &hex(&self.bytes()[..12])
    }

    /// Another number each time.
    pub(crate) fn seed(&self) -> u64 {
        let bytes = self.bytes();
        u64::from_le_bytes(*bytes.first_chunk().expect("a hash has eight bytes"))
    }

    fn bytes(&self) -> [u8; 32] {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let mut hash = Sha256::new();
        hash.update(self.seed.to_le_bytes());
        hash.update(n.to_le_bytes());
        hash.finalize().into()
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
