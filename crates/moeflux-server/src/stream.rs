//! The bytes of a connection, whatever they come through.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Ready};

use crate::half_closed::Sides;

/// What a connection is read from and written to.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Sides + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Sides + Send + Unpin> ClientStream for S {}

impl<S: Sides + ?Sized> Sides for Box<S> {
    fn sides(&self, cx: &mut Context<'_>) -> Ready {
        (**self).sides(cx)
    }
}

/// How requests are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// The beginning of what clients of HTTP/2 send (RFC 9113, 3.4). No method of HTTP/1.1 is called so.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// Reads the beginning of a connection, which tells its protocol.
///
/// # Errors
/// Those of the stream, and where it ends before it says something.
pub(crate) async fn told_by_client(
    mut stream: Box<dyn ClientStream>,
) -> io::Result<(Rewound, Protocol)> {
    let mut begin = Vec::with_capacity(HTTP2_PREFACE.len());
    loop {
        let is_preface = HTTP2_PREFACE.starts_with(&begin);
        let protocol = match (is_preface, begin.len() == HTTP2_PREFACE.len()) {
            (true, false) => {
                let mut room = (&mut stream).take((HTTP2_PREFACE.len() - begin.len()) as u64);
                if room.read_buf(&mut begin).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            }
            (true, true) => Protocol::Http2,
            (false, _) => Protocol::Http1,
        };
        return Ok((Rewound { begin, n_read: 0, inner: stream }, protocol));
    }
}

/// A stream whose beginning was read, and is read again.
pub(crate) struct Rewound {
    begin: Vec<u8>,
    n_read: usize,
    inner: Box<dyn ClientStream>,
}

impl Rewound {
    /// A stream of which nothing was read.
    pub(crate) fn whole(inner: Box<dyn ClientStream>) -> Rewound {
        Rewound { begin: Vec::new(), n_read: 0, inner }
    }
}

impl Sides for Rewound {
    fn sides(&self, cx: &mut Context<'_>) -> Ready {
        self.inner.sides(cx)
    }
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let rest = &this.begin[this.n_read..];
        if rest.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        let n = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..n]);
        this.n_read += n;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
