//! One layer of a decoder: a list of halves, each of which reads the residual and joins it.

use moeflux_backend::{Cols, Stage};

use super::builder::{Builder, Residual};
use super::connection::Connection;
use super::dense::Dense;
use super::latent_moe::LatentMoe;
use super::moe::{Moe, MoeInput};
use super::ngram::NgramLayer;
use super::norm::Norm;
use super::parallel_mlp::ParallelMlp;
use crate::forward_error::ForwardError;
use crate::layers::mixer::Mixer;
use crate::layers::predict::Predict;
use crate::load::LoadError;
use crate::step::Step;

/// One layer: what it does to the residual, in order.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) halves: Vec<Half>,
}

/// One thing that a layer does to the residual.
#[derive(Debug)]
pub(crate) enum Half {
    /// Joins rows of tables that the tokens select. It reads several streams by itself.
    Rows(Box<NgramLayer>),
    /// A body between a connection's two ends.
    Body(Box<Connection>, Body),
    /// A dense MLP and experts side by side, which read and join the one stream by themselves.
    Parallel(Box<ParallelMlp>),
    /// Multiplies the residual.
    Scale(f32),
}

/// What stands between reading the residual and joining it.
#[derive(Debug)]
pub(crate) enum Body {
    /// Attention or a recurrence, and what is done to its output.
    Mixer { mixer: Box<dyn Mixer>, after: After },
    /// An MLP that every row gets.
    Dense(Dense),
    /// Routed experts.
    Moe(Box<Moe>),
    /// Routed experts behind a projection, which join the one stream.
    Latent(Box<LatentMoe>),
}

/// What is done to the output of a mixer before it joins the residual. Experts have factors in the
/// weights of their routing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum After {
    /// Nothing.
    Nothing,
    /// A norm.
    Norm(Norm),
    /// A factor.
    Factor(f32),
}

impl After {
    fn run(self, step: &mut Step<'_>, output: Cols) {
        match self {
            After::Nothing => {}
            After::Norm(norm) => norm.forward(step, output, output),
            After::Factor(factor) => {
                let rows = step.rows();
                step.backend.scale(rows, output, factor);
            }
        }
    }
}

impl Body {
    /// A mixer whose output joins the residual as it is.
    pub(crate) fn mixer(mixer: Box<dyn Mixer>) -> Body {
        Body::Mixer { mixer, after: After::Nothing }
    }
}

impl Layer {
    /// A layer of a mixer and an MLP whose norms have their usual names.
    pub(crate) fn load(
        builder: &mut Builder<'_, '_>,
        name: &str,
        mixer: Box<dyn Mixer>,
        mlp: Body,
    ) -> Result<Layer, LoadError> {
        Layer::of(builder, name, Body::mixer(mixer), mlp)
    }

    /// The same of a mixer to whose output something is done.
    pub(crate) fn of(
        builder: &mut Builder<'_, '_>,
        name: &str,
        mixer: Body,
        mlp: Body,
    ) -> Result<Layer, LoadError> {
        let [before_mixer, before_mlp] = builder.connections(name)?;
        let mixer = Half::Body(Box::new(before_mixer), mixer);
        Ok(Layer { halves: vec![mixer, Half::Body(Box::new(before_mlp), mlp)] })
    }

    /// A layer of one half, whose norm is called `norm`.
    pub(crate) fn single(
        builder: &mut Builder<'_, '_>,
        norm: &str,
        body: Body,
    ) -> Result<Layer, LoadError> {
        let connection = Connection::Norm(builder.norm(norm, builder.outline.hidden)?);
        Ok(Layer { halves: vec![Half::Body(Box::new(connection), body)] })
    }

    /// The block of experts, where the layer has one.
    pub(super) fn moe(&self) -> Option<&Moe> {
        self.halves.iter().find_map(Half::moe)
    }

    /// The half with experts, where the layer has one.
    pub(super) fn experts(&self) -> Option<&Half> {
        self.halves.iter().find(|half| half.moe().is_some())
    }

    /// Whether something stands between what a layer before leaves and the router.
    pub(super) fn mixes_before_experts(&self) -> bool {
        self.halves.first().is_some_and(|half| half.moe().is_none())
    }

