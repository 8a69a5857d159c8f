//! Weights on the device: where a matrix is (`matrix`), the buffers that hold resident ones (`slabs`),
//! codebooks that codes select from (`codebooks`), and memory of the host that weights are read into
//! (`host_buffers`).

pub(crate) mod codebooks;
pub(crate) mod host_buffers;
pub(crate) mod matrix;
pub(crate) mod slabs;
