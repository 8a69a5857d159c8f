//! The suite that every backend passes: each op, over odd sizes, against the
//! scalar CPU on one thread.
//!
//! A backend's test file is one call of [`check`].

mod attention;
mod caches;
mod elementwise;
mod entries;
mod mixers;
mod moe;
mod products;
mod selection;
mod streams;
mod suite;

use moeflux_core::quant::{AffineBias, MatrixFormat};

#[cfg(test)]
pub(crate) use self::products::set_scales;
use self::suite::Suite;
pub use self::suite::{Closeness, Open};

/// Runs the suite on backends made by `open`, one a case.
///
/// # Panics
/// With the case and the first element that differs.
pub fn check(open: Open<'_>, closeness: Closeness) {
    check_each(&[open], closeness);
}

/// Runs the suite on several candidates, the specification once for all.
///
/// # Panics
/// With the case and the first element that differs.
pub fn check_each(candidates: &[Open<'_>], closeness: Closeness) {
    check_ops(candidates, closeness);
    for formats in Formats::ALL {
        check_products(candidates, closeness, formats);
    }
}

/// Runs the cases of all ops but products and experts in every format, which [`check_products`] runs.
///
/// # Panics
/// With the case and the first element that differs.
pub fn check_ops(candidates: &[Open<'_>], closeness: Closeness) {
    let suite = Suite { candidates, closeness };
    elementwise::check(&suite);
    streams::check(&suite);
    mixers::check(&suite);
    attention::check(&suite);
    entries::check(&suite);
    selection::check(&suite);
    caches::check(&suite);
    moe::check(&suite);
    moe::check_turns(&suite);
    moe::check_held(&suite);
}

/// Runs what tests memory for experts, on backends that have little of it.
///
/// # Panics
/// With the case and the first element that differs.
pub fn check_experts_in_turns(candidates: &[Open<'_>], closeness: Closeness) {
    moe::check_turns(&Suite { candidates, closeness });
}

/// Matrix formats whose cases are run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formats {
    /// Floats, row by row and column by column.
    Floats,
    /// Integers with a scale and a bias for each group.
    Affine,
    /// Integers without biases.
    Symmetric,
    /// Small floats with scales, and codes of a table.
    Scaled,
    /// Blocks of GGML, those with codebooks aside.
    Blocks,
    /// Blocks of GGML whose codes stand for vectors.
    Codebooks,
}

impl Formats {
    /// All formats.
    pub const ALL: [Formats; 6] = [
        Formats::Floats,
        Formats::Affine,
        Formats::Symmetric,
        Formats::Scaled,
        Formats::Blocks,
        Formats::Codebooks,
    ];

    fn of(format: MatrixFormat) -> Formats {
        match format {
            MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) => Formats::Floats,
            MatrixFormat::Affine(affine) if affine.bias == AffineBias::Stored => Formats::Affine,
            MatrixFormat::Affine(_) => Formats::Symmetric,
            MatrixFormat::Micro(_) | MatrixFormat::Blocks(_) | MatrixFormat::Nf4 => Formats::Scaled,
            MatrixFormat::Ggml(block) if block.has_codebook() => Formats::Codebooks,
            MatrixFormat::Ggml(_) => Formats::Blocks,
        }
    }
}

/// Runs the cases of products and of experts in some formats: also for kernels that a backend
/// chooses between.
///
/// # Panics
/// With the case and the first element that differs.
pub fn check_products(candidates: &[Open<'_>], closeness: Closeness, formats: Formats) {
    let suite = Suite { candidates, closeness };
    let mut all = products::formats();
    all.retain(|format| Formats::of(*format) == formats);
    moe::check_formats(&suite, &all);
    products::check(&suite, &all);
}
