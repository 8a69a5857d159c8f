//! What a model's files must hold, as its family declares it. Loading,
//! packing, planning and synthesising all work from these declarations.

use crate::LayerIdx;

/// What a matrix is for; it decides how its inputs are rounded and how many
/// bits packing leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Rows are looked up by token.
    Embedding,
    /// A large projection: its inputs may be rounded to eight bits.
    Projection,
    /// A router or a gate: its inputs stay `f32`.
    Gate,
    /// Hidden state to logits.
    Head,
}

/// A resident matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixDecl {
    /// Canonical module name, such as `layers.0.self_attn.q_proj`; the tensor
    /// adds `.weight`, and where quantised `.scales` and `.biases`.
    pub name: String,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// What it is for.
    pub role: Role,
}

/// A resident tensor that is small and never quantised: norms, convolutions,
/// per-head constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorDecl {
    /// Canonical tensor name, such as `layers.0.input_layernorm.weight`.
    pub name: String,
    /// The shapes that it may have; all of one element count.
    pub shapes: Vec<Vec<usize>>,
}

/// How the rows of gate and up lie where one tensor holds both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedOrder {
    /// All of gate, then all of up; outputs before inputs.
    GateThenUp,
    /// A row of gate, its row of up, and so on; quantised tensors outputs
    /// before inputs, others inputs before outputs (gpt-oss).
    Alternating,
}

/// The routed experts of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertsDecl {
    /// The layer.
    pub layer: LayerIdx,
    /// Canonical module name of the block, such as `layers.0.mlp`.
    pub prefix: String,
    /// Names of the three projections where each expert has tensors of its
    /// own: gate, up, down. Stacked ones are `gate_proj`, `up_proj` and
    /// `down_proj` whatever stands here.
    pub parts: [&'static str; 3],
    /// How gate and up lie in fused tensors.
    pub fused: FusedOrder,
    /// How many experts.
    pub n_experts: usize,
    /// `hidden_size`.
    pub hidden: usize,
    /// `moe_intermediate_size`.
    pub intermediate: usize,
}

/// Everything that a model is made of, in the order in which it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Resident matrices.
    pub matrices: Vec<MatrixDecl>,
    /// Resident vectors.
    pub vectors: Vec<VectorDecl>,
    /// Routed experts, layer by layer.
    pub experts: Vec<ExpertsDecl>,
}
