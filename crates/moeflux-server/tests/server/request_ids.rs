//! Every reply has the id of its request.

use moeflux_server::ServerOptions;
use serde_json::json;

use crate::common::{Reply, options, question, start};
use crate::with;

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let lines = reply.head.lines().filter_map(|line| line.split_once(": "));
    let found: Vec<&str> = lines.filter(|(key, _)| *key == name).map(|(_, value)| value).collect();
    assert!(found.len() <= 1, "{name}: {found:?}");
    found.first().copied()
}

#[test]
fn every_reply_has_an_id_of_its_own() {
    let keys = vec![String::from("a-long-enough-key")];
    let (open, closed) = (start(options()), start(ServerOptions { api_keys: keys, ..options() }));
    let asked = with(question("Hi"), json!({"max_tokens": 2}));
    let streamed = with(asked.clone(), json!({"stream": true}));
    let wrong = with(asked.clone(), json!({"temperature": 9}));
    let mut seen = Vec::new();
    for (status, reply) in [
        (200, open.get("/health")),
        (200, open.get("/")),
        (404, open.get("/nothing")),
        (405, open.get("/v1/messages")),
        (401, closed.get("/v1/models")),
        (200, open.post("/v1/chat/completions", &asked)),
        (200, open.post("/v1/chat/completions", &streamed)),
        (400, open.post("/v1/chat/completions", &wrong)),
        (200, open.post("/v1/messages", &asked)),
        (200, open.post("/v1/messages", &streamed)),
        (400, open.post("/v1/messages", &wrong)),
        (401, closed.post("/v1/messages", &asked)),
        (403, open.send("GET /health HTTP/1.1\r\nOrigin: http://evil.example", "")),
    ] {
        assert_eq!(reply.status, status, "{}", reply.head);
        let id = header(&reply, "x-request-id").unwrap_or_else(|| panic!("{}", reply.head));
        assert!(id.starts_with("req_") && !seen.contains(&id.to_owned()), "{id}");
        seen.push(id.to_owned());
    }
    for (path, has_second) in [("/v1/messages", true), ("/v1/chat/completions", false)] {
        for body in [&asked, &wrong] {
            let reply = open.post(path, body);
            let second = header(&reply, "request-id");
            assert_eq!(second, header(&reply, "x-request-id").filter(|_| has_second), "{path}");
        }
    }
    let versioned = open.send("GET /v1/models HTTP/1.1\r\nanthropic-version: 2023-06-01", "");
    assert!(header(&versioned, "request-id").is_some(), "{}", versioned.head);
}

#[test]
fn an_id_of_the_client_is_kept_if_it_is_one() {
    let server = start(options());
    let send = |id: &str| {
        let reply = server.send(&format!("GET /health HTTP/1.1\r\nX-Request-Id: {id}"), "");
        header(&reply, "x-request-id").unwrap().to_owned()
    };
    for id in ["abc-1", "550e8400-e29b-41d4-a716-446655440000"] {
        assert_eq!(send(id), id);
    }
    for id in ["", "two words", "quote\"", &"x".repeat(129)] {
        assert!(send(id).starts_with("req_"), "{id}");
    }
}
