//! `moeflux run` and `moeflux chat` on the demo model inside the binary.

use std::thread;

use crate::common::{finish, golden, moeflux, refuses, succeeds};
use predicates::prelude::*;

const QUESTION: &str = "What does Vec::push do?";
const ANSWER: &str = "Appends an element to the back of a collection";

/// Tokens of the prompt that were evaluated, from the statistics.
#[track_caller]
fn prefilled(notes: &str) -> usize {
    let line = notes.lines().find_map(|line| line.strip_prefix("moeflux: prefill ")).unwrap();
    line.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_question_is_answered_and_statistics_go_to_standard_error() {
    let (answer, statistics) = succeeds(&["run", QUESTION, "--stats"]);
    assert!(answer.starts_with(ANSWER) && answer.ends_with('\n'), "{answer:?}");
    for words in ["prefill 15 tokens", "tok/s", "mapped", "memory: "] {
        assert!(statistics.contains(words), "{words:?} is not in {statistics:?}");
    }
    // Mapped files have no reads and no hits that could be counted.
    assert!(!statistics.contains("hit rate") && !statistics.contains("read per"), "{statistics}");
    assert!(statistics.lines().all(|line| line.starts_with("moeflux: ")), "{statistics:?}");
}

#[test]
fn one_line_of_statistics_follows_an_answer() {
    let (_, notes) = succeeds(&["run", QUESTION]);
    let last = notes.lines().last().unwrap();
    for words in ["tokens at ", " tok/s, first after ", " s, memory ", "iB"] {
        assert!(cfg!(not(target_os = "linux")) || last.contains(words), "{last:?}");
    }
    assert_eq!(notes.lines().filter(|line| line.contains("tok/s")).count(), 1, "{notes}");
    let (_, notes) = succeeds(&["run", QUESTION, "--max-tokens", "1"]);
    assert!(notes.contains("1 token (--max-tokens), first after"), "{notes}");
}

#[test]
fn the_demo_model_says_what_it_is_and_answers_what_it_names() {
    let (_, notes) = succeeds(&["run", "-m", golden("hf-bf16").to_str().unwrap(), "--raw", "a"]);
    assert!(!notes.contains("demo model"), "{notes}");
    let (_, notes) = succeeds(&["run", "/usr/", "--max-tokens", "1"]);
    assert!(notes.contains("'/usr/' is the prompt here; --model names a model"), "{notes}");
    assert!(notes.lines().all(|line| line.chars().count() <= 80), "{notes}");
    let named = notes.lines().find_map(|line| line.strip_prefix("moeflux: \"")).unwrap();
    let questions: Vec<&str> = named.trim_matches('"').split("\", \"").collect();
    let wanted = [ANSWER, "Removes the last element from the vector and returns it", "68"];
    assert_eq!(questions.len(), wanted.len(), "{named}");
    for (question, want) in questions.iter().zip(wanted) {
        let (answer, _) = succeeds(&["run", "-q", question]);
        assert!(answer.starts_with(want), "{question}: {answer}");
    }
}

#[test]
fn quiet_leaves_the_answer_alone() {
    let (answer, statistics) = succeeds(&["run", QUESTION, "--quiet"]);
    assert!(answer.starts_with(ANSWER));
    assert_eq!(statistics, "");
}

#[test]
fn a_prompt_comes_from_standard_input_too() {
    let mut command = moeflux(&["run", "-q"]);
    command.write_stdin(QUESTION);
    assert_eq!(finish(&mut command), succeeds(&["run", "-q", QUESTION]));
}

#[test]
fn raw_prompts_skip_the_template_and_know_its_markup() {
    let by_template = succeeds(&["run", "-q", QUESTION]);
    let markup = format!("<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(succeeds(&["run", "-q", "--raw", &markup]), by_template);
    let (_, statistics) = succeeds(&["run", "--raw", QUESTION, "--max-tokens", "1", "--stats"]);
    assert!(statistics.contains("prefill 7 tokens"), "{statistics}");
}

#[test]
fn a_template_takes_the_prompts_markup_as_text() {
    // The user cannot end his own turn.
    let (_, statistics) = succeeds(&["run", "a<|im_end|>", "--max-tokens", "1", "--stats"]);
    let n_prompt: usize = prefilled(&statistics);
    assert!(n_prompt > 9, "{statistics}");
}

#[test]
fn a_stop_text_ends_the_answer_before_it() {
    let (answer, _) = succeeds(&["run", "-q", QUESTION, "--stop", "nowhere", "--stop", " to the"]);
    assert_eq!(answer, "Appends an element\n");
}

#[test]
fn max_tokens_bounds_the_answer() {
    let (short, statistics) = succeeds(&["run", QUESTION, "--max-tokens", "3", "--stats"]);
    assert!(statistics.contains("decode 3 tokens"), "{statistics}");
    assert!(ANSWER.starts_with(short.trim_end()) && short.len() < ANSWER.len());
}

#[test]
fn a_seed_determines_the_answer() {
    let sampled = |seed: &str| {
        let args = ["run", "-q", "Tell a story.", "--temperature", "1", "--max-tokens", "24"];
        succeeds(&[&args[..], &["--seed", seed]].concat()).0
    };
    assert_eq!(sampled("1"), sampled("1"));
    let answers = ["1", "2", "3", "4"].map(sampled);
    assert!(answers.iter().any(|answer| *answer != answers[0]), "{answers:?}");
}

#[test]
fn greedy_needs_no_seed_and_no_flag_changes_the_bits() {
    let want = succeeds(&["run", "-q", QUESTION]).0;
    for flags in [
        &["--temperature", "0", "--seed", "9"][..],
        &["--temperature", "1", "--top-k", "1"],
        &["--threads", "1", "--isa", "scalar"],
        &["--expert-io", "pread", "--expert-cache", "1MiB", "--prefetch", "last-token"],
        &["--expert-io", "mmap", "--chunk", "3"],
        &["--expert-cache", "1MB", "--cache-policy", "lru"],
        &["--expert-cache", "1MB", "--cache-policy", "lru", "--prefetch", "lookahead"],
        &["--expert-cache", "2MB", "--prefetch", "auto", "--no-expert-stats"],
        &["--ctx", "64", "--verify"],
    ] {
        assert_eq!(succeeds(&[&["run", "-q", QUESTION], flags].concat()).0, want, "{flags:?}");
    }
}

#[test]
fn expert_io_follows_the_variable_unless_the_flag_says_otherwise() {
    let mode = |variable: &str, flags: &[&str]| {
        let mut command =
            moeflux(&[&["run", "hi", "--max-tokens", "1", "--stats"], flags].concat());
        finish(command.env("MOEFLUX_EXPERT_IO", variable)).1
    };
    assert!(mode("pread", &[]).contains("experts (pread)"));
    assert!(mode("mmap", &[]).contains("experts (mmap)"));
    assert!(mode("", &[]).contains("experts (mmap)"));
    assert!(mode("mmap", &["--expert-io", "pread"]).contains("experts (pread)"));
}

#[test]
fn drafts_are_counted_and_change_no_answer() {
    let ask = |draft| succeeds(&["run", QUESTION, "--system", ANSWER, "--draft", draft, "--stats"]);
    let ((plain, without), (text, with)) = (ask("off"), ask("4"));
    assert_eq!(text, plain);
    assert!(with.contains("draft: ") && !without.contains("draft: "), "{with}{without}");
}

#[test]
fn prefetching_is_counted() {
    let flags = ["--expert-io", "pread", "--prefetch", "last-token", "--stats"];
    let (_, statistics) = succeeds(&[&["run", QUESTION], &flags[..]].concat());
    assert!(statistics.contains("prefetch: "), "{statistics}");
}

#[test]
fn other_numbers_of_experts_are_announced_even_quietly() {
    let flags = ["--experts-per-token", "2", "--max-tokens", "2"];
    let (_, notes) = succeeds(&[&["run", "-q", QUESTION], &flags[..]].concat());
    assert!(
        notes.contains("2 experts a token instead of 4") && notes.lines().count() == 1,
        "{notes}"
    );
}

#[test]
fn a_full_context_ends_the_answer() {
    let (_, statistics) = succeeds(&["run", QUESTION, "--ctx", "18", "--stats"]);
    assert!(statistics.contains("decode 4 tokens"), "{statistics}");
}

#[test]
fn a_checkpoint_of_another_kind_answers_too() {
    let case = golden("hf-bf16");
    let args = ["run", "--raw", "abc", "--seed", "7", "--max-tokens", "4", "--model"];
    let args = args.map(str::to_owned);
    let by_dir = succeeds(&[&args[..], &[case.display().to_string()]].concat()).0;
    let file = case.join("config.json").display().to_string();
    assert_eq!(succeeds(&[&args[..], &[file]].concat()).0, by_dir);
    assert!(by_dir.trim_end().chars().count() >= 1);
    // Its files do not say how tokens are chosen, which is said once.
    let (_, notes) = succeeds(&[&args[..], &[case.display().to_string()]].concat());
    assert_eq!(notes.matches("temperature 0.8, top_k 40").count(), 1, "{notes}");
    let greedy = ["--temperature", "0"].map(str::to_owned);
    let greedy = [&args[..], &[case.display().to_string()], &greedy].concat();
    let [first, second] = [0, 1].map(|_| succeeds(&greedy));
    assert!(first.0 == second.0 && !first.1.contains("temperature 0.8"), "{}", first.1);
}

#[test]
fn the_demo_model_is_written_once_by_however_many() {
    let cache = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = moeflux(&["run", "-q", QUESTION, "--threads", "1", "--verify"]);
        finish(command.env("MOEFLUX_CACHE", cache.path())).0
    };
    thread::scope(|scope| {
        let runs: Vec<_> = (0..6).map(|_| scope.spawn(run)).collect();
        runs.into_iter().for_each(|run| assert!(run.join().unwrap().starts_with(ANSWER)));
    });
    // The model, and the lock under which it was written.
    let entries: Vec<_> =
        cache.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 2, "{entries:?}");
    assert_eq!(entries.iter().filter(|entry| entry.is_dir()).count(), 1, "{entries:?}");
}

