//! A loaded model.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};

use moeflux_core::TokenId;
use moeflux_engine::sampler::SamplerOptions;
use moeflux_engine::{Bias, Engine, Event, Job, Scheduler, SchedulerOptions};
use moeflux_text::{
    AnswerShape, ChatTemplate, Constraint, ConstraintError, Grammar, Grammars, OutputFormat,
    OutputParser, Tokenizer, Turn,
};
use serde_json::Value;

use crate::answer::Answer;
use crate::chat::Chat;
use crate::error::Error;
use crate::request::{Format, Request};
use crate::{Options, Plan};

/// Requests that may wait for a session.
const MAX_WAITING: usize = 1 << 16;

/// A loaded model. Clones share it, from any thread.
#[derive(Clone)]
pub struct Model {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Engine,
    scheduler: Scheduler,
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    tool_template: Option<ChatTemplate>,
    format: OutputFormat,
    /// Prepared when the first answer is constrained.
    grammars: OnceLock<Result<Grammars, Arc<ConstraintError>>>,
}

/// A prompt and how its answer is read.
pub(crate) struct Prepared {
    pub(crate) turn: Turn,
    pub(crate) parser: OutputParser,
    pub(crate) constraint: Option<Constraint>,
    pub(crate) shown: Arc<[TokenId]>,
}

