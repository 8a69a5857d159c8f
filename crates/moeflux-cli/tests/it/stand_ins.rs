//! Files that are there in place of a model's, and models without experts: one line that says so.

use std::fs;

use crate::common::{Copy, golden, refuses};
use serde_json::json;

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\n\
    oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
const DENIED: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>AccessDenied</Code>\
    <Message>Access Denied</Message></Error>";
const PAGE: &str = "<!doctype html>\n<html class=\"\"><head><title>org/name</title></head></html>";
const WEIGHTS: &str = "model.safetensors";

#[test]
fn what_lies_in_the_place_of_weights_is_said() {
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03abc";
    let zeros = [0; 4096];
    for (bytes, words) in [
        (
            POINTER.as_bytes(),
            &["a pointer of Git LFS, not the file", "git lfs pull", "--model org/name"][..],
        ),
        (PAGE.as_bytes(), &["a web page, not the file", "download it again"]),
        (DENIED.as_bytes(), &["error message of a server (AccessDenied)"]),
        (b"{\"error\":\"Repository not found\"}", &["(Repository not found)"]),
        (b"Entry not found", &["\"Entry not found\"", "download it again"]),
        (b"Invalid username or password.", &["Invalid username or password."]),
        (b"", &["the file is empty"]),
        (gzip, &["gzip", "unpack"]),
        (b"PK\x03\x04\x14\x00\x00\x00", &["ZIP"]),
        (&zeros, &["zeros", "download has not finished"]),
        (b"../../blobs/0123456789abcdef", &["symbolic link"]),
    ] {
        let copy = Copy::of(&golden("mlx-q4"));
        fs::write(copy.file(WEIGHTS), bytes).unwrap();
        for command in ["inspect", "plan"] {
            refuses(&[command, copy.arg()], 1, &[&[WEIGHTS], words].concat());
        }
        let file = copy.file("m.gguf");
        fs::write(&file, bytes).unwrap();
        refuses(&["run", file.to_str().unwrap(), "hi"], 1, &[&["m.gguf"], words].concat());
    }
}

#[test]
fn other_files_of_a_model_may_be_pointers_too() {
    for (name, command) in [
        ("config.json", "inspect"),
        ("tokenizer.json", "run"),
        ("tokenizer.json", "prompt"),
        ("tokenizer_config.json", "run"),
        ("model.safetensors.index.json", "plan"),
    ] {
        let copy = Copy::of(&golden("hf-bf16"));
        fs::write(copy.file(name), POINTER).unwrap();
        let mut args = vec![command, "--model", copy.arg()];
        if command == "run" {
            args.push("hi");
        }
        let request = copy.file("request.json");
        fs::write(&request, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}").unwrap();
        if command == "prompt" {
            args.extend(["--request", request.to_str().unwrap()]);
        }
        refuses(&args, 1, &[name, "a pointer of Git LFS", "git lfs pull", "--model org/name"]);
    }
    // Without the file's name a download is known by its content.
    let copy = Copy::of(&golden("hf-bf16"));
    let file = copy.file("0123abcd");
    fs::write(&file, POINTER).unwrap();
    refuses(&["inspect", file.to_str().unwrap()], 1, &["0123abcd", "a pointer of Git LFS"]);
}

#[test]
fn downloads_that_have_not_finished_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for name in ["model.safetensors.incomplete", "m.gguf.part", "m.gguf.crdownload"] {
        fs::write(dir.path().join(name), b"\x10\0\0\0").unwrap();
        refuses(&["inspect", path], 1, &[path, name, "has not finished"]);
        let file = dir.path().join(name);
        refuses(&["inspect", file.to_str().unwrap()], 1, &[name, "has not finished"]);
        fs::remove_file(file).unwrap();
    }
    let copy = Copy::of(&golden("mlx-q4"));
    fs::write(copy.file("model.safetensors.aria2"), b"\0\x01").unwrap();
    refuses(
        &["run", copy.arg(), "hi"],
        1,
        &[WEIGHTS, "model.safetensors.aria2", "has not finished"],
    );
    fs::write(dir.path().join("x-00002-of-00003.gguf"), b"GGUF").unwrap();
    let second = dir.path().join("x-00002-of-00003.gguf");
    refuses(
        &["inspect", second.to_str().unwrap()],
        1,
        &["x-00001-of-00003.gguf", "part 1 of 3 is not there"],
    );
}

#[test]
fn dense_models_are_said_to_be_dense() {
    let copy = Copy::of(&golden("mlx-q4"));
    for (config, name) in [
        (json!({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}), "LlamaForCausalLM"),
        (json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}), "Qwen3ForCausalLM"),
        (
            json!({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}),
            "gemma3_text",
        ),
        (json!({"model_type": "mistral3", "text_config": {"model_type": "mistral"}}), "mistral"),
        (
            json!({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "enable_moe_block": false}}),
            "gemma4_text",
        ),
    ] {
        fs::write(copy.file("config.json"), config.to_string()).unwrap();
        for command in ["inspect", "plan", "bench"] {
            refuses(
                &[command, copy.arg()],
                1,
                &["Mixture-of-Experts", name, "dense", "llama.cpp", "moeflux models"],
            );
        }
    }
    // Of what is not known nothing is claimed.
    for config in [
        json!({"model_type": "gpt17", "architectures": ["Gpt17"]}),
        json!({"model_type": "llama", "num_local_experts": 8}),
    ] {
        fs::write(copy.file("config.json"), config.to_string()).unwrap();
        refuses(&["inspect", copy.arg()], 1, &["is not supported; supported are"]);
    }
}
