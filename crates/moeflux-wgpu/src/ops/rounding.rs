//! Inputs of products, rounded: as integers or as what these stand for, in the
//! order in which kernels read them.

use moeflux_backend::{Buf, Inputs};

use super::products::Source;
use super::{ELEMENTS, Grown, word};
use crate::arena::{BLOCK, Decoder};
use crate::backend::Wgpu;
use crate::encoder::{Grid, Mem};
use crate::shader::{Shader, Variant};

/// Rounded inputs that are kept.
const KEPT: usize = 4;

/// Halves that an activation is the sum of: with one, its rounding shows.
pub(crate) const PARTS: usize = 2;

/// How products round their inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digits {
    pub(super) group_size: usize,
    pub(super) n_digits: u32,
    /// How the integers lie, see `round.wgsl`.
    order: u32,
}

/// How a product rounds its inputs, if at all.
pub(super) fn digits(decoder: Decoder, inputs: Inputs) -> Option<Digits> {
    let affine = decoder.affine()?;
    let n_digits = match inputs {
        Inputs::Full => return None,
        Inputs::Int16 => 2,
        Inputs::Int8 => 1,
    };
    let order = match affine.bits {
        4 => 1,
        2 => 2,
        _ => 0,
    };
    Some(Digits { group_size: affine.group_size, n_digits, order })
}

/// Inputs of recent products, rounded: layers multiply the same input with
/// several matrices.
#[derive(Debug, Default)]
pub(crate) struct RoundedInputs {
    entries: [Entry; KEPT],
    n_added: usize,
}

#[derive(Debug, Default)]
struct Entry {
    key: Option<Key>,
    memory: [Grown; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    of: (Buf, u64),
    start: usize,
    cols: usize,
    n_rows: usize,
    digits: Digits,
    form: Rounded,
}

/// How rounded inputs are written, see `round.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounded {
    /// As their integers' digits.
    Bytes,
    /// As the floats that the integers stand for.
    Values,
    /// As the integers, in floats.
    Floats,
    /// As sums of halves, see `halves.wgsl`.
    Halves,
}

/// Inputs as a kernel takes them.
pub(super) struct Taken {
    pub(super) x: Mem,
    pub(super) sums: Mem,
    /// Where a row begins: its number times this, and this.
    pub(super) stride: usize,
    pub(super) start: usize,
}

/// Fours of halves of a row: its columns, and a sum for each group.
pub(super) fn halves_stride(cols: usize, group_size: usize) -> usize {
    (cols + (cols / group_size).next_multiple_of(BLOCK)) / 4
}

/// The source's rows rounded.
pub(super) fn round(b: &mut Wgpu, source: &Source, digits: Digits, form: Rounded) -> Taken {
    let Source { start, cols, n_rows, .. } = *source;
    let key = source.kept_as.map(|of| Key { of, start, cols, n_rows, digits, form });
    let stride = if form == Rounded::Values { cols } else { 1 };
    let known = b.rounded.entries.iter().position(|it| key.is_some() && it.key == key);
    let n_digits = digits.n_digits as usize;
    let x_words = match form {
        Rounded::Bytes => n_rows * cols / 4 * n_digits,
        Rounded::Values | Rounded::Floats => n_rows * cols,
        Rounded::Halves => n_rows * PARTS * 2 * halves_stride(cols, digits.group_size),
    };
    let sums_words = 2 * (n_rows * cols / BLOCK);
    let [x, sums] = match key {
        Some(_) => {
            let at = known.unwrap_or_else(|| {
                b.rounded.n_added += 1;
                b.rounded.n_added % KEPT
            });
            let entry = &mut b.rounded.entries[at];
            entry.key = key;
            let [x, sums] = &mut entry.memory;
            [x.words(&mut b.encoder, x_words), sums.words(&mut b.encoder, sums_words)]
        }
        None => {
            let at = 2 * usize::from(form == Rounded::Halves);
            let mut words = |i: usize, n| b.scratch.rounded[at + i].words(&mut b.encoder, n);
            [words(0, x_words), words(1, sums_words)]
        }
    };
    if known.is_none() {
        if form == Rounded::Halves {
            let unkept = Source { kept_as: None, ..source.clone() };
            let values = round(b, &unkept, digits, Rounded::Values);
            let stride = halves_stride(cols, digits.group_size);
            b.encoder.dispatch(
                Variant::new(Shader::Halves, &[word(digits.group_size), word(PARTS)]),
                &[word(n_rows), word(cols), 0, word(cols), word(stride)],
                &[&values.x, &x, &sums],
                Grid::Linear(n_rows),
            );
        } else {
            round_into(b, source, digits, form, [&x, &sums]);
        }
    }
    Taken { x, sums, stride, start: 0 }
}

fn round_into(b: &mut Wgpu, source: &Source, digits: Digits, form: Rounded, out: [&Mem; 2]) {
    let Source { start, cols, n_rows, .. } = *source;
    let (order, floats) = match form {
        Rounded::Bytes => (digits.order, 0),
        Rounded::Values | Rounded::Halves => (0, 1),
        Rounded::Floats => (digits.order, 2),
    };
    let n_words = n_rows * cols / 4;
    b.encoder.dispatch(
        Variant::new(Shader::Round, &[word(digits.group_size), digits.n_digits, order, floats]),
        &[word(n_words), word(cols), word(start), word(source.width)],
        &[&source.mem, out[0], out[1]],
        Grid::Linear(n_words.div_ceil(ELEMENTS)),
    );
}