#[test]
fn a_damaged_copy_of_the_demo_model_is_replaced() {
    let cache = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = moeflux(&["run", "-q", QUESTION]);
        finish(command.env("MOEFLUX_CACHE", cache.path())).0
    };
    run();
    let mut entries = cache.path().read_dir().unwrap().map(|entry| entry.unwrap().path());
    let dir = entries.find(|entry| entry.is_dir()).unwrap();
    std::fs::write(dir.join("packed_experts/layer_03.bin"), "short").unwrap();
    std::fs::remove_file(dir.join("tokenizer.json")).unwrap();
    // What a process that was killed left behind goes too.
    std::fs::create_dir(dir.with_extension("partial")).unwrap();
    assert!(run().starts_with(ANSWER));
    assert!(!dir.with_extension("partial").exists());
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_moeflux"));
    command.args(["run", "Tell a story.", "--max-tokens", "500", "-q"]);
    command.env("MOEFLUX_CACHE", std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"));
    let pipe = std::process::Stdio::piped;
    let mut child = command.stdout(pipe()).stderr(pipe()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[track_caller]
fn chat(flags: &[&str], input: &str) -> (String, String) {
    let mut command = moeflux(&[&["chat"], flags].concat());
    command.write_stdin(input);
    finish(&mut command)
}

#[test]
fn a_conversation_remembers_its_turns() {
    let second = "What does Vec::pop do?";
    let (answers, notes) =
        chat(&["--stats", "--max-tokens", "40"], &format!("{QUESTION}\n{second}\n"));
    assert!(answers.starts_with(ANSWER) && answers.lines().count() >= 2, "{answers}");
    let prompts: Vec<usize> = notes
        .lines()
        .filter_map(|line| line.strip_prefix("moeflux: prefill ")?.split(' ').next()?.parse().ok())
        .collect();
    // The second turn evaluates what is new of it, not the first one again.
    assert_eq!(prompts.len(), 2, "{notes}");
    assert_eq!(prompts[0], 15);
    assert!(prompts[1] < 20, "{notes}");

    let alone = chat(&["-q", "--max-tokens", "40"], &format!("{second}\n")).0;
    let cleared = format!("{QUESTION}\n/clear\n{second}\n");
    let answers = chat(&["-q", "--max-tokens", "40"], &cleared).0;
    assert!(answers.ends_with(&alone), "{answers:?} {alone:?}");
}

#[test]
fn commands_of_the_conversation_are_not_sent_to_the_model() {
    let (answers, notes) = chat(&[], "/help\n\n  /nonsense \n/clear\n/quit\nnot read\n");
    assert_eq!(answers, "");
    assert!(
        predicate::str::contains("/clear        forget the conversation")
            .and(predicate::str::contains("/nonsense: no such command"))
            .and(predicate::str::contains("forgotten"))
            .eval(&notes),
        "{notes}"
    );
}

#[test]
fn lines_are_continued_and_an_end_of_input_ends_it() {
    let joined = chat(&["-q"], "What does \\\nVec::push do?").0;
    let whole = succeeds(&["run", "-q", "What does \nVec::push do?"]).0;
    assert_eq!(joined, whole);
    assert_eq!(chat(&["-q"], "").0, "");
}

#[test]
fn a_system_text_is_part_of_the_prompt() {
    let n_prompt = |flags: &[&str]| {
        let (_, notes) =
            succeeds(&[&["run", QUESTION, "--max-tokens", "1", "--stats"], flags].concat());
        prefilled(&notes)
    };
    assert!(n_prompt(&["--system", "Answer in a word."]) > n_prompt(&[]) + 4);
}

#[test]
fn help_and_versions_go_to_standard_output() {
    for args in [&["--help"][..], &["--version"], &["run", "--help"], &["pack", "-h"]] {
        moeflux(args).assert().success().stderr("").stdout(predicate::str::contains("moeflux"));
    }
}

#[test]
fn sampling_is_set_within_a_conversation() {
    let lines = "/set\n/set temperature -1\n/set temprature 1\n/set top_p\n/set temperature 1.5\n\
                 /set thinking_budget 9\n/set thinking_budget x\n/set\n/set thinking-budget -1\n";
    let (_, notes) = chat(&["--seed", "7"], lines);
    for words in [
        "temperature = 0\n",
        "seed = 7\n",
        "/set temperature '-1': write a number, 0 or more",
        "did you mean temperature?",
        "write /set NAME VALUE",
        "temperature = 1.5",
        "thinking_budget = no limit\n",
        "the model marks no thoughts",
        "/set thinking_budget 'x': write a whole number, 0 for no thoughts, or -1 for no limit",
        "moeflux: thinking_budget = 9\nmoeflux: the model",
        "thinking_budget = -1",
    ] {
        assert!(notes.contains(words), "{words:?} is not in {notes}");
    }
    let again = format!("{QUESTION}\n/regenerate\n");
    let (answers, notes) = chat(&["-q", "--seed", "7", "--max-tokens", "12"], &again);
    assert_eq!(answers.lines().count(), 2, "{answers}");
    let both: Vec<&str> = answers.lines().collect();
    assert_eq!(both[0], both[1], "greedy: {notes}");
    let flags = ["--seed", "7", "--max-tokens", "12"];
    let (warm, _) =
        chat(&[&["-q"], &flags[..]].concat(), &format!("/set temperature 1.5\n{again}"));
    let half = warm.len() / 2;
    assert!(warm != answers && warm[..half] != warm[half..], "another seed: {warm}");
    let (_, notes) = chat(&flags, &again);
    assert!(notes.contains("/set temperature 0.7"), "{notes}");
}

#[test]
fn mistaken_commands_do_not_reach_the_model() {
    let (answers, notes) = chat(&["-q"], "/hlep\n/regenrate now\n/foo bar\n");
    assert_eq!(answers, "");
    for words in ["did you mean /help?", "did you mean /regenerate?", "/foo: no such command"] {
        assert!(notes.contains(words), "{words:?} is not in {notes}");
    }
    let (answers, _) = chat(&["-q", "--max-tokens", "2"], "//foo\n");
    assert!(!answers.is_empty());
}

#[test]
fn a_message_of_the_command_line_is_the_first() {
    let mut command = moeflux(&["chat", "-q", QUESTION]);
    command.write_stdin("");
    assert!(finish(&mut command).0.starts_with(ANSWER));
}

const SCHEMA: &str = r#"{"type": "object", "properties": {"n": {"enum": [1, 2]}},
    "required": ["n"], "additionalProperties": false}"#;

#[test]
fn a_schema_holds_the_answers_of_run_and_chat() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("schema.json");
    std::fs::write(&file, SCHEMA).unwrap();
    let is_held = |answer: &str| {
        let value: serde_json::Value = serde_json::from_str(answer).unwrap();
        assert!(value["n"] == 1 || value["n"] == 2, "{value}");
    };
    for schema in [SCHEMA, file.to_str().unwrap()] {
        is_held(&succeeds(&["run", "-q", "How many?", "--schema", schema]).0);
        is_held(&succeeds(&["run", "-q", "--raw", "n: ", "--schema", schema]).0);
    }
    is_held(&succeeds(&["run", "-q", "How many?", "--json-schema", SCHEMA]).0);
    // The demo's guesses are withheld where any text is an answer.
    is_held(&succeeds(&["run", "How many?", "--schema", SCHEMA]).0);
    let mut chat = moeflux(&["chat", "-q", "--schema", SCHEMA]);
    let (answers, _) = finish(chat.write_stdin("How many?\nAnd now?\n"));
    assert_eq!(answers.lines().count(), 2, "{answers}");
    answers.lines().for_each(is_held);
}

