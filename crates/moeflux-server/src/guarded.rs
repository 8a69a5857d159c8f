//! A body with what has to happen when it has ended.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// Is dropped with a body.
pub(crate) trait Guard: Send + Unpin + 'static {
    /// A part of the body is taken, or was asked for.
    fn polled(&mut self, _is_ready: bool) {}

    /// The body has ended; it was not given up.
    fn ended(&mut self) {}
}

/// A body with its guard.
pub(crate) struct Guarded<G> {
    body: Body,
    guard: G,
}

impl<G: Guard> Guarded<G> {
    pub(crate) fn new(body: Body, mut guard: G) -> Guarded<G> {
        guard.polled(true);
        if body.is_end_stream() {
            guard.ended();
        }
        Guarded { body, guard }
    }
}

impl<G: Guard> HttpBody for Guarded<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.guard.polled(frame.is_ready());
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.guard.ended();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