    /// The number of halves from the first to the last that keeps something of a sequence.
    fn n_caching(&self) -> usize {
        self.halves.iter().rposition(Half::keeps).map_or(0, |last| last + 1)
    }

    /// Runs the halves up to the last that keeps something of a sequence.
    pub(super) fn run_caching(
        &self,
        step: &mut Step<'_>,
        residual: &Residual,
        layer: u16,
    ) -> Result<(), ForwardError> {
        if let Some(moe) = self.moe() {
            step.experts.begin_layer(moe.layer);
        }
        for half in &self.halves[..self.n_caching()] {
            half.run(step, residual, layer, None)?;
        }
        Ok(())
    }

    /// Runs the halves after those. `next` predicts what the next layer's experts will be.
    pub(super) fn run_rest(
        &self,
        step: &mut Step<'_>,
        residual: &Residual,
        layer: u16,
        next: Option<&dyn Predict>,
    ) -> Result<(), ForwardError> {
        for half in &self.halves[self.n_caching()..] {
            half.run(step, residual, layer, next)?;
        }
        Ok(())
    }
}

impl Half {
    fn moe(&self) -> Option<&Moe> {
        match self {
            Half::Body(_, Body::Moe(moe)) => Some(moe),
            Half::Body(_, Body::Latent(latent)) => Some(&latent.moe),
            Half::Parallel(parallel) => Some(&parallel.moe),
            Half::Rows(_) | Half::Body(..) | Half::Scale(_) => None,
        }
    }

    /// Whether it keeps something of a sequence.
    fn keeps(&self) -> bool {
        matches!(self, Half::Rows(_) | Half::Body(_, Body::Mixer { .. }))
    }

    /// What measurements count its beginning as; scaling counts as what stands before it.
    fn stage(&self) -> Option<Stage> {
        match self {
            Half::Rows(_) => Some(Stage::Rest),
            Half::Body(_, Body::Mixer { mixer, .. }) => Some(mixer.stage()),
            Half::Body(_, Body::Dense(_)) => Some(Stage::DenseMlp),
            Half::Body(_, Body::Moe(_) | Body::Latent(_)) | Half::Parallel(_) => {
                Some(Stage::Router)
            }
            Half::Scale(_) => None,
        }
    }

    fn run(
        &self,
        step: &mut Step<'_>,
        residual: &Residual,
        layer: u16,
        next: Option<&dyn Predict>,
    ) -> Result<(), ForwardError> {
        if let Some(stage) = self.stage() {
            step.backend.begin_stage(stage, Some(layer));
        }
        let hidden = residual.hidden;
        match self {
            Half::Rows(ngram) => ngram.forward(step, hidden),
            Half::Body(connection, body) => body.run(step, residual, connection, next),
            Half::Parallel(parallel) => parallel.forward(step, hidden, next),
            Half::Scale(factor) => {
                let rows = step.rows();
                step.backend.scale(rows, hidden, *factor);
                Ok(())
            }
        }
    }
}

impl Body {
    fn run(
        &self,
        step: &mut Step<'_>,
        residual: &Residual,
        connection: &Connection,
        next: Option<&dyn Predict>,
    ) -> Result<(), ForwardError> {
        let Residual { hidden, normed, mixed, streams } = *residual;
        connection.read(step, normed, hidden);
        let out = match self {
            Body::Mixer { mixer, after } => {
                mixer.forward(step, mixed, normed);
                after.run(step, mixed);
                mixed
            }
            Body::Dense(dense) => dense.forward(step, normed),
            Body::Latent(latent) => return latent.forward(step, hidden, normed, next),
            Body::Moe(moe) => match streams {
                // The experts of one stream are added to it.
                None => return moe.forward(step, hidden, MoeInput::of(normed), next),
                Some(streams) => {
                    let rows = step.rows();
                    step.backend.copy(rows, mixed.heads(1), streams.spare().zeros.heads(1));
                    moe.forward(step, mixed, MoeInput::of(normed), next)?;
                    mixed
                }
            },
        };
        connection.join(step, hidden, out);
        Ok(())
    }
}
