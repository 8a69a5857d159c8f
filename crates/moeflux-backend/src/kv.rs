//! How keys and values are stored: between floats and bytes.

/// Drops these low bits of a scale, which leaves a mantissa of 16: the product
/// with an integer of seven bits is then exact.
const SCALE_LOW_BITS: u32 = 0xff;

/// The largest scale whose product with 127 is finite: `f32::MAX / 127`,
/// rounded down to a mantissa of 16 bits.
const SCALE_MAX: f32 = f32::from_bits((f32::MAX / 127.0).to_bits() & !SCALE_LOW_BITS);

/// Bytes of a scale.
const SCALE_BYTES: usize = 4;

/// How a cache stores keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// Unrounded `f32`.
    #[default]
    F32,
    /// Rounded to the upper half of a single, ties to even.
    Bf16,
    /// Integers of eight bits in groups of [`KvType::Q8_GROUP`] elements of a
    /// head (the last may be shorter), each after its `f32` scale: the largest
    /// magnitude divided by 127, rounded up to a mantissa of 16 bits, so that
    /// storing what was read back changes nothing. A group whose scale would be
    /// below the normal numbers is all zeros.
    Q8,
}

impl KvType {
    /// Elements that share a scale.
    pub const Q8_GROUP: usize = 64;

    /// Bytes of a vector of `dim` elements.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F32 => dim * 4,
            KvType::Bf16 => dim * 2,
            KvType::Q8 => dim + 4 * dim.div_ceil(Self::Q8_GROUP),
        }
    }

    /// Stores a vector as [`row_bytes`](KvType::row_bytes) bytes.
    pub fn encode_row(self, values: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len(), self.row_bytes(values.len()), "bytes of a stored vector");
        match self {
            KvType::F32 => {
                for (value, bytes) in values.iter().zip(bytes.as_chunks_mut::<4>().0) {
                    *bytes = value.to_le_bytes();
                }
            }
            KvType::Bf16 => {
                for (value, bytes) in values.iter().zip(bytes.as_chunks_mut::<2>().0) {
                    *bytes = bf16(*value).to_le_bytes();
                }
            }
            KvType::Q8 => {
                let groups = bytes.chunks_mut(SCALE_BYTES + Self::Q8_GROUP);
                for (values, bytes) in values.chunks(Self::Q8_GROUP).zip(groups) {
                    encode_group(values, bytes);
                }
            }
        }
    }

    /// Reads the first `values.len()` elements of a stored vector.
    #[inline(always)]
    pub fn decode_row(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            KvType::F32 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            KvType::Bf16 => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
            KvType::Q8 => {
                let groups = bytes.chunks(SCALE_BYTES + Self::Q8_GROUP);
                for (values, bytes) in values.chunks_mut(Self::Q8_GROUP).zip(groups) {
                    let Some((scale, integers)) = bytes.split_first_chunk::<SCALE_BYTES>() else {
                        continue;
                    };
                    let scale = f32::from_le_bytes(*scale);
                    for (value, code) in values.iter_mut().zip(integers) {
                        *value = f32::from(code.cast_signed()) * scale;
                    }
                }
            }
        }
    }
}

/// The upper half of `value`, ties to even; a NaN stays one.
fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded =
        if value.is_nan() { bits | 0x0040_0000 } else { bits + 0x7fff + ((bits >> 16) & 1) };
    (rounded >> 16) as u16
}

