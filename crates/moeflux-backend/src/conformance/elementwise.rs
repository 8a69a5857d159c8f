//! Element-wise and per-head ops.

use super::suite::{Numbers, Suite, filled, read};
use crate::{
    GateFunction, GatedActivation, GatedRmsNorm, Heads, PlainActivation, PositionPart, RmsNorm,
    RopePairs, RopeSpec, RotaryPositions, RowPosition, Span,
};

const ROWS: [usize; 3] = [1, 2, 7];
const WIDTHS: [usize; 6] = [1, 15, 16, 17, 250, 1024];

pub(super) fn check(suite: &Suite<'_>) {
    for rows in ROWS {
        for width in WIDTHS {
            simple(suite, rows, width);
            norms(suite, rows, width);
        }
        rewritten(suite, rows);
        for (head_dim, n_pairs) in [(8, 4), (34, 9), (128, 32)] {
            ropes(suite, rows, head_dim, n_pairs);
        }
    }
}

fn simple(suite: &Suite<'_>, rows: usize, width: usize) {
    suite.case(&format!("add {rows}x{width}"), &|b| {
        let (acc, x) = (filled(b, rows, width, 1), filled(b, rows, width, 2));
        b.add(rows, acc, x);
        read(b, acc.buf, rows)
    });
    suite.case(&format!("scale {rows}x{width}"), &|b| {
        let x = filled(b, rows, 2 * width, 2).slice(width, width);
        b.scale(rows, x, 1.75);
        b.scale(rows, x, -0.3);
        read(b, x.buf, rows)
    });
    suite.case(&format!("scaled_silu {rows}x{width}"), &|b| {
        let x = filled(b, rows, 2 * width, 19).slice(width, width);
        b.scaled_silu(rows, x, 7.5);
        b.scaled_silu(rows, x, -0.25);
        read(b, x.buf, rows)
    });
    let clamped = GatedActivation::ClampedSwiglu { alpha: 1.702, limit: 0.5 };
    let bounded = GatedActivation::BoundedSwiglu { limit: 0.5 };
    for activation in [GatedActivation::Swiglu, clamped, bounded, GatedActivation::GeluTanh] {
        suite.case(&format!("activate {activation:?} {rows}x{width}"), &|b| {
            let (gate, up) = (filled(b, rows, width, 3), filled(b, rows, width, 4));
            let out = filled(b, rows, width, 5);
            b.activate(rows, activation, out, gate, up);
            let mut all = read(b, out.buf, rows);
            b.activate(rows, activation, gate, gate, up);
            all.extend(read(b, gate.buf, rows));
            all
        });
    }
    use PlainActivation::{GeluErf, GeluTanh, Relu2};
    for activation in [Relu2, GeluTanh, GeluErf] {
        suite.case(&format!("activate_plain {activation:?} {rows}x{width}"), &|b| {
            let x = filled(b, rows, 2 * width, 20).slice(width, width);
            b.activate_plain(rows, activation, x);
            read(b, x.buf, rows)
        });
    }
    suite.case(&format!("copy {rows}x{width}"), &|b| {
        let (out, x) = (filled(b, rows, 5 * width, 17), filled(b, rows, 6 * width, 18));
        let out = Heads { start: width, stride: 2 * width, ..out.slice(0, 2 * width).heads(2) };
        let x = Heads { start: 2 * width, stride: 3 * width, ..x.slice(0, 2 * width).heads(2) };
        b.copy(rows, out, x);
        read(b, out.buf, rows)
    });
    suite.case(&format!("join_rows {rows}x{width}"), &|b| {
        let (out, x) = (filled(b, rows, 3 * width, 21), filled(b, 3 * rows, width, 22));
        b.join_rows(rows, out, x);
        read(b, out.buf, rows)
    });
    suite.case(&format!("sigmoid_gate {rows}x{width}"), &|b| {
        let x = filled(b, rows, 3 * width, 6).heads(3);
        let both = filled(b, rows, 6 * width, 7);
        let gate = Heads { start: width, stride: 2 * width, ..both.slice(0, 3 * width).heads(3) };
        b.sigmoid_gate(rows, x, gate);
        read(b, x.buf, rows)
    });
}

