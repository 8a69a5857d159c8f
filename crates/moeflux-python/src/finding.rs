//! From a name to the files of a model.

use std::path::PathBuf;

use moeflux_cli::find_model;
use moeflux_hub::Event;

use crate::error::Failure;

/// The files of a model, as `--model` of the command finds them.
pub(crate) fn find(
    model: Option<&str>,
    download: Option<&mut dyn FnMut(Event<'_>)>,
) -> Result<PathBuf, Failure> {
    match find_model(model, "model", download) {
        Ok(Some(path)) => Ok(path),
        Ok(None) => {
            let name = model.unwrap_or_default();
            let text = format!(
                "model {name:?}: it is not in the Hub's cache: load({name:?}, download=True) downloads it, and so \
                 does `moeflux pull {name}`"
            );
            Err(Failure::of_option("model", text))
        }
        Err(err) if err.is_wrong_name => Err(Failure::of_option("model", err.to_string())),
        Err(err) => Err(Failure::new("model", err.to_string())),
    }
}
