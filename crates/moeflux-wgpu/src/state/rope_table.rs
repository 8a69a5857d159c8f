//! Sines and cosines of positions on the device.

use moeflux_backend::{RopeSpec, Span};

/// Rotary frequencies, and the table of the last batch.
#[derive(Debug)]
pub(crate) struct RopeTable {
    pub(crate) spec: RopeSpec,
    pub(crate) spans: Vec<Span>,
    /// `(rows, pairs)`: sine and cosine, as bits.
    pub(crate) table: Vec<u32>,
    /// Where the table is in the arena, during that submission.
    pub(crate) place: Option<(u64, u32)>,
}

impl RopeTable {
    pub(crate) fn new(spec: RopeSpec) -> RopeTable {
        RopeTable { spec, spans: Vec::new(), table: Vec::new(), place: None }
    }

    pub(crate) fn n_pairs(&self) -> usize {
        self.spec.inv_freq.len()
    }

    /// Makes the table that of `spans`. Angles are reduced in double precision,
    /// which devices need not have.
    pub(crate) fn set(&mut self, spans: &[Span]) {
        if self.spans == spans {
            return;
        }
        self.spans = spans.to_vec();
        self.place = None;
        self.table.clear();
        for position in spans.iter().flat_map(Span::rotary_positions) {
            for angle in self.spec.angles(position) {
                let (sin, cos) = f64::from(angle).sin_cos();
                self.table.push((sin as f32 * self.spec.scale).to_bits());
                self.table.push((cos as f32 * self.spec.scale).to_bits());
            }
        }
    }
}
