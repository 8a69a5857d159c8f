//! Chooses a device step by step, each of which costs more than the one before: by the size of the
//! model, by what drivers list, by remembered rates, by opening a GPU.

use std::path::Path;

use moeflux_core::ExpertBank;
use moeflux_core::checkpoint::Checkpoint;
use moeflux_core::system::{load_average, processor_name};
use moeflux_model::Declared;

use super::estimate::{Decision, SMALL_BYTES, Work, decide};
use super::rates::Rates;
use super::{DeviceChoice, Reason};
use crate::device::probed::{Candidate, Fault, Opened, Probed, candidates, probe};
use crate::device::{Device, HAS_GPU};
use crate::error::EngineError;
use crate::memory_probe::MemoryProbe;
use crate::options::{EngineOptions, threads};
use crate::planning::MemoryPlanner;

/// A choice, with the GPU that was opened for it. It stays open, with its compiled kernels, as long
/// as this lives.
pub(crate) struct Chosen {
    pub(crate) choice: DeviceChoice,
    pub(crate) _opened: Option<Opened>,
}

impl From<DeviceChoice> for Chosen {
    fn from(choice: DeviceChoice) -> Chosen {
        Chosen { choice, _opened: None }
    }
}

/// The device of a model whose experts are at `bank`: what `options` name, or else the fastest.
///
/// # Errors
/// Where an option makes no sense, or a tensor is not as declared.
pub(crate) fn choose(
    checkpoint: &Checkpoint,
    declared: &Declared,
    bank: &ExpertBank,
    options: &EngineOptions,
) -> Result<Chosen, EngineError> {
    let Device::Auto = options.compute.device else {
        return Ok(DeviceChoice::asked(options.compute.device).into());
    };
    let on_cpu = options.clone().device(Device::Cpu);
    let plan = MemoryPlanner::new(checkpoint, declared, bank, &on_cpu)?.plan();
    Ok(fastest(&Work::of(&plan, options, &declared.shape), options))
}

/// Opens the GPU of a number, as [`devices`](crate::devices) counts them, compares what it computes with
/// the processor, and measures it: GB/s from its memory into a kernel, and from the processor's memory
/// to its own.
///
/// # Errors
/// What keeps models from running there.
pub fn test_device(index: usize) -> Result<[f64; 2], String> {
    match probe(index, None) {
        Ok(Probed { rates, .. }) => Ok([rates.read_gb_s, rates.upload_gb_s]),
        Err(Fault::SelfTest(why)) => Err(why),
        Err(Fault::Opening(err)) => Err(err.to_string()),
    }
}

fn fastest(work: &Work, options: &EngineOptions) -> Chosen {
    if !HAS_GPU {
        return DeviceChoice::cpu(Reason::NoSupport).into();
    }
    if work.bytes_per_token < SMALL_BYTES {
        return DeviceChoice::cpu(Reason::Small).into();
    }
    let all = candidates();
    let first = all.iter().filter_map(|gpu| work.obstacle(gpu)).min_by_key(|reason| {
        // A device of the machine's own says more than a software device.
        matches!(reason, Reason::Software { .. })
    });
    let fit: Vec<Candidate> = all.into_iter().filter(|gpu| work.obstacle(gpu).is_none()).collect();
    if fit.is_empty() {
        return DeviceChoice::cpu(first.unwrap_or(Reason::NoGpu)).into();
    }
    among(work, options, fit)
}

/// Among the processor and GPUs that the model can run on.
pub(super) fn among(work: &Work, options: &EngineOptions, mut gpus: Vec<Candidate>) -> Chosen {
    let dir = options.compute.gpu_tuning.as_deref();
    let mut rates = Rates::read(dir);
    let Some(cpu_gb_s) = memory_gb_s(&mut rates, dir, options) else {
        return DeviceChoice::cpu(Reason::NoGpu).into();
    };
    let mut fault = None;
    gpus.retain_mut(|gpu| match rates.gpu(&gpu.key) {
        Some(Err(why)) => {
            let why = why.to_owned();
            fault.get_or_insert(Reason::Failed { name: gpu.full_name(), why });
            false
        }
        known => {
            gpu.rates = known.and_then(Result::ok);
            true
        }
    });
    let mut opened = None;
    loop {
        if gpus.is_empty() {
            return DeviceChoice::cpu(fault.unwrap_or(Reason::NoGpu)).into();
        }
        let Decision { choice, is_preliminary } =
            decide(work, cpu_gb_s, &gpus.iter().collect::<Vec<_>>());
        let place = gpus.iter().position(|gpu| gpu.device() == choice.device);
        let Some(place) = place.filter(|_| is_preliminary) else {
            return Chosen { choice, _opened: opened };
        };
        match probe(gpus[place].index, gpus[place].rates) {
            Ok(Probed { rates: measured, opened: gpu }) => {
                gpus[place].rates = Some(measured);
                rates.keep_gpu(&gpus[place].key, Ok(measured));
                opened = Some(gpu);
            }
            Err(err) => {
                let gpu = gpus.remove(place);
                let why = match err {
                    Fault::SelfTest(why) => {
                        rates.keep_gpu(&gpu.key, Err(why.clone()));
                        why
                    }
                    Fault::Opening(err) => err.to_string(),
                };
                fault.get_or_insert(Reason::Failed { name: gpu.full_name(), why });
            }
        }
        rates.write(dir);
    }
}

/// GB/s of the processor's memory for all threads, remembered or measured now; `None` where it
/// cannot be measured.
fn memory_gb_s(rates: &mut Rates, dir: Option<&Path>, options: &EngineOptions) -> Option<f64> {
    let n_threads = threads(options).ok()?;
    let key = format!("{}, {n_threads} threads", processor_name());
    if let Some(known) = rates.processor(&key) {
        return Some(known);
    }
    let [_, gb_s] = MemoryProbe::new(&options.clone().device(Device::Cpu)).ok()?.gb_s();
    // What was measured while other programs ran is too low to be remembered.
    if load_average().is_none_or(|load| load < n_threads as f64 / 2.0) {
        rates.keep_processor(&key, gb_s);
        rates.write(dir);
    }
    Some(gb_s)
}
