//! Inputs of products, rounded: as integers or as what these stand for, in the
//! order in which kernels read them.
//!
//! Kernels that write a buffer round it themselves where a product wanted that
//! the last time, which saves a kernel and changes no bit.

use crate::ops::matmul::source::Prequantized;
use moeflux_backend::{Buf, Heads};

use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::matmul::{QuantizeActivations, SplitF16};
use crate::kernels::shared::Quant;
use crate::layouts::format::BLOCK;
use crate::ops::matmul::jobs::holds_rows;
use crate::ops::matmul::source::Source;
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::{
    ActivationQuant, KernelInput, QuantForm, QuantKey, Wanted, f16_stride,
};
use crate::words::{ELEMENTS, word};

/// What a kernel rounds in addition to what it writes.
pub(crate) struct FusedQuant {
    pub(crate) quant: Quant,
    pub(crate) quantized: Mem,
    pub(crate) sums: Mem,
}

impl FusedQuant {
    /// Constants and outputs of a kernel that rounds, or of one that has nothing
    /// to round but bindings for it.
    pub(crate) fn or_unused(fused_quant: Option<&FusedQuant>, b: &mut Wgpu) -> (Quant, Mem, Mem) {
        if let Some(FusedQuant { quant, quantized, sums }) = fused_quant {
            return (*quant, quantized.clone(), sums.clone());
        }
        let [quantized, sums] = [0, 1].map(|i| b.scratch.unused[i].words(&mut b.encoder, 4));
        (Quant::default(), quantized, sums)
    }
}

/// Columns that a kernel's workgroup has, which are rounded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuantSpan {
    /// A head.
    Head,
    /// As many as it has threads.
    Elements,
}

/// How products wanted `out` rounded the last time, if the kernel that is about to write it can
/// do that.
pub(crate) fn wanted(b: &Wgpu, out: Heads, rows: usize, share: QuantSpan) -> Option<Wanted> {
    let Heads { buf, start, n_heads, head_dim, stride } = out;
    let wanted = b.buf(buf).wanted?;
    let cols = n_heads * head_dim;
    let all = match share {
        QuantSpan::Head => head_dim,
        QuantSpan::Elements => ELEMENTS,
    };
    let is_whole = n_heads == 1 || stride == head_dim;
    let fits = cols.is_multiple_of(all)
        && all.is_multiple_of(wanted.quant.group_size)
        && all.is_multiple_of(BLOCK);
    let is_it = (wanted.start, wanted.cols) == (start, cols);
    (is_whole && fits && holds_rows(rows) && is_it).then_some(wanted)
}

/// What the kernel that is about to write `out` may round, if products wanted
/// that the last time. The buffer's version is that of the write.
pub(crate) fn fused_quant(
    b: &mut Wgpu,
    out: Heads,
    rows: usize,
    share: QuantSpan,
) -> Option<FusedQuant> {
    let Wanted { start, cols, quant, form } = wanted(b, out, rows, share)?;
    let (buf, version) = (out.buf, b.buf(out.buf).version);
    let key = QuantKey { of: (buf, version), start, cols, n_rows: rows, quant, form };
    let (_, [quantized, sums]) = b.rounded.memory(&mut b.encoder, key);
    Some(FusedQuant { quant: quant.constants(form), quantized, sums })
}

/// The source's rows rounded.
pub(crate) fn round(
    b: &mut Wgpu,
    source: &Source,
    quant: ActivationQuant,
    form: QuantForm,
) -> KernelInput {
    let Source { start, cols, n_rows, .. } = *source;
    let stride = if form == QuantForm::Values { cols } else { 1 };
    if let Some(Prequantized { quant: of, form: of_form, x, sums }) = &source.prequantized
        && (*of, *of_form) == (quant, form)
    {
        return KernelInput { x: x.clone(), sums: sums.clone(), stride, start: 0 };
    }
    let key = |of| QuantKey { of, start, cols, n_rows, quant, form };
    let (is_known, [x, sums]) = match source.cache_key {
        Some(of) => {
            if matches!(form, QuantForm::Bytes | QuantForm::Floats) {
                let wanted = Wanted { start, cols, quant, form };
                b.bufs[of.0.0 as usize].wanted = Some(wanted);
            }
            b.rounded.memory(&mut b.encoder, key(of))
        }
        None => (false, temporary(b, n_rows, cols, quant, form)),
    };
    if !is_known {
        if form == QuantForm::F16Parts {
            split_into(b, source, quant, [&x, &sums]);
        } else {
            quantize_into(b, source, quant, form, [&x, &sums]);
        }
    }
    KernelInput { x, sums, stride, start: 0 }
}

/// Words of this many rows and columns rounded, and of their sums.
pub(crate) fn quantized_words(
    n_rows: usize,
    cols: usize,
    quant: ActivationQuant,
    form: QuantForm,
) -> [usize; 2] {
    QuantKey { of: (Buf(0), 0), start: 0, cols, n_rows, quant, form }.words()
}

/// Memory for rows that are rounded for one product.
pub(crate) fn temporary(
    b: &mut Wgpu,
    n_rows: usize,
    cols: usize,
    quant: ActivationQuant,
    form: QuantForm,
) -> [Mem; 2] {
    let mut words = |i: usize, n| b.scratch.rounded[i].words(&mut b.encoder, n);
    let [x_words, sums_words] = quantized_words(n_rows, cols, quant, form);
    [words(0, x_words), words(1, sums_words)]
}

fn split_into(b: &mut Wgpu, source: &Source, quant: ActivationQuant, out: [&Mem; 2]) {
    let Source { start, cols, n_rows, .. } = *source;
    assert!(source.prequantized.is_none(), "rows of f16_tiles are made of what was not rounded");
    let stride = word(f16_stride(cols, quant));
    b.encoder.dispatch(
        SplitF16 { group: word(quant.group_size), parts: quant.parts, order: quant.order },
        &[word(n_rows), word(cols), word(start), word(source.width), stride],
        &[&source.mem, out[0], out[1]],
        Grid::Linear(n_rows),
    );
}

fn quantize_into(
    b: &mut Wgpu,
    source: &Source,
    quant: ActivationQuant,
    form: QuantForm,
    out: [&Mem; 2],
) {
    let Source { start, cols, n_rows, .. } = *source;
    let n_words = n_rows * cols / 4;
    b.encoder.dispatch(
        QuantizeActivations { quant: quant.constants(form) },
        &[word(n_words), word(cols), word(start), word(source.width)],
        &[&source.mem, out[0], out[1]],
        Grid::Linear(n_words.div_ceil(ELEMENTS)),
    );
}
