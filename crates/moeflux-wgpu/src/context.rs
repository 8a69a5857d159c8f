//! The adapter, the device that was opened on it, and what went wrong there.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

use moeflux_backend::DeviceError;
use wgpu::{
    Adapter, Backends, Buffer, BufferDescriptor, BufferUsages, CooperativeMatrixProperties,
    CooperativeScalarType, DeviceDescriptor, DeviceType, ExperimentalFeatures, Features, Instance,
    InstanceDescriptor, Limits, MemoryBudgetThresholds,
};

use crate::experimental;
use crate::imports::{self, Reach};
use crate::pipelines::Pipelines;
use crate::tuning::table::Tuned;

/// Share of the memory that the system grants this process, in percent, after
/// which buffers are refused: the rest is for the driver.
const MEMORY_SHARE: u8 = 92;

/// Lanes that every subgroup must at least have.
const MIN_SUBGROUP: u32 = 4;

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

/// One GPU of this machine.
#[derive(Clone, Debug)]
pub struct AdapterFacts {
    /// What its maker calls it.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// The interface it is reached by: `vulkan`, `metal` or `dx12`.
    pub api: String,
    /// Vendor and device, as the system numbers them.
    pub id: (u32, u32),
    /// What kind of device it is.
    pub kind: &'static str,
    /// Lanes of its subgroups, fewest and most.
    pub subgroup_sizes: (u32, u32),
    /// Bytes of the largest buffer.
    pub max_buffer_bytes: u64,
    /// Bytes that a kernel sees through one binding.
    pub max_binding_bytes: u64,
    /// Whether it computes with halves.
    pub has_f16: bool,
    /// Whether it shares the processor's memory.
    pub is_unified: bool,
    /// Bytes of its own memory, or of what it shares; `None` where its interface does
    /// not tell.
    pub memory_bytes: Option<u64>,
    /// Whether kernels read the processor's memory where it lies.
    pub reads_host: bool,
    /// What keeps the kernels from running there, if anything.
    pub lacks: Option<String>,
}

impl AdapterFacts {
    /// Whether the processor plays its part.
    pub fn is_software(&self) -> bool {
        self.kind == SOFTWARE
    }
}

const SOFTWARE: &str = "software";

/// An opened device. Backends share it.
#[derive(Debug)]
pub struct Context {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: Limits,
    /// Lanes that a group of lanes may count on.
    pub(crate) lanes: u32,
    /// Whether kernels may compute with halves.
    pub(crate) has_halves: bool,
    /// Whether there are units for matrices of halves, 16 by 16 by 16.
    pub(crate) has_matrix_units: bool,
    /// Whether these were right when they were tried.
    pub(crate) units_are_right: OnceLock<bool>,
    /// Whether the device can note when it was where.
    pub(crate) has_clock: bool,
    /// Whether kernels may read buffers that the host writes.
    pub(crate) reads_mapped: bool,
    /// Of what the addresses and lengths of slabs have to be multiples for kernels
    /// to read them; `None` where they cannot.
    pub(crate) slab_alignment: Option<u64>,
    pub(crate) pipelines: Mutex<Pipelines>,
    /// What was measured there.
    pub(crate) tuned: RwLock<Tuned>,
    faults: Arc<Faults>,
    facts: AdapterFacts,
    /// Bytes from which on it pretends that no memory is left.
    #[cfg(test)]
    pub(crate) refused: std::sync::atomic::AtomicU64,
}

/// A buffer that is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) bytes: u64,
    pub(crate) usage: BufferUsages,
    pub(crate) label: &'static str,
    /// Whether the host writes it first.
    pub(crate) is_mapped: bool,
}

/// What the device reported since somebody last asked.
#[derive(Debug, Default)]
struct Faults(Mutex<FaultState>);

#[derive(Debug, Default)]
struct FaultState {
    /// Stays: nothing works after it.
    lost: Option<String>,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, reason: String) {
        self.lock().lost.get_or_insert(reason);
    }
}

/// Every GPU of this machine, the best first.
pub fn adapters() -> Vec<AdapterFacts> {
    enumerate().iter().map(facts).collect()
}

/// The process's one connection to its drivers: drivers hand out only so many,
/// and not all of them take one back.
fn instance() -> &'static Instance {
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    INSTANCE.get_or_init(new_instance)
}

fn new_instance() -> Instance {
    let memory_budget_thresholds =
        MemoryBudgetThresholds { for_resource_creation: Some(MEMORY_SHARE), for_device_loss: None };
    let backends = Backends::VULKAN | Backends::METAL | Backends::DX12;
    let plain = InstanceDescriptor::new_without_display_handle();
    Instance::new(InstanceDescriptor { backends, memory_budget_thresholds, ..plain })
}

