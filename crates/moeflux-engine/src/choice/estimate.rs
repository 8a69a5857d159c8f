//! Which device makes tokens fastest, from what a token reads and what memories give.
//!
//! A token takes the time in which its weights are read from the memory of the device that computes,
//! a time for each layer whatever it reads, and the time of those experts that are not in that memory:
//! over the bus from the processor's memory, or from the drive. Estimates need to be right within a
//! factor of two where they matter: where devices are nearly as fast, either will do.

use moeflux_model::ModelShape;

use super::{DeviceChoice, Reason};
use crate::device::Device;
use crate::device::probed::{Candidate, GpuRates};
use crate::options::EngineOptions;
use crate::plan::Plan;

/// A token that reads less than this is made in a few milliseconds by any processor, while opening a
/// GPU and compiling its kernels takes a second or more.
pub(super) const SMALL_BYTES: u64 = 64 << 20;

/// By how much a GPU must be faster to be worth its opening.
const WORTHWHILE: f64 = 1.1;

/// The part of a plain read loop's rate at which the processor's decode steps read weights; its
/// seconds for what a layer does besides. `forecast.rs` has the bounds of both, and says of what.
const CPU_SHARE: f64 = 0.6;
const CPU_LAYER_SECONDS: f64 = 40e-6;

/// The same of a GPU that routes by itself. On an H200 a token of 40 layers and 2 GB took 3.3 ms, of
/// which reading takes 0.4 ms: a layer is ten kernels after each other, of 2 to 7 µs each.
const GPU_SHARE: f64 = 0.6;
const GPU_LAYER_SECONDS: f64 = 75e-6;

/// What a layer takes longer where the host has to read the routing back, to have experts read.
const READ_BACK_SECONDS: f64 = 150e-6;

/// How much faster kernels that read the processor's memory bring experts than uploads do: on an H100
/// they brought 41 and 45 GB/s, and uploads of eight threads 24.
const HOST_READ_TIMES: f64 = 1.7;

/// How much more experts take in a GPU's memory, at most: for padding.
const PADDED: f64 = 9.0 / 8.0;

/// How much more often an expert in a cache is chosen than one outside, as an exponent of the share
/// that is missing: the middle of what `forecast.rs` has as bounds.
const SKEW: f64 = 1.25;

/// What a drive is taken to give where it was not measured, in GB/s. It is the same for all devices.
const DRIVE_GB_S: f64 = 3.0;

/// What a GPU with memory of its own is taken to give until it was measured, in GB/s: more than most
/// do, because it is opened and measured only where that would make it the faster device.
const UNMEASURED: GpuRates = GpuRates { read_gb_s: 500.0, upload_gb_s: 25.0 };

/// The same of one that shares the processor's memory, as a multiple of what that gives the processor.
const UNMEASURED_TIMES: f64 = 2.0;

/// What a token needs, and what a model takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    /// Weights that a token reads, experts included.
    pub(super) bytes_per_token: u64,
    /// Experts that a token reads.
    pub(super) working_set_bytes: u64,
    /// All experts.
    pub(super) expert_bytes: u64,
    /// The largest expert.
    pub(super) record_bytes: u64,
    /// What has to be on the device besides experts: weights, sessions and activations.
    pub(super) fixed_bytes: u64,
    /// The part of the experts that the cache in the processor's memory has room for.
    pub(super) cached_share: f64,
    /// Bytes of experts that a GPU may hold, where that is bounded.
    pub(super) device_cache: Option<u64>,
    pub(super) n_layers: usize,
    pub(super) n_experts: usize,
}

impl Work {
    /// Of a model as it is planned for the processor.
    pub(super) fn of(plan: &Plan, options: &EngineOptions, shape: &ModelShape) -> Work {
        let sessions = plan.session_bytes().saturating_mul(plan.n_sessions as u64);
        Work {
            bytes_per_token: plan.bytes_per_token,
            working_set_bytes: plan.working_set_bytes,
            expert_bytes: plan.expert_bytes,
            record_bytes: plan.record_bytes,
            fixed_bytes: plan
                .resident_bytes
                .saturating_add(plan.scratch_bytes)
                .saturating_add(sessions),
            cached_share: plan.cached_share(),
            device_cache: options.experts.device_cache,
            n_layers: shape.n_layers,
            n_experts: shape.n_experts,
        }
    }

    /// Seconds of a token on the processor, whose memory gives it so much.
    pub(super) fn cpu_seconds(&self, memory_gb_s: f64) -> f64 {
        seconds(self.bytes_per_token as f64, memory_gb_s * CPU_SHARE)
            + self.n_layers as f64 * CPU_LAYER_SECONDS
            + self.drive_seconds(1.0 - self.cached_share)
    }

    /// Seconds for experts of which such a share is in no memory.
    fn drive_seconds(&self, missing: f64) -> f64 {
        seconds(self.chosen_bytes(missing), DRIVE_GB_S)
    }

    /// Bytes that a token reads of experts of which such a share is missing somewhere.
    fn chosen_bytes(&self, missing: f64) -> f64 {
        missing.clamp(0.0, 1.0).powf(SKEW) * self.working_set_bytes as f64
    }

