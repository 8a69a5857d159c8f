//! Where a model runs if options do not say so: the device that makes its tokens fastest, and why it is that
//! one.

mod choose;
mod estimate;
mod rates;
#[cfg(test)]
mod tests;

use std::fmt;

use moeflux_core::show_bytes;

pub use self::choose::test_device;
pub(crate) use self::choose::{Chosen, choose};
use crate::device::Device;

/// The device of a model, and why it is that one.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceChoice {
    /// The device; never [`Device::Auto`].
    pub device: Device,
    /// Why.
    pub reason: Reason,
    /// Tokens a second that are expected there, one at a time, by a rough estimate; `None` where
    /// nothing had to be estimated.
    pub tok_s: Option<f64>,
}

/// Why a model runs where it does.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The caller named the device.
    Asked,
    /// This build has no GPU support.
    NoSupport,
    /// The processor makes tokens of so small a model before a GPU is open.
    Small,
    /// There is none.
    NoGpu,
    /// GPUs are programs that run on the processor.
    Software {
        /// What the first is called.
        name: String,
    },
    /// The GPU lacks something.
    Unfit {
        /// Which GPU.
        name: String,
        /// What it lacks.
        why: String,
    },
    /// The GPU's memory does not hold what has to be there next to experts.
    TooSmall {
        /// Which GPU.
        name: String,
        /// Bytes of weights, sessions and activations.
        needed: u64,
    },
    /// The GPU would not be faster.
    Slower {
        /// Which GPU.
        name: String,
        /// The part of the experts that it has room for, 0 to 1.
        share: f64,
        /// Whether it computes with the processor's memory.
        shares_memory: bool,
    },
    /// The GPU is faster.
    Faster {
        /// Which GPU.
        name: String,
        /// The part of the experts that it has room for, 0 to 1.
        share: f64,
        /// How many times as fast as the processor it is expected to be.
        times: f64,
    },
    /// The GPU could not be opened, or failed its self-test.
    Failed {
        /// Which GPU.
        name: String,
        /// What it said.
        why: String,
    },
}

impl DeviceChoice {
    /// The processor.
    pub(crate) fn cpu(reason: Reason) -> DeviceChoice {
        DeviceChoice { device: Device::Cpu, reason, tok_s: None }
    }

    /// What the caller asked for.
    pub(crate) fn asked(device: Device) -> DeviceChoice {
        DeviceChoice { device, reason: Reason::Asked, tok_s: None }
    }

    /// The processor, after the chosen GPU failed.
    pub(crate) fn failed(self, why: String) -> DeviceChoice {
        let name = match self.reason {
            Reason::Faster { name, .. } => name,
            _ => self.device.to_string(),
        };
        DeviceChoice::cpu(Reason::Failed { name, why })
    }

    fn with_seconds(self, seconds: f64) -> DeviceChoice {
        DeviceChoice { tok_s: Some(1.0 / seconds), ..self }
    }

    /// Whether a GPU was found, and was chosen or was not: what a user may want to know who did not
    /// ask.
    pub fn is_about_a_gpu(&self) -> bool {
        !matches!(self.reason, Reason::Asked | Reason::NoSupport | Reason::Small | Reason::NoGpu)
    }
}

impl fmt::Display for DeviceChoice {
    /// The device and the reason, such as `gpu:0 NVIDIA H100 (80 GiB): all experts fit; about 5 times
    /// as fast as the processor` or `cpu: the model is small`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.reason, self.device) {
            (Reason::Asked, device) => write!(f, "{device}: as asked for"),
            (Reason::Faster { name, share, times }, _) => {
                write!(f, "{name}: {}; about ", fitting(*share))?;
                match *times {
                    times if times < 9.95 => write!(f, "{times:.1}")?,
                    times => write!(f, "{times:.0}")?,
                }
                f.write_str(" times as fast as the processor")
            }
            (reason, device) => write!(f, "{device}: {reason}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Asked => f.write_str("as asked for"),
            Reason::NoSupport => f.write_str("this build has no GPU support"),
            Reason::Small => f.write_str("the model is small"),
            Reason::NoGpu => f.write_str("no GPU was found"),
            Reason::Software { name } => write!(f, "the only GPU is a software device ({name})"),
            Reason::Unfit { name, why } => write!(f, "{name} cannot run the model: {why}"),
            Reason::TooSmall { name, needed } => {
                write!(
                    f,
                    "{name} is too small for {} of weights, sessions and activations",
                    show_bytes(*needed)
                )
            }
            Reason::Slower { name, shares_memory: true, .. } => {
                write!(f, "{name} shares the memory and would not be faster")
            }
            Reason::Slower { name, share, .. } if *share < 1.0 => write!(
                f,
                "{name} has room for {:.0} % of the experts, and moving the others there takes longer \
                 than computing here",
                100.0 * share
            ),
            Reason::Slower { name, .. } => write!(f, "{name} would not be faster"),
            Reason::Faster { name, share, .. } => write!(f, "{name}: {}", fitting(*share)),
            Reason::Failed { name, why } => write!(f, "{name} is not used: {why}"),
        }
    }
}

fn fitting(share: f64) -> String {
    match share {
        share if share >= 1.0 => String::from("all experts fit"),
        share => format!("{:.0} % of the experts fit", 100.0 * share),
    }
}
