//! The plan as one JSON object.

use anyhow::Result;
use moeflux_engine::{Alternative, Plan, PlanRow};
use serde_json::{Map, Value, json};

use super::speed::{Speed, verdict};
use super::uses::{self, Use};
use crate::commands::{download_json, tokenizer_json};
use crate::model::Inspected;
use crate::rates::DriveSource;

pub(super) fn text(found: &Inspected, speed: Option<&Speed>, uses: &[Use]) -> Result<String> {
    let mut all = verdicts(found, speed, uses);
    for part in [sizes(&found.facts.plan), rates(speed)] {
        all.extend(part);
    }
    all.insert("download".into(), found.download.as_ref().map_or(Value::Null, download_json));
    Ok(serde_json::to_string_pretty(&Value::Object(all))? + "\n")
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

fn verdicts(found: &Inspected, speed: Option<&Speed>, uses: &[Use]) -> Map<String, Value> {
    let plan = &found.facts.plan;
    let forecast = speed.map(|speed| &speed.forecast);
    let row = |row: &PlanRow| json!({ "name": row.kind.name(), "bytes": row.bytes, "too_large": row.is_too_large });
    let suggestion = |other: &Alternative| {
        let rate = forecast.and_then(|forecast| forecast.of_plan(&other.plan).streamed);
        json!({
            "change": other.change.to_string(),
            "saves_bytes": other.saves(plan),
            "fits": other.plan.fits(),
            "tok_s": rate.map(|rate| rate.middle()),
        })
    };
    object(json!({
        "verdict": verdict(found, speed),
        "device": {
            "name": found.facts.device.device.to_string(),
            "reason": found.facts.device.to_string(),
            "tok_s_estimate": found.facts.device.tok_s,
        },
        "fits": plan.fits(),
        "tokenizer": tokenizer_json(found),
        "rows": plan.rows().iter().map(row).collect::<Vec<Value>>(),
        "suggestions": found.facts.alternatives.iter().map(suggestion).collect::<Vec<Value>>(),
        "commands": uses::to_json(uses, forecast),
    }))
}

fn sizes(plan: &Plan) -> Map<String, Value> {
    object(json!({
        "resident_bytes": plan.resident_bytes,
        "kv_bytes_per_token": plan.kv_bytes_per_position,
        "window_bytes": plan.window_bytes,
        "state_bytes": plan.state_bytes,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "ctx": plan.ctx,
        "sessions": plan.n_sessions,
        "session_bytes": plan.session_bytes(),
        "scratch_bytes": plan.scratch_bytes,
        "program_bytes": plan.program_bytes,
        "expert_bytes": plan.expert_bytes,
        "record_bytes": plan.record_bytes,
        "table_bytes": plan.table_bytes,
        "row_cache_bytes": plan.row_cache_bytes,
        "prompt_cache_bytes": plan.prompt_cache_bytes,
        "cache_bytes": plan.cache_bytes,
        "headroom_bytes": plan.headroom_bytes,
        "device_expert_bytes": plan.device_expert_bytes,
        "total_bytes": plan.total_bytes(),
        "needed_bytes": plan.needed_bytes(),
        "memory_bytes": plan.memory.total,
        "available_bytes": plan.memory.available,
        "expert_io": plan.io_mode.to_string(),
        "bytes_per_token": plan.bytes_per_token,
        "expert_bytes_per_token": plan.working_set_bytes,
    }))
}

fn rates(speed: Option<&Speed>) -> Map<String, Value> {
    let forecast = speed.map(|speed| &speed.forecast);
    let rates = forecast.map(|forecast| forecast.rates).unwrap_or_default();
    let resident = forecast.and_then(|forecast| forecast.resident);
    let streamed = forecast.and_then(|forecast| forecast.streamed);
    object(json!({
        "memory_gb_s": rates.memory_gb_s,
        "product_gb_s": rates.product_gb_s,
        "drive_gb_s": rates.drive_gb_s,
        "drive_source": speed.map(|speed| source(&speed.drive)),
        "busy": speed.and_then(|speed| speed.busy.as_deref()),
        "row_seconds": rates.row_seconds,
        "tok_s_resident": resident.map(|rate| rate.middle()),
        "tok_s_streamed": streamed.map(|rate| rate.middle()),
        "tok_s_low": streamed.map(|rate| rate.low),
        "tok_s_high": streamed.map(|rate| rate.high),
        "measured_on_similar_machine": speed.and_then(|speed| speed.similar.as_ref()),
    }))
}

fn source(drive: &DriveSource) -> &'static str {
    match drive {
        DriveSource::Given => "given",
        DriveSource::Measured => "measured",
        DriveSource::Remembered(_) => "remembered",
        DriveSource::Unknown(_) => "unknown",
    }
}
