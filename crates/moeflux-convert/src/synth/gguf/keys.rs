//! The keys of a GGUF file for a config, as llama.cpp's converter writes them.

use moeflux_core::checkpoint::{Config, FormatError};
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::routing::Gating;
use moeflux_core::manifest::Manifest;

use super::header::{Key, Value};
use crate::synth::text::{Vocabulary, special};

/// Kinds of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// A model whose keys are written.
pub(super) struct Model<'a> {
    pub(super) config: &'a Config,
    pub(super) manifest: &'a Manifest,
    pub(super) architecture: &'static Architecture,
    /// Layers without those of multi-token prediction.
    pub(super) n_layers: usize,
    pub(super) n_nextn: usize,
}

/// Keys of the number of shared experts.
const SHARED: &[&str] = &["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"];

/// Numbers of experts: the names that configs have, and that of files.
const COUNTS: &[(&[&str], &str)] = &[
    (&["n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"], "expert_count"),
    (&["top_k_experts", "num_experts_per_tok", "moe_k"], "expert_used_count"),
    (&["moe_intermediate_size", "intermediate_size"], "expert_feed_forward_length"),
    (&["shared_expert_intermediate_size"], "expert_shared_feed_forward_length"),
    (SHARED, "expert_shared_count"),
    (&["n_group"], "expert_group_count"),
    (&["topk_group"], "expert_group_used_count"),
    (&["first_k_dense_replace", "moe_layer_start_index"], "leading_dense_block_count"),
    (&["moe_layer_interval"], "interleave_moe_layer_step"),
];

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
    if model.has("hc_count") {
        writer.streams()?;
    }
    if model.has("hc_mult") {
        writer.mixed_streams()?;
    }
    if model.has("compress_ratios") {
        writer.compressed()?;
    }
    if model.has("index_topk") {
        writer.copy("index_n_heads", "attention.indexer.head_count")?;
        writer.copy("index_head_dim", "attention.indexer.key_length")?;
        writer.copy("index_topk", "attention.indexer.top_k")?;
    }
    writer.tokenizer()?;
    Ok(writer.keys)
}

