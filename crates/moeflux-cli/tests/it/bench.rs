//! `moeflux bench` on the demo model, with little to do.

use std::fs;
use std::path::Path;

use crate::common::{Copy, listing, refuses, succeeds};
use serde_json::Value;

const SMALL: [&str; 5] = ["bench", "--prompt-tokens", "24", "--gen-tokens", "6"];

/// One run: a figure's spread is that of several.
fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], &["--repeat", "1"], more].concat()
}

fn three_runs<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], &["--repeat", "3"], more].concat()
}

#[track_caller]
fn number(object: &Value, key: &str) -> f64 {
    object[key].as_f64().unwrap_or_else(|| panic!("{key}: {}", object[key]))
}

#[track_caller]
fn check_spread(object: &Value, key: &str) {
    let [min, median, max] =
        ["_min", "", "_max"].map(|suffix| number(object, &format!("{key}{suffix}")));
    assert!(0.0 < min && min <= median && median <= max, "{key}: {min} {median} {max}");
}

fn json(args: &[&str]) -> Value {
    let (stdout, _) = succeeds(&small(&[args, &["--json"]].concat()));
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn json_has_every_figure_and_its_spread() {
    let (stdout, _) = succeeds(&three_runs(&["--threads", "2", "--json"]));
    let all: Value = serde_json::from_str(&stdout).unwrap();
    for rate in ["prefill_tok_s", "decode_tok_s", "drive_gb_s", "memory_gb_s"] {
        check_spread(&all, rate);
    }
    for share in ["hit_rate", "miss_rate", "prefetch_precision", "prefetch_recall", "stall_share"] {
        assert!((0.0..=1.0).contains(&number(&all, share)), "{share}: {}", all[share]);
    }
    assert!(number(&all, "bytes_per_token") > 0.0);
    assert_eq!((number(&all, "threads"), number(&all, "experts_per_token")), (2.0, 4.0));
    assert!(all["rh"].is_number() || all["rh"].is_null(), "{}", all["rh"]);
    if cfg!(target_os = "linux") {
        let peak = number(&all, "peak_rss_bytes");
        assert!(peak > 1e6 && peak < number(&all, "planned_bytes"), "{peak}");
    }
    assert_eq!(all["layers"].as_array().unwrap().len(), 8);
    let stages = &all["decode"]["stage_ms_per_token"];
    for stage in ["attention", "delta_net", "router", "shared_expert", "routed_experts", "head"] {
        assert!(number(stages, stage) > 0.0, "{stage}");
    }
}

#[test]
fn a_text_is_teacher_forced_with_drafts_and_without() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    // The prompt's 24 tokens again and again.
    let ids: Vec<u32> = (10..34).cycle().take(64).collect();
    let repeated = file("ids.json", &serde_json::to_string(&ids).unwrap());
    let all = json(&["--teacher-force", &repeated, "--draft", "3"]);
    let forced = &all["teacher_forced"];
    check_spread(forced, "tok_s");
    check_spread(forced, "one_by_one_tok_s");
    // Two steps of one token until the place is known, then one of four.
    assert_eq!((number(forced, "tokens_per_step"), number(forced, "acceptance_rate")), (2.0, 1.0));
    let text = "A vector grows. ".repeat(40);
    let (stdout, _) = succeeds(&small(&["--teacher-force", &file("text", &text)]));
    assert!(stdout.contains("tok/s with drafts"), "{stdout}");
    let short = file("short", "A few words.");
    refuses(
        &small(&["--teacher-force", &short]),
        2,
        &["--teacher-force", &short, "--prompt-tokens 24"],
    );
    let foreign = file("foreign", &format!("[{}1000000]", "1,".repeat(30)));
    refuses(&small(&["--teacher-force", &foreign]), 1, &["--teacher-force", &foreign, "1000000"]);
    refuses(&small(&["--teacher-force", "/nowhere"]), 1, &["--teacher-force /nowhere"]);
}

