//! The architecture of GGUF files. What a layer is shows in its tensors.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::{Keys, number, number_or};
use moeflux_core::gguf::arch::names::{Names, Pair};
use moeflux_core::gguf::arch::routing::{self, ExpertKeys, Gating};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture =
    Architecture::new("nemotron_h_moe", "nemotron_h", config, Names::new(&[OWN]).around(OUTSIDE))
        .gated_by(Gating::Sigmoid);

const OUTSIDE: &[Pair] = &[
    ("token_embd.weight", "embeddings.weight"),
    ("output_norm.weight", "norm_f.weight"),
    ("output.weight", "lm_head.weight"),
];

const OWN: &[Pair] = &[
    ("attn_norm", "norm"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_a", "mixer.A"),
    ("ssm_d", "mixer.D"),
    ("ssm_dt.bias", "mixer.dt_bias"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
    ("ffn_gate_inp", "mixer.gate"),
    ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
    ("ffn_up_exps", "mixer.switch_mlp.up_proj"),
    ("ffn_down_exps", "mixer.switch_mlp.down_proj"),
    ("ffn_latent_down", "mixer.fc1_latent_proj"),
    ("ffn_latent_up", "mixer.fc2_latent_proj"),
    ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
];

const EXPERT_KEYS: ExpertKeys =
    ExpertKeys { count: "n_routed_experts", intermediate: "moe_intermediate_size" };

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    routing::routed(keys, EXPERT_KEYS)?;
    routing::gating(keys, Gating::Sigmoid, Some(Gating::Sigmoid))?;
    keys.copy(&[
        number("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        number_or("n_shared_experts", "expert_shared_count", 1),
        number("head_dim", "attention.key_length"),
        number("conv_kernel", "ssm.conv_kernel"),
        number("ssm_state_size", "ssm.state_size"),
        number("n_groups", "ssm.group_count"),
        number("mamba_num_heads", "ssm.time_step_rank"),
    ])?;
    keys.copy_epsilon("layer_norm_epsilon")?;
    for (to, from) in [("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")]
    {
        let n = keys.number(from)?.unwrap_or(0).max(1);
        keys.put_from(to, from, json!(n));
    }
    let scale = "expert_weights_scale";
    let factor = keys.float(scale)?.filter(|factor| *factor != 0.0).unwrap_or(1.0);
    keys.put_from("routed_scaling_factor", scale, json!(factor));
    let normalises = keys.bool("expert_weights_norm")?.unwrap_or(false);
    keys.put("norm_topk_prob", json!(normalises));
    let latent = "moe_latent_size";
    if let Some(size) = keys.number(latent)?.filter(|size| *size > 0) {
        keys.put_from(latent, latent, json!(size));
    }
    heads(keys)?;
    layers(keys)
}

/// Writes the heads of attention and of Mamba layers.
fn heads(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    // Layers without attention have none; where no layer attends, any number will do.
    let kv_heads = "attention.head_count_kv";
    let n_kv_heads = match keys.numbers(kv_heads)? {
        Some(counts) => counts.into_iter().max().unwrap_or(0).max(1),
        None => keys.required(kv_heads)?,
    };
    keys.put_from("num_key_value_heads", kv_heads, json!(n_kv_heads));
    let (key_length, value_length) = ("attention.key_length", "attention.value_length");
    let head_dim = keys.required(key_length)?;
    if keys.number(value_length)?.is_some_and(|value| value != head_dim) {
        let rule = format!("equal {}, which is {head_dim}", keys.key(key_length));
        return Err(keys.refuse(value_length, &rule));
    }
    let (inner, heads) = ("ssm.inner_size", "ssm.time_step_rank");
    let (n_cols, n_heads) = (keys.required(inner)?, keys.required(heads)?);
    if n_heads == 0 || !n_cols.is_multiple_of(n_heads) {
        return Err(keys.refuse(inner, &format!("be a multiple of {}", keys.key(heads))));
    }
    keys.put_from("mamba_head_dim", inner, json!(n_cols / n_heads));
    for (key, part) in [("use_conv_bias", "ssm_conv1d.bias"), ("attention_bias", "attn_q.bias")] {
        let has_bias = keys.any_has(part);
        keys.put(key, json!(has_bias));
    }
    Ok(())
}

/// Writes what each layer is, and the width of MLPs without experts.
fn layers(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let kinds = [
        ("linear_attention", keys.layers_with("ssm_a")),
        ("full_attention", keys.layers_with("attn_q.weight")),
        ("moe", keys.layers_with("ffn_gate_inp.weight")),
    ];
    let kind = |layer: usize| {
        let found = kinds.iter().find(|(_, layers)| layers.contains(&layer));
        found.map_or("mlp", |(kind, _)| *kind)
    };
    let types: Vec<&str> = (0..keys.n_layers).map(kind).collect();
    let dense = types.iter().position(|kind| *kind == "mlp");
    keys.put("layers_block_type", json!(types));
    let length = "feed_forward_length";
    if let Some(layer) = dense {
        let len = match keys.numbers(length)? {
            Some(all) => all[layer],
            None => keys.required(length)?,
        };
        keys.put_from("intermediate_size", length, json!(len));
    }
    Ok(())
}
