//! `moeflux plan`: what commands take, and speeds of models whose drive was never measured.

use std::fs;
use std::path::Path;

use crate::common::server::Server;
use crate::common::{finish, moeflux, refuses, succeeds};
use serde_json::Value;

fn plan(args: &[&str]) -> Value {
    serde_json::from_str(&succeeds(&[&["plan", "--json"], args].concat()).0).unwrap()
}

/// `plan` with a cache and a Hub's cache of its own.
fn plan_in(dir: &Path, args: &[&str]) -> (String, String) {
    let mut command = moeflux(&[&["plan"], args].concat());
    finish(command.env("MOEFLUX_CACHE", dir.join("cache")).env("HF_HUB_CACHE", dir.join("hub")))
}

/// A model with a context for agents.
fn tiny(dir: &Path) -> String {
    let model = dir.join("tiny").to_str().unwrap().to_owned();
    succeeds(&["synth", "--shape", "tiny", "--out", &model]);
    model
}

#[test]
fn a_plan_says_what_servers_take() {
    let dir = tempfile::tempdir().unwrap();
    let model = tiny(dir.path());
    for (flags, sessions) in [
        (&["--ctx", "65536"][..], 8),
        (&["--ctx", "2048", "--sessions", "3"], 3),
        (&["--ctx", "2048", "--sessions", "auto"], 8),
        (&[], 8),
    ] {
        let said = plan(&[&["--model", &model], flags].concat());
        let commands = &said["commands"];
        assert_eq!(commands["run"]["sessions"], 1);
        assert_eq!(commands["chat"], commands["run"]);
        assert_eq!(commands["serve"]["sessions"], sessions, "{flags:?}");
        let server = Server::start_with(Path::new(&model), flags);
        let status: Value = serde_json::from_str(&server.get("/status")).unwrap();
        let planned = commands["serve"]["total_bytes"].as_u64().unwrap();
        assert!(
            status.to_string().contains(&format!(":{planned}")),
            "{flags:?}: {planned}, {status}"
        );
    }
    let of = |flags: &[&str]| plan(&[&["--model", &model, "--ctx", "65536"], flags].concat());
    let (one, eight) = (of(&[]), of(&["--sessions", "8"]));
    assert_eq!((&one["sessions"], &eight["sessions"]), (&1.into(), &8.into()));
    assert_eq!(eight["total_bytes"], one["commands"]["serve"]["total_bytes"]);
    assert!(eight["total_bytes"].as_u64() > one["total_bytes"].as_u64());
    let (text, _) = succeeds(&["plan", "--model", &model, "--ctx", "65536"]);
    for (command, sessions) in [("run, chat", "1"), ("serve", "8"), ("launch", "8")] {
        let line = text.lines().find(|line| line.starts_with(command)).unwrap();
        let words: Vec<&str> = line[command.len()..].split_whitespace().collect();
        assert_eq!(words[..3], [sessions, "of", "65536"], "{text}");
    }
    for wrong in ["0", "many", "257", "-1", "2.5"] {
        refuses(&["plan", "--sessions", wrong], 2, &["--sessions", wrong, "256"]);
    }
}

#[test]
fn shapes_have_a_speed_by_the_rate_of_a_drive_that_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let of = |rate: &str| {
        let shape = ["--shape", "deepseek-v3", "--ctx", "4096", "--expert-cache", "4GiB", "--json"];
        let (text, _) = plan_in(dir.path(), &[&shape[..], &["--drive", rate]].concat());
        let said: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(said["drive_source"], "given");
        [&said["drive_gb_s"], &said["tok_s_low"], &said["tok_s_high"]].map(Value::as_f64)
    };
    let fits = |[_, low, high]: [Option<f64>; 3]| low.zip(high);
    let (Some(slow), Some(fast)) = (fits(of("900MB/s")), fits(of("3.2 GB/s"))) else {
        // The weights that stay do not fit into this machine.
        return;
    };
    assert!(0.0 < slow.0 && slow.0 < slow.1 && slow.1 < fast.1, "{slow:?}, {fast:?}");
    for wrong in ["3", "fast", "3Gb/s", "0GB/s", "1e9GB/s", ""] {
        refuses(&["plan", "--drive", wrong], 2, &["--drive", "3GB/s"]);
    }
}

#[test]
fn the_drive_of_a_shape_is_measured_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::create_dir_all(dir.path().join("hub")).unwrap();
    let shape = ["--shape", "mid", "--ctx", "512", "--expert-cache", "64MiB"];
    let (text, _) = plan_in(dir.path(), &shape);
    assert!(text.contains(" tok/s") || text.contains("--drive RATE"), "{text}");
    let names = |dir: &Path| -> Vec<String> {
        let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    };
    assert_eq!(names(&dir.path().join("hub")), [""; 0]);
    let (text, _) = plan_in(dir.path(), &[&shape[..], &["--json", "--measure"]].concat());
    let said: Value = serde_json::from_str(&text).unwrap();
    let is_known = said["drive_gb_s"].as_f64().is_some_and(|gb_s| gb_s > 0.0);
    assert_eq!(is_known, said["drive_source"] != "unknown", "{said}");
    assert_eq!(is_known, said["tok_s_streamed"].is_number(), "{said}");
}

#[test]
fn a_damaged_file_of_rates_is_said_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cache/rates.json");
    fs::create_dir_all(dir.path().join("cache")).unwrap();
    for text in ["", "{\"version\": 1", "[1, 2]"] {
        fs::write(&file, text).unwrap();
        let flags = ["--shape", "tiny", "--ctx", "512", "--drive", "1GB/s"];
        let (_, notes) = plan_in(dir.path(), &flags);
        assert!(notes.contains("rates.json"), "{notes:?}");
        let kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(kept["version"], 1);
        assert_eq!(plan_in(dir.path(), &flags).1, "");
    }
}
