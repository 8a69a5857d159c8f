//! Products with matrices that are one after the other in a buffer, whatever it holds: for
//! measurements.

use std::sync::Arc;

use moeflux_backend::{Buf, Cols};
use moeflux_core::quant::MatrixView;

use crate::device::buffer::Mem;
use crate::device::context::Context;
use crate::layouts::format::{Decoder, place, sizes};
use crate::layouts::product::Layout;
use crate::layouts::table::ProductShape;
use crate::ops::matmul::jobs::{FEW_ROWS, Job, List, WHOLE, holds_rows};
use crate::ops::matmul::layouts::{ProductKind, effective, layout};
use crate::ops::matmul::products::{Products, run};
use crate::ops::matmul::source::Source;
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::{activation_quant, matvec_quant};

/// Copies of the matrices of a product in a buffer.
pub(crate) struct Repeated {
    pub(crate) shape: ProductShape,
    pub(crate) n_copies: usize,
    mem: Mem,
    /// Of a matrix, and where its scales begin.
    bytes: usize,
    scales_at: usize,
}

impl Repeated {
    /// As many copies as there is room for; where there is none for one, of
    /// matrices with fewer rows. `None` where not even one row fits.
    pub(crate) fn fit(shape: &ProductShape, mem: &Mem) -> Option<Repeated> {
        let mut shape = *shape;
        let room = usize::try_from(mem.bytes()).unwrap_or(usize::MAX);
        while shape.rows > 0 && shape.n > 0 {
            let ProductShape { format, rows, cols, n, .. } = shape;
            let none: &[u8] = &[];
            let (weight, scales, biases) = (none, none, none);
            let (bytes, scales_at) =
                sizes(&MatrixView { rows, cols, format, weight, scales, biases });
            let n_copies = room / (n * bytes).max(1);
            if n_copies > 0 {
                return Some(Repeated { shape, n_copies, mem: mem.clone(), bytes, scales_at });
            }
            shape.rows /= 2;
        }
        None
    }

    fn jobs(&self, nth: usize) -> Vec<Job> {
        let ProductShape { rows, n, .. } = self.shape;
        let first = nth % self.n_copies * n;
        let job = |i: usize| Job {
            mem: self.mem.clone(),
            place: place((first + i) * self.bytes, self.scales_at),
            phase: 0,
            first_row: 0,
            n_rows: rows,
            list: 0,
            part: WHOLE,
            x: 0,
            out: i * rows,
        };
        (0..n).map(job).collect()
    }
}

/// Rows of activations for measurements, and where outputs go.
#[derive(Clone, Copy)]
pub(crate) struct RepeatedRows {
    pub(crate) x: Cols,
    pub(crate) out: Buf,
    pub(crate) x_rows: usize,
}

/// Multiplies the `nth` copy, counted round, with all rows of `x`.
pub(crate) fn project_repeated(b: &mut Wgpu, repeated: &Repeated, nth: usize, rows: RepeatedRows) {
    let RepeatedRows { x, out, x_rows } = rows;
    b.encoder.begin();
    let source = Source::of(b, x, x_rows);
    let out = b.written(out);
    let lists: [List; 1] = [(0..x_rows).map(|row| (row, row * out.width)).collect()];
    let decoder = Decoder::new(repeated.shape.format);
    let quant = activation_quant(decoder, repeated.shape.inputs);
    let jobs = repeated.jobs(nth);
    let (y, chosen, most_few) = (out.mem, None, FEW_ROWS);
    run(b, &source, Products { decoder, quant, lists: &lists, jobs, y, chosen, most_few });
}

/// What suits a product where nothing was measured.
pub(crate) fn plain_layout(shape: &ProductShape) -> Layout {
    let n_units = Decoder::new(shape.format).n_units(shape.cols);
    Layout::plain(n_units, shape.n * shape.rows)
}

/// A layout as far as a product and a device allow it.
pub(crate) fn effective_layout(
    context: &Arc<Context>,
    shape: &ProductShape,
    layout: Layout,
) -> Layout {
    effective(layout, kind_of(shape), context.lanes)
}

fn kind_of(shape: &ProductShape) -> ProductKind {
    let decoder = Decoder::new(shape.format);
    ProductKind { decoder, quant: matvec_quant(decoder, shape.inputs), cols: shape.cols }
}

/// The layout that a product has now; `None` for this many rows of activations that another
/// kernel multiplies them.
pub(crate) fn current_layout(b: &Wgpu, shape: &ProductShape, x_rows: usize) -> Option<Layout> {
    holds_rows(x_rows).then(|| layout(b, kind_of(shape), shape.matrix_rows(), x_rows))
}
