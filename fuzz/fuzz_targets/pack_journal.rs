//! The journal of a packing that did not end: whatever is accepted lists files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_convert::pack::finished_files;

fuzz_target!(|journal: &[u8]| {
    if let Some(files) = finished_files(journal) {
        assert!(files.len() <= journal.len());
    }
});
