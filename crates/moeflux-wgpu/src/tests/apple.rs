//! What GPUs of Apple allow, on the device at hand: fewer limits, no cooperative matrices, and
//! submissions that are bounded by time.

use std::sync::Arc;

use moeflux_backend::conformance::{self, Formats};
use moeflux_backend::{ActivationPrecision, Backend, Cols, GatedActivation, Ops, Projection};
use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat};

use super::grouped::{Case, INNER, by_device};
use super::{closeness, context, matrix};
use crate::backend::new_backend;
use crate::device::adapter::enumerate;
use crate::device::imports::host_access::HostAccess;
use crate::device::profile::Profile;
use crate::{Context, Tiles};

fn apple() -> Option<Arc<Context>> {
    context()?;
    let adapter = enumerate().into_iter().next()?;
    let context = Context::open_with(&adapter, Profile::apple(&adapter)).unwrap();
    assert!(context.limits.max_compute_workgroup_storage_size <= 32 << 10);
    assert!(!context.has_coop_matrix && context.max_binding_bytes() <= 128 << 20);
    Some(context)
}

#[test]
fn every_op_agrees_with_the_specification() {
    let Some(context) = apple() else { return };
    let open = || -> Box<dyn Backend> { Box::new(new_backend(Arc::clone(&context), None)) };
    conformance::check_ops(&[&open], closeness(Tiles::F32));
}

#[test]
fn products_agree_with_the_specification() {
    let Some(context) = apple() else { return };
    let open = || -> Box<dyn Backend> { Box::new(new_backend(Arc::clone(&context), None)) };
    conformance::check_products(&[&open], closeness(Tiles::F32), Formats::Scaled);
}

#[test]
fn experts_are_what_they_were_while_their_slots_are_given_away() {
    let Some(context) = apple() else { return };
    for slot_bytes in [0, 100_000] {
        let open = |host_access: HostAccess| -> Box<dyn Backend> {
            let mut backend = new_backend(Arc::clone(&context), Some(slot_bytes));
            backend.encoder.uploads.host_access = host_access;
            Box::new(backend)
        };
        let (written, in_place) = (|| open(HostAccess::Written), || open(HostAccess::InPlace));
        conformance::check_experts_in_turns(&[&written, &in_place], closeness(Tiles::F32));
    }
}

/// Bits of products of some rows, and the submissions that they took.
fn product(context: &Arc<Context>, format: MatrixFormat, n_rows: usize) -> (Vec<u32>, u32) {
    let (rows, cols) = (5000, 96);
    let cols = match format {
        MatrixFormat::Ggml(it) => usize::next_multiple_of(cols, it.block_cols()),
        _ => cols,
    };
    let mut b = new_backend(Arc::clone(context), None);
    b.fix_tiles(Tiles::F32);
    let weight = matrix(&mut b, format, rows, cols, ActivationPrecision::Int16);
    let (x, y) = (b.alloc(n_rows, cols), b.alloc(n_rows, rows));
    b.write(x, &(0..n_rows * cols).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>());
    let before = b.encoder.serials.last;
    let (x, out) = (Cols { buf: x, start: 0, len: cols }, Cols { buf: y, start: 0, len: rows });
    b.project(n_rows, x, &[Projection { weight, out }]);
    let all = b.read(y, n_rows).expect("the device works");
    let n_submissions = b.encoder.serials.last - before;
    (all.into_iter().map(f32::to_bits).collect(), n_submissions)
}

#[test]
fn long_products_are_cut_and_keep_their_bits() {
    let (Some(apple), Some(context)) = (apple(), context()) else { return };
    let affine = MatrixFormat::Affine(Affine::new(4, 32, Float::BF16));
    for format in [affine, MatrixFormat::Ggml(BlockType::Q8_0)] {
        for n_rows in [3, 70] {
            let (want, n_whole) = product(&context, format, n_rows);
            let (got, n_cut) = product(&apple, format, n_rows);
            assert!(got == want, "{format:?}, {n_rows} rows");
            assert_eq!(n_whole, 1);
            assert!(n_rows == 3 || n_cut > 3, "{format:?}: {n_cut} submissions");
        }
    }
}

#[test]
fn experts_of_many_rows_are_cut_and_keep_their_bits() {
    let (Some(apple), Some(context)) = (apple(), context()) else { return };
    let case = Case {
        format: MatrixFormat::Affine(Affine::new(4, 32, Float::BF16)),
        inputs: ActivationPrecision::Int16,
        alternates: false,
        has_biases: false,
        has_shared: false,
        n_experts: 40,
        inner: INNER,
        activation: GatedActivation::Swiglu,
    };
    let run = |context: &Arc<Context>| {
        let mut b = new_backend(Arc::clone(context), None);
        b.fix_tiles(Tiles::F32);
        (by_device(&mut b, case, 300), b.encoder.serials.last)
    };
    let ((want, n_whole), (got, n_cut)) = (run(&context), run(&apple));
    assert!(got == want);
    assert!(n_cut > n_whole + 10, "{n_cut} submissions instead of {n_whole}");
}
