//! Files that rot, threads that do not start and memory that is not there: one line each, and no
//! wrong text.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{check_refusal, finish, golden, moeflux, refuses, succeeds};
use serde_json::Value;
use tempfile::TempDir;

/// A packed copy of a golden case.
fn packed(case: &str) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("packed").to_str().unwrap().to_owned();
    succeeds(&["pack", golden(case).to_str().unwrap(), &dst]);
    (dir, dst)
}

fn layer_files(model: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(model).join("packed_experts")).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn a_flipped_bit_of_an_expert_is_found_when_it_is_first_read() {
    let (_dir, model) = packed("hf-bf16");
    let container: Value =
        serde_json::from_slice(&fs::read(Path::new(&model).join("moeflux.json")).unwrap()).unwrap();
    for (i, file) in layer_files(&model).iter().enumerate() {
        let good = fs::read(file).unwrap();
        let layer = &container["layers"][i];
        let [record, stride] =
            ["record_bytes", "stride_bytes"].map(|key| layer[key].as_u64().unwrap() as usize);
        let mut bad = good.clone();
        for (expert, record_at) in (0..good.len()).step_by(stride).enumerate() {
            bad[record_at + (expert * 7919 + 13) % record] ^= 1 << (expert % 8);
        }
        fs::write(file, bad).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let of_layer = format!("of layer {i} does not have the checksum");
        for io in ["mmap", "pread", "direct"] {
            let args = ["run", "--raw", "a", "--model", &model, "--expert-io", io];
            refuses(&args, 1, &[name, "expert ", &of_layer]);
        }
        fs::write(file, good).unwrap();
    }
    succeeds(&["run", "-q", "--raw", "a", "--max-tokens", "2", "--model", &model]);
}

#[test]
fn a_flipped_bit_of_a_resident_tensor_is_found_at_load() {
    let (_dir, model) = packed("mlx-q4");
    let file = Path::new(&model).join("resident.safetensors");
    let good = fs::read(&file).unwrap();
    let start = 8 + u64::from_le_bytes(*good.first_chunk().unwrap()) as usize;
    for i in 0..12 {
        let mut bad = good.clone();
        let at = start + (i * 104_729 + 77) * 31 % (good.len() - start);
        bad[at] ^= 1 << (i % 8);
        fs::write(&file, bad).unwrap();
        let words = ["resident.safetensors", "tensor "];
        refuses(&["run", "--raw", "a", "--model", &model], 1, &words);
    }
}

#[test]
fn verify_tells_what_it_checked_and_fails_by_the_name_of_the_damage() {
    let (_dir, model) = packed("mlx-q4");
    let (text, _) = succeeds(&["verify", &model]);
    assert!(text.contains("XXH3") && text.contains("no damage found"), "{text}");
    let (text, _) = succeeds(&["verify", golden("hf-bf16").to_str().unwrap()]);
    assert!(text.contains("safetensors have none"), "{text}");
    let file = &layer_files(&model)[0];
    let mut bytes = fs::read(file).unwrap();
    bytes[5] ^= 1;
    fs::write(file, bytes).unwrap();
    let Output { status, stdout, stderr } =
        moeflux(&["verify", "--json", &model]).output().unwrap();
    assert_eq!(status.code(), Some(1));
    let found: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!(found["is_intact"], false);
    assert_eq!(found["damage"][0]["part"], "expert 0 of layer 0");
    let line = String::from_utf8(stderr).unwrap();
    assert!(line.contains("layer_00.bin: expert 0 of layer 0: "), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    refuses(&["verify", "/nowhere/at/all"], 2, &["/nowhere/at/all"]);
}

/// No thread starts: each asks for a stack that no machine has.
fn without_threads(args: &[&str]) -> assert_cmd::Command {
    let mut command = moeflux(args);
    command.env("RUST_MIN_STACK", (1u64 << 50).to_string());
    command
}

#[cfg(target_os = "linux")]
#[test]
fn threads_that_do_not_start_are_an_error_where_they_are_needed() {
    let run = ["run", "-q", "--raw", "a", "--max-tokens", "2"];
    check_refusal(
        &mut without_threads(&[&run[..], &["--threads", "2"]].concat()),
        1,
        &["cannot start 2 compute threads", "--threads"],
    );
    let alone = [&run[..], &["--threads", "1"]].concat();
    check_refusal(&mut without_threads(&alone), 1, &["cannot start 8 expert readers"]);
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (golden("hf-bf16"), dir.path().join("packed"));
    finish(&mut without_threads(&["pack", src.to_str().unwrap(), dst.to_str().unwrap()]));
    finish(&mut without_threads(&["verify", dst.to_str().unwrap()]));
    finish(&mut without_threads(&["plan", "--model", dst.to_str().unwrap()]));
}

/// The command with its address space limited, in KiB.
#[cfg(target_os = "linux")]
fn limited(kib: u64, args: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v $0; exec \"$@\"", &kib.to_string()]);
    command.arg(env!("CARGO_BIN_EXE_moeflux")).args(args);
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    command.env("MOEFLUX_CACHE", tmp.join("cache")).env("HF_HUB_OFFLINE", "1");
    command.env_remove("RUST_BACKTRACE").output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_is_not_there_is_one_line() {
    // The demo model, unpacked by the first run.
    let args = ["run", "-q", "--raw", "a", "--max-tokens", "2", "--threads", "2"];
    let whole = limited(64 << 20, &args);
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    // Below this the system cannot load the program, which then has no say.
    let loads = |mib: &u64| limited(mib << 10, &["--version"]).status.success();
    let least = (24..1000).step_by(8).find(loads).unwrap();
    // Weights and caches find no memory here. Above that it is a matter of chance whether a large
    // buffer or one of a few bytes is the first that fails.
    for mib in [least + 8, least + 16, least + 24] {
        for io in ["mmap", "pread"] {
            let all = [&args[..], &["--expert-io", io]].concat();
            let Output { status, stdout, stderr } = limited(mib << 10, &all);
            let text = String::from_utf8_lossy(&stderr);
            assert_eq!(status.code(), Some(1), "{mib} MiB, {io}: {status}: {text}");
            assert_eq!(text.lines().count(), 1, "{mib} MiB, {io}: {text}");
            assert!(text.starts_with("moeflux: ") && stdout.is_empty(), "{mib} MiB, {io}: {text}");
        }
    }
}
