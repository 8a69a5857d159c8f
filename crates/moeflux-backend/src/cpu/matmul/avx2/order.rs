//! Activations as 16-bit integers in the order that packed weights have.

use std::arch::x86_64::*;
use std::cell::Cell;

use super::dots::{GROUPS, block_cols, column_at};
use super::unpacked::UnpackedRows;
use super::vector::load_32;
use crate::cpu::matmul::Quantised;
use crate::cpu::matmul::integers::width;

/// A row of activations in the order that the kernel of one width likes,
/// repeated until both a row and a block of columns end.
#[derive(Default)]
pub(super) struct Ordered {
    key: (u64, usize, usize),
    /// `period` columns, then the first eight groups again.
    q: Vec<i16>,
    period: usize,
}

impl Ordered {
    pub(super) fn period(&self) -> usize {
        self.period
    }

    /// The columns `col..col + n` of the repeated row.
    #[inline]
    pub(super) fn part(&self, col: usize, n: usize) -> &[i16] {
        &self.q[col..][..n]
    }

    #[target_feature(enable = "avx2")]
    fn set<const CODES: usize>(&mut self, x: &Quantised, row: usize) {
        let block = const { block_cols(width(CODES)) };
        let cols = x.cols();
        self.period = cols;
        while !self.period.is_multiple_of(block) {
            self.period += cols;
        }
        let n = self.period + GROUPS * x.group_size();
        self.q.clear();
        self.q.resize(self.period, 0);
        let natural: &[i16] = bytemuck::cast_slice(x.pairs(row));
        let mut columns = [0i16; 128];
        for (i, out) in self.q.chunks_exact_mut(block).enumerate() {
            let mut done = 0;
            while done < block {
                let col = (i * block + done) % cols;
                let n = (block - done).min(cols - col);
                columns[done..done + n].copy_from_slice(&natural[col..col + n]);
                done += n;
            }
            for (at, out) in out.iter_mut().enumerate() {
                *out = columns[column_at(width(CODES), at)];
            }
        }
        while self.q.len() < n {
            // Whole periods, but for the last time.
            self.q.extend_from_within(..self.q.len().min(n - self.q.len()));
        }
    }
}

/// The limbs of 64 columns, the even columns and then the odd ones, as the
/// halves of packed bytes have them.
#[derive(Clone, Copy)]
pub(super) struct Limbs {
    /// What counts 256 times.
    pub(super) high: [__m256i; 2],
    pub(super) low: [__m256i; 2],
}

/// The limbs of a row of activations.
#[derive(Default)]
struct SplitRow {
    key: (u64, usize),
    limbs: Vec<Limbs>,
}

impl SplitRow {
    #[target_feature(enable = "avx2")]
    fn set(&mut self, x: &Quantised, row: usize) {
        let (high, low) = match x.n_limbs() {
            1 => (None, x.q(row, 0)),
            _ => (Some(x.q(row, 0)), x.q(row, 1)),
        };
        let (low, _) = low.as_chunks::<64>();
        let high = high.map(|limb| limb.as_chunks::<64>().0);
        self.limbs.clear();
        let zero = [_mm256_setzero_si256(); 2];
        self.limbs.extend(low.iter().enumerate().map(|(i, low)| {
            let high = high.map_or(zero, |limb| even_and_odd(&limb[i]));
            Limbs { high, low: even_and_odd(low) }
        }));
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn even_and_odd(columns: &[i8; 64]) -> [__m256i; 2] {
    let columns: &[u8] = bytemuck::cast_slice(columns);
    let (a, b) = (load_32(columns), load_32(&columns[32..]));
    let byte = _mm256_set1_epi16(255);
    let even = _mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
    let odd = _mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
    // Packing takes 128-bit lanes in turns.
    [
        _mm256_permute4x64_epi64::<0b11_01_10_00>(even),
        _mm256_permute4x64_epi64::<0b11_01_10_00>(odd),
    ]
}

/// Rows that a thread keeps in order: the inputs of one call's experts.
const KEPT: usize = 16;

/// What a call needs besides its arguments.
#[derive(Default)]
pub(super) struct Scratch {
    rows: [Ordered; KEPT],
    split: [SplitRow; KEPT],
    n_added: usize,
    /// Rows at the end of a matrix, and whatever fills their block.
    pub(super) padded: Vec<u8>,
    pub(super) dots: Vec<f32>,
    pub(super) tile: UnpackedRows,
}

thread_local! {
    /// Kept from call to call: small matrices are as quick as an allocation,
    /// and several tasks multiply the same row.
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Scratch {
    /// Takes the thread's, which `keep` gives back.
    pub(super) fn take() -> Box<Scratch> {
        SCRATCH.take().unwrap_or_default()
    }

    pub(super) fn keep(self: Box<Scratch>) {
        SCRATCH.set(Some(self));
    }

    /// The place of a row in the order of one width, none of those in `held`
    /// unless that is the row's.
    #[target_feature(enable = "avx2")]
    pub(super) fn order<const CODES: usize>(
        &mut self,
        x: &Quantised,
        row: usize,
        held: &[usize],
    ) -> usize {
        let key = (x.id(), row, CODES);
        if let Some(at) = self.rows.iter().position(|row| row.key == key) {
            return at;
        }
        let at = self.next_place(held);
        // Not this row's before it is complete.
        self.rows[at].key = Default::default();
        self.rows[at].set::<CODES>(x, row);
        self.rows[at].key = key;
        at
    }

    /// As [`Scratch::order`], for [`Scratch::limbs`].
    #[target_feature(enable = "avx2")]
    pub(super) fn split_limbs(&mut self, x: &Quantised, row: usize, held: &[usize]) -> usize {
        let key = (x.id(), row);
        if let Some(at) = self.split.iter().position(|split| split.key == key) {
            return at;
        }
        let at = self.next_place(held);
        self.split[at].key = Default::default();
        self.split[at].set(x, row);
        self.split[at].key = key;
        at
    }

    /// A place for another row.
    fn next_place(&mut self, held: &[usize]) -> usize {
        while held.contains(&(self.n_added % KEPT)) {
            self.n_added += 1;
        }
        self.n_added += 1;
        (self.n_added - 1) % KEPT
    }

    /// The limbs at a place.
    pub(super) fn limbs(&self, at: usize) -> &[Limbs] {
        &self.split[at].limbs
    }

    pub(super) fn row_and_dots(&mut self, at: usize) -> (&Ordered, &mut [f32]) {
        (&self.rows[at], &mut self.dots)
    }
}
