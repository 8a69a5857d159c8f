//! Serves connections: HTTP/1.1 and HTTP/2, plain or with TLS, of TCP or of a Unix socket.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::HOST;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

use crate::connections::{Activity, Admitted, AnswerGuard};
use crate::guarded::{Guard, Guarded};
use crate::half_closed::HalfClosed;
use crate::options::ServerOptions;
use crate::paths::normalize;
use crate::stream::{ClientStream, Protocol, Rewound, told_by_client};
use crate::tls::{HTTP2, Tls};
use crate::write_timeout::WriteTimeout;

/// Bytes of a request's header at most, and of what is read ahead.
const MAX_HEADER_BYTES: u32 = 64 << 10;

/// Header lines of a request at most.
const MAX_HEADERS: usize = 100;

/// Requests of a connection of HTTP/2 at a time.
const MAX_STREAMS: u32 = 64;

/// Bytes of a body, and of all bodies of a connection, that clients of HTTP/2 may send ahead.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Bytes of an answer that are kept for a client of HTTP/2.
const SEND_BUFFER: usize = 64 << 10;

/// After this time without a sign of life a client of HTTP/2 is asked for one, and has as long again.
const PING_AFTER: Duration = Duration::from_secs(30);

/// Between two looks at whether a client of HTTP/2 takes its answers.
const STALL_PAUSE: Duration = Duration::from_secs(1);

/// What serves a connection.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) router: Router,
    pub(crate) options: Arc<ServerOptions>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) ending: watch::Receiver<bool>,
}

impl Service {
    /// Serves one connection to its end.
    pub(crate) async fn serve<S>(mut self, stream: S, admitted: Admitted)
    where
        S: ClientStream + 'static,
    {
        let activity = admitted.activity.clone();
        let opened = tokio::select! {
            biased;
            opened = timeout(self.options.header_timeout, self.open(stream)) => opened,
            () = activity.must_close() => return,
            _ = async { drop(self.ending.clone().wait_for(|is_ending| *is_ending).await) } => return,
        };
        // The client sent no HTTP, or not in time, or is gone.
        let Ok(Ok((stream, protocol))) = opened else { return };
        let stream = WriteTimeout::new(stream, self.options.write_timeout, activity.clone());
        let stream = TokioIo::new(HalfClosed::new(stream, activity.clone()));
        let (router, answering) = (self.router.clone(), activity.clone());
        let answer = service_fn(move |request| answer(router.clone(), request, answering.clone()));
        match protocol {
            Protocol::Http1 => {
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new())
                    .half_close(true)
                    .header_read_timeout(self.options.header_timeout)
                    .max_headers(MAX_HEADERS)
                    .max_buf_size(MAX_HEADER_BYTES as usize);
                self.drive(http.serve_connection(stream, answer), &activity).await;
            }
            Protocol::Http2 => {
                let mut http = http2::Builder::new(TokioExecutor::new());
                http.timer(TokioTimer::new())
                    .max_concurrent_streams(MAX_STREAMS)
                    .max_header_list_size(MAX_HEADER_BYTES)
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_send_buf_size(SEND_BUFFER)
                    .keep_alive_interval(PING_AFTER)
                    .keep_alive_timeout(PING_AFTER);
                self.drive(http.serve_connection(stream, answer), &activity).await;
            }
        }
    }

    /// Opens the connection, and finds out which protocol the client speaks.
    async fn open<S: ClientStream + 'static>(&self, stream: S) -> io::Result<(Rewound, Protocol)> {
        let Some(tls) = &self.tls else { return told_by_client(Box::new(stream)).await };
        let stream = tls.acceptor().accept(stream).await?;
        match stream.get_ref().1.alpn_protocol() {
            Some(HTTP2) => Ok((Rewound::whole(Box::new(stream)), Protocol::Http2)),
            _ => told_by_client(Box::new(stream)).await,
        }
    }

    /// Lets a connection go on until it ends, must make room for another, or the server ends.
    async fn drive<C: GracefulConnection>(&mut self, connection: C, activity: &Activity) {
        tokio::pin!(connection);
        tokio::select! {
            // A request that has just come is taken before the connection may close for another.
            biased;
            // An error here is the client's: it sent no HTTP, or is gone.
            _ = &mut connection => return,
            () = activity.must_close() => return,
            () = stalled(activity, self.options.write_timeout) => return,
            _ = self.ending.wait_for(|is_ending| *is_ending) => {}
        }
        if !activity.waits_for_client() {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Ready where the client has left a part of an answer untaken for this long.
async fn stalled(activity: &Activity, most: Duration) {
    while !activity.is_stalled(most) {
        sleep(STALL_PAUSE.min(most)).await;
    }
}

async fn answer(
    router: Router,
    request: Request<Incoming>,
    activity: Activity,
) -> Result<Response<Guarded<AnswerGuard>>, Infallible> {
    let version = request.version();
    let guard = activity.answer(version == Version::HTTP_2);
    activity.set_may_be_asked(version == Version::HTTP_11);
    let mut request = normalize(with_host(request)).map(Body::new);
    request.extensions_mut().insert(activity.clone());
    let reply = router.oneshot(request).await?;
    activity.set_may_be_asked(false);
    Ok(reply.map(|body| Guarded::new(body, guard)))
}

/// Gives a request of HTTP/2 the header that says which host it asks: there it is a part of the
/// address.
fn with_host<B>(mut request: Request<B>) -> Request<B> {
    if request.version() == Version::HTTP_2
        && let Some(host) = request.uri().authority()
        && let Ok(host) = HeaderValue::from_str(host.as_str())
    {
        request.headers_mut().insert(HOST, host);
    }
    request
}

/// With a reply's body the answer to a request ends.
impl Guard for AnswerGuard {
    fn polled(&mut self, is_ready: bool) {
        self.note_polled(is_ready);
    }
}
