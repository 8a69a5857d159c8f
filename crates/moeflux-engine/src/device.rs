//! The one place that names concrete backends.

mod measured;
pub(crate) mod probed;

use std::fmt;
use std::path::Path;
use std::thread::JoinHandle;

use moeflux_backend::Backend;
use moeflux_backend::cpu::limits::LimitProbe;
use moeflux_backend::cpu::{Cpu, Isa};
use moeflux_core::{ExpertBank, OptionId, explain_thread_error};

use crate::error::EngineError;

pub use self::measured::{DeviceTuning, GpuLimits, GpuProduct};
pub(crate) use self::measured::{TUNING, Tuner, gpu_limits, gpu_products, products};

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU: the one of that number as [`devices`] counts them, or the best.
    Gpu(Option<usize>),
    /// A GPU where one makes the model's tokens faster than the processor does, which is decided when
    /// the model is opened; else the processor. What is no model's takes it for the processor.
    Auto,
}

impl Device {
    /// The device of that name: `auto`, `cpu`, `gpu`, or `gpu:N`.
    ///
    /// # Errors
    /// Where this build has none of that name.
    pub fn by_name(name: &str) -> Result<Device, EngineError> {
        let number = name.strip_prefix("gpu:").map(str::parse);
        match (name, number) {
            ("auto", _) => Ok(Device::Auto),
            ("cpu", _) => Ok(Device::Cpu),
            ("gpu", _) if HAS_GPU => Ok(Device::Gpu(None)),
            (_, Some(Ok(index))) if HAS_GPU => Ok(Device::Gpu(Some(index))),
            _ => Err(refuse(OptionId::Device, name, NAMES)),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Gpu(None) => f.write_str("gpu"),
            Device::Gpu(Some(index)) => write!(f, "gpu:{index}"),
            Device::Auto => f.write_str("auto"),
        }
    }
}

pub(crate) const HAS_GPU: bool = cfg!(feature = "gpu");

const NAMES: &str =
    if HAS_GPU { "choose auto, cpu, gpu, or gpu:N" } else { "this build has cpu only" };

fn refuse(option: OptionId, value: &str, remedy: &str) -> EngineError {
    EngineError::Option { option, value: format!("{value:?}"), remedy: remedy.to_owned() }
}

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The name by which [`Device::by_name`] finds it.
    pub name: String,
    /// What its maker calls it.
    pub maker_name: String,
    /// The driver, and how the device is reached.
    pub driver: String,
    /// What kind of device it is.
    pub kind: &'static str,
    /// Whether the processor plays its part; such a device runs models only where it is named.
    pub is_software: bool,
    /// Lanes of its subgroups, fewest and most.
    pub subgroup_sizes: (u32, u32),
    /// Bytes that a kernel sees at once.
    pub max_binding_bytes: u64,
    /// Bytes of its own memory, or of what it shares; `None` where its interface does
    /// not tell.
    pub memory_bytes: Option<u64>,
    /// What keeps models from running there, if anything.
    pub lacks: Option<String>,
    /// Products whose layout was measured there, for the driver and the kernels
    /// of today.
    pub n_tuned: usize,
}

/// The GPUs of this machine, the best first, and what was measured of them
/// according to the directory of [`EngineOptions::gpu_tuning`].
///
/// [`EngineOptions::gpu_tuning`]: crate::EngineOptions::gpu_tuning
pub fn devices(tuning: Option<&Path>) -> Vec<DeviceFacts> {
    gpu::devices(tuning)
}

/// What a device asks of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceLimits {
    /// Bytes of the largest buffer of activations.
    pub(crate) max_buffer_bytes: u64,
    /// Rows of a batch, times experts of a row.
    pub(crate) max_chosen: usize,
    /// Whether it has no memory of its own.
    pub(crate) shares_memory: bool,
    /// Whether it can read experts in the cache.
    pub(crate) reads_cache: fn(&ExpertBank) -> bool,
    /// Bytes of its own memory, or of what it may use of the memory that it shares.
    pub(crate) memory_bytes: Option<u64>,
    /// Whether it can fetch experts of the cache by itself.
    pub(crate) fetches: bool,
}

impl DeviceLimits {
    /// Those of a device.
    ///
    /// # Errors
    /// Where there is no such device, or it cannot run models.
    pub(crate) fn of(device: Device) -> Result<DeviceLimits, EngineError> {
        match device {
            Device::Cpu | Device::Auto => Ok(DeviceLimits {
                max_buffer_bytes: u64::MAX,
                max_chosen: usize::MAX,
                shares_memory: false,
                reads_cache: |_| false,
                memory_bytes: None,
                fetches: false,
            }),
            Device::Gpu(index) => gpu::limits(index),
        }
    }
}

