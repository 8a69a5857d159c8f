// Rows of a table, one for each token; a thread writes four columns.

struct Params {
    m: Matrix,
    tokens: u32,
    n_tokens: u32,
    elements: u32,
    scales: u32,
    phase: u32,
    // The rows that this piece of the table holds.
    first_row: u32,
    n_rows: u32,
    start: u32,
    width: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = linear(id, n) * 64u + thread;
    let per_row = 8u * p.m.n_blocks;
    let row = i / per_row;
    if (row >= p.n_tokens) { return; }
    let token = lists[p.tokens + row];
    if (token < p.first_row || token >= p.first_row + p.n_rows) { return; }
    let c = i % per_row;
    let b = block_of(p.m, p.elements, p.scales, p.phase, token - p.first_row, c >> 3u);
    let v = four(p.m, b, c & 7u);
    for (var e = 0u; e < 4u; e++) {
        let col = 4u * c + e;
        if (col < p.m.cols) { y[row * p.width + p.start + col] = v[e]; }
    }
}
