// The recurrence of state-space layers: a quad of lanes keeps a column of a head's state, every
// fourth row each, while the rows of the batch pass. What all columns need of the batch's next
// ROWS rows is on its way while these are worked on.

struct Params {
    n_heads: u32,
    head_dim: u32,
    heads_per_group: u32,
    x_start: u32,
    x_width: u32,
    x_stride: u32,
    b_start: u32,
    b_width: u32,
    b_stride: u32,
    c_start: u32,
    c_width: u32,
    c_stride: u32,
    y_start: u32,
    y_width: u32,
    y_stride: u32,
    dt_start: u32,
    dt_width: u32,
    // First row, rows, number of the state in its slab.
    spans: array<vec4<u32>, 8>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> b: array<f32>;
@group(0) @binding(4) var<storage, read> c: array<f32>;
@group(0) @binding(5) var<storage, read> dt: array<f32>;
// (3, heads): biases of steps, logarithms of rates of decay, how much of an input is added to its output.
@group(0) @binding(6) var<storage, read> of_heads: array<f32>;
// (heads, STATE, head_dim) a sequence.
@group(0) @binding(7) var<storage, read_write> state: array<f32>;

// Columns of a workgroup, all of one head.
const COLUMNS: u32 = 16u;
const THREADS: u32 = 4u * COLUMNS;
// Rows of a state, those after the last full of zeros.
const PADDED: u32 = 4u * KEPT;

// Of this step's rows and of the next one's: how inputs enter and how states are read; inputs; how
// much stays and how much enters.
var<workgroup> factors: array<array<f32, 2u * PADDED * ROWS>, 2>;
var<workgroup> inputs: array<array<f32, COLUMNS * ROWS>, 2>;
var<workgroup> gates: array<array<vec2<f32>, ROWS>, 2>;

fn factor(row: u32, group: u32, is_read: bool, i: u32) -> f32 {
    if (i >= STATE) { return 0.0; }
    if (is_read) { return c[row * p.c_width + p.c_start + group * p.c_stride + i]; }
    return b[row * p.b_width + p.b_start + group * p.b_stride + i];
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
    let own = thread >> 2u;
    let span = p.spans[id.y];
    let n_rows = span.y;
    let per_head = (p.head_dim + COLUMNS - 1u) / COLUMNS;
    let head = id.x / per_head;
    let group = head / p.heads_per_group;
    let first_column = (id.x % per_head) * COLUMNS;
    let is_inside = first_column + own < p.head_dim;
    let column = min(first_column + own, p.head_dim - 1u);
    let at = (span.z * p.n_heads + head) * STATE * p.head_dim + column;
#each i KEPT
    var kept$i = 0.0;
    if (4u * $iu + lane < STATE) { kept$i = state[at + (4u * $iu + lane) * p.head_dim]; }
#end
    // What this thread brings of a step: of which of its rows, and of that what.
#each i LOADS
    let item_$i = min(thread + $iu * THREADS, 2u * PADDED * ROWS - 1u);
    let of_row_$i = item_$i / (2u * PADDED);
    let is_read_$i = (item_$i / PADDED) % 2u == 1u;
    let element_$i = item_$i % PADDED;
#end
    let input_item = min(thread, COLUMNS * ROWS - 1u);
    let input_row = input_item / COLUMNS;
    let input_at = p.x_start + head * p.x_stride
        + min(first_column + input_item % COLUMNS, p.head_dim - 1u);
    let gate_row = min(thread, ROWS - 1u);
    let bias = of_heads[head];
    let rate = -exp_(of_heads[p.n_heads + head]);
    let skipped = of_heads[2u * p.n_heads + head];
    let out_at = p.y_start + head * p.y_stride + column;
    let n_steps = (n_rows + ROWS - 1u) / ROWS;
    for (var step = 0u; step <= n_steps; step++) {
        // The next step's, of which the last row stands for those after it.
#each i LOADS
        let t_$i = span.x + min(step * ROWS + of_row_$i, n_rows - 1u);
        let factor_$i = factor(t_$i, group, is_read_$i, element_$i);
#end
        let input_t = span.x + min(step * ROWS + input_row, n_rows - 1u);
        let input_next = x[input_t * p.x_width + input_at];
        let gate_t = span.x + min(step * ROWS + gate_row, n_rows - 1u);
        let delta = softplus(dt[gate_t * p.dt_width + p.dt_start + head] + bias);
        let gate_next = vec2<f32>(exp_(rate * delta), delta);
        if (step > 0u) {
            let now = (step - 1u) & 1u;
#each u ROWS
            {
                let t = (step - 1u) * ROWS + $uu;
                if (t < n_rows) {
                    let gate = gates[now][$u];
                    let input = inputs[now][$uu * COLUMNS + own];
                    let entering = gate.y * input;
                    var read = 0.0;
#each i KEPT
                    let b$i = factors[now][2u * $uu * PADDED + 4u * $iu + lane];
                    let c$i = factors[now][(2u * $uu + 1u) * PADDED + 4u * $iu + lane];
                    kept$i = fma(b$i, entering, kept$i * gate.x);
                    read = fma(kept$i, c$i, read);
#end
                    read += subgroupShuffleXor(read, 1u);
                    read += subgroupShuffleXor(read, 2u);
                    if (lane == 0u && is_inside) {
                        y[(span.x + t) * p.y_width + out_at] = fma(skipped, input, read);
                    }
                }
            }
#end
        }
        let next = step & 1u;
#each i LOADS
        factors[next][item_$i] = factor_$i;
#end
        inputs[next][input_item] = input_next;
        gates[next][gate_row] = gate_next;
        workgroupBarrier();
    }
    if (!is_inside) { return; }
#each i KEPT
    if (4u * $iu + lane < STATE) { state[at + (4u * $iu + lane) * p.head_dim] = kept$i; }
#end
}
