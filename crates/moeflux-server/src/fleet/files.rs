//! Downloads of models that clients ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::oneshot;

use super::catalog::Catalog;
use crate::common::Common;
use crate::error::{ApiError, ApiResult};
use crate::library::{LibraryError, PullProgress};

/// Downloads at a time.
const MAX_PULLS: usize = 2;

/// After this time a download may have ended.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Downloads that run. They share the drive and the network of the machine.
static N_PULLS: AtomicUsize = AtomicUsize::new(0);

/// One of the downloads that run.
struct Place;

impl Place {
    fn take() -> ApiResult<Place> {
        let before = N_PULLS.fetch_add(1, Ordering::Relaxed);
        let place = Place;
        if before < MAX_PULLS {
            return Ok(place);
        }
        let message = format!("{MAX_PULLS} downloads run already: try again when one has ended");
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message);
        Err(ApiError { retry_after: Some(RETRY_AFTER), ..error })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        N_PULLS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a download ended.
pub(crate) type Pulled = oneshot::Receiver<Result<(), LibraryError>>;

/// Begins to download a model. `progress` is called on a thread of its own.
///
/// # Errors
/// Where too many downloads run, or the system starts no thread.
pub(super) fn pull(
    catalog: &Arc<Catalog>,
    common: &Arc<Common>,
    name: &str,
    mut progress: impl FnMut(PullProgress) + Send + 'static,
) -> ApiResult<Pulled> {
    let place = Place::take()?;
    let (sender, ended) = oneshot::channel();
    let shown: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
    common.log(&format!("downloading {shown}"));
    let (catalog, common, name) = (Arc::clone(catalog), Arc::clone(common), name.to_owned());
    let work = move || {
        let _place = place;
        let result = catalog.pull(&name, &mut progress);
        match &result {
            Ok(()) => common.log(&format!("{shown} is here")),
            Err(err) => common.log(&format!("warning: {shown}: {err}")),
        }
        // The client may be gone.
        let _ = sender.send(result);
    };
    let started = std::thread::Builder::new().name(String::from("pull")).spawn(work);
    started.map_err(|err| ApiError::overloaded(&err.to_string()))?;
    Ok(ended)
}
