//! What all requests share.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use moeflux_engine::{Engine, EngineError, Scheduler, SchedulerOptions};
use moeflux_text::ChatModel;

use crate::error::ServerError;
use crate::ids::now;
use crate::metrics::Metrics;
use crate::model::{Model, ModelFacts};
use crate::options::ServerOptions;

pub(crate) struct App {
    model: Model,
    pub(crate) engine: Engine,
    pub(crate) scheduler: Scheduler,
    pub(crate) options: ServerOptions,
    pub(crate) metrics: Metrics,
    pub(crate) started: Instant,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Tells this model and its arithmetic from others.
    pub(crate) fingerprint: String,
}

impl Deref for App {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl App {
    pub(crate) fn new(engine: Engine, options: ServerOptions) -> Result<App, ServerError> {
        let facts = ModelFacts {
            names: options.model_names.clone(),
            any_name: options.any_model,
            n_logits: engine.shape().vocab,
            log_requests: options.log_requests,
            is_strict: options.is_strict,
        };
        let text = ChatModel::new(Arc::new(engine.tokenizer()?), engine.plan().ctx);
        text.read_templates().map_err(EngineError::from)?;
        let model = Model::new(Arc::new(text), facts);
        let limits =
            SchedulerOptions { n_sessions: options.n_sessions, max_waiting: options.max_waiting };
        let scheduler =
            Scheduler::start(engine.clone(), Arc::clone(model.text.tokenizer()), limits);
        let fingerprint = format!("moeflux-{}", engine.identity().get(..12).unwrap_or_default());
        Ok(App {
            scheduler: scheduler.map_err(ServerError::Start)?,
            model,
            engine,
            options,
            metrics: Metrics::new(),
            started: Instant::now(),
            created: now(),
            fingerprint,
        })
    }
}
