//! `moeflux plan`: whether a model runs here, where memory goes, and what speed that allows.

use std::fmt::Write as _;

use anyhow::Result;
use moeflux_engine::{Alternative, Device, Forecast, Inspection, Plan, RowKind, Shortage};
use serde_json::{Value, json};

use super::{download_json, download_text, print, tokenizer_json};
use crate::args::PlanArgs;
use crate::bytes::show;
use crate::model::{self, Inspected};

/// Alternatives that are shown.
const SHOWN: usize = 2;

/// The least share by which an alternative has to be faster to be shown.
const WORTHWHILE: f64 = 1.02;

/// Prints the plan; whether it fits.
pub(crate) fn run(args: &PlanArgs) -> Result<bool> {
    let found = model::inspect(&args.model, &args.shape, args.json)?;
    let (facts, download) = (&found.facts, found.download.as_ref());
    let options = args.model.engine_options(false)?;
    // What is measured for a forecast is the processor's memory.
    let speed = (facts.device.device == Device::Cpu && facts.plan.fits())
        .then(|| Forecast::measure(facts, &options, found.has_content));
    let speed = speed.as_ref();
    let text = match args.json {
        true => to_json(&found, speed)?,
        false => to_text(&found, speed) + &download.map_or(String::new(), download_text),
    };
    print(&text)?;
    Ok(facts.plan.fits())
}

/// What is printed below the line that says that a model does not fit.
pub(crate) fn shortage_text(shortage: &Shortage) -> String {
    table(&shortage.plan) + &savings(&shortage.plan, &shortage.alternatives)
}

fn to_text(found: &Inspected, speed: Option<&Forecast>) -> String {
    let facts = &found.facts;
    let plan = &facts.plan;
    let mut text = verdict(found, speed) + "\n";
    let _ = writeln!(text, "device: {}", facts.device);
    let _ = match &found.tokenizer {
        Some(Ok(tokenizer)) => writeln!(text, "tokenizer: {tokenizer}"),
        Some(Err(why)) => writeln!(text, "warning: the tokenizer cannot be used: {why}"),
        None => Ok(()),
    };
    if let Some(speed) = speed {
        for (other, forecast) in faster(facts, speed) {
            let rate = forecast.streamed.map_or(String::new(), |rate| rate.to_string());
            let _ = writeln!(text, "  with {}: {rate} tok/s", other.change);
        }
    }
    text.push('\n');
    text.push_str(&table(plan));
    if !plan.fits() {
        return text + &savings(plan, &facts.alternatives);
    }
    let Some(speed) = speed else { return text };
    let of = |rate: Option<f64>| {
        rate.map_or(String::from("not measured"), |gb_s| format!("{gb_s:.2} GB/s"))
    };
    let rows = match speed.row_seconds {
        Some(seconds) => format!("{:.2} ms from the drive", 1e3 * seconds),
        None => String::from("not measured"),
    };
    let rows = match plan.table_bytes {
        0 => String::new(),
        _ => format!("rows of tables that a token needs: {rows}\n"),
    };
    text + &format!(
        "\neach token reads {}, {} of it experts\nmemory {}, matrix products {}, drive {}\n{rows}",
        show(plan.bytes_per_token),
        show(plan.working_set_bytes),
        of(speed.memory_gb_s),
        of(speed.product_gb_s),
        of(speed.drive_gb_s),
    )
}

/// Whether the model runs, from where, and at what rate.
fn verdict(found: &Inspected, speed: Option<&Forecast>) -> String {
    let plan = &found.facts.plan;
    if !plan.fits() {
        let (needed, usable) = (show(plan.needed_bytes()), show(plan.usable_bytes()));
        return format!("does not run here: it needs {needed}, and {usable} are free");
    }
    let place = if plan.cache_bytes >= plan.expert_bytes {
        String::from("runs from memory")
    } else {
        let share = 100.0 * plan.cached_share();
        format!("runs streamed from the drive (cache: {share:.0} % of experts)")
    };
    let estimate = found.facts.device.tok_s.filter(|_| speed.is_none());
    match (speed.and_then(|speed| speed.streamed), estimate) {
        (Some(rate), _) => format!("{place}, at about {rate} tok/s"),
        (None, Some(tok_s)) => format!("{place}, at about {tok_s:.0} tok/s by estimate"),
        (None, None) => format!("{place}; the speed was not measured"),
    }
}

/// The alternatives that are faster, the fastest first.
fn faster<'a>(facts: &'a Inspection, speed: &Forecast) -> Vec<(&'a Alternative, Forecast)> {
    let Some(now) = speed.streamed else { return Vec::new() };
    let all = facts.alternatives.iter().filter(|other| other.plan.fits());
    let mut faster: Vec<_> = all
        .map(|other| (other, speed.of_plan(&other.plan)))
        .filter(|(_, forecast)| {
            forecast.streamed.is_some_and(|rate| rate.middle() > WORTHWHILE * now.middle())
        })
        .collect();
    let rate = |forecast: &Forecast| forecast.streamed.map_or(0.0, |rate| rate.middle());
    faster.sort_by(|a, b| rate(&b.1).total_cmp(&rate(&a.1)));
    faster.truncate(SHOWN);
    faster
}

