//! The one place that names concrete backends.

use moeflux_backend::Backend;
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

fn instruction_set(name: Option<&str>) -> Result<Isa, EngineError> {
    let Some(name) = name else { return Ok(Isa::detect()) };
    Isa::by_name(name).ok_or_else(|| EngineError::Option {
        name: "--isa",
        value: format!("{name:?}"),
        remedy: format!("this machine has {}", isa_names().join(", ")),
    })
}

/// Names of the instruction sets that this machine has kernels for, slowest
/// first.
pub fn isa_names() -> Vec<&'static str> {
    Isa::available().into_iter().map(Isa::name).collect()
}
