//! What a device is opened with: what its adapter has, as far as the kernels use it.

use wgpu::{Adapter, Backend, Features, Limits};

use crate::device::adapter::{has_coop_matrix, limits};
use crate::device::work::Pace;

/// Features by which a device tells when commands run.
pub(crate) const CLOCK: Features =
    Features::TIMESTAMP_QUERY.union(Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);

/// Limits, features and rules of a device.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) limits: Limits,
    /// Whether kernels compute with halves.
    pub(crate) has_f16: bool,
    /// Whether there are cooperative matrices of f16, 16 by 16 by 16.
    pub(crate) has_coop_matrix: bool,
    pub(crate) has_clock: bool,
    /// Whether kernels read buffers that the host writes.
    pub(crate) reads_mapped: bool,
    /// Set where the system gives up submissions that take long.
    pub(crate) pace: Option<Pace>,
}

impl Profile {
    /// That of an adapter.
    pub(crate) fn of(adapter: &Adapter) -> Profile {
        let features = adapter.features();
        let has_f16 = features.contains(Features::SHADER_F16);
        let backend = adapter.get_info().backend;
        Profile {
            limits: limits(adapter),
            has_f16,
            has_coop_matrix: has_f16 && has_coop_matrix(adapter),
            has_clock: features.contains(CLOCK),
            // Elsewhere such buffers are where kernels read slowly, or are not tried.
            reads_mapped: backend == Backend::Vulkan
                && features.contains(Features::MAPPABLE_PRIMARY_BUFFERS),
            pace: (backend == Backend::Metal).then_some(Pace::METAL),
        }
    }

    /// That of an adapter with no more than GPUs of Apple have: 32 KiB of workgroup memory, no
    /// cooperative matrices of this size, no clock inside command buffers, no kernels that read what
    /// the host has mapped, and bounded submissions. Buffers are as small as kernels allow, so that
    /// tests have several, and submissions so short that small ops need several.
    #[cfg(test)]
    pub(crate) fn apple(adapter: &Adapter) -> Profile {
        use crate::device::adapter::BINDING_BYTES;
        let own = Profile::of(adapter);
        let has = &own.limits;
        // Metal binds 31 buffers, two of which wgpu takes.
        let limits = Limits {
            max_compute_workgroup_storage_size: has
                .max_compute_workgroup_storage_size
                .min(32 << 10),
            max_compute_invocations_per_workgroup: has
                .max_compute_invocations_per_workgroup
                .min(1024),
            max_storage_buffers_per_shader_stage: has.max_storage_buffers_per_shader_stage.min(29),
            max_storage_buffer_binding_size: has.max_storage_buffer_binding_size.min(BINDING_BYTES),
            max_buffer_size: has.max_buffer_size.min(BINDING_BYTES),
            min_uniform_buffer_offset_alignment: 256,
            ..own.limits
        };
        let (has_coop_matrix, has_clock, reads_mapped) = (false, false, false);
        let pace = Some(Pace::METAL.slower(20_000.0));
        Profile { limits, has_coop_matrix, has_clock, reads_mapped, pace, ..own }
    }
}