/// Held while drivers list devices or open one: some hang where threads ask for
/// both at a time.
fn driver() -> MutexGuard<'static, ()> {
    static DRIVER: Mutex<()> = Mutex::new(());
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn enumerate() -> Vec<Adapter> {
    let _driver = driver();
    let mut all = pollster::block_on(instance().enumerate_adapters(Backends::all()));
    all.sort_by_key(|it| match it.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    all
}

fn facts(adapter: &Adapter) -> AdapterFacts {
    let info = adapter.get_info();
    let limits = adapter.limits();
    let features = adapter.features();
    let kind = match info.device_type {
        DeviceType::DiscreteGpu => "discrete",
        DeviceType::IntegratedGpu => "integrated",
        DeviceType::VirtualGpu => "virtual",
        DeviceType::Other => "of unknown kind",
        DeviceType::Cpu => SOFTWARE,
    };
    let lacks = lacks(features, &limits, info.subgroup_min_size);
    AdapterFacts {
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        api: info.backend.to_string(),
        id: (info.vendor, info.device),
        kind,
        subgroup_sizes: (info.subgroup_min_size, info.subgroup_max_size),
        max_buffer_bytes: limits.max_buffer_size,
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        has_f16: features.contains(Features::SHADER_F16),
        is_unified: matches!(info.device_type, DeviceType::IntegratedGpu | DeviceType::Cpu),
        memory_bytes: imports::own_memory(adapter),
        reads_host: imports::alignment(adapter).is_some(),
        lacks,
        name: info.name,
    }
}

/// Workgroup memory that kernels use, in bytes.
pub(crate) const WORKGROUP_BYTES: u32 = 16 << 10;
/// The same of `matmul_halves.wgsl` and `attention_halves.wgsl`.
pub(crate) const MATRIX_UNITS_BYTES: u32 = 47 << 10;
/// Threads of the largest workgroup.
pub(crate) const WORKGROUP_THREADS: u32 = 256;
/// Buffers that a kernel reads or writes, its parameters aside.
pub(crate) const STORAGE_BINDINGS: u32 = 8;
/// The same of kernels that stand for several, where the device allows so many.
pub(crate) const MOST_BINDINGS: u32 = 10;
/// Bytes that a binding must at least reach.
const BINDING_BYTES: u64 = 128 << 20;

pub(crate) fn lacks(features: Features, limits: &Limits, subgroup_min_size: u32) -> Option<String> {
    let short = |what: &str, has: u64, needs: u64| {
        (has < needs).then(|| format!("{what} {has} of {needs} needed"))
    };
    if !features.contains(Features::SUBGROUP) {
        return Some(String::from("it has no subgroup operations"));
    }
    short("lanes of a subgroup:", subgroup_min_size.into(), MIN_SUBGROUP.into())
        .or_else(|| {
            let has = limits.max_compute_workgroup_storage_size;
            short("bytes of workgroup memory:", has.into(), WORKGROUP_BYTES.into())
        })
        .or_else(|| {
            let has = limits.max_compute_invocations_per_workgroup;
            short("threads of a workgroup:", has.into(), WORKGROUP_THREADS.into())
        })
        .or_else(|| {
            let has = limits.max_storage_buffers_per_shader_stage;
            short("buffers of a kernel:", has.into(), STORAGE_BINDINGS.into())
        })
        .or_else(|| {
            let has = limits.max_storage_buffer_binding_size;
            short("bytes of a binding:", has, BINDING_BYTES)
        })
}

/// Whether `matmul_halves.wgsl` runs there.
fn has_matrix_units(adapter: &Adapter) -> bool {
    let info = adapter.get_info();
    let is_listed = |it: &CooperativeMatrixProperties| {
        let is_of_halves = it.ab_type == CooperativeScalarType::F16;
        let sums_singles = it.cr_type == CooperativeScalarType::F32;
        (it.m_size, it.n_size, it.k_size) == (16, 16, 16) && is_of_halves && sums_singles
    };
    adapter.features().contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX)
        && (info.subgroup_min_size, info.subgroup_max_size) == (32, 32)
        && adapter.limits().max_compute_workgroup_storage_size >= MATRIX_UNITS_BYTES
        && adapter.cooperative_matrix_properties().iter().any(is_listed)
}

impl Context {
    /// Opens the GPU of that number, as [`adapters`] counts them, or the best.
    /// One that is open and works is shared, with its compiled kernels; it is
    /// closed when nobody has it any more.
    ///
    /// # Errors
    /// Where there is none, or it cannot run the kernels.
    pub fn open(index: Option<usize>) -> Result<Arc<Context>, OpenError> {
        static OPEN: Mutex<Vec<(usize, Weak<Context>)>> = Mutex::new(Vec::new());
        let mut all = enumerate();
        let n = all.len();
        let usable = || all.iter().position(|it| facts(it).lacks.is_none());
        let at = match index {
            Some(index) if index >= n => return Err(OpenError::NoSuchAdapter { index, n }),
            Some(index) => index,
            None if n == 0 => return Err(OpenError::NoAdapter),
            None => usable().unwrap_or(0),
        };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.iter().find(|it| it.0 == at).and_then(|it| it.1.upgrade());
        if let Some(context) = known.filter(|it| it.check().is_ok()) {
            return Ok(context);
        }
        let context = Context::open_anew(&all.swap_remove(at))?;
        open.retain(|it| it.0 != at);
        open.push((at, Arc::downgrade(&context)));
        Ok(context)
    }

