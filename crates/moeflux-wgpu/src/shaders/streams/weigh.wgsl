// The sum of several streams by their shares, or their mean.

struct View {
    start: u32,
    width: u32,
    stride: u32,
    unused: u32,
}

struct Params {
    n: u32,
    n_streams: u32,
    dim: u32,
    is_mean: u32,
    y: View,
    x: View,
    share: View,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> share: array<f32>;

#main_per_element idx p.n
    let i = idx % p.dim;
    let row = idx / p.dim;
    let x_at = row * p.x.width + p.x.start + i;
    let share_at = row * p.share.width + p.share.start;
    var sum = 0.0;
    for (var stream = 0u; stream < p.n_streams; stream++) {
        var factor = 1.0;
        if (p.is_mean == 0u) { factor = share[share_at + stream]; }
        sum = fma(factor, x[x_at + stream * p.x.stride], sum);
    }
    if (p.is_mean != 0u) { sum /= f32(p.n_streams); }
    y[row * p.y.width + p.y.start + i] = sum;
}
