//! `keep_alive`: how long a model stays loaded after a request.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::names;
use super::reply::{Loading, Shape, loaded};
use crate::durations::parse_duration;
use crate::error::{ApiError, ApiResult};
use crate::fleet::Keep;
use crate::reply::Reply;
use crate::site::Site;

/// What a request says of it; `None` where it says nothing.
///
/// # Errors
/// Where it is neither a number of seconds nor a duration.
pub(crate) fn of(body: &Value) -> ApiResult<Option<Keep>> {
    let problem = "it must be a number of seconds, or a duration such as \"5m\"; -1 is without end";
    let refuse = || ApiError::field("keep_alive", problem);
    match body.get("keep_alive") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::Number(number)) => {
            let seconds = number.as_f64().ok_or_else(refuse)?;
            if seconds < 0.0 {
                return Ok(Some(None));
            }
            // What is longer than any duration is without end.
            Ok(Some(Duration::try_from_secs_f64(seconds).ok()))
        }
        Some(Value::String(text)) if text.trim().starts_with('-') => {
            parse_duration(&text.trim()[1..]).map_err(|_| refuse())?;
            Ok(Some(None))
        }
        Some(Value::String(text)) => {
            let keep = parse_duration(text).map_err(|_| refuse())?;
            Ok(Some(Some(keep)))
        }
        Some(_) => Err(refuse()),
    }
}

/// Whether a request without a prompt asks that its model is unloaded.
pub(crate) fn unloads(body: &Value, keep: Option<Keep>) -> bool {
    let is_empty = |name: &str| match body.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    };
    keep == Some(Some(Duration::ZERO))
        && ["prompt", "messages", "suffix", "images"].into_iter().all(is_empty)
}

/// Unloads the model of a request, when its last answer has ended.
///
/// # Errors
/// Where there is no such model.
pub(crate) fn unload(site: &Arc<Site>, body: &Value, shape: Shape) -> ApiResult<Reply> {
    let name = body.get("model").and_then(Value::as_str).unwrap_or_default();
    names::check_given(name)?;
    let found = site.fleet.model(name)?;
    site.fleet.dismiss(found.name());
    Ok(loaded(name, shape, Loading::Unload))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn seconds_and_durations_are_read() {
        let keep = |value: Value| of(&json!({"keep_alive": value}));
        assert_eq!(of(&json!({})), Ok(None));
        assert_eq!(keep(json!(null)), Ok(None));
        assert_eq!(keep(json!("")), Ok(None));
        for zero in [json!(0), json!(0.0), json!("0"), json!("0s"), json!("0m")] {
            assert_eq!(keep(zero), Ok(Some(Some(Duration::ZERO))));
        }
        assert_eq!(keep(json!(90)), Ok(Some(Some(Duration::from_secs(90)))));
        assert_eq!(keep(json!("5m")), Ok(Some(Some(Duration::from_secs(300)))));
        for endless in [json!(-1), json!("-1"), json!("-1m"), json!(1e300)] {
            assert_eq!(keep(endless), Ok(Some(None)));
        }
        for wrong in [json!("soon"), json!("5 m"), json!([]), json!(true), json!({"m": 5})] {
            assert!(keep(wrong).is_err());
        }
    }

    #[test]
    fn only_requests_without_a_prompt_unload() {
        let zero = Some(Some(Duration::ZERO));
        assert!(unloads(&json!({"model": "m"}), zero));
        assert!(unloads(&json!({"model": "m", "prompt": ""}), zero));
        assert!(unloads(&json!({"model": "m", "messages": []}), zero));
        assert!(!unloads(&json!({"model": "m", "prompt": "Hi"}), zero));
        assert!(!unloads(&json!({"model": "m"}), Some(None)));
        assert!(!unloads(&json!({"model": "m"}), None));
    }
}
