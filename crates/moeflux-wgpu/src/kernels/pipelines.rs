//! Compiled kernels: one for each shader and choice of its constants.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use wgpu::{
    BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType,
    BufferBindingType, ComputePipeline, ComputePipelineDescriptor, Device,
    PipelineCompilationOptions, PipelineLayoutDescriptor, ShaderModuleDescriptor, ShaderSource,
    ShaderStages,
};

use crate::kernels::kernel::Variant;
use crate::kernels::source::source;

/// A kernel ready to run.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Unique on its device.
    pub(crate) id: u32,
    pub(crate) pipeline: ComputePipeline,
    pub(crate) layout: BindGroupLayout,
}

/// Kernels that were compiled so far.
#[derive(Debug, Default)]
pub(crate) struct Pipelines {
    by_variant: HashMap<Variant, Arc<Pipeline>>,
}

impl Pipelines {
    /// For a device whose subgroups have at least this many lanes.
    pub(crate) fn get(&mut self, device: &Device, lanes: u32, variant: Variant) -> Arc<Pipeline> {
        if let Some(pipeline) = self.by_variant.get(&variant) {
            return Arc::clone(pipeline);
        }
        let id = u32::try_from(self.by_variant.len()).expect("few kernels");
        let pipeline = Arc::new(compile(device, lanes, variant, id));
        self.by_variant.insert(variant, Arc::clone(&pipeline));
        pipeline
    }
}

fn compile(device: &Device, lanes: u32, variant: Variant, id: u32) -> Pipeline {
    let label = Some(variant.info.name);
    let module = device.create_shader_module(ShaderModuleDescriptor {
        label,
        source: ShaderSource::Wgsl(Cow::Owned(source(variant, lanes))),
    });
    let bindings = variant.info.bindings;
    let params = BindGroupLayoutEntry {
        binding: 0,
        visibility: ShaderStages::COMPUTE,
        ty: BindingType::Buffer {
            ty: BufferBindingType::Uniform,
            has_dynamic_offset: true,
            min_binding_size: None,
        },
        count: None,
    };
    let storage = |(i, access): (usize, char)| BindGroupLayoutEntry {
        binding: 1 + u32::try_from(i).expect("few bindings"),
        ty: BindingType::Buffer {
            ty: BufferBindingType::Storage { read_only: access == 'r' },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        ..params
    };
    let entries: Vec<_> =
        std::iter::once(params).chain(bindings.chars().enumerate().map(storage)).collect();
    let layout =
        device.create_bind_group_layout(&BindGroupLayoutDescriptor { label, entries: &entries });
    let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        ..PipelineLayoutDescriptor::default()
    });
    let pipeline = device.create_compute_pipeline(&ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: PipelineCompilationOptions {
            zero_initialize_workgroup_memory: !variant.writes_first(),
            ..PipelineCompilationOptions::default()
        },
        cache: None,
    });
    Pipeline { id, pipeline, layout }
}
