//! A loaded model.

use std::path::Path;
use std::sync::Arc;

use moeflux_engine::{Engine, EngineOptions as Options, Plan, Scheduler, SchedulerOptions};
use moeflux_text::{ChatModel, PromptError, Tokenizer};

use crate::error::Error;

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
    text: Arc<ChatModel>,
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
        let n_sessions = options.memory.sessions.unwrap_or(1).max(1);
        let limits = SchedulerOptions { n_sessions, max_waiting: MAX_WAITING };
        let model = Model::of_engine(engine, limits)?;
        model.text().read_templates()?;
        Ok(model)
    }

    /// A model whose engine is open: for programs that open it with options of their own. Its
    /// templates are read when they are needed first.
    ///
    /// # Errors
    /// Where the model has no tokenizer, or the system starts no thread.
    pub fn of_engine(engine: Engine, limits: SchedulerOptions) -> Result<Model, Error> {
        let tokenizer = Arc::new(engine.tokenizer()?);
        let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits)
            .map_err(|err| Error::Thread(Arc::new(err)))?;
        let text = Arc::new(ChatModel::new(tokenizer, engine.plan().ctx));
        Ok(Model { shared: Arc::new(Shared { engine, scheduler, text }) })
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

    /// The thread that runs this model's answers: what it does, and how it ends.
    pub fn scheduler(&self) -> &Scheduler {
        &self.shared.scheduler
    }

    /// The text side of the model: what conversations become prompts with.
    pub fn text(&self) -> &Arc<ChatModel> {
        &self.shared.text
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.shared.text.tokenizer()
    }

    /// Why a conversation is refused, with the model's directory.
    pub(crate) fn refusal(&self, err: PromptError) -> Error {
        match err {
            PromptError::Text(err) => err.into(),
            PromptError::NoTemplate => Error::NoChatTemplate { model: self.name() },
            PromptError::NoTools => Error::NoTools { model: self.name() },
            PromptError::Refused { part, reason } => Error::Refused { part, reason },
            PromptError::Constraint { source, .. } | PromptError::Vocabulary(source) => {
                source.into()
            }
        }
    }

    fn name(&self) -> String {
        self.shared.engine.root().display().to_string()
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
