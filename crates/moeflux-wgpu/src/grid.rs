//! How many workgroups a kernel runs on.

/// How many workgroups run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grid {
    /// So many, which kernels count through over two dimensions.
    Linear(usize),
    /// So many, over which kernels stride where there are very many, and so many
    /// times that.
    Plane(usize, usize),
}
