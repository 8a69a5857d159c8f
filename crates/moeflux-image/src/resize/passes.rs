//! One side of a picture resized: along rows, and along columns.
//!
//! Sums are integers of 32 bits: weights sum to at most 1.3 * 2^22 in magnitude, times 255.

use crate::memory::zeroed;
use crate::size::Size;

use super::weights::Weights;

/// Resizes each row of `rgb`, which has `n_from` pixels, to `n_to` pixels.
pub(super) fn rows<'a>(
    rgb: &[u8],
    n_from: usize,
    n_to: usize,
    to: impl Iterator<Item = &'a mut [u8]>,
) -> Result<(), usize> {
    let lines = rgb.chunks_exact(3 * n_from).zip(to);
    if n_from == n_to {
        lines.for_each(|(from, to)| to.copy_from_slice(from));
        return Ok(());
    }
    let weights = Weights::new(n_from, n_to)?;
    let (bits, half) = (weights.bits, half(weights.bits));
    for (from, to) in lines {
        let (from, to) = (from.as_chunks::<3>().0, to.as_chunks_mut::<3>().0);
        for (pixel, (first, weights)) in to.iter_mut().zip(weights.iter()) {
            let mut sums = [half; 3];
            for (from, weight) in from[first..first + weights.len()].iter().zip(weights) {
                for (sum, level) in sums.iter_mut().zip(from) {
                    *sum += i32::from(*weight) * i32::from(*level);
                }
            }
            *pixel = sums.map(|sum| level(sum, bits));
        }
    }
    Ok(())
}

/// Resizes the columns of `rgb` to `n_to` rows.
pub(super) fn columns<'a>(
    rgb: &[u8],
    from: Size,
    n_to: usize,
    to: impl Iterator<Item = &'a mut [u8]>,
) -> Result<(), usize> {
    let weights = Weights::new(from.height, n_to)?;
    let row_bytes = 3 * from.width;
    let mut sums: Vec<i32> = zeroed(row_bytes)?;
    for (line, (first, weights_of_row)) in to.zip(weights.iter()) {
        sums.fill(half(weights.bits));
        let rows = rgb[first * row_bytes..].chunks_exact(row_bytes);
        for (row, weight) in rows.zip(weights_of_row) {
            let weight = i32::from(*weight);
            for (sum, level) in sums.iter_mut().zip(row) {
                *sum += weight * i32::from(*level);
            }
        }
        for (to, sum) in line.iter_mut().zip(&sums) {
            *to = level(*sum, weights.bits);
        }
    }
    Ok(())
}

/// One half in units of the sum, which makes the shift round.
fn half(bits: u32) -> i32 {
    1 << bits >> 1
}

/// A sum without its fraction, in the range of a level.
fn level(sum: i32, bits: u32) -> u8 {
    (sum >> bits).clamp(0, 255) as u8
}
