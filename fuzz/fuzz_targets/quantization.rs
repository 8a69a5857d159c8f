//! The quantisation block of a config, read as part of a checkpoint with one tensor.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use moeflux_core::checkpoint::Checkpoint;
use moeflux_engine::dialects;

fuzz_target!(|block: &str| {
    let dir = tempfile::tempdir().expect("a folder for the checkpoint");
    let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} "#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0]].concat();
    fs::write(dir.path().join("model.safetensors"), file).expect("room for the tensor");
    let config = format!(r#"{{"model_type": "qwen3_5_moe_text", "quantization": {block}}}"#);
    fs::write(dir.path().join("config.json"), config).expect("room for the config");
    let _ = Checkpoint::open(dir.path(), dialects());
});
