//! Rotary position embedding.

use crate::{RopePairs, RopeSpec, RowPosition, Span};

use super::isa::for_every_isa;
use super::math::sin_cos;

/// Sines and cosines of the rows of the current batch.
///
/// They depend on positions alone, so the layers of one step share them.
#[derive(Debug)]
pub(super) struct RopeTable {
    spec: RopeSpec,
    spans: Vec<Span>,
    /// `(rows, pairs)`.
    sin: Vec<f32>,
    /// `(rows, pairs)`.
    cos: Vec<f32>,
}

impl RopeTable {
    pub(super) fn new(spec: RopeSpec) -> RopeTable {
        RopeTable { spec, spans: Vec::new(), sin: Vec::new(), cos: Vec::new() }
    }

    /// Columns that it rotates.
    pub(super) fn n_columns(&self) -> usize {
        2 * self.spec.inv_freq.len()
    }

    /// Makes the table that of `spans`.
    pub(super) fn set(&mut self, spans: &[Span]) {
        if self.spans == spans {
            return;
        }
        self.spans.clear();
        self.spans.extend_from_slice(spans);
        self.sin.clear();
        self.cos.clear();
        for span in spans {
            for position in span.rotary_positions() {
                for angle in self.spec.angles(position) {
                    let (sin, cos) = sin_cos(angle);
                    self.sin.push(sin * self.spec.scale);
                    self.cos.push(cos * self.spec.scale);
                }
            }
        }
    }

    /// Rotates one head to a position.
    pub(super) fn rotate_to(&self, isa: super::Isa, position: RowPosition, head: &mut [f32]) {
        let angles = self.spec.angles(position).map(|angle| {
            let (sin, cos) = sin_cos(angle);
            (sin * self.spec.scale, cos * self.spec.scale)
        });
        let (sin, cos): (Vec<f32>, Vec<f32>) = angles.unzip();
        self.rotate_by(isa, head, &sin, &cos);
    }

    /// Rotates one head of the `row`-th row, counted over all spans.
    pub(super) fn rotate(&self, isa: super::Isa, row: usize, head: &mut [f32]) {
        let n_pairs = self.spec.inv_freq.len();
        let sin = &self.sin[row * n_pairs..(row + 1) * n_pairs];
        let cos = &self.cos[row * n_pairs..(row + 1) * n_pairs];
        self.rotate_by(isa, head, sin, cos);
    }

    fn rotate_by(&self, isa: super::Isa, head: &mut [f32], sin: &[f32], cos: &[f32]) {
        let n_pairs = sin.len();
        let head = &mut head[..2 * n_pairs];
        match self.spec.pairs {
            RopePairs::Halves => {
                let (a, b) = head.split_at_mut(n_pairs);
                rotate_halves(isa, a, b, sin, cos);
            }
            RopePairs::Adjacent => rotate_adjacent(isa, head, sin, cos),
        }
    }
}

for_every_isa! {
    fn rotate_halves(a: &mut [f32], b: &mut [f32], sin: &[f32], cos: &[f32]) {
        for (((a, b), s), c) in a.iter_mut().zip(b).zip(sin).zip(cos) {
            (*a, *b) = rotate_pair(*a, *b, *s, *c);
        }
    }
}

for_every_isa! {
    fn rotate_adjacent(head: &mut [f32], sin: &[f32], cos: &[f32]) {
        for ((pair, s), c) in head.as_chunks_mut::<2>().0.iter_mut().zip(sin).zip(cos) {
            (pair[0], pair[1]) = rotate_pair(pair[0], pair[1], *s, *c);
        }
    }
}

#[inline(always)]
fn rotate_pair(a: f32, b: f32, sin: f32, cos: f32) -> (f32, f32) {
    (a * cos - b * sin, b * cos + a * sin)
}
