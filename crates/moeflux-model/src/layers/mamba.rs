//! Mamba-2: a short convolution, a state-space recurrence and a norm of what its gate lets through
//! (Dao and Gu, 2024; as in transformers' `nemotron_h`).

use moeflux_backend::{
    Cache, CacheSpec, CausalConv, Cols, GateFunction, GatedRmsNorm, Heads, Projection, Stage,
    StateShape, StateSpace, Vector, Weight,
};
use moeflux_core::checkpoint::Config;

use super::attention::columns;
use super::norm::Norm;
use super::recurrent::{a_log, by_taps, conv_name, conv_shapes};
use crate::layers::builder::Builder;
use crate::layers::mixer::Mixer;
use crate::load::LoadError;
use crate::step::Step;

/// What the Mamba layers of a model have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MambaShape {
    pub(crate) n_heads: usize,
    pub(crate) head_dim: usize,
    /// Groups of heads that states are entered and read alike for, and that are normalised together.
    pub(crate) n_groups: usize,
    pub(crate) state_size: usize,
    /// Taps of the convolution, the current input included.
    pub(crate) kernel: usize,
    /// Whether the convolution has biases.
    pub(crate) has_conv_bias: bool,
}

impl MambaShape {
    pub(crate) fn read(config: &Config) -> Result<MambaShape, LoadError> {
        let shape = MambaShape {
            n_heads: config.usize_in("mamba_num_heads", 1..=4096)?,
            head_dim: config.usize_in("mamba_head_dim", 1..=1 << 14)?,
            n_groups: config.usize("n_groups")?,
            // Kernels hold rows of all elements of a state at once.
            state_size: config.usize_in("ssm_state_size", 1..=512)?,
            kernel: config.usize_in("conv_kernel", 2..=64)?,
            has_conv_bias: config.bool("use_conv_bias")?,
        };
        if !shape.n_heads.is_multiple_of(shape.n_groups) {
            return Err(config.refuse("n_groups", "divide mamba_num_heads").into());
        }
        Ok(shape)
    }

    /// Columns of all heads.
    fn inner(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns by which all groups enter their states, or read them.
    fn group_cols(&self) -> usize {
        self.n_groups * self.state_size
    }

    /// The channels of the convolution.
    fn channels(&self) -> usize {
        self.inner() + 2 * self.group_cols()
    }
}

/// Loads Mamba layers that share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MambaBlocks {
    shape: MambaShape,
    scratch: MambaScratch,
}

/// Activations of Mamba layers; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct MambaScratch {
    /// What the input projection gives: the three after this.
    all: Cols,
    /// Gates of the output.
    gate: Cols,
    /// What is convolved.
    before: Cols,
    /// The lengths of steps, before their activation, `n_heads`.
    dt: Cols,
    /// `(n_heads, head_dim)` of what was convolved.
    x: Heads,
    /// `(n_groups, state_size)` of it: how inputs enter states.
    b: Heads,
    /// `(n_groups, state_size)` of it: how states are read.
    c: Heads,
    /// All of it.
    convolved: Cols,
    /// `(n_heads, head_dim)`.
    mixed: Cols,
}

/// One Mamba layer.
#[derive(Debug)]
pub(crate) struct MambaLayer {
    in_proj: Weight,
    out_proj: Weight,
    conv: Vector,
    conv_bias: Option<Vector>,
    conv_cache: Cache,
    /// `(3, n_heads)`: biases of steps, logarithms of rates of decay, what is added of inputs.
    of_heads: Vector,
    state: Cache,
    norm: Norm,
    n_groups: usize,
    n_heads: usize,
    scratch: MambaScratch,
}

impl MambaBlocks {
    /// Allocates what the Mamba layers of a model share.
    pub(crate) fn new(shape: MambaShape, builder: &mut Builder<'_, '_>) -> MambaBlocks {
        let (inner, channels, group_cols) = (shape.inner(), shape.channels(), shape.group_cols());
        let all = builder.build.cols(inner + channels + shape.n_heads);
        let convolved = builder.build.cols(channels);
        let scratch = MambaScratch {
            all,
            gate: all.slice(0, inner),
            before: all.slice(inner, channels),
            dt: all.slice(inner + channels, shape.n_heads),
            x: convolved.slice(0, inner).heads(shape.n_heads),
            b: convolved.slice(inner, group_cols).heads(shape.n_groups),
            c: convolved.slice(inner + group_cols, group_cols).heads(shape.n_groups),
            convolved,
            mixed: builder.build.cols(inner),
        };
        MambaBlocks { shape, scratch }
    }

