//! Notes and statistics, on standard error.

use std::io::{self, IsTerminal, Write};

use console::Term;
use moeflux::{Finish, SpeculationStats, Summary};
use moeflux_core::StandIn;
use moeflux_core::checkpoint::DenseModel;
use moeflux_core::system::peak_memory_bytes;
use moeflux_core::visible;
use moeflux_engine::{Device, DeviceChoice, Engine, Reason, devices};
use moeflux_store::IoMode;

use crate::bytes;
use crate::words::wrapped;

/// An error and its causes, each once: many messages contain their cause already.
pub(crate) fn chain(err: &anyhow::Error) -> String {
    let mut text = err.to_string();
    // The parser of JSON has words of its own, which messages have translated.
    let causes = err.chain().skip(1).filter(|cause| !cause.is::<serde_json::Error>());
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// What else helps against an error, in this program's commands and flags, which libraries do not name.
pub(crate) fn remedy(err: &anyhow::Error) -> &'static str {
    let stand_in = |cause: &(dyn std::error::Error + 'static)| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref::<StandIn>());
        inner.or_else(|| cause.downcast_ref()).cloned()
    };
    if err.chain().any(|cause| cause.is::<DenseModel>()) {
        return " (moeflux models lists models that run here)";
    }
    #[cfg(feature = "gpu")]
    if let Some(moeflux_engine::EngineError::Gpu(_)) =
        err.chain().find_map(|cause| cause.downcast_ref())
    {
        return ": --device cpu runs without one, and moeflux inspect --devices lists what is there";
    }
    match err.chain().find_map(stand_in) {
        Some(StandIn::LfsPointer | StandIn::OtherPointer { .. }) => ", or give --model org/name",
        _ => "",
    }
}

