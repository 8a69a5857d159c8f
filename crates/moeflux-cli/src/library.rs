//! What other programs share with the command line: the names of models, and which of them are here.

use std::path::PathBuf;

use anyhow::Result;
use moeflux_hub::{Event, Found};

use crate::commands::models::{Here, in_cache};
use crate::error::UsageError;
use crate::locate::{self, Named};
use crate::report::chain;
use crate::{program, renderer};

/// Why a model is not found, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct FindError {
    text: String,
    /// Whether another name would have done.
    pub is_wrong_name: bool,
}

impl From<anyhow::Error> for FindError {
    fn from(err: anyhow::Error) -> FindError {
        FindError { text: chain(&err), is_wrong_name: err.is::<UsageError>() }
    }
}

/// Finds the files of a model by what `--model` takes: a path, or a name on the Hub. Without one it is
/// the demo model. What is not here is downloaded where `download` takes the events of that, which come
/// on this thread; else there is `None`, and no connection is opened. Errors call the model `argument`.
///
/// # Errors
/// Where there is no such model, it is none that runs, or its download fails.
pub fn find_model(
    model: Option<&str>,
    argument: &str,
    download: Option<&mut dyn FnMut(Event<'_>)>,
) -> Result<Option<PathBuf>, FindError> {
    let (model, env) = match locate::named(model, argument)? {
        Named::Path(path) => return Ok(Some(path)),
        Named::Hub(model, env) => (model, env),
    };
    let cached = moeflux_hub::cached(model, &env).map_err(anyhow::Error::from)?;
    let Some(on_event) = download.filter(|_| cached.is_none()) else { return Ok(cached) };
    let mut fetch = || -> Result<PathBuf> {
        let remote = match moeflux_hub::find(model, &env, on_event)? {
            Found::Here(path) => return Ok(path),
            Found::Remote(remote) => remote,
        };
        let needed = remote.describe();
        if needed.missing_bytes > 0 {
            needed.check_room()?;
            locate::check_headers(&remote.headers(on_event)?, &needed)?;
        }
        Ok(remote.download(on_event)?)
    };
    Ok(Some(fetch()?))
}

/// What a user should know of an event of [`find_model`], in one line; `None` of what a bar of progress
/// shows.
pub fn in_words(event: &Event<'_>) -> Option<String> {
    locate::in_words(event)
}

/// The models in the Hub's cache.
///
/// # Errors
/// Where the cache is there and cannot be read.
pub fn models_here() -> Result<Vec<Here>, FindError> {
    Ok(in_cache(&locate::hub_env()?)?)
}

/// Has chat templates rendered in child processes with limits, which `again` starts; they are to call
/// [`run_program`](crate::run_program) with the arguments that they get. The first call counts.
pub fn render_in_children(again: program::StartAgain) {
    program::set(again);
    renderer::use_children();
}
