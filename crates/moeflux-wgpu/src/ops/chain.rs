//! Ops over whole rows that follow each other, in one kernel: the last kernel is taken back, and
//! recorded anew with the op that follows. Each op has the bits that it has by itself.

use moeflux_backend::{Cols, Vector};

use crate::commands::grid::Grid;
use crate::kernels::basic::{CHAIN_BINDINGS, Chain as ChainKernel, ExpertSum, Links, MOST_LINKS};
use crate::kernels::shared::Quant;
use crate::ops::matmul::jobs::holds_rows;
use crate::ops::matmul::quantize::{FusedQuant, QuantSpan, fused_quant, wanted};
use crate::state::chain::{Chain, ExpertOutputs, Link, Rounding, RowOp};
use crate::state::gpu::Wgpu;
use crate::words::{norm_threads, word};

/// Buffers that `norm/chain.wgsl` writes, vectors that it reads, and places that it rounds to.
const MOST_BUFFERS: usize = 7;
const MOST_VECTORS: usize = 4;
const MOST_ROUNDED: usize = 2;

/// Elements of all links that a thread has on their way at once.
const MOST_ELEMENTS: usize = 320;

/// What `norm/chain.wgsl` calls no buffer.
const NO_BUFFER: u32 = 15;

/// A link as the kernel reads it.
#[derive(Clone, Copy)]
struct Step {
    kind: u32,
    /// Numbers of buffers or, of a norm's operand, of a vector.
    from: Option<u32>,
    with: Option<u32>,
    to: Option<u32>,
    is_aside: bool,
    is_early: bool,
    number: f32,
}

/// What a chain binds and does.
#[derive(Default)]
struct Plan {
    buffers: Vec<Cols>,
    vectors: Vec<Vector>,
    steps: Vec<Step>,
    /// What the value at hand is.
    value: Option<Cols>,
}

/// Notes that the last kernel did an op over whole rows, and nothing else.
pub(crate) fn begin(b: &mut Wgpu, rows: usize, op: RowOp, rounding: Option<FusedQuant>) {
    let most = b.encoder.context().limits.max_storage_buffers_per_shader_stage as usize;
    let can = b.fuses && holds_rows(rows) && most >= CHAIN_BINDINGS;
    let nth = b.encoder.last_kernel();
    let links = vec![Link { op, rounding: rounding.map(Rounding::from) }];
    b.chain = can.then_some(Chain { nth, rows, links });
}

/// Adds an op to what the last kernel does, if it can; else nothing has changed.
pub(crate) fn append(b: &mut Wgpu, rows: usize, op: &RowOp) -> bool {
    let Some(mut chain) = b.chain.take().filter(|chain| chain.rows == rows) else { return false };
    let out = op.out();
    let quant = wanted(b, out.heads(1), rows, QuantSpan::Head);
    let quant = quant.map(|wanted| wanted.quant.constants(wanted.form));
    if !quant.is_none_or(|quant| chain.takes(quant)) {
        return false;
    }
    chain.links.push(Link { op: op.clone(), rounding: None });
    let Some(plan) = Plan::of(b, &chain.links) else { return false };
    if !b.encoder.retract_kernel(chain.nth) {
        return false;
    }
    b.written(out.buf);
    let rounding = fused_quant(b, out.heads(1), rows, QuantSpan::Head).map(Rounding::from);
    chain.links.last_mut().expect("it has links").rounding = rounding;
    dispatch(b, &chain, &plan);
    chain.nth = b.encoder.last_kernel();
    b.chain = Some(chain);
    true
}

impl From<FusedQuant> for Rounding {
    fn from(FusedQuant { quant, quantized, sums }: FusedQuant) -> Rounding {
        Rounding { quant, mems: [quantized, sums] }
    }
}

impl Chain {
    fn roundings(&self) -> impl Iterator<Item = &Rounding> {
        self.links.iter().filter_map(|link| link.rounding.as_ref())
    }

    /// Whether one more link may round like this.
    fn takes(&self, quant: Quant) -> bool {
        self.roundings().count() < MOST_ROUNDED
            && self.roundings().all(|rounding| rounding.quant == quant)
    }

