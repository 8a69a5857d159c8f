//! How fast a device moves bytes, and how long its kernels take.

use std::sync::Arc;
use std::time::Instant;

use moeflux_backend::DeviceError;
use wgpu::{BufferUsages, MapMode};

use crate::commands::grid::Grid;
use crate::commands::read::wait;
use crate::commands::timing::{seconds_between, stamp};
use crate::device::buffer::{BufferDesc, Mem};
use crate::kernels::basic as kernels;
use crate::state::gpu::Wgpu;

/// Rounds of a measurement, the best of which counts: at least this many, and as many as take
/// this many seconds. Clocks of a device that waited are low at first.
const ROUNDS: usize = 5;
const SECONDS: f64 = 0.06;

/// Seconds of uploads after which no other round begins.
const UPLOAD_SECONDS: f64 = 0.2;

/// Copies between two waits.
const COPIES: usize = 10;

/// Bytes of which a workgroup of `tuning/bandwidth_probe.wgsl` takes care.
const STREAMED: u64 = 32 << 10;

/// By what bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandwidthProbe {
    /// The interface's command, from buffer to buffer.
    CopyCommand,
    /// A kernel that reads and writes.
    CopyKernel,
    /// A kernel that reads.
    ReadKernel,
}

impl Wgpu {
    /// GB/s at which this many bytes move, read and written bytes counted.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn bandwidth_gb_s(
        &mut self,
        probe: BandwidthProbe,
        bytes: u64,
    ) -> Result<f64, DeviceError> {
        let most = self.encoder.context().max_binding_bytes().min(bytes);
        let bytes = (most / STREAMED).max(1) * STREAMED;
        let mut mem = |bytes| self.encoder.buffers.storage(bytes, "streams");
        let reads = probe == BandwidthProbe::ReadKernel;
        let (from, to) = (mem(bytes), mem(if reads { 16 } else { bytes }));
        let seconds = self.best_seconds(COPIES, &mut |b, _| match probe {
            BandwidthProbe::CopyCommand => b.encoder.copy(from.at(0), to.at(0), bytes),
            BandwidthProbe::CopyKernel | BandwidthProbe::ReadKernel => b.encoder.dispatch(
                kernels::BandwidthProbe { copies: !reads },
                &[u32::try_from(bytes / 16).expect("bindings are counted in 32 bits")],
                &[&from, &to],
                Grid::Linear((bytes / STREAMED) as usize),
            ),
        })?;
        self.encoder.forget(&from);
        self.encoder.forget(&to);
        let times = if reads { 1.0 } else { 2.0 };
        Ok(times * bytes as f64 / seconds / 1e9)
    }

    /// GB/s at which this many threads and the device bring bytes from the processor's memory to
    /// the device's: written into memory that both see, then copied.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn upload_gb_s(&mut self, bytes: u64, n_threads: usize) -> Result<f64, DeviceError> {
        let context = Arc::clone(self.encoder.context());
        let n_threads = n_threads.max(1) as u64;
        let part = bytes.min(context.max_binding_bytes()) / n_threads;
        let part = (part & !(STREAMED - 1)).max(STREAMED);
        let bytes = part * n_threads;
        let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
        let desc = BufferDesc { bytes, usage, label: "upload", is_mapped: false };
        let staging = context.try_buffer(desc).ok_or(DeviceError::OutOfMemory { bytes })?;
        let staging = Mem::new(staging);
        let target = self.encoder.buffers.storage(bytes, "upload");
        let host = vec![0x5au8; usize::try_from(bytes).unwrap_or(0)];
        let (mut best, mut total, mut n_rounds) = (f64::INFINITY, 0.0, 0);
        while n_rounds <= ROUNDS && (n_rounds <= 1 || total < UPLOAD_SECONDS) {
            staging.buffer.slice(..).map_async(MapMode::Write, |_| {});
            wait(&mut self.encoder)?;
            let start = Instant::now();
            let is_written = write_parts(&staging, &host, part);
            staging.buffer.unmap();
            if !is_written {
                let reason = String::from("memory that was mapped cannot be written");
                context.lose(reason.clone());
                return Err(DeviceError::Lost { reason });
            }
            self.encoder.copy(staging.at(0), target.at(0), bytes);
            wait(&mut self.encoder)?;
            let seconds = start.elapsed().as_secs_f64();
            // In the first round pages are touched for the first time.
            if n_rounds > 0 {
                best = best.min(seconds);
                total += seconds;
            }
            n_rounds += 1;
        }
        Ok(bytes as f64 / best.max(1e-9) / 1e9)
    }

    /// Seconds of one of `n` runs that the device does one after the other, in
    /// the best of some rounds: by its own clock where it has one, else until it
    /// has answered.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn best_seconds(
        &mut self,
        n: usize,
        run: &mut dyn FnMut(&mut Wgpu, usize),
    ) -> Result<f64, DeviceError> {
        let (mut best, mut total, mut n_rounds) = (f64::INFINITY, 0.0, 0);
        while n_rounds <= ROUNDS || total < SECONDS {
            let seconds = self.seconds(&mut |b| (0..n).for_each(|i| run(b, i)))?;
            // The first round compiles kernels.
            if n_rounds > 0 {
                best = best.min(seconds);
                total += seconds;
            }
            n_rounds += 1;
        }
        Ok(best / n as f64)
    }

    /// Seconds that the device takes for what is recorded.
    pub(crate) fn seconds(&mut self, run: &mut dyn FnMut(&mut Wgpu)) -> Result<f64, DeviceError> {
        wait(&mut self.encoder)?;
        if stamp(&mut self.encoder, 0) {
            run(self);
            stamp(&mut self.encoder, 1);
            return seconds_between(&mut self.encoder);
        }
        let start = Instant::now();
        run(self);
        wait(&mut self.encoder)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Writes a mapped buffer, a thread a part; false where it is not mapped.
fn write_parts(mem: &Mem, host: &[u8], part: u64) -> bool {
    let write = |(i, bytes): (u64, &[u8])| {
        let slice = mem.buffer.slice(i * part..i * part + bytes.len() as u64);
        slice.get_mapped_range_mut().is_ok_and(|mut view| {
            view.copy_from_slice(bytes);
            true
        })
    };
    let part = usize::try_from(part).unwrap_or(usize::MAX).max(1);
    std::thread::scope(|scope| {
        let parts = (0..).zip(host.chunks(part));
        let start = |part| std::thread::Builder::new().spawn_scoped(scope, move || write(part));
        let threads: Vec<_> = parts.map(start).collect();
        let mut ended = threads.into_iter().map(|thread| thread.ok()?.join().ok());
        // The scope waits for those that are not looked at.
        ended.all(|one| one == Some(true))
    })
}
