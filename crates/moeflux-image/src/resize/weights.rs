//! How much each pixel of a line adds to each pixel of the resized line.
//!
//! The formulas are those of ATen's `upsample_bicubic2d_aa` for `uint8` on the CPU, which
//! `torchvision.transforms.v2.functional.resize` calls with `antialias=True`.

use crate::memory::reserved;

/// The parameter of Keys' kernel: Catmull-Rom.
const A: f64 = -0.5;
/// Half the width of the kernel, in pixels of the smaller line.
const SUPPORT: f64 = 2.0;
/// Weights have at most as many bits of fraction.
const MAX_BITS: u32 = 22;
/// Weights fit signed integers of 16 bits.
const MAX_WEIGHT: f64 = 32_768.0;

/// The weights of a whole line, as integers with a common number of fractional bits.
#[derive(Debug)]
pub(super) struct Weights {
    /// Bits of fraction.
    pub(super) bits: u32,
    /// One entry for each resized pixel.
    taps: Vec<Taps>,
    weights: Vec<i16>,
}

/// Which pixels add to a resized one.
#[derive(Debug, Clone, Copy)]
struct Taps {
    first_pixel: usize,
    /// Where their weights are.
    first_weight: usize,
    len: usize,
}

impl Weights {
    /// The weights from `n_from` to `n_to` pixels, or the bytes that there is no memory for.
    pub(super) fn new(n_from: usize, n_to: usize) -> Result<Self, usize> {
        let scale = n_from as f64 / n_to as f64;
        let stretch = scale.max(1.0);
        let support = SUPPORT * stretch;
        let mut taps = reserved(n_to)?;
        // Each pixel has at most 2 * support + 2 taps.
        let n_most = (2 * support as usize + 3).min(n_from);
        let mut weights: Vec<f64> = reserved(n_to.saturating_mul(n_most))?;
        let mut largest = 0.0_f64;
        for i in 0..n_to {
            let centre = scale * (i as f64 + 0.5);
            // The sums are truncated toward zero, and none is below it after `max`.
            let first_pixel = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(n_from);
            let first_weight = weights.len();
            let inverse = 1.0 / stretch;
            let distances = (first_pixel..end).map(|j| (j as f64 - centre + 0.5) * inverse);
            weights.extend(distances.map(kernel));
            let own = &mut weights[first_weight..];
            let sum: f64 = own.iter().sum();
            own.iter_mut().for_each(|weight| *weight /= sum);
            largest = own.iter().fold(largest, |largest, weight| largest.max(*weight));
            taps.push(Taps { first_pixel, first_weight, len: end - first_pixel });
        }
        let bits = fraction_bits(largest);
        let mut rounded = reserved(weights.len())?;
        rounded.extend(weights.iter().map(|weight| fixed(*weight, bits)));
        Ok(Self { bits, taps, weights: rounded })
    }

    /// For each resized pixel the first pixel that adds to it, and the weights from there on.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &[i16])> {
        self.taps.iter().map(|taps| {
            let weights = &self.weights[taps.first_weight..taps.first_weight + taps.len];
            (taps.first_pixel, weights)
        })
    }
}

/// Keys' cubic kernel.
fn kernel(x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// The most bits with which the largest weight fits.
fn fraction_bits(largest: f64) -> u32 {
    let fits = |bits: u32| (0.5 + largest * f64::from(1 << bits)).floor() < MAX_WEIGHT;
    (1..=MAX_BITS).take_while(|bits| fits(*bits)).last().unwrap_or(0)
}

/// A weight rounded to the nearest integer, halves away from zero.
fn fixed(weight: f64, bits: u32) -> i16 {
    let half = 0.5_f64.copysign(weight);
    (half + weight * f64::from(1 << bits)) as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_a_pixel_sum_to_one() {
        for (n_from, n_to) in [(1, 1), (1, 7), (7, 1), (640, 480), (480, 640), (4032, 32), (3, 999)]
        {
            let weights = Weights::new(n_from, n_to).expect("memory");
            assert!((1..=MAX_BITS).contains(&weights.bits));
            let one = 1 << weights.bits;
            for (first, weights) in weights.iter() {
                let sum: i32 = weights.iter().map(|w| i32::from(*w)).sum();
                assert!((sum - one).unsigned_abs() as usize <= weights.len(), "{sum} of {one}");
                assert!(!weights.is_empty() && first + weights.len() <= n_from);
            }
        }
    }
}
