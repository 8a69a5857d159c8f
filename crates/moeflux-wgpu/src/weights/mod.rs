//! Weights on the device: how their bytes are stored (`format`), where a matrix is (`matrix`),
//! and the buffers that hold resident ones (`slabs`).

pub(crate) mod format;
pub(crate) mod matrix;
pub(crate) mod slabs;
