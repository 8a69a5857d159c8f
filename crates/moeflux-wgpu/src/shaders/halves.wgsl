// Rows of activations as the sums of PARTS halves, for `matmul_halves.wgsl`: a
// row is divided by a power of two so that its largest is between 128 and 256,
// and the power is noted. Behind its columns a row has the sums of its groups
// of GROUP columns, up to a multiple of 32 of them. A workgroup has a row.

enable f16;

struct Params {
    n_rows: u32,
    cols: u32,
    // Where a row begins: its number times the width, and this.
    start: u32,
    width: u32,
    // Of a row that is written, in fours.
    stride: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
// (parts, rows, fours)
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f16>>;
@group(0) @binding(3) var<storage, read_write> factors: array<f32>;

var<workgroup> highest: array<u32, 256>;

fn four_at(row: u32, i: u32) -> vec4<f32> {
    let at = row * p.width + p.start + 4u * i;
    return vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
}

fn put(row: u32, i: u32, v: vec4<f32>) {
    // Cut off, not rounded: a compiler may take what was rounded for what it was.
    let high = bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) & vec4<u32>(0xffffe000u));
    y[row * p.stride + i] = vec4<f16>(high);
    if (PARTS == 2u) {
        y[(p.n_rows + row) * p.stride + i] = vec4<f16>(v - high);
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = linear(id, n);
    if (row >= p.n_rows) { return; }
    let n_fours = p.cols / 4u;
    var most = 0u;
    for (var base = 0u; base < n_fours; base += 256u) {
        let i = min(base + thread, n_fours - 1u);
        let bits = bitcast<vec4<u32>>(four_at(row, i)) & vec4<u32>(0x7fffffffu);
        most = max(most, max(max(bits.x, bits.y), max(bits.z, bits.w)));
    }
    highest[thread] = most;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half >> 1u) {
        if (thread < half) { highest[thread] = max(highest[thread], highest[thread + half]); }
        workgroupBarrier();
    }
    // 2^7 / 2^exponent, both ways; what is tiny counts as 2^-100.
    let exponent = clamp(highest[0] >> 23u, 27u, 254u);
    let factor = bitcast<f32>((261u - exponent) << 23u);
    if (thread == 0u) { factors[row] = bitcast<f32>((exponent - 7u) << 23u); }
    for (var base = 0u; base < n_fours; base += 256u) {
        let i = base + thread;
        if (i < n_fours) { put(row, i, four_at(row, i) * factor); }
    }
    // Groups are fours of lists of fours of columns.
    let per_group = GROUP / 4u;
    for (var i = n_fours + thread; i < p.stride; i += 256u) {
        var sums: vec4<f32>;
        for (var e = 0u; e < 4u; e++) {
            let first = (4u * (i - n_fours) + e) * per_group;
            if (first < n_fours) {
                var sum = 0.0;
                for (var k = first; k < first + per_group; k++) {
                    let v = four_at(row, k) * factor;
                    sum += (v.x + v.y) + (v.z + v.w);
                }
                sums[e] = sum;
            }
        }
        put(row, i, sums);
    }
}
