//! Arguments of routers and experts.

use std::sync::Arc;

use moeflux_core::{Expert, ExpertLayout, GateUp};

use super::views::{Buf, Cols, Vector};
use super::weights::ActivationPrecision;

/// How routers turn logits into experts and weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// Softmax over all experts, then the best `top_k`.
    Softmax {
        /// What the router has for each expert.
        per_expert: Option<PerExpert>,
        /// Where present, only experts of the best groups are eligible. A group's score is its best
        /// choice score (DeepSeek-V2's `group_limited_greedy`).
        groups: Option<ExpertGroups>,
        /// Whether their weights are divided by their sum.
        renormalise: bool,
        /// Multiplies the weights.
        scale: f32,
    },
    /// The best `top_k` logits, then softmax over those (gpt-oss).
    SoftmaxOfChosen,
    /// `sigmoid` of every logit (DeepSeek-V3's `noaux_tc`).
    Sigmoid {
        /// Added to scores for the choice alone, one an expert.
        bias: Option<Vector>,
        /// Where present, only experts of the best groups are eligible. A group's score is the sum of
        /// its two best choice scores.
        groups: Option<ExpertGroups>,
        /// Whether weights are divided by their sum plus `1e-20`.
        renormalise: bool,
        /// Multiplies the weights.
        scale: f32,
    },
    /// `sqrt(softplus(logit))` (DeepSeek-V4).
    SqrtSoftplus {
        /// Added to scores for the choice alone, one an expert.
        bias: Option<Vector>,
        /// Whether weights are divided by their sum plus `1e-20`.
        renormalise: bool,
        /// Multiplies the weights.
        scale: f32,
    },
}

/// Numbers of a router, one an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PerExpert {
    /// Added to scores for the choice alone.
    Bias(Vector),
    /// Multiplies the weights of the chosen, last.
    Factor(Vector),
}

impl PerExpert {
    /// The numbers.
    pub fn vector(self) -> Vector {
        match self {
            PerExpert::Bias(vector) | PerExpert::Factor(vector) => vector,
        }
    }
}

impl Scoring {
    /// Softmax over all experts, whose weights nothing scales.
    pub const fn softmax(renormalise: bool) -> Scoring {
        Scoring::Softmax { per_expert: None, groups: None, renormalise, scale: 1.0 }
    }

    /// The scores themselves: probabilities of all experts, or sigmoids, neither
    /// renormalised nor scaled. The order stays the same, but for ties.
    pub fn plain(self) -> Scoring {
        match self {
            Scoring::Softmax { per_expert, groups, .. } => {
                let per_expert = per_expert.filter(|numbers| matches!(numbers, PerExpert::Bias(_)));
                Scoring::Softmax { per_expert, groups, renormalise: false, scale: 1.0 }
            }
            Scoring::SoftmaxOfChosen => Scoring::softmax(false),
            Scoring::Sigmoid { bias, groups, .. } => {
                Scoring::Sigmoid { bias, groups, renormalise: false, scale: 1.0 }
            }
            Scoring::SqrtSoftplus { bias, .. } => {
                Scoring::SqrtSoftplus { bias, renormalise: false, scale: 1.0 }
            }
        }
    }
}

/// Equal runs of experts, of which some stay eligible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// How many there are.
    pub n: usize,
    /// How many stay eligible.
    pub kept: usize,
}

/// Reads the choice of experts back.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// One logit an expert.
    pub logits: Cols,
    /// How many experts a row gets.
    pub top_k: usize,
    /// How logits become weights.
    pub scoring: Scoring,
}

/// The experts chosen for each row, best first; among equals the lower index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    /// `rows * top_k` experts.
    pub experts: Vec<moeflux_core::ExpertId>,
    /// How much each of them counts.
    pub weights: Vec<f32>,
}

/// A row of the batch that chose an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRow {
    /// The row.
    pub row: u32,
    /// `row * top_k + rank`: where its output goes.
    pub slot: u32,
}

/// One expert and the rows that chose it.
#[derive(Clone, Debug)]
pub struct ExpertCall {
    /// Kept by the backend until the device has read it.
    pub expert: Arc<Expert>,
    /// The rows, ascending.
    pub rows: Vec<ExpertRow>,
}

