//! How fast a device moves bytes: what kernels are compared with.

use std::time::Instant;

use moeflux_backend::DeviceError;

use crate::backend::Wgpu;
use crate::encoder::Mem;

/// Copies of a measurement, the best of which counts.
const ROUNDS: usize = 5;

/// Copies between two waits.
const COPIES: usize = 20;

impl Wgpu {
    /// GB/s of copies of so many bytes from buffer to buffer, read and written
    /// bytes counted.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn copy_gb_s(&mut self, bytes: u64) -> Result<f64, DeviceError> {
        let bytes = bytes.min(self.encoder.context().max_binding_bytes()) & !15;
        let mem = || Mem::new(self.encoder.context().storage(bytes, "copies"));
        let (from, to) = (mem(), mem());
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            self.encoder.copy((&from, 0), (&to, 0), bytes);
            self.encoder.read(&[(&to, 0, 4)])?;
            let start = Instant::now();
            for _ in 0..COPIES {
                self.encoder.copy((&from, 0), (&to, 0), bytes);
            }
            self.encoder.read(&[(&to, 0, 4)])?;
            best = best.min(start.elapsed().as_secs_f64() / COPIES as f64);
        }
        Ok(2.0 * bytes as f64 / best / 1e9)
    }
}
