//! The figures for people, as text.

use std::fmt::Write as _;

use moeflux_engine::measure::{KernelTime, Spread, Stage, StageTimes};

use super::figures::{
    Drive, Figures, PhaseFigures, RowFigures, Setting, TeacherForcedFigures, quantile,
};
use super::gpu;
use crate::bytes::show;

/// Width of the names of lines.
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
    device_kernels(&mut text, "the last step of a prompt", &profile.prompt_kernels);
    device_kernels(&mut text, "a step of one row", &profile.token_kernels);
    device_kernels(&mut text, "a step of two rows", &figures.draft.step);
    device_kernels(&mut text, "the draft of a token", &figures.draft.mtp);
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
    let runs = if *repeat == 1 { "run" } else { "runs" };
    let work = format!(
        "{prompt_tokens} prompt tokens, {gen_tokens} decoded, {repeat} {runs}, {state}; medians (min to max)"
    );
    line(text, "measured", &work);
}

fn limits(text: &mut String, figures: &Figures) {
    let machine = &figures.machine;
    head(text, "limits of the machine");
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
        "{:.0} GOP/s int8, {:.0} f32 ({:.0} and {:.0} on one thread)",
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
        return String::from("not measured: no file of experts can be read");
    };
    let Drive { depths, is_direct, piece_bytes, .. } = drive;
    let how = if *is_direct { "direct" } else { "buffered (the file system refuses direct)" };
    let mut all: Vec<String> =
        depths.iter().map(|depth| format!("{} at once: {:.2}", depth.depth, depth.gb_s)).collect();
    all.sort();
    format!(
        "{} GB/s on the records that the runs read; {how} reads of unread pieces of {}: {}",
        spread(rate, 2),
        show(*piece_bytes as u64),
        all.join(", "),
    )
}

fn rates(text: &mut String, figures: &Figures) {
    head(text, "speed of the model");
    let mut prefill = format!("{} tok/s", spread(figures.prefill.tok_s, 1));
    if let Some(share) = figures.arithmetic_share {
        write!(prefill, ", {} of the arithmetic limit", percent(share))
            .expect("a string takes any text");
    }
    line(text, "prefill", &prefill);
    let decode = format!(
        "{} tok/s, {} of the {} limit ({} of weights per token)",
        spread(figures.decode.tok_s, 1),
        percent(figures.memory_share),
        if figures.machine.gpu.is_some() { "copy" } else { "memory" },
        show(figures.setting.weight_bytes_per_token),
    );
    line(text, "decode", &decode);
    if let Some(together) = &figures.together {
        let mut rate = format!(
            "{} tok/s, {:.2} times one sequence",
            spread(together.tok_s, 1),
            together.tok_s.median / figures.decode.tok_s.median
        );
        if let Some(rh) = together.rh {
            write!(rate, ", {} of the drive limit", percent(rh)).expect("a string takes any text");
        }
        line(text, &format!("{} sequences", figures.setting.sequences), &rate);
    }
    if let Some(teacher_forced) = &figures.teacher_forced {
        line(text, "teacher-forced", &teacher_forced_line(teacher_forced));
    }
    let sorted = figures.sorted_token_ms();
    let tokens = format!(
        "{:.2} ms median, {:.2} p99, {:.2} max; {} slower than three medians",
        quantile(&sorted, 0.5),
        quantile(&sorted, 0.99),
        quantile(&sorted, 1.0),
        figures.n_slow_tokens(),
    );
    line(text, "token latency", &tokens);
    let planned = show(figures.setting.planned_bytes);
    let memory = match figures.peak_rss_bytes {
        Some(peak) => format!("{} at peak, {planned} planned", show(peak)),
        None => format!("{planned} planned"),
    };
    line(text, "peak memory", &memory);
}

fn teacher_forced_line(figures: &TeacherForcedFigures) -> String {
    format!(
        "{} tok/s with drafts, {} without: {:.2} times; {:.2} tokens per step, {:.2} drafted per token, {:.0} % of them accepted",
        spread(figures.drafted, 1),
        spread(figures.alone, 1),
        figures.drafted.median / figures.alone.median,
        figures.tokens_per_step,
        figures.drafted_per_token,
        100.0 * figures.acceptance_rate,
    )
}

fn experts(text: &mut String, figures: &Figures) {
    let Setting { expert_io, cache_bytes, expert_bytes, .. } = &figures.setting;
    head(text, "experts");
    let cached = format!(
        "{} of {}, {expert_io}",
        show((*cache_bytes).min(*expert_bytes)),
        show(*expert_bytes)
    );
    line(text, "expert cache", &cached);
    for (name, phase) in [("prefill", &figures.prefill), ("decode", &figures.decode)] {
        line(text, name, &traffic(phase));
    }
    if let Some(together) = &figures.together {
        line(text, &format!("{} sequences", figures.setting.sequences), &traffic(together));
    }
    for (name, phase) in [("rows, prefill", &figures.prefill), ("rows, decode", &figures.decode)] {
        if let Some(rows) = &phase.rows {
            line(text, name, &row_traffic(rows));
        }
    }
    let decode = &figures.decode;
    let rh = match decode.rh {
        Some(rh) => format!("{} of the drive limit", percent(rh)),
        None if decode.read_per_token > 0.0 => String::from("unknown: the drive was not measured"),
        None => String::from("resident: nothing was read during decode"),
    };
    line(text, "rh", &rh);
    if decode.precision > 0.0 || decode.recall > 0.0 {
        let ahead = format!(
            "{:.1} % of prefetched experts were used, {:.1} % of used experts had been predicted",
            100.0 * decode.precision,
            100.0 * decode.recall
        );
        line(text, "prefetch", &ahead);
    }
}

