//! How products are laid out.

use crate::ops::matmul::jobs::{GROUP_ROWS, Job, is_narrow};
use crate::state::backend::Wgpu;
use crate::state::quantized_inputs::ActivationQuant;
use crate::tuning::layout::{
    F16Tiles, F32Tiles, Form, Layout, ROWS_FOR_SEVERAL, Tiles, is_exact_in_floats,
};
use crate::tuning::table::Key;
use crate::weights::format::{BLOCK, Decoder};

/// How products without cooperative matrices are laid out, with a matrix of this many rows. Bits
/// depend on it, so it depends on the matrix alone.
pub(crate) fn f32_tiles(quant: Option<ActivationQuant>, n_rows: usize) -> F32Tiles {
    if is_narrow(quant, n_rows) { F32Tiles::NARROW } else { F32Tiles::WIDE }
}

/// The tiles for `n_matrices` matrices, each with `x_rows` rows of activations and `w_rows` rows of
/// its weights.
pub(crate) fn f16_tiles(
    b: &Wgpu,
    (decoder, quant): (Decoder, ActivationQuant),
    (n_matrices, x_rows, w_rows): (usize, usize, usize),
) -> F16Tiles {
    let all = F16Tiles::all(quant.parts(), decoder.f16_operand());
    b.f16_tiles.unwrap_or_else(|| F16Tiles::of(all, n_matrices, x_rows, w_rows))
}

/// Rows of all matrices and how many there are, where they are alike; else the
/// largest, which takes most of the time.
pub(crate) fn measured_as(jobs: &[Job]) -> (usize, usize) {
    let most = jobs.iter().map(|it| it.n_rows).max().unwrap_or(0);
    let are_alike = jobs.iter().all(|it| it.n_rows == most);
    if are_alike { (most * jobs.len(), jobs.len()) } else { (most, 1) }
}

/// The layout of products with few rows of activations: of this many rows in this many matrices,
/// with at most this many rows of activations.
pub(crate) fn layout(
    b: &Wgpu,
    (decoder, quant, cols): (Decoder, Option<ActivationQuant>, usize),
    (n_rows, n_matrices): (usize, usize),
    most: usize,
) -> Layout {
    let context = b.encoder.context();
    let plain = || match quant.is_some() && most > 2 && n_rows >= ROWS_FOR_SEVERAL {
        true => Layout::SEVERAL,
        false => Layout::plain(decoder.n_units(cols), n_rows),
    };
    let mut layout = b.layout.unwrap_or_else(|| {
        let n_limbs = quant.map_or(0, |it| it.n_limbs);
        match context.tuned(Key::new(decoder, n_limbs, cols, (n_rows, n_matrices))) {
            // Others were measured with one row.
            Some(tuned) if most > 1 => Layout { form: tuned.form, ..plain() },
            Some(tuned) => tuned,
            None => plain(),
        }
    });
    layout.form = b.form.unwrap_or(layout.form);
    effective(layout, decoder, quant, cols, context.lanes)
}

/// A layout within what products allow, on a device with subgroups of this many lanes.
pub(crate) fn effective(
    mut layout: Layout,
    decoder: Decoder,
    quant: Option<ActivationQuant>,
    cols: usize,
    lanes: u32,
) -> Layout {
    let n_units = decoder.n_units(cols);
    let is_exact =
        |(affine, quant): (_, ActivationQuant)| is_exact_in_floats(affine, quant.n_limbs);
    if !decoder.affine().zip(quant).is_some_and(is_exact) {
        layout.form = Form::Bytes;
    }
    if quant.is_none() {
        // Decoding is unrolled too, and kernels have to be compiled.
        let (rows, depth) = match decoder.is_e2m1() {
            true => (4, 2),
            false => (2, if n_units >= cols / 8 { 2 } else { 1 }),
        };
        layout.rows = layout.rows.min(rows);
        layout.groups = u32::MAX;
        layout.depth = layout.depth.min(depth);
    }
    layout.within(n_units, lanes)
}

/// Whether products with many rows go through `coop_matmul.wgsl`.
pub(crate) fn uses_coop_matrix(b: &Wgpu, quant: Option<ActivationQuant>, cols: usize) -> bool {
    b.tiles != Tiles::F32 && quant.is_some() && cols.is_multiple_of(BLOCK)
}

/// Rows that an expert may get in a step with more than a few, and are few all the same: none
/// where small tiles of cooperative matrices do it as well.
pub(crate) fn group_rows(b: &Wgpu, quant: Option<ActivationQuant>, cols: usize) -> usize {
    if uses_coop_matrix(b, quant, cols) { 0 } else { GROUP_ROWS }
}
