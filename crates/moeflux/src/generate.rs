//! From a prompt to an answer.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};

use moeflux_core::TokenId;
use moeflux_engine::sampler::SamplerOptions;
use moeflux_engine::{Bias, EngineError, Event, Job};
use moeflux_text::{Constraint, Markup, Message, NoCalls, OutputFormat, OutputParser, Turn};

use crate::answer::Answer;
use crate::error::Error;
use crate::model::Model;
use crate::request::Request;

/// A prompt and how its answer is read.
pub(crate) struct Prepared {
    pub(crate) turn: Turn,
    pub(crate) parser: OutputParser,
    pub(crate) constraint: Option<Constraint>,
    pub(crate) no_calls: Option<NoCalls>,
    pub(crate) shown: Arc<[TokenId]>,
}

impl Model {
    /// Continues a text, without a chat template. Control tokens in `prompt` are read as text;
    /// [`Request::tools`] and [`Request::thinking`] do not apply.
    ///
    /// # Errors
    /// Where the prompt has no tokens or more than the context, or the format is no usable schema.
    pub fn generate(&self, prompt: &str, request: &Request) -> Result<Answer<'static>, Error> {
        let max_tokens = self.max_prompt();
        let tokens = self.tokenizer().encode_prompt(prompt, Markup::Literal, max_tokens)?;
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt.into());
        }
        let format = OutputFormat::plain();
        let parser = OutputParser::new(&format, None, false);
        let constraint = self.constraint(request, &format, false)?;
        let (turn, shown) = (Turn::raw(tokens), format.shown());
        let prepared = Prepared { turn, parser, constraint, no_calls: None, shown };
        self.submit(prepared, request, None)
    }

    /// Queues a prompt; its answer belongs to `chat` where there is one.
    pub(crate) fn submit<'chat>(
        &self,
        prepared: Prepared,
        request: &Request,
        chat: Option<&'chat mut Vec<Message>>,
    ) -> Result<Answer<'chat>, Error> {
        let Prepared { turn, parser, constraint, no_calls, shown } = prepared;
        let (sender, events): (_, Receiver<Event>) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let recommended = || SamplerOptions::recommended(self.tokenizer().generation_defaults());
        let job = Job {
            prompt: turn,
            expected: Arc::default(),
            max_tokens: request.max_tokens,
            stop: request.stop.clone(),
            sampler: request.sampling.clone().unwrap_or_else(recommended),
            bias: Bias::default(),
            constraint,
            no_calls,
            shown,
            top_logprobs: None,
            cancelled: Arc::clone(&cancelled),
            // An answer that was dropped receives nothing.
            listener: Box::new(move |event| drop(sender.send(event))),
        };
        self.run(job)?;
        Ok(Answer::new(self.clone(), events, parser, cancelled, chat))
    }
}
