//! The public interface of the store.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use moeflux_core::{ExpertBank, ExpertId, ExpertKey, LayerIdx, explain_thread_error, show_bytes};

use crate::cache::{Batch, CacheState};
use crate::files::{Files, Native, Opened, Source, System};
use crate::plan::Plan;
use crate::policy::policy;
use crate::pressure::{Controller, watch};
use crate::reader::Reader;
use crate::shared::{Hints, Shared};
use crate::slots::Slots;
use crate::{
    Arrivals, IoMode, LayerCounts, SlotAlloc, StoreError, StoreOptions, StoreStats, Timeline,
};

/// Delivers routed experts, and reads those that are not resident.
///
/// Usually one thread requests experts at a time. Several threads may, as long as they do not hold
/// all slots together.
#[derive(Debug)]
pub struct ExpertStore {
    pub(crate) shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
    /// The thread that adjusts the budget. It ends when the sender is dropped.
    watcher: Option<(Sender<()>, JoinHandle<()>)>,
    pub(crate) options: StoreOptions,
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
        let Opened { files, maps, missing, mode, block, warning } =
            Files::open(&plan, &options, system)?;
        plan.set_block(block);
        options.mode = mode;
        let mut warnings = Vec::from_iter(warning);
        let mut is_missing = vec![false; plan.bank().layers.len()];
        for (layer, is_missing) in (0u16..).zip(&mut is_missing) {
            let files = plan.files_of(LayerIdx(layer));
            let Some(file) = files.iter().find(|file| missing.contains(file)) else { continue };
            let path = plan.bank().files[file.0 as usize].path.clone();
            if !options.allow_missing {
                return Err(StoreError::Missing { path, layer });
            }
            *is_missing = true;
            let path = path.display();
            warnings.push(format!("layer {layer} adds no routed experts: {path} is missing"));
        }

        let slots = match options.mode {
            IoMode::Mmap => None,
            IoMode::Pread | IoMode::Direct => {
                let n_slots = n_slots(&plan, &options, &mut warnings)?;
                let policy = policy(options.policy, &plan.layer_sizes());
                Some(Slots::new(alloc, plan.slot_bytes(), n_slots, policy))
            }
        };
        let max_pinned = max_pinned(&plan, &options);
        let (n_experts, n_layers) = (plan.n_experts(), is_missing.len());
        let cache = CacheState::new(n_experts, n_layers, slots, options.top_k, max_pinned);
        let hints = Hints::new(is_missing.len());
        let shared = Arc::new(Shared {
            reader: Reader::new(plan, source(files), maps),
            cache: Mutex::new(cache),
            work: Condvar::new(),
            arrived: Condvar::new(),
            hints,
        });
        let (readers, watcher) = (Vec::new(), None);
        let mut store = ExpertStore { shared, readers, watcher, options, is_missing, warnings };
        store.spawn_readers()?;
        store.spawn_watcher()?;
        Ok(store)
    }

    /// Starts the thread that lets the budget follow free memory, if `shrinks_to` is set.
    fn spawn_watcher(&mut self) -> Result<(), StoreError> {
        let Some(shrinks_to) = self.options.shrinks_to else { return Ok(()) };
        let slot_bytes = self.slot_bytes() as u64;
        let n_slots = self.stats().n_slots as u64;
        if n_slots == 0 || slot_bytes == 0 {
            return Ok(());
        }
        let needed = needed_slots(&self.shared.reader.plan, &self.options) as u64 * slot_bytes;
        let headroom = self.options.headroom;
        let controller = Controller::new(shrinks_to.max(needed), n_slots * slot_bytes, headroom);
        let (sender, closing) = channel();
        let shared = Arc::clone(&self.shared);
        let watch = move || {
            let used = || shared.lock().made_bytes();
            watch(controller, &closing, used, |bytes| shared.resize(bytes));
        };
        let thread = thread::Builder::new().name("expert-cache".to_owned()).spawn(watch);
        let thread = thread.map_err(|err| no_threads(1, err))?;
        self.watcher = Some((sender, thread));
        Ok(())
    }

    fn spawn_readers(&mut self) -> Result<(), StoreError> {
        let n_readers = self.options.n_readers.max(1);
        for reader in 0..n_readers {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name(format!("expert-reader-{reader}"));
            let thread = thread.spawn(move || shared.serve());
            self.readers.push(thread.map_err(|err| no_threads(n_readers, err))?);
        }
        Ok(())
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
        let shared = &*self.shared;
        if self.is_missing(layer) {
            return Arrivals::missing(shared, layer);
        }
        if let Err(err) = shared.reader.check_maps(layer) {
            return Arrivals::failed(shared, layer, err);
        }
        let plan = &shared.reader.plan;
        let wanted = experts
            .map(|(expert, n_rows)| (plan.target(ExpertKey { layer, expert }), n_rows as f32));
        let mut cache = shared.lock();
        let (hits, ticket) = cache.request(layer, wanted, batch);
        shared.hints.set_worthwhile(layer, cache.is_worthwhile(layer));
        drop(cache);
        if ticket.is_some() {
            shared.work.notify_one();
        }
        Arrivals::new(shared, layer, hits, ticket)
    }

    /// Records, in order, which experts a device's memory got (`true`) or dropped (`false`).
    /// Experts with a copy on a device are the first to be evicted from this cache, and are not
    /// prefetched.
    ///
    /// # Panics
    /// If one of the experts does not exist.
    pub fn set_on_device(&self, moves: impl Iterator<Item = (ExpertKey, bool)>) {
        let plan = &self.shared.reader.plan;
        let mut cache = self.shared.lock();
        for (key, is_there) in moves {
            cache.set_on_device(plan.target(key), is_there);
        }
    }

    /// Changes the budget of the cache while it is in use, in bytes. Experts beyond it are evicted,
    /// and their memory goes back to the system, as soon as no consumer holds them. Does nothing
    /// when files are mapped.
    ///
    /// # Errors
    /// If the budget is below `top_k` slots.
    pub fn resize(&self, cache_bytes: u64) -> Result<(), StoreError> {
        if self.options.mode != IoMode::Mmap {
            check_budget(&self.shared.reader.plan, &self.options, cache_bytes)?;
            self.shared.resize(cache_bytes);
        }
        Ok(())
    }

    /// The counters of the store.
    pub fn stats(&self) -> StoreStats {
        self.shared.lock().stats()
    }

    /// Sets all counters to zero.
    pub fn reset_stats(&self) {
        self.shared.lock().reset_stats();
    }

    /// The counters of each layer, since the last reset.
    pub fn layer_counts(&self) -> Vec<LayerCounts> {
        self.shared.lock().layer_counts().to_vec()
    }

    /// Records events from now on, at most `capacity` of them.
    pub fn record_timeline(&self, capacity: usize) {
        self.shared.lock().record_timeline(capacity);
    }

    /// Stops recording and returns the events.
    pub fn take_timeline(&self) -> Timeline {
        self.shared.lock().take_timeline()
    }

    /// Evicts every expert that no consumer holds, so that the next request reads it. The counters
    /// stay. The pages of mapped files go back to the system.
    pub fn clear(&self) {
        self.shared.lock().clear();
        self.shared.reader.release_maps();
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
        self.shared.reader.plan.bank()
    }

    /// Bytes of one cache slot.
    pub fn slot_bytes(&self) -> usize {
        self.shared.reader.plan.slot_bytes()
    }
}

