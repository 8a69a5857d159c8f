//! Keys and names of every architecture in the terms of its family.

use std::ops::Deref;

use moeflux_core::checkpoint::{Checkpoint, FormatError};
use moeflux_model::open_checkpoint;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::models::{self, ARCHITECTURES, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, model, model_with};
use super::writer::GgufWriter;

/// A checkpoint whose file is there as long as it is.
pub(crate) struct Opened {
    checkpoint: Checkpoint,
    _dir: TempDir,
}

impl Deref for Opened {
    type Target = Checkpoint;

    fn deref(&self) -> &Checkpoint {
        &self.checkpoint
    }
}

/// Writes a file and opens it.
pub(crate) fn open(file: &GgufWriter) -> Result<Opened, FormatError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    file.write(&path);
    Ok(Opened { checkpoint: open_checkpoint(&path)?, _dir: dir })
}

/// The message for a file that is refused, without its folder.
#[track_caller]
pub(crate) fn refused(file: &GgufWriter) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    file.write(&path);
    let text = open_checkpoint(&path).expect_err("refused").to_string();
    assert!(!text.contains('\n'), "{text}");
    text.replace(&format!("{}/", dir.path().display()), "")
}

pub(crate) fn config(file: &GgufWriter) -> Value {
    open(file).unwrap().config().value().clone()
}

pub(crate) fn names(file: &GgufWriter) -> Vec<String> {
    open(file).unwrap().tensors().keys().cloned().collect()
}

