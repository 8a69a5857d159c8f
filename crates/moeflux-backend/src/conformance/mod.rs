//! The suite that every backend passes: each op, over odd sizes, against the
//! scalar CPU on one thread.
//!
//! A backend's test file is one call of [`check`].

mod attention;
mod caches;
mod elementwise;
mod mixers;
mod moe;
mod products;
mod streams;
mod suite;

use moeflux_core::quant::MatrixFormat;

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
    let suite = Suite { candidates, closeness };
    elementwise::check(&suite);
    streams::check(&suite);
    mixers::check(&suite);
    attention::check(&suite);
    caches::check(&suite);
    moe::check(&suite);
    moe::check_turns(&suite);
    moe::check_held(&suite);
    check_formats(candidates, closeness, &products::formats());
}

/// Runs what tests memory for experts, on backends that have little of it.
///
/// # Panics
/// With the case and the first element that differs.
pub fn check_experts_in_turns(candidates: &[Open<'_>], closeness: Closeness) {
    moe::check_turns(&Suite { candidates, closeness });
}

/// Runs the cases of products and of experts: for kernels that a backend
/// chooses between.
///
/// # Panics
/// With the case and the first element that differs.
pub fn check_products(candidates: &[Open<'_>], closeness: Closeness) {
    check_formats(candidates, closeness, &products::formats());
}

/// Runs the cases of products and of experts in some formats.
///
/// # Panics
/// With the case and the first element that differs.
fn check_formats(candidates: &[Open<'_>], closeness: Closeness, formats: &[MatrixFormat]) {
    let suite = Suite { candidates, closeness };
    moe::check_formats(&suite, formats);
    products::check(&suite, formats);
}
