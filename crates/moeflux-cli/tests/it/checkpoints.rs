//! `logits`, `perplexity`, `inspect`, `plan`, `synth` and `pack` on models of every kind.

use std::fs;
use std::path::Path;

use crate::common::{Copy, finish, golden, header, listing, moeflux, refuses, succeeds};
use crate::logits::{self, Golden};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

/// Every golden case.
const CASES: [&str; 11] = [
    "hf-bf16",
    "hf-f16",
    "hf-text-per-expert",
    "mlx-q2",
    "mlx-q3",
    "mlx-q4",
    "mlx-q4-g32",
    "mlx-q4-g128",
    "mlx-q5",
    "mlx-q6",
    "mlx-q8",
];

fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The bytes that `logits` writes for token sequences.
fn logits(model: &Path, sequences: &Value, flags: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("in.json"), dir.path().join("out.safetensors"));
    fs::write(&tokens, sequences.to_string()).unwrap();
    let fixed = ["logits", "--model", arg(model), "--tokens", arg(&tokens), "--out", arg(&out)];
    succeeds(&[&fixed[..], flags].concat());
    assert_eq!(dir.path().read_dir().unwrap().count(), 2, "nothing else is left");
    fs::read(out).unwrap()
}

fn sequences(golden: &Golden) -> Value {
    let ids = |sequence: &logits::Sequence| {
        sequence.tokens.iter().map(|token| token.0).collect::<Vec<_>>()
    };
    golden.sequences.iter().map(ids).collect()
}

#[test]
fn exact_logits_are_the_references() {
    for case in CASES {
        let want = Golden::read(&golden(case));
        let bytes = logits(&golden(case), &sequences(&want), &["--exact"]);
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.len(), want.sequences.len());
        for (i, want) in want.sequences.iter().enumerate() {
            let got = tensors.tensor(&format!("logits.{i}")).unwrap();
            let vocab = want.logits.len() / want.tokens.len();
            assert_eq!((got.dtype(), got.shape()), (Dtype::F32, &[want.tokens.len(), vocab][..]));
            let got = got.data().as_chunks::<4>().0.iter().map(|chunk| f32::from_le_bytes(*chunk));
            let worst = got.zip(&want.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= 2e-3, "{case}, sequence {i}: {worst}");
        }
    }
}

#[test]
fn no_flag_of_speed_changes_a_bit_of_the_logits() {
    let (case, ids) = (golden("mlx-q4"), json!([[1, 2, 3, 4, 5, 6, 7, 8, 9], [7]]));
    let want = logits(&case, &ids, &["--isa", "scalar", "--threads", "1"]);
    for flags in [
        &["--chunk", "1"][..],
        &["--chunk", "4", "--threads", "3"],
        &["--expert-io", "pread", "--expert-cache", "256KiB"],
        &["--prefetch", "last-token", "--expert-io", "pread"],
    ] {
        assert!(logits(&case, &ids, flags) == want, "{flags:?}");
    }
    assert!(logits(&case, &ids, &["--exact"]) != want);
}

#[test]
fn sequences_without_tokens_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("in.json"), dir.path().join("out"));
    let model = golden("mlx-q4");
    let flags = ["logits", "--tokens", arg(&tokens), "--out", arg(&out), "-m", arg(&model)];
    for (ids, message) in [("[[1], []]", "sequence 1 is empty"), ("[]", "there is no sequence")] {
        fs::write(&tokens, ids).unwrap();
        refuses(&flags, 1, &[message, "in.json"]);
        assert!(!out.exists());
    }
}

#[test]
fn logits_replace_an_older_file_and_spare_devices() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("in.json"), dir.path().join("out"));
    fs::write(&tokens, "[[1]]").unwrap();
    fs::write(&out, "old").unwrap();
    let device = cfg!(unix).then_some("/dev/null");
    for out in [arg(&out)].into_iter().chain(device) {
        succeeds(&["logits", "--tokens", arg(&tokens), "--out", out]);
    }
    assert!(SafeTensors::deserialize(&fs::read(&out).unwrap()).is_ok());
    assert!(!Path::new("/dev/null").is_file(), "a device stays one");
}

