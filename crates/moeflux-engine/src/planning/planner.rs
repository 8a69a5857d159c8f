//! Decides where memory goes, stage by stage: sizes, the device's share, the chunk, the cache.

use moeflux_core::checkpoint::Checkpoint;
use moeflux_core::{ExpertBank, OptionId};
use moeflux_model::Declared;
use moeflux_store::{IoChoice, IoMode, MemoryLimit, headroom, resolve_io, usable_memory};

use super::chunk::{WIDE, WIDEST, max_rows, wide_rows};
use super::{ModelFacts, prompts};
use crate::device::DeviceLimits;
use crate::error::EngineError;
use crate::options::{EngineOptions, MemoryOptions};
use crate::plan::Plan;
use crate::speculation::options::Speculation;
use crate::vision::tower_bytes;

/// Rows of a prefill chunk by default, where all experts stay in the processor's memory.
const DEFAULT_CHUNK: usize = 512;

/// Positions planned for by default.
const DEFAULT_CTX: usize = 32_768;

/// What sizes are not made smaller than in favour of the cache: positions, else a multiple of
/// `CTX_STEP`, and rows of a chunk.
const SHORTEST_CTX: usize = 4096;
const CTX_STEP: usize = 256;
const SHORTEST_CHUNK: usize = 128;

/// Most sessions of an engine: more do not make it faster.
pub const MAX_SESSIONS: usize = 256;

/// Bytes of the cache of rows of tables by default: mainly those of a prompt that were read ahead.
const ROW_CACHE_BYTES: u64 = 128 << 20;

/// Checkpoints of a session by default: this number, if they fit into the session's part of
/// `CHECKPOINT_BYTES`, and at least `MIN_CHECKPOINTS`.
const MAX_CHECKPOINTS: u64 = 64;
const CHECKPOINT_BYTES: u64 = 256 << 20;
const MIN_CHECKPOINTS: u64 = 2;

/// Tokens whose experts a GPU keeps by default in memory that it shares with the processor, where
/// it cannot read them in the cache, which has them too.
const DEVICE_TOKENS: u64 = 2;

/// Experts that the cache has room for where it serves only to load all of them into a device.
const LOADED_EXPERTS: u64 = 256;

/// The part of the memory that weights and program leave which sessions may take where the expert
/// cache cannot have all experts: its slots decide the speed.
const SESSIONS_SHARE: u64 = 4;

/// Plans for one model and one set of options.
#[derive(Clone, Debug)]
pub(crate) struct MemoryPlanner {
    pub(super) model: ModelFacts,
    pub(super) options: EngineOptions,
    pub(super) limits: DeviceLimits,
    /// Whether the device can read experts of this model in the cache.
    pub(super) reads_cache: bool,
    /// What a vision tower takes of the processor's memory.
    pub(super) tower_bytes: u64,
    pub(super) memory: MemoryLimit,
}

/// What the first stage decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) n_sessions: usize,
    pub(super) ctx: usize,
    pub(super) chunk: usize,
    pub(super) checkpoint_bytes: u64,
}

/// What the second stage decides: what a device has of the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceShare {
    /// How experts come into memory for it.
    pub(super) io_mode: IoMode,
    /// It shares the memory, and has all of them there.
    pub(super) has_all: bool,
    /// It has room for some of them in memory of its own.
    pub(super) has_too_little: bool,
    /// Bytes of copies in memory that it shares.
    pub(super) copies: Option<u64>,
}

/// A size that is made smaller where the defaults do not fit, in this order: first what costs
/// prefill speed alone, then positions to go back to, then the length of conversations.
#[derive(Clone, Copy, Debug)]
enum Reduction {
    Chunk(usize),
    /// To that number of copies of the recurrent state.
    Checkpoints(u64),
    Context(usize),
}

const REDUCTIONS: [Reduction; 8] = [
    Reduction::Chunk(128),
    Reduction::Checkpoints(MIN_CHECKPOINTS),
    Reduction::Context(8192),
    Reduction::Context(4096),
    Reduction::Chunk(32),
    Reduction::Context(1024),
    Reduction::Checkpoints(0),
    Reduction::Context(256),
];

