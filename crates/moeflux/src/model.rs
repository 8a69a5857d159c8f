//! A loaded model.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use moeflux_engine::{Engine, EngineOptions as Options, Job, Plan, Scheduler, SchedulerOptions};
use moeflux_text::{
    AnswerShape, ChatTemplate, Constraint, ConstraintError, Grammar, Grammars, OutputFormat,
    Tokenizer,
};

use crate::error::Error;
use crate::request::{Format, Request};

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

    /// The engine below, for what this crate does not cover, such as rows that are embeddings
    /// ([`Session::eval_rows`](moeflux_engine::Session::eval_rows)). Its sessions and steps share the
    /// device with this model's answers.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.shared.tokenizer
    }

    /// Takes a job to the thread that runs the model's steps.
    pub(crate) fn run(&self, job: Job) -> Result<(), Error> {
        Ok(self.shared.scheduler.submit(job)?)
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
