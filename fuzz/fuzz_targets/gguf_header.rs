//! Headers of GGUF files, whole files of them as checkpoints: accepted tensors are inside the file.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use moeflux_core::FileIdx;
use moeflux_core::checkpoint::Checkpoint;
use moeflux_core::gguf::parse_gguf_header;
use moeflux_engine::dialects;

fuzz_target!(|input: (bool, u64, &[u8])| {
    let (is_longer, more, bytes) = input;
    // Counts are checked against the length, which may be that of a large file.
    let file_len = if is_longer { more.max(bytes.len() as u64) } else { bytes.len() as u64 };
    let Ok(header) = parse_gguf_header(bytes, FileIdx(0), file_len) else { return };
    let inside = |end: Option<u64>| end.is_some_and(|end| end <= file_len);
    for tensor in &header.tensors {
        let extent = tensor.extent;
        assert!(inside(extent.offset.checked_add(extent.len as u64)));
    }
    if is_longer {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder for the file");
    let path = dir.path().join("m.gguf");
    fs::write(&path, bytes).expect("room for the file");
    let Ok(checkpoint) = Checkpoint::open(&path, dialects()) else { return };
    for tensor in checkpoint.tensors().values() {
        checkpoint.reader().read(tensor.extent).expect("a tensor inside its file");
    }
});
