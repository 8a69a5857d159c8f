//! Results to share: what `bench --share` says of a machine, and the files of `docs/results/`.

#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{finish, moeflux, refuses};
use serde_json::Value;

const BENCH: [&str; 8] =
    ["bench", "--share", "--prompt-tokens", "24", "--gen-tokens", "6", "--repeat", "2"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `tools/results/check.py`; `None` where there is no Python.
fn check(args: &[&Path]) -> Option<Output> {
    let script = root().join("tools/results/check.py");
    let run = Command::new("python3").arg("-B").arg(script).args(args).output();
    match run {
        Ok(output) => Some(output),
        Err(err) => {
            println!("SKIP: python3: {err}");
            None
        }
    }
}

#[track_caller]
fn is_right(args: &[&Path]) -> bool {
    check(args).is_none_or(|output| {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        true
    })
}

#[test]
fn a_shared_result_has_the_form_and_names_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("own-name.json");
    let out = file.to_str().unwrap();
    let (text, notes) = finish(&mut moeflux(&[&BENCH[..], &["--out", out]].concat()));
    assert_eq!(text, fs::read_to_string(&file).unwrap());
    assert!(notes.contains(out), "{notes}");
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["moeflux"], env!("CARGO_PKG_VERSION"));
    let decode = &value["result"]["decode_tok_s"];
    assert!(decode["min"].as_f64() <= decode["median"].as_f64(), "{text}");
    assert_eq!(
        (&value["run"]["prompt_tokens"], &value["run"]["gen_tokens"]),
        (&24.into(), &6.into())
    );
    assert_eq!(value["hardware"]["gpu"], Value::Null);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = std::env::var("USER").unwrap_or_default();
    let strings: Vec<&str> = strings(&value);
    for private in [host.trim(), user.as_str(), "own-name", "/"] {
        let is_named = |text: &&str| text.split([' ', ',']).any(|word| word == private);
        assert!(private.is_empty() || !strings.iter().any(is_named), "{private}: {text}");
    }
    assert!(!strings.iter().any(|text| text.contains(['/', '\\'])), "{text}");
    assert!(is_right(&[&file]));

    // A file that is there stays, unless it is to be replaced.
    fs::write(&file, "mine").unwrap();
    let again = [&BENCH[..], &["--out", out]].concat();
    refuses(&again, 2, &["--out", "--force"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    finish(&mut moeflux(&[&again[..], &["--force"]].concat()));
    assert!(is_right(&[&file]));
    assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    refuses(&["bench", "--out", out], 2, &["--share"]);
    refuses(&[&BENCH[..], &["--json"]].concat(), 2, &["--share", "--json"]);
    let nowhere = dir.path().join("no/such/result.json");
    refuses(&[&BENCH[..], &["--out", nowhere.to_str().unwrap()]].concat(), 1, &["--out"]);
}

fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(all) => all.iter().flat_map(strings).collect(),
        Value::Object(all) => all.values().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_program_has_all_results_of_the_folder() {
    let mut paths: Vec<PathBuf> = fs::read_dir(root().join("docs/results"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter(|path| !path.ends_with("schema.json"))
        .collect();
    paths.sort();
    let read =
        |path: &PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let want: Vec<Value> = paths.iter().map(read).collect();
    let list: Value = serde_json::from_str(include_str!("../../src/results.json")).unwrap();
    assert_eq!(list, Value::Array(want), "tools/results/check.py --write writes the list");
    assert!(is_right(&[]), "tools/results/check.py --write writes the table");
}

#[test]
fn results_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("result.json");
    let good = serde_json::json!({
        "schema": 1, "moeflux": "0.1.0", "date": "2026-11-27",
        "hardware": {"cpu": "Example 9", "cores": 8, "isa": "avx2", "os": "linux", "memory_gib": 32, "gpu": null},
        "drive": {"gb_s": 3.1, "request_bytes": 1769472},
        "memory_gb_s": 50.0,
        "model": {
            "shape": "qwen3.6-35b-a3b", "family": "qwen3_5_moe", "layers": 40, "experts": 256, "experts_per_token": 8,
            "format": "4-bit, groups of 64", "bits": 4.5, "expert_bytes": 18_119_393_280_u64,
        },
        "run": {
            "context": 4096, "prompt_tokens": 512, "gen_tokens": 64, "repeat": 5, "threads": 8, "cold": false,
            "expert_io": "direct", "cached_share": 0.25,
        },
        "result": {
            "decode_tok_s": {"median": 9.2, "min": 9.0, "max": 9.5},
            "prompt_tok_s": {"median": 200.0, "min": 190.0, "max": 210.0},
            "rh": 0.7, "hit_rate": 0.6,
        },
    });
    let write = |value: &Value| fs::write(&file, value.to_string()).unwrap();
    write(&good);
    if !is_right(&[&file]) || check(&[&file]).is_none() {
        return;
    }
    for (place, wrong) in [
        ("/schema", 2.into()),
        ("/schema", 1.0.into()),
        ("/date", "2026-13-27".into()),
        ("/date", "2026-02-30".into()),
        ("/date", "2999-01-01".into()),
        ("/hardware/cpu", "a | b".into()),
        ("/hardware/cpu", "{{#include ../secret}}".into()),
        ("/hardware/gpu", "[a](https://b)".into()),
        ("/model/format", "`4`".into()),
        ("/model/expert_bytes", u64::MAX.into()),
        ("/run/repeat", u64::MAX.into()),
        ("/run/gen_tokens", u64::MAX.into()),
        ("/hardware/cpu", "a\nb".into()),
        ("/hardware/cores", 0.into()),
        ("/hardware/cores", true.into()),
        ("/hardware/gpu", 7.into()),
        ("/drive/gb_s", 0.into()),
        ("/drive/gb_s", 0.01.into()),
        ("/model/shape", "../etc".into()),
        ("/model/experts_per_token", 300.into()),
        ("/run/expert_io", "fast".into()),
        ("/run/context", 100.into()),
        ("/run/cached_share", 1.5.into()),
        ("/result/decode_tok_s/median", 12.into()),
        ("/result/decode_tok_s", 9.into()),
        ("/result/hit_rate", Value::Null),
        ("/memory_gb_s", 0.1.into()),
    ] {
        let mut value = good.clone();
        *value.pointer_mut(place).unwrap() = wrong;
        write(&value);
        let output = check(&[&file]).unwrap();
        assert!(!output.status.success(), "{place}: {value}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("result.json: ") && !said.contains("Traceback"), "{place}: {said}");
    }
    let mut more = good.clone();
    more["host"] = "mine".into();
    let texts = [
        more.to_string(),
        String::from("{"),
        String::from("[]"),
        good.to_string().replace("9.2", "NaN"),
        good.to_string().replace("18119393280", &"9".repeat(400)),
        good.to_string().replace("\"schema\"", "\"\\u001b[31mschema\""),
    ];
    for text in texts {
        fs::write(&file, &text).unwrap();
        let output = check(&[&file]).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{text}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("Traceback") && !said.contains('\u{1b}'), "{said}");
    }
}
