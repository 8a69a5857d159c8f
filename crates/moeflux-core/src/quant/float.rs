//! Element types that are not quantised.

use half::{bf16, f16};

/// The `f32` whose upper half is `bits`: the value of a BF16.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// An unquantised element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
}

impl Float {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::BF16 => 2,
        }
    }

    /// Element `idx` of little-endian `bytes`.
    #[inline(always)]
    pub fn read(self, bytes: &[u8], idx: usize) -> f32 {
        match self {
            Float::F32 => {
                let at = idx * 4;
                f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            }
            Float::F16 => f16::from_le_bytes([bytes[idx * 2], bytes[idx * 2 + 1]]).to_f32(),
            Float::BF16 => bf16_to_f32(u16::from_le_bytes([bytes[idx * 2], bytes[idx * 2 + 1]])),
        }
    }

    /// Decodes little-endian `bytes` into `out`, as many elements as it has.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * self.bytes(), "the bytes of all elements");
        let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
        match self {
            Float::F32 => {
                for (out, it) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *out = f32::from_le_bytes([it[0], it[1], it[2], it[3]]);
                }
            }
            Float::F16 => {
                for (out, it) in out.iter_mut().zip(pairs()) {
                    *out = f16::from_le_bytes(it).to_f32();
                }
            }
            Float::BF16 => {
                for (out, it) in out.iter_mut().zip(pairs()) {
                    *out = bf16_to_f32(u16::from_le_bytes(it));
                }
            }
        }
    }

    /// Rounds to the nearest value of this type, ties to even.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Float::F32 => value,
            Float::F16 => f16::from_f32(value).to_f32(),
            Float::BF16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// Appends the little-endian bytes of a value, rounded as by [`Float::round`].
    pub fn append(self, value: f32, out: &mut Vec<u8>) {
        match self {
            Float::F32 => out.extend_from_slice(&value.to_le_bytes()),
            Float::F16 => out.extend_from_slice(&f16::from_f32(value).to_le_bytes()),
            Float::BF16 => out.extend_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }
}
