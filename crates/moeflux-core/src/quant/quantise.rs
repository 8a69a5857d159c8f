//! Affine quantisation: rounds floats to integers in groups, with the better of two grids.

use super::{Affine, Float, MatrixFormat, MatrixView};

/// Rows in an affine format, as they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuantisedRows {
    /// The packed integers.
    pub weight: Vec<u8>,
    /// One scale per group and row.
    pub scales: Vec<u8>,
    /// One bias per group and row.
    pub biases: Vec<u8>,
}

/// A value that no grid can represent.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("element {idx} is {value}, which cannot be quantised")]
pub struct QuantiseError {
    /// Index of the element in the values.
    pub idx: usize,
    /// The value of the element.
    pub value: f32,
}

/// The error of rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantError {
    /// Sum of the squares of the elements.
    pub signal: f64,
    /// Sum of the squares of the rounding errors.
    pub noise: f64,
}

impl QuantError {
    /// Root mean square of the rounding errors, relative to that of the elements.
    pub fn relative_rms(&self) -> f64 {
        if self.noise == 0.0 { 0.0 } else { (self.noise / self.signal).sqrt() }
    }

    /// Adds the sums of `other`.
    pub fn add(&mut self, other: QuantError) {
        self.signal += other.signal;
        self.noise += other.noise;
    }
}

/// Quantises `values`, which are rows of `cols` elements each, and appends them to `out`.
/// Deterministic: the same values give the same bytes.
///
/// # Errors
/// If a value is not finite, or so large that its scale is not finite.
pub fn quantise_rows(
    values: &[f32],
    affine: Affine,
    out: &mut QuantisedRows,
) -> Result<QuantError, QuantiseError> {
    let Affine { bits, group_size, params, .. } = affine;
    assert!(affine.is_supported(values.len()), "whole groups of a known format");
    let mut error = QuantError::default();
    let mut q = [0u8; 128];
    let q = &mut q[..group_size];
    for (g, group) in values.chunks_exact(group_size).enumerate() {
        let grid = Grid::best(group, bits, params)
            .ok_or_else(|| QuantiseError::of_group(group, g * group_size))?;
        error.add(grid.round(group, q));
        out.append_group(q, grid, affine);
    }
    Ok(error)
}

impl QuantiseError {
    /// The error of a group that has no grid; `first` is the index of its first element.
    pub(super) fn of_group(group: &[f32], first: usize) -> QuantiseError {
        // If all values are finite, their range is not.
        let i = group.iter().position(|value| !value.is_finite()).unwrap_or(0);
        QuantiseError { idx: first + i, value: group[i] }
    }
}

/// Packs the integers of one group into a stream of `bits`-wide integers: the inverse of
/// [`unpack_group`](super::unpack_group).
pub fn pack_group(bits: u8, q: &[u8], packed: &mut [u8]) {
    let bits = usize::from(bits);
    assert_eq!(packed.len() * 8, q.len() * bits, "bytes of a packed group");
    // Eight integers fill `bits` whole bytes.
    for (q, out) in q.chunks_exact(8).zip(packed.chunks_exact_mut(bits)) {
        let word = q.iter().rev().fold(0u64, |word, q| word << bits | u64::from(*q));
        out.copy_from_slice(&word.to_le_bytes()[..bits]);
    }
}

/// The values that the integers of a group represent: `scale * q + bias`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) scale: f32,
    pub(super) bias: f32,
    /// The largest integer.
    pub(super) max: f32,
}

impl Grid {
    /// The grid with the smaller squared error of two, the first if they are equal; `None` if no
    /// grid has finite parameters.
    pub(super) fn best(group: &[f32], bits: u8, params: Float) -> Option<Grid> {
        let (low, high) = range(group)?;
        let max = ((1u32 << bits) - 1) as f32;
        let grid = |scale: f32, bias: f32| {
            let (scale, bias) = (params.round(scale), params.round(bias));
            (scale.is_finite() && bias.is_finite()).then_some(Grid { scale, bias, max })
        };
        if low == high {
            let bias = params.round(low);
            return grid(low - bias, bias);
        }
        // The division comes first, so that the difference cannot overflow.
        let step = (high / max) - (low / max);
        let edge = edge_grid(low, high, step).and_then(|(scale, bias)| grid(scale, bias));
        let span = grid(step, low);
        match (edge, span) {
            (Some(edge), Some(span)) => {
                let edge_is_worse = edge.noise(group) > span.noise(group);
                Some(if edge_is_worse { span } else { edge })
            }
            (edge, span) => edge.or(span),
        }
    }

    /// Rounds to the nearest integers, and returns the error.
    pub(super) fn round(&self, group: &[f32], q: &mut [u8]) -> QuantError {
        let inverse = self.inverse();
        let (mut signal, mut noise) = ([0f64; LANES], [0f64; LANES]);
        for (group, q) in group.chunks_exact(LANES).zip(q.chunks_exact_mut(LANES)) {
            for lane in 0..LANES {
                let (value, at) = (group[lane], self.nearest(group[lane], inverse));
                // The rounded integer is in the lowest bits of the mantissa.
                q[lane] = at.to_bits() as u8;
                let back = self.scale * (at - MAGIC) + self.bias;
                let difference = f64::from(back) - f64::from(value);
                signal[lane] += f64::from(value) * f64::from(value);
                noise[lane] += difference * difference;
            }
        }
        QuantError { signal: signal.iter().sum(), noise: noise.iter().sum() }
    }

    /// The squared error, precise enough to choose a grid.
    fn noise(&self, group: &[f32]) -> f32 {
        let inverse = self.inverse();
        let mut noise = [0f32; LANES];
        for group in group.chunks_exact(LANES) {
            for lane in 0..LANES {
                let at = self.nearest(group[lane], inverse) - MAGIC;
                let difference = self.scale * at + self.bias - group[lane];
                noise[lane] += difference * difference;
            }
        }
        noise.iter().sum()
    }

