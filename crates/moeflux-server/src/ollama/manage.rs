//! Requests that would change which models there are, or ask for what the model does not make.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::names;
use crate::app::App;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult};
use crate::reply::{self, Reply};
use crate::request::{Body, Request, object, read};

/// Why models are not created, copied or removed.
const FIXED: &str =
    "this server serves the model that it was started with: models are not changed over this API";
/// Why there are no embeddings.
const EMBEDDINGS: &str =
    "this server makes no embeddings: its model writes text, by /api/chat and /api/generate";

/// Refuses what would change which models there are. Bodies are read, so that connections can be
/// used again.
pub(crate) async fn fixed(_body: Result<JsonBody, ApiError>) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, FIXED)
}

/// As [`fixed`], for what the model does not make.
pub(crate) async fn no_embeddings(_body: Result<JsonBody, ApiError>) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, EMBEDDINGS)
}

/// The reply to the question whether a file is here.
pub(crate) async fn no_blob() -> StatusCode {
    StatusCode::NOT_FOUND
}

/// A request for a model from a library.
#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct PullRequest {
    /// The model's name.
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
    /// Whether the progress is sent; true where this is left out.
    stream: Option<bool>,
}

object!(PullRequest);

impl Body for PullRequest {
    const HINTS: &'static [&'static [&'static str]] = &[&["insecure", "username", "password"]];
}

/// How far a download is.
#[derive(Debug, Serialize)]
struct Progress {
    status: &'static str,
}

/// `/api/pull`: the model that is here needs no download, others are refused.
pub(crate) async fn pull(app: Arc<App>, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = read::<PullRequest>(body)?;
    let name = body.model.filter(|name| !name.is_empty()).or(body.name).unwrap_or_default();
    names::check(&app, &name)?;
    let success = Progress { status: "success" };
    let reply = if body.stream.unwrap_or(true) {
        let begun = Progress { status: "pulling manifest" };
        let lines = format!("{}\n{}\n", reply::text(&begun), reply::text(&success));
        reply::bytes(StatusCode::OK, reply::NDJSON, lines)
    } else {
        reply::json(StatusCode::OK, &success)
    };
    Ok(ignored.accept(&app)?.mark(reply))
}
