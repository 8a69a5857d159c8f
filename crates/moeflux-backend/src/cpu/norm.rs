//! Root-mean-square norms, one head at a time.

use super::isa::for_every_isa;
use super::math::{dot, sigmoid, silu, sum};
use crate::GateFunction;

for_every_isa! {
    /// `out = x / sqrt(mean(x^2) + eps) * weight`.
    pub(super) fn rms_norm(out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
        let inverse = inverse_rms(x, eps);
        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
            *out = *x * inverse * w;
        }
    }
}

for_every_isa! {
    /// `x = x / sqrt(mean(x^2) + eps) * weight`.
    pub(super) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
        let inverse = inverse_rms(x, eps);
        for (value, w) in x.iter_mut().zip(weight) {
            *value = *value * inverse * w;
        }
    }
}

for_every_isa! {
    /// `x = x * function(gate)`.
    pub(super) fn gate(x: &mut [f32], gate: &[f32], function: GateFunction) {
        match function {
            GateFunction::Silu => {
                for (value, g) in x.iter_mut().zip(gate) {
                    *value *= silu(*g);
                }
            }
            GateFunction::Sigmoid => {
                for (value, g) in x.iter_mut().zip(gate) {
                    *value *= sigmoid(*g);
                }
            }
        }
    }
}

for_every_isa! {
    /// `x = x / sqrt(mean(x^2) + eps) * weight * function(gate)`.
    pub(super) fn gated_rms_norm(
        x: &mut [f32], weight: &[f32], gate: &[f32], function: GateFunction, eps: f32,
    ) {
        let inverse = inverse_rms(x, eps);
        match function {
            GateFunction::Silu => {
                for ((value, w), g) in x.iter_mut().zip(weight).zip(gate) {
                    *value = *value * inverse * w * silu(*g);
                }
            }
            GateFunction::Sigmoid => {
                for ((value, w), g) in x.iter_mut().zip(weight).zip(gate) {
                    *value = *value * inverse * w * sigmoid(*g);
                }
            }
        }
    }
}

for_every_isa! {
    /// `x = (x - mean) / sqrt(variance + eps) * weight + bias`.
    pub(super) fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
        let n = x.len() as f32;
        let mean = sum(x) / n;
        for value in &mut *x {
            *value -= mean;
        }
        let inverse = 1.0 / (dot(x, x) / n + eps).sqrt();
        for ((value, w), b) in x.iter_mut().zip(weight).zip(bias) {
            *value = (*value * inverse).mul_add(*w, *b);
        }
    }
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}
