//! What is decided of memory, devices and chunks.

use moeflux_store::{IoChoice, IoMode, MemoryLimit};

use super::chunk::{WIDE, WIDEST, wide_rows};
use super::facts::ScratchFacts;
use super::planner::{DeviceShare, Sizes};
use super::{MemoryPlanner, ModelFacts, plan_that_fits};
use crate::device::{Device, DeviceLimits};
use crate::options::{EngineOptions, PromptMemory};
use crate::plan::RowKind;

const MIB: u64 = 1 << 20;

/// A model of 1,000 MiB of experts and 100 of resident weights; a row of activations takes one.
fn planner(available: u64) -> MemoryPlanner {
    let scratch = ScratchFacts { per_row: MIB / 5 * 4, ..ScratchFacts::default() };
    MemoryPlanner {
        tower_bytes: 0,
        model: ModelFacts {
            resident_bytes: 100 * MIB,
            expert_bytes: 1000 * MIB,
            n_experts: 1000,
            record_bytes: MIB,
            working_set_bytes: 50 * MIB,
            top_k: 8,
            max_positions: 1 << 20,
            scratch,
            ..ModelFacts::default()
        },
        options: EngineOptions::default(),
        limits: DeviceLimits::of(Device::Cpu).unwrap(),
        reads_cache: false,
        memory: memory(available),
    }
}

fn memory(mib: u64) -> MemoryLimit {
    MemoryLimit { total: mib * MIB, available: mib * MIB, cgroup: None }
}

/// A GPU that shares the memory, of which it may use so much.
fn shared(memory: Option<u64>) -> DeviceLimits {
    let memory_bytes = memory.map(|mib| mib * MIB);
    DeviceLimits { shares_memory: true, memory_bytes, ..DeviceLimits::of(Device::Cpu).unwrap() }
}

fn sizes() -> Sizes {
    Sizes { n_sessions: 1, ctx: 1, chunk: 0, checkpoint_bytes: 0 }
}

#[test]
fn experts_are_copied_where_the_user_says_so_or_all_of_them_or_they_cannot_be_read() {
    let (large, small) = ((1000, 100), (150, 100));
    for ((all, of_token), asked, reads, want) in [
        (large, None, true, 0),
        (large, None, false, 200),
        (large, Some(70), true, 70),
        (large, Some(0), false, 0),
        (large, Some(5000), true, 1000),
        (small, None, true, 150),
        (small, None, false, 150),
    ] {
        let mut planner = planner(4000);
        planner.model.expert_bytes = all;
        planner.model.working_set_bytes = of_token;
        planner.options.experts.device_cache = asked;
        assert_eq!(planner.copied_bytes(reads), want, "{all}, {asked:?}, {reads}");
    }
}

#[test]
fn a_device_has_too_little_room_by_its_memory_or_by_what_it_may_take() {
    for (memory, asked, want) in [
        (1400, None, false),
        (1300, None, true),
        (8000, None, false),
        (8000, Some(999), true),
        (8000, Some(1000), false),
        (1300, Some(1000), true),
        (0, Some(0), true),
    ] {
        let mut planner = planner(0);
        planner.options.experts.device_cache = asked.map(|mib: u64| mib * MIB);
        assert_eq!(planner.is_too_little(memory * MIB), want, "{memory} MiB, {asked:?}");
    }
}

#[test]
fn chunks_are_as_wide_as_a_device_has_memory_left() {
    // 1,125 MiB of experts, 100 that stay and 300 of sessions.
    let planner = planner(0);
    let sizes = Sizes { n_sessions: 3, ctx: 4096, chunk: 512, checkpoint_bytes: 100 * MIB };
    for (memory, want) in [(20_000, 2048), (10_000, 1408), (5000, 512), (1000, 512), (0, 512)] {
        let free = planner.free_in(&sizes, memory * MIB);
        assert_eq!(
            wide_rows(&planner.model.scratch, sizes.chunk, WIDE, free),
            want,
            "{memory} MiB"
        );
    }
    let free = planner.free_in(&sizes, 40_000 * MIB);
    assert_eq!(wide_rows(&planner.model.scratch, sizes.chunk, WIDEST, free), 4096);
    assert_eq!(wide_rows(&planner.model.scratch, sizes.chunk, 600, free), 512);
}

