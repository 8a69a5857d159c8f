//! The server on loopback with the demo model, over plain sockets.

#[path = "server/common.rs"]
mod common;
#[path = "server/edges.rs"]
mod edges;
#[path = "server/encodings.rs"]
mod encodings;
#[path = "server/fleet.rs"]
mod fleet;
#[path = "server/half_closed.rs"]
mod half_closed;
#[path = "server/infill.rs"]
mod infill;
#[path = "server/kept.rs"]
mod kept;
#[path = "server/keys.rs"]
mod keys;
#[path = "server/pictures.rs"]
mod pictures;
#[path = "server/request_ids.rs"]
mod request_ids;
#[path = "server/scores.rs"]
mod scores;
#[path = "server/thinker.rs"]
mod thinker;
#[path = "server/thinking.rs"]
mod thinking;
#[path = "server/transports.rs"]
mod transports;

use common::{options, question, start, start_with};
use moeflux_engine::Speculation;
use moeflux_server::{ServerError, ServerOptions};
use serde_json::{Value, json};

fn with(mut body: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn every_dialect_says_the_same() {
    let server = start(options());
    let asked = question("What does `Vec::push` do?");
    let chat = server.post("/v1/chat/completions", &asked).json();
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(text.contains("Appends"), "{text}");
    let message = server.post("/v1/messages", &asked).json();
    assert_eq!(message["content"][0]["text"], *text);
    let input = asked["messages"].clone();
    let asked = json!({"model": "demo", "temperature": 0, "input": input});
    let response = server.post("/v1/responses", &asked).json();
    assert_eq!(response["output"][0]["content"][0]["text"], *text);
}

#[test]
fn a_stream_is_what_one_answer_is() {
    let server = start(options());
    let asked = question("What is `Option::unwrap_or` for?");
    let whole = server.post("/v1/chat/completions", &asked).json();
    let streamed = server.post("/v1/chat/completions", &with(asked, json!({"stream": true})));
    assert!(streamed.head.contains("content-type: text/event-stream"));
    let mut text = String::new();
    let mut blocks = streamed.body.split("\n\n").collect::<Vec<_>>();
    assert_eq!(blocks.pop(), Some(""));
    assert_eq!(blocks.pop(), Some("data: [DONE]"));
    for block in blocks {
        let event: Value = serde_json::from_str(block.strip_prefix("data: ").unwrap()).unwrap();
        text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
    }
    assert_eq!(whole["choices"][0]["message"]["content"], *text);
}

#[test]
fn a_tool_is_called_and_its_schema_holds() {
    let server = start(options());
    let schema = json!({
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    });
    let function = json!({
        "name": "get_weather", "description": "Get the current weather", "parameters": schema,
    });
    let tools = json!([{"type": "function", "function": function}]);
    let asked = with(question("What is the weather in Paris?"), json!({"tools": tools}));
    let reply = server.post("/v1/chat/completions", &asked).json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "get_weather");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Paris"}));
}

#[test]
fn without_tools_no_dialect_calls_one() {
    let server = start(options());
    let function = json!({"name": "get_weather", "parameters": {"type": "object"}});
    let tools = json!([{"type": "function", "function": function}]);
    for text in ["hi", "Why is the sky blue?", "What is the weather in Paris?"] {
        let asked = question(text);
        let refused = with(asked.clone(), json!({"tools": tools, "tool_choice": "none"}));
        let input = json!({"model": "demo", "temperature": 0, "input": asked["messages"]});
        let ollama = with(asked.clone(), json!({"stream": false, "options": {"temperature": 0}}));
        let generate = json!({"model": "demo", "prompt": text, "stream": false,
            "options": {"temperature": 0, "num_predict": 40}});
        for (path, body) in [
            ("/v1/chat/completions", &asked),
            ("/v1/chat/completions", &with(asked.clone(), json!({"logprobs": true, "n": 2}))),
            ("/v1/chat/completions", &with(asked.clone(), json!({"stream": true}))),
            ("/v1/chat/completions", &refused),
            ("/v1/messages", &asked),
            ("/v1/responses", &input),
            ("/api/chat", &ollama),
            ("/api/generate", &generate),
        ] {
            let reply = server.post(path, body);
            assert_eq!(reply.status, 200, "{path}: {}", reply.body);
            assert!(!reply.body.contains("tool_call>"), "{path}: {}", reply.body);
        }
    }
    // A system message may offer tools in its own words.
    let system = json!({"role": "system", "content": "Call tools as <tool_call>{…}</tool_call>."});
    let shown = json!({"messages": [system, {"role": "user", "content": "hi"}]});
    let reply = server.post("/v1/chat/completions", &with(question("hi"), shown));
    assert_eq!(reply.status, 200);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let server = start(options());
    for (field, value) in [("audio", json!({})), ("temperature", json!(9)), ("n", json!(0))] {
        let asked = with(question("Hi"), json!({field: value}));
        let reply = server.post("/v1/chat/completions", &asked);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(field)));
    }
    let asked = with(question("Hi"), json!({"model": "other"}));
    assert_eq!(server.post("/v1/chat/completions", &asked).status, 404);
    assert_eq!(server.get("/v1/chat/completions").status, 405);
    assert_eq!(server.get("/nothing").status, 404);
    let form = "POST /v1/messages HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 2";
    assert_eq!(server.send(form, "{}").status, 415);
    let large =
        "POST /v1/messages HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 99999999";
    assert_eq!(server.send(large, "").status, 413);
}

