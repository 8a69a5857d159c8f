//! Runs a captured dispatch on the device at hand.

use std::sync::Arc;

use wgpu::{
    BindGroupDescriptor, BindGroupEntry, Buffer, BufferDescriptor, BufferUsages, MapMode, PollType,
};

use crate::commands::capture::Dispatch;
use crate::device::context::Context;
use crate::kernels::pipelines::Pipeline;

/// Bytes that kernels bind as parameters.
const PARAMS_BYTES: usize = 256;

/// What each buffer has after the dispatch, if the kernel may write it.
pub(super) fn replay(
    context: &Context,
    dispatch: &Dispatch,
    before: &[Vec<u8>],
) -> Vec<Option<Vec<u8>>> {
    let pipeline = {
        let mut pipelines = context.pipelines.lock().expect("no test has failed");
        pipelines.get(&context.device, context.lanes, dispatch.variant)
    };
    let mut params: Vec<u8> = dispatch.params.iter().flat_map(|word| word.to_le_bytes()).collect();
    params.resize(PARAMS_BYTES, 0);
    let params = filled(context, &params, BufferUsages::UNIFORM);
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
    let buffers: Vec<Buffer> = before.iter().map(|bytes| filled(context, bytes, usage)).collect();
    run(context, &pipeline, dispatch.grid, [&params].into_iter().chain(&buffers));
    let accesses = dispatch.variant.info.bindings.chars();
    buffers
        .iter()
        .zip(accesses)
        .map(|(buffer, access)| (access == 'w').then(|| read(context, buffer)))
        .collect()
}

fn filled(context: &Context, bytes: &[u8], usage: BufferUsages) -> Buffer {
    let buffer = context.device.create_buffer(&BufferDescriptor {
        label: Some("replay"),
        size: bytes.len() as u64,
        usage,
        mapped_at_creation: true,
    });
    buffer.get_mapped_range_mut(..).expect("it is mapped").copy_from_slice(bytes);
    buffer.unmap();
    buffer
}

fn run<'a>(
    context: &Context,
    pipeline: &Arc<Pipeline>,
    grid: [u32; 3],
    buffers: impl Iterator<Item = &'a Buffer>,
) {
    let entries: Vec<BindGroupEntry<'_>> = (0..)
        .zip(buffers)
        .map(|(binding, buffer)| BindGroupEntry { binding, resource: buffer.as_entire_binding() })
        .collect();
    let group = context.device.create_bind_group(&BindGroupDescriptor {
        label: None,
        layout: &pipeline.layout,
        entries: &entries,
    });
    let mut encoder = context.device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(pipeline.compiled());
        pass.set_bind_group(0, &group, &[0]);
        pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
    }
    context.queue.submit([encoder.finish()]);
}

fn read(context: &Context, buffer: &Buffer) -> Vec<u8> {
    let to = context.device.create_buffer(&BufferDescriptor {
        label: Some("read"),
        size: buffer.size(),
        usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = context.device.create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(buffer, 0, &to, 0, Some(buffer.size()));
    context.queue.submit([encoder.finish()]);
    to.slice(..).map_async(MapMode::Read, |_| {});
    context.device.poll(PollType::wait_indefinitely()).expect("the device works");
    to.get_mapped_range(..).expect("it is mapped").to_vec()
}
