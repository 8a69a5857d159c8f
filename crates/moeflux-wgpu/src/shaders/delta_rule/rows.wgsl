// The gated delta rule for many rows: ROW_LANES lanes keep a row of a head's state, KEPT fours
// each, while the rows of the batch pass. What all of them need of the batch's next ROWS rows is
// on its way while these are worked on. VECTORS: 3 where columns of states have decays of their own,
// which stand behind queries and keys.

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
    // Value head h reads key head h / head_divisor % n_k_heads.
    head_divisor: u32,
    // Where decays of columns begin.
    decays: u32,
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

const THREADS: u32 = 128u;
// State rows of a workgroup, all of one head.
const STATE_ROWS: u32 = THREADS / ROW_LANES;
// Fours of a query or key, those after the last full of zeros.
const FOURS: u32 = ROW_LANES * KEPT;

// Of this step's rows and of the next one's: queries, keys and decays of columns; values; gates.
var<workgroup> normals: array<array<vec4<f32>, VECTORS * FOURS * ROWS>, 2>;
var<workgroup> values: array<array<f32, STATE_ROWS * ROWS>, 2>;
var<workgroup> decays: array<array<vec2<f32>, ROWS>, 2>;

fn normal_four(at: u32, i: u32) -> vec4<f32> {
#if WIDTH/4
    // Without a branch, so that all loads of a step are on their way together.
    let it = normalised[(at + min(i, K_DIM - 4u)) >> 2u];
    return select(vec4<f32>(), it, i < K_DIM);
#else
    if (i >= K_DIM) { return vec4<f32>(); }
    var it = vec4<f32>();
    it.x = normalised[at + i];
    if (i + 1u < K_DIM) { it.y = normalised[at + i + 1u]; }
    if (i + 2u < K_DIM) { it.z = normalised[at + i + 2u]; }
    if (i + 3u < K_DIM) { it.w = normalised[at + i + 3u]; }
    return it;
#end
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
) {
    let thread = subgroup * subgroup_size + in_subgroup;
    let lane = thread % ROW_LANES;
    let own = thread / ROW_LANES;
    let per_head = (p.v_dim + STATE_ROWS - 1u) / STATE_ROWS;
    let group = linear(id, n);
    let first_value = (group % per_head) * STATE_ROWS;
    let is_inside = group < p.n_v_heads * per_head && first_value + own < p.v_dim;
    let head = min(group / per_head, p.n_v_heads - 1u);
    let k_head = head / p.head_divisor % p.n_k_heads;
    let row = head * p.v_dim + min(first_value + own, p.v_dim - 1u);
    let at = (p.state * p.n_v_heads * p.v_dim + row) * K_DIM;
#each i KEPT
    var kept$i = state_four(at, 4u * (ROW_LANES * $iu + lane));
#end
    // What this thread brings of a step: of which of its rows, and of that what.
#each i LOADS
    let item_$i = min(thread + $iu * THREADS, VECTORS * FOURS * ROWS - 1u);
    let of_row_$i = item_$i / (VECTORS * FOURS);
    let vector_$i = (item_$i / FOURS) % VECTORS;
    let column_$i = 4u * (item_$i % FOURS);
#end
    let value_item = min(thread, STATE_ROWS * ROWS - 1u);
    let value_row = value_item / STATE_ROWS;
    let value_at = p.v_start + head * p.v_stride
        + min(first_value + value_item % STATE_ROWS, p.v_dim - 1u);
    let gate_row = min(thread, ROWS - 1u);
    let out_at = p.y_start + head * p.y_stride + first_value + own;
    let n_steps = (p.n_rows + ROWS - 1u) / ROWS;
    for (var step = 0u; step <= n_steps; step++) {
        // The next step's, of which the last row stands for those after it.
#each i LOADS
        let t_$i = min(step * ROWS + of_row_$i, p.n_rows - 1u);
#if VECTORS/3
        let of_decay_$i = p.decays + (t_$i * p.n_v_heads + head) * K_DIM;
        let of_key_$i = ((t_$i * p.n_k_heads + k_head) * 2u + vector_$i) * K_DIM;
        let it_$i = normal_four(select(of_key_$i, of_decay_$i, vector_$i == 2u), column_$i);
        let is_after_$i = vector_$i == 2u && step * ROWS + of_row_$i >= p.n_rows;
        let four_$i = select(it_$i, vec4<f32>(1.0), is_after_$i);
#else
        let four_$i = normal_four(
            ((t_$i * p.n_k_heads + k_head) * 2u + vector_$i) * K_DIM, column_$i,
        );
#end
#end
        let value_t = min(step * ROWS + value_row, p.n_rows - 1u);
        let value_next = v[(p.first_row + value_t) * p.v_width + value_at];
        // Those after the last row keep the state as it is.
        let gate_t = step * ROWS + gate_row;
        let its_gate = gates[min(gate_t, p.n_rows - 1u) * p.n_v_heads + head];
        let gate_next = select(vec2<f32>(1.0, 0.0), its_gate, gate_t < p.n_rows);
        if (step > 0u) {
            let now = (step - 1u) & 1u;
            let first = (step - 1u) * ROWS;
            // Without branches, so that what rows do not wait for overlaps.
#each u ROWS
            var read$u = vec4<f32>();
            {
                let gate = decays[now][$u];
                let value = values[now][$uu * STATE_ROWS + own];
                var predicted = vec4<f32>();
#each i KEPT
                let k$i = normals[now][(VECTORS * $uu + 1u) * FOURS + ROW_LANES * $iu + lane];
#if VECTORS/3
                kept$i *= normals[now][(VECTORS * $uu + 2u) * FOURS + ROW_LANES * $iu + lane];
#else
                kept$i *= gate.x;
#end
                predicted = fma(kept$i, k$i, predicted);
#end
                let correction = vec4<f32>((value - row_sum(predicted)) * gate.y);
#each i KEPT
                let q$i = normals[now][VECTORS * $uu * FOURS + ROW_LANES * $iu + lane];
                kept$i = fma(correction, k$i, kept$i);
                read$u = fma(kept$i, q$i, read$u);
#end
            }
#end
#each u ROWS
            let sum$u = row_sum(read$u);
            if (lane == 0u && is_inside && first + $uu < p.n_rows) {
                y[(p.first_row + first + $uu) * p.y_width + out_at] = sum$u;
            }
#end
        }
        let next = step & 1u;
#each i LOADS
        normals[next][item_$i] = four_$i;
#end
        values[next][value_item] = value_next;
        decays[next][gate_row] = gate_next;
        workgroupBarrier();
    }
    if (!is_inside) { return; }
#each i KEPT
    put_state(at, 4u * (ROW_LANES * $iu + lane), kept$i);
#end
}
