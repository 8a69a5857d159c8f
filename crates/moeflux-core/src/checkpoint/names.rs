//! Canonical tensor names, and the rules for tensors that are skipped.

use super::Config;
use crate::dialects::Dialects;

/// Prefixes that exporters put before the language model's names; the first match wins, and those of
/// families come last.
const PREFIXES: [&str; 4] =
    ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// Parts of a checkpoint that text generation does not use, by the first
/// component of the canonical name.
const SKIPPED_PARTS: [&str; 7] = [
    "visual",
    "vision_tower", // MLX's and LLaVA's
    "vision_model",
    "vision_embed_tokens",
    "multi_modal_projector",
    "audio_tower",
    "mlp1", // InternVL's projector
];

/// Parts that predict several tokens at once, by the first component of the canonical name.
const MTP_PARTS: [&str; 2] = ["mtp", "mtp_layers"];

/// Buffers that follow from the config, and scales for quantised activations and caches, by the
/// last component of the name. A model that computes in floats needs neither.
const SKIPPED_BUFFERS: [&str; 16] = [
    "inv_freq",
    "original_inv_freq",
    "cos_cached",
    "sin_cached",
    "input_scale",
    "input_global_scale",
    "weight_shape",
    "activation_scale",
    "output_scale",
    "q_scale",
    "k_scale",
    "v_scale",
    "prob_output_scale",
    "prob_scale",
    "kv_scale",
    "kv_cache_scaling_factor",
];

/// Projections of experts, after which an underscore may stand where other names have a dot:
/// `experts.gate_up_proj_input_scale`, `experts.3.down_proj_shape`.
const PROJECTIONS: [&str; 7] =
    ["gate_up_proj_", "gate_proj_", "up_proj_", "down_proj_", "w1_", "w2_", "w3_"];

/// The name without the prefixes: `layers.0.mlp.gate.weight`, `lm_head.weight`.
pub(crate) fn canonical_name<'a>(name: &'a str, dialects: &Dialects) -> &'a str {
    let mut prefixes = PREFIXES.iter().chain(&dialects.prefixes);
    prefixes.find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// Which tensors of a checkpoint are skipped, and which are optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SkipRule {
    /// The first of the layers that predict several tokens at once.
    first_mtp_layer: Option<usize>,
    /// Parts that families skip.
    skipped_parts: Vec<&'static str>,
    /// Parts of multi-token prediction that families have.
    mtp_parts: Vec<&'static str>,
}

impl SkipRule {
    pub(crate) fn new(config: &Config, dialects: &Dialects) -> SkipRule {
        // transformers 5 saves the key under the second name.
        let has_mtp = ["num_nextn_predict_layers", "num_mtp_layers"]
            .iter()
            .any(|key| config.usize_or(key, 0).is_ok_and(|n| n > 0));
        let n_layers = config.usize("num_hidden_layers").ok();
        SkipRule {
            first_mtp_layer: n_layers.filter(|_| has_mtp),
            skipped_parts: dialects.skipped_parts.clone(),
            mtp_parts: dialects.mtp_parts.clone(),
        }
    }

    /// Whether the tensor with this canonical name is skipped.
    pub(crate) fn skips(&self, name: &str) -> bool {
        let last = name.rsplit('.').next().unwrap_or_default();
        let of_experts = || {
            let rest = PROJECTIONS.iter().find_map(|name| last.strip_prefix(name));
            rest.is_some_and(|rest| rest == "shape" || SKIPPED_BUFFERS.contains(&rest))
        };
        self.is_other_part(name) || SKIPPED_BUFFERS.contains(&last) || of_experts()
    }

    /// Whether the tensor is a weight of a part of the model that is not its text, such as a vision tower.
    pub(crate) fn is_other_part(&self, name: &str) -> bool {
        let first = name.split('.').next().unwrap_or_default();
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_part = SKIPPED_PARTS.contains(&first) || self.skipped_parts.contains(&first);
        is_part && !SKIPPED_BUFFERS.contains(&last)
    }

