//! Work that computes, on threads of its own, so that connections are served meanwhile.
//!
//! Tokio's pool for such work panics, or lets the work wait without end, where the system starts
//! no thread.
//!
//! Where keys share the server, one key takes half of the threads at most: its long prompts do not keep
//! those of others waiting.

use std::thread;

use moeflux_engine::explain_thread_error;
use tokio::sync::{Semaphore, oneshot};

use crate::access;
use crate::error::{ApiError, ApiResult};

/// One for each thread that may work at a time.
static PERMITS: Semaphore = Semaphore::const_new(8);

/// One for each thread that may have a vision tower look at pictures, for which it may take minutes: one
/// tower looks at one picture at a time, and others wait.
static LOOKERS: Semaphore = Semaphore::const_new(2);

/// Runs `work` on a thread of its own, once fewer than eight others do, and fewer than four for the same
/// key.
///
/// # Errors
/// 503 where the system starts no thread, and 500 where `work` panics.
pub(crate) async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    // The semaphores are never closed. A key waits for its own first, so that it holds none of the others.
    let own = match access::current().and_then(|record| record.threads()) {
        Some(own) => Some(own.acquire_owned().await),
        None => None,
    };
    let permit = PERMITS.acquire().await;
    on_thread((own, permit), work).await
}

/// As [`offload`], for what a vision tower computes.
///
/// # Errors
/// Those of [`offload`].
pub(crate) async fn offload_look<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    on_thread(LOOKERS.acquire().await, work).await
}

/// Runs `work` on a thread of its own, which has the permits until it ends.
async fn on_thread<T: Send + 'static>(
    permits: impl Send + 'static,
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    let (sender, result) = oneshot::channel();
    let run = move || {
        let _permits = permits;
        // The client may be gone.
        let _ = sender.send(work());
    };
    let started = thread::Builder::new().name(String::from("http-work")).spawn(run);
    started.map_err(|err| ApiError::overloaded(&explain_thread_error(err).to_string()))?;
    result.await.map_err(|_| ApiError::internal("the request could not be read"))
}