    /// The layer called `name`.
    pub(crate) fn load(
        &self,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<MambaLayer, LoadError> {
        let (shape, scratch, hidden) = (self.shape, self.scratch, builder.outline.hidden);
        let MambaShape { n_heads, head_dim, n_groups, state_size, kernel, has_conv_bias } = shape;
        let channels = shape.channels();
        let weights = &mut *builder.build.weights;
        let conv = weights.vector(&conv_name(name), &conv_shapes(channels, kernel))?;
        let conv = weights.backend().load_vector(&by_taps(&conv.values, channels, kernel));
        let conv_bias = format!("{name}.conv1d.bias");
        let conv_bias = has_conv_bias.then(|| builder.vector(&conv_bias, channels)).transpose()?;
        let history = StateShape::Rows { n: kernel - 1, cols: channels };
        let state = StateShape::Matrices { n: n_heads, rows: state_size, cols: head_dim };
        Ok(MambaLayer {
            in_proj: builder.projection(&format!("{name}.in_proj"), scratch.all.len, hidden)?,
            out_proj: builder.projection(&format!("{name}.out_proj"), hidden, shape.inner())?,
            conv,
            conv_bias,
            conv_cache: builder.cache(CacheSpec::State(history)),
            of_heads: of_heads(name, n_heads, builder)?,
            state: builder.cache(CacheSpec::State(state)),
            norm: self.norm(name, builder)?,
            n_groups,
            n_heads,
            scratch,
        })
    }

    /// The norm of groups, each with factors of its own. GGUF files part these group by group.
    fn norm(&self, name: &str, builder: &mut Builder<'_, '_>) -> Result<Norm, LoadError> {
        let (inner, n_groups) = (self.shape.inner(), self.shape.n_groups);
        let shapes = [vec![inner], vec![n_groups, inner / n_groups]];
        let eps = builder.outline.eps;
        let weights = &mut *builder.build.weights;
        let values = weights.vector(&format!("{name}.norm.weight"), &shapes)?.values;
        Ok(Norm::of_values(weights, &values, eps))
    }
}

/// What each head has, one after the other. GGUF files hold some of it as matrices of one column.
fn of_heads(name: &str, n: usize, builder: &mut Builder<'_, '_>) -> Result<Vector, LoadError> {
    let logarithms = a_log(name, n, builder)?;
    let weights = &mut *builder.build.weights;
    let mut values = |part: &str| -> Result<Vec<f32>, LoadError> {
        Ok(weights.vector(&format!("{name}.{part}"), &[vec![n], vec![n, 1]])?.values)
    };
    let all = [values("dt_bias")?, logarithms, values("D")?].concat();
    Ok(weights.backend().load_vector(&all))
}

impl Mixer for MambaLayer {
    fn stage(&self) -> Stage {
        Stage::StateSpace
    }

    fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols) {
        let rows = step.rows();
        let MambaScratch { all, gate, before, dt, convolved, mixed, .. } = self.scratch;
        let Step { backend, spans, .. } = step;
        backend.project(rows, x, &[Projection { weight: self.in_proj, out: all }]);
        let conv = CausalConv {
            out: convolved,
            x: before,
            weight: self.conv,
            bias: self.conv_bias,
            cache: self.conv_cache,
        };
        backend.causal_conv(conv, spans);
        let state_space = StateSpace {
            out: mixed.heads(self.n_heads),
            x: self.scratch.x,
            b: self.scratch.b,
            c: self.scratch.c,
            dt,
            of_heads: self.of_heads,
            cache: self.state,
        };
        backend.state_space(state_space, spans);
        let groups = mixed.heads(self.n_groups);
        let norm = GatedRmsNorm {
            norm: self.norm.op(groups, groups),
            gate: gate.heads(self.n_groups),
            function: GateFunction::Silu,
            gates_input: true,
        };
        backend.gated_rms_norm(rows, norm);
        backend.project(rows, columns(groups), &[Projection { weight: self.out_proj, out }]);
    }
}
