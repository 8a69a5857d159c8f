//! Handles of device memory, and views of activations.

/// Device memory holding `f32` activations, one row a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buf(pub u32);

/// A resident weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight(pub u32);

/// Resident `f32` constants: a norm's weight, a convolution, a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vector(pub u32);

/// Rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rope(pub u32);

/// The caches of one sequence on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence(pub u32);

/// One of the caches that every sequence has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cache(pub u32);

/// Which positions each row of a batch may attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selection(pub u32);

/// The columns `start..start + len` of every row of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cols {
    /// The buffer.
    pub buf: Buf,
    /// First column.
    pub start: usize,
    /// Number of columns.
    pub len: usize,
}

/// Equal blocks of columns: head `h` is `start + h * stride` and the
/// `head_dim - 1` columns after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// The buffer.
    pub buf: Buf,
    /// First column of head 0.
    pub start: usize,
    /// Number of heads.
    pub n_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Columns from one head to the next.
    pub stride: usize,
}

impl Cols {
    /// Divides the columns into `n_heads` adjacent heads.
    pub fn heads(self, n_heads: usize) -> Heads {
        assert!(self.len.is_multiple_of(n_heads), "heads divide their columns evenly");
        let head_dim = self.len / n_heads;
        Heads { buf: self.buf, start: self.start, n_heads, head_dim, stride: head_dim }
    }

    /// The columns `start..start + len` of these.
    pub fn slice(self, start: usize, len: usize) -> Cols {
        assert!(start + len <= self.len, "a slice is inside its columns");
        Cols { buf: self.buf, start: self.start + start, len }
    }
}
