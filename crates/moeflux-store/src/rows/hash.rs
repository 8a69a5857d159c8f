//! A hash of row numbers, which need no protection against chosen keys: half of the time of a lookup
//! would be spent in the standard one.

use std::hash::{BuildHasherDefault, Hasher};

use moeflux_core::SplitMix64;

/// Builds [`NumberHasher`]s.
pub(super) type BuildNumberHasher = BuildHasherDefault<NumberHasher>;

/// Mixes the numbers of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher {
    state: u64,
}

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.state = SplitMix64::mix(self.state ^ number);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}
