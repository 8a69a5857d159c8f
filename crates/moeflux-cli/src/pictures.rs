//! Pictures that are files.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use moeflux_engine::{Engine, PreparedPicture, SeenPicture, Vision};

use crate::error::UsageError;
use crate::files;
use crate::progress::{Bar, Unit};

/// Looks at pictures, whose files `flag` named; shows how far that is unless `is_quiet`.
///
/// # Errors
/// Where the model takes no pictures, a file is none, or the tower fails.
pub(crate) fn see_files(
    engine: &Engine,
    paths: &[PathBuf],
    flag: &str,
    is_quiet: bool,
) -> Result<Vec<Arc<SeenPicture>>> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let vision = vision(engine, flag)?;
    let named = |path: &Path| format!("{flag} {}", path.display());
    // Files that are no pictures are named before the tower is loaded.
    let read = |path: &PathBuf| prepare(vision, path).with_context(|| named(path));
    let pictures = paths.iter().map(read).collect::<Result<Vec<_>>>()?;
    let see = |(picture, path): (&PreparedPicture, &PathBuf)| {
        see(vision, picture, is_quiet).with_context(|| named(path))
    };
    pictures.iter().zip(paths).map(see).collect()
}

/// The vision tower of a model that has one.
fn vision<'a>(engine: &'a Engine, flag: &str) -> Result<&'a Vision> {
    let Some(vision) = engine.vision() else {
        let path = engine.root().display();
        let message = format!(
            "{flag}: the model at {path} has no vision tower, so that it takes no pictures"
        );
        return Err(UsageError(message).into());
    };
    Ok(vision)
}

/// Reads and resizes the picture of a file.
///
/// # Errors
/// Where it cannot be read, or is no picture that the model takes.
fn prepare(vision: &Vision, path: &Path) -> Result<PreparedPicture> {
    let bytes = files::read(path)?;
    Ok(vision.reader().prepare(&bytes, None)?)
}

/// Looks at a picture.
///
/// # Errors
/// Where the tower cannot be loaded, or its device fails.
fn see(vision: &Vision, picture: &PreparedPicture, is_quiet: bool) -> Result<Arc<SeenPicture>> {
    let mut bar = Bar::new("looking at the picture", Unit::Layers, is_quiet);
    let seen = vision.see(picture, &mut |n_done, n| {
        bar.set(n_done as u64, n as u64);
        ControlFlow::Continue(())
    })?;
    match seen {
        Some(seen) => Ok(seen),
        None => bail!("the tower has given the picture up"),
    }
}
