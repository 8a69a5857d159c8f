//! What kernels bind: parameters in the arena, and buffers, in groups that are kept.

use std::collections::HashMap;

use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindingResource, BufferBinding, BufferSize,
};

use crate::commands::recording::PARAMS_STRIDE;
use crate::device::buffer::Mem;
use crate::kernels::basic::CHAIN_BINDINGS;
use crate::kernels::pipelines::Pipeline;

/// Bind groups that are kept; beyond it, all are made anew.
const MAX_GROUPS: usize = 1 << 14;

/// What kernels bind.
#[derive(Debug)]
pub(super) struct Bindings {
    pub(super) arena: Mem,
    groups: HashMap<GroupKey, BindGroup>,
}

/// A kernel and the buffers that it is bound to, the unused ones as 0.
type GroupKey = [u32; 1 + CHAIN_BINDINGS];

impl Bindings {
    pub(super) fn new(arena: Mem) -> Bindings {
        Bindings { arena, groups: HashMap::new() }
    }

    /// The group of a kernel and its buffers.
    pub(super) fn group(
        &mut self,
        device: &wgpu::Device,
        pipeline: &Pipeline,
        buffers: &[Mem],
    ) -> BindGroup {
        // Numbers of buffers begin at 1.
        let mut key: GroupKey = [0; 1 + CHAIN_BINDINGS];
        key[0] = pipeline.id;
        key.iter_mut().skip(1).zip(buffers).for_each(|(key, mem)| *key = mem.id);
        if self.groups.len() >= MAX_GROUPS {
            self.groups.clear();
        }
        if let Some(group) = self.groups.get(&key) {
            return group.clone();
        }
        let group = bind_group(device, &self.arena, &pipeline.layout, buffers);
        self.groups.insert(key, group.clone());
        group
    }

    /// Forgets what was bound to a buffer.
    pub(super) fn forget(&mut self, mem: &Mem) {
        self.groups.retain(|key, _| !key[1..].contains(&mem.id));
    }
}

fn bind_group(
    device: &wgpu::Device,
    arena: &Mem,
    layout: &wgpu::BindGroupLayout,
    buffers: &[Mem],
) -> BindGroup {
    let params = BindGroupEntry {
        binding: 0,
        resource: BindingResource::Buffer(BufferBinding {
            buffer: &arena.buffer,
            offset: 0,
            size: BufferSize::new(PARAMS_STRIDE as u64),
        }),
    };
    let mut entries = vec![params];
    for (binding, mem) in (1..).zip(buffers) {
        entries.push(BindGroupEntry { binding, resource: mem.buffer.as_entire_binding() });
    }
    device.create_bind_group(&BindGroupDescriptor { label: None, layout, entries: &entries })
}