/// What a device is opened with.
#[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "the processor needs less"))]
pub(crate) struct Opening<'a> {
    pub(crate) device: Device,
    pub(crate) n_threads: usize,
    pub(crate) isa: Option<&'a str>,
    /// Bytes of experts that the device may hold in addition to the cache; as many as
    /// it has memory for where absent.
    pub(crate) expert_bytes: Option<u64>,
    /// Bytes of the largest expert.
    pub(crate) record_bytes: u64,
    /// Experts of a layer.
    pub(crate) n_experts: usize,
}

/// Opens a device.
///
/// # Errors
/// Where there is none of that name, it cannot run the model, or the machine
/// lacks what `isa` names.
pub(crate) fn open(opening: &Opening<'_>) -> Result<Box<dyn Backend>, EngineError> {
    let isa = instruction_set(opening.isa)?;
    match opening.device {
        Device::Cpu | Device::Auto => {
            let n_threads = opening.n_threads;
            let cpu = Cpu::try_new(n_threads, isa);
            Ok(Box::new(cpu.map_err(|err| no_threads(n_threads, err))?))
        }
        Device::Gpu(index) => gpu::open(index, opening),
    }
}

/// Opens a device once more, for a vision tower, which has no experts.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_for_tower(
    device: Device,
    n_threads: usize,
    isa: Option<&str>,
) -> Result<Box<dyn Backend>, EngineError> {
    let (expert_bytes, record_bytes, n_experts) = (Some(0), 0, 0);
    open(&Opening { device, n_threads, isa, expert_bytes, record_bytes, n_experts })
}

/// Begins to open a device on a thread of its own, or to list GPUs where none is named yet; what is open
/// stays so as long as the returned value lives, and is shared with who opens the device meanwhile.
pub(crate) fn open_ahead(device: Device) -> OpenAhead {
    OpenAhead { thread: gpu::open_ahead(device) }
}

/// A device that is opened on a thread.
pub(crate) struct OpenAhead {
    thread: Option<JoinHandle<Option<gpu::Opened>>>,
}

impl Drop for OpenAhead {
    /// Waits, as drivers fail where a process ends while they begin.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // Who opens the device again sees what went wrong.
            let _ = thread.join();
        }
    }
}

/// Bytes of the largest expert that a GPU sees whose kernels see so much at once: padding and pairs of
/// scales and biases take a little more than the record.
#[cfg(feature = "gpu")]
fn max_record_bytes(binding: u64) -> u64 {
    binding / 8 * 7
}

/// The probe that measures the machine's limits for kernels of `isa` on `n_threads` threads.
///
/// # Errors
/// Where the machine lacks what `isa` names.
pub(crate) fn limits(
    n_threads: usize,
    isa: Option<&str>,
    memory_bytes: usize,
) -> Result<LimitProbe, EngineError> {
    let probe = LimitProbe::new(n_threads, instruction_set(isa)?, memory_bytes);
    probe.map_err(|err| no_threads(n_threads, err))
}

fn no_threads(n_threads: usize, err: std::io::Error) -> EngineError {
    EngineError::Threads { n_threads, source: explain_thread_error(err) }
}

fn instruction_set(name: Option<&str>) -> Result<Isa, EngineError> {
    let Some(name) = name else { return Ok(Isa::detect()) };
    Isa::by_name(name).ok_or_else(|| {
        refuse(OptionId::Isa, name, &format!("this machine has {}", isa_names().join(", ")))
    })
}

/// The name of the instruction set that kernels use.
///
/// # Errors
/// Where the machine lacks what `isa` names.
pub(crate) fn isa_name(isa: Option<&str>) -> Result<&'static str, EngineError> {
    Ok(instruction_set(isa)?.name())
}

/// Names of the instruction sets that this machine has kernels for, slowest
/// first.
pub fn isa_names() -> Vec<&'static str> {
    Isa::available().into_iter().map(Isa::name).collect()
}

/// Names of the instruction sets that this build has kernels for, slowest first.
pub fn built_isa_names() -> &'static [&'static str] {
    Isa::BUILT_NAMES
}

#[cfg(feature = "gpu")]
mod gpu {
    use std::path::Path;
    use std::sync::Arc;
    use std::thread::{self, JoinHandle};

