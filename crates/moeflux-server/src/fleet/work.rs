//! Work on models, which may take minutes.

use moeflux_engine::explain_thread_error;
use tokio::sync::oneshot;

use crate::error::{ApiError, ApiResult};

/// Runs `work` on a thread of its own.
///
/// # Errors
/// 503 where the system starts no thread, and 500 where `work` panics.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    let (sender, result) = oneshot::channel();
    let run = move || {
        // The server may be gone.
        let _ = sender.send(work());
    };
    let started = std::thread::Builder::new().name(String::from("models")).spawn(run);
    started.map_err(|err| ApiError::overloaded(&explain_thread_error(err).to_string()))?;
    result.await.map_err(|_| ApiError::internal("the work on a model failed: the log has more"))
}
