//! How fast a device moves bytes, and how long its kernels take.

use std::time::Instant;

use moeflux_backend::DeviceError;

use crate::backend::Wgpu;
use crate::encoder::{Grid, Mem};
use crate::shader::{Shader, Variant};

/// Rounds of a measurement, the best of which counts: at least so many, and as
/// many as take so many seconds. Clocks of a device that waited are low at first.
const ROUNDS: usize = 5;
const SECONDS: f64 = 0.06;

/// Copies between two waits.
const COPIES: usize = 10;

/// Bytes of which a workgroup of `stream.wgsl` takes care.
const STREAMED: u64 = 32 << 10;

/// By what bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The interface's command, from buffer to buffer.
    CopyCommand,
    /// A kernel that reads and writes.
    CopyKernel,
    /// A kernel that reads.
    ReadKernel,
}

impl Wgpu {
    /// GB/s at which so many bytes move, read and written bytes counted.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn stream_gb_s(&mut self, stream: Stream, bytes: u64) -> Result<f64, DeviceError> {
        let most = self.encoder.context().max_binding_bytes().min(bytes);
        let bytes = (most / STREAMED).max(1) * STREAMED;
        let mem = |bytes| Mem::new(self.encoder.context().storage(bytes, "streams"));
        let reads = stream == Stream::ReadKernel;
        let (from, to) = (mem(bytes), mem(if reads { 16 } else { bytes }));
        let seconds = self.best_seconds(COPIES, &mut |b, _| match stream {
            Stream::CopyCommand => b.encoder.copy((&from, 0), (&to, 0), bytes),
            Stream::CopyKernel | Stream::ReadKernel => b.encoder.dispatch(
                Variant::new(Shader::Stream, &[u32::from(!reads)]),
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
    fn seconds(&mut self, run: &mut dyn FnMut(&mut Wgpu)) -> Result<f64, DeviceError> {
        self.encoder.wait()?;
        if self.encoder.stamp(0) {
            run(self);
            self.encoder.stamp(1);
            return self.encoder.seconds_between();
        }
        let start = Instant::now();
        run(self);
        self.encoder.wait()?;
        Ok(start.elapsed().as_secs_f64())
    }
}
