//! A block of a tower: attention among the patches of a picture, then an MLP for each.

use moeflux_backend::{
    Attention, Backend, Cache, Cols, GatedActivation, KeysValues, PlainActivation, RmsNorm, Span,
    Vector,
};

use super::linear::{Linear, Norm, NormKind, load_vector};
use super::rope::AxialRope;
use crate::load::{LoadError, Weights};
use crate::model::Build;

/// What the blocks of a tower have in common. Names are those below a block's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPlan {
    pub(crate) width: usize,
    pub(crate) norms: NormKind,
    /// Norms before attention and MLP.
    pub(crate) before: [&'static str; 2],
    /// Norms of what they give, where there are some.
    pub(crate) after: Option<[&'static str; 2]>,
    pub(crate) attention: AttentionPlan,
    pub(crate) mlp: MlpPlan,
}

/// Attention of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionPlan {
    pub(crate) n_heads: usize,
    pub(crate) head_dim: usize,
    /// Queries, keys and values, one below the other in one matrix.
    pub(crate) joined: Option<&'static str>,
    /// The three, where no matrix joins them.
    pub(crate) apart: [&'static str; 3],
    pub(crate) output: &'static str,
    pub(crate) has_qkv_bias: bool,
    pub(crate) has_output_bias: bool,
    /// Norms of the heads of queries and of keys, where there are some.
    pub(crate) head_norms: Option<[&'static str; 2]>,
    /// Whether heads of values are divided by their root mean square.
    pub(crate) normalises_values: bool,
    /// Multiplies every score.
    pub(crate) scale: f32,
}

/// The MLP of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlpPlan {
    pub(crate) width: usize,
    /// The gate, where there is one, with what stands between the products.
    pub(crate) gate: Option<(&'static str, GatedActivation)>,
    /// What stands between them where there is none.
    pub(crate) activation: PlainActivation,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
    pub(crate) has_bias: bool,
}

/// Activations of blocks; one set serves all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch {
    pub(super) normed: Cols,
    /// What a half of a block gives before it joins.
    pub(super) given: Cols,
    qkv: Cols,
    mixed: Cols,
    gate: Option<Cols>,
    up: Cols,
}

impl Scratch {
    pub(super) fn new(plan: &BlockPlan, build: &mut Build<'_>) -> Scratch {
        let heads = plan.attention.n_heads * plan.attention.head_dim;
        Scratch {
            normed: build.cols(plan.width),
            given: build.cols(plan.width),
            qkv: build.cols(3 * heads),
            mixed: build.cols(heads),
            gate: plan.mlp.gate.map(|_| build.cols(plan.mlp.width)),
            up: build.cols(plan.mlp.width),
        }
    }

    /// Columns of queries, keys and values.
    fn parts(&self) -> [Cols; 3] {
        let len = self.qkv.len / 3;
        [0, 1, 2].map(|i| self.qkv.slice(i * len, len))
    }
}

/// Rows of a picture that are worked on together.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) hidden: Cols,
    /// Queries, which wait for the keys of the chunks behind.
    pub(super) queries: Cols,
    pub(super) span: Span,
}

impl Chunk {
    pub(super) fn n_rows(&self) -> usize {
        self.span.rows.len()
    }
}

/// A loaded block.
#[derive(Debug)]
pub(super) struct Block {
    before: [Norm; 2],
    after: Option<[Norm; 2]>,
    qkv: Vec<Linear>,
    output: Linear,
    head_norms: Option<[Vector; 2]>,
    value_norm: Option<Vector>,
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
}

