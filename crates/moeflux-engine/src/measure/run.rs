//! One measured run: a prompt, then tokens one by one.

use std::time::{Duration, Instant};

use moeflux_backend::DeviceStats;
use moeflux_core::{ExpertKey, TokenId};
use moeflux_store::{EventKind, LayerCounts, RowStats, StoreStats};

use super::forget_experts;
use super::system::storage_bytes;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::positions::input::ChunkInput;
use crate::sampler::likeliest_token;
use crate::session::{DraftChunk, SequenceChunk, Session, eval_draft_batch};

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    /// Read in chunks, from an empty session.
    pub prompt: &'a [TokenId],
    /// Tokens evaluated one by one after the prompt.
    pub n_gen: usize,
    /// The first of these; after them, the likeliest each time. A model with random weights soon
    /// repeats its likeliest tokens, and then needs the same experts again and again.
    pub given: &'a [TokenId],
    /// Whether no expert is in memory in the beginning.
    pub is_cold: bool,
}

impl Workload<'_> {
    /// The `i`-th token after the prompt, where `likeliest` is the likeliest.
    pub(super) fn token(&self, i: usize, likeliest: TokenId) -> TokenId {
        self.given.get(i).copied().unwrap_or(likeliest)
    }
}

/// What one phase of a run took.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Tokens evaluated.
    pub n_tokens: usize,
    /// How long that took.
    pub time: Duration,
    /// What the store did meanwhile.
    pub store: StoreStats,
    /// What the store of rows of tables did meanwhile, where the model has any.
    pub rows: Option<RowStats>,
    /// What the experts in the device's own memory did meanwhile.
    pub device: Option<DeviceStats>,
    /// Hits and misses of each layer.
    pub layers: Vec<LayerCounts>,
    /// Bytes that the drive read for this process; `None` where the system does
    /// not tell. Fewer than the store read where the system had them in memory.
    pub storage_bytes: Option<u64>,
    /// Records that were read, in the order in which their reads ended; the
    /// first 65,536 happenings of the store are looked at.
    pub reads: Vec<ExpertKey>,
}

const MAX_EVENTS: usize = 1 << 16;

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The prompt.
    pub prefill: Phase,
    /// The tokens after it.
    pub decode: Phase,
    /// How long each of these took.
    pub steps: Vec<Duration>,
}

impl Phase {
    /// Tokens a second.
    pub fn tok_s(&self) -> f64 {
        self.n_tokens as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// Bytes of experts that a token asked for, in memory or not.
    pub fn bytes_per_token(&self, engine: &Engine) -> f64 {
        self.n_wanted() * mean_record_bytes(engine) / self.n_tokens.max(1) as f64
    }

    /// Experts that were asked for, those that a device held or fetched included.
    fn n_wanted(&self) -> f64 {
        let on_device = self.device.map_or(0, |device| device.hits + device.fetched);
        (on_device + self.store.hits + self.store.misses) as f64
    }

    /// Share of the experts asked for that a device held; `None` where there is
    /// none with memory of its own.
    pub fn device_hit_rate(&self) -> Option<f64> {
        self.device.map(|device| device.hits as f64 / self.n_wanted().max(1.0))
    }

    /// Share of the experts asked for that the drive had to bring, on demand or
    /// ahead of it.
    pub fn miss_rate(&self, engine: &Engine) -> f64 {
        let wanted = self.n_wanted() * mean_record_bytes(engine);
        let useful = useful_bytes(engine, &self.store);
        if wanted > 0.0 { (useful / wanted).min(1.0) } else { 0.0 }
    }

    /// Share of the drive's limit that was reached: tokens a second by those
    /// that a drive of `drive_gb_s` could feed. `None` where nothing was read.
    pub fn rh(&self, engine: &Engine, drive_gb_s: f64) -> Option<f64> {
        let read = self.bytes_per_token(engine) * self.miss_rate(engine);
        (read > 0.0 && drive_gb_s > 0.0).then(|| self.tok_s() * read / (drive_gb_s * 1e9))
    }

    /// Share of the time that was spent waiting for experts.
    pub fn stall_share(&self) -> f64 {
        self.store.stall_ns as f64 / self.time.as_nanos().max(1) as f64
    }

    /// Share of the time that was spent waiting for rows of tables; `None` where there are none.
    pub fn row_stall_share(&self) -> Option<f64> {
        let time = self.time.as_nanos().max(1) as f64;
        self.rows.map(|rows| rows.stall_ns as f64 / time)
    }

    /// Bytes that the store read for each token.
    pub fn read_per_token(&self) -> f64 {
        self.store.bytes_read as f64 / self.n_tokens.max(1) as f64
    }

    /// GB/s of the drive while the store was reading; `None` where it was not.
    pub fn read_gb_s(&self) -> Option<f64> {
        let StoreStats { bytes_read, read_ns, .. } = self.store;
        (bytes_read > 0 && read_ns > 0).then(|| bytes_read as f64 / read_ns as f64)
    }

    /// GB/s of weights that tokens one by one go through.
    pub fn weight_gb_s(&self, engine: &Engine) -> f64 {
        self.tok_s() * engine.plan().bytes_per_token as f64 / 1e9
    }
}

/// Bytes that were read of experts that were used, on demand or ahead: over time, by what the drive could read, they are
/// the share of its limit that was reached ([`Phase::rh`]).
pub fn useful_bytes(engine: &Engine, store: &StoreStats) -> f64 {
    let wasted = store.prefetch_reads.saturating_sub(store.prefetch_used);
    (store.bytes_read as f64 - wasted as f64 * mean_record_bytes(engine)).max(0.0)
}

/// Bytes of an expert, over all layers that have any.
fn mean_record_bytes(engine: &Engine) -> f64 {
    let shape = engine.shape();
    let n_used = shape.top_k * shape.n_moe_layers;
    engine.plan().working_set_bytes as f64 / n_used.max(1) as f64
}

/// Runs a prompt and tokens after it in a new session.
///
/// # Errors
/// Where the context is too small or a step fails.
pub fn run(engine: &Engine, work: &Workload<'_>) -> Result<Run, EngineError> {
    if work.is_cold {
        forget_experts(engine);
    }
    let mut session = engine.session();
    let mut next = TokenId(0);
    let prefill = phase(engine, work.prompt.len(), || {
        next = likeliest_token(&session.eval_prompt(work.prompt)?);
        Ok(())
    })?;
    let mut steps = Vec::with_capacity(work.n_gen);
    let decode = phase(engine, work.n_gen, || {
        for i in 0..work.n_gen {
            let start = Instant::now();
            next = step(&mut session, work.token(i, next))?;
            steps.push(start.elapsed());
        }
        Ok(())
    })?;
    Ok(Run { prefill, decode, steps })
}

/// One of the conversations of [`run_together`].
struct Conversation<'a> {
    session: Session,
    work: &'a Workload<'a>,
    likeliest: TokenId,
    /// The token that is evaluated next.
    next: [TokenId; 1],
}

