//! `moeflux prompt`: what a chat request becomes.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use moeflux_server::{ChatPrompt, PromptToken};
use moeflux_text::{LeftToModel, Tokenizer, ToolSyntax};
use serde_json::{Value, json};

use super::print;
use crate::args::PromptArgs;
use crate::files;
use crate::locate::{self, Hurry, Place};

/// Bytes of a request at most, as of the server's.
const MAX_REQUEST: u64 = 16 << 20;

pub(crate) fn run(args: &PromptArgs) -> Result<()> {
    let request = read(&args.request)?;
    let tokenizer = tokenizer(args.model.as_deref())?;
    let template = tokenizer.template_file().map(Path::to_owned);
    let prompt = ChatPrompt::of(tokenizer, request).with_context(|| match template {
        Some(template) => format!("{} with {}", name(&args.request), template.display()),
        None => name(&args.request),
    })?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&to_json(&prompt))? + "\n",
        false if prompt.text.ends_with('\n') => prompt.text,
        false => prompt.text + "\n",
    };
    print(&text)?;
    Ok(())
}

/// What messages call the source of a request.
fn name(path: &Path) -> String {
    match path == Path::new("-") {
        true => String::from("standard input (--request)"),
        false => format!("{} (--request)", path.display()),
    }
}

fn read(path: &Path) -> Result<Value> {
    let unreadable = || format!("cannot read {}", name(path));
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().take(MAX_REQUEST + 1).read_to_end(&mut bytes).with_context(unreadable)?;
        bytes
    } else {
        files::read(path).with_context(unreadable)?
    };
    if bytes.len() as u64 > MAX_REQUEST {
        bail!("{} is longer than {} MiB", name(path), MAX_REQUEST >> 20);
    }
    serde_json::from_slice(&bytes).map_err(|err| {
        anyhow!("{} is not valid JSON: {}", name(path), moeflux_core::json_problem(&err))
    })
}

/// The tokenizer and templates of a model; of one on the Hub no weights are read.
fn tokenizer(model: Option<&str>) -> Result<Tokenizer> {
    match locate::place(model, "--model", true, Hurry::Any)? {
        Place::Here(path) => Ok(Tokenizer::at(&path)?),
        Place::Hub(remote) => Ok(Tokenizer::at(locate::read_headers(&remote, true)?.model())?),
    }
}

fn to_json(prompt: &ChatPrompt) -> Value {
    let token = |token: &PromptToken| json!({"id": token.id.0, "piece": token.piece, "control": token.is_control});
    let left =
        |part: &LeftToModel| json!({"tool": part.tool, "path": part.path, "reason": part.reason});
    json!({
        "prompt": prompt.text,
        "tokens": prompt.tokens.iter().map(token).collect::<Vec<_>>(),
        "syntax": {
            "calls": prompt.format.syntax().map(ToolSyntax::name),
            "example": prompt.format.call_example().ok(),
            "missing": prompt.format.call_example().err(),
            "thinks": prompt.format.can_think(),
        },
        "grammar": prompt.grammar,
        "left_to_model": prompt.left_to_model.iter().map(left).collect::<Vec<_>>(),
    })
}
