//! The server's edges: paths, origins, keys, errors and connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use moeflux_server::ServerOptions;
use serde_json::json;

use crate::common::{Reply, Running, options, question, start};

fn body(text: &str) -> String {
    let asked = json!({"model": "demo", "max_tokens": 2, "messages": "MESSAGES"}).to_string();
    let messages = format!(r#"[{{"role": "user", "content": "{text}"}}]"#);
    asked.replace("\"MESSAGES\"", &messages)
}

impl Running {
    fn post_text(&self, path: &str, headers: &str, body: &str) -> Reply {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\n\
             Content-Length: {length}{headers}"
        );
        self.send(&head, body)
    }
}

#[test]
fn spellings_of_paths_reach_the_same_routes() {
    let server = start(options());
    for path in [
        "/chat/completions",
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "/v1/v1/chat/completions",
        "//v1/chat/completions?beta=true",
    ] {
        assert_eq!(server.post(path, &question("Hi")).status, 200, "{path}");
    }
    assert_eq!(server.post("/messages", &question("Hi")).json()["type"], "message");
    for path in ["/models", "/v1/models/", "/models/demo", "/v1/health", "/health/", "/v1/props"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for path in ["/health", "/v1/models", "/props", "/", "/models/"] {
        let reply = server.send(&format!("HEAD {path} HTTP/1.1"), "");
        assert_eq!((reply.status, reply.body.as_str()), (200, ""), "{path}");
    }
    assert_eq!(server.get("/v1/models/%ff").status, 404);
}

#[test]
fn probes_learn_the_context_and_the_abilities() {
    let server = start(ServerOptions { n_sessions: 3, max_tokens: Some(100), ..options() });
    let ctx = server.get("/status").json()["model"]["context"].clone();
    let props = server.get("/props").json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], ctx);
    assert_eq!(props["default_generation_settings"]["params"]["n_predict"], 100);
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(3), &json!("demo")));
    assert!(props["chat_template"].as_str().unwrap().contains("messages"));
    assert_eq!(props["modalities"], json!({"vision": false, "audio": false}));
    assert!(props["build_info"].is_string() && props["model_path"].is_string());

    let slots = server.get("/slots").json();
    let slots = slots.as_array().unwrap();
    assert_eq!(slots.len(), 3);
    for (i, slot) in slots.iter().enumerate() {
        assert_eq!((&slot["id"], &slot["n_ctx"]), (&json!(i), &ctx));
        assert_eq!(slot["is_processing"], false);
    }
    assert_eq!(server.get("/slots?fail_on_no_slot=1").status, 200);

    let list = server.get("/v1/models").json();
    let model = &list["data"][0];
    assert_eq!(*model, server.get("/v1/models/demo").json());
    for name in ["context_length", "max_model_len", "max_input_tokens"] {
        assert_eq!(model[name], ctx, "{name}");
    }
    assert_eq!((&model["meta"]["n_ctx"], &model["max_tokens"]), (&ctx, &json!(100)));
    assert!(model["meta"]["n_ctx_train"].as_u64().unwrap() > 0);
    let parameters = model["supported_parameters"].as_array().unwrap();
    assert!(parameters.contains(&json!("tools")) && !parameters.contains(&json!("reasoning")));
    assert_eq!(model["capabilities"]["thinking"]["supported"], false);
    assert_eq!(model["capabilities"]["function_calling"], true);
    assert_eq!(list["models"][0]["capabilities"], json!(["completion", "tools"]));

    let api_keys = vec![String::from("a-long-enough-key")];
    let closed = start(ServerOptions { api_keys, ..options() });
    for path in ["/slots", "/props", "/metrics", "/status", "/nothing"] {
        assert_eq!(closed.get(path).status, 401, "{path}");
    }
    assert_eq!(closed.get("/v1/health").status, 200);
}

#[test]
fn slots_are_busy_while_answers_are_made() {
    let server = start(ServerOptions { n_sessions: 1, ..options() });
    let asked = json!({
        "model": "demo", "stream": true, "max_tokens": 4000, "temperature": 2,
        "logit_bias": {"8187": -100, "8185": -100},
        "messages": [{"role": "user", "content": "Hi"}],
    })
    .to_string();
    let mut stream = TcpStream::connect(server.addr).unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: application/json";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{asked}", asked.len()).unwrap();
    stream.read_exact(&mut [0; 500]).unwrap();
    assert_eq!(server.get("/slots").json()[0]["is_processing"], true);
    assert_eq!(server.get("/slots?fail_on_no_slot=1").status, 503);
}

