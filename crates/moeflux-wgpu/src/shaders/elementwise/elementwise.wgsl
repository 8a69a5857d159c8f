// Ops that treat every element alone. OP: 0 y = a; 1 y += a; 2 y += a, one row for all; 3 y *=
// sigmoid(a); 4 y *= a factor; 5 y = the ACTIVATION of gate a and up b; 6 that of y and a; 7 y =
// silu(y * a factor); 8 y = the ACTIVATION of y alone. Where DIGITS is set, rows are rounded too,
// see `include/quantize.wgsl`: their columns are one after the other and are whole multiples of a
// workgroup's.

const OP_COPY: u32 = 0u;
const OP_ADD: u32 = 1u;
const OP_ADD_BIAS: u32 = 2u;
const OP_SIGMOID_GATE: u32 = 3u;
const OP_SCALE: u32 = 4u;
const OP_ACTIVATE: u32 = 5u;
const OP_SCALED_SILU: u32 = 7u;
const OP_ACTIVATE_PLAIN: u32 = 8u;

struct View {
    start: u32,
    width: u32,
    stride: u32,
    // Of the first view: the second parameter of the op. Parts of parameters are whole multiples
    // of 16 bytes.
    number: f32,
}

struct Params {
    n: u32,
    n_heads: u32,
    head_dim: u32,
    // The first parameter of the op.
    number: f32,
    y: View,
    a: View,
    b: View,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> b: array<f32>;
#if DIGITS
@group(0) @binding(4) var<storage, read_write> rounded: array<u32>;
@group(0) @binding(5) var<storage, read_write> sums: array<vec2<f32>>;
#end

fn place(view: View, row: u32, head: u32, i: u32) -> u32 {
    return row * view.width + view.start + head * view.stride + i;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
) {
    let thread = subgroup * subgroup_size + in_subgroup;
    let first = linear(id, n) * 64u * PER_THREAD;
    if (first >= p.n) { return; }
    for (var i = 0u; i < PER_THREAD; i++) {
        let idx = first + 64u * i + thread;
        if (idx < p.n) { compute(idx); }
    }
#if DIGITS
    storageBarrier();
    let per_row = p.head_dim * p.n_heads;
    let row = first / per_row;
    let col = first % per_row;
    round_own(thread, row, per_row / 32u, col / 32u, row * p.y.width + p.y.start + col);
#end
}

fn compute(idx: u32) {
    let i = idx % p.head_dim;
    let head = (idx / p.head_dim) % p.n_heads;
    let row = idx / (p.head_dim * p.n_heads);
    let at = place(p.y, row, head, i);
    if (OP == OP_SCALE) {
        y[at] *= p.number;
        return;
    }
    if (OP == OP_SCALED_SILU) {
        y[at] = silu(y[at] * p.number);
        return;
    }
    if (OP == OP_ACTIVATE_PLAIN) {
        y[at] = plain_activation(ACTIVATION, y[at]);
        return;
    }
    let value = a[place(p.a, row, head, i)];
    if (OP == OP_COPY) {
        y[at] = value;
    } else if (OP == OP_ADD || OP == OP_ADD_BIAS) {
        y[at] += value;
    } else if (OP == OP_SIGMOID_GATE) {
        y[at] *= sigmoid(value);
    } else if (OP == OP_ACTIVATE) {
        let up = b[place(p.b, row, head, i)];
        y[at] = gated(ACTIVATION, value, up, p.number, p.y.number);
    } else {
        y[at] = gated(ACTIVATION, y[at], value, p.number, p.y.number);
    }
}
