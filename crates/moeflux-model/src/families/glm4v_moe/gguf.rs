//! The architecture of GGUF files, which have the name of GLM-4.5's and sections of rotated pairs; towers are in
//! files of their own.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names, POST_NORM, SHARED_EXPERTS};
use moeflux_core::gguf::arch::rope;
use moeflux_core::gguf::arch::routing::Gating;

use super::super::glm4_moe::gguf::layers;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    is_meant: Some(is_meant),
    has_sections: true,
    ..Architecture::new(
        "glm4moe",
        "glm4v_moe_text",
        config,
        Names::new(&[GROUPED, POST_NORM, EXPERTS, SHARED_EXPERTS]),
    )
    .gated_by(Gating::Sigmoid)
};

/// Models that see have pairs that turn by the row and the column of a picture.
fn is_meant(keys: &Keys<'_>) -> Result<bool, FormatError> {
    let sections = keys.list("rope.dimension_sections")?.unwrap_or_default();
    Ok(sections.iter().skip(1).any(|section| *section != 0))
}

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = layers(keys)?;
    rope::check_sections(keys, head_dim)?;
    rope::three_sections(keys)
}
