//! What a model takes in memory, decided before any of it is taken.

use moeflux_backend::{CacheSpec, Inputs};
use moeflux_core::checkpoint::{Checkpoint, Claims, Config};
use moeflux_core::manifest::Manifest;
use moeflux_core::{ExpertBank, LayerBank};
use moeflux_store::{IoChoice, IoMode, MemoryLimit, gate, usable_memory};

use crate::device::DeviceLimits;
use crate::draft::Drafts;
use crate::engine::EngineOptions;
use crate::error::EngineError;
use crate::load::{LoadError, Survey};
use crate::models::{Build, Family, ModelShape, Variant, WithMtp};

/// Rows of a prefill chunk where nobody says otherwise and all experts stay in the
/// processor's memory.
const DEFAULT_CHUNK: usize = 512;

/// Most rows where experts are read from the drive, or fetched to a device: once a
/// chunk. Also where a device has all of them in memory of its own: with more rows an
/// expert it computes more at a time.
const WIDE_CHUNK: usize = 2048;

/// Part of the free memory that the activations of such a chunk may take.
const WIDE_SHARE: u64 = 5;

/// Positions planned for where nobody says otherwise.
const DEFAULT_CTX: usize = 32_768;

/// Most sessions of an engine: more help nobody.
pub const MAX_SESSIONS: usize = 256;

/// Checkpoints of a session where nobody says otherwise: so many, if they fit
/// into the session's part of so many bytes, and at least so many.
const MAX_CHECKPOINTS: u64 = 64;
const CHECKPOINT_BYTES: u64 = 256 << 20;
const MIN_CHECKPOINTS: u64 = 2;

/// Tokens whose experts a GPU keeps in memory that it shares with the
/// processor, where nobody says otherwise and it cannot read them in the cache:
/// beside that, which has them too.
const DEVICE_TOKENS: u64 = 2;

/// Experts that the cache has room for where it serves only to load all of them into
/// a device.
const LOADED_EXPERTS: u64 = 256;

/// The program itself, its stacks and its allocator's slack, in bytes.
const PROGRAM_BYTES: u64 = 48 << 20;

/// Bytes that the tokenizer takes in memory for each byte of its file.
const TOKENIZER_FACTOR: u64 = 14;

/// Where every byte goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Weights that stay in memory.
    pub resident_bytes: u64,
    /// Keys and values of one position.
    pub kv_bytes_per_position: u64,
    /// Recurrent state of one session.
    pub state_bytes: u64,
    /// Copies of recurrent state that one session may keep, one before a guess of what
    /// follows included.
    pub checkpoint_bytes: u64,
    /// Positions of one session.
    pub ctx: usize,
    /// Sessions at a time.
    pub n_sessions: usize,
    /// Rows of a prefill chunk.
    pub chunk: usize,
    /// Activations of one step.
    pub scratch_bytes: u64,
    /// The program and the tokenizer.
    pub program_bytes: u64,
    /// All routed experts.
    pub expert_bytes: u64,
    /// The largest of them.
    pub record_bytes: u64,
    /// Routed experts that one token needs: top_k of every layer that has any.
    pub working_set_bytes: u64,
    /// Weights that one token reads, routed experts included.
    pub bytes_per_token: u64,
    /// What the cache of experts may take; all of them where files are mapped.
    pub cache_bytes: u64,
    /// What copies of experts for a GPU may take of that memory, 0 where it reads
    /// them in the cache; absent where it has memory of its own, or none is used.
    pub device_expert_bytes: Option<u64>,
    /// How experts come into memory.
    pub io_mode: IoMode,
    /// What this process may use.
    pub memory: MemoryLimit,
}

impl Plan {
    /// Keys and values of a full context, recurrent state and copies of it.
    pub fn session_bytes(&self) -> u64 {
        self.state_bytes + self.checkpoint_bytes + self.kv_bytes_per_position * self.ctx as u64
    }

    /// Everything together.
    pub fn total_bytes(&self) -> u64 {
        self.fixed_bytes() + self.cache_bytes
    }

    /// Everything but the cache.
    pub fn fixed_bytes(&self) -> u64 {
        let sessions = self.session_bytes().saturating_mul(self.n_sessions as u64);
        let copies = self.device_expert_bytes.unwrap_or(0);
        (self.resident_bytes + self.scratch_bytes + self.program_bytes)
            .saturating_add(copies)
            .saturating_add(sessions)
    }
}

