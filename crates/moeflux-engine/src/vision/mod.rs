//! Pictures: from the bytes of a file to rows of a prompt.

mod find;
mod known;
mod processor;
mod seen;
mod tower;

use std::num::NonZeroUsize;
use std::sync::Arc;

use moeflux_core::PictureRows;
use moeflux_image::{DecodeLimits, Layout, Picture, Prepared, Processor, picture_size};
use moeflux_model::TowerFiles;

pub use self::find::{PictureFacts, TowerFacts};
pub(crate) use self::find::{find_vision, tower_bytes, tower_facts};
use self::known::KnownPictures;
pub use self::seen::SeenPicture;
pub use self::tower::LookProgress;
use self::tower::{TowerHost, TowerPlace};
use crate::error::EngineError;

/// Bytes of rows of pictures that are kept, so that a tower need not see them again.
const KNOWN_BYTES: usize = 256 << 20;

/// A model's vision tower, which stays on the drive until the first picture, and the rows of pictures
/// that it has seen. Can be shared between threads, which take turns.
pub struct Vision {
    processor: Processor,
    limits: DecodeLimits,
    tower: Arc<TowerHost>,
    known: KnownPictures,
}

impl std::fmt::Debug for Vision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vision").field("processor", &self.processor).finish_non_exhaustive()
    }
}

impl Vision {
    /// The tower of `files`, which computes at `place`.
    fn new(files: TowerFiles, processor: Processor, place: TowerPlace) -> Vision {
        Vision {
            processor,
            limits: DecodeLimits::default(),
            tower: Arc::new(TowerHost::new(files, place)),
            known: KnownPictures::new(KNOWN_BYTES),
        }
    }

    /// How pictures become patches.
    pub fn processor(&self) -> &Processor {
        &self.processor
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

    /// What a picture becomes, by its header: no pixel is decoded.
    ///
    /// # Errors
    /// Where the bytes are no picture, or one of a size that the model does not take.
    pub fn layout(
        &self,
        bytes: &[u8],
        max_tokens: Option<NonZeroUsize>,
    ) -> Result<Layout, EngineError> {
        let size = picture_size(bytes, &self.limits)?;
        Ok(self.limited(max_tokens).layout(size.width, size.height)?)
    }

    /// Decodes a picture and resizes it as the model takes it, with `max_tokens` rows at most where that
    /// is below the options' limit. Takes a processor for some hundredths of a second for each million pixels.
    ///
    /// # Errors
    /// Where the bytes are no picture, are damaged, or make one that the model does not take.
    pub fn prepare(
        &self,
        bytes: &[u8],
        max_tokens: Option<NonZeroUsize>,
    ) -> Result<Prepared, EngineError> {
        let picture = Picture::decode(bytes, &self.limits)?;
        let processor = self.limited(max_tokens);
        let layout = processor.layout(picture.size().width, picture.size().height)?;
        Ok(processor.prepare(&picture, &layout)?)
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

    fn limited(&self, max_tokens: Option<NonZeroUsize>) -> Processor {
        let most = [max_tokens, self.processor.max_tokens()].into_iter().flatten().min();
        self.processor.clone().with_max_tokens(most)
    }
}