fn norms(suite: &Suite<'_>, rows: usize, width: usize) {
    suite.case(&format!("rms_norm {rows}x{width}"), &|b| {
        let weight = b.load_vector(&Numbers::new(8).floats(width));
        let (out, x) = (filled(b, rows, 3 * width, 9), filled(b, rows, 3 * width, 10));
        let (out, x) = (out.heads(3), x.heads(3));
        b.rms_norm(rows, RmsNorm { out, x, weight, eps: 1e-6 });
        let mut all = read(b, out.buf, rows);
        b.rms_norm(rows, RmsNorm { out: x, x, weight, eps: 1e-2 });
        all.extend(read(b, x.buf, rows));
        all
    });
    for function in [GateFunction::Silu, GateFunction::Sigmoid] {
        for gates_input in [false, true] {
            let name = format!("gated_rms_norm {function:?} {gates_input} {rows}x{width}");
            suite.case(&name, &|b| {
                let weight = b.load_vector(&Numbers::new(11).floats(width));
                let x = filled(b, rows, 2 * width, 12).heads(2);
                let gate = filled(b, rows, 2 * width, 13).heads(2);
                let norm = RmsNorm { out: x, x, weight, eps: 1e-6 };
                b.gated_rms_norm(rows, GatedRmsNorm { norm, gate, function, gates_input });
                let mut all = read(b, x.buf, rows);
                // A head has factors of its own, and the output another place.
                let weight = b.load_vector(&Numbers::new(14).floats(2 * width));
                let out = filled(b, rows, 2 * width, 15).heads(2);
                let norm = RmsNorm { out, weight, ..norm };
                b.gated_rms_norm(rows, GatedRmsNorm { norm, gate, function, gates_input });
                all.extend(read(b, out.buf, rows));
                all
            });
        }
    }
}

/// Rows that the host overwrites between ops.
fn rewritten(suite: &Suite<'_>, rows: usize) {
    suite.case(&format!("write_rows {rows}"), &|b| {
        let x = filled(b, rows, 12, 3);
        b.scale(rows, x, 1.5);
        b.write_rows(x.buf, rows / 2, &Numbers::new(4).floats(12 * (rows - rows / 2)));
        b.scale(rows, x, 1.5);
        read(b, x.buf, rows)
    });
}

/// Positions as rows of images have them, and rows that follow these.
fn placed(rows: usize, first: usize) -> [RotaryPositions; 2] {
    let position = |nth: usize| {
        let [temporal, height, width] = [first, first + nth / 3, first + nth % 3]
            .map(|part| u32::try_from(part).expect("a small position"));
        RowPosition { temporal, height, width }
    };
    [RotaryPositions::Each((0..rows).map(position).collect()), RotaryPositions::Shifted(-3)]
}

fn ropes(suite: &Suite<'_>, rows: usize, head_dim: usize, n_pairs: usize) {
    for pairs in [RopePairs::Halves, RopePairs::Adjacent] {
        suite.case(&format!("rope {rows}x{head_dim} {n_pairs} {pairs:?}"), &|b| {
            let inv_freq = (0..n_pairs).map(|i| 10_000f32.powf(-(i as f32) / 32.0)).collect();
            let rope = b.load_rope(RopeSpec { inv_freq, pairs, scale: 1.25, parts: Vec::new() });
            let x = filled(b, rows, 4 * head_dim, 14).slice(head_dim, 3 * head_dim).heads(3);
            let sequence = b.new_sequence(&[]);
            for position in [0, 5, 131_071] {
                b.rope(x, rope, &[Span::new(sequence, 0..rows, position)]);
            }
            read(b, x.buf, rows)
        });
        suite.case(&format!("rope by parts {rows}x{head_dim} {n_pairs} {pairs:?}"), &|b| {
            let inv_freq = (0..n_pairs).map(|i| 10_000f32.powf(-(i as f32) / 32.0)).collect();
            let all = [PositionPart::Temporal, PositionPart::Height, PositionPart::Width];
            let parts = all.into_iter().cycle().take(n_pairs).collect();
            let rope = b.load_rope(RopeSpec { inv_freq, pairs, scale: 1.25, parts });
            let x = filled(b, rows, 4 * head_dim, 14).slice(head_dim, 3 * head_dim).heads(3);
            let sequence = b.new_sequence(&[]);
            for rotary in placed(rows, 4000) {
                b.rope(x, rope, &[Span { rotary, ..Span::new(sequence, 0..rows, 5) }]);
            }
            read(b, x.buf, rows)
        });
    }
}
