//! The figures as one JSON object.

use anyhow::Result;
use moeflux_engine::measure::{KernelTime, Spread, StageTimes};
use serde_json::{Map, Value, json};

use super::figures::{Figures, PhaseFigures, RowFigures, TeacherForcedFigures, quantile};
use super::gpu;

pub(super) fn text(figures: &Figures) -> Result<String> {
    Ok(serde_json::to_string_pretty(&Value::Object(object(figures)))? + "\n")
}

/// Inserts a median as `name`, and its extremes as `name_min` and `name_max`.
pub(super) fn put(object: &mut Map<String, Value>, name: &str, spread: Option<Spread>) {
    for (suffix, part) in [
        ("", (|spread| spread.median) as fn(Spread) -> f64),
        ("_min", |spread| spread.min),
        ("_max", |spread| spread.max),
    ] {
        object.insert(format!("{name}{suffix}"), json!(spread.map(part)));
    }
}

pub(super) fn object(figures: &Figures) -> Map<String, Value> {
    let Figures { setting, machine, decode, .. } = figures;
    let mut all = Map::new();
    let mut set = |name: &str, value: Value| all.insert(name.to_owned(), value);
    set("model", json!(setting.model));
    set("family", json!(setting.family));
    set("prompt_tokens", json!(setting.prompt_tokens));
    set("gen_tokens", json!(setting.gen_tokens));
    set("repeat", json!(setting.repeat));
    set("cold", json!(setting.is_cold));
    set("threads", json!(machine.n_threads));
    set("isa", json!(machine.isa));
    set("expert_io", json!(setting.expert_io));
    set("expert_cache_bytes", json!(setting.cache_bytes));
    set("expert_bytes", json!(setting.expert_bytes));
    set("experts_per_token", json!(setting.experts_per_token));
    set("bytes_per_token", json!(decode.bytes_per_token));
    set("read_bytes_per_token", json!(decode.read_per_token));
    set("storage_bytes_per_token", json!(decode.storage_per_token));
    set("weight_bytes_per_token", json!(setting.weight_bytes_per_token));
    set("hit_rate", json!(decode.hit_rate));
    set("miss_rate", json!(decode.miss_rate));
    set("prefetch_precision", json!(decode.precision));
    set("prefetch_recall", json!(decode.recall));
    set("stall_share", json!(decode.stall_share));
    set("read_gb_s", json!(decode.read_gb_s));
    set("peak_rss_bytes", json!(figures.peak_rss_bytes));
    set("planned_bytes", json!(setting.planned_bytes));
    put(&mut all, "prefill_tok_s", Some(figures.prefill.tok_s));
    put(&mut all, "decode_tok_s", Some(decode.tok_s));
    put(&mut all, "drive_gb_s", figures.drive_gb_s);
    put(&mut all, "memory_gb_s", Some(figures.memory[1]));
    put(&mut all, "memory_gb_s_one_thread", Some(figures.memory[0]));
    put(&mut all, "rh", decode.rh);
    all.insert("sequences".into(), json!(setting.sequences));
    all.insert("together".into(), figures.together.as_ref().map_or(Value::Null, together));
    all.insert(
        "teacher_forced".into(),
        figures.teacher_forced.as_ref().map_or(Value::Null, teacher_forced),
    );
    put(&mut all, "prefill_rh", figures.prefill.rh);
    put(&mut all, "decode_memory_share", Some(figures.memory_share));
    put(&mut all, "prefill_arithmetic_share", figures.arithmetic_share);
    all.insert("gpu".into(), machine.gpu.as_ref().map_or(Value::Null, gpu::limits_to_json));
    let tuning = figures.tuning.as_ref().map_or(Value::Null, gpu::tuning_to_json);
    all.insert("gpu_tuning".into(), tuning);
    all.insert("limits".into(), limits(figures));
    all.insert("token_ms".into(), token_ms(figures));
    all.insert("prefill".into(), phase(&figures.prefill, &figures.profile.prefill));
    all.insert("decode".into(), phase(decode, &figures.profile.decode));
    all.insert("layers".into(), layers(figures));
    let of_prompt = device_kernels(&figures.profile.prompt_kernels);
    all.insert("device_prompt_kernels".into(), of_prompt);
    all.insert("device_kernels".into(), device_kernels(&figures.profile.token_kernels));
    all.insert("device_draft_kernels".into(), device_kernels(&figures.draft.step));
    all.insert("device_mtp_kernels".into(), device_kernels(&figures.draft.mtp));
    all
}

