//! What a server calls a model.

use std::path::PathBuf;

use moeflux_hub::{DEFAULT_ENDPOINT, Repo};

/// The last part of a path or of a Hub name.
pub(crate) fn own_name(model: Option<&str>) -> String {
    let Some(model) = model else { return String::from("moeflux-demo") };
    let path = match (std::fs::canonicalize(model), Repo::parse(model, DEFAULT_ENDPOINT)) {
        (Ok(path), _) => path,
        (Err(_), Ok(repo)) => PathBuf::from(repo.name),
        (Err(_), Err(_)) => PathBuf::from(model),
    };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| model.to_owned())
}
