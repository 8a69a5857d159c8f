//! Rounded inputs of products: what they are, and which are kept.

use moeflux_backend::cpu::matmul::integer_group_size;
use moeflux_backend::{ActivationPrecision, Buf};

use crate::commands::encoder::Encoder;
use crate::device::buffer::Mem;
use crate::kernels::shared::{ORDER_ASCENDING, ORDER_EVEN_ODD, ORDER_HALVES, ORDER_STRIDED, Quant};
use crate::layouts::format::{BLOCK, Decoder};
use crate::layouts::product::{Form, Layout};
use crate::state::scratch::Grown;
use crate::words::word;

/// Rounded inputs that are kept.
const KEPT: usize = 4;

/// How products round their inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActivationQuant {
    pub(crate) group_size: usize,
    pub(crate) n_limbs: u32,
    /// Halves that an activation is the sum of where products go through cooperative matrices: one
    /// keeps 11 bits, two 22.
    pub(crate) parts: u32,
    /// How the integers are stored, see `matmul/quantize_activations.wgsl`.
    pub(crate) order: u32,
    /// Whether weights are integers: what multiplies others without cooperative matrices takes
    /// inputs as they are.
    pub(crate) are_for_integers: bool,
    /// Whether biases meet sums of inputs on these units.
    pub(crate) have_sums: bool,
}

impl ActivationQuant {
    /// What of these a kernel rounds to.
    pub(crate) fn of_kernel(
        quant: Option<ActivationQuant>,
        uses_coop: bool,
    ) -> Option<ActivationQuant> {
        quant.filter(|quant| uses_coop || quant.are_for_integers)
    }

    /// Constants of `include/quantize.wgsl`.
    pub(crate) fn constants(self, form: QuantForm) -> Quant {
        let (order, float) = match form {
            QuantForm::Bytes => (self.order, 0),
            QuantForm::Values | QuantForm::F16Parts => (ORDER_ASCENDING, 1),
            QuantForm::Floats => (self.order, 2),
        };
        Quant { group: word(self.group_size), limbs: self.n_limbs, order, float }
    }
}

/// How a product wanted columns of a buffer rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) start: usize,
    pub(crate) cols: usize,
    pub(crate) quant: ActivationQuant,
    pub(crate) form: QuantForm,
}

/// How kernels may round the inputs of a product, see [`ActivationQuant::of_kernel`]; not at all where
/// these stay as they are.
pub(crate) fn activation_quant(
    decoder: Decoder,
    inputs: ActivationPrecision,
) -> Option<ActivationQuant> {
    let affine = decoder.affine();
    let is_ggml = decoder.block_type().is_some();
    let are_for_integers = affine.is_some() || is_ggml;
    // Where weights are no integers, what rounds their inputs has to keep them.
    let integer_group_size = integer_group_size(decoder.format());
    let n_limbs = match inputs {
        ActivationPrecision::F32 => return None,
        ActivationPrecision::Int8 if integer_group_size.is_some() => 1,
        ActivationPrecision::Int8 | ActivationPrecision::Int16 => 2,
    };
    let order = match affine.map(|affine| affine.bits) {
        Some(4) => ORDER_EVEN_ODD,
        Some(2) => ORDER_STRIDED,
        _ if is_ggml => ORDER_HALVES,
        _ => ORDER_ASCENDING,
    };
    Some(ActivationQuant {
        // What is rounded to halves has no groups.
        group_size: integer_group_size.filter(|_| are_for_integers).unwrap_or(BLOCK),
        n_limbs,
        parts: if integer_group_size.is_some() { 1 } else { 2 },
        order,
        are_for_integers,
        have_sums: decoder.f16_operand().takes_sums(),
    })
}

/// ActivationPrecision of recent products, rounded: layers multiply the same input with
/// several matrices.
#[derive(Debug, Default)]
pub(crate) struct QuantizedInputs {
    pub(crate) entries: [Entry; KEPT],
    pub(crate) n_added: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) key: Option<QuantKey>,
    pub(crate) memory: [Grown; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuantKey {
    pub(crate) of: (Buf, u64),
    pub(crate) start: usize,
    pub(crate) cols: usize,
    pub(crate) n_rows: usize,
    pub(crate) quant: ActivationQuant,
    pub(crate) form: QuantForm,
}

/// How rounded inputs are written, see `matmul/quantize_activations.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuantForm {
    /// As their integers' digits.
    Bytes,
    /// As the floats that the integers stand for.
    Values,
    /// As the integers, in floats.
    Floats,
    /// Not as integers, but as sums of halves, see `matmul/split_f16.wgsl`.
    F16Parts,
}

/// How the kernel for few rows wants its inputs.
pub(crate) fn quant_form(layout: Layout) -> QuantForm {
    match layout.form {
        Form::Bytes => QuantForm::Bytes,
        Form::Floats => QuantForm::Floats,
    }
}

/// ActivationPrecision as a kernel takes them.
pub(crate) struct KernelInput {
    pub(crate) x: Mem,
    pub(crate) sums: Mem,
    /// Where a row begins: its number times this, and this.
    pub(crate) stride: usize,
    pub(crate) start: usize,
}

/// Eights of halves of a row: its blocks and, where they meet biases, those with
/// the sums of its groups, in pairs, as often as there are parts.
pub(crate) fn f16_stride(cols: usize, quant: ActivationQuant) -> usize {
    let n_groups = if quant.have_sums { cols / quant.group_size } else { 0 };
    let n_blocks = cols.div_ceil(BLOCK) + n_groups.div_ceil(16);
    quant.parts as usize * n_blocks.next_multiple_of(2) * BLOCK / 8
}

impl QuantKey {
    /// Words of what is rounded, and of its sums.
    pub(crate) fn words(&self) -> [usize; 2] {
        let QuantKey { n_rows, cols, quant, form, .. } = *self;
        let x = match form {
            QuantForm::Bytes => n_rows * cols / 4 * quant.n_limbs as usize,
            QuantForm::Values | QuantForm::Floats => n_rows * cols,
            QuantForm::F16Parts => n_rows * 4 * f16_stride(cols, quant),
        };
        let n_summed = if quant.order == ORDER_HALVES { BLOCK / 2 } else { BLOCK };
        [x, 2 * (n_rows * cols / n_summed)]
    }

    /// Whether nothing but the buffer's version and rows tell them apart.
    pub(crate) fn replaces(&self, other: &QuantKey) -> bool {
        let QuantKey { n_rows, .. } = *self;
        QuantKey { of: self.of, n_rows, ..*other } == *self && self.of.0 == other.of.0
    }
}

impl QuantizedInputs {
    /// Forgets what was rounded.
    pub(crate) fn forget(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.key = None);
    }

    /// Where it is, and whether it is there already.
    pub(crate) fn memory(&mut self, encoder: &mut Encoder, key: QuantKey) -> (bool, [Mem; 2]) {
        let known = self.entries.iter().position(|entry| entry.key == Some(key));
        let old =
            self.entries.iter().position(|entry| entry.key.is_some_and(|old| key.replaces(&old)));
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
pub(crate) fn n_limbs_of(decoder: Decoder, inputs: ActivationPrecision) -> u32 {
    matvec_quant(decoder, inputs).map_or(0, |quant| quant.n_limbs)
}

/// How the kernel for few rows rounds its inputs, if at all.
pub(crate) fn matvec_quant(
    decoder: Decoder,
    inputs: ActivationPrecision,
) -> Option<ActivationQuant> {
    ActivationQuant::of_kernel(activation_quant(decoder, inputs), false)
}
