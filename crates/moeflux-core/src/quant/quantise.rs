//! Floats to groups of integers: affine, rounded to nearest, the better of
//! two ways to place the grid.

use half::{bf16, f16};

use super::{Affine, Float, MatrixFormat, MatrixView};

/// Rows in an affine format, ready to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuantisedRows {
    /// The packed integers.
    pub weight: Vec<u8>,
    /// One scale a group and row.
    pub scales: Vec<u8>,
    /// One bias a group and row.
    pub biases: Vec<u8>,
}

/// A value that has no place on any grid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("element {idx} is {value}, which cannot be quantised")]
pub struct QuantiseError {
    /// Which element of the rows.
    pub idx: usize,
    /// What it is.
    pub value: f32,
}

/// How far rounding moved elements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantError {
    /// Sum of the squares of the elements.
    pub signal: f64,
    /// Sum of the squares of the differences.
    pub noise: f64,
}

impl QuantError {
    /// Root mean square of the differences over that of the elements.
    pub fn relative_rms(&self) -> f64 {
        if self.noise == 0.0 { 0.0 } else { (self.noise / self.signal).sqrt() }
    }

    /// Joins what was counted elsewhere.
    pub fn add(&mut self, other: QuantError) {
        self.signal += other.signal;
        self.noise += other.noise;
    }
}

/// Quantises `values`, rows of `cols` elements each, and appends them to
/// `out`. Deterministic: the same values give the same bytes.
///
/// # Errors
/// Where a value is not finite, or so large that its scale is not.
pub fn quantise_rows(
    values: &[f32],
    affine: Affine,
    out: &mut QuantisedRows,
) -> Result<QuantError, QuantiseError> {
    let Affine { bits, group_size, params } = affine;
    assert!(affine.is_supported(values.len()), "whole groups of a known format");
    let mut error = QuantError::default();
    let mut q = [0u8; 128];
    let q = &mut q[..group_size];
    let group_bytes = group_size * usize::from(bits) / 8;
    for (g, group) in values.chunks_exact(group_size).enumerate() {
        let odd = group.iter().position(|it| !it.is_finite());
        let refuse = |i: usize| QuantiseError { idx: g * group_size + i, value: group[i] };
        if let Some(i) = odd {
            return Err(refuse(i));
        }
        let Some(grid) = Grid::best(group, bits, params) else { return Err(refuse(0)) };
        grid.round(group, q);
        error.add(grid.error(group));
        let start = out.weight.len();
        out.weight.resize(start + group_bytes, 0);
        pack_group(bits, q, &mut out.weight[start..]);
        params.append(grid.scale, &mut out.scales);
        params.append(grid.bias, &mut out.biases);
    }
    Ok(error)
}

/// Packs the integers of one group into a `bits`-wide stream: the inverse of
/// [`unpack_group`](super::unpack_group).
pub fn pack_group(bits: u8, q: &[u8], packed: &mut [u8]) {
    assert_eq!(packed.len() * 8, q.len() * usize::from(bits), "bytes of a packed group");
    let (mut stream, mut n_bits) = (0u32, 0);
    let mut out = packed.iter_mut();
    for q in q {
        stream |= u32::from(*q) << n_bits;
        n_bits += u32::from(bits);
        while n_bits >= 8 {
            *out.next().expect("as many bytes as bits") = stream as u8;
            stream >>= 8;
            n_bits -= 8;
        }
    }
}

/// The values that a group's integers can stand for: `scale * q + bias`.
#[derive(Clone, Copy, Debug)]
struct Grid {
    scale: f32,
    bias: f32,
    /// The largest integer.
    max: f32,
}

impl Grid {
    /// Whichever grid leaves the smaller squared error, the first where they
    /// are equal; `None` where no parameters are finite.
    fn best(group: &[f32], bits: u8, params: Float) -> Option<Grid> {
        let low = group.iter().copied().fold(f32::INFINITY, f32::min);
        let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let max = ((1u32 << bits) - 1) as f32;
        let grid = |scale: f32, bias: f32| {
            let (scale, bias) = (params.round(scale), params.round(bias));
            (scale.is_finite() && bias.is_finite()).then_some(Grid { scale, bias, max })
        };
        if low == high {
            let bias = params.round(low);
            return grid(low - bias, bias);
        }
        // Divided first, so that the difference cannot overflow.
        let step = (high / max) - (low / max);
        let edge = edge_grid(low, high, step).and_then(|(scale, bias)| grid(scale, bias));
        let span = grid(step, low);
        match (edge, span) {
            (Some(edge), Some(span)) => {
                let edge_is_worse = edge.error(group).noise > span.error(group).noise;
                Some(if edge_is_worse { span } else { edge })
            }
            (edge, span) => edge.or(span),
        }
    }