/// What a family declares of a checkpoint, before anything is loaded.
pub(crate) struct Declared {
    pub(crate) family: &'static Family,
    pub(crate) manifest: Manifest,
    pub(crate) shape: ModelShape,
    /// As it was declared.
    pub(crate) variant: Variant,
    /// Why the multi-token prediction that the checkpoint has is left aside, where it is.
    pub(crate) mtp_refusal: Option<String>,
    /// Activations of one row, in bytes.
    scratch_per_row: u64,
    /// The widest of them.
    widest_row: u64,
}

impl Declared {
    /// Of a checkpoint.
    pub(crate) fn of(checkpoint: &Checkpoint, variant: Variant) -> Result<Declared, LoadError> {
        Self::survey(checkpoint.config(), Some(checkpoint), variant)
    }

    /// The same for who runs it, without multi-token prediction where that is not whole, or has
    /// larger experts than the model: every slot of the cache would have room for one of them.
    pub(crate) fn to_run(checkpoint: &Checkpoint, variant: Variant) -> Result<Declared, LoadError> {
        let declared = Self::of(checkpoint, variant);
        let refusal = match &declared {
            Ok(it) if it.shape.has_mtp() => it.against_mtp(checkpoint),
            Ok(_) => None,
            Err(err) => Some(err.to_string()),
        };
        if refusal.is_none() || variant.mtp == WithMtp::Never {
            return declared;
        }
        // What is wrong with the model itself shows again.
        let declared = Self::of(checkpoint, Variant { mtp: WithMtp::Never, ..variant })?;
        Ok(Declared { mtp_refusal: refusal, ..declared })
    }

    /// What speaks against running the declared multi-token prediction.
    fn against_mtp(&self, checkpoint: &Checkpoint) -> Option<String> {
        let bank = match crate::inspect::bank(checkpoint, self) {
            Ok(bank) => bank,
            Err(err) => return Some(err.to_string()),
        };
        let bytes = |it: &Option<LayerBank>| it.as_ref().map_or(0, |it| it.layout.record_bytes());
        let (own, mtp) = bank.layers.split_at(self.shape.n_layers.min(bank.layers.len()));
        let [own, mtp] = [own, mtp].map(|it| it.iter().map(bytes).max().unwrap_or(0));
        let remedy = "pack the model to use it";
        (mtp > own).then(|| format!("its experts have {mtp} bytes, the model's {own}; {remedy}"))
    }

    /// Of a config alone, before there are tensors.
    pub(crate) fn of_config(config: &Config, mtp: WithMtp) -> Result<Declared, LoadError> {
        Self::survey(config, None, Variant { mtp, ..Variant::default() })
    }

    fn survey(
        config: &Config,
        checkpoint: Option<&Checkpoint>,
        variant: Variant,
    ) -> Result<Declared, LoadError> {
        // Scratch grows by the row; the difference of two surveys is one row.
        let survey = |max_rows| {
            let mut survey = Survey::new(checkpoint);
            let weights = &mut survey;
            let mut build = Build { weights, max_rows, inputs: Inputs::Full, variant };
            let family = Family::of(config)?;
            let model = family.build(config, &mut build)?;
            let shape = model.shape().clone();
            Ok::<_, LoadError>((family, shape, survey.finish()))
        };
        let (family, shape, (manifest, one_row, widest)) = survey(1)?;
        let (scratch_per_row, widest_row) = (one_row as u64, widest as u64);
        let mtp_refusal = None;
        Ok(Declared { family, manifest, shape, variant, mtp_refusal, scratch_per_row, widest_row })
    }
}

/// Bytes that copies of experts, of all or of those that a token needs, take for
/// a device that shares the memory, and may read the cache.
fn copies((all, of_token): (u64, u64), asked: Option<u64>, reads: bool) -> u64 {
    let few = DEVICE_TOKENS * of_token;
    let wanted = match asked {
        Some(bytes) => bytes,
        // A device that has all experts routes without being asked.
        None if reads && few < all => 0,
        None => few,
    };
    wanted.min(all)
}