    use moeflux_backend::Backend;
    use moeflux_wgpu::{
        AdapterFacts, Context, MAX_EXPERTS, OpenError, adapters, n_tuned, new_backend,
        reads_in_place,
    };

    use crate::device::{
        Device, DeviceFacts, DeviceLimits, Opening, OptionId, max_record_bytes, refuse,
    };
    use crate::error::EngineError;

    /// Lists of a batch's experts are bounded.
    const MAX_CHOSEN: usize = 1 << 16;

    /// An open GPU.
    pub(super) type Opened = Arc<Context>;

    pub(super) fn open_ahead(device: Device) -> Option<JoinHandle<Option<Opened>>> {
        if device == Device::Cpu {
            return None;
        }
        let open = move || match device {
            Device::Gpu(index) => Context::open(index).ok(),
            Device::Cpu | Device::Auto => {
                adapters();
                None
            }
        };
        thread::Builder::new().name(String::from("gpu-opening")).spawn(open).ok()
    }

    pub(super) fn devices(tuning: Option<&Path>) -> Vec<DeviceFacts> {
        let facts = |(i, adapter): (usize, AdapterFacts)| DeviceFacts {
            n_tuned: tuning.map_or(0, |dir| n_tuned(dir, &adapter)),
            is_software: adapter.is_software(),
            name: format!("gpu:{i}"),
            maker_name: adapter.name,
            driver: format!("{}, {}", adapter.driver, adapter.api),
            kind: adapter.kind,
            subgroup_sizes: adapter.subgroup_sizes,
            max_binding_bytes: adapter.max_binding_bytes,
            memory_bytes: adapter.memory_bytes,
            lacks: adapter.lacks,
        };
        adapters().into_iter().enumerate().map(facts).collect()
    }

    pub(super) fn limits(index: Option<usize>) -> Result<DeviceLimits, EngineError> {
        let all = adapters();
        let n = all.len();
        let facts = match index {
            Some(index) => all.get(index).ok_or(OpenError::NoSuchAdapter { index, n })?,
            None => {
                let usable = all.iter().find(|device| device.lacks.is_none());
                usable.or(all.first()).ok_or(OpenError::NoAdapter)?
            }
        };
        Ok(DeviceLimits {
            max_buffer_bytes: facts.max_binding_bytes,
            max_chosen: MAX_CHOSEN,
            shares_memory: facts.is_unified,
            reads_cache: if facts.reads_host { reads_in_place } else { |_| false },
            memory_bytes: facts.memory_bytes,
            fetches: facts.reads_host && !facts.is_unified,
        })
    }

    pub(super) fn open(
        index: Option<usize>,
        opening: &Opening<'_>,
    ) -> Result<Box<dyn Backend>, EngineError> {
        let n_experts = opening.n_experts;
        if n_experts > MAX_EXPERTS {
            let remedy =
                format!("GPUs choose among at most {MAX_EXPERTS} experts, not {n_experts}");
            return Err(refuse(OptionId::Device, "gpu", &remedy));
        }
        let context = Context::open(index)?;
        let most = max_record_bytes(context.max_binding_bytes());
        if opening.record_bytes > most {
            let remedy = format!(
                "an expert of {} bytes exceeds the {most} that this GPU's kernels see at once",
                opening.record_bytes
            );
            return Err(refuse(OptionId::Device, "gpu", &remedy));
        }
        Ok(Box::new(new_backend(context, opening.expert_bytes)))
    }
}

#[cfg(not(feature = "gpu"))]
mod gpu {
    use std::path::Path;
    use std::thread::JoinHandle;

    use moeflux_backend::Backend;

    use crate::device::{Device, DeviceFacts, DeviceLimits, NAMES, Opening, OptionId, refuse};
    use crate::error::EngineError;

    /// An open GPU, of which there is none.
    pub(super) enum Opened {}

    pub(super) fn open_ahead(_: Device) -> Option<JoinHandle<Option<Opened>>> {
        None
    }

    pub(super) fn devices(_: Option<&Path>) -> Vec<DeviceFacts> {
        Vec::new()
    }

    pub(super) fn limits(_: Option<usize>) -> Result<DeviceLimits, EngineError> {
        Err(refuse(OptionId::Device, "gpu", NAMES))
    }

    pub(super) fn open(_: Option<usize>, _: &Opening<'_>) -> Result<Box<dyn Backend>, EngineError> {
        Err(refuse(OptionId::Device, "gpu", NAMES))
    }
}
