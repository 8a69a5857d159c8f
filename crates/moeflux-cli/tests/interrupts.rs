//! Ctrl-C and SIGTERM while files are being written: nothing unfinished stays behind.

#![cfg(unix)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{golden, moeflux};
use rustix::process::{Pid, Signal, kill_process};

/// More than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn start(args: &[&str], temp: &Path) -> Child {
    let command = moeflux(args);
    let mut child = Command::new(command.get_program());
    child.args(args).env("TMPDIR", temp).env("HF_HUB_OFFLINE", "1");
    child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Interrupts a command when a file that is not whole is in `dir`, and looks at what is left.
#[track_caller]
fn interrupt(args: &[&str], dir: &Path, temp: &Path, signal: Signal) {
    let mut child = start(args, temp);
    let started = Instant::now();
    while !names(dir).iter().any(|name| name.ends_with(".partial")) {
        assert!(child.try_wait().unwrap().is_none(), "{args:?} ended before it was interrupted");
        assert!(started.elapsed() < SOON, "{args:?} writes no file");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The file may be a moment older than its removal is arranged for.
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child), signal).unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success(), "{args:?}");
    assert_eq!(names(dir), Vec::<String>::new(), "{args:?} {signal:?}");
}

#[test]
fn an_interrupted_command_leaves_no_unfinished_file() {
    let (dir, temp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tokens = temp.path().join("tokens.json");
    let many = vec![vec![1u32; 1000]; 200];
    fs::write(&tokens, serde_json::to_string(&many).unwrap()).unwrap();
    let model = golden("hf-bf16");
    let (model, tokens) = (model.to_str().unwrap(), tokens.to_str().unwrap());
    let out = dir.path().join("out");
    let out = out.to_str().unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let logits = ["logits", "--model", model, "--tokens", tokens, "--out", out];
        interrupt(&logits, dir.path(), temp.path(), signal);
        let synth = ["synth", "--shape", "qwen3.6-35b-a3b", "--layers", "4", "--out", out];
        interrupt(&synth, dir.path(), temp.path(), signal);
        let scratch = tempfile::tempdir().unwrap();
        let plan = ["plan", "--shape", "kimi-k2"];
        interrupt(&plan, scratch.path(), scratch.path(), signal);
    }
}
