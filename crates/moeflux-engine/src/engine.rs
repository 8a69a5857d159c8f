//! A loaded model, and the sessions that share it.

mod core_lock;
mod expert_loading;
#[cfg(test)]
mod lookahead_tests;
pub(crate) mod meter;
mod open;
mod tokenizer_ahead;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use moeflux_backend::{DeviceCounters, DeviceStats};
use moeflux_core::RowBank;
use moeflux_model::{ExpertObserver, ModelShape};
use moeflux_store::{ExpertStore, PrefetchTrial, RowStats, StoreStats};
use moeflux_text::{TextSource, Tokenizer};

use crate::choice::DeviceChoice;
use crate::device::DeviceTuning;
use crate::engine::core_lock::CoreLock;
use crate::engine::expert_loading::ExpertLoading;
use crate::engine::meter::Meter;
use crate::engine::tokenizer_ahead::TokenizerAhead;
use crate::error::{EngineError, StateError};
use crate::format_name::ExpertFormat;
use crate::options::Activations;
use crate::plan::Plan;
use crate::rows::TableRows;
use crate::snapshot::{Facts, Host, PrefixCache, WireShape};
use crate::speculation::options::Speculation;
use crate::speculation::rates::SpeculationRates;
use crate::step::Core;
use crate::vision::Vision;

/// A loaded model. Clones share it.
#[derive(Clone)]
pub struct Engine {
    core: Arc<CoreLock>,
    info: Arc<Info>,
}

/// What does not change while a model is open.
struct Info {
    /// Also here, so that it answers while a step runs.
    experts: Arc<ExpertStore>,
    rows: Option<Arc<TableRows>>,
    root: PathBuf,
    /// Where the tokenizer and its settings are.
    text: TextSource,
    /// The first tokenizer, where it is read on a thread.
    tokenizer: Option<TokenizerAhead>,
    family: &'static str,
    shape: ModelShape,
    device: DeviceChoice,
    plan: Plan,
    warnings: Vec<String>,
    n_threads: usize,
    activations: Activations,
    speculation: Speculation,
    speculation_rates: Mutex<SpeculationRates>,
    identity: String,
    model_identity: String,
    wire: Result<WireShape, StateError>,
    prefix_cache: Option<PrefixCache>,
    tuning: Option<DeviceTuning>,
    meter: Option<Meter>,
    /// Where the device has memory of its own.
    device_counters: Option<Arc<DeviceCounters>>,
    /// Where the model sees.
    vision: Option<Vision>,
    /// Where experts are loaded while the engine answers.
    loading: Option<ExpertLoading>,
}

impl Engine {
    /// The model's directory.
    pub fn root(&self) -> &Path {
        &self.info.root
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// Where the model has none, or it is damaged.
    pub fn tokenizer(&self) -> Result<Tokenizer, EngineError> {
        let ahead = self.info.tokenizer.as_ref().and_then(TokenizerAhead::take);
        Ok(ahead.unwrap_or_else(|| Tokenizer::open(&self.info.text, moeflux_model::dialects()))?)
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

    /// Where it runs, and why.
    pub fn device(&self) -> &DeviceChoice {
        &self.info.device
    }

    /// What sees pictures; `None` where the model has no vision tower, or options leave it out.
    pub fn vision(&self) -> Option<&Vision> {
        self.info.vision.as_ref()
    }

    /// Where memory goes.
    pub fn plan(&self) -> &Plan {
        &self.info.plan
    }

    /// How experts are stored; `None` where there are none.
    pub fn expert_format(&self) -> Option<ExpertFormat> {
        ExpertFormat::of(self.info.experts.bank())
    }

    /// What the user should know although nothing failed.
    pub fn warnings(&self) -> &[String] {
        &self.info.warnings
    }

    /// What the prompt cache, the loading of experts and the vision tower met that the user should know, since the last
    /// call.
    pub fn take_warnings(&self) -> Vec<String> {
        let of_cache = self.prefix_cache().map(PrefixCache::take_warnings).unwrap_or_default();
        let of_loading = self.info.loading.as_ref().and_then(ExpertLoading::take_warning);
        let of_vision = self.vision().and_then(Vision::take_warning);
        of_cache.into_iter().chain(of_loading).chain(of_vision).collect()
    }

    /// Waits until the device has all experts that [`EngineOptions::quick_start`] has it get while the
    /// engine answers. Returns at once where there are none.
    ///
    /// [`EngineOptions::quick_start`]: crate::EngineOptions::quick_start
    pub fn finish_loading(&self) {
        if let Some(loading) = &self.info.loading {
            loading.finish();
        }
    }

    /// Tells this model from all others: a hash of its config, tensors and
    /// samples of its files, and how many experts a token gets.
    pub fn identity(&self) -> &str {
        &self.info.identity
    }

    /// As [`Engine::identity`], but the same however many experts a token gets
    /// ([`EngineOptions::experts_per_token`](crate::EngineOptions::experts_per_token)).
    pub fn model_identity(&self) -> &str {
        &self.info.model_identity
    }

    /// Whether both are the same model, opened once.
    pub(crate) fn is(&self, other: &Engine) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Measured times of steps and acceptance rates of drafts.
    pub(crate) fn speculation_rates(&self) -> MutexGuard<'_, SpeculationRates> {
        self.info.speculation_rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether and how tokens are drafted.
    pub(crate) fn speculation(&self) -> Speculation {
        self.info.speculation
    }

    pub(crate) fn wire(&self) -> Result<&WireShape, StateError> {
        self.info.wire.as_ref().map_err(Clone::clone)
    }

    /// What times ops, where options asked for it.
    pub(crate) fn meter(&self) -> Option<&Meter> {
        self.info.meter.as_ref()
    }

    pub(crate) fn prefix_cache(&self) -> Option<&PrefixCache> {
        self.info.prefix_cache.as_ref()
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

    /// What the store of rows did since the last reset; `None` where the model has no tables whose
    /// rows are read one by one.
    pub fn row_stats(&self) -> Option<RowStats> {
        self.info.rows.as_ref().map(|rows| rows.stats())
    }

    /// The tables whose rows are read one by one, where the model has any.
    pub(crate) fn row_bank(&self) -> Option<&RowBank> {
        self.info.rows.as_ref().map(|rows| rows.bank())
    }

    /// What became of experts on a device with memory of its own, since the
    /// last reset; `None` on others.
    pub fn device_stats(&self) -> Option<DeviceStats> {
        self.info.device_counters.as_ref().map(|counters| counters.stats())
    }

    /// What `--prefetch auto` found, once it has finished a trial.
    pub fn prefetch_trial(&self) -> Option<PrefetchTrial> {
        self.core().experts.trial()
    }

    /// Starts counting anew.
    pub fn reset_stats(&self) {
        self.info.experts.reset_stats();
        if let Some(rows) = &self.info.rows {
            rows.reset_stats();
        }
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

    /// The tables whose rows are read one by one.
    pub(crate) fn rows(&self) -> Option<&TableRows> {
        self.info.rows.as_deref()
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }
}

impl Facts for Engine {
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
}

impl Host for Engine {
    fn core(&self) -> MutexGuard<'_, Core> {
        Engine::core(self)
    }
}
