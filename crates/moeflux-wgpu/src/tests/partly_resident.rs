//! Layers of which the device has room for some of the experts: not a bit may differ
//! from those of which it has all.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moeflux_backend::{
    ActivationPrecision, Combine, ExpertCall, ExpertResidency, ExpertRow, Experts, GatedActivation,
    MoeOnDevice, Ops, ResidencyRequest, ResidentCall, ResidentExperts,
};
use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat};
use moeflux_core::{Expert, ExpertId, HostSlab, LayerIdx, SplitMix64};
use moeflux_residency::Admission;

use super::grouped::{Case, INNER, Start, TOP_K, begin_with, bits, expert_in, floats, layout};
use super::host_access::reading_context;
use crate::Context;
use crate::backend::new_backend;
use crate::commands::read::read;
use crate::device::adapter::enumerate;
use crate::device::buffer::Mem;
use crate::device::imports::host_access::HostAccess;
use crate::ops::moe::admit::admit;
use crate::state::gpu::Wgpu;
use crate::words::words;

const LAYER: LayerIdx = LayerIdx(0);
const N_EXPERTS: usize = 40;

fn case(format: MatrixFormat, has_biases: bool) -> Case {
    Case {
        format,
        inputs: ActivationPrecision::Int16,
        alternates: has_biases,
        has_biases,
        has_shared: !has_biases,
        n_experts: N_EXPERTS,
        inner: INNER,
        activation: GatedActivation::Swiglu,
    }
}

fn affine(params: Float) -> MatrixFormat {
    MatrixFormat::Affine(Affine::new(4, 32, params))
}

/// The experts of a layer, in slabs of a few.
fn experts(case: Case) -> Vec<Arc<Expert>> {
    let layout = Arc::new(layout(case));
    let bytes = layout.record_bytes().next_multiple_of(4096);
    let mut slab = HostSlab::new(0);
    let all = (0..u16::try_from(N_EXPERTS).unwrap()).map(|id| {
        let slot = slab.carve(bytes).unwrap_or_else(|| {
            slab = HostSlab::new(7 * bytes);
            slab.carve(bytes).unwrap()
        });
        expert_in(slot, 0, &layout, id)
    });
    all.collect()
}

/// A backend that keeps all experts, with memory on the device for `n_held` of them.
fn keeping(context: &Arc<Context>, case: Case, experts: &[Arc<Expert>], n_held: usize) -> Wgpu {
    let record = experts[0].layout.record_bytes() as u64;
    let bytes = N_EXPERTS as u64 * record;
    // A quarter is for others, and the shared one has a slot too.
    let room = (n_held as u64 + 2) * record * 4 / 3;
    let is_whole = n_held == N_EXPERTS;
    let mut b = new_backend(Arc::clone(context), if is_whole { None } else { Some(room) });
    b.encoder.uploads.host_access = HostAccess::Fetched;
    if let Some(shared) = begin_with(&mut b, case, 1, 1).shared {
        b.register_shared(LAYER, shared.mlp.weights());
    }
    let all =
        ResidencyRequest { bytes, record_bytes: record, top_k: TOP_K, stays_in_host: !is_whole };
    assert!(b.plan(all), "{case:?}");
    assert!(experts.iter().all(|expert| b.load(expert, N_EXPERTS)), "{case:?}");
    assert!(b.is_layer_resident(LAYER, 1), "{case:?}");
    b.release_experts(0);
    b.counters().reset();
    b
}

/// A step, and whether the device chose.
fn step(
    b: &mut Wgpu,
    case: Case,
    experts: &[Arc<Expert>],
    rows: usize,
    seed: u64,
) -> (Vec<u32>, bool) {
    let Start { route, x, acc, slots, function, shared } = begin_with(b, case, rows, seed);
    // No expert is liked more than others, and neighbours are not alike, but of two rows.
    let mut random = SplitMix64::new(SplitMix64::mix(seed));
    let logits = match rows {
        2 => floats(&mut random, N_EXPERTS).repeat(2),
        _ => floats(&mut random, rows * N_EXPERTS),
    };
    b.write(route.logits.buf, &logits);
    let (inputs, layer) = (case.inputs, LAYER);
    if b.is_layer_resident(layer, rows) {
        let op = MoeOnDevice { layer, route, x, inputs, function, slots, acc, shared };
        b.moe_on_device(rows, op);
        return (bits(b, acc, rows), true);
    }
    let routing = b.route(rows, route).unwrap();
    let mut by_expert: Vec<Vec<ExpertRow>> = vec![Vec::new(); N_EXPERTS];
    for (slot, id) in routing.experts.iter().enumerate() {
        by_expert[id.idx()].push(ExpertRow { row: (slot / TOP_K) as u32, slot: slot as u32 });
    }
    let wanted = (0..).map(ExpertId).zip(by_expert).filter(|(_, rows)| !rows.is_empty());
    let calls = wanted.map(|(expert, rows)| ResidentCall { expert, rows });
    let (resident, absent): (Vec<_>, Vec<_>) =
        calls.partition(|call| b.is_resident(layer, call.expert));
    let op = Experts { out: slots, x, rows, inputs, function, calls: &[] };
    b.resident_experts(ResidentExperts { layer, op, calls: &resident });
    let call = |call: ResidentCall| ExpertCall {
        expert: Arc::clone(&experts[call.expert.idx()]),
        rows: call.rows,
    };
    let calls: Vec<ExpertCall> = absent.into_iter().map(call).collect();
    b.experts(Experts { calls: &calls, ..op });
    if let Some(shared) = shared {
        shared.mlp.run_parts(b, rows, x, shared.shared.out);
    }
    let shared = shared.map(|shared| shared.shared);
    b.combine(rows, Combine { acc, slots, top_k: TOP_K, weights: &routing.weights, shared });
    (bits(b, acc, rows), false)
}

