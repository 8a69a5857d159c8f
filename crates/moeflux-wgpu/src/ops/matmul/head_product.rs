//! Products of heads with rows of one matrix.

use moeflux_backend::{Cols, HeadProduct};

use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::matmul as kernels;
use crate::layouts::format::{BLOCK, Decoder};
use crate::memory::weights::matrix::{Matrix, Piece};
use crate::ops::matmul::jobs::{FEW_ROWS, Job, List, WHOLE};
use crate::ops::matmul::kernel::Kernel;
use crate::ops::matmul::products::{Products, run};
use crate::ops::matmul::source::Source;
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::KernelInput;
use crate::words::{ELEMENTS, word};

/// Rows of activations of one dispatch of `matmul/head_product.wgsl`'s threads.
const TRANSPOSED_ROWS: usize = 4;

/// The rows `first..first + n` of a matrix, piece by piece: the piece, its
/// first row among these, and how many there are.
fn pieces_of(
    matrix: &Matrix,
    first: usize,
    n: usize,
) -> impl Iterator<Item = (&Piece, usize, usize)> {
    matrix.pieces.iter().filter_map(move |piece| {
        let start = first.max(piece.rows.start);
        let end = (first + n).min(piece.rows.end);
        (start < end).then(|| (piece, start, end - start))
    })
}

pub(crate) fn head_product(b: &mut Wgpu, rows: usize, op: HeadProduct) {
    let HeadProduct { out, x, weight, first_row, row_stride, transposed } = op;
    assert_eq!(out.n_heads, x.n_heads, "heads in and heads out");
    assert!(out.buf != x.buf, "an op writes a buffer that it also reads");
    b.encoder.begin();
    let all = Cols { buf: x.buf, start: 0, len: x.head_dim };
    let source = Source { start: 0, cache_key: None, ..Source::of(b, all, rows) };
    let y = b.written(out.buf);
    let matrix = b.matrix(weight).clone();
    let (n_head_rows, cols) =
        if transposed { (x.head_dim, out.head_dim) } else { (out.head_dim, x.head_dim) };
    assert_eq!(cols, matrix.cols, "columns of a head's matrix");
    let last = first_row + (out.n_heads - 1) * row_stride + n_head_rows;
    assert!(last <= matrix.rows, "rows of the last head's matrix");
    let lists: [List; 1] = [(0..rows).map(|row| (row, row * y.width)).collect()];
    let mut jobs = Vec::new();
    let mut added = Vec::new();
    for head in 0..out.n_heads {
        let head_row = first_row + head * row_stride;
        for (i, (piece, start, n)) in pieces_of(&matrix, head_row, n_head_rows).enumerate() {
            let done = start - head_row;
            let job = Job {
                mem: piece.mem.clone(),
                place: piece.place,
                phase: piece.phase,
                first_row: start - piece.rows.start,
                n_rows: n,
                list: 0,
                part: WHOLE,
                x: x.start + head * x.stride + if transposed { done } else { 0 },
                out: out.start + head * out.stride + if transposed { 0 } else { done },
            };
            if transposed && i > 0 { added.push(job) } else { jobs.push(job) }
        }
    }
    let decoder = matrix.decoder;
    if transposed {
        let products = Transposed { source: &source, decoder, cols, list: &lists[0], y: &y.mem };
        products.run(b, jobs, false);
        products.run(b, added, true);
    } else {
        run(
            b,
            &source,
            Products {
                decoder,
                quant: None,
                lists: &lists,
                jobs,
                y: y.mem,
                chosen: None,
                most_few: FEW_ROWS,
            },
        );
    }
}

/// Products of rows with transposed matrices of one format.
struct Transposed<'a> {
    source: &'a Source,
    decoder: Decoder,
    cols: usize,
    list: &'a List,
    y: &'a Mem,
}

impl Transposed<'_> {
    fn run(&self, b: &mut Wgpu, jobs: Vec<Job>, adds: bool) {
        let Transposed { source, decoder, cols, list, y } = *self;
        let mut rest = jobs;
        while !rest.is_empty() {
            let id = rest[0].mem.id;
            let (now, later): (Vec<Job>, Vec<Job>) =
                rest.into_iter().partition(|job| job.mem.id == id);
            rest = later;
            let lists = std::slice::from_ref(list);
            let kernel = Kernel { decoder, quant: None, cols, lists, y, chosen: None };
            let input = KernelInput {
                x: source.mem.clone(),
                sums: source.mem.clone(),
                stride: source.width,
                start: source.start,
            };
            let first = kernel.jobs(b, &now, &input);
            let x_rows = if list.len() == 1 { 1 } else { TRANSPOSED_ROWS };
            let n_parts = list.len().div_ceil(x_rows);
            let mut params = decoder.params(cols).to_vec();
            params.extend([first, word(now.len()), word(n_parts), u32::from(adds)]);
            let arena = b.encoder.arena();
            let tables = b.weights_or_codebook(decoder, &now[0].mem);
            b.encoder.dispatch(
                kernels::HeadProduct { format: decoder.constants(), x_rows: word(x_rows) },
                &params,
                &[&now[0].mem, &tables, &arena, &input.x, y],
                Grid::Plane((cols.div_ceil(BLOCK) * 8).div_ceil(ELEMENTS), now.len() * n_parts),
            );
        }
    }
}
