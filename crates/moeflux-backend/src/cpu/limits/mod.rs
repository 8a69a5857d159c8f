//! What the machine itself can do: the speed of memory and of the arithmetic
//! units, against which kernels are measured.

mod arithmetic;
mod memory;

use std::io;
use std::time::{Duration, Instant};

use moeflux_core::HostBuf;

use super::matmul::{Quantised, Rounding};
use super::{Isa, Pool};

/// How long one figure is measured.
const TIME: Duration = Duration::from_millis(60);

/// Measures the machine, with a number of threads and an instruction set.
#[derive(Debug)]
pub struct LimitProbe {
    one: Pool,
    all: Pool,
    isa: Isa,
    buf: HostBuf,
}

/// The speeds of the arithmetic units, on one thread and on all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arithmetic {
    /// `f32` fused multiply-adds, two operations each, in thousand millions a
    /// second.
    pub float_gop_s: [f64; 2],
    /// Products of unsigned and signed bytes added up in 32 bits, likewise,
    /// operands in the first cache.
    pub integer_gop_s: [f64; 2],
}

impl LimitProbe {
    /// A probe that reads `memory_bytes`, which should be far more than any
    /// cache holds.
    ///
    /// # Errors
    /// Where the system does not start a thread.
    pub fn new(n_threads: usize, isa: Isa, memory_bytes: usize) -> io::Result<LimitProbe> {
        let mut buf = HostBuf::zeroed(memory_bytes);
        // Pages that were never written are all the same one.
        buf.fill(1);
        Ok(LimitProbe { one: Pool::try_new(1)?, all: Pool::try_new(n_threads)?, isa, buf })
    }

    /// Bytes that the probe holds.
    pub fn memory_bytes(&self) -> usize {
        self.buf.len()
    }

    /// GB/s of a plain read loop, on one thread and on all: the best pass.
    pub fn memory_gb_s(&self) -> [f64; 2] {
        [&self.one, &self.all].map(|pool| {
            let n_bytes = self.buf.len() as f64;
            best(TIME, || memory::read(pool, self.isa, &self.buf), n_bytes)
        })
    }

    /// The speeds of the arithmetic units.
    pub fn arithmetic(&self) -> Arithmetic {
        let both = |work: fn(Isa) -> u64| {
            [&self.one, &self.all].map(|pool| {
                let n_ops = 2.0 * (work(self.isa) * pool.n_threads() as u64) as f64;
                let each = |_| {
                    work(self.isa);
                };
                best(TIME, || pool.run(pool.n_threads(), &each), n_ops)
            })
        };
        Arithmetic {
            float_gop_s: both(arithmetic::floats),
            integer_gop_s: both(arithmetic::integers),
        }
    }

    /// GB/s of activations rounded to integers of this many limbs, read from the
    /// first cache, on all threads.
    pub fn quantise_gb_s(&self, n_rows: usize, cols: usize, n_limbs: usize) -> f64 {
        let x: Vec<f32> = (0..n_rows * cols).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
        let mut quantised = Quantised::default();
        let rounding = Rounding { x: &x, stride: cols, n_rows, cols, group_size: 64, n_limbs };
        let n_bytes = (x.len() * size_of::<f32>()) as f64;
        best(TIME, || quantised.quantise(&self.all, self.isa, rounding), n_bytes)
    }
}

/// Units a nanosecond of the fastest of all calls that fit into `time`; at
/// least three.
fn best(time: Duration, mut work: impl FnMut(), units: f64) -> f64 {
    let start = Instant::now();
    let mut least = Duration::MAX;
    let mut n_calls = 0;
    while n_calls < 3 || start.elapsed() < time {
        let begin = Instant::now();
        work();
        least = least.min(begin.elapsed());
        n_calls += 1;
    }
    units / least.as_nanos().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_has_limits() {
        for isa in Isa::available() {
            let probe = LimitProbe::new(2, isa, 1 << 20).unwrap();
            let Arithmetic { float_gop_s, integer_gop_s } = probe.arithmetic();
            let all = [probe.memory_gb_s(), float_gop_s, integer_gop_s].concat();
            assert!(
                all.iter().all(|number| number.is_finite() && *number > 0.0),
                "{isa:?}: {all:?}"
            );
            assert!(probe.quantise_gb_s(3, 128, 2) > 0.0);
        }
    }
}
