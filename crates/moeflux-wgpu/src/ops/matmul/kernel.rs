//! Dispatches of the matrix kernels.

use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::kernel::Variant;
use crate::kernels::matmul::{Matvec, MatvecActivates, MatvecBoth, MatvecChosen, MatvecShape};
use crate::layouts::format::{BLOCK, Decoder};
use crate::layouts::product::{
    F16Tiles, F32Tiles, Form, Layout, ProductSize, Tiles, virtual_lanes,
};
use crate::memory::experts::tables::ResidentLayer;
use crate::ops::matmul::activation::Between;
use crate::ops::matmul::jobs::{Job, List, PART_ROWS, in_parts};
use crate::ops::matmul::layouts::{f16_tiles, f32_tiles};
use crate::ops::matmul::quantize::round;
use crate::ops::matmul::source::Source;
use crate::ops::matmul::workgroups::ends;
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::{
    ActivationQuant, KernelInput, QuantForm, f16_stride, quant_form,
};
use crate::words::word;

/// Experts that the device chose: the elements of a job's place say which
/// matrix of an expert it means. The jobs of a matrix are those of all choices in turn.
#[derive(Clone, Copy)]
pub(crate) struct Chosen<'a> {
    pub(crate) ids: &'a Mem,
    pub(crate) layer: &'a ResidentLayer,
    /// Choices, those of the expert that every row gets included, and those that are not.
    pub(crate) n: usize,
    pub(crate) n_chosen: usize,
    /// Set where the kernel computes what it multiplies: of each choice the row of its
    /// number.
    pub(crate) between: Option<&'a Between>,
}

/// Most rows of activations that `matmul/matvec.wgsl` has at once.
const MOST_AT_ONCE: usize = 4;

/// Words of a job.
const JOB_WORDS: usize = 9;

/// What the products of a dispatch have in common.
#[derive(Clone, Copy)]
pub(crate) struct Kernel<'a> {
    pub(crate) decoder: Decoder,
    pub(crate) quant: Option<ActivationQuant>,
    pub(crate) cols: usize,
    pub(crate) lists: &'a [List],
    pub(crate) y: &'a Mem,
    pub(crate) chosen: Option<Chosen<'a>>,
}

/// Jobs where kernels read them.
#[derive(Clone, Copy)]
pub(crate) struct Placed<'a> {
    /// What they read.
    pub(crate) weights: &'a Mem,
    /// Where jobs and their lists are, and the first job.
    pub(crate) lists: &'a Mem,
    pub(crate) first: u32,
    pub(crate) n_jobs: usize,
    /// Most rows of a job.
    pub(crate) n_rows: usize,
    /// Rows of all.
    pub(crate) total_rows: usize,
    /// Each of them, where the host knows them.
    pub(crate) each: &'a [Job],
    /// What those of them read that take inputs as they are, where others round them.
    pub(crate) plain: Option<&'a KernelInput>,
}

/// Rows of activations of the jobs of a matrix-vector kernel.
#[derive(Clone, Copy)]
pub(crate) struct MatvecRows {
    /// The most of a job.
    pub(crate) most: usize,
    /// All of them begin at multiples of four elements.
    pub(crate) are_aligned: bool,
}

/// Tiles of rows of activations in a list, and how many there are.
#[derive(Clone, Copy)]
pub(crate) struct TileList {
    pub(crate) first: u32,
    pub(crate) n: usize,
}

/// Which form of its input a kernel takes.
#[derive(Clone, Copy)]
pub(crate) struct TakenBy {
    /// The kernel for few rows.
    pub(crate) are_few: bool,
    /// The kernel for cooperative matrices.
    pub(crate) uses_coop: bool,
}

impl TakenBy {
    pub(crate) const MATVEC: TakenBy = TakenBy { are_few: true, uses_coop: false };
}

/// Jobs with quantised inputs and jobs with plain ones, for one kernel.
pub(crate) struct BothJobs<'a> {
    pub(crate) quantized: Vec<Job>,
    pub(crate) quantized_input: &'a KernelInput,
    pub(crate) plain: Vec<Job>,
    pub(crate) plain_input: &'a KernelInput,
}

