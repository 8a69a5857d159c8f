//! Weights on the device: where a matrix is (`matrix`), the buffers that hold resident ones (`slabs`),
//! and codebooks that codes select from (`codebooks`).

pub(crate) mod codebooks;
pub(crate) mod matrix;
pub(crate) mod slabs;
