//! Plans, models, facts and counts, as JSON.

use std::time::{Duration, SystemTime};

use moeflux::{Model, Plan};
use moeflux_cli::models_here;
use moeflux_engine::measure::useful_bytes;
use moeflux_engine::{Alternative, Inspection, RowKind};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::error::{Failure, OrRaise, keyword};
use crate::finding::find;
use crate::options;

/// What a model would take in memory.
#[pyfunction]
pub(crate) fn plan(py: Python<'_>, model: Option<&str>, options: &str) -> PyResult<String> {
    let options = options::read(options).map_err(|err| err.raise(py))?;
    let found = py.detach(|| {
        let found = moeflux_engine::inspect(&find(model, None)?, &options)?;
        Ok::<_, Failure>(of_inspection(&found).to_string())
    });
    found.or_raise(py)
}

/// The models in the Hub's cache.
#[pyfunction]
pub(crate) fn models(py: Python<'_>) -> PyResult<String> {
    let found = py.detach(|| {
        let all = models_here().map_err(|err| Failure::new("machine", err.to_string()))?;
        let all = all.into_iter().map(|here| {
            json!({
                "name": here.name,
                "path": here.path,
                "bytes": here.bytes,
                "last_used": here.last_used.and_then(seconds),
                "is_complete": here.is_whole,
                "problem": here.problem,
            })
        });
        Ok::<_, Failure>(Value::from_iter(all).to_string())
    });
    found.or_raise(py)
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> Option<f64> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}

fn of_inspection(found: &Inspection) -> Value {
    let alternatives: Vec<Value> =
        found.alternatives.iter().map(|other| of_alternative(other, &found.plan)).collect();
    json!({
        "path": found.root,
        "family": found.family,
        "device": found.device.device.to_string(),
        "alternatives": alternatives,
        "memory": of_plan(&found.plan),
    })
}

fn of_alternative(other: &Alternative, plan: &Plan) -> Value {
    json!({
        "option": keyword(other.change.option),
        "value": other.change.value,
        "saves_bytes": other.saves(plan),
        "fits": other.plan.fits(),
    })
}

fn of_plan(plan: &Plan) -> Value {
    let rows = plan.rows().into_iter().map(|row| (row_name(row.kind), json!(row.bytes)));
    json!({
        "fits": plan.fits(),
        "ctx": plan.ctx,
        "sessions": plan.n_sessions,
        "chunk": plan.chunk,
        "needed_bytes": plan.needed_bytes(),
        "total_bytes": plan.total_bytes(),
        "usable_bytes": plan.usable_bytes(),
        "expert_bytes": plan.expert_bytes,
        "bytes_per_token": plan.bytes_per_token,
        "rows": Value::Object(rows.map(|(name, bytes)| (name.to_owned(), bytes)).collect()),
    })
}

fn row_name(kind: RowKind) -> &'static str {
    match kind {
        RowKind::Weights => "weights",
        RowKind::Sessions => "sessions",
        RowKind::Checkpoints => "checkpoints",
        RowKind::Activations => "activations",
        RowKind::Program => "program",
        RowKind::Cache => "expert_cache",
        RowKind::Copies => "device_copies",
        RowKind::Rows => "row_cache",
        RowKind::Prompts => "prompt_memory",
        RowKind::Tower => "vision_tower",
    }
}

/// What does not change while a model is loaded.
pub(crate) fn of_model(model: &Model) -> Value {
    let engine = model.engine();
    let tokenizer = model.tokenizer();
    json!({
        "path": engine.root(),
        "family": engine.family(),
        "device": engine.device().device.to_string(),
        "threads": engine.n_threads(),
        "vocab": engine.shape().vocab,
        "warnings": model.warnings(),
        "memory": of_plan(engine.plan()),
        "eos_ids": tokenizer.eos_ids().iter().map(|id| id.0).collect::<Vec<u32>>(),
        "eos_id": tokenizer.eos_id().map(|id| id.0),
        "bos_id": tokenizer.bos_id().map(|id| id.0),
        "tokenizer_vocab": tokenizer.vocab_size(),
        "has_chat_template": tokenizer.chat_template_source(false).is_some(),
    })
}

/// Counts since a model was loaded, or since they were reset.
pub(crate) fn stats(model: &Model) -> Value {
    let experts = model.engine().stats();
    let answers = model.scheduler().stats();
    json!({
        "prompt_tokens": answers.n_prompt,
        "reused_tokens": answers.n_reused,
        "completion_tokens": answers.n_generated,
        "drafted_tokens": answers.speculation.drafted,
        "accepted_tokens": answers.speculation.accepted,
        "steps": answers.n_steps,
        "answers": answers.n_ended,
        "running": answers.n_running,
        "waiting": answers.n_waiting,
        "busy_s": answers.busy.as_secs_f64(),
        "expert_hits": experts.hits,
        "expert_misses": experts.misses,
        "expert_evictions": experts.evictions,
        "expert_cache_bytes": experts.cache_bytes,
        "bytes_read": experts.bytes_read,
        "useful_bytes_read": useful_bytes(model.engine(), &experts) as u64,
        "read_s": Duration::from_nanos(experts.read_ns).as_secs_f64(),
        "stall_s": Duration::from_nanos(experts.stall_ns).as_secs_f64(),
    })
}
