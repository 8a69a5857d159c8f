//! Files that the program keeps: who may read them, what a killed process leaves, and what two
//! processes do with one file.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, Copy, check_refusal, finish, moeflux, refuses, succeeds};

const QUESTION: &str = "What does Vec::push do?";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// The binary through a shell that lets everybody read what it creates.
fn open_to_all(cache: &Path, args: &[&str]) -> assert_cmd::Command {
    let own = moeflux::<&str>(&[]);
    let mut command = assert_cmd::Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" \"$@\""]).arg(own.get_program()).args(args);
    command.env("MOEFLUX_CACHE", cache).timeout(Duration::from_secs(100));
    command
}

#[test]
fn what_tells_of_use_is_for_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (talk, prompts, routing) = (at("talk.json"), at("prompts"), at("routing"));
    let shared = ["--max-tokens", "4", "--expert-cache", "4MiB"];
    let chat = ["chat", "--session", text(&talk), "--prompt-cache", text(&prompts)];
    let chat = [&chat[..], &shared].concat();
    finish(open_to_all(&at("cache"), &chat).write_stdin(QUESTION));
    let run = ["run", QUESTION, "--record-routing", text(&routing)];
    finish(&mut open_to_all(&at("cache"), &[&run[..], &shared].concat()));
    let mut n_files = 0;
    for dir in [prompts.clone(), at("cache/experts")] {
        assert_eq!(mode(&dir), 0o700, "{dir:?}");
        for name in names(&dir) {
            assert_eq!(mode(&dir.join(&name)), 0o600, "{name}");
            n_files += 1;
        }
    }
    assert!(n_files >= 2, "{n_files}");
    let files = [talk.clone(), at("talk.json.snapshot"), routing];
    for file in &files {
        assert_eq!(mode(file), 0o600, "{file:?}");
    }
    // As earlier versions left them; the directory of prompts may be one that the user made.
    for file in files.iter().take(2) {
        set_mode(file, 0o644);
    }
    let prompt = prompts.join(&names(&prompts)[0]);
    set_mode(&prompt, 0o644);
    set_mode(&prompts, 0o755);
    set_mode(&at("cache/experts"), 0o755);
    finish(open_to_all(&at("cache"), &chat).write_stdin("/quit\n"));
    finish(&mut open_to_all(&at("cache"), &["run", "hi", "--prompt-cache", text(&prompts), "-q"]));
    for file in files.iter().take(2).chain([&prompt]) {
        assert_eq!(mode(file), 0o600, "{file:?}");
    }
    assert_eq!([mode(&prompts), mode(&at("cache/experts"))], [0o755, 0o700]);
}

/// A process that has opened a conversation and waits for a line.
struct Waiting(Child);

impl Waiting {
    fn chat(file: &Path) -> Waiting {
        let mut command = Command::new(moeflux::<&str>(&[]).get_program());
        command.args(["chat", "-q", "--max-tokens", "20", "--session", text(file)]);
        command.env("MOEFLUX_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let waiting = Waiting(child.spawn().unwrap());
        let lock = file.with_file_name(format!("{}.lock", file.file_name().unwrap().display()));
        wait_until(|| lock.exists());
        waiting
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        assert_eq!(self.0.wait().unwrap().signal(), Some(9));
    }
}

#[track_caller]
fn wait_until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn one_chat_has_a_session_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (talk, link) = (dir.path().join("talk.json"), dir.path().join("link.json"));
    let first = Waiting::chat(&talk);
    // Under any name.
    fs::write(&talk, r#"{"format": "moeflux-chat", "version": 1, "messages": []}"#).unwrap();
    std::os::unix::fs::symlink(&talk, &link).unwrap();
    for name in [&talk, &link] {
        let mut second = moeflux(&["chat", "-q", "--session", text(name)]);
        check_refusal(second.write_stdin(QUESTION), 1, &[text(name), "open in another chat"]);
    }
    let save = format!("/save {}\n", text(&talk));
    let (_, notes) = finish(moeflux(&["chat", "-q"]).write_stdin(save));
    assert!(notes.contains("open in another chat"), "{notes}");
    first.kill();
    // Its lock is gone with it, whatever is left of it.
    finish(moeflux(&["chat", "-q", "--session", text(&link)]).write_stdin(QUESTION));
    assert_eq!(names(dir.path()), ["link.json", "talk.json", "talk.json.snapshot"]);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    // Its own file it may write to.
    let lines = format!("/save {}\n/save {}\n", text(&talk), text(&link));
    let (_, notes) = finish(moeflux(&["chat", "--session", text(&talk)]).write_stdin(lines));
    assert_eq!(notes.matches("kept in").count(), 2, "{notes}");
}

#[test]
fn what_a_killed_chat_was_writing_is_cleared_up() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk.json");
    let pid = std::process::id();
    // The process of the last one lives, and does not write it.
    let dead = ["talk.json.77.partial", "talk.json.snapshot.77-0.partial"];
    let dead = dead.map(String::from).into_iter().chain([format!("talk.json.{pid}-1.partial")]);
    let foreign = ["other.json.77.partial", "talk.json.old.partial"];
    for name in dead.chain(foreign.map(String::from)) {
        fs::write(dir.path().join(name), "half").unwrap();
    }
    finish(moeflux(&["chat", "-q", "--session", text(&talk)]).write_stdin(QUESTION));
    let want = [foreign[0], "talk.json", foreign[1], "talk.json.snapshot"];
    assert_eq!(names(dir.path()), want);
}