#[test]
fn perplexity_is_that_of_the_reference() {
    let facts = fs::read(golden("demo.json")).unwrap();
    let facts: Value = serde_json::from_slice(&facts).unwrap();
    let text = golden("demo-text.txt");
    let measure = |flags: &[&str]| {
        let fixed = ["perplexity", "--text", arg(&text), "--exact"];
        let line = succeeds(&[&fixed[..], flags].concat()).0;
        let mut words = line.split([' ', '(']).filter_map(|word| word.parse::<f64>().ok());
        (words.next().unwrap(), words.next().unwrap(), line)
    };
    let (value, nll, line) = measure(&[]);
    assert!((value.ln() - nll).abs() < 1e-3, "{line}");
    // The reference ran the model before it was quantised.
    let want = facts["likelihood"]["mean_nll"].as_f64().unwrap();
    assert!((nll - want).abs() < 0.1, "{line}, the reference has {want}");
    assert_eq!(measure(&["--threads", "1", "--chunk", "7"]).2, line);
    assert_ne!(measure(&["--window", "8"]).0, value, "other contexts, another surprise");
}

#[test]
fn inspect_tells_what_the_config_says() {
    for case in CASES {
        let (text, _) = succeeds(&["inspect", "--json", "--model", arg(&golden(case))]);
        let facts: Value = serde_json::from_str(&text).unwrap();
        let config = fs::read(golden(case).join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let config = config.get("text_config").unwrap_or(&config);
        for (ours, theirs) in [
            ("layers", "num_hidden_layers"),
            ("hidden", "hidden_size"),
            ("vocab", "vocab_size"),
            ("experts", "num_experts"),
            ("experts_per_token", "num_experts_per_tok"),
            ("max_positions", "max_position_embeddings"),
        ] {
            assert_eq!(facts[ours], config[theirs], "{case}: {ours}");
        }
        assert_eq!(facts["format"], "safetensors");
        let n = |key: &str| facts[key].as_u64().unwrap();
        assert_eq!(n("expert_bytes"), n("record_bytes") * n("experts") * n("moe_layers"));
        let per_token = n("record_bytes") * n("experts_per_token") * n("moe_layers");
        assert_eq!(n("expert_bytes_per_token"), per_token);
        assert!(n("bytes_per_token") <= n("resident_bytes") + per_token);
        let on_drive: u64 = facts["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|list| list["bytes"].as_u64().unwrap())
            .sum();
        assert!(on_drive > n("expert_bytes"), "{case}");
    }
    let (text, _) = succeeds(&["inspect", "--verify"]);
    assert!(text.contains("packed container") && text.contains("4 of 32 a token"), "{text}");
}

#[test]
fn plans_add_up_and_change_nothing() {
    let (model, here) = (Copy::of(&golden("mlx-q4")), tempfile::tempdir().unwrap());
    let before = listing(model.path());
    let mut plans = Vec::new();
    for flags in [&[][..], &["--ctx", "64"], &["--expert-cache", "1MiB", "--expert-io", "pread"]] {
        let args = [&["plan", "--json", "--model", model.arg()], flags].concat();
        let (text, _) = finish(moeflux(&args).current_dir(here.path()));
        let plan: Value = serde_json::from_str(&text).unwrap();
        let n = |key: &str| plan[key].as_u64().unwrap();
        let parts =
            ["resident_bytes", "session_bytes", "scratch_bytes", "program_bytes", "cache_bytes"];
        assert_eq!(n("total_bytes"), parts.map(n).iter().sum::<u64>());
        let held = n("state_bytes") + n("checkpoint_bytes");
        assert_eq!(n("session_bytes"), held + n("ctx") * n("kv_bytes_per_token"));
        assert_eq!(plan["fits"], true);
        assert!(n("needed_bytes") <= n("total_bytes"));
        let rows = plan["rows"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["too_large"] == false));
        let of_rows = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(of_rows, n("total_bytes"));
        assert!(plan["memory_gb_s"].as_f64().unwrap() > 0.0);
        assert!(plan["tok_s_resident"].as_f64().unwrap() > 0.0);
        plans.push(plan);
    }
    assert_eq!(plans[1]["ctx"], 64);
    assert_eq!(
        (&plans[2]["cache_bytes"], &plans[2]["expert_io"]),
        (&json!(1 << 20), &json!("pread"))
    );
    let (text, _) = finish(moeflux(&["plan", "--model", model.arg()]).current_dir(here.path()));
    assert!(text.starts_with("runs from memory, at about "), "{text}");
    assert!(text.contains("total") && text.contains("tok/s"), "{text}");
    assert_eq!(listing(model.path()), before);
    assert_eq!(listing(here.path()), Vec::<String>::new());
}

#[test]
fn what_does_not_fit_is_refused_with_the_rows_that_are_too_large() {
    let model = Copy::of(&golden("mlx-q4"));
    let flags = ["--model", model.arg(), "--checkpoint-memory", "1000TiB"];
    let output = moeflux(&[&["plan"][..], &flags].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("does not run here: it needs 1000.00 TiB, and "), "{text}");
    let row = text.lines().find(|line| line.contains("TOO LARGE")).unwrap();
    assert!(row.starts_with("state checkpoints"), "{text}");
    let remedy = text.lines().find(|line| line.starts_with("--checkpoint-memory ")).unwrap();
    assert!(remedy.ends_with("saves 1000.00 TiB: enough"), "{text}");

    let output = moeflux(&[&["plan", "--json"][..], &flags].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["fits"], false);
    let rows = plan["rows"].as_array().unwrap();
    let large: Vec<_> = rows.iter().filter(|row| row["too_large"] == true).collect();
    assert!(large.len() == 1 && large[0]["bytes"] == 1000u64 << 40, "{plan}");
    let suggestions = plan["suggestions"].as_array().unwrap();
    assert!(suggestions.iter().any(|other| other["fits"] == true), "{plan}");

    let output = moeflux(&[&["run", "hello"][..], &flags].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    let first = message.lines().next().unwrap();
    assert!(first.contains(" needs ") && first.contains("--checkpoint-memory "), "{message}");
    assert!(message.contains("TOO LARGE") && message.contains("saves"), "{message}");
    assert!(output.stdout.is_empty());
}

#[test]
fn made_up_checkpoints_run_inspect_and_pack() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, flags: &[&str]| {
        let out = dir.path().join(name);
        succeeds(&[&["synth", "--shape", "tiny", "--out", arg(&out)], flags].concat());
        let (answer, _) = succeeds(&["run", "--model", arg(&out), "hello", "--max-tokens", "4"]);
        assert!(!answer.is_empty());
        let (text, _) = succeeds(&["inspect", "--json", "--model", arg(&out)]);
        let facts: Value = serde_json::from_str(&text).unwrap();
        let expert = |value: &Value| value["kind"] == "experts";
        let storage = facts["storage"].as_array().unwrap();
        let format = storage.iter().find(|part| expert(part)).unwrap()["format"].clone();
        (out, facts["format"].clone(), format)
    };
    let (mlx, kind, format) = make("mlx", &[]);
    assert_eq!((kind, format), (json!("safetensors"), json!("4-bit, groups of 64")));
    let (again, ..) = make("again", &["--seed", "0"]);
    let (other, ..) = make("other", &["--seed", "1"]);
    let weights = |dir: &Path| fs::read(dir.join("model-00001-of-00001.safetensors")).unwrap();
    assert!(weights(&mlx) == weights(&again) && weights(&mlx) != weights(&other));
    let (packed, kind, format) =
        make("packed", &["--format", "packed", "--bits", "3", "--group-size", "32"]);
    assert_eq!((kind, format), (json!("packed container"), json!("3-bit, groups of 32")));
    let (sixteen, _, format) = make("sixteen", &["--bits", "16", "--layers", "2"]);
    assert_eq!(format, "bf16");
    let (_, kind, format) = make("gguf", &["--format", "gguf", "--type", "q4_0"]);
    assert_eq!((kind, format), (json!("GGUF"), json!("Q4_0")));
    let (split, ..) = make("split", &["--format", "gguf", "--part-size", "1MB"]);
    assert!(listing(&split).iter().any(|name| name.contains("tiny-Q4_K_M-00002-of-000")));
    for (i, source) in [mlx, packed, sixteen].iter().enumerate() {
        let out = dir.path().join(format!("pack-{i}"));
        succeeds(&["pack", arg(source), arg(&out)]);
        let (text, _) = succeeds(&["inspect", "--verify", "--model", arg(&out)]);
        assert!(text.contains("packed container") && text.contains("-bit, groups of"), "{text}");
    }
}

#[test]
fn multi_token_prediction_is_made_up_packed_and_measured() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["made", "packed", "made-packed", "without"].map(|name| dir.path().join(name));
    let [made, packed, made_packed, without] = &paths;
    let synth = ["synth", "--shape", "tiny", "--out"];
    succeeds(&[&synth[..], &[arg(made), "--mtp"]].concat());
    succeeds(&[&synth[..], &[arg(made_packed), "--mtp", "--format", "packed"]].concat());
    succeeds(&[&synth[..], &[arg(without)]].concat());
    succeeds(&["pack", arg(made), arg(packed)]);
    for (model, has_mtp) in [(made, true), (packed, true), (made_packed, true), (without, false)] {
        let (text, _) = succeeds(&["inspect", "--json", "--model", arg(model)]);
        let facts: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(facts["multi_token_prediction"], has_mtp, "{}", model.display());
        let (text, _) = succeeds(&["inspect", "--model", arg(model)]);
        assert_eq!(text.contains("multi-token prediction"), has_mtp, "{text}");
    }
    let options =
        ["bench", "--json", "--repeat", "1", "--prompt-tokens", "8", "--gen-tokens", "24"];
    let bench = |model: &Path, share: &str, draft: &str| {
        let more = ["--model", arg(model), "--mtp-acceptance", share, "--draft", draft];
        let (text, _) = succeeds(&[&options[..], &more].concat());
        let all: Value = serde_json::from_str(&text).unwrap();
        all["teacher_forced"].clone()
    };
    for model in [made, packed, made_packed] {
        let (all, none) = (bench(model, "1", "1"), bench(model, "0", "1"));
        assert!(all["acceptance_rate"].as_f64() > Some(0.9), "{all}");
        assert!(none["acceptance_rate"].as_f64() < Some(0.5), "{none}");
    }
    let refused = ["--mtp-acceptance", "0.5", "--model"];
    let plain = [&["bench"], &refused[..]].concat();
    refuses(
        &[&plain[..], &[arg(without)]].concat(),
        2,
        &["--mtp-acceptance", "multi-token prediction"],
    );
    refuses(
        &[&plain[..], &[arg(made), "--draft", "off"]].concat(),
        2,
        &["--mtp-acceptance", "--draft"],
    );
    let other = dir.path().join("other");
    let gpt = ["synth", "--shape", "gpt-oss-20b", "--mtp", "--out", arg(&other)];
    refuses(&gpt, 1, &["--mtp", "MTP layer", "gpt_oss"]);
    assert!(!other.exists());
}

