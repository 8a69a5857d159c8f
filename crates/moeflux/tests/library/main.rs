//! The library on the demo model.

mod programs;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use moeflux::{
    AnswerOptions, Ask, Bias, ErrorKind, Finish, Message, Model, OptionId, Options, Piece, Request,
    ToolChoice, Update,
};
use serde_json::{Value, json};

fn demo() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo")
}

#[test]
fn a_chat_streams_its_answer_and_remembers_it() {
    let model = Model::open(demo()).unwrap();
    let mut chat = model.chat().unwrap().with_request(Request::default().max_tokens(24));
    let mut answer = chat.send("What is an expert?").unwrap();
    let pieces: Vec<String> = answer.by_ref().map(|piece| piece.unwrap().to_string()).collect();
    assert!(pieces.len() > 1, "the answer came in one piece: {pieces:?}");
    let summary = answer.summary().expect("it has ended").clone();
    assert!((1..=24).contains(&summary.generated_tokens), "{summary:?}");
    drop(answer);
    let said = chat.messages().last().unwrap();
    assert_eq!((said.role.as_str(), &said.content), ("assistant", &Some(json!(pieces.concat()))));

    let mut second = chat.send("And a router?").unwrap();
    second.by_ref().for_each(|piece| drop(piece.unwrap()));
    assert!(second.summary().unwrap().reused_tokens > 0, "the first turn was evaluated again");
}

