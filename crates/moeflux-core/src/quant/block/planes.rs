//! What several types share: levels, and how codes are packed.

/// The sixteen levels of IQ4_NL and IQ4_XS, 127 more than their values.
pub(super) const IQ4_LEVELS: [u8; 16] =
    [0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240];

/// What is added to the values of [`IQ4_LEVELS`].
pub(super) const IQ4_ZERO: u8 = 127;

/// The lower halves of bytes, then the upper halves.
#[inline(always)]
pub(super) fn nibbles<const N: usize>(packed: &[u8; N], low: &mut [u8; N], high: &mut [u8; N]) {
    for (out, byte) in low.iter_mut().zip(packed) {
        *out = byte & 15;
    }
    for (out, byte) in high.iter_mut().zip(packed) {
        *out = byte >> 4;
    }
}

/// Two bits a column in four planes of each 32 bytes.
#[inline(always)]
pub(super) fn two_bit_planes(packed: &[u8; 64], codes: &mut [u8; 256]) {
    let halves = codes.as_chunks_mut::<32>().0.as_chunks_mut::<4>().0;
    for (planes, packed) in halves.iter_mut().zip(packed.as_chunks::<32>().0) {
        for (i, plane) in planes.iter_mut().enumerate() {
            for (code, byte) in plane.iter_mut().zip(packed) {
                *code = byte >> (2 * i) & 3;
            }
        }
    }
}
