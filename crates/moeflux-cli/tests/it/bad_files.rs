//! Damaged and contradictory checkpoints: refused in one line that names the file.

use std::fs;

use crate::common::{Copy, golden, listing, moeflux, refuses};
use serde_json::{Value, json};

const HF: &str = "hf-bf16";
const MLX: &str = "mlx-q4";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00002-of-00002.safetensors";

/// Damages a copy of a golden case; every command that opens it must refuse it.
#[track_caller]
fn refuses_case(case: &str, damage: impl FnOnce(&Copy), words: &[&str]) {
    let copy = Copy::of(&golden(case));
    damage(&copy);
    refuses_copy(&copy, words);
}

#[track_caller]
fn refuses_copy(copy: &Copy, words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("packed");
    let packed = packed.to_str().unwrap();
    refuses(&["inspect", "--model", copy.arg()], 1, words);
    refuses(&["plan", "--json", "--model", copy.arg()], 1, words);
    refuses(&["run", "--raw", "a", "--model", copy.arg()], 1, words);
    refuses(&["pack", copy.arg(), packed], 1, words);
    assert!(!moeflux(&["inspect", "--model", packed]).output().unwrap().status.success());
}

#[test]
fn files_that_are_cut_are_refused() {
    let full = fs::metadata(golden(MLX).join(WEIGHTS)).unwrap().len() as usize;
    for len in [0, 4, 7, 8, 100, 5000, full - 1] {
        refuses_case(MLX, |copy| copy.edit(WEIGHTS, |bytes| bytes.truncate(len)), &[WEIGHTS]);
    }
    refuses_case(MLX, |copy| copy.edit(WEIGHTS, |bytes| bytes.push(0)), &[WEIGHTS]);
    refuses_case(HF, |copy| copy.edit(SHARD, |bytes| bytes.truncate(200_000)), &[SHARD]);
}

#[test]
fn absurd_header_lengths_are_refused() {
    for len in [0, 1, 7, 100_000_001, 1 << 40, u64::MAX / 2, u64::MAX - 7, u64::MAX] {
        let set = |bytes: &mut Vec<u8>| bytes[..8].copy_from_slice(&len.to_le_bytes());
        refuses_case(MLX, |copy| copy.edit(WEIGHTS, set), &[WEIGHTS]);
    }
}

#[test]
fn flipped_bits_of_a_header_are_refused() {
    for bit in 0..8 {
        refuses_case(MLX, |copy| copy.edit(WEIGHTS, |bytes| bytes[8] ^= 1 << bit), &[WEIGHTS]);
    }
    let nested = |bytes: &mut Vec<u8>| {
        let mut file = 100_000u64.to_le_bytes().to_vec();
        file.extend(vec![b'['; 100_000]);
        *bytes = file;
    };
    refuses_case(MLX, |copy| copy.edit(WEIGHTS, nested), &[WEIGHTS]);
}

/// A tensor of a header whose name ends so.
fn tensor<'a>(header: &'a mut Value, end: &str) -> (String, &'a mut Value) {
    let all = header.as_object_mut().unwrap();
    let found = all.iter_mut().find(|(name, _)| name.ends_with(end));
    found.map(|(name, value)| (name.clone(), value)).unwrap()
}

#[test]
fn headers_that_contradict_config_or_file_are_refused() {
    let norm = "layers.0.input_layernorm.weight";
    let change = |key: &'static str, value: Value, words: &[&str]| {
        let edit = |header: &mut Value| tensor(header, norm).1[key] = value;
        refuses_case(MLX, |copy| copy.edit_header(WEIGHTS, edit), &[&[WEIGHTS], words].concat());
    };
    let size = fs::read(golden(MLX).join("config.json")).unwrap();
    let size: Value = serde_json::from_slice(&size).unwrap();
    let size = size.get("text_config").unwrap_or(&size)["hidden_size"].as_u64().unwrap();
    change("shape", json!([size / 2, 2]), &[norm]);
    change("shape", json!([size - 1]), &[]);
    change("shape", json!([u64::MAX, 2]), &[]);
    change("shape", json!([]), &[]);
    change("shape", json!([-1]), &[]);
    change("dtype", json!("F99"), &[]);
    change("dtype", json!("I8"), &[]);
    change("data_offsets", json!([0, 0]), &[]);
    change("data_offsets", json!([10, 2]), &[]);
    change("data_offsets", json!([u64::MAX - 1, u64::MAX]), &[]);
    change("data_offsets", json!("all"), &[]);
}

