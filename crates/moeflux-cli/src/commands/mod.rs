//! One file a command.

pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod chat;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod pack;
pub(crate) mod perplexity;
pub(crate) mod plan;
mod prompt;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod synth;

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use moeflux_engine::text::{ChatTemplate, Message, Special, Tokenizer};
use moeflux_engine::{GenerateOptions, Sink};

use crate::args::{SampleArgs, UsageError};
use crate::progress::Bar;

pub(crate) fn chat_template(tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let template = tokenizer.chat_template(false).ok_or_else(|| {
        UsageError(String::from("the model has no chat template: give the prompt with run --raw"))
    })?;
    Ok(template?)
}

/// A conversation's first messages.
fn opening(system: Option<&str>) -> Vec<Message> {
    system.map(|it| Message::new("system", it)).into_iter().collect()
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
    /// What was printed.
    text: String,
    error: Option<io::Error>,
    /// Set by whoever has had enough of the answer.
    interrupted: Arc<AtomicBool>,
    title: Title,
}

impl Printer {
    fn new(bar: Bar, n_prompt: usize) -> Printer {
        Printer {
            bar: Some(bar),
            n_prompt: n_prompt as u64,
            text: String::new(),
            error: None,
            interrupted: Arc::default(),
            title: Title::default(),
        }
    }

    /// Ends the answer early once the flag is set, and tells in the terminal's
    /// title how fast it is made.
    fn live(self, interrupted: &Arc<AtomicBool>, is_quiet: bool) -> Printer {
        let is_on = !is_quiet && io::stderr().is_terminal();
        let title = Title { is_on, ..Title::default() };
        Printer { interrupted: Arc::clone(interrupted), title, ..self }
    }

    /// The text, its last line ended.
    fn finish(mut self) -> io::Result<String> {
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

    fn is_cancelled(&mut self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn text(&mut self, piece: &str) -> ControlFlow<()> {
        self.bar = None;
        self.title.count();
        self.text.push_str(piece);
        match print(piece) {
            Ok(()) => ControlFlow::Continue(()),
            Err(err) => {
                self.error = Some(err);
                ControlFlow::Break(())
            }
        }
    }
}

/// Tokens a second in the title of the terminal's window.
#[derive(Default)]
struct Title {
    is_on: bool,
    n: u32,
    start: Option<Instant>,
    shown: Option<Instant>,
}

impl Title {
    /// Between two changes of the title.
    const PAUSE: Duration = Duration::from_millis(500);

    /// A piece of the answer has come.
    fn count(&mut self) {
        let start = *self.start.get_or_insert_with(Instant::now);
        self.n += 1;
        let is_due = self.shown.is_none_or(|it| it.elapsed() >= Self::PAUSE);
        if self.is_on && self.n > 1 && is_due {
            self.shown = Some(Instant::now());
            let rate = f64::from(self.n - 1) / start.elapsed().as_secs_f64().max(1e-9);
            // A title that cannot be shown is not missed.
            let _ = write!(io::stderr(), "\x1b]0;moeflux: {rate:.1} tok/s\x07");
        }
    }
}

impl Drop for Title {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\x1b]0;moeflux\x07");
        }
    }
}

/// Writes to standard output at once.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
