//! Conversations and prompts that outlast the process.

use std::fs;
use std::path::Path;

use crate::common::{check_refusal, finish, moeflux};

const QUESTION: &str = "What does Vec::push do?";
const SECOND: &str = "And Vec::pop?";

/// Tokens evaluated and tokens known, for every answer.
fn counts(notes: &str) -> Vec<(usize, usize)> {
    let line = |text: &str| {
        let words: Vec<&str> = text.strip_prefix("moeflux: prefill ")?.split(' ').collect();
        let known = words.iter().find_map(|word| word.strip_prefix('(')?.parse().ok());
        Some((words[0].parse().ok()?, known.unwrap_or(0)))
    };
    notes.lines().filter_map(line).collect()
}

#[track_caller]
fn chat(flags: &[&str], input: &str) -> (String, String) {
    let stats = if flags.contains(&"-q") { &[][..] } else { &["--stats"] };
    let mut command = moeflux(&[&["chat", "--max-tokens", "30"], flags, stats].concat());
    command.write_stdin(input);
    finish(&mut command)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_conversation_goes_on_where_it_was_left() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk.json");
    let flags = ["--session", text(&file)];
    let (whole, notes) = chat(&[], &format!("{QUESTION}\n{SECOND}\n"));
    let want = counts(&notes);
    let (first, _) = chat(&flags, &format!("{QUESTION}\n"));
    let (second, notes) = chat(&flags, &format!("{SECOND}\n"));
    assert_eq!(first + &second, whole);
    assert!(notes.contains("2 messages, "), "{notes}");
    assert_eq!(counts(&notes), want[1..]);
    // Without the snapshot it takes longer, and says the same.
    let snapshot = dir.path().join("talk.json.snapshot");
    fs::write(&snapshot, "damaged").unwrap();
    let (again, notes) = chat(&flags, "/regenerate\n");
    assert_eq!(again, second);
    assert!(notes.contains("warning: the conversation is read again"), "{notes}");
    let (again, notes) = chat(&flags, "/regenerate\n");
    assert_eq!(again, second);
    let [(evaluated, known)] = counts(&notes)[..] else { panic!("{notes}") };
    assert!(evaluated < 6 && known > 20, "{notes}");
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["talk.json", "talk.json.snapshot"]);
}

#[test]
fn commands_save_load_and_take_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk.json");
    let name = text(&file);
    let lines = format!("{QUESTION}\n/save {name}\n{SECOND}\n/undo\n{SECOND}\n");
    let (answers, _) = chat(&["-q"], &lines);
    let lines: Vec<&str> = answers.lines().collect();
    let (second, third) = lines[1..].split_at((lines.len() - 1) / 2);
    assert_eq!(second, third, "{answers}");
    let (loaded, notes) =
        chat(&[], &format!("/load {name}\n{SECOND}\n/system Be brief.\n{QUESTION}\n"));
    assert!(loaded.lines().collect::<Vec<_>>().starts_with(second), "{loaded} {answers}");
    let counts = counts(&notes);
    assert!(counts[0].0 < 20 && counts[0].1 > 15, "{notes}");
    assert!(counts[1].0 > 40, "another beginning: {notes}");
    let (answers, notes) = chat(&[], "/undo\n/regenerate\n/save\n/load nowhere.json\n");
    assert_eq!(answers, "");
    for words in
        ["nothing to take back", "no answer", "/save needs a FILE", "nowhere.json: no such"]
    {
        assert!(notes.contains(words), "{words:?} is not in {notes:?}");
    }
}

#[test]
fn prompts_that_begin_alike_are_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("prompts");
    let system = "You are a patient teacher of the Rust language. ".repeat(12);
    let run = |question: &str, variable: bool| {
        let mut args = vec!["run", question, "--system", &system, "--max-tokens", "8", "--stats"];
        if !variable {
            args.extend(["--prompt-cache", text(&cache)]);
        }
        let mut command = moeflux(&args);
        if variable {
            command.env("MOEFLUX_PROMPT_CACHE", &cache);
        }
        let (answer, notes) = finish(&mut command);
        (answer, counts(&notes)[0])
    };
    let (first, (n_prompt, known)) = run(QUESTION, false);
    assert_eq!(known, 0);
    let (again, (evaluated, known)) = run(QUESTION, true);
    assert_eq!((again, evaluated + known), (first, n_prompt));
    assert!(evaluated < 8, "{evaluated}");
    let (_, (evaluated, known)) = run(SECOND, false);
    assert!(evaluated < 20 && known > 60, "{evaluated} {known}");
    // A conversation that goes on where a run began.
    let flags = ["--system", &system, "--prompt-cache", text(&cache)];
    let (_, notes) = chat(&flags, &format!("{QUESTION}\n"));
    assert!(counts(&notes)[0].0 < 8, "{notes}");
}

#[test]
fn a_cache_too_small_warns_and_answers() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["run", QUESTION, "--max-tokens", "2", "--prompt-cache", text(dir.path())];
    let mut command = moeflux(&[&args[..], &["--prompt-cache-size", "1KiB"]].concat());
    let (_, notes) = finish(&mut command);
    assert!(notes.contains("warning: ") && notes.contains("--prompt-cache-size"), "{notes}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn conversations_that_cannot_be_read_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk.json");
    for (content, words) in [
        ("", "talk.json"),
        ("[]", "not a conversation"),
        ("{\"format\": \"moeflux-chat\", \"version\": 7, \"messages\": []}", "version 7"),
        ("{\"format\": \"moeflux-chat\", \"version\": 1, \"messages\": [1]}", "talk.json"),
    ] {
        fs::write(&file, content).unwrap();
        let mut command = moeflux(&["chat", "-q", "--session", text(&file)]);
        check_refusal(command.write_stdin("hi\n"), 1, &[words]);
    }
    let device = cfg!(unix).then_some("/dev/zero");
    for path in [text(dir.path())].into_iter().chain(device) {
        let mut command = moeflux(&["chat", "-q", "--session", path]);
        check_refusal(command.write_stdin("hi\n"), 1, &[path, "not a regular file"]);
    }
    let size = ["run", "hi", "--prompt-cache", text(dir.path()), "--prompt-cache-size", "0"];
    check_refusal(&mut moeflux(&size), 2, &["--prompt-cache-size", "at least 1 byte"]);
    let nowhere = dir.path().join("no/cache");
    fs::write(dir.path().join("no"), "a file").unwrap();
    let mut command = moeflux(&["run", "hi", "--prompt-cache", text(&nowhere)]);
    check_refusal(&mut command, 1, &["cache"]);
}
