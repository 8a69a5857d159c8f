//! Which matrices integer kernels take, and how they read them.

use std::ops::Range;

use moeflux_core::quant::{
    Affine, AffineBias, Float, MatrixFormat, MatrixView, MicroScaled, SmallScale, unpack_group,
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
    not(any(target_arch = "x86_64", test)),
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
    /// Columns that share a scale and a bias: 32, 64 or 128; of eight bits and of [`E2M1`] also 16.
    pub(super) group_size: usize,
    pub(super) params: ParamFormat,
}

/// How the scale and the bias of a group are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParamFormat {
    /// Each for itself.
    Floats(Float),
    /// Only scales are: the bias is minus the middle of the range of integers of `bits` bits, times
    /// the scale.
    Symmetric {
        /// How scales are stored.
        scales: Float,
        /// Bits of an integer.
        bits: u8,
    },
    /// As one byte: half of what it stands for is the scale, which makes up for the doubled values
    /// of [`E2M1_INTEGERS`], and minus six times it the bias, which takes their zero away again.
    OfE2M1(SmallScale),
}

impl Integers {
    /// How an affine matrix is read.
    pub(super) fn affine(affine: Affine) -> Integers {
        let Affine { bits, group_size, params, bias } = affine;
        let params = match bias {
            AffineBias::Stored => ParamFormat::Floats(params),
            AffineBias::Symmetric => ParamFormat::Symmetric { scales: params, bits },
        };
        Integers { codes: bits.into(), group_size, params }
    }

    /// How a matrix of that format is read; `None` where its elements are no integers.
    pub(super) fn of(format: MatrixFormat) -> Option<Integers> {
        match format {
            MatrixFormat::Affine(affine) => Some(Integers::affine(affine)),
            MatrixFormat::Micro(
                micro @ (MicroScaled::MXFP4 | MicroScaled::NVFP4 | MicroScaled::NVFP4_GLOBAL),
            ) => Some(Integers {
                codes: E2M1,
                group_size: micro.group_size,
                params: ParamFormat::OfE2M1(micro.scale),
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
            ParamFormat::Symmetric { scales: float, bits } => {
                decode_floats(float, &weight.scales[stored], scales);
                for (scale, bias) in scales.iter().zip(biases) {
                    *bias = symmetric_bias(bits) * scale;
                }
            }
            ParamFormat::OfE2M1(small) => {
                let values = weight.scales[stored].iter().map(|code| small.to_f32(*code));
                for ((scale, bias), value) in scales.iter_mut().zip(biases).zip(values) {
                    (*scale, *bias) = (0.5 * value, BIAS_OF_E2M1 * value);
                }
            }
        }
    }
}

impl ParamFormat {
    /// Bytes of a scale.
    pub(super) fn scale_bytes(self) -> usize {
        match self {
            ParamFormat::Floats(float) | ParamFormat::Symmetric { scales: float, .. } => {
                float.bytes()
            }
            ParamFormat::OfE2M1(_) => 1,
        }
    }

    /// Whether biases are stored.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only kernels of x86-64 prefetch")
    )]
    pub(super) fn has_biases(self) -> bool {
        matches!(self, ParamFormat::Floats(_))
    }

    /// The scale and the bias of group `idx` of all that are stored.
    pub(super) fn read(self, scales: &[u8], biases: &[u8], idx: usize) -> (f32, f32) {
        match self {
            ParamFormat::Floats(float) => (float.read(scales, idx), float.read(biases, idx)),
            ParamFormat::Symmetric { scales: float, bits } => {
                let scale = float.read(scales, idx);
                (scale, symmetric_bias(bits) * scale)
            }
            ParamFormat::OfE2M1(small) => {
                let value = small.to_f32(scales[idx]);
                (0.5 * value, BIAS_OF_E2M1 * value)
            }
        }
    }
}

/// Times what a scale of [`E2M1`] stands for: the bias.
pub(super) const BIAS_OF_E2M1: f32 = -0.5 * E2M1_ZERO;

/// Times the scale: the bias of integers of `bits` bits, where it is not stored.
#[inline(always)]
pub(super) fn symmetric_bias(bits: u8) -> f32 {
    -f32::from(1u16 << (bits - 1))
}

/// Integer kernels take multiples of this many columns.
const COLS: usize = 32;

/// Columns that share a scale in matrices that integer kernels take; `None` for other formats.
pub fn integer_group_size(format: MatrixFormat) -> Option<usize> {
    Integers::of(format).map(|integers| integers.group_size)
}

/// The same of matrices of `cols` columns.
pub(in crate::cpu) fn integer_group_size_of(format: MatrixFormat, cols: usize) -> Option<usize> {
    integer_group_size(format).filter(|_| cols.is_multiple_of(COLS))
}

#[cfg(test)]
mod tests {
    use moeflux_core::quant::e2m1_to_f32;

    use super::*;

    #[test]
    fn integers_are_the_values_of_small_floats() {
        for (code, integer) in (0..).zip(E2M1_INTEGERS) {
            for (small, byte) in [SmallScale::E8M0, SmallScale::E4M3]
                .into_iter()
                .flat_map(|small| [0, 1, 8, 126, 252].map(|byte| (small, byte)))
            {
                let (scale, bias) = ParamFormat::OfE2M1(small).read(&[byte], &[], 0);
                let want = f64::from(e2m1_to_f32(code)) * f64::from(small.to_f32(byte));
                let got = f64::from(integer) * f64::from(scale) + f64::from(bias);
                assert_eq!(got, want, "code {code}, {small:?} {byte}");
            }
            assert!(usize::from(integer) <= largest(E2M1));
        }
        for small in [SmallScale::E8M0, SmallScale::E4M3] {
            let (scale, bias) = ParamFormat::OfE2M1(small).read(&[255], &[], 0);
            assert!(scale.is_nan() && bias.is_nan());
        }
    }

    #[test]
    fn what_is_not_stored_is_the_bias_of_the_definition() {
        for bits in Affine::BITS {
            assert_eq!(
                symmetric_bias(bits),
                Affine::symmetric(bits, 32, Float::F32).symmetric_bias()
            );
        }
    }
}
