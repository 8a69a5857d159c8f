//! Ctrl-C and SIGTERM while files are being written: the process ends as the signal ends it, which
//! shells show as exit code 130 or 143, and nothing unfinished has a final name.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{finish, golden, moeflux, succeeds};
use crate::hub_server::{Fault, Hub};
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
    end(&mut child, signal);
    assert_eq!(names(dir), Vec::<String>::new(), "{args:?} {signal:?}");
}

/// Sends a signal to a process that runs, which ends as that signal ends it.
#[track_caller]
fn end(child: &mut Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
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

/// Whether this process ignores Ctrl-C, which its children inherit: as where a shell without a
/// terminal starts it in the background.
fn ignores_interrupts() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (Signal::INT.as_raw() - 1) & 1 == 1)
}

#[test]
fn a_synthesis_that_is_interrupted_as_it_begins_leaves_nothing() {
    let (dir, temp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = dir.path().join("out");
    let args = ["synth", "--shape", "qwen3.6-35b-a3b", "--layers", "4", "--out"];
    let args = [&args[..], &[out.to_str().unwrap()]].concat();
    for wait in [0, 3, 6, 10, 15, 20, 30, 40, 60, 100, 150] {
        let mut child = start(&args, temp.path());
        std::thread::sleep(Duration::from_millis(wait));
        let is_interrupt = wait % 2 == 0 && !ignores_interrupts();
        end(&mut child, if is_interrupt { Signal::INT } else { Signal::TERM });
        assert_eq!(names(dir.path()), Vec::<String>::new(), "after {wait} ms");
    }
}

/// The content of every file below a directory, by relative path.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![dir.to_path_buf()]);
    while let Some(current) = dirs.pop() {
        for entry in fs::read_dir(current).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if let Ok(bytes) = fs::read(&path) {
                found.insert(path.strip_prefix(dir).unwrap().to_path_buf(), bytes);
            }
        }
    }
    found
}

#[test]
fn a_packing_that_is_interrupted_anywhere_goes_on() {
    let (dir, temp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = golden("hf-bf16");
    let path = |name: &str| dir.path().join(name).into_os_string().into_string().unwrap();
    let (model, whole, out) = (model.to_str().unwrap(), path("whole"), path("out"));
    let started = Instant::now();
    succeeds(&["pack", model, &whole]);
    let time = started.elapsed();
    let want = contents(Path::new(&whole));
    let n_parts: u32 = 12;
    for part in 0..n_parts {
        let mut child = start(&["pack", model, &out], temp.path());
        std::thread::sleep(time * part / n_parts);
        let signal = if part % 2 == 0 { Signal::INT } else { Signal::TERM };
        match child.try_wait().unwrap() {
            Some(status) => assert!(status.success(), "{status}"),
            None => {
                // It may end by itself in this moment.
                kill_process(Pid::from_child(&child), signal).unwrap();
                let status = child.wait().unwrap();
                assert!(status.success() || status.signal() == Some(signal.as_raw()), "{status}");
            }
        }
        for (name, bytes) in contents(Path::new(&out)) {
            let is_working = name.extension().is_some_and(|end| end == "partial")
                || name == Path::new("moeflux.pack.json");
            assert!(is_working || want[&name] == bytes, "{} is half a file", name.display());
        }
        if contents(Path::new(&out)).contains_key(Path::new("moeflux.json")) {
            fs::remove_dir_all(&out).unwrap();
        }
    }
    succeeds(&["pack", model, &out]);
    assert!(contents(Path::new(&out)) == want, "a resumed packing gives another container");
}

#[test]
fn an_interrupted_download_is_resumed() {
    const N_SENT: usize = 5000;
    let files: Vec<(String, Vec<u8>)> = contents(&golden("hf-bf16"))
        .into_iter()
        .map(|(path, bytes)| (path.to_str().unwrap().to_owned(), bytes))
        .filter(|(name, _)| !name.starts_with("expected"))
        .collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(a, b)| (&a[..], &b[..])).collect();
    let (weights, _) = *files.iter().find(|(name, _)| name.ends_with(".safetensors")).unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let (hub, home) = (Hub::start(&files), tempfile::tempdir().unwrap());
        let args = ["run", "--raw", "abc", "--max-tokens", "2", "-m", "org/name"];
        let command = |endpoint: &str| {
            let mut command = moeflux(&args);
            command.env("HF_ENDPOINT", endpoint).env("HF_HOME", home.path());
            command.env_remove("HF_HUB_OFFLINE");
            command
        };
        // Two ranges of its header come first.
        hub.fail_later(&format!("/cdn/{weights}"), 2, Fault::Stall(N_SENT));
        let mut child = Command::new(moeflux(&args).get_program());
        child.args(args).env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", home.path());
        child.env("HF_TOKEN", "").env_remove("HF_HUB_CACHE").env_remove("HF_HUB_OFFLINE");
        child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child.spawn().unwrap();
        let root = home.path().join("hub/models--org--name");
        let started = Instant::now();
        // Of all files that are on their way: several are at once.
        let parts = || -> Vec<usize> {
            let all = contents(&root.join("blobs")).into_iter();
            all.filter(|(name, _)| name.extension().is_some_and(|end| end == "incomplete"))
                .map(|(_, bytes)| bytes.len())
                .collect()
        };
        while !parts().contains(&N_SENT) {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
            assert!(started.elapsed() < SOON, "nothing arrives: {:?}", parts());
            std::thread::sleep(Duration::from_millis(1));
        }
        end(&mut child, signal);
        assert!(parts().contains(&N_SENT), "what arrived is kept: {:?}", parts());
        assert!(!root.join("snapshots").exists() && !root.join("refs").exists());
        finish(&mut command(&hub.endpoint));
        let resumed = format!("bytes={N_SENT}-");
        let ranges: Vec<_> = hub
            .requests()
            .iter()
            .filter_map(|request| request.headers.get("range").cloned())
            .collect();
        assert!(ranges.contains(&resumed), "{ranges:?}");
        assert_eq!(parts(), Vec::<usize>::new());
    }
}
