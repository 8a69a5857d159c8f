//! A dense MLP and experts side by side, each with norms of its own before and after it, whose sum
//! is normalised once more before it joins the residual stream (Gemma 4).

use moeflux_backend::{Cols, Combine, Stage};

use super::dense::MlpScratch;
use super::dense_branch::DenseBranch;
use super::moe::{Moe, MoeBlocks, MoeInput};
use super::norm::Norm;
use crate::forward_error::ForwardError;
use crate::layers::builder::Builder;
use crate::layers::predict::Predict;
use crate::load::LoadError;
use crate::step::Step;

/// Loads such MLPs that share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParallelBlocks {
    moe: MoeBlocks,
    dense: MlpScratch,
    scratch: ParallelScratch,
}

/// Activations of such MLPs; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct ParallelScratch {
    /// The router's input, then the output of the dense MLP.
    dense_out: Cols,
    experts_in: Cols,
    /// The sum of the experts' outputs, then of all.
    sum: Cols,
    /// Never written.
    zeros: Cols,
}

/// The MLP of a layer.
#[derive(Debug)]
pub(crate) struct ParallelMlp {
    pub(crate) moe: Box<Moe>,
    /// Normalises the stream for the dense MLP.
    dense_norm: Norm,
    /// What the dense MLP reads.
    dense_in: Cols,
    /// Normalises the stream for the router.
    pub(crate) router_norm: Norm,
    /// Normalises the stream for the experts.
    expert_norm: Norm,
    /// Normalises the sum of the experts.
    experts_norm: Norm,
    /// Normalises the sum of both parts.
    sum_norm: Norm,
    scratch: ParallelScratch,
}

/// The norms of the stream for the parts that need nothing of each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamNorms {
    pub(crate) dense: Norm,
    pub(crate) router: Norm,
}

/// Names of the other norms of a layer.
pub(crate) struct ParallelNorms<'a> {
    pub(crate) before_experts: &'a str,
    pub(crate) after_dense: &'a str,
    pub(crate) after_experts: &'a str,
    pub(crate) after_both: &'a str,
}

impl ParallelBlocks {
    /// Allocates what the blocks of a model share; the dense MLPs have `intermediate` columns.
    pub(crate) fn new(
        moe: MoeBlocks,
        intermediate: usize,
        builder: &mut Builder<'_, '_>,
    ) -> ParallelBlocks {
        let dense = MlpScratch::alloc(intermediate, builder);
        let hidden = builder.outline.hidden;
        let mut cols = || builder.build.cols(hidden);
        let scratch =
            ParallelScratch { dense_out: cols(), experts_in: cols(), sum: cols(), zeros: cols() };
        ParallelBlocks { moe, dense, scratch }
    }

    /// The block whose experts are `load`ed, with the dense MLP called `mlp`.
    pub(crate) fn load(
        &self,
        mlp: &str,
        norms: &ParallelNorms<'_>,
        inputs: StreamNorms,
        load: impl FnOnce(&MoeBlocks, &mut Builder<'_, '_>) -> Result<Box<Moe>, LoadError>,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Box<ParallelMlp>, LoadError> {
        let (hidden, scratch) = (builder.outline.hidden, self.scratch);
        let dense_branch = DenseBranch {
            mlp: self.dense.load(mlp, builder)?,
            norm: Some(builder.norm(norms.after_dense, hidden)?),
            x: builder.residual.normed,
            out: scratch.dense_out,
            stage: Stage::DenseMlp,
        };
        let mut moe = load(&self.moe, builder)?;
        moe.dense_branch = Some(dense_branch);
        Ok(Box::new(ParallelMlp {
            moe,
            dense_norm: inputs.dense,
            dense_in: builder.residual.normed,
            router_norm: inputs.router,
            expert_norm: builder.norm(norms.before_experts, hidden)?,
            experts_norm: builder.norm(norms.after_experts, hidden)?,
            sum_norm: builder.norm(norms.after_both, hidden)?,
            scratch,
        }))
    }
}

impl ParallelMlp {
    /// Adds both parts to `hidden`.
    pub(crate) fn forward(
        &self,
        step: &mut Step<'_>,
        hidden: Cols,
        next: Option<&dyn Predict>,
    ) -> Result<(), ForwardError> {
        let ParallelScratch { dense_out, experts_in, sum, zeros } = self.scratch;
        let rows = step.rows();
        self.dense_norm.forward(step, self.dense_in, hidden);
        // The router has read its input before the dense MLP writes its output.
        let input = MoeInput { router: dense_out, experts: experts_in };
        self.router_norm.forward(step, input.router, hidden);
        self.expert_norm.forward(step, input.experts, hidden);
        step.backend.copy(rows, sum.heads(1), zeros.heads(1));
        self.moe.forward(step, sum, input, next)?;
        self.join(step, sum);
        step.backend.add(rows, hidden, sum);
        Ok(())
    }

    /// What the stream would be if the experts that are still to come added nothing.
    pub(crate) fn preview(
        &self,
        step: &mut Step<'_>,
        stream: Cols,
        hidden: Cols,
        so_far: Combine<'_>,
    ) {
        let rows = step.rows();
        step.backend.copy(rows, stream.heads(1), self.scratch.zeros.heads(1));
        step.backend.combine(rows, Combine { acc: stream, ..so_far });
        self.join(step, stream);
        step.backend.add(rows, stream, hidden);
    }

    /// Turns the sum of the experts into what both parts add to the stream.
    fn join(&self, step: &mut Step<'_>, sum: Cols) {
        let rows = step.rows();
        self.experts_norm.forward(step, sum, sum);
        step.backend.add(rows, sum, self.scratch.dense_out);
        self.sum_norm.forward(step, sum, sum);
    }
}
