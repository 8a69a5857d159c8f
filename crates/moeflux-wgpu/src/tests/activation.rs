//! Activations that the third product of experts computes itself, against those of a
//! kernel before it.

use std::sync::Arc;

use moeflux_backend::cpu::matmul::integer_group_size;
use moeflux_backend::{ActivationPrecision, ExpertResidency, GatedActivation};
use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat};

use super::grouped::{Case, by_device};
use super::{context, layouts};
use crate::tests::metal::cases::Capturing;
use crate::{Context, Layout};

const CLAMPED: GatedActivation = GatedActivation::ClampedSwiglu { alpha: 1.702, limit: 0.02 };

fn case(bits: u8, group_size: usize, inner: usize, inputs: ActivationPrecision) -> Case {
    case_of(MatrixFormat::Affine(Affine::new(bits, group_size, Float::BF16)), inner, inputs)
}

fn case_of(format: MatrixFormat, inner: usize, inputs: ActivationPrecision) -> Case {
    Case {
        format,
        inputs,
        alternates: false,
        has_biases: false,
        has_shared: false,
        n_experts: 5,
        inner,
        activation: GatedActivation::Swiglu,
    }
}

/// The bits of a layer, and its kernels.
fn bits(
    context: &Arc<Context>,
    case: Case,
    layout: Option<Layout>,
    rows: usize,
    fuses: bool,
) -> (Vec<u32>, u64) {
    let capturing = Capturing::new(context);
    let mut b = capturing.open();
    b.fuses &= fuses;
    b.fix_layout(layout);
    let bits = by_device(&mut b, case, rows);
    assert!(bits.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{case:?}");
    (bits, b.counters().stats().kernels)
}

/// Compares both ways; gives how many kernels one saves.
#[track_caller]
fn saved(context: &Arc<Context>, case: Case, layout: Option<Layout>, rows: usize) -> u64 {
    let [(want, n_apart), (got, n_within)] =
        [false, true].map(|is_within| bits(context, case, layout, rows, is_within));
    assert!(got == want, "{case:?}, {layout:?}, {rows} rows");
    n_apart - n_within
}

#[test]
fn activations_within_the_third_product_have_the_bits_of_those_before_it() {
    let Some(context) = context() else { return };
    let layouts = layouts();
    for (nth, of) in [
        case(4, 32, 96, ActivationPrecision::Int16),
        case(4, 64, 192, ActivationPrecision::Int8),
        case(8, 64, 64, ActivationPrecision::Int16),
        case(2, 128, 640, ActivationPrecision::Int16),
        case(3, 32, 1056, ActivationPrecision::Int8),
        case_of(MatrixFormat::Ggml(BlockType::Q8_0), 96, ActivationPrecision::Int16),
        case_of(MatrixFormat::Ggml(BlockType::NVFP4), 192, ActivationPrecision::Int8),
        case_of(MatrixFormat::Ggml(BlockType::NVFP4), 128, ActivationPrecision::Int16),
    ]
    .into_iter()
    .enumerate()
    {
        let group_size = integer_group_size(of.format).expect("all of them are integers");
        // A kernel that activates rounds too where its workgroups have whole groups.
        let rounds = group_size <= 64 && of.inner.is_multiple_of(64);
        let fewer = if rounds { 1 } else { 2 };
        let expected = if context.has_many_bindings() { fewer } else { 0 };
        let clamped = Case { activation: CLAMPED, has_biases: true, ..of };
        let alternating = Case { alternates: true, ..of };
        let gelu = Case { activation: GatedActivation::GeluTanh, ..of };
        for layout in [None, Some(layouts[1]), Some(layouts[2 + nth % 2])] {
            for rows in [1, 3] {
                for case in [of, clamped, alternating, gelu] {
                    assert_eq!(saved(&context, case, layout, rows), expected, "{case:?}");
                }
            }
        }
        // One of fewer kernels runs the shared expert along.
        let beside = Case { has_shared: true, ..of };
        assert!(saved(&context, beside, None, 2) >= expected, "{beside:?}");
        for other in [clamped, gelu] {
            assert!(bits(&context, of, None, 1, true) != bits(&context, other, None, 1, true));
        }
    }
}

#[test]
fn rows_that_workgroups_have_no_memory_for_are_activated_before() {
    let Some(context) = context() else { return };
    let saved = |inner| saved(&context, case(4, 64, inner, ActivationPrecision::Int16), None, 1);
    let most = if context.has_many_bindings() { 1 } else { 0 };
    assert_eq!([saved(6336), saved(6400)], [most, 0]);
}
