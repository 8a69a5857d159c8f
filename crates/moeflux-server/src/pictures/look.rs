//! Pictures of a request whose pixels are ready, seen by the model once the request is known to be good.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::StatusCode;
use moeflux_core::PictureRows;
use moeflux_engine::{EngineError, PreparedPicture, SeenPicture};
use moeflux_text::PicturePlace;
use tokio::sync::SemaphorePermit;

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::offload::offload_look;

/// A picture of the size that the model takes.
pub(super) struct OpenPicture {
    pub(super) rows: PictureRows,
    pub(super) prepared: PreparedPicture,
}

/// Pictures that the model has not looked at yet. They keep their part of the room for pictures.
#[derive(Default)]
pub(crate) struct Looks {
    /// What stands for them in prompts, in their order.
    rows: Vec<PictureRows>,
    pictures: HashMap<PictureRows, PreparedPicture>,
    room: Option<SemaphorePermit<'static>>,
}

impl Looks {
    pub(super) fn new(all: Vec<OpenPicture>, room: Option<SemaphorePermit<'static>>) -> Looks {
        let rows = all.iter().map(|picture| picture.rows).collect();
        let pictures = all.into_iter().map(|OpenPicture { rows, prepared }| (rows, prepared));
        Looks { rows, pictures: pictures.collect(), room }
    }

    /// What stands for the pictures in prompts, in their order.
    pub(crate) fn rows(&self) -> Vec<PictureRows> {
        self.rows.clone()
    }

    /// Looks at the pictures of a prompt, of which the request has all. Ends soon after the request is dropped.
    ///
    /// # Errors
    /// Where the tower cannot be loaded or fails.
    pub(crate) async fn seen(
        self,
        app: &Arc<App>,
        places: &[PicturePlace],
    ) -> ApiResult<Vec<Arc<SeenPicture>>> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let Looks { mut pictures, room, .. } = self;
        let shared = Arc::clone(app);
        let places: Vec<PictureRows> = places.iter().map(|place| place.rows).collect();
        let waiting = Waiting(Arc::default());
        let is_cancelled = Arc::clone(&waiting.0);
        let look = move || -> ApiResult<Vec<Arc<SeenPicture>>> {
            let _room = room;
            let mut seen: HashMap<PictureRows, Arc<SeenPicture>> = HashMap::new();
            for rows in &places {
                // A picture may stand in several places.
                if let Some(picture) = pictures.remove(rows) {
                    seen.insert(*rows, look_at(&shared, &picture, &is_cancelled)?);
                }
            }
            places.iter().map(|rows| seen.get(rows).cloned().ok_or_else(unknown)).collect()
        };
        offload_look(look).await?
    }
}

fn look_at(
    app: &App,
    picture: &PreparedPicture,
    is_cancelled: &AtomicBool,
) -> ApiResult<Arc<SeenPicture>> {
    let vision = app.loaded.engine().vision().ok_or_else(unknown)?;
    let mut progress = |_: usize, _: usize| {
        if is_cancelled.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let seen = vision.see(picture, &mut progress).map_err(|err| match err {
        EngineError::TowerMemory { .. } => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, err.to_string())
        }
        err => ApiError::internal(err.to_string()),
    })?;
    // The client is gone.
    seen.ok_or_else(ApiError::shutting_down)
}

fn unknown() -> ApiError {
    ApiError::internal("a picture of the prompt is none of the request's")
}

/// Set when the request is not waited for any more.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
