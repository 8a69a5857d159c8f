//! A small checkpoint in FP8, as DeepSeek-V3 ships.

use std::collections::BTreeMap;
use std::fs;

use moeflux_core::SplitMix64;
use moeflux_core::quant::e4m3_to_f32;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

use crate::common::golden_dir;

/// Rows and columns that share a scale.
const BLOCK: usize = 32;

/// How FP8 matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eights {
    /// As they are, with their scales.
    Stored,
    /// As the F32 that they stand for.
    Decoded,
}

struct Tensors {
    eights: Eights,
    random: SplitMix64,
    all: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Tensors {
    /// About normal, of variance 1.
    fn normal(&mut self) -> f32 {
        self.random.floats(12).iter().sum::<f32>() / 2.0
    }

    fn put(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.all.insert(name.to_owned(), (Dtype::F32, shape.to_vec(), bytes));
    }

    fn vector(&mut self, name: &str, len: usize, center: f32) {
        let values: Vec<f32> = (0..len).map(|_| center + 0.1 * self.normal()).collect();
        self.put(name, &[len], &values);
    }

    fn dense(&mut self, name: &str, [rows, cols]: [usize; 2]) {
        let values: Vec<f32> = (0..rows * cols).map(|_| self.normal()).collect();
        self.put(name, &[rows, cols], &values);
    }

    /// E4M3, a scale to each block.
    fn eights(&mut self, name: &str, [rows, cols]: [usize; 2]) {
        let blocks = [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)];
        let unit = 1.0 / (100.0 * (cols as f32).sqrt());
        let scales: Vec<f32> =
            (0..blocks[0] * blocks[1]).map(|_| unit * (1.0 + 0.3 * self.random.float())).collect();
        let codes: Vec<u8> = (0..rows * cols).map(|_| nearest(100.0 * self.normal())).collect();
        let scale = |at: usize| scales[at / cols / BLOCK * blocks[1] + at % cols / BLOCK];
        if self.eights == Eights::Decoded {
            let values = codes.iter().enumerate().map(|(at, code)| e4m3_to_f32(*code) * scale(at));
            let values: Vec<f32> = values.collect();
            self.put(name, &[rows, cols], &values);
        } else {
            self.all.insert(name.to_owned(), (Dtype::F8_E4M3, vec![rows, cols], codes));
            self.put(&format!("{name}_scale_inv"), &blocks, &scales);
        }
    }

    fn mlp(&mut self, prefix: &str, hidden: usize, intermediate: usize) {
        for part in ["gate_proj", "up_proj"] {
            self.eights(&format!("{prefix}.{part}.weight"), [intermediate, hidden]);
        }
        self.eights(&format!("{prefix}.down_proj.weight"), [hidden, intermediate]);
    }
}

/// The code of the nearest E4M3.
fn nearest(value: f32) -> u8 {
    let distance = |code: &u8| (e4m3_to_f32(*code) - value.abs()).abs();
    let code = (0..127).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap();
    if value < 0.0 { code | 128 } else { code }
}

/// Of the shape of a golden case whose columns are whole groups.
pub(crate) fn fp8_checkpoint(eights: Eights) -> tempfile::TempDir {
    let config = fs::read(golden_dir().join("deepseek_v3-mlx-q4/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config.as_object_mut().unwrap().remove("quantization");
    let block = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]});
    config["quantization_config"] = if eights == Eights::Stored { block } else { Value::Null };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let mut tensors = Tensors { eights, random: SplitMix64::new(3), all: BTreeMap::new() };
    fill(&mut tensors, &|key| usize::try_from(config[key].as_u64().unwrap()).unwrap());
    let views = tensors.all.iter().map(|(name, (dtype, shape, bytes))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let file = dir.path().join("model.safetensors");
    fs::write(file, safetensors::serialize(views, None).unwrap()).unwrap();
    dir
}

fn fill(tensors: &mut Tensors, size: &dyn Fn(&str) -> usize) {
    let (hidden, heads, vocab) =
        (size("hidden_size"), size("num_attention_heads"), size("vocab_size"));
    let (q_rank, kv_rank) = (size("q_lora_rank"), size("kv_lora_rank"));
    let [nope, rope, value] = ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"].map(size);
    tensors.dense("model.embed_tokens.weight", [vocab, hidden]);
    tensors.eights("lm_head.weight", [vocab, hidden]);
    tensors.vector("model.norm.weight", hidden, 2.0);
    for layer in 0..size("num_hidden_layers") {
        let name = |text: &str| format!("model.layers.{layer}.{text}");
        let attention = |text: &str| format!("model.layers.{layer}.self_attn.{text}.weight");
        tensors.vector(&name("input_layernorm.weight"), hidden, 1.0);
        tensors.vector(&name("post_attention_layernorm.weight"), hidden, 1.0);
        tensors.vector(&attention("q_a_layernorm"), q_rank, 1.0);
        tensors.vector(&attention("kv_a_layernorm"), kv_rank, 1.0);
        tensors.eights(&attention("q_a_proj"), [q_rank, hidden]);
        tensors.eights(&attention("q_b_proj"), [heads * (nope + rope), q_rank]);
        tensors.eights(&attention("kv_a_proj_with_mqa"), [kv_rank + rope, hidden]);
        tensors.eights(&attention("kv_b_proj"), [heads * (nope + value), kv_rank]);
        tensors.eights(&attention("o_proj"), [hidden, heads * value]);
        if layer < size("first_k_dense_replace") {
            tensors.mlp(&name("mlp"), hidden, size("intermediate_size"));
            continue;
        }
        let n_experts = size("n_routed_experts");
        let intermediate = size("moe_intermediate_size");
        tensors.dense(&name("mlp.gate.weight"), [n_experts, hidden]);
        tensors.vector(&name("mlp.gate.e_score_correction_bias"), n_experts, 0.0);
        tensors.mlp(&name("mlp.shared_experts"), hidden, intermediate * size("n_shared_experts"));
        for expert in 0..n_experts {
            tensors.mlp(&name(&format!("mlp.experts.{expert}")), hidden, intermediate);
        }
    }
}
