//! Where the time goes: stage by stage, and one token in every detail.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use moeflux_backend::profiling::{OpProfile, StageSpan};
use moeflux_backend::{KernelTime, Stage};
use moeflux_core::{ExpertKey, TokenId};
use moeflux_store::{Event, EventKind};

use super::run::step;
use super::{Workload, forget_experts};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::sampler::likeliest_token;

/// Events of a store that are kept.
const MAX_EVENTS: usize = 1 << 20;

/// Where the time of some tokens went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageTimes {
    /// Tokens evaluated.
    pub n_tokens: usize,
    /// All of it, in seconds.
    pub total: f64,
    /// Seconds inside ops, for every stage that took any.
    pub stages: Vec<(Stage, f64)>,
    /// Seconds that nothing was computed because an expert was awaited.
    pub wait: f64,
}

/// Something that lasted, in seconds since its token began.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// When it began.
    pub start: f64,
    /// When it ended.
    pub end: f64,
    /// The stage, where something was computed.
    pub stage: Option<Stage>,
    /// Its layer, where it has one.
    pub layer: Option<u16>,
    /// Whether it is a prefetch: a read that began before its expert was requested.
    pub is_predicted: bool,
}

/// One token in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenTrace {
    /// Seconds from its beginning to the next one's.
    pub total: f64,
    /// What was computed.
    pub compute: Vec<Lane>,
    /// Experts that were read; they may overlap.
    pub reads: Vec<Lane>,
    /// Waits for experts.
    pub waits: Vec<Lane>,
}

/// Where the time of a run went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The prompt.
    pub prefill: StageTimes,
    /// The tokens after it.
    pub decode: StageTimes,
    /// A token that took the median time.
    pub token: TokenTrace,
    /// Kernels of the prompt's last step, on a device with a clock.
    pub prompt_kernels: Vec<KernelTime>,
    /// Kernels of another token, on a device with a clock, where the context
    /// has room for it.
    pub token_kernels: Vec<KernelTime>,
}

impl StageTimes {
    /// Seconds of a stage.
    pub fn of(&self, stage: Stage) -> f64 {
        self.stages.iter().find(|entry| entry.0 == stage).map_or(0.0, |stage| stage.1)
    }

    /// Seconds that belong to no stage: between ops, and choosing tokens.
    pub fn rest(&self) -> f64 {
        let known: f64 = self.stages.iter().map(|stage| stage.1).sum();
        (self.total - known - self.wait).max(0.0)
    }

    fn new(n_tokens: usize, time: Duration, profile: &OpProfile, stall_ns: u64) -> StageTimes {
        let mut by_stage: HashMap<Stage, u64> = HashMap::new();
        for ((stage, _), nanoseconds) in &profile.stages {
            *by_stage.entry(*stage).or_default() += nanoseconds;
        }
        let seconds = |stage: &Stage| by_stage.get(stage).map(|ns| (*stage, *ns as f64 / 1e9));
        let stages = Stage::ALL.iter().filter_map(seconds).collect();
        StageTimes { n_tokens, total: time.as_secs_f64(), stages, wait: stall_ns as f64 / 1e9 }
    }
}

/// Runs a workload once more with clocks everywhere, which costs some time
/// itself. `None` where the engine was not opened with
/// [`EngineOptions::timed`](crate::EngineOptions::timed).
///
/// # Errors
/// As [`run`](super::run).
pub fn profile(engine: &Engine, work: &Workload<'_>) -> Result<Option<Profile>, EngineError> {
    let Some(meter) = engine.meter() else { return Ok(None) };
    if work.is_cold {
        forget_experts(engine);
    }
    let mut session = engine.session();
    engine.reset_stats();
    meter.stopwatch.start();
    let start = Instant::now();
    let last_step = work.prompt.len().saturating_sub(1) / engine.plan().chunk * engine.plan().chunk;
    let (first, last) = work.prompt.split_at(last_step);
    if !first.is_empty() {
        session.eval_prompt(first)?;
    }
    let (logits, prompt_kernels) = clocked(engine, || session.eval_prompt(last))?;
    let mut next = likeliest_token(&logits);
    let (time, recording) = (start.elapsed(), meter.stopwatch.stop());
    let stall_ns = engine.stats().stall_ns;
    let prefill = StageTimes::new(work.prompt.len(), time, &recording, stall_ns);

    engine.reset_stats();
    engine.core().experts.record_timeline(MAX_EVENTS);
    meter.stopwatch.start();
    let mut starts = vec![Instant::now()];
    for i in 0..work.n_gen {
        next = step(&mut session, work.token(i, next))?;
        starts.push(Instant::now());
    }
    let recording = meter.stopwatch.stop();
    let timeline = engine.core().experts.take_timeline();
    let time = starts.last().map_or(Duration::ZERO, |start| *start - starts[0]);
    let decode = StageTimes::new(work.n_gen, time, &recording, engine.stats().stall_ns);
    let token = median_token(&starts)
        .map(|(start, end)| TokenTrace::new(start, end, &recording.spans, &timeline.events));
    let mut token_kernels = Vec::new();
    if work.prompt.len() + work.n_gen < engine.plan().ctx {
        token_kernels = clocked(engine, || step(&mut session, next))?.1;
    }
    let token = token.unwrap_or_default();
    Ok(Some(Profile { prefill, decode, token, prompt_kernels, token_kernels }))
}

