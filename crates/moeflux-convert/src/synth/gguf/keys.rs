//! The keys of a GGUF file for a config, as llama.cpp's converter writes them.

use moeflux_core::checkpoint::{Config, FormatError};
use moeflux_core::gguf::Architecture;

use super::header::{Key, Value};
use crate::synth::text;

/// Kinds of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// A model whose keys are written.
pub(super) struct Model<'a> {
    pub(super) config: &'a Config,
    pub(super) architecture: &'static Architecture,
    /// Layers without those of multi-token prediction.
    pub(super) n_layers: usize,
    pub(super) n_nextn: usize,
}

/// Collects keys of an architecture.
struct Writer<'a> {
    model: &'a Model<'a>,
    keys: Vec<Key>,
}

/// All keys of a model, its vocabulary included.
pub(super) fn keys(model: &Model<'_>, name: &str) -> Result<Vec<Key>, FormatError> {
    let general = |key: &str, value: &str| (format!("general.{key}"), written(value));
    let first = vec![
        general("architecture", model.architecture.name),
        general("type", "model"),
        general("name", name),
    ];
    let mut writer = Writer { model, keys: first };
    writer.common()?;
    let has_two_kinds = model.has("global_head_dim");
    if has_two_kinds {
        writer.two_kinds()?;
    } else if model.has("kv_lora_rank") {
        writer.latent()?;
    } else {
        writer.grouped()?;
    }
    if !has_two_kinds {
        writer.rope()?;
    }
    if model.has("residual_multiplier") {
        writer.factors()?;
    }
    writer.routing()?;
    if model.has("linear_num_value_heads") {
        writer.delta()?;
    }
    if model.has("ssm_state_size") {
        writer.state_space()?;
    }
    if model.has("index_topk") {
        writer.copy("index_n_heads", "attention.indexer.head_count")?;
        writer.copy("index_head_dim", "attention.indexer.key_length")?;
        writer.copy("index_topk", "attention.indexer.top_k")?;
    }
    writer.tokenizer()?;
    Ok(writer.keys)
}

fn written(text: &str) -> Value {
    Value::Text(text.to_owned())
}

