//! The limits that a machine sets, or its GPU: memory and arithmetic.

use crate::device::{self, Device, GpuLimits};
use crate::error::EngineError;
use crate::memory_probe::MemoryProbe;
use crate::options::{Activations, EngineOptions, threads};

/// The limits of a machine for kernels on some threads, in alternation on one
/// thread and on all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// The instruction set of the kernels.
    pub isa: &'static str,
    /// Threads that compute.
    pub n_threads: usize,
    /// GB/s of a plain read loop: on one thread, on all.
    pub memory_gb_s: [f64; 2],
    /// `f32` fused multiply-adds, two operations each, in thousand millions a
    /// second: on one thread, on all.
    pub float_gop_s: [f64; 2],
    /// Products of bytes added up in 32 bits, likewise.
    pub integer_gop_s: [f64; 2],
    /// Where a model runs on a GPU, what that can do. Memory is then its copying
    /// kernel's, and arithmetic what its dense products with 4-bit matrices
    /// reach, as if it were one thread.
    pub gpu: Option<GpuLimits>,
}

impl Machine {
    /// Measures for about half a second.
    ///
    /// # Errors
    /// Where an option makes no sense.
    pub fn probe(options: &EngineOptions) -> Result<Machine, EngineError> {
        match options.compute.device {
            Device::Cpu | Device::Auto => Machine::by(&MemoryProbe::new(options)?, options),
            Device::Gpu(index) => Machine::of_gpu(device::gpu_limits(index)?, options),
        }
    }

    /// Of a GPU the higher limits of those and what is measured now, right after it worked: clocks
    /// of one that waited are low for seconds. Where it has no memory left they stay as they are.
    pub fn or_awake(self, options: &EngineOptions) -> Machine {
        match options.compute.device {
            Device::Cpu | Device::Auto => self,
            Device::Gpu(_) => match Machine::probe(options) {
                Ok(now) if now.memory_gb_s[1] > self.memory_gb_s[1] => now,
                _ => self,
            },
        }
    }

    fn of_gpu(gpu: GpuLimits, options: &EngineOptions) -> Result<Machine, EngineError> {
        let [two_digits, one_digit] = gpu.product_tflop_s.map(|rate| 1e3 * rate);
        // Products of a high and a low byte count twice.
        let integers = match options.compute.activations {
            Activations::Int8 => one_digit,
            Activations::Int16 | Activations::Full => 2.0 * two_digits,
        };
        Ok(Machine {
            isa: "wgsl",
            n_threads: threads(options)?,
            memory_gb_s: [gpu.copy_gb_s; 2],
            float_gop_s: [two_digits; 2],
            integer_gop_s: [integers; 2],
            gpu: Some(gpu),
        })
    }

    /// As [`Machine::probe`], with a probe that is there already.
    ///
    /// # Errors
    /// Where an option makes no sense.
    pub fn by(probe: &MemoryProbe, options: &EngineOptions) -> Result<Machine, EngineError> {
        let arithmetic = probe.limits().arithmetic();
        Ok(Machine {
            isa: device::isa_name(options.compute.isa.as_deref())?,
            n_threads: threads(options)?,
            memory_gb_s: probe.gb_s(),
            float_gop_s: arithmetic.float_gop_s,
            integer_gop_s: arithmetic.integer_gop_s,
            gpu: None,
        })
    }
}
