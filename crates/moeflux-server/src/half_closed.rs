//! Connections whose client has shut its sending side: it may wait for its answer, or be gone.
//!
//! Both look alike until something is sent. Where an answer takes longer, the client gets an interim
//! reply, which clients of HTTP/1.1 pass over, and which the system of a client that is gone refuses.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;

use crate::connections::Activity;

/// Between two looks at a connection whose request is being answered.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks at a half-closed connection before its client is asked.
const LOOKS: u32 = 4;

/// Bytes that are discarded at most when a connection is closed.
const MAX_DISCARDED: usize = 256 << 10;

/// What asks a client whether it is there.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A stream that knows which of its sides are closed.
pub(crate) trait Sides {
    /// The sides, as far as the system has reported them; never waits.
    fn sides(&self, cx: &mut Context<'_>) -> Ready;
}

impl Sides for TcpStream {
    fn sides(&self, cx: &mut Context<'_>) -> Ready {
        now(self.ready(Interest::READABLE | Interest::WRITABLE), cx)
    }
}

#[cfg(unix)]
impl Sides for UnixStream {
    fn sides(&self, cx: &mut Context<'_>) -> Ready {
        now(self.ready(Interest::READABLE | Interest::WRITABLE), cx)
    }
}

impl<S: Sides> Sides for TlsStream<S> {
    fn sides(&self, cx: &mut Context<'_>) -> Ready {
        self.get_ref().0.sides(cx)
    }
}

/// What is known without waiting.
fn now(ready: impl Future<Output = io::Result<Ready>>, cx: &mut Context<'_>) -> Ready {
    match pin!(ready).poll(cx) {
        Poll::Ready(Ok(sides)) => sides,
        Poll::Ready(Err(_)) | Poll::Pending => Ready::EMPTY,
    }
}

/// A stream that fails where its client has left while its request is answered.
pub(crate) struct HalfClosed<S> {
    inner: S,
    activity: Activity,
    /// Set while a request is answered.
    next_look: Option<Pin<Box<Sleep>>>,
    /// Looks at which the sending side of the client was shut.
    n_shut: u32,
    /// What has to be sent to ask the client.
    question: &'static [u8],
}

impl<S: Sides + AsyncWrite + Unpin> HalfClosed<S> {
    pub(crate) fn new(inner: S, activity: Activity) -> HalfClosed<S> {
        HalfClosed { inner, activity, next_look: None, n_shut: 0, question: &[] }
    }

    /// Looks at the connection from time to time while a request is answered.
    fn look(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.activity.is_answering() {
            (self.next_look, self.n_shut, self.question) = (None, 0, &[]);
            return Ok(());
        }
        let next_look = self.next_look.get_or_insert_with(|| Box::pin(sleep(PAUSE)));
        while next_look.as_mut().poll(cx).is_ready() {
            next_look.as_mut().reset(Instant::now() + PAUSE);
            let sides = self.inner.sides(cx);
            if sides.is_write_closed() {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if sides.is_read_closed() {
                self.n_shut += 1;
                if self.n_shut == LOOKS && self.activity.may_be_asked() {
                    self.question = INTERIM;
                }
            }
        }
        Ok(())
    }

    /// Sends the rest of the interim reply, unless the reply has begun.
    fn ask(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.question.len() == INTERIM.len() && !self.activity.may_be_asked() {
            self.question = &[];
        }
        while !self.question.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, self.question))?;
            self.question = &self.question[written..];
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HalfClosed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + Unpin> HalfClosed<S> {
    /// Discards what has come and will not be read: a connection that is closed with unread bytes is
    /// reset, and a client whose connection is reset may lose the reply.
    fn discard(&mut self, cx: &mut Context<'_>) {
        let mut room = [0; 4096];
        for _ in 0..MAX_DISCARDED.div_ceil(room.len()) {
            let mut buf = ReadBuf::new(&mut room);
            match Pin::new(&mut self.inner).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {}
                _ => return,
            }
        }
    }
}

impl<S: Sides + AsyncRead + AsyncWrite + Unpin> AsyncWrite for HalfClosed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.ask(cx))?;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.ask(cx))?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// The HTTP library flushes whenever it has nothing else to do.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.look(cx)?;
        ready!(self.ask(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_shutdown(cx))?;
        self.discard(cx);
        Poll::Ready(Ok(()))
    }
}