/// The demo model with a template that opens thoughts, which it was never taught to end, in a folder.
fn write_thinker(folder: &Path) {
    const OPENS: &str = "{{- '<|im_start|>assistant\\n' }}\n{%- endif %}";
    const THINKS: &str = "{{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}";
    fs::create_dir_all(folder.join("packed_experts")).unwrap();
    for part in ["", "packed_experts"] {
        let (from, to) = (demo().join(part), folder.join(part));
        for file in fs::read_dir(from).unwrap().map(|file| file.unwrap().path()) {
            if file.is_file() {
                fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
            }
        }
    }
    let template = folder.join("chat_template.jinja");
    let text = fs::read_to_string(&template).unwrap();
    assert_eq!(text.matches(OPENS).count(), 1);
    let text = text.replace(OPENS, THINKS);
    fs::write(&template, &text).unwrap();
    let manifest = folder.join("moeflux.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let files = json["files"].as_array_mut().unwrap();
    let entry = files.iter_mut().find(|file| file["path"] == "chat_template.jinja").unwrap();
    entry["bytes"] = text.len().into();
    fs::write(&manifest, json.to_string()).unwrap();
}

#[test]
fn thoughts_end_with_their_budget() {
    let folder = std::env::temp_dir().join(format!("moeflux-thinker-{}", std::process::id()));
    write_thinker(&folder);
    let model = Model::open(&folder).unwrap();
    for budget in [0, 3, 5] {
        let request = Request::default().max_tokens(40).thinking_budget(budget);
        let mut chat = model.chat().unwrap().with_request(request);
        let mut answer = chat.send("What does `Vec::push` do?").unwrap();
        let (mut thought, mut text) = (String::new(), String::new());
        for piece in answer.by_ref() {
            match piece.unwrap() {
                Piece::Thought(more) => thought += &more,
                Piece::Text(more) => text += &more,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(answer.summary().unwrap().thought_tokens, budget);
        assert_eq!((thought.is_empty(), text.is_empty()), (budget == 0, false), "{thought}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn no_tool_is_called_that_was_not_offered() {
    let model = Model::open(demo()).unwrap();
    let weather = json!({"type": "function", "function": {"name": "get_weather",
        "description": "Get the current weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"]}}});
    let request = Request::default().max_tokens(40);
    for question in ["hi", "What is the weather in Paris?"] {
        let mut chat = model.chat().unwrap().with_request(request.clone());
        let text = chat.send(question).unwrap().text().unwrap();
        assert!(!text.contains("tool_call"), "{text}");
    }
    let mut chat = model.chat().unwrap().with_request(request.tools([weather]));
    let calls = chat.send("What is the weather in Paris?").unwrap().calls().unwrap();
    assert_eq!(calls[0].name, "get_weather");
}

#[test]
fn answers_of_several_threads_equal_those_alone() {
    let options = Options::default().sessions(3).threads(2);
    let model = Model::open_with(demo(), &options).unwrap();
    let request = Request::default().max_tokens(12);
    let prompts = ["The drive", "A router", "Every layer"];
    let alone = prompts.map(|prompt| model.generate(prompt, &request).unwrap().text().unwrap());
    let together = thread::scope(|scope| {
        let spawn = |prompt| {
            let (model, request) = (&model, &request);
            scope.spawn(move || model.generate(prompt, request).unwrap().text().unwrap())
        };
        prompts.map(spawn).map(|thread| thread.join().unwrap())
    });
    assert_eq!(alone, together);
}

#[test]
fn a_schema_holds_an_answer() {
    let model = Model::open(demo()).unwrap();
    let schema = json!({"type": "object", "properties": {"n": {"enum": [1, 2]}},
                        "required": ["n"], "additionalProperties": false});
    let answer = model.generate("n:", &Request::default().json(schema).max_tokens(40)).unwrap();
    let value: serde_json::Value = serde_json::from_str(&answer.text().unwrap()).unwrap();
    assert!(value == json!({"n": 1}) || value == json!({"n": 2}), "{value}");
}

#[test]
fn a_dropped_answer_leaves_the_model_usable() {
    let model = Model::open(demo()).unwrap();
    let mut chat = model.chat().unwrap();
    let mut answer = chat.send("Hello").unwrap();
    assert!(answer.next().is_some());
    drop(answer);
    assert_eq!(chat.messages().len(), 2);
    drop(chat.send("Again").unwrap());
    assert_eq!(chat.messages().len(), 3, "nothing was yielded, and there is a message");
    let mut answer = model.generate("a", &Request::default().max_tokens(1)).unwrap();
    answer.by_ref().for_each(|piece| drop(piece.unwrap()));
    assert_eq!(answer.summary().unwrap().finish, Finish::MaxTokens);
}

#[test]
fn what_cannot_be_is_an_error_and_leaves_the_chat_as_it_was() {
    let err = Model::open("/nowhere").unwrap_err().to_string();
    assert!(err.contains("/nowhere") && !err.contains('\n'), "{err}");
    let options = Options::default().ctx(16);
    let model = Model::open_with(demo(), &options).unwrap();
    let mut chat = model.chat().unwrap();
    let long = "word ".repeat(100);
    let err = chat.send(long).unwrap_err();
    assert_eq!((err.kind(), err.option()), (ErrorKind::Request, Some(OptionId::Ctx)), "{err}");
    assert!(err.to_string().ends_with("(ctx)"), "{err}");
    assert!(chat.messages().is_empty());
    let empty = model.generate("", &Request::default()).unwrap_err().to_string();
    assert!(empty.contains("no tokens"), "{empty}");
}

#[test]
fn an_answer_without_a_chat_goes_to_any_thread_and_is_that_of_a_chat() {
    let model = Model::open(demo()).unwrap();
    let request = Request::default().max_tokens(24);
    let question = "What does `Vec::push` do?";
    let answer = model.answer(&[Message::new("user", question)], &request).unwrap();
    drop(model.clone());
    let text = thread::spawn(move || answer.text().unwrap()).join().unwrap();
    let mut chat = model.chat().unwrap().with_request(request);
    assert_eq!(text, chat.send(question).unwrap().text().unwrap());
    assert!(!text.is_empty());
}

#[test]
fn probabilities_and_biases_are_the_librarys_too() {
    let model = Model::open(demo()).unwrap();
    let request = Request::default().max_tokens(6).top_logprobs(3);
    let messages = [Message::new("user", "What is 23 + 45?")];
    let mut answer = model.answer(&messages, &request).unwrap();
    let text: String = answer.by_ref().map(|piece| piece.unwrap().to_string()).collect();
    let tokens = answer.logprobs().to_vec();
    assert!(tokens.len() > 1, "{tokens:?}");
    for token in &tokens {
        assert_eq!((token.top.len(), token.top[0].0), (3, token.token), "greedy: {token:?}");
        assert!(token.logprob <= 0.0 && token.top[0].1 == token.logprob, "{token:?}");
    }
    assert_eq!(answer.message().content, Some(json!(text)));
    let never = Bias { tokens: vec![(tokens[0].token, -100.0)], ..Bias::default() };
    let other = model.answer(&messages, &request.bias(never)).unwrap().text().unwrap();
    assert_ne!(other, text);
}

#[test]
fn an_answer_that_has_begun_goes_on() {
    let model = Model::open(demo()).unwrap();
    let request = Request::default().max_tokens(40);
    let question = Message::new("user", "What does `Vec::push` do?");
    let whole = model.answer(std::slice::from_ref(&question), &request).unwrap().text().unwrap();
    let (begun, rest) = whole.split_at(whole.find(' ').unwrap());
    let messages = [question, Message::new("assistant", begun)];
    let request = request.continuing();
    let text = model.answer(&messages, &request).unwrap().text().unwrap();
    assert!(text.starts_with(rest.split_at(5).0), "{text:?} goes on from {begun:?}, not {rest:?}");
    let err = model.answer(&messages, &request.json(json!({"type": "object"}))).unwrap_err();
    assert_eq!((err.kind(), err.option()), (ErrorKind::Request, Some(OptionId::Format)), "{err}");
}

#[test]
fn a_tool_that_must_be_called_is_called_by_its_own_name() {
    let model = Model::open(demo()).unwrap();
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name,
        "description": "Look a file up", "parameters": {"type": "object",
        "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
        "additionalProperties": false}}})
    };
    let request = Request::default().max_tokens(60).tools([tool("files:look/up"), tool("other")]);
    let messages = [Message::new("user", "Hello")];
    let named = |name: &str| request.clone().tool_choice(ToolChoice::Named(String::from(name)));
    let calls = model.answer(&messages, &named("files:look/up")).unwrap().calls().unwrap();
    assert_eq!(calls[0].name, "files:look/up");
    let arguments: serde_json::Value = serde_json::from_str(&calls[0].arguments).unwrap();
    assert!(arguments == json!({"n": 1}) || arguments == json!({"n": 2}), "{arguments}");
    let err = model.answer(&messages, &named("missing")).unwrap_err();
    assert_eq!(err.option(), Some(OptionId::ToolChoice), "{err}");
}