impl Drop for ExpertStore {
    fn drop(&mut self) {
        if let Ok(mut cache) = self.shared.cache.lock() {
            cache.close();
        }
        if let Some((closing, watcher)) = self.watcher.take() {
            drop(closing);
            let _ = watcher.join();
        }
        self.shared.work.notify_all();
        for reader in self.readers.drain(..) {
            // The message of a panic in a reader has already been printed.
            let _ = reader.join();
        }
    }
}

/// Slots that the budget allows, at most one for each expert.
fn n_slots(
    plan: &Plan,
    options: &StoreOptions,
    warnings: &mut Vec<String>,
) -> Result<usize, StoreError> {
    let slot_bytes = plan.slot_bytes() as u64;
    if slot_bytes == 0 {
        return Ok(0);
    }
    let budget = options.cache_bytes;
    check_budget(plan, options, budget)?;
    let top_k = needed_slots(plan, options);
    let n_slots = usize::try_from(budget / slot_bytes).unwrap_or(usize::MAX).min(plan.n_experts());
    let n_working = top_k * plan.n_moe_layers();
    if n_slots < n_working {
        let enough = n_working as u64 * slot_bytes;
        warnings.push(format!(
            "the expert cache of {} holds {n_slots} experts and one token uses {n_working}: little \
             will be kept from token to token below {}",
            show_bytes(budget),
            show_bytes(enough)
        ));
    }
    Ok(n_slots)
}

fn no_threads(n_readers: usize, err: std::io::Error) -> StoreError {
    StoreError::Threads { n_readers, source: explain_thread_error(err) }
}

/// The most experts that a request pins at a time.
fn max_pinned(plan: &Plan, options: &StoreOptions) -> usize {
    let Some(bytes) = options.max_pinned_bytes else { return usize::MAX };
    let n_slots = bytes.checked_div(plan.slot_bytes()).unwrap_or(usize::MAX);
    n_slots.max(needed_slots(plan, options))
}

/// Slots without which one token cannot pass through a layer.
fn needed_slots(plan: &Plan, options: &StoreOptions) -> usize {
    let largest =
        plan.bank().layers.iter().flatten().map(|layer| layer.n_experts).max().unwrap_or(0);
    options.top_k.min(largest)
}

fn check_budget(plan: &Plan, options: &StoreOptions, budget: u64) -> Result<(), StoreError> {
    let (top_k, record) = (needed_slots(plan, options), plan.slot_bytes());
    let needed = top_k.max(1) as u64 * record as u64;
    if budget < needed {
        return Err(StoreError::BudgetTooSmall { budget, needed, top_k, record });
    }
    Ok(())
}