/// Stores up to [`KvType::Q8_GROUP`] values after their scale.
fn encode_group(values: &[f32], bytes: &mut [u8]) {
    let mut largest = 0.0f32;
    for value in values {
        largest = if value.abs() > largest { value.abs() } else { largest };
    }
    let bits = (largest / 127.0).to_bits();
    let scale = f32::from_bits(bits.saturating_add(SCALE_LOW_BITS) & !SCALE_LOW_BITS);
    // Below the normal numbers a mantissa is shorter than its product needs.
    let scale = if bits < f32::MIN_POSITIVE.to_bits() { 0.0 } else { scale.min(SCALE_MAX) };
    let (head, integers) = bytes.split_at_mut(SCALE_BYTES);
    head.copy_from_slice(&scale.to_le_bytes());
    for (code, value) in integers.iter_mut().zip(values) {
        let quotient = if scale > 0.0 { value / scale } else { 0.0 };
        *code = (quotient.round_ties_even().clamp(-127.0, 127.0) as i8).cast_unsigned();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [KvType; 3] = [KvType::F32, KvType::Bf16, KvType::Q8];

    fn encode(dtype: KvType, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0xee; dtype.row_bytes(values.len())];
        dtype.encode_row(values, &mut bytes);
        bytes
    }

    fn decode(dtype: KvType, bytes: &[u8], len: usize) -> Vec<f32> {
        let mut values = vec![f32::NAN; len];
        dtype.decode_row(bytes, &mut values);
        values
    }

    #[track_caller]
    fn check_idempotent(dtype: KvType, values: &[f32]) {
        let bytes = encode(dtype, values);
        let read = decode(dtype, &bytes, values.len());
        assert_eq!(encode(dtype, &read), bytes, "{dtype:?} of {values:?}, read as {read:?}");
    }

    fn any_finite() -> impl Strategy<Value = f32> {
        prop_oneof![
            any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite()),
            -4.0f32..4.0,
            Just(0.0f32),
            Just(-0.0f32),
        ]
    }

    proptest! {
        #[test]
        fn storing_what_was_read_changes_nothing(
            values in proptest::collection::vec(any_finite(), 1..200),
        ) {
            for dtype in ALL {
                check_idempotent(dtype, &values);
            }
        }

        #[test]
        fn storing_what_was_read_changes_nothing_at_any_magnitude(
            values in proptest::collection::vec(-1.0f32..1.0, 1..70),
            exponent in -149i32..128,
        ) {
            let factor = 2.0f64.powi(exponent);
            let values: Vec<f32> = values.iter().map(|value| (f64::from(*value) * factor) as f32).collect();
            for dtype in ALL {
                check_idempotent(dtype, &values);
            }
        }

        #[test]
        fn integers_are_within_half_a_step(
            values in proptest::collection::vec(-3.0f32..3.0, 1..200),
        ) {
            let read = decode(KvType::Q8, &encode(KvType::Q8, &values), values.len());
            for (want, got) in values.chunks(KvType::Q8_GROUP).zip(read.chunks(KvType::Q8_GROUP)) {
                let largest = want.iter().fold(0.0f32, |max, value| max.max(value.abs()));
                for (want, got) in want.iter().zip(got) {
                    prop_assert!((want - got).abs() <= largest / 127.0 * 0.5001);
                }
            }
        }

        #[test]
        fn no_bits_make_it_panic(bits in proptest::collection::vec(any::<u32>(), 1..130)) {
            let values: Vec<f32> = bits.iter().map(|value| f32::from_bits(*value)).collect();
            for dtype in ALL {
                let read = decode(dtype, &encode(dtype, &values), values.len());
                if dtype == KvType::Q8 {
                    prop_assert!(read.iter().all(|value| value.is_finite()));
                }
            }
        }
    }

    #[test]
    fn the_extremes_are_stored() {
        for values in [
            [f32::MAX, f32::MIN, 1.0],
            [f32::MIN_POSITIVE, 0.0, -f32::MIN_POSITIVE],
            [f32::from_bits(1), -0.0, f32::from_bits(255)],
            [1.5e-36, 1.4e-36, 1.0e-38],
            [0.0; 3],
        ] {
            for dtype in ALL {
                check_idempotent(dtype, &values);
            }
        }
        let read = decode(KvType::Q8, &encode(KvType::Q8, &[f32::MAX, 1.0]), 2);
        assert!((f32::MAX * 0.9999..=f32::MAX).contains(&read[0]), "{read:?}");
        let odd = [f32::INFINITY, f32::NAN, f32::NEG_INFINITY];
        let read = decode(KvType::Q8, &encode(KvType::Q8, &odd), 3);
        assert_eq!(read, [SCALE_MAX * 127.0, 0.0, -SCALE_MAX * 127.0]);
        let read = decode(KvType::Bf16, &encode(KvType::Bf16, &odd), 3);
        assert!(read[0] == f32::INFINITY && read[1].is_nan() && read[2] == f32::NEG_INFINITY);
    }

    #[test]
    fn halves_round_to_nearest_with_ties_to_even() {
        let ulp = 2.0f32.powi(-7);
        for (value, want) in [
            (1.0, 1.0),
            (1.0 + ulp / 2.0, 1.0),
            (1.0 + ulp * 1.5, 1.0 + ulp * 2.0),
            (1.0 + ulp * 0.51, 1.0 + ulp),
            (-1.0 - ulp * 0.49, -1.0),
        ] {
            assert_eq!(decode(KvType::Bf16, &encode(KvType::Bf16, &[value]), 1), [want]);
        }
    }

    #[test]
    fn a_prefix_can_be_read_alone() {
        let values: Vec<f32> = (0..150u8).map(|i| (f32::from(i) * 0.37).sin()).collect();
        for dtype in ALL {
            let bytes = encode(dtype, &values);
            let whole = decode(dtype, &bytes, values.len());
            for len in [1, 63, 64, 65, 129] {
                assert_eq!(decode(dtype, &bytes, len), whole[..len], "{dtype:?} {len}");
            }
        }
    }
}