#[test]
fn errors_have_the_form_of_the_client() {
    let server = start(ServerOptions { max_body: 1000, ..options() });
    let large = "x".repeat(2000);
    let version = "\r\nanthropic-version: 2023-06-01";
    let mime = "POST PATH HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 2";
    for (path, headers, is_anthropic) in [
        ("/v1/messages", "", true),
        ("/messages", "", true),
        ("/v1/chat/completions", "", false),
        ("/v1/chat/completions", version, false),
        ("/v1/responses", "", false),
    ] {
        let check = |reply: Reply, status: u16, kind: &str| {
            let value = reply.json();
            assert_eq!(reply.status, status, "{path}: {value}");
            assert_eq!(value["type"] == "error", is_anthropic, "{path}: {value}");
            assert!(value["error"]["message"].is_string(), "{path}: {value}");
            if is_anthropic {
                assert_eq!(value["error"]["type"], kind);
            }
        };
        check(server.post_text(path, headers, "{"), 400, "invalid_request_error");
        check(server.post_text(path, headers, &large), 413, "request_too_large");
        check(server.send(&mime.replace("PATH", path), "{}"), 415, "invalid_request_error");
        let reply = server.send(&format!("GET {path} HTTP/1.1{headers}"), "");
        assert!(reply.head.contains("allow: POST"), "{}", reply.head);
        check(reply, 405, "invalid_request_error");
    }
    for (path, headers, is_anthropic) in [
        ("/v1/messages/batches", "", true),
        ("/v1/files", version, true),
        ("/v1/files", "", false),
        ("/nothing", "", false),
    ] {
        let reply = server.send(&format!("GET {path} HTTP/1.1{headers}"), "");
        let value = reply.json();
        assert_eq!((reply.status, value["type"] == "error"), (404, is_anthropic), "{value}");
    }
    let reply = server.get("/api/no/such/path");
    assert_eq!(reply.status, 404);
    assert!(reply.json()["error"].is_string(), "{}", reply.body);
}

#[test]
fn a_body_that_does_not_come_is_an_error_in_the_form_of_the_client() {
    let body_timeout = Duration::from_millis(100);
    let server = start(ServerOptions { body_timeout, ..options() });
    let head = "POST /v1/messages HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9";
    let reply = server.send(head, "{");
    assert_eq!((reply.status, &reply.json()["type"]), (408, &json!("error")));
}

