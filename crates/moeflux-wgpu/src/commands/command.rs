//! Commands that were recorded and not yet encoded.

use std::sync::Arc;

use wgpu::{BindGroup, Buffer, CommandBuffer, QuerySet};

use crate::kernels::pipelines::Pipeline;

/// A command for the device.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum Command {
    /// Runs a kernel, with the place of its parameters and its workgroups.
    Run { pipeline: Arc<Pipeline>, group: BindGroup, params: u32, grid: [u32; 3] },
    /// Copies bytes from a place in a buffer to one in another.
    Copy { from: (Buffer, u64), to: (Buffer, u64), bytes: u64 },
    /// Fills bytes from a place in a buffer on with zeros.
    Clear(Buffer, u64, u64),
    /// Writes a timestamp at an index of the query set.
    Stamp(QuerySet, u32),
    /// Copies the first timestamps to a buffer.
    Resolve(QuerySet, u32, Buffer),
}

/// Commands, and the lists and parameters that the arena holds for them.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) commands: Vec<Command>,
    pub(crate) arena: Vec<u8>,
}

/// Commands and their command buffer.
pub(crate) type Encoded = (Vec<Command>, CommandBuffer);
