//! The log of requests of `moeflux serve`.

use serde_json::{Value, json};

use crate::common::Copy;
use crate::common::server::Server;

fn question() -> Value {
    json!({"model": "any", "max_tokens": 5, "temperature": 0,
        "messages": [{"role": "user", "content": "xyzzy-secret"}]})
}

#[test]
fn a_line_of_json_has_what_matches_a_reply_with_its_request() {
    let demo = Copy::of_demo();
    let keys = demo.path().join("keys.txt");
    std::fs::write(&keys, "first-key\nsecond-key\n").unwrap();
    let keys = keys.to_str().unwrap();
    let flags = ["--log-requests", "--log-format", "json", "--any-model", "--api-key-file", keys];
    let server = Server::start_with(demo.path(), &flags);
    let key = "authorization: Bearer second-key\r\nx-request-id: from-a-client";
    let (status, head, body) = server.post_with("/v1/chat/completions", key, &question());
    assert_eq!(status, 200, "{body}");
    assert!(head.contains("x-request-id: from-a-client"), "{head}");
    let line: Value = serde_json::from_str(&server.logged("from-a-client")).unwrap();
    let usage = &serde_json::from_str::<Value>(&body).unwrap()["usage"];
    for (field, want) in [
        ("method", json!("POST")),
        ("path", json!("/v1/chat/completions")),
        ("status", json!(200)),
        ("key", json!("key-2")),
        ("api", json!("openai")),
        ("tokens_in", usage["prompt_tokens"].clone()),
        ("tokens_cached", usage["prompt_tokens_details"]["cached_tokens"].clone()),
        ("tokens_out", usage["completion_tokens"].clone()),
    ] {
        assert_eq!(line[field], want, "{field} of {line}");
    }
    assert!(line["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{line}");
    let time = line["time"].as_str().unwrap();
    assert!(time.len() == 24 && time.ends_with('Z'), "{time}");
    assert!(line.get("end").is_none(), "{line}");

    let (status, _, _) = server.post_with("/v1/messages", "x-request-id: no-key", &question());
    assert_eq!(status, 401);
    let line: Value = serde_json::from_str(&server.logged("no-key")).unwrap();
    assert_eq!((&line["key"], &line["status"]), (&Value::Null, &json!(401)));
    assert!(line.get("tokens_in").is_none(), "{line}");
}

#[test]
fn a_line_of_text_names_no_path_of_the_client() {
    let demo = Copy::of_demo();
    let server = Server::start_with(demo.path(), &["--log-requests", "--any-model"]);
    let streamed = {
        let mut asked = question();
        asked["stream"] = json!(true);
        asked
    };
    let (status, _, _) = server.post_with("/v1/messages", "x-request-id: streamed", &streamed);
    assert_eq!(status, 200);
    let line = server.logged("id=streamed");
    assert!(line.contains(" POST /v1/messages 200 "), "{line}");
    assert!(line.contains(" key=- api=anthropic model="), "{line}");
    let n_out = line.split(" out=").nth(1).and_then(|rest| rest.parse::<usize>().ok());
    assert!(n_out.is_some_and(|n| (1..=5).contains(&n)), "{line}");
    let (status, _, _) = server.post_with("/xyzzy-secret", "x-request-id: lost", &question());
    assert_eq!(status, 404);
    assert!(server.logged("id=lost").contains(" POST unknown 404 "));
    assert!(!server.whole_log().contains("xyzzy-secret"));
}

#[test]
fn an_unknown_format_is_refused() {
    let mut command = crate::common::moeflux(&["serve", "--log-format", "xml"]);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("--log-format") && text.contains("write text or json"), "{text}");
}
