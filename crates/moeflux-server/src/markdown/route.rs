//! `/page/render`: Markdown as HTML, for the page.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{Rendered, render, render_unfinished};
use crate::error::{ApiError, ApiResult};
use crate::markdown::budget::Budget;
use crate::offload::offload;
use crate::reply::{self, Reply};
use crate::request::read_part;

/// Texts of one request at most.
const MAX_TEXTS: usize = 100;

/// Bytes of these together.
const MAX_BYTES: usize = 1 << 20;

/// Requests that are rendered at a time: each may take some tens of megabytes.
static PERMITS: Semaphore = Semaphore::const_new(2);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenderRequest {
    texts: Vec<String>,
    /// Whether they are still being written.
    #[serde(default)]
    unfinished: bool,
}

/// Texts that are rendered.
#[derive(Debug, Serialize)]
struct RenderReply {
    texts: Vec<Rendered>,
}

/// Renders texts, each as its finished blocks, the unfinished one after these, and where that
/// begins in the text, in UTF-16 units as JavaScript counts.
pub(crate) async fn handle(body: Value) -> ApiResult<Reply> {
    let request: RenderRequest = read_part(body, "")?;
    if request.texts.len() > MAX_TEXTS {
        return Err(ApiError::field("texts", format!("it has more than {MAX_TEXTS} texts")));
    }
    let n_bytes: usize = request.texts.iter().map(String::len).sum();
    if n_bytes > MAX_BYTES {
        let problem = format!("they have {n_bytes} bytes together, more than {MAX_BYTES}");
        return Err(ApiError::field("texts", problem));
    }
    // The semaphore is never closed.
    let _permit = PERMITS.acquire().await;
    let work = move || {
        let budget = Budget::new();
        let render = if request.unfinished { render_unfinished } else { render };
        let texts = request.texts.iter().map(|text| in_utf16(text, render(text, budget)));
        RenderReply { texts: texts.collect() }
    };
    Ok(reply::json(StatusCode::OK, &offload(work).await?))
}

/// Starts of tails in UTF-16 units.
fn in_utf16(text: &str, rendered: Rendered) -> Rendered {
    let tail_start = text[..rendered.tail_start].chars().map(char::len_utf16).sum();
    Rendered { tail_start, ..rendered }
}
