//! The figures for people, as text.

use std::fmt::Write as _;

use moeflux_engine::measure::{KernelTime, Spread, Stage, StageTimes};

use super::figures::{Drive, Figures, PhaseFigures, Setting, TeacherForcedFigures, quantile};
use super::gpu;
use crate::bytes::show;

/// Room for the names of lines.
const NAME: usize = 17;
/// Width of the names of kernels.
const NAME_AND_GRID: usize = 32;

pub(super) fn text(figures: &Figures) -> String {
    let mut text = String::new();
    setting(&mut text, figures);
    limits(&mut text, figures);
    rates(&mut text, figures);
    experts(&mut text, figures);
    stages(&mut text, figures);
    let profile = &figures.profile;
    device_kernels(&mut text, "the prompt's last step", &profile.prompt_kernels);
    device_kernels(&mut text, "one token more", &profile.token_kernels);
    device_kernels(&mut text, "a step of two rows", &figures.draft.step);
    device_kernels(&mut text, "drafting a token", &figures.draft.mtp);
    for note in notes(figures) {
        line(&mut text, "note", &note);
    }
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    writeln!(text, "{name:<NAME$} {value}").expect("a string takes any text");
}

fn head(text: &mut String, name: &str) {
    writeln!(text, "\n{name}").expect("a string takes any text");
}

fn setting(text: &mut String, figures: &Figures) {
    let Setting { model, family, prompt_tokens, gen_tokens, repeat, is_cold, .. } =
        &figures.setting;
    let machine = &figures.machine;
    line(text, "model", &format!("{model} ({family}, {} layers)", figures.setting.n_layers));
    line(text, "kernels", &format!("{}, {} threads", machine.isa, machine.n_threads));
    let state = if *is_cold { "cold" } else { "warm" };
    let work = format!(
        "{prompt_tokens} tokens read, {gen_tokens} made, {repeat} times, {state}; medians (least to most)"
    );
    line(text, "measured", &work);
}

fn limits(text: &mut String, figures: &Figures) {
    let machine = &figures.machine;
    head(text, "what the machine can do");
    if let Some(gpu) = &machine.gpu {
        for (name, value) in gpu::lines(gpu, figures.tuning.as_ref()) {
            line(text, name, &value);
        }
        line(text, "drive", &drive(figures));
        return;
    }
    let [one, all] = figures.memory;
    let memory = format!("{} GB/s, {:.1} on one thread", spread(all, 1), one.median);
    line(text, "memory", &memory);
    let arithmetic = format!(
        "{:.0} GOP/s of bytes, {:.0} of f32 ({:.0} and {:.0} on one thread)",
        machine.integer_gop_s[1],
        machine.float_gop_s[1],
        machine.integer_gop_s[0],
        machine.float_gop_s[0],
    );
    line(text, "arithmetic", &arithmetic);
    line(text, "drive", &drive(figures));
}

fn drive(figures: &Figures) -> String {
    let Some((drive, rate)) = figures.drive.as_ref().zip(figures.drive_gb_s) else {
        return String::from("not measured: nothing of the experts can be read");
    };
    let Drive { depths, is_direct, piece_bytes, .. } = drive;
    let how = if *is_direct { "direct" } else { "buffered, as the file system refuses direct" };
    let mut all: Vec<String> =
        depths.iter().map(|it| format!("{} at once: {:.2}", it.depth, it.gb_s)).collect();
    all.sort();
    format!(
        "{} GB/s on what runs read, again; unread pieces of {}, {how}: {}",
        spread(rate, 2),
        show(*piece_bytes as u64),
        all.join(", "),
    )
}

