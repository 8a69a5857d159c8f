//! How long a device is busy with what is recorded, by the bytes and the arithmetic of ops. Systems give
//! up command buffers that take long where a display waits for the same GPU, so on these a submission
//! ends before it takes too long. The estimate only says when to submit: no result depends on it.

use std::iter::Sum;

/// What an op does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Bytes that it reads and writes.
    pub(crate) bytes: u64,
    /// Additions and multiplications.
    pub(crate) flops: u64,
}

/// Bytes that a workgroup of an element-wise kernel moves: its 256 threads have a word each, of up to
/// three inputs and an output.
const WORKGROUP_BYTES: u64 = 256 * 4 * 4;

impl Work {
    /// What any kernel does that runs on this many workgroups.
    pub(crate) fn of_workgroups(n: u64) -> Work {
        Work { bytes: n * WORKGROUP_BYTES, flops: 0 }
    }

    /// The product of a matrix of rows of this many bytes and columns with `x_rows` rows.
    pub(crate) fn product(rows: usize, row_bytes: usize, cols: usize, x_rows: usize) -> Work {
        let [rows, row_bytes, cols, x_rows] = [rows, row_bytes, cols, x_rows].map(|n| n as u64);
        Work { bytes: rows * row_bytes, flops: 2 * rows * cols * x_rows }
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Work>>(all: I) -> Work {
        let add = |a: Work, b: Work| Work { bytes: a.bytes + b.bytes, flops: a.flops + b.flops };
        all.fold(Work::default(), add)
    }
}

/// The rates of a device, low ones, and the time that a submission may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    bytes_per_second: f64,
    flops_per_second: f64,
    most_seconds: f64,
}

impl Pace {
    /// Of Metal. The slowest GPU of Apple's that can run the kernels, that of the M1, has 68 GB/s and
    /// 2.6 TFLOPS by its maker's figures: half of the one and a fifth of the other, without matrix
    /// units. Faster GPUs take less than the 50 ms, so that a display misses three frames at most.
    pub(crate) const METAL: Pace =
        Pace { bytes_per_second: 34e9, flops_per_second: 0.5e12, most_seconds: 0.05 };

    /// Of devices that are slower by a factor.
    #[cfg(test)]
    pub(crate) fn slower(self, times: f64) -> Pace {
        let Pace { bytes_per_second, flops_per_second, most_seconds } = self;
        let flops_per_second = flops_per_second / times;
        Pace { bytes_per_second: bytes_per_second / times, flops_per_second, most_seconds }
    }

    /// How long this takes: memory and arithmetic work at the same time.
    pub(crate) fn seconds(self, work: Work) -> f64 {
        let bytes = work.bytes as f64 / self.bytes_per_second;
        bytes.max(work.flops as f64 / self.flops_per_second)
    }

    /// Whether what is recorded, which takes `seconds`, is to be submitted before `next` is recorded.
    pub(crate) fn is_due(self, seconds: f64, next: Work) -> bool {
        seconds > 0.0 && seconds + self.seconds(next) > self.most_seconds
    }

    /// In how many submissions work is to be divided that can be.
    pub(crate) fn n_parts(self, work: Work) -> usize {
        ((self.seconds(work) / self.most_seconds).ceil() as usize).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::{Pace, Work};

    const PACE: Pace = Pace { bytes_per_second: 1e9, flops_per_second: 1e12, most_seconds: 0.05 };

    #[test]
    fn the_slower_of_memory_and_arithmetic_counts() {
        let seconds = |bytes, flops| PACE.seconds(Work { bytes, flops });
        assert!((seconds(20_000_000, 1_000_000_000) - 0.02).abs() < 1e-9);
        assert!((seconds(1_000_000, 30_000_000_000) - 0.03).abs() < 1e-9);
        // A row of a matrix of 4096 x 4096 bytes: its bytes; 2048 rows: its arithmetic.
        let product = |x_rows| PACE.seconds(Work::product(4096, 4096, 4096, x_rows));
        assert!((product(1) - 4096.0 * 4096.0 / 1e9).abs() < 1e-9);
        assert!((product(2048) - 2.0 * 4096.0 * 4096.0 * 2048.0 / 1e12).abs() < 1e-9);
    }

    #[test]
    fn a_submission_ends_before_what_would_make_it_too_long() {
        let work = |ms: u64| Work { bytes: ms * 1_000_000, flops: 0 };
        assert!(!PACE.is_due(0.02, work(29)));
        assert!(PACE.is_due(0.02, work(31)));
        // What is too long alone has nothing before it.
        assert!(!PACE.is_due(0.0, work(500)));
        assert!(PACE.is_due(0.001, work(500)));
        assert!(PACE.is_due(0.051, Work::default()));
    }

    #[test]
    fn what_can_be_divided_is_divided_until_each_part_is_short() {
        let parts = |ms: u64| PACE.n_parts(Work { bytes: 0, flops: ms * 1_000_000_000 });
        assert_eq!([0, 1, 50, 51, 100, 101, 5000].map(parts), [1, 1, 1, 2, 2, 3, 100]);
    }

    #[test]
    fn work_adds_up_over_ops() {
        let sum: Work = [Work::of_workgroups(1000), Work::product(3, 5, 7, 2)].into_iter().sum();
        assert_eq!(sum, Work { bytes: 4_096_000 + 15, flops: 84 });
    }
}
