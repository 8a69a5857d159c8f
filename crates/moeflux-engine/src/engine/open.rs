//! Opening a model, in stages that each need what the one before found out:
//!
//! 1. [`Spec::read`]: headers and config, everything declared and checked; [`choose`]: the device, where
//!    none is named;
//! 2. [`MemoryPlanner`]: what will be taken, refused here if it does not fit;
//! 3. [`open_device`]: the device, with room for its experts;
//! 4. [`load_resident`]: dense weights onto the device;
//! 5. [`open_store`] and [`open_rows`]: the caches of routed experts and of rows of tables;
//! 6. [`Tuner::tune`]: a GPU's layouts, measured before experts take the memory that is left;
//! 7. [`load_residency`]: experts that stay on the device, or memory for them where they come while the
//!    engine answers ([`ExpertLoading`]).

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moeflux_backend::profiling::{Profiler, ProfilingBackend, WeightFacts};
use moeflux_backend::{ActivationPrecision, Backend, DeviceCounters};
use moeflux_core::checkpoint::Checkpoint;
use moeflux_core::{ExpertBank, LayerIdx, OptionId, RowBank, catch_out_of_memory};
use moeflux_model::{Build, Declared, LoadError, Loaded, Loader, Model, open_checkpoint};
use moeflux_store::{DEFAULT_READERS, ExpertStore, IoChoice, StoreOptions};
use moeflux_text::TextSource;

use super::core_lock::CoreLock;
use super::expert_loading::{ExpertLoading, Work};
use super::tokenizer_ahead::TokenizerAhead;
use super::{Engine, Info};
use crate::choice::{Chosen, DeviceChoice, choose};
use crate::device::{self, Device, Opening, TUNING, Tuner};
use crate::engine::meter::Meter;
use crate::error::{EngineError, StateError};
use crate::expert_stats::ExpertStats;
use crate::options::{EngineOptions, check_top_k, precision, threads};
use crate::plan::Plan;
use crate::planning::{MemoryPlanner, plan_that_fits};
use crate::record::Recorder;
use crate::residency::{
    ModelExperts, Residency, device_expert_bytes, load_all_experts, slab_bytes, slot_memory,
};
use crate::rows::TableRows;
use crate::snapshot::{self, ModelCard, PrefixCache, WireShape};
use crate::speculation::options::Speculation;
use crate::step::Core;
use crate::vision::find_vision;

/// Bytes of experts that a step holds at a time on the processor. They cannot be evicted while the
/// cache shrinks, and are enough to keep all threads busy.
const PINNED_BYTES: usize = 64 << 20;

/// Bytes of files from which on a model is not taken for one that the processor is fast enough for.
const LARGE_BYTES: u64 = 4 << 30;

/// A checkpoint, and what its family declares of it.
struct Spec {
    checkpoint: Checkpoint,
    declared: Declared,
    bank: ExpertBank,
}

impl Spec {
    /// Reads headers, and checks that every declared tensor is there.
    fn read(source: &Path, options: &EngineOptions) -> Result<Spec, EngineError> {
        let checkpoint = open_checkpoint(source).map_err(LoadError::from)?;
        let declared = Declared::to_run(&checkpoint, options.variant())?;
        check_top_k(options, &declared.shape)?;
        let bank = moeflux_model::bank(&checkpoint, &declared)?;
        Ok(Spec { checkpoint, declared, bank })
    }
}

/// A device, and what times its ops where options ask for it.
struct OpenDevice {
    backend: Box<dyn Backend>,
    profiler: Option<Profiler>,
}

fn open_device(
    spec: &Spec,
    plan: &Plan,
    options: &EngineOptions,
    n_threads: usize,
) -> Result<OpenDevice, EngineError> {
    let backend = device::open(&Opening {
        device: options.compute.device,
        n_threads,
        isa: options.compute.isa.as_deref(),
        expert_bytes: device_expert_bytes(plan, options),
        record_bytes: plan.record_bytes,
        n_experts: spec.declared.shape.n_experts,
    })?;
    if !options.compute.timed {
        return Ok(OpenDevice { backend, profiler: None });
    }
    let (timed, profiler) = ProfilingBackend::new(backend);
    Ok(OpenDevice { backend: Box::new(timed), profiler: Some(profiler) })
}

/// Dense weights on their device.
struct Resident {
    model: Box<dyn Model>,
    bank: ExpertBank,
    rows: RowBank,
    names: Vec<String>,
    facts: Vec<WeightFacts>,
}

