//! Command buffers that a driver gives up and reports as done.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moeflux_backend::{ActivationPrecision, Buf, Cols, DeviceError, Ops};
use moeflux_core::quant::{Float, MatrixFormat};

use super::{context, matrix};
use crate::Context;
use crate::backend::new_backend;
use crate::commands::prerecord;
use crate::device::adapter::enumerate;
use crate::state::gpu::Wgpu;

/// A device that no other test shares, as it is lost on the way.
fn own_context() -> Option<Arc<Context>> {
    context().map(|_| Context::open_anew(&enumerate()[0]).unwrap())
}

fn leave_out(b: &Wgpu, nth: u32) {
    b.encoder.context().left_out_in.store(nth, Ordering::Relaxed);
}

fn is_left_out(b: &Wgpu) -> bool {
    b.encoder.context().left_out_in.load(Ordering::Relaxed) == 0
}

/// A buffer of ones, and one of zeros to which these are added.
struct Sums {
    b: Wgpu,
    sum: Buf,
    one: Buf,
}

impl Sums {
    fn new(context: Arc<Context>) -> Sums {
        let mut b = new_backend(context, None);
        let [sum, one] = [b.alloc(1, 1), b.alloc(1, 1)];
        b.write(sum, &[0.0]);
        b.write(one, &[1.0]);
        Sums { b, sum, one }
    }

    /// Adds one this often, with a kernel each.
    fn add(&mut self, n: usize) {
        let all = |buf| Cols { buf, start: 0, len: 1 };
        (0..n).for_each(|_| self.b.add(1, all(self.sum), all(self.one)));
    }

    fn read(&mut self) -> Result<Vec<f32>, DeviceError> {
        self.b.read(self.sum, 1)
    }

    #[track_caller]
    fn check_is_lost(&mut self) {
        for _ in 0..2 {
            let err = self.read().unwrap_err();
            assert!(matches!(err, DeviceError::Lost { .. }), "{err}");
            assert!(err.to_string().contains("gave up"), "{err}");
        }
        assert!(is_left_out(&self.b));
        assert!(self.b.encoder.context().check().is_err());
    }
}

#[test]
fn a_read_back_fails_where_its_own_commands_never_ran() {
    let Some(context) = own_context() else { return };
    let mut sums = Sums::new(context);
    for want in [2.0, 4.0] {
        sums.add(2);
        assert_eq!(sums.read().unwrap(), [want]);
    }
    leave_out(&sums.b, 1);
    sums.add(2);
    sums.check_is_lost();
}

#[test]
fn a_read_back_fails_where_commands_long_before_it_never_ran() {
    // Submissions are of 16 kernels first, and then grow.
    for (nth, n) in [(1, 60), (2, 60), (3, 200)] {
        let Some(context) = own_context() else { return };
        let mut sums = Sums::new(context);
        leave_out(&sums.b, nth);
        sums.add(n);
        sums.check_is_lost();
    }
}

#[test]
fn a_read_back_fails_where_a_part_of_a_step_recorded_ahead_never_ran() {
    for nth in [1, 2] {
        let Some(context) = own_context() else { return };
        let mut sums = Sums::new(context);
        let step = |sums: &mut Sums, nth| {
            assert!(prerecord::begin(&mut sums.b.encoder));
            sums.add(150);
            assert!(prerecord::end(&mut sums.b.encoder, true));
            leave_out(&sums.b, nth);
            assert!(prerecord::replay(&mut sums.b.encoder, &[]));
        };
        step(&mut sums, 0);
        assert_eq!(sums.read().unwrap(), [150.0]);
        step(&mut sums, nth);
        sums.check_is_lost();
    }
}

#[test]
fn a_read_back_fails_where_weights_never_arrived() {
    let Some(context) = own_context() else { return };
    let mut sums = Sums::new(context);
    leave_out(&sums.b, 1);
    // More than is on the way at a time.
    let format = MatrixFormat::Dense(Float::F32);
    matrix(&mut sums.b, format, 4100, 4096, ActivationPrecision::F32);
    sums.check_is_lost();
}

#[test]
fn numbers_go_on_behind_the_last_one() {
    let Some(context) = own_context() else { return };
    let mut sums = Sums::new(context);
    let last = u32::MAX - 1;
    let number = sums.b.encoder.serials.mem.clone();
    sums.b.encoder.write(&number, 0, &last.to_le_bytes());
    sums.b.encoder.serials.last = last;
    for i in 1..=4_u8 {
        sums.add(1);
        assert_eq!(sums.read().unwrap(), [f32::from(i)]);
    }
    assert_eq!(sums.b.encoder.serials.last, 2);
    leave_out(&sums.b, 1);
    sums.add(1);
    sums.check_is_lost();
}
