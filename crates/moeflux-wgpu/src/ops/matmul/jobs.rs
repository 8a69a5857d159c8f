//! What products consist of: rows of matrices, and rows of activations that they meet.

use std::ops::Range;

use crate::device::buffer::Mem;
use crate::layouts::format::Place;
use crate::memory::weights::matrix::Matrix;
use crate::state::quantized_inputs::ActivationQuant;

/// Most rows of activations that go through the kernel for few, side by side in parts of this
/// many: on an H200 in a quarter to a half of the time that the kernels for many take.
pub(crate) const FEW_ROWS: usize = 64;
pub(crate) const PART_ROWS: usize = 8;

/// Rows of a part of narrow matrices, which leave most of a device idle: 16 us for eight rows in
/// one part, 7 for two.
pub(crate) const NARROW_PART_ROWS: usize = 2;

/// Rows of a part of those that an expert gets in a step with more rows, where no cooperative
/// matrices multiply it.
pub(crate) const GROUP_ROWS: usize = 8;

/// Most rows of a narrow matrix: common tiles of it would leave most of a device idle.
const NARROW: usize = 512;

/// Whether products with a matrix of this many rows are those of narrow ones.
pub(crate) fn is_narrow(quant: Option<ActivationQuant>, n_rows: usize) -> bool {
    quant.is_none() && n_rows <= NARROW
}

/// Whether steps of this many rows go through the kernel for few.
pub(crate) fn holds_rows(rows: usize) -> bool {
    rows <= FEW_ROWS
}

/// All of a list.
pub(crate) const WHOLE: Range<usize> = 0..usize::MAX;

/// Divides jobs into parts of few rows of activations, which run side by side: at most `most` of a
/// job.
pub(crate) fn in_parts(jobs: Vec<Job>, lists: &[List], most: impl Fn(&Job) -> usize) -> Vec<Job> {
    let fits = |job: &Job| lists[job.list].len() <= most(job);
    if jobs.iter().all(fits) {
        return jobs;
    }
    let part = |job: &Job, first| Job { part: first..first + most(job), ..job.clone() };
    let firsts = |job: &Job| (0..lists[job.list].len()).step_by(most(job));
    jobs.iter().flat_map(|job| firsts(job).map(|first| part(job, first))).collect()
}

/// Rows of a matrix, and the rows of activations that they meet.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) mem: Mem,
    pub(crate) place: Place,
    /// Rows of the first rectangle that are before the matrix.
    pub(crate) phase: usize,
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    /// Which of the lists, and what of it, as far as it goes.
    pub(crate) list: usize,
    pub(crate) part: Range<usize>,
    /// Added to where activations and outputs are.
    pub(crate) x: usize,
    pub(crate) out: usize,
}

impl Job {
    /// Rows of activations out of its list.
    pub(crate) fn n_rows_of(&self, list: &List) -> usize {
        self.part.end.min(list.len()) - self.part.start
    }
}

/// Rows of activations, and where their outputs begin.
pub(crate) type List = Vec<(usize, usize)>;

/// The pieces of a matrix as jobs of one list.
pub(crate) fn jobs_of(matrix: &Matrix, list: usize, out: usize) -> impl Iterator<Item = Job> {
    matrix.pieces.iter().map(move |piece| Job {
        mem: piece.mem.clone(),
        place: piece.place,
        phase: piece.phase,
        first_row: 0,
        n_rows: piece.rows.len(),
        list,
        part: WHOLE,
        x: 0,
        out: out + piece.rows.start,
    })
}
