//! Keys with names: their limits, their turns, and their figures.

use std::sync::Mutex;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use moeflux_server::{KeyFile, KeyLimits, ServerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Reply, Running, options, question, start};
use crate::with;

struct Team {
    server: Running,
    keys: Vec<String>,
    _dir: TempDir,
}

impl Team {
    fn new(members: &[(&str, KeyLimits)], options: ServerOptions) -> Team {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.json");
        let mut file = KeyFile::default();
        let keys = members.iter().map(|(name, limits)| file.add(name, *limits).unwrap()).collect();
        file.write(&path).unwrap();
        let server = start(ServerOptions { keys_file: Some(path), ..options });
        Team { server, keys, _dir: dir }
    }

    fn post(&self, member: usize, path: &str, body: &Value) -> Reply {
        let (body, key) = (body.to_string(), &self.keys[member]);
        let head = format!(
            "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Authorization: Bearer {key}",
            body.len()
        );
        self.server.send(&head, &body)
    }

    fn get(&self, path: &str) -> Reply {
        self.server.send(&format!("GET {path} HTTP/1.1\r\nx-api-key: {}", self.keys[0]), "")
    }

    /// Waits until `/status` says so.
    fn wait_for(&self, is_so: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        while !is_so(&self.get("/status").json()["now"]) {
            assert!(began.elapsed() < Duration::from_secs(60), "{}", self.get("/status").body);
            sleep(Duration::from_millis(5));
        }
    }
}

const NONE: KeyLimits =
    KeyLimits { requests_per_minute: None, tokens_per_minute: None, sessions: None };

const CHAT: &str = "/v1/chat/completions";

/// A question whose answer has this many tokens.
fn long(n_tokens: usize) -> Value {
    let fields = json!({
        "max_tokens": n_tokens, "temperature": 2, "logit_bias": {"8187": -100, "8185": -100},
    });
    with(question("Hi"), fields)
}

#[test]
fn one_question_is_not_the_last_behind_another_keys_twelve() {
    let one = ServerOptions { n_sessions: 1, ..options() };
    let team = Team::new(&[("anna", NONE), ("ben", NONE)], one);
    let ended = Mutex::new(Vec::new());
    let ask = |member: usize| {
        let reply = team.post(member, CHAT, &long(300));
        assert_eq!(reply.status, 200, "{}", reply.body);
        ended.lock().unwrap().push(member);
    };
    scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| ask(0));
        }
        team.wait_for(|now| now["waiting"].as_u64() >= Some(10));
        scope.spawn(|| ask(1));
    });
    let ended = ended.into_inner().unwrap();
    let place = ended.iter().position(|member| *member == 1).unwrap();
    // Answers that had ended or begun before it came are first.
    assert!(place <= 4, "{ended:?}");
}

#[test]
fn a_key_leaves_room_in_the_queue() {
    let small = ServerOptions { n_sessions: 1, max_waiting: 8, ..options() };
    let team = Team::new(&[("anna", NONE), ("ben", NONE)], small);
    scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| team.post(0, CHAT, &long(400)));
        }
        team.wait_for(|now| now["waiting"].as_u64() >= Some(4));
        assert_eq!(team.post(0, CHAT, &long(1)).status, 429);
        assert_eq!(team.post(1, CHAT, &long(1)).status, 200);
    });
}