#[test]
fn chunks_are_wide_after_the_cache_has_its_bytes_and_where_a_device_has_all() {
    let device = |is_streamed| DeviceShare {
        io_mode: IoMode::Direct,
        has_all: false,
        has_too_little: is_streamed,
        copies: None,
    };
    // A tenth of 10,000 stays free; all experts take 1,000 slots of 1 MiB and 72 KiB.
    for (asked, is_streamed, shares, memory, want) in [
        (None, true, false, None, Some(7829)),
        (Some(400), true, false, None, Some(8500)),
        (None, false, false, None, None),
        (None, false, true, Some(20_000), None),
        (None, false, false, Some(5000), Some(3275)),
        (None, false, false, Some(1000), Some(0)),
        // The cache stays as it is.
        (None, false, false, Some(20_000), Some(7829)),
    ] {
        let mut planner = planner(10_000);
        planner.options.experts.cache = asked.map(|mib: u64| mib * MIB);
        planner.limits.shares_memory = shares;
        planner.limits.memory_bytes = memory.map(|mib| mib * MIB);
        let got = planner.wide_chunk_bytes(&sizes(), &device(is_streamed)).map(|bytes| bytes / MIB);
        assert_eq!(got, want, "{memory:?} MiB, streamed {is_streamed}, shared {shares}");
    }
}

#[test]
fn all_experts_fit_where_enough_is_free() {
    for (available, want) in [(4000, true), (1450, true), (1200, false), (0, false)] {
        assert_eq!(planner(available).may_cache_all(&sizes()), want, "{available} MiB free");
    }
}

#[test]
fn a_cache_that_a_device_reads_stays_within_what_the_device_may_use() {
    // 1,000 MiB of experts next to 100 of resident weights, in nine tenths.
    for (memory, reads_cache, want) in [
        (None, true, true),
        (Some(1400), true, true),
        (Some(1100), true, false),
        (Some(1100), false, true),
    ] {
        let planner = MemoryPlanner { limits: shared(memory), reads_cache, ..planner(4000) };
        assert_eq!(planner.may_cache_all(&sizes()), want, "{memory:?} MiB");
    }
}

#[test]
fn a_device_that_shares_the_memory_has_copies_of_all_where_both_have_room() {
    // 1,125 MiB of copies, 100 of resident weights, and 256 experts that are being loaded.
    for (memory, available, want) in [
        (Some(1400), 2000, true),
        (Some(1300), 2000, false),
        (None, 2000, true),
        (Some(8000), 1800, true),
        (Some(8000), 1600, false),
        (None, 0, false),
    ] {
        let planner = MemoryPlanner { limits: shared(memory), ..planner(available) };
        let got = planner.may_copy_all(&sizes());
        assert_eq!(got, want, "{memory:?} MiB, {available} free");
    }
}

#[test]
fn a_device_that_shares_the_memory_has_all_or_reads_the_cache_unless_the_user_says_how() {
    let (all, few) = (1000 * MIB, 100 * MIB);
    let auto = EngineOptions::default();
    let asked = auto.clone().device_cache(Some(70 * MIB));
    let mapped = auto.clone().expert_io(IoChoice::Mmap);
    for (options, available, reads_cache, want) in [
        (&auto, 2000, true, (true, all, IoMode::Direct)),
        (&auto, 2000, false, (true, all, IoMode::Direct)),
        (&auto, 1600, true, (false, 0, IoMode::Direct)),
        (&auto, 1600, false, (false, few, IoMode::Mmap)),
        (&asked, 2000, true, (false, 70 * MIB, IoMode::Direct)),
        (&mapped, 2000, true, (false, few, IoMode::Mmap)),
    ] {
        let options = options.clone();
        let planner =
            MemoryPlanner { limits: shared(None), options, reads_cache, ..planner(available) };
        let device = planner.device_share(&sizes());
        let got = (device.has_all, device.copies.unwrap(), device.io_mode);
        assert_eq!(got, want, "{available} free, {reads_cache}");
    }
}

#[test]
fn a_budget_above_all_experts_is_that_of_all_experts() {
    let mut planner = planner(50_000);
    for asked in [2000 * MIB, 1 << 50] {
        planner.options.experts.cache = Some(asked);
        let plan = planner.plan();
        assert_eq!(plan.cache_bytes, planner.model.whole_cache_bytes());
        assert!(plan.fits());
    }
    planner.options.experts.cache = Some(700 * MIB);
    assert_eq!(planner.plan().cache_bytes, 700 * MIB);
}

