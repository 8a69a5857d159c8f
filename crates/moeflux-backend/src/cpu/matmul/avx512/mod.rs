//! The integer product with AVX-512 VNNI.
//!
//! One row of activations: `stream.rs` reads the matrix in the order of
//! memory. Several: `tile.rs` unpacks a panel of rows once for all of them. Both
//! end with sixteen rows of the matrix as the lanes of a vector.

mod blocks;
mod columns;
mod dots;
mod lanes;
mod micro;
pub(super) mod panel;
pub(super) mod params;
mod round;
mod stream;
mod tile;
pub(super) mod transpose;
pub(super) mod unpack;
mod unpack_blocks;
mod unpack_codebooks;
pub(super) mod vector;

use std::ops::Range;

use super::product::IntegerProduct;
use super::rows::OutPart;

pub(super) use blocks::{
    fill_params, integer_row as block_row, reads_params, streamed_rows, unpack_codes,
};
pub(super) use micro::{E4M3_UNIT, decode_e2m1, multiply_e2m1, multiply_e4m3};
pub(super) use round::quantise_row;
pub(super) use tile::PANEL_ROWS;
pub(super) use unpack::unpack_row;

/// From this many rows of activations on, unpacking once pays.
const TILE_X_ROWS: usize = 4;

/// Calls `$kernel::<CODES, GROUP>` for the format of the matrix.
macro_rules! for_format {
    ($integers:expr, $kernel:path, $args:tt) => {
        for_format!(@codes $integers, $kernel, $args, 2 3 4 5 6 8)
    };
    (@codes $integers:expr, $kernel:path, $args:tt, $($bits:literal)*) => {
        match ($integers.codes, $integers.group_size) {
            $(
                ($bits, 32) => for_format!(@call $kernel, $bits, 32, $args),
                ($bits, 64) => for_format!(@call $kernel, $bits, 64, $args),
                ($bits, 128) => for_format!(@call $kernel, $bits, 128, $args),
            )*
            (8, 16) => for_format!(@call $kernel, 8, 16, $args),
            ($crate::cpu::matmul::integers::E2M1, 16) => {
                for_format!(@call $kernel, { $crate::cpu::matmul::integers::E2M1 }, 16, $args)
            },
            ($crate::cpu::matmul::integers::E2M1, 32) => {
                for_format!(@call $kernel, { $crate::cpu::matmul::integers::E2M1 }, 32, $args)
            },
            _ => unreachable!("supported formats only"),
        }
    };
    (@call $kernel:path, $codes:tt, $group:literal, ($($arg:expr),*)) => {{
        use $kernel as kernel;
        kernel::<$codes, $group>($($arg),*)
    }};
}

pub(super) use for_format;

#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn integer_rows(product: IntegerProduct<'_>, rows: Range<usize>, mut out: OutPart<'_>) {
    let n = product.x_rows.len();
    if n >= TILE_X_ROWS {
        for_format!(product.integers, tile::integer_rows, (product, rows, &mut out));
    } else {
        for i in 0..n {
            for_format!(
                product.integers,
                stream::integer_row,
                (product, rows.clone(), i, &mut out)
            );
        }
    }
}