/// Plans for a checkpoint whose experts are at `bank`.
///
/// # Errors
/// Where an option makes no sense or the resident part cannot fit.
pub(crate) fn plan(
    checkpoint: &Checkpoint,
    declared: &Declared,
    bank: &ExpertBank,
    options: &EngineOptions,
) -> Result<Plan, EngineError> {
    let shape = &declared.shape;
    let memory = usable_memory();
    let resident = resident(checkpoint, &declared.manifest)?;
    let kv_bytes_per_position = sum(&shape.caches, CacheSpec::bytes_per_position);
    let n_sessions = match options.sessions.unwrap_or(1) {
        n @ 1..=MAX_SESSIONS => n,
        n => {
            let remedy = format!("choose 1 to {MAX_SESSIONS}");
            return Err(refuse("--sessions", &n.to_string(), &remedy));
        }
    };
    let kv_bytes = kv_bytes_per_position.saturating_mul(n_sessions as u64);
    let ctx = context(shape, options, kv_bytes, &memory)?;
    let limits = DeviceLimits::of(options.device)?;
    let max_chunk = max_chunk(declared, &limits).min(ctx);
    let chunk = match options.chunk {
        Some(0) => return Err(refuse("--chunk", "0", "at least 1 row is needed")),
        // A step has a row for every session.
        Some(rows) => rows.min(max_chunk).max(n_sessions),
        None => DEFAULT_CHUNK.min(max_chunk).max(n_sessions),
    };
    let working_set_bytes = working_set(bank, shape);
    let state_bytes = sum(&shape.caches, CacheSpec::fixed_bytes);
    let mut plan = Plan {
        resident_bytes: resident.total,
        kv_bytes_per_position,
        state_bytes,
        checkpoint_bytes: checkpoint_bytes(options, state_bytes, n_sessions),
        ctx,
        n_sessions,
        chunk,
        scratch_bytes: scratch(declared, bank, chunk),
        program_bytes: PROGRAM_BYTES + TOKENIZER_FACTOR * tokenizer_bytes(checkpoint),
        expert_bytes: bank.total_bytes(),
        record_bytes: bank.max_record_bytes() as u64,
        working_set_bytes,
        bytes_per_token: resident.per_token + working_set_bytes,
        cache_bytes: 0,
        device_expert_bytes: None,
        io_mode: IoMode::Pread,
        memory,
    };
    let explicit = options.expert_cache.is_some();
    plan.io_mode = gate(options.expert_io, plan.expert_bytes, memory.total, explicit);
    let device = for_device(&mut plan, &limits, bank, options, shape.top_k);
    let cache = |plan: &Plan| match (plan.io_mode, options.expert_cache) {
        (IoMode::Mmap, _) => plan.expert_bytes,
        (IoMode::Pread | IoMode::Direct, Some(bytes)) => bytes,
        (IoMode::Pread | IoMode::Direct, None) if device.keeps_all => {
            default_cache(plan, shape.top_k).min(loading_bytes(plan))
        }
        (IoMode::Pread | IoMode::Direct, None) => default_cache(plan, shape.top_k),
    };
    plan.cache_bytes = cache(&plan);
    let has_too_little = device.has_too_little || plan.cache_bytes < plan.expert_bytes;
    let is_streamed = !device.keeps_all && has_too_little;
    let room = wide_room(&plan, &limits, options, is_streamed);
    if let (None, Some(free)) = (options.chunk, room) {
        let widest = wide_chunk(&plan, free, |rows| scratch(declared, bank, rows));
        plan.chunk = widest.min(max_chunk);
        plan.scratch_bytes = scratch(declared, bank, plan.chunk);
        plan.cache_bytes = cache(&plan);
    }
    if plan.fixed_bytes() > memory.total {
        return Err(EngineError::Memory {
            path: checkpoint.root().to_path_buf(),
            needed: plan.fixed_bytes(),
            available: memory.total,
        });
    }
    Ok(plan)
}

/// What a device makes of the experts.
struct ForDevice {
    /// It shares the memory, and has all of them there.
    keeps_all: bool,
    /// It has room for some of them in memory of its own.
    has_too_little: bool,
}

/// Decides what a device has of the experts, and how they come into memory for it
/// where nobody says so.
fn for_device(
    plan: &mut Plan,
    limits: &DeviceLimits,
    bank: &ExpertBank,
    options: &EngineOptions,
    top_k: usize,
) -> ForDevice {
    let asked = options.device_cache;
    let is_open = matches!((options.expert_io, plan.io_mode), (IoChoice::Auto, IoMode::Mmap));
    let fetches_to = limits.memory_bytes.filter(|_| limits.fetches);
    let has_too_little = fetches_to.is_some_and(|it| is_too_little(plan, it, asked));
    let shares = limits.shares_memory;
    let keeps_all = shares && is_open && asked.is_none() && may_copy_all(plan, limits);
    let reads_cache = shares && (limits.reads_cache)(bank);
    if is_open && (keeps_all || reads_cache || has_too_little && may_hold_all(plan, top_k)) {
        // What is mapped a device can neither fetch nor read.
        plan.io_mode = IoMode::Direct;
    }
    if shares {
        let reads = reads_cache && plan.io_mode != IoMode::Mmap;
        let asked = if keeps_all { Some(plan.expert_bytes) } else { asked };
        plan.device_expert_bytes =
            Some(copies((plan.expert_bytes, plan.working_set_bytes), asked, reads));
    }
    ForDevice { keeps_all, has_too_little }
}

