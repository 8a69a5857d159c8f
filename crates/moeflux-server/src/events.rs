//! Server-sent events: answers as they come.

use std::convert::Infallible;
use std::fmt::Write;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep};

use crate::ask::{PendingAnswers, Update};
use crate::reply::{self, NDJSON, Reply, text};

/// Time without an event after which a dialect sends one that changes nothing. Clients give up
/// after minutes without an event; most do not count comments.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Events that are sent together at most, so that others get their turn.
const MAX_BATCH: usize = 64;

/// Turns updates into the events of a dialect.
pub(crate) trait Encoder: Send + Sync {
    /// What comes before all updates.
    fn begin(&mut self, out: &mut Events);
    /// An update of one of the answers.
    fn update(&mut self, index: usize, update: Update, out: &mut Events);
    /// An event that adds nothing to the answer, while a prompt is read or the queue is long. It
    /// must be one that the dialect's clients count as a sign of life.
    fn alive(&mut self, out: &mut Events);
    /// What comes when all answers have ended well.
    fn end(&mut self, out: &mut Events);
}

/// Events on their way to the client.
#[derive(Debug, Default)]
pub(crate) struct Events {
    text: String,
    has_failed: bool,
}

impl Events {
    /// An event without a name.
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        self.raw(&text(value));
    }

    /// As [`data`](Events::data), of text without line ends.
    pub(crate) fn raw(&mut self, text: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "data: {text}\n\n");
    }

    /// An event with a name.
    pub(crate) fn named(&mut self, name: &str, value: &impl Serialize) {
        let _ = write!(self.text, "event: {name}\ndata: {}\n\n", text(value));
    }

    /// A line of JSON, in streams that are no server-sent events.
    pub(crate) fn line(&mut self, value: &impl Serialize) {
        let _ = writeln!(self.text, "{}", text(value));
    }

    /// Ends the stream behind what was written.
    pub(crate) fn fail(&mut self) {
        self.has_failed = true;
    }
}

/// A body of such events.
pub(crate) struct EventStream {
    answers: PendingAnswers,
    encoder: Box<dyn Encoder>,
    /// Runs out when the encoder must send a sign of life.
    alive: Pin<Box<Sleep>>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Open,
    Ended,
}

impl EventStream {
    pub(crate) fn new(answers: PendingAnswers, encoder: Box<dyn Encoder>) -> EventStream {
        EventStream { answers, encoder, alive: Box::pin(sleep(KEEP_ALIVE)), state: State::New }
    }

    /// Writes what is there; whether there will be more.
    fn fill(&mut self, cx: &mut Context<'_>, out: &mut Events) {
        if self.state == State::New {
            self.encoder.begin(out);
            self.state = State::Open;
        }
        for _ in 0..MAX_BATCH {
            match self.answers.poll_next(cx) {
                Poll::Pending => return,
                Poll::Ready(Some((i, update))) => self.encoder.update(i, update, out),
                Poll::Ready(None) => {
                    self.encoder.end(out);
                    self.state = State::Ended;
                }
            }
            if out.has_failed {
                self.state = State::Ended;
            }
            if self.state == State::Ended {
                return;
            }
        }
        cx.waker().wake_by_ref();
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.state == State::Ended {
            return Poll::Ready(None);
        }
        let mut out = Events::default();
        this.fill(cx, &mut out);
        if out.text.is_empty()
            && this.state == State::Open
            && this.alive.as_mut().poll(cx).is_ready()
        {
            this.encoder.alive(&mut out);
        }
        if out.text.is_empty() {
            return if this.state == State::Ended { Poll::Ready(None) } else { Poll::Pending };
        }
        this.alive.as_mut().reset(Instant::now() + KEEP_ALIVE);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(out.text)))))
    }

    fn is_end_stream(&self) -> bool {
        self.state == State::Ended
    }
}

#[cfg(test)]
pub(crate) mod slow;

/// Server-sent events.
pub(crate) fn stream(events: EventStream) -> Reply {
    stream_of(events, "text/event-stream")
}

/// Lines of JSON.
pub(crate) fn lines(events: EventStream) -> Reply {
    stream_of(events, NDJSON)
}

fn stream_of(events: EventStream, mime: &'static str) -> Reply {
    reply::stream(mime, axum::body::Body::new(events))
}
