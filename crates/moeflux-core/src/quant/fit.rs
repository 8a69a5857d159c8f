//! Affine quantisation with the scale and the bias of the least squared error, in which each column
//! has a weight.
//!
//! For given integers, scale and bias are a line through points, found by least squares. For given
//! scale and bias, the integers are the nearest. The two steps alternate, from several widths of
//! the grid. The best width depends on how far the outermost elements are clipped in favour of the
//! others; at two bits, clipping is nearly always better. One step from each width shows which of
//! them are promising.

use super::quantise::{Grid, LANES, MAGIC, range};
use super::{Affine, Float, QuantError, QuantiseError, QuantisedRows};

/// Widths of the grid to start from, as shares of the range of the elements.
const SHARES: [f32; 4] = [1.0, 0.85, 0.7, 0.55];

/// From this many bits on, only the first two widths are tried, because little clipping is useful.
const FINE_BITS: u8 = 5;

/// Number of starts that are followed until they settle.
const FOLLOWED: usize = 2;

/// The most alternations; most groups settle after three.
const ROUNDS: usize = 6;

/// Quantises `values`, which are rows of as many columns as `importance` has, and appends them to
/// `out`. The square of each element's error has the weight `importance[column]`. Deterministic:
/// the same values give the same bytes.
///
/// # Errors
/// If a value is not finite, or so large that its scale is not finite.
pub fn quantise_rows_weighted(
    values: &[f32],
    affine: Affine,
    importance: &[f32],
    out: &mut QuantisedRows,
) -> Result<QuantError, QuantiseError> {
    let Affine { bits, group_size, params, .. } = affine;
    let cols = importance.len();
    assert!(affine.is_supported(cols) && values.len().is_multiple_of(cols), "whole rows");
    let mut error = QuantError::default();
    let mut q = [0u8; 128];
    let q = &mut q[..group_size];
    for (g, group) in values.chunks_exact(group_size).enumerate() {
        let first = g * group_size % cols;
        let weights = &importance[first..first + group_size];
        let grid = best_grid(group, weights, bits, params)
            .ok_or_else(|| QuantiseError::of_group(group, g * group_size))?;
        error.add(grid.round(group, q));
        out.append_group(q, grid, affine);
    }
    Ok(error)
}

/// The grid with the least weighted squared error that was found. By that measure it is never worse
/// than [`Grid::best`].
pub(super) fn best_grid(group: &[f32], weights: &[f32], bits: u8, params: Float) -> Option<Grid> {
    let start = Grid::best(group, bits, params)?;
    let (low, high) = range(group)?;
    if low == high {
        return Some(start);
    }
    let mut group = Group::new(group, weights, params);
    let mut best = (group.noise(start), start);
    let step = (high / start.max) - (low / start.max);
    let middle = 0.5 * low + 0.5 * high;
    let shares = if bits < FINE_BITS { &SHARES[..] } else { &SHARES[..2] };
    let mut starts = [(f64::INFINITY, start, Sums::default()); SHARES.len()];
    for (share, out) in shares.iter().zip(&mut starts) {
        let scale = step * share;
        let grid = Grid { scale, bias: middle - 0.5 * scale * start.max, max: start.max };
        let sums = group.sums(grid);
        *out = (group.noise_of_line(&sums), grid, sums);
    }
    // A stable sort, so that the same values always give the same result.
    starts[..shares.len()].sort_by(|a, b| a.0.total_cmp(&b.0));
    for (_, grid, sums) in &starts[..FOLLOWED] {
        group.settle(*grid, *sums, &mut best);
    }
    let polished = best.1;
    for scale in [polished.scale.next_stored(params), polished.scale.previous_stored(params)] {
        group.keep_better(Grid { scale, ..polished }, &mut best);
    }
    Some(best.1)
}

/// Elements that share a grid, with their weights.
struct Group<'a> {
    values: &'a [f32],
    weights: &'a [f32],
    params: Float,
    /// Sums of the weights, of weight times element, and of weight times squared element.
    totals: [f64; 3],
    /// Working memory with two values per element.
    given: [[f32; MAX_GROUP]; 2],
}

/// Weighted sums over a group for least squares: `q` are the nearest integers, `x` the elements.
#[derive(Clone, Copy, Default, PartialEq)]
struct Sums {
    w: f64,
    wq: f64,
    wqq: f64,
    wx: f64,
    wqx: f64,
}

