//! Integer products of matrices in blocks of ggml, and of E2M1 in groups that kernels leave packed.
//!
//! A panel of rows is decoded into the cache, as codes of a byte with scales and biases in `f32`,
//! and the kernels of affine matrices multiply it. All types and instruction sets share them, and
//! so does the definition of the product.

use std::cell::Cell;
use std::ops::Range;

use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat, MatrixView};

use super::block_format::BlockFormat;
use super::integers::{E2M1_INTEGERS, Integers};
#[cfg(target_arch = "x86_64")]
use super::lane_params::LaneParams;
use super::planes::plane_rows;
use super::product::IntegerProduct;
use super::rows::OutPart;
use crate::cpu::Isa;
use crate::cpu::isa::{Level, for_every_isa};

/// Rows that are decoded together: what kernels like to take, while their codes stay in the second
/// cache.
const PANEL_ROWS: usize = 16;

/// And with several rows of activations, whose kernels take larger panels: a multiple of 48, and
/// nearly one of 64.
const MANY_PANEL_ROWS: usize = 192;

/// Codes of a panel: half of the second cache of small processors.
const MAX_PANEL_BYTES: usize = 512 << 10;

/// From this many rows of activations on kernels take larger panels.
const MANY_ROWS: usize = 4;

/// A decoded panel; kept from call to call for its memory.
#[derive(Default)]
struct Panel {
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
    /// In place of both, with rows as lanes.
    #[cfg(target_arch = "x86_64")]
    params: LaneParams,
}

thread_local! {
    static PANEL: Cell<Panel> = Cell::default();
}

/// Computes the outputs of `rows` of a matrix of these blocks.
pub(super) fn integer_rows(
    isa: Isa,
    product: IntegerProduct<'_>,
    block_type: BlockType,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let mut panel = PANEL.take();
    let n_panel_rows = panel_rows(product.x_rows.len(), product.weight.cols);
    for row in rows.clone().step_by(n_panel_rows) {
        let now = row..rows.end.min(row + n_panel_rows);
        let stored = product.weight.slice_rows(row, now.len());
        if product.x_rows.len() <= streamed_rows(isa, block_type) {
            if !reads_params(isa, block_type, &stored) {
                panel.decode_params(isa, block_type, &stored);
            }
            let mut out = out.part(now.clone());
            stream_rows(
                isa,
                panel.product(product, now.len()),
                block_type,
                stored.weight,
                &mut out,
            );
        } else {
            let takes_lanes = takes_lanes(isa, &product, &stored);
            panel.decode(isa, block_type, &stored, takes_lanes);
            let next_panel = next_panel(&product, &now, rows.end);
            let panel = IntegerProduct {
                next_panel,
                #[cfg(target_arch = "x86_64")]
                params: takes_lanes.then_some(&panel.params),
                ..panel.product(product, now.len())
            };
            plane_rows(isa, panel, 0..now.len(), out.part(now));
        }
    }
    PANEL.set(panel);
}

/// Whether kernels take scales and biases of a panel with rows as lanes.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only kernels of x86-64 do")
)]
fn takes_lanes(isa: Isa, product: &IntegerProduct<'_>, stored: &MatrixView<'_>) -> bool {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Amx => {
            product.x_rows.len() >= MANY_ROWS
                && stored.rows.is_multiple_of(16)
                && stored.cols.is_multiple_of(super::steps::STEP_COLS)
        }
        _ => false,
    }
}

/// What is decoded after rows `now` of a task that ends with row `end`.
fn next_panel<'a>(
    product: &IntegerProduct<'a>,
    now: &Range<usize>,
    end: usize,
) -> Option<(MatrixView<'a>, usize)> {
    if now.end < end { Some((product.weight, now.end)) } else { product.next }
}

