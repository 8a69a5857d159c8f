//! Whether the server answers, and what the page shows of the model and of what goes on.

use moeflux_core::system::resident_memory_bytes;
use schemars::JsonSchema;
use serde::Serialize;

use crate::options::Introduction;
use crate::served::Served;
use crate::settings::Settings;
use crate::site::Site;

/// Whether the server answers.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct Health {
    /// `ok`.
    status: &'static str,
}

/// Facts of the model that was used last, of memory and load.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Status {
    /// What the model is; null where none is loaded.
    model: Option<Model>,
    /// Bytes that are planned and used.
    memory: Memory,
    /// What goes on, and counts since the start.
    now: Now,
}

/// What the model is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelStatus")]
struct Model {
    /// Its name.
    name: String,
    /// What the page says of the model.
    introduction: Option<Introduction>,
    /// Its family.
    family: &'static str,
    /// Its layers.
    layers: usize,
    /// Routed experts of a layer.
    experts: usize,
    /// Routed experts of a token.
    experts_per_token: usize,
    /// Tokens of a conversation at most.
    context: usize,
    /// Whether it can think before it answers.
    thinks: bool,
    /// Whether it can call tools.
    calls_tools: bool,
    /// How tokens are chosen where a request does not say it.
    sampling: Sampling,
}

/// How tokens are chosen.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SamplingStatus")]
struct Sampling {
    /// How freely tokens are drawn.
    temperature: f64,
    /// The number of the likeliest tokens that are drawn from.
    top_k: usize,
    /// The probability of the tokens that are drawn from.
    top_p: f64,
    /// The least probability of a token, as a share of the highest.
    min_p: f64,
    /// What divides the logits of tokens that the text has.
    repetition_penalty: f64,
    /// What is taken from the logits of tokens that the answer has.
    presence_penalty: f64,
    /// What is taken from a token's logit for every time that the answer has it.
    frequency_penalty: f64,
}

/// Bytes that are planned and used.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "MemoryStatus")]
struct Memory {
    /// Bytes of the process; null where the system does not say it.
    resident_bytes: Option<u64>,
    /// All that is planned.
    planned_bytes: u64,
    /// Weights that stay in memory.
    weights_bytes: u64,
    /// Experts on the drive.
    experts_bytes: u64,
    /// The expert cache.
    cache_bytes: u64,
    /// A session.
    session_bytes: u64,
    /// How experts are read.
    expert_io: String,
}

/// What goes on, and counts since the start.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct Now {
    /// Seconds since the start.
    uptime_seconds: f64,
    /// Answers that are being made.
    running: usize,
    /// Requests that wait.
    waiting: usize,
    /// Answers that can be made at a time.
    sessions: usize,
    /// Tokens of prompts.
    prompt_tokens: u64,
    /// Those that were known from earlier requests.
    reused_tokens: u64,
    /// Tokens of answers.
    generated_tokens: u64,
    /// Drafted tokens.
    draft_tokens: u64,
    /// Those that were accepted.
    accepted_tokens: u64,
    /// Rows of all steps.
    rows: u64,
    /// Experts that were in the cache.
    expert_hits: u64,
    /// Experts that were read.
    expert_misses: u64,
    /// Bytes that were read for them.
    bytes_read: u64,
}

/// The health of a server that answers.
pub(crate) fn health() -> Health {
    Health { status: "ok" }
}

/// What does not change, and what does.
pub(crate) fn status(site: &Site) -> Status {
    let current = site.fleet.roster.current();
    Status {
        model: current.as_deref().map(model),
        memory: current.as_deref().map(memory).unwrap_or_else(|| Memory {
            resident_bytes: resident_memory_bytes(),
            ..Memory::default()
        }),
        now: now(site),
    }
}

fn model(served: &Served) -> Model {
    let (shape, plan) = (served.loaded.engine().shape(), served.loaded.engine().plan());
    let sampler = Settings::of(served).sampler;
    Model {
        name: served.model_name().to_owned(),
        introduction: served.options().introduction.clone(),
        family: served.loaded.engine().family(),
        layers: shape.n_layers,
        experts: shape.n_experts,
        experts_per_token: shape.top_k,
        context: plan.ctx,
        thinks: served.text.format().can_think(),
        calls_tools: served.text.format().syntax().is_some(),
        sampling: Sampling {
            temperature: sampler.temperature.into(),
            top_k: sampler.top_k,
            top_p: sampler.top_p.into(),
            min_p: sampler.min_p.into(),
            repetition_penalty: sampler.repeat_penalty.into(),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        },
    }
}

fn memory(served: &Served) -> Memory {
    let (plan, store) = (served.loaded.engine().plan(), served.loaded.engine().stats());
    Memory {
        resident_bytes: resident_memory_bytes(),
        planned_bytes: plan.total_bytes(),
        weights_bytes: plan.resident_bytes,
        experts_bytes: plan.expert_bytes,
        cache_bytes: store.cache_bytes,
        session_bytes: plan.session_bytes(),
        expert_io: plan.io_mode.to_string(),
    }
}

fn now(site: &Site) -> Now {
    let figures = site.fleet.roster.figures();
    let mut now = Now {
        uptime_seconds: site.common.started.elapsed().as_secs_f64(),
        waiting: site.fleet.roster.n_waiting(),
        prompt_tokens: figures.n_prompt,
        reused_tokens: figures.n_reused,
        generated_tokens: figures.n_generated,
        draft_tokens: figures.n_drafted,
        accepted_tokens: figures.n_accepted,
        rows: figures.n_rows,
        expert_hits: figures.hits,
        expert_misses: figures.misses,
        bytes_read: figures.bytes_read,
        ..Now::default()
    };
    for loaded in site.fleet.roster.loaded() {
        let load = loaded.served.loaded.scheduler().stats();
        now.running += load.n_running;
        now.waiting += load.n_waiting;
        now.sessions += loaded.served.n_sessions;
    }
    now
}
