//! The ops over whole rows that the last kernel stands for, to which the next one may be added.

use moeflux_backend::{Cols, Vector};

use crate::device::buffer::Mem;
use crate::kernels::basic::ExpertSum;
use crate::kernels::shared::Quant;

/// What the last kernel stands for.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The number of its kernel.
    pub(crate) nth: u64,
    pub(crate) rows: usize,
    pub(crate) links: Vec<Link>,
}

/// An op over whole rows.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) op: RowOp,
    /// Where what it writes is rounded to, too.
    pub(crate) rounding: Option<Rounding>,
}

/// Where rows are rounded to, and how.
#[derive(Clone, Debug)]
pub(crate) struct Rounding {
    pub(crate) quant: Quant,
    pub(crate) mems: [Mem; 2],
}

/// What an op over whole rows computes.
#[derive(Clone, Debug)]
pub(crate) enum RowOp {
    /// `acc += x`.
    Add { acc: Cols, x: Cols },
    /// `acc += experts`.
    Experts { acc: Cols, outputs: Box<ExpertOutputs> },
    /// `out = x / rms(x) * weight`.
    Norm { out: Cols, x: Cols, weight: Vector, eps: f32 },
    /// `x = x * factor`.
    Scale { x: Cols, factor: f32 },
    /// `out = x`.
    Copy { out: Cols, x: Cols },
}

/// What experts give, as `norm/chain.wgsl` reads it.
#[derive(Clone, Debug)]
pub(crate) struct ExpertOutputs {
    /// Outputs of the chosen, lists with their weights, the output of the shared one, and the logit
    /// that scales it.
    pub(crate) mems: [Mem; 4],
    /// Columns of a row of outputs.
    pub(crate) width: u32,
    /// First word of the weights.
    pub(crate) weights: u32,
    /// The first element of the shared one's output, and the columns of a row.
    pub(crate) shared: [u32; 2],
    /// The same of the gate.
    pub(crate) gate: [u32; 2],
    pub(crate) sum: ExpertSum,
}

impl RowOp {
    /// The weight of a norm.
    pub(crate) fn weight(&self) -> Option<Vector> {
        match *self {
            RowOp::Norm { weight, .. } => Some(weight),
            _ => None,
        }
    }

    /// What it writes.
    pub(crate) fn out(&self) -> Cols {
        match *self {
            RowOp::Add { acc: out, .. }
            | RowOp::Experts { acc: out, .. }
            | RowOp::Norm { out, .. }
            | RowOp::Scale { x: out, .. }
            | RowOp::Copy { out, .. } => out,
        }
    }
}
