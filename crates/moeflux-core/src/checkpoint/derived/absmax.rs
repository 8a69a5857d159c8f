//! Scales of bitsandbytes: the largest magnitudes of blocks, stored in `f32` or quantised once more.

use serde::Deserialize;

use crate::quant::{Float, NF4_LEVELS};

/// How far a stored level may be from that of NF4: files hold what programs rounded.
const TOLERANCE: f32 = 1e-5;

/// What tensors of a matrix leave open.
#[derive(Deserialize)]
struct QuantState {
    /// Codes that share a scale.
    nested_blocksize: usize,
    /// What is added to every scale.
    nested_offset: f64,
}

/// The scale of each block, `groups` times; the error says what is wrong with the inputs.
///
/// Inputs are the levels of codes, the scales and, where these are codes too, their scales, their
/// levels and the state.
pub(super) fn scales(inputs: &[Vec<u8>], groups: usize) -> Result<Vec<u8>, String> {
    let [levels, inputs @ ..] = inputs else {
        return Err("a matrix of bitsandbytes lacks tensors".to_owned());
    };
    check_levels(levels)?;
    let of_blocks: Vec<f32> = match inputs {
        [absmax] => (0..absmax.len() / 4).map(|i| Float::F32.read(absmax, i)).collect(),
        [codes, scales, levels, state] => {
            let state: QuantState = serde_json::from_slice(state)
                .map_err(|err| format!("the state of a matrix of bitsandbytes: {err}"))?;
            let QuantState { nested_blocksize: block, nested_offset: offset } = state;
            if block == 0 || codes.len().div_ceil(block) > scales.len() / 4 {
                let n = scales.len() / 4;
                return Err(format!("nested_blocksize is {block}, with {n} scales of blocks"));
            }
            let scale = |(i, code): (usize, &u8)| {
                let nested = Float::F32.read(scales, i / block);
                Float::F32.read(levels, usize::from(*code)) * nested + offset as f32
            };
            codes.iter().enumerate().map(scale).collect()
        }
        _ => return Err("a matrix of bitsandbytes lacks tensors".to_owned()),
    };
    let of_groups = of_blocks.iter().flat_map(|scale| std::iter::repeat_n(scale, groups));
    Ok(of_groups.flat_map(|scale| scale.to_le_bytes()).collect())
}

/// # Errors
/// Names the first level that is not the one of NF4.
fn check_levels(stored: &[u8]) -> Result<(), String> {
    for (code, level) in NF4_LEVELS.iter().enumerate() {
        let found = Float::F32.read(stored, code);
        let is_near = (found - level).abs() <= TOLERANCE;
        if !is_near {
            return Err(format!("quant_map has {found} for code {code}, where NF4 has {level}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn codes_of_scales_have_scales_of_their_own() {
        let levels: Vec<f32> = (0u8..=255).map(|code| f32::from(code) - 128.0).collect();
        let state = br#"{"quant_type": "nf4", "nested_blocksize": 2, "nested_offset": 0.5}"#;
        let codes = vec![129, 127, 130];
        let nf4 = floats(&NF4_LEVELS);
        let inputs = [nf4, codes, floats(&[2.0, 0.25]), floats(&levels), state.to_vec()];
        let want = floats(&[2.5, 2.5, -1.5, -1.5, 1.0, 1.0]);
        assert_eq!(scales(&inputs, 2), Ok(want));
        let mut short = inputs.clone();
        short[2].truncate(4);
        let err = scales(&short, 1).unwrap_err();
        assert_eq!(err, "nested_blocksize is 2, with 1 scales of blocks");
        let mut stateless = inputs;
        stateless[4] = b"{}".to_vec();
        let err = scales(&stateless, 1).unwrap_err();
        assert!(err.starts_with("the state of a matrix of bitsandbytes: missing field"), "{err}");
    }

    #[test]
    fn scales_of_large_blocks_count_for_each_of_their_groups() {
        let inputs = [floats(&NF4_LEVELS), floats(&[1.0, 3.0])];
        assert_eq!(scales(&inputs, 2), Ok(floats(&[1.0, 1.0, 3.0, 3.0])));
    }

    #[test]
    fn other_levels_than_those_of_nf4_are_refused() {
        for (code, level) in [(0, -0.9), (7, f32::NAN)] {
            let mut levels = NF4_LEVELS;
            levels[code] = level;
            let err = scales(&[floats(&levels), floats(&[1.0])], 1).unwrap_err();
            assert!(err.starts_with(&format!("quant_map has {level} for code {code}")), "{err}");
        }
    }
}
