//! Layouts of matrix-vector products by measurement: each device has its own, whatever it is
//! called.
//!
//! What was measured is in a file (`file`) for as long as driver and kernels are the same; what
//! is not in it yet is measured when a model is opened (`trial`), for about a second at most:
//! what is left then is measured the next time. Nothing of it changes a bit of any result:
//! layouts and forms of a product give the same ones, see `matmul/matvec.wgsl`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use moeflux_backend::DeviceError;

use crate::device::adapter::AdapterFacts;
use crate::device::context::Context;
use crate::layouts::format::Decoder;
use crate::layouts::table::{Key, ProductShape};
use crate::state::quantized_inputs::n_limbs_of;
use crate::tuning::{file, trial};

/// How a device is tuned.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// The directory of the file; measurements last as long as the process
    /// where absent.
    pub cache: Option<PathBuf>,
    /// How long measuring may take.
    pub budget: Duration,
    /// How long it may take where some of the products are known.
    pub later_budget: Duration,
    /// Whether software devices are measured too, which gains them nothing.
    pub includes_software: bool,
}

/// What tuning did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// Products that were known already.
    pub n_known: usize,
    /// Products that were measured.
    pub n_measured: usize,
    /// Products that there was no time for.
    pub n_left: usize,
    /// How long it took.
    pub time: Duration,
    /// What the user should know although nothing failed.
    pub warnings: Vec<String>,
}

/// Finds layouts for products, which all backends of this device then use;
/// those that come first are measured first.
///
/// # Errors
/// Where the device fails.
pub fn tune(
    context: &Arc<Context>,
    shapes: &[ProductShape],
    options: &TuneOptions,
) -> Result<Tuning, DeviceError> {
    let start = Instant::now();
    let mut tuning = Tuning::default();
    if context.facts().is_software() && !options.includes_software {
        return Ok(tuning);
    }
    if let Some(dir) = &options.cache {
        match file::read(dir, context.facts()) {
            Ok(kept) => context.tuned.learn(kept),
            Err(warning) => tuning.warnings.push(warning),
        }
    }
    let mut distinct: Vec<(Key, ProductShape)> = Vec::new();
    for shape in shapes {
        let key = key_of(shape);
        if distinct.iter().all(|(known, _)| *known != key) {
            distinct.push((key, *shape));
        }
    }
    let (known, wanted): (Vec<_>, Vec<_>) =
        distinct.into_iter().partition(|(key, _)| context.tuned.all().contains_key(key));
    tuning.n_known = known.len();
    let is_first = tuning.n_known == 0;
    let budget = if is_first { options.budget } else { options.later_budget };
    tuning.n_left = wanted.len();
    if !wanted.is_empty() && !budget.is_zero() {
        let deadline = start + budget;
        let measured = trial::measure(context, &wanted, deadline)?;
        tuning.n_measured = measured.len();
        tuning.n_left = wanted.len() - measured.len();
        context.tuned.learn(measured);
        if let Some(dir) = options.cache.as_deref().filter(|_| tuning.n_measured > 0) {
            tuning.warnings.extend(keep(context, dir).err());
        }
    }
    tuning.time = start.elapsed();
    Ok(tuning)
}

/// Writes what is known, with what another process has found meanwhile.
fn keep(context: &Context, dir: &Path) -> Result<(), String> {
    if let Ok(others) = file::read(dir, context.facts()) {
        context.tuned.complete(others);
    }
    file::write(dir, context.facts(), &context.tuned.all())
}

/// How many products' layouts are kept for a GPU.
pub fn n_tuned(dir: &Path, facts: &AdapterFacts) -> usize {
    file::read(dir, facts).map_or(0, |products| products.len())
}

/// The key of a product.
pub(super) fn key_of(shape: &ProductShape) -> Key {
    let decoder = Decoder::new(shape.format);
    let n_limbs = n_limbs_of(decoder, shape.inputs);
    Key::new(decoder, n_limbs, shape.cols, shape.matrix_rows())
}
