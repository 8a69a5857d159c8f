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
    for (fields, param) in
        [(json!({"stream": true}), "echo"), (json!({"max_tokens": -2}), "max_tokens")]
    {
        let refused = server.post("/v1/completions", &with(asked.clone(), fields));
        assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some(param)));
    }
    let empty = server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 0})).json();
    assert_eq!(
        (empty["choices"][0]["text"].as_str(), &empty["usage"]["completion_tokens"]),
        (Some(""), &json!(0))
    );
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
