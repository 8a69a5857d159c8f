//! From where pictures are to pixels of the size that the model takes, within limits of memory.

use std::sync::Arc;
use std::time::Instant;

use moeflux_core::PictureRows;
use moeflux_engine::{EngineError, PictureReader, Vision};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::fetch::MAX_TIME;
use super::look::{Looks, OpenPicture};
use super::source::Source;
use crate::app::App;
use crate::error::{ApiError, ApiResult, Overflow};
use crate::offload::offload;

/// Pixels of all pictures of a request at most.
const MAX_PIXELS: u64 = 256 << 20;

/// Bytes that pictures of all requests may take together until the model has seen them. A request that
/// needs more than there is takes all.
const MAX_OPEN: u64 = 512 << 20;

/// Bytes that a permit stands for.
const UNIT: u64 = 1 << 20;

static FREE: Semaphore = Semaphore::const_new((MAX_OPEN / UNIT) as usize);

/// Bytes of files that requests may hold together while their headers are read.
static FILES: Semaphore = Semaphore::const_new(FILE_UNITS);

/// Two requests of the largest pictures' files; in units of 1 MiB.
const FILE_UNITS: usize = 64;

/// The file of a picture, whose header has been read.
struct File {
    source: Source,
    bytes: Vec<u8>,
    n_rows: usize,
    /// Bytes of its pixels as the model takes them.
    canvas: u64,
    /// Bytes that decoding it may take.
    decoding: u64,
}

/// Has the pictures of a request and decodes them.
///
/// # Errors
/// Where one cannot be had or read, and where they are too many or too large together.
pub(crate) async fn open(app: &Arc<App>, sources: Vec<Source>) -> ApiResult<Looks> {
    if sources.is_empty() {
        return Ok(Looks::default());
    }
    let (files, _files) = files(app, sources).await?;
    let canvases: u64 = files.iter().map(|file| file.canvas).sum();
    let decoding = files.iter().map(|file| file.decoding).max().unwrap_or_default();
    let units = (canvases.saturating_add(decoding) / UNIT).clamp(1, MAX_OPEN / UNIT) as u32;
    // The semaphore is never closed.
    let room = FREE.acquire_many(units).await.ok();
    let shared = Arc::clone(app);
    let opened = offload(move || {
        let vision = vision(&shared)?;
        files.into_iter().map(|file| prepared(vision, file)).collect::<ApiResult<Vec<_>>>()
    });
    Ok(Looks::new(opened.await??, room))
}

/// As many rows as the pictures of a request have, without a look at their pixels.
///
/// # Errors
/// As [`open`], but for damaged pixels.
pub(crate) async fn count_rows(
    app: &Arc<App>,
    sources: Vec<Source>,
) -> ApiResult<Vec<PictureRows>> {
    if sources.is_empty() {
        return Ok(Vec::new());
    }
    let (files, _files) = files(app, sources).await?;
    Ok(files.iter().map(File::counted).collect())
}

/// As [`count_rows`], on this thread and without a model's memory.
///
/// # Errors
/// As [`count_rows`].
pub(crate) fn rows_of(reader: &PictureReader, sources: Vec<Source>) -> ApiResult<Vec<PictureRows>> {
    Ok(read_files(reader, usize::MAX, sources)?.iter().map(File::counted).collect())
}

impl File {
    /// Its rows, with the hash of its file in place of that of its pixels.
    fn counted(&self) -> PictureRows {
        PictureRows { id: Sha256::digest(&self.bytes).into(), n_rows: self.n_rows }
    }
}

/// The files of pictures, and their part of the room for files.
async fn files(
    app: &Arc<App>,
    sources: Vec<Source>,
) -> ApiResult<(Vec<File>, Option<SemaphorePermit<'static>>)> {
    let bytes: usize = sources.iter().map(Source::max_bytes).sum();
    let units = (bytes >> 20).clamp(1, FILE_UNITS) as u32;
    // The semaphore is never closed.
    let permit = FILES.acquire_many(units).await.ok();
    let shared = Arc::clone(app);
    let read = move || {
        let ctx = shared.loaded.engine().plan().ctx;
        read_files(vision(&shared)?.reader(), ctx, sources)
    };
    let files = offload(read).await??;
    Ok((files, permit))
}

fn vision(app: &App) -> ApiResult<&Vision> {
    let vision = app.loaded.engine().vision();
    vision.ok_or_else(|| ApiError::internal("the model has no vision tower"))
}

/// Reads the headers of pictures and holds all of them against limits, and their rows against a context.
fn read_files(reader: &PictureReader, ctx: usize, sources: Vec<Source>) -> ApiResult<Vec<File>> {
    let (mut n_pixels, mut n_rows) = (0_u64, 0_usize);
    let mut files = Vec::with_capacity(sources.len());
    let fetching_ends = Instant::now() + MAX_TIME;
    for mut source in sources {
        let bytes = source.read(fetching_ends)?;
        let layout = reader.layout(&bytes, source.max_tokens());
        let layout = layout.map_err(|err| refusal(source.at(), &err))?;
        let (size, canvas) = (layout.source(), layout.canvas());
        let pixels = size.width as u64 * size.height as u64;
        n_pixels = n_pixels.saturating_add(pixels);
        if n_pixels > MAX_PIXELS {
            let most = MAX_PIXELS >> 20;
            let problem =
                format!("the images of the request have more than {most} Mi pixels together");
            return Err(ApiError::field(source.at(), problem));
        }
        n_rows = n_rows.saturating_add(layout.n_tokens());
        files.push(File {
            n_rows: layout.n_tokens(),
            canvas: 3 * canvas.width as u64 * canvas.height as u64,
            // The most of any format: decoders' buffers, and the file once more in parts.
            decoding: 12 * pixels + 5 * bytes.len() as u64,
            source,
            bytes,
        });
    }
    if n_rows >= ctx {
        return Err(ApiError::too_long(Overflow { n_prompt: n_rows, is_exact: false, ctx }));
    }
    Ok(files)
}

fn prepared(vision: &Vision, file: File) -> ApiResult<OpenPicture> {
    let File { source, bytes, .. } = file;
    let prepared = vision.reader().prepare(&bytes, source.max_tokens());
    let prepared = prepared.map_err(|err| refusal(source.at(), &err))?;
    Ok(OpenPicture { rows: vision.rows(&prepared), prepared })
}

/// Why the picture of a field cannot be used.
fn refusal(at: &str, err: &EngineError) -> ApiError {
    match err {
        EngineError::Picture(_) | EngineError::PictureSize(_) => {
            ApiError::field(at, err.to_string())
        }
        err => ApiError::internal(err.to_string()),
    }
}
