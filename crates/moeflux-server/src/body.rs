//! Bodies of requests: read within limits, and parsed as JSON.

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use http_body_util::LengthLimitError;
use moeflux_engine::json_problem;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::app::App;
use crate::connections::Activity;
use crate::error::{ApiError, ApiResult};
use crate::options::ServerOptions;
use crate::reply::Dialect;
use crate::surrogates::replace_lone_surrogates;

use std::sync::Arc;

/// The JSON of a request's body.
#[derive(Debug)]
pub(crate) struct JsonBody(pub(crate) Value);

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> ApiResult<JsonBody> {
        let dialect = Dialect::of(request.uri().path(), request.headers());
        check_content_type(request.headers(), dialect)?;
        let activity = request.extensions().get::<Activity>().cloned().unwrap_or_default();
        // A client that sends its body slowly gives way to others where connections run out.
        let receiving = activity.receive();
        let bytes = read(request.into_body(), &app.options).await?;
        drop(receiving);
        parse(&bytes).map(JsonBody)
    }
}

/// Refuses types that a foreign page can send without a preflight request.
fn check_content_type(headers: &HeaderMap, dialect: Dialect) -> ApiResult<()> {
    let mime = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mime = mime.split(';').next().unwrap_or_default().trim();
    // Ollama's documentation calls its API with a bare `curl -d`. Browsers always name the origin
    // of a page that posts.
    let is_curl = dialect == Dialect::Ollama && !headers.contains_key(ORIGIN);
    if mime.eq_ignore_ascii_case("application/json") || is_curl {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "the body must be JSON: Content-Type: application/json",
    ))
}

async fn read(body: Body, options: &ServerOptions) -> ApiResult<Bytes> {
    let too_large = || {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {} bytes (--max-body)", options.max_body),
        )
    };
    if body.size_hint().lower() > options.max_body as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(options.body_timeout, to_bytes(body, options.max_body)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(err)) => match std::error::Error::source(&err) {
            Some(source) if source.is::<LengthLimitError>() => Err(too_large()),
            _ => Err(ApiError::field("body", "it ended early")),
        },
        Err(_) => {
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"))
        }
    }
}

/// Parses a body. Escapes of lone surrogates, which JavaScript writes where text is cut in the
/// middle of a character, become U+FFFD.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    let parsed = serde_json::from_slice(bytes).or_else(|err| {
        // The parser's words for half a pair of surrogates.
        match err.to_string().contains("hex escape") {
            true => replace_lone_surrogates(bytes)
                .map_or(Err(err), |replaced| serde_json::from_slice(&replaced)),
            false => Err(err),
        }
    });
    parsed.map_err(|err| {
        ApiError::field("body", format!("it is not valid JSON: {}", json_problem(&err)))
    })
}
