//! Experts that a device holds, fetches from the host's cache or waits for: the same bits whatever came from where.

use std::path::{Path, PathBuf};

use moeflux_engine::{Activations, Engine, EngineOptions, TokenId};
use moeflux_store::{CachePolicy, IoChoice, IoMode, Prefetch};

use super::{all_devices, bits, longest, open, options, slot_bytes, turn};
use crate::common::{Golden, golden_dir};

/// What comes first of a prompt and single tokens, and what then.
pub(super) type Order = [usize; 2];

pub(super) const PROMPT: usize = 0;
pub(super) const TOKENS: usize = 1;

/// A model all of whose experts are on the device.
pub(super) struct Resident {
    dir: PathBuf,
    options: EngineOptions,
    tokens: Vec<TokenId>,
    engine: Engine,
    /// Bytes of a slot of the host's cache.
    slot: u64,
}

impl Resident {
    pub(super) fn open(case: &Path, options: EngineOptions, kept: &mut Option<Engine>) -> Resident {
        let (dir, tokens) = (case.to_path_buf(), longest(&Golden::read(case)));
        let resident = options.clone().expert_io(IoChoice::Mmap).device_cache(Some(u64::MAX));
        let engine = open(case, &resident, kept);
        Resident { dir, options, tokens, engine, slot: slot_bytes(case) }
    }

    /// Streams of experts give the same bits. Returns where these came from.
    pub(super) fn check_streamed(&self, kept: &mut Option<Engine>) -> Tiers {
        let Resident { dir, options, tokens, engine: resident, slot } = self;
        let few = &tokens[..tokens.len().min(10)];
        let (whole, mut alone) = (bits(resident, tokens, usize::MAX), Tiers::default());
        let want = [whole, alone.bits(resident, few)];
        alone.check(resident, few.len());
        assert_eq!((alone.host, alone.drive), (0, 0));
        let plan = resident.plan();
        let (record, top_k) = (plan.record_bytes, resident.shape().top_k as u64);
        // The device holds no expert (or one, if it cannot read the cache), some, and three quarters.
        // The cache holds little more than a layer wants, or half. Prefetch and the policy of eviction
        // change no bit.
        let (least, half) = ((2 * top_k + 1) * slot, plan.expert_bytes / record / 2 * slot);
        let streams = [
            (0, least, Prefetch::Off, CachePolicy::default()),
            (5 * record, least, Prefetch::LastToken, CachePolicy::Lru),
            (2 * top_k * record, half, Prefetch::Off, CachePolicy::Lru),
            (plan.expert_bytes * 3 / 4, least, Prefetch::Lookahead, CachePolicy::Frequency),
        ];
        let mut all = Tiers::default();
        for (device_cache, expert_cache, prefetch, cache_policy) in streams {
            let streamed = options
                .clone()
                .expert_io(IoChoice::Pread)
                .expert_cache(Some(expert_cache.max(least)))
                .device_cache(Some(device_cache))
                .prefetch(prefetch)
                .cache_policy(cache_policy)
                .chunk(Some(plan.chunk));
            let engine = open(dir, &streamed, kept);
            let mut tiers = Tiers::default();
            let got = [bits(&engine, tokens, usize::MAX), tiers.bits(&engine, few)];
            assert!(got == want, "{streamed:?}");
            tiers.check(&engine, few.len());
            assert!(device_cache == 0 || !tiers.is_read_there, "{streamed:?}");
            all.add(&tiers);
        }
        all
    }

    /// A device fetches what it chose from a cache that has all, until this shrinks. Returns how many experts it fetched, if
    /// it chose.
    pub(super) fn check_fetched(&self, kept: &mut Option<Engine>) -> Option<u64> {
        let Resident { dir, options, tokens, engine: resident, slot } = self;
        let tokens = &tokens[..tokens.len().min(12)];
        let want = [1, 5, usize::MAX].map(|chunk| bits(resident, tokens, chunk));
        let plan = resident.plan();
        let n_experts = plan.expert_bytes.div_ceil(plan.record_bytes);
        let streamed = options
            .clone()
            .expert_io(IoChoice::Pread)
            .expert_cache(Some(n_experts * slot))
            .device_cache(Some(plan.expert_bytes * 3 / 4));
        let engine = open(dir, &streamed, kept);
        engine.reset_stats();
        let one_by_one = || bits(&engine, tokens, 1) == want[0];
        assert!(one_by_one());
        let (store, device) = (engine.stats(), engine.device_stats().unwrap());
        let n_fetched = (store.hits + store.misses == 0).then_some(device.uploads);
        if n_fetched.is_some() {
            let n_wanted = tokens.len() * engine.shape().n_moe_layers * engine.shape().top_k;
            assert_eq!(device.hits + device.uploads, n_wanted as u64, "{device:?}");
        }
        // What the device has changed is known where the host chooses, and stays as it is.
        let by_chunks = || [5, usize::MAX].map(|chunk| bits(&engine, tokens, chunk)) == want[1..];
        assert!(by_chunks() && one_by_one() && by_chunks());
        engine.resize_expert_cache(n_experts / 2 * slot).unwrap();
        engine.reset_stats();
        assert!(one_by_one() && by_chunks());
        assert!(engine.stats().hits + engine.stats().misses > 0);
        let stats = engine.stats();
        assert!(stats.resident as u64 <= n_experts / 2, "{stats:?}");
        n_fetched
    }

