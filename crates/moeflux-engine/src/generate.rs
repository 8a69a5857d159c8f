//! Generates text for a prompt and passes it on piece by piece.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;
use moeflux_text::{NoCalls, Special, StopMatcher, StreamDecoder, Tokenizer};

use crate::decoding::{Finish, choose, n_top, without};
use crate::engine::step::{Logits, RowLogits};
use crate::error::EngineError;
use crate::sampler::{self, Sampler, SamplerOptions};
use crate::session::{Prompt, Session};
use crate::speculation::decode::{Chooser, SpeculativeDecoder};
use crate::speculation::options::SpeculationStats;

/// Options of [`generate`].
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// The most tokens of the answer; where absent, what the context has room for.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub sampler: SamplerOptions,
    /// Whether the text shows special tokens.
    pub special: Special,
    /// Rules out calls of tools, where none were offered.
    pub no_calls: Option<NoCalls>,
}

impl Default for GenerateOptions {
    /// Greedy, as long as the context allows.
    fn default() -> Self {
        Self {
            max_tokens: None,
            stop: Vec::new(),
            sampler: SamplerOptions::default(),
            special: Special::Hide,
            no_calls: None,
        }
    }
}

/// Statistics of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt that were evaluated.
    pub n_prompt: usize,
    /// Tokens of the prompt that needed no evaluation.
    pub n_reused: usize,
    /// Tokens generated, an end-of-text token included.
    pub n_generated: usize,
    /// Tokens drafted and accepted.
    pub speculation: SpeculationStats,
    /// Time until the first token was chosen.
    pub prefill: Duration,
    /// Time of all tokens after the first.
    pub decode: Duration,
}

impl Generated {
    /// Prompt tokens a second.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.n_prompt, self.prefill)
    }

    /// Generated tokens a second, the first not counted.
    pub fn decode_rate(&self) -> f64 {
        rate(self.n_generated.saturating_sub(1), self.decode)
    }
}

fn rate(n: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() }
}

/// Receives an answer while it is generated.
pub trait Sink {
    /// Called after each chunk of the prompt with the number of tokens done, reused ones
    /// included.
    fn prompt_progress(&mut self, _n_done: usize) {}

    /// Whether the answer is to end now. Called between chunks of the prompt, and before each
    /// token.
    fn is_cancelled(&mut self) -> bool {
        false
    }

    /// Whether [`chosen`](Sink::chosen) is to be called for the next token. The probability of a
    /// token takes a look at all logits.
    fn wants_logprob(&self) -> bool {
        false
    }

    /// Receives the natural logarithm of the probability of a token, among those that may be
    /// chosen, before its text.
    fn chosen(&mut self, _logprob: f32) {}

    /// Receives text that no stop text can remove any more. Breaks to end the answer.
    fn text(&mut self, piece: &str) -> ControlFlow<()>;
}

/// Evaluates `prompt` in a session and generates an answer. Tokens of the prompt that the session
/// or the prefix cache holds are reused.
///
/// Afterwards the session holds the prompt and all generated tokens but the last.
///
/// # Errors
/// Where the sampler's options are invalid or a step fails.
pub fn generate(
    session: &mut Session,
    tokenizer: &Tokenizer,
    prompt: Prompt<'_>,
    options: &GenerateOptions,
    sink: &mut dyn Sink,
) -> Result<Generated, EngineError> {
    let mut writer = AnswerWriter::new(tokenizer, options, sink)?;
    let start = Instant::now();
    session.check_prompt(prompt.tokens)?;
    let n_reused = session.match_prefix(prompt.tokens)?;
    let Some(logits) = prefill(session, prompt, n_reused, writer.stream.sink)? else {
        return Ok(Generated {
            finish: Finish::Cancelled,
            n_prompt: session.position() - n_reused,
            n_reused,
            n_generated: 0,
            speculation: SpeculationStats::default(),
            prefill: start.elapsed(),
            decode: Duration::ZERO,
        });
    };
    let first = writer.token(&mut RowLogits::All(logits), session.tokens())?;
    let prefill = start.elapsed();
    let n_prompt = prompt.tokens.len() - n_reused;
    let answer = decode(session, first, writer)?;
    Ok(Generated { n_prompt, n_reused, prefill, ..answer })
}

/// Generates an answer to what a session holds, from the logits after its last row, such as those
/// of [`Session::eval_rows`]. Afterwards the session holds all generated tokens but the last, too.
///
/// # Errors
/// As [`generate`].
pub fn generate_after(
    session: &mut Session,
    tokenizer: &Tokenizer,
    logits: &Logits,
    options: &GenerateOptions,
    sink: &mut dyn Sink,
) -> Result<Generated, EngineError> {
    let start = Instant::now();
    let mut writer = AnswerWriter::new(tokenizer, options, sink)?;
    let first = writer.token(&mut RowLogits::All(logits.clone()), session.tokens())?;
    let prefill = start.elapsed();
    Ok(Generated { prefill, ..decode(session, first, writer)? })
}

