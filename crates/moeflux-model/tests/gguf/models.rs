//! Small models of every architecture as GGUF files, all weights in `F32`.

use super::compressed;
use super::delta::{self, KERNEL};
use super::kimi;
use super::streams;
use super::writer::GgufWriter;

/// The architectures that are written.
pub(crate) const ARCHITECTURES: [&str; 25] = [
    "bailingmoe",
    "bailingmoe2",
    "deepseek2",
    "deepseek32",
    "deepseek4",
    "ernie4_5-moe",
    "exaone-moe",
    "gemma4",
    "glm-dsa",
    "glm4moe",
    "glm5-next",
    "gpt-oss",
    "granitemoe",
    "hy_v3",
    "kimi-linear",
    "llama",
    "minimax-m2",
    "nemotron_h_moe",
    "olmoe",
    "qwen2moe",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "qwen3vlmoe",
    "qwen4exp",
];

/// The sizes of all models.
pub(crate) const HIDDEN: usize = 8;
pub(crate) const VOCAB: usize = 10;
pub(crate) const HEADS: usize = 2;
pub(crate) const KV_HEADS: usize = 1;
pub(crate) const HEAD_DIM: usize = 4;
pub(crate) const EXPERTS: usize = 4;
pub(crate) const INTERMEDIATE: usize = 6;
pub(crate) const LAYERS: usize = 2;

/// Of latent attention: ranks, and columns of a head that are rotated, not rotated, of values.
const Q_RANK: usize = 6;
const KV_RANK: usize = 10;
const ROPE_DIM: usize = 2;
const NOPE_DIM: usize = 6;
const V_DIM: usize = 3;

/// Of Mamba layers.
const MAMBA_GROUPS: usize = 2;
const MAMBA_HEADS: usize = 4;
const MAMBA_DIM: usize = 3;
const STATE: usize = 5;

/// Of indexers.
const INDEX_HEADS: usize = 3;
const INDEX_DIM: usize = 4;

/// A model in the making.
struct Model {
    file: GgufWriter,
    architecture: &'static str,
}

/// A whole model, without layers for multi-token prediction.
pub(crate) fn model(architecture: &str) -> GgufWriter {
    model_with(architecture, 0)
}

/// A whole model with layers for multi-token prediction.
pub(crate) fn model_with(architecture: &str, n_nextn: usize) -> GgufWriter {
    let architecture = ARCHITECTURES.into_iter().find(|known| *known == architecture).unwrap();
    let mut file = GgufWriter::new();
    file.text("general.architecture", architecture).text("general.type", "model");
    let mut model = Model { file, architecture };
    model.common_keys(n_nextn);
    model.own_keys(n_nextn);
    model.tokenizer();
    model.add("token_embd.weight", &[VOCAB, HIDDEN]);
    model.add("output.weight", &[VOCAB, HIDDEN]);
    for layer in 0..LAYERS + n_nextn {
        model.layer(layer);
        if layer >= LAYERS {
            model.nextn(layer);
        }
    }
    if architecture == "qwen4exp" {
        for (name, shape) in streams::outside(HIDDEN) {
            model.add(&name, &shape);
        }
    } else {
        model.add("output_norm.weight", &[HIDDEN]);
    }
    if architecture == "deepseek4" {
        for (name, shape) in compressed::outside() {
            model.add(name, &shape);
        }
    }
    model.file
}

impl Model {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    fn numbers(&mut self, all: &[(&str, usize)]) {
        for (suffix, value) in all {
            self.file.u32(&self.key(suffix), *value as u32);
        }
    }

    /// Adds a tensor of numbers that differ, all below zero where they are rates of decay.
    fn add(&mut self, name: &str, shape: &[usize]) {
        let n: usize = shape.iter().product();
        let seed = name.bytes().fold(7u32, |seed, byte| seed.wrapping_mul(31) + u32::from(byte));
        let number = |i: usize| {
            let bits = seed.wrapping_add(i as u32).wrapping_mul(2_654_435_761) >> 8;
            let number = bits as f32 / (1 << 23) as f32 - 1.0;
            if name.ends_with("ssm_a") { -0.1 - number.abs() } else { number }
        };
        let values: Vec<f32> = (0..n).map(number).collect();
        self.file.floats(name, shape, &values);
    }

