//! What all requests share.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

use moeflux_engine::text::{ChatTemplate, OutputFormat, Tokenizer};
use moeflux_engine::{ConstraintError, Engine, Grammars, LeftToModel, Scheduler, SchedulerOptions};

use crate::error::{ApiError, ApiResult, ServerError};
use crate::ids::{Ids, now};
use crate::log::log;
use crate::metrics::Metrics;
use crate::options::ServerOptions;

type Prepare = Box<dyn FnOnce() -> Result<Grammars, ConstraintError> + Send + Sync>;

pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) scheduler: Scheduler,
    template: Option<ChatTemplate>,
    tool_template: Option<ChatTemplate>,
    pub(crate) format: OutputFormat,
    grammars: LazyLock<Result<Grammars, ConstraintError>, Prepare>,
    pub(crate) options: ServerOptions,
    pub(crate) metrics: Metrics,
    pub(crate) ids: Ids,
    pub(crate) started: Instant,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Tells this model and its arithmetic from others.
    pub(crate) fingerprint: String,
    /// Lines about tools' schemas that the log has.
    logged: Mutex<HashSet<String>>,
}

/// Parts of tools' schemas that are logged for one request.
const MAX_LOGGED: usize = 20;
/// Lines that are remembered so that the log has them once.
const MAX_REMEMBERED: usize = 1000;

impl App {
    pub(crate) fn new(engine: Engine, options: ServerOptions) -> Result<App, ServerError> {
        let tokenizer = Arc::new(engine.tokenizer()?);
        let template = |with_tools| {
            let template = tokenizer.chat_template(with_tools).transpose();
            template.map_err(moeflux_engine::EngineError::from)
        };
        let (template, tool_template) = (template(false)?, template(true)?);
        let format = OutputFormat::of(&tokenizer);
        let limits =
            SchedulerOptions { n_sessions: options.n_sessions, max_waiting: options.max_waiting };
        let scheduler = Scheduler::start(engine.clone(), Arc::clone(&tokenizer), limits);
        let vocabulary = Arc::clone(&tokenizer);
        let prepare: Prepare = Box::new(move || Grammars::new(&vocabulary));
        let fingerprint = format!("moeflux-{}", engine.identity().get(..12).unwrap_or_default());
        Ok(App {
            scheduler: scheduler.map_err(ServerError::Start)?,
            engine,
            tokenizer,
            template,
            tool_template,
            format,
            grammars: LazyLock::new(prepare),
            options,
            metrics: Metrics::default(),
            ids: Ids::new(),
            started: Instant::now(),
            created: now(),
            fingerprint,
            logged: Mutex::default(),
        })
    }

    /// Logs what a grammar does not hold the model to: for every request where requests are logged,
    /// else once.
    pub(crate) fn log_left_to_model(&self, parts: &[LeftToModel]) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        for part in parts.iter().take(MAX_LOGGED) {
            let line = part.to_string();
            if logged.len() == MAX_REMEMBERED {
                logged.clear();
            }
            if logged.insert(line.clone()) || self.options.log_requests {
                log(&line);
            }
        }
        if parts.len() > MAX_LOGGED && self.options.log_requests {
            log(&format!("and {} more parts of schemas", parts.len() - MAX_LOGGED));
        }
    }

    /// The model's name.
    pub(crate) fn model_name(&self) -> &str {
        self.options.model_names.first().map_or("moeflux", String::as_str)
    }

    /// Refuses requests to other models.
    pub(crate) fn check_model(&self, name: &str) -> ApiResult<()> {
        if self.options.any_model || self.options.model_names.iter().any(|it| it == name) {
            return Ok(());
        }
        let shown: String = name.chars().take(100).collect();
        let message =
            format!("the model {shown:?} is not here: this server has {:?}", self.model_name());
        Err(ApiError {
            param: Some(String::from("model")),
            code: Some("model_not_found"),
            ..ApiError::not_found(message)
        })
    }

    /// What constrains answers; the first call takes a second for a large
    /// vocabulary.
    pub(crate) fn grammars(&self) -> ApiResult<&Grammars> {
        self.grammars.as_ref().map_err(|err| ApiError::internal(err.to_string()))
    }

    pub(crate) fn template(&self, with_tools: bool) -> ApiResult<&ChatTemplate> {
        let template = if with_tools { &self.tool_template } else { &self.template };
        template.as_ref().ok_or_else(|| {
            ApiError::field("messages", "the model has no chat template: use /v1/completions")
        })
    }
}
