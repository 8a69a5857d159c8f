//! The GPUs of this machine and what the kernels need of them.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use wgpu::{
    Adapter, Backend, Backends, CooperativeMatrixProperties, CooperativeScalarType, DeviceType,
    Features, Instance, InstanceDescriptor, Limits, MemoryBudgetThresholds,
};

#[cfg(any(target_os = "linux", target_os = "freebsd"))]
use crate::device::vulkan_instance;
use crate::device::{imports, lanes};

/// Share of the memory that the system grants this process, in percent, after
/// which buffers are refused: the rest is for the driver.
const MEMORY_SHARE: u8 = 92;

/// Lanes that every subgroup must at least have.
const MIN_SUBGROUP: u32 = 4;

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
    /// Bytes of that memory which this process may use now; `None` where its interface does not tell.
    pub free_bytes: Option<u64>,
    /// Whether kernels read the processor's memory where it is.
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

/// Every GPU of this machine, the best first.
pub fn adapters() -> Vec<AdapterFacts> {
    enumerate().iter().map(facts).collect()
}

/// Bytes that this process may use now on a GPU, or on one that calls itself the same: the fewest.
pub(crate) fn free_bytes(facts: &AdapterFacts) -> Option<u64> {
    let all = adapters().into_iter();
    let alike = all.filter(|other| (other.id, &other.name) == (facts.id, &facts.name));
    alike.map(|other| other.free_bytes).min().flatten()
}

/// The process's one connection to its drivers: drivers hand out only this many, and not all of
/// them take one back.
fn instance() -> &'static Instance {
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    INSTANCE.get_or_init(new_instance)
}

fn new_instance() -> Instance {
    let memory_budget_thresholds =
        MemoryBudgetThresholds { for_resource_creation: Some(MEMORY_SHARE), for_device_loss: None };
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    if let Some(instance) = vulkan_instance::without_window_system(memory_budget_thresholds) {
        return instance;
    }
    let backends = if cfg!(any(target_os = "linux", target_os = "freebsd")) {
        // Vulkan is the only one there, and has just been tried.
        Backends::empty()
    } else {
        Backends::VULKAN | Backends::METAL | Backends::DX12
    };
    let plain = InstanceDescriptor::new_without_display_handle();
    Instance::new(InstanceDescriptor { backends, memory_budget_thresholds, ..plain })
}

/// Held while drivers list devices or open one: some hang where threads ask for
/// both at a time.
pub(crate) fn driver() -> MutexGuard<'static, ()> {
    static DRIVER: Mutex<()> = Mutex::new(());
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn enumerate() -> Vec<Adapter> {
    let _driver = driver();
    let mut all = pollster::block_on(instance().enumerate_adapters(Backends::all()));
    all.sort_by_key(|adapter| match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    all
}

/// Lanes of its subgroups, fewest and most.
fn subgroup_sizes(adapter: &Adapter) -> (u32, u32) {
    let info = adapter.get_info();
    let reported = (info.subgroup_min_size, info.subgroup_max_size);
    lanes::sizes(reported, imports::is_apple7(adapter))
}

pub(crate) fn facts(adapter: &Adapter) -> AdapterFacts {
    let info = adapter.get_info();
    let limits = limits(adapter);
    let features = adapter.features();
    let kind = match info.device_type {
        DeviceType::DiscreteGpu => "discrete",
        DeviceType::IntegratedGpu => "integrated",
        DeviceType::VirtualGpu => "virtual",
        DeviceType::Other => "of unknown kind",
        DeviceType::Cpu => SOFTWARE,
    };
    let subgroup_sizes = subgroup_sizes(adapter);
    let lacks =
        foreign(info.backend, &info.name).or_else(|| lacks(features, &limits, subgroup_sizes.0));
    AdapterFacts {
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        api: info.backend.to_string(),
        id: (info.vendor, info.device),
        kind,
        subgroup_sizes,
        max_buffer_bytes: limits.max_buffer_size,
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        has_f16: features.contains(Features::SHADER_F16),
        is_unified: matches!(info.device_type, DeviceType::IntegratedGpu | DeviceType::Cpu),
        memory_bytes: imports::own_memory(adapter),
        free_bytes: imports::free_memory(adapter),
        reads_host: imports::alignment(adapter).is_some(),
        lacks,
        name: info.name,
    }
}

/// Workgroup memory that kernels use, in bytes.
pub(crate) const WORKGROUP_BYTES: u32 = 16 << 10;

/// Workgroup memory that `coop_matmul.wgsl` and `attention/coop_matrix.wgsl` use, in bytes.
pub(crate) const COOP_MATRIX_BYTES: u32 = 47 << 10;

/// Threads of the largest workgroup.
pub(crate) const WORKGROUP_THREADS: u32 = 256;

/// Buffers that a kernel reads or writes, its parameters aside.
pub(crate) const STORAGE_BINDINGS: u32 = 8;

/// Buffers of a kernel that does the work of several, where the device allows this many.
pub(crate) const MOST_BINDINGS: u32 = 10;

/// Bytes that a binding must at least reach.
pub(crate) const BINDING_BYTES: u64 = 128 << 20;

/// Bytes of the largest buffer and binding. Metal's own have more, but wgpu tells kernels their length
/// in 32 bits (gfx-rs/wgpu#10305).
pub(crate) const MOST_BYTES: u64 = (1 << 32) - 256;

/// The limits of an adapter, as far as they can be relied on.
pub(crate) fn limits(adapter: &Adapter) -> Limits {
    reliable_limits(adapter.limits(), adapter.get_info().backend)
}

pub(crate) fn reliable_limits(limits: Limits, backend: Backend) -> Limits {
    if backend != Backend::Metal {
        return limits;
    }
    Limits {
        max_buffer_size: limits.max_buffer_size.min(MOST_BYTES),
        max_storage_buffer_binding_size: limits.max_storage_buffer_binding_size.min(MOST_BYTES),
        ..limits
    }
}

/// What keeps kernels from running on a GPU of another maker that Metal reaches: those of Intel and AMD
/// in Macs have other subgroups, and their compilers fail on some kernels.
pub(crate) fn foreign(backend: Backend, name: &str) -> Option<String> {
    let is_foreign = backend == Backend::Metal && !name.starts_with("Apple");
    is_foreign.then(|| String::from("on Macs only GPUs of Apple itself are supported"))
}

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

/// Whether `coop_matmul.wgsl` runs there.
pub(crate) fn has_coop_matrix(adapter: &Adapter) -> bool {
    let is_listed = |properties: &CooperativeMatrixProperties| {
        let is_of_halves = properties.ab_type == CooperativeScalarType::F16;
        let sums_singles = properties.cr_type == CooperativeScalarType::F32;
        (properties.m_size, properties.n_size, properties.k_size) == (16, 16, 16)
            && is_of_halves
            && sums_singles
    };
    adapter.features().contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX)
        && subgroup_sizes(adapter) == (32, 32)
        && adapter.limits().max_compute_workgroup_storage_size >= COOP_MATRIX_BYTES
        && adapter.cooperative_matrix_properties().iter().any(is_listed)
}
