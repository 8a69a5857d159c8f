//! Ops on residuals of several streams.

use super::suite::{Numbers, Suite, filled, read};
use crate::{Heads, JoinStreams, MixStreams, RmsNorm, SimilarityGate};

pub(super) fn check(suite: &Suite<'_>) {
    for rows in [1, 3, 20] {
        for (n_streams, width) in [(1, 5), (3, 17), (4, 64), (4, 300), (2, 1028)] {
            streams(suite, rows, n_streams, width);
            similarity(suite, rows, n_streams, width);
        }
    }
}

fn streams(suite: &Suite<'_>, rows: usize, n: usize, width: usize) {
    let name = |op: &str| format!("{op} {rows}x{n}x{width}");
    suite.case(&name("mix_streams"), &|b| {
        let streams = filled(b, rows, n * width + 2, 100).slice(1, n * width).heads(n);
        let gates = filled(b, rows, n * width, 101).heads(n);
        let out = filled(b, rows, 2 * width, 102).slice(width, width);
        b.mix_streams(rows, MixStreams { out, streams, gates });
        read(b, out.buf, rows)
    });
    suite.case(&name("join_streams"), &|b| {
        let streams = filled(b, rows, n * width, 103).heads(n);
        let x = filled(b, rows, width + 3, 104).slice(3, width);
        let gates = filled(b, rows, n + 1, 105).slice(1, n);
        b.join_streams(rows, JoinStreams { streams, x, gates, scale: 1.75 });
        b.join_streams(rows, JoinStreams { streams, x, gates, scale: -3.5 });
        read(b, streams.buf, rows)
    });
    suite.case(&name("copies to all streams"), &|b| {
        let out = filled(b, rows, n * width, 106).heads(n);
        let x = filled(b, rows, width, 107).heads(1);
        b.copy(rows, out, Heads { n_heads: n, stride: 0, ..x });
        read(b, out.buf, rows)
    });
    suite.case(&name("rms_norm of streams"), &|b| {
        let weight = b.load_vector(&Numbers::new(108).floats(n * width));
        let (out, x) = (filled(b, rows, n * width, 109), filled(b, rows, n * width, 110));
        let (out, x) = (out.heads(n), x.heads(n));
        b.rms_norm(rows, RmsNorm { out, x, weight, eps: 1e-6 });
        let mut all = read(b, out.buf, rows);
        b.rms_norm(rows, RmsNorm { out: x, x, weight, eps: 1e-6 });
        all.extend(read(b, x.buf, rows));
        all
    });
}

fn similarity(suite: &Suite<'_>, rows: usize, n: usize, width: usize) {
    suite.case(&format!("similarity_gate {rows}x{n}x{width}"), &|b| {
        let out = filled(b, rows, n * width + 1, 111).slice(1, n * width).heads(n);
        let left = filled(b, rows, n * width, 112).heads(n);
        let right = filled(b, rows, n * width, 113).heads(n);
        let zeros = b.alloc(rows, n * width);
        let x = filled(b, rows, width, 114);
        let op = SimilarityGate { out, a: left, b: right, x, scale: 0.7 };
        b.similarity_gate(rows, op);
        let mut all = read(b, out.buf, rows);
        // Streams that have nothing in common.
        b.similarity_gate(rows, SimilarityGate { a: Heads { buf: zeros, ..left }, ..op });
        all.extend(read(b, out.buf, rows));
        all
    });
}