#[test]
fn drafts_of_a_model_with_tables_of_rows_change_no_text() {
    let model = Copy::of(&golden("qwen4_exp-mtp"));
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(golden("hf-bf16").join(name), model.file(name)).unwrap();
    }
    let greedy = ["run", "--raw", "the vec of a", "--temperature", "0", "--max-tokens", "40"];
    let small = ["--model", model.arg(), "--ctx", "256", "--expert-io", "pread"];
    let run = |flags: &[&str]| succeeds(&[&greedy[..], &small, &["--stats"], flags].concat());
    let (want, notes) = run(&["--draft", "off"]);
    assert!(want.len() > 8 && !notes.contains("draft: "), "{want:?}: {notes}");
    for (draft, cache) in [("1", "128MiB"), ("3", "0"), ("3", "1KiB")] {
        let (text, notes) = run(&["--draft", draft, "--row-cache", cache]);
        assert_eq!(text, want, "drafts of {draft}");
        assert!(notes.contains("draft: ") && notes.contains("rows of tables: "), "{notes}");
    }
    let bench = ["bench", "--json", "--repeat", "1", "--prompt-tokens", "8", "--gen-tokens", "24"];
    for (draft, share) in [("1", "0"), ("1", "1"), ("3", "0"), ("3", "1")] {
        let drafts = ["--draft", draft, "--mtp-acceptance", share];
        let (text, _) = succeeds(&[&bench[..], &small, &drafts].concat());
        let all: Value = serde_json::from_str(&text).unwrap();
        let is_accepted = all["teacher_forced"]["acceptance_rate"].as_f64() > Some(0.5);
        assert_eq!(is_accepted, share == "1", "{draft}, {share}: {}", all["teacher_forced"]);
        assert!(all["decode"]["rows"]["rows_per_token"].as_f64() > Some(0.0), "{all}");
    }
}