#[test]
fn conversations_at_once_share_experts() {
    let all = json(&["--sequences", "8", "--expert-cache", "1MiB", "--expert-io", "pread"]);
    let together = &all["together"];
    check_spread(together, "tok_s");
    // Eight rows want most experts of a layer, but none twice.
    assert!(number(together, "bytes_per_token") < 0.8 * number(&all, "bytes_per_token"));
    assert!(json(&[])["together"].is_null());
    for n in ["0", "257", "18446744073709551615"] {
        refuses(&["bench", "--sequences", n], 2, &["--sequences", n]);
    }
}

#[test]
fn a_resident_model_has_no_share_of_the_drive() {
    // The prompt is long enough to use every expert: the first use of one counts as a miss.
    let args = ["bench", "--prompt-tokens", "256", "--gen-tokens", "6", "--repeat", "1", "--json"];
    let (stdout, _) = succeeds(&[&args[..], &["--expert-io", "mmap"]].concat());
    let all: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(all["expert_io"], "mmap");
    assert_eq!((number(&all, "hit_rate"), number(&all, "read_bytes_per_token")), (1.0, 0.0));
    assert!(all["rh"].is_null() && all["rh_max"].is_null(), "{}", all["rh"]);
}

#[test]
fn rh_is_what_its_parts_say() {
    // Of one run alone: a median of ratios is no ratio of medians.
    let flags = ["--prompt-tokens", "24", "--gen-tokens", "4", "--repeat", "1"];
    let more = ["--expert-cache", "1MiB", "--json"];
    let (stdout, _) = succeeds(&[&["bench"], &flags[..], &more].concat());
    let all: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(all["expert_io"], "pread");
    assert!(number(&all, "hit_rate") < 1.0);
    assert!((0.0..1.0).contains(&number(&all, "stall_share")), "{}", all["stall_share"]);
    let read = number(&all, "bytes_per_token") * number(&all, "miss_rate");
    let rh = number(&all, "decode_tok_s") * read / (1e9 * number(&all, "drive_gb_s"));
    assert!((number(&all, "rh") / rh - 1.0).abs() < 1e-6, "{} {rh}", all["rh"]);
    let misses = 1.0 - number(&all, "hit_rate");
    assert!((number(&all, "miss_rate") - misses).abs() < 1e-6, "nothing was read ahead");
}

#[test]
fn cold_runs_begin_without_experts() {
    for io in ["mmap", "pread"] {
        let all = json(&["--cold", "--expert-io", io]);
        assert_eq!(all["cold"], true);
        assert!(number(&all["prefill"], "read_bytes_per_token") > 0.0, "{io}");
    }
}

#[test]
fn the_table_names_what_was_measured() {
    let (stdout, stderr) =
        succeeds(&three_runs(&["--expert-cache", "1MiB", "--prefetch", "last-token"]));
    for words in [
        "demo (qwen3_5_moe",
        "GB/s",
        "GOP/s",
        "prefill",
        "decode",
        "tok/s",
        "hits",
        "rh",
        "planned",
        "delta net",
        "wait for experts",
        "24 prompt tokens, 6 decoded, 3 runs, warm",
    ] {
        assert!(stdout.contains(words), "{words:?} is not in {stdout}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn every_kernel_is_timed_with_every_number_of_rows() {
    let (stdout, _) = succeeds(&small(&["--kernels", "--json"]));
    let all: Value = serde_json::from_str(&stdout).unwrap();
    let kernels = all["kernels"].as_array().unwrap();
    for rows in [24, 16, 1] {
        let of_rows: Vec<&Value> = kernels.iter().filter(|kernel| kernel["rows"] == rows).collect();
        for part in
            ["q_proj", "o_proj", "gate", "routed experts", "lm_head", "attention", "delta rule"]
        {
            let found =
                of_rows.iter().find(|kernel| kernel["name"].as_str().unwrap().contains(part));
            let kernel = found.unwrap_or_else(|| panic!("{part}, {rows} rows: {of_rows:?}"));
            check_spread(kernel, "us");
            for rate in ["gb_s", "memory_share", "gop_s", "arithmetic_share"] {
                assert!(number(kernel, rate) > 0.0, "{part}, {rows} rows: {kernel}");
            }
        }
    }
    assert_eq!(all["quantise"].as_array().unwrap().len(), 3);
    let (table, _) = succeeds(&small(&["--kernels", "--isa", "scalar", "--threads", "1"]));
    assert!(table.starts_with("scalar, 1 threads") && table.contains("\n24 rows"), "{table}");
}

#[test]
fn the_report_is_one_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.html");
    let report = path.to_str().unwrap();
    succeeds(&small(&["--report", report, "--expert-cache", "1MiB", "--prefetch", "last-token"]));
    let html = fs::read_to_string(&path).unwrap();
    check_markup(&html);
    for words in [
        "<title>moeflux bench: demo</title>",
        "Against the limits",
        "Where the time goes",
        "One token in time",
        "Hits, layer by layer",
        "Every token",
        "prefers-color-scheme: dark",
        "decode_tok_s",
        "layer 7: ",
    ] {
        assert!(html.contains(words), "{words:?} is not in the report");
    }
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link"] {
        assert!(!html.contains(outside), "{outside:?} is in the report");
    }
    assert!(!html.contains("NaN") && !html.contains("inf"), "a figure is no number");
    assert_eq!(listing(dir.path()).len(), 1, "nothing else is left");
}

