// Norms of heads, one a workgroup. KIND: 0 root mean square; 1 the same, gated;
// 2 mean and variance. A thread has PER elements, THREADS apart. Where DIGITS is
// set, heads lie behind each other and are rounded too, see `rounded.wgsl`.
//
// SUM: rows are summed up first, in place: 1 as `elementwise.wgsl` adds, 2 as
// `combine.wgsl` does, of TOP_K outputs a row.

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
    added: View,
    shared_out: View,
    // (rows, TOP_K)
    weights: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
#if SUM
@group(0) @binding(2) var<storage, read_write> x: array<f32>;
#else
@group(0) @binding(2) var<storage, read> x: array<f32>;
#end
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read> gate: array<f32>;
#if SUM
@group(0) @binding(5) var<storage, read> added: array<f32>;
@group(0) @binding(6) var<storage, read> lists: array<u32>;
@group(0) @binding(7) var<storage, read> shared_out: array<f32>;
#if DIGITS
@group(0) @binding(8) var<storage, read_write> rounded: array<u32>;
@group(0) @binding(9) var<storage, read_write> sums: array<vec2<f32>>;
#end
#else
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#if DIGITS
@group(0) @binding(6) var<storage, read_write> rounded: array<u32>;
@group(0) @binding(7) var<storage, read_write> sums: array<vec2<f32>>;
#end
#end

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
    // Who is beyond the last reads the last, and counts nothing.
#each k PER
    let i$k = min(thread + THREADS * $ku, p.head_dim - 1u);
    let counts$k = thread + THREADS * $ku < p.head_dim;
    let input$k = input(at_y, at_x, i$k);
    let weight$k = weight[i$k];
#end
#if SUM
#if SUM/2
#each r TOP_K
    let share$r = bitcast<f32>(lists[p.weights + row * TOP_K + $ru]);
    let slot$r = (row * TOP_K + $ru) * p.added.width;
#end
    var factor = 1.0;
#if GATED
    factor = sigmoid(gate[at_gate]);
#end
#each k PER
#each r TOP_K
    let part$k_$r = added[slot$r + i$k];
#end
#if SHARED
    let shared$k = shared_out[row * p.shared_out.width + p.shared_out.start + i$k];
#end
#end
#each k PER
    var sum$k = 0.0;
#each r TOP_K
    if (share$r != 0.0) { sum$k = fma(part$k_$r, share$r, sum$k); }
#end
#if SHARED
    sum$k = fma(shared$k, factor, sum$k);
#end
#end
#else
#each k PER
    let sum$k = added[row * p.added.width + p.added.start + i$k];
#end
#end
#each k PER
    let x$k = input$k + sum$k;
    if (counts$k) { x[at_x + i$k] = x$k; }
#end
#else
#each k PER
    let x$k = input$k;
#end
#end
    var mean = 0.0;
    if (KIND == 2u) {
        var sum = 0.0;
#each k PER
        if (counts$k) { sum += x$k; }
#end
        mean = total(thread, sum) / dim;
    }
    var squares = 0.0;
#each k PER
    let v$k = x$k - mean;
    if (counts$k) { squares = fma(v$k, v$k, squares); }
#end
    let inverse = 1.0 / sqrt(total(thread, squares) / dim + p.eps);
#each k PER
    if (counts$k) {
        var v = v$k * inverse * weight$k;
        if (KIND == 1u) { v *= silu(gate[at_gate + i$k]); }
#if SUM
#else
        if (KIND == 2u) { v += bias[i$k]; }
#end
        y[at_y + i$k] = v;
    }
#end
#if DIGITS
    storageBarrier();
    let per_head = p.head_dim / 4u;
    let n_blocks = p.n_heads * per_head / 8u;
    for (var base = 0u; base < per_head; base += THREADS) {
        let word = base + thread;
        let is_inside = word < per_head;
        let columns = columns_of(word % 8u);
        let at = at_y + word / 8u * 32u + columns.x;
        var v: vec4<f32>;
        if (is_inside) {
            v = vec4<f32>(y[at], y[at + columns.y], y[at + 2u * columns.y], y[at + 3u * columns.y]);
        }
        let block = head * (per_head / 8u) + word / 8u;
        round_four(thread, row, n_blocks, block, word % 8u, v, is_inside);
    }
#end
}
