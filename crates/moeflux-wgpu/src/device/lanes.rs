//! Lanes of a device's subgroups, where its interface does not tell them.

use wgpu::{
    BindGroupDescriptor, BindGroupEntry, BufferDescriptor, BufferUsages, ComputePipelineDescriptor,
    Device, MapMode, PollType, Queue, ShaderModuleDescriptor, ShaderSource,
};

/// Lanes of every GPU of Metal's family Apple7 or a later one: Apple's own since A14 and M1.
const APPLE_LANES: u32 = 32;

/// Most lanes that kernels have a use for.
const MOST: u32 = 32;

/// Fewest and most lanes of subgroups. wgpu reports for every Metal device what WGSL allows, 4 and 64.
pub(crate) fn sizes(reported: (u32, u32), is_apple7: bool) -> (u32, u32) {
    if is_apple7 { (APPLE_LANES, APPLE_LANES) } else { reported }
}

/// Lanes that kernels may count on: as many as are assumed, where this is what is reported or
/// a kernel has `seen` as many.
pub(crate) fn reliable(assumed: u32, reported: u32, seen: impl FnOnce() -> Option<u32>) -> u32 {
    let is_sure = assumed <= reported || seen().is_some_and(|seen| seen >= assumed);
    if is_sure { assumed.min(MOST) } else { reported.min(MOST) }
}

/// Writes how many lanes its subgroup has.
const KERNEL: &str = "
@group(0) @binding(0) var<storage, read_write> lanes: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(subgroup_size) size: u32) {
    if (thread == 0u) { lanes[0] = size; }
}
";

/// Lanes that a kernel finds in its subgroup; `None` where the device does not answer.
pub(crate) fn seen(device: &Device, queue: &Queue) -> Option<u32> {
    let label = Some("lanes");
    let module = device.create_shader_module(ShaderModuleDescriptor {
        label,
        source: ShaderSource::Wgsl(KERNEL.into()),
    });
    let pipeline = device.create_compute_pipeline(&ComputePipelineDescriptor {
        label,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let buffer = |usage| {
        device.create_buffer(&BufferDescriptor { label, size: 4, usage, mapped_at_creation: false })
    };
    let written = buffer(BufferUsages::STORAGE | BufferUsages::COPY_SRC);
    let read = buffer(BufferUsages::COPY_DST | BufferUsages::MAP_READ);
    let group = device.create_bind_group(&BindGroupDescriptor {
        label,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[BindGroupEntry { binding: 0, resource: written.as_entire_binding() }],
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
    }
    encoder.copy_buffer_to_buffer(&written, 0, &read, 0, Some(4));
    queue.submit([encoder.finish()]);
    read.slice(..).map_async(MapMode::Read, |_| {});
    device.poll(PollType::wait_indefinitely()).ok()?;
    let bytes = read.slice(..).get_mapped_range().ok()?;
    Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{reliable, seen, sizes};

    #[test]
    fn apples_own_gpus_have_32_lanes() {
        assert_eq!(sizes((4, 64), true), (32, 32));
        // Intel's and AMD's on Metal, and other interfaces.
        assert_eq!(sizes((4, 64), false), (4, 64));
        assert_eq!(sizes((8, 8), false), (8, 8));
    }

    #[test]
    fn lanes_are_counted_on_where_they_are_reported_or_seen() {
        let unasked = || -> Option<u32> { panic!("nothing is in doubt") };
        assert_eq!(reliable(8, 8, unasked), 8);
        assert_eq!(reliable(64, 64, unasked), 32);
        for (seen, lanes) in [(Some(32), 32), (Some(64), 32), (Some(16), 4), (None, 4)] {
            assert_eq!(reliable(32, 4, || seen), lanes, "{seen:?}");
        }
    }

    #[test]
    fn a_kernel_sees_as_many_lanes_as_are_reported() {
        let Some(context) = crate::tests::context() else { return };
        let (fewest, most) = context.facts().subgroup_sizes;
        let seen = seen(&context.device, &context.queue).expect("the device answers");
        assert!((fewest..=most).contains(&seen), "{seen} of {fewest} to {most}");
        assert!(context.lanes <= seen);
    }
}
