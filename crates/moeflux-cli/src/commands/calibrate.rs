//! `moeflux calibrate`: which columns of the experts matter, for `pack`.

use anyhow::{Context, Result};
use moeflux_convert::calibrate;
use moeflux_core::atomic_file::{Access, AtomicFile};

use super::print;
use crate::args::CalibrateArgs;
use crate::locate::locate;
use crate::progress::{Bar, Unit};
use crate::{corpus, model};

pub(crate) fn run(args: &CalibrateArgs) -> Result<()> {
    let source = locate(args.model.model.as_deref(), "--model", false)?;
    let out = || format!("--out {}", args.out.display());
    // What cannot be written is said before the hours of evaluation.
    drop(AtomicFile::create(&args.out, Access::Shared).with_context(out)?);
    let engine = model::open(&args.model, false, false)?;
    let mut sequences = Vec::new();
    for text in &args.text {
        sequences.append(&mut corpus::read(text, &engine, args.window)?);
    }
    let n_tokens: usize = sequences.iter().map(Vec::len).sum();
    let mut bar = Bar::new("evaluating", Unit::Tokens, false);
    let mut progress = |n_done| bar.set(n_done as u64, n_tokens as u64);
    let seen = calibrate(&engine, &sequences, &mut progress)?;
    drop(bar);
    seen.write(&source, &args.out).with_context(out)?;
    let (n_experts, n_idle) = seen.n_experts();
    print(&format!(
        "{} from {n_tokens} tokens; {n_idle} of {n_experts} experts were never chosen\n",
        args.out.display(),
    ))?;
    Ok(())
}