impl Kernel<'_> {
    /// The source's rows as kernels for few or many rows take them.
    pub(crate) fn take(
        &self,
        b: &mut Wgpu,
        source: &Source,
        by: TakenBy,
        layout: Layout,
    ) -> KernelInput {
        if let Some(between) = self.chosen.and_then(|chosen| chosen.between) {
            return between.input();
        }
        let Some(quant) = self.quant else {
            return KernelInput {
                x: source.mem.clone(),
                sums: source.mem.clone(),
                stride: source.width,
                start: source.start,
            };
        };
        let TakenBy { are_few, uses_coop } = by;
        let form = match (are_few, layout.form) {
            (false, _) if uses_coop => QuantForm::F16Parts,
            (false, _) => QuantForm::Values,
            (true, _) => quant_form(layout),
        };
        round(b, source, quant, form)
    }

    /// Puts jobs and their lists into the arena.
    pub(crate) fn jobs(&self, b: &mut Wgpu, jobs: &[Job], input: &KernelInput) -> u32 {
        let words = self.job_words(b, jobs, input);
        b.encoder.list(&words)
    }

    /// Puts the lists of jobs into the arena; gives the jobs.
    fn job_words(&self, b: &mut Wgpu, jobs: &[Job], input: &KernelInput) -> Vec<u32> {
        let mut places: Vec<Option<u32>> = vec![None; self.lists.len()];
        let mut words = Vec::with_capacity(JOB_WORDS * jobs.len());
        for job in jobs {
            let list = &self.lists[job.list];
            let place = *places[job.list].get_or_insert_with(|| {
                let pair = |(row, out): &(usize, usize)| {
                    [word(row * input.stride + input.start), word(*out)]
                };
                b.encoder.list(list.iter().map(pair).collect::<Vec<_>>().as_flattened())
            });
            words.extend([
                job.place.elements,
                job.place.scales,
                word(job.first_row),
                word(job.n_rows),
                place + 2 * word(job.part.start),
                word(job.n_rows_of(list)),
                word(job.phase),
                word(job.out),
                word(job.x),
            ]);
        }
        words
    }

    pub(crate) fn matvec(&self, b: &mut Wgpu, jobs: &[Job], input: &KernelInput, layout: Layout) {
        let most = jobs.iter().map(|job| job.n_rows_of(&self.lists[job.list])).max().unwrap_or(0);
        let first = self.jobs(b, jobs, input);
        let lists = b.encoder.arena();
        let are_aligned = jobs.iter().all(|job| job.x.is_multiple_of(4));
        let rows = MatvecRows { most, are_aligned };
        self.run_matvec(b, placed(jobs, first, &lists), input, layout, rows);
    }

    /// Runs jobs with rounded inputs and, from the same buffer, jobs with plain ones.
    pub(crate) fn matvec_both(&self, b: &mut Wgpu, both: BothJobs<'_>, layout: Layout) {
        let BothJobs { quantized: jobs, quantized_input, plain, plain_input } = both;
        // Inputs as they are take longest: no more than rounded ones take at once.
        let jobs = in_parts(jobs, self.lists, |_| PART_ROWS);
        let mut plain = in_parts(plain, self.lists, |_| MOST_AT_ONCE);
        let all = jobs.iter().map(|job| job.n_rows_of(&self.lists[job.list]));
        let most = all.max().unwrap_or(0);
        plain.iter_mut().for_each(|job| job.phase = 1);
        // The longest way first.
        let mut words = self.job_words(b, &plain, plain_input);
        words.extend(self.job_words(b, &jobs, quantized_input));
        let first = b.encoder.list(&words);
        let (lists, all) = (b.encoder.arena(), [plain, jobs].concat());
        let placed = Placed { plain: Some(plain_input), ..placed(&all, first, &lists) };
        let rows = MatvecRows { most, are_aligned: true };
        self.run_matvec(b, placed, quantized_input, layout, rows);
    }

    /// Multiplies jobs that have few rows of activations.
    pub(crate) fn run_matvec(
        &self,
        b: &mut Wgpu,
        jobs: Placed<'_>,
        input: &KernelInput,
        layout: Layout,
        rows: MatvecRows,
    ) {
        let Layout { lanes, threads, groups, .. } = layout;
        let between = self.chosen.and_then(|chosen| chosen.between);
        let n_large = jobs.total_rows.div_ceil(jobs.n_rows.max(1)).max(1);
        let most_groups = between.map_or(usize::MAX, Between::most_groups);
        let groups = (groups as usize).min(most_groups).div_ceil(n_large);
        let per_group = (threads / lanes * layout.rows) as usize;
        let ends = ends(jobs.each.iter().map(|job| job.n_rows), per_group, groups);
        let mut params = self.decoder.params(self.cols).to_vec();
        params.extend([jobs.first, word(jobs.n_jobs)]);
        let tables = b.weights_or_codebook(self.decoder, jobs.weights);
        let mut buffers = vec![jobs.weights, &tables, jobs.lists, &input.x, &input.sums, self.y];
        self.bind_chosen(jobs.weights, &mut params, &mut buffers);
        if let Some(plain) = jobs.plain {
            buffers.push(&plain.x);
        }
        params.extend(ends.unwrap_or_default());
        let grid = match ends {
            Some([.., all]) => Grid::Linear(all as usize),
            None => Grid::Plane(jobs.n_rows.div_ceil(per_group).min(groups), jobs.n_jobs),
        };
        let shape = MatvecShape {
            is_packed: ends.is_some(),
            ..self.matvec_shape(jobs.plain, input, layout, rows)
        };
        // The self-test of cooperative matrices covers subnormal numbers of f16.
        let format = self.decoder.constants_with(b.tiles != Tiles::F32);
        let variant = if jobs.plain.is_some() {
            MatvecBoth { format, shape }.into()
        } else if let Some(between) = between {
            let quant = self.quant.expect("fused activations are quantised");
            let (fused, activation) = between.fused(quant, quant_form(layout));
            MatvecActivates { format, shape, fused, activation }.into()
        } else if self.chosen.is_some() {
            MatvecChosen { format, shape }.into()
        } else {
            Variant::from(Matvec { format, shape })
        };
        b.encoder.dispatch(variant, &params, &buffers, grid);
    }

    /// Parameters and buffers by which a kernel finds the experts that the device chose.
    fn bind_chosen<'b>(&'b self, weights: &Mem, params: &mut Vec<u32>, buffers: &mut Vec<&'b Mem>) {
        let Some(Chosen { ids, layer, n, n_chosen, between }) = self.chosen else {
            return params.extend([0; 6]);
        };
        let buffer = layer.buffers().iter().position(|mem| mem == weights);
        let buffer = buffer.expect("jobs read buffers of their layer");
        params.extend([layer.n_experts(), buffer, n, n_chosen].map(word));
        params.extend(between.map_or([0; 2], |between| between.params));
        let tables = layer.tables().expect("all experts of the layer are resident");
        buffers.extend([ids, &tables.places]);
        if let Some(between) = between {
            buffers.push(between.ups(ids));
        }
    }

    fn matvec_shape(
        &self,
        plain: Option<&KernelInput>,
        input: &KernelInput,
        layout: Layout,
        rows: MatvecRows,
    ) -> MatvecShape {
        let x_rows = word(rows.most.next_power_of_two().min(MOST_AT_ONCE));
        let limbs = self.quant.map_or(0, |quant| quant.n_limbs);
        let KernelInput { stride, start, .. } = plain.unwrap_or(input);
        let is_aligned = rows.are_aligned && self.is_aligned(&[], &[*stride, *start]);
        let has_plain = limbs == 0 || plain.is_some();
        let n_units = self.decoder.n_units(self.cols);
        MatvecShape {
            limbs,
            uses_fma: limbs > 0 && layout.form == Form::Floats,
            is_aligned: has_plain && is_aligned,
            virtual_lanes: virtual_lanes(n_units),
            lanes: layout.lanes,
            rows: layout.rows,
            x_rows,
            depth: layout.depth,
            threads: layout.threads,
            reads_once: rows.most <= x_rows as usize && layout.reads_once(n_units, limbs, x_rows),
            is_packed: false,
        }
    }

    /// Whether rows of activations that are at sums of these begin at multiples of 16 bytes, and
    /// end with their last block.
    fn is_aligned(&self, jobs: &[Job], places: &[usize]) -> bool {
        let mut all = places.iter().copied().chain(jobs.iter().map(|job| job.x));
        self.cols.is_multiple_of(BLOCK) && all.all(|place| place.is_multiple_of(4))
    }

    /// Every job's rows of activations in tiles of this many; gives the list and its length.
    fn tiles(&self, b: &mut Wgpu, jobs: &[Job], rows: u32) -> TileList {
        let mut tiles = Vec::new();
        for (i, job) in jobs.iter().enumerate() {
            let starts = (0..self.lists[job.list].len()).step_by(rows as usize);
            tiles.extend(starts.map(|start| [word(i), word(start)]));
        }
        TileList { first: b.encoder.list(tiles.as_flattened()), n: tiles.len() }
    }

    pub(crate) fn coop_matmul(&self, b: &mut Wgpu, jobs: &[Job], input: &KernelInput) {
        let n_jobs = jobs.len();
        let x_rows: usize = jobs.iter().map(|job| self.lists[job.list].len()).sum();
        let w_rows: usize = jobs.iter().map(|job| job.n_rows).sum();
        let size = ProductSize {
            n_matrices: n_jobs,
            x_rows: x_rows.div_ceil(n_jobs),
            w_rows: w_rows.div_ceil(n_jobs),
        };
        let shape = f16_tiles(b, self.decoder, size);
        let first = self.jobs(b, jobs, input);
        let tiles = self.tiles(b, jobs, shape.x_tile);
        let arena = b.encoder.arena();
        self.run_coop_matmul(b, placed(jobs, first, &arena), input, tiles, shape);
    }

    /// Multiplies this many tiles of jobs.
    pub(crate) fn run_coop_matmul(
        &self,
        b: &mut Wgpu,
        jobs: Placed<'_>,
        input: &KernelInput,
        tiles: TileList,
        shape: F16Tiles,
    ) {
        let quant = self.quant.expect("inputs are rounded");
        let stride = f16_stride(self.cols, quant);
        let mut params = self.decoder.params(self.cols).to_vec();
        params.extend([jobs.first, tiles.first, word(tiles.n), word(stride)]);
        let format = self.decoder.constants_with(true);
        let operand = self.decoder.f16_operand();
        let is_emulated = b.tiles == Tiles::Emulated;
        let tables = b.weights_or_codebook(self.decoder, jobs.weights);
        b.encoder.dispatch(
            shape.kernel(format, operand, quant.parts, is_emulated),
            &params,
            &[jobs.weights, &tables, jobs.lists, &input.x, &input.sums, self.y],
            Grid::Plane(jobs.n_rows.div_ceil(shape.w_tile as usize), tiles.n),
        );
    }

    pub(crate) fn matmul(&self, b: &mut Wgpu, jobs: &[Job], input: &KernelInput) {
        let of = |job: &Job| f32_tiles(self.quant, job.n_rows);
        for shape in [F32Tiles::NARROW, F32Tiles::WIDE] {
            let jobs: Vec<Job> = jobs.iter().filter(|job| of(job) == shape).cloned().collect();
            if jobs.is_empty() {
                continue;
            }
            let first = self.jobs(b, &jobs, input);
            let tiles = self.tiles(b, &jobs, shape.x_tile);
            let arena = b.encoder.arena();
            self.run_matmul(b, placed(&jobs, first, &arena), input, tiles, shape);
        }
    }

    /// Multiplies this many tiles of jobs.
    pub(crate) fn run_matmul(
        &self,
        b: &mut Wgpu,
        jobs: Placed<'_>,
        input: &KernelInput,
        tiles: TileList,
        shape: F32Tiles,
    ) {
        let is_aligned = self.is_aligned(jobs.each, &[input.stride, input.start]);
        let mut params = self.decoder.params(self.cols).to_vec();
        params.extend([jobs.first, tiles.first, word(tiles.n)]);
        let tables = b.weights_or_codebook(self.decoder, jobs.weights);
        b.encoder.dispatch(
            shape.kernel(self.decoder.constants(), is_aligned),
            &params,
            &[jobs.weights, &tables, jobs.lists, &input.x, self.y],
            Grid::Plane(jobs.n_rows.div_ceil(shape.w_tile as usize), tiles.n),
        );
    }
}

/// Jobs that begin in a list.
fn placed<'a>(jobs: &'a [Job], first: u32, lists: &'a Mem) -> Placed<'a> {
    let n_rows = jobs.iter().map(|job| job.n_rows).max().unwrap_or(0);
    let total_rows = jobs.iter().map(|job| job.n_rows).sum();
    let (weights, n_jobs) = (&jobs[0].mem, jobs.len());
    Placed { weights, lists, first, n_jobs, n_rows, total_rows, each: jobs, plain: None }
}
