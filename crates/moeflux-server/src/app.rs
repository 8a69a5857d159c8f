//! What all requests share.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use moeflux::SchedulerOptions;
use moeflux_engine::Engine;

use crate::callers::Callers;
use crate::error::ServerError;
use crate::ids::now;
use crate::kept::KeptResponses;
use crate::metrics::Metrics;
use crate::model::{Model, ModelFacts};
use crate::options::ServerOptions;

pub(crate) struct App {
    model: Model,
    /// The model with its weights, which makes the answers.
    pub(crate) loaded: moeflux::Model,
    pub(crate) options: ServerOptions,
    pub(crate) callers: Arc<Callers>,
    pub(crate) metrics: Metrics,
    /// Responses that requests may refer to.
    pub(crate) kept: KeptResponses,
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
    pub(crate) fn new(
        engine: Engine,
        options: ServerOptions,
        callers: Arc<Callers>,
    ) -> Result<App, ServerError> {
        let facts = ModelFacts {
            names: options.model_names.clone(),
            any_name: options.any_model,
            n_logits: engine.shape().vocab,
            thinking_budget: options.thinking_budget,
            log_requests: options.log_requests,
            log_format: options.log_format,
            is_strict: options.is_strict,
        };
        let fingerprint = format!("moeflux-{}", engine.identity().get(..12).unwrap_or_default());
        let limits =
            SchedulerOptions { n_sessions: options.n_sessions, max_waiting: options.max_waiting };
        let loaded = moeflux::Model::of_engine(engine, limits)?;
        loaded.text().read_templates().map_err(moeflux::Error::from)?;
        let model = Model::new(Arc::clone(loaded.text()), facts);
        let kept = KeptResponses::new(options.response_dir.as_deref(), options.log_format);
        let names: Vec<Arc<str>> =
            callers.all().iter().map(|caller| Arc::clone(&caller.name)).collect();
        Ok(App {
            model,
            loaded,
            kept,
            options,
            metrics: Metrics::new(&names),
            callers,
            started: Instant::now(),
            created: now(),
            fingerprint,
        })
    }
}
