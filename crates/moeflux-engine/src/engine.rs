//! A loaded model, and the sessions that share it.

mod core;
#[cfg(test)]
mod lookahead_tests;
pub(crate) mod meter;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use moeflux_backend::profiling::ProfilingBackend;
use moeflux_backend::{ActivationPrecision, DeviceCounters, DeviceStats};
use moeflux_core::checkpoint::Checkpoint;
use moeflux_core::{LayerIdx, catch_out_of_memory};
use moeflux_model::{Build, Declared, ExpertObserver, Loaded, Loader, ModelShape, MoeLists};
use moeflux_store::{
    DEFAULT_READERS, ExpertStore, IoChoice, PrefetchTrial, StoreOptions, StoreStats,
};
use moeflux_text::Tokenizer;

use crate::device::{self, Device, DeviceTuning, Opening};
use crate::draft::{Drafts, Learned};
use crate::engine::meter::Meter;
use crate::error::EngineError;
use crate::expert_stats::ExpertStats;
use crate::kept::{device_expert_bytes, keep_experts, slab_bytes, slot_memory};
use crate::options::{Activations, EngineOptions, check_top_k, threads};
use crate::plan::facts::text_dir;
use crate::plan::{MemoryPlanner, Plan};
use crate::record::Recorder;
use crate::snapshot::{self, Host, PrefixStore, StateError, WireShape};

pub(crate) use self::core::Core;

/// Bytes of experts that a step holds at a time on the processor. They cannot leave the cache while
/// it shrinks, and are enough to keep all threads busy.
const PINNED_BYTES: usize = 64 << 20;

/// A loaded model. Clones share it.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Mutex<Core>>,
    info: Arc<Info>,
}

