//! Inputs of products.

use moeflux_backend::{Buf, Cols};

use crate::device::buffer::Mem;
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::{ActivationQuant, QuantForm};

/// Where rows of activations are.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) mem: Mem,
    pub(crate) start: usize,
    pub(crate) width: usize,
    pub(crate) cols: usize,
    pub(crate) n_rows: usize,
    /// Set where what was rounded may be kept: the buffer and its version.
    pub(crate) cache_key: Option<(Buf, u64)>,
    /// Set where it was rounded by what wrote it: how, and where that is.
    pub(crate) prequantized: Option<Prequantized>,
}

/// Rows that the kernel that wrote them has quantised too.
#[derive(Clone, Debug)]
pub(crate) struct Prequantized {
    pub(crate) quant: ActivationQuant,
    pub(crate) form: QuantForm,
    pub(crate) x: Mem,
    pub(crate) sums: Mem,
}

impl Source {
    /// Rows of activations that one kernel writes and one product reads.
    pub(crate) fn of_rows(
        mem: Mem,
        cols: usize,
        n_rows: usize,
        prequantized: Option<Prequantized>,
    ) -> Source {
        Source { mem, start: 0, width: cols, cols, n_rows, cache_key: None, prequantized }
    }

    pub(crate) fn of(b: &Wgpu, x: Cols, n_rows: usize) -> Source {
        let buf = b.buf(x.buf);
        assert!(x.start + x.len <= buf.width, "columns are inside their buffer");
        Source {
            mem: buf.mem.clone(),
            start: x.start,
            width: buf.width,
            cols: x.len,
            n_rows,
            cache_key: Some((x.buf, buf.version)),
            prequantized: None,
        }
    }
}