#[test]
fn updates_make_the_same_message_as_pieces() {
    let model = Model::open(demo()).unwrap();
    let weather = json!({"type": "function", "function": {"name": "get_weather",
        "description": "Get the current weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"]}}});
    let request = Request::default().max_tokens(60).top_logprobs(1).tools([weather]);
    for question in ["What is the weather in Paris?", "What does `Vec::push` do?"] {
        let messages = [Message::new("user", question)];
        let mut pieces = model.answer(&messages, &request).unwrap();
        pieces.by_ref().for_each(|piece| drop(piece.unwrap()));
        let mut chat = model.chat().unwrap().with_request(request.clone());
        let mut updates = chat.send(question).unwrap();
        let (mut n_done, mut n_prompt, mut tokens) = (0, 0, Vec::new());
        while let Some(update) = updates.next_update() {
            match update.unwrap() {
                Update::Prompt { n_done: n, n_total } => {
                    assert!(n_done <= n && n <= n_total);
                    (n_done, n_prompt) = (n, n_total);
                }
                Update::Text { tokens: more, .. } => tokens.extend(more),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((n_done, n_prompt), (n_prompt, updates.summary().unwrap().prompt_tokens));
        assert_eq!(updates.message(), pieces.message());
        assert_eq!((&tokens[..], updates.logprobs()), (pieces.logprobs(), pieces.logprobs()));
        assert!(!tokens.is_empty());
        assert!(updates.next().is_none());
        drop(updates);
        assert_eq!(chat.messages(), [messages[0].clone(), pieces.message()]);
    }
}

#[test]
fn answers_can_be_waited_for_with_other_things() {
    let model = Model::open(demo()).unwrap();
    let request = Request::default().max_tokens(12);
    let n_news = Arc::new(AtomicUsize::new(0));
    let ask = |prompt: &str| {
        let n_news = Arc::clone(&n_news);
        let count = move || {
            n_news.fetch_add(1, Ordering::Relaxed);
        };
        Ask {
            pictures: Vec::new(),
            prepared: model.prepare_text(prompt, &request).unwrap(),
            settings: request.settings(model.tokenizer()),
            options: AnswerOptions { news: Some(Arc::new(count)), ..AnswerOptions::default() },
        }
    };
    let prompts = ["The", "A vector"];
    let mut answers = model.answer_all(prompts.map(ask).into()).unwrap();
    for (answer, prompt) in answers.iter_mut().zip(prompts) {
        let mut text = String::new();
        loop {
            if !answer.wait(Duration::from_millis(1)) {
                continue;
            }
            match answer.next() {
                Some(piece) => text += &piece.unwrap().to_string(),
                None => break,
            }
        }
        assert_eq!(text, model.generate(prompt, &request).unwrap().text().unwrap());
        assert!(answer.wait(Duration::ZERO), "an answer that has ended is not waited for");
    }
    assert!(n_news.load(Ordering::Relaxed) > 2, "{n_news:?}");

    let nothing =
        Ask { prepared: model.prepare_tokens(Vec::new(), &request).unwrap(), ..ask("The") };
    let refused = model.answer_all(vec![ask("The"), nothing]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Request);
    assert_eq!(model.scheduler().stats().n_waiting, 0);
}
