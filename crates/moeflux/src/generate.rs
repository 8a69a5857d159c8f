//! From a prompt to an answer.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use moeflux_engine::{DecodingOptions, EngineError, Job, Listener, SeenPicture, SubmitError};
use moeflux_text::{Message, Prepared};

use crate::answer::Answer;
use crate::error::Error;
use crate::pictures::pictures_of;
use crate::request::{Request, Settings};
use crate::shared::Shared;

/// An answer to be made whose events its caller receives as they come: for servers, and for other
/// programs that wait for many answers at a time. [`Model::answer`](crate::Model::answer) is simpler.
pub struct Order {
    /// The prompt.
    pub prepared: Prepared,
    /// What the model's tower has made of its pictures, in their order.
    pub pictures: Vec<Arc<SeenPicture>>,
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

/// Called on the model's thread when there is more of an answer to receive. It must not block.
pub type News = Arc<dyn Fn() + Send + Sync>;

/// What an answer has to do with others.
#[derive(Clone, Default)]
pub struct AnswerOptions {
    /// Whether no conversation goes on from here: the prompt cache keeps the prompt alone.
    pub is_last: bool,
    /// Ends the answer where another thread sets it.
    pub cancelled: Arc<AtomicBool>,
    /// For programs that wait for other things as well: see [`Answer::wait`].
    pub news: Option<News>,
}

impl std::fmt::Debug for AnswerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnswerOptions").field("is_last", &self.is_last).finish_non_exhaustive()
    }
}

/// A prompt that has been prepared, and how it is answered.
pub struct Ask {
    /// The prompt.
    pub prepared: Prepared,
    /// What the model's tower has made of its pictures, in their order.
    pub pictures: Vec<Arc<SeenPicture>>,
    /// How tokens are chosen.
    pub settings: Settings,
    /// What the answer has to do with others.
    pub options: AnswerOptions,
}

/// Answers prompts that have been prepared, all or none of them.
pub(crate) fn answer_all(
    shared: &Arc<Shared>,
    asks: Vec<Ask>,
) -> Result<Vec<Answer<'static>>, Error> {
    let (mut orders, mut answers) = (Vec::new(), Vec::new());
    for Ask { prepared, pictures, settings, options } in asks {
        if prepared.turn.tokens.is_empty() {
            return Err(EngineError::EmptyPrompt.into());
        }
        let vocab = shared.engine.shape().vocab;
        let wrong = settings.bias.tokens.iter().find(|(token, _)| token.0 as usize >= vocab);
        if let Some(&(token, _)) = wrong {
            return Err(EngineError::TokenOutOfRange { token, vocab }.into());
        }
        let (sender, events) = mpsc::channel();
        let AnswerOptions { is_last, cancelled, news } = options;
        let reader = prepared.reader.clone();
        orders.push(Order {
            prepared,
            pictures,
            settings,
            keeps_answer: !is_last,
            scores_prompt: false,
            owner: None,
            cancelled: Arc::clone(&cancelled),
            listener: Box::new(move |event| {
                // An answer that was dropped receives nothing.
                drop(sender.send(event));
                news.iter().for_each(|news| news());
            }),
        });
        answers.push(Answer::new(Arc::clone(shared), events, reader, cancelled));
    }
    submit(shared, orders)?;
    Ok(answers)
}

/// Answers a prompt that has been prepared.
pub(crate) fn answer_prepared(
    shared: &Arc<Shared>,
    prepared: Prepared,
    settings: Settings,
    options: AnswerOptions,
) -> Result<Answer<'static>, Error> {
    let mut answers =
        answer_all(shared, vec![Ask { prepared, pictures: Vec::new(), settings, options }])?;
    Ok(answers.remove(0))
}

/// Queues answers, all or none of them.
pub(crate) fn submit(shared: &Shared, orders: Vec<Order>) -> Result<(), SubmitError> {
    shared.scheduler.submit_all(orders.into_iter().map(Order::into_job).collect())
}

/// A prompt, and the pictures whose rows it has.
pub(crate) struct PreparedPictures {
    pub(crate) prepared: Prepared,
    pub(crate) pictures: Vec<Arc<SeenPicture>>,
}

impl From<Prepared> for PreparedPictures {
    fn from(prepared: Prepared) -> PreparedPictures {
        PreparedPictures { prepared, pictures: Vec::new() }
    }
}

/// Reads a conversation as the model does.
pub(crate) fn prepare(
    shared: &Shared,
    messages: &[Message],
    request: &Request,
) -> Result<PreparedPictures, Error> {
    let pictures = pictures_of(messages, &request.pictures)?;
    let conversation = request.conversation(messages, &pictures);
    let prepared = shared.text.prepare(&conversation).map_err(|err| shared.refusal(err))?;
    Ok(PreparedPictures { prepared, pictures })
}

/// Queues a prompt; its answer belongs to `chat` where there is one.
pub(crate) fn start<'chat>(
    shared: &Arc<Shared>,
    prepared: impl Into<PreparedPictures>,
    request: &Request,
    chat: Option<&'chat mut Vec<Message>>,
) -> Result<Answer<'chat>, Error> {
    let PreparedPictures { prepared, pictures } = prepared.into();
    let settings = request.settings(shared.text.tokenizer());
    let options = AnswerOptions::default();
    let mut answers = answer_all(shared, vec![Ask { prepared, pictures, settings, options }])?;
    Ok(answers.remove(0).of_chat(chat))
}

impl Order {
    fn into_job(self) -> Job {
        let Order { prepared, pictures, settings, keeps_answer, scores_prompt, .. } = self;
        let Order { owner, cancelled, listener, .. } = self;
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
        Job {
            prompt: turn,
            pictures,
            decoding,
            keeps_answer,
            prompt_logprobs,
            owner,
            cancelled,
            listener,
        }
    }
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Order").field("settings", &self.settings).finish_non_exhaustive()
    }
}
