//! What a family says of its vision tower.

use moeflux_core::checkpoint::Config;

use super::mmproj::Mmproj;
use super::tower::TowerPlan;
use crate::load::LoadError;

/// What a family says of its vision tower.
#[derive(Clone, Copy)]
pub(crate) struct TowerFamily {
    /// The name that the plan has for a tensor, by the canonical one; `None` for tensors of other parts.
    pub(crate) name_of: fn(&str) -> Option<String>,
    /// Reads the plan from the config of the whole model and that of the tower.
    pub(crate) plan: fn(&Config, &Config) -> Result<TowerPlan, LoadError>,
    /// The class of the published processors of its pictures.
    pub(crate) processor: &'static str,
    /// Whether rows of blocks are added after the first layers of the text.
    pub(crate) has_deepstack: bool,
    /// How GGUF files describe it.
    pub(crate) mmproj: Mmproj,
}

/// Most patches of a side of what becomes a row, and frames of a patch.
pub(super) const MOST_MERGED: usize = 16;

/// Most pixels of a side of a patch.
pub(super) const MOST_PIXELS: usize = 256;

/// The name below the tower, which MLX calls by another name than others.
pub(super) fn visual_name(canonical: &str) -> Option<String> {
    let name = ["visual.", "vision_tower."].iter().find_map(|part| canonical.strip_prefix(part));
    name.map(str::to_owned)
}

/// Pixels of a side of a patch.
pub(super) fn patch_size(config: &Config) -> Result<usize, LoadError> {
    Ok(config.usize_in("patch_size", 1..=MOST_PIXELS)?)
}

/// A small number, such as that of frames, or a default where it is absent.
pub(super) fn small(config: &Config, key: &str, default: usize) -> Result<usize, LoadError> {
    match config.get(key) {
        Some(_) => Ok(config.usize_in(key, 1..=MOST_MERGED)?),
        None => Ok(default),
    }
}

/// Columns of a head, of which a rotation takes four at a time.
pub(super) fn head_dim(config: &Config, width: usize, key: &str) -> Result<usize, LoadError> {
    let n_heads = config.usize(key)?;
    if !width.is_multiple_of(4 * n_heads) {
        return Err(config.refuse(key, "divide hidden_size into multiples of 4").into());
    }
    Ok(width / n_heads)
}
