//! Rounded inputs of products: what they are, and which are kept.

use moeflux_backend::cpu::matmul::integer_group_size;
use moeflux_backend::{ActivationPrecision, Buf};

use crate::buffer::Mem;
use crate::encoder::Encoder;
use crate::layout::{Form, Layout};
use crate::scratch::Grown;
use crate::weights::{BLOCK, Decoder, InHalves};
use crate::words::word;

/// Rounded inputs that are kept.
const KEPT: usize = 4;

/// How products round their inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digits {
    pub(crate) group_size: usize,
    pub(crate) n_digits: u32,
    /// How the integers lie, see `round.wgsl`.
    pub(crate) order: u32,
    /// Whether weights are integers: what multiplies others without units for matrices takes
    /// inputs as they are.
    pub(crate) are_for_integers: bool,
    /// Whether biases meet sums of inputs on these units.
    pub(crate) have_sums: bool,
}

impl Digits {
    /// Halves that an activation is the sum of where products go through units
    /// for matrices, as many as it would have digits: one keeps 11 bits, two 22,
    /// so that less is lost than by rounding to digits.
    pub(crate) fn parts(self) -> u32 {
        self.n_digits
    }

    /// What of these a kernel rounds to.
    pub(crate) fn of_kernel(digits: Option<Digits>, in_halves: bool) -> Option<Digits> {
        digits.filter(|it| in_halves || it.are_for_integers)
    }

    /// Constants of `rounded.wgsl`.
    pub(crate) fn consts(self, form: Rounded) -> [u32; 4] {
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
    pub(crate) start: usize,
    pub(crate) cols: usize,
    pub(crate) digits: Digits,
    pub(crate) form: Rounded,
}

/// How kernels may round the inputs of a product, see [`Digits::of_kernel`]; not at all where
/// these stay as they are.
pub(crate) fn digits(decoder: Decoder, inputs: ActivationPrecision) -> Option<Digits> {
    let affine = decoder.affine();
    // Where weights are no integers, what rounds their inputs has to keep them.
    let may_lose = integer_group_size(decoder.format()).is_some();
    let n_digits = match inputs {
        ActivationPrecision::F32 => return None,
        ActivationPrecision::Int8 if may_lose => 1,
        ActivationPrecision::Int8 | ActivationPrecision::Int16 => 2,
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
    pub(crate) entries: [Entry; KEPT],
    pub(crate) n_added: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) key: Option<RoundedKey>,
    pub(crate) memory: [Grown; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundedKey {
    pub(crate) of: (Buf, u64),
    pub(crate) start: usize,
    pub(crate) cols: usize,
    pub(crate) n_rows: usize,
    pub(crate) digits: Digits,
    pub(crate) form: Rounded,
}

/// How rounded inputs are written, see `round.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounded {
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
pub(crate) fn rounded_form(layout: Layout) -> Rounded {
    match layout.form {
        Form::Bytes => Rounded::Bytes,
        Form::Floats => Rounded::Floats,
    }
}

/// Inputs as a kernel takes them.
pub(crate) struct Taken {
    pub(crate) x: Mem,
    pub(crate) sums: Mem,
    /// Where a row begins: its number times this, and this.
    pub(crate) stride: usize,
    pub(crate) start: usize,
}

/// Eights of halves of a row: its blocks and, where they meet biases, those with
/// the sums of its groups, in pairs, as often as there are parts.
pub(crate) fn halves_stride(cols: usize, digits: Digits) -> usize {
    let n_groups = if digits.have_sums { cols / digits.group_size } else { 0 };
    let n_blocks = cols / BLOCK + n_groups.div_ceil(16);
    digits.parts() as usize * n_blocks.next_multiple_of(2) * BLOCK / 8
}

impl RoundedKey {
    /// Words of what is rounded, and of its sums.
    pub(crate) fn words(&self) -> [usize; 2] {
        let RoundedKey { n_rows, cols, digits, form, .. } = *self;
        let x = match form {
            Rounded::Bytes => n_rows * cols / 4 * digits.n_digits as usize,
            Rounded::Values | Rounded::Floats => n_rows * cols,
            Rounded::Halves => n_rows * 4 * halves_stride(cols, digits),
        };
        [x, 2 * (n_rows * cols / BLOCK)]
    }

    /// Whether nothing but the buffer's version and rows tell them apart.
    pub(crate) fn replaces(&self, other: &RoundedKey) -> bool {
        let RoundedKey { n_rows, .. } = *self;
        RoundedKey { of: self.of, n_rows, ..*other } == *self && self.of.0 == other.of.0
    }
}

impl RoundedInputs {
    /// Forgets what was rounded.
    pub(crate) fn forget(&mut self) {
        self.entries.iter_mut().for_each(|it| it.key = None);
    }

    /// Where it lies, and whether it is there already.
    pub(crate) fn memory(&mut self, encoder: &mut Encoder, key: RoundedKey) -> (bool, [Mem; 2]) {
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

/// Digits of the activations of a product; 0 where they are not rounded.
pub(crate) fn digits_of(decoder: Decoder, inputs: ActivationPrecision) -> u32 {
    of_few(decoder, inputs).map_or(0, |it| it.n_digits)
}

/// How the kernel for few rows rounds its inputs, if at all.
pub(crate) fn of_few(decoder: Decoder, inputs: ActivationPrecision) -> Option<Digits> {
    Digits::of_kernel(digits(decoder, inputs), false)
}