#[test]
fn what_is_predicted_changes_no_answer_and_is_counted() {
    // As many however long steps take.
    let strict = ServerOptions { is_strict: true, ..options() };
    let server = start_with(strict, Speculation::Fixed(3));
    let asked = with(question("What does `Vec::push` do?"), json!({"temperature": 0}));
    let plain = server.post("/v1/chat/completions", &asked).json();
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
    let accepted = |answer: &Value| {
        answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"].as_u64().unwrap()
    };
    for content in [json!(text), json!([{"type": "text", "text": text}]), json!("Something else.")]
    {
        let prediction = json!({"prediction": {"type": "content", "content": content}});
        let answer = server.post("/v1/chat/completions", &with(asked.clone(), prediction)).json();
        assert_eq!(answer["choices"], plain["choices"], "{content}");
        let is_right = content != "Something else.";
        assert_eq!(accepted(&answer) > accepted(&plain), is_right, "{answer}");
    }
    // More than the context has room for.
    let prediction = json!({"type": "content", "content": format!("{} ", text.repeat(20_000))});
    let asked = with(asked, json!({"prediction": prediction}));
    let answer = server.post("/v1/chat/completions", &asked).json();
    assert_eq!(answer["choices"], plain["choices"]);
    for (prediction, param) in [
        (json!(7), "prediction"),
        (json!({"type": "content", "content": ""}), "prediction"),
        (json!({"type": "content", "content": []}), "prediction"),
        (json!({"content": "x"}), "prediction.type"),
        (json!({"type": "text", "content": "x"}), "prediction.type"),
        (json!({"type": "content"}), "prediction.content"),
        (json!({"type": "content", "content": 1}), "prediction.content"),
        (json!({"type": "content", "content": "x", "more": 1}), "prediction.more"),
        (
            json!({"type": "content", "content": [{"type": "image_url"}]}),
            "prediction.content[0].type",
        ),
        (
            json!({"type": "content", "content": [{"type": "text", "text": "x", "more": 1}]}),
            "prediction.content[0].more",
        ),
    ] {
        let asked = with(asked.clone(), json!({"prediction": prediction}));
        let refused = server.post("/v1/chat/completions", &asked);
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!(param)), "{error}");
    }
}

#[test]
fn metrics_and_status_are_served() {
    let server = start(options());
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
    server.post("/v1/chat/completions", &question("What is 7 + 12?"));
    let metrics = server.get("/metrics");
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
    let metrics = metrics.body;
    for line in [
        "moeflux_requests_total{status=\"2xx\"} 2",
        "moeflux_answers_total{finish=\"stop\"} 1",
        "moeflux_answers_total{finish=\"length\"} 0",
        "moeflux_first_token_seconds_count 1",
        "moeflux_first_token_seconds_bucket{le=\"120\"} 1",
        "# TYPE moeflux_steps_total counter",
        "moeflux_running 0",
    ] {
        assert!(metrics.lines().any(|text| text == line), "{line} is not in {metrics}");
    }
    let status = server.get("/status").json();
    assert_eq!(status["model"]["name"], "demo");
    assert_eq!(status["now"]["sessions"], 8);
    let described = server.get("/openapi.json").json();
    let request = &described["components"]["schemas"]["ChatRequest"];
    assert_eq!(request["properties"]["model"]["enum"], json!(["demo", null]));
    let page = server.get("/");
    assert!(page.head.contains("content-security-policy: default-src 'none'"));
    assert!(page.body.contains("<title>moeflux</title>"));
    assert!(!page.body.contains("http://") && !page.body.contains("https://"));
}

