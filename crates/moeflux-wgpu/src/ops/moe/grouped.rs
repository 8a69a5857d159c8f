//! The experts of layers that the device holds, for many rows: it chooses them, brings the rows
//! that chose an expert together, and reads nothing back.
//!
//! Rows have the bits that they have where the host groups them: cooperative matrices multiply
//! all experts; without them one that few rows of the step chose is multiplied by the kernel for
//! few, any other by the one for many. Only the device knows which these are, so both run over
//! all experts, and over as many tiles as there can be; those that have nothing to do end at
//! once.

use crate::ops::matmul::kernel::MatvecRows;
use crate::ops::matmul::kernel::TakenBy;
use crate::ops::matmul::kernel::TileList;
use moeflux_backend::{Experts, MoeOnDevice};

use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::device::work::Work;
use crate::kernels::moe::{GroupedGemmJobs, SortByExpert};
use crate::layouts::format::Decoder;
use crate::layouts::product::ProductSize;
use crate::layouts::table::MatrixRows;
use crate::memory::experts::tables::ResidentLayer;
use crate::ops::matmul::activation::Between;
use crate::ops::matmul::kernel::{Kernel, Placed};
use crate::ops::matmul::layouts::{
    ProductKind, f16_tiles, f32_tiles, group_rows, layout, uses_coop_matrix,
};
use crate::ops::matmul::source::Source;
use crate::ops::moe::combine::{Sum, add_down_biases, add_up};
use crate::ops::moe::expert_group::{Part, first_products, phase};
use crate::ops::moe::route::MAX_EXPERTS;
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::{ActivationQuant, activation_quant};
use crate::words::{ELEMENTS, word};

/// Words of a job, see `include/formats.wgsl`.
const JOB_WORDS: usize = 9;

/// What all products of a layer have in common.
struct Grouped<'a> {
    layer: &'a ResidentLayer,
    /// What `moe/sort_by_expert.wgsl` has written.
    grouped: Mem,
    /// Choices of all rows.
    n: usize,
    /// Choices in the order of experts that are worked on together: the first,
    /// and how many.
    first: usize,
    n_places: usize,
}

/// Where products read rows of activations, and where outputs go.
struct ProductIo<'a> {
    source: &'a Source,
    /// Choices of a row of activations; `None` where these are in the order of experts, and
    /// outputs in that of the choices.
    top_k: Option<usize>,
    out: &'a Mem,
    out_stride: usize,
}

/// Computes what was chosen: `(rows, top_k)` experts, then their weights. The
/// op has begun before.
pub(crate) fn moe_on_device(
    b: &mut Wgpu,
    rows: usize,
    op: MoeOnDevice,
    ids: &Mem,
    layer: &ResidentLayer,
) {
    let MoeOnDevice { x, inputs, function, slots, acc, shared, .. } = op;
    let top_k = op.route.top_k;
    let (n, n_experts) = (rows * top_k, layer.n_experts());
    let (intermediate, first_cols) = (layer.layout().intermediate(), layer.layout().first_cols());
    function.assert_fits(layer.layout());
    let grouped = b.scratch.grouped[0].words(&mut b.encoder, 2 * n_experts + 2 * n);
    b.encoder.dispatch(
        SortByExpert {},
        &[word(n), word(n_experts)],
        &[ids, &grouped],
        Grid::Linear(n_experts),
    );
    let experts = Experts { out: slots, x, rows, inputs, function, calls: &[] };
    let source = Source::of(b, x, rows);
    let out = b.written(slots);
    // What `n` choices cost, all experts read at most once.
    let work = |n: usize| Work {
        bytes: layer.layout().extents.iter().sum::<usize>() as u64 * n_experts.min(n) as u64,
        flops: layer.layout().matrices().map(|part| 2 * (part.rows * part.cols * n) as u64).sum(),
    };
    let per_part = (b.part_bytes / (8 * intermediate)).clamp(1, n);
    let per_part = per_part.min(n.div_ceil(b.encoder.n_parts(work(n))));
    for first in (0..n).step_by(per_part) {
        b.encoder.begin();
        let n_places = per_part.min(n - first);
        b.encoder.go_on(work(n_places));
        let part = Grouped { layer, grouped: grouped.clone(), n, first, n_places };
        let gate_up = b.scratch.gate_up.words(&mut b.encoder, n_places * first_cols);
        let activated = b.scratch.activated.words(&mut b.encoder, n_places * intermediate);
        for set in first_products(layer.layout()) {
            let io = ProductIo {
                source: &source,
                top_k: Some(top_k),
                out: &gate_up,
                out_stride: first_cols,
            };
            part.multiply(b, experts, &set, &io);
        }
        let experts_at = word(2 * n_experts + n + first);
        let between = Between::of(b, layer.layout(), experts, &gate_up);
        between.run(b, grouped.list(experts_at), n_places, &activated, None);
        let source = Source::of_rows(activated, intermediate, n_places, None);
        let io = ProductIo { source: &source, top_k: None, out: &out.mem, out_stride: out.width };
        part.multiply(b, experts, &[Part::down(layer.layout())], &io);
    }
    add_down_biases(b, experts, &layer.layout().down, ids, n);
    let sum = Sum::of(b, acc, slots, top_k, shared.map(|shared| shared.shared));
    add_up(b, rows, sum, ids.list(word(n)));
}

