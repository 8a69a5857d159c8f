//! Compiled kernels: one for each shader and choice of its constants.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use wgpu::{
    BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType,
    BufferBindingType, ComputePipeline, ComputePipelineDescriptor, Device,
    PipelineCompilationOptions, PipelineLayoutDescriptor, ShaderModuleDescriptor, ShaderSource,
    ShaderStages,
};

use crate::kernels::kernel::Variant;
use crate::kernels::source::source;

/// A kernel, which can be recorded before it is compiled. Two are equal where they are one.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Unique on its device.
    pub(crate) id: u32,
    pub(crate) layout: BindGroupLayout,
    variant: Variant,
    /// Lanes that its subgroups have at least.
    lanes: u32,
    device: Device,
    compiled: OnceLock<ComputePipeline>,
}

impl Pipeline {
    /// The compiled kernel; compiles it, or waits for the thread that does.
    pub(crate) fn compiled(&self) -> &ComputePipeline {
        self.compiled.get_or_init(|| compile(self))
    }
}

impl PartialEq for Pipeline {
    fn eq(&self, other: &Pipeline) -> bool {
        self.id == other.id
    }
}

impl Eq for Pipeline {}

impl Hash for Pipeline {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// Kernels that were wanted so far. Threads compile them while others are recorded: what a step wants
/// for the first time is compiled by all cores.
#[derive(Debug, Default)]
pub(crate) struct Pipelines {
    by_variant: HashMap<Variant, Arc<Pipeline>>,
    queue: Arc<Queue>,
}

impl Pipelines {
    /// For a device whose subgroups have at least this many lanes.
    pub(crate) fn get(&mut self, device: &Device, lanes: u32, variant: Variant) -> Arc<Pipeline> {
        if let Some(pipeline) = self.by_variant.get(&variant) {
            return Arc::clone(pipeline);
        }
        let id = u32::try_from(self.by_variant.len()).expect("few kernels");
        let layout = layout(device, variant);
        let (device, compiled) = (device.clone(), OnceLock::new());
        let pipeline = Arc::new(Pipeline { id, layout, variant, lanes, device, compiled });
        self.by_variant.insert(variant, Arc::clone(&pipeline));
        self.queue.push(Arc::clone(&pipeline));
        pipeline
    }
}

impl Drop for Pipelines {
    /// Waits for the threads: drivers fail where a process ends while they compile.
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.waiting.clear();
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        for thread in threads {
            // A panicked thread leaves its kernel to who needs it.
            let _ = thread.join();
        }
    }
}

/// Kernels that no thread has begun to compile.
#[derive(Debug, Default)]
struct Queue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    waiting: VecDeque<Arc<Pipeline>>,
    /// Those that have ended, too.
    threads: Vec<JoinHandle<()>>,
    n_working: usize,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a thread compile a kernel. Threads end when none is left. Where the system starts none, who
    /// encodes the kernel compiles it.
    fn push(self: &Arc<Queue>, pipeline: Arc<Pipeline>) {
        let n_cores = thread::available_parallelism().map_or(1, usize::from);
        let mut state = self.lock();
        state.waiting.push_back(pipeline);
        if state.n_working >= n_cores {
            return;
        }
        let queue = Arc::clone(self);
        let thread = thread::Builder::new().name(String::from("kernel-compiler"));
        if let Ok(thread) = thread.spawn(move || queue.work()) {
            state.n_working += 1;
            state.threads.retain(|thread| !thread.is_finished());
            state.threads.push(thread);
        }
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            let Some(pipeline) = state.waiting.pop_front() else {
                state.n_working -= 1;
                return;
            };
            drop(state);
            pipeline.compiled();
        }
    }
}

/// What a kernel binds: its parameters, then its buffers.
fn layout(device: &Device, variant: Variant) -> BindGroupLayout {
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
    let bindings = variant.info.bindings.chars().enumerate();
    let entries: Vec<_> = std::iter::once(params).chain(bindings.map(storage)).collect();
    let label = Some(variant.info.name);
    device.create_bind_group_layout(&BindGroupLayoutDescriptor { label, entries: &entries })
}

fn compile(pipeline: &Pipeline) -> ComputePipeline {
    let Pipeline { layout, variant, lanes, device, .. } = pipeline;
    let label = Some(variant.info.name);
    let module = device.create_shader_module(ShaderModuleDescriptor {
        label,
        source: ShaderSource::Wgsl(Cow::Owned(source(*variant, *lanes))),
    });
    let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(layout)],
        ..PipelineLayoutDescriptor::default()
    });
    device.create_compute_pipeline(&ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: PipelineCompilationOptions {
            zero_initialize_workgroup_memory: !variant.writes_first(),
            ..PipelineCompilationOptions::default()
        },
        cache: None,
    })
}
