//! Finds elements that are not finite numbers. Undamaged weights have neither NaN nor infinities.

use super::{
    AffineBias, BlockType, Float, MatrixFormat, SmallFloat, SmallScale, e4m3_to_f32, e8m0_to_f32,
};

/// An encoding of numbers that has codes for NaN or infinities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// IEEE floats.
    Float(Float),
    /// Eight bits; 127 and 255 are NaN.
    E4M3,
    /// A power of two in eight bits; 255 is NaN.
    E8M0,
    /// Blocks of ggml, whose scales are IEEE floats.
    Ggml(BlockType),
}

/// Bytes that are searched before each check whether the search may stop.
const BLOCK_BYTES: usize = 4096;

impl Encoding {
    /// Bytes that cannot be searched in parts: those of an element, or of a block with its scales.
    pub fn unit_bytes(self) -> usize {
        match self {
            Encoding::Float(float) => float.bytes(),
            Encoding::E4M3 | Encoding::E8M0 => 1,
            Encoding::Ggml(it) => it.block_bytes(),
        }
    }

    /// Elements in [`unit_bytes`](Encoding::unit_bytes) bytes.
    pub(crate) fn unit_elements(self) -> usize {
        match self {
            Encoding::Ggml(it) => it.block_cols(),
            _ => 1,
        }
    }

    /// The first element of `bytes` that is not a finite number: its index and its value. In a
    /// block with scales that are not finite, it is the first element of the block, and the value
    /// is the scale.
    pub fn first_not_finite(self, bytes: &[u8]) -> Option<(usize, f32)> {
        if let Encoding::Ggml(block_type) = self {
            let (block, scale) = block_type.find_not_finite(bytes)?;
            return Some((block * block_type.block_cols(), scale));
        }
        let blocks = bytes.chunks(BLOCK_BYTES);
        let (block, bytes) = blocks.enumerate().find(|(_, block)| self.is_damaged(block))?;
        let len = self.unit_bytes();
        let n_elements = bytes.len() / len;
        let idx = (0..n_elements).find(|idx| !self.read(bytes, *idx).is_finite())?;
        Some((block * (BLOCK_BYTES / len) + idx, self.read(bytes, idx)))
    }

    /// Whether any element is not a finite number. Free of branches, so that compilers vectorise
    /// it.
    fn is_damaged(self, bytes: &[u8]) -> bool {
        match self {
            Encoding::Float(Float::F32) => {
                let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
                words.fold(false, |any, word| any | (word & 0x7f80_0000 == 0x7f80_0000))
            }
            Encoding::Float(Float::F16) => has_exponent(bytes, 0x7c00),
            Encoding::Float(Float::BF16) => has_exponent(bytes, 0x7f80),
            Encoding::E4M3 => bytes.iter().fold(false, |any, code| any | (code & 0x7f == 0x7f)),
            Encoding::E8M0 => bytes.iter().fold(false, |any, scale| any | (*scale == 255)),
            Encoding::Ggml(it) => it.find_not_finite(bytes).is_some(),
        }
    }

    fn read(self, bytes: &[u8], idx: usize) -> f32 {
        match self {
            Encoding::Float(float) => float.read(bytes, idx),
            Encoding::E4M3 => e4m3_to_f32(bytes[idx]),
            Encoding::E8M0 => e8m0_to_f32(bytes[idx]),
            Encoding::Ggml(_) => unreachable!("blocks are searched by their scales"),
        }
    }
}

/// Whether an element of two bytes has the exponent of NaN and infinity.
fn has_exponent(bytes: &[u8], exponent: u16) -> bool {
    let halves = bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
    halves.fold(false, |any, half| any | (half & exponent == exponent))
}

impl MatrixFormat {
    /// How weights, scales and biases are encoded; `None` where every code is a finite number, or
    /// the format has no such part.
    pub fn encodings(&self) -> [Option<Encoding>; 3] {
        match self {
            MatrixFormat::Dense(float) | MatrixFormat::Transposed(float) => {
                [Some(Encoding::Float(*float)), None, None]
            }
            MatrixFormat::Affine(affine) => {
                let params = Some(Encoding::Float(affine.params));
                let biases = params.filter(|_| affine.bias == AffineBias::Stored);
                [None, params, biases]
            }
            MatrixFormat::Micro(micro) => {
                let element = (micro.element == SmallFloat::E4M3).then_some(Encoding::E4M3);
                let scale = match micro.scale {
                    SmallScale::E8M0 => Encoding::E8M0,
                    SmallScale::E4M3 => Encoding::E4M3,
                };
                let global_scale = Encoding::Float(Float::F32);
                [element, Some(scale), micro.has_global_scale.then_some(global_scale)]
            }
            MatrixFormat::Blocks(blocks) => {
                [Some(Encoding::E4M3), Some(Encoding::Float(blocks.scales)), None]
            }
            MatrixFormat::Nf4 => [None, Some(Encoding::Float(Float::F32)), None],
            MatrixFormat::Ggml(it) => [Some(Encoding::Ggml(*it)), None, None],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_of_every_encoding_wherever_it_is() {
        let floats = |value: f32| -> [(Encoding, Vec<u8>); 5] {
            let half = if value.is_nan() { 0x7e00u16 } else { 0xfc00 };
            [
                (Encoding::Float(Float::F32), value.to_le_bytes().to_vec()),
                (Encoding::Float(Float::BF16), value.to_le_bytes()[2..].to_vec()),
                (Encoding::Float(Float::F16), half.to_le_bytes().to_vec()),
                (Encoding::E4M3, vec![0xff]),
                (Encoding::E8M0, vec![0xff]),
            ]
        };
        for (encoding, odd) in floats(f32::NAN).into_iter().chain(floats(f32::NEG_INFINITY)) {
            for n in [1, 3, 5000] {
                let mut bytes = vec![0x3e; n * odd.len()];
                assert_eq!(encoding.first_not_finite(&bytes), None);
                for idx in [0, n / 2, n - 1] {
                    bytes[idx * odd.len()..][..odd.len()].copy_from_slice(&odd);
                    let (found, value) = encoding.first_not_finite(&bytes).expect("it is there");
                    assert_eq!(found, idx, "{encoding:?} {n}");
                    assert!(!value.is_finite());
                    bytes[idx * odd.len()..][..odd.len()].fill(0x3e);
                }
            }
        }
    }

    #[test]
    fn every_number_is_one() {
        for code in 0..=u16::MAX {
            for float in [Float::F16, Float::BF16] {
                let bytes = code.to_le_bytes();
                let is_finite = float.read(&bytes, 0).is_finite();
                let found = Encoding::Float(float).first_not_finite(&bytes);
                assert_eq!(found.is_none(), is_finite, "{float:?} {code:#x}");
            }
        }
        for code in 0..=u8::MAX {
            let (e4m3, e8m0) = (e4m3_to_f32(code), e8m0_to_f32(code));
            assert_eq!(Encoding::E4M3.first_not_finite(&[code]).is_none(), e4m3.is_finite());
            assert_eq!(Encoding::E8M0.first_not_finite(&[code]).is_none(), e8m0.is_finite());
        }
    }
}