    fn add_to(&mut self, layer: usize, all: &[(&str, &[usize])]) {
        for (part, shape) in all {
            self.add(&format!("blk.{layer}.{part}"), shape);
        }
    }

    fn common_keys(&mut self, n_nextn: usize) {
        self.numbers(&[
            ("block_count", LAYERS + n_nextn),
            ("context_length", 64),
            ("embedding_length", HIDDEN),
            ("feed_forward_length", INTERMEDIATE),
            ("attention.head_count", HEADS),
            ("expert_count", EXPERTS),
            ("expert_used_count", 2),
        ]);
        if n_nextn > 0 {
            self.numbers(&[("nextn_predict_layers", n_nextn)]);
        }
        // Files of configs that name one epsilon have it under that name alone.
        let kind = if self.architecture == "nemotron_h_moe" { "" } else { "rms_" };
        self.file.f32(&self.key(&format!("attention.layer_norm_{kind}epsilon")), 1e-6);
        self.file.f32(&self.key("rope.freq_base"), 10000.0);
    }

    fn own_keys(&mut self, n_nextn: usize) {
        if self.is_latent() {
            self.latent_keys();
        } else {
            self.numbers(&[
                ("attention.head_count_kv", KV_HEADS),
                ("attention.key_length", HEAD_DIM),
                ("attention.value_length", HEAD_DIM),
            ]);
        }
        if !["granitemoe", "llama", "olmoe"].contains(&self.architecture) {
            self.numbers(&[("expert_feed_forward_length", INTERMEDIATE)]);
        }
        match self.architecture {
            "gpt-oss" => self.numbers(&[("attention.sliding_window", 16)]),
            "granitemoe" => {
                let factors = [("embedding_scale", 12.0), ("residual_scale", 0.25)];
                for (suffix, factor) in factors {
                    self.file.f32(&self.key(suffix), factor);
                }
                self.file.f32(&self.key("attention.scale"), 0.5);
                self.file.f32(&self.key("logit_scale"), 6.0);
            }
            "gemma4" => {
                self.numbers(&[
                    ("attention.sliding_window", 16),
                    ("attention.key_length_swa", HEAD_DIM),
                    ("attention.value_length_swa", HEAD_DIM),
                    ("embedding_length_per_layer_input", 0),
                ]);
                let slides: Vec<bool> = (0..LAYERS + n_nextn).map(|layer| layer == 0).collect();
                self.file.bools(&self.key("attention.sliding_window_pattern"), &slides);
            }
            "nemotron_h_moe" => self.mamba_keys(),
            "minimax-m2" => self.numbers(&[("expert_gating_func", 2), ("rope.dimension_count", 2)]),
            "glm4moe" | "bailingmoe2" => self.numbers(&[("rope.dimension_count", 2)]),
            "bailingmoe" => {
                self.numbers(&[("expert_shared_count", 1), ("rope.dimension_count", HEAD_DIM)]);
                self.file.bool(&self.key("expert_weights_norm"), true);
            }
            "ernie4_5-moe" => self.numbers(&[
                ("leading_dense_block_count", 1),
                ("interleave_moe_layer_step", 1),
                ("expert_shared_count", 1),
                // The converter's width is that of one published model.
                ("expert_shared_feed_forward_length", 7),
            ]),
            "exaone-moe" => {
                self.numbers(&[("attention.sliding_window", 16)]);
                let slides: Vec<bool> = (0..LAYERS + n_nextn).map(|layer| layer == 0).collect();
                self.file.bools(&self.key("attention.sliding_window_pattern"), &slides);
            }
            "qwen2moe" => {
                self.numbers(&[("expert_shared_feed_forward_length", INTERMEDIATE)]);
            }
            "qwen3vlmoe" => {
                self.numbers(&[("n_deepstack_layers", 1)]);
                self.file.i32s(&self.key("rope.dimension_sections"), &[1, 1, 0, 0]);
            }
            "qwen4exp" => self.stream_keys(),
            "kimi-linear" => self.numbers(&kimi::NUMBERS),
            "glm5-next" => self.mixed_stream_keys(),
            "deepseek4" => self.compressed_keys(),
            _ => {}
        }
        if self.is_deepseek_routed() {
            self.numbers(&[
                ("expert_gating_func", 2),
                ("expert_shared_count", 1),
                ("leading_dense_block_count", 1),
            ]);
            if self.architecture == "hy_v3" {
                self.file.remove("hy_v3.leading_dense_block_count");
            }
            self.file.f32(&self.key("expert_weights_scale"), 2.5);
            self.file.bool(&self.key("expert_weights_norm"), true);
        }
        if self.has_delta_nets() {
            self.numbers(&[
                ("expert_shared_feed_forward_length", INTERMEDIATE),
                ("rope.dimension_count", 2),
            ]);
            self.numbers(&delta::NUMBERS);
            let recurs: Vec<bool> = (0..LAYERS + n_nextn).map(|layer| layer == 0).collect();
            self.file.bools(&self.key("attention.recurrent_layers"), &recurs);
            self.file.i32s(&self.key("rope.dimension_sections"), &[1, 0, 0, 0]);
        }
    }

