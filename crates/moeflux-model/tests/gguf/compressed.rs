//! What files of models have whose layers see entries that stand for several positions, beyond others.

use super::models::{EXPERTS, HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, VOCAB};

/// Streams of the residual, and ranks and groups of attention.
const STREAMS: usize = 2;
const Q_RANK: usize = 6;
const GROUPS: usize = 2;
const GROUP_RANK: usize = 3;

/// Of indexers.
const INDEX_HEADS: usize = 3;
const INDEX_DIM: usize = 4;

/// The number of 32-bit integers in files.
pub(crate) const I32: u32 = 26;

/// Positions of an entry in each layer, the first of which has an indexer, and in one past the last, which
/// has none.
pub(crate) const RATIOS: [i32; 3] = [4, 8, 0];

/// Keys of whole numbers.
pub(crate) const NUMBERS: [(&str, usize); 13] = [
    ("rope.dimension_count", 2),
    ("attention.q_lora_rank", Q_RANK),
    ("attention.output_group_count", GROUPS),
    ("attention.output_lora_rank", GROUP_RANK),
    ("attention.sliding_window", 16),
    ("attention.indexer.head_count", INDEX_HEADS),
    ("attention.indexer.key_length", INDEX_DIM),
    ("attention.indexer.top_k", 6),
    ("hyper_connection.count", STREAMS),
    ("hyper_connection.sinkhorn_iterations", 3),
    ("hash_layer_count", 1),
    ("expert_gating_func", 4),
    ("expert_shared_count", 1),
];

/// Keys of other numbers.
pub(crate) const FLOATS: [(&str, f32); 4] = [
    ("attention.compress_rope_freq_base", 160_000.0),
    ("hyper_connection.epsilon", 1e-6),
    ("expert_weights_scale", 1.5),
    ("swiglu_clamp_exp", 10.0),
];

/// Tensors outside of layers.
pub(crate) fn outside() -> Vec<(&'static str, Vec<usize>)> {
    vec![
        ("output_hc_fn.weight", vec![STREAMS, STREAMS * HIDDEN]),
        ("output_hc_base.weight", vec![STREAMS]),
        ("output_hc_scale.weight", vec![1]),
    ]
}

/// The experts of each token, two of them, in the first layer.
pub(crate) fn table() -> (&'static str, Vec<usize>, Vec<u8>) {
    let experts = |token: usize| [token % EXPERTS, (token + 1) % EXPERTS];
    let bytes = (0..VOCAB).flat_map(experts).flat_map(|expert| (expert as i32).to_le_bytes());
    ("blk.0.ffn_gate_tid2eid.weight", vec![VOCAB, 2], bytes.collect())
}

/// Tensors of a layer but for that table.
pub(crate) fn layer(layer: usize) -> Vec<(String, Vec<usize>)> {
    let cols = HEADS * HEAD_DIM;
    let mut all: Vec<(String, Vec<usize>)> = [
        ("attn_norm.weight", vec![HIDDEN]),
        ("ffn_norm.weight", vec![HIDDEN]),
        ("attn_q_a.weight", vec![Q_RANK, HIDDEN]),
        ("attn_q_a_norm.weight", vec![Q_RANK]),
        ("attn_q_b.weight", vec![cols, Q_RANK]),
        ("attn_kv.weight", vec![HEAD_DIM, HIDDEN]),
        ("attn_kv_a_norm.weight", vec![HEAD_DIM]),
        ("attn_output_a.weight", vec![GROUPS * GROUP_RANK, cols / GROUPS]),
        ("attn_output_b.weight", vec![HIDDEN, GROUPS * GROUP_RANK]),
        ("attn_sinks.weight", vec![HEADS]),
        ("ffn_gate_inp.weight", vec![EXPERTS, HIDDEN]),
        ("ffn_gate_exps.weight", vec![EXPERTS, INTERMEDIATE, HIDDEN]),
        ("ffn_up_exps.weight", vec![EXPERTS, INTERMEDIATE, HIDDEN]),
        ("ffn_down_exps.weight", vec![EXPERTS, HIDDEN, INTERMEDIATE]),
        ("ffn_gate_shexp.weight", vec![INTERMEDIATE, HIDDEN]),
        ("ffn_up_shexp.weight", vec![INTERMEDIATE, HIDDEN]),
        ("ffn_down_shexp.weight", vec![HIDDEN, INTERMEDIATE]),
    ]
    .map(|(name, shape)| (name.to_owned(), shape))
    .into();
    let n_shares = STREAMS * (STREAMS + 2);
    for half in ["attn", "ffn"] {
        all.push((format!("hc_{half}_fn.weight"), vec![n_shares, STREAMS * HIDDEN]));
        all.push((format!("hc_{half}_base.weight"), vec![n_shares]));
        all.push((format!("hc_{half}_scale.weight"), vec![3]));
    }
    let pool = RATIOS[layer] as usize;
    let mut entries = |name: &str, dim: usize, n_halves: usize| {
        for part in ["kv", "gate"] {
            all.push((format!("{name}_{part}.weight"), vec![n_halves * dim, HIDDEN]));
        }
        all.push((format!("{name}_ape.weight"), vec![pool, n_halves * dim]));
        all.push((format!("{name}_norm.weight"), vec![dim]));
    };
    if layer == 0 {
        entries("attn_compressor", HEAD_DIM, 2);
        entries("indexer_compressor", INDEX_DIM, 2);
        all.push(("indexer.attn_q_b.weight".to_owned(), vec![INDEX_HEADS * INDEX_DIM, Q_RANK]));
        all.push(("indexer.proj.weight".to_owned(), vec![INDEX_HEADS, HIDDEN]));
    } else {
        if pool > 0 {
            entries("attn_compressor", HEAD_DIM, 1);
        }
        all.push(("exp_probs_b.bias".to_owned(), vec![EXPERTS]));
    }
    all
}
