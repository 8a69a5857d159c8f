//! The caches of sequences: their kinds, sizes and layouts.

use std::ops::Range;

use crate::KvType;

/// What a sequence keeps between steps for an op of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSpec {
    /// A key and a value a position and head, in pages; grows with the sequence.
    Pages {
        /// `num_key_value_heads`.
        n_heads: usize,
        /// Floats of a key.
        k_dim: usize,
        /// Floats of a value; 0 where values are the first floats of keys.
        v_dim: usize,
        /// How both are stored.
        dtype: KvType,
        /// Rows attend to this many of the last positions, their own included, so that the
        /// others may be [forgotten](crate::Sequences::forget_passed); to all where absent.
        window: Option<usize>,
    },
    /// An entry for every pool of positions, in pages: key and value of all heads. Pools are counted from
    /// position 0, and have an entry once their last position is there
    /// ([`pool_entries`](crate::Ops::pool_entries)).
    Entries {
        /// Positions of a pool.
        pool: usize,
        /// Floats of an entry.
        dim: usize,
        /// How it is stored.
        dtype: KvType,
    },
    /// A recurrent state in `f32`, all zero at first, which every row replaces.
    State(StateShape),
}

/// The shape of a recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateShape {
    /// The last rows of an input, the oldest first: `(n, cols)`.
    Rows {
        /// How many are kept.
        n: usize,
        /// Columns of a row.
        cols: usize,
    },
    /// Matrices that are updated in place: `(n, rows, cols)`.
    Matrices {
        /// How many there are: one a head.
        n: usize,
        /// Rows of each.
        rows: usize,
        /// Columns of each.
        cols: usize,
    },
}

impl StateShape {
    /// Floats of the state.
    pub fn len(self) -> usize {
        match self {
            StateShape::Rows { n, cols } => n * cols,
            StateShape::Matrices { n, rows, cols } => n * rows * cols,
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl CacheSpec {
    /// Bytes that every sequence takes, however short.
    pub fn fixed_bytes(&self) -> usize {
        match *self {
            CacheSpec::Pages { .. } | CacheSpec::Entries { .. } => 0,
            CacheSpec::State(shape) => 4 * shape.len(),
        }
    }

    /// Bytes that a sequence takes for each of its positions, rounded up.
    pub fn bytes_per_position(&self) -> usize {
        match *self {
            CacheSpec::Pages { n_heads, k_dim, v_dim, dtype, .. } => {
                n_heads * (dtype.row_bytes(k_dim) + dtype.row_bytes(v_dim))
            }
            CacheSpec::Entries { pool, dim, dtype } => dtype.row_bytes(dim).div_ceil(pool),
            CacheSpec::State(_) => 0,
        }
    }

    /// Bytes of [`Sequences::save_cache`](crate::Sequences::save_cache) for
    /// some positions: little-endian, as stored.
    ///
    /// Pages: the keys `(n, n_heads, k_dim)`, then the values `(n, n_heads, v_dim)`. Entries: those of the
    /// pools whose last positions are among these. A state: its floats.
    pub fn saved_bytes(&self, positions: &Range<usize>) -> usize {
        match *self {
            CacheSpec::Entries { pool, dim, dtype } => {
                entries_in(positions, pool).len() * dtype.row_bytes(dim)
            }
            _ => self.fixed_bytes() + positions.len() * self.bytes_per_position(),
        }
    }

    /// The window of a cache that may forget positions.
    pub fn window(&self) -> Option<usize> {
        match *self {
            CacheSpec::Pages { window, .. } => window,
            CacheSpec::Entries { .. } | CacheSpec::State(_) => None,
        }
    }

    /// The positions before `end` that a row at `end` attends to.
    pub fn seen_before(&self, end: usize) -> Range<usize> {
        self.window().map_or(0, |window| first_seen(end, window))..end
    }

    /// Whether the past cannot be cut off position by position.
    pub fn is_recurrent(&self) -> bool {
        matches!(self, CacheSpec::State(_))
    }
}

/// The pools whose last positions are among some positions.
pub fn entries_in(positions: &Range<usize>, pool: usize) -> Range<usize> {
    positions.start / pool..positions.end / pool
}

/// The first position that a row at `end` sees through a window.
fn first_seen(end: usize, window: usize) -> usize {
    (end + 1).saturating_sub(window)
}

/// Whether some of `positions`, in a cache with a window, are seen by a row at one of `ends`, which
/// ascend, or by a row after the last of them.
pub fn is_seen(positions: &Range<usize>, window: usize, ends: &[usize]) -> bool {
    let is_seen_by = |end: usize| positions.end > first_seen(end, window);
    ends.last().is_none_or(|last| is_seen_by(*last))
        || ends.iter().any(|end| positions.start < *end && is_seen_by(*end))
}

#[cfg(test)]
mod tests {
    use super::is_seen;

    #[test]
    fn windows_show_positions_before_an_end_and_all_after_the_last() {
        let seen = |positions, ends: &[usize]| is_seen(&positions, 10, ends);
        assert!(seen(0..4, &[]) && seen(0..4, &[5]));
        assert!(!seen(0..16, &[25]) && seen(0..17, &[25]) && seen(90..99, &[25]));
        assert!(seen(16..20, &[25, 100]) && !seen(25..91, &[25, 100]));
        assert!(seen(24..26, &[25, 100]) && seen(25..92, &[25, 100]) && !seen(0..16, &[25, 100]));
    }
}
