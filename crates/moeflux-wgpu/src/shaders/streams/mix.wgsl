// The mean of several streams, each through the sigmoids of its gates.

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
    unused: u32,
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
    let row = idx / p.dim;
    var sum = 0.0;
    for (var stream = 0u; stream < p.n_streams; stream++) {
        let value = x[row * p.x.width + p.x.start + stream * p.x.stride + i];
        let gate_at = row * p.gate.width + p.gate.start + stream * p.gate.stride + i;
        sum = fma(sigmoid(gate[gate_at]), value, sum);
    }
    y[row * p.y.width + p.y.start + i] = sum / f32(p.n_streams);
}
