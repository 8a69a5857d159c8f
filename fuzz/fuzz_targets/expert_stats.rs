//! Statistics of experts: weights that are accepted are numbers that can be compared.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_core::checkpoint::Checksum;
use moeflux_engine::read_expert_stats;

fuzz_target!(|input: (bool, &str, &[u8])| {
    let (has_checksum, identity, bytes) = input;
    let mut bytes = bytes.to_vec();
    if has_checksum {
        let mut checksum = Checksum::default();
        checksum.update(&bytes);
        bytes.extend(checksum.hex().bytes());
    }
    if let Ok(weights) = read_expert_stats(&bytes, identity) {
        assert!(weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0));
    }
});