/// The demo model with one bit of its embedding changed: the same shape, another model.
fn other_model() -> Copy {
    let copy = Copy::of_demo();
    copy.edit("resident.safetensors", |bytes| *bytes.last_mut().unwrap() ^= 1);
    copy
}

#[test]
fn a_session_of_another_model_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk.json");
    let snapshot = dir.path().join("talk.json.snapshot");
    let chat = |flags: &[&str], input: &str| {
        let session = ["chat", "--max-tokens", "8", "--session", text(&talk)];
        let mut command = moeflux(&[&session[..], flags].concat());
        command.write_stdin(input.to_owned());
        command
    };
    finish(&mut chat(&[], QUESTION));
    let other = other_model();
    let kept = || [&talk, &snapshot].map(|file| fs::read(file).unwrap());
    let before = kept();
    let refuse = || {
        let words = ["talk.json", "another model", "the demo model", "/load"];
        check_refusal(&mut chat(&["-q", "--model", other.arg()], "hi\n"), 1, &words);
    };
    refuse();
    assert_eq!(kept(), before);
    // Without a snapshot the messages still name their model.
    fs::remove_file(&snapshot).unwrap();
    refuse();
    fs::write(&snapshot, &before[1]).unwrap();
    // The remedy that the message names.
    let load = format!("/load {}\n/regenerate\n", text(&talk));
    let mut command = moeflux(&["chat", "--model", other.arg(), "--max-tokens", "8"]);
    let (answer, notes) = finish(command.write_stdin(load));
    assert!(!answer.is_empty() && notes.contains("is read again"), "{notes}");
    assert_eq!(kept(), before);
    // A file of an earlier version names none; its snapshot does.
    let mut json: serde_json::Value = serde_json::from_slice(&before[0]).unwrap();
    json.as_object_mut().unwrap().remove("model");
    fs::write(&talk, json.to_string()).unwrap();
    let words = ["talk.json", "another model", "qwen3_5_moe"];
    check_refusal(&mut chat(&["-q", "--model", other.arg()], "hi\n"), 1, &words);
    // A copy of the same model elsewhere is the same; what was asked of it differently costs time.
    let copy = Copy::of_demo();
    let (_, notes) = finish(&mut chat(&["--model", copy.arg()], "/quit\n"));
    assert!(notes.contains("2 messages, "), "{notes}");
    for flags in [["--kv-type", "q8"], ["--activations", "int8"], ["--experts-per-token", "3"]] {
        let (_, notes) = finish(&mut chat(&flags, "/quit\n"));
        assert!(notes.contains("is read again"), "{flags:?}: {notes}");
    }
    // What does not fit stays, and what is needed is said.
    let before = kept();
    let (_, notes) = finish(&mut chat(&["--ctx", "16"], "And Vec::pop?\n"));
    assert!(notes.contains("--ctx"), "{notes}");
    assert_eq!(kept(), before);
}

#[test]
fn a_session_without_a_place_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("no/talk.json");
    let mut command = moeflux(&["chat", "-q", "--session", text(&nowhere)]);
    check_refusal(command.write_stdin(QUESTION), 1, &["no/talk.json", "does not exist: create it"]);
    assert_eq!(names(dir.path()), [""; 0]);
}

/// Every file below a directory, and its bytes.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path)
            } else {
                let bytes = fs::read(&path).unwrap();
                all.push((path.strip_prefix(dir).unwrap().to_owned(), bytes));
            }
        }
    }
    all.sort();
    all
}

