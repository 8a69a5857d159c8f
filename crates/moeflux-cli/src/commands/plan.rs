//! `moeflux plan`: whether a model runs here, where memory goes, and what speed that allows.

mod json;
mod speed;
mod table;
mod uses;

use std::fmt::Write as _;

use anyhow::Result;
use moeflux_engine::{Alternative, Device, Forecast, Inspection, Plan, PromptMemory, Shortage};

use self::speed::{Speed, verdict};
use self::table::{savings, table};
use self::uses::Use;
use super::{download_text, print};
use crate::args::PlanArgs;
use crate::bytes::show;
use crate::model::{self, Inspected};
use crate::rates::{DriveSource, MachineRates};
use crate::report;
use crate::results;
use crate::words::wrapped;

/// Alternatives that are shown.
const SHOWN: usize = 2;

/// The least share by which an alternative has to be faster to be shown.
const WORTHWHILE: f64 = 1.02;

/// Columns of a plan.
const WIDTH: usize = 80;

/// Prints the plan; whether it fits.
pub(crate) fn run(args: &PlanArgs) -> Result<bool> {
    let mut options = args.model.engine_options(false)?;
    if let Some(sessions) = args.sessions {
        // Only a server has several.
        sessions.set(&mut options.memory);
        options.memory.prompts = PromptMemory::Planned;
    }
    let found = model::inspect_with(&args.model, &args.shape, &options, args.json)?;
    let (facts, download) = (&found.facts, found.download.as_ref());
    // What is measured for a forecast is the processor's memory.
    let can_tell = facts.device.device == Device::Cpu && facts.plan.fits();
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
    let text = if args.json {
        json::text(&found, speed, &uses)?
    } else {
        to_text(&found, speed, &uses) + &download.map_or(String::new(), download_text)
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
    let mut text = verdict(found, speed) + "\n";
    let _ = writeln!(text, "{}", wrapped(&format!("device: {}", facts.device), WIDTH));
    if let Some(similar) = speed.and_then(|speed| speed.similar.as_ref()) {
        let (tok_s, machine) = (similar.result.decode_tok_s.median, similar.machine());
        let line = format!("measured on a similar machine: {tok_s:.1} tok/s ({machine})");
        let _ = writeln!(text, "{}", wrapped(&line, WIDTH));
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
    text.push('\n');
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
    let mut text = format!(
        "\neach token reads {}, {} of it experts\nmemory {}, matrix products {}, drive {}\n",
        show(plan.bytes_per_token),
        show(plan.working_set_bytes),
        of(rates.memory_gb_s),
        of(rates.product_gb_s),
        of(rates.drive_gb_s),
    );
    let mut line = |line: String| {
        let _ = writeln!(text, "{}", wrapped(&line, WIDTH));
    };
    match &speed.drive {
        DriveSource::Given => line(String::from("drive: as --drive says")),
        DriveSource::Measured => {}
        DriveSource::Remembered(day) => {
            line(format!(
                "drive: the best rate that was seen, on {day} (--measure measures again)"
            ));
        }
        DriveSource::Unknown(why) => {
            line(format!("drive: {why}; --drive RATE says what it reads"));
        }
    }
    if plan.table_bytes > 0 {
        let rows = match rates.row_seconds {
            Some(seconds) => format!("{:.2} ms from the drive", 1e3 * seconds),
            None => String::from("not measured"),
        };
        line(format!("rows of tables that a token needs: {rows}"));
    }
    if let Some(busy) = &speed.busy {
        line(format!(
            "{busy}: rates are the best that were seen before; what was measured for the first time now \
             may be too low, and is not remembered"
        ));
    }
    text
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
