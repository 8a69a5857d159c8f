//! The public interface of the store.

use std::sync::Arc;
use std::time::Duration;

use moeflux_core::{ExpertBank, ExpertId, ExpertKey, FileIdx, LayerIdx};

use super::arrivals::Arrivals;
use super::desk::ExpertDesk;
use super::hints::Hints;
use super::limits::Limits;
use super::plan::{Plan, Target};
use super::policy::policy;
use super::queue::Confidence;
use super::reader::Reader;
use super::requests::Batch;
use super::slots::Slots;
use super::stats::StoreStats;
use super::timeline::{LayerCounts, Timeline};
use super::tuner::PrefetchTrial;
use crate::drive::{
    Drive, Files, Native, Opened, Readers, Shared, Source, System, Threads, Wanted,
};
use crate::memory::{Controller, Watcher};
use crate::{IoMode, Prefetch, SlotAlloc, StoreError, StoreOptions};

const READER_THREADS: Threads =
    Threads { n: 1, name: "expert-reader", stack_bytes: None, what: "expert readers" };

/// Delivers routed experts, and reads those that are not resident.
///
/// Usually one thread requests experts at a time. Several threads may, as long as they do not hold
/// all slots together.
#[derive(Debug)]
pub struct ExpertStore {
    /// Adjusts the budget.
    _watcher: Option<Watcher>,
    readers: Readers<ExpertDesk>,
    hints: Hints,
    limits: Limits,
    options: StoreOptions,
    /// Indexed by layer.
    is_missing: Vec<bool>,
    warnings: Vec<String>,
}

impl ExpertStore {
    /// Opens and checks the files of a bank. `alloc` allocates slots, up to the budget and only
    /// when they are needed. It is not called when files are mapped.
    ///
    /// # Errors
    /// If a file is missing, is not a regular file, has a length other than the bank says, or
    /// cannot be opened, mapped or read directly. If the budget is below `options.top_k` slots. If
    /// threads cannot be started.
    ///
    /// # Panics
    /// If an extent of the bank is outside its file.
    pub fn open(
        bank: ExpertBank,
        alloc: SlotAlloc,
        options: StoreOptions,
    ) -> Result<ExpertStore, StoreError> {
        ExpertStore::open_with(bank, alloc, options, &Native, |files| Box::new(files))
    }

    /// Opens a store as [`ExpertStore::open`] does. `system` opens the files, and `source` wraps
    /// them for the readers.
    pub(crate) fn open_with(
        bank: ExpertBank,
        alloc: SlotAlloc,
        mut options: StoreOptions,
        system: &dyn System,
        source: impl FnOnce(Files) -> Box<dyn Source>,
    ) -> Result<ExpertStore, StoreError> {
        let mut plan = Plan::new(bank);
        let wanted = Wanted {
            files: &plan.bank().files,
            is_used: &|file| plan.is_used(file),
            may_miss: true,
            mode: options.mode,
            may_fall_back: options.may_fall_back,
            n_readers: options.n_readers,
            what: "experts",
        };
        let Opened { files, maps, missing, mode, block, warning } = Files::open(&wanted, system)?;
        plan.set_block(block);
        options.mode = mode;
        let mut warnings = Vec::from_iter(warning);
        let is_missing = missing_layers(&plan, &missing, options.allow_missing, &mut warnings)?;
        let limits = Limits::new(&plan, &options);
        let slots = match options.mode {
            IoMode::Mmap => None,
            IoMode::Pread | IoMode::Direct => {
                limits.check(options.cache_bytes)?;
                warnings.extend(limits.warning(options.cache_bytes));
                let n_slots = limits.n_slots(options.cache_bytes);
                let policy = policy(options.policy, &plan.layer_sizes());
                Some(Slots::new(alloc, plan.slot_bytes(), n_slots, policy))
            }
        };
        let n_layers = is_missing.len();
        let desk = ExpertDesk::new(plan.n_experts(), n_layers, slots, limits);
        let drive = Drive::new(&plan.bank().files, source(files), block);
        let reader = Reader::new(plan, drive, maps);
        let readers =
            Readers::start(reader, desk, Threads { n: options.n_readers, ..READER_THREADS })?;
        let watcher = watcher(&readers.shared, limits, &options)?;
        let hints = Hints::new(n_layers);
        Ok(ExpertStore { _watcher: watcher, readers, hints, limits, options, is_missing, warnings })
    }