impl Grouped<'_> {
    /// Multiplies with matrices of one format of all experts.
    fn multiply(&self, b: &mut Wgpu, op: Experts<'_>, set: &[Part<'_>], io: &ProductIo<'_>) {
        let decoder = Decoder::new(set[0].matrix.format);
        let quant = activation_quant(decoder, op.inputs);
        let cols = io.source.cols;
        let uses_coop = uses_coop_matrix(b, quant, cols);
        let few = group_rows(b, quant, cols);
        let quant = ActivationQuant::of_kernel(quant, uses_coop);
        assert!(set.iter().all(|part| part.matrix.cols == cols), "shape of an expert");
        let n_jobs = set.len() * self.layer.n_experts();
        let n_rows = set.iter().map(|part| part.matrix.rows).max().unwrap_or(0);
        let n_chosen = self.layer.n_experts().min(self.n_places);
        let kind = ProductKind { decoder, quant, cols };
        let matrices = MatrixRows { n_rows: set.len() * n_rows * n_chosen, n_matrices: n_jobs };
        let layout = layout(b, kind, matrices, few);
        // How many rows chose an expert is known to the device alone: about the mean, and
        // most often less than its root above it.
        let mean = self.n.div_ceil(self.layer.n_experts());
        let n_matrices = set.len() * self.n_places.div_ceil(mean);
        let size = ProductSize { n_matrices, x_rows: mean + mean.isqrt(), w_rows: n_rows };
        let shape = uses_coop.then(|| f16_tiles(b, decoder, size));
        let f32_tiles = f32_tiles(quant, n_rows);
        let x_tile = shape.map_or(f32_tiles.x_tile, |shape| shape.x_tile) as usize;
        let kernel = Kernel { decoder, quant, cols, lists: &[], y: io.out, chosen: None };
        for are_few in [true, false] {
            if are_few && few == 0 {
                continue;
            }
            let input = kernel.take(b, io.source, TakenBy { are_few, uses_coop }, layout);
            for (buffer, weights) in self.layer.buffers().iter().enumerate() {
                let tile = if are_few { 1 } else { x_tile };
                let n_tiles = if are_few { 0 } else { self.most_tiles(tile, few) };
                let params = [
                    word(self.n),
                    word(self.layer.n_experts()),
                    word(set.len()),
                    word(self.first),
                    word(self.n_places),
                    word(io.top_k.unwrap_or(0)),
                    word(input.stride),
                    word(input.start),
                    word(io.out_stride),
                    word(few),
                    u32::from(!are_few),
                    word(tile),
                    word(n_tiles),
                    word(buffer),
                ];
                let lists = self.jobs(b, &params, set, n_tiles);
                let first = word(2 * self.n_places);
                let tiles = first + word(JOB_WORDS * (n_jobs + 1));
                let total_rows = n_jobs * n_rows;
                let lists = &lists;
                let (each, plain) = (&[][..], None);
                let placed =
                    Placed { weights, lists, first, n_jobs, n_rows, total_rows, each, plain };
                let tiles = TileList { first: tiles, n: set.len() * n_tiles };
                match (are_few, shape) {
                    (true, _) => {
                        let rows = MatvecRows { most: few, are_aligned: true };
                        kernel.run_matvec(b, placed, &input, layout, rows);
                    }
                    (false, Some(shape)) => {
                        kernel.run_coop_matmul(b, placed, &input, tiles, shape);
                    }
                    (false, None) => {
                        kernel.run_matmul(b, placed, &input, tiles, f32_tiles);
                    }
                }
            }
        }
    }

    /// Tiles of experts that more than this many rows chose, at most: each may have one that is
    /// not full. All but the first and the last of them have all their rows here.
    fn most_tiles(&self, tile: usize, few: usize) -> usize {
        let n_experts = (self.n_places / (few + 1) + 2).min(self.layer.n_experts());
        self.n_places / tile + n_experts
    }

    fn jobs(&self, b: &mut Wgpu, params: &[u32; 14], set: &[Part<'_>], n_tiles: usize) -> Mem {
        let n_jobs = set.len() * self.layer.n_experts() + 1;
        let n_tiles = set.len() * n_tiles;
        let n_words = 2 * self.n_places + JOB_WORDS * n_jobs + 2 * n_tiles;
        let lists = b.scratch.grouped[1].words(&mut b.encoder, n_words);
        let mut all = params.to_vec();
        all.extend([0, 0]);
        for Part { matrix, which, out } in set {
            all.extend([*which, matrix.rows, phase(matrix), *out].map(word));
        }
        all.resize(24, 0);
        let tables = self.layer.tables().expect("all experts of the layer are resident");
        let n_threads = self.n_places.max(n_jobs).max(n_tiles);
        b.encoder.dispatch(
            GroupedGemmJobs { max_experts: word(MAX_EXPERTS) },
            &all,
            &[&self.grouped, &tables.places, &lists],
            Grid::Linear(n_threads.div_ceil(ELEMENTS)),
        );
        lists
    }
}
