//! What servers keep of prompts by default, where, and what switches it off.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::server::Server;
use crate::common::{Copy, moeflux, refuses, succeeds};

/// Long enough to be kept.
fn system(nth: usize) -> String {
    format!("You are agent {nth}. ") + &"Rule: be good. ".repeat(80)
}

/// Asks the next question of a conversation; tokens of its prompt, and those that were reused.
fn ask(server: &Server, messages: &mut Vec<Value>, question: &str) -> [u64; 2] {
    messages.push(json!({"role": "user", "content": question}));
    let body = json!({"messages": messages, "max_tokens": 8});
    let (status, reply) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{reply}");
    let reply: Value = serde_json::from_str(&reply).unwrap();
    messages.push(reply["choices"][0]["message"].clone());
    let usage = &reply["usage"];
    [&usage["prompt_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]]
        .map(|n| n.as_u64().unwrap())
}

/// The share of prompts that was evaluated in the second and later turns of three conversations on one
/// session.
fn evaluated_share(server: &Server) -> f64 {
    let mut all: Vec<Vec<Value>> =
        (0..3).map(|nth| vec![json!({"role": "system", "content": system(nth)})]).collect();
    let (mut n_prompt, mut n_evaluated) = (0, 0);
    for turn in 0..4 {
        for messages in &mut all {
            let [n, n_cached] = ask(server, messages, &format!("Question {turn}?"));
            if turn > 0 {
                n_prompt += n;
                n_evaluated += n - n_cached;
            }
        }
    }
    n_evaluated as f64 / n_prompt as f64
}

fn snapshots(dir: &Path) -> Vec<std::path::PathBuf> {
    let files = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|name| name == "snapshot")).collect()
}

#[test]
fn conversations_that_take_turns_on_one_session_go_on_from_what_they_had() {
    let one = ["--sessions", "1", "--ctx", "4096"];
    for (flags, is_kept) in [
        (&[][..], true),
        (&["--prompt-memory", "0"], true),
        (&["--prompt-memory", "1MiB"], true),
        (&["--no-prompt-cache"], false),
    ] {
        let model = Copy::of_demo();
        let server = Server::start_with(model.path(), &[&one[..], flags].concat());
        let share = evaluated_share(&server);
        // A new question and the answer before it are.
        assert_eq!(share < 0.1, is_kept, "{flags:?}: {share}");
        assert_eq!(share > 0.9, !is_kept, "{flags:?}: {share}");
        let log = server.whole_log();
        assert!(!log.contains("warning"), "{log}");
        drop(server);
        let dir = model.path().join("prompts");
        assert_eq!(dir.exists(), is_kept, "{flags:?}");
        // A server that is killed has written what it had time for.
        assert!(is_kept || snapshots(&dir).is_empty());
        #[cfg(unix)]
        if is_kept {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&dir), 0o700);
            assert!(snapshots(&dir).iter().all(|file| mode(file) == 0o600));
        }
    }
}

#[test]
fn a_server_without_a_place_for_prompts_says_so_and_answers() {
    let model = Copy::of_demo();
    fs::write(model.path().join("prompts"), "in the way").unwrap();
    let server = Server::start_with(model.path(), &["--sessions", "1", "--ctx", "4096"]);
    let said = server.said_before().join("\n");
    assert_eq!(said.matches("not kept on the drive").count(), 1, "{said}");
    assert!(said.contains("--prompt-cache"), "{said}");
    // Memory has them.
    assert!(evaluated_share(&server) < 0.1);
    let log = server.whole_log();
    assert!(!log.contains("warning"), "{log}");
}

#[test]
fn a_plan_has_the_memory_for_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("tiny").to_str().unwrap().to_owned();
    succeeds(&["synth", "--shape", "tiny", "--out", &model]);
    let plan = |args: &[&str]| -> Value {
        let args = [&["plan", "--json", "--model", &model], args].concat();
        serde_json::from_str(&succeeds(&args).0).unwrap()
    };
    let one = plan(&[]);
    let of = |command: &str| one["commands"][command]["prompt_cache_bytes"].as_u64().unwrap();
    assert_eq!((of("run"), of("chat")), (0, 0));
    assert!(of("serve") > 0 && of("launch") > 0, "{one}");
    let server = plan(&["--sessions", "8"]);
    let rows = server["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "prompts").unwrap();
    assert_eq!(row["bytes"], server["prompt_cache_bytes"]);
    let sum: u64 = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, server["total_bytes"].as_u64().unwrap());
    // Where the cache cannot have all experts nothing is left.
    let large = ["plan", "--json", "--shape", "deepseek-v3", "--ctx", "4096"];
    let large: Value = serde_json::from_str(&moeflux_output(&large)).unwrap();
    assert_eq!(large["commands"]["serve"]["prompt_cache_bytes"], 0, "{large}");
}

/// What a command prints, whether it succeeds or not.
fn moeflux_output(args: &[&str]) -> String {
    String::from_utf8(moeflux(args).output().unwrap().stdout).unwrap()
}

#[test]
fn flags_of_the_cache_that_contradict_each_other_are_refused() {
    for other in [
        &["--prompt-cache", "x"][..],
        &["--prompt-memory", "1GiB"],
        &["--prompt-cache-size", "1GiB"],
    ] {
        let args = [&["serve", "--no-prompt-cache"], other].concat();
        refuses(&args, 2, &["--no-prompt-cache", other[0]]);
    }
    refuses(&["serve", "--prompt-memory", "much"], 2, &["--prompt-memory", "much"]);
}
