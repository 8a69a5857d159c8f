//! Requests that change which models there are, or ask for what no model makes.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body as HttpBody, Bytes};
use axum::http::StatusCode;
use hyper::body::Frame;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::names;
use crate::body::JsonBody;
use crate::error::{ApiError, ApiResult};
use crate::fleet::Pulled;
use crate::library::PullProgress;
use crate::reply::{self, Dialect, ErrorReply, Reply};
use crate::request::{Body, Request, object, read};
use crate::site::Site;

/// Lines about a download that a client may have unread.
const MAX_LINES: usize = 32;

/// Between two lines about bytes that have arrived.
const REPORT_PAUSE: Duration = Duration::from_millis(200);

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
    let (sender, lines) = mpsc::channel(MAX_LINES);
    let mut reporter = Reporter { lines: sender.clone(), name: name.clone(), last: None };
    reporter.send(Progress::said("pulling manifest"));
    let pulled = site.fleet.pull(&name, move |progress| reporter.report(progress))?;
    if !body.stream.unwrap_or(true) {
        return match outcome(pulled).await {
            Ok(()) => Ok(ignored.mark(reply::json(StatusCode::OK, &Progress::said("success")))),
            Err(problem) => Err(ApiError::internal(problem)),
        };
    }
    tokio::spawn(async move {
        let last = match outcome(pulled).await {
            Ok(()) => line(&Progress::said("success")),
            Err(problem) => line(&ErrorReply::new(&ApiError::internal(problem), Dialect::Ollama)),
        };
        // The client may be gone.
        let _ = sender.send(last).await;
    });
    Ok(ignored.mark(reply::stream(reply::NDJSON, HttpBody::new(Lines(lines)))))
}

/// How a download ended: in words, if it failed.
async fn outcome(pulled: Pulled) -> Result<(), String> {
    match pulled.await {
        Ok(result) => result.map_err(|err| err.to_string()),
        // Its thread has died.
        Err(_) => Err(String::from("the download failed: the log has more")),
    }
}

/// Writes lines about a download for a client that may read slowly, or be gone.
struct Reporter {
    lines: Sender<Bytes>,
    name: String,
    /// When bytes were last reported.
    last: Option<Instant>,
}

impl Reporter {
    /// Bytes arrive in pieces far smaller than a client can show: a few lines a second say enough.
    fn report(&mut self, progress: PullProgress) {
        let is_end = progress.done == progress.total;
        let is_early = self.last.is_some_and(|at| at.elapsed() < REPORT_PAUSE);
        if progress.total > 0 && !is_end && is_early {
            return;
        }
        self.last = Some(Instant::now());
        self.send(Progress::of(progress, &self.name));
    }

    fn send(&self, progress: Progress) {
        // A client that has not read the lines before does without this one.
        let _ = self.lines.try_send(line(&progress));
    }
}

fn line(value: &impl Serialize) -> Bytes {
    Bytes::from(reply::text(value) + "\n")
}

/// Lines as they come.
struct Lines(Receiver<Bytes>);

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
