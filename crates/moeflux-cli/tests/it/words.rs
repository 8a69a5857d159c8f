//! What the binary prints about itself: lists of commands, help, and one line for command lines
//! that make no sense, in its own words.

use crate::common::{self, moeflux, refuses, succeeds};

/// Every command, as `moeflux` alone lists them.
fn commands() -> Vec<String> {
    let list = String::from_utf8(moeflux::<&str>(&[]).output().unwrap().stderr).unwrap();
    let (list, _) = list.split_once("Examples:").unwrap();
    let lines = list.lines().filter_map(|line| line.strip_prefix("  "));
    lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn the_name_alone_lists_all_commands_in_groups() {
    let output = moeflux::<&str>(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let list = String::from_utf8(output.stderr).unwrap();
    assert!(list.lines().count() < 46 && list.lines().all(|line| line.chars().count() <= 80));
    for words in ["Use a model:", "Measure:", "\n  run  ", "\n  synth  ", "Examples:", "--help"] {
        assert!(list.contains(words), "{words:?} is not in {list}");
    }
    assert!(!list.contains("Other:"), "every command has a group: {list}");
    for args in [&["--help"][..], &["-h"], &["help"]] {
        assert_eq!(succeeds(args), (list.clone(), String::new()), "{args:?}");
    }
}

#[test]
fn help_of_a_command_is_short_and_has_an_example() {
    let commands = commands();
    assert!(commands.len() >= 12, "{commands:?}");
    for command in commands.iter().map(String::as_str) {
        for columns in ["80", "100"] {
            let mut all = moeflux(&[command, "--help"]);
            let (all, _) = common::finish(all.env("COLUMNS", columns));
            // A server has the most flags, and all those of a model.
            assert!(all.lines().count() < 80, "{command}: {} lines", all.lines().count());
            let example = format!("  moeflux {command} ");
            assert!(all.contains(&example) || all.ends_with(example.trim_end()), "{all}");
            assert!(all.contains("--help"), "{all}");
        }
        let (few, _) = succeeds(&[command, "-h"]);
        assert!(few.lines().count() < 40, "{command} -h: {} lines", few.lines().count());
        assert_eq!(succeeds(&["help", command]), succeeds(&[command, "--help"]));
    }
    let (all, few) = (succeeds(&["run", "--help"]).0, succeeds(&["run", "-h"]).0);
    for heading in ["\nModel:", "\nMemory and streaming:", "\nSampling:", "\nAdvanced:"] {
        assert!(all.contains(heading), "{heading:?} is not in {all}");
    }
    assert!(all.contains("--isa") && !few.contains("--isa") && few.contains("--model"), "{few}");
    assert!(few.contains("moeflux run --help shows all flags"), "{few}");
    assert!(all.contains("[default: the model's, else 1]"), "defaults of sampling: {all}");
    // Flags that are required are never hidden.
    assert!(succeeds(&["calibrate", "-h"]).0.contains("--out"));
}

#[test]
fn columns_that_no_terminal_has_do_not_count() {
    let help =
        |columns: &str| common::finish(moeflux(&["plan", "--help"]).env("COLUMNS", columns)).0;
    let want = help("80");
    for columns in ["0", "1", "-5", "abc", "", "99999999999999999999"] {
        let help = help(columns);
        let longest = help.lines().map(|line| line.chars().count()).max().unwrap();
        assert!((60..=100).contains(&longest), "COLUMNS={columns:?}: {help}");
    }
    assert!(help("40").lines().count() > want.lines().count());
}

#[test]
fn a_plan_fits_80_columns() {
    for args in [&["plan"][..], &["plan", "--expert-cache", "2MiB", "--kv-type", "q8"]] {
        let (plan, _) = succeeds(args);
        assert!(plan.lines().all(|line| line.chars().count() <= 80), "{plan}");
        assert!(plan.contains("expert cache") && plan.contains("each token reads"), "{plan}");
    }
}

#[test]
fn near_names_are_suggested() {
    for (args, words) in [
        (&["chta"][..], &["'chta'", "did you mean chat?"][..]),
        (&["generate"], &["did you mean run?"]),
        (&["What is 1 + 1?"], &["moeflux run 'What is 1 + 1?'"]),
        (&["run", "--temprature", "1"], &["--temprature", "did you mean --temperature?"]),
        (&["run", "x", "--kv-type", "bf61"], &["--kv-type 'bf61'", "did you mean bf16?", "q8"]),
        (&["run", "x", "--prefetch", "look"], &["did you mean lookahead?"]),
        (&["run", "x", "--isa", "scaler"], &["--isa", "did you mean scalar?"]),
        (&["plan", "--shape", "qwen3.5"], &["--shape", "did you mean qwen3.5-397b-a17b?"]),
        (&["synth", "--shape", "Tiny", "--out", "x"], &["did you mean tiny?"]),
        (&["run", "two", "words"], &["'words'", "second prompt", "--model"]),
        (&["chat", "two", "words"], &["'words'", "--model"]),
        (&["plan", "some", "model"], &["'model' is one argument too many"]),
    ] {
        refuses(args, 2, words);
    }
    if cfg!(feature = "gpu") {
        refuses(&["run", "x", "--device", "cuda:0"], 2, &["--device", "did you mean gpu?"]);
    }
}

#[test]
fn addresses_are_understood_as_people_write_them() {
    for args in [
        &["--addr", "0.0.0.0"][..],
        &["--addr", "0.0.0.0:8080"],
        &["--host", "0.0.0.0"],
        &["--host", "*", "--port", "9000"],
    ] {
        refuses(&[&["serve"], args].concat(), 2, &["0.0.0.0:", "--api-key-file"]);
    }
    // What follows is wrong in another way, so that no server starts.
    for address in [&["--addr", "localhost:8080"][..], &["--addr", ":8080"], &["-p", "9"]] {
        let args = [&["serve", "--model", "nowhere"], address].concat();
        refuses(&args, 2, &["\"nowhere\""]);
    }
    refuses(&["serve", "--port", "x"], 2, &["--port 'x'", "0 to 65535"]);
    refuses(&["serve", "--addr", ":1", "--port", "2"], 2, &["--addr", "--port", "leave one out"]);
}

#[test]
fn no_parsers_own_words_and_no_long_lines() {
    let long = "x".repeat(5000);
    let long_flag = format!("--{long}");
    let long_path = format!("/{}", "deep/".repeat(500));
    let mut lines: Vec<Vec<&str>> = vec![
        vec![&long],
        vec![&long_flag],
        vec!["run", &long_flag],
        vec!["run", "a", &long],
        vec!["run", "a", "--model", &long_path],
        vec!["run", "a", "--ctx", &long],
        vec!["run", "a", "--device", &long],
        vec!["run", "a", "--isa", &long],
        vec!["run", "a", "--expert-io", &long],
        vec!["run", "--ctx"],
        vec!["run", "a", "--ctx=1", "--ctx=2"],
        vec!["run", "a", "-q", "--stats"],
        vec!["run", "a", "-qx"],
        vec!["run", "a", "--quiet=yes"],
        vec!["run", "a", "--seed", "1.5"],
        vec!["run", "a", "--top-k", "many"],
        vec!["synth", "--shape", &long, "--out", "x"],
        vec!["pack"],
        vec!["pack", "a", "b", "c"],
        vec!["calibrate"],
        vec!["calibrate", "--text", &long_path, "--out", "x"],
        vec!["logits", "--tokens", &long_path, "--out", "x"],
        vec!["perplexity", "--text", &long_path],
        vec!["bench", "--kernels", "--cold"],
        vec!["bench", "--mtp-acceptance", "2"],
        vec!["plan", "--bits", "4"],
        vec!["plan", "--shape", "tiny", "--model", "x"],
        vec!["replay"],
        vec!["replay", &long_path],
        vec!["replay", "x", "--cache", "200%"],
        vec!["serve", "--addr", &long],
        vec!["serve", "--api-key-file", &long_path],
        vec!["serve", "--grace", "-1"],
        vec!["chat", "--session", "/"],
    ];
    for command in ["run", "chat", "serve", "pack", "calibrate", "bench", "plan", "inspect"] {
        lines.push(vec![command, "--no-such-flag"]);
        lines.push(vec![command, "-Z"]);
        lines.push(vec![command, "--threads"]);
        lines.push(vec![command, "--threads", "0x10"]);
    }
    for args in lines {
        let output = moeflux(&args).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        let shown: Vec<String> = args.iter().map(|arg| arg.chars().take(30).collect()).collect();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{shown:?}: {line}");
        assert_eq!(line.lines().count(), 1, "{shown:?}: {line}");
        assert!(line.trim_end().chars().count() <= 300, "{shown:?}: {line}");
        for words in [
            "unexpected argument",
            "unrecognized",
            "invalid value",
            "invalid digit",
            "invalid float",
            "invalid socket",
            "the following required",
            "cannot be used with",
            "cannot be used multiple",
            "a value is required",
            "possible values",
            "wasn't",
            "tip:",
            "Usage:",
            "missing field",
            "invalid type",
            "at line",
        ] {
            assert!(!line.contains(words), "{words:?} is not the user's word: {shown:?}: {line}");
        }
    }
}

/// A reader that ends early, as `head` does, is no error; a drive that is full is one.
#[cfg(target_os = "linux")]
#[test]
fn standard_output_that_takes_nothing_is_named() {
    let binary = moeflux::<&str>(&[]).get_program().to_owned();
    let start = |args: &[&str], out: std::process::Stdio| {
        let mut command = std::process::Command::new(&binary);
        let command = command.args(args).env("HF_HUB_OFFLINE", "1");
        command.stdin(std::process::Stdio::null()).stdout(out).output().unwrap()
    };
    let chat = ["chat", "hello", "--max-tokens", "2", "-q"];
    let run = ["run", "--raw", "hello", "--max-tokens", "2", "-q"];
    for args in [&run[..], &chat, &["inspect"], &["--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = start(args, full.into());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.starts_with("moeflux: cannot write to standard output: "), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = start(args, writer.into());
        assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()), "{args:?}");
    }
}