/// A count of a shape in 32 bits.
fn signed(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

fn written(text: &str) -> Value {
    Value::Text(text.to_owned())
}

impl Model<'_> {
    fn has(&self, key: &str) -> bool {
        self.config.get(key).is_some()
    }

    /// The first of some keys that the config has.
    fn first(&self, keys: &[&'static str]) -> &'static str {
        self.found(keys).unwrap_or(keys[0])
    }

    /// The first of some keys that the config has, if it has one.
    fn found(&self, keys: &[&'static str]) -> Option<&'static str> {
        keys.iter().copied().find(|key| self.has(key))
    }

    /// The constants of the only table, by the end of their name.
    fn constants(&self, end: &str) -> Option<&[u64]> {
        let found = self.manifest.constants.iter().find(|decl| decl.name.ends_with(end));
        found.map(|decl| &decl.values[..])
    }

    /// Columns of the keys of latent attention that all heads share; there may be none.
    fn rope_dim(&self) -> Result<usize, FormatError> {
        self.config.usize_in("qk_rope_head_dim", 0..=1 << 14)
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
        if self.model.has("intermediate_size") && !self.has_blocks() {
            self.copy("intermediate_size", "feed_forward_length")?;
        }
        let eps = self.model.first(&["rms_norm_eps", "layer_norm_epsilon"]);
        let eps = Value::F32(config.f32(eps)?);
        self.put("attention.layer_norm_rms_epsilon", eps);
        if self.model.has("sliding_window") {
            self.copy("sliding_window", "attention.sliding_window")?;
        }
        if self.model.has("sliding_window_pattern") {
            let period = config.usize("sliding_window_pattern")?;
            let slides = (1..=n_layers + n_nextn).map(|i| !i.is_multiple_of(period)).collect();
            self.put("attention.sliding_window_pattern", Value::Bools(slides));
        }
        Ok(())
    }

    fn grouped(&mut self) -> Result<(), FormatError> {
        if !self.has_blocks() {
            self.copy("num_key_value_heads", "attention.head_count_kv")?;
        }
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
        let (rank, rope) = (number("kv_lora_rank")?, self.model.rope_dim()?);
        let (nope, values) = (number("qk_nope_head_dim")?, number("v_head_dim")?);
        self.latent_heads()?;
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

    /// Heads of keys: one that all share, and none in layers of Kimi delta attention.
    fn latent_heads(&mut self) -> Result<(), FormatError> {
        let Model { config, n_layers, .. } = *self.model;
        let kinds = config.str_list("layer_types")?;
        let Some(kinds) = kinds.filter(|_| self.model.has("linear_head_dim")) else {
            self.count("attention.head_count_kv", 1);
            return Ok(());
        };
        let attends = |kind: &&str| i32::from(*kind != "linear_attention");
        let heads = kinds.iter().take(n_layers).map(attends).collect();
        self.put("attention.head_count_kv", Value::I32s(heads));
        self.copy("linear_conv_kernel_dim", "ssm.conv_kernel")?;
        self.copy("linear_head_dim", "kda.head_dim")
    }

    fn rope(&mut self) -> Result<(), FormatError> {
        let config = self.model.config;
        let theta = config.rope_f32("rope_theta")?.unwrap_or(10_000.0);
        self.put("rope.freq_base", Value::F32(theta));
        let n_rotated = if self.model.has("qk_rope_head_dim") {
            self.model.rope_dim()?
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
        for (keys, to) in COUNTS {
            if let Some(from) = model.found(keys) {
                let n = model.config.usize_in(from, 0..=u32::MAX as usize)?;
                self.count(to, n);
            }
        }
        if let Some(scale) = model.found(&["routed_scaling_factor", "router_scaling_factor"]) {
            self.put("expert_weights_scale", Value::F32(model.config.f32(scale)?));
        }
        if model.found(SHARED).is_some() {
            // Families of sigmoids whose configs do not say it make the weights add up to 1.
            let is_usual = model.architecture.gating == Some(Gating::Sigmoid);
            let normalises = model.config.bool_or("norm_topk_prob", is_usual)?;
            self.put("expert_weights_norm", Value::Bool(normalises));
        }
        if let Some(gating) = model.architecture.gating {
            self.put("expert_gating_func", Value::U32(gating as u32));
        }
        Ok(())
    }

    /// A residual of several streams, sparse attention, and a table of n-grams.
    fn streams(&mut self) -> Result<(), FormatError> {
        for (from, to) in [
            ("hc_count", "hyper_connection.count"),
            ("hc_lowrank", "hyper_connection.low_rank"),
            ("indexer_n_heads", "attention.indexer.head_count"),
            ("indexer_head_dim", "attention.indexer.key_length"),
            ("indexer_budget", "attention.indexer.top_k"),
        ] {
            self.copy(from, to)?;
        }
        let Model { config, manifest, n_layers, .. } = *self.model;
        let interval = config.usize("full_attention_interval")?;
        let ratio = signed(config.usize("indexer_compress_ratio")?);
        let of_layer = |i: usize| if i.is_multiple_of(interval) { ratio } else { 0 };
        let ratios = (1..=n_layers).map(of_layer).collect();
        self.put("attention.compress_ratios", Value::I32s(ratios));
        let Some(table) = manifest.tables.first() else { return Ok(()) };
        self.count("embedding_length_per_layer_input", table.cols);
        for (from, to) in [
            ("ngram_size", "ple.ngram_size"),
            ("heads_per_ngram", "ple.heads_per_ngram"),
            ("ple_conv_kernel_size", "ple.conv_kernel"),
            ("eos_token_id", "ple.eos_token_id"),
        ] {
            self.copy(from, to)?;
        }
        // Files count layers from 0.
        let layers = config.usize_list("ple_layer_ids")?.unwrap_or_default();
        let layers = layers.iter().map(|layer| signed(layer.saturating_sub(1))).collect();
        self.put("ple.layers", Value::I32s(layers));
        for (from, to) in [
            ("layer_multipliers", "ple.layer_multipliers"),
            ("ngram_heads_vocab_sizes", "ple.head_vocab_sizes"),
            ("ngram_heads_offsets", "ple.head_offsets"),
        ] {
            let all = self.model.constants(from).unwrap_or_default();
            let all = all.iter().map(|number| i64::try_from(*number).unwrap_or(i64::MAX)).collect();
            self.put(to, Value::I64s(all));
        }
        Ok(())
    }

    /// Streams that layers mix, pools of positions, bounds of decays and of activations.
    fn mixed_streams(&mut self) -> Result<(), FormatError> {
        let Model { config, n_layers, n_nextn, .. } = *self.model;
        self.copy("hc_mult", "hyper_connection.count")?;
        self.copy("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations")?;
        if self.model.has("index_kpool") {
            self.copy("index_kpool", "attention.indexer.kpool")?;
            self.put("attention.indexer.kpool_select_tail", Value::Bool(true));
        }
        let eps = if self.model.has("hc_eps") { config.f32("hc_eps")? } else { 1e-6 };
        self.put("hyper_connection.epsilon", Value::F32(eps));
        if let Some(bound) = config.get("linear_lower_bound").and_then(|value| value.as_f64()) {
            self.put("kda.gate_lower_bound", Value::F32(bound as f32));
        }
        let limit = config.f32("swiglu_limit")?;
        for key in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
            self.put(key, Value::F32s(vec![limit; n_layers + n_nextn]));
        }
        Ok(())
    }

    /// Entries that stand for several positions, outputs in groups, and experts that follow from tokens.
    fn compressed(&mut self) -> Result<(), FormatError> {
        let config = self.model.config;
        for (from, to) in [
            ("q_lora_rank", "attention.q_lora_rank"),
            ("o_groups", "attention.output_group_count"),
            ("o_lora_rank", "attention.output_lora_rank"),
            ("num_hash_layers", "hash_layer_count"),
        ] {
            let n = config.usize_in(from, 0..=u32::MAX as usize)?;
            self.count(to, n);
        }
        let ratios = config.usize_list("compress_ratios")?.unwrap_or_default();
        let ratios = ratios.into_iter().map(signed).collect();
        self.put("attention.compress_ratios", Value::I32s(ratios));
        let theta = Value::F32(config.f32("compress_rope_theta")?);
        self.put("attention.compress_rope_freq_base", theta);
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
        let eps = Value::F32(config.f32("layer_norm_epsilon")?);
        self.put("attention.layer_norm_epsilon", eps);
        self.blocks()
    }

    /// Whether lists say what each layer is.
    fn has_blocks(&self) -> bool {
        self.model.has("ssm_state_size")
    }

    /// Lists that say what each layer is: one of attention has heads of keys, one of experts a width,
    /// one of Mamba neither.
    fn blocks(&mut self) -> Result<(), FormatError> {
        let Model { config, n_layers, .. } = *self.model;
        let (heads, width) =
            (config.usize("num_key_value_heads")?, config.usize("moe_intermediate_size")?);
        let pattern = config.str("hybrid_override_pattern")?;
        let blocks: Vec<char> = pattern.chars().take(n_layers).collect();
        let listed = |letter: char, n: usize| {
            let value = |block: &char| if *block == letter { signed(n) } else { 0 };
            Value::I32s(blocks.iter().map(value).collect())
        };
        self.put("attention.head_count_kv", listed('*', heads));
        self.put("feed_forward_length", listed('E', width));
        Ok(())
    }

    fn tokenizer(&mut self) -> Result<(), FormatError> {
        let vocabulary = Vocabulary::of(self.model.config)?;
        let words = vocabulary.words();
        let kind = |word: &String| match special(word) {
            None => NORMAL,
            Some(false) => USER_DEFINED,
            Some(true) => CONTROL,
        };
        let kinds = words.iter().map(kind).collect();
        let eos = Value::count(vocabulary.end_of_turn());
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
        self.keys.push(("tokenizer.chat_template".to_owned(), written(vocabulary.template())));
        Ok(())
    }
}
