//! From a prompt to an answer.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use moeflux_engine::{DecodingOptions, EngineError, Job, Listener, SubmitError};
use moeflux_text::{Markup, Message, Prepared};

use crate::answer::Answer;
use crate::error::Error;
use crate::model::Model;
use crate::request::{Request, Settings};

/// An answer to be made whose events its caller receives as they come: for servers, and for other
/// programs that wait for many answers at a time. [`Model::answer`] is simpler.
pub struct Order {
    /// The prompt.
    pub prepared: Prepared,
    /// How tokens are chosen.
    pub settings: Settings,
    /// Whether the prompt cache keeps the answer with the prompt, for a conversation that goes on.
    pub keeps_answer: bool,
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

impl Model {
    /// Answers a conversation, which the caller keeps: the answer is owned and may go to
    /// any thread. What the conversation has in common with earlier ones is not evaluated again.
    ///
    /// ```no_run
    /// use moeflux::{Message, Model, Request};
    ///
    /// # fn main() -> Result<(), moeflux::Error> {
    /// let model = Model::open("models/qwen3.6-35b-a3b")?;
    /// let messages = [Message::new("user", "Why is the sky blue?")];
    /// println!("{}", model.answer(&messages, &Request::default())?.text()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Where the template refuses the messages, they are longer than the context, or the request's
    /// tools or schema cannot be used.
    pub fn answer(
        &self,
        messages: &[Message],
        request: &Request,
    ) -> Result<Answer<'static>, Error> {
        let prepared = self.prepare(messages, request)?;
        self.start(prepared, request, None)
    }

    /// Continues a text, without a chat template. Control tokens in `prompt` are read as text;
    /// what a [`Request`] says of tools and thinking does not apply.
    ///
    /// # Errors
    /// Where the prompt has no tokens or more than the context, or the format is no usable schema.
    pub fn generate(&self, prompt: &str, request: &Request) -> Result<Answer<'static>, Error> {
        let shape = request.format.shape();
        let prepared = self.text().prepare_text(prompt, Markup::Literal, &shape);
        self.start(prepared.map_err(|err| self.refusal(err))?, request, None)
    }

    /// Answers a prompt that has been prepared: for programs that look at it, or change how its answer
    /// is read, before.
    ///
    /// # Errors
    /// Where too many answers wait already, or the model's thread has ended.
    pub fn answer_prepared(
        &self,
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
            cancelled: Arc::clone(&cancelled),
            // An answer that was dropped receives nothing.
            listener: Box::new(move |event| drop(sender.send(event))),
        };
        self.submit(vec![order])?;
        Ok(Answer::new(self.clone(), events, reader, cancelled))
    }

    /// Queues answers, all or none of them.
    ///
    /// # Errors
    /// Where too many wait already, or the model's thread has ended.
    pub fn submit(&self, orders: Vec<Order>) -> Result<(), SubmitError> {
        self.scheduler().submit_all(orders.into_iter().map(Order::into_job).collect())
    }

    /// Reads a conversation as the model does.
    pub(crate) fn prepare(
        &self,
        messages: &[Message],
        request: &Request,
    ) -> Result<Prepared, Error> {
        let conversation = request.conversation(messages);
        self.text().prepare(&conversation).map_err(|err| self.refusal(err))
    }

    /// Queues a prompt; its answer belongs to `chat` where there is one.
    pub(crate) fn start<'chat>(
        &self,
        prepared: Prepared,
        request: &Request,
        chat: Option<&'chat mut Vec<Message>>,
    ) -> Result<Answer<'chat>, Error> {
        if prepared.turn.tokens.is_empty() {
            return Err(EngineError::EmptyPrompt.into());
        }
        let settings = request.settings(self.text().tokenizer());
        Ok(self.answer_prepared(prepared, settings, AnswerOptions::default())?.of_chat(chat))
    }
}

impl Order {
    fn into_job(self) -> Job {
        let Order { prepared, settings, keeps_answer, cancelled, listener } = self;
        let Prepared { turn, expected, constraint, no_calls, shown, .. } = prepared;
        let Settings { max_tokens, stop, sampling, bias, top_logprobs } = settings;
        let sampler = sampling;
        let decoding = DecodingOptions {
            max_tokens,
            stop,
            sampler,
            bias,
            constraint,
            no_calls,
            shown,
            top_logprobs,
            expected,
        };
        Job { prompt: turn, decoding, keeps_answer, cancelled, listener }
    }
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Order").field("settings", &self.settings).finish_non_exhaustive()
    }
}
