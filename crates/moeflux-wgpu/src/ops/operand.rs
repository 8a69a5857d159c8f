//! Operands of kernels: columns or heads of a buffer.

use moeflux_backend::{Cols, Heads};

use crate::device::buffer::Mem;
use crate::state::backend::Wgpu;
use crate::words::word;

/// An operand: its buffer, and what kernels know as a `View` of it.
#[derive(Clone)]
pub(crate) struct Operand {
    pub(crate) mem: Mem,
    pub(crate) view: [u32; 4],
}

pub(crate) fn heads(b: &Wgpu, it: Heads) -> Operand {
    let buf = b.buf(it.buf);
    let end = it.start + (it.n_heads - 1) * it.stride + it.head_dim;
    assert!(end <= buf.width, "columns are inside their buffer");
    Operand { mem: buf.mem.clone(), view: [word(it.start), word(buf.width), word(it.stride), 0] }
}

pub(crate) fn cols(b: &Wgpu, it: Cols) -> Operand {
    heads(b, it.heads(1))
}
