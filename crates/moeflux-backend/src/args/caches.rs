//! The caches of sequences: their kinds, sizes and layouts.

/// How a cache stores keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// Unrounded `f32`.
    #[default]
    F32,
    /// Rounded to the upper half of a single, ties to even.
    Bf16,
    /// Integers of eight bits in groups of [`KvType::Q8_GROUP`] elements of a
    /// head (the last may be shorter), each after its `f32` scale: the largest
    /// magnitude divided by 127, rounded up to a mantissa of 16 bits, so that
    /// storing what was read back changes nothing. A group whose scale would be
    /// below the normal numbers is all zeros.
    Q8,
}

impl KvType {
    /// Elements that share a scale.
    pub const Q8_GROUP: usize = 64;

    /// Bytes of a vector of `dim` elements.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F32 => dim * 4,
            KvType::Bf16 => dim * 2,
            KvType::Q8 => dim + 4 * dim.div_ceil(Self::Q8_GROUP),
        }
    }
}

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
            CacheSpec::Kv { n_heads, k_dim, v_dim, dtype } => {
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

    /// Whether the past cannot be cut off position by position.
    pub fn is_recurrent(&self) -> bool {
        !matches!(self, CacheSpec::Kv { .. })
    }
}
