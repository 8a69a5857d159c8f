//! Inputs of products.

use moeflux_backend::{Buf, Cols};

use crate::buffer::Mem;
use crate::rounded::{Digits, Rounded};
use crate::state::Wgpu;

/// Where rows of activations lie.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) mem: Mem,
    pub(super) start: usize,
    pub(super) width: usize,
    pub(super) cols: usize,
    pub(super) n_rows: usize,
    /// Set where what was rounded may be kept: the buffer and its version.
    pub(super) kept_as: Option<(Buf, u64)>,
    /// Set where it was rounded by what wrote it: how, and where that lies.
    pub(super) rounded: Option<RoundedBefore>,
}

/// How rows were rounded, and where they and their sums lie.
pub(super) type RoundedBefore = ((Digits, Rounded), Mem, Mem);

impl Source {
    pub(super) fn of(b: &Wgpu, x: Cols, n_rows: usize) -> Source {
        let buf = b.buf(x.buf);
        assert!(x.start + x.len <= buf.width, "columns lie inside their buffer");
        Source {
            mem: buf.mem.clone(),
            start: x.start,
            width: buf.width,
            cols: x.len,
            n_rows,
            kept_as: Some((x.buf, buf.version)),
            rounded: None,
        }
    }
}
