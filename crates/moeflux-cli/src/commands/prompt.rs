//! `moeflux prompt`: what a chat request becomes.

use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use moeflux_engine::{EngineOptions, dialects, picture_reader};
use moeflux_server::{ChatPrompt, PicturesOfModel};
use moeflux_text::Tokenizer;
use serde_json::Value;

use super::print;
use crate::args::PromptArgs;
use crate::error::OutputError;
use crate::files;
use crate::locate::{self, Hurry, Place};

/// Bytes of a request at most, as of the server's.
const MAX_REQUEST: u64 = 16 << 20;

pub(crate) fn run(args: &PromptArgs) -> Result<()> {
    let request = read(&args.request)?;
    let Texts { tokenizer, pictures } = texts(args)?;
    let template = tokenizer.template_file().map(Path::to_owned);
    let whose = || match &template {
        Some(template) => format!("{} with {}", name(&args.request), template.display()),
        None => name(&args.request),
    };
    if args.json {
        let prompt = ChatPrompt::of(tokenizer, &pictures, request).with_context(whose)?;
        return Ok(print_json(&prompt).map_err(OutputError::from)?);
    }
    let text = ChatPrompt::text_of(tokenizer, &pictures, request).with_context(whose)?;
    let end = if text.ends_with('\n') { "" } else { "\n" };
    print(&(text + end))?;
    Ok(())
}

/// Prints as it goes: a list of all tokens would take a hundred times the memory of the text.
fn print_json(prompt: &ChatPrompt) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, prompt)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// What messages call the source of a request.
fn name(path: &Path) -> String {
    if path == Path::new("-") {
        String::from("standard input (--request)")
    } else {
        format!("{} (--request)", path.display())
    }
}

fn read(path: &Path) -> Result<Value> {
    let unreadable = || format!("cannot read {}", name(path));
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().take(MAX_REQUEST + 1).read_to_end(&mut bytes).with_context(unreadable)?;
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

/// What prompts of a model are made with.
struct Texts {
    tokenizer: Tokenizer,
    pictures: PicturesOfModel,
}

/// Those of a model; of one on the Hub no weights are read.
fn texts(args: &PromptArgs) -> Result<Texts> {
    let of = |path: &Path| {
        let tokenizer = Tokenizer::at(path, dialects())?;
        let mut options = EngineOptions::default();
        args.pictures.set(&mut options.vision);
        match picture_reader(path, &options) {
            Err(err) if options.vision.mmproj.is_some() => Err(err.into()),
            // Folders of tokenizers alone will do for requests without pictures.
            pictures => Ok(Texts { tokenizer, pictures }),
        }
    };
    match locate::place(args.model.as_deref(), "--model", true, Hurry::Any)? {
        Place::Here(path) => of(&path),
        Place::Hub(remote) => of(locate::read_headers(&remote, true)?.model()),
    }
}
