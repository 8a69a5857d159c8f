//! Operands of kernels: columns or heads of a buffer.

use moeflux_backend::{Cols, Heads};

use crate::device::buffer::Mem;
use crate::state::gpu::Wgpu;
use crate::words::word;

/// An operand: its buffer, and what kernels know as a `View` of it.
#[derive(Clone)]
pub(crate) struct Operand {
    pub(crate) mem: Mem,
    pub(crate) view: [u32; 4],
}

pub(crate) fn heads(b: &Wgpu, heads: Heads) -> Operand {
    let Heads { buf, start, n_heads, head_dim, stride } = heads;
    let buf = b.buf(buf);
    assert!(
        start + (n_heads - 1) * stride + head_dim <= buf.width,
        "columns are inside their buffer"
    );
    Operand { mem: buf.mem.clone(), view: [word(start), word(buf.width), word(stride), 0] }
}

pub(crate) fn cols(b: &Wgpu, cols: Cols) -> Operand {
    heads(b, cols.heads(1))
}
