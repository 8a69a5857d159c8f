//! What stands between the products of an expert: a kernel of its own or, for few rows
//! of a device that repeats it quickly, the beginning of the third product's.

use moeflux_backend::{Activation, Experts};
use moeflux_core::{ExpertLayout, GateUp};

use super::rounding::{rounded_words, unkept};
use crate::buffer::Mem;
use crate::context::WORKGROUP_BYTES;
use crate::grid::Grid;
use crate::ops::layouts;
use crate::ops::source::RoundedBefore;
use crate::rounded::{Digits, Rounded, Taken, digits, rounded_form};
use crate::shader::{Shader, Variant};
use crate::state::Wgpu;
use crate::weights::Decoder;
use crate::words::{ELEMENTS, word};

/// Activations that all workgroups of a kernel together may compute: with some 60
/// instructions each that is 1 us by the number of an NVIDIA H200's lanes, where a kernel
/// behind another takes 3 (`docs/experiments/log.md`).
const MOST_REPEATED: usize = 1 << 19;

/// Words of workgroup memory that rounding takes on small subgroups.
const ROUNDING_WORDS: usize = 512;

/// How rows of gates and ups become activations, see `activation.wgsl`.
pub(super) struct Between {
    /// `(rows, 2 * intermediate)`.
    gate_up: Mem,
    /// Of gates and of ups.
    biases: Option<[Mem; 2]>,
    /// Columns of activations.
    intermediate: usize,
    /// `CLAMPED`, `BIASED`, `ALTERNATES`.
    consts: [u32; 3],
    /// `alpha`, `limit`.
    pub(super) params: [u32; 2],
}

impl Between {
    pub(super) fn of(b: &Wgpu, layout: &ExpertLayout, op: Experts<'_>, gate_up: &Mem) -> Between {
        let (clamped, alpha, limit) = match op.activation {
            Activation::Swiglu => (0, 0.0, 0.0),
            Activation::ClampedSwiglu { alpha, limit } => (1, alpha, limit),
        };
        let alternates = u32::from(matches!(layout.gate_up, GateUp::Alternating(_)));
        let biases = op.biases.map(|it| [it.gate, it.up].map(|it| b.vector(it).clone()));
        Between {
            gate_up: gate_up.clone(),
            consts: [clamped, u32::from(biases.is_some()), alternates],
            biases,
            intermediate: layout.intermediate(),
            params: [f32::to_bits(alpha), f32::to_bits(limit)],
        }
    }

    /// Computes activations of so many rows, whose experts lie in a list; rounded too
    /// where that is asked for.
    pub(super) fn run(
        &self,
        b: &mut Wgpu,
        (lists, experts, rows): (&Mem, u32, usize),
        activated: &Mem,
        rounding: Option<(Digits, Rounded)>,
    ) -> Option<RoundedBefore> {
        let n = rows * self.intermediate;
        let [alpha, limit] = self.params;
        let params = [word(n), word(self.intermediate), experts, alpha, limit];
        let [gate, up] = self.biases.as_ref().map_or([lists; 2], |it| it.each_ref());
        let buffers = [&self.gate_up, lists, gate, up, activated];
        let grid = Grid::Linear(n.div_ceil(ELEMENTS));
        let Some((digits, form)) = rounding else {
            let variant = Variant::new(Shader::Activate, &self.consts);
            b.encoder.dispatch(variant, &params, &buffers, grid);
            return None;
        };
        let [rounded, sums] = unkept(b, (rows, self.intermediate), digits, form);
        let [group, n_digits, order, float] = digits.consts(form);
        let consts = [&self.consts[..], &[group, n_digits, order, float]].concat();
        let buffers = [&buffers[..], &[&rounded, &sums]].concat();
        b.encoder.dispatch(Variant::new(Shader::ActivateRounded, &consts), &params, &buffers, grid);
        Some(((digits, form), rounded, sums))
    }

    /// What the third product's kernel reads in place of rounded rows, and of their sums.
    pub(super) fn taken(&self) -> Taken {
        let gates = self.biases.as_ref().map_or(&self.gate_up, |it| &it[0]);
        Taken { x: self.gate_up.clone(), sums: gates.clone(), stride: 1, start: 0 }
    }

    /// Biases of ups, or what is bound where there are none.
    pub(super) fn ups<'a>(&'a self, other: &'a Mem) -> &'a Mem {
        self.biases.as_ref().map_or(other, |it| &it[1])
    }

    /// Constants of that kernel behind those of other products.
    pub(super) fn prelude_consts(&self, digits: Digits, form: Rounded) -> [u32; 7] {
        let [group, _, order, float] = digits.consts(form);
        let [clamped, biased, alternates] = self.consts;
        [group, order, float, word(self.intermediate), clamped, biased, alternates]
    }

    /// Workgroups that may repeat a row's activations.
    pub(super) fn most_groups(&self) -> usize {
        (MOST_REPEATED / self.intermediate).max(1)
    }
}

/// How the third product takes its few inputs, where workgroups of the kernel
/// before it have whole groups of them.
pub(super) fn rounding_of_down(
    b: &Wgpu,
    layout: &ExpertLayout,
    op: Experts<'_>,
    n: usize,
) -> Option<(Digits, Rounded)> {
    let (digits, form) = rounding(b, layout, op, n)?;
    let cols = layout.down.cols;
    let is_whole = cols.is_multiple_of(ELEMENTS) && ELEMENTS.is_multiple_of(digits.group_size);
    is_whole.then_some((digits, form))
}

/// Whether the third product of so many experts with a row each computes the
/// activations itself. Devices that share the host's memory have too few lanes.
pub(super) fn is_within(b: &Wgpu, layout: &ExpertLayout, op: Experts<'_>, n: usize) -> bool {
    let facts = b.encoder.context().facts();
    let has_lanes = !facts.is_unified || facts.is_software();
    let fits = |(digits, form)| {
        let words: usize = rounded_words((1, layout.down.cols), digits, form).iter().sum();
        4 * (words + ROUNDING_WORDS) <= WORKGROUP_BYTES as usize
    };
    b.fuses && has_lanes && rounding(b, layout, op, n).is_some_and(fits)
}

fn rounding(
    b: &Wgpu,
    layout: &ExpertLayout,
    op: Experts<'_>,
    n: usize,
) -> Option<(Digits, Rounded)> {
    let down = &layout.down;
    let decoder = Decoder::new(down.format);
    let digits = Digits::of_kernel(digits(decoder, op.inputs), false)?;
    let of = (decoder, Some(digits), down.cols);
    Some((digits, rounded_form(layouts::layout(b, of, (n * down.rows, n), 1))))
}
