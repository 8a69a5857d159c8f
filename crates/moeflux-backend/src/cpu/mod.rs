//! The CPU backend: one file or folder per op, one definition of its bits.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod attention_scratch;
mod chosen;
mod columns;
mod conv;
mod delta;
mod dispatch;
#[cfg(target_arch = "x86_64")]
mod eights;
mod elementwise;
mod entries;
mod floats;
mod isa;
mod kv_cache;
pub mod limits;
mod math;
pub mod matmul;
mod memory;
mod mixers;
mod norm;
mod parallel;
mod pool;
mod prefetcher;
mod product_scratch;
mod products;
mod rope;
mod route;
mod select;
mod state;
mod state_space;
mod streams;
#[cfg(target_arch = "x86_64")]
mod vector;

pub use elementwise::soft_cap;
pub use isa::Isa;
pub use pool::{Pool, SharedMut};

pub use state::Cpu;