impl<'a> Group<'a> {
    fn new(values: &'a [f32], weights: &'a [f32], params: Float) -> Group<'a> {
        let mut given = [[0f32; MAX_GROUP]; 2];
        let weighted = &mut given[0][..values.len()];
        for ((weighted, value), weight) in weighted.iter_mut().zip(values).zip(weights) {
            *weighted = weight * value;
        }
        let totals = [sum(weights), sum(weighted), dot(weighted, values)];
        Group { values, weights, params, totals, given }
    }

    /// The weighted squared error of the best line for some integers, without rounding; infinite if
    /// there is no line.
    fn noise_of_line(&self, sums: &Sums) -> f64 {
        let Some((scale, bias)) = sums.line() else { return f64::INFINITY };
        let (scale, bias) = (f64::from(scale), f64::from(bias));
        self.totals[2] - scale * sums.wqx - bias * sums.wx
    }

    /// Alternates from `grid` and its sums on until nothing changes. Rounds the result as it is
    /// stored, and keeps it in `best` if it is better.
    fn settle(&mut self, mut grid: Grid, mut sums: Sums, best: &mut (f64, Grid)) {
        for _ in 0..ROUNDS {
            let Some((scale, bias)) = sums.line() else { break };
            grid = Grid { scale, bias, ..grid };
            let next = self.sums(grid);
            if next == sums {
                break;
            }
            sums = next;
        }
        self.keep_better(grid, best);
    }

    /// Rounds the scale as it is stored, computes the bias for it, and keeps the result in `best`
    /// if it is better.
    fn keep_better(&mut self, grid: Grid, best: &mut (f64, Grid)) {
        let mut grid = Grid { scale: self.params.round(grid.scale), ..grid };
        grid.bias = self.params.round(self.sums(grid).bias(grid.scale));
        if !grid.scale.is_finite() || !grid.bias.is_finite() {
            return;
        }
        let noise = self.noise(grid);
        if noise < best.0 {
            *best = (noise, grid);
        }
    }

    /// The weighted squared error of the nearest integers.
    fn noise(&mut self, grid: Grid) -> f64 {
        let inverse = grid.inverse();
        let [differences, weighted] =
            self.given.each_mut().map(|values| &mut values[..self.values.len()]);
        let columns = self.values.iter().zip(self.weights);
        for ((value, weight), out) in columns.zip(differences.iter_mut().zip(&mut *weighted)) {
            let q = grid.nearest(*value, inverse) - MAGIC;
            let difference = grid.scale * q + grid.bias - value;
            (*out.0, *out.1) = (difference, weight * difference);
        }
        dot(differences, weighted)
    }

    fn sums(&mut self, grid: Grid) -> Sums {
        let inverse = grid.inverse();
        let [integers, weighted] =
            self.given.each_mut().map(|values| &mut values[..self.values.len()]);
        let columns = self.values.iter().zip(self.weights);
        for ((value, weight), out) in columns.zip(integers.iter_mut().zip(&mut *weighted)) {
            let q = grid.nearest(*value, inverse) - MAGIC;
            (*out.0, *out.1) = (q, weight * q);
        }
        let [w, wx, _] = self.totals;
        Sums {
            w,
            wq: sum(weighted),
            wqq: dot(weighted, integers),
            wx,
            wqx: dot(weighted, self.values),
        }
    }
}

/// Elements in the largest group.
const MAX_GROUP: usize = 128;

// Each sum and each product has a separate loop, which compilers turn into whole vectors. Several
// sums in one loop become pairs of elements and shuffles.

fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0f32; LANES];
    for values in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            lanes[lane] += values[lane];
        }
    }
    total(lanes)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut lanes = [0f32; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    total(lanes)
}

