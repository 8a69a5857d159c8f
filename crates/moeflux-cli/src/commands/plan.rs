//! `moeflux plan`: where memory will go, and what speed that allows.

use anyhow::Result;
use moeflux_engine::hub::Download;
use moeflux_engine::{Device, Forecast, Inspection};
use serde_json::json;

use super::{download_json, download_text, print};
use crate::args::PlanArgs;
use crate::bytes::show;
use crate::model;

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let found = model::inspect(&args.model, &args.shape, args.json)?;
    let (facts, download) = (&found.facts, found.download.as_ref());
    // What is measured for a forecast is the processor's memory.
    let is_cpu = args.model.engine_options(false)?.device == Device::Cpu;
    let speed = is_cpu.then(|| Forecast::measure(facts, found.has_content));
    let speed = speed.as_ref();
    let text = match args.json {
        true => to_json(facts, speed, download)?,
        false => to_text(facts, speed) + &download.map_or(String::new(), download_text),
    };
    print(&text)?;
    Ok(())
}

fn to_text(facts: &Inspection, speed: Option<&Forecast>) -> String {
    let plan = &facts.plan;
    let share = 100.0 * plan.cache_bytes as f64 / plan.expert_bytes.max(1) as f64;
    let cache_note =
        format!("{:.0} % of the experts' {}", share.min(100.0), show(plan.expert_bytes));
    let kv_note = format!("{} positions of {}", plan.ctx, show(plan.kv_bytes_per_position));
    let conversation = plan.session_bytes() - plan.checkpoint_bytes;
    let chunk_note = format!("prefill in chunks of {} rows", plan.chunk);
    let mut rows = vec![
        ("weights that stay", plan.resident_bytes, String::new()),
        ("one conversation", conversation, kv_note),
        ("its checkpoints", plan.checkpoint_bytes, String::from("states to go back to, at most")),
        ("activations", plan.scratch_bytes, chunk_note),
        ("program", plan.program_bytes, String::from("with the tokenizer")),
        ("expert cache", plan.cache_bytes, format!("{cache_note}, {}", plan.io_mode)),
        ("total", plan.total_bytes(), String::new()),
        (
            "this process may use",
            plan.memory.total,
            format!("{} are free", show(plan.memory.available)),
        ),
    ];
    if let Some(bytes) = plan.device_expert_bytes {
        let note = match bytes {
            0 => "the GPU reads the cache",
            all if all == plan.expert_bytes => "all of them: the cache only brings them",
            _ => "beside the cache: the GPU shares this memory",
        };
        rows.insert(6, ("copies of experts", bytes, note.to_owned()));
    }
    let mut text = String::new();
    for (name, bytes, note) in rows {
        let line = format!("{name:<22} {:>12}  {note}", show(bytes));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    if plan.total_bytes() > plan.memory.total {
        text.push_str("this does not fit: lower --expert-cache, --ctx or --chunk\n");
    }
    let Some(speed) = speed else { return text };
    text + &format!(
        "\na token reads {} ({} of experts); memory gives {:.1} GB/s, the drive {}\n\
         expected {}\n",
        show(plan.bytes_per_token),
        show(plan.working_set_bytes),
        speed.memory_gb_s,
        speed.drive_gb_s.map_or(String::from("was not measured"), |it| format!("{it:.2} GB/s")),
        speed.text(),
    )
}

fn to_json(
    facts: &Inspection,
    speed: Option<&Forecast>,
    download: Option<&Download>,
) -> Result<String> {
    let plan = &facts.plan;
    let value = json!({
        "resident_bytes": plan.resident_bytes,
        "kv_bytes_per_token": plan.kv_bytes_per_position,
        "state_bytes": plan.state_bytes,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "ctx": plan.ctx,
        "session_bytes": plan.session_bytes(),
        "scratch_bytes": plan.scratch_bytes,
        "program_bytes": plan.program_bytes,
        "expert_bytes": plan.expert_bytes,
        "record_bytes": plan.record_bytes,
        "cache_bytes": plan.cache_bytes,
        "device_expert_bytes": plan.device_expert_bytes,
        "total_bytes": plan.total_bytes(),
        "memory_bytes": plan.memory.total,
        "available_bytes": plan.memory.available,
        "fits": plan.total_bytes() <= plan.memory.total,
        "expert_io": plan.io_mode.to_string(),
        "bytes_per_token": plan.bytes_per_token,
        "expert_bytes_per_token": plan.working_set_bytes,
        "memory_gb_s": speed.map(|it| it.memory_gb_s),
        "drive_gb_s": speed.map(|it| it.drive_gb_s),
        "tok_s_resident": speed.map(|it| it.resident_tok_s),
        "tok_s_streamed": speed.map(|it| it.streamed_tok_s),
        "download": download.map(download_json),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}