/// Computes the outputs of `rows` of a matrix of E2M1 by kernels that take codes of a byte.
pub(super) fn micro_rows(
    isa: Isa,
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let mut panel = PANEL.take();
    let n_panel_rows = panel_rows(product.x_rows.len(), product.weight.cols);
    for row in rows.clone().step_by(n_panel_rows) {
        let now = row..rows.end.min(row + n_panel_rows);
        panel.decode_micro(isa, &product, now.clone());
        plane_rows(isa, panel.product(product, now.len()), 0..now.len(), out.part(now));
    }
    PANEL.set(panel);
}

/// Rows that are decoded together.
fn panel_rows(n_x_rows: usize, cols: usize) -> usize {
    if n_x_rows < MANY_ROWS {
        return PANEL_ROWS;
    }
    let fitting = MAX_PANEL_BYTES / cols.max(1) / 48 * 48;
    fitting.clamp(48, MANY_PANEL_ROWS)
}

/// The most rows of activations for which kernels of this instruction set unpack blocks of this
/// type themselves, once a row: for more, unpacking once pays.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only kernels of x86-64 unpack blocks")
)]
fn streamed_rows(isa: Isa, block_type: BlockType) -> usize {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Amx => super::avx512::streamed_rows(block_type),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => super::avx2::streamed_rows(block_type),
        _ => 0,
    }
}

/// Whether these kernels read the scales and biases of a panel themselves, too.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only kernels of x86-64 unpack blocks")
)]
fn reads_params(isa: Isa, block_type: BlockType, stored: &MatrixView<'_>) -> bool {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Amx => super::avx512::reads_params(block_type, stored),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => true,
        _ => false,
    }
}

/// The outputs of a panel, whose scales and biases were decoded where [`reads_params`] says no.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only kernels of x86-64 unpack blocks")
)]
fn stream_rows(
    isa: Isa,
    product: IntegerProduct<'_>,
    block_type: BlockType,
    blocks: &[u8],
    out: &mut OutPart<'_>,
) {
    let n = product.x_rows.len();
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Amx => {
            for i in 0..n {
                // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
                unsafe { super::avx512::block_row(&product, block_type, blocks, i, out) };
            }
        }
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni => {
            for i in 0..n {
                // SAFETY: holding this `Isa` proves that the machine has AVX-VNNI, AVX2, FMA and
                // F16C.
                unsafe { super::avx2::block_row::<true>(&product, block_type, blocks, i, out) };
            }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => {
            for i in 0..n {
                // SAFETY: holding this `Isa` proves that the machine has AVX2, FMA and F16C.
                unsafe { super::avx2::block_row::<false>(&product, block_type, blocks, i, out) };
            }
        }
        _ => unreachable!("`streamed_rows` says so"),
    }
}

impl Panel {
    /// The product with the panel's rows in place of all of the matrix.
    fn product<'a>(&'a self, product: IntegerProduct<'a>, rows: usize) -> IntegerProduct<'a> {
        let affine = Affine::new(8, product.integers.group_size, Float::F32);
        let weight = MatrixView {
            rows,
            cols: product.weight.cols,
            format: MatrixFormat::Affine(affine),
            weight: &self.codes,
            scales: bytemuck::cast_slice(&self.scales),
            biases: bytemuck::cast_slice(&self.biases),
        };
        IntegerProduct { weight, integers: Integers::affine(affine), next: None, ..product }
    }

    fn decode_micro(&mut self, isa: Isa, product: &IntegerProduct<'_>, rows: Range<usize>) {
        let n_groups = product.n_groups();
        self.codes.resize(rows.len() * product.weight.cols, 0);
        self.scales.resize(rows.len() * n_groups, 0.0);
        self.biases.resize(rows.len() * n_groups, 0.0);
        unpack_e2m1(isa, product.weight_rows(rows.clone()), &mut self.codes);
        let groups = rows.start * n_groups..rows.end * n_groups;
        let (scales, biases) = (&mut self.scales, &mut self.biases);
        product.integers.params_of_groups(&product.weight, groups, scales, biases);
    }