    /// Experts that are loaded while tokens are computed give the same bits, and each is uploaded once. The orders, for
    /// mapped experts and for read ones, are of a prompt and single tokens.
    pub(super) fn check_loading(&self, orders: [&[Order]; 2], kept: &mut Option<Engine>) {
        let Resident { dir, options, tokens, engine: resident, slot } = self;
        let few = &tokens[..tokens.len().min(10)];
        let want = [bits(resident, tokens, usize::MAX), bits(resident, few, 1)];
        let plan = resident.plan();
        // Few are loaded at a time where they are read into slots, so that steps come in between.
        let few_slots = Some((6 * resident.shape().top_k) as u64 * slot);
        let kinds = [(IoChoice::Mmap, None), (IoChoice::Pread, few_slots)];
        for ((io, expert_cache), orders) in kinds.into_iter().zip(orders) {
            let loading = options
                .clone()
                .expert_io(io)
                .expert_cache(expert_cache)
                .device_cache(Some(u64::MAX))
                .chunk(Some(plan.chunk))
                .quick_start(true);
            let quiet = open(dir, &loading, kept);
            quiet.finish_loading();
            let uploads = |engine: &Engine| engine.device_stats().unwrap().uploads;
            let n_experts = uploads(&quiet);
            // A cache of few slots is left to steps.
            assert!(n_experts > 0 || quiet.plan().io_mode != IoMode::Mmap);
            drop(quiet);
            for &[first, second] in orders {
                let engine = open(dir, &loading, kept);
                let got = |nth: usize| match nth {
                    PROMPT => bits(&engine, tokens, usize::MAX),
                    _ => bits(&engine, few, 1),
                };
                assert!(got(first) == want[first] && got(second) == want[second]);
                engine.finish_loading();
                assert_eq!(uploads(&engine), n_experts);
                let asked = || engine.stats().hits + engine.stats().misses;
                let n_asked = asked();
                assert!(got(first) == want[first] && got(second) == want[second]);
                assert_eq!((uploads(&engine), asked()), (n_experts, n_asked));
                assert_eq!(engine.take_warnings(), [""; 0]);
            }
        }
    }
}

/// Where experts came from.
#[derive(Debug, Default)]
pub(super) struct Tiers {
    device: u64,
    /// Read by the device itself from a cache of the host that has all experts.
    fetched: u64,
    host: u64,
    drive: u64,
    /// Whether the device read some in the host's memory.
    is_read_there: bool,
}

impl Tiers {
    /// The bits of tokens one by one, and where their experts came from.
    fn bits(&mut self, engine: &Engine, tokens: &[TokenId]) -> Vec<u32> {
        engine.reset_stats();
        let bits = bits(engine, tokens, 1);
        let (device, store) = (engine.device_stats().unwrap(), engine.stats());
        let (host, drive) = (store.hits, store.misses);
        let is_read_there = device.uploads == 0 && host + drive > 0;
        let fetched = device.fetched;
        *self = Tiers { device: device.hits, fetched, host, drive, is_read_there };
        let (uploads, hits) = (device.uploads, device.hits);
        let all_came = if is_read_there { hits == 0 } else { uploads >= host + drive };
        assert!(all_came, "{device:?}, {store:?}");
        assert_eq!(device.uploaded_bytes > 0, device.uploads > 0, "{device:?}");
        bits
    }

    /// Every expert came from somewhere, and none was asked for twice.
    #[track_caller]
    fn check(&self, engine: &Engine, n_tokens: usize) {
        let shape = engine.shape();
        let n_wanted = (n_tokens * shape.n_moe_layers * shape.top_k) as u64;
        let n_came = self.device + self.fetched + self.host + self.drive;
        assert_eq!(n_came, n_wanted, "{self:?}");
    }

    fn add(&mut self, other: &Tiers) {
        self.device += other.device;
        self.fetched += other.fetched;
        self.host += other.host;
        self.drive += other.drive;
        self.is_read_there |= other.is_read_there;
    }
}

#[test]
fn experts_come_from_the_device_the_host_and_the_drive() {
    let Some(options) = options(Activations::Int16) else { return };
    let mut kept = turn();
    let (mut all, mut n_fetched) = (Tiers::default(), Vec::new());
    let cases = ["hf-bf16", "gguf-qwen3moe", "qwen3_moe-mlx-q4"];
    for case in cases.map(|case| golden_dir().join(case)) {
        let resident = Resident::open(&case, options.clone(), &mut kept);
        all.add(&resident.check_streamed(&mut kept));
        n_fetched.extend(resident.check_fetched(&mut kept));
        let orders: &[Order] = &[[PROMPT, TOKENS], [TOKENS, PROMPT]];
        resident.check_loading([orders; 2], &mut kept);
    }
    // Who shares the host's memory reads it.
    let kind = all_devices()[0].kind;
    assert_eq!(all.is_read_there, kind == "software" || kind == "integrated", "{kind}");
    // All three have been of use.
    assert!(all.device > 0 && all.host > 0 && all.drive > 0, "{all:?}");
    // One interface does not let kernels read the host's memory.
    let is_expected = !all_devices()[0].driver.ends_with("dx12");
    assert_eq!(n_fetched.iter().sum::<u64>() > 0, is_expected, "{n_fetched:?} experts");
}