fn table(plan: &Plan) -> String {
    let mut text = String::new();
    let mut line = |name: &str, bytes: u64, note: &str| {
        let line = format!("{name:<22} {:>12}  {note}", show(bytes));
        let _ = writeln!(text, "{}", line.trim_end());
    };
    for row in plan.rows() {
        let note = match row.is_too_large {
            true => format!("TOO LARGE; {}", note(plan, row.kind)),
            false => note(plan, row.kind),
        };
        line(name(row.kind), row.bytes, note.trim_end_matches("; "));
    }
    line("total", plan.total_bytes(), "");
    if plan.headroom_bytes > 0 {
        line("headroom", plan.headroom_bytes, "free for others: the cache shrinks in time");
    }
    let free = format!("{} are free", show(plan.memory.available));
    line("usable memory", plan.memory.total, &free);
    text
}

fn name(kind: RowKind) -> &'static str {
    match kind {
        RowKind::Weights => "resident weights",
        RowKind::Sessions => "KV caches",
        RowKind::Checkpoints => "state checkpoints",
        RowKind::Activations => "activations",
        RowKind::Program => "program",
        RowKind::Cache => "expert cache",
        RowKind::Copies => "GPU copies of experts",
        RowKind::Rows => "row cache",
    }
}

fn note(plan: &Plan, kind: RowKind) -> String {
    match kind {
        RowKind::Weights => String::new(),
        RowKind::Sessions => {
            let per_position = show(plan.kv_bytes_per_position);
            let sessions = if plan.n_sessions == 1 { "session" } else { "sessions" };
            let windows = match plan.window_bytes {
                0 => String::new(),
                bytes => format!(", windows {}", show(bytes)),
            };
            let (n, ctx) = (plan.n_sessions, plan.ctx);
            format!("{n} {sessions} of {ctx}, {per_position} a position{windows}")
        }
        RowKind::Checkpoints => String::from("copies of recurrent states, at most"),
        RowKind::Activations => format!("prefill in chunks of {} rows", plan.chunk),
        RowKind::Program => String::from("with the tokenizer and the list of tensors"),
        RowKind::Cache => {
            let share = 100.0 * plan.cached_share();
            let mode = plan.io_mode.to_string();
            let mode = if plan.are_experts_derived { "converted when read" } else { &mode };
            format!("{share:.0} % of experts' {}, {mode}", show(plan.expert_bytes))
        }
        RowKind::Copies => String::from(match plan.device_expert_bytes {
            None | Some(0) => "none: the GPU reads the expert cache",
            Some(bytes) if bytes == plan.expert_bytes => "all experts: the cache only loads them",
            Some(_) => "beside the cache: the GPU shares the memory",
        }),
        RowKind::Rows => {
            let share = 100.0 * plan.row_cache_bytes as f64 / plan.table_bytes.max(1) as f64;
            let share = if share < 1.0 { 0.0 } else { share.min(100.0) };
            format!(
                "{share:.0} % of tables' {}, rows read as tokens need them",
                show(plan.table_bytes)
            )
        }
    }
}

/// What each change saves, and whether it is enough.
fn savings(plan: &Plan, alternatives: &[Alternative]) -> String {
    let mut text = String::from("\n");
    let saving = alternatives.iter().filter(|other| other.saves(plan) > 0);
    let mut n_shown = 0;
    for other in saving {
        let enough = if other.plan.fits() { ": enough" } else { "" };
        let saved = show(other.saves(plan));
        let _ = writeln!(text, "{:<26} saves {saved}{enough}", other.change);
        n_shown += 1;
    }
    if n_shown == 0 {
        text.push_str("no flag makes it fit: choose a smaller model, or fewer bits\n");
    }
    text
}

fn to_json(found: &Inspected, speed: Option<&Forecast>) -> Result<String> {
    let facts = &found.facts;
    let plan = &facts.plan;
    let streamed = speed.and_then(|speed| speed.streamed);
    let rows: Vec<Value> = plan.rows().iter().map(|row| {
        json!({ "name": name(row.kind), "bytes": row.bytes, "too_large": row.is_too_large })
    }).collect();
    let suggestions: Vec<Value> = facts
        .alternatives
        .iter()
        .map(|other| {
            let rate = speed.and_then(|speed| speed.of_plan(&other.plan).streamed);
            json!({
                "change": other.change,
                "saves_bytes": other.saves(plan),
                "fits": other.plan.fits(),
                "tok_s": rate.map(|rate| rate.middle()),
            })
        })
        .collect();
    let value = json!({
        "verdict": verdict(found, speed),
        "device": {
            "name": facts.device.device.to_string(),
            "reason": facts.device.to_string(),
            "tok_s_estimate": facts.device.tok_s,
        },
        "fits": plan.fits(),
        "tokenizer": tokenizer_json(found),
        "rows": rows,
        "suggestions": suggestions,
        "resident_bytes": plan.resident_bytes,
        "kv_bytes_per_token": plan.kv_bytes_per_position,
        "window_bytes": plan.window_bytes,
        "state_bytes": plan.state_bytes,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "ctx": plan.ctx,
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
        "memory_gb_s": speed.and_then(|speed| speed.memory_gb_s),
        "product_gb_s": speed.and_then(|speed| speed.product_gb_s),
        "drive_gb_s": speed.and_then(|speed| speed.drive_gb_s),
        "row_seconds": speed.and_then(|speed| speed.row_seconds),
        "tok_s_resident": speed.and_then(|speed| speed.resident).map(|rate| rate.middle()),
        "tok_s_streamed": streamed.map(|rate| rate.middle()),
        "tok_s_low": streamed.map(|rate| rate.low),
        "tok_s_high": streamed.map(|rate| rate.high),
        "download": found.download.as_ref().map(download_json),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}
