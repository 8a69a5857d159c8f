//! A dense MLP next to experts, which needs nothing of them.

use moeflux_backend::{Cols, Mlp, Stage};

use super::norm::Norm;
use crate::step::Step;

/// A dense MLP that runs while a block's experts are on their way: `out = mlp(x)`, normalised where
/// there is a norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DenseBranch {
    pub(super) mlp: Mlp,
    pub(super) norm: Option<Norm>,
    pub(super) x: Cols,
    pub(super) out: Cols,
    /// What measurements count it as.
    pub(super) stage: Stage,
}

impl DenseBranch {
    /// Runs the MLP, and its norm.
    pub(crate) fn run(&self, step: &mut Step<'_>) {
        self.multiply(step);
        self.normalise(step);
    }

    /// Runs the MLP alone.
    pub(crate) fn multiply(&self, step: &mut Step<'_>) {
        let rows = step.rows();
        self.mlp.run_parts(step.backend, rows, self.x, self.out);
    }

    /// Runs the norm, where there is one.
    pub(crate) fn normalise(&self, step: &mut Step<'_>) {
        if let Some(norm) = self.norm {
            norm.forward(step, self.out, self.out);
        }
    }
}