#[test]
fn a_cache_of_all_experts_has_a_slot_for_each_where_layers_differ_in_size() {
    let mut planner = planner(50_000);
    planner.model.expert_bytes = 900 * MIB;
    planner.options.experts.cache = Some(1 << 50);
    let n_slots = planner.plan().cache_bytes / planner.model.slot_bytes();
    assert_eq!(n_slots, planner.model.n_experts);
}

#[test]
fn defaults_that_do_not_fit_are_made_smaller_and_what_the_user_said_is_kept() {
    let mut planner = planner(1000);
    planner.model.kv_bytes_per_position = MIB / 64;
    planner.model.state_bytes = MIB;
    let roomy = planner.plan();
    assert!(roomy.fits() && roomy.chunk == 128 && roomy.ctx > 4096, "{roomy:?}");
    planner.memory = memory(460);
    let tight = planner.plan();
    assert!(tight.fits() && tight.chunk == 128 && tight.ctx == 4096, "{tight:?}");
    planner.memory = memory(180);
    let tightest = planner.plan();
    assert!(tightest.fits() && tightest.chunk == 32, "{tightest:?}");
    planner.options.memory.chunk = Some(512);
    let said = planner.plan();
    assert!(!said.fits() && said.chunk == 512, "{said:?}");
}

#[test]
fn sessions_and_activations_leave_half_of_the_memory_to_a_cache_that_is_short() {
    let mut planner = planner(1000);
    planner.model.kv_bytes_per_position = MIB / 64;
    planner.model.state_bytes = MIB;
    // 100 MiB of weights are left out, a sixth of the memory stays free.
    // Of 733 MiB at 1000 a quarter is 183: 128 rows of activations take 102, checkpoints 65 and the
    // state 1, which leaves 7,424 positions.
    for (available, ctx, chunk) in [(700, 4096, 128), (1000, 7424, 128), (1600, 15616, 256)] {
        planner.memory = memory(available);
        let plan = planner.plan();
        assert!(plan.fits(), "{available} MiB: {plan:?}");
        let shared = planner.memory.available - plan.headroom_bytes - 100 * MIB;
        let sessions = plan.session_bytes();
        assert_eq!((plan.ctx, plan.chunk), (ctx, chunk), "{available} MiB");
        assert!(4 * sessions <= shared || plan.ctx == 4096, "{available} MiB: {plan:?}");
        assert!(2 * plan.cache_bytes >= shared || plan.ctx == 4096, "{available} MiB: {plan:?}");
    }
    planner.options.memory.ctx = Some(20_000);
    planner.options.memory.checkpoint_bytes = Some(64 * MIB);
    assert_eq!(planner.plan().ctx, 20_000);
    assert_eq!(planner.plan().checkpoint_bytes, 64 * MIB);
    // All experts fit: nothing is gained by smaller sizes.
    planner.options = EngineOptions::default();
    planner.memory = memory(50_000);
    assert_eq!(planner.plan().ctx, 32_768);
}

#[test]
fn a_shortage_names_the_rows_that_are_too_large_and_what_helps() {
    let mut planner = planner(2000);
    planner.options.experts.cache = Some(900 * MIB);
    planner.options.memory.chunk = Some(1500);
    let shortage = plan_that_fits(&planner, "model".into()).unwrap_err();
    let large = |kind| shortage.plan.rows().iter().any(|row| row.kind == kind && row.is_too_large);
    assert!(large(RowKind::Activations) && !large(RowKind::Weights));
    let first = &shortage.alternatives[0];
    assert_eq!(first.change.to_string(), "chunk 512");
    assert!(first.plan.fits() && first.saves(&shortage.plan) / MIB == 987, "{shortage}");
    assert!(
        shortage.alternatives.iter().any(|other| other.change.to_string() == "no expert_cache")
    );
    let total: u64 = shortage.plan.rows().iter().map(|row| row.bytes).sum();
    assert_eq!(total, shortage.plan.total_bytes());
    planner.memory = memory(4000);
    let plan = plan_that_fits(&planner, "model".into()).unwrap();
    assert!(plan.rows().iter().all(|row| !row.is_too_large));
}

