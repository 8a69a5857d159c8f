//! What the binary says of itself and of the machine: `doctor`, `--version --verbose`.

use std::fs;
use std::path::Path;

use crate::common::{check_refusal, finish, moeflux, refuses, succeeds};
use serde_json::Value;

/// The findings of a report by name; of a name that comes several times the first.
fn finding<'a>(report: &'a Value, name: &str) -> &'a Value {
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

fn report(drive: &Path) -> Value {
    let (text, _) = succeeds(&["doctor", "--json", "--drive", drive.to_str().unwrap()]);
    serde_json::from_str(&text).unwrap()
}

#[test]
fn doctor_says_what_the_machine_has_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let report = report(dir.path());
    assert_eq!(report["usable"], true, "{report:#}");
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let processor = &finding(&report, "processor")["facts"];
    assert!(processor["cores"].as_u64().unwrap() >= 1);
    assert_eq!(processor["isa"], *processor["isas"].as_array().unwrap().last().unwrap());
    let memory = &finding(&report, "memory")["facts"];
    let bytes = |key: &str| memory[key].as_u64().unwrap();
    assert!(0 < bytes("available_bytes") && bytes("available_bytes") <= bytes("total_bytes"));
    let drive = finding(&report, "drive");
    assert!(drive["facts"]["gb_s"].as_f64().unwrap() > 0.0, "{drive}");
    for name in ["load", "page cache", "swap", "huge pages", "GPU", "Hub cache", "own cache"] {
        let finding = finding(&report, name);
        assert!(finding["text"].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
    }
    for finding in report["findings"].as_array().unwrap() {
        let is_good = finding["state"] == "good";
        assert!(!is_good || finding["remedy"].is_null(), "{finding}");
        let needs_remedy = finding["state"] == "poor" || finding["state"] == "fail";
        assert!(!needs_remedy || finding["remedy"].is_string(), "{finding}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a file stayed behind");
}

#[test]
fn doctor_measures_a_large_file_that_is_there() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let blobs = dir.path().join("models--a--b/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("weights"), vec![7; 65 << 20]).unwrap();
    let report = report(dir.path());
    let text = finding(&report, "drive")["text"].as_str().unwrap().to_owned();
    assert!(text.contains("that is there") || text.contains("page cache"), "{text}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn doctor_names_folders_that_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    // The system allows no user to make a file there.
    let mut command = moeflux(&["doctor", "--json"]);
    command.env("HF_HUB_CACHE", "/proc/self/fdinfo/hub");
    if cfg!(target_os = "linux") {
        let (text, _) = finish(&mut command);
        let report: Value = serde_json::from_str(&text).unwrap();
        let hub = finding(&report, "Hub cache");
        assert_eq!((&hub["state"], &hub["facts"]["writable"]), (&"poor".into(), &false.into()));
        assert!(hub["remedy"].as_str().unwrap().contains("HF_HUB_CACHE"), "{hub}");
    }
    refuses(&["doctor", "--drive", "/nonexistent/x"], 2, &["--drive", "/nonexistent/x"]);
    refuses(&["doctor", "--drives", "x"], 2, &["--drives", "did you mean --drive?"]);
    check_refusal(&mut moeflux(&["doctor", "x"]), 2, &["x"]);
}

#[test]
fn doctor_says_in_words_what_to_do() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (text, _) = succeeds(&["doctor", "--drive", dir.path().to_str().unwrap()]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("moeflux "), "{text}");
    let is_last = |line: &str| line.starts_with("models run here") || line == "nothing to do";
    assert!(is_last(lines[lines.len() - 1]), "{text}");
    assert!(lines.iter().any(|line| line.contains("processor") && line.contains("kernels:")));
    assert!(lines.iter().all(|line| line.chars().count() <= 120), "{text}");
}

#[test]
fn the_version_with_all_of_it() {
    for args in [&["--version", "--verbose"][..], &["-V", "-v"], &["-vV"]] {
        let (text, stderr) = succeeds(args);
        assert_eq!(stderr, "");
        let first = format!("moeflux {}\n", env!("CARGO_PKG_VERSION"));
        assert!(text.starts_with(&first), "{text}");
        for name in ["commit", "target", "instruction sets", "of this machine", "GPU backends"] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
        }
        assert!(text.contains("scalar"), "{text}");
    }
    let (short, _) = succeeds(&["--version"]);
    assert_eq!(short.lines().count(), 1);
    refuses(&["--verbose"], 2, &["--verbose"]);
}