#[test]
fn a_key_has_as_many_answers_at_once_as_its_limit() {
    let two = KeyLimits { sessions: Some(2), ..NONE };
    let team = Team::new(&[("anna", two), ("ben", NONE)], options());
    scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(team.post(0, CHAT, &long(2000)).status, 200));
        }
        team.wait_for(|now| now["running"] == 2);
        let refused = team.post(0, CHAT, &long(1));
        assert_eq!(
            (refused.status, &refused.json()["error"]["code"]),
            (429, &json!("rate_limit_exceeded"))
        );
        assert!(refused.body.contains("2 answers at once"), "{}", refused.body);
        assert!(refused.head.contains("retry-after: 2"), "{}", refused.head);
        assert!(team.get("/metrics").body.contains("moeflux_key_open{key=\"anna\"} 2"));
        assert_eq!(team.post(1, CHAT, &long(1)).status, 200);
    });
    // They count no more when they have ended.
    assert_eq!(team.post(0, CHAT, &with(long(1), json!({"n": 2}))).status, 200);
    let refused = team.post(0, CHAT, &with(long(1), json!({"n": 3})));
    assert_eq!(refused.status, 429);
    let line = "moeflux_key_limited_total{key=\"anna\",limit=\"sessions\"} 2";
    let metrics = team.get("/metrics").body;
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

#[test]
fn tokens_of_prompts_and_answers_are_counted_by_the_minute() {
    let few = KeyLimits { tokens_per_minute: Some(60), ..NONE };
    let team = Team::new(&[("anna", few)], options());
    let first = team.post(0, CHAT, &long(120));
    assert_eq!(first.status, 200);
    assert!(first.head.contains("x-ratelimit-limit-tokens: 60"), "{}", first.head);
    let mut asked = long(1);
    asked["messages"][0]["content"] = json!("Another question, which nothing has evaluated before");
    let limit = "anthropic-ratelimit-tokens-limit: 60";
    for (path, header) in [(CHAT, "x-ratelimit-remaining-tokens: 0"), ("/v1/messages", limit)] {
        let refused = team.post(0, path, &asked);
        assert_eq!(refused.status, 429, "{}", refused.body);
        assert!(refused.body.contains("60 tokens a minute"), "{}", refused.body);
        assert!(refused.head.contains(header), "{}", refused.head);
    }
    // What makes no answer is not limited.
    assert_eq!(team.post(0, "/tokenize", &json!({"content": "x"})).status, 200);
    assert_eq!(team.post(0, "/v1/messages/count_tokens", &long(1)).status, 200);
}

#[test]
fn requests_are_counted_by_model_api_and_key() {
    let team = Team::new(&[("anna", NONE), ("ben", NONE)], options());
    let usage = team.post(0, CHAT, &question("Hi")).json()["usage"].clone();
    team.post(1, "/v1/messages", &question("Hi"));
    team.post(1, "/v1/messages", &with(question("Hi"), json!({"temperature": 9})));
    team.server.post(CHAT, &question("Hi"));
    let began = Instant::now();
    let lines = [
        String::from(
            "key_requests_total{model=\"demo\",api=\"openai\",key=\"anna\",status=\"2xx\"} 1",
        ),
        String::from(
            "key_requests_total{model=\"demo\",api=\"anthropic\",key=\"ben\",status=\"4xx\"} 1",
        ),
        String::from("key_requests_total{model=\"demo\",api=\"openai\",key=\"\",status=\"4xx\"} 1"),
        format!(
            "key_prompt_tokens_total{{model=\"demo\",api=\"openai\",key=\"anna\"}} {}",
            usage["prompt_tokens"]
        ),
        format!(
            "key_generated_tokens_total{{model=\"demo\",api=\"openai\",key=\"anna\"}} {}",
            usage["completion_tokens"]
        ),
        String::from("request_seconds_count{model=\"demo\",api=\"anthropic\"} 1"),
        String::from("key_open{key=\"anna\"} 0"),
        String::from("key_limited_total{key=\"ben\",limit=\"tokens\"} 0"),
    ];
    loop {
        let metrics = team.get("/metrics").body;
        let is_there =
            |line: &&String| metrics.lines().any(|found| found == format!("moeflux_{line}"));
        let missing = lines.iter().find(|line| !is_there(line));
        let Some(missing) = missing else { return };
        assert!(began.elapsed() < Duration::from_secs(10), "{missing} is not in {metrics}");
        sleep(Duration::from_millis(20));
    }
}
