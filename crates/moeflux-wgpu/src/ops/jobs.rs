//! What products consist of: rows of matrices, and rows of activations that they meet.

use std::ops::Range;

use crate::buffer::Mem;
use crate::matrix::Matrix;
use crate::rounded::Digits;
use crate::weights::Place;

/// Most rows of activations that go through the kernel for few, side by side in parts of
/// so many: on an H200 in a quarter to a half of the time that the kernels for many take.
pub(super) const FEW_ROWS: usize = 64;
pub(super) const PART_ROWS: usize = 8;

/// The same of narrow matrices, which leave most of a device idle: 16 us for eight rows in
/// one part, 7 for two.
pub(super) const NARROW_PART_ROWS: usize = 2;

/// The same of those that an expert gets in a step with more rows, where no units for
/// matrices multiply it.
pub(super) const GROUP_ROWS: usize = 8;

/// Most rows of a narrow matrix: common tiles of it would leave most of a device idle.
const NARROW: usize = 512;

/// Whether products with a matrix of so many rows are those of narrow ones.
pub(super) fn is_narrow(digits: Option<Digits>, n_rows: usize) -> bool {
    digits.is_none() && n_rows <= NARROW
}

/// Whether steps of so many rows go through the kernel for few.
pub(crate) fn holds_rows(rows: usize) -> bool {
    rows <= FEW_ROWS
}

/// All of a list.
pub(super) const WHOLE: Range<usize> = 0..usize::MAX;

/// The same jobs for few rows of activations each, which go side by side: at most so many
/// of a job.
pub(super) fn in_parts(jobs: Vec<Job>, lists: &[List], most: impl Fn(&Job) -> usize) -> Vec<Job> {
    let fits = |job: &Job| lists[job.list].len() <= most(job);
    if jobs.iter().all(fits) {
        return jobs;
    }
    let part = |job: &Job, first| Job { part: first..first + most(job), ..job.clone() };
    let firsts = |job: &Job| (0..lists[job.list].len()).step_by(most(job));
    jobs.iter().flat_map(|job| firsts(job).map(|it| part(job, it))).collect()
}

/// Rows of a matrix, and the rows of activations that they meet.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) mem: Mem,
    pub(super) place: Place,
    /// Rows of the first rectangle that lie before the matrix.
    pub(super) phase: usize,
    pub(super) first_row: usize,
    pub(super) n_rows: usize,
    /// Which of the lists, and what of it, as far as it goes.
    pub(super) list: usize,
    pub(super) part: Range<usize>,
    /// Added to where activations and outputs lie.
    pub(super) x: usize,
    pub(super) out: usize,
}

impl Job {
    /// Rows of activations out of its list.
    pub(super) fn n_rows_of(&self, list: &List) -> usize {
        self.part.end.min(list.len()) - self.part.start
    }
}

/// Rows of activations, and where their outputs begin.
pub(super) type List = Vec<(usize, usize)>;

/// The pieces of a matrix as jobs of one list.
pub(super) fn jobs_of(matrix: &Matrix, list: usize, out: usize) -> impl Iterator<Item = Job> {
    matrix.pieces.iter().map(move |it| Job {
        mem: it.mem.clone(),
        place: it.place,
        phase: it.phase,
        first_row: 0,
        n_rows: it.rows.len(),
        list,
        part: WHOLE,
        x: 0,
        out: out + it.rows.start,
    })
}
