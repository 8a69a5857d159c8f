//! The product in full precision: rows are decoded to `f32` piece by piece,
//! and each piece multiplies all rows of the activations.

use std::cell::Cell;
use std::ops::Range;

use moeflux_core::quant::{
    Affine, AffineBias, Float, MatrixFormat, MatrixView, MicroScaled, ScaledBlocks, SmallFloat,
    bf16_to_f32,
};

use super::decode::{decode, unpack};
use super::floats::{decode_floats, f16_to_f32};
use super::integers::symmetric_bias;
use super::partials::{COLS, LANES, Partial, Partials, ROWS};
use super::product::FullProduct;
use super::rows::OutPart;
use super::small::{multiply_e2m1, multiply_e4m3, plain_e4m3};
use super::transposed;
use crate::cpu::Isa;

#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Level;
use crate::cpu::isa::for_every_isa;
use crate::cpu::parallel::prefetch;
#[cfg(target_arch = "x86_64")]
use crate::cpu::vector::{load, store, tree_sums};

/// Rows of the activations, and of the matrix, whose partial sums are kept together: sums, decoded columns and
/// activations fit into the second cache.
const X_ROWS: usize = 64;
const W_ROWS: usize = 32;

/// Rows of the activations that are multiplied together.
const STRIP: usize = 4;

/// Rows of the activations of which a piece stays in the first cache, while decoded columns pass.
const NEAR_X_ROWS: usize = 8;

/// Decoded columns of [`ROWS`] rows, which take turns: one stream of memory.
type Decoded = [[Line; ROWS]; COLS / LANES];

/// A vector in one line of the cache.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line(Partial);

/// The partial sums of one row of the activations, in lines of the cache.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums(Partials);

pub(super) fn full_rows(isa: Isa, product: FullProduct<'_>, rows: Range<usize>, out: OutPart<'_>) {
    match product.weight.format {
        MatrixFormat::Dense(float) if product.x_rows.len() == 1 => {
            one_row_in_place(isa, product, float, rows, out);
        }
        MatrixFormat::Affine(affine) if product.x_rows.len() == 1 => {
            one_row_of_integers(isa, product, affine, rows, out);
        }
        MatrixFormat::Micro(micro)
            if product.x_rows.len() == 1 && micro.element == SmallFloat::E2M1 =>
        {
            one_row_of_e2m1(isa, product, micro, rows, out);
        }
        MatrixFormat::Blocks(blocks)
            if product.x_rows.len() == 1 && begins_at_lanes(blocks, product.weight.cols) =>
        {
            one_row_of_e4m3(isa, product, blocks, rows, out);
        }
        MatrixFormat::Transposed(float) => {
            let FullProduct { weight, .. } = product;
            let (rows_stored, cols_stored) = (weight.cols, weight.rows);
            let format = MatrixFormat::Dense(float);
            let weight = MatrixView { rows: rows_stored, cols: cols_stored, format, ..weight };
            transposed::columns(isa, FullProduct { weight, ..product }, rows, out);
        }
        _ => decoded_rows(isa, product, rows, out),
    }
}

/// One row of activations: the matrix is decoded on its way to the product.
fn one_row_in_place(
    isa: Isa,
    product: FullProduct<'_>,
    float: Float,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let FullProduct { weight, x, x_rows } = product;
    let row_bytes = weight.format.row_bytes(weight.cols);
    let x = x.row(x_rows.at(0));
    for row in rows.clone().step_by(ROWS) {
        let n_rows = ROWS.min(rows.end - row);
        // A short block multiplies its last row several times.
        let stored: [&[u8]; ROWS] = std::array::from_fn(|r| {
            let row = row + r.min(n_rows - 1);
            &weight.weight[row * row_bytes..(row + 1) * row_bytes]
        });
        let mut sums = [[0f32; LANES]; ROWS];
        multiply_stored(isa, float, &stored, x, &mut sums);
        out.put(0, row, &sums.map(add_tree)[..n_rows]);
    }
}