/// What stands between the products of an MLP with a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GatedActivation {
    /// `silu(gate) * up`.
    Swiglu,
    /// gpt-oss: `g * sigmoid(alpha * g) * (u + 1)` where
    /// `g = min(gate, limit)` and `u = clamp(up, -limit, limit)`.
    ClampedSwiglu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Bound of both inputs.
        limit: f32,
    },
    /// `silu(min(gate, limit)) * clamp(up, -limit, limit)` (DeepSeek-V4, GLM-5.3).
    BoundedSwiglu {
        /// Bound of both inputs.
        limit: f32,
    },
    /// `gelu(gate) * up` with
    /// `gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`.
    GeluTanh,
}

/// What stands between the products of an MLP without a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlainActivation {
    /// `max(up, 0)^2`.
    Relu2,
    /// `up / 2 * (1 + tanh(sqrt(2 / pi) * (up + 0.044715 * up^3)))`.
    GeluTanh,
    /// `up / 2 * (1 + erf(up / sqrt(2)))`.
    GeluErf,
}

/// What experts compute, by the number of their matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertFunction {
    /// Of three: `down(activation(gate(x), up(x)))`.
    Gated {
        /// What stands between the products.
        activation: GatedActivation,
        /// Added to the products, where the family has them.
        biases: Option<ExpertBiases>,
    },
    /// Of two: `down(activation(up(x)))`.
    Plain(PlainActivation),
}

impl ExpertFunction {
    /// SwiGLU without biases.
    pub const SWIGLU: ExpertFunction = ExpertFunction::gated(GatedActivation::Swiglu);

    /// Experts of three matrices, without biases.
    pub const fn gated(activation: GatedActivation) -> ExpertFunction {
        ExpertFunction::Gated { activation, biases: None }
    }

    /// What is added to the products.
    pub fn biases(self) -> Option<ExpertBiases> {
        match self {
            ExpertFunction::Gated { biases, .. } => biases,
            ExpertFunction::Plain(_) => None,
        }
    }

    /// Checks that experts of a layout have the matrices for it.
    ///
    /// # Panics
    /// If they have not.
    pub fn assert_fits(self, layout: &ExpertLayout) {
        let is_plain = matches!(self, ExpertFunction::Plain(_));
        let has_no_gate = matches!(layout.gate_up, GateUp::Up(_));
        assert_eq!(is_plain, has_no_gate, "the matrices of an expert fit its function");
    }
}

/// Added to experts' products, `n_experts` rows each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertBiases {
    /// `(n_experts, intermediate)`.
    pub gate: Vector,
    /// `(n_experts, intermediate)`.
    pub up: Vector,
    /// `(n_experts, hidden)`.
    pub down: Vector,
}

/// `out[slot] = expert(x[row])`, for experts that arrived together.
#[derive(Clone, Copy, Debug)]
pub struct Experts<'a> {
    /// One row a slot.
    pub out: Buf,
    /// The normalised hidden states.
    pub x: Cols,
    /// Rows of the batch, whether they are among those of the experts or not.
    pub rows: usize,
    /// How the products treat their inputs.
    pub inputs: ActivationPrecision,
    /// What the experts compute.
    pub function: ExpertFunction,
    /// The experts.
    pub calls: &'a [ExpertCall],
}

/// `acc += sum over ranks of weights[rank] * slots[rank]`, in rank order,
/// plus the shared expert.
#[derive(Clone, Copy, Debug)]
pub struct Combine<'a> {
    /// The residual stream.
    pub acc: Cols,
    /// What [`Ops::experts`](crate::Ops::experts) wrote.
    pub slots: Buf,
    /// Experts of each row.
    pub top_k: usize,
    /// `rows * top_k`; a rank of weight zero is not read.
    pub weights: &'a [f32],
    /// The shared expert, where there is one.
    pub shared: Option<Shared>,
}

/// The shared expert's contribution.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// Its output.
    pub out: Cols,
    /// Where present, one logit a row whose sigmoid scales the output.
    pub gate: Option<Cols>,
}
