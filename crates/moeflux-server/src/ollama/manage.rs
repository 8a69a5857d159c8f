//! Requests that change which models there are, or ask for what no model makes.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body as HttpBody, Bytes};
use axum::http::StatusCode;
use hyper::body::Frame;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::names;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult};
use crate::library::PullProgress;
use crate::reply::{self, Dialect, ErrorReply, Reply};
use crate::request::{Body, Request, object, read};
use crate::site::Site;

/// Why models are not created or copied.
const FIXED: &str =
    "this server makes no models: it serves those of its folders and of the Hub's cache";
/// Why there are no embeddings.
const EMBEDDINGS: &str =
    "this server makes no embeddings: its models write text, by /api/chat and /api/generate";

/// Refuses what would make models. Bodies are read, so that connections can be used again.
pub(crate) async fn fixed(_body: Result<JsonBody, ApiError>) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, FIXED)
}

/// As [`fixed`], for what no model makes.
pub(crate) async fn no_embeddings(_body: Result<JsonBody, ApiError>) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, EMBEDDINGS)
}

/// The reply to the question whether a file is here.
pub(crate) async fn no_blob() -> StatusCode {
    StatusCode::NOT_FOUND
}

/// A request about a model's files.
#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct FilesRequest {
    /// The model's name.
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
    /// Whether the progress is sent; true where this is left out.
    stream: Option<bool>,
}

object!(FilesRequest);

impl Body for FilesRequest {
    const HINTS: &'static [&'static [&'static str]] = &[&["insecure", "username", "password"]];
}

impl FilesRequest {
    fn name(&self) -> ApiResult<&str> {
        let model = self.model.as_deref().filter(|name| !name.is_empty());
        let name = model.or(self.name.as_deref()).unwrap_or_default();
        names::check_given(name)?;
        Ok(name)
    }
}

/// How far a download is.
#[derive(Debug, Serialize)]
struct Progress {
    status: String,
    /// Ollama's clients tell downloads apart by this.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

impl Progress {
    fn said(status: &str) -> Progress {
        Progress { status: status.to_owned(), digest: None, total: None, completed: None }
    }

    fn of(progress: PullProgress, name: &str) -> Progress {
        let PullProgress { status, done, total } = progress;
        if total == 0 {
            return Progress::said(&status);
        }
        let digest = Some(name.to_owned());
        Progress { status, digest, total: Some(total), completed: Some(done) }
    }
}

/// `/api/pull`: downloads a model. One that is here needs no download.
pub(crate) async fn pull(site: Arc<Site>, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = read::<FilesRequest>(body)?;
    let name = body.name()?.to_owned();
    let ignored = ignored.accept_by(&site.common.journal)?;
    let is_stream = body.stream.unwrap_or(true);
    let (sender, lines) = mpsc::unbounded_channel();
    let _ = sender.send(line(&Progress::said("pulling manifest")));
    let pulled = {
        let (sender, name) = (sender.clone(), name.clone());
        site.fleet.pull(&name.clone(), move |progress| {
            // The client may be gone: the download goes on.
            let _ = sender.send(line(&Progress::of(progress, &name)));
        })?
    };
    let last = async move {
        let problem = match pulled.await {
            Ok(Ok(())) => None,
            Ok(Err(err)) => Some(err.to_string()),
            // Its thread has died.
            Err(_) => Some(String::from("the download failed: the log has more")),
        };
        let ended = match &problem {
            None => line(&Progress::said("success")),
            Some(problem) => {
                let error = ApiError::internal(problem.as_str());
                line(&ErrorReply::new(&error, Dialect::Ollama))
            }
        };
        let _ = sender.send(ended);
        problem.is_none()
    };
    if is_stream {
        tokio::spawn(last);
        return Ok(ignored.mark(reply::stream(reply::NDJSON, HttpBody::new(Lines(lines)))));
    }
    let status = if last.await { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    Ok(ignored.mark(reply::bytes(status, "application/json", last_line(lines))))
}

fn line(value: &impl Serialize) -> Bytes {
    Bytes::from(reply::text(value) + "\n")
}

fn last_line(mut lines: UnboundedReceiver<Bytes>) -> Bytes {
    let mut last = Bytes::new();
    while let Ok(line) = lines.try_recv() {
        last = line;
    }
    last
}

/// Lines as they come.
struct Lines(UnboundedReceiver<Bytes>);

impl hyper::body::Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

/// `/api/delete`: removes a model's files; a model that is loaded is unloaded first.
pub(crate) async fn delete(site: Arc<Site>, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = read::<FilesRequest>(body)?;
    let name = body.name()?.to_owned();
    let ignored = ignored.accept_by(&site.common.journal)?;
    site.fleet.remove(&name).await?;
    Ok(ignored.mark(reply::bytes(StatusCode::OK, "application/json", "")))
}
