//! Ops that treat every element alone.

use super::isa::for_every_isa;
use super::math::{sigmoid, silu};

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
    /// `gate = silu(gate) * up`.
    pub(super) fn swiglu_in_place(gate: &mut [f32], up: &[f32]) {
        for (g, u) in gate.iter_mut().zip(up) {
            *g = silu(*g) * u;
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
