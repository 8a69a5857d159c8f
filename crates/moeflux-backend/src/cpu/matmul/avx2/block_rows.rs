//! Eight rows of blocks side by side, and words of them with the rows as lanes.

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

/// The four bytes at `$at` of each of eight rows.
///
/// A macro, as the next one: of a function with this many checks and callers the compiler makes a
/// call, and the checks stay.
macro_rules! word_of_rows {
    ($rows:expr, $at:expr) => {{
        let (rows, at): (StepRows<'_, _>, usize) = ($rows, $at);
        macro_rules! word {
            ($row:literal) => {
                i32::from_le_bytes(*rows.0[$row][at..].first_chunk().expect("four bytes"))
            };
        }
        _mm256_setr_epi32(
            word!(0),
            word!(1),
            word!(2),
            word!(3),
            word!(4),
            word!(5),
            word!(6),
            word!(7),
        )
    }};
}

/// The sixteen bytes at `$at` of each of eight rows, as words.
macro_rules! words_of_rows {
    ($rows:expr, $at:expr) => {{
        let (rows, at): (StepRows<'_, _>, usize) = ($rows, $at);
        // Rows `r` and `r + 4` go through the same steps, in the halves of a vector.
        macro_rules! both {
            ($first:literal $second:literal) => {
                _mm256_set_m128i(load_16(&rows.0[$second][at..]), load_16(&rows.0[$first][at..]))
            };
        }
        let (a, b, c, d) = (both!(0 4), both!(1 5), both!(2 6), both!(3 7));
        let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab_low, cd_low),
            _mm256_unpackhi_epi64(ab_low, cd_low),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    }};
}

pub(super) use {word_of_rows, words_of_rows};
