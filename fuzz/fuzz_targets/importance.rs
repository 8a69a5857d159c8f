//! Importance files: whatever opens can be read to the end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_convert::Importance;

fuzz_target!(|bytes: &[u8]| {
    let dir = tempfile::tempdir().expect("a place for a file");
    let path = dir.path().join("importance");
    std::fs::write(&path, bytes).expect("a small file");
    if let Ok(importance) = Importance::open(&path) {
        let _ = importance.verify();
    }
});
