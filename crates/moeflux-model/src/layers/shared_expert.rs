//! The expert that every row gets, next to routed ones.

use moeflux_backend::{Cols, Mlp, Shared, Weight};
use moeflux_core::checkpoint::Config;

use super::builder::Builder;
use super::dense::MlpScratch;
use crate::load::LoadError;
use crate::step::Step;

/// An expert that every row gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedShape {
    /// What it is called inside a block.
    pub(crate) name: &'static str,
    pub(crate) intermediate: usize,
    /// What the projection is called whose sigmoid scales the output.
    pub(crate) gate: Option<&'static str>,
}

/// Activations of shared experts; one set serves all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedScratch {
    mlp: MlpScratch,
    out: Cols,
    /// One logit a row.
    pub(super) scale: Option<Cols>,
}

/// One expert.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedExpert {
    pub(super) mlp: Mlp,
    /// Where present, gives one logit whose sigmoid scales the output.
    pub(super) gate: Option<Weight>,
    pub(super) scratch: SharedScratch,
}

impl SharedShape {
    /// DeepSeek's: several in one, which no gate scales; `n_shared` is the config's key.
    pub(crate) fn read(
        config: &Config,
        n_shared: &str,
        name: &'static str,
        intermediate: usize,
    ) -> Result<Option<SharedShape>, LoadError> {
        let n = config.usize_in(n_shared, 0..=1024)?;
        let shape = SharedShape { name, intermediate: n * intermediate, gate: None };
        Ok((n > 0).then_some(shape))
    }
}

impl SharedScratch {
    /// `scale` has a logit a row, where a gate scales the output.
    pub(super) fn alloc(
        shape: SharedShape,
        scale: Cols,
        builder: &mut Builder<'_, '_>,
    ) -> SharedScratch {
        let hidden = builder.outline.hidden;
        SharedScratch {
            mlp: MlpScratch::alloc(shape.intermediate, builder),
            out: builder.build.cols(hidden),
            scale: shape.gate.map(|_| scale),
        }
    }
}

impl SharedExpert {
    /// The expert of a block.
    pub(super) fn load(
        shape: SharedShape,
        scratch: SharedScratch,
        block: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<SharedExpert, LoadError> {
        let mlp = scratch.mlp.load(&format!("{block}.{}", shape.name), builder)?;
        let hidden = builder.outline.hidden;
        let gate = |name| builder.gate(&format!("{block}.{name}"), 1, hidden);
        Ok(SharedExpert { mlp, gate: shape.gate.map(gate).transpose()?, scratch })
    }

    /// What stands behind the products with the input.
    pub(super) fn forward(&self, step: &mut Step<'_>) -> Shared {
        let rows = step.rows();
        self.mlp.finish(step.backend, rows, self.scratch.out);
        self.contribution()
    }

    /// What a device needs to run it with routed ones.
    pub(super) fn beside_experts(&self) -> moeflux_backend::SharedExpert {
        moeflux_backend::SharedExpert { mlp: self.mlp, shared: self.contribution() }
    }

    fn contribution(&self) -> Shared {
        let SharedScratch { out, scale, .. } = self.scratch;
        Shared { out, gate: scale }
    }
}
