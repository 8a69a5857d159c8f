//! Texts to run through a model: plain ones, and conversations.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use moeflux_engine::{Engine, TokenId};
use moeflux_text::{ChatTemplate, Markup, Message, RenderRequest, Tokenizer};
use serde_json::Value;

use crate::error::UsageError;
use crate::files;
use crate::turns::{explain, no_template};

/// Default number of tokens of a window.
const WINDOW: usize = 2048;

/// What a file holds, in sequences of at most `window` tokens. A file whose name
/// ends in `.jsonl` holds conversations, each of which is a sequence; any other is
/// one text.
pub(crate) fn read(
    path: &Path,
    engine: &Engine,
    window: Option<usize>,
) -> Result<Vec<Vec<TokenId>>> {
    let name = || format!("--text {}", path.display());
    let ctx = engine.plan().ctx;
    let window = match window {
        Some(n) if n < 2 || n > ctx => {
            return Err(UsageError(format!("--window {n}: choose 2 to {ctx}")).into());
        }
        window => window.unwrap_or(WINDOW).min(ctx),
    };
    let bytes = files::read(path).with_context(name)?;
    let text = String::from_utf8(bytes).with_context(name)?;
    let tokenizer = engine.tokenizer()?;
    let is_chat = path.extension().is_some_and(|extension| extension == "jsonl");
    let texts = if is_chat {
        let template =
            ChatTemplate::of(&tokenizer, false).ok_or_else(|| no_template(&tokenizer))??;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = |(i, line)| {
            conversation(line, &tokenizer, &template)
                .with_context(|| format!("{}: line {}", name(), i + 1))
        };
        lines.map(read).collect::<Result<_>>()?
    } else {
        let tokens = tokenizer.encode(&text, Markup::Literal);
        vec![tokens.map_err(|err| explain(&tokenizer, err)).with_context(name)?]
    };
    let sequences = texts.iter().flat_map(|text| text.chunks(window)).map(<[TokenId]>::to_vec);
    let sequences: Vec<Vec<TokenId>> = sequences.filter(|sequence| sequence.len() >= 2).collect();
    if sequences.is_empty() {
        return Err(UsageError(format!("{}: at least two tokens are needed", name())).into());
    }
    Ok(sequences)
}

fn conversation(
    line: &str,
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
) -> Result<Vec<TokenId>> {
    let shape = |err| {
        let problem = moeflux_core::json_problem(&err);
        anyhow!("{problem}; write {{\"messages\": [{{\"role\", \"content\"}}, ...]}}")
    };
    let mut value: Value = serde_json::from_str(line).map_err(shape)?;
    let messages = value.get_mut("messages").map(Value::take).unwrap_or_default();
    let mut messages: Vec<Message> = serde_json::from_value(messages).map_err(shape)?;
    messages.iter_mut().for_each(Message::parse_arguments);
    let request = RenderRequest {
        messages: &messages,
        tools: value.get("tools"),
        ..RenderRequest::default()
    };
    let tokens =
        template.render(&request).and_then(|text| tokenizer.encode_chat(&text, usize::MAX));
    tokens.map_err(|err| explain(tokenizer, err))
}
