//! The matrices of routed experts, and what stands between the products of these and of other MLPs.

use moeflux_backend::{ExpertFunction, GatedActivation, PlainActivation};
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::{ExpertMatrices, FusedOrder};

use crate::load::LoadError;

/// What stands between the products of MLPs, which have a gate or none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Activation {
    Gated(GatedActivation),
    Plain(PlainActivation),
}

/// The matrices of a routed expert, and what stands between their products.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpertShape {
    Two(PlainExpert),
    Three(GatedExpert),
}

/// An expert of two matrices: `down(activation(up(x)))`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainExpert {
    /// What its up and down projections are called.
    pub(crate) parts: [&'static str; 2],
    pub(crate) activation: PlainActivation,
}

/// An expert of three matrices: `down(activation(gate(x), up(x)))`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedExpert {
    /// What its gate, up and down projections are called.
    pub(crate) parts: [&'static str; 3],
    /// How gate and up lie where one tensor holds both.
    pub(crate) fused: FusedOrder,
    pub(crate) activation: GatedActivation,
}

impl GatedExpert {
    /// SwiGLU under the usual names.
    pub(crate) const USUAL: GatedExpert = GatedExpert {
        parts: ["gate_proj", "up_proj", "down_proj"],
        fused: FusedOrder::GateThenUp,
        activation: GatedActivation::Swiglu,
    };

    /// The same in checkpoints that number the parts, as Mixtral's do.
    pub(crate) const NUMBERED: GatedExpert =
        GatedExpert { parts: ["w1", "w3", "w2"], ..GatedExpert::USUAL };
}

impl ExpertShape {
    pub(super) fn matrices(self) -> ExpertMatrices {
        match self {
            ExpertShape::Two(PlainExpert { parts, .. }) => ExpertMatrices::Two { parts },
            ExpertShape::Three(GatedExpert { parts, fused, .. }) => {
                ExpertMatrices::Three { parts, fused }
            }
        }
    }

    pub(super) fn function(self) -> ExpertFunction {
        match self {
            ExpertShape::Two(PlainExpert { activation, .. }) => ExpertFunction::Plain(activation),
            ExpertShape::Three(GatedExpert { activation, .. }) => ExpertFunction::gated(activation),
        }
    }
}

/// SwiGLU whose inputs have a bound, the config's `swiglu_limit`.
pub(crate) fn bounded_swiglu(config: &Config) -> Result<GatedActivation, LoadError> {
    let limit = config.f32("swiglu_limit")?;
    if limit <= 0.0 {
        return Err(config.refuse("swiglu_limit", "be above 0").into());
    }
    Ok(GatedActivation::BoundedSwiglu { limit })
}
