//! From a request, whatever its dialect, to jobs of the scheduler, and back to
//! what the model thinks, says and calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use moeflux_engine::{
    Answer, EngineError, Event, Finish, Job, SpeculationStats, TokenId, TokenLogprob,
};
use moeflux_text::{Constraint, ConstraintError, Delta, NoCalls, OutputFormat, OutputParser, Turn};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::app::App;
use crate::error::{ApiError, ApiResult, Overflow};
use crate::log::log;
use crate::marked::marked;
use crate::settings::Settings;
use crate::tool_names::ToolNames;

/// What a client wants to know.
pub(crate) struct Ask {
    pub(crate) prompts: Vec<Turn>,
    /// What answers are expected to hold much of.
    pub(crate) expected: Arc<[TokenId]>,
    pub(crate) settings: Settings,
    pub(crate) format: OutputFormat,
    pub(crate) constraint: Option<Constraint>,
    /// Rules out calls of tools, where there are none to call.
    pub(crate) no_calls: Option<NoCalls>,
    /// Takes an answer apart.
    pub(crate) parser: OutputParser,
    /// Tools that the model knows under other names than the client.
    pub(crate) tool_names: ToolNames,
    /// Whether answers are expected to begin with thoughts.
    pub(crate) may_think: bool,
}

/// More of an answer.
#[derive(Debug)]
pub(crate) enum Update {
    /// `n_done` tokens of the prompt's `n_total` are evaluated or reused; `n_reused` were cached.
    Prompt { n_done: usize, n_total: usize, n_reused: usize },
    /// Text, taken apart.
    Deltas(Vec<Delta>, Vec<TokenLogprob>),
    /// The end, and what was held back until then.
    Done(Vec<Delta>, Answer),
    /// It will not come.
    Failed(ApiError),
}

/// Answers on their way. Dropped, they are not wanted any more.
pub(crate) struct Answers {
    app: Arc<App>,
    events: UnboundedReceiver<(usize, Event)>,
    parsers: Vec<OutputParser>,
    tool_names: ToolNames,
    n_open: usize,
    cancelled: Arc<AtomicBool>,
    /// Tokens of the first prompt.
    n_prompt: usize,
    may_think: bool,
}

/// Queues what a client wants.
pub(crate) fn submit(app: &Arc<App>, ask: Ask) -> ApiResult<Answers> {
    let ctx = app.engine.plan().ctx;
    let (sender, events) = mpsc::unbounded_channel();
    let cancelled = Arc::new(AtomicBool::new(false));
    let mut jobs = Vec::new();
    let Ask { prompts, expected, settings, format, constraint, no_calls, .. } = ask;
    let Ask { parser, tool_names, may_think, .. } = ask;
    let n_first_prompt = prompts.first().map_or(0, |prompt| prompt.tokens.len());
    for prompt in &prompts {
        let n_prompt = prompt.tokens.len();
        if n_prompt >= ctx {
            return Err(ApiError::too_long(Overflow { n_prompt, is_exact: true, ctx }));
        }
        if app.options.log_prompts {
            log(&marked(&app.tokenizer, &prompt.tokens));
        }
        for i in 0..settings.n {
            let (index, sender) = (jobs.len(), sender.clone());
            // The send fails after the receiver is dropped, which cancels the answer.
            let listener = move |event| drop(sender.send((index, event)));
            let limit = [settings.max_tokens, app.options.max_tokens];
            jobs.push(Job {
                prompt: prompt.clone(),
                expected: Arc::clone(&expected),
                max_tokens: limit.into_iter().flatten().min(),
                stop: settings.stop.clone(),
                sampler: settings.sampler.of_answer(i as u64),
                bias: settings.bias.clone(),
                constraint: constraint.clone(),
                no_calls: no_calls.clone(),
                shown: format.shown(),
                top_logprobs: settings.top_logprobs,
                cancelled: Arc::clone(&cancelled),
                listener: Box::new(listener),
            });
        }
    }
    let n_open = jobs.len();
    app.scheduler.submit_all(jobs).inspect_err(|_| app.metrics.refused())?;
    let parsers = vec![parser; n_open];
    let (app, n_prompt) = (Arc::clone(app), n_first_prompt);
    Ok(Answers { app, events, parsers, tool_names, n_open, cancelled, n_prompt, may_think })
}