    /// The nearest grid points; ties go to the even integer.
    fn round(&self, group: &[f32], q: &mut [u8]) {
        let inverse = self.inverse();
        for (q, value) in q.iter_mut().zip(group) {
            *q = self.nearest(*value, inverse) as u8;
        }
    }

    fn error(&self, group: &[f32]) -> QuantError {
        let inverse = self.inverse();
        // Eight sums, so that the loop vectorises.
        let mut noise = [0f64; 8];
        let mut signal = [0f64; 8];
        for chunk in group.chunks_exact(8) {
            for (lane, value) in chunk.iter().enumerate() {
                let back = self.scale * self.nearest(*value, inverse) + self.bias;
                let difference = f64::from(back) - f64::from(*value);
                noise[lane] += difference * difference;
                signal[lane] += f64::from(*value) * f64::from(*value);
            }
        }
        QuantError { signal: signal.iter().sum(), noise: noise.iter().sum() }
    }

    fn inverse(&self) -> f32 {
        let inverse = 1.0 / self.scale;
        if inverse.is_finite() { inverse } else { 0.0 }
    }

    #[inline(always)]
    fn nearest(&self, value: f32, inverse: f32) -> f32 {
        // Adding and taking away 1.5 * 2^23 rounds to an integer, ties to even.
        const MAGIC: f32 = 12_582_912.0;
        let at = ((value - self.bias) * inverse).clamp(0.0, self.max);
        (at + MAGIC) - MAGIC
    }
}

/// MLX's grid: the end farther from zero is exact, and zero is close to a
/// grid point.
fn edge_grid(low: f32, high: f32, step: f32) -> Option<(f32, f32)> {
    let (edge, step) = if low.abs() > high.abs() { (low, step) } else { (high, -step) };
    let q = (edge / step).round_ties_even();
    (q != 0.0 && q.is_finite()).then(|| (edge / q, edge))
}

impl Float {
    /// The nearest value of this type, ties to even.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Float::F32 => value,
            Float::F16 => f16::from_f32(value).to_f32(),
            Float::BF16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// Appends a value's little-endian bytes, rounded as [`Float::round`].
    pub fn append(self, value: f32, out: &mut Vec<u8>) {
        match self {
            Float::F32 => out.extend_from_slice(&value.to_le_bytes()),
            Float::F16 => out.extend_from_slice(&f16::from_f32(value).to_le_bytes()),
            Float::BF16 => out.extend_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }
}

impl QuantisedRows {
    /// As a matrix of `cols` columns.
    pub fn view(&self, cols: usize, affine: Affine) -> MatrixView<'_> {
        let format = MatrixFormat::Affine(affine);
        let rows = self.weight.len() / format.row_bytes(cols);
        let QuantisedRows { weight, scales, biases } = self;
        MatrixView { rows, cols, format, weight, scales, biases }
    }

