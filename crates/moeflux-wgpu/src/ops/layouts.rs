//! How products are laid out.

use crate::layout::{Form, Halves, Layout, ROWS_FOR_SEVERAL, Singles, Tiles, is_exact_in_floats};
use crate::ops::jobs::{GROUP_ROWS, Job, is_narrow};
use crate::rounded::Digits;
use crate::state::Wgpu;
use crate::tuning::table::Key;
use crate::weights::{BLOCK, Decoder};

/// How products without units for matrices are laid out, with a matrix of so many
/// rows. Bits depend on it, so it depends on the matrix alone.
pub(super) fn singles(digits: Option<Digits>, n_rows: usize) -> Singles {
    if is_narrow(digits, n_rows) { Singles::NARROW } else { Singles::WIDE }
}

/// How units for matrices share so many matrices out, each with so many rows of
/// activations and of its own.
pub(super) fn halves(
    b: &Wgpu,
    (decoder, digits): (Decoder, Digits),
    (n_matrices, x_rows, w_rows): (usize, usize, usize),
) -> Halves {
    let all = Halves::all(digits.parts(), decoder.in_halves());
    b.halves.unwrap_or_else(|| Halves::of(all, n_matrices, x_rows, w_rows))
}

/// Rows of all matrices and how many there are, where they are alike; else the
/// largest, which takes most of the time.
pub(super) fn measured_as(jobs: &[Job]) -> (usize, usize) {
    let most = jobs.iter().map(|it| it.n_rows).max().unwrap_or(0);
    let are_alike = jobs.iter().all(|it| it.n_rows == most);
    if are_alike { (most * jobs.len(), jobs.len()) } else { (most, 1) }
}

/// The layout of products with few rows of activations: of so many rows in so
/// many matrices, with at most so many rows of activations.
pub(crate) fn layout(
    b: &Wgpu,
    (decoder, digits, cols): (Decoder, Option<Digits>, usize),
    (n_rows, n_matrices): (usize, usize),
    most: usize,
) -> Layout {
    let context = b.encoder.context();
    let plain = || match digits.is_some() && most > 2 && n_rows >= ROWS_FOR_SEVERAL {
        true => Layout::SEVERAL,
        false => Layout::plain(decoder.n_units(cols), n_rows),
    };
    let mut layout = b.layout.unwrap_or_else(|| {
        let n_digits = digits.map_or(0, |it| it.n_digits);
        match context.tuned(Key::new(decoder, n_digits, cols, (n_rows, n_matrices))) {
            // Others were measured with one row.
            Some(tuned) if most > 1 => Layout { form: tuned.form, ..plain() },
            Some(tuned) => tuned,
            None => plain(),
        }
    });
    layout.form = b.form.unwrap_or(layout.form);
    effective(layout, decoder, digits, cols, context.lanes)
}

/// A layout within what products allow, on a device with subgroups of so many
/// lanes.
pub(super) fn effective(
    mut layout: Layout,
    decoder: Decoder,
    digits: Option<Digits>,
    cols: usize,
    lanes: u32,
) -> Layout {
    let n_units = decoder.n_units(cols);
    let is_exact = |(affine, digits): (_, Digits)| is_exact_in_floats(affine, digits.n_digits);
    if !decoder.affine().zip(digits).is_some_and(is_exact) {
        layout.form = Form::Bytes;
    }
    if digits.is_none() {
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

/// Whether products with many rows go through `matmul_halves.wgsl`.
pub(super) fn is_in_halves(b: &Wgpu, digits: Option<Digits>, cols: usize) -> bool {
    b.tiles != Tiles::Singles && digits.is_some() && cols.is_multiple_of(BLOCK)
}

/// Rows that an expert may get in a step with more than a few, and are few all the same:
/// none where small tiles of units for matrices do it as well.
pub(super) fn group_rows(b: &Wgpu, digits: Option<Digits>, cols: usize) -> usize {
    if is_in_halves(b, digits, cols) { 0 } else { GROUP_ROWS }
}