    /// Requests distinct experts of a layer. All that are not resident are read at the same time,
    /// as far as there are slots that no consumer holds.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn request(&self, layer: LayerIdx, experts: &[ExpertId]) -> Arrivals<'_> {
        self.request_for(layer, experts.iter().map(|&expert| (expert, 1)))
    }

    /// Requests experts as [`ExpertStore::request`] does. Each comes with the number of rows that
    /// use it: an expert that many rows use stays longer in the cache.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn request_for(
        &self,
        layer: LayerIdx,
        experts: impl ExactSizeIterator<Item = (ExpertId, usize)>,
    ) -> Arrivals<'_> {
        self.request_into(layer, experts, Batch::new())
    }

    /// Requests experts as [`ExpertStore::request_for`] does. Resident experts are put into
    /// `batch`, which the first call of [`Arrivals::next_batch`] returns.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn request_into(
        &self,
        layer: LayerIdx,
        experts: impl ExactSizeIterator<Item = (ExpertId, usize)>,
        batch: Batch,
    ) -> Arrivals<'_> {
        let shared = &*self.readers.shared;
        if self.is_missing(layer) {
            return Arrivals::missing(shared, layer);
        }
        if let Err(err) = shared.reader.check_maps(layer) {
            return Arrivals::failed(shared, layer, err);
        }
        let plan = &shared.reader.plan;
        let wanted = experts
            .map(|(expert, n_rows)| (plan.target(ExpertKey { layer, expert }), n_rows as f32));
        let mut desk = shared.lock();
        let (hits, id) = desk.request(layer, wanted, batch);
        self.hints.set_worthwhile(layer, desk.is_worthwhile(layer));
        drop(desk);
        if id.is_some() {
            shared.work.notify_one();
        }
        Arrivals::new(shared, layer, hits, id)
    }

    /// Records, in order, which experts a device's memory got (`true`) or dropped (`false`).
    /// Experts with a copy on a device are the first to be evicted from this cache, and are not
    /// prefetched.
    ///
    /// # Panics
    /// If one of the experts does not exist.
    pub fn set_on_device(&self, moves: impl Iterator<Item = (ExpertKey, bool)>) {
        let shared = &self.readers.shared;
        let mut desk = shared.lock();
        for (key, is_there) in moves {
            desk.residents.set_on_device(shared.reader.plan.target(key), is_there);
        }
    }

    /// Queues reads of experts that the next rows will probably be routed to, the likeliest first.
    /// They replace earlier prefetches of the layer. They are read one at a time, and only while no
    /// request waits for a read. They never take a slot that a request needs. Those that have not
    /// started when a request has to read are cancelled.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn prefetch(&self, layer: LayerIdx, experts: &[ExpertId]) {
        self.queue_prefetches(layer, experts, Confidence::Likely);
    }

    /// Queues prefetches as [`ExpertStore::prefetch`] does, but reads several at a time. For
    /// predictions from many rows, of which most experts will be requested.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn prefetch_many(&self, layer: LayerIdx, experts: &[ExpertId]) {
        self.queue_prefetches(layer, experts, Confidence::Certain);
    }

    /// Prefetches all experts of a layer in the order of their ids, as
    /// [`ExpertStore::prefetch_many`] does.
    ///
    /// # Panics
    /// If the layer does not exist.
    pub fn prefetch_all(&self, layer: LayerIdx) {
        let n_experts = self.readers.shared.reader.plan.layer(layer).n_experts;
        let all: Vec<ExpertId> = (0u16..).take(n_experts).map(ExpertId).collect();
        self.queue_prefetches(layer, &all, Confidence::Certain);
    }

    fn queue_prefetches(&self, layer: LayerIdx, experts: &[ExpertId], confidence: Confidence) {
        if self.is_missing(layer) || self.readers.shared.reader.check_maps(layer).is_err() {
            return;
        }
        let plan = &self.readers.shared.reader.plan;
        let likely = experts.iter().map(|&expert| plan.target(ExpertKey { layer, expert }));
        let likely: Vec<Target> = likely.collect();
        if confidence == Confidence::Likely {
            self.hints.set_predicted(layer);
        }
        if self.readers.shared.lock().prefetch(layer, &likely, confidence) {
            self.readers.shared.work.notify_all();
        }
    }

    /// Whether it is worth predicting what a layer's router will choose for the next `n_rows` rows.
    pub fn wants_lookahead(&self, layer: LayerIdx, n_rows: usize) -> bool {
        let is_on = match self.options.prefetch {
            Prefetch::Off | Prefetch::LastToken => return false,
            Prefetch::Lookahead => true,
            Prefetch::Auto => n_rows > 1,
        };
        if self.is_missing(layer) || !self.hints.is_worthwhile(layer) {
            return false;
        }
        is_on || self.readers.shared.lock().ahead.tuner.is_on()
    }

    /// Whether prefetches for steps of many rows are on.
    pub fn reads_ahead(&self) -> bool {
        matches!(self.options.prefetch, Prefetch::Lookahead | Prefetch::Auto)
    }

    /// Marks the beginning of a layer's computation. With [`Prefetch::LastToken`], prefetches the
    /// experts that the last token used in the layer.
    pub fn begin_layer(&self, layer: LayerIdx) {
        if self.options.prefetch != Prefetch::LastToken {
            return;
        }
        let desk = self.readers.shared.lock();
        let likely = desk.ahead.predictor.predicted(layer).map(<[ExpertId]>::to_vec);
        drop(desk);
        if let Some(likely) = likely.filter(|likely| !likely.is_empty()) {
            self.prefetch(layer, &likely);
        }
    }

    /// Records which experts the last token was routed to in a layer. An expert counts as a
    /// prefetch hit if it was predicted since the layer's last call, at any rank, and its read has
    /// not failed. Else it counts as a miss.
    pub fn record(&self, layer: LayerIdx, experts_of_last_token: &[ExpertId]) {
        let is_predicting = self.options.prefetch == Prefetch::LastToken;
        if !self.hints.take_predicted(layer) && !is_predicting {
            return;
        }
        let mut desk = self.readers.shared.lock();
        let outcome = desk.ahead.record(layer, experts_of_last_token, is_predicting);
        if let Some(outcome) = outcome {
            desk.journal.prediction(outcome);
        }
    }

    /// Drops all predictions, and cancels the predicted reads that have not started.
    pub fn forget_predictions(&self) {
        self.hints.forget();
        self.readers.shared.lock().forget_predictions();
    }

    /// Records the duration of a step that evaluated one token.
    pub fn end_decode_step(&self, time: Duration) {
        if self.options.prefetch == Prefetch::Auto {
            self.readers.shared.lock().end_decode_step(time);
        }
    }

    /// The result of the last trial of [`Prefetch::Auto`]; `None` before the first, and for other
    /// choices.
    pub fn trial(&self) -> Option<PrefetchTrial> {
        let is_auto = self.options.prefetch == Prefetch::Auto;
        is_auto.then(|| self.readers.shared.lock().ahead.tuner.last()).flatten()
    }

    /// The weight that the policy gives to each expert, layer by layer; `None` if the policy has
    /// nothing to save or files are mapped.
    pub fn learned(&self) -> Option<Vec<f32>> {
        self.readers.shared.lock().residents.policy()?.weights()
    }

    /// Restores weights that [`ExpertStore::learned`] returned in an earlier process. The policy
    /// begins with them, and the experts with the highest weights are read into free slots while
    /// the drive is idle. Returns false if the number of weights does not fit this bank, or if
    /// files are mapped.
    pub fn restore(&self, learned: &[f32]) -> bool {
        let plan = &self.readers.shared.reader.plan;
        if learned.len() != plan.n_experts() || self.options.mode == IoMode::Mmap {
            return false;
        }
        let layers = (0u16..).zip(&plan.bank().layers);
        let keys = layers.flat_map(|(layer, bank)| {
            let n_experts = bank.as_ref().map_or(0, |bank| bank.n_experts);
            let key = move |expert| ExpertKey { layer: LayerIdx(layer), expert };
            (0u16..).take(n_experts).map(ExpertId).map(key)
        });
        let targets = keys.map(|key| plan.target(key));
        let weight = |target: &Target| learned[target.ordinal.idx()];
        let is_known = |target: &Target| weight(target) > 0.0 && !self.is_missing(target.key.layer);
        let mut hottest: Vec<Target> = targets.filter(is_known).collect();
        hottest.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let mut desk = self.readers.shared.lock();
        if let Some(policy) = desk.residents.policy() {
            policy.restore(learned);
        }
        desk.queue.warm(hottest.into_iter());
        drop(desk);
        self.readers.shared.work.notify_all();
        true
    }

    /// Changes the budget of the cache while it is in use, in bytes. Experts beyond it are evicted,
    /// and their memory goes back to the system, as soon as no consumer holds them. Does nothing
    /// when files are mapped.
    ///
    /// # Errors
    /// If the budget is below `top_k` slots.
    pub fn resize(&self, cache_bytes: u64) -> Result<(), StoreError> {
        if self.options.mode != IoMode::Mmap {
            self.limits.check(cache_bytes)?;
            resize(&self.readers.shared, self.limits, cache_bytes);
        }
        Ok(())
    }

    /// The counters of the store.
    pub fn stats(&self) -> StoreStats {
        self.readers.shared.lock().stats()
    }

    /// Sets all counters to zero.
    pub fn reset_stats(&self) {
        self.readers.shared.lock().reset_stats();
    }

    /// The counters of each layer, since the last reset.
    pub fn layer_counts(&self) -> Vec<LayerCounts> {
        self.readers.shared.lock().journal.layers.clone()
    }

    /// Records events from now on, at most `capacity` of them.
    pub fn record_timeline(&self, capacity: usize) {
        self.readers.shared.lock().journal.record(capacity);
    }

    /// Stops recording and returns the events.
    pub fn take_timeline(&self) -> Timeline {
        self.readers.shared.lock().journal.take_timeline()
    }

    /// Evicts every expert that no consumer holds, so that the next request reads it. The counters
    /// stay. The pages of mapped files go back to the system.
    pub fn clear(&self) {
        self.readers.shared.lock().clear();
        self.readers.shared.reader.release_maps();
    }

    /// Warnings for the user, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether a layer has experts in the bank, but its file is missing.
    pub fn is_missing(&self, layer: LayerIdx) -> bool {
        self.is_missing.get(layer.idx()).copied().unwrap_or(false)
    }

    /// The options that the store was opened with; the mode is the one in use.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Where the experts are stored.
    pub fn bank(&self) -> &ExpertBank {
        self.readers.shared.reader.plan.bank()
    }

    /// Bytes of one cache slot.
    pub fn slot_bytes(&self) -> usize {
        self.readers.shared.reader.plan.slot_bytes()
    }
}

