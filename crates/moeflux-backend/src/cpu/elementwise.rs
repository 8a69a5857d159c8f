//! Ops that treat every element alone.

use moeflux_core::quant::MatrixView;

use super::isa::for_every_isa;
use super::math::{gelu_erf, gelu_tanh, sigmoid, silu, tanh};
use crate::{GatedActivation, PlainActivation};

for_every_isa! {
    /// One row of a matrix.
    pub(super) fn decode_row(out: &mut [f32], matrix: MatrixView<'_>, row: usize) {
        matrix.decode_row(row, out);
    }
}

for_every_isa! {
    /// `acc += x`.
    pub(super) fn add(acc: &mut [f32], x: &[f32]) {
        for (a, x) in acc.iter_mut().zip(x) {
            *a += x;
        }
    }
}

for_every_isa! {
    /// `acc = x * factor + acc`, rounded once.
    pub(super) fn add_scaled(acc: &mut [f32], x: &[f32], factor: f32) {
        for (a, x) in acc.iter_mut().zip(x) {
            *a = x.mul_add(factor, *a);
        }
    }
}

for_every_isa! {
    /// `x *= factor`.
    pub(super) fn scale(x: &mut [f32], factor: f32) {
        for x in x {
            *x *= factor;
        }
    }
}

for_every_isa! {
    /// `x = silu(x * factor)`.
    pub(super) fn scaled_silu(x: &mut [f32], factor: f32) {
        for x in x {
            *x = silu(*x * factor);
        }
    }
}

for_every_isa! {
    /// `x = cap * tanh(x / cap)`.
    pub fn soft_cap(x: &mut [f32], cap: f32) {
        for x in x {
            *x = cap * tanh(*x / cap);
        }
    }
}

for_every_isa! {
    /// Replaces a row of gates by their activation with `up`.
    pub(super) fn activate_gate(activation: GatedActivation, gate: &mut [f32], up: &[f32]) {
        let (gates, last_gates) = gate.as_chunks_mut::<BLOCK>();
        let (ups, last_ups) = up.as_chunks::<BLOCK>();
        for (gate, up) in gates.iter_mut().zip(ups) {
            *gate = activated(activation, gate, up);
        }
        let (mut gate, mut up) = ([0f32; BLOCK], [0f32; BLOCK]);
        let n = last_gates.len();
        gate[..n].copy_from_slice(last_gates);
        up[..n].copy_from_slice(last_ups);
        last_gates.copy_from_slice(&activated(activation, &gate, &up)[..n]);
    }
}

for_every_isa! {
    /// Replaces elements by their activation.
    pub(super) fn activate_plain(activation: PlainActivation, x: &mut [f32]) {
        match activation {
            PlainActivation::Relu2 => {
                for x in x {
                    // A comparison that lets NaN pass.
                    let positive = if *x < 0.0 { 0.0 } else { *x };
                    *x = positive * positive;
                }
            }
            PlainActivation::GeluTanh => {
                for x in x {
                    *x = gelu_tanh(*x);
                }
            }
            PlainActivation::GeluErf => {
                for x in x {
                    *x = gelu_erf(*x);
                }
            }
        }
    }
}

for_every_isa! {
    /// `x *= sigmoid(gate)`.
    pub(super) fn sigmoid_gate(x: &mut [f32], gate: &[f32]) {
        for (x, g) in x.iter_mut().zip(gate) {
            *x *= sigmoid(*g);
        }
    }
}

for_every_isa! {
    /// `x = sigmoid(x)`.
    pub(super) fn sigmoids(x: &mut [f32]) {
        for value in x {
            *value = sigmoid(*value);
        }
    }
}

/// Gate and up of one row of an expert, and what becomes of them.
#[derive(Clone, Copy)]
pub(super) struct Activate<'a> {
    pub(super) activation: GatedActivation,
    /// Added to gate and up first.
    pub(super) biases: Option<(&'a [f32], &'a [f32])>,
    /// Whether the row holds gate, up, gate, up; else all of gate, then all of
    /// up.
    pub(super) alternates: bool,
}

/// Elements that are activated together.
const BLOCK: usize = 16;

for_every_isa! {
    /// Replaces the first half of a row of gate and up by their activation;
    /// the second half is of no use afterwards.
    pub(super) fn activate(op: Activate<'_>, row: &mut [f32]) {
        let n = row.len() / 2;
        let whole = n - n % BLOCK;
        // Where compilers know the length of a block, it stays in registers.
        for start in (0..whole).step_by(BLOCK) {
            activate_block(op, row, start, BLOCK);
        }
        if whole < n {
            activate_block(op, row, whole, n - whole);
        }
    }
}

/// Activates `len` elements from `start` on.
#[inline(always)]
fn activate_block(op: Activate<'_>, row: &mut [f32], start: usize, len: usize) {
    let n = row.len() / 2;
    let (mut gate, mut up) = ([0f32; BLOCK], [0f32; BLOCK]);
    if op.alternates {
        // Pairs are read at or after the places that were written.
        let pairs = row[2 * start..2 * (start + len)].as_chunks::<2>().0;
        for ((gate, up), pair) in gate.iter_mut().zip(&mut up).zip(pairs) {
            [*gate, *up] = *pair;
        }
    } else {
        gate[..len].copy_from_slice(&row[start..start + len]);
        up[..len].copy_from_slice(&row[n + start..n + start + len]);
    }
    if let Some((gate_bias, up_bias)) = op.biases {
        add_to(&mut gate, &gate_bias[start..start + len]);
        add_to(&mut up, &up_bias[start..start + len]);
    }
    let out = activated(op.activation, &gate, &up);
    row[start..start + len].copy_from_slice(&out[..len]);
}

#[inline(always)]
fn add_to(acc: &mut [f32], x: &[f32]) {
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc += x;
    }
}

/// Loops, because a closure in a generic function is not compiled for the
/// instruction set at hand.
#[inline(always)]
fn activated(activation: GatedActivation, gate: &[f32; BLOCK], up: &[f32; BLOCK]) -> [f32; BLOCK] {
    let mut out = [0f32; BLOCK];
    match activation {
        GatedActivation::Swiglu => {
            for i in 0..BLOCK {
                out[i] = silu(gate[i]) * up[i];
            }
        }
        GatedActivation::ClampedSwiglu { alpha, limit } => {
            for i in 0..BLOCK {
                // Comparisons that let NaN pass.
                let g = if gate[i] > limit { limit } else { gate[i] };
                let u = if up[i] > limit { limit } else { up[i] };
                let u = if u < -limit { -limit } else { u };
                out[i] = g * sigmoid(alpha * g) * (u + 1.0);
            }
        }
        GatedActivation::BoundedSwiglu { limit } => {
            for i in 0..BLOCK {
                let g = if gate[i] > limit { limit } else { gate[i] };
                let u = if up[i] > limit { limit } else { up[i] };
                let u = if u < -limit { -limit } else { u };
                out[i] = silu(g) * u;
            }
        }
        GatedActivation::GeluTanh => {
            for i in 0..BLOCK {
                out[i] = gelu_tanh(gate[i]) * up[i];
            }
        }
    }
    out
}