#[test]
fn packing_an_mlx_checkpoint_keeps_every_bit_of_its_logits() {
    for case in CASES.iter().filter(|case| case.starts_with("mlx")) {
        let dir = tempfile::tempdir().unwrap();
        let packed = dir.path().join("packed");
        let (report, _) = succeeds(&["pack", arg(&golden(case)), arg(&packed)]);
        assert!(report.contains("verified"), "{report}");
        let ids = json!([[1, 2, 3, 4, 5, 6, 7, 8], [9]]);
        for flags in [&[][..], &["--exact"], &["--expert-io", "pread"]] {
            assert!(logits(&golden(case), &ids, flags) == logits(&packed, &ids, flags), "{case}");
        }
    }
}

#[test]
fn packing_at_sixteen_bits_keeps_every_bit_of_the_weights() {
    for case in CASES.iter().filter(|case| case.starts_with("hf")) {
        let dir = tempfile::tempdir().unwrap();
        let packed = dir.path().join("packed");
        let sixteen = ["--bits", "16", "--gate-bits", "16"];
        succeeds(&[&["pack", arg(&golden(case)), arg(&packed)], &sixteen[..]].concat());
        let ids = json!([[1, 2, 3, 4, 5, 6, 7, 8]]);
        assert!(logits(&golden(case), &ids, &[]) == logits(&packed, &ids, &[]), "{case}");
        let bytes = fs::read(packed.join("resident.safetensors")).unwrap();
        let stored = |value: &Value| value["dtype"] != "U32";
        assert!(header(&bytes).1.as_object().unwrap().values().all(stored), "{case}");
    }
}

