//! `moeflux keys`, and a server whose clients have keys with names.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::server::Server;
use crate::common::{Copy, moeflux};

/// What `moeflux keys` prints; `Err` has the message.
fn keys(file: &Path, args: &[&str]) -> Result<String, String> {
    let mut all = vec!["keys"];
    all.extend(args);
    let output = moeflux(&all).arg("--keys").arg(file).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn a_key_is_printed_once_and_the_file_has_its_hash() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json");
    let limits = ["--requests-per-minute", "60", "--sessions", "2"];
    let key = keys(&file, &[&["add", "anna"][..], &limits].concat()).unwrap();
    let key = key.trim_end();
    assert!(key.starts_with("mfx-") && !key.contains(char::is_whitespace), "{key}");
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&key[4..]));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    keys(&file, &["add", "ben"]).unwrap();
    let listed = keys(&file, &["list"]).unwrap();
    let lines: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["name", "made", "requests/min", "tokens/min", "sessions"]);
    assert_eq!((lines[1][0], &lines[1][2..]), ("anna", &["60", "-", "2"][..]));
    assert_eq!((lines[2][0], lines.len()), ("ben", 3));
    let listed: Value = serde_json::from_str(&keys(&file, &["list", "--json"]).unwrap()).unwrap();
    assert_eq!(listed["keys"][0]["limits"]["sessions"], 2);
    assert!(listed["keys"][0].get("sha256").is_none());

    keys(&file, &["remove", "anna"]).unwrap();
    for (args, part) in [
        (&["add", "ben"][..], "already"),
        (&["add", "two words"], "letters, digits"),
        (&["remove", "anna"], "no key \"anna\""),
        (&["add"], "NAME"),
        (&["remove"], "NAME"),
        (&["list", "ben"], "list takes no name"),
        (&["remove", "ben", "--sessions", "3"], "keys add NAME"),
        (&["add", "carl", "--sessions", "0"], "--sessions"),
        (&["drop", "ben"], "drop"),
    ] {
        let message = keys(&file, args).unwrap_err();
        assert!(message.contains(part), "{args:?}: {message}");
    }
    let none = keys(&dir.path().join("none.json"), &["list"]).unwrap_err();
    assert!(none.contains("none.json"), "{none}");
    std::fs::write(&file, "a-plain-key\n").unwrap();
    let wrong = keys(&file, &["add", "carl"]).unwrap_err();
    assert!(wrong.contains("no file of keys") && wrong.lines().count() == 1, "{wrong}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "a-plain-key\n");
}

#[test]
fn additions_at_the_same_time_lose_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json");
    std::thread::scope(|scope| {
        for i in 0..6 {
            let file = &file;
            scope.spawn(move || keys(file, &["add", &format!("key-of-{i}")]).unwrap());
        }
    });
    assert_eq!(keys(&file, &["list"]).unwrap().lines().count(), 7);
}

#[test]
fn a_server_knows_keys_by_name_and_reads_the_file_again() {
    let demo = Copy::of_demo();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json");
    let key = keys(&file, &["add", "anna", "--requests-per-minute", "2"]).unwrap();
    let flags = ["--keys", file.to_str().unwrap(), "--any-model", "--log-requests"];
    let server = Server::start_with(demo.path(), &flags);
    let asked = json!({"max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]});
    let ask = |key: &str, path: &str| {
        server.post_with(path, &format!("x-api-key: {}", key.trim_end()), &asked)
    };
    assert_eq!(ask("mfx-000000000000", "/v1/messages").0, 401);
    let (status, head, _) = ask(&key, "/v1/chat/completions");
    assert_eq!(status, 200);
    assert!(head.contains("x-ratelimit-limit-requests: 2"), "{head}");
    assert!(head.contains("x-ratelimit-remaining-requests: 1"), "{head}");
    assert!(head.contains("x-ratelimit-reset-requests: 30s"), "{head}");
    assert!(server.logged("/v1/chat/completions").contains(" key=anna "));
    assert_eq!(ask(&key, "/v1/messages").0, 200);
    let (status, head, body) = ask(&key, "/v1/messages");
    assert_eq!(status, 429, "{body}");
    assert!(head.contains("anthropic-ratelimit-requests-remaining: 0"), "{head}");
    assert!(head.contains("anthropic-ratelimit-requests-reset: 20"), "{head}");
    assert!(head.contains("retry-after: "), "{head}");
    assert!(body.contains("rate_limit_error") && body.contains("2 requests a minute"), "{body}");

    let other = keys(&file, &["add", "ben"]).unwrap();
    server.logged("the keys were read again");
    assert_eq!(ask(&other, "/v1/messages").0, 200);
    keys(&file, &["remove", "anna"]).unwrap();
    let began = std::time::Instant::now();
    while ask(&key, "/v1/messages").0 != 401 {
        assert!(began.elapsed().as_secs() < 30, "a removed key is still known");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    // What is no file of keys changes nothing.
    std::fs::write(&file, "{").unwrap();
    server.logged("the keys stay as they are");
    assert_eq!(ask(&other, "/v1/messages").0, 200);
}

#[test]
fn a_file_without_keys_starts_no_server() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json");
    for (text, part) in [
        (None, "cannot read the keys"),
        (Some("{\"keys\": []}"), "has no key"),
        (Some("plain\n"), "no file of keys"),
    ] {
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        let output = moeflux(&["serve", "--keys"]).arg(&file).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && message.contains(part), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}