/// The floats of a tensor by its canonical name.
fn floats(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = &checkpoint.tensors()[name];
    let bytes = checkpoint.reader().read(tensor.extent).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn every_tensor_of_every_architecture_has_a_canonical_name() {
    for architecture in ARCHITECTURES {
        let file = model(architecture);
        let checkpoint = open(&file).unwrap();
        assert_eq!(checkpoint.tensors().len(), file.tensors.len(), "{architecture}");
        assert_eq!(checkpoint.n_skipped(), 0);
        for (name, tensor) in checkpoint.tensors() {
            assert!(!name.contains("blk."), "{architecture}: {name}");
            let stored = &tensor.stored_name;
            assert_eq!(checkpoint.shown_name(name), *stored, "{architecture}");
        }
    }
}

#[test]
fn keys_become_those_of_the_family() {
    let config = config(&model("qwen3moe"));
    let want = json!({
        "model_type": "qwen3_moe", "num_hidden_layers": 2, "num_nextn_predict_layers": 0,
        "hidden_size": 8, "max_position_embeddings": 64, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 6, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 10,
        "tie_word_embeddings": false, "attention_bias": false, "norm_topk_prob": true,
        "rope_parameters": {"rope_type": "default"},
    });
    assert_eq!(config, want);
}

#[test]
fn entries_streams_and_experts_of_tokens_are_those_of_the_config() {
    let file = model("deepseek4");
    let got = config(&file);
    for (key, want) in [
        ("compress_ratios", json!([4, 8, 0])),
        ("num_hash_layers", json!(1)),
        ("scoring_func", json!("sqrtsoftplus")),
        ("routed_scaling_factor", json!(1.5)),
        ("swiglu_limit", json!(10.0)),
        ("compress_rope_theta", json!(160_000.0)),
        ("rope_theta", json!(10_000.0)),
        ("rope_scaling", json!({"rope_type": "default"})),
        ("head_dim", json!(4)),
        ("qk_rope_head_dim", json!(2)),
        ("o_groups", json!(2)),
        ("o_lora_rank", json!(3)),
        ("hc_mult", json!(2)),
    ] {
        assert_eq!(got[key], want, "{key}");
    }
    let checkpoint = open(&file).unwrap();
    let table = &checkpoint.tensors()["layers.0.mlp.gate.tid2eid"];
    assert_eq!((table.dtype.name(), &table.shape[..]), ("I32", &[10, 2][..]));
    let mut other = file.clone();
    other.remove("deepseek4.expert_gating_func").u32("deepseek4.expert_gating_func", 2);
    let want = "m.gguf: deepseek4.expert_gating_func is 2; it must be 4 (the root of softplus)";
    assert_eq!(refused(&other), want);
    let mut short = file.clone();
    let key = "deepseek4.attention.compress_ratios";
    short.remove(key).i32s(key, &[4]);
    let want = "it must be a list of whole numbers, one for each of 2 layers";
    assert_eq!(refused(&short), format!("m.gguf: {key} is a list of 1; {want}"));
}

#[test]
fn factors_of_granite_are_those_of_its_config() {
    let config = config(&model("granitemoe"));
    let keys = ["attention_multiplier", "embedding_multiplier", "residual_multiplier"];
    assert_eq!(keys.map(|key| config[key].as_f64()), [0.5, 12.0, 0.25].map(Some));
    assert_eq!(
        (&config["logits_scaling"], &config["rope_interleave"]),
        (&json!(6.0), &json!(true))
    );
    let key = "granitemoe.rope.scaling.finetuned";
    let want = format!("{key} is false; it must be true: layers without rotation are not run");
    let change = |file: &mut GgufWriter| {
        file.bool(key, false);
    };
    check("granitemoe", change, &want);
}

#[test]
fn experts_of_olmoe_keep_their_probabilities() {
    let config = config(&model("olmoe"));
    assert_eq!(
        (&config["norm_topk_prob"], &config["intermediate_size"]),
        (&json!(false), &json!(6))
    );
}

#[test]
fn keys_say_how_weights_are_stored() {
    let key = |architecture: &str, key: &str| config(&model(architecture))[key].clone();
    assert_eq!(key("llama", "rope_interleave"), json!(true));
    assert_eq!(key("llama", "intermediate_size"), json!(6));
    assert_eq!(key("qwen35moe", "linear_value_head_order"), json!("tiled"));
    assert_eq!(key("qwen3next", "linear_value_head_order"), Value::Null);
    assert_eq!(key("qwen3next", "layer_types"), json!(["linear_attention", "full_attention"]));
    assert_eq!(key("qwen35moe", "partial_rotary_factor"), json!(0.5));
    assert_eq!(key("qwen35moe", "linear_value_head_dim"), json!(4));
    assert_eq!(key("deepseek2", "rope_interleave"), json!(true));
    assert_eq!(key("deepseek2", "qk_nope_head_dim"), json!(6));
    assert_eq!(key("deepseek2", "v_head_dim"), json!(3));
    assert_eq!(key("deepseek2", "num_key_value_heads"), json!(2));
    assert_eq!(key("deepseek2", "routed_scaling_factor"), json!(2.5));
    assert_eq!(key("glm4moe", "attention_bias"), json!(true));
    assert_eq!(key("glm4moe", "use_qk_norm"), json!(true));
    assert_eq!(key("glm-dsa", "indexer_types"), json!(["full", "full"]));
    assert_eq!(key("gpt-oss", "layer_types"), json!(["sliding_attention", "full_attention"]));
}

#[test]
fn layers_for_multi_token_prediction_are_not_layers_of_the_model() {
    let glm = model_with("glm4moe", 1);
    assert_eq!(config(&glm)["num_hidden_layers"], json!(2));
    let checkpoint = open(&glm).unwrap();
    for name in ["eh_proj", "enorm", "hnorm", "shared_head.norm", "self_attn.q_proj"] {
        let name = format!("layers.2.{name}.weight");
        assert!(checkpoint.tensors().contains_key(&name) && checkpoint.is_optional(&name));
        assert!(checkpoint.shown_name(&name).starts_with("blk.2."), "{name}");
    }
    let qwen = open(&model_with("qwen35moe", 1)).unwrap();
    for name in [
        "mtp.fc.weight",
        "mtp.pre_fc_norm_embedding.weight",
        "mtp.pre_fc_norm_hidden.weight",
        "mtp.norm.weight",
        "mtp.layers.0.self_attn.q_proj.weight",
        "mtp.layers.0.mlp.switch_mlp.down_proj.weight",
        "mtp.layers.0.mlp.shared_expert_gate.weight",
    ] {
        assert!(qwen.tensors().contains_key(name) && qwen.is_optional(name), "{name}");
        assert!(qwen.shown_name(name).starts_with("blk.2."), "{name}");
    }
    // Whatever else such a layer has is left aside with it.
    let mut odd = model_with("qwen35moe", 2);
    odd.floats("blk.2.nextn.extra.weight", &[1], &[1.0]);
    odd.floats("blk.3.unknown.weight", &[1], &[1.0]);
    let odd = open(&odd).unwrap();
    assert!(odd.tensors().keys().all(|name| !name.contains("blk.")));
    for name in ["mtp.layers.0.nextn.extra.weight", "mtp.layers.1.unknown.weight"] {
        assert!(odd.is_optional(name) && odd.tensors().contains_key(name), "{name}");
    }
}

#[test]
fn unknown_tensors_keep_their_names() {
    let mut file = model("qwen3moe");
    file.floats("blk.0.unknown.weight", &[1], &[1.0]).floats("other", &[1], &[1.0]);
    let names = names(&file);
    assert!(names.contains(&"blk.0.unknown.weight".to_owned()));
    assert!(names.contains(&"other".to_owned()));
}

#[test]
fn queries_keys_and_values_of_one_tensor_are_its_rows() {
    for (architecture, layer, gates) in [("qwen3moe", 0, 1), ("qwen35moe", 1, 2), ("llama", 1, 1)] {
        let mut file = model(architecture);
        let (q, kv) = (gates * HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let parts = ["attn_q", "attn_k", "attn_v"].map(|part| format!("blk.{layer}.{part}.weight"));
        let bytes: Vec<u8> =
            parts.iter().flat_map(|part| file.tensor_mut(part).bytes.clone()).collect();
        let apart = open(&file).unwrap();
        file.tensors.retain(|tensor| !parts.contains(&tensor.name));
        let fused = format!("blk.{layer}.attn_qkv.weight");
        file.tensor(&fused, &[q + 2 * kv, HIDDEN], 0, bytes);
        let biases: Vec<f32> = (0..q + 2 * kv).map(|i| i as f32).collect();
        file.floats(&format!("blk.{layer}.attn_qkv.bias"), &[q + 2 * kv], &biases);
        let joined = open(&file).unwrap();
        let mut first = 0;
        for (part, n) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            let name = format!("layers.{layer}.self_attn.{part}");
            let weight = format!("{name}.weight");
            assert_eq!(joined.tensors()[&weight].shape, [n, HIDDEN]);
            assert_eq!(floats(&joined, &weight), floats(&apart, &weight), "{name}");
            let bias = format!("{name}.bias");
            assert_eq!(joined.tensors()[&bias].shape, [n]);
            assert_eq!(floats(&joined, &bias), biases[first..first + n]);
            first += n;
        }
        assert_eq!(joined.config().value()["attention_bias"], json!(true));
        let short = file.tensor_mut(&fused);
        short.dims[1] -= 1;
        short.bytes.truncate((q + 2 * kv - 1) * HIDDEN * 4);
        let (have, want) = (q + 2 * kv - 1, q + 2 * kv);
        let message =
            format!("m.gguf: {fused}: {have} rows, not the {want} of queries, keys and values");
        assert_eq!(refused(&file), message);
    }
}

#[test]
fn single_experts_of_old_files_have_names_of_their_own() {
    let mut file = model("llama");
    file.tensors.retain(|tensor| !tensor.name.contains("_exps"));
    for expert in 0..models::EXPERTS {
        for part in ["gate", "up", "down"] {
            file.floats(&format!("blk.0.ffn_{part}.{expert}.weight"), &[1], &[1.0]);
        }
    }
    let names = names(&file);
    for name in ["w1", "w2", "w3"] {
        let name = format!("layers.0.block_sparse_moe.experts.3.{name}.weight");
        assert!(names.contains(&name), "{name}");
    }
}

#[test]
fn older_latent_attention_is_read_as_it_is() {
    let mut file = model("deepseek2");
    file.remove("deepseek2.attention.key_length_mla");
    file.remove("deepseek2.attention.value_length_mla");
    file.u32("deepseek2.attention.key_length", 8).u32("deepseek2.attention.value_length", 3);
    file.u32("deepseek2.attention.head_count_kv", 2);
    assert_eq!(config(&file)["qk_nope_head_dim"], json!(6));
    assert_eq!(config(&file)["v_head_dim"], json!(3));
    // Some files have both layouts: the newer one is used.
    file.floats("blk.0.attn_kv_b.weight", &[2 * 9, 10], &[0.0; 180]);
    let both = open(&file).unwrap();
    assert_eq!(both.n_skipped(), 1);
    assert!(!both.tensors().contains_key("layers.0.self_attn.kv_b_proj.weight"));
    file.tensors.retain(|tensor| {
        !["blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight"].contains(&tensor.name.as_str())
    });
    assert!(names(&file).contains(&"layers.0.self_attn.kv_b_proj.weight".to_owned()));
}

#[test]
fn stretched_positions_follow_the_keys() {
    let rope = |edit: fn(&mut GgufWriter), architecture: &str| {
        let mut file = model(architecture);
        edit(&mut file);
        config(&file)["rope_parameters"].clone()
    };
    let linear = |file: &mut GgufWriter| {
        file.f32("qwen3moe.rope.scaling.factor", 4.0);
    };
    assert_eq!(rope(linear, "qwen3moe"), json!({"rope_type": "linear", "factor": 4.0}));
    let one = |file: &mut GgufWriter| {
        file.f32("qwen3moe.rope.scaling.factor", 1.0);
    };
    assert_eq!(rope(one, "qwen3moe"), json!({"rope_type": "default"}));
    let older = |file: &mut GgufWriter| {
        file.f32("qwen3moe.rope.scale_linear", 4.0);
    };
    assert_eq!(rope(older, "qwen3moe"), json!({"rope_type": "linear", "factor": 4.0}));
    let yarn = |file: &mut GgufWriter| {
        file.text("deepseek2.rope.scaling.type", "yarn")
            .f32("deepseek2.rope.scaling.factor", 40.0)
            .u32("deepseek2.rope.scaling.original_context_length", 4096)
            .f32("deepseek2.rope.scaling.yarn_beta_fast", 32.0)
            .f32("deepseek2.rope.scaling.yarn_log_multiplier", 0.0707);
    };
    let want = json!({
        "rope_type": "yarn", "factor": 40.0, "truncate": true, "beta_fast": 32.0,
        "original_max_position_embeddings": 4096, "mscale": 0.707, "mscale_all_dim": 0.707,
    });
    assert_eq!(rope(yarn, "deepseek2"), want);
    let oss = |file: &mut GgufWriter| {
        file.text("gpt-oss.rope.scaling.type", "yarn").f32("gpt-oss.rope.scaling.factor", 32.0);
    };
    let want = json!({
        "rope_type": "yarn", "factor": 32.0, "truncate": false,
        "original_max_position_embeddings": 64,
    });
    assert_eq!(rope(oss, "gpt-oss"), want);
    let divided = |file: &mut GgufWriter| {
        file.floats("rope_freqs.weight", &[2], &[1.0, 8.0]);
    };
    assert_eq!(rope(divided, "llama"), json!({"rope_type": "divided", "divisors": [1.0, 8.0]}));
}

/// Refused with this text after the file's name.
#[track_caller]
fn check(architecture: &str, edit: impl FnOnce(&mut GgufWriter), want: &str) {
    let mut file = model(architecture);
    edit(&mut file);
    assert_eq!(refused(&file), format!("m.gguf: {want}"));
}

#[test]
fn refuses_architectures_that_it_does_not_know() {
    let key = "general.architecture";
    let missing = format!("{key} is missing; it must name the model's architecture");
    check(
        "qwen3moe",
        |file| {
            file.remove(key);
        },
        &missing,
    );
    let known = ARCHITECTURES.join(", ");
    let other = format!("{key} \"mamba\" is not supported; supported are {known}");
    check(
        "qwen3moe",
        |file| {
            file.text(key, "mamba");
        },
        &other,
    );
}

#[test]
fn refuses_counts_of_layers_that_cannot_be() {
    let key = "qwen3moe.block_count";
    let rule = "it must be a whole number from 1 to 1000";
    for n in [0, 1_000_000_000] {
        let want = format!("{key} is {n}; {rule}");
        check(
            "qwen3moe",
            |file| {
                file.u32(key, n);
            },
            &want,
        );
    }
    let missing = format!("{key} is missing; it must be a whole number");
    check(
        "qwen3moe",
        |file| {
            file.remove(key);
        },
        &missing,
    );
    let nextn = "qwen3moe.nextn_predict_layers";
    let want = format!("{nextn} is 2; it must be below {key}, which is 2");
    check(
        "qwen3moe",
        |file| {
            file.u32(nextn, 2);
        },
        &want,
    );
}

#[test]
fn refuses_keys_by_their_names_in_the_file() {
    let gating = "expert_gating_func";
    let want = format!("minimax-m2.{gating} is missing; it must be 2 (sigmoid)");
    check(
        "minimax-m2",
        |file| {
            file.remove("minimax-m2.expert_gating_func");
        },
        &want,
    );
    let want = format!("qwen3moe.{gating} is 2; it must be 1 (softmax)");
    check(
        "qwen3moe",
        |file| {
            file.u32("qwen3moe.expert_gating_func", 2);
        },
        &want,
    );
    let want = format!("deepseek2.{gating} is 3; it must be 2 (sigmoid)");
    check(
        "deepseek2",
        |file| {
            file.u32("deepseek2.expert_gating_func", 3);
        },
        &want,
    );
    let dense = "moeflux runs Mixture-of-Experts models, and this one (llama) is dense: llama.cpp, Ollama \
                 or mlx-lm run it";
    check(
        "llama",
        |file| {
            file.remove("llama.expert_count");
        },
        dense,
    );
    let want = "qwen3moe.attention.value_length is 5; it must equal \
                qwen3moe.attention.key_length, which is 4";
    check(
        "qwen3moe",
        |file| {
            file.u32("qwen3moe.attention.value_length", 5);
        },
        want,
    );
    let want = "llama.rope.dimension_count is 2; it must be the columns of a head, 4";
    check(
        "llama",
        |file| {
            file.u32("llama.rope.dimension_count", 2);
        },
        want,
    );
    let want = "glm4moe.rope.dimension_count is 3; it must be an even number from 2 to 4";
    check(
        "glm4moe",
        |file| {
            file.u32("glm4moe.rope.dimension_count", 3);
        },
        want,
    );
    let want = "qwen3moe.rope.scaling.type is \"longrope\"; it must be \"none\", \"linear\" or \
                \"yarn\"";
    check(
        "qwen3moe",
        |file| {
            file.text("qwen3moe.rope.scaling.type", "longrope");
        },
        want,
    );
    let want = "qwen35moe.attention.recurrent_layers is a list of 3; it must have 2 entries, as \
                many as qwen35moe.block_count";
    let three = |file: &mut GgufWriter| {
        file.bools("qwen35moe.attention.recurrent_layers", &[true; 3]);
    };
    check("qwen35moe", three, want);
    let want = "qwen35moe.rope.dimension_sections is a list of 4; it must be up to 4 numbers whose \
                sum is 1";
    let sections = |file: &mut GgufWriter| {
        file.i32s("qwen35moe.rope.dimension_sections", &[1, 1, 0, 0]);
    };
    check("qwen35moe", sections, want);
    let want = "qwen3moe.expert_weights_scale is 2.5; it must be 1 for this architecture";
    check(
        "qwen3moe",
        |file| {
            file.f32("qwen3moe.expert_weights_scale", 2.5);
        },
        want,
    );
}

#[test]
fn lists_with_a_number_for_each_layer_must_agree() {
    let key = "qwen3moe.expert_used_count";
    let with = |numbers: &[i32]| {
        let mut file = model("qwen3moe");
        file.i32s(key, numbers);
        file
    };
    assert_eq!(config(&with(&[3, 3]))["num_experts_per_tok"], json!(3));
    let different = "it must hold equal numbers for all layers";
    assert_eq!(refused(&with(&[3, 2])), format!("m.gguf: {key} is a list of 2; {different}"));
    let many = "it must have 2 entries, as many as qwen3moe.block_count";
    assert_eq!(refused(&with(&[3, 3, 3])), format!("m.gguf: {key} is a list of 3; {many}"));
    let negative = "it must hold whole numbers of at least 0";
    assert_eq!(refused(&with(&[3, -3])), format!("m.gguf: {key} is a list of 2; {negative}"));
}

#[test]
fn errors_of_families_name_the_keys_of_the_file() {
    let mut file = model("qwen3moe");
    file.u32("qwen3moe.expert_used_count", 0);
    let got = open(&file).unwrap().config().usize("num_experts_per_tok").unwrap_err().to_string();
    let want = "qwen3moe.expert_used_count is 0; it must be a whole number from 1 to 1024";
    assert!(got.ends_with(want), "{got}");
}

#[test]
fn skips_what_no_kernel_computes_with() {
    let mut input = model("qwen3moe");
    input.floats("blk.0.ffn_up_exps.input_scale", &[4], &[1.0; 4]);
    assert_eq!(open(&input).unwrap().n_skipped(), 1);
    let mut indexers = model("glm-dsa");
    indexers.bools("glm-dsa.attention.indexer.types", &[true, false]);
    let got = open(&indexers).unwrap();
    assert_eq!(got.n_skipped(), 5);
    assert_eq!(got.config().value()["indexer_types"], json!(["full", "shared"]));
}

#[test]
fn a_file_of_other_layers_is_no_model() {
    let mut file = model_with("glm4moe", 1);
    file.tensors.retain(|tensor| tensor.name.starts_with("blk.2."));
    let want = "m.gguf: no tensor of blk.0, only from blk.2 on: layers for multi-token prediction \
                are no model; name the model's file";
    assert_eq!(refused(&file), want);
    file.tensors.clear();
    assert_eq!(refused(&file), "m.gguf: no tensor of blk.0: there are no layers");
}

#[test]
fn frequencies_are_divided_by_numbers_above_zero() {
    let tensor = "rope_freqs.weight";
    let zero = |file: &mut GgufWriter| {
        file.floats(tensor, &[2], &[1.0, 0.0]);
    };
    check("llama", zero, &format!("{tensor}: 0 is no divisor of a frequency"));
    let half = |file: &mut GgufWriter| {
        file.tensor(tensor, &[2], 1, vec![0; 4]);
    };
    let want = format!("{tensor}: F16 [2] are not the divisors of a head's frequencies");
    check("llama", half, &want);
    let both = |file: &mut GgufWriter| {
        file.floats(tensor, &[2], &[1.0, 2.0]).text("llama.rope.scaling.type", "yarn");
    };
    let want = format!("llama.rope.scaling.type is \"yarn\"; it must be \"none\" with {tensor}");
    check("llama", both, &want);
}

/// Files of one architecture are of two families: probabilities choose the experts of the older one.
#[test]
fn the_way_to_choose_experts_tells_families_of_one_architecture() {
    let gating = "deepseek2.expert_gating_func";
    let model_type = |file: &GgufWriter| config(file)["model_type"].clone();
    let mut file = model("deepseek2");
    assert_eq!(model_type(&file), json!("deepseek_v3"));
    file.bool("deepseek2.expert_weights_norm", false).u32(gating, 1);
    assert_eq!(model_type(&file), json!("deepseek_v2"));
    assert_eq!(config(&file)["topk_method"], json!("greedy"));
    file.remove(gating);
    assert_eq!(model_type(&file), json!("deepseek_v2"));
    file.u32("deepseek2.expert_group_count", 2).u32("deepseek2.expert_group_used_count", 1);
    assert_eq!(config(&file)["topk_method"], json!("group_limited_greedy"));
    // The first files of 236 billion parameters do not say their groups.
    file.remove("deepseek2.expert_group_count").remove("deepseek2.expert_group_used_count");
    file.u32("deepseek2.expert_count", 160);
    let config = config(&file);
    assert_eq!([&config["n_group"], &config["topk_group"]], [&json!(8), &json!(3)]);
    // Nor do those of GLM-4.7-Flash say that they are routed by sigmoids.
    file.u32("deepseek2.block_count", 47).u32("deepseek2.vocab_size", 154_880);
    assert_eq!(model_type(&file), json!("deepseek_v3"));
}
