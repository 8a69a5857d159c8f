//! Every op against the specification, and every kernel against the compilers
//! that the machine at hand does not have.

mod metal;

use std::sync::Arc;

use moeflux_backend::conformance::{self, Closeness};

use crate::{Context, Wgpu};

/// Share of a result's largest element by which elements may differ from the
/// specification.
///
/// Both round to 2^-24 at each of at most some thousand additions, in different
/// orders: of errors that add up by chance, the root of their number counts,
/// about 64 * 2^-24 = 4e-6. WGSL's divisions and roots add 2.5 units of the
/// last place.
const RELATIVE: f32 = 1e-5;

/// The same for results that are small throughout because large terms cancel:
/// terms are of the order of one.
const ABSOLUTE: f32 = 1e-5;

#[test]
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn every_op_agrees_with_the_specification() {
    let context = match Context::open(None) {
        Ok(context) => context,
        Err(err) if std::env::var_os("MOEFLUX_EXPECTED_GPU").is_some() => panic!("{err}"),
        Err(err) => return println!("SKIP: {err}"),
    };
    println!("on {:?}", context.facts());
    let open =
        || -> Box<dyn moeflux_backend::Backend> { Box::new(Wgpu::new(Arc::clone(&context), None)) };
    let closeness = Closeness::Within { absolute: ABSOLUTE, relative: RELATIVE };
    conformance::check(&open, closeness);
}
