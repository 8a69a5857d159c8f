//! What a processor is made of.

use super::rule::SizeRule;
use crate::error::ConfigError;

/// How levels of 0 to 255 become values, in `f32`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Levels {
    /// `(level - mean * 255) / (deviation * 255)` for each channel, where both products are rounded to
    /// `f32` first: the fused rescaling and normalising of published processors.
    Standardised {
        /// Red, green, blue, in units of the whole range.
        mean: [f32; 3],
        /// Red, green, blue, in units of the whole range.
        deviation: [f32; 3],
    },
    /// `level * (1 / 255)`: the tower does the rest.
    Unit,
}

impl Levels {
    /// The value of each level, for red, green and blue.
    pub(super) fn tables(&self) -> [[f32; 256]; 3] {
        let table = |channel: usize| {
            let mut values = [0.0; 256];
            for (level, value) in values.iter_mut().enumerate() {
                let level = level as f32;
                *value = match self {
                    Self::Unit => level * (1.0 / 255.0),
                    Self::Standardised { mean, deviation } => {
                        (level - mean[channel] * 255.0) / (deviation[channel] * 255.0)
                    }
                };
            }
            values
        };
        [0, 1, 2].map(table)
    }
}

/// In which order a patch has its values, and a picture its patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueOrder {
    /// Patches of a token follow each other: tokens row by row, within each its patches row by row.
    /// Within a patch: channel, frame, row, column.
    TokensThenChannels,
    /// Patches row by row. Within a patch: channel, frame, row, column.
    RowsThenChannels,
    /// Patches row by row. Within a patch: frame, row, column, channel.
    RowsChannelsLast,
}

/// What distinguishes published processors. Model files have all of it, in JSON ([`crate::Processor::from_json`])
/// or, in GGUF, as numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Patches of a token's side.
    pub merge_size: usize,
    /// Frames of a patch: a still fills each with the same values.
    pub n_frames: usize,
    /// Which size a picture gets.
    pub rule: SizeRule,
    /// How levels become values.
    pub levels: Levels,
    /// The order of patches and values.
    pub order: ValueOrder,
}

impl Parameters {
    /// Refuses values that no picture could be processed with.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        ConfigError::check_range("patch_size", self.patch_size, 1, 256)?;
        ConfigError::check_range("merge_size", self.merge_size, 1, 16)?;
        ConfigError::check_range("n_frames", self.n_frames, 1, 8)?;
        self.rule.check()?;
        if let Levels::Standardised { mean, deviation } = &self.levels {
            check_levels("mean", mean, |value| value.is_finite())?;
            check_levels("deviation", deviation, |value| value.is_finite() && value > 0.0)?;
        }
        Ok(())
    }
}

fn check_levels(
    key: &str,
    values: &[f32; 3],
    is_good: impl Fn(f32) -> bool,
) -> Result<(), ConfigError> {
    // Means and deviations are fractions of the range of levels.
    if values.iter().all(|value| is_good(*value) && value.abs() <= 16.0) {
        return Ok(());
    }
    let remedy = "write three numbers between 0 and 1, deviations above 0";
    Err(ConfigError::new(key, format!("{values:?}"), remedy))
}
