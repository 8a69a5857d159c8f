// The gated delta rule for many rows: a quad of lanes keeps a row of a head's
// state, KEPT fours each, while the rows of the batch pass.

struct Params {
    n_k_heads: u32,
    n_v_heads: u32,
    v_dim: u32,
    first_row: u32,
    n_rows: u32,
    v_start: u32,
    v_width: u32,
    v_stride: u32,
    y_start: u32,
    y_width: u32,
    y_stride: u32,
    // Number of the state in its slab.
    state: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read> gates: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> v: array<f32>;
#if WIDTH/4
@group(0) @binding(2) var<storage, read> normalised: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> state: array<vec4<f32>>;
#else
@group(0) @binding(2) var<storage, read> normalised: array<f32>;
@group(0) @binding(5) var<storage, read_write> state: array<f32>;
#end

fn normal_four(at: u32, i: u32) -> vec4<f32> {
    if (i >= K_DIM) { return vec4<f32>(); }
#if WIDTH/4
    return normalised[(at + i) >> 2u];
#else
    var it = vec4<f32>();
    it.x = normalised[at + i];
    if (i + 1u < K_DIM) { it.y = normalised[at + i + 1u]; }
    if (i + 2u < K_DIM) { it.z = normalised[at + i + 2u]; }
    if (i + 3u < K_DIM) { it.w = normalised[at + i + 3u]; }
    return it;
#end
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
    let lane = thread & 3u;
    let n_state_rows = p.n_v_heads * p.v_dim;
    let idx = linear(id, n) * 16u + (thread >> 2u);
    let is_inside = idx < n_state_rows;
    let row = min(idx, n_state_rows - 1u);
    let head = row / p.v_dim;
    let i_v = row % p.v_dim;
    let k_head = head / (p.n_v_heads / p.n_k_heads);
    let at = (p.state * n_state_rows + row) * K_DIM;
#each i KEPT
    var kept$i = state_four(at, 16u * $iu + 4u * lane);
#end
    for (var t = 0u; t < p.n_rows; t++) {
        let normal = (t * p.n_k_heads + k_head) * 2u * K_DIM;
        let gate = gates[t * p.n_v_heads + head];
        let value = v[(p.first_row + t) * p.v_width + p.v_start + head * p.v_stride + i_v];
#each i KEPT
        let q$i = normal_four(normal, 16u * $iu + 4u * lane);
        let k$i = normal_four(normal + K_DIM, 16u * $iu + 4u * lane);
#end
        var predicted = vec4<f32>();
#each i KEPT
        kept$i *= gate.x;
        predicted = fma(kept$i, k$i, predicted);
#end
        let correction = vec4<f32>((value - quad_sum(predicted)) * gate.y);
        var read = vec4<f32>();
#each i KEPT
        kept$i = fma(correction, k$i, kept$i);
        read = fma(kept$i, q$i, read);
#end
        let sum = quad_sum(read);
        if (lane == 0u && is_inside) {
            y[(p.first_row + t) * p.y_width + p.y_start + head * p.y_stride + i_v] = sum;
        }
    }
    if (!is_inside) { return; }
#each i KEPT
    put_state(at, 16u * $iu + 4u * lane, kept$i);
#end
}
