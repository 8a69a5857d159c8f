//! What kernels of a test read: copies of their buffers that the device makes before they run.

use std::sync::Mutex;

use wgpu::{Buffer, BufferDescriptor, BufferUsages, MapMode, PollType};

use crate::commands::command::Command;
use crate::device::buffer::Mem;
use crate::device::context::Context;
use crate::kernels::kernel::Variant;

/// Stands behind the copies of a kernel that ran.
const MARK: [u8; 4] = *b"done";

/// Dispatches of a kernel on some lanes: of all, and of those whose first two constants, of weights the
/// format, are the same.
const MOST: usize = 12;
const MOST_ALIKE: usize = 2;

/// Workgroups of a dispatch that is captured.
const WORKGROUPS: u32 = 128;

/// Bytes of the largest buffer of one.
const BYTES: u64 = 2 << 20;

/// Takes its place among those of the process, if there is one.
fn is_wanted(lanes: u32, variant: Variant) -> bool {
    static TAKEN: Mutex<Vec<(u32, Variant)>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().expect("no test fails here");
    let name = variant.info.name;
    let of_kernel = taken.iter().filter(|(on, taken)| *on == lanes && taken.info.name == name);
    let of_kernel: Vec<Variant> = of_kernel.map(|(_, taken)| *taken).collect();
    let alike = of_kernel.iter().filter(|taken| taken.first_values() == variant.first_values());
    let wanted =
        of_kernel.len() < MOST && alike.count() < MOST_ALIKE && !of_kernel.contains(&variant);
    if wanted {
        taken.push((lanes, variant));
    }
    wanted
}

/// A dispatch, and what it reads.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) variant: Variant,
    pub(crate) grid: [u32; 3],
    pub(crate) params: Vec<u32>,
    /// The bytes of each buffer.
    pub(crate) sizes: Vec<u64>,
    copy: Buffer,
}

/// Dispatches that were captured so far.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    dispatches: Vec<Dispatch>,
}

impl Capture {
    /// The commands that copy what a kernel is about to read, if it is of interest; `sizes` are the
    /// bytes in use of each of its buffers.
    pub(super) fn before(
        &mut self,
        context: &Context,
        kernel: (Variant, [u32; 3], &[u32]),
        buffers: &[(&Mem, u64)],
    ) -> Vec<Command> {
        let (variant, grid, params) = kernel;
        let sizes: Vec<u64> = buffers.iter().map(|(_, bytes)| *bytes & !3).collect();
        let bytes = sizes.iter().sum::<u64>();
        let is_small = grid.iter().product::<u32>() <= WORKGROUPS
            && sizes.iter().all(|bytes| (1..=BYTES).contains(bytes));
        if !is_small
            || has_shared(buffers, variant.info.bindings)
            || !is_wanted(context.lanes, variant)
        {
            return Vec::new();
        }
        let copy = context.device.create_buffer(&BufferDescriptor {
            label: Some("capture"),
            size: bytes + MARK.len() as u64,
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mark = context.device.create_buffer(&BufferDescriptor {
            label: Some("mark"),
            size: MARK.len() as u64,
            usage: BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        });
        mark.get_mapped_range_mut(..).expect("it is mapped").copy_from_slice(&MARK);
        mark.unmap();
        let mut at = 0;
        let mut commands = Vec::new();
        let parts = buffers.iter().map(|(mem, _)| &mem.buffer).chain([&mark]);
        for (buffer, bytes) in parts.zip(sizes.iter().copied().chain([MARK.len() as u64])) {
            commands.push(Command::Copy {
                from: (buffer.clone(), 0),
                to: (copy.clone(), at),
                bytes,
            });
            at += bytes;
        }
        self.dispatches.push(Dispatch { variant, grid, params: params.to_vec(), sizes, copy });
        commands
    }

    /// The dispatches that ran.
    pub(crate) fn into_dispatches(self) -> Vec<Dispatch> {
        self.dispatches
    }
}

impl Dispatch {
    /// What each buffer had before; `None` where the kernel did not run.
    pub(crate) fn buffers(&self, context: &Context) -> Option<Vec<Vec<u8>>> {
        self.copy.slice(..).map_async(MapMode::Read, |_| {});
        context.device.poll(PollType::wait_indefinitely()).ok()?;
        let all = self.copy.slice(..).get_mapped_range().ok()?;
        let (copies, mark) = all.split_at(all.len() - MARK.len());
        let mut rest = copies;
        let mut next = |bytes: &u64| {
            let (buffer, behind) = rest.split_at(usize::try_from(*bytes).expect("few bytes"));
            rest = behind;
            buffer.to_vec()
        };
        (*mark == MARK).then(|| self.sizes.iter().map(&mut next).collect())
    }
}

/// Whether a buffer is written that is bound twice: copies would be two buffers.
fn has_shared(buffers: &[(&Mem, u64)], bindings: &str) -> bool {
    let is_written = |mem: &Mem| {
        buffers
            .iter()
            .zip(bindings.chars())
            .any(|((bound, _), access)| *bound == mem && access == 'w')
    };
    let n_times = |mem: &Mem| buffers.iter().filter(|(bound, _)| *bound == mem).count();
    buffers.iter().any(|(mem, _)| n_times(mem) > 1 && is_written(mem))
}
