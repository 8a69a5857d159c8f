//! Depthwise causal convolution with a short history.

use std::ops::Range;

use super::Isa;
use super::isa::for_every_isa;
use super::math::silu;
use super::pool::SharedMut;

/// The last `kernel - 1` inputs, oldest first: `(kernel - 1, channels)`, whose channels belong to
/// different tasks.
#[derive(Clone, Copy)]
pub(super) struct SharedHistory<'a> {
    pub(super) channels: usize,
    pub(super) history: SharedMut<'a, f32>,
}

/// Rows to convolve.
pub(super) struct Taps<'a> {
    pub(super) isa: Isa,
    /// Inputs, `x_stride` apart.
    pub(super) x: &'a [f32],
    pub(super) x_stride: usize,
    pub(super) n_rows: usize,
    /// `(kernel, channels)`.
    pub(super) weight: &'a [f32],
    /// One a channel.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) out: SharedMut<'a, f32>,
    /// The first output, and the distance to the next.
    pub(super) out_start: usize,
    pub(super) out_stride: usize,
}

impl SharedHistory<'_> {
    /// All rows of some channels.
    ///
    /// # Safety
    /// Meanwhile no other code uses these channels of the history and the outputs.
    pub(super) unsafe fn run(&self, taps: &Taps<'_>, channels: Range<usize>) {
        if taps.n_rows == 0 {
            return;
        }
        let n_kept = self.history.len() / self.channels;
        let kept = |i: usize| {
            let at = i * self.channels;
            // SAFETY: the caller promises that no other code uses these channels, and here a
            // row of the history is not read while it is written.
            unsafe { self.history.slice(at + channels.start..at + channels.end) }
        };
        // The i-th of the history and then the rows.
        let input = |i: usize| match i.checked_sub(n_kept) {
            None => &*kept(i),
            Some(row) => &taps.x[row * taps.x_stride..][channels.clone()],
        };
        let weight = |tap: usize| &taps.weight[tap * self.channels..][channels.clone()];
        for row in 0..taps.n_rows {
            let start = taps.out_start + row * taps.out_stride;
            // SAFETY: the caller promises that no other code uses these channels.
            let out = unsafe { taps.out.slice(start + channels.start..start + channels.end) };
            match taps.bias {
                Some(bias) => out.copy_from_slice(&bias[channels.clone()]),
                None => out.fill(0.0),
            }
            if n_kept == 3 {
                let x = [input(row), input(row + 1), input(row + 2), input(row + 3)];
                four_taps(taps.isa, out, [weight(0), weight(1), weight(2), weight(3)], x);
                continue;
            }
            for i in 0..=n_kept {
                tap(taps.isa, out, weight(i), input(row + i));
            }
            activate(taps.isa, out);
        }
        for i in 0..n_kept {
            kept(i).copy_from_slice(input(taps.n_rows + i));
        }
    }
}

for_every_isa! {
    /// The most frequent kernel in one pass, over biases.
    fn four_taps(out: &mut [f32], w: [&[f32]; 4], x: [&[f32]; 4]) {
        let [w0, w1, w2, w3] = w;
        let [x0, x1, x2, x3] = x;
        let early = w0.iter().zip(x0).zip(w1.iter().zip(x1));
        let late = w2.iter().zip(x2).zip(w3.iter().zip(x3));
        for (out, (((w0, x0), (w1, x1)), ((w2, x2), (w3, x3)))) in
            out.iter_mut().zip(early.zip(late))
        {
            let sum = w1.mul_add(*x1, w0.mul_add(*x0, *out));
            *out = silu(w3.mul_add(*x3, w2.mul_add(*x2, sum)));
        }
    }
}

for_every_isa! {
    fn tap(out: &mut [f32], w: &[f32], x: &[f32]) {
        for ((out, w), x) in out.iter_mut().zip(w).zip(x) {
            *out = w.mul_add(*x, *out);
        }
    }
}

for_every_isa! {
    fn activate(out: &mut [f32]) {
        for value in out {
            *value = silu(*value);
        }
    }
}