    /// Forgets the rows, keeps their memory.
    pub fn clear(&mut self) {
        self.weight.clear();
        self.scales.clear();
        self.biases.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::unpack_group;
    use super::*;

    fn affine(bits: u8, group_size: usize) -> Affine {
        Affine { bits, group_size, params: Float::BF16 }
    }

    fn round_trip(values: &[f32], affine: Affine) -> (Vec<f32>, QuantError) {
        let mut rows = QuantisedRows::default();
        let error = quantise_rows(values, affine, &mut rows).expect("finite values");
        let view = rows.view(values.len(), affine);
        view.assert_sizes();
        let mut out = vec![0.0; values.len()];
        view.decode_row(0, &mut out);
        (out, error)
    }

    fn formats() -> impl Strategy<Value = Affine> {
        let sizes = prop::sample::select(&Affine::GROUP_SIZES[..]);
        (prop::sample::select(&Affine::BITS[..]), sizes).prop_map(|(bits, size)| affine(bits, size))
    }

    #[test]
    fn zeros_stay_zero() {
        let (out, error) = round_trip(&[0.0; 64], affine(4, 64));
        assert_eq!(out, [0.0; 64]);
        assert_eq!(error.relative_rms(), 0.0);
    }

    #[test]
    fn constants_keep_sixteen_bits() {
        for value in [1.0, -3.141_592_7, 1e-20, 1e30] {
            let (out, _) = round_trip(&[value; 32], affine(2, 32));
            assert!((out[0] - value).abs() <= value.abs() * 2f32.powi(-16), "{value}: {}", out[0]);
        }
    }

    #[test]
    fn groups_on_a_grid_are_exact() {
        let values: Vec<f32> = (0..64).map(|i| (i % 16) as f32 * 0.25 - 2.0).collect();
        assert_eq!(round_trip(&values, affine(4, 64)).0, values);
    }

    #[test]
    fn refuses_what_is_not_finite() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 64];
            values[33] = odd;
            let got = quantise_rows(&values, affine(4, 32), &mut QuantisedRows::default());
            assert_eq!(got.unwrap_err().idx, 33);
        }
    }

    #[test]
    fn the_widest_range_has_a_grid_or_an_error() {
        let values: Vec<f32> =
            (0..32).map(|i| if i % 2 == 0 { f32::MAX } else { f32::MIN }).collect();
        assert!(quantise_rows(&values, affine(4, 32), &mut QuantisedRows::default()).is_err());
        let values: Vec<f32> = values.iter().map(|it| it * 0.9).collect();
        assert!(round_trip(&values, affine(4, 32)).0.iter().all(|it| it.is_finite()));
    }

    proptest! {
        #[test]
        fn packing_is_the_inverse_of_unpacking(
            format in formats(),
            seed in prop::collection::vec(any::<u8>(), 128),
        ) {
            let mask = ((1u32 << format.bits) - 1) as u8;
            let q: Vec<u8> = seed[..format.group_size].iter().map(|it| it & mask).collect();
            let mut packed = vec![0; q.len() * usize::from(format.bits) / 8];
            pack_group(format.bits, &q, &mut packed);
            let mut back = vec![0; q.len()];
            unpack_group(format.bits, &packed, &mut back);
            prop_assert_eq!(q, back);
        }

        #[test]
        fn errors_stay_within_a_step(
            format in formats(),
            values in prop::collection::vec(-1.0f32..1.0, 128),
            offset in -1.0f32..1.0,
        ) {
            let values: Vec<f32> = values.iter().map(|it| it + offset).collect();
            let (out, error) = round_trip(&values, format);
            let levels = ((1u32 << format.bits) - 1) as f64;
            // The span's error is at most half a step, and the rounding of its
            // scale and bias to eight bits of mantissa moves the ends; the
            // chosen grid has no larger squared error than that.
            let worst = 2.0 / levels * 0.5 + (2.0 + 2.0) * 2f64.powi(-9) + 1e-6;
            prop_assert!(error.noise <= 128.0 * worst * worst, "{error:?}");
            let noise: f64 = out.iter().zip(&values)
                .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
            prop_assert!((noise - error.noise).abs() <= 1e-9 + noise * 1e-6);
        }

        #[test]
        fn never_worse_than_either_grid_alone(
            format in formats(),
            values in prop::collection::vec(-1.0f32..1.0, 128),
        ) {
            let group = &values[..format.group_size];
            let best = Grid::best(group, format.bits, format.params).unwrap();
            let low = group.iter().copied().fold(f32::INFINITY, f32::min);
            let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let step = (high - low) / best.max;
            let span = Grid {
                scale: format.params.round(step),
                bias: format.params.round(low),
                max: best.max,
            };
            prop_assert!(best.error(group).noise <= span.error(group).noise * 1.000_1 + 1e-12);
        }

        #[test]
        fn any_finite_values_give_finite_ones(bits in prop::collection::vec(any::<u32>(), 64)) {
            let values: Vec<f32> = bits.iter().map(|it| f32::from_bits(*it))
                .map(|it| if it.is_finite() { it * 0.5 } else { 0.0 }).collect();
            let format = affine(4, 64);
            let mut rows = QuantisedRows::default();
            if quantise_rows(&values, format, &mut rows).is_ok() {
                let mut out = vec![0.0; 64];
                rows.view(64, format).decode_row(0, &mut out);
                prop_assert!(out.iter().all(|it| it.is_finite()), "{out:?}");
            }
        }
    }
}
