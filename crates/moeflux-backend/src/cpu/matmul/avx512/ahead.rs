//! Asking memory for the next panel of a matrix while this one is multiplied.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::ops::Range;

use crate::cpu::matmul::IntegerProduct;

const LINE: usize = 64;

/// The bytes of a panel, in equal portions.
pub(in crate::cpu::matmul) struct Ahead<'a> {
    /// Integers, scales, biases.
    parts: [&'a [u8]; 3],
    part: usize,
    at: usize,
    /// Lines asked for at a time.
    portion: usize,
}

impl<'a> Ahead<'a> {
    /// The panel that follows `rows` of the matrix or, behind a task's last one,
    /// what the thread's next task begins with, as many rows; to be asked for in
    /// `n_times`.
    pub(in crate::cpu::matmul) fn new(
        product: &IntegerProduct<'a>,
        (rows, panel_rows): (&Range<usize>, usize),
        is_last: bool,
        n_times: usize,
    ) -> Self {
        let next = if is_last { product.next } else { Some((product.weight, rows.end)) };
        let (weight, first) = next.unwrap_or((product.weight, product.weight.rows));
        let next = first.min(weight.rows)..(first + panel_rows).min(weight.rows);
        let row = |all: &'a [u8]| {
            let row_bytes = all.len() / weight.rows.max(1);
            &all[next.start * row_bytes..next.end * row_bytes]
        };
        let parts = [row(weight.weight), row(weight.scales), row(weight.biases)];
        let n_lines: usize = parts.iter().map(|it| it.len().div_ceil(LINE)).sum();
        Ahead { parts, part: 0, at: 0, portion: n_lines.div_ceil(n_times.max(1)) }
    }

    /// The next portion.
    #[inline]
    #[target_feature(enable = "sse")]
    pub(in crate::cpu::matmul) fn ask(&mut self) {
        for _ in 0..self.portion {
            let Some(part) = self.parts.get(self.part) else { return };
            if let Some(byte) = part.get(self.at) {
                _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(byte).cast());
                self.at += LINE;
            } else {
                (self.part, self.at) = (self.part + 1, 0);
            }
        }
    }
}