/// Kernel times of drafting and verifying one token, on a device with a clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftKernels {
    /// Of drafting it, where the model has multi-token prediction.
    pub mtp: Vec<KernelTime>,
    /// Of the step of two rows that verifies it.
    pub step: Vec<KernelTime>,
}

/// Measures the kernels of a draft of one token after a prompt. Returns no times where the context
/// has no room for it or the engine was not opened with
/// [`EngineOptions::timed`](crate::EngineOptions::timed).
///
/// # Errors
/// As [`run`](super::run).
pub fn draft_kernels(engine: &Engine, prompt: &[TokenId]) -> Result<DraftKernels, EngineError> {
    /// Drafts that warm the device up, and the one that is measured.
    const N_DRAFTS: usize = 3;
    let mut kernels = DraftKernels::default();
    if engine.meter().is_none() || prompt.len() + 2 * N_DRAFTS > engine.plan().ctx {
        return Ok(kernels);
    }
    let mut session = engine.session();
    let mut next = likeliest_token(&session.eval_prompt(prompt)?);
    for _ in 0..N_DRAFTS {
        let mtp = clocked(engine, || Ok(session.mtp_draft(next, 1)))?.1;
        let (logits, step) = clocked(engine, || session.eval_prompt(&[next, next]))?;
        next = likeliest_token(&logits);
        kernels = DraftKernels { mtp, step };
    }
    Ok(kernels)
}

/// What `work` gives, and the kernels that it took.
fn clocked<T>(
    engine: &Engine,
    work: impl FnOnce() -> Result<T, EngineError>,
) -> Result<(T, Vec<KernelTime>), EngineError> {
    let time_kernels = |is_on| {
        let mut core = engine.core();
        let recording = core.backend().recording();
        recording.map_or(Ok(Vec::new()), |recording| recording.time_kernels(is_on))
    };
    time_kernels(true)?;
    let outcome = work();
    let kernels = time_kernels(false)?;
    Ok((outcome?, kernels))
}

/// Beginning and end of a token whose time is the median.
fn median_token(starts: &[Instant]) -> Option<(Instant, Instant)> {
    let mut tokens: Vec<(Duration, Instant, Instant)> =
        starts.windows(2).map(|pair| (pair[1] - pair[0], pair[0], pair[1])).collect();
    tokens.sort();
    tokens.get(tokens.len() / 2).map(|token| (token.1, token.2))
}

impl TokenTrace {
    fn new(start: Instant, end: Instant, spans: &[StageSpan], events: &[Event]) -> TokenTrace {
        let clip = Clip { start, end };
        let computed = |span: &StageSpan| {
            let lane = clip.lane(span.start, span.end, span.layer)?;
            Some(Lane { stage: Some(span.stage), ..lane })
        };
        let compute = spans.iter().filter_map(computed).collect();
        let mut trace = TokenTrace { total: clip.seconds(end), compute, ..TokenTrace::default() };
        let mut reading: HashMap<ExpertKey, (Instant, bool)> = HashMap::new();
        let mut waiting = None;
        for event in events {
            match event.what {
                EventKind::Request { .. } => {}
                EventKind::ReadStart { key, is_predicted } => {
                    reading.insert(key, (event.at, is_predicted));
                }
                EventKind::ReadEnd { key, .. } => {
                    let Some((since, is_predicted)) = reading.remove(&key) else { continue };
                    let lane = clip.lane(since, event.at, Some(key.layer.0));
                    trace.reads.extend(lane.map(|lane| Lane { is_predicted, ..lane }));
                }
                EventKind::StallStart { .. } => waiting = Some(event.at),
                EventKind::StallEnd { layer } => {
                    let Some(since) = waiting.take() else { continue };
                    trace.waits.extend(clip.lane(since, event.at, Some(layer.0)));
                }
            }
        }
        trace
    }
}

/// The part of time that is looked at.
#[derive(Clone, Copy)]
struct Clip {
    start: Instant,
    end: Instant,
}

impl Clip {
    fn seconds(self, at: Instant) -> f64 {
        at.saturating_duration_since(self.start).as_secs_f64()
    }

    /// `None` where nothing of it is looked at.
    fn lane(self, from: Instant, to: Instant, layer: Option<u16>) -> Option<Lane> {
        let (from, to) = (from.max(self.start), to.min(self.end));
        let (start, end) = (self.seconds(from), self.seconds(to));
        let lane = Lane { start, end, stage: None, layer, is_predicted: false };
        (from < to).then_some(lane)
    }
}
