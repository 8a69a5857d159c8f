// Adds columns to several streams, to each as much as its gate says.

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
    scale: f32,
    y: View,
    x: View,
    gate: View,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> gate: array<f32>;

#main_per_element idx p.n
    let i = idx % p.dim;
    let stream = (idx / p.dim) % p.n_streams;
    let row = idx / (p.dim * p.n_streams);
    let value = gate[row * p.gate.width + p.gate.start + stream];
    let factor = 2.0 * sigmoid(value * p.scale);
    let at = row * p.y.width + p.y.start + stream * p.y.stride + i;
    y[at] = fma(x[row * p.x.width + p.x.start + i], factor, y[at]);
}