    /// A device of its own.
    pub(crate) fn open_anew(adapter: &Adapter) -> Result<Arc<Context>, OpenError> {
        let _driver = driver();
        let facts = facts(adapter);
        if let Some(lacks) = &facts.lacks {
            return Err(OpenError::Lacks { name: facts.name.clone(), lacks: lacks.clone() });
        }
        let limits = adapter.limits();
        let clock = Features::TIMESTAMP_QUERY | Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
        let has_clock = adapter.features().contains(clock);
        let has_halves = facts.has_f16;
        let has_matrix_units = has_halves && has_matrix_units(adapter);
        // Elsewhere such buffers lie where kernels read slowly, or are not tried.
        let reads_mapped = adapter.get_info().backend == wgpu::Backend::Vulkan
            && adapter.features().contains(Features::MAPPABLE_PRIMARY_BUFFERS);
        let mut required_features = Features::SUBGROUP;
        required_features.set(Features::MAPPABLE_PRIMARY_BUFFERS, reads_mapped);
        required_features.set(clock, has_clock);
        required_features.set(Features::SHADER_F16, has_halves);
        required_features.set(Features::EXPERIMENTAL_COOPERATIVE_MATRIX, has_matrix_units);
        let descriptor = DeviceDescriptor {
            label: Some("moeflux"),
            required_features,
            required_limits: limits.clone(),
            experimental_features: if has_matrix_units {
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
        Ok(Arc::new(Context {
            device,
            queue,
            limits,
            lanes: facts.subgroup_sizes.0.min(32),
            has_halves,
            has_matrix_units,
            units_are_right: OnceLock::new(),
            has_clock,
            reads_mapped,
            slab_alignment,
            pipelines: Mutex::new(Pipelines::default()),
            tuned: RwLock::default(),
            faults,
            facts,
            #[cfg(test)]
            refused: u64::MAX.into(),
        }))
    }

    /// Whether kernels may read and write as many buffers as several that they
    /// stand for.
    pub(crate) fn has_many_bindings(&self) -> bool {
        self.limits.max_storage_buffers_per_shader_stage >= MOST_BINDINGS
    }

    /// How experts come from the host's memory to kernels.
    pub(crate) fn reach(&self) -> Reach {
        match self.slab_alignment {
            None => Reach::Written,
            Some(_) if self.facts.is_unified => Reach::InPlace,
            Some(_) => Reach::Fetched,
        }
    }

    /// What was opened.
    pub fn facts(&self) -> &AdapterFacts {
        &self.facts
    }

    /// Most bytes of a buffer that kernels see as a whole.
    pub fn max_binding_bytes(&self) -> u64 {
        let binding = self.limits.max_storage_buffer_binding_size;
        // Kernels count words in 32 bits.
        binding.min(self.limits.max_buffer_size).min(4 << 30) & !255
    }

    /// A buffer of at least four bytes, and whether there is memory for it. One
    /// without is good for nothing, and no fault of the device.
    pub(crate) fn buffer(&self, order: Order) -> (Buffer, bool) {
        let Order { bytes, usage, label, is_mapped } = order;
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&BufferDescriptor {
            label: Some(label),
            size: bytes.next_multiple_of(4).max(4),
            usage,
            mapped_at_creation: is_mapped,
        });
        let is_there = pollster::block_on(scope.pop()).is_none();
        #[cfg(test)]
        let is_there =
            is_there && order.bytes < self.refused.load(std::sync::atomic::Ordering::Relaxed);
        (buffer, is_there)
    }

    /// As above, or nothing.
    pub(crate) fn try_buffer(&self, order: Order) -> Option<Buffer> {
        let (buffer, is_there) = self.buffer(order);
        is_there.then_some(buffer)
    }

    /// A buffer for kernels, or nothing; what it holds is zero.
    pub(crate) fn try_storage(&self, bytes: u64, label: &'static str) -> Option<Buffer> {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
        self.try_buffer(Order { bytes, usage, label, is_mapped: false })
    }

    /// What went wrong, if anything; a lost device stays lost.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        match &self.faults.lock().lost {
            Some(reason) => Err(DeviceError::Lost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Notes that the device has stopped answering.
    pub(crate) fn lose(&self, reason: String) {
        self.faults.lose(reason);
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