impl Model<'_> {
    fn has(&self, key: &str) -> bool {
        self.config.get(key).is_some()
    }

    /// The first of some keys that the config has.
    fn first(&self, keys: [&'static str; 3]) -> &'static str {
        keys.into_iter().find(|key| self.has(key)).unwrap_or(keys[2])
    }

    /// Columns of a head, where latent attention has none.
    fn head_dim(&self) -> Result<usize, FormatError> {
        if self.has("head_dim") {
            self.config.usize("head_dim")
        } else {
            Ok(self.config.usize("hidden_size")? / self.config.usize("num_attention_heads")?)
        }
    }
}

impl Writer<'_> {
    fn put(&mut self, key: &str, value: Value) {
        self.keys.push((format!("{}.{key}", self.model.architecture.name), value));
    }

    fn count(&mut self, key: &str, n: usize) {
        self.put(key, Value::count(n));
    }

    fn copy(&mut self, from: &str, to: &str) -> Result<(), FormatError> {
        let n = self.model.config.usize(from)?;
        self.count(to, n);
        Ok(())
    }

    fn common(&mut self) -> Result<(), FormatError> {
        let Model { config, n_layers, n_nextn, .. } = *self.model;
        self.count("block_count", n_layers + n_nextn);
        if n_nextn > 0 {
            self.count("nextn_predict_layers", n_nextn);
        }
        self.copy("max_position_embeddings", "context_length")?;
        self.copy("hidden_size", "embedding_length")?;
        self.copy("vocab_size", "vocab_size")?;
        self.copy("num_attention_heads", "attention.head_count")?;
        if self.model.has("intermediate_size") {
            self.copy("intermediate_size", "feed_forward_length")?;
        }
        let eps = self.model.first(["layer_norm_epsilon", "rms_norm_eps", "rms_norm_eps"]);
        let eps = Value::F32(config.f32(eps)?);
        self.put("attention.layer_norm_rms_epsilon", eps);
        if self.model.has("sliding_window") {
            self.copy("sliding_window", "attention.sliding_window")?;
        }
        Ok(())
    }

    fn grouped(&mut self) -> Result<(), FormatError> {
        self.copy("num_key_value_heads", "attention.head_count_kv")?;
        let head_dim = self.model.head_dim()?;
        self.count("attention.key_length", head_dim);
        self.count("attention.value_length", head_dim);
        Ok(())
    }

    /// Layers of two kinds, of which every sixth and the last see all positions.
    fn two_kinds(&mut self) -> Result<(), FormatError> {
        const PERIOD: usize = 6;
        let Model { config, n_layers, .. } = *self.model;
        let slides: Vec<bool> =
            (1..=n_layers).map(|i| !i.is_multiple_of(PERIOD) && i < n_layers).collect();
        let kv_heads =
            [config.usize("num_global_key_value_heads")?, config.usize("num_key_value_heads")?];
        let count =
            |slides: &bool| i32::try_from(kv_heads[usize::from(*slides)]).unwrap_or(i32::MAX);
        self.put("attention.head_count_kv", Value::I32s(slides.iter().map(count).collect()));
        self.put("attention.sliding_window_pattern", Value::Bools(slides));
        for (key, ending) in [("global_head_dim", ""), ("head_dim", "_swa")] {
            self.copy(key, &format!("attention.key_length{ending}"))?;
            self.copy(key, &format!("attention.value_length{ending}"))?;
            self.copy(key, &format!("rope.dimension_count{ending}"))?;
        }
        self.put("rope.freq_base", Value::F32(1_000_000.0));
        self.put("rope.freq_base_swa", Value::F32(10_000.0));
        self.put("final_logit_softcapping", Value::F32(config.f32("final_logit_softcapping")?));
        self.count("embedding_length_per_layer_input", 0);
        self.count("attention.shared_kv_layers", 0);
        Ok(())
    }

    /// Factors of embeddings, of what joins the residual, of scores and of logits.
    fn factors(&mut self) -> Result<(), FormatError> {
        let keys = [
            ("attention_multiplier", "attention.scale"),
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
        ];
        for (from, to) in keys {
            self.put(to, Value::F32(self.model.config.f32(from)?));
        }
        Ok(())
    }

    fn latent(&mut self) -> Result<(), FormatError> {
        let number = |key: &str| self.model.config.usize(key);
        let (rank, rope) = (number("kv_lora_rank")?, number("qk_rope_head_dim")?);
        let (nope, values) = (number("qk_nope_head_dim")?, number("v_head_dim")?);
        self.count("attention.head_count_kv", 1);
        self.count("attention.key_length", rank + rope);
        self.count("attention.value_length", rank);
        self.count("attention.key_length_mla", nope + rope);
        self.count("attention.value_length_mla", values);
        self.count("attention.kv_lora_rank", rank);
        if self.model.has("q_lora_rank") {
            self.copy("q_lora_rank", "attention.q_lora_rank")?;
        }
        Ok(())
    }

    fn rope(&mut self) -> Result<(), FormatError> {
        let config = self.model.config;
        let theta = config.rope_f32("rope_theta")?.unwrap_or(10_000.0);
        self.put("rope.freq_base", Value::F32(theta));
        let n_rotated = if self.model.has("kv_lora_rank") {
            config.usize("qk_rope_head_dim")?
        } else if self.model.has("rotary_dim") {
            config.usize("rotary_dim")?
        } else {
            let part = config.rope_f32("partial_rotary_factor")?.unwrap_or(1.0);
            (self.model.head_dim()? as f32 * part) as usize
        };
        self.count("rope.dimension_count", n_rotated);
        if self.model.architecture.has_sections {
            // Pairs for time, height and width; a text has one position for all.
            let pairs = n_rotated as i32 / 2;
            let third = pairs / 3;
            let sections = vec![pairs - 2 * third, third, third, 0];
            self.put("rope.dimension_sections", Value::I32s(sections));
        }
        let Some(factor) = config.rope_f32("factor")? else { return Ok(()) };
        self.put("rope.scaling.type", written("yarn"));
        self.put("rope.scaling.factor", Value::F32(factor));
        for (from, to) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
            if let Some(value) = config.rope_f32(from)? {
                self.put(&format!("rope.scaling.{to}"), Value::F32(value));
            }
        }
        if let Some(original) = config.rope_f32("original_max_position_embeddings")? {
            self.count("rope.scaling.original_context_length", original as usize);
        }
        if let Some(scale) = config.rope_f32("mscale_all_dim")? {
            // Files have a tenth of it.
            self.put("rope.scaling.yarn_log_multiplier", Value::F32(0.1 * scale));
        }
        Ok(())
    }

    fn routing(&mut self) -> Result<(), FormatError> {
        let model = self.model;
        let count = model.first(["n_routed_experts", "num_local_experts", "num_experts"]);
        self.copy(count, "expert_count")?;
        let top_k = model.first(["top_k_experts", "num_experts_per_tok", "num_experts_per_tok"]);
        self.copy(top_k, "expert_used_count")?;
        let len = model.first(["moe_intermediate_size", "intermediate_size", "intermediate_size"]);
        self.copy(len, "expert_feed_forward_length")?;
        if model.has("shared_expert_intermediate_size") {
            self.copy("shared_expert_intermediate_size", "expert_shared_feed_forward_length")?;
        }
        if model.has("n_shared_experts") {
            self.copy("n_shared_experts", "expert_shared_count")?;
            self.copy("n_group", "expert_group_count")?;
            self.copy("topk_group", "expert_group_used_count")?;
            if model.has("first_k_dense_replace") {
                self.copy("first_k_dense_replace", "leading_dense_block_count")?;
            }
            let scale = model.config.f32("routed_scaling_factor")?;
            self.put("expert_weights_scale", Value::F32(scale));
            let normalises = model.config.bool("norm_topk_prob")?;
            self.put("expert_weights_norm", Value::Bool(normalises));
        }
        if let Some(gating) = model.architecture.gating {
            self.put("expert_gating_func", Value::U32(gating as u32));
        }
        Ok(())
    }

    fn delta(&mut self) -> Result<(), FormatError> {
        let Model { config, n_layers, n_nextn, .. } = *self.model;
        self.copy("linear_conv_kernel_dim", "ssm.conv_kernel")?;
        self.copy("linear_key_head_dim", "ssm.state_size")?;
        self.copy("linear_num_key_heads", "ssm.group_count")?;
        self.copy("linear_num_value_heads", "ssm.time_step_rank")?;
        let n_heads = config.usize("linear_num_value_heads")?;
        self.count("ssm.inner_size", n_heads * config.usize("linear_value_head_dim")?);
        let interval = config.usize("full_attention_interval")?;
        self.count("full_attention_interval", interval);
        let recurs = |layer: usize| layer < n_layers && !(layer + 1).is_multiple_of(interval);
        let layers = (0..n_layers + n_nextn).map(recurs).collect();
        self.put("attention.recurrent_layers", Value::Bools(layers));
        Ok(())
    }

    fn state_space(&mut self) -> Result<(), FormatError> {
        let config = self.model.config;
        self.copy("conv_kernel", "ssm.conv_kernel")?;
        self.copy("ssm_state_size", "ssm.state_size")?;
        self.copy("n_groups", "ssm.group_count")?;
        self.copy("mamba_num_heads", "ssm.time_step_rank")?;
        let n_heads = config.usize("mamba_num_heads")?;
        self.count("ssm.inner_size", n_heads * config.usize("mamba_head_dim")?);
        let shared = "moe_shared_expert_intermediate_size";
        self.copy(shared, "expert_shared_feed_forward_length")?;
        if self.model.has("moe_latent_size") {
            self.copy("moe_latent_size", "moe_latent_size")?;
        }
        Ok(())
    }

    fn tokenizer(&mut self) -> Result<(), FormatError> {
        let vocab = self.model.config.usize("vocab_size")?;
        let words = text::words(vocab);
        let kind = |word: &String| match text::special(word) {
            None => NORMAL,
            Some(false) => USER_DEFINED,
            Some(true) => CONTROL,
        };
        let kinds = words.iter().map(kind).collect();
        let eos = Value::count(text::end_of_turn(vocab));
        let keys = [
            ("model", written("gpt2")),
            ("pre", written("qwen2")),
            ("token_type", Value::I32s(kinds)),
            ("tokens", Value::Texts(words)),
            ("merges", Value::Texts(Vec::new())),
            ("eos_token_id", eos),
            ("add_bos_token", Value::Bool(false)),
        ];
        self.keys.extend(keys.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)));
        self.keys.push(("tokenizer.chat_template".to_owned(), written(text::CHAT_TEMPLATE)));
        Ok(())
    }
}
