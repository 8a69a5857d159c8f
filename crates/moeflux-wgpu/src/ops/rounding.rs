//! Inputs of products, rounded: as integers or as what these stand for, in the
//! order in which kernels read them.
//!
//! Kernels that write a buffer round it themselves where a product wanted that
//! the last time, which saves a kernel and changes no bit.

use moeflux_backend::cpu::matmul::integer_group_size;
use moeflux_backend::{Buf, Heads, Inputs};

use super::jobs::holds_rows;
use super::products::Source;
use super::{ELEMENTS, Grown, word};
use crate::arena::{BLOCK, Decoder, InHalves};
use crate::backend::{Activations, Wgpu};
use crate::encoder::{Encoder, Grid, Mem};
use crate::layout::{Form, Layout};
use crate::shader::{Shader, Variant};

/// Rounded inputs that are kept.
const KEPT: usize = 4;

/// How products round their inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digits {
    pub(super) group_size: usize,
    pub(super) n_digits: u32,
    /// How the integers lie, see `round.wgsl`.
    order: u32,
    /// Whether weights are integers: what multiplies others without units for matrices takes
    /// inputs as they are.
    are_for_integers: bool,
    /// Whether biases meet sums of inputs on these units.
    have_sums: bool,
}

impl Digits {
    /// Halves that an activation is the sum of where products go through units
    /// for matrices, as many as it would have digits: one keeps 11 bits, two 22,
    /// so that less is lost than by rounding to digits.
    pub(super) fn parts(self) -> u32 {
        self.n_digits
    }

    /// What of these a kernel rounds to.
    pub(super) fn of_kernel(digits: Option<Digits>, in_halves: bool) -> Option<Digits> {
        digits.filter(|it| in_halves || it.are_for_integers)
    }

    /// Constants of `rounded.wgsl`.
    pub(super) fn consts(self, form: Rounded) -> [u32; 4] {
        let (order, floats) = match form {
            Rounded::Bytes => (self.order, 0),
            Rounded::Values | Rounded::Halves => (0, 1),
            Rounded::Floats => (self.order, 2),
        };
        [word(self.group_size), self.n_digits, order, floats]
    }
}

/// How a product wanted columns of a buffer rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    start: usize,
    cols: usize,
    digits: Digits,
    form: Rounded,
}

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
    let key = Key { of: (buf, version), start, cols, n_rows: rows, digits, form };
    let (_, [rounded, sums]) = b.rounded.memory(&mut b.encoder, key);
    Some(Beside { consts: digits.consts(form), rounded, sums })
}

/// How kernels may round the inputs of a product, see [`Digits::of_kernel`]; not at all where
/// these stay as they are.
pub(super) fn digits(decoder: Decoder, inputs: Inputs) -> Option<Digits> {
    let affine = decoder.affine();
    // Where weights are no integers, what rounds their inputs has to keep them.
    let may_lose = integer_group_size(decoder.format()).is_some();
    let n_digits = match inputs {
        Inputs::Full => return None,
        Inputs::Int8 if may_lose => 1,
        Inputs::Int8 | Inputs::Int16 => 2,
    };
    let order = match affine.map(|it| it.bits) {
        Some(4) => 1,
        Some(2) => 2,
        _ => 0,
    };
    Some(Digits {
        group_size: affine.map_or(BLOCK, |it| it.group_size),
        n_digits,
        order,
        are_for_integers: affine.is_some(),
        have_sums: decoder.in_halves() == InHalves::Integers,
    })
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
    /// Not as integers, but as sums of halves, see `halves.wgsl`.
    Halves,
}

/// How the kernel for few rows wants its inputs.
pub(super) fn rounded_form(layout: Layout) -> Rounded {
    match layout.form {
        Form::Bytes => Rounded::Bytes,
        Form::Floats => Rounded::Floats,
    }
}

/// Inputs as a kernel takes them.
pub(super) struct Taken {
    pub(super) x: Mem,
    pub(super) sums: Mem,
    /// Where a row begins: its number times this, and this.
    pub(super) stride: usize,
    pub(super) start: usize,
}

/// Eights of halves of a row: its blocks and, where they meet biases, those with
/// the sums of its groups, in pairs, as often as there are parts.
pub(super) fn halves_stride(cols: usize, digits: Digits) -> usize {
    let n_groups = if digits.have_sums { cols / digits.group_size } else { 0 };
    let n_blocks = cols / BLOCK + n_groups.div_ceil(16);
    digits.parts() as usize * n_blocks.next_multiple_of(2) * BLOCK / 8
}

impl Key {
    /// Words of what is rounded, and of its sums.
    fn words(&self) -> [usize; 2] {
        let Key { n_rows, cols, digits, form, .. } = *self;
        let x = match form {
            Rounded::Bytes => n_rows * cols / 4 * digits.n_digits as usize,
            Rounded::Values | Rounded::Floats => n_rows * cols,
            Rounded::Halves => n_rows * 4 * halves_stride(cols, digits),
        };
        [x, 2 * (n_rows * cols / BLOCK)]
    }

    /// Whether nothing but the buffer's version and rows tell them apart.
    fn replaces(&self, other: &Key) -> bool {
        let Key { n_rows, .. } = *self;
        Key { of: self.of, n_rows, ..*other } == *self && self.of.0 == other.of.0
    }
}

impl RoundedInputs {
    /// Forgets what was rounded.
    pub(crate) fn forget(&mut self) {
        self.entries.iter_mut().for_each(|it| it.key = None);
    }

    /// Where it lies, and whether it is there already.
    fn memory(&mut self, encoder: &mut Encoder, key: Key) -> (bool, [Mem; 2]) {
        let known = self.entries.iter().position(|it| it.key == Some(key));
        let old = self.entries.iter().position(|it| it.key.is_some_and(|it| key.replaces(&it)));
        let at = known.or(old).unwrap_or_else(|| {
            self.n_added += 1;
            self.n_added % KEPT
        });
        let Entry { key: of, memory: [x, sums] } = &mut self.entries[at];
        *of = Some(key);
        let [x_words, sums_words] = key.words();
        (known.is_some(), [x.words(encoder, x_words), sums.words(encoder, sums_words)])
    }
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
    let key = |of| Key { of, start, cols, n_rows, digits, form };
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
    Key { of: (Buf(0), 0), start: 0, cols, n_rows, digits, form }.words()
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
