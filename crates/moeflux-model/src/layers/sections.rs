//! Which part of a position turns which pair of a head, where positions have three parts.

use moeflux_backend::{PositionPart, RopeSpec};
use moeflux_core::checkpoint::Config;
use serde_json::Value;

use super::rope;
use crate::load::LoadError;

const KEY: &str = "mrope_section";

/// How pairs are shared out between time, height and width. `mrope_section` has their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sections {
    /// Pairs take turns until those of height and width are used up; all others are of time. Where a
    /// config has no numbers these count.
    Interleaved([usize; 3]),
    /// Pairs of time, then of height, then of width.
    Blocks,
}

/// The rotation of heads of `head_dim`; without sections positions have one part.
pub(crate) fn read_rope(
    config: &Config,
    head_dim: usize,
    sections: Option<Sections>,
) -> Result<RopeSpec, LoadError> {
    let spec = rope::read(config, head_dim)?;
    let Some(sections) = sections else { return Ok(spec) };
    let parts = sections.parts(config, spec.inv_freq.len())?;
    Ok(RopeSpec { parts, ..spec })
}

impl Sections {
    fn parts(self, config: &Config, n_pairs: usize) -> Result<Vec<PositionPart>, LoadError> {
        let [time, height, width] = self.lengths(config)?;
        let interleaved = |pair: usize| match pair % 3 {
            1 if pair / 3 < height => PositionPart::Height,
            2 if pair / 3 < width => PositionPart::Width,
            _ => PositionPart::Temporal,
        };
        let blocks = |pair: usize| match pair.checked_sub(time) {
            None => PositionPart::Temporal,
            Some(nth) if nth < height => PositionPart::Height,
            Some(_) => PositionPart::Width,
        };
        match self {
            Sections::Interleaved(_) => Ok((0..n_pairs).map(interleaved).collect()),
            Sections::Blocks if time + height + width == n_pairs => {
                Ok((0..n_pairs).map(blocks).collect())
            }
            Sections::Blocks => {
                let rule = format!("be three whole numbers whose sum is {n_pairs}");
                Err(config.refuse(KEY, &rule).into())
            }
        }
    }

    /// Pairs of each part: those of transformers where a config has none.
    fn lengths(self, config: &Config) -> Result<[usize; 3], LoadError> {
        let Some(given) = config.get_rope(KEY) else {
            return Ok(match self {
                Sections::Interleaved(usual) => usual,
                Sections::Blocks => [8, 12, 12],
            });
        };
        let number = |value: &Value| u16::try_from(value.as_u64()?).ok().map(usize::from);
        let all: Option<Vec<usize>> =
            given.as_array().and_then(|values| values.iter().map(number).collect());
        let all = all.and_then(|lengths| lengths.try_into().ok());
        all.ok_or_else(|| config.refuse(KEY, "be three whole numbers up to 65535").into())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn read(sections: Sections, lengths: Value) -> Result<RopeSpec, LoadError> {
        let rope = json!({"rope_theta": 10000.0, KEY: lengths});
        let config = json!({"rope_parameters": rope});
        let config = Config::from_value(Path::new("config.json"), config).expect("an object");
        read_rope(&config, 16, Some(sections))
    }

    #[test]
    fn parts_of_positions_have_their_pairs() {
        let (t, h, w) = (PositionPart::Temporal, PositionPart::Height, PositionPart::Width);
        let parts = |sections| read(sections, json!([4, 3, 1])).unwrap().parts;
        assert_eq!(parts(Sections::Interleaved([24, 20, 20])), [t, h, w, t, h, t, t, h]);
        assert_eq!(parts(Sections::Blocks), [t, t, t, t, h, h, h, w]);
    }

    #[test]
    fn sections_that_are_none_are_refused() {
        let refused = |lengths| read(Sections::Blocks, lengths).unwrap_err().to_string();
        let message =
            "config.json: mrope_section is [4,3]; it must be three whole numbers up to 65535";
        assert_eq!(refused(json!([4, 3])), message);
        let message =
            "config.json: mrope_section is [4,3,2]; it must be three whole numbers whose sum is 8";
        assert_eq!(refused(json!([4, 3, 2])), message);
    }
}
