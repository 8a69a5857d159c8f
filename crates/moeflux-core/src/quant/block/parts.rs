//! What a block decodes to, and its stored scales.

/// The codes of a block.
pub(super) type Codes<const COLS: usize> = [u8; COLS];

/// The scales and biases of the groups of a block.
pub(super) struct Params<'a, const GROUPS: usize> {
    pub(super) scales: &'a mut [f32; GROUPS],
    pub(super) biases: &'a mut [f32; GROUPS],
}

impl<const GROUPS: usize> Params<'_, GROUPS> {
    #[inline(always)]
    pub(super) fn set(&mut self, group: usize, scale: f32, bias: f32) {
        self.scales[group] = scale;
        self.biases[group] = bias;
    }

    /// For a group whose codes are `zero` more than the values they stand for.
    #[inline(always)]
    pub(super) fn centred(&mut self, group: usize, scale: f32, zero: u8) {
        self.set(group, scale, -(scale * f32::from(zero)));
    }

    /// As [`Params::centred`], one scale for all groups.
    #[inline(always)]
    pub(super) fn all_centred(&mut self, scale: f32, zero: u8) {
        (0..GROUPS).for_each(|group| self.centred(group, scale, zero));
    }
}

/// The `f16` that `bytes` begin with.
#[inline(always)]
pub(super) fn half(bytes: &[u8]) -> f32 {
    half_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// An `f16` as `f32`, in operations that compilers inline and vectorise.
#[inline(always)]
pub(super) fn half_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let sign = u32::from(bits & 0x8000) << 16;
    // 2^112 is what the biases of the exponents differ by; subnormal numbers become normal.
    let finite = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let bits_of_magnitude = if bits & 0x7c00 == 0x7c00 { magnitude | 0x7f80_0000 } else { finite };
    f32::from_bits(sign | bits_of_magnitude)
}
