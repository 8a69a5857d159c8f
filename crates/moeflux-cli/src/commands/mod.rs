//! One file a command.

pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod launch;
pub(crate) mod logits;
pub(crate) mod man;
pub(crate) mod models;
pub(crate) mod pack;
pub(crate) mod perplexity;
pub(crate) mod plan;
pub(crate) mod prompt;
pub(crate) mod ps;
pub(crate) mod pull;
pub(crate) mod replay;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod synth;
mod turns;
pub(crate) mod verify;

use std::io::{self, Write};
use std::ops::ControlFlow;

use anyhow::Result;
use moeflux_engine::{GenerateOptions, Sink};
use moeflux_hub::Download;
use moeflux_text::{ChatTemplate, Delta, Message, OutputParser, Special, Tokenizer};
use serde_json::{Value, json};

pub(crate) use self::turns::explain;
use crate::args::SampleArgs;
use crate::bytes::show;
use crate::error::{OutputError, UsageError};
use crate::locate::{n_files, room};
use crate::model::Inspected;
use crate::progress::Bar;

pub(crate) fn chat_template(tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let template = tokenizer.chat_template(false).ok_or_else(|| {
        let names: Vec<&str> = tokenizer.chat_template_names().collect();
        let why = match names.as_slice() {
            [] => String::from("the model has no chat template"),
            names => format!(
                "the model has no default chat template, only {} (save one of them as \
                 chat_template.jinja)",
                names.join(", ")
            ),
        };
        UsageError(why + ": give the prompt with run --raw")
    })?;
    Ok(template?)
}

/// The tokenizer of `plan --json` and `inspect --json`.
fn tokenizer_json(found: &Inspected) -> Value {
    match &found.tokenizer {
        Some(Ok(tokenizer)) => json!({"found": tokenizer, "error": null}),
        Some(Err(why)) => json!({"found": null, "error": why}),
        None => Value::Null,
    }
}

/// A conversation's first messages.
fn opening(system: Option<&str>) -> Vec<Message> {
    system.map(|text| Message::new("system", text)).into_iter().collect()
}

fn generate_options(args: &SampleArgs, tokenizer: &Tokenizer) -> GenerateOptions {
    GenerateOptions {
        max_tokens: args.max_tokens,
        stop: args.stop.clone(),
        sampler: args.sampler(tokenizer.generation_defaults()),
        special: Special::Hide,
    }
}

/// Prints an answer to standard output as it comes.
struct Printer {
    bar: Option<Bar>,
    n_prompt: u64,
    /// Takes analysis and commentary out, where they come in channels.
    channels: Option<OutputParser>,
    /// What was printed.
    text: String,
    error: Option<OutputError>,
}

impl Printer {
    fn new(bar: Bar, n_prompt: usize, channels: Option<OutputParser>) -> Printer {
        let (bar, n_prompt) = (Some(bar), n_prompt as u64);
        Printer { bar, n_prompt, channels, text: String::new(), error: None }
    }

    fn print(&mut self, text: &str) {
        if self.error.is_none() {
            self.text.push_str(text);
            self.error = print(text).err();
        }
    }

    /// The text, its last line ended.
    fn finish(mut self) -> Result<String, OutputError> {
        if let Some(rest) = self.channels.as_mut().map(OutputParser::finish) {
            self.print(&said(rest));
        }
        if self.error.is_none() && !self.text.ends_with('\n') {
            self.error = print("\n").err();
        }
        self.error.map_or(Ok(self.text), Err)
    }
}

impl Sink for Printer {
    fn prompt_progress(&mut self, n_done: usize) {
        if let Some(bar) = &mut self.bar {
            bar.set(n_done as u64, self.n_prompt);
        }
    }

    fn text(&mut self, piece: &str) -> ControlFlow<()> {
        self.bar = None;
        match &mut self.channels {
            Some(channels) => {
                let text = said(channels.push(piece));
                self.print(&text);
            }
            None => self.print(piece),
        }
        match self.error {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    }
}

/// The answer, without thoughts.
fn said(deltas: Vec<Delta>) -> String {
    let text = |delta| match delta {
        Delta::Content(text) => Some(text),
        _ => None,
    };
    deltas.into_iter().filter_map(text).collect()
}

/// What a download would take, below a plan or an inspection.
fn download_text(download: &Download) -> String {
    let here = download.bytes - download.missing_bytes;
    let mut text = format!(
        "\nnot downloaded: only its configs and headers were read\n\
         download   {} in {}, to {}\n",
        show(download.missing_bytes),
        n_files(download),
        room(download),
    );
    if here > 0 {
        text.push_str(&format!("           {} of {} are here\n", show(here), show(download.bytes)));
    }
    if !download.fits() {
        text.push_str(
            "           this does not fit: free some, or set HF_HUB_CACHE to a folder of a larger drive\n",
        );
    }
    text
}

fn download_json(download: &Download) -> Value {
    json!({
        "repo": download.repo,
        "commit": download.commit,
        "files": download.n_files,
        "bytes": download.bytes,
        "missing_bytes": download.missing_bytes,
        "dir": download.dir,
        "free_bytes": download.free_bytes,
        "fits": download.fits(),
    })
}

/// Writes to standard output at once.
pub(crate) fn print(text: &str) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
