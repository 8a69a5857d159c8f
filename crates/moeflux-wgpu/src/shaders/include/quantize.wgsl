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

// The word `i` of a block of a row of this many. The whole workgroup comes along, threads of a
// group side by side, also in their subgroups; who is not inside has zeros.
fn round_four(
    thread: u32, row: u32, n_blocks: u32, block: u32, i: u32, v: vec4<f32>, is_inside: bool,
) {
    // As integers, so that what is not a number is the largest.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    var most = max(max(bits.x, bits.y), max(bits.z, bits.w));
#if SUBGROUP*4/GROUP
    most = max(most, subgroupShuffleXor(most, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    if (GROUP >= 32u) { most = max(most, subgroupShuffleXor(most, 4u)); }
    if (GROUP >= 64u) { most = max(most, subgroupShuffleXor(most, 8u)); }
    if (GROUP >= 128u) { most = max(most, subgroupShuffleXor(most, 16u)); }
#else
    workgroupBarrier();
    highest[thread] = most;
    workgroupBarrier();
    let first = thread - thread % (GROUP / 4u);
#each k GROUP/4
    most = max(most, highest[first + $ku]);
#end
#end
    let largest = bitcast<f32>(most);
    let factor = select(LARGEST / largest, 0.0, largest == 0.0);
    let scale = largest / LARGEST;
    let limit = vec4<i32>(i32(LARGEST));
    let q = clamp(vec4<i32>(round(v * factor)), -limit, limit);
    var all = q.x + q.y + q.z + q.w;
#if SUBGROUP*4/GROUP
    all += subgroupShuffleXor(all, 1u);
    all += subgroupShuffleXor(all, 2u);
    if (SUMMED_FOURS == 8u) { all += subgroupShuffleXor(all, 4u); }
#else
    totals[thread] = all;
    workgroupBarrier();
    if (i % SUMMED_FOURS == 0u) {
#each k 3
        all += totals[thread + ${k+1}u];
#end
        if (SUMMED_FOURS == 8u) {
#each k 4
            all += totals[thread + ${k+4}u];
#end
        }
    }
#end
    if (!is_inside) { return; }
    if (FLOAT != FLOAT_VALUES && i % SUMMED_FOURS == 0u) {
        let nth = (row * n_blocks + block) * (8u / SUMMED_FOURS) + i / SUMMED_FOURS;
        sums[nth] = vec2<f32>(scale, scale * f32(all));
    }
#if FLOAT/2
    var divided = vec4<f32>(q);
    if (ORDER == ORDER_EVEN_ODD) {
        divided *= vec4<f32>(1.0, 0.0625, 0.00390625, 0.000244140625);
        if ((i & 1u) == 1u) { divided *= 0.0000152587890625; }
    }
    let at = 4u * ((row * 8u + i) * n_blocks + block);
    rounded[at] = bitcast<u32>(divided.x);
    rounded[at + 1u] = bitcast<u32>(divided.y);
    rounded[at + 2u] = bitcast<u32>(divided.z);
    rounded[at + 3u] = bitcast<u32>(divided.w);
#else
#if FLOAT
    let columns = columns_of(i);
    let at = (row * n_blocks + block) * 32u + columns.x;
    rounded[at] = bitcast<u32>(scale * f32(q.x));
    rounded[at + columns.y] = bitcast<u32>(scale * f32(q.y));
    rounded[at + 2u * columns.y] = bitcast<u32>(scale * f32(q.z));
    rounded[at + 3u * columns.y] = bitcast<u32>(scale * f32(q.w));
#else
    let at = 4u * ((row * (2u * DIGITS) + (i >> 2u)) * n_blocks + block) + (i & 3u);
    if (DIGITS == 2u) {
        rounded[at] = bytes((q + vec4<i32>(128)) >> vec4<u32>(8u));
        rounded[at + 8u * n_blocks] = bytes(q);
    } else {
        rounded[at] = bytes(q);
    }
#end
#end
}

fn bytes(q: vec4<i32>) -> u32 {
    let b = bitcast<vec4<u32>>(q) & vec4<u32>(255u);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}
#end
