//! Routed experts behind a projection to fewer columns, next to a shared expert that reads all of
//! them (Nemotron 3 Super).

use moeflux_backend::{Cols, Combine, Projection, Scoring, Stage, Weight};
use moeflux_core::LayerIdx;

use super::dense::MlpScratch;
use super::dense_branch::DenseBranch;
use super::moe::{Moe, MoeBlocks, MoeInput, MoeShape};
use super::shared_expert::SharedShape;
use crate::forward_error::ForwardError;
use crate::layers::builder::Builder;
use crate::layers::predict::Predict;
use crate::load::LoadError;
use crate::step::Step;

/// Loads such blocks, which share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentBlocks {
    moe: MoeBlocks,
    shared: Option<(SharedShape, MlpScratch)>,
    scratch: LatentScratch,
}

/// Activations of such blocks; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct LatentScratch {
    /// What the experts read.
    x: Cols,
    /// The sum of what they give.
    sum: Cols,
    /// The sum of what some of them have given so far.
    sum_so_far: Cols,
    /// Never written.
    zeros: Cols,
    /// The output of the shared expert.
    shared: Cols,
}

/// One block.
#[derive(Debug)]
pub(crate) struct LatentMoe {
    pub(crate) moe: Box<Moe>,
    /// From the stream to the experts.
    into: Weight,
    /// From the experts to the stream.
    back: Weight,
    scratch: LatentScratch,
    /// Where the experts' sum is, projected back.
    out: Cols,
}

/// What checkpoints call the projections around experts, inside a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentNames {
    pub(crate) into: &'static str,
    pub(crate) back: &'static str,
}

impl LatentBlocks {
    /// Allocates what the blocks of a model share; `shape` has experts of `latent` columns.
    pub(crate) fn new(
        shape: MoeShape,
        latent: usize,
        builder: &mut Builder<'_, '_>,
    ) -> LatentBlocks {
        // The shared expert reads other columns than the routed ones.
        let moe = MoeBlocks::new(MoeShape { shared: None, latent: Some(latent), ..shape }, builder);
        let shared =
            shape.shared.map(|shared| (shared, MlpScratch::alloc(shared.intermediate, builder)));
        let hidden = builder.outline.hidden;
        let mut cols = |width| builder.build.cols(width);
        let scratch = LatentScratch {
            x: cols(latent),
            sum: cols(latent),
            sum_so_far: cols(latent),
            zeros: cols(latent),
            shared: cols(hidden),
        };
        LatentBlocks { moe, shared, scratch }
    }

    /// The block called `name`.
    pub(crate) fn load(
        &self,
        layer: LayerIdx,
        name: &str,
        names: LatentNames,
        scoring: Scoring,
        builder: &mut Builder<'_, '_>,
    ) -> Result<LatentMoe, LoadError> {
        let (hidden, latent) = (builder.outline.hidden, self.scratch.x.len);
        let mut moe = self.moe.load(layer, name, scoring, builder)?;
        if let Some((shape, scratch)) = self.shared {
            moe.dense_branch = Some(DenseBranch {
                mlp: scratch.load(&format!("{name}.{}", shape.name), builder)?,
                norm: None,
                x: builder.residual.normed,
                out: self.scratch.shared,
                stage: Stage::SharedExpert,
            });
        }
        Ok(LatentMoe {
            moe,
            into: builder.projection(&format!("{name}.{}", names.into), latent, hidden)?,
            back: builder.projection(&format!("{name}.{}", names.back), hidden, latent)?,
            scratch: self.scratch,
            out: builder.residual.mixed,
        })
    }
}

impl LatentMoe {
    /// `hidden += moe(x)`, with the shared expert.
    pub(crate) fn forward(
        &self,
        step: &mut Step<'_>,
        hidden: Cols,
        x: Cols,
        next: Option<&dyn Predict>,
    ) -> Result<(), ForwardError> {
        let rows = step.rows();
        let LatentScratch { x: latent, sum, zeros, .. } = self.scratch;
        step.backend.project(rows, x, &[Projection { weight: self.into, out: latent }]);
        step.backend.copy(rows, sum.heads(1), zeros.heads(1));
        self.moe.forward(step, sum, MoeInput { router: x, experts: latent }, next)?;
        self.join(step, self.out, sum);
        step.backend.add(rows, hidden, self.out);
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
        let LatentScratch { sum_so_far, zeros, .. } = self.scratch;
        step.backend.copy(rows, sum_so_far.heads(1), zeros.heads(1));
        step.backend.combine(rows, Combine { acc: sum_so_far, ..so_far });
        self.join(step, stream, sum_so_far);
        step.backend.add(rows, stream, hidden);
    }

    /// `out`: what the sum of the experts and the shared expert add to the stream.
    fn join(&self, step: &mut Step<'_>, out: Cols, sum: Cols) {
        let rows = step.rows();
        step.backend.project(rows, sum, &[Projection { weight: self.back, out }]);
        if self.moe.dense_branch.is_some() {
            step.backend.add(rows, out, self.scratch.shared);
        }
    }
}
