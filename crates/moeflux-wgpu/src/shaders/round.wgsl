// Activations rounded, GROUP columns together, to integers of DIGITS digits of
// 8 bits; a thread has four columns.
//
// ORDER: how the 32 columns of a block lie in its eight words: 0 ascending; 1
// the even ones of eight, then the odd ones; 2 every fourth of sixteen.
// FLOAT: 1 writes what the integers stand for instead, as it was ordered; 2 the
// integers as floats, four columns beside each other, those of ORDER 1 divided
// by what `matvec.wgsl` has its integers times.
//
// Of a row, all blocks' first four integers (or words) lie together, then all
// blocks' second ones, and so on, so that lanes read what lies side by side.

struct Params {
    // Of all rows, four columns each.
    n_words: u32,
    cols: u32,
    start: u32,
    width: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<storage, read_write> sums: array<vec2<f32>>;

var<workgroup> highest: array<u32, 64>;
var<workgroup> totals: array<i32, 64>;

const LARGEST: f32 = f32(select(127u, 32512u, DIGITS == 2u));

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let word = linear(id, n) * 64u + thread;
    let per_row = p.cols / 4u;
    let is_inside = word < p.n_words;
    let row = word / per_row;
    let block = (word % per_row) / 8u;
    let i = word % 8u;
    var first = 4u * i;
    var step = 1u;
    if (FLOAT != 2u && ORDER == 1u) {
        first = 8u * (i >> 1u) + (i & 1u);
        step = 2u;
    } else if (FLOAT != 2u && ORDER == 2u) {
        first = 16u * (i >> 2u) + (i & 3u);
        step = 4u;
    }
    var v: vec4<f32>;
    if (is_inside) {
        let at = row * p.width + p.start + block * 32u + first;
        v = vec4<f32>(x[at], x[at + step], x[at + 2u * step], x[at + 3u * step]);
    }
    // As integers, so that what is not a number is the largest.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    highest[thread] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    workgroupBarrier();
    for (var half = GROUP / 8u; half > 0u; half = half >> 1u) {
        let in_group = thread % (GROUP / 4u);
        var other = 0u;
        if (in_group < half) { other = highest[thread + half]; }
        workgroupBarrier();
        if (in_group < half) { highest[thread] = max(highest[thread], other); }
        workgroupBarrier();
    }
    let largest = bitcast<f32>(highest[thread - thread % (GROUP / 4u)]);
    let factor = select(LARGEST / largest, 0.0, largest == 0.0);
    let scale = largest / LARGEST;
    let limit = vec4<i32>(i32(LARGEST));
    let q = clamp(vec4<i32>(round(v * factor)), -limit, limit);
    totals[thread] = q.x + q.y + q.z + q.w;
    workgroupBarrier();
    if (!is_inside) { return; }
    let n_blocks = per_row / 8u;
    if (FLOAT != 1u && i == 0u) {
        var total = 0;
        for (var k = 0u; k < 8u; k++) { total += totals[thread + k]; }
        sums[word / 8u] = vec2<f32>(scale, scale * f32(total));
    }
#if FLOAT/2
    var divided = vec4<f32>(q);
    if (ORDER == 1u) {
        divided *= vec4<f32>(1.0, 0.0625, 0.00390625, 0.000244140625);
        if ((i & 1u) == 1u) { divided *= 0.0000152587890625; }
    }
    let at = 4u * ((row * 8u + i) * n_blocks + block);
    y[at] = bitcast<u32>(divided.x);
    y[at + 1u] = bitcast<u32>(divided.y);
    y[at + 2u] = bitcast<u32>(divided.z);
    y[at + 3u] = bitcast<u32>(divided.w);
#else
#if FLOAT
    let at = row * p.cols + block * 32u + first;
    y[at] = bitcast<u32>(scale * f32(q.x));
    y[at + step] = bitcast<u32>(scale * f32(q.y));
    y[at + 2u * step] = bitcast<u32>(scale * f32(q.z));
    y[at + 3u * step] = bitcast<u32>(scale * f32(q.w));
#else
    let at = 4u * ((row * (2u * DIGITS) + (i >> 2u)) * n_blocks + block) + (i & 3u);
    if (DIGITS == 2u) {
        y[at] = bytes((q + vec4<i32>(128)) >> vec4<u32>(8u));
        y[at + 8u * n_blocks] = bytes(q);
    } else {
        y[at] = bytes(q);
    }
#end
#end
}

fn bytes(q: vec4<i32>) -> u32 {
    let b = bitcast<vec4<u32>>(q) & vec4<u32>(255u);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}
