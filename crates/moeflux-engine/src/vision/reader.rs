//! Pictures as a model takes them, up to what its tower computes.

use std::num::NonZeroUsize;

use moeflux_image::{DecodeLimits, Layout, Picture, Prepared, Processor, picture_size};

use crate::error::EngineError;

/// Rows at most of a picture that is to be seen in low detail: about 512 x 512 pixels.
pub const LOW_DETAIL: NonZeroUsize = NonZeroUsize::new(256).expect("above zero");

/// Reads pictures as a model's processor does. Can be shared between threads.
#[derive(Clone, Debug)]
pub struct PictureReader {
    processor: Processor,
    limits: DecodeLimits,
}

impl PictureReader {
    pub(super) fn new(processor: Processor) -> PictureReader {
        PictureReader { processor, limits: DecodeLimits::default() }
    }

    /// How pictures become patches.
    pub fn processor(&self) -> &Processor {
        &self.processor
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

    fn limited(&self, max_tokens: Option<NonZeroUsize>) -> Processor {
        let most = [max_tokens, self.processor.max_tokens()].into_iter().flatten().min();
        self.processor.clone().with_max_tokens(most)
    }
}
