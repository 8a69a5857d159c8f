//! Plots of shares, stages, layers and tokens.

use moeflux_engine::measure::Spread;

use super::parts::both_parts;
use super::svg::{Anchor, Area, Svg, point, short, ticks};
use crate::commands::bench::figures::{Figures, quantile};

/// All plots are that wide.
pub(super) const WIDTH: f64 = 1000.0;

/// Where plots with names on the left begin, and where they end.
const LEFT: f64 = 210.0;
const RIGHT: f64 = 830.0;

/// How close the model comes to what the machine can do.
pub(super) fn limits(figures: &Figures) -> String {
    let machine = &figures.machine;
    let memory = format!("{} GB/s read loop", short(figures.memory[1].median));
    let arithmetic = format!("{} GOP/s of bytes", short(machine.integer_gop_s[1]));
    let drive = figures.drive_gb_s.map_or(String::from("not measured"), |rate| {
        format!("{} GB/s of {} reads", short(rate.median), figures.setting.expert_io)
    });
    let rows: [(&str, String, Option<Spread>, &str); 3] = [
        ("decode, of memory", memory, Some(figures.memory_share), "unknown"),
        ("prefill, of arithmetic", arithmetic, figures.arithmetic_share, "unknown"),
        ("streaming, of the drive", drive, figures.decode.rh, "resident: nothing was read"),
    ];
    const ROW: f64 = 44.0;
    let height = ROW * rows.len() as f64 + 26.0;
    let largest = rows.iter().filter_map(|row| row.2).map(|row| row.max).fold(1.0, f64::max);
    let end = *ticks(largest, 5).last().unwrap_or(&1.0);
    let at = |share: f64| LEFT + (RIGHT - LEFT) * share / end;
    let mut svg = Svg::new(WIDTH, height, "shares of the limits of memory, arithmetic and drive");
    for tick in ticks(largest, 5) {
        let label = format!("{} %", short(100.0 * tick));
        svg.line(point(at(tick), 0.0), point(at(tick), height - 22.0), "grid");
        svg.text(point(at(tick), height - 6.0), Anchor::Middle, "", &label);
    }
    for (i, (name, limit, share, absent)) in rows.iter().enumerate() {
        let y = ROW * i as f64 + 6.0;
        svg.text(point(LEFT - 14.0, y + 12.0), Anchor::End, "name", name);
        svg.text(point(LEFT - 14.0, y + 27.0), Anchor::End, "", limit);
        let Some(spread) = share else {
            svg.text(point(LEFT + 10.0, y + 20.0), Anchor::Start, "", absent);
            continue;
        };
        let middle = y + 16.0;
        let hint = format!(
            "{:.1} % ({:.1} to {:.1})",
            100.0 * spread.median,
            100.0 * spread.min,
            100.0 * spread.max
        );
        let track = Area { x: LEFT, y: y + 6.0, width: at(1.0) - LEFT, height: 20.0 };
        svg.bar(track, "track", "");
        svg.bar(Area { width: at(spread.median) - LEFT, ..track }, "accent", &hint);
        svg.line(point(at(spread.min), middle), point(at(spread.max), middle), "whisker");
        for edge in [spread.min, spread.max] {
            svg.line(point(at(edge), middle - 4.0), point(at(edge), middle + 4.0), "whisker");
        }
        svg.text(point(RIGHT + 18.0, middle + 4.0), Anchor::Start, "strong", &hint);
    }
    svg.line(point(at(1.0), 0.0), point(at(1.0), height - 22.0), "limit");
    svg.finish()
}

/// One bar for each phase, a piece for each stage.
pub(super) fn stages(figures: &Figures) -> String {
    const ROW: f64 = 46.0;
    let phases = [("prefill", &figures.profile.prefill), ("decode", &figures.profile.decode)];
    let mut svg = Svg::new(WIDTH, ROW * 2.0 + 4.0, "time of every stage of prefill and decode");
    let parts = both_parts(figures);
    for (i, (name, times)) in phases.iter().enumerate() {
        let y = ROW * i as f64 + 4.0;
        let n_tokens = times.n_tokens.max(1) as f64;
        let total = format!("{} ms a token", short(1e3 * times.total / n_tokens));
        svg.text(point(0.0, y + 14.0), Anchor::Start, "name", name);
        svg.text(point(0.0, y + 30.0), Anchor::Start, "", &total);
        let (left, width) = (120.0, WIDTH - 120.0);
        let mut x = left;
        for (part, class, seconds) in &parts {
            let share = seconds[i] / times.total.max(f64::MIN_POSITIVE);
            let area = Area { x, y, width: share * width, height: 34.0 };
            let ms = short(1e3 * seconds[i] / n_tokens);
            let hint = format!("{part}: {ms} ms a token, {:.1} %", 100.0 * share);
            svg.rect(area, &format!("{class} gap"), &hint);
            x += area.width;
        }
    }
    svg.finish()
}

