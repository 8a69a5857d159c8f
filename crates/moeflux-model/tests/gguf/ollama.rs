//! Files that Ollama converts itself: what they call otherwise than llama.cpp's converter does.

use serde_json::{Value, json};

use super::models::model;
use super::translation::{names, open, refused};
use super::writer::GgufWriter;

/// The file with another name of its architecture, and of keys.
fn called(file: &mut GgufWriter, from: &str, to: &str) {
    for key in &mut file.keys {
        if let Some(rest) = key.0.strip_prefix(&format!("{from}.")) {
            key.0 = format!("{to}.{rest}");
        }
    }
    file.text("general.architecture", to);
}

fn rename(file: &mut GgufWriter, from: &str, to: &str) {
    for tensor in &mut file.tensors {
        tensor.name = tensor.name.replace(from, to);
    }
}

fn config_of(file: &GgufWriter) -> Value {
    open(file).unwrap().config().value().clone()
}

#[test]
fn gpt_oss_has_other_names() {
    let mut file = model("gpt-oss");
    let (want, want_config) = (names(&file), config_of(&file));
    called(&mut file, "gpt-oss", "gptoss");
    rename(&mut file, "attn_output.", "attn_out.");
    rename(&mut file, "attn_sinks.weight", "attn_sinks");
    rename(&mut file, "post_attention_norm", "ffn_norm");
    assert_eq!(names(&file), want);
    assert_eq!(config_of(&file), want_config);
    // A key that is wrong is named as the file has it.
    file.u32("gptoss.block_count", 0);
    assert!(refused(&file).contains("gptoss.block_count is 0"), "{}", refused(&file));
}

#[test]
fn gpt_oss_is_stretched_by_yarn_where_no_key_says_how() {
    let mut file = model("gpt-oss");
    called(&mut file, "gpt-oss", "gptoss");
    file.remove("gptoss.rope.scaling.type")
        .f32("gptoss.rope.scaling.factor", 32.0)
        .u32("gptoss.rope.scaling.original_context_length", 4096);
    let want = json!({"rope_type": "yarn", "factor": 32.0, "truncate": false,
        "original_max_position_embeddings": 4096});
    assert_eq!(config_of(&file)["rope_parameters"], want);
}

#[test]
fn towers_for_pictures_are_in_the_file_of_the_text() {
    let mut file = model("qwen35moe");
    let (want, want_config) = (names(&file), config_of(&file));
    for name in
        ["v.blk.0.attn_q.weight", "v.patch_embed.weight", "mm.0.weight", "a.blk.0.ffn_up.weight"]
    {
        file.floats(name, &[2, 2], &[0.0; 4]);
    }
    assert_eq!(names(&file), want);
    assert_eq!(config_of(&file), want_config);
    assert_eq!(open(&file).unwrap().n_skipped(), 4);
}

#[test]
fn delta_nets_have_no_heads_of_keys() {
    for architecture in ["qwen35moe", "qwen3next"] {
        let mut file = model(architecture);
        let (want, want_config) = (names(&file), config_of(&file));
        rename(&mut file, "ssm_dt.bias", "ssm_dt");
        let heads = want_config["num_key_value_heads"].as_i64().unwrap() as i32;
        let key = format!("{architecture}.attention.head_count_kv");
        let recurs: Vec<bool> = want_config["layer_types"]
            .as_array()
            .unwrap()
            .iter()
            .map(|kind| kind == "linear_attention")
            .collect();
        let all: Vec<i32> = recurs.iter().map(|recurs| if *recurs { 0 } else { heads }).collect();
        file.remove(&key).i32s(&key, &all);
        assert_eq!(names(&file), want, "{architecture}");
        assert_eq!(config_of(&file), want_config, "{architecture}");
        // The list says which layers recur where no other key does.
        file.remove(&format!("{architecture}.attention.recurrent_layers"))
            .remove(&format!("{architecture}.full_attention_interval"));
        assert_eq!(config_of(&file), want_config, "{architecture}");
    }
}
