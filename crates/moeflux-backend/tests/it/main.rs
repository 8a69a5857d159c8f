//! Tests of the kernels and caches from outside.

mod caches;
mod conformance;
mod value_order;