    fn outputs(&self) -> Option<&ExpertOutputs> {
        outputs(&self.links)
    }
}

fn outputs(links: &[Link]) -> Option<&ExpertOutputs> {
    links.iter().find_map(|link| match &link.op {
        RowOp::Experts { outputs, .. } => Some(&**outputs),
        _ => None,
    })
}

impl Plan {
    /// `None` where one kernel cannot do all of it.
    fn of(b: &Wgpu, links: &[Link]) -> Option<Plan> {
        let len = links[0].op.out().len;
        let outputs = outputs(links);
        let n_expert_links =
            links.iter().filter(|link| matches!(link.op, RowOp::Experts { .. })).count();
        let top_k = outputs.map_or(0, |outputs| outputs.sum.top_k as usize);
        let per_thread = len.div_ceil(norm_threads(len));
        if links.len() > MOST_LINKS
            || n_expert_links > 1
            || !len.is_multiple_of(4)
            || per_thread * (top_k + links.len()) > MOST_ELEMENTS
        {
            return None;
        }
        let mut plan = Plan::default();
        for link in links {
            plan.add(&link.op)?;
        }
        let fits = |cols: &Cols| {
            let buf = b.buf(cols.buf);
            cols.len == len
                && cols.start.is_multiple_of(4)
                && buf.width.is_multiple_of(4)
                // Rows of what experts give are not those of the chain.
                && outputs.is_none_or(|outputs| outputs.mems.iter().all(|mem| *mem != buf.mem))
        };
        let is_aligned = |outputs: &ExpertOutputs| {
            let [start, width] = outputs.shared;
            [outputs.width, start, width].iter().all(|word| word.is_multiple_of(4))
        };
        let can = plan.buffers.iter().all(fits) && outputs.is_none_or(is_aligned);
        can.then_some(plan)
    }

    /// The number of a buffer; `None` where there is no room, or where other columns of it take
    /// part: these would go from thread to thread.
    fn buffer(&mut self, cols: Cols) -> Option<u32> {
        let known = self.buffers.iter().position(|known| known.buf == cols.buf);
        match known {
            Some(at) => (self.buffers[at] == cols).then_some(word(at)),
            None if self.buffers.len() == MOST_BUFFERS => None,
            None => {
                self.buffers.push(cols);
                Some(word(self.buffers.len() - 1))
            }
        }
    }

    fn vector(&mut self, vector: Vector) -> Option<u32> {
        let known = self.vectors.iter().position(|known| *known == vector);
        if known.is_none() && self.vectors.len() == MOST_VECTORS {
            return None;
        }
        let at = known.unwrap_or_else(|| {
            self.vectors.push(vector);
            self.vectors.len() - 1
        });
        Some(word(at))
    }

    fn add(&mut self, op: &RowOp) -> Option<()> {
        let out = op.out();
        let (kind, value, with, number) = match *op {
            RowOp::Add { acc, x } if self.value == Some(x) => (0, Some(x), Some(acc), 0.0),
            RowOp::Add { acc, x } => (0, Some(acc), Some(x), 0.0),
            RowOp::Experts { acc, .. } => (1, Some(acc), None, 0.0),
            RowOp::Norm { x, eps, .. } => (2, Some(x), None, eps),
            RowOp::Scale { x, factor } => (3, Some(x), None, factor),
            RowOp::Copy { x, .. } => (4, None, Some(x), 0.0),
        };
        let from = match value.filter(|value| self.value != Some(*value)) {
            Some(value) => Some(self.buffer(value)?),
            None => None,
        };
        let (with, is_early) = match op.weight() {
            Some(weight) => (Some(self.vector(weight)?), true),
            None => match with {
                Some(with) => {
                    let with = self.buffer(with)?;
                    (Some(with), self.steps.iter().all(|step| step.to != Some(with)))
                }
                None => (None, true),
            },
        };
        let to = Some(self.buffer(out)?);
        let is_aside = match *op {
            RowOp::Norm { out, x, .. } => out != x,
            RowOp::Copy { .. } => true,
            _ => false,
        };
        let left = value.or(self.value).filter(|value| *value != out);
        self.value = if is_aside { left } else { Some(out) };
        self.steps.push(Step { kind, from, with, to, is_aside, is_early, number });
        Some(())
    }