#[test]
fn packing_a_gguf_file_keeps_every_bit_of_its_logits() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| dir.path().join(name);
    let (source, packed, changed) = (of("g"), of("packed"), of("changed"));
    succeeds(&["synth", "--shape", "tiny", "--format", "gguf", "--out", arg(&source)]);
    let (report, _) = succeeds(&["pack", arg(&source), arg(&packed)]);
    assert!(report.contains("verified") && !report.contains('%'), "{report}");
    let text = of("sample.txt");
    fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(8)).unwrap();
    let measure = ["perplexity", "--model", arg(&packed), "--text", arg(&text), "--against"];
    let (said, _) = succeeds(&[&measure[..], &[arg(&source)]].concat());
    assert!(said.contains("0.000000") && said.contains("100.00 %"), "{said}");
    let ids = json!([[1, 2, 3, 4, 5, 6, 7, 8], [9]]);
    let want = logits(&source, &ids, &[]);
    assert!(want == logits(&packed, &ids, &[]));
    // Routers get fewer bits where these are asked for.
    let (report, _) = succeeds(&["pack", arg(&source), arg(&changed), "--gate-bits", "8"]);
    assert!(report.lines().any(|line| line.starts_with("gates") && line.contains('%')), "{report}");
    assert!(want != logits(&changed, &ids, &[]));
    succeeds(&["verify", arg(&packed)]);
}

#[test]
fn packing_quantises_what_is_not_quantised() {
    let dir = tempfile::tempdir().unwrap();
    let (source, packed) = (dir.path().join("source"), dir.path().join("packed"));
    succeeds(&["synth", "--shape", "tiny", "--bits", "16", "--out", arg(&source)]);
    succeeds(&["pack", arg(&source), arg(&packed), "--bits", "8", "--group-size", "32"]);
    let (text, _) = succeeds(&["inspect", "--model", arg(&packed)]);
    assert!(text.contains("8-bit, groups of 32"), "{text}");
    let ids = json!([[1, 2, 3, 4, 5]]);
    assert_ne!(logits(&source, &ids, &[]), logits(&packed, &ids, &[]));
    // Packed once, it is refused a second time, and packed anew when forced.
    let again = ["pack", arg(&source), arg(&packed), "--bits", "6"];
    refuses(&again, 1, &[arg(&packed), "--force"]);
    succeeds(&[&again[..], &["--force"]].concat());
    assert!(succeeds(&["inspect", "--model", arg(&packed)]).0.contains("6-bit"));
}
