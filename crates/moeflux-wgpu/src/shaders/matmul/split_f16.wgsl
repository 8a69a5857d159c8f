// Rows of activations as the sums of PARTS halves, for `matmul/coop_matmul.wgsl`: a row is
// divided by a power of two so that its largest is between 128 and 256, and the power is noted.
// After its blocks of 32 columns a row has blocks of the sums of 16 groups each, of GROUP
// columns, twice. Of eight columns come the first and the fifth, the second and the sixth, and so
// on, or with ORDER 3 of each four the first and the third, the second and the fourth: so the
// matrix's are unpacked. A last block that is not whole is filled with sums, too: the matrix has zeros
// in these columns. A workgroup has a row.

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
// Columns that a workgroup takes at a time: whole blocks of sums.
const EIGHTS: u32 = max(THREADS, 2u * GROUP);
const SUMS: u32 = 8u * EIGHTS / GROUP;

var<workgroup> highest: array<u32, THREADS>;
// Of fours of columns, and of groups of columns.
var<workgroup> fours: array<f32, 2u * EIGHTS>;
var<workgroup> sums: array<f32, SUMS>;

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

fn sum(four: vec4<f32>) -> f32 {
    return (four.x + four.y) + (four.z + four.w);
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
    // Eights of sums: four are sixteen groups, twice.
    let n_behind = p.stride / PARTS - n_eights;
    for (var first = 0u; first < n_eights || 2u * first / GROUP < n_behind; first += EIGHTS) {
        for (var i = thread; i < EIGHTS; i += THREADS) {
            var a = vec4<f32>(0.0);
            var b = vec4<f32>(0.0);
            let nth = first + i;
            if (nth < n_eights) {
                a = four_at(row, 2u * nth) * factor;
                b = four_at(row, 2u * nth + 1u) * factor;
                if (ORDER == ORDER_HALVES) {
                    put(row, nth, a.xzyw, b.xzyw);
                } else {
                    put(row, nth, vec4<f32>(a.x, b.x, a.y, b.y), vec4<f32>(a.z, b.z, a.w, b.w));
                }
            }
            fours[2u * i] = sum(a);
            fours[2u * i + 1u] = sum(b);
        }
        workgroupBarrier();
        if (thread < SUMS) {
            var total = 0.0;
#each k GROUP/4
            total += fours[thread * (GROUP / 4u) + $ku];
#end
            sums[thread] = total;
        }
        workgroupBarrier();
        let behind = 2u * first / GROUP + thread;
        if (thread < SUMS / 4u && behind < n_behind) {
            let group = 16u * (thread >> 2u) + 8u * (thread & 1u);
            put(row, n_eights + behind, four_sums(group), four_sums(group + 4u));
        }
    }
}