    /// Where a link writes: nowhere where another writes over it before it is read from memory.
    fn to(&self, nth: usize) -> Option<u32> {
        let to = self.steps[nth].to;
        for later in &self.steps[nth + 1..] {
            let reads_with = later.kind != 2 && !later.is_early && later.with == to;
            if later.from == to || reads_with {
                return to;
            }
            if later.to == to {
                return None;
            }
        }
        to
    }

    fn links(&self, chain: &Chain) -> Links {
        let mut links = Links::default();
        let mut n_rounded = 0;
        for (nth, step) in self.steps.iter().enumerate() {
            let number = |number: Option<u32>| number.unwrap_or(NO_BUFFER);
            n_rounded += u32::from(chain.links[nth].rounding.is_some());
            let rounding = if chain.links[nth].rounding.is_some() { n_rounded } else { 0 };
            links.0[nth] = step.kind
                | number(step.from) << 3
                | number(step.with) << 7
                | number(self.to(nth)) << 11
                | u32::from(step.is_aside) << 15
                | rounding << 16
                | u32::from(step.is_early) << 18;
        }
        links
    }
}

fn dispatch(b: &mut Wgpu, chain: &Chain, plan: &Plan) {
    let len = plan.buffers[0].len;
    let arena = b.encoder.arena();
    let unused = |b: &mut Wgpu, i: usize| b.scratch.unused[i].words(&mut b.encoder, 4);
    let mut mems = Vec::with_capacity(CHAIN_BINDINGS);
    let mut views = [0; 2 * (MOST_BUFFERS + 1)];
    for i in 0..MOST_BUFFERS {
        let Some(cols) = plan.buffers.get(i) else {
            mems.push(unused(b, i));
            continue;
        };
        let buf = b.buf(cols.buf);
        views[2 * i..2 * i + 2].copy_from_slice(&[cols.start / 4, buf.width / 4].map(word));
        mems.push(buf.mem.clone());
    }
    for i in 0..MOST_VECTORS {
        let vector = plan.vectors.get(i).map(|vector| b.vector(*vector).clone());
        mems.push(vector.unwrap_or_else(|| arena.clone()));
    }
    let mut params = vec![word(chain.rows), word(len / 4), 0];
    let sum = match chain.outputs() {
        Some(ExpertOutputs { mems: its, width, weights, shared, gate, sum }) => {
            params.extend([width / 4, *weights, gate[0], gate[1], shared[0] / 4, shared[1] / 4]);
            mems.extend(its.iter().cloned());
            *sum
        }
        None => {
            params.extend([0; 6]);
            mems.extend([(); 4].map(|()| arena.clone()));
            ExpertSum::default()
        }
    };
    let mut roundings = chain.roundings();
    let quant = chain.roundings().next().map_or_else(Quant::default, |rounding| rounding.quant);
    for i in 0..MOST_ROUNDED {
        match roundings.next() {
            Some(rounding) => mems.extend(rounding.mems.iter().cloned()),
            None => mems.extend([0, 1].map(|nth| unused(b, MOST_BUFFERS + 2 * i + nth))),
        }
    }
    params.extend([0; 3]);
    params.extend(views);
    let mut numbers = [0; MOST_LINKS];
    numbers.iter_mut().zip(&plan.steps).for_each(|(word, step)| *word = step.number.to_bits());
    params.extend(numbers);
    let threads = norm_threads(len);
    let kernel = ChainKernel {
        links: plan.links(chain),
        quant,
        sum,
        n_links: word(chain.links.len()),
        threads: word(threads),
        per_thread: word(len.div_ceil(4 * threads)),
    };
    let mems: Vec<_> = mems.iter().collect();
    b.encoder.dispatch(kernel, &params, &mems, Grid::Linear(chain.rows));
}
