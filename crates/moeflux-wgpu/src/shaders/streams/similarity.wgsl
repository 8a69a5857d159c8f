// Gates columns by the similarity of two rows of streams; a workgroup has one stream of a row.

struct View {
    start: u32,
    width: u32,
    stride: u32,
    unused: u32,
}

struct Params {
    n: u32,
    n_streams: u32,
    // Floats that are compared, and floats that are gated.
    dim: u32,
    out_dim: u32,
    y: View,
    a: View,
    b: View,
    x: View,
    scale: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> b: array<f32>;
@group(0) @binding(4) var<storage, read> x: array<f32>;

#main_in_subgroups idx 64 p.n
    let stream = idx % p.n_streams;
    let row = idx / p.n_streams;
    let a_at = row * p.a.width + p.a.start + stream * p.a.stride;
    let b_at = row * p.b.width + p.b.start + stream * p.b.stride;
    var products = 0.0;
    for (var i = thread; i < p.dim; i += 64u) {
        products = fma(a[a_at + i], b[b_at + i], products);
    }
    let similarity = total(thread, products) * p.scale;
    let magnitude = abs(similarity);
    let root = sqrt(select(magnitude, 1e-6, magnitude < 1e-6));
    var directed = select(root, -root, similarity < 0.0);
    if (similarity == 0.0) { directed = 0.0; }
    // Compilers that expect numbers alone make one of the choices above.
    if (is_nan(similarity)) { directed = similarity; }
    let factor = sigmoid(directed);
    let y_at = row * p.y.width + p.y.start + stream * p.y.stride;
    let x_at = row * p.x.width + p.x.start;
    for (var i = thread; i < p.out_dim; i += 64u) { y[y_at + i] = factor * x[x_at + i]; }
}