    /// Layers of one part: attention where there are keys, experts where there is a width.
    fn mamba_keys(&mut self) {
        self.numbers(&[
            ("expert_shared_feed_forward_length", INTERMEDIATE),
            ("ssm.conv_kernel", KERNEL),
            ("ssm.state_size", STATE),
            ("ssm.group_count", MAMBA_GROUPS),
            ("ssm.time_step_rank", MAMBA_HEADS),
            ("ssm.inner_size", MAMBA_HEADS * MAMBA_DIM),
        ]);
        self.file.i32s(&self.key("attention.head_count_kv"), &[0, KV_HEADS as i32]);
        self.file.i32s(&self.key("feed_forward_length"), &[0, INTERMEDIATE as i32]);
        self.file.f32(&self.key("expert_weights_scale"), 2.5);
        self.file.bool(&self.key("expert_weights_norm"), true);
    }

    fn mixed_stream_keys(&mut self) {
        self.numbers(&kimi::NUMBERS);
        self.numbers(&kimi::STREAM_NUMBERS);
        self.file.f32(&self.key("hyper_connection.epsilon"), 1e-6);
        self.file.f32(&self.key("kda.gate_lower_bound"), -5.0);
        self.file.f32(&self.key("swiglu_clamp_exp"), 10.0);
    }

    fn compressed_keys(&mut self) {
        self.numbers(&compressed::NUMBERS);
        for (suffix, number) in compressed::FLOATS {
            self.file.f32(&self.key(suffix), number);
        }
        self.file.bool(&self.key("expert_weights_norm"), true);
        self.file.i32s(&self.key("attention.compress_ratios"), &compressed::RATIOS);
    }

    fn stream_keys(&mut self) {
        self.numbers(&streams::NUMBERS);
        for (suffix, all) in streams::LISTS {
            self.file.i32s(&self.key(suffix), all);
        }
    }

    fn latent_keys(&mut self) {
        self.numbers(&[
            ("attention.head_count_kv", 1),
            ("attention.q_lora_rank", Q_RANK),
            ("attention.kv_lora_rank", KV_RANK),
            ("attention.key_length", KV_RANK + ROPE_DIM),
            ("attention.value_length", KV_RANK),
            ("attention.key_length_mla", NOPE_DIM + ROPE_DIM),
            ("attention.value_length_mla", V_DIM),
            ("rope.dimension_count", ROPE_DIM),
            ("vocab_size", VOCAB),
        ]);
        if self.has_indexers() {
            self.numbers(&[
                ("attention.indexer.head_count", INDEX_HEADS),
                ("attention.indexer.key_length", INDEX_DIM),
                ("attention.indexer.top_k", 6),
            ]);
        }
    }

