// Rows of activations as the sums of PARTS halves, for `matmul/coop_matmul.wgsl`: a row is
// divided by a power of two so that its largest is between 128 and 256, and the power is noted.
// After its blocks of 32 columns a row has blocks of the sums of 16 groups each, of GROUP
// columns, twice. Of eight columns come the first and the fifth, the second and the sixth, and so
// on, or with ORDER 3 of each four the first and the third, the second and the fourth: so the
// matrix's are unpacked. A workgroup has a row.

enable f16;

struct Params {
    n_rows: u32,
    cols: u32,
    // Where a row begins: its number times the width, and this.
    start: u32,
    width: u32,
    // Of a row that is written, in eights.
    stride: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
// (rows, blocks, parts, 8)
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f16>>;
@group(0) @binding(3) var<storage, read_write> factors: array<f32>;

const THREADS: u32 = 256u;
const ORDER_HALVES: u32 = 3u;

var<workgroup> highest: array<u32, THREADS>;
// Of groups of columns.
var<workgroup> sums: array<f32, THREADS>;

fn four_at(row: u32, i: u32) -> vec4<f32> {
    let at = row * p.width + p.start + 4u * i;
    return vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
}

// Eight columns: the `i`-th of a row, all blocks taken together.
fn put(row: u32, i: u32, a: vec4<f32>, b: vec4<f32>) {
    let at = 2u * (row * p.stride + (i >> 2u) * 4u * PARTS + (i & 3u));
#if PARTS/2
    // Cut off, not rounded: a compiler may take what was rounded for what it was.
    let high_a = bitcast<vec4<f32>>(bitcast<vec4<u32>>(a) & vec4<u32>(0xffffe000u));
    let high_b = bitcast<vec4<f32>>(bitcast<vec4<u32>>(b) & vec4<u32>(0xffffe000u));
    y[at] = vec4<f16>(high_a);
    y[at + 1u] = vec4<f16>(high_b);
    y[at + 8u] = vec4<f16>(a - high_a);
    y[at + 9u] = vec4<f16>(b - high_b);
#else
    y[at] = vec4<f16>(nearest_halves(a));
    y[at + 1u] = vec4<f16>(nearest_halves(b));
#end
}

// The sum of a group of columns, zero after the last.
fn sum_of(row: u32, group: u32, factor: f32) -> f32 {
    let first = group * (GROUP / 4u);
    if (first >= p.cols / 4u) { return 0.0; }
#each k GROUP/4
    let v$k = four_at(row, first + $ku) * factor;
#end
    var sum = 0.0;
#each k GROUP/4
    sum += (v$k.x + v$k.y) + (v$k.z + v$k.w);
#end
    return sum;
}

fn four_sums(first: u32) -> vec4<f32> {
    return vec4<f32>(sums[first], sums[first + 1u], sums[first + 2u], sums[first + 3u]);
}

#main_per_workgroup row THREADS p.n_rows
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
    let n_eights = n_fours / 2u;
    for (var i = thread; i < n_eights; i += THREADS) {
        let a = four_at(row, 2u * i) * factor;
        let b = four_at(row, 2u * i + 1u) * factor;
        if (ORDER == ORDER_HALVES) {
            put(row, i, a.xzyw, b.xzyw);
        } else {
            put(row, i, vec4<f32>(a.x, b.x, a.y, b.y), vec4<f32>(a.z, b.z, a.w, b.w));
        }
    }
    // Of as many groups as there are threads; four eights are sixteen of them, twice.
    let all_behind = p.stride / PARTS - n_eights;
    for (var first = 0u; first < all_behind; first += THREADS / 4u) {
        workgroupBarrier();
        sums[thread] = sum_of(row, 4u * first + thread, factor);
        workgroupBarrier();
        let behind = first + thread;
        if (thread < THREADS / 4u && behind < all_behind) {
            let group = 16u * (thread >> 2u) + 8u * (thread & 1u);
            put(row, n_eights + behind, four_sums(group), four_sums(group + 4u));
        }
    }
}
