//! Constants that kernels of several ops have in common.

use moeflux_backend::{ExpertFunction, GatedActivation, PlainActivation};

use crate::kernels::kernel::constants;

// Values of `FORMAT`, as `include/common.wgsl` has them.
pub(crate) const FORMAT_AFFINE: u32 = 0;
pub(crate) const FORMAT_F32: u32 = 1;
pub(crate) const FORMAT_F16: u32 = 2;
pub(crate) const FORMAT_BF16: u32 = 3;
pub(crate) const FORMAT_E2M1: u32 = 4;
pub(crate) const FORMAT_E4M3: u32 = 5;
pub(crate) const FORMAT_E4M3_BLOCKS: u32 = 6;
pub(crate) const FORMAT_GGML: u32 = 7;
pub(crate) const FORMAT_NF4: u32 = 8;

// What is added to `FLOATS`, as `include/common.wgsl` has it.
pub(crate) const FLOATS_APART: u32 = 3;
pub(crate) const FLOATS_SYMMETRIC: u32 = 6;

// Bits of `BITS` of small floats, as `include/common.wgsl` has them.
pub(crate) const SMALL_E4M3: u32 = 1;
pub(crate) const SMALL_SIXTEEN: u32 = 2;
pub(crate) const SMALL_GLOBAL: u32 = 4;
pub(crate) const SMALL_APART: u32 = 8;

// Values of `ORDER`, as `include/quantize.wgsl` has them.
pub(crate) const ORDER_ASCENDING: u32 = 0;
pub(crate) const ORDER_EVEN_ODD: u32 = 1;
pub(crate) const ORDER_STRIDED: u32 = 2;
pub(crate) const ORDER_HALVES: u32 = 3;

constants! {
    /// How weights are stored, see `include/weights.wgsl`.
    WeightFormat {
        format: u32 = FORMAT,
        bits: u32 = BITS,
        floats: u32 = FLOATS,
    }
}

impl WeightFormat {
    /// `FORMAT`, `BITS` and `FLOATS`.
    pub(crate) fn words(self) -> [u32; 3] {
        [self.format, self.bits, self.floats]
    }
}

constants! {
    /// How activations are quantised, see `include/quantize.wgsl`; all zero where they are not.
    Quant {
        /// Columns that share a scale.
        group: u32 = GROUP,
        /// Limbs of 8 bits of an integer.
        limbs: u32 = DIGITS,
        order: u32 = ORDER,
        float: u32 = FLOAT,
    }
}

constants! {
    /// The activation between an expert's projections, see `include/activation.wgsl`.
    Activation {
        /// Its number in `include/common.wgsl`.
        kind: u32 = ACTIVATION,
        biased: bool = BIASED,
        /// Gate and up rows alternate in one matrix.
        alternates: bool = ALTERNATES,
    }
}

/// An activation as kernels know it: its number in `include/common.wgsl`, and its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationNumbers {
    pub(crate) kind: u32,
    pub(crate) alpha: f32,
    pub(crate) limit: f32,
}

impl From<GatedActivation> for ActivationNumbers {
    fn from(activation: GatedActivation) -> ActivationNumbers {
        use GatedActivation::{BoundedSwiglu, ClampedSwiglu, GeluTanh, Swiglu};
        let (kind, alpha, limit) = match activation {
            Swiglu => (0, 0.0, 0.0),
            ClampedSwiglu { alpha, limit } => (1, alpha, limit),
            GeluTanh => (2, 0.0, 0.0),
            BoundedSwiglu { limit } => (3, 0.0, limit),
        };
        ActivationNumbers { kind, alpha, limit }
    }
}

impl From<PlainActivation> for ActivationNumbers {
    fn from(activation: PlainActivation) -> ActivationNumbers {
        let kind = match activation {
            PlainActivation::Relu2 => 4,
            PlainActivation::GeluTanh => 5,
            PlainActivation::GeluErf => 6,
        };
        ActivationNumbers { kind, alpha: 0.0, limit: 0.0 }
    }
}

impl From<ExpertFunction> for ActivationNumbers {
    fn from(function: ExpertFunction) -> ActivationNumbers {
        match function {
            ExpertFunction::Gated { activation, .. } => activation.into(),
            ExpertFunction::Plain(activation) => activation.into(),
        }
    }
}
