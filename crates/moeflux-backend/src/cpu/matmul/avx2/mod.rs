//! The integer product with AVX2, and with AVX-VNNI.
//!
//! Few rows of activations: `rows.rs` and `nibbles.rs` take eight rows of four bits side by side,
//! `blocks.rs` eight rows of blocks, `stream.rs` reads other matrices in the order of memory. Many: `tile.rs` unpacks
//! sixteen rows of the matrix once for all of them. All end with eight rows of the matrix as the
//! lanes of a vector.

mod block_dots;
mod block_rows;
mod blocks;
mod dots;
mod lane_sums;
mod lanes;
mod micro;
mod nibbles;
mod order;
mod params;
mod round;
mod rows;
mod step_x;
mod stream;
mod tile;
mod unpack;
mod unpack_blocks;
mod unpack_codebooks;
mod unpacked;
mod vector;

use std::ops::Range;

use moeflux_core::quant::BlockType;

use super::integers::E2M1;
use super::product::IntegerProduct;
use super::rows::OutPart;

pub(super) use blocks::{integer_row as block_row, streamed_rows, unpack_codes};
pub(super) use micro::{E4M3_UNIT, are_numbers, decode_e2m1, multiply_e2m1, multiply_e4m3};
pub(super) use round::quantise_row;
pub(super) use unpack::unpack_row;

/// Calls `$kernel::<CODES, GROUP, $vnni>` for the format of the matrix; with `affine`, not for E2M1.
macro_rules! for_format {
    (affine $integers:expr, $vnni:ident, $kernel:path, $args:tt) => {
        for_format!(@codes $integers, $vnni, $kernel, $args, 2 3 4 5 6 8,)
    };
    ($integers:expr, $vnni:ident, $kernel:path, $args:tt) => {
        for_format!(@codes $integers, $vnni, $kernel, $args, 2 3 4 5 6 8,
            (E2M1, 16) => for_format!(@call $kernel, { E2M1 }, 16, $vnni, $args),
            (E2M1, 32) => for_format!(@call $kernel, { E2M1 }, 32, $vnni, $args),
        )
    };
    (
        @codes $integers:expr, $vnni:ident, $kernel:path, $args:tt, $($bits:literal)*,
        $($pattern:pat => $call:expr,)*
    ) => {
        match ($integers.codes, $integers.group_size) {
            $(
                ($bits, 32) => for_format!(@call $kernel, $bits, 32, $vnni, $args),
                ($bits, 64) => for_format!(@call $kernel, $bits, 64, $vnni, $args),
                ($bits, 128) => for_format!(@call $kernel, $bits, 128, $vnni, $args),
            )*
            (8, 16) => for_format!(@call $kernel, 8, 16, $vnni, $args),
            $($pattern => $call,)*
            _ => unreachable!("supported formats only"),
        }
    };
    (@call $kernel:path, $codes:tt, $group:literal, $vnni:ident, ($($arg:expr),*)) => {{
        use $kernel as kernel;
        kernel::<$codes, $group, $vnni>($($arg),*)
    }};
}

/// `VNNI`: the machine has AVX-VNNI too.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn integer_rows<const VNNI: bool>(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    if product.x_rows.len() <= stream::X_ROWS {
        match (product.integers.codes, product.integers.group_size) {
            (4, 32) if !VNNI && rows::is_supported(product.weight.cols) => {
                rows::integer_rows::<1, 2>(product, rows, &mut out);
            }
            (4, 64) if !VNNI => rows::integer_rows::<1, 1>(product, rows, &mut out),
            (4, 128) if !VNNI => rows::integer_rows::<2, 1>(product, rows, &mut out),
            (4, 32) => {
                nibbles::integer_rows::<{ BlockType::Q4_0 as u8 }, VNNI>(product, rows, &mut out);
            }
            (E2M1, 16) => {
                nibbles::integer_rows::<{ BlockType::NVFP4 as u8 }, VNNI>(product, rows, &mut out);
            }
            (E2M1, 32) => {
                nibbles::integer_rows::<{ BlockType::MXFP4 as u8 }, VNNI>(product, rows, &mut out);
            }
            _ => {
                for_format!(
                    affine product.integers, VNNI, stream::integer_rows, (product, rows, &mut out)
                )
            }
        }
    } else {
        for_format!(product.integers, VNNI, tile::integer_rows, (product, rows, &mut out));
    }
}