/// Every element that begins also ends, in the right order.
#[track_caller]
fn check_markup(html: &str) {
    assert!(html.starts_with("<!doctype html>\n") && html.ends_with("</html>\n"));
    let (before, rest) = html.split_once("<style>").unwrap();
    let (_, after) = rest.split_once("</style>").unwrap();
    let text = format!("{}{after}", before.replacen("<!doctype html>", "", 1));
    let mut open: Vec<&str> = Vec::new();
    for tag in text.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("<{tag} is not closed"));
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap());
        }
        assert!(tag.matches('"').count().is_multiple_of(2), "<{tag}>");
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn text_of_the_users_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text");
    fs::write(&path, "Rust is a language. ".repeat(3)).unwrap();
    succeeds(&small(&["--text", path.to_str().unwrap(), "--json"]));
    fs::write(&path, " \n").unwrap();
    refuses(&small(&["--text", path.to_str().unwrap()]), 2, &["--text", "no text"]);
    fs::write(&path, b"\xff\xfe").unwrap();
    refuses(&small(&["--text", path.to_str().unwrap()]), 1, &["--text", "utf-8"]);
}

#[test]
fn wrong_usage_is_refused() {
    for (flag, value) in [
        ("--prompt-tokens", "0"),
        ("--prompt-tokens", "-3"),
        ("--gen-tokens", "x"),
        ("--gen-tokens", "0"),
        ("--seed", "-1"),
        ("--isa", "mips"),
        ("--threads", "0"),
        ("--ctx", "20"),
    ] {
        refuses(&small(&[flag, value])[..], 2, &[flag.trim_start_matches('-')]);
    }
    refuses(&["bench", "--repeat", "0"], 2, &["repeat"]);
    refuses(&["bench", "--prompt-tokens", "99999999999"], 2, &["--ctx"]);
    refuses(&["bench", "--gen-tokens", "18446744073709551615"], 2, &["--ctx"]);
    refuses(&small(&["--kernels", "--cold"]), 2, &["--kernels"]);
    refuses(&["bench", "--kernels", "--prompt-tokens", "512", "--ctx", "600"], 2, &["positions"]);
}

#[test]
fn a_report_that_cannot_be_written_fails_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("no-such-dir").join("report.html");
    let start = std::time::Instant::now();
    let args = ["bench", "--repeat", "1000000", "--report", inside.to_str().unwrap()];
    // No such file, or no such path.
    let number = if cfg!(windows) { "os error 3" } else { "os error 2" };
    refuses(&args, 1, &["--report", number]);
    assert!(start.elapsed().as_secs() < 60);
    assert_eq!(listing(dir.path()).len(), 0);
}

#[test]
fn a_run_that_fails_leaves_no_report() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.html");
    let model = Copy::of_demo();
    fs::remove_file(model.file("resident.safetensors")).unwrap();
    let args = small(&["--model", model.arg(), "--report", report.to_str().unwrap()]);
    refuses(&args, 1, &["resident.safetensors"]);
    assert_eq!(listing(dir.path()).len(), 0);
    assert!(Path::new(model.arg()).exists());
}
