// What `delta_rule/prepare.wgsl`, `delta_rule/rows.wgsl` and the gated norm after it do, to the
// bit, for a few rows of some sequences, of which a workgroup has one and a value head. ROW_LANES
// lanes keep PASSES rows of the state, AT_ONCE apart.
//
// TAPS: where set, `conv/step.wgsl` comes before, which keeps this many inputs: of CHANNELS
// channels that a value head needs, those of its key head included, OWN a thread. Where DIGITS is
// set, rows are rounded too, see `include/quantize.wgsl`. SIGMOID: the gate of the norm goes through
// a sigmoid, not `silu`. DECAY: where it is not 0, columns of states have decays of their own, and what
// these are of is in a buffer with the gates of the output.

struct Params {
    n_k_heads: u32,
    n_v_heads: u32,
    width: u32,
    q_start: u32,
    q_stride: u32,
    k_start: u32,
    k_stride: u32,
    v_start: u32,
    v_stride: u32,
    a_start: u32,
    a_width: u32,
    b_start: u32,
    b_width: u32,
    z_start: u32,
    z_width: u32,
    z_stride: u32,
    y_start: u32,
    y_width: u32,
    y_stride: u32,
    eps: f32,
    // Not the constants: compilers divide by these otherwise than by what they
    // do not know, as in the kernels whose bits these are.
    k_dim: u32,
    v_dim: u32,
    // Of the convolution: where its input begins, and all channels.
    x_start: u32,
    channels: u32,
    // Value head h reads key head h / head_divisor % n_k_heads.
    head_divisor: u32,
    // The least logarithm of a decay.
    bound: f32,
    // First row, rows, numbers of the state and of the history in their slabs. Where TAPS is set,
    // also in the upper halves of the last three: after how many rows both are kept, and the
    // numbers of what gets them.
    spans: array<vec4<u32>, 8>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
#if TAPS
// What is convolved, and strengths.
@group(0) @binding(2) var<storage, read> x: array<f32>;
// Decays, gates of the output: in the same buffer as the others, or together in another.
@group(0) @binding(3) var<storage, read> gates: array<f32>;
@group(0) @binding(4) var<storage, read> of_heads: array<f32>;
@group(0) @binding(5) var<storage, read> weight: array<f32>;
#if WIDTH/4
@group(0) @binding(6) var<storage, read_write> state: array<vec4<f32>>;
#else
@group(0) @binding(6) var<storage, read_write> state: array<f32>;
#end
// (TAPS + 1, channels), the last for the newest input.
@group(0) @binding(7) var<storage, read> taps: array<f32>;
// (TAPS, channels), the oldest first; the next one is the other of a pair, as other
// value heads still read this.
@group(0) @binding(8) var<storage, read_write> histories: array<f32>;
#if DIGITS
@group(0) @binding(9) var<storage, read_write> rounded: array<u32>;
@group(0) @binding(10) var<storage, read_write> sums: array<vec2<f32>>;
#end

// Of queries, of keys, of values.
var<workgroup> convolved: array<f32, CHANNELS>;

fn decay_at(i: u32) -> f32 { return gates[i]; }
fn strength_at(i: u32) -> f32 { return x[i]; }
fn gate_at(i: u32) -> f32 { return gates[i]; }
fn query_at(first: u32, i: u32) -> f32 { return convolved[i]; }
fn key_at(first: u32, i: u32) -> f32 { return convolved[K_DIM + i]; }
fn value_at(first: u32, i: u32) -> f32 { return convolved[2u * K_DIM + i]; }

// The channel of a place in `convolved`.
fn channel_of(i: u32, k_head: u32, head: u32) -> u32 {
    if (i < K_DIM) { return k_head * K_DIM + i; }
    if (i < 2u * K_DIM) { return (p.n_k_heads + k_head - 1u) * K_DIM + i; }
    return 2u * (p.n_k_heads - 1u) * K_DIM + head * V_DIM + i;
}
#else
// Queries, keys and values.
@group(0) @binding(2) var<storage, read> x: array<f32>;
// Decays.
@group(0) @binding(3) var<storage, read> a: array<f32>;
// Strengths.
@group(0) @binding(4) var<storage, read> b: array<f32>;
@group(0) @binding(5) var<storage, read> of_heads: array<f32>;
@group(0) @binding(6) var<storage, read> z: array<f32>;
@group(0) @binding(7) var<storage, read> weight: array<f32>;
#if WIDTH/4
@group(0) @binding(8) var<storage, read_write> state: array<vec4<f32>>;
#else
@group(0) @binding(8) var<storage, read_write> state: array<f32>;
#end

fn decay_at(i: u32) -> f32 { return a[i]; }
fn strength_at(i: u32) -> f32 { return b[i]; }
fn gate_at(i: u32) -> f32 { return z[i]; }
fn query_at(first: u32, i: u32) -> f32 { return x[first + i]; }
fn key_at(first: u32, i: u32) -> f32 { return x[first + i]; }
fn value_at(first: u32, i: u32) -> f32 { return x[first + i]; }
#end

const THREADS: u32 = 256u;
const AT_ONCE: u32 = THREADS / ROW_LANES;

fn gate_factor(gate: f32) -> f32 {
    if (SIGMOID != 0u) { return sigmoid(gate); }
    return silu(gate);
}

// Of length one; zeros after the last element.
var<workgroup> query: array<vec4<f32>, ROW_LANES * KEPT>;
var<workgroup> key: array<vec4<f32>, ROW_LANES * KEPT>;
#if DECAY
// How much stays of columns.
var<workgroup> stays: array<vec4<f32>, ROW_LANES * KEPT>;
#end
var<workgroup> mixed: array<f32, AT_ONCE * PASSES>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
) {
    let thread = subgroup * subgroup_size + in_subgroup;
    let lane = thread % ROW_LANES;
    let own = thread / ROW_LANES;
    let head = id.x;
    let k_head = head / p.head_divisor % p.n_k_heads;
#if TAPS
    let span = p.spans[id.y] & vec4<u32>(0xffffu);
    let kept = p.spans[id.y] >> vec4<u32>(16u);
    let kept_row = (kept.z * p.n_v_heads + head) * V_DIM;
#else
    let span = p.spans[id.y];
#end
    let state_row = (span.z * p.n_v_heads + head) * V_DIM;
#each s PASSES
    let at$s = (state_row + min(AT_ONCE * $su + own, V_DIM - 1u)) * K_DIM;
#each i KEPT
    var kept$s_$i = state_four(at$s, 4u * (ROW_LANES * $iu + lane));
#end
#end
    let a_log = of_heads[head];
#if DECAY
    let biases = p.n_v_heads + head * K_DIM;
#else
    let bias = of_heads[p.n_v_heads + head];
#end
#each s PASSES
    let weight$s = weight[min(AT_ONCE * $su + own, V_DIM - 1u)];
#end
#if TAPS
    let history = span.w * TAPS * p.channels;
    // One of the value heads that share a key head keeps what these share.
    let is_first = head % p.head_divisor == 0u && head < p.head_divisor * p.n_k_heads;
#each c OWN
    let place$c = min(thread + THREADS * $cu, CHANNELS - 1u);
    let channel$c = channel_of(place$c, k_head, head);
    let newest$c = taps[TAPS * p.channels + channel$c];
#each t TAPS
    let tap$c_$t = taps[$tu * p.channels + channel$c];
    var input$c_$t = histories[history + $tu * p.channels + channel$c];
#end
#end
#end
    for (var t = 0u; t < span.y; t++) {
        let row = span.x + t;
        // Memory is waited for but once.
#if DECAY
#else
        let decay = decay_at(row * p.a_width + p.a_start + head);
#end
        let strength = strength_at(row * p.b_width + p.b_start + head);
        let z_at = row * p.z_width + p.z_start + head * p.z_stride;
#each s PASSES
        let gate$s = gate_at(z_at + min(AT_ONCE * $su + own, V_DIM - 1u));
#end
#if TAPS
#each c OWN
        {
#each t 1
            let input$c_${t+TAPS} = x[row * p.width + p.x_start + channel$c];
            var sum = 0.0;
#end
#each t TAPS
            sum = fma(tap$c_$t, input$c_$t, sum);
#end
#each t 1
            sum = fma(newest$c, input$c_${t+TAPS}, sum);
#end
            convolved[place$c] = silu(sum);
#each t TAPS
            input$c_$t = input$c_${t+1};
#end
        }
#end
        workgroupBarrier();
#end
        let q_at = row * p.width + p.q_start + k_head * p.q_stride;
        let k_at = row * p.width + p.k_start + k_head * p.k_stride;
        let v_at = row * p.width + p.v_start + head * p.v_stride;
#each s PASSES
        let value$s = value_at(v_at, min(AT_ONCE * $su + own, V_DIM - 1u));
#end
#if DECAY
        let a_at = row * p.a_width + p.a_start + head * K_DIM;
        for (var i = thread; i < 4u * ROW_LANES * KEPT; i += THREADS) {
            var it = 0.0;
            if (i < K_DIM) { it = decay_of(a_log, decay_at(a_at + i) + of_heads[biases + i], p.bound); }
            stays[i >> 2u][i & 3u] = it;
        }
#else
        let stays = decay_of(a_log, decay + bias, p.bound);
#end
        let corrected = sigmoid(strength);
        var squares = vec2<f32>(0.0);
        if (thread < 64u) {
            for (var i = thread; i < K_DIM; i += 64u) {
                let both = vec2<f32>(query_at(q_at, i), key_at(k_at, i));
                squares = fma(both, both, squares);
            }
        }
        let both = total(thread, squares);
        let q_factor = 1.0 / sqrt(both.x + 1e-6) / sqrt(f32(p.k_dim));
        let k_factor = 1.0 / sqrt(both.y + 1e-6);
        for (var i = thread; i < 4u * ROW_LANES * KEPT; i += THREADS) {
            var it = vec2<f32>(0.0);
            if (i < K_DIM) {
                it = vec2<f32>(query_at(q_at, i) * q_factor, key_at(k_at, i) * k_factor);
            }
            query[i >> 2u][i & 3u] = it.x;
            key[i >> 2u][i & 3u] = it.y;
        }
        workgroupBarrier();
#each s PASSES
        {
            var predicted = vec4<f32>();
#each i KEPT
#if DECAY
            kept$s_$i *= stays[ROW_LANES * $iu + lane];
#else
            kept$s_$i *= stays;
#end
            predicted = fma(kept$s_$i, key[ROW_LANES * $iu + lane], predicted);
#end
            let correction = vec4<f32>((value$s - row_sum(predicted)) * corrected);
            var read = vec4<f32>();
#each i KEPT
            kept$s_$i = fma(correction, key[ROW_LANES * $iu + lane], kept$s_$i);
            read = fma(kept$s_$i, query[ROW_LANES * $iu + lane], read);
#end
            let sum = row_sum(read);
            if (lane == 0u) { mixed[AT_ONCE * $su + own] = sum; }
        }
#end
        if (t + 1u == span.y) {
#each s PASSES
            if (AT_ONCE * $su + own < V_DIM) {
#each i KEPT
                put_state(at$s, 4u * (ROW_LANES * $iu + lane), kept$s_$i);
#end
            }
#end
        }
#if TAPS
        if (t + 1u == kept.y) {
#each s PASSES
            if (AT_ONCE * $su + own < V_DIM) {
#each i KEPT
                put_state((kept_row + AT_ONCE * $su + own) * K_DIM, 4u * (ROW_LANES * $iu + lane), kept$s_$i);
#end
            }
#end
            let kept_history = kept.w * TAPS * p.channels;
#each c OWN
            if (is_first || place$c >= 2u * K_DIM) {
#each t TAPS
                histories[kept_history + $tu * p.channels + channel$c] = input$c_$t;
#end
            }
#end
        }
#end
        workgroupBarrier();
        var square = 0.0;
        if (thread < 64u) {
            for (var i = 4u * thread; i < V_DIM; i += 256u) {
                for (var e = i; e < min(i + 4u, V_DIM); e++) { square = fma(mixed[e], mixed[e], square); }
            }
        }
        let inverse = 1.0 / sqrt(total(thread, vec2<f32>(square, 0.0)).x / f32(p.v_dim) + p.eps);
        let y_at = row * p.y_width + p.y_start + head * p.y_stride;
#each s PASSES
        if (lane == 0u && AT_ONCE * $su + own < V_DIM) {
            let i = AT_ONCE * $su + own;
            let it = mixed[i] * inverse * weight$s * gate_factor(gate$s);
            y[y_at + i] = it;
#if DIGITS
            mixed[i] = it;
#end
        }
#end
        workgroupBarrier();
#if DIGITS
        for (var base = 0u; base < V_DIM / 4u; base += THREADS) {
            let word = base + thread;
            let is_inside = word < V_DIM / 4u;
            let columns = columns_of(word % 8u);
            let at = word / 8u * 32u + columns.x;
            var v: vec4<f32>;
            if (is_inside) {
                let step = columns.y;
                v = vec4<f32>(mixed[at], mixed[at + step], mixed[at + 2u * step], mixed[at + 3u * step]);
            }
            let n_blocks = p.n_v_heads * V_DIM / 32u;
            let block = head * V_DIM / 32u + word / 8u;
            round_four(thread, row, n_blocks, block, word % 8u, v, is_inside);
        }
        workgroupBarrier();
#end
    }
#if TAPS
    let next_history = (span.w ^ 1u) * TAPS * p.channels;
#each c OWN
    if (is_first || place$c >= 2u * K_DIM) {
#each t TAPS
        histories[next_history + $tu * p.channels + channel$c] = input$c_$t;
#end
    }
#end
#end
}