fn rates(text: &mut String, figures: &Figures) {
    head(text, "what the model reaches");
    let mut prefill = format!("{} tok/s", spread(figures.prefill.tok_s, 1));
    if let Some(share) = figures.arithmetic_share {
        write!(prefill, ", {} of arithmetic", percent(share)).expect("a string takes any text");
    }
    line(text, "prefill", &prefill);
    let decode = format!(
        "{} tok/s, {} of {} ({} of weights a token)",
        spread(figures.decode.tok_s, 1),
        percent(figures.memory_share),
        if figures.machine.gpu.is_some() { "copying" } else { "memory" },
        show(figures.setting.weight_bytes_per_token),
    );
    line(text, "decode", &decode);
    if let Some(together) = &figures.together {
        let mut rate = format!(
            "{} tok/s, {:.2} times one's",
            spread(together.tok_s, 1),
            together.tok_s.median / figures.decode.tok_s.median
        );
        if let Some(rh) = together.rh {
            write!(rate, ", {} of the drive's limit", percent(rh))
                .expect("a string takes any text");
        }
        line(text, &format!("{} at once", figures.setting.sequences), &rate);
    }
    if let Some(teacher_forced) = &figures.teacher_forced {
        line(text, "teacher-forced", &teacher_forced_line(teacher_forced));
    }
    let sorted = figures.sorted_token_ms();
    let tokens = format!(
        "{:.2} ms in the middle, {:.2} for 99 of 100, {:.2} at most; {} above three times the middle",
        quantile(&sorted, 0.5),
        quantile(&sorted, 0.99),
        quantile(&sorted, 1.0),
        figures.n_slow_tokens(),
    );
    line(text, "a token", &tokens);
    let planned = show(figures.setting.planned_bytes);
    let memory = match figures.peak_rss_bytes {
        Some(peak) => format!("{} at most, {planned} planned", show(peak)),
        None => format!("{planned} planned"),
    };
    line(text, "memory taken", &memory);
}

fn teacher_forced_line(it: &TeacherForcedFigures) -> String {
    format!(
        "{} tok/s with drafts, {} without: {:.2} times; {:.2} tokens a step, {:.2} drafted for each token, {:.0} % of them accepted",
        spread(it.drafted, 1),
        spread(it.alone, 1),
        it.drafted.median / it.alone.median,
        it.tokens_per_step,
        it.drafted_per_token,
        100.0 * it.acceptance_rate,
    )
}

fn experts(text: &mut String, figures: &Figures) {
    let Setting { expert_io, cache_bytes, expert_bytes, .. } = &figures.setting;
    head(text, "experts");
    let kept = format!(
        "{expert_io}, {} of {} may stay in memory",
        show((*cache_bytes).min(*expert_bytes)),
        show(*expert_bytes)
    );
    line(text, "kept", &kept);
    for (name, phase) in [("while reading", &figures.prefill), ("while making", &figures.decode)] {
        line(text, name, &traffic(phase));
    }
    if let Some(together) = &figures.together {
        line(text, &format!("{} at once", figures.setting.sequences), &traffic(together));
    }
    let decode = &figures.decode;
    let rh = match decode.rh {
        Some(rh) => format!("{} of the drive's limit", percent(rh)),
        None if decode.read_per_token > 0.0 => String::from("unknown: the drive was not measured"),
        None => String::from("resident: nothing was read while tokens were made"),
    };
    line(text, "rh", &rh);
    if decode.precision > 0.0 || decode.recall > 0.0 {
        let ahead = format!(
            "{:.1} % of what was read ahead was used, {:.1} % of what was used had been predicted",
            100.0 * decode.precision,
            100.0 * decode.recall
        );
        line(text, "prefetch", &ahead);
    }
}

fn traffic(phase: &PhaseFigures) -> String {
    let mut all = format!(
        "{} a token, {:.1} % hits, {} read, {:.1} % of the time waiting",
        show(phase.bytes_per_token as u64),
        100.0 * phase.hit_rate,
        show(phase.read_per_token as u64),
        100.0 * phase.stall_share,
    );
    if let Some(rate) = phase.read_gb_s {
        write!(all, ", {rate:.2} GB/s while reading").expect("a string takes any text");
    }
    if let Some(device) = &phase.device {
        let (hits, bytes) = (100.0 * device.hit_rate, show(device.uploaded_per_token as u64));
        write!(all, "; {hits:.1} % on the device, {bytes} copied there")
            .expect("a string takes any text");
    }
    if let Some(rate) = phase.device.and_then(|it| it.upload_gb_s) {
        write!(all, " at {rate:.1} GB/s").expect("a string takes any text");
    }
    if let Some(device) = &phase.device {
        let (kernels, wait) = (device.kernels_per_token, 100.0 * device.wait_share);
        write!(all, "; {kernels:.0} kernels a token, {wait:.1} % of the time waiting for it")
            .expect("a string takes any text");
    }
    all
}

