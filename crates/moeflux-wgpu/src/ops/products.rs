//! Products with weight matrices, and embeddings.
//!
//! Few rows of activations go through `matvec.wgsl`, many through
//! `matmul.wgsl`; which of them depends on a job's rows alone, so that a job's
//! bits do not depend on what else is asked for.

use moeflux_backend::{ActivationPrecision, Cols, Projection, Weight};
use moeflux_core::TokenId;

use super::activation::Between;
use super::jobs::{
    FEW_ROWS, Job, List, NARROW_PART_ROWS, PART_ROWS, holds_rows, in_parts, is_narrow, jobs_of,
};
use super::rounding::round;
use super::shares::ends;
use crate::buffer::Mem;
use crate::grid::Grid;
use crate::kept_layer::KeptLayer;
use crate::layout::{Form, Halves, Layout, Singles, Tiles, virtual_lanes};
use crate::ops::layouts::{halves, is_in_halves, layout, measured_as, singles};
use crate::ops::source::Source;
use crate::rounded::{Digits, Rounded, Taken, digits, halves_stride, rounded_form};
use crate::shader::{Shader, Variant};
use crate::state::Wgpu;
use crate::weights::{BLOCK, Decoder};
use crate::words::{ELEMENTS, word};

/// Products of matrices of one format with rows of one input.
pub(super) struct Products<'a> {
    pub(super) decoder: Decoder,
    pub(super) digits: Option<Digits>,
    pub(super) lists: &'a [List],
    pub(super) jobs: Vec<Job>,
    pub(super) y: Mem,
    /// Set where the device knows what jobs stand for, see [`Chosen`].
    pub(super) chosen: Option<Chosen<'a>>,
    /// Rows of a job up to which they are few.
    pub(super) most_few: usize,
}

/// Experts that the device chose: the elements of a job's place say which
/// matrix of an expert it means. The jobs of a matrix are those of all choices in turn.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    pub(super) ids: &'a Mem,
    pub(super) layer: &'a KeptLayer,
    /// Choices, those of the expert that every row gets included, and those that are not.
    pub(super) n: usize,
    pub(super) n_chosen: usize,
    /// Set where the kernel computes what it multiplies: of each choice the row of its
    /// number.
    pub(super) between: Option<&'a Between>,
}

/// Most rows of activations that `matvec.wgsl` has at once.
const MOST_AT_ONCE: usize = 4;

/// Words of a job.
const JOB_WORDS: usize = 9;

/// Computes products. The op has begun before.
pub(super) fn run(b: &mut Wgpu, source: &Source, products: Products<'_>) {
    let Products { decoder, digits, lists, jobs, y, chosen, most_few } = products;
    let is_few = |job: &Job| lists[job.list].len() <= most_few;
    let (few, many): (Vec<Job>, Vec<Job>) =
        jobs.into_iter().filter(|it| !lists[it.list].is_empty()).partition(is_few);
    for (jobs, are_few) in [(few, true), (many, false)] {
        if jobs.is_empty() {
            continue;
        }
        let part_rows = |job: &Job| match is_narrow(digits, job.n_rows) {
            true => NARROW_PART_ROWS,
            false => PART_ROWS,
        };
        let alike = measured_as(&jobs);
        let jobs = if are_few { in_parts(jobs, lists, part_rows) } else { jobs };
        let most = jobs.iter().map(|it| it.n_rows_of(&lists[it.list])).max().unwrap_or(0);
        let in_halves = !are_few && is_in_halves(b, digits, source.cols);
        let digits = Digits::of_kernel(digits, in_halves);
        let of = (decoder, digits, source.cols);
        let layout = layout(b, of, alike, most);
        let kernel = Kernel { decoder, digits, cols: source.cols, lists, y: &y, chosen };
        let taken = kernel.take(b, source, (are_few, in_halves), layout);
        let mut rest = jobs;
        while !rest.is_empty() {
            let id = rest[0].mem.id;
            let (now, later) = rest.into_iter().partition(|it: &Job| it.mem.id == id);
            rest = later;
            if are_few {
                kernel.matvec(b, &now, &taken, layout);
            } else if in_halves {
                kernel.matmul_halves(b, &now, &taken);
            } else {
                kernel.matmul(b, &now, &taken);
            }
        }
    }
}

