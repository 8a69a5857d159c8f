//! Names of models as Ollama writes them: `name:tag`, where `:latest` may be left out and case does
//! not matter.

use crate::error::{ApiError, ApiResult};
use crate::model::{Model, is_called};

/// The tag of a name without one.
const LATEST: &str = ":latest";

/// A name with a tag.
pub(super) fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or_default();
    if last.contains(':') { name.to_owned() } else { format!("{name}{LATEST}") }
}

/// Refuses names of other models, in words that clients look for.
pub(super) fn check(model: &Model, name: &str) -> ApiResult<()> {
    if model.facts.any_name || is_called(&model.facts.names, name) {
        return Ok(());
    }
    check_given(name)?;
    let shown: String = name.chars().take(100).collect();
    let own = tagged(model.model_name());
    let message = format!("model '{shown}' not found: this server has '{own}'");
    Err(ApiError { param: Some(String::from("model")), ..ApiError::not_found(message) })
}

/// Refuses a request that names no model.
pub(super) fn check_given(name: &str) -> ApiResult<()> {
    if name.is_empty() { Err(ApiError::field("model", "it is missing")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_without_a_tag_get_one() {
        for (name, want) in [
            ("demo", "demo:latest"),
            ("demo:latest", "demo:latest"),
            ("qwen3:30b", "qwen3:30b"),
            ("host:5000/org/name", "host:5000/org/name:latest"),
        ] {
            assert_eq!(tagged(name), want);
        }
    }
}
