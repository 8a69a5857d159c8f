//! Keys that lie, are missing or cannot be, of architectures that take more than others from their keys.

use moeflux_core::checkpoint::FormatError;
use serde_json::json;

use super::models::{INTERMEDIATE, model};
use super::translation::{config, open, refused};
use super::writer::GgufWriter;

/// Refused with this text after the file's name.
#[track_caller]
fn check(architecture: &str, edit: impl FnOnce(&mut GgufWriter), want: &str) {
    let mut file = model(architecture);
    edit(&mut file);
    assert_eq!(refused(&file), format!("m.gguf: {want}"));
}

#[test]
fn widths_of_shared_experts_are_those_of_tensors() {
    let mut file = model("ernie4_5-moe");
    let key = "ernie4_5-moe.expert_shared_feed_forward_length";
    for width in [0, 1, 7, 1000] {
        file.u32(key, width);
        assert_eq!(config(&file)["moe_num_shared_experts"], json!(1));
    }
    let want = "ernie4_5-moe.expert_feed_forward_length is 4; it must divide the 6 columns of shared experts";
    check(
        "ernie4_5-moe",
        |file| {
            file.u32("ernie4_5-moe.expert_feed_forward_length", 4);
        },
        want,
    );
    let zero = "ernie4_5-moe.expert_feed_forward_length is 0; it must divide the 6 columns of shared experts";
    check(
        "ernie4_5-moe",
        |file| {
            file.u32("ernie4_5-moe.expert_feed_forward_length", 0);
        },
        zero,
    );
}

#[test]
fn older_files_say_widths_by_their_tensors() {
    let mut file = model("qwen2moe");
    for key in ["expert_feed_forward_length", "expert_shared_feed_forward_length"] {
        file.remove(&format!("qwen2moe.{key}"));
    }
    let config = config(&file);
    assert_eq!(config["moe_intermediate_size"], json!(INTERMEDIATE));
    assert_eq!(config["shared_expert_intermediate_size"], json!(INTERMEDIATE));
    assert_eq!(config["norm_topk_prob"], json!(false));
    // Nor is there a width without a tensor.
    file.tensors.retain(|tensor| !tensor.name.contains("_exps"));
    let want = "m.gguf: qwen2moe.expert_feed_forward_length is missing; it must be a whole number";
    assert_eq!(refused(&file), want);
}

#[test]
fn layers_with_indexers_have_pools() {
    let key = "qwen4exp.attention.compress_ratios";
    let zeros = "qwen4exp.attention.compress_ratios is a list of 2; it must have no 0 for blk.1, which has an \
                 indexer: convert the model again, with the layer_types of its config.json";
    check(
        "qwen4exp",
        |file| {
            file.i32s(key, &[0, 0]);
        },
        zeros,
    );
    let missing = format!("{key} is missing; it must be a list with an entry for each layer");
    check(
        "qwen4exp",
        |file| {
            file.remove(key);
        },
        &missing,
    );
    let long =
        format!("{key} is a list of 3; it must have 2 entries, as many as qwen4exp.block_count");
    check(
        "qwen4exp",
        |file| {
            file.i32s(key, &[0, 4, 4]);
        },
        &long,
    );
}

fn built(file: &GgufWriter) -> Result<(), String> {
    let opened = open(file).map_err(|err: FormatError| err.to_string())?;
    let declared = moeflux_model::Declared::of(&opened, moeflux_model::Variant::default());
    declared.map(drop).map_err(|err| err.to_string())
}

/// Refused when the model is built, with this end of the line.
#[track_caller]
fn check_built(edit: impl FnOnce(&mut GgufWriter), want: &str) {
    let mut file = model("qwen4exp");
    edit(&mut file);
    let got = built(&file).unwrap_err();
    assert!(!got.contains('\n') && got.ends_with(want), "{got}");
}

#[test]
fn hashes_of_n_grams_end_within_their_table() {
    built(&model("qwen4exp")).unwrap();
    check_built(
        |file| {
            file.i32s("qwen4exp.ple.head_offsets", &[0, 6]);
        },
        "qwen4exp.ple.head_offsets is [0,6]; it must end within the 12 rows of the table",
    );
    check_built(
        |file| {
            file.i32s("qwen4exp.ple.head_vocab_sizes", &[0, 7]);
        },
        "qwen4exp.ple.head_vocab_sizes is [0,7]; it must hold numbers above 0",
    );
    check_built(
        |file| {
            file.i32s("qwen4exp.ple.layer_multipliers", &[3, 5]);
        },
        "qwen4exp.ple.layer_multipliers is [3,5]; it must have 3 entries",
    );
    check_built(
        |file| {
            file.i32s("qwen4exp.ple.layers", &[0, 1]);
        },
        "qwen4exp.ple.layers is [1,2]; it must name one layer: there is one table",
    );
    check_built(
        |file| {
            file.u32("qwen4exp.ple.heads_per_ngram", 0);
        },
        "it must be a whole number from 1 to 64",
    );
    check_built(
        |file| {
            file.u32("qwen4exp.embedding_length_per_layer_input", u32::MAX);
        },
        "it must be a whole number from 1 to 1048576",
    );
    check_built(
        |file| {
            file.i32s("qwen4exp.ple.head_offsets", &[0, -5]);
        },
        "qwen4exp.ple.head_offsets is a list of 2; it must hold whole numbers of at least 0",
    );
    check_built(
        |file| {
            file.i32s("qwen4exp.ple.layer_multipliers", &[1; 100_000]);
        },
        "qwen4exp.ple.layer_multipliers is a list of 100000; it must have at most 1024 entries",
    );
    check_built(
        |file| file.tensors.retain(|tensor| !tensor.name.starts_with("per_layer")),
        "tensor per_layer_token_embd.weight is missing; is the download complete?",
    );
}

#[test]
fn weights_of_experts_add_up_to_one_where_nothing_else_is_computed() {
    for architecture in ["bailingmoe2", "hy_v3"] {
        let key = format!("{architecture}.expert_weights_norm");
        let rule = "it must be true for this architecture";
        check(
            architecture,
            |file| {
                file.bool(&key, false);
            },
            &format!("{key} is false; {rule}"),
        );
        check(
            architecture,
            |file| {
                file.remove(&key);
            },
            &format!("{key} is missing; {rule}"),
        );
    }
}

#[test]
fn layers_that_slide_follow_a_list_or_a_period() {
    let mut file = model("exaone-moe");
    let pattern = "exaone-moe.attention.sliding_window_pattern";
    file.remove(pattern);
    // Three of four slide, and the last does not.
    let types = json!(["sliding_attention", "full_attention"]);
    assert_eq!(config(&file)["layer_types"], types);
    file.u32(pattern, 1);
    assert_eq!(config(&file)["layer_types"], json!(["full_attention", "full_attention"]));
    let window = "exaone-moe.attention.sliding_window";
    check(
        "exaone-moe",
        |file| {
            file.remove(window);
        },
        &format!("{window} is missing; it must be a number"),
    );
    check(
        "exaone-moe",
        |file| {
            file.u32(pattern, 0);
        },
        &format!("{pattern} is 0; it must be at least 1"),
    );
}
