//! How products are laid out.

use crate::layouts::format::{BLOCK, Decoder};
use crate::layouts::product::{
    F16Tiles, F32Tiles, Form, Layout, ProductSize, ROWS_FOR_SEVERAL, Tiles, is_exact_in_floats,
};
use crate::layouts::table::{Key, MatrixRows};
use crate::ops::matmul::jobs::{GROUP_ROWS, Job, is_narrow};
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::ActivationQuant;

/// Columns that `matmul/split_f16.wgsl` writes at a time.
const EIGHT: usize = 8;

/// How products without cooperative matrices are laid out, with a matrix of this many rows. Bits
/// depend on it, so it depends on the matrix alone.
pub(crate) fn f32_tiles(quant: Option<ActivationQuant>, n_rows: usize) -> F32Tiles {
    if is_narrow(quant, n_rows) { F32Tiles::NARROW } else { F32Tiles::WIDE }
}

/// What products have in common whose layout is the same.
#[derive(Clone, Copy)]
pub(crate) struct ProductKind {
    pub(crate) decoder: Decoder,
    pub(crate) quant: Option<ActivationQuant>,
    pub(crate) cols: usize,
}

/// The tiles for products on cooperative matrices.
pub(crate) fn f16_tiles(b: &Wgpu, decoder: Decoder, size: ProductSize) -> F16Tiles {
    let all = F16Tiles::all(decoder.f16_operand());
    b.f16_tiles.unwrap_or_else(|| F16Tiles::of(all, size))
}

/// Rows of all matrices and how many there are, where they are alike; else the
/// largest, which takes most of the time.
pub(crate) fn measured_as(jobs: &[Job]) -> MatrixRows {
    let most = jobs.iter().map(|job| job.n_rows).max().unwrap_or(0);
    let are_alike = jobs.iter().all(|job| job.n_rows == most);
    let n_matrices = if are_alike { jobs.len() } else { 1 };
    MatrixRows { n_rows: most * n_matrices, n_matrices }
}

/// The layout of products of these matrices with at most `most` rows of activations, which are few.
pub(crate) fn layout(b: &Wgpu, kind: ProductKind, matrices: MatrixRows, most: usize) -> Layout {
    let ProductKind { decoder, quant, cols } = kind;
    let n_rows = matrices.n_rows;
    let context = b.encoder.context();
    let plain = || {
        if quant.is_some() && most > 2 && n_rows >= ROWS_FOR_SEVERAL {
            Layout::SEVERAL
        } else {
            Layout::plain(decoder.n_units(cols), n_rows)
        }
    };
    let mut layout = b.layout.unwrap_or_else(|| {
        let n_limbs = quant.map_or(0, |quant| quant.n_limbs);
        match context.tuned.get(Key::new(decoder, n_limbs, cols, matrices)) {
            // Others were measured with one row.
            Some(tuned) if most > 1 => Layout { form: tuned.form, ..plain() },
            Some(tuned) => tuned,
            None => plain(),
        }
    });
    layout.form = b.form.unwrap_or(layout.form);
    effective(layout, kind, context.lanes)
}

/// A layout within what products allow, on a device with subgroups of this many lanes.
pub(crate) fn effective(mut layout: Layout, kind: ProductKind, lanes: u32) -> Layout {
    let ProductKind { decoder, quant, cols } = kind;
    let n_units = decoder.n_units(cols);
    let is_exact = |(largest_sum, quant): (u32, ActivationQuant)| {
        is_exact_in_floats(largest_sum, quant.n_limbs)
    };
    if !decoder.largest_sum().zip(quant).is_some_and(is_exact) {
        layout.form = Form::Bytes;
    }
    if quant.is_none() {
        // Decoding is unrolled too, and kernels have to be compiled.
        let (rows, depth) =
            if decoder.is_e2m1() { (4, 2) } else { (2, if n_units >= cols / 8 { 2 } else { 1 }) };
        layout.rows = layout.rows.min(rows);
        layout.groups = u32::MAX;
        layout.depth = layout.depth.min(depth);
    }
    layout.within(n_units, lanes)
}

/// Whether products with many rows go through `coop_matmul.wgsl`. The device's matrices have zeros behind the last
/// column, up to a whole block, so that a row may end within one; where sums of groups follow its blocks, it may not.
pub(crate) fn uses_coop_matrix(b: &Wgpu, quant: Option<ActivationQuant>, cols: usize) -> bool {
    let step = |quant: ActivationQuant| if quant.have_sums { BLOCK } else { EIGHT };
    b.tiles != Tiles::F32 && quant.is_some_and(|quant| cols.is_multiple_of(step(quant)))
}

/// Rows that an expert may get in a step with more than a few, and are few all the same: none
/// where small tiles of cooperative matrices do it as well.
pub(crate) fn group_rows(b: &Wgpu, quant: Option<ActivationQuant>, cols: usize) -> usize {
    if uses_coop_matrix(b, quant, cols) { 0 } else { GROUP_ROWS }
}
