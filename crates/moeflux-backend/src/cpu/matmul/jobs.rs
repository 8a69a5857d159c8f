//! Several products at once: cut into tasks of equal work, one fork for all.

use std::cell::Cell;
use std::ops::Range;

use moeflux_core::quant::MatrixView;

use super::dispatch::integer_rows;
use super::full;
use super::integers::Integers;
use super::job::{Activations, MatmulJob};
use super::prepacked::{Input, Inputs};
use super::product::{FullProduct, IntegerProduct};
use super::rows::OutPart;
use crate::cpu::Isa;

#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Level;
use crate::cpu::pool::Pool;

/// Computes all jobs with one fork.
///
/// # Panics
/// If shapes do not fit, a row is outside its buffer, or two outputs are the
/// same element.
pub fn run_jobs(pool: &Pool, isa: Isa, jobs: &[MatmulJob<'_>]) {
    let mut lists = LISTS.take();
    jobs.iter().for_each(MatmulJob::check);
    check_outputs_are_disjoint(jobs, &mut lists.spans);
    #[cfg(target_arch = "x86_64")]
    super::amx::prepack_all(&mut lists.inputs, pool, isa, jobs);
    run_checked(pool, isa, jobs, &lists.inputs, &mut lists.tasks);
    LISTS.set(lists);
}

/// What [`run_jobs`] writes down, kept from call to call.
#[derive(Default)]
struct Lists {
    tasks: Vec<Task>,
    /// Addresses of the outputs.
    spans: Vec<Range<usize>>,
    inputs: Inputs,
}

/// Some rows of the matrix of a job.
struct Task {
    job: usize,
    rows: Range<usize>,
}

thread_local! {
    static LISTS: Cell<Lists> = Cell::default();
}

fn run_checked(
    pool: &Pool,
    isa: Isa,
    jobs: &[MatmulJob<'_>],
    inputs: &Inputs,
    tasks: &mut Vec<Task>,
) {
    let total: usize = jobs.iter().map(|job| job.cost() * job.weight.rows).sum();
    if pool.n_threads() == 1 || total < FORK_COST {
        for (i, job) in jobs.iter().enumerate() {
            // SAFETY: outputs are disjoint, and nothing else runs.
            unsafe { run_job(job, isa, inputs.of(i), 0..job.weight.rows, None) };
        }
        return;
    }
    let few = task_cost(total, pool.n_threads(), TASKS_PER_THREAD);
    let many = task_cost(total, pool.n_threads(), MANY_TASKS_PER_THREAD);
    cut(isa, jobs, TaskCosts { few, many }, tasks);
    let run = |i: usize| {
        let at = in_lanes(i, tasks.len(), pool.n_threads());
        let Task { job, rows } = &tasks[at];
        let next = tasks.get(at + 1).map(|task| (jobs[task.job].weight, task.rows.start));
        // SAFETY: outputs of different jobs are disjoint, and each row of a job is in one task.
        unsafe { run_job(&jobs[*job], isa, inputs.of(*job), rows.clone(), next) };
    };
    if total < WAKE_COST { pool.run_small(tasks.len(), &run) } else { pool.run(tasks.len(), &run) }
}

/// The `i`-th of `n_tasks` to be taken, where `n_lanes` threads take turns and
/// each goes through its own part in the order of memory: what it asked
/// for ahead is what it takes next.
fn in_lanes(i: usize, n_tasks: usize, n_lanes: usize) -> usize {
    let (lane, at) = (i % n_lanes, i / n_lanes);
    lane * (n_tasks / n_lanes) + lane.min(n_tasks % n_lanes) + at
}

/// Rows of the matrix that kernels like to take together.
const BLOCK_ROWS: usize = 16;
/// Rows of a block with [`MANY_ROWS`] rows of activations or more: whole panels.
fn many_block_rows(isa: Isa) -> usize {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => super::avx512::PANEL_ROWS,
        #[cfg(target_arch = "x86_64")]
        Level::Amx => super::amx::PANEL_ROWS,
        _ => 64,
    }
}
/// Rows of activations that make them better.
const MANY_ROWS: usize = 4;

// Costs are in bytes that one thread streams from memory, about 15 per nanosecond.
/// Below this, five microseconds, a fork costs more than it gains.
pub(super) const FORK_COST: usize = 80 << 10;
/// Below this, fifty microseconds, waking a thread may cost more than it gains.
const WAKE_COST: usize = 750 << 10;
/// The least that is worth a task.
const TASK_COST: usize = 40 << 10;
/// The most where there are many: a third of a millisecond of arithmetic, as it is not known which
/// thread is the slower one.
const LARGE_TASK_COST: usize = 16 << 20;
/// Tasks of a thread with few rows of activations: the threads end within a sixteenth of the time.
const TASKS_PER_THREAD: usize = 16;
/// And with [`MANY_ROWS`] or more, which each task reads again.
const MANY_TASKS_PER_THREAD: usize = 4;

/// What a task costs, where all of them cost `total`.
fn task_cost(total: usize, n_threads: usize, tasks_per_thread: usize) -> usize {
    (total / (n_threads * tasks_per_thread)).clamp(TASK_COST, LARGE_TASK_COST)
}

/// What a task costs, by the rows of activations of its job.
#[derive(Clone, Copy)]
struct TaskCosts {
    few: usize,
    many: usize,
}

/// Cuts all jobs into tasks of about that cost.
fn cut(isa: Isa, jobs: &[MatmulJob<'_>], costs: TaskCosts, tasks: &mut Vec<Task>) {
    tasks.clear();
    for (i, job) in jobs.iter().enumerate() {
        let is_many = job.x_rows.len() >= MANY_ROWS;
        let (block_rows, task_cost) =
            if is_many { (many_block_rows(isa), costs.many) } else { (BLOCK_ROWS, costs.few) };
        let n_blocks = job.weight.rows.div_ceil(block_rows);
        let n_parts = (job.cost() * job.weight.rows).div_ceil(task_cost).clamp(1, n_blocks.max(1));
        let end = |part: usize| (n_blocks * part / n_parts * block_rows).min(job.weight.rows);
        let parts = (0..n_parts).map(|part| Task { job: i, rows: end(part)..end(part + 1) });
        tasks.extend(parts.filter(|task| !task.rows.is_empty()));
    }
}

/// Computes the outputs of some rows of the matrix; this thread's next task
/// is likely to begin at a row of the matrix `next`.
///
/// # Safety
/// Nothing else uses these outputs meanwhile.
unsafe fn run_job(
    job: &MatmulJob<'_>,
    isa: Isa,
    prepacked: Option<Input<'_>>,
    rows: Range<usize>,
    next: Option<(MatrixView<'_>, usize)>,
) {
    // SAFETY: passed on to the caller.
    let out = unsafe { OutPart::new(job.out, rows.clone(), job.weight.global_scale()) };
    let (weight, x_rows) = (job.weight, job.x_rows);
    match job.x {
        Activations::Full(x) => {
            full::full_rows(isa, FullProduct { weight, x, x_rows }, rows, out);
        }
        Activations::Quantised(x) => {
            let format = weight.format;
            let integers = Integers::of(format).expect("a matrix whose elements are integers");
            assert!(format.is_supported(weight.cols), "no kernel for {format:?}");
            assert_eq!(x.group_size(), integers.group_size, "group size of the activations");
            let product = IntegerProduct {
                weight,
                integers,
                x,
                x_rows,
                prepacked,
                next,
                next_panel: None,
                #[cfg(target_arch = "x86_64")]
                params: None,
            };
            integer_rows(isa, product, rows, out);
        }
    }
}

/// Data races would be undefined behaviour, so this is worth its microsecond.
fn check_outputs_are_disjoint(jobs: &[MatmulJob<'_>], spans: &mut Vec<Range<usize>>) {
    spans.clear();
    for job in jobs.iter().filter(|job| job.weight.rows > 0) {
        let n_bytes = job.weight.rows * size_of::<f32>();
        for i in 0..job.out.rows.len() {
            let start = job.out.data.address() + job.out.start(i) * size_of::<f32>();
            spans.push(start..start + n_bytes);
        }
    }
    spans.sort_unstable_by_key(|span| span.start);
    assert!(
        spans.windows(2).all(|pair| pair[0].end <= pair[1].start),
        "outputs of one call overlap"
    );
}

#[cfg(test)]
mod tests {
    use moeflux_core::quant::{Float, MatrixFormat};

    use super::*;
    use crate::cpu::matmul::{FloatRows, OutRows, RowMap};
    use crate::cpu::pool::SharedMut;

    /// The tasks of matrices with these numbers of rows, 64 columns each, times `n` rows.
    fn tasks_of(
        isa: Isa,
        rows: &[usize],
        n: usize,
        task_cost: usize,
    ) -> Vec<(usize, Range<usize>)> {
        let format = MatrixFormat::Dense(Float::BF16);
        let (mut out, x, mut tasks) = (vec![0.0; 0], vec![0.0; n * 64], Vec::new());
        let data = SharedMut::new(&mut out);
        let all = RowMap::Range { first: 0, n };
        let job = |rows: &usize| MatmulJob {
            weight: MatrixView {
                rows: *rows,
                cols: 64,
                format,
                weight: &[],
                scales: &[],
                biases: &[],
            },
            x: Activations::Full(FloatRows { data: &x, stride: 64, cols: 64 }),
            x_rows: all,
            out: OutRows { data, stride: *rows, first_col: 0, rows: all },
        };
        let costs = TaskCosts { few: task_cost, many: task_cost };
        cut(isa, &rows.iter().map(job).collect::<Vec<_>>(), costs, &mut tasks);
        tasks.into_iter().map(|task| (task.job, task.rows)).collect()
    }

    #[test]
    fn tasks_are_whole_panels_of_about_the_cost_asked_for() {
        let row_cost = 2 * 64 + 8 * 64;
        let tasks = tasks_of(Isa::SCALAR, &[200, 64, 1], 8, 64 * row_cost);
        assert_eq!(
            tasks,
            [(0, 0..64), (0, 64..128), (0, 128..192), (0, 192..200), (1, 0..64), (2, 0..1)]
        );
        assert_eq!(tasks_of(Isa::SCALAR, &[200], 8, 200 * row_cost), [(0, 0..200)]);
        assert_eq!(tasks_of(Isa::SCALAR, &[40], 1, 1), [(0, 0..16), (0, 16..32), (0, 32..40)]);
    }

    #[test]
    fn tasks_end_where_panels_of_the_instruction_set_do() {
        for isa in Isa::available() {
            let panel = many_block_rows(isa);
            let name = isa.name();
            assert_eq!(panel, if name == "avx512" { 48 } else { 64 }, "{name}");
            for (job, rows) in tasks_of(isa, &[1000, 500], 8, 100 * (2 * 64 + 8 * 64)) {
                let is_last = rows.end == [1000, 500][job];
                assert!(is_last || rows.end.is_multiple_of(panel), "{name}: {rows:?}");
            }
        }
    }

    #[test]
    fn tasks_cost_neither_too_little_nor_too_much() {
        assert_eq!(task_cost(FORK_COST, 2, 4), 40 << 10);
        assert_eq!(task_cost(64 << 20, 2, 4), 8 << 20);
        assert_eq!(task_cost(64 << 20, 2, 16), 2 << 20);
        // A prompt's product: as many tasks as it takes.
        assert_eq!(task_cost(1 << 30, 2, 4), 16 << 20);
        assert_eq!(task_cost(1 << 30, 16, 4), 16 << 20);
    }

    #[test]
    fn threads_that_take_turns_get_tasks_in_a_row() {
        let order = |n_tasks, n_lanes| (0..n_tasks).map(move |i| in_lanes(i, n_tasks, n_lanes));
        assert_eq!(order(7, 3).collect::<Vec<_>>(), [0, 3, 5, 1, 4, 6, 2]);
        for (n_tasks, n_lanes) in [(1, 2), (8, 2), (9, 2), (5, 8), (64, 16), (67, 16)] {
            let mut all: Vec<usize> = order(n_tasks, n_lanes).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..n_tasks), "{n_tasks} tasks, {n_lanes} threads");
        }
    }
}
