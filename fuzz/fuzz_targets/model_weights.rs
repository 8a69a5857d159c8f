//! The index of a prepared directory: accepted tensors are inside the file.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use moeflux_core::checkpoint::parse_model_weights;

fuzz_target!(|input: (u64, &[u8])| {
    let (file_len, json) = input;
    let Ok(tensors) = parse_model_weights(Path::new("model_weights.json"), json, file_len) else {
        return;
    };
    let inside = |end: Option<u64>| end.is_some_and(|end| end <= file_len);
    assert!(
        tensors
            .iter()
            .all(|tensor| inside(tensor.extent.offset.checked_add(tensor.extent.len as u64)))
    );
});