fn load_resident(
    spec: &Spec,
    plan: &Plan,
    inputs: ActivationPrecision,
    backend: &mut dyn Backend,
    progress: &mut dyn FnMut(u64),
) -> Result<Resident, EngineError> {
    let Spec { checkpoint, declared, .. } = spec;
    let mut loader = Loader::new(checkpoint, backend, inputs, progress);
    let (max_rows, variant) = (plan.chunk, declared.variant);
    let mut build = Build { weights: &mut loader, max_rows, inputs, variant };
    let model = declared.family.build(checkpoint.config(), &mut build)?;
    let Loaded { bank, rows, names, facts } = loader.finish()?;
    // An empty read returns the errors of all uploads before it.
    backend.read(model.output().0.buf, 0)?;
    Ok(Resident { model, bank, rows, names, facts })
}

fn open_store(
    bank: ExpertBank,
    plan: &Plan,
    options: &EngineOptions,
    top_k: usize,
) -> Result<ExpertStore, EngineError> {
    let device = options.compute.device;
    let experts = &options.experts;
    let store_options = StoreOptions {
        mode: plan.io_mode,
        may_fall_back: experts.io == IoChoice::Auto,
        cache_bytes: plan.cache_bytes,
        shrinks_to: experts.cache_min.or(experts.cache.is_none().then_some(0)),
        headroom: plan.headroom_bytes,
        // A GPU takes whole layers at once.
        max_pinned_bytes: (device == Device::Cpu).then_some(PINNED_BYTES),
        policy: experts.policy,
        n_readers: DEFAULT_READERS,
        prefetch: experts.prefetch,
        allow_missing: experts.allow_missing,
        top_k,
    };
    let slots = slot_memory(slab_bytes(plan, &bank, device)?);
    Ok(ExpertStore::open(bank, slots, store_options)?)
}

/// Opens the tables whose rows are read one by one, if there are any, as experts are read.
fn open_rows(
    bank: RowBank,
    model: &dyn Model,
    plan: &Plan,
    options: &EngineOptions,
) -> Result<Option<Arc<TableRows>>, EngineError> {
    let may_fall_back = options.experts.io == IoChoice::Auto;
    let (mode, cache_bytes) = (plan.io_mode, plan.row_cache_bytes);
    let rows = TableRows::open(bank, model.row_ids(), mode, may_fall_back, cache_bytes)?;
    Ok(rows.map(Arc::new))
}

/// Experts that stay on the device, and its counters where it has memory of its own.
struct LoadedResidency {
    residency: Residency,
    counters: Option<Arc<DeviceCounters>>,
}

fn load_residency(
    backend: &mut dyn Backend,
    experts: &ExpertStore,
    model: &ModelExperts<'_>,
    allow_missing: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<LoadedResidency, EngineError> {
    let Some(device) = backend.residency_mut() else {
        return Ok(LoadedResidency { residency: Residency::Streamed, counters: None });
    };
    let residency = if allow_missing {
        Residency::Streamed
    } else {
        load_all_experts(device, experts, model, progress)?
    };
    let changes = device.drain_residency_changes();
    experts.set_on_device(changes.iter().map(|change| (change.key, change.is_resident)));
    Ok(LoadedResidency { residency, counters: Some(device.counters()) })
}

impl Engine {
    /// Opens a model: a directory or a file of one.
    ///
    /// # Errors
    /// Where its files are damaged or of no known family, an option makes no
    /// sense, or memory does not suffice.
    pub fn open(source: &Path, options: &EngineOptions) -> Result<Engine, EngineError> {
        Engine::open_with_progress(source, options, &mut |_, _| {})
    }

    /// Opens a model; `progress` learns the bytes loaded and their total, first
    /// of resident weights, then with the experts that a device takes for good.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_with_progress(
        source: &Path,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        catch_out_of_memory(|| open(source, options, progress))?
    }
}

