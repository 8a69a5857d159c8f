//! What reaches a terminal of what models, files and prompts hold: text, and no commands. The
//! terminal is that of `script`, which Debian and others have.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Copy, finish, golden, moeflux, succeeds};
use serde_json::json;

/// What a program shows in a terminal; `None` without `script`.
fn shown(args: &[&str], input: &str) -> Option<String> {
    let quoted = |text: &&str| format!("'{}'", text.replace('\'', "'\\''"));
    let words: Vec<String> =
        [env!("CARGO_BIN_EXE_moeflux")].iter().chain(args).map(quoted).collect();
    let mut command = Command::new("script");
    command.args(["-qefc", &words.join(" "), "/dev/null"]).env("SHELL", "/bin/sh");
    command.env("MOEFLUX_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"));
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        println!("SKIP: there is no program script");
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

/// A model whose letters are commands: `q` begins one, `6` rings, `D` and `S` are a control
/// character of two bytes.
fn hostile_model() -> Copy {
    let copy = Copy::of(&golden("hf-bf16"));
    copy.edit_json("tokenizer.json", |json| {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        for (letter, byte) in [("q", "\u{11b}"), ("6", "\u{107}"), ("]", "\u{11b}]52;c;AA\u{107}")]
        {
            let id = vocab.remove(letter).unwrap();
            vocab.insert(byte.to_owned(), id);
        }
    });
    copy
}

#[test]
fn what_a_model_writes_commands_no_terminal() {
    let model = hostile_model();
    let args = [
        "run",
        "-q",
        "--raw",
        "abc",
        "--temperature",
        "0",
        "--max-tokens",
        "60",
        "--model",
        model.arg(),
    ];
    // A pipe gets the bytes as they are.
    let (bytes, _) = succeeds(&args);
    assert!(bytes.contains('\x1b') && bytes.contains('\x07'), "{bytes:?}");
    for args in [
        args.to_vec(),
        vec![
            "chat",
            "-q",
            "--temperature",
            "0",
            "--max-tokens",
            "60",
            "--model",
            model.arg(),
            "abc",
        ],
    ] {
        let Some(text) = shown(&args, "\x04") else { return };
        assert!(text.contains('␛') || text.contains('␇'), "{text:?}");
        assert!(!text.contains('\x07') && !text.contains("\x1b]52"), "{text:?}");
        if args[0] == "run" {
            assert!(!text.contains('\x1b'), "{text:?}");
        }
    }
}

#[test]
fn a_restored_chat_and_names_of_files_command_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk\x1b]0;x\x07.json");
    let evil = "a\x1b[2J\u{9b}2J\x1b]8;;http://evil\x1b\\b\u{202e}c";
    let messages = json!([
        {"role": "user", "content": format!("Q{evil}")},
        {"role": "assistant", "content": format!("A{evil}")},
    ]);
    let talk = json!({"format": "moeflux-chat", "version": 1, "messages": messages});
    fs::write(&file, talk.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let Some(text) = shown(&["chat", "--session", file], "\x04") else { return };
    assert!(text.contains("Qa␛[2J<U+009B>2J␛]8") && text.contains("Aa␛[2J"), "{text:?}");
    for command in ["\x1b[2J", "\u{9b}", "\x1b]8", "\x1b]0", "\u{202e}", "\x07"] {
        assert!(!text.contains(command), "{command:?} in {text:?}");
    }
    let Some(text) = shown(&["run", "--max-tokens", "1", "--", "/tmp/\x1b]0;x\x07/../"], "") else {
        return;
    };
    assert!(!text.contains("\x1b]0") && !text.contains('\x07'), "{text:?}");
}

#[test]
fn a_resumed_chat_shows_its_last_exchange() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk.json");
    let file = file.to_str().unwrap();
    let question = "What does Vec::push do?";
    let mut first = moeflux(&["chat", "-q", "--session", file]);
    let (answer, _) = finish(first.write_stdin(format!("What is 23 + 45?\n{question}\n")));
    let answer = answer.lines().last().unwrap();
    let (_, notes) = finish(moeflux(&["chat", "--session", file]).write_stdin(""));
    assert!(notes.contains(&format!("you> {question}")) && notes.contains(answer), "{notes}");
    assert!(!notes.contains("you> What is 23"), "{notes}");
    let (_, notes) = finish(moeflux(&["chat"]).write_stdin(format!("/load {file}\n")));
    assert!(notes.contains(&format!("you> {question}")) && notes.contains(answer), "{notes}");
    let (_, notes) = finish(moeflux(&["chat", "-q", "--session", file]).write_stdin(""));
    assert_eq!(notes, "");
}

#[test]
fn saving_overwrites_nothing_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, new) = (dir.path().join("mine.txt"), dir.path().join("new.json"));
    fs::write(&mine, "mine").unwrap();
    let lines = format!(
        "What is 23 + 45?\n/save {}\n/save {}\n/save {}\n",
        mine.display(),
        new.display(),
        new.display()
    );
    let (_, notes) = finish(moeflux(&["chat"]).write_stdin(lines));
    assert!(notes.contains("is there already: give another name"), "{notes}");
    assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
    // What this chat has saved it saves again.
    assert_eq!(notes.matches("kept in").count(), 2, "{notes}");
    assert!(fs::read_to_string(&new).unwrap().contains("68"));
}

#[test]
fn a_model_without_a_template_says_what_to_do() {
    let copy = Copy::of(&golden("hf-bf16"));
    copy.edit_json("tokenizer_config.json", |json| {
        json.as_object_mut().unwrap().remove("chat_template");
    });
    for command in ["run", "chat"] {
        let mut run = moeflux(&[command, "--model", copy.arg(), "hello"]);
        let words = ["has no chat template", "run --raw", "chat_template.jinja"];
        crate::common::check_refusal(&mut run, 2, &words);
    }
}