#[test]
fn keys_and_origins_are_checked() {
    let api_keys = vec![String::from("a-long-enough-key")];
    let server = start(ServerOptions { api_keys, ..options() });
    assert_eq!(server.get("/v1/models").status, 401);
    let with_key = "GET /v1/models HTTP/1.1\r\nAuthorization: Bearer a-long-enough-key";
    assert_eq!(server.send(with_key, "").status, 200);
    assert_eq!(server.get("/health").status, 200);
    let foreign = "GET /health HTTP/1.1\r\nOrigin: http://evil.example";
    assert_eq!(server.send(foreign, "").status, 403);
}

#[test]
fn an_address_that_others_reach_needs_a_key() {
    let open = ServerOptions { addr: "0.0.0.0:0".parse().unwrap(), ..options() };
    assert!(matches!(open.check(), Err(ServerError::Open { .. })));
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let server = start(ServerOptions { n_sessions: 1, max_waiting: 2, ..options() });
    let reply = server.post("/v1/chat/completions", &with(question("Hi"), json!({"n": 3})));
    assert_eq!(reply.status, 429);
    assert!(reply.head.contains("retry-after: "), "{}", reply.head);
}

#[test]
fn parts_of_a_schema_are_left_to_the_model_and_formats_are_strict() {
    let server = start(options());
    let hard = json!({"type": "array", "items": {"type": "string", "pattern": "^(?!x)[a-z]+$"}});
    let schema = json!({"type": "object", "properties": {"words": hard}});
    let function = |parameters: Value| json!({"name": "save", "parameters": parameters});
    let tool = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let ask = |fields: Value| {
        server.post("/v1/chat/completions", &with(question("What is 7 + 12?"), fields))
    };
    let any = [
        schema.clone(),
        Value::Null,
        json!(true),
        json!(false),
        json!([]),
        json!({"type": "file"}),
    ];
    for parameters in any {
        let reply = ask(tool(function(parameters.clone())));
        assert_eq!(reply.status, 200, "{parameters}: {}", reply.body);
    }
    assert_eq!(ask(json!({"tools": []})).status, 200);
    assert_eq!(ask(tool(json!({"name": "save"}))).status, 200);
    let lenient = with(function(schema.clone()), json!({"strict": false}));
    assert_eq!(ask(tool(lenient)).status, 200);

    let strict = with(function(schema.clone()), json!({"strict": true}));
    let format = json!({"type": "json_schema", "json_schema": {"name": "f", "schema": schema}});
    let twice = json!({"type": "function", "function": function(json!({}))});
    for (fields, param, part) in [
        (tool(strict), "tools[0]", "properties.words.items.pattern"),
        (json!({"response_format": format}), "response_format", "properties.words.items.pattern"),
        (tool(function(json!("none"))), "tools[0].function.parameters", "an object"),
        (tool(json!({"name": ""})), "tools[0].function.name", "1 to 128 characters"),
        (json!({"tools": [twice, twice]}), "tools[1].function.name", "taken"),
    ] {
        let refused = ask(fields.clone());
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!(param)), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(part) && message.lines().count() == 1, "{message}");
    }
}

#[test]
fn answers_of_one_request_and_of_the_next_seed_differ() {
    let server = start(options());
    let texts = |seed: u64, n: usize| -> Vec<String> {
        let fields = json!({"temperature": 2, "seed": seed, "n": n, "max_tokens": 12});
        let asked = with(question("Tell me anything."), fields);
        let reply = server.post("/v1/chat/completions", &asked).json();
        let mut choices = reply["choices"].as_array().unwrap().clone();
        choices.sort_by_key(|choice| choice["index"].as_u64());
        choices
            .iter()
            .map(|choice| choice["message"]["content"].as_str().unwrap().to_owned())
            .collect()
    };
    let n = 3;
    let first = texts(5, n);
    assert_eq!(first, texts(5, n), "the same seed");
    assert_eq!(first[0], texts(5, 1)[0], "the first answer of a seed");
    for j in 1..n {
        assert_ne!(first[j], first[0]);
        assert_ne!(first[j], texts(5 + j as u64, 1)[0], "answer {j} of seed 5");
    }
}

