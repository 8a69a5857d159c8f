//! Stored floats as `f32`, in loops that compilers vectorise.

use moeflux_core::quant::{Float, bf16_to_f32};

/// Decodes `out.len()` consecutive elements.
#[inline(always)]
pub(super) fn decode_floats(float: Float, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * float.bytes(), "bytes of the elements");
    match float {
        Float::F32 => {
            for (it, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *it = f32::from_le_bytes(*bytes);
            }
        }
        Float::F16 => {
            for (it, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *it = f16_to_f32(u16::from_le_bytes(*bytes));
            }
        }
        Float::BF16 => {
            for (it, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *it = bf16_to_f32(u16::from_le_bytes(*bytes));
            }
        }
    }
}

/// `half` asks the processor what it can do for each element; this one the
/// compiler can vectorise.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // The exponent's bias goes from 15 to 127; exact for denormals too.
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 127 - 15) << 23);
    let special = magnitude | 0x7f80_0000;
    let is_special = magnitude >= 31 << 23;
    f32::from_bits(sign | if is_special { special } else { finite.to_bits() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_decode_as_in_half() {
        for bits in 0..=u16::MAX {
            let (got, want) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{bits:#06x}"
            );
        }
    }
}
