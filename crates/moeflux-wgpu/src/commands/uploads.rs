//! Experts on their way to the device, and those in the host's memory that it may read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moeflux_backend::DeviceCounters;
use moeflux_core::Expert;
use moeflux_residency::{PackedExpert, Packing, Staging};

use crate::commands::gather::{Part, PendingUpload, parts};
use crate::commands::imports::{ImportedRange, Imports};
use crate::commands::staging::MappedBuffers;
use crate::device::buffer::Mem;
use crate::device::context::Context;
use crate::device::imports::host_access::HostAccess;

/// How often slabs are looked at that the store may have given up. Some hundred are
/// too many for each layer of a token.
const IMPORT_CHECK: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 100 });

/// Experts on their way to the device.
#[derive(Debug)]
pub(crate) struct Uploads {
    context: Arc<Context>,
    pub(super) staging: Staging<MappedBuffers>,
    /// How experts come from the host's memory to kernels, as far as the device can.
    pub(crate) host_access: HostAccess,
    imports: Imports,
    /// When imported slabs were last checked.
    last_import_check: Instant,
    /// Experts that the device may read until it is next waited for.
    pub(super) in_use: Vec<Arc<Expert>>,
    /// Experts that are uploaded before anything else is recorded.
    pub(super) pending: Vec<PendingUpload>,
}

impl Uploads {
    pub(super) fn new(context: Arc<Context>, counters: Arc<DeviceCounters>) -> Uploads {
        Uploads {
            staging: Staging::new(MappedBuffers::new(Arc::clone(&context)), counters),
            host_access: context.host_access(),
            imports: Imports::default(),
            last_import_check: Instant::now(),
            in_use: Vec::new(),
            pending: Vec::new(),
            context,
        }
    }

    /// Begins to write experts that are about to be uploaded, as far as there is
    /// room for them.
    pub(crate) fn begin(&mut self, experts: &[PackedExpert]) {
        self.staging.begin(experts);
    }

    /// What of an expert a kernel brings where, and from which buffer, if it can.
    pub(crate) fn parts(&mut self, expert: &Expert, packing: &Packing) -> Option<(Mem, Vec<Part>)> {
        let imported = self.imported(expert)?;
        let parts = parts(&imported, packing)?;
        Some((imported.mem, parts))
    }

    /// Where the device reads an expert in the host's memory, if it can.
    pub(crate) fn imported(&mut self, expert: &Expert) -> Option<ImportedRange> {
        self.imports.find(&self.context, expert)
    }

    /// Keeps an expert until the device has done what is recorded.
    pub(crate) fn retain(&mut self, expert: &Arc<Expert>) {
        self.in_use.push(Arc::clone(expert));
    }

    /// Lets go of experts that the device needed, which has done all that was recorded; gives the slabs
    /// that the store has freed, at most every [`IMPORT_CHECK`].
    pub(super) fn release(&mut self) -> Vec<Mem> {
        self.in_use.clear();
        if self.last_import_check.elapsed() < IMPORT_CHECK {
            return Vec::new();
        }
        self.last_import_check = Instant::now();
        self.imports.take_unused()
    }

    /// Bytes of slabs of the host that kernels read.
    #[cfg(test)]
    pub(crate) fn imported_bytes(&self) -> u64 {
        self.imports.bytes()
    }

    /// Whether threads wrote experts.
    #[cfg(test)]
    pub(crate) fn has_staged(&self) -> bool {
        self.staging.n_buffers() > 0
    }
}