/// Which layers have a file that is missing, with a warning for each.
///
/// # Errors
/// If there is one and that is not allowed.
fn missing_layers(
    plan: &Plan,
    missing: &[FileIdx],
    is_allowed: bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<bool>, StoreError> {
    let mut is_missing = vec![false; plan.bank().layers.len()];
    for (layer, is_missing) in (0u16..).zip(&mut is_missing) {
        let files = plan.files_of(LayerIdx(layer));
        let Some(file) = files.iter().find(|file| missing.contains(file)) else { continue };
        let path = plan.bank().files[file.0 as usize].path.clone();
        if !is_allowed {
            return Err(StoreError::Missing { path, layer });
        }
        *is_missing = true;
        let path = path.display();
        warnings.push(format!("layer {layer} adds no routed experts: {path} is missing"));
    }
    Ok(is_missing)
}

/// Starts the thread that lets the budget follow free memory, if the options say so.
fn watcher(
    shared: &Arc<Shared<ExpertDesk>>,
    limits: Limits,
    options: &StoreOptions,
) -> Result<Option<Watcher>, StoreError> {
    let (planned, needed) = (limits.slot_bytes_in(options.cache_bytes), limits.needed_bytes());
    let Some(shrinks_to) = options.shrinks_to else { return Ok(None) };
    if options.mode == IoMode::Mmap || planned == 0 {
        return Ok(None);
    }
    let controller = Controller::new(shrinks_to.max(needed), planned, options.headroom);
    let (of_use, of_budget) = (Arc::clone(shared), Arc::clone(shared));
    let used = move || of_use.lock().residents.slots.as_ref().map_or(0, Slots::made_bytes);
    let watcher = Watcher::start(controller, used, move |bytes| resize(&of_budget, limits, bytes));
    watcher.map(Some).map_err(|err| READER_THREADS.refused(err))
}

/// Sets the budget of the cache, in bytes.
fn resize(shared: &Shared<ExpertDesk>, limits: Limits, cache_bytes: u64) {
    shared.lock().resize(limits.n_slots(cache_bytes));
    // Slots may have become free for requests that wait for one.
    shared.arrived.notify_all();
}
