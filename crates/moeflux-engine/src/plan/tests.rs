//! What is decided of memory, devices and chunks.

use moeflux_core::ExpertBank;
use moeflux_store::{IoChoice, IoMode, MemoryLimit};

use super::{
    Plan, copies, for_device, free_in, is_too_little, may_copy_all, may_hold_all, wide_chunk,
    wide_room,
};
use crate::device::DeviceLimits;
use crate::engine::EngineOptions;

#[test]
fn experts_are_copied_where_somebody_says_so_or_all_of_them_or_they_cannot_be_read() {
    let (large, small) = ((1000, 100), (150, 100));
    for (of, asked, reads, want) in [
        (large, None, true, 0),
        (large, None, false, 200),
        (large, Some(70), true, 70),
        (large, Some(0), false, 0),
        (large, Some(5000), true, 1000),
        (small, None, true, 150),
        (small, None, false, 150),
    ] {
        assert_eq!(copies(of, asked, reads), want, "{of:?}, {asked:?}, {reads}");
    }
}

const MIB: u64 = 1 << 20;

/// Of 1,000 MiB of experts beside 100 that stay.
fn large(available: u64) -> Plan {
    Plan {
        resident_bytes: 100 * MIB,
        kv_bytes_per_position: 0,
        state_bytes: 0,
        checkpoint_bytes: 0,
        ctx: 1,
        n_sessions: 1,
        chunk: 1,
        scratch_bytes: 0,
        program_bytes: 0,
        expert_bytes: 1000 * MIB,
        record_bytes: MIB,
        working_set_bytes: 0,
        bytes_per_token: 0,
        cache_bytes: 0,
        device_expert_bytes: None,
        io_mode: IoMode::Mmap,
        memory: MemoryLimit { total: available, available, cgroup: None },
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
        let got = is_too_little(&large(0), memory * MIB, asked.map(|it: u64| it * MIB));
        assert_eq!(got, want, "{memory} MiB, {asked:?}");
    }
}

#[test]
fn chunks_are_as_wide_as_a_device_has_memory_left() {
    // 1,125 MiB of experts, 100 that stay and 300 of sessions; a row takes one.
    let plan =
        Plan { ctx: 4096, chunk: 512, n_sessions: 3, checkpoint_bytes: 100 * MIB, ..large(0) };
    for (memory, want) in [(20_000, 2048), (10_000, 1408), (5000, 512), (1000, 512), (0, 512)] {
        let free = free_in(&plan, memory * MIB);
        assert_eq!(wide_chunk(&plan, free, |rows| rows as u64 * MIB), want, "{memory} MiB");
    }
    let short = Plan { ctx: 600, ..plan };
    let free = free_in(&short, 20_000 * MIB);
    assert_eq!(wide_chunk(&short, free, |rows| rows as u64 * MIB), 512);
}

#[test]
fn chunks_are_wide_beside_what_the_cache_keeps_and_where_a_device_has_all() {
    // 100 MiB that stay, 1,000 of experts, an eighth more of them on a device.
    let plan = Plan { cache_bytes: 1000 * MIB, ..large(10_000 * MIB) };
    let some = EngineOptions { expert_cache: Some(400 * MIB), ..EngineOptions::default() };
    let part = Plan { cache_bytes: 400 * MIB, ..plan.clone() };
    let (all, any) = (EngineOptions::default(), Some(20_000));
    for (plan, options, is_streamed, shares, memory, want) in [
        (&plan, &all, true, false, None, Some(7900)),
        (&part, &some, true, false, None, Some(8500)),
        (&part, &all, true, false, any, Some(8900)),
        (&plan, &all, false, false, None, None),
        (&plan, &all, false, true, any, None),
        (&plan, &all, false, false, Some(5000), Some(3275)),
        (&plan, &all, false, false, Some(1000), Some(0)),
        // The cache stays as it is.
        (&plan, &all, false, false, any, Some(7900)),
    ] {
        let limits = DeviceLimits {
            max_buffer_bytes: u64::MAX,
            max_chosen: usize::MAX,
            shares_memory: shares,
            reads_cache: |_| false,
            memory_bytes: memory.map(|it| it * MIB),
            fetches: false,
        };
        let got = wide_room(plan, &limits, options, is_streamed).map(|it| it / MIB);
        assert_eq!(got, want, "{memory:?} MiB, streamed {is_streamed}, shared {shares}");
    }
}

#[test]
fn all_experts_fit_where_enough_is_free() {
    for (available, want) in [(4000, true), (1400, true), (1200, false), (0, false)] {
        assert_eq!(may_hold_all(&large(available * MIB), 8), want, "{available} MiB free");
    }
}

#[test]
fn a_device_that_shares_the_memory_has_copies_of_all_where_both_have_room() {
    // 1,125 MiB of copies beside 100, and 256 experts on their way.
    for (memory, available, want) in [
        (Some(1400), 2000, true),
        (Some(1300), 2000, false),
        (None, 2000, true),
        (Some(8000), 1700, true),
        (Some(8000), 1600, false),
        (None, 0, false),
    ] {
        let limits = DeviceLimits {
            max_buffer_bytes: u64::MAX,
            max_chosen: usize::MAX,
            shares_memory: true,
            reads_cache: |_| true,
            memory_bytes: memory.map(|it| it * MIB),
            fetches: false,
        };
        let got = may_copy_all(&large(available * MIB), &limits);
        assert_eq!(got, want, "{memory:?} MiB, {available} free");
    }
}

#[test]
fn a_device_that_shares_the_memory_has_all_or_reads_the_cache_unless_somebody_says_how() {
    let (all, few) = (1000 * MIB, 100 * MIB);
    let auto = EngineOptions::default();
    let asked = EngineOptions { device_cache: Some(70 * MIB), ..auto.clone() };
    let mapped = EngineOptions { expert_io: IoChoice::Mmap, ..auto.clone() };
    for (options, available, reads, want) in [
        (&auto, 2000, true, (true, all, IoMode::Direct)),
        (&auto, 2000, false, (true, all, IoMode::Direct)),
        (&auto, 1600, true, (false, 0, IoMode::Direct)),
        (&auto, 1600, false, (false, few, IoMode::Mmap)),
        (&asked, 2000, true, (false, 70 * MIB, IoMode::Direct)),
        (&mapped, 2000, true, (false, few, IoMode::Mmap)),
    ] {
        let limits = DeviceLimits {
            max_buffer_bytes: u64::MAX,
            max_chosen: usize::MAX,
            shares_memory: true,
            reads_cache: if reads { |_| true } else { |_| false },
            memory_bytes: None,
            fetches: false,
        };
        let mut plan = Plan { working_set_bytes: few / 2, ..large(available * MIB) };
        let bank = ExpertBank { files: Vec::new(), layers: Vec::new() };
        let device = for_device(&mut plan, &limits, &bank, options, 8);
        let got = (device.keeps_all, plan.device_expert_bytes.unwrap(), plan.io_mode);
        assert_eq!(got, want, "{available} free, {reads}");
    }
}