#[test]
fn a_device_that_fetches_what_it_chose_has_the_bits_of_one_that_has_all() {
    let Some(context) = reading_context() else { return };
    for case in [
        case(affine(Float::BF16), false),
        case(affine(Float::F32), true),
        case(MatrixFormat::Dense(Float::BF16), false),
        case(MatrixFormat::Ggml(BlockType::Q8_0), false),
    ] {
        let experts = experts(case);
        for n_held in [TOP_K, 13] {
            let mut whole = keeping(&context, case, &experts, N_EXPERTS);
            let mut part = keeping(&context, case, &experts, n_held);
            let mut n_chosen = 0;
            for seed in 0..28 {
                let rows = [1, 1, 4, 1, 1, 11, 40][seed as usize % 7];
                // Some that are not wanted now were wanted more often than those that are.
                for _ in 0..if rows == 4 { 6 } else { 0 } {
                    step(&mut part, case, &experts, 1, 1000);
                }
                let (want, _) = step(&mut whole, case, &experts, rows, seed);
                let (got, is_chosen) = step(&mut part, case, &experts, rows, seed);
                assert!(got == want, "{case:?}, {n_held} held, step {seed}: {rows} rows");
                assert_eq!(is_chosen, rows <= 8 && rows * TOP_K <= n_held, "{rows} rows");
                n_chosen += if is_chosen { rows * TOP_K } else { 0 };
            }
            let stats = part.counters().stats();
            let of_record = stats.uploaded_bytes / stats.uploads;
            assert_eq!(stats.uploaded_bytes % stats.uploads, 0);
            assert!(of_record >= experts[0].layout.record_bytes() as u64, "{of_record} bytes");
            assert!(stats.uploads > 24 && n_chosen >= 48, "{stats:?}");
            assert!(24 < stats.fetched && stats.fetched < stats.uploads, "{stats:?}");
            assert!(
                !part.encoder.uploads.has_staged(),
                "an upload of an expert is left in the staging buffer"
            );
        }
    }
}

#[test]
fn what_is_chosen_often_stays() {
    let Some(context) = reading_context() else { return };
    let case = case(affine(Float::BF16), false);
    let experts = experts(case);
    let mut b = keeping(&context, case, &experts, 13);
    let mut fetched_of = |rows: usize, seed: u64| {
        let before = b.counters().stats();
        step(&mut b, case, &experts, rows, seed);
        let after = b.counters().stats();
        let n = after.uploads - before.uploads;
        assert_eq!(after.hits + n, before.hits + (rows * TOP_K) as u64);
        n
    };
    // Rows that choose the same share it.
    let n_shared: u64 = (500..520).map(|seed| fetched_of(2, seed)).sum();
    assert!((20..=20 * TOP_K as u64).contains(&n_shared), "{n_shared}");
    assert!((520..540).all(|seed| fetched_of(2, seed) <= TOP_K as u64));
    let mut fetched = |seed| fetched_of(1, seed);
    let mut n_new = 0;
    for seed in 100..140 {
        n_new += fetched(seed);
        assert_eq!(fetched(seed), 0, "{seed}");
    }
    assert!(n_new > 40, "{n_new} of 120");
    // What is wanted again and again outlasts what comes once.
    for _ in 0..8 {
        fetched(1);
    }
    (200..230).for_each(|seed| {
        fetched(seed);
    });
    assert_eq!(fetched(1), 0);
}

#[test]
fn experts_stay_in_memory_as_long_as_the_device_may_fetch_them() {
    let Some(context) = reading_context() else { return };
    let case = case(affine(Float::BF16), false);
    let experts = experts(case);
    let mut b = keeping(&context, case, &experts, 5);
    let n_users = |n: usize| experts.iter().filter(|expert| Arc::strong_count(expert) == n).count();
    assert_eq!(n_users(2), N_EXPERTS);
    b.unload_all();
    assert!(!b.is_layer_resident(LAYER, 1));
    assert_eq!(n_users(2), N_EXPERTS, "kernels may still read them");
    b.release_experts(0);
    assert_eq!(n_users(1), N_EXPERTS);
    assert!(!step(&mut b, case, &experts, 1, 3).1);
}

