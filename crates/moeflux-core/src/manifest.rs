//! The weights of a model, as its family declares them. Loading, packing, planning and synthesising
//! all work from these declarations.

use crate::{ExpertParts, LayerIdx};

/// The use of a matrix. It decides how the inputs of the matrix are rounded, and in how many bits
/// the matrix is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The embedding: a token selects a row.
    Embedding,
    /// A large projection: its inputs may be rounded to eight bits.
    Projection,
    /// A router or a gate: its inputs stay `f32`.
    Gate,
    /// The head: from hidden states to logits.
    Head,
}

/// The declaration of a resident matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixDecl {
    /// Canonical module name, such as `layers.0.self_attn.q_proj`. The names of its tensors add
    /// `.weight` and, if quantised, `.scales` and `.biases`.
    pub name: String,
    /// Rows: outputs.
    pub rows: usize,
    /// Columns: inputs.
    pub cols: usize,
    /// The use of the matrix.
    pub role: Role,
}

/// The declaration of a resident tensor that is small and never quantised: norms, convolutions,
/// constants of heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorDecl {
    /// Canonical tensor name, such as `layers.0.input_layernorm.weight`.
    pub name: String,
    /// The shapes that the tensor may have; all have the same number of elements.
    pub shapes: Vec<Vec<usize>>,
}

/// The order of the rows of gate and up in a tensor that holds both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedOrder {
    /// All of gate, then all of up; outputs before inputs.
    GateThenUp,
    /// All of gate, then all of up; inputs before outputs as Qwen3-VL is published, or outputs
    /// before inputs as transformers saves it. The shapes tell which.
    GateThenUpByShape,
    /// Rows of gate and up in turn (gpt-oss). Quantised tensors have outputs before inputs, others
    /// inputs before outputs.
    Alternating,
}

/// The matrices of an expert, and what checkpoints that have separate tensors for each expert call
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertMatrices {
    /// Without a gate.
    Two {
        /// Names of the up and down projections.
        parts: [&'static str; 2],
    },
    /// With a gate.
    Three {
        /// Names of the gate, up and down projections.
        parts: [&'static str; 3],
        /// The order of gate and up in fused tensors.
        fused: FusedOrder,
    },
}

impl ExpertMatrices {
    /// Names in checkpoints that have separate tensors for each expert.
    pub fn names(self) -> ExpertParts<&'static str> {
        match self {
            ExpertMatrices::Two { parts: [up, down] } => ExpertParts { gate: None, up, down },
            ExpertMatrices::Three { parts, .. } => ExpertParts::three(parts),
        }
    }

    /// Names in stacked tensors, whatever the family calls the parts of single experts.
    pub fn stacked_names(self) -> ExpertParts<&'static str> {
        let gate = matches!(self, ExpertMatrices::Three { .. }).then_some("gate_proj");
        ExpertParts { gate, up: "up_proj", down: "down_proj" }
    }
}

/// The declaration of the routed experts of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertsDecl {
    /// The layer.
    pub layer: LayerIdx,
    /// Canonical module name of the block, such as `layers.0.mlp`.
    pub prefix: String,
    /// Their matrices.
    pub matrices: ExpertMatrices,
    /// Number of experts.
    pub n_experts: usize,
    /// Columns of an expert's input: the model's `hidden_size`, or fewer where the experts are behind a
    /// projection.
    pub hidden: usize,
    /// The model's `moe_intermediate_size`.
    pub intermediate: usize,
}

/// The declaration of a table whose rows are read from the drive one by one, because it is too
/// large for memory and a token needs a few of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDecl {
    /// Canonical module name. Its tensor adds `.weight`, its shards add `.shard_0.weight`,
    /// `.shard_1.weight` and so on, whose rows follow each other.
    pub name: String,
    /// Rows of all shards together.
    pub rows: usize,
    /// Floats of a row.
    pub cols: usize,
}

/// The declaration of a resident table of whole numbers, such as the experts of each token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndicesDecl {
    /// Canonical tensor name.
    pub name: String,
    /// Rows.
    pub rows: usize,
    /// Numbers of a row.
    pub cols: usize,
    /// What every number is below.
    pub below: u32,
}

/// The declaration of integers that follow from the config, which checkpoints may hold too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstantsDecl {
    /// Canonical tensor name.
    pub name: String,
    /// What they must be.
    pub values: Vec<u64>,
}

/// All weights of a model, in the order in which it uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Resident matrices.
    pub matrices: Vec<MatrixDecl>,
    /// Resident vectors.
    pub vectors: Vec<VectorDecl>,
    /// Routed experts, layer by layer.
    pub experts: Vec<ExpertsDecl>,
    /// Tables whose rows are read one by one.
    pub tables: Vec<TableDecl>,
    /// Resident tables of whole numbers.
    pub indices: Vec<IndicesDecl>,
    /// Integers that are only checked.
    pub constants: Vec<ConstantsDecl>,
}
