//! NF4 of bitsandbytes: codes of four bits that stand for quantiles of the normal distribution, in
//! groups that share the largest magnitude of their elements.

/// Columns that share a scale, a little-endian `f32`.
pub const NF4_GROUP: usize = 64;

/// What the codes stand for (QLoRA, appendix E).
pub const NF4_LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The levels of the two columns of a byte: the lower column is in the upper half.
#[inline(always)]
pub fn nf4_pair(byte: u8) -> [f32; 2] {
    [NF4_LEVELS[usize::from(byte >> 4)], NF4_LEVELS[usize::from(byte & 15)]]
}
