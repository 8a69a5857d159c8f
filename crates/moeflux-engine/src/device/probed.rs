//! GPUs as a choice sees them: what is known without opening one, and what opening one finds out.

use moeflux_core::show_bytes;

use super::Device;
use crate::error::EngineError;

/// A GPU that a model might run on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Its number, as devices are counted.
    pub(crate) index: usize,
    /// What its maker calls it.
    pub(crate) maker_name: String,
    /// Bytes of its own memory, or of what it may use of the memory that it shares; `None` where its
    /// interface does not tell.
    pub(crate) memory_bytes: Option<u64>,
    /// The part of it that other programs leave; `None` where its interface does not tell.
    pub(crate) free_bytes: Option<u64>,
    /// Whether the processor plays its part.
    pub(crate) is_software: bool,
    /// Whether it shares the processor's memory.
    pub(crate) is_unified: bool,
    /// Whether kernels read the processor's memory where it is.
    pub(crate) reads_host: bool,
    /// What keeps models from running there, if anything.
    pub(crate) lacks: Option<String>,
    /// Bytes of the largest expert that its kernels see.
    pub(crate) most_record_bytes: u64,
    /// Experts of a layer that its kernels choose among, at most.
    pub(crate) most_experts: usize,
    /// Identifies device, driver and kernels, for what was measured of them.
    pub(crate) key: String,
    /// What was measured there.
    pub(crate) rates: Option<GpuRates>,
}

impl Candidate {
    /// It as an option of a model.
    pub(crate) fn device(&self) -> Device {
        Device::Gpu(Some(self.index))
    }

    /// Bytes of its memory that may be planned with: a tenth is for the driver, and for others.
    pub(crate) fn usable_bytes(&self) -> Option<u64> {
        let most = self.memory_bytes? / 10 * 9;
        Some(self.free_bytes.map_or(most, |free| free.min(most)))
    }

    /// Its number, its name and its memory, such as `gpu:0 NVIDIA H100 (80 GiB)`.
    pub(crate) fn full_name(&self) -> String {
        let Candidate { index, maker_name, .. } = self;
        let Some(bytes) = self.memory_bytes else { return format!("gpu:{index} {maker_name}") };
        let total = show_bytes(bytes);
        match self.free_bytes.filter(|free| *free < bytes / 4 * 3) {
            Some(free) => {
                format!("gpu:{index} {maker_name} ({} of {total} free)", show_bytes(free))
            }
            None => format!("gpu:{index} {maker_name} ({total})"),
        }
    }
}

/// How fast a GPU moves bytes, in GB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GpuRates {
    /// From its memory into a kernel.
    pub(crate) read_gb_s: f64,
    /// From the processor's memory to its own.
    pub(crate) upload_gb_s: f64,
}

/// Why a GPU is not used.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It computes something else than the processor, and will until its driver is another.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "no device is tested"))]
    SelfTest(String),
    /// It cannot be opened or measured now.
    Opening(EngineError),
}

/// A GPU that passed its test.
pub(crate) struct Probed {
    pub(crate) rates: GpuRates,
    /// Keeps it open, with its compiled kernels, until a model is opened there.
    pub(crate) opened: Opened,
}

#[cfg(feature = "gpu")]
pub(crate) use self::gpu::Opened;
#[cfg(not(feature = "gpu"))]
pub(crate) use self::none::Opened;

/// All GPUs of this machine, in the order of their numbers.
pub(crate) fn candidates() -> Vec<Candidate> {
    #[cfg(feature = "gpu")]
    return gpu::candidates();
    #[cfg(not(feature = "gpu"))]
    return Vec::new();
}

/// Opens a GPU, tests it, and measures it unless its rates are known.
pub(crate) fn probe(index: usize, known: Option<GpuRates>) -> Result<Probed, Fault> {
    #[cfg(feature = "gpu")]
    return gpu::probe(index, known);
    #[cfg(not(feature = "gpu"))]
    return none::probe(index, known);
}

#[cfg(feature = "gpu")]
mod gpu {
    use std::sync::Arc;

    use moeflux_wgpu::{
        BandwidthProbe, Context, MAX_EXPERTS, SelfTestError, adapters, measurement_key,
        new_backend, self_test,
    };

    use super::{Candidate, Fault, GpuRates, Probed};
    use crate::device::max_record_bytes;
    use crate::error::EngineError;

    /// An open GPU.
    pub(crate) type Opened = Arc<Context>;

    /// Bytes that kernels read, more than caches of today hold, and that are uploaded.
    const READ_BYTES: u64 = 256 << 20;
    const UPLOADED_BYTES: u64 = 32 << 20;

    /// The same for software devices, which are never chosen, so that tests are short.
    const FEW_BYTES: u64 = 4 << 20;

    /// Threads that write what is uploaded.
    const UPLOAD_THREADS: usize = 8;

    pub(super) fn candidates() -> Vec<Candidate> {
        let all = adapters().into_iter().enumerate();
        let candidate = all.map(|(index, facts)| Candidate {
            index,
            key: measurement_key(&facts),
            is_software: facts.is_software(),
            memory_bytes: facts.memory_bytes,
            free_bytes: facts.free_bytes,
            is_unified: facts.is_unified,
            reads_host: facts.reads_host,
            most_record_bytes: max_record_bytes(
                facts.max_binding_bytes.min(facts.max_buffer_bytes),
            ),
            most_experts: MAX_EXPERTS,
            lacks: facts.lacks,
            maker_name: facts.name,
            rates: None,
        });
        candidate.collect()
    }

    pub(super) fn probe(index: usize, known: Option<GpuRates>) -> Result<Probed, Fault> {
        let opening = |err: EngineError| Fault::Opening(err);
        let opened = Context::open(Some(index)).map_err(|err| opening(err.into()))?;
        if let Err(err) = self_test(&opened) {
            return Err(match (err, opened.check()) {
                // What it computed says nothing of a device that was lost meanwhile.
                (_, Err(lost)) => opening(lost.into()),
                (err @ SelfTestError::Failed, Ok(())) => Fault::SelfTest(err.to_string()),
                (err @ SelfTestError::Differs { .. }, Ok(())) => Fault::SelfTest(err.to_string()),
            });
        }
        let rates = match known {
            Some(rates) => rates,
            None => measure(&opened).map_err(opening)?,
        };
        Ok(Probed { rates, opened })
    }

    fn measure(opened: &Opened) -> Result<GpuRates, EngineError> {
        let mut b = new_backend(Arc::clone(opened), Some(0));
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let [read, uploaded] = if opened.facts().is_software() {
            [FEW_BYTES; 2]
        } else {
            [READ_BYTES, UPLOADED_BYTES]
        };
        let read_gb_s = b.bandwidth_gb_s(BandwidthProbe::ReadKernel, read)?;
        let upload_gb_s = b.upload_gb_s(uploaded, UPLOAD_THREADS.min(n_cores))?;
        Ok(GpuRates { read_gb_s, upload_gb_s })
    }
}

#[cfg(not(feature = "gpu"))]
mod none {
    use super::{Fault, GpuRates, Probed};
    use crate::device::{NAMES, OptionId, refuse};

    /// No GPU is ever open.
    pub(crate) enum Opened {}

    pub(super) fn probe(_: usize, _: Option<GpuRates>) -> Result<Probed, Fault> {
        Err(Fault::Opening(refuse(OptionId::Device, "gpu", NAMES)))
    }
}