/// Generates the rest of an answer that begins with a token; says nothing about its prompt.
fn decode(
    session: &mut Session,
    first: TokenId,
    mut writer: AnswerWriter<'_>,
) -> Result<Generated, EngineError> {
    let start = Instant::now();
    let mut decoder = SpeculativeDecoder::new(session.engine.speculation(), session);
    let mut pushed = writer.stream.push(first);
    let finish = loop {
        let token = match pushed {
            ControlFlow::Continue(token) => token,
            ControlFlow::Break(finish) => break finish,
        };
        if session.n_free() == 0 {
            break Finish::ContextFull;
        }
        pushed = decoder.step(session, token, &mut writer)?;
    };
    let stream = writer.stream;
    Ok(Generated {
        n_prompt: 0,
        n_reused: 0,
        n_generated: stream.n_generated,
        finish: stream.finish(finish),
        speculation: decoder.stats(),
        prefill: Duration::ZERO,
        decode: start.elapsed(),
    })
}

/// Evaluates the rest of a prompt; `None` where the sink cancels it.
fn prefill(
    session: &mut Session,
    prompt: Prompt<'_>,
    n_reused: usize,
    sink: &mut dyn Sink,
) -> Result<Option<Logits>, EngineError> {
    let mut checkpoints = prompt.checkpoints.to_vec();
    checkpoints.sort_unstable();
    let mut logits = None;
    let _requested = session.request_rows(&prompt.tokens[n_reused..]);
    for chunk in prompt.tokens[n_reused..].chunks(session.chunk_rows()) {
        if sink.is_cancelled() {
            return Ok(None);
        }
        let n_done = session.position();
        let progress = &mut |n| sink.prompt_progress(n_done + n);
        logits = Some(session.eval_with_checkpoints(chunk, &checkpoints, progress)?);
    }
    Ok(logits)
}

/// Chooses the tokens of an answer and passes their text on.
struct AnswerWriter<'a> {
    sampler: Sampler,
    no_calls: Option<NoCalls>,
    stream: TextStream<'a>,
}

impl<'a> AnswerWriter<'a> {
    /// # Errors
    /// Where the sampler's options are invalid.
    fn new(
        tokenizer: &'a Tokenizer,
        options: &GenerateOptions,
        sink: &'a mut dyn Sink,
    ) -> Result<AnswerWriter<'a>, EngineError> {
        let sampler = Sampler::new(options.sampler.clone())?;
        let no_calls = options.no_calls.clone();
        Ok(AnswerWriter { sampler, no_calls, stream: TextStream::new(tokenizer, options, sink) })
    }

    /// The token after a text.
    fn token(
        &mut self,
        logits: &mut RowLogits,
        before: &[TokenId],
    ) -> Result<TokenId, EngineError> {
        let token = choose(&mut self.sampler, self.no_calls.as_ref(), logits, before)?;
        if let RowLogits::All(logits) = logits
            && self.stream.sink.wants_logprob()
        {
            let logprob = |logits: &[f32]| sampler::logprob(logits, token);
            self.stream.sink.chosen(without(logits, self.no_calls.as_ref(), logprob)?);
        }
        if let Some(no_calls) = &mut self.no_calls {
            no_calls.accept(token);
        }
        Ok(token)
    }
}

impl Chooser<Finish> for AnswerWriter<'_> {
    fn n_top(&self, draft: &[TokenId]) -> Option<usize> {
        let n = self.sampler.n_top().filter(|_| !self.stream.sink.wants_logprob());
        n_top(n, self.no_calls.as_ref(), draft)
    }

    fn choose(
        &mut self,
        logits: &mut RowLogits,
        before: &[TokenId],
    ) -> Result<ControlFlow<Finish, TokenId>, EngineError> {
        let token = self.token(logits, before)?;
        Ok(self.stream.push(token))
    }
}

/// Decodes tokens to text and ends at a stop text.
struct TextStream<'a> {
    eos_ids: &'a [TokenId],
    max_tokens: Option<usize>,
    n_generated: usize,
    decoder: StreamDecoder,
    stops: StopMatcher,
    sink: &'a mut dyn Sink,
}

impl<'a> TextStream<'a> {
    fn new(
        tokenizer: &'a Tokenizer,
        options: &GenerateOptions,
        sink: &'a mut dyn Sink,
    ) -> TextStream<'a> {
        TextStream {
            eos_ids: tokenizer.eos_ids(),
            max_tokens: options.max_tokens,
            n_generated: 0,
            decoder: tokenizer.stream(options.special),
            stops: StopMatcher::new(options.stop.clone()),
            sink,
        }
    }

    /// Appends a token; breaks where the answer ends with it.
    fn push(&mut self, token: TokenId) -> ControlFlow<Finish, TokenId> {
        self.n_generated += 1;
        if self.eos_ids.contains(&token) {
            return ControlFlow::Break(Finish::EndOfText);
        }
        let piece = self.decoder.push(token);
        self.write(&piece)?;
        if self.max_tokens.is_some_and(|max| self.n_generated >= max) {
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

    /// Writes text that was held back because a stop text might have begun in it.
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
            // The answer has ended anyway.
            let _ = self.sink.text(&rest.emit);
        }
        finish
    }
}
