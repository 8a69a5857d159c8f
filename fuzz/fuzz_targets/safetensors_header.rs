//! Headers of safetensors files: accepted tensors are inside the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_core::FileIdx;
use moeflux_core::checkpoint::parse_safetensors_header;

fuzz_target!(|input: (u64, &[u8])| {
    let (file_len, json) = input;
    let Ok(header) = parse_safetensors_header(json, FileIdx(0), file_len) else { return };
    let inside = |end: Option<u64>| end.is_some_and(|end| end <= file_len);
    assert!(
        header
            .tensors
            .iter()
            .all(|tensor| inside(tensor.extent.offset.checked_add(tensor.extent.len as u64)))
    );
});
