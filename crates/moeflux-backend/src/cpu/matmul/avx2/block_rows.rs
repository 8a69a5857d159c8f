//! Eight rows of blocks side by side.

use std::ops::Range;

use super::vector::ROWS;

/// Eight rows of blocks, one after the other.
#[derive(Clone, Copy)]
pub(super) struct BlockRows<'a> {
    /// Invariant: eight times `row_bytes`.
    pub(super) bytes: &'a [u8],
    pub(super) row_bytes: usize,
}

impl<'a> BlockRows<'a> {
    pub(super) fn new(bytes: &'a [u8], row_bytes: usize) -> BlockRows<'a> {
        assert_eq!(bytes.len(), ROWS * row_bytes, "eight rows");
        BlockRows { bytes, row_bytes }
    }

    /// At most eight rows, and zeros in place of absent ones: what these hold changes nothing.
    pub(super) fn padded(
        stored: &'a [u8],
        row_bytes: usize,
        padded: &'a mut Vec<u8>,
    ) -> BlockRows<'a> {
        if stored.len() == ROWS * row_bytes {
            return BlockRows { bytes: stored, row_bytes };
        }
        padded.clear();
        padded.extend_from_slice(stored);
        padded.resize(ROWS * row_bytes, 0);
        BlockRows::new(padded, row_bytes)
    }

    /// `N` bytes of each row, from its byte `at` on.
    #[inline]
    pub(super) fn step<const N: usize>(self, at: usize) -> StepRows<'a, N> {
        let row = |row: usize| {
            let bytes = &self.bytes[row * self.row_bytes + at..];
            bytes.first_chunk().expect("a step of each row")
        };
        StepRows([row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)])
    }

    /// The `step`-th `N` bytes of each row, with zeros after the end of a row.
    #[inline]
    pub(super) fn step_or_padded<'s, const N: usize>(
        self,
        step: usize,
        padded: &'s mut Vec<u8>,
    ) -> StepRows<'s, N>
    where
        'a: 's,
    {
        if (step + 1) * N <= self.row_bytes {
            return self.step(step * N);
        }
        pad_step(self, step * N..(step + 1) * N, padded);
        BlockRows::new(padded, N).step(0)
    }
}

/// The same part of eight rows. Its length is known when kernels are compiled, so that their loads
/// need no checks.
#[derive(Clone, Copy)]
pub(super) struct StepRows<'a, const N: usize>(pub(super) [&'a [u8; N]; ROWS]);

/// Copies these bytes of eight rows as far as the rows go, and zeros after that.
fn pad_step(rows: BlockRows<'_>, bytes: Range<usize>, out: &mut Vec<u8>) {
    out.clear();
    for row in rows.bytes.chunks_exact(rows.row_bytes) {
        let end = out.len() + bytes.len();
        out.extend_from_slice(&row[bytes.start..bytes.end.min(rows.row_bytes)]);
        out.resize(end, 0);
    }
}
