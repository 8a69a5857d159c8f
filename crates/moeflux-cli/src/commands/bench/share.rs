//! A result to share: the form of `docs/results/`, without names of people, machines or files.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use moeflux_convert::synth::shape_like;
use moeflux_engine::measure::Spread;
use moeflux_engine::{Device, Engine, devices};

use super::figures::Figures;
use crate::args::BenchArgs;
use crate::error::UsageError;
use crate::files::OutFile;
use crate::hardware::plain_name;
use crate::rates::today;
use crate::report::note;
use crate::results::{Drive, Measured, Model, Range, Run, SCHEMA, SharedResult, this_machine};

/// Refuses to write over a file without `--force`.
pub(super) fn check(args: &BenchArgs) -> Result<(), UsageError> {
    let Some(path) = args.out.as_deref().filter(|_| !args.force) else { return Ok(()) };
    match path.symlink_metadata() {
        Ok(facts) if facts.is_file() || facts.is_symlink() => {
            let message =
                format!("--out {}: exists: choose another name, or --force", path.display());
            Err(UsageError(message))
        }
        _ => Ok(()),
    }
}

/// The file of `--out`, before anything is measured for it.
pub(super) fn open(args: &BenchArgs) -> Result<Option<OutFile>> {
    check(args)?;
    let path = args.out.as_deref();
    path.map(|path| OutFile::create(path).with_context(|| name(path))).transpose()
}

/// Writes the result to the file of `--out`.
pub(super) fn write(args: &BenchArgs, file: OutFile, text: &str) -> Result<()> {
    let path = args.out.as_deref().unwrap_or("".as_ref());
    // Another program may have made it meanwhile.
    check(args)?;
    file.file().write_all(text.as_bytes()).with_context(|| name(path))?;
    file.publish().with_context(|| name(path))?;
    note(false, &format!("wrote {}", path.display()));
    Ok(())
}

fn name(path: &Path) -> String {
    format!("--out {}", path.display())
}

pub(super) fn text(figures: &Figures, engine: &Engine, device: Device) -> Result<String> {
    Ok(serde_json::to_string_pretty(&result(figures, engine, device))? + "\n")
}

fn result(figures: &Figures, engine: &Engine, device: Device) -> SharedResult {
    let (setting, decode, plan) = (&figures.setting, &figures.decode, engine.plan());
    let drive = figures.drive_gb_s.zip(figures.drive.as_ref()).map(|(gb_s, drive)| Drive {
        gb_s: rounded(gb_s.median),
        request_bytes: drive.piece_bytes as u64,
    });
    let format = engine.expert_format();
    SharedResult {
        schema: SCHEMA,
        moeflux: env!("CARGO_PKG_VERSION").to_owned(),
        date: today(),
        hardware: this_machine(figures.machine.isa, gpu_name(device)),
        drive,
        memory_gb_s: rounded(figures.memory[1].median),
        model: Model {
            shape: shape_like(engine.family(), engine.shape()).map(str::to_owned),
            family: engine.family().to_owned(),
            layers: setting.n_layers,
            experts: engine.shape().n_experts,
            experts_per_token: setting.experts_per_token,
            format: format.as_ref().map_or(String::from("none"), |format| format.name.clone()),
            bits: format.map_or(0.0, |format| rounded(format.bits)),
            expert_bytes: setting.expert_bytes,
        },
        run: Run {
            context: plan.ctx,
            prompt_tokens: setting.prompt_tokens,
            gen_tokens: setting.gen_tokens,
            repeat: setting.repeat,
            threads: figures.machine.n_threads,
            cold: setting.is_cold,
            expert_io: setting.expert_io.clone(),
            cached_share: rounded(plan.cached_share()),
        },
        result: Measured {
            decode_tok_s: range(decode.tok_s),
            prompt_tok_s: range(figures.prefill.tok_s),
            rh: decode.rh.map(|rh| rounded(rh.median)),
            hit_rate: rounded(decode.hit_rate),
        },
    }
}

/// What its maker calls the GPU that the model ran on.
fn gpu_name(device: Device) -> Option<String> {
    let Device::Gpu(index) = device else { return None };
    let all = devices(None);
    let found = match index {
        Some(index) => all.get(index),
        None => all.iter().find(|device| device.lacks.is_none()),
    };
    found.map(|device| plain_name(&device.maker_name)).filter(|name| !name.is_empty())
}

fn range(spread: Spread) -> Range {
    let Spread { median, min, max } = spread;
    Range { median: rounded(median), min: rounded(min), max: rounded(max) }
}

/// Four digits: more say nothing of a measurement.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}