#[test]
fn too_little_room_or_experts_that_go_are_not_kept_in_part() {
    let Some(context) = reading_context() else { return };
    let case = case(affine(Float::BF16), false);
    let experts = experts(case);
    let record = experts[0].layout.record_bytes() as u64;
    let all = ResidencyRequest {
        bytes: N_EXPERTS as u64 * record,
        record_bytes: record,
        top_k: TOP_K,
        stays_in_host: true,
    };
    let mut b = new_backend(Arc::clone(&context), Some(2 * record));
    b.encoder.uploads.host_access = HostAccess::Fetched;
    let is_kept = b.plan(all) && b.load(&experts[0], N_EXPERTS);
    assert!(!is_kept, "there is no room for what a row chooses");
    let mut b = new_backend(Arc::clone(&context), Some(20 * record));
    b.encoder.uploads.host_access = HostAccess::Fetched;
    assert!(b.plan(all));
    assert!(!b.plan(ResidencyRequest { stays_in_host: false, ..all }));
    b.encoder.uploads.host_access = HostAccess::Written;
    assert!(!b.plan(all));
}

#[test]
fn room_that_nobody_bounds_is_found_by_trying() {
    if reading_context().is_none() {
        return;
    }
    // One that no other test shares.
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    let case = case(affine(Float::BF16), false);
    let experts = experts(case);
    let record = experts[0].layout.record_bytes() as u64;
    let bytes = N_EXPERTS as u64 * record;
    let mut whole = keeping(&context, case, &experts, N_EXPERTS);
    let mut part = new_backend(Arc::clone(&context), None);
    part.encoder.uploads.host_access = HostAccess::Fetched;
    let all = ResidencyRequest { bytes, record_bytes: record, top_k: TOP_K, stays_in_host: true };
    context.refused.store(bytes / 4 * 3, Ordering::Relaxed);
    assert!(part.plan(all));
    assert!(experts.iter().all(|expert| part.load(expert, N_EXPERTS)));
    context.refused.store(u64::MAX, Ordering::Relaxed);
    for seed in 0..6 {
        let (want, _) = step(&mut whole, case, &experts, 4, seed);
        assert_eq!(step(&mut part, case, &experts, 4, seed), (want, true));
    }
    assert!(part.counters().stats().fetched > 0);
    // There is none at all.
    let mut none = new_backend(Arc::clone(&context), None);
    none.encoder.uploads.host_access = HostAccess::Fetched;
    context.refused.store(0, Ordering::Relaxed);
    let is_kept = none.plan(all) && none.load(&experts[0], N_EXPERTS);
    context.refused.store(u64::MAX, Ordering::Relaxed);
    assert!(!is_kept);
}

#[test]
fn the_device_admits_experts_by_the_rule() {
    let Some(context) = reading_context() else { return };
    let case = case(affine(Float::BF16), false);
    let experts = experts(case);
    for n_held in [5, 13] {
        let mut b = keeping(&context, case, &experts, n_held);
        let layer = Arc::clone(b.slots.routable_layer(LAYER).unwrap());
        let n_slots = layer.host().unwrap().slots().len();
        let mut rule = Admission::new(N_EXPERTS, layer.filled().map(|(expert, _)| expert));
        let state = layer.tables().unwrap().admission.as_ref().unwrap().state.clone();
        let mut random = SplitMix64::new(7);
        let mut n_admitted = 0;
        for step in 0..60 {
            let n = [3, 3, 1, n_slots][step % 4];
            let id = |number: f32| ((number + 0.5) * N_EXPERTS as f32) as u16;
            let chosen: Vec<ExpertId> =
                floats(&mut random, n).into_iter().map(id).map(ExpertId).collect();
            let ids: Vec<u32> = chosen.iter().map(|expert| u32::from(expert.0)).collect();
            let list = Mem::new(context.try_storage(4 * n as u64, "choices").unwrap());
            b.encoder.write(&list, 0, bytemuck::cast_slice(&ids));
            admit(&mut b, &layer, &list, n);
            n_admitted += rule.admit(&chosen).len();
            let got = words(&read(&mut b.encoder, &[state.range(0, state.bytes())]).unwrap());
            let want = rule.words();
            assert_eq!(got.len(), want.len());
            let counts = 1 + N_EXPERTS..1 + 2 * N_EXPERTS;
            for (i, (got, want)) in got.into_iter().zip(want).enumerate() {
                if counts.contains(&i) {
                    let [got, want] = [got, want].map(f32::from_bits);
                    assert!((got - want).abs() < 1e-4, "step {step}, word {i}: {got}, not {want}");
                } else {
                    assert_eq!(got, want, "step {step}, word {i}");
                }
            }
        }
        assert!(n_admitted > 30, "{n_admitted} came");
    }
}
