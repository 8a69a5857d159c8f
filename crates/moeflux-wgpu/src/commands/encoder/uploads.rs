//! The ways of experts to the device: a kernel fetches them from where the store
//! has put them, or threads write them into mapped buffers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moeflux_core::Expert;
use moeflux_residency::{PackedExpert, Packing, Slot, Staged};
use wgpu::PollType;

use crate::commands::encoder::{Encoder, Fault};
use crate::commands::grid::Grid;
use crate::device::buffer::{Mem, MemAt};
use crate::device::imports::host_access::HostAccess;
use crate::device::imports::slabs::ImportedRange;
use crate::experts::gather::{GATHER_THREADS, Part, PendingUpload, parts, places_of, source_words};
use crate::kernels::basic::BufferCopy;
use crate::kernels::moe::ExpertGather;
use crate::words::word;

/// How often slabs are looked at that the store may have given up. Some hundred are
/// too many for each layer of a token.
const IMPORT_CHECK: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 100 });

/// Experts that one kernel brings: what it reads of them is in the arena.
const MAX_PENDING: usize = 256;

impl Encoder {
    /// Copies an expert into a slot, in order with the kernels: what was recorded before reads what
    /// was there before. False where that failed.
    pub(crate) fn upload(
        &mut self,
        expert: &Arc<Expert>,
        packing: &Arc<Packing>,
        slot: &Slot<Mem>,
    ) -> bool {
        if self.is_out_of_memory() {
            return false;
        }
        if self.fetch(expert, packing, slot) {
            self.counters.add_upload();
            return true;
        }
        let (staging, at) = loop {
            match self.uploads.staging.stage(expert, packing) {
                Staged::At { buffer, at } => break (buffer, at),
                Staged::AfterSubmit => self.submit(),
                Staged::NoMemory(bytes) => {
                    self.report_out_of_memory(Fault { bytes, is_lasting: false });
                    return false;
                }
            }
        };
        self.place(staging.at(at), slot.buffer.at(slot.at as u64), packing.bytes() as u64);
        self.counters.add_upload();
        true
    }

    /// As [`copy`](Encoder::copy), of multiples of 16 bytes from a staging buffer:
    /// a kernel where it may read these, as a command for copying waits for all
    /// that the host is writing meanwhile.
    fn place(&mut self, from: MemAt<'_>, to: MemAt<'_>, bytes: u64) {
        if !self.context.reads_mapped {
            return self.copy(from, to, bytes);
        }
        let params = [from.at, to.at, bytes]
            .map(|bytes| u32::try_from(bytes / 16).expect("bindings are counted in 32 bits"));
        let n = (bytes / 16).div_ceil(2048) as usize;
        self.dispatch(BufferCopy {}, &params, &[from.mem, to.mem], Grid::Linear(n));
    }

    /// Begins to write experts that are about to be uploaded, as far as there is
    /// room for them.
    pub(crate) fn begin_uploads(&mut self, experts: &[PackedExpert]) {
        if !self.is_out_of_memory() {
            self.uploads.staging.begin(experts);
        }
    }

    /// Has a kernel bring an expert to a place in a buffer; false where the device
    /// cannot read it, or it has to be changed on its way.
    fn fetch(&mut self, expert: &Arc<Expert>, packing: &Packing, slot: &Slot<Mem>) -> bool {
        if self.uploads.host_access == HostAccess::Written {
            return false;
        }
        let Some((from, parts)) = self.parts(expert, packing) else { return false };
        let (to, first) = (&slot.buffer, word(slot.at / 16));
        let is_taken = |upload: &PendingUpload| upload.to == *to && upload.source[0] == first;
        if self.uploads.pending.len() >= MAX_PENDING || self.uploads.pending.iter().any(is_taken) {
            self.record_pending_uploads();
        }
        let (source, places) = (source_words(first, &parts), places_of(&parts));
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
            let words: Vec<u32> = those.iter().flat_map(|upload| upload.source).collect();
            let mut params = vec![word(places.len()), self.list(&words), word(those.len()), 0];
            params.extend(places.iter().flat_map(|[to, end]| [*to, *end, 0, 0]));
            let size = places.last().map_or(0, |[_, end]| *end) as usize;
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
        self.uploads.staging.n_buffers() > 0
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
