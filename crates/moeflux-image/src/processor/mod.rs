//! From a picture to patches: size, grid, levels and order, by parameters.

mod config;
mod identity;
mod layout;
mod parameters;
mod patches;
mod rule;

use std::num::NonZeroUsize;

use serde_json::Value;

use crate::error::{ConfigError, LayoutError};
use crate::picture::Picture;

pub use identity::PictureId;
pub use layout::{Grid, Layout};
pub use parameters::{Levels, Parameters, ValueOrder};
pub use patches::{Frames, Patches, Prepared};
pub use rule::SizeRule;

/// From pictures to patches, as one model takes them.
#[derive(Debug, Clone, PartialEq)]
pub struct Processor {
    parameters: Parameters,
    max_tokens: Option<NonZeroUsize>,
}

impl Processor {
    /// A processor with these parameters.
    ///
    /// # Errors
    /// A value that no picture could be processed with: the key is the field's name.
    pub fn new(parameters: Parameters) -> Result<Self, ConfigError> {
        parameters.check()?;
        Ok(Self { parameters, max_tokens: None })
    }

    /// The processor that a model's published JSON describes: the whole of `preprocessor_config.json`
    /// or `processor_config.json`.
    ///
    /// `image_processor_type`, in the file or in its object `image_processor`, names the rules; a file
    /// with `media_proc_cfg` has those of a limit of patches. What the file leaves out has the values
    /// that the publishers of such files give, which are not the defaults of classes in libraries.
    ///
    /// # Errors
    /// A class that is not known, or a value that is not taken: the key, the value, and what it must be.
    pub fn from_json(file: &Value) -> Result<Self, ConfigError> {
        Self::new(config::parameters(file)?)
    }

    /// The same processor with a ceiling on the tokens of a picture, below the model's own limit. A
    /// ceiling above that changes nothing.
    #[must_use]
    pub fn with_max_tokens(mut self, max_tokens: Option<NonZeroUsize>) -> Self {
        self.max_tokens = max_tokens;
        self
    }

    /// What the processor is made of.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The ceiling on the tokens of a picture, if there is one.
    pub fn max_tokens(&self) -> Option<NonZeroUsize> {
        self.max_tokens
    }

    /// The fewest and the most tokens that a picture is resized to. Rounding may give it some more.
    pub fn tokens(&self) -> [usize; 2] {
        let Parameters { patch_size, merge_size, rule, .. } = &self.parameters;
        let unit = patch_size * merge_size;
        let rule = match self.max_tokens {
            Some(most) => rule.limited(most.get(), unit, *merge_size),
            None => *rule,
        };
        rule.tokens(unit, *merge_size)
    }

    /// Numbers of a patch with all of its frames: `3 * n_frames * patch_size^2`.
    pub fn patch_values(&self) -> usize {
        self.parameters.n_frames * self.still_values()
    }

    /// Numbers of a patch with one frame: `3 * patch_size^2`.
    pub fn still_values(&self) -> usize {
        3 * self.parameters.patch_size * self.parameters.patch_size
    }

    /// What a picture of this size becomes: its size after resizing, its canvas, its patches and its
    /// tokens. No pixels are needed.
    ///
    /// # Errors
    /// A size that the model does not take.
    pub fn layout(&self, width: usize, height: usize) -> Result<Layout, LayoutError> {
        layout::layout(&self.parameters, self.max_tokens, width, height)
    }

    /// The resized picture on its canvas, from which patches are read in any portions.
    ///
    /// Memory: 3 bytes for each pixel of the canvas, which stay; while resizing, at most 3 bytes for
    /// each pixel of (resized width x original height) more.
    ///
    /// # Errors
    /// There is no memory for it.
    ///
    /// # Panics
    /// `layout` is that of another size.
    pub fn prepare(&self, picture: &Picture, layout: &Layout) -> Result<Prepared, LayoutError> {
        Prepared::new(&self.parameters, picture, layout)
    }

    /// All patches with all of their frames, as published processors return them: `rows * columns`
    /// patches of [`Processor::patch_values`].
    ///
    /// # Errors
    /// There is no memory for them: 4 bytes a value.
    ///
    /// # Panics
    /// `layout` is that of another size.
    pub fn patches(&self, picture: &Picture, layout: &Layout) -> Result<Patches, LayoutError> {
        self.prepare(picture, layout)?.patches()
    }
}
