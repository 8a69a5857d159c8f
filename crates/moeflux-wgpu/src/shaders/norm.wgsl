// Norms of heads, one a workgroup. KIND: 0 root mean square; 1 the same, gated;
// 2 mean and variance.

struct View {
    start: u32,
    width: u32,
    stride: u32,
    // Parts of parameters are whole multiples of 16 bytes.
    unused: u32,
}

struct Params {
    n: u32,
    n_heads: u32,
    head_dim: u32,
    eps: f32,
    y: View,
    x: View,
    gate: View,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read> gate: array<f32>;
@group(0) @binding(5) var<storage, read> bias: array<f32>;

var<workgroup> partial: array<f32, THREADS>;

fn total(thread: u32, value: f32) -> f32 {
    partial[thread] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half = half >> 1u) {
        if (thread < half) { partial[thread] += partial[thread + half]; }
        workgroupBarrier();
    }
    let sum = partial[0];
    workgroupBarrier();
    return sum;
}

fn input(at_y: u32, at_x: u32, i: u32) -> f32 {
#if IN_PLACE
    return y[at_y + i];
#else
    return x[at_x + i];
#end
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let idx = linear(id, n);
    if (idx >= p.n) { return; }
    let row = idx / p.n_heads;
    let head = idx % p.n_heads;
    let at_y = row * p.y.width + p.y.start + head * p.y.stride;
    let at_x = row * p.x.width + p.x.start + head * p.x.stride;
    let at_gate = row * p.gate.width + p.gate.start + head * p.gate.stride;
    let dim = f32(p.head_dim);
    var mean = 0.0;
    if (KIND == 2u) {
        var sum = 0.0;
        for (var i = thread; i < p.head_dim; i += THREADS) { sum += input(at_y, at_x, i); }
        mean = total(thread, sum) / dim;
    }
    var squares = 0.0;
    for (var i = thread; i < p.head_dim; i += THREADS) {
        let v = input(at_y, at_x, i) - mean;
        squares = fma(v, v, squares);
    }
    let inverse = 1.0 / sqrt(total(thread, squares) / dim + p.eps);
    for (var i = thread; i < p.head_dim; i += THREADS) {
        var v = (input(at_y, at_x, i) - mean) * inverse * weight[i];
        if (KIND == 1u) { v *= silu(gate[at_gate + i]); }
        if (KIND == 2u) { v += bias[i]; }
        y[at_y + i] = v;
    }
}
