//! When kernels end, by the device's clock.

use moeflux_backend::KernelTime;
use wgpu::{BufferUsages, QuerySet, QuerySetDescriptor, QueryType};

use crate::device::buffer::{BufferDesc, Mem};
use crate::device::context::Context;

/// Most moments that are noted: the interface's limit of a query set.
const MOMENTS: u32 = 4096;

/// Bytes of a moment.
const MOMENT_BYTES: u64 = 8;

/// Two moments on the device's clock, or all at which a kernel ended.
#[derive(Debug)]
pub(crate) struct Clock {
    set: QuerySet,
    buffer: Mem,
    n_max: u32,
    /// What ended at each moment after the first.
    ended: Vec<String>,
}

impl Clock {
    /// A clock for two moments. `None` where the device has none, or no memory.
    pub(crate) fn of_two(context: &Context) -> Option<Clock> {
        Clock::new(context, 2)
    }

    /// A clock for as many moments as there can be.
    pub(crate) fn of_kernels(context: &Context) -> Option<Clock> {
        Clock::new(context, MOMENTS)
    }

    fn new(context: &Context, n_max: u32) -> Option<Clock> {
        if !context.has_clock {
            return None;
        }
        let descriptor = QuerySetDescriptor { label: None, ty: QueryType::Timestamp, count: n_max };
        let set = context.device.create_query_set(&descriptor);
        let usage = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let bytes = u64::from(n_max) * MOMENT_BYTES;
        let desc = BufferDesc { bytes, usage, label: "moments", is_mapped: false };
        let buffer = Mem::new(context.try_buffer(desc)?);
        Some(Clock { set, buffer, n_max, ended: Vec::new() })
    }

    /// The moments, and where they are written to.
    pub(crate) fn parts(&self) -> (QuerySet, Mem) {
        (self.set.clone(), self.buffer.clone())
    }

    /// Which moment is noted next, as the end of `what`; `None` where none is
    /// left. The first ends nothing.
    pub(crate) fn next(&mut self, what: impl FnOnce() -> String) -> Option<u32> {
        let n = u32::try_from(self.ended.len()).ok().filter(|idx| *idx < self.n_max)?;
        self.ended.push(what());
        Some(n)
    }

    /// Moments noted.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.ended.len()).unwrap_or(self.n_max)
    }

    /// Times between moments, as 64-bit numbers of `period` nanoseconds each,
    /// those of one name together, the longest first.
    pub(crate) fn times(&self, bytes: &[u8], period: f64) -> Vec<KernelTime> {
        let ticks: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let mut all: Vec<KernelTime> = Vec::new();
        for (name, ticks) in self.ended.iter().skip(1).zip(ticks.windows(2)) {
            let seconds = ticks[1].saturating_sub(ticks[0]) as f64 * period / 1e9;
            match all.iter_mut().find(|kernel| kernel.name == *name) {
                Some(kernel) => {
                    kernel.n += 1;
                    kernel.seconds += seconds;
                }
                None => all.push(KernelTime { name: name.clone(), n: 1, seconds }),
            }
        }
        all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        all
    }
}
