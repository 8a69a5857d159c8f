//! A small model of an architecture that only these tests have, all weights in `F32`.

use super::super::Architecture;
use super::super::arch::grouped::{self, USUAL};
use super::super::arch::keys::Keys;
use super::super::arch::names::{EXPERTS, GROUPED, Names};
use super::super::arch::{rope, routing};
use super::writer::GgufWriter;
use crate::checkpoint::FormatError;
use crate::dialects::Dialects;

static PLAIN: Architecture =
    Architecture::new("plain", "plain", config, Names::new(&[GROUPED, EXPERTS]));

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    routing::routed(keys, USUAL)?;
    grouped::softmax(keys)?;
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, rope::Yarn::USUAL)
}

pub(super) fn dialects() -> Dialects {
    Dialects { architectures: vec![&PLAIN], ..Dialects::default() }
}

const LAYERS: usize = 2;

/// Parts of a layer, and their shapes.
const PARTS: [(&str, &[usize]); 12] = [
    ("attn_norm", &[8]),
    ("ffn_norm", &[8]),
    ("attn_q", &[8, 8]),
    ("attn_k", &[4, 8]),
    ("attn_v", &[4, 8]),
    ("attn_output", &[8, 8]),
    ("attn_q_norm", &[4]),
    ("attn_k_norm", &[4]),
    ("ffn_gate_inp", &[4, 8]),
    ("ffn_gate_exps", &[4, 6, 8]),
    ("ffn_up_exps", &[4, 6, 8]),
    ("ffn_down_exps", &[4, 8, 6]),
];

/// A whole model.
pub(super) fn model() -> GgufWriter {
    let mut file = GgufWriter::new();
    file.text("general.architecture", "plain").text("general.type", "model");
    for (key, number) in [
        ("block_count", LAYERS),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 6),
        ("attention.head_count", 2),
        ("expert_count", 4),
        ("expert_used_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 4),
        ("attention.value_length", 4),
    ] {
        file.u32(&format!("plain.{key}"), number as u32);
    }
    file.f32("plain.attention.layer_norm_rms_epsilon", 1e-6);
    file.f32("plain.rope.freq_base", 10000.0);
    let tokens = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "<end>"];
    file.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "qwen2")
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &[1, 1, 1, 1, 1, 1, 1, 1, 1, 3])
        .texts("tokenizer.ggml.merges", &[])
        .u32("tokenizer.ggml.eos_token_id", 9);
    add(&mut file, "token_embd.weight", &[tokens.len(), 8]);
    add(&mut file, "output.weight", &[tokens.len(), 8]);
    for layer in 0..LAYERS {
        for (part, shape) in PARTS {
            add(&mut file, &format!("blk.{layer}.{part}.weight"), shape);
        }
    }
    add(&mut file, "output_norm.weight", &[8]);
    file
}

/// Adds a tensor of numbers that differ from those of other names.
fn add(file: &mut GgufWriter, name: &str, shape: &[usize]) {
    let first = name.bytes().fold(7u32, |seed, byte| seed.wrapping_mul(31) + u32::from(byte));
    let n: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..n as u32).map(|i| (first % 1000 + i) as f32 * 1e-3).collect();
    file.floats(name, shape, &numbers);
}
