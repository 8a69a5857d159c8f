//! The Rust of `docs/guide/programs.md`, on the demo model: what the page shows is in this file, word for word.

#![expect(clippy::print_stdout, reason = "the page's programs print their answers")]

use std::fs;
use std::path::{Path, PathBuf};

use moeflux::{Message, Model, Options, Request, Sampling};
use moeflux_engine::TokenId;
use moeflux_text::Markup;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn open(folder: &Path) -> Result<Model> {
    let mut options = Options::default();
    options.memory.ctx = Some(1024);
    options.memory.sessions = Some(4);
    Ok(Model::open_with(folder, &options)?)
}

fn chat(model: &Model) -> Result<()> {
    let greedy = Request::default().sampling(Sampling::default()).max_tokens(40);
    let mut chat = model.chat()?.with_request(greedy);
    println!("{}", chat.send("What is 23 + 45?")?.text()?);
    println!("{}", chat.send("What is 2 + 3?")?.text()?);
    println!("{} messages", chat.messages().len());
    Ok(())
}

fn stream(model: &Model) -> Result<()> {
    let messages = [Message::new("user", "What does Vec::push do?")];
    let mut answer = model.answer(&messages, &Request::default().max_tokens(60))?;
    for piece in answer.by_ref() {
        print!("{}", piece?);
    }
    if let Some(summary) = answer.summary() {
        println!("\n{} tokens", summary.generated_tokens);
    }
    Ok(())
}

fn tools(model: &Model) -> Result<()> {
    let weather = json!({
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    });
    let request = Request::default().tools([weather]).sampling(Sampling::default());
    let mut chat = model.chat()?.with_request(request.max_tokens(80));
    let calls = chat.send("What is the weather in Rome?")?.calls()?;
    for call in &calls {
        println!("{}({})", call.name, call.arguments);
        chat.add_tool_result(call.id.as_str(), "18 degrees and rain");
    }
    if !calls.is_empty() {
        println!("{}", chat.answer()?.text()?);
    }
    Ok(())
}

fn json_answer(model: &Model) -> Result<Value> {
    let schema = json!({
        "type": "object",
        "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 999}},
        "required": ["sum"],
        "additionalProperties": false,
    });
    let messages = [Message::new("user", "What is 23 + 45?")];
    let text = model.answer(&messages, &Request::default().json(schema))?.text()?;
    Ok(serde_json::from_str(&text)?)
}

fn batch(model: &Model) -> Result<Vec<String>> {
    let request = Request::default().max_tokens(12);
    let mut answers = Vec::new();
    for n in 20..28 {
        let messages = [Message::new("user", format!("What is {n} + 45?"))];
        answers.push(model.answer(&messages, &request)?);
    }
    let texts = answers.into_iter().map(|answer| Ok(answer.text()?));
    texts.collect()
}

fn session(model: &Model, file: &Path) -> Result<Vec<TokenId>> {
    let prompt = model.tokenizer().encode("The quick brown", Markup::Literal)?;
    let mut session = model.engine().session();
    let mut logits = session.eval_prompt(&prompt)?;
    let place = session.position();
    session.checkpoint(place)?;
    let mut chosen = Vec::new();
    for _ in 0..4 {
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        let token = TokenId(best.unwrap_or(0) as u32);
        logits = session.eval_token(token)?;
        chosen.push(token);
    }
    session.restore_to(place)?;
    session.save(file)?;
    Ok(chosen)
}

fn logits(model: &Model) -> Result<f32> {
    let tokens = model.tokenizer().encode("The quick brown fox", Markup::Literal)?;
    let mut next = tokens[1..].iter();
    let mut total = 0.0;
    model.engine().session().eval_all(&tokens, &mut |_, row| {
        if let Some(token) = next.next() {
            let log_sum = row.iter().map(|logit| logit.exp()).sum::<f32>().ln();
            total += row[token.0 as usize] - log_sum;
        }
        Ok(())
    })?;
    Ok(total)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn what_the_page_shows_is_in_this_file() {
    let page = fs::read_to_string(root().join("docs/guide/programs.md")).unwrap();
    let here = fs::read_to_string(root().join("crates/moeflux/tests/library/programs.rs")).unwrap();
    let blocks: Vec<&str> = page.split("```rust,ignore\n").skip(1).collect();
    assert!(blocks.len() >= 7, "one of each topic");
    for block in blocks {
        let (shown, _) = block.split_once("```\n").expect("the block ends");
        assert!(here.contains(shown), "no such lines in this file:\n{shown}");
    }
}

#[test]
fn the_programs_of_the_page_run() -> Result<()> {
    let model = open(&root().join("crates/moeflux-cli/demo"))?;

    chat(&model)?;
    stream(&model)?;
    tools(&model)?;
    assert!(json_answer(&model)?["sum"].is_u64());
    assert_eq!(batch(&model)?.len(), 8);
    let file = std::env::temp_dir().join(format!("moeflux-programs-{}", std::process::id()));
    let chosen = session(&model, &file)?;
    let saved = fs::metadata(&file);
    fs::remove_file(&file)?;
    assert!(chosen.len() == 4 && saved?.len() > 0);
    assert!(logits(&model)? < 0.0);
    Ok(())
}
