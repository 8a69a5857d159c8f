//! `moeflux synth`: random weights in a real shape.

use anyhow::Result;
use moeflux_convert::synth::{
    SynthFormat, SynthOptions, ToolFormat, marker_of, partial_of, shape_family,
};
use moeflux_convert::synthesise;
use moeflux_engine::FAMILIES;

use super::print;
use crate::args::{SynthArgs, SynthKind};
use crate::bytes;
use crate::error::UsageError;
use crate::interrupt::RemovedOnInterrupt;
use crate::progress::{Bar, Unit};
use crate::words::did_you_mean;

pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    if let Some(family) = &args.family {
        check_family(family, &args.shape)?;
    }
    check_format(args)?;
    let default = SynthOptions::default();
    let options = SynthOptions {
        bits: args.bits.unwrap_or(default.bits),
        group_size: args.group_size.unwrap_or(default.group_size),
        has_mxfp4_experts: args.mxfp4_experts,
        has_mtp: args.mtp,
        has_vision: !args.no_vision,
        format: match args.format {
            SynthKind::Mlx => SynthFormat::Mlx,
            SynthKind::Packed => SynthFormat::Packed,
            SynthKind::Gguf => SynthFormat::Gguf,
            SynthKind::Nvfp4 => SynthFormat::Tool(ToolFormat::Nvfp4),
            SynthKind::Int4 => SynthFormat::Tool(ToolFormat::Int4),
            SynthKind::Gptq => SynthFormat::Tool(ToolFormat::Gptq),
            SynthKind::Awq => SynthFormat::Tool(ToolFormat::Awq),
            SynthKind::Fp8 => SynthFormat::Tool(ToolFormat::Fp8),
            SynthKind::Fp4 => SynthFormat::Tool(ToolFormat::Fp4),
        },
        mix: args.mix.unwrap_or(default.mix),
        part_bytes: args.part_size,
        seed: args.seed,
        n_layers: args.layers,
        has_sparse_tables: args.sparse_tables,
        table_rows: args.table_rows,
        is_hollow: false,
    };
    let mut bar = Bar::new("writing", Unit::Bytes, false);
    let mut removal = None;
    let n = synthesise(&args.shape, &args.out, &options, &mut |progress| {
        // Only now: before there is progress the directory may be another's.
        removal.get_or_insert_with(|| {
            [partial_of(&args.out), marker_of(&args.out)].map(|path| RemovedOnInterrupt::new(&path))
        });
        bar.set_label(progress.file);
        bar.set(progress.done, progress.total);
    })?;
    drop((bar, removal));
    print(&format!("{} in {}\n", bytes::show(n), args.out.display()))?;
    Ok(())
}

/// Refuses options that have no effect on the format.
fn check_format(args: &SynthArgs) -> Result<(), UsageError> {
    let is_gguf = args.format == SynthKind::Gguf;
    let has_bits = matches!(args.format, SynthKind::Mlx | SynthKind::Packed);
    let of_gguf = [("--type", args.mix.is_some()), ("--part-size", args.part_size.is_some())];
    let of_others = [
        ("--bits", args.bits.is_some()),
        ("--group-size", args.group_size.is_some()),
        ("--mxfp4-experts", args.mxfp4_experts),
    ];
    let given =
        |flags: &[(&'static str, bool)]| flags.iter().find(|flag| flag.1).map(|flag| flag.0);
    match (given(&of_gguf), given(&of_others)) {
        (Some(flag), _) if !is_gguf => Err(UsageError(format!("{flag}: only with --format gguf"))),
        (_, Some(flag)) if is_gguf => {
            Err(UsageError(format!("{flag}: not with --format gguf; choose a --type")))
        }
        (_, Some(flag)) if !has_bits => {
            Err(UsageError(format!("{flag}: only with --format mlx or packed")))
        }
        _ => Ok(()),
    }
}

/// Refuses a family that does not exist, and a shape that belongs to another family.
fn check_family(family: &str, shape: &str) -> Result<(), UsageError> {
    if !FAMILIES.iter().any(|known| known.name == family) {
        let known: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        let advice = match did_you_mean(family, known.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("the families are {}", known.join(", ")),
        };
        return Err(UsageError(format!("--family {family:?}: there is no such family; {advice}")));
    }
    match shape_family(shape) {
        Some(own) if own != family => {
            Err(UsageError(format!("--family {family:?}: {shape} is a shape of {own}")))
        }
        _ => Ok(()),
    }
}
