//! The CPU backend: one file or folder per op, one definition of its bits.

mod isa;

pub use isa::Isa;
