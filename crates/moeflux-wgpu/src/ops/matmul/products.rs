//! Products with weight matrices, and embeddings.
//!
//! Few rows of activations go through `matmul/matvec.wgsl`, many through
//! `matmul/matmul.wgsl`; which of them depends on a job's rows alone, so that a job's
//! bits do not depend on what else is asked for.

use crate::ops::matmul::kernel::Chosen;
use crate::ops::matmul::kernel::Kernel;

use crate::device::buffer::Mem;
use crate::device::work::Work;
use crate::layouts::format::Decoder;
use crate::ops::matmul::jobs::{Job, List, NARROW_PART_ROWS, PART_ROWS, in_parts, is_narrow};
use crate::ops::matmul::kernel::TakenBy;
use crate::ops::matmul::layouts::{ProductKind, layout, measured_as, uses_coop_matrix};
use crate::ops::matmul::source::Source;
use crate::ops::matmul::turns::turns;
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::ActivationQuant;

/// Products of matrices of one format with rows of one input.
pub(crate) struct Products<'a> {
    pub(crate) decoder: Decoder,
    pub(crate) quant: Option<ActivationQuant>,
    pub(crate) lists: &'a [List],
    pub(crate) jobs: Vec<Job>,
    pub(crate) y: Mem,
    /// Set where the device knows what jobs stand for, see [`Chosen`].
    pub(crate) chosen: Option<Chosen<'a>>,
    /// Rows of a job up to which they are few.
    pub(crate) most_few: usize,
}

/// Computes products. The op has begun before.
pub(crate) fn run(b: &mut Wgpu, source: &Source, products: Products<'_>) {
    let Products { decoder, quant, lists, jobs, y, chosen, most_few } = products;
    let is_few = |job: &Job| lists[job.list].len() <= most_few;
    let (few, many): (Vec<Job>, Vec<Job>) =
        jobs.into_iter().filter(|job| !lists[job.list].is_empty()).partition(is_few);
    for (jobs, are_few) in [(few, true), (many, false)] {
        if jobs.is_empty() {
            continue;
        }
        let part_rows =
            |job: &Job| if is_narrow(quant, job.n_rows) { NARROW_PART_ROWS } else { PART_ROWS };
        let alike = measured_as(&jobs);
        let jobs = if are_few { in_parts(jobs, lists, part_rows) } else { jobs };
        let most = jobs.iter().map(|job| job.n_rows_of(&lists[job.list])).max().unwrap_or(0);
        let uses_coop = !are_few && uses_coop_matrix(b, quant, source.cols);
        let quant = ActivationQuant::of_kernel(quant, uses_coop);
        let kind = ProductKind { decoder, quant, cols: source.cols };
        let layout = layout(b, kind, alike, most);
        let kernel = Kernel { decoder, quant, cols: source.cols, lists, y: &y, chosen };
        let input = kernel.take(b, source, TakenBy { are_few, uses_coop }, layout);
        let work = |job: &Job| {
            let row_bytes = decoder.row_bytes(source.cols);
            let x_rows = job.n_rows_of(&lists[job.list]);
            Work::product(job.n_rows, row_bytes, source.cols, x_rows)
        };
        let mut rest = jobs;
        while !rest.is_empty() {
            let id = rest[0].mem.id;
            let (now, later) = rest.into_iter().partition(|job: &Job| job.mem.id == id);
            rest = later;
            // The device finds its choices by the numbers of jobs.
            let turns = match b.encoder.pace().filter(|_| chosen.is_none()) {
                Some(pace) => turns(now, pace, work),
                None => vec![now],
            };
            for now in turns {
                b.encoder.go_on(now.iter().map(work).sum());
                if are_few {
                    kernel.matvec(b, &now, &input, layout);
                } else if uses_coop {
                    kernel.coop_matmul(b, &now, &input);
                } else {
                    kernel.matmul(b, &now, &input);
                }
            }
        }
    }
}