fn traffic(phase: &PhaseFigures) -> String {
    let mut all = format!(
        "{} per token, {:.1} % hits, {} read, {:.1} % of the time waiting",
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
        write!(all, "; {hits:.1} % resident on the device, {bytes} copied to it")
            .expect("a string takes any text");
    }
    if let Some(rate) = phase.device.and_then(|device| device.upload_gb_s) {
        write!(all, " at {rate:.1} GB/s").expect("a string takes any text");
    }
    if let Some(device) = &phase.device {
        let (kernels, wait) = (device.kernels_per_token, 100.0 * device.wait_share);
        write!(
            all,
            "; {kernels:.0} kernels per token, {wait:.1} % of the time waiting for the device"
        )
        .expect("a string takes any text");
    }
    all
}

fn row_traffic(rows: &RowFigures) -> String {
    let mut all = format!(
        "{:.1} per token, {:.1} % in the cache when needed, {:.1} % without a read, {} read, {:.1} % of the time waiting",
        rows.per_token,
        100.0 * rows.ready_rate,
        100.0 * rows.hit_rate,
        show(rows.read_per_token as u64),
        100.0 * rows.stall_share,
    );
    if let Some(rate) = rows.reads_s {
        write!(all, ", {rate:.0} reads/s while reading").expect("a string takes any text");
    }
    all
}

fn stages(text: &mut String, figures: &Figures) {
    let whose = if figures.machine.gpu.is_some() { "CPU time" } else { "time" };
    head(text, &format!("{whose} by stage, in an additional run with timers"));
    let times = [&figures.profile.prefill, &figures.profile.decode];
    writeln!(text, "{:<NAME$} {:>16} {:>16}", "ms per token", "prefill", "decode")
        .expect("a string takes any text");
    let mut row = |name: &str, applies: bool, part: &dyn Fn(&StageTimes) -> f64| {
        let cells = times.map(|time| {
            let seconds = part(time);
            let share = 100.0 * seconds / time.total.max(f64::MIN_POSITIVE);
            format!("{:.3} {share:4.1} %", 1e3 * seconds / time.n_tokens.max(1) as f64)
        });
        if applies || times.iter().any(|time| part(time) > 0.0) {
            writeln!(text, "{name:<NAME$} {:>16} {:>16}", cells[0], cells[1])
                .expect("a string takes any text");
        }
    };
    for stage in Stage::ALL.into_iter().filter(|stage| *stage != Stage::Rest) {
        row(stage.name(), false, &|times| times.of(stage));
    }
    // That a streaming run never waited is worth a row.
    row("wait for experts", figures.decode.rh.is_some(), &|times| times.wait);
    row("rest", true, &|times| times.of(Stage::Rest) + times.rest());
}

/// Most kinds of kernels that are shown.
const KERNELS: usize = 24;

fn device_kernels(text: &mut String, what: &str, kernels: &[KernelTime]) {
    if kernels.is_empty() {
        return;
    }
    head(text, &format!("GPU time by kernel, in {what} with a timestamp after each kernel"));
    writeln!(
        text,
        "{:<NAME_AND_GRID$} {:>8} {:>9} {:>9}",
        "kernel, workgroups", "times", "us each", "share"
    )
    .expect("a string takes any text");
    let total: f64 = kernels.iter().map(|kernel| kernel.seconds).sum();
    let mut row = |name: &str, n: usize, seconds: f64| {
        let us = 1e6 * seconds / n.max(1) as f64;
        let share = 100.0 * seconds / total.max(f64::MIN_POSITIVE);
        writeln!(text, "{name:<NAME_AND_GRID$} {n:>8} {us:>9.2} {share:>7.1} %")
            .expect("a string takes any text");
    };
    for kernel in kernels.iter().take(KERNELS) {
        row(&kernel.name, kernel.n, kernel.seconds);
    }
    if let Some(others) = kernels.get(KERNELS..).filter(|kernel| !kernel.is_empty()) {
        let n = others.iter().map(|kernels| kernels.n).sum();
        row("others", n, others.iter().map(|kernel| kernel.seconds).sum());
    }
    row("all", kernels.iter().map(|kernel| kernel.n).sum(), total);
}

/// What makes a figure mean something else than it seems.
pub(super) fn notes(figures: &Figures) -> Vec<String> {
    let mut notes = Vec::new();
    if figures.decode.rh.is_some() && figures.decode.is_page_cached() {
        notes.push(String::from(
            "most reads came from the page cache, so rh says nothing about the drive: use --cold, or \
             less memory",
        ));
    } else if figures.decode.rh.is_some_and(|spread| spread.median > 1.0) {
        notes.push(String::from(
            "the runs read faster than the drive test, so rh says nothing: run bench again",
        ));
    }
    if figures.drive.as_ref().is_some_and(|drive| drive.has_reread) {
        notes.push(String::from(
            "there are too few experts to test the drive without reading some of them twice",
        ));
    }
    if figures.has_hollow_tables {
        notes.push(String::from(
            "the tables of rows have holes: reads of rows say nothing about the drive",
        ));
    }
    if figures.memory_share.median > 1.0 {
        notes.push(String::from(
            "the weights of a token fit into a cache of the CPU: memory is not the limit",
        ));
    }
    if figures.setting.gen_tokens < 64 {
        notes.push(String::from("fewer than 64 decoded tokens: decode rates are rough"));
    }
    notes
}

/// A median with its extremes.
pub(super) fn spread(spread: Spread, digits: usize) -> String {
    let Spread { median, min, max } = spread;
    format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
}

/// A median share with its extremes, in per cent.
pub(super) fn percent(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    format!("{:.1} % ({:.1} to {:.1})", 100.0 * median, 100.0 * min, 100.0 * max)
}
