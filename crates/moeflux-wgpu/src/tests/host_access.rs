//! Experts have the same bits whichever way they come to the device.

use std::sync::Arc;

use moeflux_backend::{
    ActivationPrecision, ExpertCall, ExpertFunction, ExpertResidency, ExpertRow, Experts,
    GatedActivation, Ops,
};
use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat, MicroScaled, ScaledBlocks};
use moeflux_core::{
    Expert, ExpertBank, ExpertMemory, ExtentSource, FileIdx, HostSlab, LayerBank, SplitMix64,
};

use moeflux_residency::Slot;

use super::context;
use super::grouped::{Case, HIDDEN, INNER, cols, expert_in, floats, layout};
use crate::backend::new_backend;
use crate::commands::read::read;
use crate::commands::upload::upload;
use crate::device::buffer::Mem;
use crate::device::imports::host_access::HostAccess;
use crate::layouts::packing::pack;
use crate::state::gpu::Wgpu;
use crate::{Context, Tiles, reads_in_place};

fn affine(bits: u8, group_size: usize, params: Float) -> MatrixFormat {
    MatrixFormat::Affine(Affine::new(bits, group_size, params))
}

fn case(format: MatrixFormat, alternates: bool) -> Case {
    Case {
        format,
        inputs: ActivationPrecision::Int16,
        alternates,
        has_biases: false,
        has_shared: false,
        n_experts: 2,
        inner: INNER,
        activation: GatedActivation::Swiglu,
    }
}

/// Two experts in one slab, whose bytes begin so far into their buffers.
fn experts(case: Case, start: usize) -> [Arc<Expert>; 2] {
    let layout = Arc::new(layout(case));
    let bytes = (start + layout.record_bytes()).next_multiple_of(4096);
    // A page more.
    let mut slab = HostSlab::new(2 * bytes + 4096);
    [0, 1].map(|id| expert_in(slab.carve(bytes).unwrap(), start, &layout, id))
}

