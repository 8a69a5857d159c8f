//! Activations as integers.

/// Rows of activations as the integer kernels take them: `x ≈ s * q`, where
/// the integers of a group reach up to 127, with two limbs up to 127 * 256.
/// The memory is kept from call to call.
#[derive(Debug, Default)]
pub struct Quantised {
    /// Another one after every rounding, so that what was derived from the
    /// integers can be checked against them.
    pub(super) id: u64,
    pub(super) n_rows: usize,
    pub(super) cols: usize,
    pub(super) group_size: usize,
    pub(super) n_limbs: usize,
    /// Bytes from one row and limb of `q` to the next.
    pub(super) stride: usize,
    /// (n_rows, n_limbs, cols), columns in natural order, the limb that
    /// counts 256 times first.
    pub(super) q: Vec<i8>,
    /// Both limbs of two columns together, the first one in the lower half:
    /// (n_rows, cols / 2); empty where no kernel reads them.
    pub(super) pairs: Vec<i32>,
    /// (n_rows, n_groups)
    pub(super) s: Vec<f32>,
    /// `s` times the sum of the integers, (n_rows, n_groups).
    pub(super) st: Vec<f32>,
}

impl Quantised {
    /// No other integers have it.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only AVX-512 and AMX cache reordered integers")
    )]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns that share a scale.
    pub fn group_size(&self) -> usize {
        self.group_size
    }

    /// Limbs of an element.
    pub fn n_limbs(&self) -> usize {
        self.n_limbs
    }

    /// The integers of one limb of a row.
    pub(super) fn q(&self, row: usize, limb: usize) -> &[i8] {
        &self.q[(row * self.n_limbs + limb) * self.stride..][..self.cols]
    }

    /// The integers of a row, two columns together.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pairs(&self, row: usize) -> &[i32] {
        &self.pairs[row * self.cols / 2..][..self.cols / 2]
    }

    /// The scale of each group of a row.
    pub(super) fn s(&self, row: usize) -> &[f32] {
        let n_groups = self.cols / self.group_size;
        &self.s[row * n_groups..][..n_groups]
    }

    /// The scale times the sum of the integers of each group of a row.
    pub(super) fn st(&self, row: usize) -> &[f32] {
        let n_groups = self.cols / self.group_size;
        &self.st[row * n_groups..][..n_groups]
    }
}