/// What the products of a dispatch have in common.
#[derive(Clone, Copy)]
pub(super) struct Kernel<'a> {
    pub(super) decoder: Decoder,
    pub(super) digits: Option<Digits>,
    pub(super) cols: usize,
    pub(super) lists: &'a [List],
    pub(super) y: &'a Mem,
    pub(super) chosen: Option<Chosen<'a>>,
}

/// Jobs where kernels read them.
#[derive(Clone, Copy)]
pub(super) struct Placed<'a> {
    /// What they read.
    pub(super) weights: &'a Mem,
    /// Where jobs and their lists lie, and the first job.
    pub(super) lists: &'a Mem,
    pub(super) first: u32,
    pub(super) n_jobs: usize,
    /// Most rows of a job.
    pub(super) n_rows: usize,
    /// Rows of all.
    pub(super) total_rows: usize,
    /// Each of them, where the host knows them.
    pub(super) each: &'a [Job],
    /// What those of them read that take inputs as they are, where others round them.
    pub(super) plain: Option<&'a Taken>,
}

impl Kernel<'_> {
    /// The source's rows as kernels for few or many rows take them.
    pub(super) fn take(
        &self,
        b: &mut Wgpu,
        source: &Source,
        (are_few, in_halves): (bool, bool),
        layout: Layout,
    ) -> Taken {
        if let Some(between) = self.chosen.and_then(|it| it.between) {
            return between.taken();
        }
        let Some(digits) = self.digits else {
            return Taken {
                x: source.mem.clone(),
                sums: source.mem.clone(),
                stride: source.width,
                start: source.start,
            };
        };
        let form = match (are_few, layout.form) {
            (false, _) if in_halves => Rounded::Halves,
            (false, _) => Rounded::Values,
            (true, _) => rounded_form(layout),
        };
        round(b, source, digits, form)
    }

    /// Puts jobs and their lists into the arena.
    pub(super) fn jobs(&self, b: &mut Wgpu, jobs: &[Job], taken: &Taken) -> u32 {
        let words = self.job_words(b, jobs, taken);
        b.encoder.list(&words)
    }

    /// Puts the lists of jobs into the arena; gives the jobs.
    fn job_words(&self, b: &mut Wgpu, jobs: &[Job], taken: &Taken) -> Vec<u32> {
        let mut places: Vec<Option<u32>> = vec![None; self.lists.len()];
        let mut words = Vec::with_capacity(JOB_WORDS * jobs.len());
        for job in jobs {
            let list = &self.lists[job.list];
            let place = *places[job.list].get_or_insert_with(|| {
                let pair = |(row, out): &(usize, usize)| {
                    [word(row * taken.stride + taken.start), word(*out)]
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

    fn matvec(&self, b: &mut Wgpu, jobs: &[Job], taken: &Taken, layout: Layout) {
        let most = jobs.iter().map(|it| it.n_rows_of(&self.lists[it.list])).max().unwrap_or(0);
        let first = self.jobs(b, jobs, taken);
        let lists = b.encoder.arena();
        let are_aligned = jobs.iter().all(|it| it.x.is_multiple_of(4));
        self.run_matvec(b, placed(jobs, first, &lists), taken, layout, (most, are_aligned));
    }

    /// The same with jobs in the same buffer whose inputs are as they are.
    fn matvec_both(
        &self,
        b: &mut Wgpu,
        (jobs, plain): (Vec<Job>, Vec<Job>),
        (taken, as_is): (&Taken, &Taken),
        layout: Layout,
    ) {
        // Inputs as they are take longest: no more than rounded ones take at once.
        let jobs = in_parts(jobs, self.lists, |_| PART_ROWS);
        let mut plain = in_parts(plain, self.lists, |_| MOST_AT_ONCE);
        let all = jobs.iter().map(|it| it.n_rows_of(&self.lists[it.list]));
        let most = all.max().unwrap_or(0);
        plain.iter_mut().for_each(|it| it.phase = 1);
        // The longest way first.
        let mut words = self.job_words(b, &plain, as_is);
        words.extend(self.job_words(b, &jobs, taken));
        let first = b.encoder.list(&words);
        let (lists, all) = (b.encoder.arena(), [plain, jobs].concat());
        let placed = Placed { plain: Some(as_is), ..placed(&all, first, &lists) };
        self.run_matvec(b, placed, taken, layout, (most, true));
    }

    /// Multiplies jobs with at most so many rows of activations, `are_aligned`
    /// where these begin at multiples of four.
    pub(super) fn run_matvec(
        &self,
        b: &mut Wgpu,
        jobs: Placed<'_>,
        taken: &Taken,
        layout: Layout,
        (most, are_aligned): (usize, bool),
    ) {
        let Layout { form, lanes, rows, depth, threads, groups } = layout;
        let x_rows = word(most.next_power_of_two().min(MOST_AT_ONCE));
        let mut params = self.decoder.params(self.cols).to_vec();
        params.extend([jobs.first, word(jobs.n_jobs)]);
        let mut buffers =
            vec![jobs.weights, jobs.weights, jobs.lists, &taken.x, &taken.sums, self.y];
        let mut shader = Shader::Matvec;
        let between = self.chosen.and_then(|it| it.between);
        if let Some(Chosen { ids, layer, n, n_chosen, .. }) = self.chosen {
            let buffer = layer.buffers.iter().position(|it| it.id == jobs.weights.id);
            let buffer = buffer.expect("jobs read buffers of their layer");
            params.extend([word(layer.slots.len()), word(buffer)]);
            params.extend([word(n), word(n_chosen)]);
            params.extend(between.map_or([0; 2], |it| it.params));
            let table = layer.table.as_ref().expect("all experts of the layer are kept");
            buffers.extend([ids, table]);
            shader = Shader::MatvecChosen;
            if let Some(between) = between {
                buffers.push(between.ups(ids));
                shader = Shader::MatvecActivates;
            }
        } else {
            params.extend([0; 6]);
        }
        if let Some(Taken { x, .. }) = jobs.plain {
            buffers.push(x);
            shader = Shader::MatvecBoth;
        }
        let n_digits = self.digits.map_or(0, |it| it.n_digits);
        let Taken { stride, start, .. } = jobs.plain.unwrap_or(taken);
        let is_aligned = are_aligned && self.is_aligned(&[], &[*stride, *start]);
        let has_plain = n_digits == 0 || jobs.plain.is_some();
        // Units for matrices were tried with such halves.
        let mut consts = self.decoder.consts_with(b.tiles != Tiles::Singles).to_vec();
        let is_fma = n_digits > 0 && form == Form::Floats;
        consts.extend([n_digits, u32::from(is_fma), u32::from(has_plain && is_aligned)]);
        let n_units = self.decoder.n_units(self.cols);
        let vlanes = virtual_lanes(n_units);
        let once = most <= x_rows as usize && layout.reads_once(n_units, n_digits, x_rows);
        let n_large = jobs.total_rows.div_ceil(jobs.n_rows.max(1)).max(1);
        let most_groups = between.map_or(usize::MAX, Between::most_groups);
        let groups = (groups as usize).min(most_groups).div_ceil(n_large);
        let per_group = (threads / lanes * rows) as usize;
        let ends = ends(jobs.each.iter().map(|it| it.n_rows), per_group, groups);
        let flags = [once, ends.is_some()].map(u32::from);
        consts.extend([vlanes, lanes, rows, x_rows, depth, threads, flags[0], flags[1]]);
        if let Some((between, digits)) = between.zip(self.digits) {
            consts.extend(between.prelude_consts(digits, rounded_form(layout)));
        }
        params.extend(ends.unwrap_or_default());
        let grid = match ends {
            Some([.., all]) => Grid::Linear(all as usize),
            None => Grid::Plane(jobs.n_rows.div_ceil(per_group).min(groups), jobs.n_jobs),
        };
        b.encoder.dispatch(Variant::new(shader, &consts), &params, &buffers, grid);
    }

    /// Whether rows of activations that lie at sums of these begin at multiples of 16 bytes,
    /// and end with their last block.
    fn is_aligned(&self, jobs: &[Job], places: &[usize]) -> bool {
        let mut all = places.iter().copied().chain(jobs.iter().map(|it| it.x));
        self.cols.is_multiple_of(BLOCK) && all.all(|it| it.is_multiple_of(4))
    }

    /// Every job's rows of activations in tiles of so many; gives the list and
    /// its length.
    fn tiles(&self, b: &mut Wgpu, jobs: &[Job], rows: u32) -> (u32, usize) {
        let mut tiles = Vec::new();
        for (i, job) in jobs.iter().enumerate() {
            let starts = (0..self.lists[job.list].len()).step_by(rows as usize);
            tiles.extend(starts.map(|it| [word(i), word(it)]));
        }
        (b.encoder.list(tiles.as_flattened()), tiles.len())
    }

    fn matmul_halves(&self, b: &mut Wgpu, jobs: &[Job], taken: &Taken) {
        let digits = self.digits.expect("inputs are rounded");
        let n_jobs = jobs.len();
        let x_rows: usize = jobs.iter().map(|it| self.lists[it.list].len()).sum();
        let w_rows: usize = jobs.iter().map(|it| it.n_rows).sum();
        let of = (n_jobs, x_rows.div_ceil(n_jobs), w_rows.div_ceil(n_jobs));
        let shape = halves(b, (self.decoder, digits), of);
        let first = self.jobs(b, jobs, taken);
        let tiles = self.tiles(b, jobs, shape.x_tile);
        let arena = b.encoder.arena();
        self.run_matmul_halves(b, placed(jobs, first, &arena), taken, tiles, shape);
    }

    /// Multiplies so many tiles of jobs.
    pub(super) fn run_matmul_halves(
        &self,
        b: &mut Wgpu,
        jobs: Placed<'_>,
        taken: &Taken,
        (tiles, n_tiles): (u32, usize),
        shape: Halves,
    ) {
        let digits = self.digits.expect("inputs are rounded");
        let stride = halves_stride(self.cols, digits);
        let mut params = self.decoder.params(self.cols).to_vec();
        params.extend([jobs.first, tiles, word(n_tiles), word(stride)]);
        let mut consts = self.decoder.consts().to_vec();
        let summands = self.decoder.in_halves().summands();
        consts.extend(shape.consts(digits.parts(), summands, b.tiles == Tiles::Emulated));
        b.encoder.dispatch(
            Variant::new(Shader::MatmulHalves, &consts),
            &params,
            &[jobs.weights, jobs.weights, jobs.lists, &taken.x, &taken.sums, self.y],
            Grid::Plane(jobs.n_rows.div_ceil(shape.w_tile as usize), n_tiles),
        );
    }

    fn matmul(&self, b: &mut Wgpu, jobs: &[Job], taken: &Taken) {
        let of = |it: &Job| singles(self.digits, it.n_rows);
        for shape in [Singles::NARROW, Singles::WIDE] {
            let jobs: Vec<Job> = jobs.iter().filter(|it| of(it) == shape).cloned().collect();
            if jobs.is_empty() {
                continue;
            }
            let first = self.jobs(b, &jobs, taken);
            let tiles = self.tiles(b, &jobs, shape.x_tile);
            let arena = b.encoder.arena();
            self.run_matmul(b, placed(&jobs, first, &arena), taken, tiles, shape);
        }
    }

    /// Multiplies so many tiles of jobs.
    pub(super) fn run_matmul(
        &self,
        b: &mut Wgpu,
        jobs: Placed<'_>,
        taken: &Taken,
        (tiles, n_tiles): (u32, usize),
        shape: Singles,
    ) {
        let is_aligned = self.is_aligned(jobs.each, &[taken.stride, taken.start]);
        let mut consts = self.decoder.consts().to_vec();
        consts.extend(shape.consts(is_aligned));
        let mut params = self.decoder.params(self.cols).to_vec();
        params.extend([jobs.first, tiles, word(n_tiles)]);
        b.encoder.dispatch(
            Variant::new(Shader::Matmul, &consts),
            &params,
            &[jobs.weights, jobs.lists, &taken.x, self.y],
            Grid::Plane(jobs.n_rows.div_ceil(shape.w_tile as usize), n_tiles),
        );
    }
}

/// Jobs that begin in a list.
fn placed<'a>(jobs: &'a [Job], first: u32, lists: &'a Mem) -> Placed<'a> {
    let n_rows = jobs.iter().map(|it| it.n_rows).max().unwrap_or(0);
    let total_rows = jobs.iter().map(|it| it.n_rows).sum();
    let (weights, n_jobs) = (&jobs[0].mem, jobs.len());
    Placed { weights, lists, first, n_jobs, n_rows, total_rows, each: jobs, plain: None }
}

pub(crate) fn project(b: &mut Wgpu, rows: usize, x: Cols, outputs: &[Projection]) {
    b.encoder.begin();
    let source = Source::of(b, x, rows);
    // Same format, same inputs and same output buffer: one set of products.
    let mut rest: Vec<&Projection> = outputs.iter().collect();
    while let Some(first) = rest.first() {
        let of = |b: &Wgpu, it: &Projection| {
            let matrix = b.matrix(it.weight);
            (matrix.decoder, matrix.inputs, it.out.buf)
        };
        let common = of(b, first);
        let (now, later) = rest.iter().partition(|it| of(b, it) == common);
        rest = later;
        let (decoder, inputs, buf) = common;
        let out = b.written(buf);
        let lists = [(0..rows).map(|row| (row, row * out.width)).collect()];
        let mut jobs = Vec::new();
        let now: Vec<&Projection> = now;
        let add = |b: &Wgpu, jobs: &mut Vec<Job>, it: &Projection| {
            let matrix = b.matrix(it.weight);
            assert_eq!((matrix.rows, matrix.cols), (it.out.len, x.len), "shape of a projection");
            assert!(it.out.start + it.out.len <= out.width, "columns lie inside their buffer");
            jobs.extend(jobs_of(matrix, 0, it.out.start));
        };
        now.into_iter().for_each(|it| add(b, &mut jobs, it));
        let digits = digits(decoder, inputs);
        let y = out.mem.clone();
        let (chosen, most_few) = (None, FEW_ROWS);
        let products = Products { decoder, digits, lists: &lists, jobs, y, chosen, most_few };
        if Digits::of_kernel(digits, false).is_none() || !holds_rows(rows) || !b.fuses {
            run(b, &source, products);
            continue;
        }
        // Those of inputs as they are go along.
        let (plain, later) =
            rest.iter().partition(|it| of(b, it) == (decoder, ActivationPrecision::F32, buf));
        rest = later;
        let (mut jobs, plain): (Vec<Job>, Vec<&Projection>) = (Vec::new(), plain);
        plain.into_iter().for_each(|it| add(b, &mut jobs, it));
        run_both(b, &source, products, jobs);
    }
}

/// Computes products with few rows of activations, and `plain` ones in the same
/// format whose inputs are as they are.
fn run_both(b: &mut Wgpu, source: &Source, products: Products<'_>, mut plain: Vec<Job>) {
    let Products { decoder, digits, lists, mut jobs, y, chosen, most_few } = products;
    let id = jobs[0].mem.id;
    let is_together = jobs.iter().chain(&plain).all(|it| it.mem.id == id);
    if is_together && !plain.is_empty() {
        let of = (decoder, digits, source.cols);
        let layout = layout(b, of, measured_as(&jobs), source.n_rows);
        let kernel = Kernel { decoder, digits, cols: source.cols, lists, y: &y, chosen };
        let taken = kernel.take(b, source, (true, false), layout);
        let as_is = Kernel { digits: None, ..kernel }.take(b, source, (true, false), layout);
        let both = (std::mem::take(&mut jobs), std::mem::take(&mut plain));
        kernel.matvec_both(b, both, (&taken, &as_is), layout);
    }
    let rounded = Products { decoder, digits, lists, jobs, y, chosen, most_few };
    let y = rounded.y.clone();
    run(b, source, rounded);
    let digits = None;
    run(b, source, Products { decoder, digits, lists, jobs: plain, y, chosen, most_few });
}

pub(crate) fn embed(b: &mut Wgpu, out: Cols, table: Weight, tokens: &[TokenId]) {
    b.encoder.begin();
    let y = b.written(out.buf);
    assert!(out.start + out.len <= y.width, "columns lie inside their buffer");
    let matrix = b.matrix(table).clone();
    assert_eq!(matrix.cols, out.len, "columns of an embedding");
    let words: Vec<u32> = tokens.iter().map(|it| it.0).collect();
    let list = b.encoder.list(&words);
    b.encoder.note_tokens(list, words.len());
    let arena = b.encoder.arena();
    for piece in &matrix.pieces {
        let mut params = matrix.decoder.params(matrix.cols).to_vec();
        params.extend([list, word(tokens.len()), piece.place.elements, piece.place.scales]);
        params.extend([word(piece.phase), word(piece.rows.start), word(piece.rows.len())]);
        params.extend([word(out.start), word(y.width)]);
        let n = tokens.len() * matrix.cols.div_ceil(BLOCK) * 8;
        b.encoder.dispatch(
            Variant::new(Shader::Embed, &matrix.decoder.consts()),
            &params,
            &[&piece.mem, &arena, &y.mem],
            Grid::Linear(n.div_ceil(ELEMENTS)),
        );
    }
}
