//! One file a command.

mod answers;
pub(crate) mod bench;
pub(crate) mod calibrate;
mod certainty;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod keys;
pub(crate) mod launch;
pub(crate) mod logits;
pub(crate) mod man;
pub(crate) mod models;
pub(crate) mod pack;
pub(crate) mod perplexity;
mod piped;
pub(crate) mod plan;
mod probabilities;
pub(crate) mod prompt;
pub(crate) mod ps;
pub(crate) mod pull;
pub(crate) mod replay;
pub(crate) mod rm;
pub(crate) mod run;
mod schema;
pub(crate) mod serve;
pub(crate) mod synth;
pub(crate) mod verify;

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

use anyhow::Result;
use moeflux::TokenLogprob;
use moeflux_core::visible;
use moeflux_hub::Download;
use moeflux_text::{Delta, Message};
use serde_json::{Value, json};

use self::answers::View;
use self::certainty::Certainty;
use crate::bytes::show;
use crate::error::OutputError;
use crate::locate::{n_files, room};
use crate::model::Inspected;
use crate::progress::Bar;

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

/// Prints an answer to standard output as it comes, without thoughts.
struct Printer {
    bar: Option<Bar>,
    n_prompt: u64,
    /// Holds the beginning of an answer back, until it is known to be no guess.
    certainty: Option<Certainty>,
    held: String,
    /// What was printed.
    text: String,
    error: Option<OutputError>,
    /// Tokens of the answer, where they were asked for.
    tokens: Vec<TokenLogprob>,
}

impl Printer {
    fn new(bar: Bar, n_prompt: usize, certainty: Option<Certainty>) -> Printer {
        Printer {
            bar: Some(bar),
            n_prompt: n_prompt as u64,
            certainty,
            held: String::new(),
            text: String::new(),
            error: None,
            tokens: Vec::new(),
        }
    }

    fn print(&mut self, text: &str) {
        if self.certainty.is_some_and(|certainty| certainty.is_open() || certainty.is_guess()) {
            self.held.push_str(text);
            return;
        }
        let held = std::mem::take(&mut self.held) + text;
        if self.error.is_none() && !held.is_empty() {
            self.error = print(&held).err();
            self.text.push_str(&held);
        }
    }

    /// Ends the last line. Whether the answer was withheld, as a guess.
    fn finish(mut self) -> Result<bool, OutputError> {
        self.bar = None;
        if self.is_guess() {
            return self.error.map_or(Ok(true), Err);
        }
        self.certainty = None;
        self.print("");
        if self.error.is_none() && !self.text.ends_with('\n') {
            self.error = print("\n").err();
        }
        self.error.map_or(Ok(false), Err)
    }

    fn is_guess(&self) -> bool {
        self.certainty.is_some_and(|certainty| certainty.is_guess())
    }
}

impl View for Printer {
    fn prompt_progress(&mut self, n_done: usize) {
        if let Some(bar) = &mut self.bar {
            bar.set(n_done as u64, self.n_prompt);
        }
    }

    fn add(&mut self, deltas: Vec<Delta>, tokens: &[TokenLogprob]) -> ControlFlow<()> {
        self.bar = None;
        if let Some(certainty) = &mut self.certainty {
            certainty.add_all(tokens);
        }
        self.tokens.extend_from_slice(tokens);
        self.print(&said(deltas));
        if self.error.is_some() || self.is_guess() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
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

/// Writes to standard output at once. A terminal gets text alone, whatever models and files hold.
pub(crate) fn print(text: &str) -> Result<(), OutputError> {
    if io::stdout().is_terminal() { print_styled(&visible(text)) } else { print_styled(text) }
}

/// Writes to standard output what may hold this program's own commands for terminals.
fn print_styled(text: &str) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