/// Whether a device that shares the memory may have copies of all experts there, an
/// eighth for padding included.
fn may_copy_all(plan: &Plan, limits: &DeviceLimits) -> bool {
    let copies = plan.expert_bytes.saturating_add(plan.expert_bytes / 8);
    let of_device = limits.memory_bytes.unwrap_or(u64::MAX) / 10 * 9;
    let all = [plan.fixed_bytes(), copies, loading_bytes(plan)];
    plan.resident_bytes.saturating_add(copies) <= of_device
        && all.into_iter().fold(0, u64::saturating_add) <= plan.memory.available / 10 * 9
}

/// Bytes of the cache through which experts come to a device that has all of them.
fn loading_bytes(plan: &Plan) -> u64 {
    LOADED_EXPERTS * slots(plan).0
}

/// Whether a device with so much memory, of which experts may be bound to a part, has
/// too little for all of them, an eighth for padding included.
fn is_too_little(plan: &Plan, memory: u64, asked: Option<u64>) -> bool {
    let room = (memory / 10 * 9).saturating_sub(plan.resident_bytes);
    asked.is_some_and(|it| it < plan.expert_bytes)
        || room < plan.expert_bytes.saturating_add(plan.expert_bytes / 8)
}

/// Whether all experts fit into the cache that nobody bounds.
fn may_hold_all(plan: &Plan, top_k: usize) -> bool {
    let (slot, n_records) = slots(plan);
    default_cache(plan, top_k) == n_records * slot
}

/// Bytes of a slot of the cache, and how many hold all experts.
fn slots(plan: &Plan) -> (u64, u64) {
    let slot = (plan.record_bytes + 2 * 4096 * 9).next_multiple_of(4096);
    (slot, plan.expert_bytes.div_ceil(plan.record_bytes.max(1)))
}

/// Most rows of a batch that the device's buffers hold.
fn max_chunk(declared: &Declared, limits: &DeviceLimits) -> usize {
    let by_width = limits.max_buffer_bytes / declared.widest_row.max(1);
    let by_choice = limits.max_chosen / declared.shape.top_k.max(1);
    usize::try_from(by_width).unwrap_or(usize::MAX).min(by_choice).max(1)
}

/// What is left when everything else is served and a tenth stays free; at
/// least what one layer needs, at most all experts.
fn default_cache(plan: &Plan, top_k: usize) -> u64 {
    let (slot, n_records) = slots(plan);
    let free = (plan.memory.available / 10 * 9).saturating_sub(plan.fixed_bytes());
    free.min(n_records * slot).max(slot * top_k as u64)
}

/// In how much free memory chunks may be wide, if any may: beside the cache where
/// experts are streamed; where a device has all of them in memory of its own, what is
/// free there, and here as well, beside a cache that stays as it is.
fn wide_room(
    plan: &Plan,
    limits: &DeviceLimits,
    options: &EngineOptions,
    is_streamed: bool,
) -> Option<u64> {
    if is_streamed {
        // A cache that has all experts goes on having them.
        let has_all = plan.cache_bytes >= plan.expert_bytes;
        let asked = options.expert_cache.unwrap_or(0);
        return Some(free_beside(plan, if has_all { plan.cache_bytes } else { asked }));
    }
    let memory = limits.memory_bytes.filter(|_| !limits.shares_memory)?;
    Some(free_in(plan, memory).min(free_beside(plan, plan.cache_bytes)))
}

/// What is left of the memory beside everything but activations and a cache of so many
/// bytes; a tenth stays free.
fn free_beside(plan: &Plan, cache: u64) -> u64 {
    let taken = (plan.fixed_bytes() - plan.scratch_bytes).saturating_add(cache);
    (plan.memory.available / 10 * 9).saturating_sub(taken)
}

/// The same of so much memory of a device that has all weights, an eighth of the
/// experts for padding included, and the sessions.
fn free_in(plan: &Plan, memory: u64) -> u64 {
    let sessions = plan.session_bytes().saturating_mul(plan.n_sessions as u64);
    let experts = plan.expert_bytes.saturating_add(plan.expert_bytes / 8);
    let taken = plan.resident_bytes.saturating_add(experts).saturating_add(sessions);
    (memory / 10 * 9).saturating_sub(taken)
}

