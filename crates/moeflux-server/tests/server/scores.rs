//! Probabilities of prompts, and what else clients of other APIs rely on.

use serde_json::{Value, json};

use crate::common::{options, question, start};
use crate::with;

#[test]
fn a_prompt_is_repeated_with_the_probabilities_of_its_tokens() {
    let server = start(options());
    let asked = json!({"prompt": "`Vec::push` appends an element to", "temperature": 0, "echo": true,
        "logprobs": 1, "max_tokens": 0});
    let scored = server.post("/v1/completions", &asked).json();
    let choice = &scored["choices"][0];
    assert_eq!(
        (choice["text"].as_str(), choice["finish_reason"].as_str()),
        (asked["prompt"].as_str(), Some("length"))
    );
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    let list = |choice: &Value, name: &str| choice["logprobs"][name].as_array().unwrap().clone();
    let probabilities = list(choice, "token_logprobs");
    assert!(probabilities[0].is_null() && probabilities[1..].iter().all(Value::is_f64));
    assert!(list(choice, "top_logprobs")[0].is_null());
    let text: String = list(choice, "tokens").iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(text, *asked["prompt"].as_str().unwrap());
    // With an answer, its tokens follow those of the prompt.
    let longer =
        server.post("/v1/completions", &with(asked.clone(), json!({"max_tokens": 2}))).json();
    let both = list(&longer["choices"][0], "token_logprobs");
    assert_eq!(both.len(), probabilities.len() + 2);
    assert_eq!(both[..probabilities.len()], probabilities);
    let offsets = list(&longer["choices"][0], "text_offset");
    assert_eq!(offsets[probabilities.len()], asked["prompt"].as_str().unwrap().len());
    // Several prompts, of tokens too, each with its own.
    let several =
        with(asked.clone(), json!({"prompt": [[100, 200, 300], [100, 200]], "max_tokens": 1}));
    let several = server.post("/v1/completions", &several).json();
    let lens = [0, 1].map(|i| list(&several["choices"][i], "tokens").len());
    assert_eq!(lens, [4, 3]);
    let [one, other] = [0, 1].map(|i| list(&several["choices"][i], "token_logprobs"));
    assert_eq!(one[..2], other[..2]);
    let refused = server.post("/v1/completions", &with(asked.clone(), json!({"max_tokens": -2})));
    let param = refused.json()["error"]["param"].clone();
    assert_eq!((refused.status, param), (400, json!("max_tokens")));
    let empty = server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 0})).json();
    assert_eq!(
        (empty["choices"][0]["text"].as_str(), &empty["usage"]["completion_tokens"]),
        (Some(""), &json!(0))
    );
}

/// What a stream says of a prompt and its answer is what a reply at once says.
#[test]
fn probabilities_of_prompts_are_streamed() {
    let server = start(options());
    let long = "The `Vec` type allows to access values by index. ".repeat(40);
    let asked = json!({"prompt": ["`Vec::push` appends", long, "x"], "temperature": 0, "echo": true,
        "logprobs": 2, "n": 2});
    for max_tokens in [0, 3] {
        let asked = with(asked.clone(), json!({"max_tokens": max_tokens}));
        let whole = server.post("/v1/completions", &asked).json();
        let body = server.post("/v1/completions", &with(asked, json!({"stream": true}))).body;
        let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = events
            .filter(|event| *event != "[DONE]")
            .map(|event| serde_json::from_str(event).unwrap())
            .collect();
        for (i, want) in whole["choices"].as_array().unwrap().iter().enumerate() {
            let choices = || {
                let all = events.iter().filter_map(|event| event["choices"].get(0));
                all.filter(|choice| choice["index"] == i)
            };
            let text: String = choices().map(|choice| choice["text"].as_str().unwrap()).collect();
            assert_eq!(text, *want["text"].as_str().unwrap());
            for list in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
                let parts = choices().filter_map(|choice| choice["logprobs"][list].as_array());
                let got: Vec<Value> = parts.flatten().cloned().collect();
                assert_eq!(json!(got), want["logprobs"][list], "{i} {list}");
            }
            assert_eq!(choices().next_back().unwrap()["finish_reason"], want["finish_reason"]);
        }
    }
}

#[test]
fn what_no_model_here_makes_is_501() {
    let server = start(options());
    for path in ["/v1/embeddings", "/v1/rerank", "/v1/images/generations", "/v1/audio/speech"] {
        let refused = server.post(path, &json!({"model": "demo", "input": "x"}));
        assert_eq!(refused.status, 501, "{path}");
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(path.trim_start_matches("/v1/")), "{message}");
    }
    assert_eq!(server.get("/v1/embeddings").status, 405);
}

