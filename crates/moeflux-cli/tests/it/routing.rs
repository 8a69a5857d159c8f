//! Recording a routing, replaying it, and what is learned from one run to the next.

use std::fs;
use std::path::Path;

use crate::common::{finish, moeflux, refuses, succeeds};
use serde_json::Value;

const QUESTION: &str = "What does `Vec::push` do?";

/// Records the routing of one answer.
fn record(dir: &Path, flags: &[&str]) -> String {
    let file = dir.join("routing").display().to_string();
    let args = ["run", "-q", QUESTION, "--max-tokens", "24", "--record-routing", &file];
    succeeds(&[&args[..], flags].concat());
    file
}

fn replay(file: &str, flags: &[&str]) -> Value {
    let (json, _) = succeeds(&[&["replay", file, "--json"], flags].concat());
    serde_json::from_str(&json).unwrap()
}

#[test]
fn a_recorded_routing_is_replayed_below_the_optimum() {
    let dir = tempfile::tempdir().unwrap();
    let file = record(dir.path(), &[]);
    let found = replay(&file, &[]);
    assert_eq!(
        (&found["experts"], &found["top_k"], &found["layers"]),
        (&32.into(), &4.into(), &8.into())
    );
    assert!(found["tokens"].as_u64().unwrap() > 24);
    let caches = found["caches"].as_array().unwrap();
    assert_eq!(caches.len(), 4);
    for cache in caches {
        let best = cache["optimum"].as_f64().unwrap();
        for policy in ["lru", "frequency"] {
            let rate = cache["hit_rate"][policy].as_f64().unwrap();
            assert!(0.0 <= rate && rate <= best, "{cache}");
        }
    }
    let accuracy = |at: usize| caches[1]["prefetch"][at]["prediction_accuracy"].as_f64().unwrap();
    // On this model lookahead is right four times in five, the last token one in five.
    assert!(accuracy(1) > 0.5 && accuracy(0) < accuracy(1), "{}", caches[1]);
    let (text, _) = succeeds(&["replay", &file, "--cache", "256KiB,100%", "--policy", "lru"]);
    assert!(text.contains("cache 100% (256 experts)") && text.contains("optimum"), "{text}");
    let together = replay(&file, &["--sequences", "4"]);
    assert_eq!(together["sequences"], 4);
    let rate = |value: &Value| value["caches"][3]["hit_rate"]["frequency"].as_f64().unwrap();
    assert!(rate(&together) < rate(&found), "{together}");
}

#[test]
fn the_routing_does_not_depend_on_chunks_caches_or_predictions() {
    let dir = tempfile::tempdir().unwrap();
    let want = fs::read(record(dir.path(), &[])).unwrap();
    for flags in [
        &["--chunk", "3"][..],
        &["--expert-cache", "600KB", "--prefetch", "lookahead"],
        &["--expert-cache", "600KB", "--prefetch", "auto", "--cache-policy", "lru"],
    ] {
        assert!(fs::read(record(dir.path(), flags)).unwrap() == want, "{flags:?}");
    }
}

#[test]
fn bad_traces_and_sizes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = record(dir.path(), &[]);
    let cut = dir.path().join("cut").display().to_string();
    let bytes = fs::read(&file).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
    refuses(&["replay", &cut], 1, &[&cut, "end inside a token", "record it again"]);
    fs::write(&cut, "hello").unwrap();
    refuses(&["replay", &cut], 1, &[&cut, "not a routing trace"]);
    refuses(&["replay", "/no/trace"], 1, &["/no/trace"]);
    refuses(&["replay", &file, "--cache", "101%"], 2, &["101%", "25% or 8GiB"]);
    refuses(&["replay", &file, "--cache", "1KiB"], 2, &["1.00 KiB", "4 of 256 experts"]);
    refuses(&["replay", &file, "--skip", "99999"], 2, &["--skip 99999"]);
    refuses(&["replay", &file, "--sequences", "99999"], 2, &["--sequences 99999"]);
    refuses(&["replay", &file, "--sequences", "0"], 2, &["--sequences"]);
    let below_a_file = format!("{file}/x");
    refuses(&["run", "-q", "hi", "--record-routing", &below_a_file], 1, &[&below_a_file]);
}

#[test]
fn what_the_cache_learned_is_kept_unless_it_is_not_wanted() {
    let cache = tempfile::tempdir().unwrap();
    let run = |flags: &[&str]| {
        let args = ["run", QUESTION, "--expert-io", "pread", "--expert-cache", "2MiB"];
        let mut command = moeflux(&[&args[..], flags].concat());
        finish(command.env("MOEFLUX_CACHE", cache.path()))
    };
    let dir = cache.path().join("experts");
    let answer = run(&["--no-expert-stats"]).0;
    assert!(!dir.exists());
    assert_eq!(run(&[]).0, answer);
    let files: Vec<_> = dir.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(run(&[]).0, answer);
    fs::write(&files[0], "damaged").unwrap();
    let (again, notes) = run(&[]);
    assert_eq!(again, answer);
    assert!(notes.contains("it is ignored") && notes.contains(".experts"), "{notes}");
    // It has been replaced by a good one.
    assert!(!run(&[]).1.contains("ignored"));
}
