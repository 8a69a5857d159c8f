//! Canonical tensor names, and which tensors are left aside.

use super::Config;

/// Wrappers that exporters put around the language model; first match wins.
const PREFIXES: [&str; 4] =
    ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// Parts of a checkpoint that text generation does not use, by the first
/// component of the canonical name.
const SKIPPED_PARTS: [&str; 6] = [
    "visual",       // Qwen's vision tower
    "vision_tower", // MLX's and LLaVA's
    "vision_model",
    "vision_embed_tokens",
    "multi_modal_projector",
    "audio_tower",
];

/// What predicts several tokens at once, by the first component of the canonical name.
const MTP_PARTS: [&str; 2] = ["mtp", "mtp_layers"];

/// Buffers that old exporters saved though they follow from the config.
const SKIPPED_SUFFIXES: [&str; 1] = [".rotary_emb.inv_freq"];

/// The name without wrappers: `layers.0.mlp.gate.weight`, `lm_head.weight`.
pub fn canonical_name(name: &str) -> &str {
    PREFIXES.iter().find_map(|it| name.strip_prefix(it)).unwrap_or(name)
}

/// Which tensors of a checkpoint are left aside, and which may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SkipRule {
    /// Layers from here on predict several tokens at once (DeepSeek-V3).
    first_mtp_layer: Option<usize>,
    /// An `lm_head` beside tied embeddings repeats them.
    tied: bool,
}

impl SkipRule {
    pub(crate) fn new(config: &Config) -> SkipRule {
        let has_mtp = config.usize_or("num_nextn_predict_layers", 0).is_ok_and(|it| it > 0);
        let n_layers = config.usize("num_hidden_layers").ok();
        let tied = config.bool_or("tie_word_embeddings", false).unwrap_or(false);
        SkipRule { first_mtp_layer: n_layers.filter(|_| has_mtp), tied }
    }

    /// Whether the tensor of that canonical name is left aside.
    pub(crate) fn skips(&self, name: &str) -> bool {
        let first = name.split('.').next().unwrap_or_default();
        SKIPPED_PARTS.contains(&first)
            || SKIPPED_SUFFIXES.iter().any(|it| name.ends_with(it))
            || (self.tied && first == "lm_head")
    }

    /// Whether it belongs to multi-token prediction, which a model runs without.
    pub(crate) fn is_optional(&self, name: &str) -> bool {
        let mut parts = name.split('.');
        let first = parts.next().unwrap_or_default();
        let layer = parts.next().and_then(|it| it.parse::<usize>().ok());
        let is_mtp_layer = match (first, layer, self.first_mtp_layer) {
            ("layers", Some(layer), Some(first_mtp)) => layer >= first_mtp,
            _ => false,
        };
        MTP_PARTS.contains(&first) || is_mtp_layer
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    fn rule(config: Value) -> SkipRule {
        let config = Config::from_value(Path::new("config.json"), config).expect("an object");
        SkipRule::new(&config)
    }

    #[track_caller]
    fn check(config: Value, name: &str, want: Option<&str>) {
        let canonical = canonical_name(name);
        let got = (!rule(config).skips(canonical)).then_some(canonical);
        assert_eq!(got, want, "{name}");
    }

    #[test]
    fn strips_the_wrappers_of_every_exporter() {
        for prefix in ["", "model.", "model.language_model.", "language_model.model."] {
            let name = format!("{prefix}layers.3.mlp.gate.weight");
            check(json!({}), &name, Some("layers.3.mlp.gate.weight"));
        }
        check(json!({}), "language_model.lm_head.weight", Some("lm_head.weight"));
        check(json!({}), "lm_head.weight", Some("lm_head.weight"));
    }

    #[test]
    fn leaves_vision_aside() {
        for name in ["model.visual.blocks.0.x", "visual.x", "vision_tower.x"] {
            check(json!({}), name, None);
        }
    }

    #[test]
    fn does_without_multi_token_prediction_under_any_wrapper() {
        for name in ["mtp.fc.weight", "model.mtp.norm.weight", "language_model.mtp.norm.weight"] {
            let canonical = canonical_name(name);
            assert!(rule(json!({})).is_optional(canonical), "{name}");
            check(json!({}), name, Some(canonical));
        }
    }

    #[test]
    fn does_without_layers_past_the_last_only_where_the_config_explains_them() {
        let name = canonical_name("model.layers.61.mlp.gate.weight");
        let mtp = json!({"num_hidden_layers": 61, "num_nextn_predict_layers": 1});
        assert!(rule(mtp.clone()).is_optional(name));
        assert!(!rule(mtp).is_optional("layers.60.mlp.gate.weight"));
        assert!(!rule(json!({"num_hidden_layers": 61})).is_optional(name));
    }

    #[test]
    fn leaves_a_tied_head_aside() {
        check(json!({"tie_word_embeddings": true}), "lm_head.weight", None);
    }
}
