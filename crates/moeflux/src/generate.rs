//! From a prompt to an answer.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use moeflux_engine::{DecodingOptions, EngineError, Job, Listener, SubmitError};
use moeflux_text::{Message, Prepared};

use crate::answer::Answer;
use crate::error::Error;
use crate::request::{Request, Settings};
use crate::shared::Shared;

/// An answer to be made whose events its caller receives as they come: for servers, and for other
/// programs that wait for many answers at a time. [`Model::answer`](crate::Model::answer) is simpler.
pub struct Order {
    /// The prompt.
    pub prepared: Prepared,
    /// How tokens are chosen.
    pub settings: Settings,
    /// Whether the prompt cache keeps the answer with the prompt, for a conversation that goes on.
    pub keeps_answer: bool,
    /// Whether the probabilities of the prompt's tokens are reported, as
    /// [`Settings::top_logprobs`](crate::Settings) says.
    pub scores_prompt: bool,
    /// Whose order it is: owners get sessions in turns.
    pub owner: Option<Arc<str>>,
    /// The caller sets it to end the answer.
    pub cancelled: Arc<AtomicBool>,
    /// Receives the events on the model's thread. It must not block.
    pub listener: Listener,
}

/// What an answer has to do with others.
#[derive(Clone, Debug, Default)]
pub struct AnswerOptions {
    /// Whether no conversation goes on from here: the prompt cache keeps the prompt alone.
    pub is_last: bool,
    /// Ends the answer where another thread sets it.
    pub cancelled: Arc<AtomicBool>,
}

/// Answers a prompt that has been prepared.
pub(crate) fn answer_prepared(
    shared: &Arc<Shared>,
    prepared: Prepared,
    settings: Settings,
    options: AnswerOptions,
) -> Result<Answer<'static>, Error> {
    let (sender, events) = mpsc::channel();
    let AnswerOptions { is_last, cancelled } = options;
    let reader = prepared.reader.clone();
    let order = Order {
        prepared,
        settings,
        keeps_answer: !is_last,
        scores_prompt: false,
        owner: None,
        cancelled: Arc::clone(&cancelled),
        // An answer that was dropped receives nothing.
        listener: Box::new(move |event| drop(sender.send(event))),
    };
    submit(shared, vec![order])?;
    Ok(Answer::new(Arc::clone(shared), events, reader, cancelled))
}

/// Queues answers, all or none of them.
pub(crate) fn submit(shared: &Shared, orders: Vec<Order>) -> Result<(), SubmitError> {
    shared.scheduler.submit_all(orders.into_iter().map(Order::into_job).collect())
}

/// Reads a conversation as the model does.
pub(crate) fn prepare(
    shared: &Shared,
    messages: &[Message],
    request: &Request,
) -> Result<Prepared, Error> {
    let conversation = request.conversation(messages);
    shared.text.prepare(&conversation).map_err(|err| shared.refusal(err))
}

/// Queues a prompt; its answer belongs to `chat` where there is one.
pub(crate) fn start<'chat>(
    shared: &Arc<Shared>,
    prepared: Prepared,
    request: &Request,
    chat: Option<&'chat mut Vec<Message>>,
) -> Result<Answer<'chat>, Error> {
    if prepared.turn.tokens.is_empty() {
        return Err(EngineError::EmptyPrompt.into());
    }
    let settings = request.settings(shared.text.tokenizer());
    let options = AnswerOptions::default();
    Ok(answer_prepared(shared, prepared, settings, options)?.of_chat(chat))
}

impl Order {
    fn into_job(self) -> Job {
        let Order { prepared, settings, keeps_answer, scores_prompt, owner, cancelled, listener } =
            self;
        let Prepared { turn, expected, constraint, no_calls, thoughts, shown, .. } = prepared;
        let Settings { max_tokens, stop, sampling, bias, top_logprobs } = settings;
        let sampler = sampling;
        let decoding = DecodingOptions {
            max_tokens,
            stop,
            sampler,
            bias,
            constraint,
            no_calls,
            thoughts,
            shown,
            top_logprobs,
            reports_end: scores_prompt,
            expected,
        };
        let prompt_logprobs = top_logprobs.filter(|_| scores_prompt);
        Job { prompt: turn, decoding, keeps_answer, prompt_logprobs, owner, cancelled, listener }
    }
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Order").field("settings", &self.settings).finish_non_exhaustive()
    }
}