impl Model {
    /// Opens a checkpoint: a directory as published, or a container that `moeflux pack` wrote.
    /// Memory is planned for this machine.
    ///
    /// # Errors
    /// Where files are damaged or of no known family, or memory does not suffice.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::open_with(path, &Options::default())
    }

    /// Opens a checkpoint.
    ///
    /// # Errors
    /// As [`Model::open`], and where an option makes no sense for the model or the machine.
    pub fn open_with(path: impl AsRef<Path>, options: &Options) -> Result<Model, Error> {
        let engine = Engine::open(path.as_ref(), options)?;
        let tokenizer = Arc::new(engine.tokenizer()?);
        let n_sessions = options.memory.sessions.unwrap_or(1).max(1);
        let limits = SchedulerOptions { n_sessions, max_waiting: MAX_WAITING };
        let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits)
            .map_err(|err| Error::Thread(Arc::new(err)))?;
        let shared = Shared {
            template: tokenizer.chat_template(false).transpose()?,
            tool_template: tokenizer.chat_template(true).transpose()?,
            format: OutputFormat::of(&tokenizer),
            grammars: OnceLock::new(),
            engine,
            scheduler,
            tokenizer,
        };
        Ok(Model { shared: Arc::new(shared) })
    }

    /// What opening a checkpoint would take in memory, row by row. Reads headers, no weights.
    ///
    /// # Errors
    /// Where files are damaged or of no known family.
    pub fn plan(path: impl AsRef<Path>, options: &Options) -> Result<Plan, Error> {
        Ok(moeflux_engine::inspect(path.as_ref(), options)?.plan)
    }

    /// The model's family, such as `qwen3_moe`.
    pub fn family(&self) -> &str {
        self.shared.engine.family()
    }

    /// Positions of a session: tokens of a prompt and its answer together.
    pub fn context_length(&self) -> usize {
        self.shared.engine.plan().ctx
    }

    /// What the user should know although nothing failed.
    pub fn warnings(&self) -> &[String] {
        self.shared.engine.warnings()
    }

    /// The engine below, for what this crate does not cover. Its sessions and steps share the
    /// device with this model's answers.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.shared.tokenizer
    }

    /// Begins a conversation.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`].
    pub fn chat(&self) -> Result<Chat, Error> {
        match &self.shared.template {
            Some(_) => Ok(Chat::new(self.clone())),
            None => Err(Error::NoChatTemplate { model: self.name() }),
        }
    }

    /// Continues a text, without a chat template. Control tokens in `prompt` are read as text;
    /// [`Request::tools`] and [`Request::thinking`] do not apply.
    ///
    /// # Errors
    /// Where the prompt is empty or longer than the context, or the format is no usable schema.
    pub fn generate(&self, prompt: &str, request: &Request) -> Result<Answer<'static>, Error> {
        let max_tokens = self.max_prompt();
        let tokens =
            self.tokenizer().encode_prompt(prompt, moeflux_text::Markup::Literal, max_tokens)?;
        let format = OutputFormat::plain();
        let parser = OutputParser::new(&format, None, false);
        let constraint = self.constraint(request, &format, false)?;
        let prepared =
            Prepared { turn: Turn::raw(tokens), parser, constraint, shown: format.shown() };
        self.submit(prepared, request, None)
    }

    /// The model's directory, for messages.
    pub(crate) fn name(&self) -> String {
        self.shared.engine.root().display().to_string()
    }

    /// Tokens that a prompt may have: one position is left for the answer.
    pub(crate) fn max_prompt(&self) -> usize {
        self.context_length().saturating_sub(1)
    }

    pub(crate) fn template(&self, with_tools: bool) -> Result<&ChatTemplate, Error> {
        let shared = &self.shared;
        if with_tools && shared.format.syntax().is_none() {
            return Err(Error::NoTools { model: self.name() });
        }
        let template = if with_tools { &shared.tool_template } else { &shared.template };
        template.as_ref().ok_or_else(|| Error::NoChatTemplate { model: self.name() })
    }

    pub(crate) fn format(&self) -> &OutputFormat {
        &self.shared.format
    }

    /// The grammar of an answer; none where any text will do.
    pub(crate) fn constraint(
        &self,
        request: &Request,
        format: &OutputFormat,
        is_thinking: bool,
    ) -> Result<Option<Constraint>, Error> {
        let shape = match &request.format {
            Format::Text if request.tools.is_empty() => return Ok(None),
            Format::Text => AnswerShape::Text,
            Format::Json(schema) => AnswerShape::Json(schema.clone()),
        };
        let grammar = Grammar {
            format: format.clone(),
            is_thinking,
            shape,
            tools: request.tools.clone(),
            must_call: false,
            may_call_many: true,
        };
        let prepare = || Grammars::new(&self.shared.tokenizer).map_err(Arc::new);
        let grammars = self.shared.grammars.get_or_init(prepare).as_ref();
        let grammars = grammars.map_err(|err| Error::Constraint(Arc::clone(err)))?;
        Ok(Some(grammars.compile(&grammar)?))
    }

    /// Queues a prompt; its answer belongs to `chat` where there is one.
    pub(crate) fn submit<'chat>(
        &self,
        prepared: Prepared,
        request: &Request,
        chat: Option<&'chat mut Vec<moeflux_text::Message>>,
    ) -> Result<Answer<'chat>, Error> {
        let Prepared { turn, parser, constraint, shown } = prepared;
        let (sender, events): (_, Receiver<Event>) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let recommended =
            || SamplerOptions::recommended(self.shared.tokenizer.generation_defaults());
        let job = Job {
            prompt: turn,
            expected: Arc::default(),
            max_tokens: request.max_tokens,
            stop: request.stop.clone(),
            sampler: request.sampling.clone().unwrap_or_else(recommended),
            bias: Bias::default(),
            constraint,
            shown,
            top_logprobs: None,
            cancelled: Arc::clone(&cancelled),
            // An answer that was dropped receives nothing.
            listener: Box::new(move |event| drop(sender.send(event))),
        };
        self.shared.scheduler.submit(job)?;
        Ok(Answer::new(self.clone(), events, parser, cancelled, chat))
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, family) = (self.name(), self.family());
        f.debug_struct("Model")
            .field("path", &path)
            .field("family", &family)
            .finish_non_exhaustive()
    }
}

/// The tools of a request as templates take them.
pub(crate) fn tools_value(tools: &[Value]) -> Option<Value> {
    (!tools.is_empty()).then(|| Value::from(tools.to_vec()))
}
