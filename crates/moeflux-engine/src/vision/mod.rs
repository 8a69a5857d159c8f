//! Pictures: from the bytes of a file to rows of a prompt.

mod find;
mod known;
mod processor;
mod reader;
mod seen;
mod tower;

use std::sync::Arc;

use moeflux_core::PictureRows;
use moeflux_image::{Layout, Prepared, Processor};
use moeflux_model::TowerFiles;

pub use self::find::{PictureFacts, TowerFacts, picture_reader};
pub(crate) use self::find::{find_vision, tower_bytes, tower_facts};
use self::known::KnownPictures;
pub use self::reader::{LOW_DETAIL, PictureReader};
pub use self::seen::SeenPicture;
pub use self::tower::LookProgress;
use self::tower::{TowerHost, TowerPlace};
use crate::error::EngineError;

/// Bytes of rows of pictures that are kept, so that a tower need not see them again.
const KNOWN_BYTES: usize = 256 << 20;

/// A model's vision tower, which stays on the drive until the first picture, and the rows of pictures
/// that it has seen. Can be shared between threads, which take turns.
pub struct Vision {
    reader: PictureReader,
    tower: Arc<TowerHost>,
    known: KnownPictures,
}

impl std::fmt::Debug for Vision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vision").field("reader", &self.reader).finish_non_exhaustive()
    }
}

impl Vision {
    /// The tower of `files`, which computes at `place`.
    fn new(files: TowerFiles, processor: Processor, place: TowerPlace) -> Vision {
        Vision {
            reader: PictureReader::new(processor),
            tower: Arc::new(TowerHost::new(files, place)),
            known: KnownPictures::new(KNOWN_BYTES),
        }
    }

    /// How the model takes pictures.
    pub fn reader(&self) -> &PictureReader {
        &self.reader
    }

    /// Bytes of the tower while it is loaded, with a picture of the most tokens.
    pub fn tower_bytes(&self) -> u64 {
        self.tower.bytes()
    }

    /// Floating-point operations that the tower takes for a picture, two for a multiplication with its
    /// addition: in matrices and in attention.
    pub fn operations(&self, layout: &Layout) -> [f64; 2] {
        self.tower.operations(layout.grid().n_patches())
    }

    /// Whether the tower is in memory.
    pub fn is_loaded(&self) -> bool {
        self.tower.is_loaded()
    }

    /// What the user should know, since the last call.
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.tower.take_warning()
    }

    /// Pictures whose rows were known, and those that the tower has seen.
    pub fn counts(&self) -> (u64, u64) {
        self.known.counts()
    }

    /// The rows that a picture takes in a prompt. Their hash is that of its pixels and of the tower.
    pub fn rows(&self, picture: &Prepared) -> PictureRows {
        let mut id = *picture.id().bytes();
        for (byte, of_tower) in id.iter_mut().zip(self.tower.identity().bytes().cycle()) {
            *byte ^= of_tower;
        }
        PictureRows { id, n_rows: picture.layout().n_tokens() }
    }

    /// Forgets the rows of pictures, so that the tower sees them again.
    pub fn forget(&self) {
        self.known.clear();
    }

    /// Looks at a picture, unless its rows are known. `None` where `progress` has ended the work. The
    /// first picture loads the tower.
    ///
    /// # Errors
    /// Where the tower cannot be read, memory does not suffice, or the device fails.
    pub fn see(
        &self,
        picture: &Prepared,
        progress: &mut LookProgress<'_>,
    ) -> Result<Option<Arc<SeenPicture>>, EngineError> {
        let rows = self.rows(picture);
        if let Some(seen) = self.known.get(&rows) {
            return Ok(Some(seen));
        }
        let known = &mut || self.known.get(&rows);
        let seen = self.tower.look(picture, rows, known, progress)?;
        if let Some(seen) = &seen {
            self.known.insert(seen);
        }
        Ok(seen)
    }
}
