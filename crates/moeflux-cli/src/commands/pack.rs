//! `moeflux pack`: a checkpoint as a packed container.

use anyhow::Result;
use moeflux_convert::pack::{AskedBits, PackOptions, PackReport, PackStage, Rounding};
use moeflux_convert::pack_checkpoint;

use super::print;
use crate::args::{PackArgs, RoundTo};
use crate::bytes;
use crate::locate::locate;
use crate::progress::{Bar, Unit};

pub(crate) fn run(args: &PackArgs) -> Result<()> {
    let options = options(args);
    let source = locate(Some(&args.src), "SRC", false)?;
    let mut bar = Bar::new("packing", Unit::Bytes, false);
    let report = pack_checkpoint(&source, &args.dst, &options, &mut |progress| {
        let verb = match progress.stage {
            PackStage::Resume => "checking",
            PackStage::Write => "writing",
            PackStage::Verify => "verifying",
        };
        bar.set_label(&format!("{verb} {}", progress.file));
        bar.set(progress.done, progress.total);
    })?;
    drop(bar);
    print(&summary(&report, args))?;
    Ok(())
}

fn options(args: &PackArgs) -> PackOptions {
    let expert = args.bits.unwrap_or(DEFAULT_BITS);
    let resident = args.resident_bits.unwrap_or(expert);
    PackOptions {
        expert_bits: bits(expert),
        down_bits: args.down_bits,
        resident_bits: bits(resident),
        embedding_bits: bits(args.embedding_bits.unwrap_or(resident)),
        head_bits: bits(args.head_bits.unwrap_or(resident)),
        gate_bits: bits(args.gate_bits.unwrap_or(if expert == 16 { 16 } else { GATE_BITS })),
        group_size: args.group_size,
        requantise: args.bits.is_some(),
        asked: AskedBits {
            down: args.down_bits.is_some(),
            resident: args.resident_bits.is_some(),
            embedding: args.embedding_bits.or(args.resident_bits).is_some(),
            head: args.head_bits.or(args.resident_bits).is_some(),
            gates: args.gate_bits.is_some(),
        },
        rounding: match args.rounding {
            RoundTo::Nearest => Rounding::Nearest,
            RoundTo::Fitted => Rounding::Fitted,
        },
        importance: args.importance.clone(),
        force: args.force,
        n_threads: args.threads.unwrap_or(0),
    }
}

/// Bits where none are asked for.
const DEFAULT_BITS: u8 = 4;

/// Those of routers and gates.
const GATE_BITS: u8 = 8;

/// Sixteen bits are what is there already.
fn bits(bits: u8) -> Option<u8> {
    (bits != 16).then_some(bits)
}

fn summary(report: &PackReport, args: &PackArgs) -> String {
    let mut text =
        format!("{:<16} {:>8} {:>12} {:>12}  relative error\n", "", "tensors", "from", "to");
    for (kind, kind_report) in &report.kinds {
        let error = match kind_report.relative_rms() {
            0.0 => String::from("-"),
            error => format!("{:.3} %", 100.0 * error),
        };
        let (from, to) = (bytes::show(kind_report.bytes_in), bytes::show(kind_report.bytes_out));
        text.push_str(&format!(
            "{kind:<16} {:>8} {from:>12} {to:>12}  {error}\n",
            kind_report.n_tensors
        ));
    }
    for (cols, n) in &report.undivided {
        let group = args.group_size;
        text.push_str(&format!(
            "{n} matrices of {cols} columns stay as they are: groups of {group} do not divide these"
        ));
        let smaller = [64, 32].into_iter().find(|size| *size < group && cols % size == 0);
        text.push_str(&match smaller {
            Some(size) => format!(" (--group-size {size} does)\n"),
            None => String::from("\n"),
        });
    }
    let resumed = match report.n_resumed {
        0 => String::new(),
        n => format!(", {n} files of an earlier run kept"),
    };
    let total = bytes::show(report.n_bytes);
    text + &format!("{total} in {}{resumed}, verified\n", args.dst.display())
}
