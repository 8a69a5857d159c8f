//! Whether a device's units for matrices give what they should: drivers differ
//! in what they make of halves.

use std::sync::Arc;

use moeflux_backend::{Backend, Cols, HostMatrix, Inputs, Projection};
use moeflux_core::HostBuf;
use moeflux_core::quant::{Affine, Float, MatrixFormat};

use crate::backend::Wgpu;
use crate::context::Context;
use crate::layout::{Halves, Tiles};

/// Rows of activations and of the matrix: more than a tile of each.
const SHAPE: (usize, usize) = (150, 140);
/// Columns and groups.
const COLS: [(usize, usize); 3] = [(512, 32), (2048, 64), (2048, 128)];

/// Columns that units take in a step.
const STEP: usize = 16;

/// Halves that an input is the sum of.
const PARTS: usize = 2;

/// Share of the largest result by which results may differ.
///
/// Units add the products of a step to a sum of 24 bits and cut off what is
/// below, always to the same side, so that errors of all steps add up: 2^-23
/// each. Singles round each of their sums to the nearest, 2^-24 at most, to
/// either side: of these the root of their number counts. Where a half's lower
/// part is lost, inputs are off by up to 2^-11 each, which at these sizes shows
/// with 3e-4, ten times what is allowed.
fn tolerance(cols: usize) -> f32 {
    let cut = (PARTS * cols.div_ceil(STEP)) as f32 * f32::EPSILON;
    let rounded = (cols as f32).sqrt() * f32::EPSILON / 2.0;
    cut + rounded
}

/// Whether a product on the units agrees with the same in singles, of inputs as they are.
pub(crate) fn are_right(context: &Arc<Context>) -> bool {
    agree(context, Tiles::MatrixUnits)
}

/// Whether products by these agree with the same in singles: of all columns and
/// groups in the tiles that suit them, and in tiles of all sizes, each of which
/// is a kernel that drivers may get wrong.
pub(crate) fn agree(context: &Arc<Context>, tiles: Tiles) -> bool {
    let [first, ..] = COLS;
    let sizes = Halves::all(PARTS as u32).iter().map(|it| (first, Some(*it)));
    COLS.into_iter().map(|it| (it, None)).chain(sizes).all(|((cols, group_size), halves)| {
        let product = |tiles, inputs| {
            let mut b = Wgpu::with_tiles(Arc::clone(context), None, tiles);
            b.halves = halves;
            product(&mut b, (cols, group_size), inputs)
        };
        let got = product(tiles, Inputs::Int16);
        let (Some(got), Some(want)) = (got, product(Tiles::Singles, Inputs::Full)) else {
            return false;
        };
        let largest = want.iter().fold(0.0f32, |max, it| max.max(it.abs()));
        got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= tolerance(cols) * largest)
    })
}

fn product(b: &mut Wgpu, (cols, group_size): (usize, usize), inputs: Inputs) -> Option<Vec<f32>> {
    let (n, rows) = SHAPE;
    let format = MatrixFormat::Affine(Affine { bits: 4, group_size, params: Float::BF16 });
    let mut state = 1u32;
    let mut bytes = |len: usize, word_of: fn(u16) -> u16| {
        let mut buf = HostBuf::zeroed(len);
        for pair in buf[..len].as_chunks_mut::<2>().0 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *pair = word_of((state >> 16) as u16).to_le_bytes();
        }
        buf
    };
    // 0x3c00 begins the numbers near 0.01 in BF16, 0xbd80 those below -0.06.
    let weight = bytes(rows * format.row_bytes(cols), |it| it);
    let scales = Some(bytes(format.scale_bytes(rows, cols), |it| 0x3c00 | it & 0xff));
    let biases = Some(bytes(format.bias_bytes(rows, cols), |it| 0xbd80 | it & 0x7f));
    let weight = b.load_matrix(HostMatrix { rows, cols, format, inputs, weight, scales, biases });
    let (x, y) = (b.alloc(n, cols), b.alloc(n, rows));
    let values: Vec<f32> = (0..n * cols).map(|i| (i as f32 * 0.37).sin()).collect();
    b.write(x, &values);
    let all = |buf, len| Cols { buf, start: 0, len };
    b.project(n, all(x, cols), &[Projection { weight, out: all(y, rows) }]);
    b.read(y, n).ok()
}
