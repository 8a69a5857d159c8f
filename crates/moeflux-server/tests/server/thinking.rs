//! How much a model thinks: limits in all their names, and what replies count.

use serde_json::{Value, json};

use crate::common::{Running, options, question, start_at};
use crate::thinker::thinker;
use crate::with;

const QUESTION: &str = "What does `Vec::push` do?";

/// What an answer consists of.
#[derive(Debug, PartialEq)]
struct Said {
    thought: String,
    text: String,
    n_thought: u64,
    n_made: u64,
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Parts of a list of one type, put together.
fn joined(list: &Value, kind: &str, field: &str) -> String {
    let parts = list.as_array().unwrap().iter().filter(|part| part["type"] == kind);
    parts.map(|part| text_of(&part[field])).collect()
}

fn chat(server: &Running, fields: Value) -> Said {
    let reply = server.post("/v1/chat/completions", &with(question(QUESTION), fields)).json();
    let (message, usage) = (&reply["choices"][0]["message"], &reply["usage"]);
    Said {
        thought: text_of(&message["reasoning_content"]),
        text: text_of(&message["content"]),
        n_thought: usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap(),
        n_made: usage["completion_tokens"].as_u64().unwrap(),
    }
}

fn messages(server: &Running, fields: Value) -> Said {
    let reply = server.post("/v1/messages", &with(question(QUESTION), fields)).json();
    Said {
        thought: joined(&reply["content"], "thinking", "thinking"),
        text: joined(&reply["content"], "text", "text"),
        n_thought: reply["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap(),
        n_made: reply["usage"]["output_tokens"].as_u64().unwrap(),
    }
}

fn response(server: &Running, fields: Value) -> Said {
    let asked = json!({"input": QUESTION, "temperature": 0, "max_output_tokens": 40});
    let reply = server.post("/v1/responses", &with(asked, fields)).json();
    let items = reply["output"].as_array().unwrap();
    let of = |kind: &str, field: &str, part: &str| -> String {
        let items = items.iter().filter(|item| item["type"] == kind);
        items.map(|item| joined(&item[field], part, "text")).collect()
    };
    let thought = of("reasoning", "content", "reasoning_text");
    Said {
        thought: thought + &of("reasoning", "summary", "summary_text"),
        text: of("message", "content", "output_text"),
        n_thought: reply["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap(),
        n_made: reply["usage"]["output_tokens"].as_u64().unwrap(),
    }
}

#[test]
fn thoughts_are_limited_by_any_name() {
    let model = thinker("limited");
    let server = start_at(&model.0, options());
    let flat =
        ["thinking_budget", "reasoning_budget", "thinking_token_budget", "thinking_budget_tokens"];
    let flat = |n: i64| flat.map(|name| json!({ name: n }));
    let thinking = |n: i64| json!({"thinking": {"type": "enabled", "budget_tokens": n}});
    let reasoning = |n: i64| json!({"reasoning": {"max_tokens": n}});
    let want = chat(&server, json!({"thinking_budget": 5}));
    assert_eq!(want.n_thought, 5);
    assert!(!want.thought.is_empty() && !want.text.is_empty(), "{want:?}");
    for fields in flat(5).into_iter().chain([thinking(5)]) {
        assert_eq!(chat(&server, fields.clone()), want, "{fields}");
        assert_eq!(messages(&server, fields.clone()), want, "{fields}");
    }
    for fields in flat(5).into_iter().chain([reasoning(5)]) {
        assert_eq!(response(&server, fields.clone()), want, "{fields}");
        assert_eq!(chat(&server, fields.clone()), want, "{fields}");
    }
    for fields in flat(0).into_iter().chain([thinking(0), reasoning(0)]) {
        let said = chat(&server, fields.clone());
        assert_eq!((said.thought.as_str(), said.n_thought), ("", 0), "{fields}");
        assert_eq!(said, chat(&server, json!({"reasoning_effort": "none"})), "{fields}");
    }
    // Without a limit of their own thoughts leave some tokens to the answer.
    let free = chat(&server, json!({}));
    assert!(free.n_thought > 20 && free.n_thought < 30 && !free.text.is_empty(), "{free:?}");
    for fields in flat(-1).into_iter().chain([thinking(-1), reasoning(-1)]) {
        assert_eq!(chat(&server, fields.clone()), free, "{fields}");
    }
    for (name, value) in [("thinking_budget", json!(-2)), ("reasoning_budget", json!("x"))] {
        let asked = with(question(QUESTION), json!({ name: value }));
        let refused = server.post("/v1/chat/completions", &asked);
        assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some(name)));
    }
}

/// Thoughts leave room for what ends them and for an answer, however few tokens there are.
#[test]
fn a_short_limit_leaves_an_answer() {
    let model = thinker("short");
    let server = start_at(&model.0, options());
    for n in (1..24).chain([32, 48]) {
        for said in [
            chat(&server, json!({"max_tokens": n})),
            messages(&server, json!({"max_tokens": n})),
            response(&server, json!({"max_output_tokens": n})),
            chat(&server, json!({"max_tokens": n, "reasoning_effort": "high"})),
            chat(&server, json!({"max_tokens": n, "thinking_budget": n})),
        ] {
            assert!(!said.text.trim().is_empty() && said.n_made <= n, "{n} {said:?}");
            assert_eq!(said.n_thought > 0, n >= 16, "{n} {said:?}");
        }
    }
}

#[test]
fn the_servers_limit_holds_where_requests_have_none() {
    let model = thinker("default");
    let within = |n| moeflux_server::ServerOptions { thinking_budget: Some(n), ..options() };
    let server = start_at(&model.0, within(4));
    for said in [chat(&server, json!({})), messages(&server, json!({}))] {
        assert_eq!(said.n_thought, 4, "{said:?}");
    }
    assert_eq!(chat(&server, json!({"thinking_budget": 7})).n_thought, 7);
    assert!(chat(&server, json!({"thinking_budget": -1})).n_thought > 10);
    let ollama = json!({"model": "demo", "stream": false, "options": {"temperature": 0},
        "messages": [{"role": "user", "content": QUESTION}]});
    let reply = server.post("/api/chat", &ollama).json();
    let limited = chat(&server, json!({"max_tokens": 1000}));
    assert_eq!(reply["message"]["thinking"], *limited.thought);
    drop(server);
    let server = start_at(&model.0, within(0));
    assert_eq!(chat(&server, json!({})).n_thought, 0);
    assert!(chat(&server, json!({"reasoning_effort": "high"})).n_thought > 10);
}

#[test]
fn a_summary_of_thoughts_is_their_text() {
    let model = thinker("summary");
    let server = start_at(&model.0, options());
    let plain = response(&server, json!({"thinking_budget": 6}));
    let fields = json!({"thinking_budget": 6, "reasoning": {"summary": "auto"}});
    assert_eq!(response(&server, fields.clone()), plain);
    let asked = json!({"input": QUESTION, "temperature": 0, "max_output_tokens": 40});
    let asked = with(asked, fields);
    let item = &server.post("/v1/responses", &asked).json()["output"][0];
    assert_eq!(
        (&item["content"], item["summary"][0]["text"].as_str()),
        (&json!([]), Some(&*plain.thought))
    );
    let body = server.post("/v1/responses", &with(asked, json!({"stream": true}))).body;
    let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let of = |kind: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["type"] == format!("response.{kind}")).collect()
    };
    let deltas = of("reasoning_summary_text.delta");
    let text: String = deltas.iter().map(|event| text_of(&event["delta"])).collect();
    assert_eq!(text, plain.thought);
    assert!(deltas.iter().all(|event| event["summary_index"] == 0));
    for kind in ["reasoning_summary_part.added", "reasoning_summary_part.done"] {
        assert_eq!(of(kind).len(), 1, "{kind}");
    }
    assert_eq!(of("reasoning_summary_text.done")[0]["text"], *plain.thought);
    assert!(of("reasoning_text.delta").is_empty());
}
