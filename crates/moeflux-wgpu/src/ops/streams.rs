//! Residuals of several streams: reading through gates, joining, gates of similarity.

use moeflux_backend::{
    BlendStreams, Buf, JoinStreams, MixStreams, SimilarityGate, StreamShares, WeighStreams,
};

use crate::commands::grid::Grid;
use crate::kernels::streams as kernels;
use crate::ops::operand::{cols, heads};
use crate::state::gpu::Wgpu;
use crate::words::{PER_ELEMENT, word};

fn assert_apart(out: Buf, inputs: &[Buf]) {
    assert!(!inputs.contains(&out), "an op writes a buffer that it also reads");
}

pub(crate) fn mix_streams(b: &mut Wgpu, rows: usize, op: MixStreams) {
    let MixStreams { out, streams, gates } = op;
    assert!(
        gates.n_heads == streams.n_heads
            && [streams, gates].iter().all(|heads| heads.head_dim == out.len),
        "a gate for every element of a stream"
    );
    assert_apart(out.buf, &[streams.buf, gates.buf]);
    let (y, x, gate) = (cols(b, out), heads(b, streams), heads(b, gates));
    b.written(out.buf);
    let n = rows * out.len;
    let mut params = vec![word(n), word(streams.n_heads), word(out.len), 0];
    params.extend([y.view, x.view, gate.view].as_flattened());
    b.encoder.begin();
    let buffers = [&y.mem, &x.mem, &gate.mem];
    let grid = Grid::Linear(n.div_ceil(PER_ELEMENT));
    b.encoder.dispatch(kernels::MixStreams {}, &params, &buffers, grid);
}

pub(crate) fn join_streams(b: &mut Wgpu, rows: usize, op: JoinStreams) {
    let JoinStreams { streams, x, gates, scale } = op;
    assert!(gates.len == streams.n_heads && x.len == streams.head_dim, "a gate for every stream");
    assert_apart(streams.buf, &[x.buf, gates.buf]);
    let (y, x, gate) = (heads(b, streams), cols(b, x), cols(b, gates));
    b.written(streams.buf);
    let n = rows * streams.n_heads * streams.head_dim;
    let counts = [word(n), word(streams.n_heads), word(streams.head_dim), scale.to_bits()];
    let mut params = counts.to_vec();
    params.extend([y.view, x.view, gate.view].as_flattened());
    b.encoder.begin();
    let buffers = [&y.mem, &x.mem, &gate.mem];
    let grid = Grid::Linear(n.div_ceil(PER_ELEMENT));
    b.encoder.dispatch(kernels::JoinStreams {}, &params, &buffers, grid);
}

pub(crate) fn similarity_gate(b: &mut Wgpu, rows: usize, op: SimilarityGate) {
    let SimilarityGate { out, a: left, b: right, x, scale } = op;
    assert!(
        left.n_heads == out.n_heads
            && right.n_heads == out.n_heads
            && left.head_dim == right.head_dim,
        "streams that are compared"
    );
    assert!(x.len == out.head_dim, "as many columns as a stream");
    assert_apart(out.buf, &[left.buf, right.buf, x.buf]);
    let n = rows * out.n_heads;
    let mut params = [n, out.n_heads, left.head_dim, out.head_dim].map(word).to_vec();
    let (y, left, right, x) = (heads(b, out), heads(b, left), heads(b, right), cols(b, x));
    b.written(out.buf);
    params.extend([y.view, left.view, right.view, x.view].as_flattened());
    params.push(scale.to_bits());
    b.encoder.begin();
    let buffers = [&y.mem, &left.mem, &right.mem, &x.mem];
    b.encoder.dispatch(kernels::SimilarityGate {}, &params, &buffers, Grid::Linear(n));
}

pub(crate) fn stream_shares(b: &mut Wgpu, rows: usize, op: StreamShares) {
    op.assert_fits();
    let StreamShares { out, logits, n_streams, of_logits, eps, n_rounds } = op;
    let (y, x) = (cols(b, out), cols(b, logits));
    b.written(out.buf);
    let mut params = vec![word(rows), word(n_rounds), eps.to_bits(), 0];
    params.extend([y.view, x.view].as_flattened());
    let of_logits = b.vector(of_logits).clone();
    b.encoder.begin();
    let grid = Grid::Linear(rows.div_ceil(PER_ELEMENT));
    let kernel = kernels::StreamShares { n: word(n_streams), n_parts: word(op.n_parts()) };
    b.encoder.dispatch(kernel, &params, &[&y.mem, &x.mem, &of_logits], grid);
}

pub(crate) fn weigh_streams(b: &mut Wgpu, rows: usize, op: WeighStreams) {
    let WeighStreams { out, streams, shares } = op;
    assert!(
        streams.head_dim == out.len && shares.is_none_or(|shares| shares.len == streams.n_heads),
        "a share for every stream"
    );
    assert_apart(out.buf, &[streams.buf, shares.map_or(streams.buf, |shares| shares.buf)]);
    let (y, x) = (cols(b, out), heads(b, streams));
    let share = shares.map_or(x.clone(), |shares| cols(b, shares));
    b.written(out.buf);
    let n = rows * out.len;
    let mean = u32::from(shares.is_none());
    let mut params = vec![word(n), word(streams.n_heads), word(out.len), mean];
    params.extend([y.view, x.view, share.view].as_flattened());
    b.encoder.begin();
    let buffers = [&y.mem, &x.mem, &share.mem];
    let grid = Grid::Linear(n.div_ceil(PER_ELEMENT));
    b.encoder.dispatch(kernels::WeighStreams {}, &params, &buffers, grid);
}

pub(crate) fn blend_streams(b: &mut Wgpu, rows: usize, op: BlendStreams) {
    let BlendStreams { streams, x, shares } = op;
    let (n_streams, dim) = (streams.n_heads, streams.head_dim);
    assert!(n_streams <= StreamShares::MOST, "few streams");
    assert!(shares.len == n_streams * (n_streams + 1) && x.len == dim, "shares of streams");
    assert_apart(streams.buf, &[x.buf, shares.buf]);
    let (y, x, share) = (heads(b, streams), cols(b, x), cols(b, shares));
    b.written(streams.buf);
    let n = rows * dim;
    let mut params = vec![word(n), word(dim), 0, 0];
    params.extend([y.view, x.view, share.view].as_flattened());
    b.encoder.begin();
    let buffers = [&y.mem, &x.mem, &share.mem];
    let grid = Grid::Linear(n.div_ceil(PER_ELEMENT));
    b.encoder.dispatch(kernels::BlendStreams { n: word(n_streams) }, &params, &buffers, grid);
}
