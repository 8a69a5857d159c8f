//! The ways of experts to the device: a kernel fetches them from where the store
//! has put them, or threads write them into mapped buffers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moeflux_core::Expert;
use wgpu::PollType;

use crate::commands::encoder::{Encoder, Fault};
use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::device::imports::host_access::HostAccess;
use crate::device::imports::slabs::ImportedRange;
use crate::experts::gather::{GATHER_THREADS, Part, PendingUpload, parts, places_of, source_words};
use crate::experts::packing::Packing;
use crate::experts::staging::Origin;
use crate::kernels::basic::BufferCopy;
use crate::kernels::moe::ExpertGather;
use crate::words::word;

/// How often slabs are looked at that the store may have given up. Some hundred are
/// too many for each layer of a token.
const IMPORT_CHECK: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 100 });

/// Experts that one kernel brings: what it reads of them is in the arena.
const MAX_PENDING: usize = 256;

impl Encoder {
    /// Brings an expert to a place in a buffer, in order with the kernels: what
    /// was recorded before reads what was there before. False where that failed.
    pub(crate) fn upload(
        &mut self,
        expert: &Arc<Expert>,
        packing: &Arc<Packing>,
        to: (&Mem, u64),
    ) -> bool {
        if self.is_out_of_memory() {
            return false;
        }
        if self.fetch(expert, packing, to) {
            self.counters.add_upload();
            return true;
        }
        let context = Arc::clone(&self.context);
        let (staging, at) = loop {
            match self.uploads.staging.stage(&context, (expert, packing)) {
                Origin::At(mem, at) => break (mem, at),
                Origin::AfterSubmit => self.submit(),
                Origin::None(bytes) => {
                    self.report_out_of_memory(Fault { bytes, is_lasting: false });
                    return false;
                }
            }
        };
        self.place((&staging, at), to, packing.bytes() as u64);
        self.counters.add_upload();
        true
    }

    /// As [`copy`](Encoder::copy), of multiples of 16 bytes from a staging buffer:
    /// a kernel where it may read these, as a command for copying waits for all
    /// that the host is writing meanwhile.
    fn place(&mut self, from: (&Mem, u64), to: (&Mem, u64), bytes: u64) {
        if !self.context.reads_mapped {
            return self.copy(from, to, bytes);
        }
        let word = |it: u64| u32::try_from(it / 16).expect("bindings are counted in 32 bits");
        let params = [word(from.1), word(to.1), word(bytes)];
        let n = (bytes / 16).div_ceil(2048) as usize;
        self.dispatch(BufferCopy {}, &params, &[from.0, to.0], Grid::Linear(n));
    }

    /// Begins to write experts that are about to be uploaded, as far as there is
    /// room for them.
    pub(crate) fn begin_uploads(&mut self, experts: &[(Arc<Expert>, Arc<Packing>)]) {
        if !self.is_out_of_memory() {
            self.uploads.staging.begin(&self.context, experts);
        }
    }

    /// Has a kernel bring an expert to a place in a buffer; false where the device
    /// cannot read it, or it has to be changed on its way.
    fn fetch(&mut self, expert: &Arc<Expert>, packing: &Packing, (to, at): (&Mem, u64)) -> bool {
        if self.uploads.host_access == HostAccess::Written {
            return false;
        }
        let Some((from, parts)) = self.parts(expert, packing) else { return false };
        let slot = u32::try_from(at / 16).expect("bindings are counted in 32 bits");
        let is_taken = |it: &PendingUpload| it.to.id == to.id && it.source[0] == slot;
        if self.uploads.pending.len() >= MAX_PENDING || self.uploads.pending.iter().any(is_taken) {
            self.record_pending_uploads();
        }
        let (source, places) = (source_words(slot, &parts), places_of(&parts));
        self.uploads.pending.push(PendingUpload { from, to: to.clone(), places, source });
        self.recording.n_recorded += 1;
        self.retain(expert);
        self.counters.add_uploaded_bytes(packing.bytes() as u64);
        true
    }

    /// Records the kernels that bring what is to come, before anything else is recorded:
    /// together they are quicker than one by one.
    pub(super) fn record_pending_uploads(&mut self) {
        if self.uploads.pending.is_empty() {
            return;
        }
        let mut pending = std::mem::take(&mut self.uploads.pending);
        pending.sort_by_key(PendingUpload::buffers);
        for those in pending.chunk_by(|a, b| a.buffers() == b.buffers() && a.places == b.places) {
            let PendingUpload { from, to, places, .. } = &those[0];
            let words: Vec<u32> = those.iter().flat_map(|it| it.source).collect();
            let mut params = vec![word(places.len()), self.list(&words), word(those.len()), 0];
            params.extend(places.iter().flat_map(|[to, end]| [*to, *end, 0, 0]));
            let size = places.last().map_or(0, |it| it[1]) as usize;
            let arena = self.arena();
            let grid = Grid::Plane(size.div_ceil(GATHER_THREADS), those.len());
            self.dispatch(ExpertGather {}, &params, &[&arena, to, from], grid);
        }
        pending.clear();
        self.uploads.pending = pending;
    }

    /// What of an expert a kernel brings where, and from which buffer, if it can.
    pub(crate) fn parts(&mut self, expert: &Expert, packing: &Packing) -> Option<(Mem, Vec<Part>)> {
        let imported = self.imported(expert)?;
        let parts = parts(&imported, packing)?;
        Some((imported.mem, parts))
    }

    /// Where the device reads an expert in the host's memory, if it can.
    pub(crate) fn imported(&mut self, expert: &Expert) -> Option<ImportedRange> {
        self.uploads.imports.find(&self.context, expert)
    }

    /// How experts come from the host's memory to kernels.
    pub(crate) fn host_access(&self) -> HostAccess {
        self.uploads.host_access
    }

    /// Bytes of slabs of the host that kernels read.
    #[cfg(test)]
    pub(crate) fn imported_bytes(&self) -> u64 {
        self.uploads.imports.bytes()
    }

    /// Whether threads wrote experts.
    #[cfg(test)]
    pub(crate) fn has_staged(&self) -> bool {
        self.uploads.staging.n_made() > 0
    }

    /// Has experts come this way, as far as the device can.
    pub(crate) fn set_host_access(&mut self, host_access: HostAccess) {
        self.uploads.host_access = host_access;
    }

    /// Keeps an expert until the device has done what is recorded.
    pub(crate) fn retain(&mut self, expert: &Arc<Expert>) {
        self.uploads.in_use.push(Arc::clone(expert));
    }

    /// Returns when at most this many experts are kept for the device.
    pub(crate) fn release_experts(&mut self, at_most: usize) {
        if self.uploads.in_use.len() <= at_most {
            return;
        }
        self.submit_now();
        if let Err(err) = self.context.device.poll(PollType::wait_indefinitely()) {
            self.context.lose(format!("waiting failed: {err}"));
        }
        self.on_idle();
    }

    /// Lets go of what the device needed, which has done all that was recorded.
    pub(super) fn on_idle(&mut self) {
        self.uploads.in_use.clear();
        if self.uploads.last_import_check.elapsed() < IMPORT_CHECK {
            return;
        }
        self.uploads.last_import_check = Instant::now();
        for mem in self.uploads.imports.take_unused() {
            self.forget(&mem);
        }
    }
}
