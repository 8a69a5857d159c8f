//! What stands between the products of an expert: its own kernel or, for few rows of a device
//! that repeats it quickly, the beginning of the third product's.

use moeflux_backend::{ExpertFunction, Experts, PlainActivation};
use moeflux_core::{ExpertLayout, GateUp};

use crate::commands::grid::Grid;
use crate::device::adapter::WORKGROUP_BYTES;
use crate::device::buffer::{ListAt, Mem};
use crate::kernels;
use crate::kernels::blocks::staged_words;
use crate::kernels::matmul::FusedActivations;
use crate::kernels::moe::{Activate, ActivateQuantized};
use crate::kernels::shared::{ActivationNumbers, Quant};
use crate::layouts::format::Decoder;
use crate::layouts::table::MatrixRows;
use crate::ops::matmul::layouts::{ProductKind, layout as layout_of};
use crate::ops::matmul::quantize::{quantized_words, temporary};
use crate::ops::matmul::source::Prequantized;
use crate::state::gpu::Wgpu;
use crate::state::quantized_inputs::{
    ActivationQuant, KernelInput, QuantForm, activation_quant, quant_form,
};
use crate::words::{ELEMENTS, word};

/// Activations that all workgroups of a kernel together may compute: with some 60 instructions
/// each that is 1 us by the number of an NVIDIA H200's lanes, where a kernel after another takes
/// 3 (`docs/experiments/log.md`).
const MOST_REPEATED: usize = 1 << 19;

/// The same of squares, which take a few instructions: with four times the workgroups the product of
/// Nemotron 3 Nano takes 26 us there by the device's clock, and not 36.
const MOST_SQUARED: usize = 1 << 21;

/// Words of workgroup memory that rounding takes on small subgroups.
const ROUNDING_WORDS: usize = 512;

/// How rows of gates and ups, or of ups alone, become activations, see `include/activation.wgsl`.
pub(crate) struct Between {
    /// `(rows, 2 * intermediate)`, or without gates `(rows, intermediate)`.
    gate_up: Mem,
    /// Of gates and of ups.
    biases: Option<[Mem; 2]>,
    /// Columns of activations.
    intermediate: usize,
    most_repeated: usize,
    constants: kernels::shared::Activation,
    /// `alpha`, `limit`.
    pub(crate) params: [u32; 2],
}

impl Between {
    pub(crate) fn of(b: &Wgpu, layout: &ExpertLayout, op: Experts<'_>, gate_up: &Mem) -> Between {
        let ActivationNumbers { kind, alpha, limit } = op.function.into();
        let alternates = matches!(layout.gate_up, GateUp::Alternating(_));
        let biases = op
            .function
            .biases()
            .map(|biases| [biases.gate, biases.up].map(|bias| b.vector(bias).clone()));
        Between {
            gate_up: gate_up.clone(),
            constants: kernels::shared::Activation { kind, biased: biases.is_some(), alternates },
            biases,
            intermediate: layout.intermediate(),
            most_repeated: match op.function {
                ExpertFunction::Plain(PlainActivation::Relu2) => MOST_SQUARED,
                _ => MOST_REPEATED,
            },
            params: [f32::to_bits(alpha), f32::to_bits(limit)],
        }
    }

    /// Computes activations of `n_rows` rows, whose experts are in a list; rounded too where that is
    /// asked for.
    pub(crate) fn run(
        &self,
        b: &mut Wgpu,
        experts: ListAt<'_>,
        n_rows: usize,
        activated: &Mem,
        rounding: Option<Rounding>,
    ) -> Option<Prequantized> {
        let ListAt { mem: lists, first: experts } = experts;
        let n = n_rows * self.intermediate;
        let [alpha, limit] = self.params;
        let params = [word(n), word(self.intermediate), experts, alpha, limit];
        let [gate, up] = self.biases.as_ref().map_or([lists; 2], |biases| biases.each_ref());
        let buffers = [&self.gate_up, lists, gate, up, activated];
        let grid = Grid::Linear(n.div_ceil(ELEMENTS));
        let Some(Rounding { quant, form }) = rounding else {
            let kernel = Activate { activation: self.constants };
            b.encoder.dispatch(kernel, &params, &buffers, grid);
            return None;
        };
        let [quantized, sums] = temporary(b, n_rows, self.intermediate, quant, form);
        let kernel = ActivateQuantized { activation: self.constants, quant: quant.constants(form) };
        let buffers = [&buffers[..], &[&quantized, &sums]].concat();
        b.encoder.dispatch(kernel, &params, &buffers, grid);
        Some(Prequantized { quant, form, x: quantized, sums })
    }

