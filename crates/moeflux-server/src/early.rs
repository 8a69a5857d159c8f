//! Streams that begin before the model that writes them is loaded.
//!
//! Clients wait for the head of a reply for a minute or some, and loading a large model, after the
//! answers of another one have ended, can take longer. So the reply begins without an answer, and has a
//! sign of life from time to time until the answer's own stream follows.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::Frame;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::access;
use crate::error::{ApiError, ApiResult};
use crate::ollama::reply::{Shape, sign_of_life};
use crate::reply::{self, Dialect, ErrorReply, NDJSON, Reply};

/// How long a reply waits for its model before it begins without.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two signs of life.
const PAUSE: Duration = Duration::from_secs(10);

/// How a client reads a stream.
#[derive(Clone, Debug)]
pub(crate) enum Style {
    /// Server-sent events.
    Events(Dialect),
    /// Lines of Ollama's API: what the client calls the model, and the object that they make.
    Lines { model: String, shape: Shape },
}

impl Style {
    fn mime(&self) -> &'static str {
        match self {
            Style::Events(_) => "text/event-stream",
            Style::Lines { .. } => NDJSON,
        }
    }

    /// What adds nothing to an answer.
    fn sign(&self) -> String {
        match self {
            Style::Events(_) => String::from(": the model is being loaded\n\n"),
            Style::Lines { model, shape } => sign_of_life(model, shape) + "\n",
        }
    }

    fn failure(&self, err: &ApiError) -> String {
        match self {
            Style::Events(Dialect::Anthropic) => {
                let error = reply::text(&ErrorReply::new(err, Dialect::Anthropic));
                format!("event: error\ndata: {error}\n\n")
            }
            Style::Events(dialect) => {
                format!("data: {}\n\n", reply::text(&ErrorReply::new(err, *dialect)))
            }
            Style::Lines { .. } => reply::text(&ErrorReply::new(err, Dialect::Ollama)) + "\n",
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = ApiResult<Reply>> + Send>>;

/// Answers a request with a model once it has it. A reply that is a stream begins after [`PATIENCE`]
/// at the latest.
///
/// # Errors
/// Those of `lease` and of `handle`, unless the reply has begun: then they are a part of it.
pub(crate) async fn begin<M, Fut>(
    lease: impl Future<Output = ApiResult<M>> + Send + 'static,
    handle: impl FnOnce(M) -> Fut + Send + 'static,
    style: Option<Style>,
) -> ApiResult<Reply>
where
    M: Send + 'static,
    Fut: Future<Output = ApiResult<Reply>> + Send + 'static,
{
    let mut lease = Box::pin(lease);
    let Some(style) = style else { return handle(lease.await?).await };
    if let Ok(model) = timeout(PATIENCE, &mut lease).await {
        return handle(model?).await;
    }
    let answer = async move { handle(lease.await?).await };
    let answer: Answer = match access::current() {
        Some(record) => Box::pin(record.held_by(answer)),
        None => Box::pin(answer),
    };
    let mime = style.mime();
    let tick = Box::pin(sleep(Duration::ZERO));
    let stage = Stage::Waits(answer, tick);
    Ok(reply::stream(mime, Body::new(EarlyReply { stage, style })))
}

/// A reply that has begun.
struct EarlyReply {
    stage: Stage,
    style: Style,
}

enum Stage {
    /// For the answer; and the time of the next sign of life.
    Waits(Answer, Pin<Box<Sleep>>),
    Answers(Body),
    Failed,
}

impl hyper::body::Body for EarlyReply {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        loop {
            let (answer, tick) = match &mut this.stage {
                Stage::Answers(body) => return Pin::new(body).poll_frame(cx),
                Stage::Failed => return Poll::Ready(None),
                Stage::Waits(answer, tick) => (answer, tick),
            };
            match answer.as_mut().poll(cx) {
                Poll::Ready(Ok(reply)) => this.stage = Stage::Answers(reply.into_body()),
                Poll::Ready(Err(err)) => {
                    this.stage = Stage::Failed;
                    let text = this.style.failure(&err);
                    return Poll::Ready(Some(Ok(Frame::data(text.into()))));
                }
                Poll::Pending => {
                    ready!(tick.as_mut().poll(cx));
                    tick.as_mut().reset(Instant::now() + PAUSE);
                    let text = this.style.sign();
                    return Poll::Ready(Some(Ok(Frame::data(text.into()))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use http_body_util::BodyExt;
    use serde_json::Value;

    use super::*;

    async fn text(style: Style, loading: u64, model: ApiResult<&'static str>) -> String {
        let lease = async move {
            sleep(Duration::from_secs(loading)).await;
            model
        };
        let handle = async |text: &'static str| Ok(reply::bytes(StatusCode::OK, NDJSON, text));
        let reply = begin(lease, handle, Some(style)).await.unwrap();
        assert_eq!(reply.status(), StatusCode::OK);
        String::from_utf8(reply.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_begins_before_its_model_is_loaded() {
        let style = || Style::Events(Dialect::OpenAi);
        assert_eq!(text(style(), 4, Ok("data: x\n\n")).await, "data: x\n\n");
        let late = text(style(), 40, Ok("data: x\n\n")).await;
        assert_eq!(late.matches(": the model is being loaded\n\n").count(), 4, "{late}");
        assert!(late.ends_with("loaded\n\ndata: x\n\n"), "{late}");
        let lines = Style::Lines { model: String::from("m"), shape: Shape::Chat };
        let late = text(lines, 40, Ok("{}\n")).await;
        for line in late.lines().take(4) {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!((&line["message"]["content"], &line["done"]), (&"".into(), &false.into()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_after_the_beginning_is_an_error_of_the_stream() {
        let failure = || Err(ApiError::internal("it does not fit"));
        let openai = text(Style::Events(Dialect::OpenAi), 40, failure()).await;
        let event = openai.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        let event: Value = serde_json::from_str(event).unwrap();
        assert_eq!(event["error"]["message"], "it does not fit");
        let anthropic = text(Style::Events(Dialect::Anthropic), 40, failure()).await;
        assert!(anthropic.contains("event: error\ndata: {\"type\":\"error\""), "{anthropic}");
        let lease = async move { failure() };
        let handle = async |_: &'static str| Err(ApiError::internal("unreachable"));
        let style = Some(Style::Events(Dialect::OpenAi));
        assert!(begin(lease, handle, style).await.is_err(), "before it has begun");
    }
}