fn device_kernels(kernels: &[KernelTime]) -> Value {
    let kernel = |kernel: &KernelTime| json!({"name": kernel.name, "n": kernel.n, "us": 1e6 * kernel.seconds});
    kernels.iter().map(kernel).collect()
}

fn limits(figures: &Figures) -> Value {
    let machine = &figures.machine;
    let drive = figures.drive.as_ref().map(|drive| {
        let depths: Vec<Value> = drive
            .depths
            .iter()
            .map(|rate| json!({"depth": rate.depth, "gb_s": rate.gb_s}))
            .collect();
        json!({
            "unread_gb_s": drive.depths.first().map(|depth| depth.gb_s),
            "depths": depths,
            "direct": drive.is_direct,
            "read_twice": drive.has_reread,
            "read_bytes": drive.piece_bytes,
        })
    });
    json!({
        "float_gop_s": machine.float_gop_s[1],
        "float_gop_s_one_thread": machine.float_gop_s[0],
        "integer_gop_s": machine.integer_gop_s[1],
        "integer_gop_s_one_thread": machine.integer_gop_s[0],
        "drive": drive,
    })
}

fn token_ms(figures: &Figures) -> Value {
    let sorted = figures.sorted_token_ms();
    json!({
        "median": quantile(&sorted, 0.5),
        "p99": quantile(&sorted, 0.99),
        "max": quantile(&sorted, 1.0),
        "above_three_medians": figures.n_slow_tokens(),
    })
}

/// Several conversations at once.
fn together(figures: &PhaseFigures) -> Value {
    let mut all = traffic(figures);
    put(&mut all, "tok_s", Some(figures.tok_s));
    put(&mut all, "rh", figures.rh);
    Value::Object(all)
}

/// A text that was made as if the model had chosen it.
fn teacher_forced(figures: &TeacherForcedFigures) -> Value {
    let mut all = Map::new();
    put(&mut all, "tok_s", Some(figures.drafted));
    put(&mut all, "one_by_one_tok_s", Some(figures.alone));
    all.insert("tokens_per_step".into(), json!(figures.tokens_per_step));
    all.insert("drafted_per_token".into(), json!(figures.drafted_per_token));
    all.insert("acceptance_rate".into(), json!(figures.acceptance_rate));
    Value::Object(all)
}

fn phase(figures: &PhaseFigures, times: &StageTimes) -> Value {
    let per_token = 1e3 / times.n_tokens.max(1) as f64;
    let mut stages: Map<String, Value> = times
        .stages
        .iter()
        .map(|(stage, s)| (stage.name().replace(' ', "_"), json!(s * per_token)))
        .collect();
    stages.insert("wait".into(), json!(times.wait * per_token));
    stages.insert("between".into(), json!(times.rest() * per_token));
    let mut all = traffic(figures);
    all.insert("stage_ms_per_token".into(), Value::Object(stages));
    Value::Object(all)
}

/// What became of the experts that a phase asked for.
fn traffic(figures: &PhaseFigures) -> Map<String, Value> {
    let all = [
        ("rows", figures.rows.as_ref().map_or(Value::Null, rows)),
        ("bytes_per_token", json!(figures.bytes_per_token)),
        ("read_bytes_per_token", json!(figures.read_per_token)),
        ("storage_bytes_per_token", json!(figures.storage_per_token)),
        ("hit_rate", json!(figures.hit_rate)),
        ("miss_rate", json!(figures.miss_rate)),
        ("stall_share", json!(figures.stall_share)),
        ("read_gb_s", json!(figures.read_gb_s)),
        ("device_hit_rate", json!(figures.device.map(|device| device.hit_rate))),
        ("uploaded_bytes_per_token", json!(figures.device.map(|device| device.uploaded_per_token))),
        ("upload_gb_s", json!(figures.device.and_then(|device| device.upload_gb_s))),
        ("kernels_per_token", json!(figures.device.map(|device| device.kernels_per_token))),
        ("device_wait_share", json!(figures.device.map(|device| device.wait_share))),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

/// What became of rows of tables.
fn rows(figures: &RowFigures) -> Value {
    json!({
        "rows_per_token": figures.per_token,
        "ready_rate": figures.ready_rate,
        "hit_rate": figures.hit_rate,
        "read_bytes_per_token": figures.read_per_token,
        "reads_s": figures.reads_s,
        "stall_share": figures.stall_share,
    })
}

fn layers(figures: &Figures) -> Value {
    let layer = |(i, counts): (usize, &moeflux_engine::measure::LayerCounts)| json!({"layer": i, "hits": counts.hits, "misses": counts.misses, "hit_rate": counts.hit_rate()});
    figures.layers.iter().enumerate().map(layer).collect()
}