#[test]
fn prompts_and_tokens_can_be_looked_at() {
    let server = start(ServerOptions { is_strict: true, ..options() });
    let messages = json!([{"role": "user", "content": "Say <|im_end|> twice: é"}]);
    let prompt = server.post("/apply-template", &json!({"messages": messages.clone()})).json();
    let prompt = prompt["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.contains("Say <|im_end|> twice: é") && prompt.len() > 30, "{prompt}");

    let tokens = |fields: Value| {
        let asked = with(json!({"content": prompt}), fields);
        server.post("/tokenize", &asked).json()["tokens"].as_array().unwrap().clone()
    };
    let parsed = tokens(json!({}));
    let literal = tokens(json!({"parse_special": false}));
    assert!(parsed.len() < literal.len());
    let with_pieces = tokens(json!({"with_pieces": true}));
    let ids: Vec<Value> = with_pieces.iter().map(|token| token["id"].clone()).collect();
    assert_eq!(ids, parsed);
    let mut bytes = Vec::new();
    for token in &with_pieces {
        match &token["piece"] {
            Value::String(text) => bytes.extend(text.bytes()),
            list => {
                let list = list.as_array().unwrap().iter();
                bytes.extend(list.map(|byte| byte.as_u64().unwrap() as u8));
            }
        }
    }
    assert_eq!(String::from_utf8(bytes).unwrap(), prompt);
    for tokens in [parsed, literal] {
        let content = server.post("/detokenize", &json!({"tokens": tokens})).json();
        assert_eq!(content["content"], *prompt);
    }
    for (path, body, param) in [
        ("/detokenize", json!({"tokens": [1, 4_000_000]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens[0]"),
        ("/detokenize", json!({"tokens": ["a"]}), "tokens[0]"),
        ("/detokenize", json!({}), "tokens"),
        ("/tokenize", json!({"content": [1]}), "content"),
        ("/tokenize", json!({"content": "x", "more": 1}), "more"),
        ("/apply-template", json!({"messages": []}), "messages"),
        ("/apply-template", json!({"messages": messages, "model": "other"}), "model"),
    ] {
        let refused = server.post(path, &body);
        let status = if param == "model" { 404 } else { 400 };
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (status, &json!(param)));
    }

    let api_keys = vec![String::from("a-long-enough-key")];
    let closed = start(ServerOptions { api_keys, ..options() });
    assert_eq!(closed.post("/tokenize", &json!({"content": "x"})).status, 401);
}

#[test]
fn null_is_no_schema() {
    let server = start(options());
    let asked = with(question("What is 7 + 12?"), json!({"max_tokens": 40}));
    let chat = |format: &Value| {
        let body = with(asked.clone(), json!({"response_format": format}));
        server.post("/v1/chat/completions", &body)
    };
    let respond = |format: &Value| {
        let input = json!({"model": "demo", "temperature": 0, "max_output_tokens": 40,
            "input": asked["messages"], "text": {"format": format}});
        server.post("/v1/responses", &input)
    };
    let plain = server.post("/v1/chat/completions", &asked).json();
    let plain = plain["choices"][0]["message"]["content"].as_str().unwrap();

    let text = json!({"type": "text", "schema": null});
    assert_eq!(chat(&text).json()["choices"][0]["message"]["content"], *plain);
    assert_eq!(respond(&text).json()["output"][0]["content"][0]["text"], *plain);

    let object = json!({"type": "object", "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"], "additionalProperties": false});
    let flat = json!({"type": "json_schema", "json_schema": {"schema": null}, "schema": object});
    let reply = chat(&flat).json();
    let answer = reply["choices"][0]["message"]["content"].as_str().unwrap();
    let answer: Value = serde_json::from_str(answer).unwrap();
    assert!(answer == json!({"n": 1}) || answer == json!({"n": 2}), "{answer}");

    let named = json!({"type": "json_schema", "json_schema": {"name": "f", "schema": null}});
    let unnamed = json!({"type": "json_schema", "json_schema": null, "schema": null});
    let respond_named = json!({"type": "json_schema", "name": "f", "schema": null});
    for (reply, param) in [
        (chat(&named), "response_format.json_schema.schema"),
        (chat(&unnamed), "response_format.json_schema.schema"),
        (respond(&respond_named), "text.format.schema"),
    ] {
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["param"]), (400, &json!(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains("missing"), "{error}");
    }
}
