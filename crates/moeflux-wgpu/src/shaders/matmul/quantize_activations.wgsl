// Activations rounded, see `include/quantize.wgsl`.

struct Params {
    // Of all rows, four columns each.
    n_words: u32,
    cols: u32,
    start: u32,
    width: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> rounded: array<u32>;
// (rows, blocks), or (rows, blocks, 2): the scale, and the scale times the sum of the integers.
@group(0) @binding(3) var<storage, read_write> sums: array<vec2<f32>>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
) {
    let thread = subgroup * subgroup_size + in_subgroup;
    let word = linear(id, n) * 64u + thread;
    let per_row = p.cols / 4u;
    let is_inside = word < p.n_words;
    let row = word / per_row;
    let block = (word % per_row) / 8u;
    let i = word % 8u;
    let columns = columns_of(i);
    var v: vec4<f32>;
    if (is_inside) {
        let at = row * p.width + p.start + block * 32u + columns.x;
        v = vec4<f32>(x[at], x[at + columns.y], x[at + 2u * columns.y], x[at + 3u * columns.y]);
    }
    round_four(thread, row, per_row / 8u, block, i, v, is_inside);
}