/// What rows get from both experts, as bits.
fn run(
    b: &mut Wgpu,
    experts: &[Arc<Expert>; 2],
    rows: usize,
    inputs: ActivationPrecision,
) -> Vec<u32> {
    let x = cols(b, rows, HIDDEN, &floats(&mut SplitMix64::new(3), rows * HIDDEN));
    let out = b.alloc(2 * rows, HIDDEN);
    let row = |row: usize, nth: usize| ExpertRow { row: row as u32, slot: (2 * row + nth) as u32 };
    let calls = [0, 1].map(|nth| ExpertCall {
        expert: Arc::clone(&experts[nth]),
        rows: (0..rows).map(|nth_row| row(nth_row, nth)).collect(),
    });
    let function = ExpertFunction::SWIGLU;
    b.experts(Experts { out, x, rows, inputs, function, calls: &calls });
    let values = b.read(out, 2 * rows).unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

fn backend(context: &Arc<Context>, reach: HostAccess) -> Wgpu {
    let mut backend = new_backend(Arc::clone(context), None);
    backend.encoder.uploads.host_access = reach;
    backend
}

/// Which way experts came.
fn taken(b: &Wgpu) -> HostAccess {
    let n_uploads = b.counters().stats().uploads;
    match (b.encoder.uploads.has_staged(), n_uploads) {
        (true, _) => HostAccess::Written,
        (false, 0) => HostAccess::InPlace,
        _ => HostAccess::Fetched,
    }
}

#[track_caller]
fn check(context: &Arc<Context>, case: Case, start: usize, best: HostAccess) {
    let experts = experts(case, start);
    for rows in [1, 12] {
        let mut written = backend(context, HostAccess::Written);
        let want = run(&mut written, &experts, rows, case.inputs);
        assert_eq!(taken(&written), HostAccess::Written);
        assert!(want.iter().any(|bits| *bits != 0));
        for reach in [HostAccess::Fetched, HostAccess::InPlace] {
            let mut b = backend(context, reach);
            let got = run(&mut b, &experts, rows, case.inputs);
            assert!(got == want, "{case:?}, {start}, {rows} rows, {reach:?}");
            let way = if best == HostAccess::InPlace { reach } else { best };
            assert_eq!(taken(&b), way, "{case:?}, {start}");
        }
    }
}

/// A device that reads the host's memory; where there is none no test is one.
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
pub(super) fn reading_context() -> Option<Arc<Context>> {
    let context = context()?;
    if context.slab_alignment.is_none() {
        assert!(!context.facts().is_software(), "software reads all memory");
        println!("SKIP: the device does not read the host's memory");
        return None;
    }
    Some(context)
}

#[test]
fn experts_have_the_same_bits_whichever_way_they_come() {
    let Some(context) = reading_context() else { return };
    let params = [Float::BF16, Float::F16, Float::F32];
    let mut formats: Vec<MatrixFormat> =
        params.iter().map(|params| affine(4, 32, *params)).collect();
    formats.extend([2, 3, 5, 6, 8].map(|bits| affine(bits, 32, Float::BF16)));
    formats.extend(params.map(MatrixFormat::Dense));
    formats.extend(params.map(|params| MatrixFormat::Affine(Affine::symmetric(4, 32, params))));
    formats.push(MatrixFormat::Affine(Affine::symmetric(8, 32, Float::BF16)));
    formats.extend(MicroScaled::MODES.map(|(_, micro)| MatrixFormat::Micro(micro)));
    // Blocks that begin at words, at halves of them, and anywhere.
    let blocks = [BlockType::Q4_1, BlockType::Q8_0, BlockType::MXFP4];
    formats.extend(blocks.map(MatrixFormat::Ggml));
    for format in formats {
        for alternates in [false, true] {
            check(&context, case(format, alternates), 0, HostAccess::InPlace);
        }
    }
}

#[test]
fn units_for_matrices_read_biases_that_lie_apart() {
    let Some(context) = reading_context() else { return };
    if !context.has_f16 {
        return;
    }
    let tiles = if context.has_coop_matrix { Tiles::CoopMatrix } else { Tiles::Emulated };
    for (inputs, alternates) in
        [(ActivationPrecision::Int16, false), (ActivationPrecision::Int8, true)]
    {
        let case = Case { inputs, ..case(affine(4, 32, Float::BF16), alternates) };
        let experts = experts(case, 0);
        // More rows than are few.
        let [want, got] = [HostAccess::Written, HostAccess::InPlace].map(|reach| {
            let mut b = backend(&context, reach);
            b.fix_tiles(tiles);
            let values = run(&mut b, &experts, 70, inputs);
            assert_eq!(taken(&b), reach);
            values
        });
        assert!(want.iter().any(|bits| *bits != 0));
        assert!(got == want, "{inputs:?}");
    }
}

#[test]
fn experts_that_begin_anywhere_come_by_what_can_read_them() {
    let Some(context) = reading_context() else { return };
    let case = case(affine(4, 32, Float::BF16), false);
    check(&context, case, 32, HostAccess::InPlace);
    check(&context, case, 8, HostAccess::Fetched);
    check(&context, case, 2, HostAccess::Written);
    // Rectangles whose scales fill no 16 bytes.
    let blocks = ScaledBlocks { block_rows: 64, block_cols: 64, scales: Float::F32, phase: 0 };
    let case = Case { format: MatrixFormat::Blocks(blocks), ..case };
    let experts = experts(case, 0);
    let [want, got] = [HostAccess::Written, HostAccess::Fetched]
        .map(|reach| run(&mut backend(&context, reach), &experts, 1, case.inputs));
    assert_eq!(got, want);
}

/// An expert, and the number of the slot that it is copied into.
struct Move<'a> {
    expert: &'a Arc<Expert>,
    slot: usize,
}

/// Experts that are copied together, and by how many kernels.
struct Moves<'a> {
    moves: Vec<Move<'a>>,
    n_kernels: u64,
}