/// One row of activations times a quantised matrix, decoded on its way to the product.
fn one_row_of_integers(
    isa: Isa,
    product: FullProduct<'_>,
    affine: Affine,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let FullProduct { weight, x, x_rows } = product;
    assert!(affine.is_supported(weight.cols), "no kernel for {affine:?}");
    let (row_bytes, n_groups) =
        (weight.format.row_bytes(weight.cols), affine.n_groups(weight.cols));
    let x = x.row(x_rows.at(0));
    let size = affine.params.bytes();
    let mut unpacked = [[0; COLS]; ROWS];
    for row in rows.clone().step_by(ROWS) {
        let n_rows = ROWS.min(rows.end - row);
        let mut sums = [[0f32; LANES]; ROWS];
        for col in (0..weight.cols).step_by(COLS) {
            let n_cols = COLS.min(weight.cols - col);
            let bytes = weight.format.row_bytes(col)..weight.format.row_bytes(col + n_cols);
            let n_param_bytes = n_cols / affine.group_size * size;
            let mut piece = IntegerPiece {
                affine,
                codes: [&[]; ROWS],
                scales: [&[]; ROWS],
                biases: [&[]; ROWS],
            };
            // Four streams are too many for hardware prefetchers.
            for row in row + n_rows..rows.end.min(row + n_rows + ROWS) {
                prefetch(&weight.weight[row * row_bytes..][bytes.clone()]);
            }
            for (r, unpacked) in unpacked.iter_mut().enumerate() {
                // A short block multiplies its last row several times.
                let row = row + r.min(n_rows - 1);
                let stored = &weight.weight[row * row_bytes..][bytes.clone()];
                piece.codes[r] = stored;
                if affine.bits != 8 {
                    unpack(isa, affine.bits, stored, &mut unpacked[..n_cols]);
                    piece.codes[r] = &unpacked[..n_cols];
                }
                let first = (row * n_groups + col / affine.group_size) * size;
                piece.scales[r] = &weight.scales[first..first + n_param_bytes];
                if affine.bias == AffineBias::Stored {
                    piece.biases[r] = &weight.biases[first..first + n_param_bytes];
                }
            }
            multiply_integers(isa, piece, &x[col..col + n_cols], &mut sums);
        }
        out.put(0, row, &sums.map(add_tree)[..n_rows]);
    }
}

/// One row of activations times floats of four bits, decoded on their way to the product.
fn one_row_of_e2m1(
    isa: Isa,
    product: FullProduct<'_>,
    micro: MicroScaled,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let FullProduct { weight, x, x_rows } = product;
    assert!(micro.is_supported(weight.cols), "no kernel for {micro:?}");
    let (row_bytes, n_groups) = (weight.format.row_bytes(weight.cols), micro.n_groups(weight.cols));
    let x = x.row(x_rows.at(0));
    for row in rows.clone().step_by(ROWS) {
        let n_rows = ROWS.min(rows.end - row);
        let (mut packed, mut scales): ([&[u8]; ROWS], [&[u8]; ROWS]) = Default::default();
        for r in 0..ROWS {
            // A short block multiplies its last row several times.
            let row = row + r.min(n_rows - 1);
            packed[r] = &weight.weight[row * row_bytes..(row + 1) * row_bytes];
            scales[r] = &weight.scales[row * n_groups..(row + 1) * n_groups];
        }
        let ahead = (row + ROWS).min(rows.end)..(row + 2 * ROWS).min(rows.end);
        prefetch(&weight.weight[ahead.start * row_bytes..ahead.end * row_bytes]);
        let mut sums = [[0f32; LANES]; ROWS];
        multiply_e2m1(isa, micro, packed, scales, x, &mut sums);
        out.put(0, row, &sums.map(add_tree)[..n_rows]);
    }
}