/// Opens the model at `source`; `progress` is called with the bytes loaded so far and their total. A GPU
/// that options do not name and that fails leaves the model to the processor.
fn open(
    source: &Path,
    options: &EngineOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Engine, EngineError> {
    let _ahead = needs_drivers(source, options).then(|| device::open_ahead(options.compute.device));
    let spec = Spec::read(source, options)?;
    let Chosen { choice, _opened } = choose(&spec.checkpoint, &spec.declared, &spec.bank, options)?;
    let on = |device| options.clone().device(device);
    let may_fall_back = options.compute.device == Device::Auto && choice.device != Device::Cpu;
    match open_on(spec, &on(choice.device), choice.clone(), progress) {
        Err(err) if may_fall_back && is_of_device(&err) => {
            let choice = choice.failed(err.to_string());
            open_on(Spec::read(source, options)?, &on(Device::Cpu), choice, progress)
        }
        done => done,
    }
}

/// Whether drivers of GPUs will be needed. They take a while to begin, in which headers are read.
fn needs_drivers(source: &Path, options: &EngineOptions) -> bool {
    let bytes = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    match options.compute.device {
        Device::Cpu => false,
        Device::Gpu(_) => source.exists(),
        Device::Auto if source.is_dir() => {
            let files = fs::read_dir(source).into_iter().flatten().flatten();
            files.map(|file| bytes(&file.path())).sum::<u64>() >= LARGE_BYTES
        }
        Device::Auto => bytes(source) >= LARGE_BYTES,
    }
}

/// Whether a device may hold all experts, and all are there.
fn takes_all(plan: &Plan, options: &EngineOptions) -> bool {
    let most = device_expert_bytes(plan, options);
    !options.experts.allow_missing && most.is_none_or(|bytes| bytes >= plan.expert_bytes)
}

/// Whether another device may do what failed.
fn is_of_device(err: &EngineError) -> bool {
    match err {
        #[cfg(feature = "gpu")]
        EngineError::Gpu(_) => true,
        EngineError::Device(_) | EngineError::Memory(_) | EngineError::OutOfMemory(_) => true,
        EngineError::Option { option, .. } => *option == OptionId::Device,
        _ => false,
    }
}

/// Opens a model on the device that `options` name.
fn open_on(
    spec: Spec,
    options: &EngineOptions,
    choice: DeviceChoice,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Engine, EngineError> {
    let text = TextSource::of(&spec.checkpoint);
    let reads_ahead = options.quick_start.then(|| text.clone());
    let tokenizer = reads_ahead.and_then(TokenizerAhead::begin);
    let planner = MemoryPlanner::new(&spec.checkpoint, &spec.declared, &spec.bank, options)?;
    let mut plan = plan_that_fits(&planner, spec.checkpoint.root().to_path_buf())?;
    let n_threads = threads(options)?;
    let OpenDevice { mut backend, profiler } = open_device(&spec, &plan, options, n_threads)?;
    let seeing = find_vision(&spec.checkpoint, options);
    let loads_later = options.quick_start && takes_all(&plan, options);
    if loads_later && let Some(device) = backend.residency_mut() {
        let layers = spec.bank.layers.iter().flatten();
        // Weights, caches and buffers of steps, and as much again; and the tower.
        let tower = seeing.as_ref().ok().and_then(Option::as_ref);
        let tower = tower.map_or(0, |tower| tower.bytes(options.compute.device));
        let others = 2 * plan.fixed_bytes() + tower;
        device.reserve_ahead(&mut layers.map(|layer| (&layer.layout, layer.n_experts)), others);
    }
    let inputs = precision(options.compute.activations);
    let n_resident = plan.resident_bytes;
    let mut report = |n_loaded| progress(n_loaded, n_resident);
    let Resident { model, bank, rows, names, facts } =
        load_resident(&spec, &plan, inputs, backend.as_mut(), &mut report)?;
    let meter = profiler.map(|profiler| Meter::new(profiler, names, inputs));

    let Spec { checkpoint, declared, .. } = spec;
    let shape = declared.shape;
    let family = declared.family.name;
    let top_k = [shape.top_k, shape.config_top_k];
    let [identity, model_identity] = snapshot::identities(&checkpoint, family, &bank, top_k)?;
    let config = declared.family.resolve(checkpoint.config())?;
    let wire = if rows.tables.is_empty() {
        WireShape::new(&config, shape.own_caches(), shape.n_layers)
    } else {
        // Rows follow from tokens, which the format does not have.
        Err(StateError::NoSuchLayers { what: "it looks up rows by tokens" })
    };
    let card = ModelCard {
        family,
        identity: identity.clone(),
        activations: options.compute.activations,
        shape: shape.clone(),
        max_positions: plan.ctx,
    };
    let prefix_cache =
        PrefixCache::open(options.prompt_cache.as_ref(), plan.prompt_cache_bytes, card)?;

    let layers: Vec<LayerIdx> = layers_with_experts(&bank);
    // Without those of multi-token prediction.
    let moe_layers: Vec<LayerIdx> =
        layers.iter().copied().filter(|layer| layer.idx() < shape.n_layers).collect();
    let experts = open_store(bank, &plan, options, shape.top_k)?;
    plan.io_mode = experts.options().mode;
    let rows = open_rows(rows, model.as_ref(), &plan, options)?;
    let mut warnings = checkpoint.warnings().to_vec();
    warnings.extend_from_slice(experts.warnings());
    warnings.extend(rows.iter().filter_map(|rows| rows.warning().map(str::to_owned)));
    warnings.extend(
        declared.mtp_refusal.map(|why| format!("multi-token prediction is not used: {why}")),
    );
    let recorder = match &options.experts.record_routing {
        Some(path) => {
            let slot_bytes = experts.slot_bytes() as u64;
            Some(Recorder::create(path, moe_layers.clone(), &shape, slot_bytes)?)
        }
        None => None,
    };
    let is_gpu = matches!(options.compute.device, Device::Gpu(_));
    let tuner = options.compute.gpu_tuning.as_ref().filter(|_| is_gpu).map(|dir| Tuner {
        device: options.compute.device,
        products: device::products(&facts, experts.bank(), shape.top_k, inputs),
        dir: dir.clone(),
    });
    let (now, later) =
        if options.quick_start { (Duration::ZERO, tuner.clone()) } else { (TUNING, None) };
    let tuning = match &tuner {
        Some(tuner) => tuner.tune(now)?,
        None => None,
    };
    warnings.extend(tuning.iter().flat_map(|tuning| tuning.warnings.clone()));
    let expert_stats = options.experts.stats.as_ref().map(|dir| {
        let (stats, warning) = ExpertStats::open(dir, &identity, &experts);
        warnings.extend(warning);
        stats
    });
    let model_experts = ModelExperts {
        layers: &layers,
        shape: &shape,
        n_bytes: plan.expert_bytes,
        load_later: loads_later,
    };
    let n_total = n_resident + plan.expert_bytes;
    let mut report = |n_loaded| progress(n_resident + n_loaded, n_total);
    let LoadedResidency { residency, counters } = load_residency(
        backend.as_mut(),
        &experts,
        &model_experts,
        options.experts.allow_missing,
        &mut report,
    )?;

    let experts = Arc::new(experts);
    let vision = match seeing {
        Ok(None) => None,
        Ok(Some(found)) => {
            // Answers of other sessions have rows of a step, too.
            let most = plan.chunk.saturating_sub(plan.n_sessions - 1);
            let most = shape.sees_pictures_whole.then_some(most);
            let experts = (options.compute.device == Device::Cpu).then(|| Arc::clone(&experts));
            Some(found.of_at_most(most).open(options, n_threads, experts))
        }
        Err(err) if options.vision.mmproj.is_some() => return Err(err),
        Err(err) => {
            warnings.push(format!("pictures are not seen: {err}"));
            None
        }
    };
    let top_k = shape.top_k;
    let mut core = Core::new(backend, Arc::clone(&experts), model, moe_layers);
    core.rows.clone_from(&rows);
    core.keeps_from_cache = residency == Residency::DeviceAndHost;
    core.recorder = recorder;
    core.expert_stats = expert_stats;
    let core = Arc::new(CoreLock::new(core));
    let parts = match residency {
        Residency::Coming(parts) => parts,
        Residency::Streamed | Residency::Device | Residency::DeviceAndHost => Vec::new(),
    };
    let has_work = !parts.is_empty() || later.is_some();
    let work = Work { parts, top_k, tuner: later };
    let loading = has_work.then(|| ExpertLoading::begin(&core, &experts, work));
    let info = Info {
        experts,
        rows,
        root: checkpoint.root().to_path_buf(),
        text,
        tokenizer,
        family,
        shape,
        device: choice,
        plan,
        warnings,
        n_threads,
        activations: options.compute.activations,
        // A recorded routing is that of the text, without rejected drafts.
        speculation: match options.experts.record_routing {
            Some(_) => Speculation::Off,
            None => options.speculation,
        },
        speculation_rates: Mutex::default(),
        identity,
        model_identity,
        wire,
        prefix_cache,
        tuning,
        meter,
        device_counters: counters,
        vision,
        loading,
    };
    Ok(Engine { core, info: Arc::new(info) })
}

fn layers_with_experts(bank: &ExpertBank) -> Vec<LayerIdx> {
    let layers = (0..).zip(&bank.layers).filter(|(_, layer)| layer.is_some());
    layers.map(|(i, _)| LayerIdx(i)).collect()
}
