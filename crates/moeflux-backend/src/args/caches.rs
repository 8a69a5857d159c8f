//! The caches of sequences: their kinds, sizes and layouts.

use std::ops::Range;

use crate::KvType;

/// The cache of one layer, which a sequence keeps between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSpec {
    /// A key and a value a position and head; grows with the sequence.
    Kv {
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
    /// The last `kernel - 1` inputs of a causal convolution.
    Conv {
        /// Channels.
        channels: usize,
        /// Taps, the current input included.
        kernel: usize,
    },
    /// The state of a delta rule: `n_heads` matrices of `(v_dim, k_dim)`.
    Delta {
        /// Value heads.
        n_heads: usize,
        /// Floats of a key.
        k_dim: usize,
        /// Floats of a value.
        v_dim: usize,
    },
}

impl CacheSpec {
    /// Bytes that every sequence takes, however short.
    pub fn fixed_bytes(&self) -> usize {
        match *self {
            CacheSpec::Kv { .. } => 0,
            CacheSpec::Conv { channels, kernel } => channels * (kernel - 1) * 4,
            CacheSpec::Delta { n_heads, k_dim, v_dim } => n_heads * k_dim * v_dim * 4,
        }
    }

    /// Bytes that a sequence takes for each of its positions.
    pub fn bytes_per_position(&self) -> usize {
        match *self {
            CacheSpec::Kv { n_heads, k_dim, v_dim, dtype, .. } => {
                n_heads * (dtype.row_bytes(k_dim) + dtype.row_bytes(v_dim))
            }
            CacheSpec::Conv { .. } | CacheSpec::Delta { .. } => 0,
        }
    }

    /// Bytes of [`Sequences::save_cache`](crate::Sequences::save_cache) for
    /// `n` positions: little-endian, as stored.
    ///
    /// Keys and values: the keys `(n, n_heads, k_dim)`, then the values
    /// `(n, n_heads, v_dim)`. A convolution: `(kernel - 1, channels)` floats,
    /// the oldest input first. A delta rule: `(n_heads, v_dim, k_dim)` floats.
    pub fn saved_bytes(&self, n: usize) -> usize {
        self.fixed_bytes() + n * self.bytes_per_position()
    }

    /// The window of a cache that may forget positions.
    pub fn window(&self) -> Option<usize> {
        match *self {
            CacheSpec::Kv { window, .. } => window,
            CacheSpec::Conv { .. } | CacheSpec::Delta { .. } => None,
        }
    }

    /// The positions before `end` that a row at `end` attends to.
    pub fn seen_before(&self, end: usize) -> Range<usize> {
        self.window().map_or(0, |window| first_seen(end, window))..end
    }

    /// Whether the past cannot be cut off position by position.
    pub fn is_recurrent(&self) -> bool {
        !matches!(self, CacheSpec::Kv { .. })
    }
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
