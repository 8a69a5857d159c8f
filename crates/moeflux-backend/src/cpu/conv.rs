//! Depthwise causal convolution with a short history.

use super::Isa;
use super::isa::for_every_isa;
use super::math::silu;

/// The last `kernel - 1` inputs, oldest first: `(kernel - 1, channels)`.
#[derive(Debug)]
pub(super) struct ConvCache {
    channels: usize,
    history: Vec<f32>,
}

impl ConvCache {
    pub(super) fn new(channels: usize, kernel: usize) -> ConvCache {
        ConvCache { channels, history: vec![0.0; channels * (kernel - 1)] }
    }

    /// The last inputs.
    pub(super) fn history(&self) -> &[f32] {
        &self.history
    }

    pub(super) fn history_mut(&mut self) -> &mut [f32] {
        &mut self.history
    }

    /// One step: `weight` is `(kernel, channels)`.
    pub(super) fn step(&mut self, isa: Isa, out: &mut [f32], x: &[f32], weight: &[f32]) {
        out.fill(0.0);
        let taps = weight.chunks_exact(self.channels);
        let inputs = self.history.chunks_exact(self.channels).chain([x]);
        for (w, input) in taps.zip(inputs) {
            tap(isa, out, w, input);
        }
        activate(isa, out);
        if !self.history.is_empty() {
            self.history.copy_within(self.channels.., 0);
            let newest = self.history.len() - self.channels;
            self.history[newest..].copy_from_slice(x);
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
        for it in out {
            *it = silu(*it);
        }
    }
}
