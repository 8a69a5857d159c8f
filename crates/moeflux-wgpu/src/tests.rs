//! Every op against the specification, and every kernel against the compilers
//! that the machine at hand does not have.

mod metal;

use std::sync::Arc;

use moeflux_backend::conformance::{self, Closeness};
use moeflux_backend::{Backend, Cols, DeviceError};

use crate::context::{enumerate, lacks};
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

/// Doubles numbers on the device.
fn doubled(backend: &mut Wgpu) -> Result<Vec<f32>, DeviceError> {
    let buf = backend.alloc(1, 3);
    let other = backend.alloc(1, 3);
    for it in [buf, other] {
        backend.write(it, &[1.0, 2.0, 3.0]);
    }
    let all = |buf| Cols { buf, start: 0, len: 3 };
    backend.add(1, all(buf), all(other));
    backend.read(buf, 1)
}

#[test]
fn a_lost_device_says_so_at_every_read_back_and_another_can_be_opened() {
    let Some(_) = context() else { return };
    let adapter = enumerate().into_iter().next().unwrap();
    let lost = Context::open_anew(&adapter).unwrap();
    let mut backend = Wgpu::new(Arc::clone(&lost), None);
    assert_eq!(doubled(&mut backend).unwrap(), [2.0, 4.0, 6.0]);
    lost.device.destroy();
    for _ in 0..2 {
        let err = doubled(&mut backend).unwrap_err();
        assert!(matches!(err, DeviceError::Lost { .. }), "{err}");
        assert!(!err.to_string().contains('\n'), "{err}");
    }
    let mut another = Wgpu::new(Context::open_anew(&adapter).unwrap(), None);
    assert_eq!(doubled(&mut another).unwrap(), [2.0, 4.0, 6.0]);
}

#[test]
fn two_threads_use_one_device() {
    let Some(context) = context() else { return };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut backend = Wgpu::new(Arc::clone(&context), None);
                for _ in 0..50 {
                    assert_eq!(doubled(&mut backend).unwrap(), [2.0, 4.0, 6.0]);
                }
            });
        }
    });
}

#[test]
fn names_what_an_adapter_lacks() {
    let all = wgpu::Features::SUBGROUP;
    let limits = wgpu::Limits::default();
    let none = lacks(wgpu::Features::empty(), &limits, 32);
    assert_eq!(none.as_deref(), Some("it has no subgroup operations"));
    assert_eq!(lacks(all, &limits, 32), None);
    let narrow = lacks(all, &limits, 2);
    assert_eq!(narrow.as_deref(), Some("lanes of a subgroup: 2 of 4 needed"));
    let short = wgpu::Limits { max_storage_buffer_binding_size: 1 << 20, ..limits };
    let short = lacks(all, &short, 32);
    assert_eq!(short.as_deref(), Some("bytes of a binding: 1048576 of 134217728 needed"));
}
