//! The architecture of GGUF files: sliding layers and full ones with heads and rotary embeddings of their
//! own.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::{Keys, number};
use moeflux_core::gguf::arch::names::{GROUPED, Names, POST_NORM, Pair};
use moeflux_core::gguf::arch::routing::ExpertKeys;
use moeflux_core::gguf::arch::{rope, routing};
use serde_json::{Map, Value, json};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    may_be_dense: true,
    ..Architecture::new("gemma4", "gemma4_text", config, Names::new(&[GROUPED, POST_NORM, OWN]))
};

/// Norms, routers and experts. Factors of experts are stored as those of the last product.
const OWN: &[Pair] = &[
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("layer_output_scale.weight", "layer_scalar"),
    ("ffn_gate_inp.scale", "router.scale"),
    ("ffn_gate_inp", "router.proj"),
    ("ffn_down_exps.scale", "router.per_expert_scale"),
    ("ffn_gate_exps", "switch_mlp.gate_proj"),
    ("ffn_up_exps", "switch_mlp.up_proj"),
    ("ffn_down_exps", "switch_mlp.down_proj"),
    ("ffn_gate_up_exps", "switch_mlp.gate_up_proj"),
];

const EXPERT_KEYS: ExpertKeys =
    ExpertKeys { count: "num_experts", intermediate: "moe_intermediate_size" };

/// The keys of heads and of rotary embeddings of one kind of layers.
struct KindKeys {
    key_length: &'static str,
    value_length: &'static str,
    freq_base: &'static str,
    /// Columns of a head that are rotated.
    rotated: &'static str,
    /// The base where the file does not say it.
    usual_base: f64,
}

const FULL: KindKeys = KindKeys {
    key_length: "attention.key_length",
    value_length: "attention.value_length",
    freq_base: "rope.freq_base",
    rotated: "rope.dimension_count",
    usual_base: 1_000_000.0,
};

const SLIDING: KindKeys = KindKeys {
    key_length: "attention.key_length_swa",
    value_length: "attention.value_length_swa",
    freq_base: "rope.freq_base_swa",
    rotated: "rope.dimension_count_swa",
    usual_base: 10_000.0,
};

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    routing::routed(keys, EXPERT_KEYS)?;
    routing::unscaled(keys)?;
    keys.copy(&[
        number("top_k_experts", "expert_used_count"),
        number("intermediate_size", "feed_forward_length"),
        number("sliding_window", "attention.sliding_window"),
    ])?;
    keys.put("enable_moe_block", json!(true));
    for (key, suffix) in [
        ("num_kv_shared_layers", "attention.shared_kv_layers"),
        ("hidden_size_per_layer_input", "embedding_length_per_layer_input"),
    ] {
        let number = keys.number(suffix)?.unwrap_or(0);
        keys.put_from(key, suffix, json!(number));
    }
    if let Some(cap) = keys.float("final_logit_softcapping")?.filter(|cap| *cap != 0.0) {
        keys.put_from("final_logit_softcapping", "final_logit_softcapping", json!(cap));
    }
    heads(keys)?;
    keys.put("attention_bias", json!(keys.any_has("attn_q.bias")));
    let kind = |own: &KindKeys, keys: &Keys<'_>| -> Result<Value, FormatError> {
        let theta = keys.float(own.freq_base)?.unwrap_or(own.usual_base);
        Ok(json!({"rope_type": "default", "rope_theta": theta}))
    };
    let (full, sliding) = (kind(&FULL, keys)?, kind(&SLIDING, keys)?);
    keys.put(rope::ROPE, json!({rope::FULL: full, rope::SLIDING: sliding}));
    refuse_scaling(keys)
}

/// Writes the types of layers and the heads of each.
fn heads(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let pattern = "attention.sliding_window_pattern";
    let slides = keys.bools(pattern)?;
    let slides = slides.ok_or_else(|| keys.refuse(pattern, "be a list of booleans"))?;
    let (full, sliding) = (head_dim(keys, &FULL)?, head_dim(keys, &SLIDING)?);
    let count = "attention.head_count_kv";
    let counts = match keys.numbers(count)? {
        Some(counts) => counts,
        None => vec![keys.required(count)?; slides.len()],
    };
    let layers = slides.iter().zip(&counts).enumerate().map(|(i, (slides, n_kv_heads))| {
        let head_dim = if *slides { sliding } else { full };
        (i.to_string(), json!({"head_dim": head_dim, "num_key_value_heads": n_kv_heads}))
    });
    let layers: Map<String, Value> = layers.collect();
    keys.put_from("per_layer_config", count, Value::Object(layers));
    keys.put_from("head_dim", SLIDING.key_length, json!(sliding));
    keys.put_from("num_key_value_heads", count, json!(counts.first()));
    let types: Vec<&str> =
        slides.iter().map(|slides| if *slides { rope::SLIDING } else { rope::FULL }).collect();
    keys.put_from("layer_types", pattern, json!(types));
    let with_values = keys.layers_with("attn_v.weight");
    let mut full_layers = (0..slides.len()).filter(|layer| !slides[*layer]);
    keys.put("attention_k_eq_v", json!(!full_layers.any(|layer| with_values.contains(&layer))));
    Ok(())
}

/// The columns of a head, all of which are rotated.
fn head_dim(keys: &Keys<'_>, kind: &KindKeys) -> Result<usize, FormatError> {
    let head_dim = keys.required(kind.key_length)?;
    for other in [kind.value_length, kind.rotated] {
        if keys.number(other)?.is_some_and(|number| number != head_dim) {
            let rule = format!("equal {}, which is {head_dim}", keys.key(kind.key_length));
            return Err(keys.refuse(other, &rule));
        }
    }
    Ok(head_dim)
}

/// Refuses stretched positions.
fn refuse_scaling(keys: &Keys<'_>) -> Result<(), FormatError> {
    let (kind, factor) = ("rope.scaling.type", "rope.scaling.factor");
    if keys.text(kind)?.is_some_and(|kind| kind != "none" && kind != "linear") {
        return Err(keys.refuse(kind, "be \"none\" for this architecture"));
    }
    match keys.float(factor)? {
        None | Some(0.0 | 1.0) => Ok(()),
        Some(_) => Err(keys.refuse(factor, "be 1 for this architecture")),
    }
}
