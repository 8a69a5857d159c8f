//! The models that a server may load, and what is known of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use moeflux_engine::{Engine, Inspection};

use super::about::About;
use super::work::blocking;
use crate::error::{ApiError, ApiResult};
use crate::library::{Library, LibraryError, LibraryModel, PullProgress};

/// How long a list of the library's models is used.
const LISTING_AGE: Duration = Duration::from_secs(2);

/// Names of models that an error lists.
const MAX_LISTED: usize = 5;

/// The models that a server may load.
pub(crate) struct Catalog {
    library: Arc<dyn Library>,
    /// Whether its one model stays as it is.
    pub(super) is_fixed: bool,
    /// The model of requests that name none.
    default: Option<String>,
    /// Whether every other name means that one, too.
    takes_any_name: bool,
    listing: Mutex<Option<(Instant, Arc<[LibraryModel]>)>>,
    abouts: Mutex<HashMap<String, Arc<About>>>,
    /// Held while a model is looked at: a tokenizer may take a hundred megabytes.
    looking: tokio::sync::Mutex<()>,
}

impl Catalog {
    pub(super) fn new(library: Arc<dyn Library>, default: Option<String>) -> Catalog {
        Catalog {
            library,
            is_fixed: false,
            default,
            takes_any_name: false,
            listing: Mutex::default(),
            abouts: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn fixed(self) -> Catalog {
        Catalog { is_fixed: true, ..self }
    }

    pub(super) fn taking_any_name(self, takes_any_name: bool) -> Catalog {
        Catalog { takes_any_name, ..self }
    }

    fn abouts(&self) -> MutexGuard<'_, HashMap<String, Arc<About>>> {
        self.abouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listing(&self) -> MutexGuard<'_, Option<(Instant, Arc<[LibraryModel]>)>> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The models.
    pub(crate) fn models(&self) -> Arc<[LibraryModel]> {
        let mut listing = self.listing();
        match &*listing {
            Some((at, models)) if at.elapsed() < LISTING_AGE => Arc::clone(models),
            _ => {
                let models: Arc<[LibraryModel]> = self.library.models().into();
                *listing = Some((Instant::now(), Arc::clone(&models)));
                models
            }
        }
    }

    /// A model by its name in the library, from which it may have gone meanwhile.
    pub(crate) fn listed(&self, name: &str) -> LibraryModel {
        let models = self.models();
        let listed = models.iter().find(|model| model.name() == name).cloned();
        listed.unwrap_or_else(|| LibraryModel::named(name))
    }

    /// The names of all models.
    pub(crate) fn names(&self) -> Vec<String> {
        self.models().iter().flat_map(|model| model.names.clone()).collect()
    }

    /// The model of a name, by its name in the library.
    ///
    /// # Errors
    /// Where there is none.
    pub(super) fn find(&self, name: &str) -> ApiResult<Arc<str>> {
        let models = self.models();
        if let Some(model) = models.iter().find(|model| model.is_called(name)) {
            return Ok(model.name().into());
        }
        let default = self.default.as_deref().filter(|_| self.takes_any_name);
        default.map(Arc::from).ok_or_else(|| unknown(name, &models))
    }

    /// The model of requests that name none.
    ///
    /// # Errors
    /// Where it is not clear which one is meant.
    pub(super) fn find_default(&self) -> ApiResult<Arc<str>> {
        if let Some(name) = &self.default {
            return Ok(name.as_str().into());
        }
        match &*self.models() {
            [one] => Ok(one.name().into()),
            models => {
                let problem = format!("it is missing: {}", in_words(models));
                Err(ApiError::field("model", problem))
            }
        }
    }

    /// What is known of a model, without opening it.
    pub(crate) fn known(&self, name: &str) -> Option<Arc<About>> {
        self.abouts().get(name).cloned()
    }

    /// Remembers what is known of a model.
    pub(super) fn learn(&self, name: &str, about: About) -> Arc<About> {
        let about = Arc::new(about);
        self.abouts().insert(name.to_owned(), Arc::clone(&about));
        about
    }

    /// What is known of a model, by its name in the library. One that was not loaded is inspected.
    ///
    /// # Errors
    /// Where it cannot be inspected.
    pub(crate) async fn about(&self, name: &str) -> ApiResult<Arc<About>> {
        if let Some(about) = self.known(name) {
            return Ok(about);
        }
        let _looking = self.looking.lock().await;
        // Another request may have asked the same.
        if let Some(about) = self.known(name) {
            return Ok(about);
        }
        let (library, wanted) = (Arc::clone(&self.library), name.to_owned());
        let read = blocking(move || {
            let inspection = library.inspect(&wanted)?;
            About::of_inspection(&inspection).map_err(|err| LibraryError::Failed(err.to_string()))
        });
        let about = read.await?.map_err(|err| refusal(name, err))?;
        Ok(self.learn(name, about))
    }

    /// Reads what a model takes in memory.
    ///
    /// # Errors
    /// Where it cannot be inspected.
    pub(super) async fn inspect(&self, name: &str) -> ApiResult<Inspection> {
        let (library, wanted) = (Arc::clone(&self.library), name.to_owned());
        let inspected = blocking(move || library.inspect(&wanted)).await?;
        inspected.map_err(|err| refusal(name, err))
    }

    /// Opens a model.
    ///
    /// # Errors
    /// Where it cannot be run, or does not fit.
    pub(super) async fn open(&self, name: &str) -> ApiResult<Engine> {
        let (library, wanted) = (Arc::clone(&self.library), name.to_owned());
        let opened = blocking(move || library.open(&wanted)).await?;
        opened.map_err(|err| refusal(name, err))
    }

    /// Downloads a model; blocks.
    ///
    /// # Errors
    /// As [`Library::pull`].
    pub(super) fn pull(
        &self,
        name: &str,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<(), LibraryError> {
        let result = self.library.pull(name, progress);
        *self.listing() = None;
        result
    }

    /// Removes a model's files.
    ///
    /// # Errors
    /// Where they cannot be removed.
    pub(super) async fn remove(&self, name: &str) -> ApiResult<()> {
        let (library, wanted) = (Arc::clone(&self.library), name.to_owned());
        let removed = blocking(move || library.remove(&wanted)).await?;
        *self.listing() = None;
        self.abouts().remove(name);
        removed.map_err(|err| refusal(name, err))
    }
}

/// What is said of a name that no model has; clients of each dialect look for "not found".
fn unknown(name: &str, models: &[LibraryModel]) -> ApiError {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
    ApiError {
        param: Some(String::from("model")),
        code: Some("model_not_found"),
        ..ApiError::not_found(format!("model '{shown}' not found: {}", in_words(models)))
    }
}

/// The models of a server in a sentence.
fn in_words(models: &[LibraryModel]) -> String {
    if models.is_empty() {
        return String::from("this server has no models yet: POST /api/pull downloads one");
    }
    let names: Vec<String> =
        models.iter().take(MAX_LISTED).map(|model| format!("'{}'", model.name())).collect();
    let rest = match models.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        n => format!(" and {n} more: /v1/models lists them"),
    };
    format!("this server has {}{rest}", names.join(", "))
}

/// Why a model does not come, as clients are answered.
pub(super) fn refusal(name: &str, err: LibraryError) -> ApiError {
    let (status, message) = match err {
        LibraryError::NotFound(message) => (StatusCode::NOT_FOUND, message),
        LibraryError::Refused(message) => (StatusCode::NOT_IMPLEMENTED, message),
        LibraryError::Failed(reason) => {
            let message = format!("model '{name}' cannot be loaded: {reason}");
            (StatusCode::SERVICE_UNAVAILABLE, message)
        }
    };
    ApiError { code: Some("model_unavailable"), ..ApiError::new(status, message) }
}