fn stages(text: &mut String, figures: &Figures) {
    let whose = if figures.machine.gpu.is_some() { "the processor's " } else { "the " };
    head(text, &format!("where {whose}time goes, in one run more with clocks inside"));
    let times = [&figures.profile.prefill, &figures.profile.decode];
    writeln!(text, "{:<NAME$} {:>16} {:>16}", "ms a token", "prefill", "decode")
        .expect("a string takes any text");
    let mut row = |name: &str, applies: bool, part: &dyn Fn(&StageTimes) -> f64| {
        let cells = times.map(|it| {
            let seconds = part(it);
            let share = 100.0 * seconds / it.total.max(f64::MIN_POSITIVE);
            format!("{:.3} {share:4.1} %", 1e3 * seconds / it.n_tokens.max(1) as f64)
        });
        if applies || times.iter().any(|it| part(it) > 0.0) {
            writeln!(text, "{name:<NAME$} {:>16} {:>16}", cells[0], cells[1])
                .expect("a string takes any text");
        }
    };
    for stage in Stage::ALL.into_iter().filter(|it| *it != Stage::Rest) {
        row(stage.name(), false, &|it| it.of(stage));
    }
    // That a streaming run never waited is worth a row.
    row("wait for experts", figures.decode.rh.is_some(), &|it| it.wait);
    row("rest", true, &|it| it.of(Stage::Rest) + it.rest());
}

/// Most kinds of kernels that are shown.
const KERNELS: usize = 24;

fn device_kernels(text: &mut String, what: &str, kernels: &[KernelTime]) {
    if kernels.is_empty() {
        return;
    }
    head(text, &format!("where the device's time goes, in {what} with clocks between kernels"));
    writeln!(
        text,
        "{:<NAME_AND_GRID$} {:>8} {:>9} {:>9}",
        "kernel, workgroups", "times", "us each", "share"
    )
    .expect("a string takes any text");
    let total: f64 = kernels.iter().map(|it| it.seconds).sum();
    let mut row = |name: &str, n: usize, seconds: f64| {
        let us = 1e6 * seconds / n.max(1) as f64;
        let share = 100.0 * seconds / total.max(f64::MIN_POSITIVE);
        writeln!(text, "{name:<NAME_AND_GRID$} {n:>8} {us:>9.2} {share:>7.1} %")
            .expect("a string takes any text");
    };
    for it in kernels.iter().take(KERNELS) {
        row(&it.name, it.n, it.seconds);
    }
    if let Some(others) = kernels.get(KERNELS..).filter(|it| !it.is_empty()) {
        let n = others.iter().map(|it| it.n).sum();
        row("others", n, others.iter().map(|it| it.seconds).sum());
    }
    row("all", kernels.iter().map(|it| it.n).sum(), total);
}

/// What makes a figure mean something else than it seems.
pub(super) fn notes(figures: &Figures) -> Vec<String> {
    let mut notes = Vec::new();
    if figures.decode.rh.is_some() && figures.decode.is_page_cached() {
        notes.push(String::from(
            "the system had most of what was read in memory: rh compares with a drive that was \
             not needed (--cold, or less memory, makes it so)",
        ));
    } else if figures.decode.rh.is_some_and(|it| it.median > 1.0) {
        notes.push(String::from(
            "runs read faster than the drive did when it was measured: rh says nothing, run it again",
        ));
    }
    if figures.drive.as_ref().is_some_and(|it| it.has_reread) {
        notes.push(String::from(
            "the experts are too few to measure the drive without reading some of them twice",
        ));
    }
    if figures.memory_share.median > 1.0 {
        notes.push(String::from("what a token reads fits a cache of the processor"));
    }
    if figures.setting.gen_tokens < 64 {
        notes.push(String::from("fewer than 64 tokens made: rates of decode are rough"));
    }
    notes
}

/// A median with its extremes.
pub(super) fn spread(it: Spread, digits: usize) -> String {
    let Spread { median, min, max } = it;
    format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
}

/// As [`spread`], of shares.
pub(super) fn percent(it: Spread) -> String {
    let Spread { median, min, max } = it;
    format!("{:.1} % ({:.1} to {:.1})", 100.0 * median, 100.0 * min, 100.0 * max)
}