/// A body takes room when a part of it has come. This one is read, and is then longer than the context.
#[test]
fn bodies_that_do_not_come_hold_up_no_other() {
    use std::io::Write;
    let server = start(options());
    let open = |length: &str| {
        let mut stream = std::net::TcpStream::connect(server.addr).unwrap();
        let head = "POST /apply-template HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
        write!(stream, "{head}{length}\r\n\r\n1").unwrap();
        stream
    };
    let lengths = ["content-length: 16777216", "transfer-encoding: chunked"];
    let _slow: Vec<_> = (0..40).map(|i| open(lengths[i % 2])).collect();
    let started = std::time::Instant::now();
    let large = "word ".repeat(80_000);
    let asked = json!({"messages": [{"role": "user", "content": large}]});
    let reply = server.post("/apply-template", &asked);
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded", "{}", reply.body);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn half_surrogates_become_replacement_characters_everywhere() {
    let server = start(options());
    let chat = "/v1/chat/completions";
    let echo = |text: &str| {
        let asked = format!(r#"{{"messages": [{{"role": "user", "content": "{text}"}}]}}"#);
        let reply = server.post_text("/apply-template", "", &asked);
        assert_eq!(reply.status, 200, "{text}: {}", reply.body);
        reply.json()["prompt"].as_str().unwrap().to_owned()
    };
    assert!(echo(r"x\ud83d y").contains("x\u{fffd} y"));
    assert!(echo(r"x\ude00\ud83d").contains("x\u{fffd}\u{fffd}"));
    assert!(echo(r"\ud83d\ude00 \\ud83d \udc00").contains("\u{1f600} \\ud83d \u{fffd}"));
    for path in [chat, "/v1/messages", "/apply-template"] {
        let reply = server.post_text(path, "", &body(r"cut \ud83d"));
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    }
    let asked = r#"{"model": "demo", "input": "cut \ud83d", "max_output_tokens": 2}"#;
    assert_eq!(server.post_text("/v1/responses", "", asked).status, 200);
    let asked = r#"{"model": "demo", "prompt": "cut \ud83d", "max_tokens": 2}"#;
    assert_eq!(server.post_text("/v1/completions", "", asked).status, 200);
    let tokens = server.post_text("/tokenize", "", r#"{"content": "\ud83d"}"#).json();
    assert_eq!(server.post("/detokenize", &tokens).json()["content"], "\u{fffd}");
    // What is no JSON for another reason is refused as before.
    for wrong in [r#"{"content": "\ud83d"#, r#"{"content": "\ud83d" x}"#, r#"{"content": "\ud8"}"#]
    {
        let reply = server.post_text("/tokenize", "", wrong);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("body")));
    }
}

#[test]
fn pages_of_allowed_origins_may_send_the_headers_of_sdks() {
    let origins = ["app://", "tauri://localhost", "null", "http://127.0.0.1:3111"];
    let cors_origins = origins.iter().map(|origin| origin.parse().unwrap()).collect();
    let api_keys = vec![String::from("a-long-enough-key")];
    let server = start(ServerOptions { cors_origins, api_keys, ..options() });
    let asked = "authorization,anthropic-version,x-stainless-lang,x-stainless-retry-count";
    let preflight = |origin: &str| {
        let head = format!(
            "OPTIONS /v1/messages HTTP/1.1\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: {asked}\r\n\
             Access-Control-Request-Private-Network: true"
        );
        server.send(&head, "")
    };
    for origin in ["app://obsidian.md", "tauri://localhost", "null", "http://127.0.0.1:3111"] {
        let reply = preflight(origin);
        assert_eq!(reply.status, 200, "{origin}");
        for line in [
            format!("access-control-allow-origin: {origin}"),
            format!("access-control-allow-headers: {asked}"),
            String::from("access-control-allow-methods: POST"),
            String::from("access-control-allow-private-network: true"),
        ] {
            assert!(reply.head.contains(&line), "{line}: {}", reply.head);
        }
        // The page can read errors, too.
        let headers = format!("\r\nOrigin: {origin}");
        for (key, status) in [("", 401), ("\r\nauthorization: bearer  a-long-enough-key", 200)] {
            let reply = server.post_text("/v1/messages", &format!("{headers}{key}"), &body("Hi"));
            assert_eq!(reply.status, status, "{origin}: {}", reply.body);
            let allows = format!("access-control-allow-origin: {origin}");
            assert!(reply.head.contains(&allows), "{}", reply.head);
            assert!(reply.head.contains("access-control-expose-headers: *"), "{}", reply.head);
        }
    }
    for origin in ["http://evil.example", "tauri://other", "http://127.0.0.1:3112", "file://"] {
        let reply = preflight(origin);
        assert_eq!(reply.status, 403, "{origin}");
        assert!(!reply.head.contains("access-control-allow"), "{}", reply.head);
    }
    let any = start(ServerOptions { cors_origins: vec!["*".parse().unwrap()], ..options() });
    let reply = any.send("GET /v1/models HTTP/1.1\r\nOrigin: http://a.example", "");
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("access-control-allow-origin: *"), "{}", reply.head);
}

