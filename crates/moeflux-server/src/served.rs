//! A loaded model, with what requests to it share.

use std::ops::Deref;
use std::sync::Arc;

use moeflux::SchedulerOptions;
use moeflux_engine::Engine;

use crate::common::Common;
use crate::library::LibraryModel;
use crate::model::{Model, ModelFacts};
use crate::options::ServerOptions;

pub(crate) struct Served {
    model: Model,
    /// The model with its weights, which makes the answers.
    pub(crate) loaded: moeflux::Model,
    pub(crate) common: Arc<Common>,
    /// Answers at a time.
    pub(crate) n_sessions: usize,
    /// Tells this model and its arithmetic from others.
    pub(crate) fingerprint: String,
}

impl Deref for Served {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl Served {
    /// Starts the engine's scheduler.
    ///
    /// # Errors
    /// Where the model has no usable tokenizer or template, or the system starts no thread.
    pub(crate) fn new(
        engine: Engine,
        model: &LibraryModel,
        common: Arc<Common>,
    ) -> Result<Served, moeflux::Error> {
        let n_sessions = common.options.n_sessions.min(engine.plan().n_sessions).max(1);
        let limits = SchedulerOptions { n_sessions, max_waiting: common.options.max_waiting };
        let loaded = moeflux::Model::of_engine(engine, limits)?;
        loaded.text().read_templates().map_err(moeflux::Error::from)?;
        Ok(Served::of_model(loaded, model, common))
    }

    /// Serves a model whose scheduler runs already, and has other clients.
    pub(crate) fn of_model(
        loaded: moeflux::Model,
        model: &LibraryModel,
        common: Arc<Common>,
    ) -> Served {
        let (engine, options) = (loaded.engine(), &common.options);
        let facts = ModelFacts {
            names: model.names.iter().chain(&model.aliases).cloned().collect(),
            any_name: options.any_model,
            n_logits: engine.shape().vocab,
            thinking_budget: options.thinking_budget,
            sees: engine.vision().is_some() && loaded.text().takes_pictures(),
            fetches_pictures: options.allow_image_urls,
        };
        let fingerprint = format!("moeflux-{}", engine.identity().get(..12).unwrap_or_default());
        let n_sessions = options.n_sessions.min(engine.plan().n_sessions).max(1);
        let model = Model::new(Arc::clone(loaded.text()), facts, Arc::clone(&common.journal));
        Served { model, loaded, common, n_sessions, fingerprint }
    }

    pub(crate) fn options(&self) -> &ServerOptions {
        &self.common.options
    }
}
