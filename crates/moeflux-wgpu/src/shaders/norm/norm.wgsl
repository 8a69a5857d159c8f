// Norms of heads, one a workgroup. KIND: 0 root mean square; 1 the same, gated by `silu`; 2 mean
// and variance; 3 root mean square, gated by a sigmoid; 4 and 5 as 1 and 3, of inputs that are gated first. A thread has PER fours of elements, THREADS fours apart; ALIGNED: all of them are
// whole and are at multiples of four. Where DIGITS is set, heads are one after the other and are
// rounded too, see `include/quantize.wgsl`.

const KIND_GATED_RMS: u32 = 1u;
const KIND_LAYER: u32 = 2u;
const KIND_SIGMOID_RMS: u32 = 3u;
const KIND_RMS_OF_GATED: u32 = 4u;
const KIND_RMS_OF_SIGMOID: u32 = 5u;

struct View {
    start: u32,
    width: u32,
    stride: u32,
    // Of the first view: from one head's weights to the next one's, 0 where heads share them.
    // Parts of parameters are whole multiples of 16 bytes.
    weights: u32,
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

#if ALIGNED
alias Elements = vec4<f32>;
#else
alias Elements = f32;
#end

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elements>;
@group(0) @binding(2) var<storage, read> x: array<Elements>;
@group(0) @binding(3) var<storage, read> weight: array<Elements>;
@group(0) @binding(4) var<storage, read> gate: array<Elements>;
@group(0) @binding(5) var<storage, read> bias: array<Elements>;
#if DIGITS
@group(0) @binding(6) var<storage, read_write> rounded: array<u32>;
@group(0) @binding(7) var<storage, read_write> sums: array<vec2<f32>>;
#end

#if ALIGNED
fn input_four(at_y: u32, at_x: u32) -> vec4<f32> {
    if (IN_PLACE != 0u) { return y[at_y >> 2u]; }
    return x[at_x >> 2u];
}

fn weight_four(i: u32) -> vec4<f32> { return weight[i >> 2u]; }

fn put_y(at: u32, it: vec4<f32>, counts: vec4<bool>) {
    if (counts.x) { y[at >> 2u] = it; }
}
fn gate_four(at: u32) -> vec4<f32> { return gate[at >> 2u]; }

fn bias_four(i: u32) -> vec4<f32> { return bias[i >> 2u]; }
#else
fn input_four(at_y: u32, at_x: u32) -> vec4<f32> {
    if (IN_PLACE != 0u) { return vec4<f32>(y[at_y], y[at_y + 1u], y[at_y + 2u], y[at_y + 3u]); }
    return vec4<f32>(x[at_x], x[at_x + 1u], x[at_x + 2u], x[at_x + 3u]);
}

fn weight_four(i: u32) -> vec4<f32> {
    return vec4<f32>(weight[i], weight[i + 1u], weight[i + 2u], weight[i + 3u]);
}

fn put_y(at: u32, it: vec4<f32>, counts: vec4<bool>) {
    if (counts.x) { y[at] = it.x; }
    if (counts.y) { y[at + 1u] = it.y; }
    if (counts.z) { y[at + 2u] = it.z; }
    if (counts.w) { y[at + 3u] = it.w; }
}

fn gate_four(at: u32) -> vec4<f32> {
    return vec4<f32>(gate[at], gate[at + 1u], gate[at + 2u], gate[at + 3u]);
}

fn bias_four(i: u32) -> vec4<f32> {
    return vec4<f32>(bias[i], bias[i + 1u], bias[i + 2u], bias[i + 3u]);
}
#end

// What elements that count add to a sum, one after the other.
fn plus(sum: f32, v: vec4<f32>, counts: vec4<bool>) -> f32 {
    var it = select(sum, sum + v.x, counts.x);
    it = select(it, it + v.y, counts.y);
    it = select(it, it + v.z, counts.z);
    return select(it, it + v.w, counts.w);
}

fn plus_squares(sum: f32, v: vec4<f32>, counts: vec4<bool>) -> f32 {
    var it = select(sum, fma(v.x, v.x, sum), counts.x);
    it = select(it, fma(v.y, v.y, it), counts.y);
    it = select(it, fma(v.z, v.z, it), counts.z);
    return select(it, fma(v.w, v.w, it), counts.w);
}

#main_in_subgroups idx THREADS p.n
    let row = idx / p.n_heads;
    let head = idx % p.n_heads;
    let at_y = row * p.y.width + p.y.start + head * p.y.stride;
    let at_x = row * p.x.width + p.x.start + head * p.x.stride;
    let at_gate = row * p.gate.width + p.gate.start + head * p.gate.stride;
    let dim = f32(p.head_dim);
    // Threads beyond the last four read that, and add nothing.
    let last = (p.head_dim - 1u) / 4u * 4u;
#each k PER
    let own$k = 4u * (thread + THREADS * $ku);
    let i$k = min(own$k, last);
    let counts$k = vec4<u32>(own$k) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(p.head_dim);
    let input$k = input_four(at_y + i$k, at_x + i$k);
    let weight$k = weight_four(head * p.y.weights + i$k);
#end
#each k PER
    var x$k = input$k;
    if (KIND == KIND_RMS_OF_GATED) {
        let it = gate_four(at_gate + i$k);
        x$k *= vec4<f32>(silu(it.x), silu(it.y), silu(it.z), silu(it.w));
    }
    if (KIND == KIND_RMS_OF_SIGMOID) {
        let it = gate_four(at_gate + i$k);
        x$k *= vec4<f32>(sigmoid(it.x), sigmoid(it.y), sigmoid(it.z), sigmoid(it.w));
    }
#end
    var mean = 0.0;
    if (KIND == KIND_LAYER) {
        var sum = 0.0;
#each k PER
        sum = plus(sum, x$k, counts$k);
#end
        mean = total(thread, sum) / dim;
        workgroupBarrier();
    }
    var squares = 0.0;
#each k PER
    let v$k = x$k - mean;
    squares = plus_squares(squares, v$k, counts$k);
#end
    let inverse = 1.0 / sqrt(total(thread, squares) / dim + p.eps);
#each k PER
    var y$k = v$k * inverse * weight$k;
    if (KIND == KIND_GATED_RMS) {
        let it = gate_four(at_gate + i$k);
        y$k *= vec4<f32>(silu(it.x), silu(it.y), silu(it.z), silu(it.w));
    }
    if (KIND == KIND_SIGMOID_RMS) {
        let it = gate_four(at_gate + i$k);
        y$k *= vec4<f32>(sigmoid(it.x), sigmoid(it.y), sigmoid(it.z), sigmoid(it.w));
    }
    if (KIND == KIND_LAYER) { y$k += bias_four(i$k); }
    put_y(at_y + i$k, y$k, counts$k);
#end
#if DIGITS
    let per_head = p.head_dim / 4u;
    let n_blocks = p.n_heads * per_head / 8u;
#each k PER
    {
        let word = thread + THREADS * $ku;
        let block = head * (per_head / 8u) + word / 8u;
        let v = arranged(word % 8u, y$k);
        round_four(thread, row, n_blocks, block, word % 8u, v, word < per_head);
    }
#end
#end
}
