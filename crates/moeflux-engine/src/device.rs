//! The one place that names concrete backends.

use moeflux_backend::Backend;
use moeflux_backend::cpu::limits::LimitProbe;
use moeflux_backend::cpu::{Cpu, Isa};

use crate::error::EngineError;

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
}

impl Device {
    /// The device of that name.
    ///
    /// # Errors
    /// Where this build has none of that name.
    pub fn by_name(name: &str) -> Result<Device, EngineError> {
        match name {
            "cpu" => Ok(Device::Cpu),
            _ => Err(EngineError::Option {
                name: "--device",
                value: format!("{name:?}"),
                remedy: String::from("this build has cpu only"),
            }),
        }
    }
}

/// Opens a device.
///
/// # Errors
/// Where the machine lacks what `isa` names.
pub(crate) fn open(
    device: Device,
    n_threads: usize,
    isa: Option<&str>,
) -> Result<Box<dyn Backend>, EngineError> {
    match device {
        Device::Cpu => Ok(Box::new(Cpu::new(n_threads, instruction_set(isa)?))),
    }
}

/// What measures the machine as kernels of `isa` on so many threads see it.
///
/// # Errors
/// Where the machine lacks what `isa` names.
pub(crate) fn limits(
    device: Device,
    n_threads: usize,
    isa: Option<&str>,
    memory_bytes: usize,
) -> Result<LimitProbe, EngineError> {
    match device {
        Device::Cpu => Ok(LimitProbe::new(n_threads, instruction_set(isa)?, memory_bytes)),
    }
}

fn instruction_set(name: Option<&str>) -> Result<Isa, EngineError> {
    let Some(name) = name else { return Ok(Isa::detect()) };
    Isa::by_name(name).ok_or_else(|| EngineError::Option {
        name: "--isa",
        value: format!("{name:?}"),
        remedy: format!("this machine has {}", isa_names().join(", ")),
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
