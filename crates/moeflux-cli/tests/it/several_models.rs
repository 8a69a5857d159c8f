//! `serve` with several models: repeated flags, folders, and the Hub's cache.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::server::Server;
use crate::common::{Copy, check_refusal, copy_into, moeflux};

/// Names and whether they are loaded.
fn models(server: &Server) -> Vec<(String, String)> {
    let list: Value = serde_json::from_str(&server.get("/v1/models")).unwrap();
    let card = |card: &Value| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&card["id"]), text(&card["status"]["value"]))
    };
    list["data"].as_array().unwrap().iter().map(card).collect()
}

/// The name under which a model answers.
fn answers(server: &Server, model: &str) -> String {
    let body = json!({"model": model, "temperature": 0, "max_tokens": 40, "messages":
        [{"role": "user", "content": "What is 7 + 12?"}]});
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    answer["model"].as_str().unwrap().to_owned()
}

fn removes(server: &Server, model: &str) -> u16 {
    server.delete("/api/delete", "accept: */*", &json!({"model": model}))
}

fn until_there_are(server: &Server, n: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while models(server).len() != n {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn copy_demo(to: &Path) {
    copy_into(&Path::new(env!("CARGO_MANIFEST_DIR")).join("demo"), to);
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn statuses<'a>(pairs: &[(&'a str, &'a str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, status)| ((*name).to_owned(), (*status).to_owned())).collect()
}

#[test]
fn models_are_named_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    copy_demo(&one);
    copy_demo(&two);
    let server = Server::start_in(dir.path(), &["-m", text(&one), "-m", text(&two)]);
    assert_eq!(models(&server), statuses(&[("one", "loaded"), ("two", "unloaded")]));
    assert_eq!(answers(&server, "two"), "two");
    assert_eq!(answers(&server, "one"), "one");
    // Without `--hub` clients change nothing.
    assert_eq!(removes(&server, "one"), 403);
    assert!(one.is_dir());
}

#[test]
fn a_folder_holds_models_that_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("models");
    copy_demo(&folder.join("org/first"));
    // What cannot be run is not listed.
    let damaged = folder.join("damaged");
    copy_demo(&damaged);
    fs::write(damaged.join("moeflux.json"), "{").unwrap();
    let server = Server::start_in(dir.path(), &["-m", text(&folder)]);
    assert_eq!(models(&server), statuses(&[("org/first", "unloaded")]));
    assert_eq!(answers(&server, "first"), "org/first");
    copy_demo(&folder.join("second"));
    until_there_are(&server, 2);
    assert_eq!(answers(&server, "second"), "second");
    fs::remove_dir_all(folder.join("second")).unwrap();
    until_there_are(&server, 1);

    let serve = |folder: &Path| moeflux(&["serve", "--addr", "127.0.0.1:0", "-m", text(folder)]);
    let empty = dir.path().join("empty");
    fs::create_dir_all(&empty).unwrap();
    check_refusal(&mut serve(&empty), 1, &[text(&empty)]);
    fs::rename(&damaged, empty.join("damaged")).unwrap();
    check_refusal(&mut serve(&empty), 1, &["damaged", "moeflux.json"]);
}

#[test]
fn the_hubs_cache_is_served_by_the_names_of_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let commit = "0123456789012345678901234567890123456789";
    let repo = dir.path().join("models--org--name");
    let snapshot = repo.join("snapshots").join(commit);
    let store = || {
        copy_demo(&snapshot);
        fs::create_dir_all(repo.join("refs")).unwrap();
        fs::write(repo.join("refs/main"), commit).unwrap();
    };
    store();
    let server = Server::start_in(dir.path(), &["--hub"]);
    assert_eq!(models(&server), statuses(&[("org/name", "unloaded")]));
    assert_eq!(answers(&server, "org/name"), "org/name");
    assert_eq!(answers(&server, "name"), "org/name");
    assert_eq!(removes(&server, "other"), 404);
    // Clients do not learn which paths there are.
    for path in
        ["/etc/passw", "../models", "~/x", dir.path().join("models--org--nam").to_str().unwrap()]
    {
        let body = json!({"model": path, "stream": false});
        let (status, reply) = server.post("/api/pull", &body);
        assert!(status == 500 && !reply.contains("did you mean"), "{path}: {reply}");
    }
    assert_eq!(removes(&server, "org/name"), 200);
    assert!(!snapshot.exists());
    assert_eq!(models(&server), []);
    drop(server);

    store();
    let keys = dir.path().join("keys");
    fs::write(&keys, "a-long-enough-key\n").unwrap();
    let server = Server::start_in(dir.path(), &["--hub", "--api-key-file", text(&keys)]);
    let key = "authorization: Bearer a-long-enough-key";
    assert_eq!(server.delete("/api/delete", key, &json!({"model": "org/name"})), 403);
    assert!(snapshot.exists());
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    let demo = Copy::of_demo();
    let two = ["serve", "-m", demo.arg(), "-m", demo.arg(), "--model-name", "x"];
    check_refusal(&mut moeflux(&two), 2, &["--model-name", "several"]);
    check_refusal(&mut moeflux(&two[..5]), 2, &["another model", "rename"]);
    check_refusal(&mut moeflux(&["serve", "--manage"]), 2, &["--hub"]);
    check_refusal(&mut moeflux(&["serve", "--idle-timeout", "soon"]), 2, &["5m"]);
    check_refusal(&mut moeflux(&["run", "-m", "a", "-m", "b"]), 2, &["--model"]);
}