/// Whether all blocks of a row begin at the first lane.
fn begins_at_lanes(blocks: ScaledBlocks, cols: usize) -> bool {
    blocks.block_cols.is_multiple_of(LANES) || blocks.block_cols >= cols
}

/// One row of activations times floats of eight bits in blocks, decoded on their way to the product.
fn one_row_of_e4m3(
    isa: Isa,
    product: FullProduct<'_>,
    blocks: ScaledBlocks,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let FullProduct { weight, x, x_rows } = product;
    let (cols, x) = (weight.cols, x.row(x_rows.at(0)));
    let mut scales = BlockScales::default();
    for row in rows.clone().step_by(ROWS) {
        let n_rows = ROWS.min(rows.end - row);
        // A short block multiplies its last row several times.
        let four: [usize; ROWS] = std::array::from_fn(|r| row + r.min(n_rows - 1));
        let codes = four.map(|row| &weight.weight[row * cols..(row + 1) * cols]);
        scales.read(&weight, blocks, four);
        let mut sums = [[0f32; LANES]; ROWS];
        for (piece, scales) in scales.pieces(blocks, cols) {
            // Four streams are too many for hardware prefetchers.
            for row in row + n_rows..rows.end.min(row + n_rows + ROWS) {
                prefetch(&weight.weight[row * cols + piece.start..row * cols + piece.end]);
            }
            let codes = codes.map(|codes| &codes[piece.clone()]);
            if !multiply_e4m3(isa, codes, *scales, &x[piece.clone()], &mut sums) {
                plain_e4m3(isa, codes, *scales, &x[piece], &mut sums);
            }
        }
        out.put(0, row, &sums.map(add_tree)[..n_rows]);
    }
}

/// The scales of the blocks that some rows of the matrix go through.
#[derive(Default)]
struct BlockScales {
    /// Where the scales of each row begin.
    first: Option<[usize; ROWS]>,
    /// For each block of columns, that of each row.
    scales: Vec<[f32; ROWS]>,
}

impl BlockScales {
    fn read(&mut self, weight: &MatrixView<'_>, blocks: ScaledBlocks, rows: [usize; ROWS]) {
        let first = rows.map(|row| blocks.scale_index(row, 0, weight.cols));
        // Rows of the same blocks follow each other.
        if self.first == Some(first) {
            return;
        }
        self.first = Some(first);
        self.scales.clear();
        for block in 0..weight.cols.div_ceil(blocks.block_cols) {
            self.scales.push(first.map(|first| blocks.scales.read(weight.scales, first + block)));
        }
    }

    /// Each block of columns with its scales.
    fn pieces(
        &self,
        blocks: ScaledBlocks,
        cols: usize,
    ) -> impl Iterator<Item = (Range<usize>, &[f32; ROWS])> {
        let n = blocks.block_cols;
        let pieces = (0..cols).step_by(n.min(cols)).map(move |col| col..cols.min(col + n));
        pieces.zip(&self.scales)
    }
}

