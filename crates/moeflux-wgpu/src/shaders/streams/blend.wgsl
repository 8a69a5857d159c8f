// Mixes STREAMS streams with each other and adds columns to each; a thread has a column of all streams.

struct View {
    start: u32,
    width: u32,
    stride: u32,
    unused: u32,
}

struct Params {
    n: u32,
    dim: u32,
    unused: u32,
    unused_too: u32,
    y: View,
    x: View,
    share: View,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
// To every stream a share of the columns, then shares of streams, (from, to).
@group(0) @binding(3) var<storage, read> share: array<f32>;

#main_per_element idx p.n
    let i = idx % p.dim;
    let row = idx / p.dim;
    let at = row * p.y.width + p.y.start + i;
    let share_at = row * p.share.width + p.share.start;
    let value = x[row * p.x.width + p.x.start + i];
#each s STREAMS
    let before$s = y[at + $su * p.y.stride];
#end
#each j STREAMS
    var after$j = share[share_at + $ju] * value;
#each s STREAMS
    after$j = fma(share[share_at + STREAMS + $su * STREAMS + $ju], before$s, after$j);
#end
    y[at + $ju * p.y.stride] = after$j;
#end
}