#[test]
fn experts_that_come_together_take_one_kernel_and_the_last_to_come_to_a_place_is_there() {
    let Some(context) = reading_context() else { return };
    let case = case(affine(4, 32, Float::BF16), false);
    let [one, other] = [experts(case, 0), experts(case, 0)];
    let mut b = backend(&context, HostAccess::Fetched);
    let packing = Arc::new(pack(&one[0].layout));
    let n = packing.bytes();
    let slots = || Mem::new(context.try_storage(3 * n as u64, "slots").unwrap());
    let to = |slot, expert| Move { expert, slot };
    // Both of a slab, then one of another slab, then one in another's place.
    let cases = [
        Moves { moves: vec![to(0, &one[0]), to(2, &one[1])], n_kernels: 1 },
        Moves { moves: vec![to(2, &one[0]), to(0, &one[1]), to(1, &other[0])], n_kernels: 2 },
        Moves { moves: vec![to(1, &one[0]), to(1, &one[1])], n_kernels: 2 },
        Moves { moves: vec![to(0, &one[1]), to(1, &one[0]), to(1, &one[1])], n_kernels: 2 },
    ];
    let mut read = |moves: &[Move<'_>], host_access| {
        b.encoder.uploads.host_access = host_access;
        b.counters().reset();
        let buffer = slots();
        for Move { expert, slot } in moves {
            let slot = Slot { buffer: buffer.clone(), at: slot * n };
            assert!(upload(&mut b.encoder, expert, &packing, &slot));
        }
        let bytes = read(&mut b.encoder, &[buffer.range(0, 3 * n as u64)]).unwrap();
        (bytes, b.counters().stats().kernels)
    };
    for Moves { moves, n_kernels } in cases {
        let (want, _) = read(&moves, HostAccess::Written);
        let (got, n) = read(&moves, HostAccess::Fetched);
        assert!(got == want && got.iter().any(|byte| *byte != 0), "{n_kernels} kernels");
        assert_eq!(n, n_kernels);
    }
}

#[test]
fn a_bank_is_read_in_place_where_every_expert_is() {
    let bank = |format, base| {
        let layout = Arc::new(layout(case(format, false)));
        let source = ExtentSource::Strided { file: FileIdx(0), base, stride: 1 << 20 };
        let layer = LayerBank { n_experts: 2, layout, sources: vec![source], checksums: None };
        ExpertBank { files: Vec::new(), layers: vec![None, Some(layer)] }
    };
    let four_bits = affine(4, 32, Float::BF16);
    assert!(reads_in_place(&bank(four_bits, 4096)));
    assert!(!reads_in_place(&bank(four_bits, 4104)));
    assert!(reads_in_place(&bank(MatrixFormat::Dense(Float::BF16), 0)));
    assert!(!reads_in_place(&bank(MatrixFormat::Transposed(Float::BF16), 0)));
    assert!(reads_in_place(&bank(MatrixFormat::Ggml(BlockType::Q8_0), 32)));
}

fn owned_bytes(expert: &Expert) -> u64 {
    match &expert.memory {
        ExpertMemory::Owned { buf, .. } => buf.len() as u64,
        ExpertMemory::Mapped(_) => 0,
    }
}

#[test]
fn experts_are_held_until_the_device_has_read_them_and_slabs_as_long_as_they_are_used() {
    let Some(context) = reading_context() else { return };
    for reach in [HostAccess::Fetched, HostAccess::InPlace] {
        let mut b = backend(&context, reach);
        let case = case(affine(4, 32, Float::BF16), false);
        let experts = experts(case, 0);
        let x = cols(&mut b, 1, HIDDEN, &floats(&mut SplitMix64::new(3), HIDDEN));
        let out = b.alloc(1, HIDDEN);
        let call = |expert: &Arc<Expert>| ExpertCall {
            expert: Arc::clone(expert),
            rows: vec![ExpertRow { row: 0, slot: 0 }],
        };
        let (inputs, function) = (case.inputs, ExpertFunction::SWIGLU);
        let op = Experts { out, x, rows: 1, inputs, function, calls: &[] };
        for expert in &experts {
            b.experts(Experts { calls: &[call(expert)], ..op });
        }
        let n_users = || experts.each_ref().map(Arc::strong_count);
        assert_eq!(n_users(), [2, 2], "{reach:?}");
        b.release_experts(2);
        assert_eq!(n_users(), [2, 2], "{reach:?}");
        b.release_experts(1);
        assert_eq!(n_users(), [1, 1], "{reach:?}");
        b.experts(Experts { calls: &[call(&experts[0])], ..op });
        b.read(out, 1).unwrap();
        assert_eq!(n_users(), [1, 1], "{reach:?}");
        // Only the memory of the experts is imported, not the page after them.
        let used: u64 = experts.iter().map(|expert| owned_bytes(expert)).sum();
        assert_eq!(b.encoder.uploads.imported_bytes(), used);
        drop(experts);
        b.read(out, 1).unwrap();
        assert_eq!(b.encoder.uploads.imported_bytes(), 0, "{reach:?}");
    }
}