#[test]
fn a_cache_that_follows_memory_leaves_a_headroom() {
    let mut planner = planner(1200);
    let plan = planner.plan();
    assert_eq!((plan.io_mode, plan.headroom_bytes), (IoMode::Direct, 200 * MIB));
    assert!(plan.total_bytes() + plan.headroom_bytes <= 1200 * MIB + planner.model.slot_bytes());
    planner.options.experts.cache = Some(300 * MIB);
    assert_eq!(planner.plan().headroom_bytes, 0);
    assert_eq!(planner.plan().min_cache_bytes, 300 * MIB);
}

#[test]
fn layers_with_a_window_need_the_same_memory_for_any_context() {
    let mut planner = planner(4000);
    planner.model.kv_bytes_per_position = 1000;
    planner.model.window_bytes_per_position = 9000;
    planner.model.window_positions = 2000;
    assert_eq!(planner.model.window_bytes(1500, 512), 1500 * 9000);
    assert_eq!(planner.model.window_bytes(100_000, 512), 2512 * 9000);
    for positions in [10, 1999, 2000, 2001, 50_000] {
        let bytes = 1000 * positions + 9000 * positions.min(2000);
        assert_eq!(planner.model.positions_in(bytes), positions);
    }
}

#[test]
fn as_many_sessions_are_planned_as_leave_the_cache_its_room() {
    // A session of 1,000 positions takes 100 MiB.
    let of = |available, most| {
        let mut planner = planner(available);
        planner.model.kv_bytes_per_position = MIB / 10;
        planner.options.experts.io = IoChoice::Pread;
        planner.options.memory.ctx = Some(1000);
        planner.options.memory.chunk = Some(1);
        planner.options.memory.most_sessions = Some(most);
        let plan = planner.plan();
        assert_eq!(plan.ctx, 1000);
        assert!(plan.chunk >= plan.n_sessions);
        plan.n_sessions
    };
    // All experts are cached, too.
    assert_eq!([of(8000, 8), of(8000, 3), of(8000, 1)], [8, 3, 1]);
    // The cache has some of the experts: sessions take a quarter of what the weights leave.
    assert_eq!([of(1100, 8), of(300, 8)], [2, 1]);
    // The number of sessions is the user's where it is given.
    let mut planner = planner(1000);
    planner.options.memory.most_sessions = Some(1);
    planner.options.memory.sessions = Some(5);
    assert_eq!(planner.plan().n_sessions, 5);
}

#[test]
fn evaluated_prompts_get_a_part_of_what_is_left_and_nothing_of_the_expert_cache() {
    let planned = |available: u64, prompts| {
        let mut planner = planner(available);
        planner.options.memory.prompts = prompts;
        planner.options.experts.io = IoChoice::Pread;
        planner.plan()
    };
    let memory = [PromptMemory::Off, PromptMemory::Planned, PromptMemory::Bytes(300 * MIB)];
    for (available, want) in [(700, 0), (4000, 256), (64_000, 2048)] {
        let [off, by_itself, asked] = memory.map(|prompts| planned(available, prompts));
        assert_eq!(off.prompt_cache_bytes, 0);
        assert!(!off.rows().iter().any(|row| row.kind == RowKind::Prompts));
        let got = by_itself.prompt_cache_bytes / MIB;
        assert!(got == want || want == 256 && [128, 512].contains(&got), "{available}: {got}");
        assert_eq!(by_itself.cache_bytes, off.cache_bytes);
        assert_eq!(asked.prompt_cache_bytes, 300 * MIB);
        let sum: u64 = asked.rows().iter().map(|row| row.bytes).sum();
        assert_eq!(sum, asked.total_bytes());
        assert!(by_itself.fits() && asked.cache_bytes <= off.cache_bytes);
    }
    // What is asked for is taken from the cache, and is named where it does not fit.
    let tight = planned(700, PromptMemory::Bytes(300 * MIB));
    assert!(tight.cache_bytes < planned(700, PromptMemory::Off).cache_bytes);
    let mut planner = planner(700);
    planner.options.memory.prompts = PromptMemory::Bytes(5000 * MIB);
    let shortage = plan_that_fits(&planner, "x".into()).unwrap_err();
    assert_eq!(shortage.alternatives[0].change.to_string(), "no prompt_memory");
}
