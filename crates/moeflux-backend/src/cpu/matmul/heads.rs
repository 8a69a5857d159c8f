//! A product of every head with its own block of rows of one matrix.

use moeflux_core::quant::MatrixView;

use super::jobs::FORK_COST;
use super::product::FullProduct;
use super::rows::OutPart;
use super::{FloatRows, OutRows, RowMap, full, transposed};
use crate::cpu::Isa;
use crate::cpu::pool::{Pool, SharedMut};

/// Products of `n_rows` rows of `n_heads` heads each, in full precision.
#[derive(Clone, Copy, Debug)]
pub struct HeadJob<'a> {
    /// The matrix that holds every head's.
    pub weight: MatrixView<'a>,
    /// First row of head 0.
    pub first_row: usize,
    /// Rows from one head to the next.
    pub row_stride: usize,
    /// Whether a head's rows are its inputs.
    pub is_transposed: bool,
    /// How many heads.
    pub n_heads: usize,
    /// How many rows of activations.
    pub n_rows: usize,
    /// The inputs.
    pub x: HeadColumns<&'a [f32]>,
    /// Where the outputs go.
    pub out: HeadColumns<SharedMut<'a, f32>>,
}

/// Heads in rows of activations: head `h` of row `i` is
/// `data[i * stride + first_col + h * head_stride..][..head_dim]`.
#[derive(Clone, Copy, Debug)]
pub struct HeadColumns<T> {
    /// All rows.
    pub data: T,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Where head 0 begins.
    pub first_col: usize,
    /// Elements from one head to the next.
    pub head_stride: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// Rows of activations that are worth a task.
const TASK_ROWS: usize = 64;

/// Computes all heads with one fork.
///
/// # Panics
/// If shapes do not fit, or heads of the output overlap or are outside.
pub fn head_products(pool: &Pool, isa: Isa, job: &HeadJob<'_>) {
    job.check();
    let n_parts = job.n_rows.div_ceil(TASK_ROWS);
    let run = |task: usize| {
        let (head, part) = (task / n_parts, task % n_parts);
        let first = part * TASK_ROWS;
        let rows = RowMap::Range { first, n: TASK_ROWS.min(job.n_rows - first) };
        // SAFETY: `check` saw that heads do not overlap, and each head's rows are in one task.
        unsafe { job.run(isa, head, rows) };
    };
    let n_tasks = job.n_heads * n_parts;
    if pool.n_threads() == 1 || job.cost() < FORK_COST {
        (0..n_tasks).for_each(run);
    } else {
        pool.run(n_tasks, &run);
    }
}

impl HeadJob<'_> {
    fn check(&self) {
        let HeadJob { weight, x, out, .. } = self;
        weight.assert_sizes();
        let (rows, cols) = self.head_shape();
        assert_eq!(cols, weight.cols, "columns of a head's matrix");
        assert!(self.n_heads > 0, "there are heads");
        let last = self.first_row + (self.n_heads - 1) * self.row_stride;
        assert!(last + rows <= weight.rows, "rows of the last head's matrix");
        assert!(self.n_heads == 1 || out.head_stride >= out.head_dim, "heads overlap");
        let end = |first_col, head_stride, head_dim| {
            first_col + (self.n_heads - 1) * head_stride + head_dim
        };
        let x_end = end(x.first_col, x.head_stride, x.head_dim);
        assert!(x_end <= x.stride && self.n_rows * x.stride <= x.data.len(), "inputs");
        let out_end = end(out.first_col, out.head_stride, out.head_dim);
        assert!(out_end <= out.stride && self.n_rows * out.stride <= out.data.len(), "outputs");
    }

    /// Rows and columns of a head's matrix.
    fn head_shape(&self) -> (usize, usize) {
        let (x, out) = (self.x.head_dim, self.out.head_dim);
        if self.is_transposed { (x, out) } else { (out, x) }
    }

    /// In bytes that one thread streams from memory.
    fn cost(&self) -> usize {
        let (rows, cols) = self.head_shape();
        let bytes = self.weight.format.matrix_bytes(rows, cols);
        self.n_heads * (bytes + self.n_rows * rows * cols)
    }

    /// Computes one head of some rows.
    ///
    /// # Safety
    /// Nothing else uses these outputs meanwhile.
    unsafe fn run(&self, isa: Isa, head: usize, rows: RowMap<'_>) {
        let HeadJob { x, out, .. } = self;
        let first_row = self.first_row + head * self.row_stride;
        let weight = self.weight.slice_rows(first_row, self.head_shape().0);
        let data = &x.data[x.first_col + head * x.head_stride..];
        let x = FloatRows { data, stride: x.stride, cols: x.head_dim };
        let first_col = out.first_col + head * out.head_stride;
        let n_outputs = out.head_dim;
        let out = OutRows { data: out.data, stride: out.stride, first_col, rows };
        // SAFETY: passed on to the caller.
        let out = unsafe { OutPart::new(out, 0..n_outputs, weight.global_scale()) };
        let product = FullProduct { weight, x, x_rows: rows };
        if self.is_transposed {
            transposed::columns(isa, product, 0..n_outputs, out);
        } else {
            full::full_rows(isa, product, 0..n_outputs, out);
        }
    }
}