/// Prints a note, unless only the answer is wanted. On a terminal its lines break between words.
pub(crate) fn note(is_quiet: bool, text: &str) {
    if !is_quiet {
        let text = wrapped(&visible(&format!("moeflux: {text}")), width());
        // There is nothing left to report to when standard error is closed.
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// Columns of standard error; 0 where it is no terminal, or does not say.
fn width() -> usize {
    Term::stderr().size_checked().map_or(0, |(_, width)| width.into())
}

/// Prints a note that is less important than the answer: dimmed on terminals that have styles.
pub(crate) fn aside(is_quiet: bool, text: &str) {
    if io::stderr().is_terminal() && !is_quiet {
        let text = wrapped(&visible(text), width());
        // As in `note`.
        let _ = writeln!(io::stderr(), "{}", console::style(text).dim().for_stderr());
    } else {
        note(is_quiet, text);
    }
}

/// Notes which device a model runs on, and why, unless the user named it or there was nothing to
/// choose from: see [`device_aside`].
pub(crate) fn device(is_quiet: bool, choice: &DeviceChoice) {
    if choice.is_about_a_gpu() {
        note(is_quiet, &choice.to_string());
    }
}

/// Says of a GPU that the user named that it is a program on the processor: `auto` never takes one.
pub(crate) fn software_device(is_quiet: bool, choice: &DeviceChoice) {
    let (Reason::Asked, Device::Gpu(index)) = (&choice.reason, choice.device) else { return };
    let all = devices(None);
    let named = match index {
        Some(index) => all.get(index),
        None => all.iter().find(|device| device.lacks.is_none()),
    };
    if let Some(found) = named.filter(|found| found.is_software) {
        let name = &found.maker_name;
        note(
            is_quiet,
            &format!(
                "--device {}: {name} is a software device, which is slow: --device cpu is faster",
                choice.device
            ),
        );
    }
}

/// What [`device`] leaves out, behind an answer.
pub(crate) fn device_aside(is_quiet: bool, choice: &DeviceChoice) {
    if !choice.is_about_a_gpu() && choice.reason != Reason::Asked {
        aside(is_quiet, &choice.to_string());
    }
}

/// Whether the terminal says that it knows no commands.
pub(crate) fn is_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_some_and(|name| name == "dumb")
}

/// The statistics of an answer in one line.
pub(crate) fn statistics_line(answer: &Summary) {
    let end = match answer.finish {
        Finish::Cancelled => " (stopped)",
        Finish::MaxTokens => " (--max-tokens)",
        Finish::ContextFull => " (context full)",
        _ => "",
    };
    let memory =
        peak_memory_bytes().map_or(String::new(), |peak| format!(", memory {}", bytes::show(peak)));
    let first = answer.first_token;
    let first =
        first.map_or(String::new(), |time| format!(", first after {:.2} s", time.as_secs_f64()));
    let n = answer.generated_tokens;
    let s = if n == 1 { "" } else { "s" };
    aside(false, &format!("{n} token{s}{end}{}{first}{memory}", rate(answer)));
}

/// ` at 12.3 tok/s`, where there is a time to divide by.
fn rate(answer: &Summary) -> String {
    match answer.generated_tokens {
        0 | 1 => String::new(),
        _ => format!(" at {:.1} tok/s", answer.decode_rate()),
    }
}

/// All statistics of an answer.
pub(crate) fn statistics(engine: &Engine, answer: &Summary) {
    let stats = engine.stats();
    let n_steps = answer.evaluated_tokens() + answer.generated_tokens.saturating_sub(1);
    let reused = match answer.reused_tokens {
        0 => String::new(),
        n => format!(" ({n} more were cached)"),
    };
    let mut lines = vec![format!(
        "prefill {} tokens{reused} at {:.1} tok/s, decode {} tokens{}, first token after {:.2} s",
        answer.evaluated_tokens(),
        answer.prompt_rate(),
        answer.generated_tokens,
        rate(answer),
        answer.first_token.unwrap_or_default().as_secs_f64(),
    )];
    lines.push(match engine.plan().io_mode {
        // The system reads pages of mapped files when it likes: neither reads nor hits can be
        // counted.
        IoMode::Mmap => {
            let all = bytes::show(engine.plan().expert_bytes);
            format!("experts (mmap): {all} mapped, {} used so far", stats.resident)
        }
        mode => format!(
            "experts ({mode}): {} read per token, hit rate {:.1} %, {} in memory",
            bytes::show(stats.bytes_read / n_steps.max(1) as u64),
            100.0 * stats.hit_rate(),
            stats.resident,
        ),
    });
    if let Some(rows) = engine.row_stats().filter(|rows| rows.rows > 0) {
        lines.push(format!(
            "rows of tables: {} gathered, {:.1} % of them in the cache, {} read in {} reads, {:.2} s waited",
            rows.rows,
            100.0 * rows.ready_rate(),
            bytes::show(rows.bytes_read),
            rows.reads,
            rows.stall_ns as f64 / 1e9,
        ));
    }
    if let Some(device) = engine.device_stats() {
        let n_wanted = (device.hits + stats.hits + stats.misses).max(1) as f64;
        let share = |n: u64| 100.0 * n as f64 / n_wanted;
        let rate = device.upload_gb_s().map_or(String::new(), |rate| format!(" at {rate:.1} GB/s"));
        lines.push(format!(
            "device: {:.1} % of the experts were resident, {:.1} % in the cache, {:.1} % on the drive; {} copied per token{rate}",
            share(device.hits),
            share(stats.hits),
            share(stats.misses),
            bytes::show(device.uploaded_bytes / n_steps.max(1) as u64),
        ));
    }
    if answer.speculation.drafted > 0 {
        let SpeculationStats { drafted, accepted } = answer.speculation;
        lines.push(format!("draft: {drafted} tokens drafted, {accepted} of them accepted"));
    }
    if stats.prefetch_hits + stats.prefetch_misses > 0 {
        lines.push(format!(
            "prefetch: {} hits, {} misses; {} experts prefetched, {} of them used; prediction accuracy {:.0} %",
            stats.prefetch_hits,
            stats.prefetch_misses,
            stats.prefetch_reads,
            stats.prefetch_used,
            100.0 * stats.prediction_accuracy(),
        ));
    }
    if let Some(trial) = engine.prefetch_trial() {
        lines.push(format!("prefetch: {trial}"));
    }
    let planned = bytes::show(engine.plan().total_bytes());
    lines.push(match peak_memory_bytes() {
        Some(peak) => format!("memory: {} at peak, {planned} planned", bytes::show(peak)),
        None => format!("memory: {planned} planned"),
    });
    for line in lines {
        note(false, &line);
    }
}
