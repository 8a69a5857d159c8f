//! Kernels: `kernel` says what one is, the files named as folders of `shaders/` declare them
//! with named constants, `source` and `template` make their WGSL, `pipelines` compiles it.

pub(crate) mod attention;
pub(crate) mod basic;
pub(crate) mod blocks;
pub(crate) mod kernel;
pub(crate) mod matmul;
pub(crate) mod moe;
pub(crate) mod pipelines;
pub(crate) mod recurrent;
pub(crate) mod shared;
pub(crate) mod source;
pub(crate) mod streams;
mod template;
