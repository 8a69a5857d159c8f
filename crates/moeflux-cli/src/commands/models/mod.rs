//! `moeflux models`: published models with what they need and the speed to expect here, and the models of
//! this machine.

mod folders;
mod here;
mod offer;
mod table;

use std::path::{Path, PathBuf};

use anyhow::Result;
use moeflux_engine::{EngineOptions, Forecast, ModelSizes, Plan, Rate};
use moeflux_hub::{HubEnv, free_bytes};
use moeflux_store::IoChoice;

pub use self::here::Here;
pub(crate) use self::here::in_cache;
use self::here::in_folder;
use self::offer::{Offer, Report};
use super::print;
use crate::args::ModelsArgs;
use crate::locate;
use crate::model::inspect_shape;
use crate::published;
use crate::rates::{MachineRates, Place};
use crate::report;

/// The paths of the models in a folder and the folders in it.
pub(super) fn find_in_folder(dir: &Path) -> Vec<PathBuf> {
    folders::find(dir).into_iter().map(|found| found.path).collect()
}

/// Tokens a second below which a model is not proposed while a faster one fits.
const USABLE_RATE: f64 = 5.0;

pub(crate) fn run(args: &ModelsArgs) -> Result<()> {
    let env = locate::hub_env()?;
    let cache = in_cache(&env)?;
    let folders = args.dir.iter().map(|dir| Ok((dir.clone(), in_folder(dir, &env)?)));
    let folders = folders.collect::<Result<Vec<_>>>()?;
    let (measured, busy) = measured();
    let offers = offers(&cache, &env, measured.as_ref())?;
    let free_bytes = moeflux_store::usable_memory().available;
    let report =
        Report { offers, busy, free_bytes, cache: (env.cache_dir.clone(), cache), folders };
    print(&if args.json { table::to_json(&report)? } else { table::to_text(&report) })?;
    Ok(())
}

fn offers(cache: &[Here], env: &HubEnv, measured: Option<&Forecast>) -> Result<Vec<Offer>> {
    let room = free_bytes(env);
    let mut offers = Vec::new();
    for model in published::all() {
        let plan = model.sizes.plan(&EngineOptions::default())?;
        let repo = model.model.split([':', '@']).next().unwrap_or_default();
        let is_here = cache.iter().any(|here| here.is_whole && here.repo() == Some(repo));
        let rate = measured.and_then(|measured| expected(measured, &model.sizes, &plan));
        offers.push(Offer {
            model,
            download_bytes: model.sizes.stored_bytes(),
            least_bytes: least(&model.sizes)?.needed_bytes(),
            fits: plan.fits(),
            rate,
            is_here,
            is_best: false,
        });
    }
    let has_room =
        |offer: &Offer| offer.is_here || room.is_none_or(|room| offer.download_bytes <= room);
    if let Some(best) = best(&offers, has_room) {
        offers[best].is_best = true;
    }
    Ok(offers)
}

/// The least plan, as the page of models has it.
fn least(sizes: &ModelSizes) -> Result<Plan> {
    let options = EngineOptions::default().ctx(4096).chunk(128).checkpoint_bytes(0);
    Ok(sizes.plan(&options.expert_io(IoChoice::Pread))?)
}

/// A shape whose products are what most models compute with.
const TYPICAL: &str = "qwen3.6-35b-a3b";

/// Rates of memory and of the drive of the Hub's cache, as `plan` has them of a shape; and what was busy
/// while they were to be measured.
fn measured() -> (Option<Forecast>, Option<String>) {
    let options = EngineOptions::default();
    let Ok(shape) = inspect_shape(TYPICAL, 4, &options) else { return (None, None) };
    let mut machine = MachineRates::open(None, false);
    if let Some(damage) = machine.damage() {
        report::note(false, &damage);
    }
    let found = machine.rates(&shape.facts, &options, Place::Hub);
    (Some(Forecast::of(&shape.facts, found.rates)), machine.busy())
}

/// The tokens a second to expect of a model, where it fits.
fn expected(measured: &Forecast, sizes: &ModelSizes, plan: &Plan) -> Option<Rate> {
    measured.of_sizes(sizes, plan).streamed.filter(|_| plan.fits())
}

/// The one to propose: the largest that is fast enough, else the fastest.
fn best(offers: &[Offer], has_room: impl Fn(&Offer) -> bool) -> Option<usize> {
    let rate = |at: &usize| offers[*at].rate.map_or(0.0, Rate::middle);
    let fitting = || (0..offers.len()).filter(|at| offers[*at].fits && has_room(&offers[*at]));
    let size = |at: &usize| offers[*at].model.billions;
    let usable = fitting().filter(|at| rate(at) >= USABLE_RATE);
    usable
        .max_by(|a, b| size(a).total_cmp(&size(b)))
        .or_else(|| fitting().max_by(|a, b| rate(a).total_cmp(&rate(b))))
}