/// Evaluates each workload's prompt in a separate session, then its tokens after the prompt, those
/// of all sessions in the same steps: as many as the first workload has. Returns the time of these,
/// for the tokens of all.
///
/// # Errors
/// Where the context is too small or a step fails.
///
/// # Panics
/// If a step has fewer rows than there are workloads
/// ([`Plan::chunk`](crate::Plan::chunk)).
pub fn run_together(engine: &Engine, works: &[Workload<'_>]) -> Result<Phase, EngineError> {
    if works.iter().any(|work| work.is_cold) {
        forget_experts(engine);
    }
    let mut all = Vec::with_capacity(works.len());
    for work in works {
        let mut session = engine.session();
        let likeliest = likeliest_token(&session.eval_prompt(work.prompt)?);
        all.push(Conversation { session, work, likeliest, next: [likeliest] });
    }
    let n_gen = works.first().map_or(0, |work| work.n_gen);
    phase(engine, n_gen * works.len(), || {
        for i in 0..n_gen {
            let chunks = all.iter_mut().map(|one| {
                one.next = [one.work.token(i, one.likeliest)];
                let session = &mut one.session;
                let (input, wants_logits, checkpoint_after) =
                    (ChunkInput::Tokens(&one.next), true, false);
                let chunk = SequenceChunk { session, input, wants_logits, checkpoint_after };
                DraftChunk { chunk, n_drafted: 0, n_scored: 0 }
            });
            let found = eval_draft_batch(&mut chunks.collect::<Vec<_>>(), Some(1))?;
            for (one, found) in all.iter_mut().zip(found.iter().flatten()) {
                one.likeliest = found.likeliest();
            }
        }
        Ok(())
    })
}

/// Evaluates a token; gives the likeliest to follow.
pub(super) fn step(session: &mut Session, token: TokenId) -> Result<TokenId, EngineError> {
    Ok(session.eval_next(token, Some(1))?.likeliest())
}

/// Measures `work`, which evaluates `n_tokens` tokens.
fn phase(
    engine: &Engine,
    n_tokens: usize,
    work: impl FnOnce() -> Result<(), EngineError>,
) -> Result<Phase, EngineError> {
    engine.reset_stats();
    engine.core().experts.record_timeline(MAX_EVENTS);
    let storage_before = storage_bytes();
    let start = Instant::now();
    let done = work();
    let time = start.elapsed();
    let events = engine.core().experts.take_timeline().events;
    done?;
    let storage_bytes = storage_bytes().zip(storage_before).map(|(after, before)| after - before);
    let layers = engine.core().experts.layer_counts();
    let reads = events.iter().filter_map(|event| match event.what {
        EventKind::ReadEnd { key, n_bytes } if n_bytes > 0 => Some(key),
        _ => None,
    });
    let reads = reads.collect();
    let (store, rows, device) = (engine.stats(), engine.row_stats(), engine.device_stats());
    Ok(Phase { n_tokens, time, store, rows, device, layers, storage_bytes, reads })
}