/// What does not change while a model is open.
struct Info {
    /// Also here, so that it answers while a step runs.
    experts: Arc<ExpertStore>,
    root: PathBuf,
    /// Where the tokenizer and its settings are.
    text_dir: PathBuf,
    family: &'static str,
    shape: ModelShape,
    plan: Plan,
    warnings: Vec<String>,
    n_threads: usize,
    activations: Activations,
    drafts: Drafts,
    learned: Mutex<Learned>,
    identity: String,
    model_identity: String,
    wire: Result<WireShape, StateError>,
    prompt_cache: Option<PrefixStore>,
    tuning: Option<DeviceTuning>,
    meter: Option<Meter>,
    /// Where the device has memory of its own.
    device_counters: Option<Arc<DeviceCounters>>,
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
        catch_out_of_memory(|| Engine::open_whole(source, options, progress))?
    }

    fn open_whole(
        source: &Path,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        let checkpoint = Checkpoint::open(source).map_err(moeflux_model::LoadError::from)?;
        let declared = Declared::to_run(&checkpoint, options.variant())?;
        check_top_k(options, &declared.shape)?;
        let bank = moeflux_model::bank(&checkpoint, &declared)?;
        let planner = MemoryPlanner::new(&checkpoint, &declared, &bank, options)?;
        let mut plan = planner.plan_that_fits(checkpoint.root().to_path_buf())?;
        let n_threads = threads(options)?;
        let mut backend = device::open(&Opening {
            device: options.compute.device,
            n_threads,
            isa: options.compute.isa.as_deref(),
            expert_bytes: device_expert_bytes(&plan, options),
            record_bytes: plan.record_bytes,
            shape: &declared.shape,
        })?;
        let mut stopwatch = None;
        if options.compute.timed {
            let (timed, watch) = ProfilingBackend::new(backend);
            (backend, stopwatch) = (Box::new(timed), Some(watch));
        }
        let inputs = match options.compute.activations {
            Activations::Full => ActivationPrecision::F32,
            Activations::Int16 => ActivationPrecision::Int16,
            Activations::Int8 => ActivationPrecision::Int8,
        };
        let total = plan.resident_bytes;
        let mut report = |loaded| progress(loaded, total);
        let mut loader = Loader::new(&checkpoint, backend.as_mut(), inputs, &mut report);
        let mut build =
            Build { weights: &mut loader, max_rows: plan.chunk, inputs, variant: declared.variant };
        let model = declared.family.build(checkpoint.config(), &mut build)?;
        let Loaded { bank, names, facts } = loader.finish()?;
        // Reads nothing but what went wrong.
        backend.read(model.output().0.buf, 0)?;
        let meter = stopwatch.map(|it| Meter::new(it, names, inputs));
        let store_options = StoreOptions {
            mode: plan.io_mode,
            may_fall_back: options.experts.io == IoChoice::Auto,
            cache_bytes: plan.cache_bytes,
            shrinks_to: options.experts.cache_min.or(options.experts.cache.is_none().then_some(0)),
            headroom: plan.headroom_bytes,
            // A GPU takes whole layers at once.
            max_pinned_bytes: (options.compute.device == Device::Cpu).then_some(PINNED_BYTES),
            policy: options.experts.policy,
            n_readers: DEFAULT_READERS,
            prefetch: options.experts.prefetch,
            allow_missing: options.experts.allow_missing,
            top_k: declared.shape.top_k,
        };
        let shape = &declared.shape;
        let family = declared.family.name;
        let top_k = [shape.top_k, shape.config_top_k];
        let [identity, model_identity] = snapshot::identities(&checkpoint, family, &bank, top_k)?;
        let config = declared.family.resolve(checkpoint.config())?;
        let wire = WireShape::new(&config, shape.own_caches(), shape.n_layers);
        let prompt_cache = options.prompt_cache.as_ref().map(PrefixStore::open).transpose()?;
        let layers = (0..).zip(&bank.layers).filter(|(_, it)| it.is_some());
        let layers: Vec<LayerIdx> = layers.map(|(i, _)| LayerIdx(i)).collect();
        // Those of the model itself.
        let moe_layers: Vec<LayerIdx> =
            layers.iter().copied().filter(|it| it.idx() < shape.n_layers).collect();
        let slots = slot_memory(slab_bytes(&plan, &bank, options.compute.device)?);
        let experts = ExpertStore::open(bank, slots, store_options)?;
        let slot_bytes = experts.slot_bytes() as u64;
        let recorder = match &options.experts.record_routing {
            Some(path) => Some(Recorder::create(path, moe_layers.clone(), shape, slot_bytes)?),
            None => None,
        };
        let mut warnings = experts.warnings().to_vec();
        let refusal = declared.mtp_refusal.iter();
        warnings.extend(refusal.map(|it| format!("multi-token prediction is left aside: {it}")));
        // Before experts take what memory the device has left.
        let products = || device::products(&facts, experts.bank(), declared.shape.top_k, inputs);
        let tuning = match &options.compute.gpu_tuning {
            Some(dir) => device::tune(options.compute.device, products, dir)?,
            None => None,
        };
        warnings.extend(tuning.iter().flat_map(|it| it.warnings.clone()));
        let expert_stats = options.experts.stats.as_ref().map(|dir| {
            let (stats, warning) = ExpertStats::open(dir, &identity, &experts);
            warnings.extend(warning);
            stats
        });
        plan.io_mode = experts.options().mode;
        let mut keeps_from_cache = false;
        if !options.experts.allow_missing
            && let Some(residency) = backend.residency_mut()
        {
            let wanted = plan.expert_bytes;
            let mut report = |kept| progress(total + kept, total + wanted);
            keeps_from_cache =
                keep_experts(residency, &experts, (&layers, shape), wanted, &mut report)?;
        }
        let device_counters = backend.residency_mut().map(|residency| {
            let changes = residency.drain_residency_changes();
            experts.set_on_device(changes.iter().map(|change| (change.key, change.is_resident)));
            residency.counters()
        });
        let experts = Arc::new(experts);
        let info = Info {
            experts: Arc::clone(&experts),
            root: checkpoint.root().to_path_buf(),
            text_dir: text_dir(&checkpoint),
            family,
            shape: declared.shape,
            plan,
            warnings,
            n_threads,
            activations: options.compute.activations,
            // What is written down is what was said.
            drafts: match options.experts.record_routing {
                Some(_) => Drafts::Off,
                None => options.drafts,
            },
            learned: Mutex::default(),
            identity,
            model_identity,
            wire,
            prompt_cache,
            tuning,
            meter,
            device_counters,
        };
        let core = Core {
            #[cfg(test)]
            n_refused: 0,
            backend,
            experts,
            keeps_from_cache,
            model,
            recorder,
            expert_stats,
            observer: None,
            lists: MoeLists::default(),
            moe_layers,
            last: Vec::new(),
            has_foreseen: false,
            is_foreseeing: false,
            sight: Default::default(),
            next: Vec::new(),
            out_of_memory: None,
        };
        Ok(Engine { core: Arc::new(Mutex::new(core)), info: Arc::new(info) })
    }

    /// The model's directory.
    pub fn root(&self) -> &Path {
        &self.info.root
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// Where the model has none, or it is damaged.
    pub fn tokenizer(&self) -> Result<Tokenizer, EngineError> {
        Ok(Tokenizer::from_dir(&self.info.text_dir)?)
    }

    /// The model's family.
    pub fn family(&self) -> &'static str {
        self.info.family
    }

    /// Gives every following step's routed experts to `observer`, until another one or `None`
    /// takes its place. Blocks while a step runs.
    pub fn observe_experts(&self, observer: Option<Box<dyn ExpertObserver>>) {
        self.core().observer = observer;
    }

    /// The model's figures.
    pub fn shape(&self) -> &ModelShape {
        &self.info.shape
    }

    /// Where memory goes.
    pub fn plan(&self) -> &Plan {
        &self.info.plan
    }

    /// What the user should know although nothing failed.
    pub fn warnings(&self) -> &[String] {
        &self.info.warnings
    }

    /// What the prompt cache met that the user should know, since the last
    /// call.
    pub fn take_warnings(&self) -> Vec<String> {
        self.prompt_cache().map(PrefixStore::take_warnings).unwrap_or_default()
    }

    /// Tells this model from all others: a hash of its config, tensors and
    /// samples of its files, and how many experts a token gets.
    pub fn identity(&self) -> &str {
        &self.info.identity
    }

    /// As [`Engine::identity`], but the same however many experts a token gets
    /// ([`EngineOptions::experts_per_token`]).
    pub fn model_identity(&self) -> &str {
        &self.info.model_identity
    }

    /// Whether both are the same model, opened once.
    pub(crate) fn is(&self, other: &Engine) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// What it has learned of steps and guesses.
    pub(crate) fn learned(&self) -> MutexGuard<'_, Learned> {
        self.info.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether tokens are guessed.
    pub(crate) fn drafts(&self) -> Drafts {
        self.info.drafts
    }

    pub(crate) fn wire(&self) -> Result<&WireShape, StateError> {
        self.info.wire.as_ref().map_err(Clone::clone)
    }

    /// What times ops, where options asked for it.
    pub(crate) fn meter(&self) -> Option<&Meter> {
        self.info.meter.as_ref()
    }

    pub(crate) fn prompt_cache(&self) -> Option<&PrefixStore> {
        self.info.prompt_cache.as_ref()
    }

    /// What was measured of the GPU's products when the model was opened.
    pub fn tuning(&self) -> Option<&DeviceTuning> {
        self.info.tuning.as_ref()
    }

    /// Threads that compute.
    pub fn n_threads(&self) -> usize {
        self.info.n_threads
    }

    /// What the expert store did since the last reset.
    pub fn stats(&self) -> StoreStats {
        self.info.experts.stats()
    }

    /// What became of experts on a device with memory of its own, since the
    /// last reset; `None` on others.
    pub fn device_stats(&self) -> Option<DeviceStats> {
        self.info.device_counters.as_ref().map(|it| it.stats())
    }

    /// What `--prefetch auto` found, once it has finished a trial.
    pub fn prefetch_trial(&self) -> Option<PrefetchTrial> {
        self.core().experts.trial()
    }

    /// Starts counting anew.
    pub fn reset_stats(&self) {
        self.info.experts.reset_stats();
        if let Some(counters) = &self.info.device_counters {
            counters.reset();
        }
    }

    /// Changes what the cache of experts may take, also while sessions run;
    /// what they compute stays the same. Does nothing where files are mapped.
    ///
    /// # Errors
    /// A size that the experts of one token and layer do not fit into.
    pub fn resize_expert_cache(&self, bytes: u64) -> Result<(), EngineError> {
        Ok(self.info.experts.resize(bytes)?)
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        // Sessions end with this lock, also while a panic unwinds; a step after one that
        // panicked meets the backend's assertions.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host for Engine {
    fn family(&self) -> &'static str {
        Engine::family(self)
    }

    fn identity(&self) -> &str {
        Engine::identity(self)
    }

    fn activations(&self) -> Activations {
        self.info.activations
    }

    fn shape(&self) -> &ModelShape {
        Engine::shape(self)
    }

    fn max_positions(&self) -> usize {
        self.plan().ctx
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        Engine::core(self)
    }
}