    fn tokenizer(&mut self) {
        let tokens = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "<end>"];
        self.file
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "qwen2")
            .texts("tokenizer.ggml.tokens", &tokens)
            .i32s("tokenizer.ggml.token_type", &[1, 1, 1, 1, 1, 1, 1, 1, 1, 3])
            .texts("tokenizer.ggml.merges", &[])
            .u32("tokenizer.ggml.eos_token_id", 9);
    }

    fn is_latent(&self) -> bool {
        ["deepseek2", "deepseek32", "glm-dsa", "glm5-next", "kimi-linear"]
            .contains(&self.architecture)
    }

    fn has_indexers(&self) -> bool {
        ["deepseek32", "glm-dsa", "glm5-next"].contains(&self.architecture)
    }

    fn has_delta_nets(&self) -> bool {
        ["qwen35moe", "qwen3next", "qwen4exp"].contains(&self.architecture)
    }

    fn is_deepseek_routed(&self) -> bool {
        self.is_latent()
            || ["bailingmoe2", "exaone-moe", "glm4moe", "hy_v3"].contains(&self.architecture)
    }

    fn has_dense_layer(&self) -> bool {
        self.is_deepseek_routed() || self.architecture == "ernie4_5-moe"
    }

    fn layer(&mut self, layer: usize) {
        if self.architecture == "nemotron_h_moe" {
            return self.single(layer);
        }
        if self.architecture == "deepseek4" {
            for (part, shape) in compressed::layer(layer) {
                self.add_to(layer, &[(&part, &shape)]);
            }
            if layer == 0 {
                let (name, shape, bytes) = compressed::table();
                self.file.tensor(name, &shape, compressed::I32, bytes);
            }
            return;
        }
        if self.architecture == "qwen4exp" {
            for (part, shape) in streams::layer(layer, HIDDEN) {
                self.add_to(layer, &[(&part, &shape)]);
            }
        }
        let post_norm = match self.architecture {
            "gpt-oss" | "glm4moe" | "qwen35moe" | "qwen3next" => "post_attention_norm.weight",
            _ => "ffn_norm.weight",
        };
        if self.architecture != "qwen4exp" {
            self.add_to(layer, &[("attn_norm.weight", &[HIDDEN]), (post_norm, &[HIDDEN])]);
        }
        if self.architecture == "gemma4" {
            self.gemma(layer);
        }
        if self.architecture == "glm5-next" {
            for (part, shape) in kimi::streams(HIDDEN) {
                self.add_to(layer, &[(&part, &shape)]);
            }
        }
        if ["glm5-next", "kimi-linear"].contains(&self.architecture) && layer == 0 {
            for (part, shape) in kimi::mixer(HIDDEN, HEADS) {
                self.add_to(layer, &[(&part, &shape)]);
            }
        } else if self.is_latent() {
            self.latent(layer);
        } else if self.has_delta_nets() && layer == 0 {
            for (part, shape) in delta::mixer(HIDDEN, self.architecture) {
                self.add_to(layer, &[(&part, &shape)]);
            }
        } else {
            self.attention(layer);
        }
        if self.has_dense_layer() && layer == 0 {
            self.add_to(
                layer,
                &[
                    ("ffn_gate.weight", &[INTERMEDIATE, HIDDEN]),
                    ("ffn_up.weight", &[INTERMEDIATE, HIDDEN]),
                    ("ffn_down.weight", &[HIDDEN, INTERMEDIATE]),
                ],
            );
        } else {
            self.experts(layer);
        }
    }

    /// A layer of one part: Mamba or experts.
    fn single(&mut self, layer: usize) {
        self.add_to(layer, &[("attn_norm.weight", &[HIDDEN])]);
        if layer == 0 {
            return self.mamba(layer);
        }
        self.add_to(
            layer,
            &[
                ("ffn_gate_inp.weight", &[EXPERTS, HIDDEN]),
                ("exp_probs_b.bias", &[EXPERTS]),
                ("ffn_up_exps.weight", &[EXPERTS, INTERMEDIATE, HIDDEN]),
                ("ffn_down_exps.weight", &[EXPERTS, HIDDEN, INTERMEDIATE]),
                ("ffn_up_shexp.weight", &[INTERMEDIATE, HIDDEN]),
                ("ffn_down_shexp.weight", &[HIDDEN, INTERMEDIATE]),
            ],
        );
    }

    fn mamba(&mut self, layer: usize) {
        let inner = MAMBA_HEADS * MAMBA_DIM;
        let channels = inner + 2 * MAMBA_GROUPS * STATE;
        self.add_to(
            layer,
            &[
                ("ssm_in.weight", &[inner + channels + MAMBA_HEADS, HIDDEN]),
                ("ssm_conv1d.weight", &[channels, KERNEL]),
                ("ssm_conv1d.bias", &[channels]),
                ("ssm_a", &[MAMBA_HEADS, 1]),
                ("ssm_d", &[MAMBA_HEADS, 1]),
                ("ssm_dt.bias", &[MAMBA_HEADS]),
                ("ssm_norm.weight", &[MAMBA_GROUPS, inner / MAMBA_GROUPS]),
                ("ssm_out.weight", &[HIDDEN, inner]),
            ],
        );
    }

    fn attention(&mut self, layer: usize) {
        let gates = if self.has_delta_nets() { 2 } else { 1 };
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        self.add_to(layer, &[("attn_output.weight", &[HIDDEN, q])]);
        if self.architecture == "bailingmoe2" {
            self.add_to(layer, &[("attn_qkv.weight", &[q + 2 * kv, HIDDEN])]);
        } else {
            self.add_to(
                layer,
                &[
                    ("attn_q.weight", &[gates * q, HIDDEN]),
                    ("attn_k.weight", &[kv, HIDDEN]),
                    ("attn_v.weight", &[kv, HIDDEN]),
                ],
            );
        }
        let (norms, has_bias) = match self.architecture {
            "gpt-oss" | "qwen2moe" => (None, true),
            "bailingmoe" | "ernie4_5-moe" | "granitemoe" | "llama" => (None, false),
            "glm4moe" => (Some((HEAD_DIM, HEAD_DIM)), true),
            "minimax-m2" | "olmoe" => (Some((q, kv)), false),
            _ => (Some((HEAD_DIM, HEAD_DIM)), false),
        };
        if let Some((q, k)) = norms {
            self.add_to(layer, &[("attn_q_norm.weight", &[q]), ("attn_k_norm.weight", &[k])]);
        }
        if has_bias {
            let biases: [(&str, &[usize]); 3] =
                [("attn_q.bias", &[q]), ("attn_k.bias", &[kv]), ("attn_v.bias", &[kv])];
            self.add_to(layer, &biases);
        }
        if self.architecture == "gpt-oss" {
            self.add_to(layer, &[("attn_output.bias", &[HIDDEN]), ("attn_sinks.weight", &[HEADS])]);
        }
    }

    /// What only layers of Gemma 4 have.
    fn gemma(&mut self, layer: usize) {
        let norms = [
            "post_attention_norm",
            "post_ffw_norm",
            "pre_ffw_norm_2",
            "post_ffw_norm_1",
            "post_ffw_norm_2",
        ];
        for norm in norms {
            self.add_to(layer, &[(&format!("{norm}.weight"), &[HIDDEN])]);
        }
        self.add_to(
            layer,
            &[
                ("layer_output_scale.weight", &[1]),
                ("ffn_gate_inp.scale", &[HIDDEN]),
                ("ffn_down_exps.scale", &[EXPERTS]),
                ("ffn_gate.weight", &[INTERMEDIATE, HIDDEN]),
                ("ffn_up.weight", &[INTERMEDIATE, HIDDEN]),
                ("ffn_down.weight", &[HIDDEN, INTERMEDIATE]),
            ],
        );
    }

    fn latent(&mut self, layer: usize) {
        self.add_to(
            layer,
            &[
                ("attn_q_a.weight", &[Q_RANK, HIDDEN]),
                ("attn_q_a_norm.weight", &[Q_RANK]),
                ("attn_q_b.weight", &[HEADS * (NOPE_DIM + ROPE_DIM), Q_RANK]),
                ("attn_kv_a_mqa.weight", &[KV_RANK + ROPE_DIM, HIDDEN]),
                ("attn_kv_a_norm.weight", &[KV_RANK]),
                ("attn_k_b.weight", &[HEADS, KV_RANK, NOPE_DIM]),
                ("attn_v_b.weight", &[HEADS, V_DIM, KV_RANK]),
                ("attn_output.weight", &[HIDDEN, HEADS * V_DIM]),
            ],
        );
        if self.has_indexers() {
            self.add_to(
                layer,
                &[
                    ("indexer.attn_q_b.weight", &[INDEX_HEADS * INDEX_DIM, Q_RANK]),
                    ("indexer.attn_k.weight", &[INDEX_DIM, HIDDEN]),
                    ("indexer.k_norm.weight", &[INDEX_DIM]),
                    ("indexer.k_norm.bias", &[INDEX_DIM]),
                    ("indexer.proj.weight", &[INDEX_HEADS, HIDDEN]),
                ],
            );
        }
        if self.architecture == "glm5-next" {
            for (part, shape) in kimi::pools(HIDDEN, INDEX_DIM) {
                self.add_to(layer, &[(&part, &shape)]);
            }
        }
    }

    fn experts(&mut self, layer: usize) {
        self.add_to(
            layer,
            &[
                ("ffn_gate_inp.weight", &[EXPERTS, HIDDEN]),
                ("ffn_gate_exps.weight", &[EXPERTS, INTERMEDIATE, HIDDEN]),
                ("ffn_up_exps.weight", &[EXPERTS, INTERMEDIATE, HIDDEN]),
                ("ffn_down_exps.weight", &[EXPERTS, HIDDEN, INTERMEDIATE]),
            ],
        );
        match self.architecture {
            "hy_v3" => self.add_to(layer, &[("exp_probs_b", &[EXPERTS])]),
            "ernie4_5-moe" => self.add_to(layer, &[("exp_probs_b.bias", &[1, EXPERTS])]),
            "minimax-m2" => self.add_to(layer, &[("exp_probs_b.bias", &[EXPERTS])]),
            _ if self.is_deepseek_routed() => {
                self.add_to(layer, &[("exp_probs_b.bias", &[EXPERTS])]);
            }
            _ => {}
        }
        let has_shared = ["bailingmoe", "ernie4_5-moe", "qwen2moe"].contains(&self.architecture);
        if has_shared || self.is_deepseek_routed() || self.has_delta_nets() {
            self.add_to(
                layer,
                &[
                    ("ffn_gate_shexp.weight", &[INTERMEDIATE, HIDDEN]),
                    ("ffn_up_shexp.weight", &[INTERMEDIATE, HIDDEN]),
                    ("ffn_down_shexp.weight", &[HIDDEN, INTERMEDIATE]),
                ],
            );
        }
        if self.has_delta_nets() {
            self.add_to(layer, &[("ffn_gate_inp_shexp.weight", &[HIDDEN])]);
        }
        if self.architecture == "qwen2moe" {
            self.add_to(layer, &[("ffn_gate_inp_shexp.weight", &[1, HIDDEN])]);
        }
        if self.architecture == "gpt-oss" {
            self.add_to(
                layer,
                &[
                    ("ffn_gate_inp.bias", &[EXPERTS]),
                    ("ffn_gate_exps.bias", &[EXPERTS, INTERMEDIATE]),
                    ("ffn_up_exps.bias", &[EXPERTS, INTERMEDIATE]),
                    ("ffn_down_exps.bias", &[EXPERTS, HIDDEN]),
                ],
            );
        }
    }

    /// What stands around a layer for multi-token prediction.
    fn nextn(&mut self, layer: usize) {
        self.add_to(
            layer,
            &[
                ("nextn.eh_proj.weight", &[HIDDEN, 2 * HIDDEN]),
                ("nextn.enorm.weight", &[HIDDEN]),
                ("nextn.hnorm.weight", &[HIDDEN]),
                ("nextn.shared_head_norm.weight", &[HIDDEN]),
            ],
        );
    }
}