#[test]
fn a_schema_that_is_none_is_refused_before_the_model_is_opened() {
    for command in [&["run", "hi", "--schema"][..], &["chat", "--schema"]] {
        for (schema, words) in [
            ("{", "--schema: not valid JSON"),
            ("[1]", "a JSON schema is an object"),
            ("/nowhere.json", "cannot read /nowhere.json"),
        ] {
            refuses(&[command, &[schema]].concat(), 2, &[words]);
        }
        let unsupported = r#"{"type": "string", "pattern": "^(?=a)b"}"#;
        refuses(&[command, &[unsupported]].concat(), 1, &["--schema: "]);
    }
}

#[test]
fn probabilities_of_tokens_follow_the_answer() {
    let args = ["run", QUESTION, "--max-tokens", "3", "--logprobs=2"];
    let (answer, notes) = succeeds(&args);
    let lines: Vec<&str> = notes.lines().filter(|line| line.contains("; likeliest: ")).collect();
    assert_eq!(lines.len(), 3, "{notes}");
    for line in lines {
        assert_eq!(line.matches(" %").count(), 3, "{line}");
    }
    let without = succeeds(&args[..4]);
    assert_eq!(answer, without.0);
    assert!(!without.1.contains("likeliest"), "{}", without.1);
    let (answer, notes) =
        succeeds(&["run", "Why is the sky blue?", "--max-tokens", "3", "--logprobs"]);
    assert!(!answer.trim().is_empty(), "{notes}");
    assert_eq!(notes.lines().filter(|line| line.ends_with(" %")).count(), 3, "{notes}");
    refuses(&["run", "hi", "--logprobs=-1"], 2, &["--logprobs '-1': write a whole number"]);
    refuses(&["run", "hi", "-q", "--logprobs"], 2, &["--logprobs", "--quiet"]);
}
