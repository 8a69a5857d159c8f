//! From a request, whatever its dialect, to jobs of the scheduler, and back to
//! what the model thinks, says and calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use moeflux::{Order, Sampling};
use moeflux_engine::{
    Answer, EngineError, Event, Finish, SeenPicture, SpeculationStats, TokenLogprob,
};
use moeflux_text::{AnswerReader, ConstraintError, Delta, Prepared};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::access::{self, AnswerCount};
use crate::app::App;
use crate::error::{ApiError, ApiResult, Overflow};
use crate::marked::marked;
use crate::parsed_room;
use crate::settings::Settings;

/// What a client wants to know.
pub(crate) struct PreparedRequest {
    /// What the model reads; read in one way, all of them.
    pub(crate) prompts: Vec<Prepared>,
    /// What the model has seen of the pictures of the only prompt, in their order.
    pub(crate) pictures: Vec<Arc<SeenPicture>>,
    pub(crate) settings: Settings,
    /// Whether the probabilities of the prompts' tokens are wanted, too.
    pub(crate) scores_prompts: bool,
}

impl PreparedRequest {
    /// An answer to one prompt.
    pub(crate) fn of_one(
        prompt: Prepared,
        pictures: Vec<Arc<SeenPicture>>,
        settings: Settings,
    ) -> PreparedRequest {
        PreparedRequest { prompts: vec![prompt], pictures, settings, scores_prompts: false }
    }
}

/// More of an answer.
#[derive(Debug)]
pub(crate) enum Update {
    /// `n_done` tokens of the prompt's `n_total` are evaluated or reused; `n_reused` were cached.
    Prompt { n_done: usize, n_total: usize, n_reused: usize },
    /// Tokens of the prompt, behind its first.
    Scored(Vec<TokenLogprob>),
    /// Text, taken apart.
    Deltas(Vec<Delta>, Vec<TokenLogprob>),
    /// The end, and what was held back until then.
    Done(Vec<Delta>, Answer),
    /// It will not come.
    Failed(ApiError),
}

/// Answers on their way. Dropped, they are not wanted any more.
pub(crate) struct PendingAnswers {
    app: Arc<App>,
    events: UnboundedReceiver<(usize, Event)>,
    readers: Vec<AnswerReader>,
    n_open: usize,
    cancelled: Arc<AtomicBool>,
    /// Tokens of the first prompt.
    n_prompt: usize,
    may_think: bool,
}

/// Queues what a client wants.
pub(crate) fn submit(app: &Arc<App>, ask: PreparedRequest) -> ApiResult<PendingAnswers> {
    let ctx = app.loaded.engine().plan().ctx;
    let (sender, events) = mpsc::unbounded_channel();
    let cancelled = Arc::new(AtomicBool::new(false));
    let (mut orders, mut readers) = (Vec::new(), Vec::new());
    let record = access::current();
    let PreparedRequest { prompts, pictures, settings, scores_prompts } = ask;
    if !settings.names_temperature
        && let Some(note) = Sampling::note(app.text.tokenizer().generation_defaults())
    {
        app.log_once(&format!("{note}; requests may name a temperature"));
    }
    let n_prompt = prompts.first().map_or(0, |prompt| prompt.turn.tokens.len());
    let may_think = prompts.first().is_some_and(|prompt| prompt.may_think);
    for prompt in &prompts {
        let n_prompt = prompt.turn.tokens.len();
        if n_prompt >= ctx {
            return Err(ApiError::too_long(Overflow { n_prompt, is_exact: true, ctx }));
        }
        if app.options().log_prompts {
            app.log(&marked(app.text.tokenizer(), &prompt.turn.tokens));
        }
        for i in 0..settings.n {
            let (index, sender) = (orders.len(), sender.clone());
            let mut count = record.clone().map(|record| AnswerCount::new(record, i == 0));
            // The send fails after the receiver is dropped, which cancels the answer.
            let listener = move |event| {
                if let Some(count) = &mut count {
                    count.note(&event);
                }
                drop(sender.send((index, event)));
            };
            readers.push(prompt.reader.clone());
            orders.push(Order {
                prepared: prompt.clone(),
                pictures: pictures.clone(),
                settings: settings.of_answer(i, app.options().max_tokens),
                keeps_answer: true,
                scores_prompt: scores_prompts,
                owner: record.as_ref().and_then(|record| record.owner()),
                cancelled: Arc::clone(&cancelled),
                listener: Box::new(listener),
            });
        }
    }
    let n_open = orders.len();
    parsed_room::give_up();
    let n_tokens = prompts.iter().map(|prompt| prompt.turn.tokens.len()).sum();
    record.as_ref().map_or(Ok(()), |record| record.take(n_open, n_tokens, &app.common))?;
    app.loaded.submit(orders).inspect_err(|_| {
        record.inspect(|record| record.give_back(n_tokens));
        app.common.metrics.refused();
    })?;
    let app = Arc::clone(app);
    Ok(PendingAnswers { app, events, readers, n_open, cancelled, n_prompt, may_think })
}

impl PendingAnswers {
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
        reader: AnswerReader,
        n_prompt: usize,
        may_think: bool,
    ) -> PendingAnswers {
        let (readers, cancelled) = (vec![reader], Arc::default());
        let (app, n_open) = (Arc::clone(app), 1);
        PendingAnswers { app, events, readers, n_open, cancelled, n_prompt, may_think }
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
            Event::Scored(tokens) => return Update::Scored(tokens),
            Event::Text(piece) => {
                return Update::Deltas(self.readers[i].push(&piece.text), piece.logprobs);
            }
            Event::Done(answer) if answer.finish == Finish::Cancelled => {
                Update::Failed(ApiError::shutting_down())
            }
            Event::Done(answer) => {
                self.app.common.metrics.answered(&answer);
                Update::Done(self.readers[i].finish(), answer)
            }
            Event::Failed(err) => {
                self.app.common.metrics.failed();
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

impl Drop for PendingAnswers {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct WholeAnswer {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    /// Names and arguments.
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// Tokens of the prompt, behind its first.
    pub(crate) scored: Vec<TokenLogprob>,
    pub(crate) answer: Option<Answer>,
}

impl WholeAnswer {
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
pub(crate) async fn collect(mut answers: PendingAnswers) -> ApiResult<Vec<WholeAnswer>> {
    let mut all = vec![WholeAnswer::default(); answers.readers.len()];
    while let Some((i, update)) = answers.next().await {
        match update {
            Update::Prompt { .. } => {}
            Update::Scored(tokens) => all[i].scored.extend(tokens),
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
    /// Those of them that are thoughts.
    pub(crate) n_thought: usize,
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
        self.n_thought += answer.n_thought;
        self.speculation += answer.speculation;
    }
}