    /// What the third product's kernel reads in place of rounded rows, and of their sums.
    pub(crate) fn input(&self) -> KernelInput {
        let gates = self.biases.as_ref().map_or(&self.gate_up, |biases| &biases[0]);
        KernelInput { x: self.gate_up.clone(), sums: gates.clone(), stride: 1, start: 0 }
    }

    /// Biases of ups, or what is bound where there are none.
    pub(crate) fn ups<'a>(&'a self, other: &'a Mem) -> &'a Mem {
        self.biases.as_ref().map_or(other, |biases| &biases[1])
    }

    /// Constants of that kernel after those of other products.
    pub(crate) fn fused(
        &self,
        quant: ActivationQuant,
        form: QuantForm,
    ) -> (FusedActivations, kernels::shared::Activation) {
        let Quant { group, order, float, .. } = quant.constants(form);
        let fused = FusedActivations { group, order, float, cols: word(self.intermediate) };
        (fused, self.constants)
    }

    /// Workgroups that may repeat a row's activations.
    pub(crate) fn most_groups(&self) -> usize {
        (self.most_repeated / self.intermediate).max(1)
    }
}

/// How the third product takes its few inputs, where workgroups of the kernel
/// before it have whole groups of them.
pub(crate) fn quant_of_down(
    b: &Wgpu,
    layout: &ExpertLayout,
    op: Experts<'_>,
    n: usize,
) -> Option<Rounding> {
    let rounding = rounding(b, layout, op, n)?;
    let group_size = rounding.quant.group_size;
    let cols = layout.down.cols;
    let is_whole = cols.is_multiple_of(ELEMENTS) && ELEMENTS.is_multiple_of(group_size);
    is_whole.then_some(rounding)
}

/// Whether the third product of this many experts with a row each computes the activations
/// itself. Devices that share the host's memory have too few lanes.
pub(crate) fn is_within(b: &Wgpu, layout: &ExpertLayout, op: Experts<'_>, n: usize) -> bool {
    let facts = b.encoder.context().facts();
    let has_lanes = !facts.is_unified || facts.is_software();
    let fits = |Rounding { quant, form }| {
        let words: usize = quantized_words(1, layout.down.cols, quant, form).iter().sum();
        let staged = Decoder::new(layout.down.format).block_type().map_or(0, staged_words);
        4 * (words + ROUNDING_WORDS + staged) <= WORKGROUP_BYTES as usize
    };
    b.fuses && has_lanes && rounding(b, layout, op, n).is_some_and(fits)
}

/// How a product takes its inputs.
#[derive(Clone, Copy)]
pub(crate) struct Rounding {
    quant: ActivationQuant,
    form: QuantForm,
}

fn rounding(b: &Wgpu, layout: &ExpertLayout, op: Experts<'_>, n: usize) -> Option<Rounding> {
    let down = &layout.down;
    let decoder = Decoder::new(down.format);
    let quant = ActivationQuant::of_kernel(activation_quant(decoder, op.inputs), false)?;
    let kind = ProductKind { decoder, quant: Some(quant), cols: down.cols };
    let matrices = MatrixRows { n_rows: n * down.rows, n_matrices: n };
    Some(Rounding { quant, form: quant_form(layout_of(b, kind, matrices, 1)) })
}
