//! The API for programs of the same process: requests and replies without connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt;
use hyper::body::Frame;
use moeflux::{Model, News};
use moeflux_engine::explain_thread_error;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tower::ServiceExt;

use crate::auth::Gate;
use crate::callers::Callers;
use crate::common::Common;
use crate::error::ServerError;
use crate::fleet::Fleet;
use crate::options::ServerOptions;
use crate::paths::normalize;
use crate::routes::{Root, router};
use crate::runtime::start_runtime;
use crate::site::Site;

/// For requests that still run when it ends: they are ended, and give the model back.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests that may wait for an answer.
const MAX_WAITING: usize = 1 << 20;

/// The routes of a server for one model, for programs that have loaded it. It does not end the model.
pub struct LocalApi {
    router: Router,
    /// Absent while it is dropped.
    runtime: Option<Runtime>,
}

/// A request.
#[derive(Clone, Debug, Default)]
pub struct LocalRequest {
    /// Such as `POST`.
    pub method: String,
    /// From the slash on, with the query.
    pub path: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// All of it.
    pub body: Vec<u8>,
}

/// What comes of a request, in this order.
#[derive(Clone, Debug)]
pub enum LocalPart {
    /// The head: once, first.
    Head {
        /// Such as 200.
        status: u16,
        /// Names and values.
        headers: Vec<(String, String)>,
    },
    /// A part of the body.
    Body(Bytes),
    /// The end of the body: once, last.
    End,
}

/// A reply while it is made. Dropping it ends what is made for it.
pub struct LocalReply {
    parts: Receiver<LocalPart>,
    _alive: oneshot::Sender<()>,
}

impl LocalApi {
    /// Serves a model under some names. With `any_name` every other name means it too.
    ///
    /// # Errors
    /// Where the system has no threads for it.
    pub fn new(model: Model, names: Vec<String>, any_name: bool) -> Result<LocalApi, ServerError> {
        // It listens nowhere.
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = ServerOptions {
            model_names: names,
            any_model: any_name,
            n_sessions: model.engine().plan().n_sessions,
            max_waiting: MAX_WAITING,
            ..ServerOptions::new(nowhere, String::new())
        };
        let callers = Arc::new(Callers::new(&options)?);
        let gate = Gate::of_process(&callers);
        let common = Arc::new(Common::new(options, callers));
        let fleet = Arc::new(Fleet::of_model(model, Arc::clone(&common)));
        let runtime =
            start_runtime().map_err(|err| ServerError::Start(explain_thread_error(err)))?;
        let router = router(Arc::new(Site { common, fleet }), gate, Root::Page);
        Ok(LocalApi { router, runtime: Some(runtime) })
    }

    /// Begins to answer a request. `news` is called when there is more to receive; it must not wait.
    ///
    /// # Errors
    /// Where the method, the path or a header is none, in a sentence.
    pub fn ask(&self, request: LocalRequest, news: News) -> Result<LocalReply, String> {
        let mut built = Request::builder().method(&*request.method).uri(request.path);
        for (name, value) in request.headers {
            built = built.header(name, value);
        }
        let request = built.body(Body::from(request.body)).map_err(|err| err.to_string())?;
        let router = self.router.clone();
        let (sender, parts) = mpsc::channel();
        let (alive, left) = oneshot::channel();
        let line = Line { sender: Some(sender), news };
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                tokio::select! {
                    () = answer(router, normalize(request), &line) => {}
                    _ = left => {}
                }
            });
        }
        Ok(LocalReply { parts, _alive: alive })
    }
}

impl Drop for LocalApi {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(CLOSE_TIMEOUT);
        }
    }
}

impl LocalReply {
    /// Waits for the next part; `None` where none came in this time.
    ///
    /// # Errors
    /// Where none comes any more and the last was not the end: the API was closed.
    pub fn wait(&mut self, most: Duration) -> Result<Option<LocalPart>, String> {
        match self.parts.recv_timeout(most) {
            Ok(part) => Ok(Some(part)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(String::from("the API was closed before the end of the reply"))
            }
        }
    }
}

/// Where the parts of a reply go.
struct Line {
    /// Absent while it is dropped.
    sender: Option<Sender<LocalPart>>,
    news: News,
}

impl Line {
    fn send(&self, part: LocalPart) {
        if let Some(sender) = &self.sender {
            // The task ends soon where the receiver is gone.
            let _ = sender.send(part);
            (self.news)();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.sender = None;
        (self.news)();
    }
}

async fn answer(router: Router, request: Request<Body>, line: &Line) {
    let Ok(reply) = router.oneshot(request).await;
    let (head, mut body) = reply.into_parts();
    line.send(LocalPart::Head { status: head.status.as_u16(), headers: pairs(&head.headers) });
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(bytes)) => line.send(LocalPart::Body(bytes)),
            // Trailers.
            Ok(Err(_)) => {}
            Err(_) => return,
        }
    }
    line.send(LocalPart::End);
}

fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let pair = |name: &str, value: &[u8]| {
        (name.to_owned(), value.iter().map(|&byte| char::from(byte)).collect())
    };
    headers.iter().map(|(name, value)| pair(name.as_str(), value.as_bytes())).collect()
}