#[test]
fn missing_tensors_and_left_over_ones_are_refused_by_name() {
    for end in ["layers.0.input_layernorm.weight", "layers.1.mlp.switch_mlp.up_proj.scales"] {
        let rename = |header: &mut Value| {
            let (name, _) = tensor(header, end);
            let all = header.as_object_mut().unwrap();
            let value = all.remove(&name).unwrap();
            all.insert(String::from("model.layers.0.surprise"), value);
        };
        let what = end.rsplit_once('.').unwrap().0;
        let rename = |copy: &Copy| {
            copy.edit_header(WEIGHTS, rename);
            fs::remove_file(copy.file(INDEX)).unwrap();
        };
        refuses_case(MLX, rename, &[what, "is missing"]);
    }
    let extra = |header: &mut Value| {
        let len = header.as_object().unwrap().values();
        let ends = len.filter_map(|len| len["data_offsets"][1].as_u64());
        let end = ends.max().unwrap();
        header["model.layers.0.surprise"] =
            json!({"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]});
    };
    let append = |copy: &Copy| {
        copy.edit_header(WEIGHTS, extra);
        copy.edit(WEIGHTS, |bytes| bytes.extend([0; 4]));
    };
    refuses_case(MLX, append, &["model.layers.0.surprise", "not part of this model family"]);
}

#[test]
fn shards_that_are_missing_or_lead_elsewhere_are_refused() {
    refuses_case(HF, |copy| fs::remove_file(copy.file(SHARD)).unwrap(), &[SHARD]);
    refuses_case(HF, |copy| fs::write(copy.file(INDEX), "{").unwrap(), &[INDEX]);
    refuses_case(HF, |copy| fs::write(copy.file(INDEX), "{}").unwrap(), &[INDEX]);
    for name in ["../x.safetensors", "/etc/passwd", "", "a\0b"] {
        let edit = |value: &mut Value| {
            let all = value["weight_map"].as_object_mut().unwrap();
            *all.values_mut().next().unwrap() = json!(name);
        };
        refuses_case(HF, |copy| copy.edit_json(INDEX, edit), &[INDEX]);
    }
    refuses_case(HF, |copy| fs::remove_file(copy.file("config.json")).unwrap(), &["config.json"]);
}

/// Changes a key of the text config.
fn set(copy: &Copy, key: &str, value: Option<Value>) {
    copy.edit_json("config.json", |config| {
        let text = config["text_config"].as_object_mut().unwrap();
        match value {
            Some(value) => drop(text.insert(key.to_owned(), value)),
            None => drop(text.remove(key)),
        }
    });
}

#[test]
fn absurd_figures_of_a_config_are_refused_by_key() {
    for key in [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "linear_conv_kernel_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "max_position_embeddings",
        "rms_norm_eps",
    ] {
        for value in [
            json!(0),
            json!(-1),
            json!(1e18),
            json!(u64::MAX),
            json!("many"),
            json!("NaN"),
            json!([1]),
            json!({}),
            json!(true),
        ] {
            if key == "rms_norm_eps" && value == 0 {
                continue; // An epsilon of zero is one.
            }
            let copy = Copy::of(&golden(HF));
            set(&copy, key, Some(value));
            refuses(&["inspect", "--model", copy.arg()], 1, &["config.json", key]);
        }
    }
}

#[test]
fn configs_that_lack_a_key_or_contradict_themselves_are_refused() {
    // A key that is absent has the family's default, which the tensors contradict.
    for (key, words) in [
        ("vocab_size", "the config asks for [248320, 72]"),
        ("hidden_size", "the config asks for [2048]"),
        ("num_hidden_layers", "num_hidden_layers"),
        ("num_experts", "the config asks for [256, 72]"),
        ("num_experts_per_tok", "num_experts_per_tok is absent and by default is 8"),
    ] {
        refuses_case(HF, |copy| set(copy, key, None), &[words]);
    }
    let linear = json!("linear_attention");
    for (key, value, words) in [
        ("num_experts_per_tok", json!(6), "num_experts_per_tok"),
        ("layer_types", json!([linear]), "layer_types"),
        ("layer_types", json!([linear, linear, linear, linear, linear]), "layer_types"),
        ("layer_types", json!([linear, linear, linear, "sideways"]), "sideways"),
        ("layer_types", json!("full"), "layer_types"),
        ("num_key_value_heads", json!(2), "num_key_value_heads"),
        ("hidden_act", json!("relu"), "relu"),
        ("model_type", json!("gpt17"), "gpt17"),
    ] {
        refuses_case(HF, |copy| set(copy, key, Some(value)), &["config.json", words]);
    }
    let other = |value: &mut Value| *value = json!({"model_type": "gpt17"});
    refuses_case(
        HF,
        |copy| copy.edit_json("config.json", other),
        &["config.json", "gpt17", "qwen3_5_moe"],
    );
    for text in ["", "[]", "null", "{", "\u{feff}{}", "{\"model_type\": 3}"] {
        refuses_case(
            HF,
            |copy| fs::write(copy.file("config.json"), text).unwrap(),
            &["config.json"],
        );
    }
}

#[test]
fn layer_files_that_are_missing_or_cut_are_refused_by_name() {
    let file = "packed_experts/layer_05.bin";
    let open = |copy: &Copy, words: &[&str]| {
        for io in ["mmap", "pread"] {
            let args = ["run", "a", "--model", copy.arg(), "--expert-io", io];
            refuses(&args, 1, words);
        }
    };
    let copy = Copy::of_demo();
    fs::remove_file(copy.file(file)).unwrap();
    open(&copy, &["layer_05.bin", "--allow-missing-experts"]);
    let allowed = ["run", "a", "--max-tokens", "2", "--allow-missing-experts", "--model"];
    moeflux(&[&allowed[..], &[copy.arg()]].concat()).assert().success();
    for len in [0, 4096, 900_000] {
        let copy = Copy::of_demo();
        copy.edit(file, |bytes| bytes.truncate(len));
        open(&copy, &["layer_05.bin", &len.min(900_000).to_string()]);
    }
    let copy = Copy::of_demo();
    copy.edit("packed_experts/layer_00.bin", |bytes| bytes[12345] ^= 1);
    refuses(&["run", "a", "--verify", "--model", copy.arg()], 1, &["layer_00.bin"]);
    refuses(&["inspect", "--verify", "--model", copy.arg()], 1, &["layer_00.bin"]);
}

#[test]
fn containers_whose_description_is_damaged_are_refused() {
    let damage = |edit: &dyn Fn(&mut Value), words: &[&str]| {
        let copy = Copy::of_demo();
        copy.edit_json("moeflux.json", edit);
        refuses(&["run", "a", "--model", copy.arg()], 1, &[&["moeflux.json"], words].concat());
    };
    for (key, value) in [
        ("config", json!({})),
        ("config", json!(3)),
        ("files", json!([])),
        ("files", json!({})),
        ("layers", json!([])),
        ("layers", Value::Null),
    ] {
        damage(&|json| json[key] = value.clone(), &[]);
    }
    let copy = Copy::of_demo();
    fs::remove_file(copy.file("resident.safetensors")).unwrap();
    refuses(&["run", "a", "--model", copy.arg()], 1, &["resident.safetensors"]);
    let copy = Copy::of_demo();
    fs::write(copy.file("moeflux.json"), "{").unwrap();
    refuses(&["run", "a", "--model", copy.arg()], 1, &["moeflux.json"]);
}

/// What a command that must succeed prints.
fn printed(args: &[&str]) -> String {
    let output = moeflux(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn plan_and_inspect_say_which_tokenizer_there_is() {
    let copy = Copy::of(&golden(HF));
    let commands = ["plan", "inspect"];
    let check = |words: &str| {
        for command in commands {
            let text = printed(&[command, "--model", copy.arg()]);
            assert!(text.contains(words), "{text}");
            let json = printed(&[command, "--json", "--model", copy.arg()]);
            let json: Value = serde_json::from_str(&json).unwrap();
            let tokenizer = json["tokenizer"].to_string();
            assert!(tokenizer.contains(words), "{tokenizer}");
        }
    };
    // Bytes and their ranks alone.
    let base64 = |b: u8| {
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let digit = |n: u8| char::from(digits[usize::from(n)]);
        format!("{}{}==", digit(b >> 2), digit((b & 3) << 4))
    };
    let ranks: String = (0..=255u8).map(|b| format!("{} {b}\n", base64(b))).collect();
    let config = json!({"tokenizer_class": "TikTokenTokenizer"}).to_string();
    let _ = fs::remove_file(copy.file("tokenizer.json"));
    check("has no tokenizer");
    fs::write(copy.file("tokenizer_config.json"), config).unwrap();
    fs::write(copy.file("tiktoken.model"), ranks.split_once('\n').unwrap().1).unwrap();
    check("no token for the byte");
    fs::write(copy.file("tiktoken.model"), &ranks).unwrap();
    fs::create_dir(copy.file("additional_chat_templates")).unwrap();
    fs::write(copy.file("additional_chat_templates/tool_use.jinja"), "{{ 1 }}").unwrap();
    check("tiktoken.model, ");
    check("tool_use");
    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("packed");
    printed(&["pack", copy.arg(), packed.to_str().unwrap(), "--bits", "16"]);
    for name in ["tiktoken.model", "additional_chat_templates/tool_use.jinja"] {
        assert_eq!(fs::read(packed.join(name)).unwrap(), fs::read(copy.file(name)).unwrap());
    }
    assert!(printed(&["inspect", "--model", packed.to_str().unwrap()]).contains("tool_use"));
}

#[test]
fn tokenizers_that_are_missing_or_broken_are_refused() {
    let run = |copy: &Copy, words: &[&str]| {
        refuses(&["run", "a", "--model", copy.arg()], 1, words);
        refuses(&["chat", "--model", copy.arg()], 1, words);
    };
    let case = golden(MLX);
    refuses(
        &["run", "a", "--model", case.to_str().unwrap()],
        1,
        &["tokenizer.json", "has no tokenizer"],
    );
    for text in ["", "{", "{}", "[]", "{\"model\": {\"type\": \"Nonsense\"}}", "\u{0}"] {
        let copy = Copy::of(&golden(HF));
        fs::write(copy.file("tokenizer.json"), text).unwrap();
        run(&copy, &["tokenizer.json"]);
        // What needs no text works without.
        moeflux(&["inspect", "--model", copy.arg()]).assert().success();
    }
    for text in ["", "{", "[]", "null"] {
        let copy = Copy::of(&golden(HF));
        fs::write(copy.file("tokenizer_config.json"), text).unwrap();
        run(&copy, &["tokenizer_config.json"]);
    }
}

#[test]
fn chat_templates_that_are_missing_or_broken_are_refused() {
    for (template, words) in [
        ("{% if %}", "chat template"),
        ("{{ messages[0].content", "chat template"),
        ("{{ raise_exception('not today') }}", "not today"),
        (
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
            "chat template",
        ),
        ("{{ nothing.at.all }}", "chat template"),
    ] {
        let copy = Copy::of(&golden(HF));
        fs::write(copy.file("chat_template.jinja"), template).unwrap();
        refuses(&["run", "a", "--model", copy.arg()], 1, &[words]);
    }
    let copy = Copy::of(&golden(HF));
    let _ = fs::remove_file(copy.file("chat_template.jinja"));
    copy.edit_json("tokenizer_config.json", |copy| {
        copy.as_object_mut().unwrap().remove("chat_template");
    });
    refuses(&["run", "a", "--model", copy.arg()], 2, &["no chat template", "--raw"]);
    refuses(&["chat", "--model", copy.arg()], 2, &["no chat template"]);
    moeflux(&["run", "--raw", "a", "--max-tokens", "1", "--model", copy.arg()]).assert().success();
}

#[test]
fn refusing_leaves_the_files_as_they_are() {
    let copy = Copy::of(&golden(HF));
    copy.edit(SHARD, |bytes| bytes.truncate(1000));
    let before = listing(copy.path());
    refuses(&["run", "a", "--model", copy.arg()], 1, &[SHARD]);
    assert_eq!(listing(copy.path()), before);
}
