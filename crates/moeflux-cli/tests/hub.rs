//! Models from a hub on the loopback interface, by name.

mod common;
#[expect(dead_code, reason = "faults are the library's tests' business")]
#[path = "../../moeflux-engine/tests/hub/server.rs"]
mod server;

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use common::{check_refusal, finish, golden, moeflux};
use server::Hub;

fn hub() -> Hub {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for entry in fs::read_dir(golden("hf-bf16")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("expected") {
            files.push((name, fs::read(path).unwrap()));
        }
    }
    let files: Vec<(&str, &[u8])> = files.iter().map(|(a, b)| (&a[..], &b[..])).collect();
    Hub::start(&files)
}

fn run(endpoint: &str, home: &Path, model: &str) -> Command {
    let mut command = moeflux(&["run", "--raw", "abc", "--max-tokens", "4", "--model", model]);
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", home).env_remove("HF_HUB_OFFLINE");
    command
}

#[test]
fn a_model_is_downloaded_by_name_and_works_offline_afterwards() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let (answer, _) = finish(&mut run(&hub.endpoint, home.path(), "org/name"));
    let local = moeflux(&["run", "--raw", "abc", "--max-tokens", "4", "--model"])
        .arg(golden("hf-bf16"))
        .output()
        .unwrap();
    assert_eq!(answer.as_bytes(), local.stdout);
    assert!(home.path().join("hub/models--org--name/snapshots").is_dir());

    let n_requests = hub.requests().len();
    let mut offline = run(&hub.endpoint, home.path(), "org/name");
    assert_eq!(finish(offline.env("HF_HUB_OFFLINE", "1")).0, answer);
    assert_eq!(hub.requests().len(), n_requests);
    // The hub is away, and a copy is here.
    let mut away = run("http://127.0.0.1:1", home.path(), "org/name");
    assert_eq!(finish(&mut away).0, answer);
}

#[test]
fn what_the_hub_does_not_have_is_refused_by_name() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let mut command = run(&hub.endpoint, home.path(), "org/other");
    check_refusal(&mut command, 1, &["org/other", "not found", "HF_TOKEN"]);
    let mut command = run(&hub.endpoint, home.path(), "org/other");
    check_refusal(command.env("HF_HUB_OFFLINE", "1"), 1, &["org/other", "HF_HUB_OFFLINE"]);
}

#[test]
fn an_endpoint_that_is_no_address_is_named() {
    let home = tempfile::tempdir().unwrap();
    let mut command = run("not an address", home.path(), "org/name");
    check_refusal(&mut command, 2, &["not an address", "HF_ENDPOINT", "https://"]);
    assert!(!home.path().join("hub/models--org--name/snapshots").exists());
}
