//! An opened device, shared by its backends.

use crate::device::adapter::AdapterFacts;
use crate::device::adapter::MOST_BINDINGS;
use crate::device::adapter::MOST_BYTES;
use crate::device::adapter::driver;
use crate::device::adapter::enumerate;
use crate::device::adapter::facts;
use crate::device::buffer::BufferDesc;
use crate::device::faults::Faults;
use crate::device::faults::one_line;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use moeflux_backend::DeviceError;
use wgpu::{
    Adapter, Buffer, BufferDescriptor, BufferUsages, DeviceDescriptor, ExperimentalFeatures,
    Features, Limits,
};

use crate::device::experimental;
use crate::device::imports;
use crate::device::imports::host_access::HostAccess;
use crate::device::lanes;
use crate::device::profile::{CLOCK, Profile};
use crate::device::work::Pace;
use crate::kernels::kernel::Variant;
use crate::kernels::pipelines::{Pipeline, Pipelines};
use crate::layouts::table::Tuned;

/// Why no device could be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none.
    #[error("no GPU was found: a driver for Vulkan, Metal or DirectX 12 is needed")]
    NoAdapter,
    /// There is none of that number.
    #[error("there is no GPU {index}: {n} were found, counted from 0")]
    NoSuchAdapter {
        /// What was asked for.
        index: usize,
        /// How many there are.
        n: usize,
    },
    /// It lacks what the kernels need.
    #[error("GPU {name:?} cannot run the kernels: {lacks}")]
    Lacks {
        /// What it is called.
        name: String,
        /// What is missing.
        lacks: String,
    },
    /// The driver refused.
    #[error("GPU {name:?} could not be opened")]
    Device {
        /// What it is called.
        name: String,
        /// What the driver said.
        source: wgpu::RequestDeviceError,
    },
}

/// An opened device. Backends share it.
#[derive(Debug)]
pub struct Context {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: Limits,
    /// Lanes that a group of lanes may count on.
    pub(crate) lanes: u32,
    /// Whether kernels may compute with halves.
    pub(crate) has_f16: bool,
    /// Whether there are cooperative matrices of f16, 16 by 16 by 16.
    pub(crate) has_coop_matrix: bool,
    /// Whether these were right when they were tried.
    pub(crate) coop_matrix_is_right: OnceLock<bool>,
    /// Whether the device can note when it was where.
    pub(crate) has_clock: bool,
    /// Whether kernels may read buffers that the host writes.
    pub(crate) reads_mapped: bool,
    /// Of what the addresses and lengths of slabs have to be multiples for kernels
    /// to read them; `None` where they cannot.
    pub(crate) slab_alignment: Option<u64>,
    /// Set where the system gives up submissions that take long.
    pub(crate) pace: Option<Pace>,
    pub(crate) pipelines: Mutex<Pipelines>,
    /// What was measured there.
    pub(crate) tuned: Tuned,
    faults: Arc<Faults>,
    facts: AdapterFacts,
    /// Bytes from which on it pretends that no memory is left.
    #[cfg(test)]
    pub(crate) refused: std::sync::atomic::AtomicU64,
    /// Counts submissions down to one that is left out.
    #[cfg(test)]
    pub(crate) left_out_in: std::sync::atomic::AtomicU32,
}

impl Context {
    /// Opens the GPU of an index, as [`adapters`](crate::adapters) counts them, or the best. A device
    /// that is open and works is shared, with its compiled kernels; it is closed with its last owner.
    ///
    /// # Errors
    /// Where there is no such GPU, or it cannot run the kernels.
    pub fn open(index: Option<usize>) -> Result<Arc<Context>, OpenError> {
        static OPEN: Mutex<Vec<(usize, Weak<Context>)>> = Mutex::new(Vec::new());
        let mut all = enumerate();
        let n = all.len();
        let usable = || all.iter().position(|adapter| facts(adapter).lacks.is_none());
        let at = match index {
            Some(index) if index >= n => return Err(OpenError::NoSuchAdapter { index, n }),
            Some(index) => index,
            None if n == 0 => return Err(OpenError::NoAdapter),
            None => usable().unwrap_or(0),
        };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.iter().find(|(known, _)| *known == at);
        let known = known.and_then(|(_, context)| context.upgrade());
        if let Some(context) = known.filter(|context| context.check().is_ok()) {
            return Ok(context);
        }
        let context = Context::open_anew(&all.swap_remove(at))?;
        open.retain(|(known, _)| *known != at);
        open.push((at, Arc::downgrade(&context)));
        Ok(context)
    }

    /// Opens a device that is not shared.
    pub(crate) fn open_anew(adapter: &Adapter) -> Result<Arc<Context>, OpenError> {
        Context::open_with(adapter, Profile::of(adapter))
    }

