// The gated delta rule: LANES lanes keep one row of a head's state, KEPT
// elements each, while the rows of the batch pass.

struct Params {
    n_k_heads: u32,
    n_v_heads: u32,
    k_dim: u32,
    v_dim: u32,
    first_row: u32,
    n_rows: u32,
    v_start: u32,
    v_width: u32,
    v_stride: u32,
    y_start: u32,
    y_width: u32,
    y_stride: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> normalised: array<f32>;
@group(0) @binding(3) var<storage, read> gates: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> v: array<f32>;
@group(0) @binding(5) var<storage, read_write> state: array<f32>;

fn sum_lanes(value: f32) -> f32 {
    var sum = value;
    for (var mask = LANES / 2u; mask > 0u; mask = mask >> 1u) {
        sum += subgroupShuffleXor(sum, mask);
    }
    return sum;
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
    let lane = thread % LANES;
    let n_state_rows = p.n_v_heads * p.v_dim;
    let idx = linear(id, n) * (64u / LANES) + thread / LANES;
    let is_inside = idx < n_state_rows;
    let row = min(idx, n_state_rows - 1u);
    let head = row / p.v_dim;
    let i_v = row % p.v_dim;
    let k_head = head / (p.n_v_heads / p.n_k_heads);
    var kept: array<f32, KEPT>;
    for (var i = 0u; i < KEPT; i++) {
        let col = i * LANES + lane;
        if (col < p.k_dim) { kept[i] = state[row * p.k_dim + col]; }
    }
    for (var t = 0u; t < p.n_rows; t++) {
        let q_at = (t * p.n_k_heads + k_head) * 2u * p.k_dim;
        let gate = gates[t * p.n_v_heads + head];
        var predicted = 0.0;
        for (var i = 0u; i < KEPT; i++) {
            let col = i * LANES + lane;
            kept[i] *= gate.x;
            if (col < p.k_dim) {
                predicted = fma(kept[i], normalised[q_at + p.k_dim + col], predicted);
            }
        }
        let value = v[(p.first_row + t) * p.v_width + p.v_start + head * p.v_stride + i_v];
        let correction = (value - sum_lanes(predicted)) * gate.y;
        var read = 0.0;
        for (var i = 0u; i < KEPT; i++) {
            let col = i * LANES + lane;
            if (col < p.k_dim) {
                kept[i] = fma(correction, normalised[q_at + p.k_dim + col], kept[i]);
                read = fma(kept[i], normalised[q_at + col], read);
            }
        }
        let sum = sum_lanes(read);
        if (lane == 0u && is_inside) {
            y[(p.first_row + t) * p.y_width + p.y_start + head * p.y_stride + i_v] = sum;
        }
    }
    if (!is_inside) { return; }
    for (var i = 0u; i < KEPT; i++) {
        let col = i * LANES + lane;
        if (col < p.k_dim) { state[row * p.k_dim + col] = kept[i]; }
    }
}
