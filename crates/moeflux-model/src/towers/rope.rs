//! Rotations by the row and the column of a patch.

use moeflux_backend::{Backend, Heads, PositionPart, Rope, RopePairs, RopeSpec, Span};

/// Which columns of a head turn by which part of a position. Frequencies are
/// `theta^(-4 i / head_dim)`, a quarter as many as a head has columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RopeKind {
    /// Pairs `(j, j + head_dim / 2)`: the first half of them by rows, the others by columns.
    RowsThenColumns,
    /// Pairs `(2j, 2j + 1)`: even ones by columns, odd ones by rows.
    Alternating,
    /// The first half of a head by columns, the second by rows, each in pairs of its own
    /// `(j, j + head_dim / 4)`.
    HalfEach,
}

/// The rotation of a tower.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopePlan {
    pub(crate) kind: RopeKind,
    pub(crate) theta: f32,
}

/// Loaded rotations of parts of a head.
#[derive(Clone, Debug)]
pub(super) struct AxialRope(Vec<Part>);

/// Some columns of every head, and what turns them.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: usize,
    len: usize,
    rope: Rope,
}

impl AxialRope {
    pub(super) fn load(plan: RopePlan, head_dim: usize, backend: &mut dyn Backend) -> AxialRope {
        use PositionPart::{Height, Width};
        let n = head_dim / 4;
        let exponent = |i: usize| -4.0 * i as f64 / head_dim as f64;
        let frequency = |i: usize| f64::from(plan.theta).powf(exponent(i)) as f32;
        let each = || (0..n).map(frequency);
        let mut part = |start, len, inv_freq: Vec<f32>, pairs, parts| {
            let spec = RopeSpec { inv_freq, pairs, scale: 1.0, parts };
            Part { start, len, rope: backend.load_rope(spec) }
        };
        AxialRope(match plan.kind {
            RopeKind::RowsThenColumns => {
                let parts = [vec![Height; n], vec![Width; n]].concat();
                vec![part(0, head_dim, each().chain(each()).collect(), RopePairs::Halves, parts)]
            }
            RopeKind::Alternating => {
                let twice = each().flat_map(|frequency| [frequency; 2]).collect();
                let parts = [Width, Height].repeat(n);
                vec![part(0, head_dim, twice, RopePairs::Adjacent, parts)]
            }
            RopeKind::HalfEach => [(0, Width), (head_dim / 2, Height)]
                .into_iter()
                .map(|(start, of)| {
                    part(start, head_dim / 2, each().collect(), RopePairs::Halves, vec![of; n])
                })
                .collect(),
        })
    }

    /// Rotates every head in place.
    pub(super) fn run(&self, backend: &mut dyn Backend, x: Heads, span: &Span) {
        for part in &self.0 {
            let columns = Heads { start: x.start + part.start, head_dim: part.len, ..x };
            backend.rope(columns, part.rope, std::slice::from_ref(span));
        }
    }
}
