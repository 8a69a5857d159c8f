//! The store as its users see it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use moeflux_core::{ExpertBank, ExpertId, ExpertKey, LayerIdx};

use crate::desk::Desk;
use crate::files::{Files, Native, Opened, Source, System};
use crate::plan::Plan;
use crate::policy::policy;
use crate::reader::Reader;
use crate::slots::Slots;
use crate::{Arrivals, IoMode, SlotAlloc, StoreError, StoreOptions, StoreStats};

/// Hands out routed experts, reading those that are not resident.
///
/// One consumer at a time is the normal case; several are safe, as long as
/// they do not hold all slots between them.
#[derive(Debug)]
pub struct ExpertStore {
    pub(crate) shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
    pub(crate) options: StoreOptions,
    /// By layer.
    is_missing: Vec<bool>,
    warnings: Vec<String>,
}

/// What consumers and readers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) reader: Reader,
    desk: Mutex<Desk>,
    /// Told when a job can start.
    pub(crate) work: Condvar,
    /// Told when a job is done.
    pub(crate) arrived: Condvar,
}

impl ExpertStore {
    /// Opens and checks the files of a bank. `alloc` gives the memory of slots,
    /// up to the budget and only when they are needed; it is not called when
    /// files are mapped.
    ///
    /// # Errors
    /// A file that is missing, not a regular file, of another length than the
    /// bank says, or that cannot be opened, mapped or read directly; a budget below
    /// `options.top_k` slots; no threads.
    ///
    /// # Panics
    /// If an extent of the bank lies outside its file.
    pub fn open(
        bank: ExpertBank,
        alloc: SlotAlloc,
        options: StoreOptions,
    ) -> Result<ExpertStore, StoreError> {
        ExpertStore::open_with(bank, alloc, options, &Native, |files| Box::new(files))
    }

    /// As [`ExpertStore::open`], with `system` in place of the real one and
    /// `source` between the files and whoever reads them.
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
            let Some(file) = files.iter().find(|it| missing.contains(it)) else { continue };
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
                let policy = policy(options.policy, plan.n_experts());
                Some(Slots::new(alloc, plan.slot_bytes(), n_slots, policy))
            }
        };
        let desk = Desk::new(plan.n_experts(), is_missing.len(), slots, options.top_k);
        let shared = Arc::new(Shared {
            reader: Reader::new(plan, source(files), maps),
            desk: Mutex::new(desk),
            work: Condvar::new(),
            arrived: Condvar::new(),
        });
        let mut store = ExpertStore { shared, readers: vec![], options, is_missing, warnings };
        store.spawn_readers()?;
        Ok(store)
    }

    fn spawn_readers(&mut self) -> Result<(), StoreError> {
        let n_readers = self.options.n_readers.max(1);
        for reader in 0..n_readers {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name(format!("expert-reader-{reader}"));
            let thread = thread.spawn(move || shared.serve());
            self.readers.push(thread.map_err(|source| StoreError::Threads { n_readers, source })?);
        }
        Ok(())
    }

    /// Asks for distinct experts of a layer. All that are not resident are read
    /// at the same time, as far as there are slots that nobody holds.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn request(&self, layer: LayerIdx, experts: &[ExpertId]) -> Arrivals<'_> {
        self.request_for(layer, experts.iter().map(|&it| (it, 1)))
    }

    /// As [`ExpertStore::request`], with the number of rows that want each
    /// expert: what many rows want is kept longer.
    ///
    /// # Panics
    /// If the layer or one of the experts does not exist.
    pub fn request_for(
        &self,
        layer: LayerIdx,
        experts: impl ExactSizeIterator<Item = (ExpertId, usize)>,
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
        let (hits, ticket) = shared.lock().request(layer, wanted);
        if ticket.is_some() {
            shared.work.notify_all();
        }
        Arrivals::new(shared, layer, hits, ticket)
    }

    /// The counters.
    pub fn stats(&self) -> StoreStats {
        self.shared.lock().stats()
    }

    /// Sets all counters to zero.
    pub fn reset_stats(&self) {
        self.shared.lock().reset_stats();
    }

    /// What the user should know, one line each.
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

    /// Where the experts lie.
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
        if let Ok(mut desk) = self.shared.desk.lock() {
            desk.close();
        }
        self.shared.work.notify_all();
        for reader in self.readers.drain(..) {
            // A reader that panicked has said so; there is nothing to add.
            let _ = reader.join();
        }
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().expect("no holder of the lock panics")
    }

    /// Runs jobs until the store is dropped.
    fn serve(&self) {
        let mut desk = self.lock();
        while !desk.is_closed() {
            let Some(job) = desk.next_job() else {
                desk = self.work.wait(desk).expect("no holder of the lock panics");
                continue;
            };
            drop(desk);
            let outcome = self.reader.bring(job.target.key, job.buf);
            let layout = &self.reader.plan.layer(job.target.key.layer).layout;
            desk = self.lock();
            if desk.finish(job.target, job.urgency, layout, outcome) {
                self.work.notify_all();
            }
            self.arrived.notify_all();
        }
    }
}

/// Slots that the budget allows, never more than there are experts.
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
    let largest = plan.bank().layers.iter().flatten().map(|it| it.n_experts).max().unwrap_or(0);
    let top_k = options.top_k.min(largest);
    let needed = top_k.max(1) as u64 * slot_bytes;
    if budget < needed {
        return Err(StoreError::BudgetTooSmall {
            budget,
            needed,
            top_k,
            record: plan.slot_bytes(),
        });
    }
    let n_slots = usize::try_from(budget / slot_bytes).unwrap_or(usize::MAX).min(plan.n_experts());
    let n_working = top_k * plan.n_moe_layers();
    if n_slots < n_working {
        let enough = n_working as u64 * slot_bytes;
        warnings.push(format!(
            "the expert cache of {budget} bytes holds {n_slots} experts and one token uses \
             {n_working}: little will be kept from token to token below {enough} bytes"
        ));
    }
    Ok(n_slots)
}