impl Block {
    pub(super) fn load(
        plan: &BlockPlan,
        name: &str,
        weights: &mut dyn Weights,
    ) -> Result<Block, LoadError> {
        let BlockPlan { width, norms, attention, mlp, .. } = *plan;
        let AttentionPlan { n_heads, head_dim, has_qkv_bias, .. } = attention;
        let heads = n_heads * head_dim;
        let at = |part: &str| format!("{name}.{part}");
        let norm_pair = |names: [&str; 2], weights: &mut dyn Weights| {
            let [attention, mlp] = names.map(|part| norms.load(weights, &at(part), width));
            Ok::<_, LoadError>([attention?, mlp?])
        };
        let before = norm_pair(plan.before, weights)?;
        let after = plan.after.map(|names| norm_pair(names, weights)).transpose()?;
        let linear = |weights: &mut dyn Weights, part: &str, rows, cols, has_bias| {
            Linear::load(weights, &at(part), rows, cols, has_bias)
        };
        let qkv = match attention.joined {
            Some(joined) => vec![linear(weights, joined, 3 * heads, width, has_qkv_bias)?],
            None => {
                let parts = attention.apart.iter();
                parts
                    .map(|part| linear(weights, part, heads, width, has_qkv_bias))
                    .collect::<Result<_, _>>()?
            }
        };
        let output = linear(weights, attention.output, width, heads, attention.has_output_bias)?;
        let mut head_norm = |part: &str| load_vector(weights, &at(part), head_dim);
        let head_norms = match attention.head_norms {
            Some([q, k]) => Some([head_norm(q)?, head_norm(k)?]),
            None => None,
        };
        let ones = || vec![1.0; head_dim];
        let value_norm =
            attention.normalises_values.then(|| weights.backend().load_vector(&ones()));
        let MlpPlan { width: inner, gate, up, down, has_bias, .. } = mlp;
        let gate = gate.map(|(gate, _)| linear(weights, gate, inner, width, has_bias));
        Ok(Block {
            before,
            after,
            qkv,
            output,
            head_norms,
            value_norm,
            gate: gate.transpose()?,
            up: linear(weights, up, inner, width, has_bias)?,
            down: linear(weights, down, width, inner, has_bias)?,
        })
    }

    /// Writes the queries of a chunk, and appends its keys and values.
    pub(super) fn prepare(
        &self,
        plan: &BlockPlan,
        backend: &mut dyn Backend,
        chunk: &Chunk,
        scratch: &Scratch,
        rope: &AxialRope,
    ) {
        let rows = chunk.n_rows();
        self.before[0].run(backend, rows, scratch.normed, chunk.hidden);
        let parts = scratch.parts();
        match self.qkv[..] {
            [joined] => joined.run(backend, rows, scratch.normed, scratch.qkv),
            _ => {
                for (linear, out) in self.qkv.iter().zip(parts) {
                    linear.run(backend, rows, scratch.normed, out);
                }
            }
        }
        let n_heads = plan.attention.n_heads;
        let [q, k, v] = parts.map(|part| part.heads(n_heads));
        let eps = plan.norms.eps;
        let of_values = self.value_norm.map(|weight| (v, weight));
        let of_heads = self.head_norms.map(|[of_q, of_k]| [(q, of_q), (k, of_k)]);
        for (x, weight) in of_heads.into_iter().flatten().chain(of_values) {
            backend.rms_norm(rows, RmsNorm { out: x, x, weight, eps });
        }
        for heads in [q, k] {
            rope.run(backend, heads, &chunk.span);
        }
        backend.copy(rows, chunk.queries.heads(n_heads), q);
        let append = KeysValues { k, v: Some(v) };
        backend.append(Cache(0), append, std::slice::from_ref(&chunk.span));
    }

    /// Attends for a chunk to the keys of all, and runs the rest of the block.
    pub(super) fn run(
        &self,
        plan: &BlockPlan,
        backend: &mut dyn Backend,
        chunk: &Chunk,
        scratch: &Scratch,
    ) {
        let Scratch { normed, given, mixed, gate, up, .. } = *scratch;
        let (rows, n_heads) = (chunk.n_rows(), plan.attention.n_heads);
        let attention = Attention {
            out: mixed.heads(n_heads),
            q: chunk.queries.heads(n_heads),
            append: None,
            cache: Cache(0),
            scale: plan.attention.scale,
            window: None,
            sinks: None,
            selection: None,
            looks_ahead: true,
            entries: None,
        };
        backend.attention(attention, std::slice::from_ref(&chunk.span));
        self.output.run(backend, rows, mixed, given);
        self.join(0, backend, chunk, given);
        self.before[1].run(backend, rows, normed, chunk.hidden);
        self.up.run(backend, rows, normed, up);
        let inner = match (self.gate, plan.mlp.gate, gate) {
            (Some(linear), Some((_, activation)), Some(gate)) => {
                linear.run(backend, rows, normed, gate);
                backend.activate(rows, activation, gate, gate, up);
                gate
            }
            _ => {
                backend.activate_plain(rows, plan.mlp.activation, up);
                up
            }
        };
        self.down.run(backend, rows, inner, given);
        self.join(1, backend, chunk, given);
    }

    /// Adds what a half of the block gives to the rows.
    fn join(&self, half: usize, backend: &mut dyn Backend, chunk: &Chunk, given: Cols) {
        if let Some(norms) = self.after {
            norms[half].run(backend, chunk.n_rows(), given, given);
        }
        backend.add(chunk.n_rows(), chunk.hidden, given);
    }
}