/// One column for each layer.
pub(super) fn layers(figures: &Figures) -> String {
    const HEIGHT: f64 = 210.0;
    let (top, bottom, left) = (10.0, HEIGHT - 26.0, 46.0);
    let at = |share: f64| bottom - (bottom - top) * share;
    let mut svg = Svg::new(WIDTH, HEIGHT, "share of hits of every layer");
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let class = if share == 0.0 { "axis" } else { "grid" };
        svg.line(point(left, at(share)), point(WIDTH, at(share)), class);
        svg.text(
            point(left - 8.0, at(share) + 4.0),
            Anchor::End,
            "",
            &format!("{:.0} %", 100.0 * share),
        );
    }
    let step = (WIDTH - left) / figures.layers.len().max(1) as f64;
    let every = (34.0 / step).ceil().max(1.0) as usize;
    for (i, layer) in figures.layers.iter().enumerate() {
        let x = left + step * i as f64;
        if i % every == 0 {
            svg.text(point(x + step / 2.0, HEIGHT - 8.0), Anchor::Middle, "", &i.to_string());
        }
        let Some(share) = layer.hit_rate() else { continue };
        let gap = (step * 0.2).min(8.0);
        let width = (step - gap).min(64.0);
        let x = x + (step - width) / 2.0;
        let hint = format!("layer {i}: {:.1} % of {}", 100.0 * share, layer.hits + layer.misses);
        let column = |share: f64| Area { x, y: at(share), width, height: bottom - at(share) };
        svg.rect(column(1.0), "track", &hint);
        svg.rect(column(share), "accent", &hint);
    }
    svg.finish()
}

/// One dot for each token.
pub(super) fn tokens(figures: &Figures) -> String {
    const HEIGHT: f64 = 220.0;
    let (top, bottom, left) = (10.0, HEIGHT - 26.0, 56.0);
    let sorted = figures.sorted_token_ms();
    let slow = 3.0 * quantile(&sorted, 0.5);
    let largest = quantile(&sorted, 1.0).max(slow * 1.05);
    let marks = ticks(largest, 4);
    let end = *marks.last().unwrap_or(&1.0);
    let at = |ms: f64| bottom - (bottom - top) * ms / end;
    let mut svg = Svg::new(WIDTH, HEIGHT, "time of every token");
    for ms in marks {
        svg.line(
            point(left, at(ms)),
            point(WIDTH, at(ms)),
            if ms == 0.0 { "axis" } else { "grid" },
        );
        svg.text(point(left - 8.0, at(ms) + 4.0), Anchor::End, "", &format!("{} ms", short(ms)));
    }
    svg.line(point(left, at(slow)), point(WIDTH, at(slow)), "limit");
    let n_runs = figures.token_ms.len().max(1) as f64;
    let run_width = (WIDTH - left) / n_runs;
    for (i, run) in figures.token_ms.iter().enumerate() {
        let x = left + run_width * i as f64;
        let label = format!("run {}", i + 1);
        svg.text(point(x + run_width / 2.0, HEIGHT - 8.0), Anchor::Middle, "", &label);
        if i > 0 {
            svg.line(point(x, top), point(x, bottom), "grid");
        }
        let step = (run_width - 12.0) / run.len().max(1) as f64;
        for (j, ms) in run.iter().enumerate() {
            let class = if *ms > slow { "slow" } else { "token" };
            let hint = format!("run {}, token {}: {} ms", i + 1, j + 1, short(*ms));
            svg.dot(point(x + 6.0 + step * (j as f64 + 0.5), at(*ms)), 2.4, class, &hint);
        }
    }
    svg.finish()
}
