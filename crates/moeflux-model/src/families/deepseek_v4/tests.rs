//! What configs of the family may say, and what checkpoints may hold.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::testing::{build, check_refused, check_taken};
use super::super::{open_checkpoint, resolved};
use super::*;
use crate::declared::{Declared, bank};
use crate::model::Variant;

const CASE: &str = "deepseek_v4-hf";

/// A case whose config has the keys that transformers writes.
const TYPED: &str = "deepseek_v4-typed";

const NONE: Compression = Compression::None;
const ALL_128: Compression = Compression::All(128);
const CHOSEN_4: Compression = Compression::Chosen(4);

fn of(mut root: Value) -> Config {
    root["model_type"] = json!(NAME);
    resolved(root).unwrap()
}

/// What layers see, and which of them have experts that follow from the token.
fn kinds(root: Value, n_layers: usize) -> (Vec<Compression>, Vec<bool>) {
    let config = of(root);
    (compressions(&config, n_layers).unwrap(), hash_layers(&config, n_layers).unwrap())
}

#[test]
fn published_keys_and_those_of_transformers_give_the_same_layers() {
    let n_layers = 7;
    let want = (
        vec![NONE, NONE, CHOSEN_4, ALL_128, CHOSEN_4, ALL_128, CHOSEN_4],
        vec![true, true, true, false, false, false, false],
    );
    let published = json!({"compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0], "num_hash_layers": 3});
    assert_eq!(kinds(published, n_layers), want);
    let alternate = [CHOSEN.0, ALL.0].into_iter().cycle().take(n_layers - 2);
    let types: Vec<&str> = [WINDOW; 2].into_iter().chain(alternate).collect();
    let moe = |layer| if layer < 3 { "hash_moe" } else { "moe" };
    let typed = json!({
        "layer_types": types,
        "compress_rates": {CHOSEN.0: 4, ALL.0: 128},
        "mlp_layer_types": (0..n_layers).map(moe).collect::<Vec<_>>(),
    });
    assert_eq!(kinds(typed, n_layers), want);
    // Neither: as transformers builds it.
    let (usual, is_hashed) = kinds(json!({}), n_layers);
    assert_eq!(usual, [ALL_128, ALL_128, ALL_128, CHOSEN_4, ALL_128, CHOSEN_4, ALL_128]);
    assert_eq!(is_hashed, want.1);
    let types = [ALL.0, CHOSEN.0, WINDOW];
    let rates = json!({"compress_rates": {CHOSEN.0: 6}, "layer_types": types});
    assert_eq!(kinds(rates, 3).0, [ALL_128, Compression::Chosen(6), NONE]);
}

#[test]
fn layers_that_cannot_be_are_refused() {
    let rule = "hold a whole number up to 4096 for each layer";
    for ratios in [json!([0, 16, 4]), json!([0, 16, 4, 16, 4097, 0])] {
        check_refused(CASE, "compress_ratios", ratios, rule);
    }
    let rule = "hold \"sliding_attention\", \"compressed_sparse_attention\" or \
                \"heavily_compressed_attention\" for each layer";
    for types in [json!([WINDOW, WINDOW]), json!([WINDOW, ALL.0, "full_attention"])] {
        check_refused(TYPED, "layer_types", types, rule);
    }
    let rule = "hold \"hash_moe\" or \"moe\" for each layer";
    for types in [json!(["moe"]), json!(["hash_moe", "moe", "dense"])] {
        check_refused(TYPED, "mlp_layer_types", types, rule);
    }
    check_refused(CASE, "num_hash_layers", json!(6), "be a whole number from 0 to 5");
    for rate in [0, 4097] {
        let rule = "have a whole number from 1 to 4096 as compressed_sparse_attention";
        check_refused(TYPED, "compress_rates", json!({CHOSEN.0: rate}), rule);
    }
}

#[test]
fn what_is_not_computed_is_refused() {
    check_taken(CASE, "unknown_key", json!(1));
    check_refused(CASE, "o_groups", json!(4), "divide num_attention_heads");
    check_refused(CASE, "o_groups", json!(0), "be a whole number from 1 to 16384");
    check_refused(CASE, "num_key_value_heads", json!(2), "be 1");
    check_refused(CASE, "n_shared_experts", json!(2), "be 1");
    check_refused(CASE, "scoring_func", json!("softmax"), "be \"sqrtsoftplus\"");
    check_refused(CASE, "norm_topk_prob", json!(false), "be true");
    check_refused(CASE, "topk_method", json!("greedy"), "be \"noaux_tc\"");
    check_refused(CASE, "swiglu_limit", json!(0.0), "be above 0");
    check_refused(CASE, "hc_mult", json!(9), "be a whole number from 1 to 8");
    let rule = "be at least the rotated columns of a head";
    check_refused(CASE, "index_head_dim", json!(6), rule);
    check_refused(CASE, "sliding_window", json!(0), "be a whole number from 1 to 1073741824");
}

#[test]
fn both_rotations_turn_the_same_columns() {
    let part = |factor| json!({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": factor});
    let parts = |main: f64| json!({"main": part(main), "compress": part(0.4)});
    check_taken(TYPED, "rope_parameters", parts(0.4));
    let got = build(TYPED, "rope_parameters", &parts(0.2)).expect_err("refused");
    assert!(got.ends_with("it must rotate as many columns as \"compress\""), "{got}");
    let got = build(TYPED, "rope_parameters", &parts(7.0)).expect_err("refused");
    assert!(got.contains("partial_rotary_factor"), "{got}");
}

/// Opens a golden checkpoint with further tensors of seven floats; how many tensors are skipped.
fn with_tensors(names: &[&str]) -> Result<usize, String> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-engine/tests/golden");
    let (dir, folder) = (tempfile::tempdir().unwrap(), golden.join(CASE));
    let mut file = std::fs::read(folder.join("model.safetensors")).unwrap();
    let len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut data = file.split_off(8 + len);
    let mut header: Map<String, Value> = serde_json::from_slice(&file[8..]).unwrap();
    for name in names {
        let ends = [data.len(), data.len() + 28];
        header.insert((*name).into(), json!({"dtype": "F32", "shape": [7], "data_offsets": ends}));
        data.extend([0; 28]);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes(), &header[..], &data].concat();
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    std::fs::copy(folder.join("config.json"), dir.path().join("config.json")).unwrap();
    let checkpoint = open_checkpoint(dir.path()).map_err(|err| err.to_string())?;
    let declared = Declared::of(&checkpoint, Variant::default());
    let bank = declared.and_then(|declared| bank(&checkpoint, &declared));
    bank.map(|_| checkpoint.n_skipped()).map_err(|err| err.to_string())
}

#[test]
fn tensors_that_text_does_not_need_are_left_aside() {
    let n_skipped = with_tensors(&[]).unwrap();
    // Layers whose experts follow from the token may keep a bias.
    let biases = ["0.ffn.gate.bias", "1.ffn.gate.bias_vl", "2.ffn.gate.bias_vl"];
    let biases = biases.map(|part| format!("layers.{part}"));
    assert_eq!(with_tensors(&biases.each_ref().map(String::as_str)), Ok(n_skipped));
    let of_pictures = ["aligner.w1.weight", "image_newline", "image_pad", "vision.norm.weight"];
    assert_eq!(with_tensors(&of_pictures), Ok(n_skipped + of_pictures.len()));
    let got = with_tensors(&["layers.0.ffn.gate.bias_c"]).expect_err("refused");
    assert!(got.ends_with("not part of this model family: layers.0.ffn.gate.bias_c"), "{got}");
}