    /// Whether the tensor belongs to multi-token prediction, without which a model runs.
    pub(crate) fn is_optional(&self, name: &str) -> bool {
        let mut parts = name.split('.');
        let first = parts.next().unwrap_or_default();
        let layer = parts.next().and_then(|idx| idx.parse::<usize>().ok());
        let is_mtp_layer = match (first, layer, self.first_mtp_layer) {
            ("layers", Some(layer), Some(first_mtp)) => layer >= first_mtp,
            _ => false,
        };
        let is_mtp_part = MTP_PARTS.contains(&first) || self.mtp_parts.contains(&first);
        is_mtp_part || is_mtp_layer
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    fn dialects() -> Dialects {
        Dialects {
            prefixes: vec!["trunk."],
            skipped_parts: vec!["embed_scent"],
            mtp_parts: vec!["mtp_block", "mtp_linear_proj"],
            ..Dialects::default()
        }
    }

    fn rule(config: Value) -> SkipRule {
        let config = Config::from_value(Path::new("config.json"), config).expect("an object");
        SkipRule::new(&config, &dialects())
    }

    #[track_caller]
    fn check(config: Value, name: &str, want: Option<&str>) {
        let dialects = dialects();
        let canonical = canonical_name(name, &dialects);
        let got = (!rule(config).skips(canonical)).then_some(canonical);
        assert_eq!(got, want, "{name}");
    }

    #[test]
    fn strips_the_wrappers_of_every_exporter() {
        for prefix in ["", "model.", "model.language_model.", "language_model.model.", "trunk."] {
            let name = format!("{prefix}layers.3.mlp.gate.weight");
            check(json!({}), &name, Some("layers.3.mlp.gate.weight"));
        }
        check(json!({}), "language_model.lm_head.weight", Some("lm_head.weight"));
        check(json!({}), "lm_head.weight", Some("lm_head.weight"));
    }

    #[test]
    fn leaves_vision_aside() {
        for name in [
            "model.visual.blocks.0.x",
            "visual.x",
            "vision_tower.x",
            "model.embed_scent.embedding_projection.weight",
        ] {
            check(json!({}), name, None);
        }
    }

    #[test]
    fn does_without_multi_token_prediction_under_any_wrapper() {
        for name in [
            "mtp.fc.weight",
            "model.mtp.norm.weight",
            "language_model.mtp.norm.weight",
            "model.mtp_block.0.mlp.gate_proj.weight",
            "model.mtp_linear_proj.0.weight",
        ] {
            let (dialects, rule) = (dialects(), rule(json!({})));
            let canonical = canonical_name(name, &dialects);
            assert!(rule.is_optional(canonical), "{name}");
            check(json!({}), name, Some(canonical));
        }
    }

    #[test]
    fn does_without_layers_past_the_last_only_where_the_config_explains_them() {
        let name = canonical_name("model.layers.61.mlp.gate.weight", &Dialects::default());
        let mtp = json!({"num_hidden_layers": 61, "num_nextn_predict_layers": 1});
        assert!(rule(mtp.clone()).is_optional(name));
        assert!(!rule(mtp).is_optional("layers.60.mlp.gate.weight"));
        assert!(!rule(json!({"num_hidden_layers": 61})).is_optional(name));
    }

    #[test]
    fn leaves_aside_what_follows_from_the_config_and_scales_of_caches() {
        for name in [
            "model.rotary_emb.inv_freq",
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "layers.1.self_attn.rotary_emb.cos_cached",
            "model.layers.0.self_attn.k_proj.k_scale",
            "model.layers.0.self_attn.attn.v_scale",
            "model.layers.0.mlp.experts.3.up_proj.input_scale",
            "model.layers.0.mlp.experts.gate_up_proj_input_scale",
            "model.language_model.layers.0.experts.down_proj_shape",
            "model.language_model.layers.0.experts.3.up_proj_shape",
            "model.layers.0.block_sparse_moe.experts.3.w2_input_global_scale",
        ] {
            check(json!({}), name, None);
        }
        for name in ["layers.0.self_attn.k_proj.weight_scale", "layers.0.mlp.k_scaled"] {
            check(json!({}), name, Some(name));
        }
    }
}
