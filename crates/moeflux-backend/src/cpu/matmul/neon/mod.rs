//! The integer product with NEON, with the dot products of ARMv8.4 and with
//! the matrix products of ARMv8.6.
//!
//! One row of activations, or a few: `stream.rs` reads four rows of the matrix
//! side by side. Several: `tile.rs` unpacks eight rows once for all of them.
//! Both end with four rows of the matrix as the lanes of a vector.

mod dispatch;
mod instructions;
mod levels;
mod limbs;
mod params;
mod piece;
mod stream;
mod tile;
mod unpack;
mod vector;

use std::ops::Range;

use self::instructions::Instructions;
use self::levels::{Dotprod, I8mm, Plain};
use super::integers::E2M1;
use super::product::IntegerProduct;
use super::rows::OutPart;

pub(super) use unpack::unpack_row;

/// From this many rows of activations on, unpacking once pays: it takes about
/// as many instructions as multiplying two rows.
const TILE_X_ROWS: usize = 4;

/// Calls `$kernel::<_, CODES, GROUP, LIMBS>` for the format of the product.
macro_rules! for_format {
    ($product:expr, $kernel:path, $args:tt) => {
        for_format!(@codes $product, $kernel, $args, 2 3 4 5 6 8)
    };
    (@codes $product:expr, $kernel:path, $args:tt, $($bits:literal)*) => {
        match ($product.integers.codes, $product.integers.group_size, $product.x.n_limbs()) {
            $(
                ($bits, 32, 1) => for_format!(@call $kernel, $bits, 32, 1, $args),
                ($bits, 32, 2) => for_format!(@call $kernel, $bits, 32, 2, $args),
                ($bits, 64, 1) => for_format!(@call $kernel, $bits, 64, 1, $args),
                ($bits, 64, 2) => for_format!(@call $kernel, $bits, 64, 2, $args),
                ($bits, 128, 1) => for_format!(@call $kernel, $bits, 128, 1, $args),
                ($bits, 128, 2) => for_format!(@call $kernel, $bits, 128, 2, $args),
            )*
            (8, 16, 1) => for_format!(@call $kernel, 8, 16, 1, $args),
            (8, 16, 2) => for_format!(@call $kernel, 8, 16, 2, $args),
            (E2M1, 32, 1) => for_format!(@call $kernel, { E2M1 }, 32, 1, $args),
            (E2M1, 32, 2) => for_format!(@call $kernel, { E2M1 }, 32, 2, $args),
            _ => unreachable!("supported formats only"),
        }
    };
    (@call $kernel:path, $codes:tt, $group:literal, $limbs:literal, ($($arg:expr),*)) => {{
        use $kernel as kernel;
        kernel::<_, $codes, $group, $limbs>($($arg),*)
    }};
}

/// With what every 64-bit ARM processor has.
#[target_feature(enable = "neon")]
pub(super) fn plain(product: IntegerProduct<'_>, rows: Range<usize>, out: OutPart<'_>) {
    integer_rows(Plain, product, rows, out);
}

/// With dot products.
///
/// # Safety
/// The machine has FEAT_DotProd.
#[target_feature(enable = "neon")]
pub(super) unsafe fn dotprod(product: IntegerProduct<'_>, rows: Range<usize>, out: OutPart<'_>) {
    // SAFETY: passed on to the caller.
    let isa = unsafe { Dotprod::assume() };
    integer_rows(isa, product, rows, out);
}

/// With matrix products.
///
/// # Safety
/// The machine has FEAT_I8MM.
#[target_feature(enable = "neon")]
pub(super) unsafe fn i8mm(product: IntegerProduct<'_>, rows: Range<usize>, out: OutPart<'_>) {
    // SAFETY: passed on to the caller.
    let isa = unsafe { I8mm::assume() };
    integer_rows(isa, product, rows, out);
}

#[inline]
#[target_feature(enable = "neon")]
fn integer_rows<L: Instructions>(
    isa: L,
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let n = product.x_rows.len();
    if n >= TILE_X_ROWS {
        tile::integer_rows(isa, product, rows, &mut out);
    } else {
        for i in 0..n {
            let rows = rows.clone();
            for_format!(product, stream::integer_row, (isa, product, rows, i, &mut out));
        }
    }
}
