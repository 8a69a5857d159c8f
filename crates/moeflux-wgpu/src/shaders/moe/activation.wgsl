// Activations by a kernel of their own, see `include/activation.wgsl`. Where DIGITS is set, rows
// are rounded too, see `include/quantize.wgsl`: their columns are whole multiples of a
// workgroup's.

struct Params {
    n: u32,
    intermediate: u32,
    // Each row's expert.
    experts: u32,
    alpha: f32,
    limit: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
// (rows, 2 * intermediate)
@group(0) @binding(1) var<storage, read> gate_up: array<f32>;
@group(0) @binding(2) var<storage, read> lists: array<u32>;
@group(0) @binding(3) var<storage, read> gate_bias: array<f32>;
@group(0) @binding(4) var<storage, read> up_bias: array<f32>;
// (rows, intermediate)
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
#if DIGITS
@group(0) @binding(6) var<storage, read_write> rounded: array<u32>;
@group(0) @binding(7) var<storage, read_write> sums: array<vec2<f32>>;
#end

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
) {
    let thread = subgroup * subgroup_size + in_subgroup;
    let first = linear(id, n) * 64u;
    if (first >= p.n) { return; }
    let idx = first + thread;
    if (idx < p.n) { compute(idx); }
#if DIGITS
    storageBarrier();
    let col = first % p.intermediate;
    round_own(thread, first / p.intermediate, p.intermediate / 32u, col / 32u, first);
#end
}

fn compute(idx: u32) {
    let row = idx / p.intermediate;
    var expert = 0u;
    if (BIASED != 0u) { expert = lists[p.experts + row]; }
    y[idx] = activation(row, idx % p.intermediate, p.intermediate, expert);
}