    /// Opens a device that is not shared and has this profile.
    pub(crate) fn open_with(
        adapter: &Adapter,
        profile: Profile,
    ) -> Result<Arc<Context>, OpenError> {
        let Profile { limits, has_f16, has_coop_matrix, has_clock, reads_mapped, pace } = profile;
        let _driver = driver();
        let facts = facts(adapter);
        if let Some(lacks) = &facts.lacks {
            return Err(OpenError::Lacks { name: facts.name.clone(), lacks: lacks.clone() });
        }
        let mut required_features = Features::SUBGROUP;
        required_features.set(Features::MAPPABLE_PRIMARY_BUFFERS, reads_mapped);
        required_features.set(CLOCK, has_clock);
        required_features.set(Features::SHADER_F16, has_f16);
        required_features.set(Features::EXPERIMENTAL_COOPERATIVE_MATRIX, has_coop_matrix);
        let descriptor = DeviceDescriptor {
            label: Some("moeflux"),
            required_features,
            required_limits: limits.clone(),
            experimental_features: if has_coop_matrix {
                experimental::features()
            } else {
                ExperimentalFeatures::disabled()
            },
            ..DeviceDescriptor::default()
        };
        let (device, queue, slab_alignment) = imports::open(adapter, &descriptor)
            .map_err(|source| OpenError::Device { name: facts.name.clone(), source })?;
        let faults = Arc::new(Faults::default());
        let seen = Arc::clone(&faults);
        // Buffers are made in scopes that tell who is short of memory.
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            seen.lose(one_line(&error.to_string()));
        }));
        let seen = Arc::clone(&faults);
        device.set_device_lost_callback(move |_, reason| seen.lose(one_line(&reason)));
        let (assumed, reported) = (facts.subgroup_sizes.0, adapter.get_info().subgroup_min_size);
        let lanes = lanes::reliable(assumed, reported, || lanes::seen(&device, &queue));
        Ok(Arc::new(Context {
            device,
            queue,
            limits,
            lanes,
            has_f16,
            has_coop_matrix,
            coop_matrix_is_right: OnceLock::new(),
            has_clock,
            reads_mapped,
            pace,
            slab_alignment,
            pipelines: Mutex::new(Pipelines::default()),
            tuned: Tuned::default(),
            faults,
            facts,
            #[cfg(test)]
            refused: u64::MAX.into(),
            #[cfg(test)]
            left_out_in: 0.into(),
        }))
    }

    /// Whether kernels may read and write as many buffers as several that they
    /// stand for.
    pub(crate) fn has_many_bindings(&self) -> bool {
        self.limits.max_storage_buffers_per_shader_stage >= MOST_BINDINGS
    }

    /// How experts come from the host's memory to kernels.
    pub(crate) fn host_access(&self) -> HostAccess {
        match self.slab_alignment {
            None => HostAccess::Written,
            Some(_) if self.facts.is_unified => HostAccess::InPlace,
            Some(_) => HostAccess::Fetched,
        }
    }

    /// A compiled kernel.
    pub(crate) fn pipeline(&self, variant: Variant) -> Arc<Pipeline> {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        pipelines.get(&self.device, self.lanes, variant)
    }

    /// What was opened.
    pub fn facts(&self) -> &AdapterFacts {
        &self.facts
    }

    /// Most bytes of a buffer that kernels see as a whole.
    pub fn max_binding_bytes(&self) -> u64 {
        let binding = self.limits.max_storage_buffer_binding_size;
        // Kernels count words in 32 bits.
        binding.min(self.limits.max_buffer_size).min(MOST_BYTES) & !255
    }

    /// A buffer of at least four bytes, and whether there is memory for it. One
    /// without is good for nothing, and no fault of the device.
    pub(crate) fn buffer(&self, desc: BufferDesc) -> (Buffer, bool) {
        let BufferDesc { bytes, usage, label, is_mapped } = desc;
        // What exceeds the limit is refused as what exceeds the memory is.
        let fits = bytes <= self.limits.max_buffer_size && imports::has_room(&self.device, bytes);
        let bytes = if fits { bytes } else { 0 };
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&BufferDescriptor {
            label: Some(label),
            size: bytes.next_multiple_of(4).max(4),
            usage,
            mapped_at_creation: is_mapped,
        });
        let is_there = pollster::block_on(scope.pop()).is_none() && fits;
        #[cfg(test)]
        let is_there =
            is_there && desc.bytes < self.refused.load(std::sync::atomic::Ordering::Relaxed);
        (buffer, is_there)
    }

    /// A buffer of at least four bytes, or `None` where there is no memory.
    pub(crate) fn try_buffer(&self, desc: BufferDesc) -> Option<Buffer> {
        let (buffer, is_there) = self.buffer(desc);
        is_there.then_some(buffer)
    }

    /// A buffer for kernels, or nothing; what it holds is zero.
    pub(crate) fn try_storage(&self, bytes: u64, label: &'static str) -> Option<Buffer> {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
        self.try_buffer(BufferDesc { bytes, usage, label, is_mapped: false })
    }

    /// Whether the device still answers.
    ///
    /// # Errors
    /// What went wrong; a lost device stays lost.
    pub fn check(&self) -> Result<(), DeviceError> {
        match &self.faults.lock().lost {
            Some(reason) => Err(DeviceError::Lost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Whether the next submission is to be left out.
    #[cfg(test)]
    pub(crate) fn takes_left_out(&self) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        let before = self.left_out_in.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        before == Ok(1)
    }

    /// Notes that the device has stopped answering.
    pub(crate) fn lose(&self, reason: String) {
        self.faults.lose(reason);
    }
}
