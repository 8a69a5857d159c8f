//! A row of activations in steps of 256 columns, as vectors of codes meet it.

use super::lane_sums::FourOfX;
use crate::cpu::matmul::Quantised;
use crate::cpu::matmul::steps::STEP_COLS;

/// The activations of a step.
pub(super) type StepOfX = [FourOfX; STEP_COLS / 4];

/// A step, aligned so that no load crosses a line of the cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct AlignedStep(pub(super) StepOfX);

/// Which columns a vector of codes holds, and in which form it meets activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Four that follow each other; limbs.
    Fours,
    /// The even ones of eight, then the odd ones; limbs.
    EvenAndOdd,
    /// Four that follow each other; 16 bits each, the even ones first.
    Wide,
}

/// A row in one order; kept from call to call.
#[derive(Default)]
pub(super) struct OrderedRow {
    /// A rounding, a row of it and the order.
    of: Option<(u64, usize, Order)>,
    /// Zeros follow the last column.
    pub(super) steps: Vec<AlignedStep>,
}

impl OrderedRow {
    pub(super) fn set(&mut self, x: &Quantised, row: usize, order: Order) {
        let of = Some((x.id(), row, order));
        if self.of == of {
            return;
        }
        // Not this row's before it is complete.
        self.of = None;
        self.steps.clear();
        self.steps.resize(x.cols().div_ceil(STEP_COLS), AlignedStep([[0; 2]; STEP_COLS / 4]));
        let fours = self.steps.iter_mut().flat_map(|step| &mut step.0);
        if order == Order::Wide {
            let columns: &[[i16; 4]] = bytemuck::cast_slice(x.pairs(row));
            for (four, [a, b, c, d]) in fours.zip(columns) {
                *four = bytemuck::cast([*a, *c, *b, *d]);
            }
        } else {
            let zeros = [0i8; 4];
            let low = x.q(row, x.n_limbs() - 1).as_chunks::<4>().0;
            let high = if x.n_limbs() == 2 { x.q(row, 0).as_chunks::<4>().0 } else { &[] };
            let high = high.iter().chain(std::iter::repeat(&zeros));
            for ((four, high), low) in fours.zip(high).zip(low) {
                *four = bytemuck::cast([*high, *low]);
            }
        }
        if order == Order::EvenAndOdd {
            for eight in self.steps.iter_mut().flat_map(|step| step.0.as_chunks_mut::<2>().0) {
                let [[a, b, c, d], [e, f, g, h]] = limbs_of(*eight, 0);
                let high = [[a, c, e, g], [b, d, f, h]];
                let [[a, b, c, d], [e, f, g, h]] = limbs_of(*eight, 1);
                let low = [[a, c, e, g], [b, d, f, h]];
                *eight = [bytemuck::cast([high[0], low[0]]), bytemuck::cast([high[1], low[1]])];
            }
        }
        self.of = of;
    }
}

/// One limb of eight columns.
fn limbs_of(eight: [FourOfX; 2], limb: usize) -> [[u8; 4]; 2] {
    [eight[0][limb].to_le_bytes(), eight[1][limb].to_le_bytes()]
}