impl Answers {
    /// Tokens of the prompt.
    pub(crate) fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    /// Whether answers are expected to begin with thoughts.
    pub(crate) fn may_think(&self) -> bool {
        self.may_think
    }

    /// One answer whose events come from a test.
    #[cfg(test)]
    pub(crate) fn of_events(
        app: &Arc<App>,
        events: UnboundedReceiver<(usize, Event)>,
        parser: OutputParser,
        n_prompt: usize,
        may_think: bool,
    ) -> Answers {
        let (parsers, cancelled, tool_names) = (vec![parser], Arc::default(), ToolNames::default());
        let (app, n_open) = (Arc::clone(app), 1);
        Answers { app, events, parsers, tool_names, n_open, cancelled, n_prompt, may_think }
    }

    /// The next of any answer; `None` when all have ended.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Update)>> {
        if self.n_open == 0 {
            return Poll::Ready(None);
        }
        match self.events.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some((i, event))) => Poll::Ready(Some((i, self.update(i, event)))),
            // The engine's thread has died.
            Poll::Ready(None) => {
                self.n_open = 0;
                let error = ApiError::internal("the engine has stopped");
                Poll::Ready(Some((0, Update::Failed(error))))
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Option<(usize, Update)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn update(&mut self, i: usize, event: Event) -> Update {
        let ended = match event {
            Event::Prompt { n_done, n_total, n_reused } => {
                return Update::Prompt { n_done, n_total, n_reused };
            }
            Event::Text(piece) => {
                let mut deltas = self.parsers[i].push(&piece.text);
                self.tool_names.restore(&mut deltas);
                return Update::Deltas(deltas, piece.logprobs);
            }
            Event::Done(answer) if answer.finish == Finish::Cancelled => {
                Update::Failed(ApiError::shutting_down())
            }
            Event::Done(answer) => {
                self.app.metrics.answered(&answer);
                let mut deltas = self.parsers[i].finish();
                self.tool_names.restore(&mut deltas);
                Update::Done(deltas, answer)
            }
            Event::Failed(err) => {
                self.app.metrics.failed();
                Update::Failed(failure(&err))
            }
        };
        self.n_open -= 1;
        ended
    }
}

/// Why an answer failed. A grammar gives up where the client's schema is too large for it.
fn failure(err: &EngineError) -> ApiError {
    match err {
        EngineError::Constraint(ConstraintError::Step(_)) => {
            let message = format!("a JSON schema of the request is too large: {err}");
            ApiError::new(hyper::StatusCode::BAD_REQUEST, message)
        }
        _ => ApiError::internal(err.to_string()),
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whole {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    /// Names and arguments.
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) answer: Option<Answer>,
}

impl Whole {
    pub(crate) fn add(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => self.reasoning.push_str(&text),
                Delta::Content(text) => self.content.push_str(&text),
                Delta::Call { name } => self.calls.push((name, String::new())),
                Delta::Arguments(text) => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        arguments.push_str(&text);
                    }
                }
            }
        }
    }
}

/// Waits for all answers to end.
pub(crate) async fn collect(mut answers: Answers) -> ApiResult<Vec<Whole>> {
    let mut all = vec![Whole::default(); answers.parsers.len()];
    while let Some((i, update)) = answers.next().await {
        match update {
            Update::Prompt { .. } => {}
            Update::Deltas(deltas, logprobs) => {
                all[i].add(deltas);
                all[i].logprobs.extend(logprobs);
            }
            Update::Done(deltas, answer) => {
                all[i].add(deltas);
                all[i].answer = Some(answer);
            }
            Update::Failed(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Tokens that answers took, added up; a prompt counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) n_prompt: usize,
    pub(crate) n_reused: usize,
    pub(crate) n_generated: usize,
    /// Of all answers.
    pub(crate) speculation: SpeculationStats,
}

impl Usage {
    /// Adds answer `i` of a request with `n` answers to each prompt.
    pub(crate) fn add(&mut self, i: usize, n: usize, answer: &Answer) {
        if i.is_multiple_of(n) {
            self.n_prompt += answer.n_prompt;
            self.n_reused += answer.n_reused;
        }
        self.n_generated += answer.n_generated;
        self.speculation += answer.speculation;
    }
}
