//! The index of a checkpoint in shards: whatever is accepted names files and tensors that are there.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use moeflux_core::checkpoint::Checkpoint;
use moeflux_engine::dialects;

/// A checkpoint of two tensors in one shard, without its index.
static DIR: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a folder for the checkpoint");
    let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    let shard = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 2]].concat();
    fs::write(dir.path().join("s.safetensors"), shard).expect("room for the tensors");
    fs::write(dir.path().join("config.json"), r#"{"model_type": "mixtral"}"#).expect("room");
    dir
});

fuzz_target!(|index: &[u8]| {
    let dir = DIR.path();
    fs::write(dir.join("model.safetensors.index.json"), index).expect("room for the index");
    if let Ok(checkpoint) = Checkpoint::open(dir, dialects()) {
        assert!(checkpoint.files().iter().all(|file| file.path.starts_with(dir)));
    }
});
