//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::grouped::LOCAL;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{GROUPED, Names, SPARSE_EXPERTS};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::routing::Gating;
use moeflux_core::gguf::arch::{grouped, rope, routing};

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "minimax-m2",
    "minimax_m2",
    config,
    Names::numbered(&[GROUPED, SPARSE_EXPERTS]),
)
.gated_by(Gating::Sigmoid);

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    routing::routed(keys, LOCAL)?;
    routing::gating(keys, Gating::Sigmoid, None)?;
    routing::unscaled(keys)?;
    rope::rotated_part(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}
