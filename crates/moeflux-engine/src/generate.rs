//! From a prompt to text, piece by piece.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;
use moeflux_text::{Special, StopMatcher, StreamDecoder, Tokenizer};

use crate::draft::{DraftCounts, Drafting};
use crate::error::EngineError;
use crate::sampler::error::SamplerError;
use crate::sampler::{Sampler, SamplerOptions};
use crate::session::{Logits, Next, Prompt, Session};

/// How an answer is made.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Tokens at most.
    pub max_tokens: usize,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// Whether the text shows special tokens.
    pub special: Special,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    EndOfText,
    /// A stop text was met.
    Stop,
    /// `max_tokens` were made.
    MaxTokens,
    /// The context has no room for another token.
    ContextFull,
    /// The caller ended it.
    Cancelled,
}

/// An answer's figures.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt that were evaluated.
    pub n_prompt: usize,
    /// Tokens of the prompt that needed no evaluation.
    pub n_reused: usize,
    /// Tokens made, the one that ended it included.
    pub n_generated: usize,
    /// Guesses of what followed, and how many of these were right.
    pub drafts: DraftCounts,
    /// Time to the first token.
    pub prefill: Duration,
    /// Time of the tokens after it.
    pub decode: Duration,
}

impl Generated {
    /// Prompt tokens a second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.n_prompt, self.prefill)
    }

    /// Tokens a second, the first not counted.
    pub fn decode_rate(&self) -> f64 {
        rate(self.n_generated.saturating_sub(1), self.decode)
    }
}

fn rate(n: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() }
}

/// Follows an answer while it is made.
pub trait Sink {
    /// So many tokens of the prompt are evaluated.
    fn prompt_progress(&mut self, _n_done: usize) {}

    /// Whether nobody wants the answer any more; asked between chunks of the
    /// prompt, and before each token.
    fn is_cancelled(&mut self) -> bool {
        false
    }

    /// Takes text as it becomes certain; ends the answer by breaking.
    fn text(&mut self, piece: &str) -> ControlFlow<()>;
}

/// Makes `prompt` what a session holds, evaluating only what is not known of it,
/// and continues it.
///
/// Afterwards the session holds the prompt and all tokens made but the last.
///
/// # Errors
/// Where the sampler's options make no sense or a step fails.
pub fn generate(
    session: &mut Session,
    tokenizer: &Tokenizer,
    prompt: Prompt<'_>,
    options: &GenerateOptions,
    sink: &mut dyn Sink,
) -> Result<Generated, EngineError> {
    let mut sampler = Sampler::new(options.sampler.clone())?;
    let mut speaker = Speaker {
        eos_ids: tokenizer.eos_ids(),
        max_tokens: options.max_tokens,
        n_generated: 0,
        decoder: tokenizer.stream(options.special),
        stops: StopMatcher::new(options.stop.clone()),
        sink,
    };
    let start = Instant::now();
    session.check_prompt(prompt.tokens)?;
    let n_reused = session.reuse(prompt.tokens)?;
    let Some(logits) = read(session, prompt, n_reused, speaker.sink)? else {
        return Ok(Generated {
            finish: Finish::Cancelled,
            n_prompt: session.position() - n_reused,
            n_reused,
            n_generated: 0,
            drafts: DraftCounts::default(),
            prefill: start.elapsed(),
            decode: Duration::ZERO,
        });
    };
    let first = sampler.sample(&logits, session.tokens())?;
    let prefill = start.elapsed();
    let mut drafting = Drafting::new(session.drafts(), session);
    let n_leaders = sampler.n_leaders();
    let mut said = speaker.say(first);
    let finish = loop {
        let token = match said {
            ControlFlow::Continue(token) => token,
            ControlFlow::Break(finish) => break finish,
        };
        if session.n_free() == 0 {
            break Finish::ContextFull;
        }
        said = drafting.step(session, token, n_leaders, &mut |next, before| {
            Ok(speaker.say(choose(&mut sampler, next, before)?))
        })?;
    };
    let decode = start.elapsed() - prefill;
    let n_generated = speaker.n_generated;
    let finish = speaker.finish(finish);
    let n_prompt = prompt.tokens.len() - n_reused;
    let drafts = drafting.counts();
    Ok(Generated { finish, n_prompt, n_reused, n_generated, drafts, prefill, decode })
}

/// Evaluates the rest of a prompt; `None` where nobody wants it any more.
fn read(
    session: &mut Session,
    prompt: Prompt<'_>,
    n_reused: usize,
    sink: &mut dyn Sink,
) -> Result<Option<Logits>, EngineError> {
    let mut marks = prompt.marks.to_vec();
    marks.sort_unstable();
    let mut logits = None;
    for part in prompt.tokens[n_reused..].chunks(session.chunk_rows()) {
        if sink.is_cancelled() {
            return Ok(None);
        }
        let n_done = session.position();
        let progress = &mut |n| sink.prompt_progress(n_done + n);
        logits = Some(session.eval_marked(part, &marks, progress)?);
    }
    Ok(logits)
}

fn choose(sampler: &mut Sampler, next: &Next, before: &[TokenId]) -> Result<TokenId, SamplerError> {
    match next {
        Next::Leaders(leaders) => Ok(sampler.sample_leaders(leaders)),
        Next::Logits(logits) => sampler.sample(logits, before),
    }
}

/// Tokens to text, without what stops it.
struct Speaker<'a> {
    eos_ids: &'a [TokenId],
    max_tokens: usize,
    n_generated: usize,
    decoder: StreamDecoder,
    stops: StopMatcher,
    sink: &'a mut dyn Sink,
}

impl Speaker<'_> {
    /// Takes the next token; breaks where it is the last.
    fn say(&mut self, token: TokenId) -> ControlFlow<Finish, TokenId> {
        self.n_generated += 1;
        if self.eos_ids.contains(&token) {
            return ControlFlow::Break(Finish::EndOfText);
        }
        let piece = self.decoder.push(token);
        self.write(&piece)?;
        if self.n_generated >= self.max_tokens {
            return ControlFlow::Break(Finish::MaxTokens);
        }
        if self.sink.is_cancelled() {
            return ControlFlow::Break(Finish::Cancelled);
        }
        ControlFlow::Continue(token)
    }

    fn write(&mut self, piece: &str) -> ControlFlow<Finish> {
        let pushed = self.stops.push(piece);
        if !pushed.emit.is_empty() && self.sink.text(&pushed.emit).is_break() {
            return ControlFlow::Break(Finish::Cancelled);
        }
        if pushed.stopped { ControlFlow::Break(Finish::Stop) } else { ControlFlow::Continue(()) }
    }

    /// Writes what was held back.
    fn finish(mut self, finish: Finish) -> Finish {
        if matches!(finish, Finish::Stop | Finish::Cancelled) {
            return finish;
        }
        let piece = self.decoder.finish();
        if let ControlFlow::Break(earlier) = self.write(&piece) {
            return earlier;
        }
        let rest = self.stops.finish();
        if !rest.emit.is_empty() {
            // The answer has ended; there is nothing left to break off.
            let _ = self.sink.text(&rest.emit);
        }
        finish
    }
}
