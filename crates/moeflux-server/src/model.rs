//! What requests are read with: the text side of the model, its names, and the log.

use std::sync::Arc;

use moeflux_text::{ChatModel, LeftToModel};

use crate::error::{ApiError, ApiResult};
use crate::ids::Ids;
use crate::journal::Journal;

/// What a request is read with, its weights left aside.
pub(crate) struct Model {
    pub(crate) text: Arc<ChatModel>,
    pub(crate) ids: Ids,
    pub(crate) facts: ModelFacts,
    pub(crate) journal: Arc<Journal>,
}

/// What is known of a model without its text.
#[derive(Clone, Debug)]
pub(crate) struct ModelFacts {
    /// What requests may call it; the first is its name.
    pub(crate) names: Vec<String>,
    /// Whether any other name means it too.
    pub(crate) any_name: bool,
    /// Logits of a step.
    pub(crate) n_logits: usize,
    /// Tokens of thoughts at most, where a request does not say it.
    pub(crate) thinking_budget: Option<usize>,
    /// Whether it sees pictures.
    pub(crate) sees: bool,
    /// Whether pictures are fetched from addresses that requests name.
    pub(crate) fetches_pictures: bool,
}

/// Whether one of a model's names is meant. Ollama's clients write a tag, and names of Ollama are the
/// same in any case.
pub(crate) fn is_called(names: &[String], asked: &str) -> bool {
    let untagged = |name: &str| name.strip_suffix(":latest").unwrap_or(name).to_ascii_lowercase();
    names.iter().any(|own| untagged(own) == untagged(asked))
}

/// Parts of tools' schemas that are logged for one request.
const MAX_LOGGED: usize = 20;

impl Model {
    pub(crate) fn new(text: Arc<ChatModel>, facts: ModelFacts, journal: Arc<Journal>) -> Model {
        Model { text, ids: Ids::new(), facts, journal }
    }

    /// The model's name.
    pub(crate) fn model_name(&self) -> &str {
        self.facts.names.first().map_or("moeflux", String::as_str)
    }

    /// Refuses requests to other models.
    pub(crate) fn check_model(&self, name: &str) -> ApiResult<()> {
        if self.facts.any_name || is_called(&self.facts.names, name) {
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

    /// As [`check_model`](Model::check_model); a request without a name means this model.
    pub(crate) fn check_name(&self, name: Option<&str>) -> ApiResult<()> {
        name.filter(|name| !name.is_empty()).map_or(Ok(()), |name| self.check_model(name))
    }

    /// Logs what a grammar does not hold the model to: for every request where requests are logged,
    /// else once.
    pub(crate) fn log_left_to_model(&self, parts: &[LeftToModel]) {
        for part in parts.iter().take(MAX_LOGGED) {
            self.log_once(&part.to_string());
        }
        if parts.len() > MAX_LOGGED && self.journal.has_requests {
            self.log(&format!("and {} more parts of schemas", parts.len() - MAX_LOGGED));
        }
    }

    /// Logs a line.
    pub(crate) fn log(&self, line: &str) {
        self.journal.log(line);
    }

    /// As [`Journal::log_once`].
    pub(crate) fn log_once(&self, line: &str) {
        self.journal.log_once(line);
    }
}
