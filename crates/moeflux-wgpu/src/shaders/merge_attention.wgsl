// Puts together what splits of the positions gathered; a sink takes part in
// the softmax and has no value.

struct Params {
    n_heads: u32,
    v_dim: u32,
    n_splits: u32,
    first_row: u32,
    start: u32,
    width: u32,
    stride: u32,
    n: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> parts: array<f32>;
@group(0) @binding(2) var<storage, read> sinks: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let idx = linear(id, n);
    if (idx >= p.n) { return; }
    let head = idx % p.n_heads;
    let row = idx / p.n_heads;
    let size = p.v_dim + 2u;
    let first = idx * p.n_splits * size;
    var largest = -3.0e38;
    if (SINKS != 0u) { largest = sinks[head]; }
    for (var s = 0u; s < p.n_splits; s++) { largest = max(largest, parts[first + s * size]); }
    var sum = 0.0;
    for (var s = 0u; s < p.n_splits; s++) {
        let at = first + s * size;
        sum = fma(parts[at + 1u], exp_(parts[at] - largest), sum);
    }
    if (SINKS != 0u) { sum += exp_(sinks[head] - largest); }
    let out = (p.first_row + row) * p.width + p.start + head * p.stride;
    for (var col = thread; col < p.v_dim; col += 64u) {
        var mixed = 0.0;
        for (var s = 0u; s < p.n_splits; s++) {
            let at = first + s * size;
            mixed = fma(parts[at + 2u + col], exp_(parts[at] - largest), mixed);
        }
        y[out + col] = mixed / sum;
    }
}
