// How activations become integers of DIGITS digits of 8 bits, GROUP columns together; a thread
// has four columns.
//
// ORDER: how the 32 columns of a block are in its eight words: 0 ascending; 1 the even ones of
// eight, then the odd ones; 2 every fourth of sixteen; 3 ascending, with sums of sixteen columns
// each where others have one of a block. FLOAT: 1 writes what the integers stand
// for instead, as it was ordered; 2 the integers as floats, four columns side by side, those of
// ORDER 1 divided by what `matmul/matvec.wgsl` has its integers times.
//
// Of a row, all blocks' first four integers (or words) are together, then all blocks' second
// ones, and so on, so that lanes read what is side by side.
#if DIGITS

const ORDER_EVEN_ODD: u32 = 1u;
const ORDER_STRIDED: u32 = 2u;
const ORDER_HALVES: u32 = 3u;
const FLOAT_VALUES: u32 = 1u;
const FLOAT_INTEGERS: u32 = 2u;

#if SUBGROUP*4/GROUP
#else
var<workgroup> highest: array<u32, 256>;
var<workgroup> totals: array<i32, 256>;
#end

// Fours of columns that have one sum.
const SUMMED_FOURS: u32 = select(8u, 4u, ORDER == ORDER_HALVES);

const LARGEST: f32 = f32(select(127u, 32512u, DIGITS == 2u));

// The first column of a block's `i`-th word, and how far the others are.
fn columns_of(i: u32) -> vec2<u32> {
    if (FLOAT != FLOAT_INTEGERS && ORDER == ORDER_EVEN_ODD) { return vec2<u32>(8u * (i >> 1u) + (i & 1u), 2u); }
    if (FLOAT != FLOAT_INTEGERS && ORDER == ORDER_STRIDED) { return vec2<u32>(16u * (i >> 2u) + (i & 3u), 4u); }
    return vec2<u32>(4u * i, 1u);
}

// The columns of a block's `i`-th word, where neighbours have columns side by side: the `i`-th
// four.
fn arranged(i: u32, v: vec4<f32>) -> vec4<f32> {
    if (FLOAT != FLOAT_INTEGERS && ORDER == ORDER_EVEN_ODD) {
        let is_odd = (i & 1u) == 1u;
        let own = select(v.xz, v.yw, is_odd);
        let others = subgroupShuffleXor(select(v.yw, v.xz, is_odd), 1u);
        return select(vec4<f32>(own, others), vec4<f32>(others, own), is_odd);
    }
    var it = v;
    if (FLOAT != FLOAT_INTEGERS && ORDER == ORDER_STRIDED) {
        let own = i & 3u;
#each s 4
        it[own ^ $su] = subgroupShuffleXor(v[own ^ $su], $su);
#end
    }
    return it;
}

fn bytes(q: vec4<i32>) -> u32 {
    let b = bitcast<vec4<u32>>(q) & vec4<u32>(255u);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}
#end
