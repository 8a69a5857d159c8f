//! What standard input brings to `moeflux run`: joined to the prompt, alone, or nothing at all.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{check_refusal, finish, moeflux, succeeds};

const QUESTION: &str = "What does Vec::push do?";
const ANSWER: &str = "Appends an element to the back of a collection";

/// The answer alone to a prompt and an input.
#[track_caller]
fn answer(args: &[&str], input: impl Into<Vec<u8>>) -> String {
    let mut command = moeflux(&[&["run", "-q", "--max-tokens", "12"], args].concat());
    command.write_stdin(input);
    finish(&mut command).0
}

#[track_caller]
fn refuses_input(args: &[&str], input: &[u8], words: &[&str]) {
    let mut command = moeflux(&[&["run"], args].concat());
    command.write_stdin(input);
    check_refusal(&mut command, 2, words);
}

#[test]
fn it_is_joined_to_the_prompt_behind_a_blank_line() {
    let text = "a note\nof two lines";
    let joined = answer(&["Summarise this:"], text);
    assert_eq!(joined, answer(&[], format!("Summarise this:\n\n{text}")));
    assert_eq!(joined, answer(&[&format!("Summarise this:\n\n{text}")], ""));
    // Not what the prompt alone gives.
    let n_tokens = |input: &str| {
        let mut command = moeflux(&["run", "Summarise this:", "--stats", "--max-tokens", "1"]);
        let (_, notes) = finish(command.write_stdin(input));
        let line = notes.lines().find_map(|line| line.strip_prefix("moeflux: prefill "));
        line.unwrap().split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    assert!(n_tokens(text) > n_tokens("") + 4);
}

#[test]
fn a_dash_reads_it_alone() {
    assert!(answer(&["-"], QUESTION).starts_with(ANSWER));
    assert!(answer(&["-"], format!("{QUESTION}\n")).starts_with(ANSWER));
    for args in [&["run", "-"][..], &["run"], &["run", " "]] {
        check_refusal(moeflux(args).write_stdin(" \n"), 2, &["the prompt is empty"]);
    }
}

#[test]
fn an_input_without_text_changes_nothing() {
    for input in ["", "\n", " \r\n\t\n", "\u{feff}"] {
        assert!(answer(&[QUESTION], input).starts_with(ANSWER), "{input:?}");
    }
    assert!(answer(&[""], QUESTION).starts_with(ANSWER), "an empty prompt");
}

#[test]
fn marks_and_line_ends_of_other_systems_are_understood() {
    let plain = answer(&["Sum up:"], "one\ntwo");
    for input in ["one\r\ntwo\r\n", "\u{feff}one\ntwo", "one\ntwo\n\n"] {
        assert_eq!(answer(&["Sum up:"], input), plain, "{input:?}");
    }
    // Raw prompts are taken as they are.
    let n_tokens = |input: &str| {
        let mut command = moeflux(&["run", "--raw", "--stats", "--max-tokens", "1"]);
        let (_, notes) = finish(command.write_stdin(input));
        let line = notes.lines().find_map(|line| line.strip_prefix("moeflux: prefill "));
        line.unwrap().split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    assert!(n_tokens("one\r\n\r\n\r\n") > n_tokens("one"));
}

#[test]
fn what_is_no_text_is_refused_in_a_line() {
    for args in [&[][..], &["-"], &["Sum up:"], &["--raw", "Sum up:"]] {
        refuses_input(args, b"caf\xe9", &["standard input is not UTF-8 at byte 3"]);
        refuses_input(args, b"\x7fELF\x02\x01\x00\x00", &["standard input is no text", "byte 6"]);
        refuses_input(args, b"\xff\xfeh\x00i\x00", &["standard input is UTF-16", "iconv"]);
    }
}

#[test]
fn more_than_the_context_holds_is_refused_with_its_length() {
    let text = "one two three four\n".repeat(20_000);
    let mut command = moeflux(&["run", "Sum up:", "--ctx", "256"]);
    check_refusal(command.write_stdin(text), 1, &["too long", "tokens > 2", "--ctx"]);
}

/// The binary with a standard input of its own kind.
fn spawn(args: &[&str], stdin: impl Into<Stdio>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moeflux"));
    command.args(args).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("MOEFLUX_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"));
    command.spawn().unwrap()
}

#[track_caller]
fn output(child: Child) -> (String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    assert!(output.status.success(), "{}", text(output.stderr));
    (text(output.stdout), text(output.stderr))
}

#[test]
fn a_pipe_that_never_brings_anything_holds_nothing_up() {
    succeeds(&["run", "-q", QUESTION]);
    let mut child = spawn(&["run", QUESTION], Stdio::piped());
    let idle = child.stdin.take();
    let started = Instant::now();
    let (answer, notes) = output(child);
    assert!(answer.starts_with(ANSWER), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(60));
    assert!(notes.contains("standard input brought nothing"), "{notes}");
    drop(idle);
}

#[test]
fn a_slow_program_before_the_pipe_is_waited_for() {
    let mut child = spawn(&["run", "-q", "--max-tokens", "12", "Sum up:"], Stdio::piped());
    let mut input = child.stdin.take().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    input.write_all(b"one\n").unwrap();
    // What has begun may take as long as it takes.
    std::thread::sleep(Duration::from_secs(6));
    input.write_all(b"two\n").unwrap();
    drop(input);
    assert_eq!(output(child).0, answer(&["Sum up:"], "one\ntwo"));
}

#[test]
fn nothing_is_read_of_a_null_device_and_a_file_is_read_whole() {
    let (answer, notes) = output(spawn(&["run", QUESTION], Stdio::null()));
    assert!(answer.starts_with(ANSWER) && !notes.contains("standard input"), "{notes}");
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(QUESTION.as_bytes()).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    assert!(output(spawn(&["run", "-q", "-"], file)).0.starts_with(ANSWER));
}

#[cfg(unix)]
#[test]
fn devices_without_end_and_folders_are_refused() {
    for (path, words) in [("/dev/zero", "no text"), ("/", "cannot read standard input")] {
        let mut child = spawn(&["run", "Sum up:"], File::open(path).unwrap());
        let mut notes = String::new();
        child.stderr.take().unwrap().read_to_string(&mut notes).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(notes.contains(words) && notes.lines().count() == 1, "{path}: {notes}");
    }
}