#[test]
fn some_tools_alone_are_allowed() {
    let server = start(options());
    let tool = |name: &str| {
        json!({"type": "function", "function": {
        "name": name, "description": "Get the current weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}})
    };
    let tools = json!([tool("get_weather"), tool("get_news")]);
    let allowed = |mode: &str, name: &str| {
        json!({"type": "allowed_tools", "allowed_tools": {
        "mode": mode, "tools": [{"type": "function", "function": {"name": name}}]}})
    };
    let ask = |choice: Value| {
        let fields = json!({"tools": tools, "tool_choice": choice});
        server
            .post("/v1/chat/completions", &with(question("What is the weather in Paris?"), fields))
    };
    for (mode, name) in [("auto", "get_weather"), ("required", "get_news")] {
        let reply = ask(allowed(mode, name));
        assert_eq!(reply.status, 200, "{}", reply.body);
        let call = &reply.json()["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], name);
    }
    let named = json!({"type": "custom", "custom": {"name": "get_news"}});
    let call = ask(named).json()["choices"][0]["message"]["tool_calls"][0]["function"].clone();
    assert_eq!(call["name"], "get_news");
    for (choice, param) in [
        (allowed("auto", "get_time"), "tool_choice.allowed_tools.tools[0]"),
        (allowed("always", "get_news"), "tool_choice.allowed_tools.mode"),
        (json!({"type": "allowed_tools"}), "tool_choice.allowed_tools"),
        (json!({"type": "custom"}), "tool_choice.custom"),
    ] {
        let refused = ask(choice);
        assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some(param)));
    }
}

#[test]
fn ollamas_clients_may_send_more_than_fits() {
    let server = start(options());
    let long = "Tell me about ownership. ".repeat(60);
    let mut messages = vec![json!({"role": "system", "content": "You answer briefly."})];
    for i in 0..20 {
        messages.push(json!({"role": "user", "content": format!("{i} {long}")}));
        messages.push(json!({"role": "assistant", "content": "Yes."}));
    }
    messages.push(json!({"role": "user", "content": "What does `Vec::push` do?"}));
    let asked = json!({"model": "demo", "messages": messages, "stream": false,
        "options": {"temperature": 0, "num_predict": 20}});
    let reply = server.post("/api/chat", &asked);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let (_, n) = reply.head.split_once("x-moeflux-left-out-messages: ").unwrap();
    let n: usize = n.lines().next().unwrap().parse().unwrap();
    assert!(n > 1 && n < 40 && n.is_multiple_of(2), "{n}");
    let n_prompt = reply.json()["prompt_eval_count"].as_u64().unwrap();
    assert!(n_prompt > 2000 && n_prompt < 4096, "{n_prompt}");
    let refused = server.post("/api/chat", &with(asked.clone(), json!({"truncate": false})));
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("exceeds the context length"), "{}", refused.body);
    // A last message that does not fit alone is refused whatever may be left out.
    let alone = json!({"messages": [{"role": "user", "content": long.repeat(20)}]});
    assert_eq!(server.post("/api/chat", &with(asked, alone)).status, 400);
}

#[test]
fn prompts_of_ollamas_clients_lose_their_beginning_where_they_do_not_fit() {
    let server = start(options());
    let header = |reply: &crate::common::Reply, name: &str| -> Option<usize> {
        let (_, n) = reply.head.split_once(&format!("x-moeflux-left-out-{name}: "))?;
        n.lines().next()?.parse().ok()
    };
    let long = "Ein Wörterbuch für Größen. ".repeat(1500) + "What does `Vec::push` do?";
    let asked = json!({"model": "demo", "prompt": long, "stream": false, "system": "You answer briefly.",
        "options": {"temperature": 0, "num_predict": 20}});
    for fields in [json!({}), json!({"raw": true, "system": ""})] {
        let reply = server.post("/api/generate", &with(asked.clone(), fields.clone()));
        assert_eq!(reply.status, 200, "{}", reply.body);
        let n = header(&reply, "characters").unwrap();
        let n_prompt = reply.json()["prompt_eval_count"].as_u64().unwrap();
        assert!((4060..=4076).contains(&n_prompt), "{n_prompt}");
        // No more than necessary: all of it but these characters is what was read.
        let rest: String = long.chars().skip(n).collect();
        let shifted = with(fields.clone(), json!({"shift": false}));
        let fields = with(fields, json!({"prompt": rest}));
        let same = server.post("/api/generate", &with(asked.clone(), fields));
        assert_eq!(header(&same, "characters"), None);
        assert_eq!(same.json()["response"], reply.json()["response"]);
        let more = server.post("/api/generate", &with(asked.clone(), shifted));
        assert!(header(&more, "characters").unwrap() <= n);
    }
    let refused = server.post("/api/generate", &with(asked.clone(), json!({"truncate": false})));
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("exceeds the context length"), "{}", refused.body);
    // The oldest tokens of an earlier answer go before anything of the prompt.
    let fields = json!({"prompt": "What does `Vec::push` do?", "context": vec![100; 5000]});
    let reply = server.post("/api/generate", &with(asked.clone(), fields.clone()));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let n = header(&reply, "tokens").unwrap();
    assert_eq!(reply.json()["prompt_eval_count"].as_u64().unwrap(), 4076);
    assert!(n > 900 && header(&reply, "characters").is_none(), "{n}");
    let fields = with(fields, json!({"truncate": false}));
    assert_eq!(server.post("/api/generate", &with(asked.clone(), fields)).status, 400);
    // A system's text that does not fit alone is refused.
    let fields = json!({"system": long, "prompt": "Hi"});
    assert_eq!(server.post("/api/generate", &with(asked, fields)).status, 400);
}
