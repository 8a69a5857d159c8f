//! Rotary frequencies from configs, as in transformers' `modeling_rope_utils`.

use moeflux_backend::{RopePairs, RopeSpec};
use moeflux_core::checkpoint::Config;

use crate::load::LoadError;

/// The rotation of heads of `head_dim`, of which the config rotates a part:
/// `partial_factor` where it says nothing.
pub(crate) fn read(
    config: &Config,
    head_dim: usize,
    partial_factor: f32,
) -> Result<RopeSpec, LoadError> {
    let factor = config.rope_f32("partial_rotary_factor")?.unwrap_or(partial_factor);
    let rotary_dim = (head_dim as f32 * factor) as usize;
    let refuse = |rule| Err(config.refuse("partial_rotary_factor", rule).into());
    if rotary_dim > head_dim {
        return refuse("be at most 1");
    }
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        return refuse("give an even number of rotary columns");
    }
    with_dim(config, rotary_dim)
}

/// The rotation of `rotary_dim` columns.
pub(crate) fn with_dim(config: &Config, rotary_dim: usize) -> Result<RopeSpec, LoadError> {
    let theta = config.rope_f32("rope_theta")?.unwrap_or(10_000.0);
    if theta <= 1.0 {
        return Err(config.refuse("rope_theta", "be above 1").into());
    }
    config.require_default("rope_type", "default")?;
    let inv_freq = inverse_frequencies(theta, rotary_dim);
    Ok(RopeSpec { inv_freq, pairs: RopePairs::Halves, scale: 1.0 })
}

/// Single-precision steps, as the reference computes them.
fn inverse_frequencies(theta: f32, rotary_dim: usize) -> Vec<f32> {
    let frequency = |i: usize| {
        let exponent = (2 * i) as f32 / rotary_dim as f32;
        1.0 / f64::from(theta).powf(f64::from(exponent)) as f32
    };
    (0..rotary_dim / 2).map(frequency).collect()
}