/// Some columns of [`ROWS`] rows: whole groups.
struct IntegerPiece<'a> {
    affine: Affine,
    /// One a byte.
    codes: [&'a [u8]; ROWS],
    /// As stored, one a group.
    scales: [&'a [u8]; ROWS],
    /// The same; empty where they follow from scales.
    biases: [&'a [u8]; ROWS],
}

/// Decoded columns of some rows of the matrix, and partial sums of these with rows of activations.
#[derive(Default)]
struct Block {
    /// Fours of rows of the matrix.
    n_fours: usize,
    /// Of each.
    decoded: Vec<Decoded>,
    /// Of each [`STRIP`] of rows of activations, those with each four rows of the matrix.
    sums: Vec<[Sums; STRIP]>,
}

thread_local! {
    static BLOCK: Cell<Block> = Cell::default();
}

/// Any number of rows of activations: each piece is decoded once for [`X_ROWS`] of them.
fn decoded_rows(isa: Isa, product: FullProduct<'_>, rows: Range<usize>, mut out: OutPart<'_>) {
    let FullProduct { weight, x, x_rows } = product;
    let mut block = BLOCK.take();
    // What few rows need of the matrix stays in the first cache.
    let w_rows = if x_rows.len() > NEAR_X_ROWS { W_ROWS } else { ROWS };
    for first_row in rows.clone().step_by(w_rows) {
        let rows = first_row..rows.end.min(first_row + w_rows);
        for first in (0..x_rows.len()).step_by(X_ROWS) {
            let n_x_rows = X_ROWS.min(x_rows.len() - first);
            block.begin(rows.len().div_ceil(ROWS), n_x_rows);
            for col in (0..weight.cols).step_by(COLS) {
                let cols = col..weight.cols.min(col + COLS);
                block.decode(isa, &weight, rows.clone(), cols.clone());
                let piece = |i: usize| &x.row(x_rows.at(first + i))[cols.clone()];
                block.multiply(isa, n_x_rows, piece);
            }
            for i in 0..n_x_rows {
                let mut totals = [[0.0; ROWS]; W_ROWS / ROWS];
                add_trees(isa, block.sums_of(i), i % STRIP, &mut totals);
                out.put(first + i, rows.start, &totals.as_flattened()[..rows.len()]);
            }
        }
    }
    BLOCK.set(block);
}

impl Block {
    /// Makes room, with sums of zero.
    fn begin(&mut self, n_fours: usize, n_x_rows: usize) {
        self.n_fours = n_fours;
        if self.decoded.len() < n_fours {
            self.decoded.resize(n_fours, [[Line([0.0; LANES]); ROWS]; COLS / LANES]);
        }
        self.sums.clear();
        let n_sums = n_fours * n_x_rows.div_ceil(STRIP);
        self.sums.resize(n_sums, [Sums([[0.0; LANES]; ROWS]); STRIP]);
    }

    /// Those of the strip that has a row of activations.
    fn sums_of(&self, x_row: usize) -> &[[Sums; STRIP]] {
        &self.sums[x_row / STRIP * self.n_fours..][..self.n_fours]
    }

    /// Decodes some columns, at most [`COLS`], of rows.
    fn decode(
        &mut self,
        isa: Isa,
        weight: &MatrixView<'_>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let mut row_of = [[0.0; LANES]; COLS / LANES];
        let row_bytes = weight.format.row_bytes(weight.cols);
        let bytes = weight.format.row_bytes(cols.start)..weight.format.row_bytes(cols.end);
        for row in rows.clone() {
            // Rows are too far apart for hardware prefetchers.
            if row + ROWS < rows.end {
                prefetch(&weight.weight[(row + ROWS) * row_bytes..][bytes.clone()]);
            }
            let floats = &mut row_of.as_flattened_mut()[..cols.len()];
            decode(isa, weight, row, cols.start, floats);
            let (four, nth) = ((row - rows.start) / ROWS, (row - rows.start) % ROWS);
            let n_lines = cols.len().div_ceil(LANES);
            for (lines, line) in self.decoded[four].iter_mut().zip(&row_of[..n_lines]) {
                lines[nth] = Line(*line);
            }
        }
    }

    /// Adds the products of decoded columns with a piece of every row of activations.
    fn multiply<'x>(&mut self, isa: Isa, n_x_rows: usize, x: impl Fn(usize) -> &'x [f32]) {
        let strips = n_x_rows.div_ceil(STRIP);
        for near in (0..strips).step_by(NEAR_X_ROWS / STRIP) {
            for (four, decoded) in self.decoded[..self.n_fours].iter().enumerate() {
                for strip in near..strips.min(near + NEAR_X_ROWS / STRIP) {
                    let sums = &mut self.sums[strip * self.n_fours + four];
                    let rows = strip * STRIP..n_x_rows.min((strip + 1) * STRIP);
                    multiply(isa, decoded, rows.map(&x), sums);
                }
            }
        }
    }
}

/// The outputs of one row of activations, the `nth` of its strip.
fn add_trees(
    isa: Isa,
    sums: &[[Sums; STRIP]],
    nth: usize,
    totals: &mut [[f32; ROWS]; W_ROWS / ROWS],
) {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 | Level::Amx => unsafe { add_sixteen_trees(sums, nth, totals) },
        _ => {
            for (totals, sums) in totals.iter_mut().zip(sums) {
                *totals = sums[nth].0.map(add_tree);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn add_sixteen_trees(
    sums: &[[Sums; STRIP]],
    nth: usize,
    totals: &mut [[f32; ROWS]; W_ROWS / ROWS],
) {
    use std::arch::x86_64::_mm512_setzero_ps;

    let (sixteens, _) = totals.as_chunks_mut::<4>();
    for (sums, totals) in sums.chunks(4).zip(sixteens) {
        let mut lanes = [[_mm512_setzero_ps(); 4]; ROWS];
        for (four, sums) in sums.iter().enumerate() {
            for (lanes, sums) in lanes.iter_mut().zip(&sums[nth].0) {
                lanes[four] = load(sums);
            }
        }
        let all = tree_sums(lanes);
        if let Ok(totals) = totals.as_flattened_mut().try_into() {
            store(totals, all);
        }
    }
}

/// The sum of the lanes in the order of the contract.
#[inline(always)]
fn add_tree(mut lanes: Partial) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// Adds the products of decoded columns with a piece of every row of a strip.
fn multiply<'x>(
    isa: Isa,
    w: &Decoded,
    mut x: impl ExactSizeIterator<Item = &'x [f32]>,
    sums: &mut [Sums; STRIP],
) {
    // Sixteen accumulators fill the registers of AVX-512, and too many for the others.
    if x.len() == STRIP && registers_hold_sixteen_sums(isa) {
        let pieces: [&[f32]; STRIP] = std::array::from_fn(|_| x.next().unwrap_or_default());
        return multiply_four(isa, w, &pieces, sums);
    }
    for (x, sums) in x.zip(sums) {
        multiply_one(isa, w, x, sums);
    }
}

fn registers_hold_sixteen_sums(isa: Isa) -> bool {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Amx => true,
        _ => false,
    }
}

for_every_isa! {
    fn multiply_stored(
        float: Float,
        w: &[&[u8]; ROWS],
        x: &[f32],
        sums: &mut Partials,
    ) {
        match float {
            Float::F32 => multiply_stored_block(w, x, sums, f32::from_le_bytes),
            Float::F16 => {
                multiply_stored_block(w, x, sums, |bytes| f16_to_f32(u16::from_le_bytes(bytes)));
            }
            Float::BF16 => {
                multiply_stored_block(w, x, sums, |bytes| bf16_to_f32(u16::from_le_bytes(bytes)));
            }
        }
    }
}

/// `decode` takes the bytes of one element.
#[inline(always)]
fn multiply_stored_block<const B: usize>(
    w: &[&[u8]; ROWS],
    x: &[f32],
    sums: &mut Partials,
    decode: impl Fn([u8; B]) -> f32,
) {
    let w: [&[[u8; B]]; ROWS] = std::array::from_fn(|r| &w[r].as_chunks().0[..x.len()]);
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut acc = *sums;
    for (i, x) in chunks.iter().enumerate() {
        for r in 0..ROWS {
            let w = &w[r][i * LANES..][..LANES];
            for lane in 0..LANES {
                acc[r][lane] = decode(w[lane]).mul_add(x[lane], acc[r][lane]);
            }
        }
    }
    *sums = acc;
    // Only lanes that have a column: adding a zero product would turn -0 into 0.
    for (w, sums) in w.iter().zip(sums) {
        for ((w, x), sum) in w[chunks.len() * LANES..].iter().zip(rest).zip(sums) {
            *sum = decode(*w).mul_add(*x, *sum);
        }
    }
}

for_every_isa! {
    /// Decodes and multiplies as many columns as `x` has.
    fn multiply_integers(w: IntegerPiece<'_>, x: &[f32], sums: &mut Partials) {
        let Affine { bits, group_size, params, bias } = w.affine;
        let n_groups = x.len() / group_size;
        let (mut scales, mut biases) = ([[0f32; COLS / 32]; ROWS], [[0f32; COLS / 32]; ROWS]);
        for r in 0..ROWS {
            decode_floats(params, w.scales[r], &mut scales[r][..n_groups]);
            match bias {
                AffineBias::Stored => {
                    decode_floats(params, w.biases[r], &mut biases[r][..n_groups]);
                }
                AffineBias::Symmetric => {
                    for (bias, scale) in biases[r].iter_mut().zip(&scales[r][..n_groups]) {
                        *bias = symmetric_bias(bits) * scale;
                    }
                }
            }
        }
        let [a, b, c, d] = w.codes;
        let n = x.len() / LANES;
        let codes: [&[[u8; LANES]]; ROWS] = [
            &a.as_chunks().0[..n],
            &b.as_chunks().0[..n],
            &c.as_chunks().0[..n],
            &d.as_chunks().0[..n],
        ];
        let mut acc = *sums;
        let mut at = 0;
        for (g, x) in x.chunks_exact(group_size).enumerate() {
            for x in x.as_chunks::<LANES>().0 {
                for r in 0..ROWS {
                    let (scale, bias) = (scales[r][g], biases[r][g]);
                    let codes = &codes[r][at];
                    for lane in 0..LANES {
                        let w = scale.mul_add(f32::from(codes[lane]), bias);
                        acc[r][lane] = w.mul_add(x[lane], acc[r][lane]);
                    }
                }
                at += 1;
            }
        }
        *sums = acc;
    }
}

for_every_isa! {
    fn multiply_one(w: &Decoded, x: &[f32], sums: &mut Sums) {
        multiply_block(w, &[x], std::array::from_mut(sums));
    }
}

for_every_isa! {
    fn multiply_four(w: &Decoded, x: &[&[f32]; STRIP], sums: &mut [Sums; STRIP]) {
        multiply_block(w, x, sums);
    }
}

#[inline(always)]
fn multiply_block<const T: usize>(w: &Decoded, x: &[&[f32]; T], sums: &mut [Sums; T]) {
    let n_cols = x[0].len();
    let n = n_cols / LANES;
    assert!(n_cols <= COLS && x.iter().all(|piece| piece.len() == n_cols), "pieces of one length");
    let chunks: [&[Partial]; T] = std::array::from_fn(|t| &x[t].as_chunks().0[..n]);
    // A copy whose address is not taken stays in registers.
    let mut acc: [Partials; T] = std::array::from_fn(|t| sums[t].0);
    for (i, w) in w[..n].iter().enumerate() {
        for t in 0..T {
            let x = &chunks[t][i];
            for r in 0..ROWS {
                for lane in 0..LANES {
                    acc[t][r][lane] = w[r].0[lane].mul_add(x[lane], acc[t][r][lane]);
                }
            }
        }
    }
    for (sums, acc) in sums.iter_mut().zip(acc) {
        sums.0 = acc;
    }
    // Only lanes that have a column: adding a zero product would turn -0 into 0.
    for col in n * LANES..n_cols {
        for (x, sums) in x.iter().zip(sums.iter_mut()) {
            for (w, sums) in w[n].iter().zip(&mut sums.0) {
                let sum = &mut sums[col % LANES];
                *sum = w.0[col % LANES].mul_add(x[col], *sum);
            }
        }
    }
}