    pub(super) fn inverse(&self) -> f32 {
        let inverse = 1.0 / self.scale;
        if inverse.is_finite() { inverse } else { 0.0 }
    }

    /// The nearest integer, ties to even, plus [`MAGIC`].
    #[inline(always)]
    pub(super) fn nearest(&self, value: f32, inverse: f32) -> f32 {
        let at = (value - self.bias) * inverse;
        // This form of the comparison is one instruction for each bound.
        let at = if at > 0.0 { at } else { 0.0 };
        let at = if at < self.max { at } else { self.max };
        at + MAGIC
    }
}

/// Sums have this many lanes, so that compilers vectorise their loops.
pub(super) const LANES: usize = 8;

/// The constant 1.5 * 2^23: adding it rounds to an integer.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// The smallest and the largest value; `None` if a value is not finite.
pub(super) fn range(group: &[f32]) -> Option<(f32, f32)> {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    // Zero times a value that is not finite is NaN.
    let mut odd = [0f32; LANES];
    for group in group.chunks_exact(LANES) {
        for lane in 0..LANES {
            let value = group[lane];
            low[lane] = if value < low[lane] { value } else { low[lane] };
            high[lane] = if value > high[lane] { value } else { high[lane] };
            odd[lane] += value * 0.0;
        }
    }
    let is_finite = odd.iter().all(|value| *value == 0.0);
    let low = low.into_iter().fold(f32::INFINITY, f32::min);
    is_finite.then(|| (low, high.into_iter().fold(f32::NEG_INFINITY, f32::max)))
}

/// The grid of MLX: it represents the end farther from zero exactly, and zero closely.
fn edge_grid(low: f32, high: f32, step: f32) -> Option<(f32, f32)> {
    let (edge, step) = if low.abs() > high.abs() { (low, step) } else { (high, -step) };
    let q = (edge / step).round_ties_even();
    (q != 0.0 && q.is_finite()).then(|| (edge / q, edge))
}

impl QuantisedRows {
    /// Appends the integers and parameters of a group.
    pub(super) fn append_group(&mut self, q: &[u8], grid: Grid, affine: Affine) {
        let Affine { bits, params, .. } = affine;
        let start = self.weight.len();
        self.weight.resize(start + q.len() * usize::from(bits) / 8, 0);
        pack_group(bits, q, &mut self.weight[start..]);
        params.append(grid.scale, &mut self.scales);
        params.append(grid.bias, &mut self.biases);
    }

    /// A view of the rows as a matrix of `cols` columns.
    pub fn view(&self, cols: usize, affine: Affine) -> MatrixView<'_> {
        let format = MatrixFormat::Affine(affine);
        let rows = self.weight.len() / format.row_bytes(cols);
        let QuantisedRows { weight, scales, biases } = self;
        MatrixView { rows, cols, format, weight, scales, biases }
    }

    /// Removes the rows, and keeps the memory for further ones.
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
        Affine::new(bits, group_size, Float::BF16)
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
    fn decodes_floats_as_they_are_read_one_by_one() {
        let bytes: Vec<u8> = (0..96u32).map(|i| (i * 37 + 11) as u8).collect();
        for float in [Float::F32, Float::F16, Float::BF16] {
            let mut out = vec![0.0; bytes.len() / float.bytes()];
            float.decode(&bytes, &mut out);
            for (i, it) in out.iter().enumerate() {
                assert_eq!(it.to_bits(), float.read(&bytes, i).to_bits(), "{float:?} {i}");
            }
        }
    }

    #[test]
    fn zeros_stay_zero() {
        let (out, error) = round_trip(&[0.0; 64], affine(4, 64));
        assert_eq!(out, [0.0; 64]);
        assert_eq!(error.relative_rms(), 0.0);
    }

    #[test]
    fn constants_keep_sixteen_bits() {
        for value in [1.0, -3.191_592_7, 1e-20, 1e30] {
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
        let values: Vec<f32> = values.iter().map(|value| value * 0.9).collect();
        assert!(round_trip(&values, affine(4, 32)).0.iter().all(|value| value.is_finite()));
    }

    proptest! {
        #[test]
        fn packing_is_the_inverse_of_unpacking(
            format in formats(),
            seed in prop::collection::vec(any::<u8>(), 128),
        ) {
            let mask = ((1u32 << format.bits) - 1) as u8;
            let q: Vec<u8> = seed[..format.group_size].iter().map(|code| code & mask).collect();
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
            let values: Vec<f32> = values.iter().map(|value| value + offset).collect();
            let (out, error) = round_trip(&values, format);
            let levels = ((1u32 << format.bits) - 1) as f64;
            // The error of the full-range grid is at most half a step. Its scale and bias are
            // rounded to eight bits of mantissa, which moves the ends. The chosen grid has no
            // larger squared error.
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
            prop_assert!(best.noise(group) <= span.noise(group) * 1.000_1 + 1e-12);
        }

        #[test]
        fn any_finite_values_give_finite_ones(bits in prop::collection::vec(any::<u32>(), 64)) {
            let values: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits))
                .map(|value| if value.is_finite() { value * 0.5 } else { 0.0 }).collect();
            let format = affine(4, 64);
            let mut rows = QuantisedRows::default();
            if quantise_rows(&values, format, &mut rows).is_ok() {
                let mut out = vec![0.0; 64];
                rows.view(64, format).decode_row(0, &mut out);
                prop_assert!(out.iter().all(|value| value.is_finite()), "{out:?}");
            }
        }
    }
}
