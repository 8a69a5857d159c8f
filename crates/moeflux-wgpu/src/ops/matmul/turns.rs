//! Products in turns: where submissions are bounded by time, each turn fits one.

use crate::device::work::{Pace, Work};
use crate::ops::matmul::jobs::Job;

/// Rows of a matrix that stay together: kernels choose tiles by the rows of a job, and take others for
/// narrow matrices.
const LEAST_ROWS: usize = 1024;

/// Where parts of a matrix begin: whole tiles, and whole rectangles of scales of most formats.
const STEP: usize = 128;

/// Jobs in turns, those of long products cut by rows of their matrices; `work` is what a job does.
pub(super) fn turns(jobs: Vec<Job>, pace: Pace, work: impl Fn(&Job) -> Work) -> Vec<Vec<Job>> {
    let mut all: Vec<Vec<Job>> = Vec::new();
    let mut seconds = 0.0;
    for job in jobs.iter().flat_map(|job| cut(job, pace.n_parts(work(job)))) {
        let work = work(&job);
        if all.is_empty() || pace.is_due(seconds, work) {
            all.push(Vec::new());
            seconds = 0.0;
        }
        seconds += pace.seconds(work);
        all.last_mut().expect("a turn has begun").push(job);
    }
    all
}

/// The rows of a job's matrix in about `n` parts.
fn cut(job: &Job, n: usize) -> impl Iterator<Item = Job> {
    let n = n.min(job.n_rows / LEAST_ROWS).max(1);
    let rows = job.n_rows.div_ceil(n).next_multiple_of(STEP).max(1);
    let part = move |first: usize| Job {
        first_row: job.first_row + first,
        n_rows: rows.min(job.n_rows - first),
        out: job.out + first,
        ..job.clone()
    };
    (0..job.n_rows).step_by(rows).map(part)
}
