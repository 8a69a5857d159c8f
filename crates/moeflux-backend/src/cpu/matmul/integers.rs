//! Which matrices integer kernels take, and how they read them.

use std::ops::Range;

use moeflux_core::quant::{
    Affine, Float, MatrixFormat, MatrixView, MicroScaled, e8m0_to_f32, unpack_group,
};

use super::block_format::BlockFormat;
use super::floats::decode_floats;

/// In place of a number of bits, where kernels know the stored integers when they are compiled:
/// four bits that stand for one of [`E2M1_INTEGERS`].
pub(super) const E2M1: usize = 16 + 4;

/// What codes of E2M1 stand for: twice their values and [`E2M1_ZERO`] more, none negative.
pub(super) const E2M1_INTEGERS: [u8; 16] =
    [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// The integer of a zero.
const E2M1_ZERO: f32 = 12.0;

/// Bits of a stored integer, or of a code of [`E2M1`].
pub(super) const fn width(codes: usize) -> usize {
    codes % 16
}

/// The largest integer.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only kernels of x86-64 bound their sums")
)]
pub(super) const fn largest(codes: usize) -> usize {
    if codes == E2M1 { 24 } else { (1 << codes) - 1 }
}

/// Integers in groups that share a scale and a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Integers {
    /// Bits of one, or [`E2M1`].
    pub(super) codes: usize,
    /// Columns that share a scale and a bias: 32, 64 or 128, with eight bits also 16.
    pub(super) group_size: usize,
    pub(super) params: ParamFormat,
}

/// How the scale and the bias of a group are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParamFormat {
    /// Each for itself.
    Floats(Float),
    /// As one byte, a power of two: half of it is the scale, which makes up for the doubled values
    /// of [`E2M1_INTEGERS`], and minus six times it the bias, which takes their zero away again.
    E8M0,
}

impl Integers {
    /// How an affine matrix is read.
    pub(super) fn affine(affine: Affine) -> Integers {
        let Affine { bits, group_size, params, .. } = affine;
        Integers { codes: bits.into(), group_size, params: ParamFormat::Floats(params) }
    }

    /// How a matrix of that format is read; `None` where its elements are no integers.
    pub(super) fn of(format: MatrixFormat) -> Option<Integers> {
        match format {
            MatrixFormat::Affine(affine) => Some(Integers::affine(affine)),
            MatrixFormat::Micro(MicroScaled::MXFP4) => Some(Integers {
                codes: E2M1,
                group_size: MicroScaled::MXFP4.group_size,
                params: ParamFormat::E8M0,
            }),
            // As a decoded panel of them is read.
            MatrixFormat::Ggml(it) => Some(Integers {
                codes: 8,
                group_size: it.group_cols(),
                params: ParamFormat::Floats(Float::F32),
            }),
            _ => None,
        }
    }
}

/// Codes, scales and biases in three planes; a group of columns is a block.
impl BlockFormat for Integers {
    fn block_cols(self) -> usize {
        self.group_size
    }

    #[inline(always)]
    fn group_cols(self) -> usize {
        self.group_size
    }

    fn block_bytes(self) -> usize {
        self.group_size * width(self.codes) / 8
    }

    fn unpack(self, block: &[u8], out: &mut [u8]) {
        unpack_group(width(self.codes) as u8, block, out);
        if self.codes == E2M1 {
            out.iter_mut().for_each(|code| *code = E2M1_INTEGERS[usize::from(*code)]);
        }
    }

    fn params(self, weight: &MatrixView<'_>, group: usize) -> (f32, f32) {
        self.params.read(weight.scales, weight.biases, group)
    }

    #[inline(always)]
    fn params_of_groups(
        self,
        weight: &MatrixView<'_>,
        groups: Range<usize>,
        scales: &mut [f32],
        biases: &mut [f32],
    ) {
        let size = self.params.scale_bytes();
        let stored = groups.start * size..groups.end * size;
        match self.params {
            ParamFormat::Floats(float) => {
                decode_floats(float, &weight.scales[stored.clone()], scales);
                decode_floats(float, &weight.biases[stored], biases);
            }
            ParamFormat::E8M0 => {
                let powers = weight.scales[stored].iter().map(|power| e8m0_to_f32(*power));
                for ((scale, bias), power) in scales.iter_mut().zip(biases).zip(powers) {
                    (*scale, *bias) = (0.5 * power, BIAS_OF_E8M0 * power);
                }
            }
        }
    }
}

impl ParamFormat {
    /// Bytes of a scale.
    pub(super) fn scale_bytes(self) -> usize {
        match self {
            ParamFormat::Floats(float) => float.bytes(),
            ParamFormat::E8M0 => 1,
        }
    }

    /// The scale and the bias of group `idx` of all that are stored.
    pub(super) fn read(self, scales: &[u8], biases: &[u8], idx: usize) -> (f32, f32) {
        match self {
            ParamFormat::Floats(float) => (float.read(scales, idx), float.read(biases, idx)),
            ParamFormat::E8M0 => {
                let power = e8m0_to_f32(scales[idx]);
                (0.5 * power, BIAS_OF_E8M0 * power)
            }
        }
    }
}

/// Times the power of two: the bias.
pub(super) const BIAS_OF_E8M0: f32 = -0.5 * E2M1_ZERO;

/// Columns that share a scale in matrices that integer kernels take; `None` for other formats.
pub fn integer_group_size(format: MatrixFormat) -> Option<usize> {
    Integers::of(format).map(|it| it.group_size)
}

#[cfg(test)]
mod tests {
    use moeflux_core::quant::e2m1_to_f32;

    use super::*;

    #[test]
    fn integers_are_the_values_of_small_floats() {
        for (code, integer) in (0..).zip(E2M1_INTEGERS) {
            for power in [0, 1, 127, 252] {
                let (scale, bias) = ParamFormat::E8M0.read(&[power], &[], 0);
                let want = f64::from(e2m1_to_f32(code)) * f64::from(e8m0_to_f32(power));
                let got = f64::from(integer) * f64::from(scale) + f64::from(bias);
                assert_eq!(got, want, "code {code}, power {power}");
            }
            assert!(usize::from(integer) <= largest(E2M1));
        }
        let (scale, bias) = ParamFormat::E8M0.read(&[255], &[], 0);
        assert!(scale.is_nan() && bias.is_nan());
    }
}
