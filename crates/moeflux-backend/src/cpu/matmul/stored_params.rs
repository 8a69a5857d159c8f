//! Scales and biases of groups from what is stored, with rows of the matrix as lanes.

use moeflux_core::quant::{Float, SmallScale};

use super::integers::{BIAS_OF_E2M1, ParamFormat, symmetric_bias};
use super::lanes::Lanes;

/// The scale and the bias of a group: from halves, the scale in the lower ones, where both are
/// stored; else from the scale alone, above which there is nothing.
#[inline(always)]
pub(super) fn params_of_lanes<L: Lanes>(
    isa: L,
    format: ParamFormat,
    stored: L::Words,
) -> [L::Floats; 2] {
    match format {
        ParamFormat::Floats(Float::F32) => unreachable!("two words"),
        ParamFormat::Floats(Float::F16) => isa.f16_pair(stored),
        ParamFormat::Floats(Float::BF16) => {
            let bias = isa.as_floats(isa.and(stored, isa.words(0xffff_0000)));
            [isa.as_floats(isa.shift_left(stored, 16)), bias]
        }
        ParamFormat::Symmetric { scales, bits } => {
            let scale = match scales {
                Float::F32 => isa.as_floats(stored),
                Float::F16 => isa.f16_pair(stored)[0],
                Float::BF16 => isa.as_floats(isa.shift_left(stored, 16)),
            };
            [scale, isa.multiply(scale, isa.floats(symmetric_bias(bits)))]
        }
        ParamFormat::OfE2M1(small) => params_of_e2m1(isa, small, stored),
    }
}

/// The scale and the bias of a group of E2M1 from bytes, above which there is nothing.
#[inline(always)]
pub(super) fn params_of_e2m1<L: Lanes>(
    isa: L,
    scale: SmallScale,
    bytes: L::Words,
) -> [L::Floats; 2] {
    let value = match scale {
        SmallScale::E8M0 => isa.powers(bytes),
        SmallScale::E4M3 => isa.e4m3(bytes),
    };
    [isa.multiply(value, isa.floats(0.5)), isa.multiply(value, isa.floats(BIAS_OF_E2M1))]
}