#[test]
fn names_of_this_machine_and_pages_behind_a_proxy_are_the_servers_own() {
    let server = start(options());
    let get = |server: &Running, host: &str, more: &str| {
        server.send_to(host, &format!("GET /v1/models HTTP/1.1{more}"), "").status
    };
    for host in ["localhost:9999", "localhost.", "a.localhost:1", "[::ffff:127.0.0.1]:9999"] {
        assert_eq!(get(&server, host, ""), 200, "{host}");
        assert_eq!(get(&server, host, &format!("\r\nOrigin: http://{host}")), 200, "{host}");
    }
    assert_eq!(get(&server, "localhost:9999", "\r\nOrigin: http://localhost:3000"), 403);
    let rebinding = "\r\nOrigin: http://evil.example\r\nX-Forwarded-Host: localhost";
    assert_eq!(get(&server, "evil.example", rebinding), 403);

    let api_keys = vec![String::from("a-long-enough-key")];
    let server = start(ServerOptions { api_keys, ..options() });
    let key = "\r\nAuthorization: Bearer a-long-enough-key";
    let page = format!("{key}\r\nOrigin: https://llm.example");
    assert_eq!(get(&server, "llm.example", &page), 200);
    let forwarded = format!("{page}\r\nForwarded: for=10.0.0.1;host=llm.example;proto=https");
    assert_eq!(get(&server, "127.0.0.1:8080", &forwarded), 200);
    assert_eq!(get(&server, "127.0.0.1:8080", &page), 403);
    let foreign = format!("{key}\r\nOrigin: https://evil.example");
    assert_eq!(get(&server, "llm.example", &foreign), 403);
}

#[test]
fn silent_connections_make_room_for_others() {
    let max_connections = 64;
    let server = start(ServerOptions { max_connections, ..options() });
    let half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-A";
    let part = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\
                 Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    for sent in [&b""[..], half, part] {
        let silent: Vec<TcpStream> = (0..200)
            .map(|_| {
                let mut stream = TcpStream::connect(server.addr).unwrap();
                // The server may have closed it already.
                let _ = stream.write_all(sent);
                stream
            })
            .collect();
        let begun = Instant::now();
        for _ in 0..5 {
            assert_eq!(server.post("/v1/chat/completions", &question("Hi")).status, 200);
        }
        // Well below the time that a client has for a header.
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        drop(silent);
    }
}

#[test]
fn kept_connections_make_room_and_answers_do_not() {
    let server = start(ServerOptions { max_connections: 4, ..options() });
    let ask = |stream: &mut TcpStream, request: &str| {
        write!(stream, "{request}\r\nHost: localhost\r\n\r\n").unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
    };
    let mut kept = TcpStream::connect(server.addr).unwrap();
    ask(&mut kept, "GET /health HTTP/1.1");
    let asked = json!({
        "model": "demo", "stream": true, "max_tokens": 1000, "temperature": 2,
        "logit_bias": {"8187": -100, "8185": -100},
        "messages": [{"role": "user", "content": "Hi"}],
    })
    .to_string();
    let mut answering = TcpStream::connect(server.addr).unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: application/json";
    write!(answering, "{head}\r\nContent-Length: {}\r\n\r\n{asked}", asked.len()).unwrap();
    answering.read_exact(&mut [0; 100]).unwrap();
    // More than there is room for.
    let others: Vec<TcpStream> = (0..6)
        .map(|_| {
            let mut stream = TcpStream::connect(server.addr).unwrap();
            ask(&mut stream, "GET /health HTTP/1.1");
            stream
        })
        .collect();
    kept.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut drained = [0; 4096];
    while kept.read(&mut drained).unwrap() > 0 {}
    // The answer goes on.
    let mut text = String::new();
    let is_done = |text: &str| text.contains("data: [DONE]");
    while !is_done(&text) {
        let n = answering.read(&mut drained).unwrap();
        assert!(n > 0, "the answer was cut off");
        text.push_str(&String::from_utf8_lossy(&drained[..n]));
    }
    drop(others);
}

#[test]
fn a_described_route_takes_its_method_and_no_other() {
    let server = start(options());
    let described = server.get("/openapi.json").json();
    for (path, methods) in described["paths"].as_object().unwrap() {
        let methods: Vec<&String> = methods.as_object().unwrap().keys().collect();
        let asked = json!({"input": "Hi", "max_output_tokens": 1});
        let kept = server.post("/v1/responses", &asked).json()["id"].as_str().unwrap().to_owned();
        let path = path.replace("{model}", "demo").replace("{id}", &kept);
        for method in ["GET", "POST", "DELETE"] {
            let head = format!(
                "{method} {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2"
            );
            let status = server.send(&head, "[]").status;
            let is_taken = methods.contains(&&method.to_lowercase());
            assert_eq!(status != 405, is_taken, "{method} {path}");
            assert_ne!(status, 404, "{method} {path}");
        }
    }
}
