//! What is said beside the answer, on standard error.

use std::io::{self, IsTerminal, Write};

use moeflux_engine::{DraftCounts, Engine, Finish, Generated};

use crate::bytes;

/// An error and its causes, each said once: many say their cause themselves.
pub(crate) fn chain(err: &anyhow::Error) -> String {
    let mut text = err.to_string();
    for cause in err.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Says something, unless only the answer is wanted.
pub(crate) fn note(is_quiet: bool, text: &str) {
    if !is_quiet {
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(io::stderr(), "moeflux: {text}");
    }
}

/// Says something beside a conversation; dimly on terminals.
pub(crate) fn aside(is_quiet: bool, text: &str) {
    match io::stderr().is_terminal() {
        true if !is_quiet => {
            // As above.
            let _ = writeln!(io::stderr(), "{}", console::style(text).dim().for_stderr());
        }
        _ => note(is_quiet, text),
    }
}

/// Says in one line how an answer was made, as far as a terminal has room for it.
pub(crate) fn statistics_line(engine: &Engine, answer: &Generated) {
    let stats = engine.stats();
    let n_steps = answer.n_prompt + answer.n_generated.saturating_sub(1);
    let end = match answer.finish {
        Finish::Cancelled => "stopped, ",
        Finish::MaxTokens => "cut off by --max-tokens, ",
        _ => "",
    };
    let parts = [
        format!("{end}{} tokens at {:.1} tok/s", answer.n_generated, answer.decode_rate()),
        format!(
            "prompt {} in {:.2} s, {} known",
            answer.n_prompt,
            answer.prefill.as_secs_f64(),
            answer.n_reused
        ),
        format!("hit rate {:.0} %", 100.0 * stats.hit_rate()),
        format!("{} read a token", bytes::show(stats.bytes_read / n_steps.max(1) as u64)),
    ];
    let width = console::Term::stderr().size_checked().map_or(80, |(_, width)| width.into());
    let mut line = String::new();
    for part in parts {
        let longer = if line.is_empty() { part } else { format!("{line}; {part}") };
        if longer.chars().count() >= width && !line.is_empty() {
            break;
        }
        line = longer;
    }
    aside(false, &line);
}

/// Says how an answer was made.
pub(crate) fn statistics(engine: &Engine, answer: &Generated) {
    let stats = engine.stats();
    let n_steps = answer.n_prompt + answer.n_generated.saturating_sub(1);
    let read = stats.bytes_read / n_steps.max(1) as u64;
    let reused = match answer.n_reused {
        0 => String::new(),
        n => format!(" ({n} more were known)"),
    };
    let mut lines = vec![
        format!(
            "prefill {} tokens{reused} at {:.1} tok/s, decode {} tokens at {:.1} tok/s, first token after {:.2} s",
            answer.n_prompt,
            answer.prefill_rate(),
            answer.n_generated,
            answer.decode_rate(),
            answer.prefill.as_secs_f64(),
        ),
        format!(
            "experts ({}): {} read per token, hit rate {:.1} %, {} in memory",
            engine.plan().io_mode,
            bytes::show(read),
            100.0 * stats.hit_rate(),
            stats.resident,
        ),
    ];
    if let Some(device) = engine.device_stats() {
        let n_wanted = (device.hits + stats.hits + stats.misses).max(1) as f64;
        let share = |n: u64| 100.0 * n as f64 / n_wanted;
        let rate = device.upload_gb_s().map_or(String::new(), |it| format!(" at {it:.1} GB/s"));
        lines.push(format!(
            "device: {:.1} % of the experts were there, {:.1} % in memory, {:.1} % on the drive; {} copied per token{rate}",
            share(device.hits),
            share(stats.hits),
            share(stats.misses),
            bytes::show(device.uploaded_bytes / n_steps.max(1) as u64),
        ));
    }
    if answer.drafts.guessed > 0 {
        let DraftCounts { guessed, right } = answer.drafts;
        lines.push(format!("draft: {guessed} tokens guessed, {right} of them right"));
    }
    if stats.prefetch_hits + stats.prefetch_misses > 0 {
        lines.push(format!(
            "prefetch: {} hits, {} misses, {} reads of which {} were used, {:.0} % predicted right",
            stats.prefetch_hits,
            stats.prefetch_misses,
            stats.prefetch_reads,
            stats.prefetch_used,
            100.0 * stats.predicted_right(),
        ));
    }
    if let Some(trial) = engine.prefetch_trial() {
        lines.push(format!("prefetch: {trial}"));
    }
    let planned = bytes::show(engine.plan().total_bytes());
    lines.push(match peak_memory() {
        Some(peak) => format!("memory: {} at most, {planned} planned", bytes::show(peak)),
        None => format!("memory: {planned} planned"),
    });
    for line in lines {
        note(false, &line);
    }
}

/// The most memory that this process ever had, in bytes, where the system tells.
pub(crate) fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}
