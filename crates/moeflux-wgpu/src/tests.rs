//! Every op against the specification, and every kernel against the compilers
//! that the machine at hand does not have.

mod metal;

use std::sync::Arc;

use moeflux_backend::Backend;
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

const CLOSENESS: Closeness = Closeness::Within { absolute: ABSOLUTE, relative: RELATIVE };

/// The best GPU, or `None` where there is none and none is expected.
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn context() -> Option<Arc<Context>> {
    match Context::open(None) {
        Ok(context) => Some(context),
        Err(err) if std::env::var_os("MOEFLUX_EXPECTED_GPU").is_some() => panic!("{err}"),
        Err(err) => {
            println!("SKIP: {err}");
            None
        }
    }
}

#[test]
fn every_op_agrees_with_the_specification() {
    let Some(context) = context() else { return };
    let open = || -> Box<dyn Backend> { Box::new(Wgpu::new(Arc::clone(&context), None)) };
    conformance::check(&open, CLOSENESS);
}

#[test]
fn experts_are_what_they_were_while_their_slots_are_given_away() {
    let Some(context) = context() else { return };
    // From one slot to more than there are experts.
    for slot_bytes in (0..400_000).step_by(20_000) {
        let open =
            || -> Box<dyn Backend> { Box::new(Wgpu::new(Arc::clone(&context), Some(slot_bytes))) };
        conformance::check_experts_in_turns(&[&open], CLOSENESS);
    }
}
