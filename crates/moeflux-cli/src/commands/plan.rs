//! `moeflux plan`: whether a model runs here, where memory goes, and what speed that allows.

mod json;
mod uses;

use std::fmt::Write as _;

use anyhow::Result;
use moeflux_engine::{Alternative, Device, Forecast, Inspection, Plan, RowKind, Shortage};

use self::uses::Use;
use super::{download_text, print};
use crate::args::PlanArgs;
use crate::bytes::show;
use crate::model::{self, Inspected};
use crate::rates::{DriveSource, MachineRates};
use crate::report;
use crate::results::{self, SharedResult};

/// Alternatives that are shown.
const SHOWN: usize = 2;

/// The least share by which an alternative has to be faster to be shown.
const WORTHWHILE: f64 = 1.02;

/// A forecast, and what is known of its rates.
struct Speed {
    forecast: Forecast,
    drive: DriveSource,
    /// Why what was measured now may be too low.
    busy: Option<String>,
    /// What the same model did on a similar machine.
    similar: Option<SharedResult>,
}

/// Prints the plan; whether it fits.
pub(crate) fn run(args: &PlanArgs) -> Result<bool> {
    let mut options = args.model.engine_options(false)?;
    if let Some(sessions) = args.sessions {
        sessions.set(&mut options.memory);
    }
    let found = model::inspect_with(&args.model, &args.shape, &options, args.json)?;
    let (facts, download) = (&found.facts, found.download.as_ref());
    // What is measured for a forecast is the processor's memory.
    let can_tell = options.compute.device == Device::Cpu && facts.plan.fits();
    let speed = can_tell.then(|| {
        let mut machine = MachineRates::open(args.rates.drive, args.rates.measure);
        if let Some(damage) = machine.damage() {
            report::note(false, &damage);
        }
        let known = machine.rates(facts, &options, found.place());
        let forecast = Forecast::of(facts, known.rates);
        let all = results::all();
        let similar = results::nearest(&all, facts, &facts.plan, known.rates.drive_gb_s).cloned();
        Speed { forecast, drive: known.drive, busy: machine.busy(), similar }
    });
    let speed = speed.as_ref();
    let uses = uses::of(facts, &options.memory, args.sessions)?;
    let text = match args.json {
        true => json::text(&found, speed, &uses)?,
        false => to_text(&found, speed, &uses) + &download.map_or(String::new(), download_text),
    };
    print(&text)?;
    Ok(facts.plan.fits())
}

/// What is printed below the line that says that a model does not fit.
pub(crate) fn shortage_text(shortage: &Shortage) -> String {
    table(&shortage.plan) + &savings(&shortage.plan, &shortage.alternatives)
}

fn to_text(found: &Inspected, speed: Option<&Speed>, uses: &[Use]) -> String {
    let facts = &found.facts;
    let plan = &facts.plan;
    let mut text = verdict(plan, speed) + "\n";
    if let Some(similar) = speed.and_then(|speed| speed.similar.as_ref()) {
        let (tok_s, machine) = (similar.result.decode_tok_s.median, similar.machine());
        let _ = writeln!(text, "measured on a similar machine: {tok_s:.1} tok/s ({machine})");
    }
    let _ = match &found.tokenizer {
        Some(Ok(tokenizer)) => writeln!(text, "tokenizer: {tokenizer}"),
        Some(Err(why)) => writeln!(text, "warning: the tokenizer cannot be used: {why}"),
        None => Ok(()),
    };
    let forecast = speed.map(|speed| &speed.forecast);
    if let Some(forecast) = forecast {
        for (other, forecast) in faster(facts, forecast) {
            let rate = forecast.streamed.map_or(String::new(), |rate| rate.to_string());
            let _ = writeln!(text, "  with {}: {rate} tok/s", other.change);
        }
    }
    text.push('\n');
    text.push_str(&table(plan));
    if !plan.fits() {
        text.push_str(&savings(plan, &facts.alternatives));
    }
    text.push_str(&uses::text(uses, forecast));
    match speed {
        Some(speed) => text + &rates_text(plan, speed),
        None => text,
    }
}

/// What a token reads, and how fast that is here.
fn rates_text(plan: &Plan, speed: &Speed) -> String {
    let rates = &speed.forecast.rates;
    let of = |rate: Option<f64>| {
        rate.map_or(String::from("not measured"), |gb_s| format!("{gb_s:.2} GB/s"))
    };
    let source = match &speed.drive {
        DriveSource::Given => String::from(" (--drive)"),
        DriveSource::Measured => String::new(),
        DriveSource::Remembered(day) => format!(" (seen on {day})"),
        DriveSource::Unknown(why) => format!(": {why}; --drive RATE says what it does"),
    };
    let mut text = format!(
        "\neach token reads {}, {} of it experts\nmemory {}, matrix products {}, drive {}{source}\n",
        show(plan.bytes_per_token),
        show(plan.working_set_bytes),
        of(rates.memory_gb_s),
        of(rates.product_gb_s),
        of(rates.drive_gb_s),
    );
    if plan.table_bytes > 0 {
        let rows = match rates.row_seconds {
            Some(seconds) => format!("{:.2} ms from the drive", 1e3 * seconds),
            None => String::from("not measured"),
        };
        let _ = writeln!(text, "rows of tables that a token needs: {rows}");
    }
    if let Some(busy) = &speed.busy {
        let _ = writeln!(
            text,
            "{busy}: rates are the best that were seen before; what is measured for the first time now may \
             be too low, and is not remembered"
        );
    }
    text
}

/// Whether the model runs, from where, and at what rate.
fn verdict(plan: &Plan, speed: Option<&Speed>) -> String {
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
    match speed.and_then(|speed| speed.forecast.streamed) {
        Some(rate) => format!("{place}, at about {rate} tok/s"),
        None => format!("{place}; the speed was not measured"),
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
