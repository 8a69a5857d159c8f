//! What the arithmetic units alone would allow.

use moeflux_backend::ActivationPrecision;
use moeflux_backend::cpu::matmul::integer_group_size;
use moeflux_core::quant::MatrixFormat;

use super::Machine;
use crate::engine::Engine;
use crate::engine::meter::Meter;

/// Products of a matrix and rows of activations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Products {
    /// How many there are to add up.
    pub(super) macs: f64,
    /// How the matrix is stored; `None` for what is computed in `f32` anyway.
    pub(super) format: Option<MatrixFormat>,
    /// How the activations are taken.
    pub(super) inputs: ActivationPrecision,
}

impl Products {
    /// Nanoseconds that the arithmetic units need at least.
    pub(super) fn nanoseconds(&self, machine: &Machine) -> f64 {
        let is_integer = self.format.and_then(integer_group_size).is_some();
        let (digits, limit) = match self.inputs {
            ActivationPrecision::Int16 if is_integer => (2.0, machine.integer_gop_s[1]),
            ActivationPrecision::Int8 if is_integer => (1.0, machine.integer_gop_s[1]),
            _ => (1.0, machine.float_gop_s[1]),
        };
        2.0 * self.macs * digits / limit.max(f64::MIN_POSITIVE)
    }
}

/// Tokens a second of a prefill in which the arithmetic units do nothing but
/// multiply with weights, attention not counted. `None` where the engine was
/// not opened with [`EngineOptions::timed`](crate::EngineOptions::timed).
pub fn prefill_limit(engine: &Engine, machine: &Machine) -> Option<f64> {
    let meter: &Meter = engine.meter()?;
    let mut nanoseconds = 0.0;
    for (name, weight) in meter.names.iter().zip(meter.weights()) {
        // Tokens are looked up there, and only the last one of a prompt gets logits.
        if ["embed_tokens", "embeddings", "lm_head"].contains(&name.as_str()) {
            continue;
        }
        let macs = (weight.rows * weight.cols) as f64;
        let products = Products { macs, format: Some(weight.format), inputs: weight.inputs };
        nanoseconds += products.nanoseconds(machine);
    }
    let core = engine.core();
    for layer in core.experts.bank().layers.iter().flatten() {
        for matrix in layer.layout.matrices() {
            let macs = (matrix.rows * matrix.cols * engine.shape().top_k) as f64;
            let format = Some(matrix.format);
            let products = Products { macs, format, inputs: meter.inputs };
            nanoseconds += products.nanoseconds(machine);
        }
    }
    (nanoseconds > 0.0).then(|| 1e9 / nanoseconds)
}
