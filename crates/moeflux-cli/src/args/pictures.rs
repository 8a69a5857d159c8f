//! Flags for pictures.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use moeflux_engine::{DEFAULT_IMAGE_TOKENS, VisionOptions};

use super::headings::MODEL;
use crate::values::whole_number;

/// How a model takes pictures.
#[derive(Args, Clone, Debug)]
pub(crate) struct PictureArgs {
    /// GGUF file of the vision tower [default: found]
    #[arg(long, value_name = "FILE", conflicts_with = "no_mmproj", help_heading = MODEL)]
    mmproj: Option<PathBuf>,
    /// Leave the vision tower out
    #[arg(long, help_heading = MODEL)]
    no_mmproj: bool,
    /// Most tokens of a picture, or 0: the model's own limit
    #[arg(long, value_name = "N", default_value_t = DEFAULT_IMAGE_TOKENS.get(), value_parser = whole_number, allow_negative_numbers = true, help_heading = MODEL)]
    #[arg(aliases = ["image-max-tokens"])]
    image_tokens: usize,
}

impl PictureArgs {
    /// Sets what the flags say.
    pub(crate) fn set(&self, vision: &mut VisionOptions) {
        vision.is_off = self.no_mmproj;
        vision.mmproj.clone_from(&self.mmproj);
        vision.image_tokens = NonZeroUsize::new(self.image_tokens);
    }
}