impl MemoryPlanner {
    /// For a checkpoint whose experts are at `bank`.
    ///
    /// # Errors
    /// Where an option makes no sense, or a tensor is not as declared.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        declared: &Declared,
        bank: &ExpertBank,
        options: &EngineOptions,
    ) -> Result<MemoryPlanner, EngineError> {
        let limits = DeviceLimits::of(options.compute.device)?;
        let planner = MemoryPlanner {
            model: ModelFacts::of(checkpoint, declared, bank)?,
            options: options.clone(),
            reads_cache: (limits.reads_cache)(bank),
            tower_bytes: tower_bytes(checkpoint, options),
            limits,
            memory: usable_memory(),
        };
        planner.check_options()?;
        Ok(planner)
    }

    /// For a model of these sizes. Its format is not known, so that no device reads its experts in the cache.
    ///
    /// # Errors
    /// Where an option makes no sense.
    pub(super) fn of_facts(
        model: ModelFacts,
        limits: DeviceLimits,
        memory: MemoryLimit,
        options: &EngineOptions,
    ) -> Result<MemoryPlanner, EngineError> {
        let options = options.clone();
        let planner =
            MemoryPlanner { model, options, limits, reads_cache: false, tower_bytes: 0, memory };
        planner.check_options()?;
        Ok(planner)
    }

    /// The planner of the same model with other options for memory.
    ///
    /// # Errors
    /// Where one makes no sense.
    pub(crate) fn with_memory_options(
        &self,
        memory: MemoryOptions,
    ) -> Result<MemoryPlanner, EngineError> {
        let options = EngineOptions { memory, ..self.options.clone() };
        let planner = MemoryPlanner { options, ..self.clone() };
        planner.check_options()?;
        Ok(planner)
    }

    fn check_options(&self) -> Result<(), EngineError> {
        let MemoryOptions { sessions, most_sessions, ctx, chunk, .. } = &self.options.memory;
        if let Some(n) = sessions.or(*most_sessions).filter(|n| !(1..=MAX_SESSIONS).contains(n)) {
            let remedy = format!("choose 1 to {MAX_SESSIONS}");
            return Err(refuse(OptionId::Sessions, n, remedy));
        }
        match *ctx {
            Some(0) => {
                let remedy = String::from("at least 1 position is needed");
                return Err(refuse(OptionId::Ctx, 0, remedy));
            }
            Some(ctx) if ctx > self.model.max_positions => {
                let most = self.model.max_positions;
                let remedy = format!("the model was made for at most {most} positions");
                return Err(refuse(OptionId::Ctx, ctx, remedy));
            }
            _ => {}
        }
        match chunk {
            Some(0) => Err(refuse(OptionId::Chunk, 0, String::from("at least 1 row is needed"))),
            _ => Ok(()),
        }
    }

    /// The plan. Where the defaults do not fit, smaller sizes are tried; where these do not fit
    /// either, the smallest comes out, and [`Plan::fits`] is false.
    pub(crate) fn plan(&self) -> Plan {
        let mut sizes = self.sizes();
        let mut plan = self.with_sizes(sizes);
        for reduction in REDUCTIONS {
            if plan.fits() {
                break;
            }
            let smaller = self.reduced(sizes, reduction);
            if smaller != sizes {
                sizes = smaller;
                plan = self.with_sizes(sizes);
            }
        }
        plan
    }

    fn with_sizes(&self, sizes: Sizes) -> Plan {
        let device = self.device_share(&sizes);
        let sizes = Sizes { chunk: self.chunk(&sizes, &device), ..sizes };
        let model = &self.model;
        let cache_bytes = self.cache_bytes(&sizes, &device);
        let scratch_bytes = model.scratch.bytes(sizes.chunk);
        let free = self.free_after(&sizes, &device, cache_bytes);
        let follows_memory =
            self.options.experts.cache.is_none() || self.options.experts.cache_min.is_some();
        let has_headroom = follows_memory && device.io_mode != IoMode::Mmap;
        Plan {
            resident_bytes: model.resident_bytes,
            kv_bytes_per_position: model.kv_bytes_per_position,
            window_bytes: model.window_bytes(sizes.ctx, sizes.chunk),
            state_bytes: model.state_bytes,
            checkpoint_bytes: sizes.checkpoint_bytes,
            ctx: sizes.ctx,
            n_sessions: sizes.n_sessions,
            chunk: sizes.chunk,
            scratch_bytes,
            program_bytes: model.program_bytes,
            expert_bytes: model.expert_bytes,
            record_bytes: model.record_bytes,
            working_set_bytes: model.working_set_bytes,
            bytes_per_token: model.resident_per_token + model.working_set_bytes,
            table_bytes: model.table_bytes,
            row_cache_bytes: self.row_cache_bytes(),
            prompt_cache_bytes: prompts::bytes(self.options.memory.prompts, free, scratch_bytes),
            cache_bytes,
            min_cache_bytes: self.min_cache_bytes(&device, cache_bytes),
            headroom_bytes: if has_headroom { headroom(self.memory.available) } else { 0 },
            device_expert_bytes: device.copies,
            tower_bytes: self.tower_bytes,
            io_mode: device.io_mode,
            are_experts_derived: model.are_experts_derived,
            memory: self.memory,
        }
    }

    // Sizes: what the user said, or defaults.

    pub(super) fn sizes(&self) -> Sizes {
        let MemoryOptions { sessions, most_sessions, .. } = &self.options.memory;
        match (sessions, most_sessions) {
            (None, Some(most)) => self.sizes_of_up_to(*most),
            _ => self.sizes_of(sessions.unwrap_or(1)),
        }
    }

    /// The context that one session would have, and as many sessions of it as memory has room for:
    /// one, or up to `most` that leave the cache its room.
    fn sizes_of_up_to(&self, most: usize) -> Sizes {
        let one = self.sizes_of(1);
        let of = |n_sessions: usize| Sizes {
            n_sessions,
            // A step has a row for every session.
            chunk: one.chunk.max(n_sessions),
            checkpoint_bytes: one.checkpoint_bytes.min(self.checkpoint_bytes(n_sessions)),
            ..one
        };
        let more = (2..=most).map(of).take_while(|sizes| self.leaves_room(sizes));
        more.last().unwrap_or(one)
    }

    /// Whether the cache still has all experts with these sessions, or the sessions take no more
    /// than their share.
    fn leaves_room(&self, sizes: &Sizes) -> bool {
        let own_memory = self.limits.memory_bytes.filter(|_| !self.limits.shares_memory);
        let (memory, others) = match own_memory {
            // Of a device the weights and sessions are there.
            Some(bytes) => (bytes / 10 * 9, self.model.resident_bytes),
            None => (self.spendable(), self.model.resident_bytes + self.model.program_bytes),
        };
        let share = memory.saturating_sub(others) / SESSIONS_SHARE;
        let caches_all = own_memory.is_none() && self.may_cache_all(sizes);
        caches_all || self.sessions_bytes(sizes) <= share
    }

    /// The sizes for `n_sessions` sessions.
    pub(super) fn sizes_of(&self, n_sessions: usize) -> Sizes {
        let ctx = self.options.memory.ctx.unwrap_or_else(|| self.default_ctx(n_sessions));
        let max_chunk = max_rows(&self.limits, &self.model).min(ctx);
        let chunk = self.options.memory.chunk.unwrap_or(DEFAULT_CHUNK);
        let sizes = Sizes {
            n_sessions,
            ctx,
            // A step has a row for every session.
            chunk: chunk.min(max_chunk).max(n_sessions),
            checkpoint_bytes: self.checkpoint_bytes(n_sessions),
        };
        self.reduced_for_cache(sizes)
    }

    /// Where the cache cannot have all experts, the number of its slots decides the speed. Of the
    /// memory that weights and program leave, activations then get a quarter and sessions
    /// a quarter, half of it for checkpoints. What was asked for by a flag stays as it is.
    fn reduced_for_cache(&self, sizes: Sizes) -> Sizes {
        let has_memory_of_its_own =
            self.limits.memory_bytes.is_some() && !self.limits.shares_memory;
        if has_memory_of_its_own || self.may_cache_all(&sizes) {
            return sizes;
        }
        let Sizes { n_sessions, mut ctx, mut chunk, mut checkpoint_bytes } = sizes;
        let model = &self.model;
        let others = model.resident_bytes.saturating_add(model.program_bytes);
        let quarter = self.spendable().saturating_sub(others) / 4;
        if self.options.memory.chunk.is_none() {
            let rows = (SHORTEST_CHUNK..=chunk).step_by(SHORTEST_CHUNK);
            let held = rows.take_while(|rows| model.scratch.bytes(*rows) <= quarter).last();
            chunk = chunk.min(held.unwrap_or(SHORTEST_CHUNK)).max(n_sessions);
        }
        let of_session = quarter / n_sessions as u64;
        if self.options.memory.checkpoint_bytes.is_none() {
            let few = model.state_bytes * MIN_CHECKPOINTS + self.lent_bytes();
            checkpoint_bytes = checkpoint_bytes.min((of_session / 2).max(few));
        }
        if self.options.memory.ctx.is_none() {
            let left = of_session.saturating_sub(checkpoint_bytes + model.state_bytes);
            let positions = model.positions_in(left);
            let positions = usize::try_from(positions).unwrap_or(usize::MAX) / CTX_STEP * CTX_STEP;
            ctx = ctx.min(positions.max(SHORTEST_CTX));
        }
        Sizes { n_sessions, ctx, chunk, checkpoint_bytes }
    }

    fn default_ctx(&self, n_sessions: usize) -> usize {
        let of_session = self.memory.available / 4 / n_sessions.max(1) as u64;
        let affordable = self.model.positions_in(of_session);
        let affordable = usize::try_from(affordable).unwrap_or(usize::MAX).max(256);
        DEFAULT_CTX.min(affordable).min(self.model.max_positions)
    }

    pub(super) fn checkpoint_bytes(&self, n_sessions: usize) -> u64 {
        let state = self.model.state_bytes;
        match self.options.memory.checkpoint_bytes {
            _ if state == 0 => 0,
            Some(bytes) => bytes,
            None => {
                let part = CHECKPOINT_BYTES / n_sessions as u64;
                let bytes = part.min(state.saturating_mul(MAX_CHECKPOINTS));
                bytes.max(state.saturating_mul(MIN_CHECKPOINTS)).saturating_add(self.lent_bytes())
            }
        }
    }

    /// The memory of a rollback point for drafts, part of the budget of checkpoints.
    fn lent_bytes(&self) -> u64 {
        if self.options.speculation == Speculation::Off { 0 } else { self.model.state_bytes }
    }

    fn reduced(&self, sizes: Sizes, reduction: Reduction) -> Sizes {
        let options = &self.options;
        match reduction {
            Reduction::Chunk(rows) if options.memory.chunk.is_none() => {
                Sizes { chunk: sizes.chunk.min(rows).max(sizes.n_sessions), ..sizes }
            }
            Reduction::Checkpoints(n) if options.memory.checkpoint_bytes.is_none() => {
                let lent = if n == 0 { 0 } else { self.lent_bytes() };
                let fewer = (n * self.model.state_bytes).saturating_add(lent);
                Sizes { checkpoint_bytes: sizes.checkpoint_bytes.min(fewer), ..sizes }
            }
            Reduction::Context(ctx) if options.memory.ctx.is_none() => {
                let ctx = sizes.ctx.min(ctx);
                let chunk = match options.memory.chunk {
                    None => sizes.chunk.min(ctx).max(sizes.n_sessions),
                    Some(_) => sizes.chunk,
                };
                Sizes { ctx, chunk, ..sizes }
            }
            _ => sizes,
        }
    }

    // The device's share.

    /// Decides what a device has of the experts, and how they come into memory for it
    /// unless the user said how.
    pub(super) fn device_share(&self, sizes: &Sizes) -> DeviceShare {
        let (options, limits) = (&self.options, &self.limits);
        let is_given = options.experts.cache.is_some();
        let expert_bytes = self.model.expert_bytes;
        let mut io_mode = resolve_io(options.experts.io, expert_bytes, self.memory.total, is_given);
        let is_open = options.experts.io == IoChoice::Auto && io_mode == IoMode::Mmap;
        if self.model.are_experts_derived && io_mode == IoMode::Mmap {
            // What is computed when it is read cannot be mapped.
            io_mode = IoMode::Direct;
        }
        let own_memory = limits.memory_bytes.filter(|_| limits.fetches);
        let has_too_little = own_memory.is_some_and(|bytes| self.is_too_little(bytes));
        let shares = limits.shares_memory;
        let has_all =
            shares && is_open && options.experts.device_cache.is_none() && self.may_copy_all(sizes);
        let reads_cache = shares && self.reads_cache;
        if is_open && (has_all || reads_cache || has_too_little && self.may_cache_all(sizes)) {
            // What is mapped a device can neither fetch nor read.
            io_mode = IoMode::Direct;
        }
        let copies = shares.then(|| {
            if has_all {
                expert_bytes
            } else {
                self.copied_bytes(reads_cache && io_mode != IoMode::Mmap)
            }
        });
        DeviceShare { io_mode, has_all, has_too_little, copies }
    }

    /// Bytes of copies for a device that shares the memory, and may read the cache.
    pub(super) fn copied_bytes(&self, reads_cache: bool) -> u64 {
        let all = self.model.expert_bytes;
        let few = DEVICE_TOKENS * self.model.working_set_bytes;
        let wanted = match self.options.experts.device_cache {
            Some(bytes) => bytes,
            // A device that has all experts routes by itself.
            None if reads_cache && few < all => 0,
            None => few,
        };
        wanted.min(all)
    }

    /// Whether a device that shares the memory may have copies of all experts there.
    pub(super) fn may_copy_all(&self, sizes: &Sizes) -> bool {
        let copies = self.padded_expert_bytes();
        let of_device = self.limits.memory_bytes.unwrap_or(u64::MAX) / 10 * 9;
        let all = [self.fixed_bytes(sizes), copies, self.loading_bytes()];
        self.model.resident_bytes.saturating_add(copies) <= of_device
            && all.into_iter().fold(0, u64::saturating_add) <= self.spendable()
    }

    /// All experts on a device, an eighth for padding included.
    fn padded_expert_bytes(&self) -> u64 {
        self.model.expert_bytes.saturating_add(self.model.expert_bytes / 8)
    }

    /// Bytes of the cache through which experts come to a device that has all of them.
    fn loading_bytes(&self) -> u64 {
        LOADED_EXPERTS * self.model.slot_bytes()
    }

    /// Whether a device with so much memory, of which experts may be bound to a part, has
    /// too little for all of them.
    pub(super) fn is_too_little(&self, memory: u64) -> bool {
        let free = (memory / 10 * 9).saturating_sub(self.model.resident_bytes);
        self.options.experts.device_cache.is_some_and(|bytes| bytes < self.model.expert_bytes)
            || free < self.padded_expert_bytes()
    }

    /// Whether all experts fit into a cache of the default size.
    pub(super) fn may_cache_all(&self, sizes: &Sizes) -> bool {
        self.default_cache_bytes(self.fixed_bytes(sizes)) == self.model.whole_cache_bytes()
    }

    // The chunk.

    /// Rows of a chunk: what was said, or as many as memory is left for.
    fn chunk(&self, sizes: &Sizes, device: &DeviceShare) -> usize {
        let is_reduced = sizes.chunk < self.sizes().chunk;
        if self.options.memory.chunk.is_some() || is_reduced {
            return sizes.chunk;
        }
        match self.wide_chunk_bytes(sizes, device) {
            Some(free) => {
                let most = if self.fetches_experts(sizes, device) { WIDE } else { WIDEST };
                let most = most.min(max_rows(&self.limits, &self.model)).min(sizes.ctx);
                wide_rows(&self.model.scratch, sizes.chunk, most, free).min(most)
            }
            None => sizes.chunk,
        }
    }

    /// In how much free memory chunks may be wide, if any may: what the cache leaves where
    /// experts are streamed; where a device has all of them in memory of its own, what is
    /// free there, and here as well, without a change of the cache.
    pub(super) fn wide_chunk_bytes(&self, sizes: &Sizes, device: &DeviceShare) -> Option<u64> {
        let cache = self.cache_bytes(sizes, device);
        if self.fetches_experts(sizes, device) {
            // A cache that has all experts goes on having them.
            let caches_all = cache >= self.model.expert_bytes;
            let asked = self.options.experts.cache.unwrap_or(0);
            return Some(self.free_after(sizes, device, if caches_all { cache } else { asked }));
        }
        let memory = self.limits.memory_bytes.filter(|_| !self.limits.shares_memory)?;
        Some(self.free_in(sizes, memory).min(self.free_after(sizes, device, cache)))
    }

    /// Whether a chunk reads experts from the drive, or fetches them to a device.
    fn fetches_experts(&self, sizes: &Sizes, device: &DeviceShare) -> bool {
        let caches_all = self.cache_bytes(sizes, device) >= self.model.expert_bytes;
        !device.has_all && (device.has_too_little || !caches_all)
    }

    /// Bytes of memory that remain after everything but the activations, and after a cache of `cache`
    /// bytes.
    fn free_after(&self, sizes: &Sizes, device: &DeviceShare, cache: u64) -> u64 {
        let fixed = self.fixed_bytes(sizes) - self.model.scratch.bytes(sizes.chunk);
        let taken = fixed.saturating_add(device.copies.unwrap_or(0)).saturating_add(cache);
        self.spendable().saturating_sub(taken)
    }

    /// Bytes that remain of `memory` of a device that has all weights and the sessions.
    pub(super) fn free_in(&self, sizes: &Sizes, memory: u64) -> u64 {
        let experts = self.padded_expert_bytes();
        let taken = self.model.resident_bytes.saturating_add(experts);
        (memory / 10 * 9).saturating_sub(taken.saturating_add(self.sessions_bytes(sizes)))
    }

    // The cache.

    /// What the cache may take. More than all experts counts as all.
    fn cache_bytes(&self, sizes: &Sizes, device: &DeviceShare) -> u64 {
        let fixed = self.fixed_bytes(sizes).saturating_add(device.copies.unwrap_or(0));
        match (device.io_mode, self.options.experts.cache) {
            (IoMode::Mmap, _) => self.model.expert_bytes,
            (IoMode::Pread | IoMode::Direct, Some(bytes)) => {
                bytes.min(self.model.whole_cache_bytes())
            }
            (IoMode::Pread | IoMode::Direct, None) if device.has_all => {
                self.default_cache_bytes(fixed).min(self.loading_bytes())
            }
            (IoMode::Pread | IoMode::Direct, None) => self.default_cache_bytes(fixed),
        }
    }

    /// What is left when everything else is served and the headroom stays free; at
    /// least what one layer needs, at most all experts.
    fn default_cache_bytes(&self, fixed: u64) -> u64 {
        let free = self.spendable().min(self.readable_bytes()).saturating_sub(fixed);
        free.min(self.model.whole_cache_bytes()).max(self.layer_bytes())
    }

    /// Bytes of memory, the program's own included, in which a device that reads the cache finds
    /// everything; all where none does.
    fn readable_bytes(&self) -> u64 {
        let reads_cache = self.limits.shares_memory && self.reads_cache;
        let of_device = self.limits.memory_bytes.filter(|_| reads_cache);
        of_device
            .map_or(u64::MAX, |bytes| (bytes / 10 * 9).saturating_add(self.model.program_bytes))
    }

    /// What one token needs of one layer.
    fn layer_bytes(&self) -> u64 {
        self.model.slot_bytes() * self.model.top_k as u64
    }

    fn min_cache_bytes(&self, device: &DeviceShare, cache_bytes: u64) -> u64 {
        match (device.io_mode, self.options.experts.cache, self.options.experts.cache_min) {
            (IoMode::Mmap, ..) => 0,
            (_, Some(_), None) => cache_bytes,
            (_, _, min) => min.unwrap_or(0).max(self.layer_bytes()).min(cache_bytes),
        }
    }

    /// What the cache of rows of tables may take. More than all rows counts as all.
    fn row_cache_bytes(&self) -> u64 {
        let wanted = self.options.memory.row_cache.unwrap_or(ROW_CACHE_BYTES);
        wanted.min(self.model.whole_row_cache_bytes)
    }

    // Sums.

    /// What may be planned with: what is free, without the headroom.
    pub(super) fn spendable(&self) -> u64 {
        self.memory.available.saturating_sub(headroom(self.memory.available))
    }

    pub(super) fn sessions_bytes(&self, sizes: &Sizes) -> u64 {
        let kv = self.model.kv_bytes_per_position.saturating_mul(sizes.ctx as u64);
        let kv = kv.saturating_add(self.model.window_bytes(sizes.ctx, sizes.chunk));
        let session = kv.saturating_add(self.model.state_bytes + sizes.checkpoint_bytes);
        session.saturating_mul(sizes.n_sessions as u64)
    }

    /// Everything but the cache and the copies of a device.
    fn fixed_bytes(&self, sizes: &Sizes) -> u64 {
        let scratch = self.model.scratch.bytes(sizes.chunk);
        (self.model.resident_bytes + scratch + self.model.program_bytes + self.row_cache_bytes())
            .saturating_add(prompts::asked(self.options.memory.prompts))
            .saturating_add(self.sessions_bytes(sizes))
    }
}

fn refuse(option: OptionId, value: usize, remedy: String) -> EngineError {
    EngineError::Option { option, value: value.to_string(), remedy }
}