    fn decode_params(&mut self, isa: Isa, block_type: BlockType, stored: &MatrixView<'_>) {
        let n_groups = stored.rows * stored.cols / block_type.group_cols();
        self.codes.clear();
        self.scales.resize(n_groups, 0.0);
        self.biases.resize(n_groups, 0.0);
        decode_params(isa, block_type, stored.weight, &mut self.scales, &mut self.biases);
    }

    /// With `lanes` scales and biases are decoded with rows as lanes.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(unused_variables, reason = "only kernels of x86-64 take lanes")
    )]
    fn decode(&mut self, isa: Isa, block_type: BlockType, stored: &MatrixView<'_>, lanes: bool) {
        let n = stored.rows * stored.cols;
        let n_groups = n / block_type.group_cols();
        self.codes.resize(n, 0);
        #[cfg(target_arch = "x86_64")]
        if lanes {
            unpack_codes(isa, block_type, stored.weight, &mut self.codes);
            return fill_params(isa, block_type, stored, &mut self.params);
        }
        self.scales.resize(n_groups, 0.0);
        self.biases.resize(n_groups, 0.0);
        let Panel { codes, scales, biases, .. } = self;
        let n_unpacked = unpack_codes(isa, block_type, stored.weight, codes);
        if n_unpacked == 0 {
            return decode_blocks(isa, block_type, stored.weight, codes, scales, biases);
        }
        let at = n_unpacked / block_type.block_cols() * block_type.block_bytes();
        block_type.decode_codes(&stored.weight[at..], &mut codes[n_unpacked..]);
        decode_params(isa, block_type, stored.weight, scales, biases);
    }
}

/// The scales and biases of a panel for which [`takes_lanes`] holds.
#[cfg(target_arch = "x86_64")]
fn fill_params(isa: Isa, block_type: BlockType, stored: &MatrixView<'_>, out: &mut LaneParams) {
    match isa.level() {
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 | Level::Amx => unsafe {
            super::avx512::fill_params(block_type, stored.weight, stored.rows, out);
        },
        _ => unreachable!("`takes_lanes` says so"),
    }
}

/// The integers of E2M1, a multiple of 32 of them.
#[cfg_attr(
    not(target_arch = "aarch64"),
    expect(unused_variables, reason = "kernels of other processors unpack them themselves")
)]
fn unpack_e2m1(isa: Isa, packed: &[u8], out: &mut [u8]) {
    #[cfg(target_arch = "aarch64")]
    if isa.level() != Level::Scalar {
        // SAFETY: holding this `Isa` proves that the machine has NEON.
        return unsafe { super::neon::unpack_row(super::integers::E2M1, packed, out) };
    }
    for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(packed) {
        *out = [byte & 15, byte >> 4].map(|code| E2M1_INTEGERS[usize::from(code)]);
    }
}

/// The codes of the first blocks by a kernel of the instruction set. Returns how many columns these
/// are.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only x86-64 has kernels")
)]
fn unpack_codes(isa: Isa, block_type: BlockType, blocks: &[u8], codes: &mut [u8]) -> usize {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 | Level::Amx => unsafe {
            super::avx512::unpack_codes(block_type, blocks, codes)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX2.
        Level::Avx2 | Level::AvxVnni => unsafe {
            super::avx2::unpack_codes(block_type, blocks, codes)
        },
        _ => 0,
    }
}

for_every_isa! {
    /// The scales and biases of the groups of whole blocks.
    fn decode_params(block_type: BlockType, blocks: &[u8], scales: &mut [f32], biases: &mut [f32]) {
        block_type.decode_params(blocks, scales, biases);
    }
}

for_every_isa! {
    /// The codes of whole blocks, and the scales and biases of their groups.
    pub(super) fn decode_blocks(
        block_type: BlockType,
        blocks: &[u8],
        codes: &mut [u8],
        scales: &mut [f32],
        biases: &mut [f32],
    ) {
        block_type.decode(blocks, codes, scales, biases);
    }
}
