//! The lists of `moeflux models`, as text and as JSON.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::{Value, json};

use super::here::Here;
use super::offer::{Offer, Report};
use crate::bytes::show;

/// Tokens a second below which a rate is not distinguished from others.
const LEAST_RATE: f64 = 0.1;

pub(super) fn to_text(report: &Report) -> String {
    let mut text = format!(
        "Published models, with {} of memory free (sizes and speeds are about right)\n\n  {:<20} {:<12} \
         {:>10} {:>10} {:>9}  {}\n",
        show(report.free_bytes),
        "NAME",
        "FORMAT",
        "DOWNLOAD",
        "MEMORY",
        "TOK/S",
        "ON THE HUB"
    );
    for offer in &report.offers {
        let mark = if offer.is_best { '*' } else { ' ' };
        let rate = match (offer.fits, offer.rate) {
            (false, _) => String::from("too large"),
            (true, Some(rate)) if rate.middle() < LEAST_RATE => String::from("< 0.1"),
            (true, Some(rate)) => rate.to_string(),
            (true, None) => String::from("?"),
        };
        let here = if offer.is_here { " (here)" } else { "" };
        let _ = writeln!(
            text,
            "{mark} {:<20} {:<12} {:>10} {:>10} {rate:>9}  {}{here}",
            offer.model.name,
            offer.model.format,
            show(offer.download_bytes),
            show(offer.least_bytes),
            offer.model.model,
        );
    }
    text.push_str(&legend(&report.offers));
    if let Some(busy) = &report.busy {
        let _ = writeln!(
            text,
            "{busy}: known rates were not measured again, others may be too low, and so may TOK/S and *."
        );
    }
    let (dir, cached) = &report.cache;
    text.push_str(&list("In the Hub's cache", dir, cached));
    for (dir, found) in &report.folders {
        text.push_str(&list("In", dir, found));
    }
    text
}

fn legend(offers: &[Offer]) -> String {
    let mut text = String::from(
        "\nMEMORY is the least that runs the model; what is free beyond it is a cache and makes it faster.\n",
    );
    if offers.iter().any(|offer| offer.fits && offer.rate.is_none()) {
        text.push_str("?: the drive was not measured; moeflux plan NAME says more.\n");
    }
    match offers.iter().find(|offer| offer.is_best) {
        Some(Offer { model, is_here: true, .. }) => {
            let _ = writeln!(text, "* the best that fits here: moeflux chat {}", model.name);
        }
        Some(Offer { model, .. }) => {
            let _ = writeln!(text, "* the best that fits here: moeflux pull {}", model.name);
        }
        None => text.push_str("None of them fits here now.\n"),
    }
    text
}

fn list(title: &str, dir: &Path, all: &[Here]) -> String {
    let mut text = format!("\n{title} {}:\n", escaped(&dir.display().to_string()));
    if all.is_empty() {
        text.push_str("  no models\n");
    }
    let names: Vec<String> = all.iter().map(|here| escaped(&here.name)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(60);
    for (Here { bytes, last_used, problem, .. }, name) in all.iter().zip(names) {
        let used = last_used.map_or_else(|| String::from("-"), ago);
        let why = problem.as_ref().map_or(String::new(), |why| format!("  {}", escaped(why)));
        let _ = writeln!(text, "  {name:<width$}  {:>10}  {used:>13}{why}", show(*bytes));
    }
    text
}

/// A name in a line of its own, whatever characters it has: a line break as `\\n`.
fn escaped(name: &str) -> String {
    let escape =
        |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    name.chars().map(escape).collect()
}

/// How long ago something was, in one unit.
fn ago(time: SystemTime) -> String {
    const DAY: u64 = 86_400;
    let secs = SystemTime::now().duration_since(time).unwrap_or(Duration::ZERO).as_secs();
    let (n, unit) = match secs {
        0..60 => return String::from("just now"),
        60..3600 => (secs / 60, "minute"),
        3600..DAY => (secs / 3600, "hour"),
        _ if secs < 60 * DAY => (secs / DAY, "day"),
        _ => (secs / (30 * DAY), "month"),
    };
    format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
}

pub(super) fn to_json(report: &Report) -> Result<String> {
    let offers: Vec<Value> = report.offers.iter().map(offer_json).collect();
    let (dir, cached) = &report.cache;
    let folder = |(dir, found): &(std::path::PathBuf, Vec<Here>)| json!({"dir": dir, "models": found.iter().map(here_json).collect::<Vec<_>>()});
    let value = json!({
        "available_bytes": report.free_bytes,
        "busy": report.busy,
        "published": offers,
        "cache": {"dir": dir, "models": cached.iter().map(here_json).collect::<Vec<_>>()},
        "folders": report.folders.iter().map(folder).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

fn offer_json(offer: &Offer) -> Value {
    json!({
        "name": offer.model.name,
        "model": offer.model.model,
        "format": offer.model.format,
        "billions": offer.model.billions,
        "active_billions": offer.model.active_billions,
        "download_bytes": offer.download_bytes,
        "least_memory_bytes": offer.least_bytes,
        "fits": offer.fits,
        "tok_s": offer.rate.map(|rate| rate.middle()),
        "tok_s_low": offer.rate.map(|rate| rate.low),
        "tok_s_high": offer.rate.map(|rate| rate.high),
        "is_here": offer.is_here,
        "is_best": offer.is_best,
    })
}

fn here_json(here: &Here) -> Value {
    let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
    json!({
        "name": here.name,
        "path": here.path,
        "bytes": here.bytes,
        "last_used": here.last_used.and_then(seconds).map(|time| time.as_secs()),
        "is_complete": here.is_whole,
        "problem": here.problem,
    })
}