/// The sum of all lanes, added as a tree of small depth.
fn total(lanes: [f32; LANES]) -> f64 {
    let [a, b, c, d, e, f, g, h] = lanes.map(f64::from);
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

impl Sums {
    /// Scale and bias of the least weighted squared error; `None` if all integers are the same.
    fn line(&self) -> Option<(f32, f32)> {
        let spread = self.w * self.wqq - self.wq * self.wq;
        let scale = (self.w * self.wqx - self.wq * self.wx) / spread;
        let is_line = spread > 1e-6 * self.w * self.wqq && scale.is_finite() && scale > 0.0;
        is_line.then(|| (scale as f32, self.bias(scale as f32)))
    }

    /// The best bias for a scale.
    fn bias(&self, scale: f32) -> f32 {
        ((self.wx - f64::from(scale) * self.wq) / self.w) as f32
    }
}

/// The neighbours of a value among the values that can be stored.
trait Stored {
    fn next_stored(self, params: Float) -> f32;
    fn previous_stored(self, params: Float) -> f32;
}

impl Stored for f32 {
    fn next_stored(self, params: Float) -> f32 {
        self * (1.0 + step_of(params))
    }

    fn previous_stored(self, params: Float) -> f32 {
        self * (1.0 - step_of(params))
    }
}

/// A relative step that rounds from a stored value to one of its neighbours.
fn step_of(params: Float) -> f32 {
    match params {
        Float::F32 => f32::EPSILON,
        Float::F16 => 1.0 / 1536.0,
        Float::BF16 => 1.0 / 192.0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::quantise_rows;
    use super::*;

    type Quantise<'a> = dyn Fn(&[f32], Affine, &mut QuantisedRows) -> QuantError + 'a;

    /// The weighted squared error of values that were quantised and read back.
    fn noise(values: &[f32], importance: &[f32], affine: Affine, quantise: &Quantise<'_>) -> f64 {
        let mut rows = QuantisedRows::default();
        quantise(values, affine, &mut rows);
        let view = rows.view(importance.len(), affine);
        view.assert_sizes();
        let mut back = vec![0.0; importance.len()];
        let mut noise = 0.0;
        for (r, row) in values.chunks_exact(importance.len()).enumerate() {
            view.decode_row(r, &mut back);
            let terms = row.iter().zip(&back).zip(importance);
            noise += terms.map(|((a, b), w)| f64::from(*w) * f64::from(a - b).powi(2)).sum::<f64>();
        }
        noise
    }

    fn nearest(values: &[f32], affine: Affine, out: &mut QuantisedRows) -> QuantError {
        quantise_rows(values, affine, out).expect("finite values")
    }

    fn fitted(importance: &[f32]) -> impl Fn(&[f32], Affine, &mut QuantisedRows) -> QuantError {
        move |values, affine, out| {
            quantise_rows_weighted(values, affine, importance, out).expect("finite values")
        }
    }

    /// Sums of twelve uniform random numbers: nearly normally distributed.
    fn bell(n: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..n).map(|_| (0..12).map(|_| uniform()).sum()).collect()
    }

    #[test]
    fn few_bits_lose_much_less_than_from_the_extremes() {
        let values = bell(256 * 64);
        let ones = vec![1.0; 256];
        for (bits, most) in [(2, 0.75), (3, 0.90), (4, 0.97)] {
            let affine = Affine::new(bits, 64, Float::BF16);
            let from_extremes = noise(&values, &ones, affine, &nearest);
            let share = noise(&values, &ones, affine, &fitted(&ones)) / from_extremes;
            assert!(share < most, "{bits} bits: {share}");
        }
    }

    #[test]
    fn what_matters_loses_less() {
        let values = bell(128 * 64);
        let importance: Vec<f32> = (0..128).map(|i| if i % 8 == 0 { 20.0 } else { 1.0 }).collect();
        let affine = Affine::new(2, 64, Float::BF16);
        let ones = vec![1.0; 128];
        let [plain, weighted] = [&ones, &importance]
            .map(|weights| noise(&values, &importance, affine, &fitted(weights)));
        assert!(weighted < 0.9 * plain, "{weighted} {plain}");
    }

    #[test]
    fn groups_on_a_grid_are_exact_and_constants_stay() {
        let affine = Affine::new(2, 64, Float::BF16);
        let values: Vec<f32> = (0..64).map(|i| (i % 4) as f32 * 0.25 - 0.5).collect();
        let ones = [1.0; 64];
        assert_eq!(noise(&values, &ones, affine, &fitted(&ones)), 0.0);
        assert_eq!(noise(&[0.75; 64], &ones, affine, &fitted(&ones)), 0.0);
    }

    #[test]
    fn refuses_what_is_not_finite() {
        let affine = Affine::new(3, 32, Float::BF16);
        let mut values = vec![1.0; 128];
        values[101] = f32::NAN;
        let got =
            quantise_rows_weighted(&values, affine, &[1.0; 64], &mut QuantisedRows::default());
        assert_eq!(got.unwrap_err().idx, 101);
    }

    fn formats() -> impl Strategy<Value = Affine> {
        let sizes = prop::sample::select(&Affine::GROUP_SIZES[..]);
        let params = prop::sample::select(vec![Float::BF16, Float::F16, Float::F32]);
        (prop::sample::select(&Affine::BITS[..]), sizes, params)
            .prop_map(|(bits, group_size, params)| Affine::new(bits, group_size, params))
    }

    proptest! {
        #[test]
        fn never_worse_than_from_the_extremes(
            format in formats(),
            values in prop::collection::vec(-1.0f32..1.0, 128),
            hundredths in prop::collection::vec(1u16..=1000, 128),
            offset in -1.0f32..1.0,
        ) {
            let importance: Vec<f32> = hundredths.iter().map(|hundredth| f32::from(*hundredth) / 100.0).collect();
            let values: Vec<f32> = values.iter().map(|value| value + offset).collect();
            let want = noise(&values, &importance, format, &nearest);
            let got = noise(&values, &importance, format, &fitted(&importance));
            prop_assert!(got <= want * 1.001 + 1e-9, "{got} {want}");
        }

        #[test]
        fn any_values_and_any_importance_give_finite_ones_or_an_error(
            bits in prop::collection::vec(any::<u32>(), 64),
            importance in prop::collection::vec(any::<u32>(), 64),
        ) {
            let floats = |bits: &[u32]| -> Vec<f32> {
                let floats = bits.iter().map(|bits| f32::from_bits(*bits));
                floats.map(|value| if value.is_finite() { value * 0.5 } else { 0.0 }).collect()
            };
            let values = floats(&bits);
            let importance: Vec<f32> = floats(&importance).iter().map(|value| value.abs()).collect();
            let affine = Affine::new(3, 64, Float::BF16);
            let mut rows = QuantisedRows::default();
            if quantise_rows_weighted(&values, affine, &importance, &mut rows).is_ok() {
                let mut out = vec![0.0; 64];
                rows.view(64, affine).decode_row(0, &mut out);
                prop_assert!(out.iter().all(|value| value.is_finite()), "{out:?}");
            }
        }
    }
}
