//! Inputs of products, rounded: as integers or as what these stand for, in the
//! order in which kernels read them.
//!
//! Kernels that write a buffer round it themselves where a product wanted that
//! the last time, which saves a kernel and changes no bit.

use moeflux_backend::{Buf, Heads};

use super::jobs::holds_rows;
use crate::buffer::Mem;
use crate::grid::Grid;
use crate::ops::source::Source;
use crate::rounded::{Digits, Rounded, RoundedKey, Taken, Wanted, halves_stride};
use crate::shader::{Shader, Variant};
use crate::state::{Activations, Wgpu};
use crate::weights::BLOCK;
use crate::words::{ELEMENTS, word};

/// What a kernel rounds beside what it writes.
pub(super) struct Beside {
    /// Constants of `rounded.wgsl`.
    pub(super) consts: [u32; 4],
    pub(super) rounded: Mem,
    pub(super) sums: Mem,
}

impl Beside {
    /// Constants and outputs of a kernel that rounds, or of one that has nothing
    /// to round but bindings for it.
    pub(super) fn or_unused(beside: Option<&Beside>, b: &mut Wgpu) -> ([u32; 4], Mem, Mem) {
        if let Some(Beside { consts, rounded, sums }) = beside {
            return (*consts, rounded.clone(), sums.clone());
        }
        let [rounded, sums] = [0, 1].map(|i| b.scratch.unused[i].words(&mut b.encoder, 4));
        ([0; 4], rounded, sums)
    }
}

/// Columns that a kernel's workgroup has, which are rounded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// A head.
    Head,
    /// As many as it has threads.
    Elements,
}

/// What the kernel that is about to write `out` may round, if products wanted
/// that the last time. The buffer's version is that of the write.
pub(super) fn beside(b: &mut Wgpu, out: Heads, rows: usize, share: Share) -> Option<Beside> {
    let Heads { buf, start, n_heads, head_dim, stride } = out;
    let Activations { wanted, version, .. } = b.buf(buf);
    let (wanted, version) = ((*wanted)?, *version);
    let cols = n_heads * head_dim;
    let all = match share {
        Share::Head => head_dim,
        Share::Elements => ELEMENTS,
    };
    let is_whole = n_heads == 1 || stride == head_dim;
    let fits = cols.is_multiple_of(all)
        && all.is_multiple_of(wanted.digits.group_size)
        && all.is_multiple_of(BLOCK);
    if !is_whole || !fits || !holds_rows(rows) || (wanted.start, wanted.cols) != (start, cols) {
        return None;
    }
    let Wanted { digits, form, .. } = wanted;
    let key = RoundedKey { of: (buf, version), start, cols, n_rows: rows, digits, form };
    let (_, [rounded, sums]) = b.rounded.memory(&mut b.encoder, key);
    Some(Beside { consts: digits.consts(form), rounded, sums })
}

/// The source's rows rounded.
pub(super) fn round(b: &mut Wgpu, source: &Source, digits: Digits, form: Rounded) -> Taken {
    let Source { start, cols, n_rows, .. } = *source;
    let stride = if form == Rounded::Values { cols } else { 1 };
    if let Some((of, x, sums)) = &source.rounded
        && *of == (digits, form)
    {
        return Taken { x: x.clone(), sums: sums.clone(), stride, start: 0 };
    }
    let key = |of| RoundedKey { of, start, cols, n_rows, digits, form };
    let (is_known, [x, sums]) = match source.kept_as {
        Some(of) => {
            if matches!(form, Rounded::Bytes | Rounded::Floats) {
                let wanted = Wanted { start, cols, digits, form };
                b.bufs[of.0.0 as usize].wanted = Some(wanted);
            }
            b.rounded.memory(&mut b.encoder, key(of))
        }
        None => (false, unkept(b, (n_rows, cols), digits, form)),
    };
    if !is_known {
        if form == Rounded::Halves {
            halve_into(b, source, digits, [&x, &sums]);
        } else {
            round_into(b, source, digits, form, [&x, &sums]);
        }
    }
    Taken { x, sums, stride, start: 0 }
}

/// Words of so many rows and columns rounded, and of their sums.
pub(super) fn rounded_words(
    (n_rows, cols): (usize, usize),
    digits: Digits,
    form: Rounded,
) -> [usize; 2] {
    RoundedKey { of: (Buf(0), 0), start: 0, cols, n_rows, digits, form }.words()
}

/// Memory for rows that are rounded for one product.
pub(super) fn unkept(b: &mut Wgpu, of: (usize, usize), digits: Digits, form: Rounded) -> [Mem; 2] {
    let mut words = |i: usize, n| b.scratch.rounded[i].words(&mut b.encoder, n);
    let [x_words, sums_words] = rounded_words(of, digits, form);
    [words(0, x_words), words(1, sums_words)]
}

fn halve_into(b: &mut Wgpu, source: &Source, digits: Digits, out: [&Mem; 2]) {
    let Source { start, cols, n_rows, .. } = *source;
    assert!(source.rounded.is_none(), "rows of halves are made of what was not rounded");
    let stride = word(halves_stride(cols, digits));
    b.encoder.dispatch(
        Variant::new(Shader::Halves, &[word(digits.group_size), digits.parts()]),
        &[word(n_rows), word(cols), word(start), word(source.width), stride],
        &[&source.mem, out[0], out[1]],
        Grid::Linear(n_rows),
    );
}

fn round_into(b: &mut Wgpu, source: &Source, digits: Digits, form: Rounded, out: [&Mem; 2]) {
    let Source { start, cols, n_rows, .. } = *source;
    let n_words = n_rows * cols / 4;
    b.encoder.dispatch(
        Variant::new(Shader::Round, &digits.consts(form)),
        &[word(n_words), word(cols), word(start), word(source.width)],
        &[&source.mem, out[0], out[1]],
        Grid::Linear(n_words.div_ceil(ELEMENTS)),
    );
}
