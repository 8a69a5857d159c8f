//! The figures as one HTML file that needs nothing else.

mod charts;
mod parts;
mod svg;
mod timeline;

use std::fmt::Write as _;

use moeflux_engine::measure::Spread;

use self::parts::{both_parts, legend};
use self::svg::{escaped, short};
use super::figures::{Figures, Setting};
use super::{json, table};
use crate::bytes::show;

const STYLE: &str = include_str!("style.css");

pub(super) fn html(figures: &Figures) -> String {
    let title = format!("moeflux bench: {}", figures.setting.model);
    let mut body = heading(figures);
    body += &tiles(figures);
    body += &section(
        "Against the limits",
        "Each limit was measured in this run, in alternation with the model. Bars are medians, lines go from minimum to maximum.",
        &charts::limits(figures),
    );
    body += &section(
        "Where the time goes",
        "Milliseconds per token, in an additional run with timers.",
        &(stage_legend(figures) + &charts::stages(figures) + &stage_table(figures)),
    );
    body += &section(
        "One token in time",
        "A token that took the median time: what was computed, and which experts were read meanwhile.",
        &timeline::draw(&figures.profile.token),
    );
    body += &section(
        "Hits, layer by layer",
        "Share of the requested experts that were in the cache during decode.",
        &charts::layers(figures),
    );
    body += &section(
        "Every token",
        "Milliseconds of each decoded token, run after run. The dashed line is three times the median.",
        &charts::tokens(figures),
    );
    body += &all_figures(figures);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escaped(&title)
    )
}

fn heading(figures: &Figures) -> String {
    let Setting { model, family, n_layers, prompt_tokens, gen_tokens, repeat, is_cold, .. } =
        &figures.setting;
    let machine = &figures.machine;
    let state = if *is_cold { "cold" } else { "warm" };
    let runs = if *repeat == 1 { "run" } else { "runs" };
    let lead = format!(
        "{family}, {n_layers} layers · {} kernels on {} threads · {prompt_tokens} prompt tokens, {gen_tokens} decoded, {repeat} {runs}, {state}",
        machine.isa, machine.n_threads
    );
    format!("<h1>{}</h1>\n<p class=\"lead\">{}</p>\n", escaped(model), escaped(&lead))
}

fn section(title: &str, what: &str, content: &str) -> String {
    format!("<section>\n<h2>{title}</h2>\n<p>{what}</p>\n{content}</section>\n")
}

fn tiles(figures: &Figures) -> String {
    let decode = &figures.decode;
    let range = |spread: Spread, scale: f64| {
        format!("{} to {}", short(spread.min * scale), short(spread.max * scale))
    };
    let rate = |spread: Spread| {
        (format!("{} <small>tok/s</small>", short(spread.median)), range(spread, 1.0))
    };
    let share = |spread: Spread| {
        (format!("{:.1} <small>%</small>", 100.0 * spread.median), range(spread, 100.0))
    };
    let streaming = match decode.rh {
        Some(rh) => share(rh),
        None => (String::from("resident"), String::from("nothing was read")),
    };
    let hits = (
        format!("{:.1} <small>%</small>", 100.0 * decode.hit_rate),
        format!("{} read per token", show(decode.read_per_token as u64)),
    );
    let memory = match figures.peak_rss_bytes {
        Some(peak) => show(peak),
        None => String::from("unknown"),
    };
    let (number, unit) = memory.rsplit_once(' ').unwrap_or((&memory, ""));
    let planned = format!("{} planned", show(figures.setting.planned_bytes));
    let all = [
        ("Decode", rate(decode.tok_s)),
        ("Prefill", rate(figures.prefill.tok_s)),
        ("Decode, share of the memory limit", share(figures.memory_share)),
        ("Streaming, share of the drive limit", streaming),
        ("Expert cache hits", hits),
        ("Peak memory", (format!("{number} <small>{unit}</small>"), planned)),
    ];
    let mut html = String::from("<div class=\"tiles\">\n");
    for (name, (value, range)) in all {
        writeln!(
            html,
            "<div class=\"tile\"><div class=\"name\">{name}</div><div class=\"value\">{value}</div><div class=\"range\">{range}</div></div>"
        )
        .expect("a string takes any text");
    }
    html + "</div>\n"
}

fn stage_legend(figures: &Figures) -> String {
    legend(both_parts(figures).iter().map(|part| (part.0, part.1)))
}

fn stage_table(figures: &Figures) -> String {
    let phases = [&figures.profile.prefill, &figures.profile.decode];
    let mut html = String::from(
        "<div class=\"scroll\"><table>\n<tr><th>stage</th><th>prefill, ms</th><th>share</th><th>decode, ms</th><th>share</th></tr>\n",
    );
    for (name, _, seconds) in both_parts(figures) {
        write!(html, "<tr><td>{name}</td>").expect("a string takes any text");
        for (times, seconds) in phases.iter().zip(seconds) {
            let share = 100.0 * seconds / times.total.max(f64::MIN_POSITIVE);
            let ms = 1e3 * seconds / times.n_tokens.max(1) as f64;
            write!(html, "<td>{ms:.3}</td><td>{share:.1} %</td>").expect("a string takes any text");
        }
        html += "</tr>\n";
    }
    html + "</table></div>\n"
}

/// Everything that `--json` prints, with notes.
fn all_figures(figures: &Figures) -> String {
    let mut html = String::from("<section>\n<h2>All figures</h2>\n");
    let notes = table::notes(figures);
    if !notes.is_empty() {
        html += "<ul class=\"notes\">\n";
        for note in notes {
            writeln!(html, "<li>{}</li>", escaped(&note)).expect("a string takes any text");
        }
        html += "</ul>\n";
    }
    html +=
        "<details><summary>as bench --json prints them</summary>\n<div class=\"scroll\"><table>\n";
    for (name, value) in json::object(figures) {
        if value.is_object() || value.is_array() {
            continue;
        }
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        writeln!(html, "<tr><td>{}</td><td>{}</td></tr>", escaped(&name), escaped(&value))
            .expect("a string takes any text");
    }
    html + "</table></div></details>\n</section>\n"
}