    /// The part of the experts that a GPU has room for that may use so much memory of its own.
    fn device_share(&self, usable: u64) -> f64 {
        let room = usable.saturating_sub(self.fixed_bytes);
        let room = self.device_cache.map_or(room, |bytes| {
            // Room for all includes their padding.
            if bytes >= self.expert_bytes { room } else { room.min(bytes) }
        });
        (room as f64 / (self.expert_bytes.max(1) as f64 * PADDED)).min(1.0)
    }

    /// Seconds of a token on a GPU that may use so much memory.
    fn gpu_seconds(&self, gpu: &Candidate, usable: u64, rates: GpuRates) -> GpuEstimate {
        let compute = seconds(self.bytes_per_token as f64, rates.read_gb_s * GPU_SHARE)
            + self.n_layers as f64 * GPU_LAYER_SECONDS;
        // One that shares the memory has what the cache has.
        let own = if gpu.is_unified { 0.0 } else { self.device_share(usable) };
        let nowhere = (1.0 - own - self.cached_share).max(0.0);
        let moved = if gpu.is_unified && gpu.reads_host {
            0.0
        } else {
            self.chosen_bytes(1.0 - own) - self.chosen_bytes(nowhere)
        };
        let reads_back = nowhere > 0.0 || !gpu.reads_host && own < 1.0;
        let waits = if reads_back { self.n_layers as f64 * READ_BACK_SECONDS } else { 0.0 };
        let times = if gpu.reads_host { HOST_READ_TIMES } else { 1.0 };
        GpuEstimate {
            share: if gpu.is_unified { self.cached_share } else { own },
            seconds: compute
                + seconds(moved, rates.upload_gb_s * times)
                + self.drive_seconds(nowhere)
                + waits,
        }
    }

    /// What keeps the model from a GPU, if anything.
    pub(super) fn obstacle(&self, gpu: &Candidate) -> Option<Reason> {
        let name = gpu.full_name();
        if gpu.is_software {
            return Some(Reason::Software { name: gpu.maker_name.clone() });
        }
        if let Some(lacks) = &gpu.lacks {
            return Some(Reason::Unfit { name, why: lacks.clone() });
        }
        if self.n_experts > gpu.most_experts {
            let why = format!(
                "its kernels choose among at most {} experts, not {}",
                gpu.most_experts, self.n_experts
            );
            return Some(Reason::Unfit { name, why });
        }
        if self.record_bytes > gpu.most_record_bytes {
            let why = String::from("an expert is larger than its kernels see at once");
            return Some(Reason::Unfit { name, why });
        }
        let Some(usable) = gpu.usable_bytes() else {
            let why = String::from("its interface does not tell how much memory it has");
            return Some(Reason::Unfit { name, why });
        };
        let needed = self.fixed_bytes.saturating_add(self.record_bytes * 2);
        (needed > usable).then_some(Reason::TooSmall { name, needed })
    }
}

#[derive(Clone, Copy, Debug)]
struct GpuEstimate {
    /// The part of the experts that is in memory that the GPU computes with.
    share: f64,
    seconds: f64,
}

fn seconds(bytes: f64, gb_s: f64) -> f64 {
    bytes / (gb_s.max(1e-3) * 1e9)
}

/// A choice, and whether it is one that measuring the chosen GPU may still change.
pub(super) struct Decision {
    pub(super) choice: DeviceChoice,
    pub(super) is_preliminary: bool,
}

/// The fastest of the processor and of GPUs that nothing keeps the model from.
pub(super) fn decide(work: &Work, cpu_gb_s: f64, gpus: &[&Candidate]) -> Decision {
    let cpu = work.cpu_seconds(cpu_gb_s);
    let estimates = gpus.iter().filter_map(|gpu| {
        let unmeasured = if gpu.is_unified {
            let read_gb_s = UNMEASURED_TIMES * cpu_gb_s;
            GpuRates { read_gb_s, upload_gb_s: read_gb_s / 2.0 }
        } else {
            UNMEASURED
        };
        let rates = gpu.rates.unwrap_or(unmeasured);
        Some((*gpu, work.gpu_seconds(gpu, gpu.usable_bytes()?, rates)))
    });
    let best = estimates.min_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
    let Some((gpu, GpuEstimate { share, seconds })) = best else {
        return Decision {
            choice: DeviceChoice::cpu(Reason::NoGpu).with_seconds(cpu),
            is_preliminary: false,
        };
    };
    let (name, times) = (gpu.full_name(), cpu / seconds);
    let choice = if times > WORTHWHILE {
        DeviceChoice {
            device: gpu.device(),
            reason: Reason::Faster { name, share, times },
            tok_s: Some(1.0 / seconds),
        }
    } else {
        let shares_memory = gpu.is_unified;
        DeviceChoice::cpu(Reason::Slower { name, share, shares_memory }).with_seconds(cpu)
    };
    Decision { is_preliminary: choice.device != Device::Cpu && gpu.rates.is_none(), choice }
}
