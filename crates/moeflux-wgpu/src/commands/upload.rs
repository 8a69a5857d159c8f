//! The ways of weights to the device: a kernel fetches experts from where the store
//! has put them, or threads write what is uploaded into mapped buffers.

use std::sync::Arc;
use std::thread;

use moeflux_core::Expert;
use moeflux_core::threads::share_out;
use moeflux_residency::{BUFFER_BYTES, Packing, Slot, Staged};
use wgpu::PollType;

use crate::commands::encoder::Encoder;
use crate::commands::gather::{PendingUpload, places_of, source_words};
use crate::commands::grid::Grid;
use crate::device::buffer::{Mem, MemAt};
use crate::device::imports::host_access::HostAccess;
use crate::kernels::basic::BufferCopy;
use crate::words::word;

/// Experts that one kernel brings: what it reads of them is in the arena.
const MAX_PENDING: usize = 256;

/// Bytes that another thread writes, where there are this many: copies from cold memory are what takes
/// time.
const PART_BYTES: usize = 1 << 20;

/// Threads that write bytes. More do not saturate a bus sooner.
const MAX_WRITERS: usize = 8;

/// Copies an expert into a slot, in order with the kernels: what was recorded before reads what
/// was there before. False where that failed.
pub(crate) fn upload(
    encoder: &mut Encoder,
    expert: &Arc<Expert>,
    packing: &Arc<Packing>,
    slot: &Slot<Mem>,
) -> bool {
    if encoder.buffers.is_out_of_memory() {
        return false;
    }
    if fetch(encoder, expert, packing, slot) {
        encoder.counters.add_upload();
        return true;
    }
    let (staging, at) = loop {
        match encoder.uploads.staging.stage(expert, packing) {
            Staged::At { buffer, at } => break (buffer, at),
            Staged::AfterSubmit => encoder.submit(),
            Staged::NoMemory(bytes) => {
                encoder.buffers.report_out_of_memory(bytes, false);
                return false;
            }
        }
    };
    place(encoder, staging.at(at), slot.buffer.at(slot.at as u64), packing.bytes() as u64);
    encoder.counters.add_upload();
    true
}

/// Copies bytes, a multiple of 16, to a place that is one, too, after everything recorded so far.
/// Several threads write them into mapped buffers, which are used again: the memory of new ones
/// takes longer to come by than to fill. False where there is no memory for such a buffer.
pub(crate) fn upload_bytes(encoder: &mut Encoder, bytes: &[u8], to: MemAt<'_>) -> bool {
    if encoder.buffers.is_out_of_memory() {
        return true;
    }
    for (i, part) in bytes.chunks(BUFFER_BYTES as usize).enumerate() {
        encoder.begin();
        let len = part.len() as u64;
        let (staging, at) = loop {
            match encoder.uploads.staging.reserve(len) {
                Staged::At { buffer, at } => break (buffer, at),
                Staged::AfterSubmit => encoder.submit(),
                Staged::NoMemory(_) => return false,
            }
        };
        write_mapped(encoder, staging.at(at), part);
        place(encoder, staging.at(at), to.mem.at(to.at + i as u64 * BUFFER_BYTES), len);
    }
    true
}

/// Writes bytes into a mapped buffer, on several threads.
fn write_mapped(encoder: &Encoder, to: MemAt<'_>, bytes: &[u8]) {
    let n_cores = thread::available_parallelism().map_or(1, usize::from);
    let parts = bytes.chunks(PART_BYTES).enumerate().collect();
    let write = |(i, part): (usize, &[u8])| {
        let first = to.at + (i * PART_BYTES) as u64;
        let mapped = to.mem.buffer.get_mapped_range_mut(first..first + part.len() as u64);
        mapped.map(|mut view| view.slice(..).copy_from_slice(part))
    };
    let written = share_out((n_cores / 2).clamp(1, MAX_WRITERS), parts, write);
    if let Some(Err(err)) = written.into_iter().find(Result::is_err) {
        encoder.context().lose(format!("staging memory is not there: {err}"));
    }
}

/// As [`Encoder::copy`], of multiples of 16 bytes from a staging buffer:
/// a kernel where it may read these, as a command for copying waits for all
/// that the host is writing meanwhile.
fn place(encoder: &mut Encoder, from: MemAt<'_>, to: MemAt<'_>, bytes: u64) {
    if !encoder.context().reads_mapped {
        return encoder.copy(from, to, bytes);
    }
    let params = [from.at, to.at, bytes]
        .map(|bytes| u32::try_from(bytes / 16).expect("bindings are counted in 32 bits"));
    let n = (bytes / 16).div_ceil(2048) as usize;
    encoder.dispatch(BufferCopy {}, &params, &[from.mem, to.mem], Grid::Linear(n));
}

/// Has a kernel bring an expert to a place in a buffer; false where the device
/// cannot read it, or it has to be changed on its way.
fn fetch(encoder: &mut Encoder, expert: &Arc<Expert>, packing: &Packing, slot: &Slot<Mem>) -> bool {
    if encoder.uploads.host_access == HostAccess::Written {
        return false;
    }
    let Some((from, parts)) = encoder.uploads.parts(expert, packing) else { return false };
    let (to, first) = (&slot.buffer, word(slot.at / 16));
    let is_taken = |upload: &PendingUpload| upload.to == *to && upload.source[0] == first;
    if encoder.uploads.pending.len() >= MAX_PENDING || encoder.uploads.pending.iter().any(is_taken)
    {
        encoder.record_pending_uploads();
    }
    let (source, places) = (source_words(first, &parts), places_of(&parts));
    encoder.uploads.pending.push(PendingUpload { from, to: to.clone(), places, source });
    encoder.recording.n_recorded += 1;
    encoder.uploads.retain(expert);
    encoder.counters.add_uploaded_bytes(packing.bytes() as u64);
    true
}

/// Returns when at most this many experts are kept for the device.
pub(crate) fn release_experts(encoder: &mut Encoder, at_most: usize) {
    let n_in_use = encoder.uploads.in_use.len();
    encoder.uploads.staging.release_experts(at_most.saturating_sub(n_in_use));
    if n_in_use <= at_most {
        return;
    }
    wait_for_device(encoder);
}

/// Submits everything recorded and waits until the device has done it.
pub(super) fn wait_for_device(encoder: &mut Encoder) {
    encoder.submit_now();
    if let Err(err) = encoder.context().device.poll(PollType::wait_indefinitely()) {
        encoder.context().lose(format!("waiting failed: {err}"));
    }
    on_idle(encoder);
}

/// Lets go of what the device needed, which has done all that was recorded.
pub(super) fn on_idle(encoder: &mut Encoder) {
    for mem in encoder.uploads.release() {
        encoder.forget(&mem);
    }
}
