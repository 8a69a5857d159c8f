//! The keys that llama.cpp's converter writes.

use serde_json::Value;

use super::tensors::{Tensors, text};
use super::writer::GgufWriter;

/// Whole numbers that are taken over.
const NUMBERS: &[(&str, &str)] = &[
    ("num_hidden_layers", "block_count"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("max_position_embeddings", "context_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("head_dim", "attention.value_length"),
    ("vocab_size", "vocab_size"),
    ("num_experts", "expert_count"),
    ("n_routed_experts", "expert_count"),
    ("moe_num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_k", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ("n_shared_experts", "expert_shared_count"),
    ("num_shared_experts", "expert_shared_count"),
    ("moe_num_shared_experts", "expert_shared_count"),
    ("n_group", "expert_group_count"),
    ("topk_group", "expert_group_used_count"),
    ("first_k_dense_replace", "leading_dense_block_count"),
    ("moe_layer_start_index", "leading_dense_block_count"),
    ("moe_layer_interval", "interleave_moe_layer_step"),
    ("sliding_window", "attention.sliding_window"),
    ("q_lora_rank", "attention.q_lora_rank"),
    ("kv_lora_rank", "attention.kv_lora_rank"),
    ("index_n_heads", "attention.indexer.head_count"),
    ("index_head_dim", "attention.indexer.key_length"),
    ("index_topk", "attention.indexer.top_k"),
    ("o_groups", "attention.output_group_count"),
    ("o_lora_rank", "attention.output_lora_rank"),
    ("num_hash_layers", "hash_layer_count"),
    ("linear_conv_kernel_dim", "ssm.conv_kernel"),
    ("linear_key_head_dim", "ssm.state_size"),
    ("linear_num_key_heads", "ssm.group_count"),
    ("linear_num_value_heads", "ssm.time_step_rank"),
    ("hc_count", "hyper_connection.count"),
    ("hc_lowrank", "hyper_connection.low_rank"),
    ("hc_mult", "hyper_connection.count"),
    ("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
    ("index_kpool", "attention.indexer.kpool"),
    ("indexer_n_heads", "attention.indexer.head_count"),
    ("indexer_head_dim", "attention.indexer.key_length"),
    ("indexer_budget", "attention.indexer.top_k"),
    ("ngram_size", "ple.ngram_size"),
    ("heads_per_ngram", "ple.heads_per_ngram"),
    ("ple_conv_kernel_size", "ple.conv_kernel"),
];

/// Factors of the weights of experts.
const SCALES: [&str; 2] = ["routed_scaling_factor", "router_scaling_factor"];

/// Architectures whose experts are chosen by sigmoids.
const BY_SIGMOID: [&str; 7] =
    ["bailingmoe2", "deepseek2", "exaone-moe", "glm-dsa", "glm4moe", "glm5-next", "hy_v3"];

pub(super) fn keys(file: &mut GgufWriter, architecture: &str, config: &Value, tensors: &Tensors) {
    file.text("general.architecture", architecture).text("general.type", "model");
    Writer { file, architecture, config, tensors }.write();
}

struct Writer<'a> {
    file: &'a mut GgufWriter,
    architecture: &'a str,
    config: &'a Value,
    tensors: &'a Tensors,
}

impl Writer<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    fn number(&self, key: &str) -> Option<u32> {
        self.config[key].as_u64().and_then(|number| u32::try_from(number).ok())
    }

    fn put(&mut self, suffix: &str, number: u32) {
        let key = self.key(suffix);
        self.file.u32(&key, number);
    }

    fn write(mut self) {
        for (from, to) in NUMBERS {
            if let Some(number) = self.number(from) {
                self.put(to, number);
            }
        }
        let eps = self.config["rms_norm_eps"].as_f64().unwrap();
        self.file.f32(&self.key("attention.layer_norm_rms_epsilon"), eps as f32);
        if let Some(scale) = SCALES.iter().find_map(|key| self.config[key].as_f64()) {
            self.file.f32(&self.key("expert_weights_scale"), scale as f32);
        }
        let is_sigmoid =
            BY_SIGMOID.contains(&self.architecture) && self.config["scoring_func"] != "softmax";
        let normalises = self.config["norm_topk_prob"].as_bool().unwrap_or(is_sigmoid);
        self.file.bool(&self.key("expert_weights_norm"), normalises);
        if self.architecture != "ernie4_5-moe" {
            self.put("expert_gating_func", if is_sigmoid { 2 } else { 1 });
        }
        self.rope();
        if self.config["kv_lora_rank"].is_u64() {
            self.latent();
        }
        if let Some(types) = self.config["layer_types"].as_array() {
            let slides: Vec<bool> = types.iter().map(|kind| kind == "sliding_attention").collect();
            let recurs: Vec<bool> = types.iter().map(|kind| kind == "linear_attention").collect();
            self.file.bools(&self.key("attention.sliding_window_pattern"), &slides);
            self.file.bools(&self.key("attention.recurrent_layers"), &recurs);
        }
        match self.architecture {
            // The converter writes a width that is right in one published model.
            "ernie4_5-moe" => self.put("expert_shared_feed_forward_length", 7),
            // The dense layers show in their tensors.
            "hy_v3" => {
                self.file.remove("hy_v3.leading_dense_block_count");
                self.file.remove("hy_v3.expert_shared_count");
                let len = self.number("moe_intermediate_size").unwrap();
                let n = self.number("num_shared_experts").unwrap();
                self.put("expert_shared_feed_forward_length", n * len);
            }
            "qwen4exp" => self.streams(),
            "glm5-next" => self.pools(),
            "deepseek4" => self.entries(),
            _ => {}
        }
    }

    fn rope(&mut self) {
        let rope = self.config.get("rope_parameters");
        let key = |name: &str| {
            rope.and_then(|rope| rope[name].as_f64()).or_else(|| self.config[name].as_f64())
        };
        let theta = key("rope_theta").unwrap_or(10_000.0);
        let part = key("partial_rotary_factor").unwrap_or(1.0);
        let n_heads = self.number("num_attention_heads").unwrap();
        let head_dim = self
            .number("head_dim")
            .unwrap_or_else(|| self.number("hidden_size").unwrap() / n_heads);
        let sections = rope.and_then(|rope| rope["mrope_section"].as_array().cloned());
        self.file.f32(&self.key("rope.freq_base"), theta as f32);
        self.put("rope.dimension_count", (f64::from(head_dim) * part) as u32);
        if let Some(sections) = sections {
            let mut all: Vec<i32> =
                sections.iter().map(|section| section.as_i64().unwrap() as i32).collect();
            all.push(0);
            self.file.i32s(&self.key("rope.dimension_sections"), &all);
        }
        let scaling = &self.config["rope_scaling"];
        if scaling["type"] != "yarn" {
            return;
        }
        self.file.text(&self.key("rope.scaling.type"), "yarn");
        let original = scaling["original_max_position_embeddings"].as_u64().unwrap();
        self.put("rope.scaling.original_context_length", original as u32);
        for (from, to, factor) in [
            ("factor", "factor", 1.0),
            ("beta_fast", "yarn_beta_fast", 1.0),
            ("beta_slow", "yarn_beta_slow", 1.0),
            ("mscale_all_dim", "yarn_log_multiplier", 0.1),
        ] {
            if let Some(value) = scaling[from].as_f64() {
                self.file.f32(&self.key(&format!("rope.scaling.{to}")), (factor * value) as f32);
            }
        }
    }

    fn latent(&mut self) {
        let keys = ["kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"];
        let [rank, rope, nope, values] = keys.map(|key| self.number(key).unwrap());
        self.put("attention.head_count_kv", 1);
        self.put("attention.key_length", rank + rope);
        self.put("attention.value_length", rank);
        self.put("attention.key_length_mla", nope + rope);
        self.put("attention.value_length_mla", values);
        self.put("rope.dimension_count", rope);
    }

    fn pools(&mut self) {
        let config = text(self.config);
        let types = config["layer_types"].as_array().unwrap();
        let kv_heads: Vec<i32> =
            types.iter().map(|kind| i32::from(kind != "linear_attention")).collect();
        let indexers = config["indexer_types"].as_array().unwrap();
        let has_indexer: Vec<bool> = indexers.iter().map(|kind| kind == "full").collect();
        self.file.remove("glm5-next.attention.head_count_kv");
        self.file.i32s(&self.key("attention.head_count_kv"), &kv_heads);
        self.file.bools(&self.key("attention.indexer.types"), &has_indexer);
        self.file.bool(&self.key("attention.indexer.kpool_select_tail"), true);
        let linear = &config["linear_attn_config"];
        for (from, to) in
            [("short_conv_kernel_size", "ssm.conv_kernel"), ("head_dim", "kda.head_dim")]
        {
            self.put(to, linear[from].as_u64().unwrap() as u32);
        }
        self.file.f32(&self.key("kda.gate_lower_bound"), float(linear, "gate_lower_bound"));
        self.mixed_streams();
    }

    fn entries(&mut self) {
        self.put("expert_gating_func", 4);
        self.put("rope.dimension_count", self.number("qk_rope_head_dim").unwrap());
        let ratios = self.config["compress_ratios"].as_array().unwrap();
        let ratios: Vec<i32> = ratios.iter().map(|ratio| ratio.as_i64().unwrap() as i32).collect();
        self.file.i32s(&self.key("attention.compress_ratios"), &ratios);
        let base = float(self.config, "compress_rope_theta");
        self.file.f32(&self.key("attention.compress_rope_freq_base"), base);
        self.mixed_streams();
    }

    fn mixed_streams(&mut self) {
        let config = text(self.config);
        self.file.f32(&self.key("hyper_connection.epsilon"), float(config, "hc_eps"));
        let n_layers = self.number("num_hidden_layers").unwrap() as usize;
        let limits = float(config, "swiglu_limit").to_le_bytes().repeat(n_layers);
        for key in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
            self.file.array(&self.key(key), 6, n_layers, limits.clone());
        }
    }

    fn streams(&mut self) {
        let config = text(self.config);
        let v_heads = self.number("linear_num_value_heads").unwrap();
        self.put("ssm.inner_size", v_heads * self.number("linear_value_head_dim").unwrap());
        let ratio = self.number("indexer_compress_ratio").unwrap();
        let types = config["layer_types"].as_array().unwrap();
        let ratios: Vec<i32> = types
            .iter()
            .map(|kind| if kind == "linear_attention" { 0 } else { ratio as i32 })
            .collect();
        self.file.i32s(&self.key("attention.compress_ratios"), &ratios);
        let layer = config["ple_layer_ids"][0].as_i64().unwrap() - 1;
        self.file.i32s(&self.key("ple.layers"), &[layer as i32]);
        let end = config["eos_token_id"].get(0).unwrap_or(&config["eos_token_id"]);
        self.put("ple.eos_token_id", end.as_u64().unwrap() as u32);
        let table = self.tensors.iter().find(|(name, _)| name.ends_with("ngram_embedding.weight"));
        self.put("embedding_length_per_layer_input", table.unwrap().1.shape[1] as u32);
        self.hash();
    }

    /// What the hash of n-grams is made with: primes from the base on, and odd multipliers.
    fn hash(&mut self) {
        let base = u64::from(self.number("ngram_vocab_size_base").unwrap());
        let ngram = self.number("ngram_size").unwrap();
        let n = (ngram - 1) * self.number("heads_per_ngram").unwrap();
        let is_prime = |n: &u64| {
            (2..)
                .take_while(|divisor| divisor * divisor <= *n)
                .all(|divisor| !n.is_multiple_of(divisor))
        };
        let sizes: Vec<u64> = (base..).filter(is_prime).take(n as usize).collect();
        let offsets: Vec<u64> = (0..sizes.len()).map(|i| sizes[..i].iter().sum()).collect();
        let half = i64::MAX as u64 / u64::from(self.number("vocab_size").unwrap()) / 2;
        let seed = u64::from(self.number("seed").unwrap());
        let multipliers: Vec<u64> =
            (0..u64::from(ngram)).map(|i| 2 * (mixed(seed, i) % half) + 1).collect();
        for (key, all) in [
            ("ple.head_vocab_sizes", sizes),
            ("ple.head_offsets", offsets),
            ("ple.layer_multipliers", multipliers),
        ] {
            let bytes = all.iter().flat_map(|number| number.to_le_bytes()).collect();
            self.file.array(&self.key(key), 11, all.len(), bytes);
        }
    }
}

fn float(config: &Value, key: &str) -> f32 {
    config[key].as_f64().unwrap() as f32
}

/// The first number of SplitMix64 from a state that advanced `i` steps.
fn mixed(seed: u64, i: u64) -> u64 {
    let state = seed.wrapping_add(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(i + 2));
    let it = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let it = (it ^ (it >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    it ^ (it >> 31)
}