#[test]
fn packing_continues_wherever_it_was_killed() {
    let source = Copy::of_demo();
    let dir = tempfile::tempdir().unwrap();
    let pack = |to: &str| {
        let mut command = Command::new(moeflux::<&str>(&[]).get_program());
        command.args(["pack", source.arg(), text(&dir.path().join(to)), "--bits", "2"]);
        command.args(["--rounding", "nearest"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let start = Instant::now();
    assert!(pack("whole").wait().unwrap().success());
    let whole_time = start.elapsed();
    let want = contents(&dir.path().join("whole"));
    let mut n_killed = 0;
    for i in 0..6 {
        let to = format!("killed-{i}");
        // Twice, so that what continues is killed, too.
        for share in [i, i / 2] {
            let mut child = pack(&to);
            std::thread::sleep(whole_time * share / 6);
            child.kill().unwrap();
            n_killed += u32::from(child.wait().unwrap().signal() == Some(9));
        }
        let status = pack(&to).wait().unwrap();
        // It may have been whole already.
        assert!(status.success() || status.code() == Some(1), "{i}");
        assert!(contents(&dir.path().join(&to)) == want, "killed {i} sixths of the way");
    }
    assert!(n_killed >= 4, "{n_killed}");
}

#[test]
fn packing_starts_over_what_a_journal_does_not_tell() {
    let source = Copy::of_demo();
    let dir = tempfile::tempdir().unwrap();
    let (whole, dst) = (dir.path().join("whole"), dir.path().join("dst"));
    succeeds(&["pack", source.arg(), text(&whole)]);
    let journal = "moeflux.pack.json";
    let partial = format!("{journal}.partial");
    for (name, bytes) in [(&*partial, ""), (&partial, "{\"ver"), (journal, ""), (journal, "{\"v")] {
        fs::create_dir(&dst).unwrap();
        fs::write(dst.join(name), bytes).unwrap();
        succeeds(&["pack", source.arg(), text(&dst)]);
        assert!(contents(&dst) == contents(&whole), "{name} {bytes:?}");
        fs::remove_dir_all(&dst).unwrap();
    }
    // What others put there is not touched.
    fs::create_dir(&dst).unwrap();
    fs::write(dst.join(&partial), "").unwrap();
    fs::write(dst.join("mine"), "").unwrap();
    refuses(&["pack", source.arg(), text(&dst)], 1, &["dst", "not empty"]);
    refuses(&["pack", source.arg(), text(&dst), "--force"], 1, &["dst", "not empty"]);
    assert_eq!(names(&dst), ["mine", &partial]);
}

#[test]
fn a_forced_packing_leaves_nothing_of_the_one_before() {
    let source = Copy::of_demo();
    let dir = tempfile::tempdir().unwrap();
    let (whole, dst) = (dir.path().join("whole"), dir.path().join("dst"));
    succeeds(&["pack", source.arg(), text(&whole)]);
    let golden = common::golden("qwen3_moe-mlx-q4");
    succeeds(&["pack", text(&golden), text(&dst)]);
    fs::write(dst.join("packed_experts/layer_40.bin.partial"), "").unwrap();
    refuses(&["pack", source.arg(), text(&dst)], 1, &["dst", "--force"]);
    succeeds(&["pack", source.arg(), text(&dst), "--force"]);
    assert!(contents(&dst) == contents(&whole));
    // As if it had been killed right before its journal went.
    let journal = |bits: &str| {
        let other = dir.path().join("other");
        let _ = fs::remove_dir_all(&other);
        // No file may become that large, which ends the packing after its journal is written.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 64; exec \"$0\" \"$@\""]);
        command.arg(moeflux::<&str>(&[]).get_program());
        command.args(["pack", source.arg(), text(&other), "--bits", bits]);
        let output = command.output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(line.contains("layer_00.bin: File too large"), "{line}");
        fs::copy(other.join("moeflux.pack.json"), dst.join("moeflux.pack.json")).unwrap();
    };
    journal("4");
    succeeds(&["pack", source.arg(), text(&dst), "--bits", "4"]);
    assert!(!dst.join("moeflux.pack.json").exists());
    journal("2");
    refuses(&["pack", source.arg(), text(&dst)], 1, &["expert_bits was 2", "--force"]);
    succeeds(&["inspect", "--model", text(&dst)]);
}