/// As many rows as a share of so much memory holds the activations of, and never fewer
/// than planned so far.
fn wide_chunk(plan: &Plan, free: u64, scratch: impl Fn(usize) -> u64) -> usize {
    let most = WIDE_CHUNK.min(plan.ctx);
    let wider = (plan.chunk..=most).step_by(128).take_while(|it| scratch(*it) <= free / WIDE_SHARE);
    wider.last().unwrap_or(plan.chunk)
}

fn checkpoint_bytes(options: &EngineOptions, state_bytes: u64, n_sessions: usize) -> u64 {
    match options.checkpoint_bytes {
        _ if state_bytes == 0 => 0,
        Some(bytes) => bytes,
        None => {
            let part = CHECKPOINT_BYTES / n_sessions as u64;
            let bytes = part.min(state_bytes.saturating_mul(MAX_CHECKPOINTS));
            // One is lent to what is guessed.
            let lent = if options.drafts == Drafts::Off { 0 } else { state_bytes };
            bytes.max(state_bytes.saturating_mul(MIN_CHECKPOINTS)).saturating_add(lent)
        }
    }
}

fn context(
    shape: &ModelShape,
    options: &EngineOptions,
    per_position: u64,
    memory: &MemoryLimit,
) -> Result<usize, EngineError> {
    match options.ctx {
        Some(0) => Err(refuse("--ctx", "0", "at least 1 position is needed")),
        Some(ctx) if ctx > shape.max_positions => {
            let remedy =
                format!("the model was made for at most {} positions", shape.max_positions);
            Err(refuse("--ctx", &ctx.to_string(), &remedy))
        }
        Some(ctx) => Ok(ctx),
        None => {
            let affordable = memory.available / 4 / per_position.max(1);
            let affordable = usize::try_from(affordable).unwrap_or(usize::MAX).max(256);
            Ok(DEFAULT_CTX.min(affordable).min(shape.max_positions))
        }
    }
}

fn refuse(name: &'static str, value: &str, remedy: &str) -> EngineError {
    EngineError::Option { name, value: value.to_owned(), remedy: remedy.to_owned() }
}

fn sum(caches: &[CacheSpec], bytes: fn(&CacheSpec) -> usize) -> u64 {
    caches.iter().map(|it| bytes(it) as u64).sum()
}

struct Resident {
    total: u64,
    /// All of it but the rows of the embedding that no token looks up.
    per_token: u64,
}

fn resident(checkpoint: &Checkpoint, manifest: &Manifest) -> Result<Resident, LoadError> {
    let mut claims = Claims::new(checkpoint);
    let mut resident = Resident { total: 0, per_token: 0 };
    let is_tied = !manifest.matrices.iter().any(|it| it.name == "lm_head");
    for decl in &manifest.matrices {
        let source = claims.matrix(decl)?;
        let bytes = source.format.matrix_bytes(decl.rows, decl.cols) as u64;
        resident.total += bytes;
        let is_lookup = decl.role == moeflux_core::manifest::Role::Embedding && !is_tied;
        resident.per_token += match checkpoint.is_optional(&decl.name) {
            true => 0,
            false if is_lookup => bytes / decl.rows as u64,
            false => bytes,
        };
    }
    for decl in &manifest.vectors {
        let shape = decl.shapes.first().map_or(0, |it| it.iter().product::<usize>());
        resident.total += 4 * shape as u64;
        resident.per_token += 4 * shape as u64;
    }
    Ok(resident)
}

fn working_set(bank: &ExpertBank, shape: &ModelShape) -> u64 {
    let layers = bank.layers.iter().take(shape.n_layers).flatten();
    layers.map(|it| it.layout.record_bytes() as u64 * shape.top_k.min(it.n_experts) as u64).sum()
}

/// Activations, and what kernels keep beside them: rounded inputs, the inner
/// rows of experts, scores and logits.
fn scratch(declared: &Declared, bank: &ExpertBank, chunk: usize) -> u64 {
    const EXPERT_ROWS: u64 = 1024;
    let layers = bank.layers.iter().flatten();
    let intermediate = layers.map(|it| it.layout.intermediate() as u64).max().unwrap_or(0);
    let activations = declared.scratch_per_row * chunk as u64;
    let inner = EXPERT_ROWS.max(chunk as u64) * intermediate * 3 * 4;
    activations + activations / 4 + inner + 8 * declared.shape.vocab as u64
}

fn tokenizer_bytes(checkpoint: &Checkpoint) -> u64 {
    let path = checkpoint.companion("tokenizer.json");
    path.and_then(|it| it.metadata().ok()).map_or(0, |it| it.len())
}

#[cfg(test)]
mod tests;
