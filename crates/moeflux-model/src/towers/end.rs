//! What makes rows of a prompt of the last block's.

use moeflux_backend::{Backend, Cols, DeviceError, GatedActivation, PlainActivation, Vector};

use super::block::{Chunk, Scratch};
use super::linear::{Linear, Norm, NormKind, load_vector};
use super::stem::load_floats;
use crate::load::{HostVector, LoadError, Weights};
use crate::model::Build;

/// The end of a tower.
#[derive(Clone, Debug)]
pub(crate) enum EndPlan {
    /// Neighbouring patches side by side go through an MLP.
    Merged(MergerPlan),
    /// They go through a product and a gated MLP.
    Gated(GatedPlan),
    /// Their mean goes through one product.
    Pooled(PooledPlan),
}

/// Squares of patches side by side, through `fc2(gelu(fc1(x)))`.
#[derive(Clone, Debug)]
pub(crate) struct MergerPlan {
    /// Patches of a side of a square.
    pub(crate) merge: usize,
    /// Norms of patches, one after the other.
    pub(crate) norms: Vec<(&'static str, NormKind)>,
    pub(crate) products: [&'static str; 2],
    /// Floats of a row of the prompt.
    pub(crate) hidden: usize,
    pub(crate) deepstack: Option<DeepstackPlan>,
}

/// Rows of further mergers, which are added after the first layers of the text.
#[derive(Clone, Debug)]
pub(crate) struct DeepstackPlan {
    /// The mergers; names below one are those of [`MergerPlan`], with its norm behind the merging.
    pub(crate) list: &'static str,
    pub(crate) norm: (&'static str, NormKind),
    pub(crate) products: [&'static str; 2],
    /// The block after which each merger takes rows.
    pub(crate) blocks: Vec<usize>,
}

/// `down(activation(gate(y), up(y)))` of `y = gelu(norm(proj(fold(x))))`.
#[derive(Clone, Debug)]
pub(crate) struct GatedPlan {
    pub(crate) merge: usize,
    /// The norm of patches.
    pub(crate) norm: (&'static str, NormKind),
    /// The convolution that folds a square of patches.
    pub(crate) fold: &'static str,
    pub(crate) proj: &'static str,
    pub(crate) proj_norm: (&'static str, NormKind),
    /// Gate, up and down.
    pub(crate) products: [&'static str; 3],
    pub(crate) activation: GatedActivation,
    pub(crate) inner: usize,
    pub(crate) hidden: usize,
}

/// `proj(rms_norm(mean(x) * sqrt(width) - bias) * scale))`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PooledPlan {
    /// Patches of a side of a square.
    pub(crate) pool: usize,
    /// The bias that is taken away, and the scale that multiplies then, where there are some.
    pub(crate) standard: Option<[&'static str; 2]>,
    /// Added to the mean square.
    pub(crate) eps: f32,
    pub(crate) proj: &'static str,
    pub(crate) hidden: usize,
}

/// A loaded end.
#[derive(Debug)]
pub(super) struct End {
    merge: usize,
    hidden: usize,
    kind: Kind,
    /// Floats of a square.
    input: Cols,
    output: Cols,
}

#[derive(Debug)]
enum Kind {
    Merged { norms: Vec<Norm>, merger: Merger, deepstack: Vec<(usize, Merger)> },
    Gated(Box<Gated>),
    Pooled(Pooled),
}

#[derive(Debug)]
struct Pooled {
    standard: Option<[Vec<f32>; 2]>,
    norm: Norm,
    proj: Linear,
}

/// An MLP over squares of patches.
#[derive(Debug)]
struct Merger {
    norm: Option<Norm>,
    products: [Linear; 2],
    inner: Cols,
}

#[derive(Debug)]
struct Gated {
    norm: Norm,
    fold: Linear,
    proj: Linear,
    proj_norm: Norm,
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: GatedActivation,
    folded: Cols,
    projected: Cols,
    inner: [Cols; 2],
}

impl EndPlan {
    /// Patches of a side of a square that becomes a row.
    pub(crate) fn merge(&self) -> usize {
        match self {
            EndPlan::Merged(plan) => plan.merge,
            EndPlan::Gated(plan) => plan.merge,
            EndPlan::Pooled(plan) => plan.pool,
        }
    }

    /// Layers of the text after which rows of blocks are added.
    pub(crate) fn n_deepstack(&self) -> usize {
        match self {
            EndPlan::Merged(MergerPlan { deepstack: Some(plan), .. }) => plan.blocks.len(),
            _ => 0,
        }
    }

    /// Floats of a row of the prompt.
    pub(crate) fn hidden(&self) -> usize {
        match self {
            EndPlan::Merged(plan) => plan.hidden,
            EndPlan::Gated(plan) => plan.hidden,
            EndPlan::Pooled(plan) => plan.hidden,
        }
    }
}

impl End {
    pub(super) fn load(
        plan: &EndPlan,
        width: usize,
        build: &mut Build<'_>,
    ) -> Result<End, LoadError> {
        let (merge, hidden) = (plan.merge(), plan.hidden());
        // What comes here are squares.
        let build = &mut Build {
            weights: &mut *build.weights,
            max_rows: build.max_rows / (merge * merge),
            inputs: build.inputs,
            variant: build.variant,
        };
        let square = match plan {
            EndPlan::Pooled(_) => width,
            _ => merge * merge * width,
        };
        let (input, output) = (build.cols(square), build.cols(hidden));
        let kind = match plan {
            EndPlan::Merged(plan) => merged(plan, width, build)?,
            EndPlan::Gated(plan) => Kind::Gated(Box::new(gated(plan, width, build)?)),
            EndPlan::Pooled(plan) => Kind::Pooled(pooled(plan, width, build.weights)?),
        };
        Ok(End { merge, hidden, kind, input, output })
    }

    /// Layers of the text to which rows are added.
    pub(super) fn n_deepstack(&self) -> usize {
        match &self.kind {
            Kind::Merged { deepstack, .. } => deepstack.len(),
            _ => 0,
        }
    }

    /// What a block's rows are added to the text as; `None` where nothing takes them.
    ///
    /// # Errors
    /// A failure of the device.
    pub(super) fn after_block(
        &self,
        block: usize,
        picture: &Rows<'_>,
        backend: &mut dyn Backend,
    ) -> Result<Option<Vec<f32>>, DeviceError> {
        let Kind::Merged { deepstack, .. } = &self.kind else { return Ok(None) };
        let Some((_, merger)) = deepstack.iter().find(|(of, _)| *of == block) else {
            return Ok(None);
        };
        let rows = self.each(picture, &[], backend, &mut |backend, n| {
            merger.run(backend, n, self.input, self.output);
        })?;
        Ok(Some(rows))
    }

    /// The rows of the prompt.
    ///
    /// # Errors
    /// A failure of the device.
    pub(super) fn run(
        &self,
        picture: &Rows<'_>,
        backend: &mut dyn Backend,
    ) -> Result<Vec<f32>, DeviceError> {
        match &self.kind {
            Kind::Merged { norms, merger, .. } => {
                self.each(picture, norms, backend, &mut |backend, n| {
                    merger.run(backend, n, self.input, self.output);
                })
            }
            Kind::Gated(gated) => self.each(picture, &[gated.norm], backend, &mut |backend, n| {
                gated.run(backend, n, self.input, self.output);
            }),
            Kind::Pooled(pooled) => self.pooled(pooled, picture, backend),
        }
    }

    /// Puts the patches of every square side by side after norms, and runs something over the squares, as
    /// many at a time as a chunk has.
    fn each(
        &self,
        picture: &Rows<'_>,
        norms: &[Norm],
        backend: &mut dyn Backend,
        run: &mut dyn FnMut(&mut dyn Backend, usize),
    ) -> Result<Vec<f32>, DeviceError> {
        let mut out = Vec::new();
        for chunk in picture.chunks {
            let mut from = chunk.hidden;
            for norm in norms {
                norm.run(backend, chunk.n_rows(), picture.scratch.normed, from);
                from = picture.scratch.normed;
            }
            let n = chunk.n_rows() / self.n_merged();
            backend.join_rows(n, self.input, from);
            run(backend, n);
            let rows = backend.read(self.output.buf, n)?;
            if out.is_empty() {
                out = rows;
                out.reserve_exact(picture.len() / self.n_merged() * self.hidden - out.len());
            } else {
                out.extend(rows);
            }
        }
        Ok(out)
    }

    /// The products of the means of squares.
    fn pooled(
        &self,
        Pooled { standard, norm, proj }: &Pooled,
        picture: &Rows<'_>,
        backend: &mut dyn Backend,
    ) -> Result<Vec<f32>, DeviceError> {
        let mut out = Vec::with_capacity(picture.len() / self.n_merged() * self.hidden);
        for chunk in picture.chunks {
            let patches = backend.read(chunk.hidden.buf, chunk.n_rows())?;
            let n = chunk.n_rows() / self.n_merged();
            let means = pool(&patches, self.n_merged(), self.input.len, standard);
            backend.write(self.input.buf, &means);
            norm.run(backend, n, self.input, self.input);
            proj.run(backend, n, self.input, self.output);
            out.extend(backend.read(self.output.buf, n)?);
        }
        Ok(out)
    }

    /// Patches of a square.
    fn n_merged(&self) -> usize {
        self.merge * self.merge
    }
}

/// The rows of a picture on the device, square by square.
pub(super) struct Rows<'a> {
    /// Of whole squares.
    pub(super) chunks: &'a [Chunk],
    pub(super) scratch: &'a Scratch,
}

impl Rows<'_> {
    fn len(&self) -> usize {
        self.chunks.iter().map(Chunk::n_rows).sum()
    }
}

impl Merger {
    fn load(
        norm: Option<Norm>,
        names: [&str; 2],
        sizes: [usize; 2],
        build: &mut Build<'_>,
    ) -> Result<Merger, LoadError> {
        let [square, hidden] = sizes;
        let first = Linear::load(build.weights, names[0], square, square, true)?;
        let second = Linear::load(build.weights, names[1], hidden, square, true)?;
        Ok(Merger { norm, products: [first, second], inner: build.cols(square) })
    }

    fn run(&self, backend: &mut dyn Backend, rows: usize, input: Cols, output: Cols) {
        if let Some(norm) = self.norm {
            norm.run(backend, rows, input, input);
        }
        self.products[0].run(backend, rows, input, self.inner);
        backend.activate_plain(rows, PlainActivation::GeluErf, self.inner);
        self.products[1].run(backend, rows, self.inner, output);
    }
}

fn merged(plan: &MergerPlan, width: usize, build: &mut Build<'_>) -> Result<Kind, LoadError> {
    let square = plan.merge * plan.merge * width;
    let norms = plan.norms.iter().map(|(name, kind)| kind.load(build.weights, name, width));
    let norms = norms.collect::<Result<_, _>>()?;
    let sizes = [square, plan.hidden];
    let merger = Merger::load(None, plan.products, sizes, build)?;
    let mut deepstack = Vec::new();
    for (nth, block) in plan.deepstack.iter().flat_map(|plan| plan.blocks.iter().enumerate()) {
        let Some(DeepstackPlan { list, norm, products, .. }) = &plan.deepstack else { break };
        let at = |part: &str| format!("{list}.{nth}.{part}");
        let norm = norm.1.load(build.weights, &at(norm.0), square)?;
        let names = products.map(at);
        let names = [names[0].as_str(), names[1].as_str()];
        deepstack.push((*block, Merger::load(Some(norm), names, sizes, build)?));
    }
    Ok(Kind::Merged { norms, merger, deepstack })
}

fn gated(plan: &GatedPlan, width: usize, build: &mut Build<'_>) -> Result<Gated, LoadError> {
    let GatedPlan { merge, hidden, inner, .. } = *plan;
    let weights = &mut *build.weights;
    let norm = plan.norm.1.load(weights, plan.norm.0, width)?;
    let fold = fold(plan.fold, [hidden, width, merge], weights)?;
    let proj = Linear::load(weights, plan.proj, hidden, hidden, false)?;
    let proj_norm = plan.proj_norm.1.load(weights, plan.proj_norm.0, hidden)?;
    let [gate, up, down] = plan.products;
    Ok(Gated {
        norm,
        fold,
        proj,
        proj_norm,
        gate: Linear::load(weights, gate, inner, hidden, false)?,
        up: Linear::load(weights, up, inner, hidden, false)?,
        down: Linear::load(weights, down, hidden, inner, false)?,
        activation: plan.activation,
        folded: build.cols(hidden),
        projected: build.cols(hidden),
        inner: [build.cols(inner), build.cols(inner)],
    })
}

/// A convolution over a square of patches as a product with patches side by side. It is stored as
/// `(hidden, width, merge, merge)`; MLX has the columns of a patch last.
fn fold(
    name: &str,
    [hidden, width, merge]: [usize; 3],
    weights: &mut dyn Weights,
) -> Result<Linear, LoadError> {
    let shapes = [vec![hidden, width, merge, merge], vec![hidden, merge, merge, width]];
    let HostVector { shape, values: stored } =
        weights.vector(&format!("{name}.weight"), &shapes)?;
    let (n_patches, square) = (merge * merge, merge * merge * width);
    let mut values = stored.clone();
    if shape == shapes[0] {
        for (from, to) in stored.chunks(square).zip(values.chunks_mut(square)) {
            for (nth, value) in from.iter().enumerate() {
                to[nth % n_patches * width + nth / n_patches] = *value;
            }
        }
    }
    let weight = load_floats(weights.backend(), hidden, square, &values);
    let bias: Vector = load_vector(weights, &format!("{name}.bias"), hidden)?;
    Ok(Linear::of(weight, Some(bias)))
}

impl Gated {
    fn run(&self, backend: &mut dyn Backend, rows: usize, input: Cols, output: Cols) {
        let [gate, up] = self.inner;
        self.fold.run(backend, rows, input, self.folded);
        self.proj.run(backend, rows, self.folded, self.projected);
        self.proj_norm.run(backend, rows, self.projected, self.projected);
        backend.activate_plain(rows, PlainActivation::GeluErf, self.projected);
        self.gate.run(backend, rows, self.projected, gate);
        self.up.run(backend, rows, self.projected, up);
        backend.activate(rows, self.activation, gate, gate, up);
        self.down.run(backend, rows, gate, output);
    }
}

fn pooled(plan: &PooledPlan, width: usize, weights: &mut dyn Weights) -> Result<Pooled, LoadError> {
    let mut read = |name: &str| Ok::<_, LoadError>(weights.vector(name, &[vec![width]])?.values);
    let standard = match plan.standard {
        Some([bias, scale]) => Some([read(bias)?, read(scale)?]),
        None => None,
    };
    let weight = weights.backend().load_vector(&vec![1.0; width]);
    let norm = Norm::Rms { weight, eps: plan.eps };
    let proj = Linear::load(weights, plan.proj, plan.hidden, width, false)?;
    Ok(Pooled { standard, norm, proj })
}

/// The mean of each `n` rows times the root of their width, standardised.
fn pool(rows: &[f32], n: usize, width: usize, standard: &Option<[Vec<f32>; 2]>) -> Vec<f32> {
    let root = (width as f32).sqrt();
    let mut out = Vec::with_capacity(rows.len() / n);
    for square in rows.chunks_exact(n * width) {
        let first = out.len();
        let mean = |at: usize| square[at..].iter().step_by(width).sum::<f32>() / n as f32;
        out.extend((0..width).map(|at| mean(at) * root));
        if let Some([bias, scale]) = standard {
            for ((value, bias), scale) in out[first..].iter_mut().zip(bias).zip(scale) {
                *value = (*value - bias) * scale;
            }
        }
    }
    out
}
