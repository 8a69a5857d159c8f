//! Gated multilayer perceptrons: `down(activation(gate(x), up(x)))`.

use moeflux_backend::{Activation, Cols, Projection, Shared, SharedExpert, Weight};

use crate::layers::builder::Builder;
use crate::load::LoadError;
use crate::step::Step;

/// The three matrices, and activations that all MLPs of a width share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedMlp {
    gate_proj: Weight,
    up_proj: Weight,
    down_proj: Weight,
    activation: Activation,
    scratch: GatedScratch,
}

/// Activations between the matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedScratch {
    gate: Cols,
    up: Cols,
    activated: Cols,
}

impl GatedScratch {
    pub(crate) fn alloc(intermediate: usize, builder: &mut Builder<'_, '_>) -> GatedScratch {
        let [gate, up] = builder.build.cols_together([intermediate, intermediate]);
        GatedScratch { gate, up, activated: builder.build.cols(intermediate) }
    }

    /// The MLP called `name`.
    pub(crate) fn load(
        self,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<GatedMlp, LoadError> {
        let (hidden, intermediate) = (builder.outline.hidden, self.gate.len);
        Ok(GatedMlp {
            gate_proj: builder.projection(&format!("{name}.gate_proj"), intermediate, hidden)?,
            up_proj: builder.projection(&format!("{name}.up_proj"), intermediate, hidden)?,
            down_proj: builder.projection(&format!("{name}.down_proj"), hidden, intermediate)?,
            activation: builder.outline.activation,
            scratch: self,
        })
    }
}

impl GatedMlp {
    /// What depends on nothing but the input.
    pub(crate) fn first_projections(&self) -> [Projection; 2] {
        let GatedScratch { gate, up, .. } = self.scratch;
        [
            Projection { weight: self.gate_proj, out: gate },
            Projection { weight: self.up_proj, out: up },
        ]
    }

    /// Gate, up and down.
    pub(crate) fn weights(&self) -> [Weight; 3] {
        [self.gate_proj, self.up_proj, self.down_proj]
    }

    /// The whole MLP as the shared expert of an MoE layer.
    pub(crate) fn beside_experts(&self, shared: Shared) -> SharedExpert {
        let GatedMlp { gate_proj, up_proj, down_proj, activation, scratch } = *self;
        let GatedScratch { gate, up, activated } = scratch;
        SharedExpert { gate_proj, up_proj, down_proj, activation, gate, up, activated, shared }
    }

    /// The rest, once [`GatedMlp::first_projections`] are done.
    pub(crate) fn finish(&self, step: &mut Step<'_>, out: Cols) {
        let rows = step.rows();
        let GatedScratch { gate, up, activated } = self.scratch;
        step.backend.activate(rows, self.activation, activated, gate, up);
        step.backend.project(rows, activated, &[Projection { weight: self.down_proj, out }]);
    }
}

/// The MLP of a layer without routed experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    mlp: GatedMlp,
    /// What it gives, before it joins the residual stream.
    out: Cols,
}

impl Dense {
    /// The MLP called `name`.
    pub(crate) fn load(
        scratch: GatedScratch,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Dense, LoadError> {
        Ok(Dense { mlp: scratch.load(name, builder)?, out: builder.residual.mixed })
    }

    /// `mlp(x)`, and where it is.
    pub(crate) fn forward(&self, step: &mut Step<'_>, x: Cols) -> Cols {
        let rows = step.rows();
        step.backend.project(rows, x, &self.mlp.first_projections());
        self.mlp.finish(step, self.out);
        self.out
    }
}
