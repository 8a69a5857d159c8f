//! The plan as one JSON object.

use anyhow::Result;
use serde_json::{Value, json};

use super::uses::{self, Use};
use super::{Speed, name, verdict};
use crate::commands::{download_json, tokenizer_json};
use crate::model::Inspected;
use crate::rates::DriveSource;

pub(super) fn text(found: &Inspected, speed: Option<&Speed>, uses: &[Use]) -> Result<String> {
    let facts = &found.facts;
    let plan = &facts.plan;
    let forecast = speed.map(|speed| &speed.forecast);
    let rates = forecast.map(|forecast| &forecast.rates);
    let streamed = forecast.and_then(|forecast| forecast.streamed);
    let rows: Vec<Value> = plan.rows().iter().map(|row| {
        json!({ "name": name(row.kind), "bytes": row.bytes, "too_large": row.is_too_large })
    }).collect();
    let suggestions: Vec<Value> = facts
        .alternatives
        .iter()
        .map(|other| {
            let rate = forecast.and_then(|forecast| forecast.of_plan(&other.plan).streamed);
            json!({
                "change": other.change,
                "saves_bytes": other.saves(plan),
                "fits": other.plan.fits(),
                "tok_s": rate.map(|rate| rate.middle()),
            })
        })
        .collect();
    let value = json!({
        "verdict": verdict(plan, speed),
        "fits": plan.fits(),
        "tokenizer": tokenizer_json(found),
        "rows": rows,
        "suggestions": suggestions,
        "commands": uses::to_json(uses, forecast),
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
        "memory_gb_s": rates.and_then(|rates| rates.memory_gb_s),
        "product_gb_s": rates.and_then(|rates| rates.product_gb_s),
        "drive_gb_s": rates.and_then(|rates| rates.drive_gb_s),
        "drive_source": speed.map(|speed| source(&speed.drive)),
        "busy": speed.and_then(|speed| speed.busy.as_deref()),
        "row_seconds": rates.and_then(|rates| rates.row_seconds),
        "tok_s_resident": forecast.and_then(|forecast| forecast.resident).map(|rate| rate.middle()),
        "tok_s_streamed": streamed.map(|rate| rate.middle()),
        "tok_s_low": streamed.map(|rate| rate.low),
        "tok_s_high": streamed.map(|rate| rate.high),
        "measured_on_similar_machine": speed.and_then(|speed| speed.similar.as_ref()),
        "download": found.download.as_ref().map(download_json),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

fn source(drive: &DriveSource) -> &'static str {
    match drive {
        DriveSource::Given => "given",
        DriveSource::Measured => "measured",
        DriveSource::Remembered(_) => "remembered",
        DriveSource::Unknown(_) => "unknown",
    }
}
