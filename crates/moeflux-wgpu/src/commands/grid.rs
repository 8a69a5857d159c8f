//! How many workgroups a kernel runs on.

/// How many workgroups run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grid {
    /// This many, which kernels count through over two dimensions.
    Linear(usize),
    /// This many, over which kernels stride where there are very many, and this many times that.
    Plane(usize, usize),
}
