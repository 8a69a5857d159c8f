// What `prepare_delta.wgsl`, `delta.wgsl` and the gated norm behind it do, to the
// bit, for a few rows and one value head a workgroup. A quad of lanes keeps PASSES
// rows of the state, 64 apart.

struct Params {
    n_k_heads: u32,
    n_v_heads: u32,
    first_row: u32,
    n_rows: u32,
    width: u32,
    q_start: u32,
    q_stride: u32,
    k_start: u32,
    k_stride: u32,
    v_start: u32,
    v_stride: u32,
    a_start: u32,
    b_start: u32,
    a_width: u32,
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
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
// Queries, keys and values.
@group(0) @binding(2) var<storage, read> x: array<f32>;
// Decays and strengths.
@group(0) @binding(3) var<storage, read> a: array<f32>;
@group(0) @binding(4) var<storage, read> a_log: array<f32>;
@group(0) @binding(5) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(6) var<storage, read> z: array<f32>;
@group(0) @binding(7) var<storage, read> weight: array<f32>;
#if WIDTH/4
@group(0) @binding(8) var<storage, read_write> state: array<vec4<f32>>;
#else
@group(0) @binding(8) var<storage, read_write> state: array<f32>;
#end

const THREADS: u32 = 256u;

// Of length one; zeros behind the last element.
var<workgroup> query: array<vec4<f32>, 4 * KEPT>;
var<workgroup> key: array<vec4<f32>, 4 * KEPT>;
var<workgroup> mixed: array<f32, 64 * PASSES>;
var<workgroup> partial: array<vec2<f32>, 64>;

// Of the first 64 threads.
fn total(thread: u32, value: vec2<f32>) -> vec2<f32> {
    workgroupBarrier();
    if (thread < 64u) { partial[thread] = value; }
    workgroupBarrier();
    for (var half = 32u; half > 0u; half = half >> 1u) {
        if (thread < half) { partial[thread] += partial[thread + half]; }
        workgroupBarrier();
    }
    return partial[0];
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
) {
    let thread = subgroup * subgroup_size + in_subgroup;
    let lane = thread & 3u;
    let quad = thread >> 2u;
    let head = id.x;
    let k_head = head / (p.n_v_heads / p.n_k_heads);
#each s PASSES
    let at$s = (head * V_DIM + min(64u * $su + quad, V_DIM - 1u)) * K_DIM;
#each i KEPT
    var kept$s_$i = state_four(at$s, 16u * $iu + 4u * lane);
#end
#end
    for (var t = 0u; t < p.n_rows; t++) {
        let row = p.first_row + t;
        let q_at = row * p.width + p.q_start + k_head * p.q_stride;
        let k_at = row * p.width + p.k_start + k_head * p.k_stride;
        let v_at = row * p.width + p.v_start + head * p.v_stride;
#each s PASSES
        let value$s = x[v_at + min(64u * $su + quad, V_DIM - 1u)];
#end
        let decay = a[row * p.a_width + p.a_start + head];
        let strength = a[row * p.a_width + p.b_start + head];
        let rate = exp_(a_log[head]) * softplus(decay + dt_bias[head]);
        let stays = exp_(-rate);
        let corrected = sigmoid(strength);
        var squares = vec2<f32>(0.0);
        if (thread < 64u) {
            for (var i = thread; i < K_DIM; i += 64u) {
                let both = vec2<f32>(x[q_at + i], x[k_at + i]);
                squares = fma(both, both, squares);
            }
        }
        let both = total(thread, squares);
        let q_factor = 1.0 / sqrt(both.x + 1e-6) / sqrt(f32(p.k_dim));
        let k_factor = 1.0 / sqrt(both.y + 1e-6);
        for (var i = thread; i < 16u * KEPT; i += THREADS) {
            var it = vec2<f32>(0.0);
            if (i < K_DIM) { it = vec2<f32>(x[q_at + i] * q_factor, x[k_at + i] * k_factor); }
            query[i >> 2u][i & 3u] = it.x;
            key[i >> 2u][i & 3u] = it.y;
        }
        workgroupBarrier();
#each s PASSES
        {
            var predicted = vec4<f32>();
#each i KEPT
            kept$s_$i *= stays;
            predicted = fma(kept$s_$i, key[4u * $iu + lane], predicted);
#end
            let correction = vec4<f32>((value$s - quad_sum(predicted)) * corrected);
            var read = vec4<f32>();
#each i KEPT
            kept$s_$i = fma(correction, key[4u * $iu + lane], kept$s_$i);
            read = fma(kept$s_$i, query[4u * $iu + lane], read);
#end
            let sum = quad_sum(read);
            if (lane == 0u) { mixed[64u * $su + quad] = sum; }
        }
#end
        workgroupBarrier();
        var square = 0.0;
        if (thread < 64u) {
            for (var i = thread; i < V_DIM; i += 64u) { square = fma(mixed[i], mixed[i], square); }
        }
        let inverse = 1.0 / sqrt(total(thread, vec2<f32>(square, 0.0)).x / f32(p.v_dim) + p.eps);
        let z_at = row * p.z_width + p.z_start + head * p.z_stride;
        let y_at = row * p.y_width + p.y_start + head * p.y_stride;
        for (var i = thread; i < V_DIM; i += THREADS) {
            var it = mixed[i] * inverse * weight[i];
            it *= silu(z[z_at + i]);
            y[y_at + i] = it;
        }
        workgroupBarrier();
    }
#each s PASSES
    if (64u * $su + quad < V_DIM) {
#each i KEPT
        put_state(at$s, 16u * $iu + 4u * lane, kept$s_$i);
#end
    }
#end
}
