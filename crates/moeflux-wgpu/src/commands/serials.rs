//! Serial numbers of command buffers. Drivers may give up a command buffer and report it as done, as
//! Metal does where one takes too long. So each ends with a kernel that writes the number behind that
//! of the one before, and each read-back brings the number along: another one than expected means
//! that commands, or writes to buffers in front of them, never ran.

use std::sync::Arc;

use moeflux_backend::DeviceError;
use wgpu::BindGroup;

use crate::commands::bindings::Bindings;
use crate::commands::buffers::Buffers;
use crate::commands::command::Command;
use crate::device::buffer::Mem;
use crate::device::context::Context;
use crate::kernels::basic::Serial;
use crate::kernels::pipelines::Pipeline;

/// Bytes of a number.
pub(super) const NUMBER_BYTES: u64 = 4;

/// The serial numbers of a backend's command buffers, modulo 2^32.
#[derive(Debug)]
pub(crate) struct Serials {
    context: Arc<Context>,
    /// That of the last command buffer that the device has run, of which none before is missing.
    pub(crate) mem: Mem,
    /// That of the last one which was handed over.
    pub(crate) last: u32,
    kernel: Option<(Arc<Pipeline>, BindGroup)>,
}

impl Serials {
    pub(super) fn new(context: Arc<Context>, buffers: &mut Buffers) -> Serials {
        let mem = buffers.lasting_storage(NUMBER_BYTES, "serial number");
        Serials { context, mem, last: 0, kernel: None }
    }

    /// The number of the next command buffer; returns the one before.
    pub(super) fn next(&mut self) -> u32 {
        let previous = self.last;
        self.last = previous.wrapping_add(1);
        previous
    }

    /// The kernel that writes a number, whose parameters are at this byte of the arena.
    pub(super) fn command(&mut self, bindings: &mut Bindings, params: u32) -> Command {
        let Serials { context, mem, kernel, .. } = self;
        let (pipeline, group) = kernel.get_or_insert_with(|| {
            let pipeline = context.pipeline(Serial {}.into());
            let group = bindings.group(&context.device, &pipeline, std::slice::from_ref(mem));
            (pipeline, group)
        });
        Command::Run { pipeline: pipeline.clone(), group: group.clone(), params, grid: [1; 3] }
    }
}

/// Whether the device ran all command buffers up to one, by the number that a read-back brought along.
///
/// # Errors
/// [`DeviceError::Lost`] where it did not: what it has computed since is wrong.
pub(super) fn check(context: &Context, expected: u32, read: &[u8]) -> Result<(), DeviceError> {
    let found = read.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    if found == Some(expected) {
        return Ok(());
    }
    let found = found.unwrap_or_default();
    let reason = format!(
        "its driver gave up commands and reported them as done (command buffer {expected}: {found})"
    );
    context.lose(reason.clone());
    Err(DeviceError::Lost { reason })
}
