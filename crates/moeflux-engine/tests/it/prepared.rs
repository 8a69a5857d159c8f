//! A directory as the original system prepares Cogito: latent attention with
//! a quantised `kv_b_proj`, and one file of experts a layer.

use std::fs;
use std::path::Path;

use crate::common::{Golden, golden_dir, logits_by_chunk};
use moeflux_engine::{Activations, Engine, EngineOptions};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

/// Writes `model_weights.bin`, its index and the layers of a checkpoint of one
/// file whose experts are stacked.
fn prepare(case: &Path, dir: &Path) {
    let bytes = fs::read(case.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (mut bin, mut index) = (Vec::new(), Map::new());
    let mut names = tensors.names();
    names.sort_unstable();
    for name in names.iter().filter(|name| !name.contains(".switch_mlp.")) {
        let view = tensors.tensor(name).unwrap();
        bin.resize(bin.len().next_multiple_of(64), 0);
        let (offset, size) = (bin.len(), view.data().len());
        let dtype = format!("{:?}", view.dtype());
        let shape = view.shape();
        let mut entry = json!({"offset": offset, "size": size, "shape": shape, "dtype": dtype});
        if view.dtype() == Dtype::U32 {
            entry["bits"] = json!(4);
        }
        index.insert((*name).to_owned(), entry);
        bin.extend(view.data());
    }
    fs::write(dir.join("model_weights.bin"), bin).unwrap();
    let index = json!({"model": "x", "num_tensors": index.len(), "tensors": index});
    fs::write(dir.join("model_weights.json"), index.to_string()).unwrap();
    fs::copy(case.join("config.json"), dir.join("config.json")).unwrap();
    let config: Value =
        serde_json::from_slice(&fs::read(case.join("config.json")).unwrap()).unwrap();
    let count = |key: &str| usize::try_from(config[key].as_u64().unwrap()).unwrap();
    fs::create_dir(dir.join("packed_experts")).unwrap();
    for layer in 0..count("num_hidden_layers") {
        let records = records(&tensors, layer, count("n_routed_experts"));
        fs::write(dir.join(format!("packed_experts/layer_{layer:02}.bin")), records).unwrap();
    }
}

fn records(tensors: &SafeTensors<'_>, layer: usize, n_experts: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for expert in 0..n_experts {
        for part in ["gate_proj", "up_proj", "down_proj"] {
            for kind in ["weight", "scales", "biases"] {
                let name = format!("model.layers.{layer}.mlp.switch_mlp.{part}.{kind}");
                let all = tensors.tensor(&name).unwrap();
                let len = all.data().len() / n_experts;
                out.extend(&all.data()[expert * len..(expert + 1) * len]);
            }
        }
    }
    out
}

#[test]
fn a_prepared_directory_gives_the_bits_of_its_checkpoint() {
    let case = golden_dir().join("deepseek_v3-mlx-joined");
    let dir = tempfile::tempdir().unwrap();
    prepare(&case, dir.path());
    for activations in [Activations::Full, Activations::Int16] {
        let options = EngineOptions::default().activations(activations);
        let want = Engine::open(&case, &options).unwrap();
        let got = Engine::open(dir.path(), &options).unwrap();
        assert_eq!(got.family(), "deepseek_v3");
        for sequence in Golden::read(&case).sequences {
            let want = logits_by_chunk(&want, &sequence.tokens, usize::MAX);
            let got = logits_by_chunk(&got, &sequence.tokens, 7);
            assert!(want.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}
