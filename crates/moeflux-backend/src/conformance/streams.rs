//! Ops on residuals of several streams.

use super::suite::{Numbers, Suite, filled, read};
use crate::{
    BlendStreams, Heads, JoinStreams, MixStreams, RmsNorm, SimilarityGate, StreamShares,
    WeighStreams,
};

pub(super) fn check(suite: &Suite<'_>) {
    for rows in [1, 3, 20] {
        for (n_streams, width) in [(1, 5), (3, 17), (4, 64), (4, 300), (2, 1028)] {
            streams(suite, rows, n_streams, width);
            similarity(suite, rows, n_streams, width);
            // A device compiles kernels for each number of streams.
            if n_streams > 2 {
                connection(suite, rows, n_streams, width);
            }
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

/// The ops of a manifold-constrained hyper-connection.
fn connection(suite: &Suite<'_>, rows: usize, n: usize, width: usize) {
    let name = |op: &str| format!("{op} {rows}x{n}x{width}");
    let len = StreamShares::len(n);
    for (n_parts, n_rounds) in [(3, 20), (3, 1), (1, 1)] {
        let len = if n_parts == 1 { n } else { len };
        suite.case(&format!("stream_shares {rows}x{n} {n_parts} {n_rounds}"), &|b| {
            let logits = filled(b, rows, len + 2, 115).slice(1, len);
            let out = filled(b, rows, len + 1, 116).slice(1, len);
            let of_logits = b.load_vector(&Numbers::new(117).floats(n_parts + len));
            let op = StreamShares { out, logits, n_streams: n, of_logits, eps: 1e-3, n_rounds };
            b.stream_shares(rows, op);
            read(b, out.buf, rows)
        });
    }
    suite.case(&name("weigh_streams"), &|b| {
        let streams = filled(b, rows, n * width + 2, 118).slice(1, n * width).heads(n);
        let out = filled(b, rows, 2 * width, 119).slice(width, width);
        let shares = filled(b, rows, n + 1, 120).slice(1, n);
        b.weigh_streams(rows, WeighStreams { out, streams, shares: Some(shares) });
        let mut all = read(b, out.buf, rows);
        b.weigh_streams(rows, WeighStreams { out, streams, shares: None });
        all.extend(read(b, out.buf, rows));
        all
    });
    suite.case(&name("blend_streams"), &|b| {
        let streams = filled(b, rows, n * width + 3, 121).slice(2, n * width).heads(n);
        let x = filled(b, rows, width + 3, 122).slice(3, width);
        let shares = filled(b, rows, len, 123).slice(n, n * (n + 1));
        b.blend_streams(rows, BlendStreams { streams, x, shares });
        read(b, streams.buf, rows)
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
