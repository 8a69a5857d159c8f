// Products of matrices with few rows of activations.
//
// VLANES lanes share a row of the matrix: lane v has the units v, v + VLANES,
// and so on, in ascending order, and their sums are added as a tree, v and v ^
// VLANES / 2 first. A unit is a block, or 16 bytes of floats. So the order of a
// sum follows from the row's length. What is left to choose is who does it:
// LANES lanes stand for VLANES, one after the other, with DEPTH units a step,
// for ROWS rows of the matrix and X_ROWS rows of activations at once.
//
// DIGITS: 0 for activations as they are, else of how many digits of 8 bits
// their integers are (`round.wgsl`). Dots of a block are whole numbers, by dots
// of bytes or, where FMA is set, by floats, in which they are below 2^24 and so
// the same. ALIGNED: rows of floats begin at multiples of 16 bytes and end with
// their last block.
//
// ONCE: rows are so short, and activations so few, that a workgroup reads these
// once for all its rows.
//
// CHOSEN: jobs name an expert by a choice of the device's (in the place of their
// scales; SHARED for the one that every row gets) and one of its matrices (in that
// of their elements).
//
// Everything is unrolled as text: arrays indexed in loops would lie in memory.

struct Params {
    m: Matrix,
    jobs: u32,
    n_jobs: u32,
    // Experts of the layer, and the number of the buffer that the dispatch reads.
    n_experts: u32,
    buffer: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(2) var<storage, read> w4: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
#if DIGITS
#if FMA
// (rows, 8, blocks): four integers, see `round.wgsl`.
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
#else
// (rows, digits, halves of blocks, blocks)
@group(0) @binding(4) var<storage, read> x: array<vec4<u32>>;
#end
// (rows, blocks): the scale, and the scale times the sum of the integers.
@group(0) @binding(5) var<storage, read> sums: array<vec2<f32>>;
#else
#if ALIGNED
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
#else
@group(0) @binding(4) var<storage, read> x: array<f32>;
#end
#end
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

#if CHOSEN
// The experts chosen.
@group(0) @binding(7) var<storage, read> chosen: array<u32>;
// (n_experts + 1, matrices, 2): elements and scales; then (n_experts + 1): the
// buffer. The last is the one that every row gets.
@group(0) @binding(8) var<storage, read> table: array<u32>;

const MATRICES: u32 = 3u;
const SHARED: u32 = 0xffffffffu;
#end

const SLOTS: u32 = VLANES / LANES;
// Rows of the matrix that a workgroup has at once, side by side.
const GROUPS: u32 = THREADS / LANES;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
) {
    let job_idx = id.z * n.y + id.y;
    if (job_idx >= p.n_jobs) { return; }
#if CHOSEN
    var job = job_at(p.jobs, job_idx);
    var expert = p.n_experts;
    if (job.scales != SHARED) { expert = min(chosen[job.scales], p.n_experts - 1u); }
    let place = (expert * MATRICES + job.elements) * 2u;
    job.elements = table[place];
    job.scales = table[place + 1u];
    // Another dispatch has this expert's buffer: no rows here.
    if (table[(p.n_experts + 1u) * MATRICES * 2u + expert] != p.buffer) { job.n_rows = 0u; }
#else
    let job = job_at(p.jobs, job_idx);
#end
    let thread = subgroup * subgroup_size + in_subgroup;
    multiply(job, id.x, n.x, thread / LANES, thread % LANES);
}

// The sum over the lanes of a row.
fn tree(mine: f32) -> f32 {
    var sum = mine;
    if (LANES >= 32u) { sum += subgroupShuffleXor(sum, 16u); }
    if (LANES >= 16u) { sum += subgroupShuffleXor(sum, 8u); }
    if (LANES >= 8u) { sum += subgroupShuffleXor(sum, 4u); }
    if (LANES >= 4u) { sum += subgroupShuffleXor(sum, 2u); }
    if (LANES >= 2u) { sum += subgroupShuffleXor(sum, 1u); }
    return sum;
}

// The rows of a job that workgroup `nth` of `n` has, ROWS at once, GROUPS apart.
fn multiply(job: Job, nth: u32, n: u32, group: u32, lane: u32) {
    let n_units = p.m.n_blocks * (32u / UNIT);
    let per_group = GROUPS * ROWS;
#if ONCE
    let start = 0u;
#each i X_ROWS
    let x$i = lists[job.list + 2u * min($iu, job.n_list - 1u)] + job.x;
#end
#each d DEPTH
    let inside$d = lane + VLANES * $du;
    let unit$d = min(inside$d, n_units - 1u);
#each i X_ROWS
    let s_$d_$i = sums[x$i * n_units + unit$d];
#each k 2*DIGITS
    let x_$d_$i_$k = x[(x$i * (2u * DIGITS) + $ku) * n_units + unit$d];
#end
#end
#end
    for (var first = nth * per_group; first < job.n_rows; first += n * per_group) {
#else
    for (var first = nth * per_group; first < job.n_rows; first += n * per_group) {
    for (var start = 0u; start < job.n_list; start += X_ROWS) {
#each i X_ROWS
        let x$i = lists[job.list + 2u * min(start + $iu, job.n_list - 1u)] + job.x;
#end
#end
#each r ROWS
        let row$r = first + group + $ru * GROUPS;
        let w_row$r = job.first_row + min(row$r, job.n_rows - 1u);
#each i X_ROWS
        var sum_$r_$i = 0.0;
#end
#end
#if VLANES/LANES/2
#each r ROWS
#each i X_ROWS
        var slots_$r_$i: array<f32, SLOTS>;
#end
#end
        for (var slot = 0u; slot < SLOTS; slot++) {
#each r ROWS
#each i X_ROWS
            sum_$r_$i = 0.0;
#end
#end
#else
        let slot = 0u;
        {
#end
#if ONCE
            {
#else
            for (var base = slot * LANES + lane; base < n_units; base += VLANES * DEPTH) {
#each d DEPTH
                let inside$d = base + VLANES * $du;
                let unit$d = min(inside$d, n_units - 1u);
#end
#end
#each d DEPTH
#each r ROWS
                let q_$d_$r = raw(job.elements, w_row$r, unit$d);
#if DIGITS
                let pair_$d_$r = scale_and_bias(job.scales, w_row$r, unit$d);
#end
#end
#end
#if DIGITS
#if ONCE
#else
#each d DEPTH
#each i X_ROWS
                let s_$d_$i = sums[x$i * n_units + unit$d];
#if FMA
#else
#each k 2*DIGITS
                let x_$d_$i_$k = x[(x$i * (2u * DIGITS) + $ku) * n_units + unit$d];
#end
#end
#end
#end
#end
#end
#each d DEPTH
                {
                // Who is beyond the last keeps what it has.
                let unit = unit$d;
                let counts = inside$d == unit;
#if DIGITS
#if FMA
#each r ROWS
#each i X_ROWS
                var dot_$r_$i = 0.0;
#end
#end
#each j 8
                {
#each i X_ROWS
                    let part$i = x[(x$i * 8u + $ju) * n_units + unit];
#end
#each r ROWS
                    let f$r = integers_as_floats(q_$d_$r, job.elements, w_row$r, unit, $ju);
#each i X_ROWS
                    dot_$r_$i += dot(f$r, part$i);
#end
#end
                }
#end
#else
#each r ROWS
                let bytes$r = packed(q_$d_$r, job.elements, w_row$r, unit);
#end
#each i X_ROWS
#each r ROWS
                var whole_$r_$i = dot4(bytes$r[0], x_$d_$i_0) + dot4(bytes$r[1], x_$d_$i_1);
#if DIGITS/2
                whole_$r_$i = 256 * whole_$r_$i
                    + (dot4(bytes$r[0], x_$d_$i_2) + dot4(bytes$r[1], x_$d_$i_3));
#end
#end
#each r ROWS
                let dot_$r_$i = f32(whole_$r_$i);
#end
#end
#end
#each r ROWS
#each i X_ROWS
                let all_$r_$i = fma(
                    dot_$r_$i, pair_$d_$r.x * s_$d_$i.x, fma(pair_$d_$r.y, s_$d_$i.y, sum_$r_$i),
                );
                sum_$r_$i = select(sum_$r_$i, all_$r_$i, counts);
#end
#end
#else
                let blk = unit * UNIT / 32u;
#each r ROWS
                let b$r = block_of(p.m, job.elements, job.scales, job.phase, w_row$r, blk);
#each i X_ROWS
                var all_$r_$i = sum_$r_$i;
#end
#end
#if 4/FOURS
#each j FOURS
                {
                    let j = $ju;
                    let c = unit * FOURS + j;
#each i X_ROWS
                    let part$i = x_at(x$i, 4u * c);
#end
#each r ROWS
                    let f$r = four_of(b$r, q_$d_$r, j, c & 7u);
#each i X_ROWS
                    all_$r_$i = fma_four(f$r, part$i, all_$r_$i);
#end
#end
                }
#end
#else
                for (var j = 0u; j < FOURS; j++) {
                    let c = unit * FOURS + j;
#each i X_ROWS
                    let part$i = x_at(x$i, 4u * c);
#end
#each r ROWS
                    let f$r = four_of(b$r, q_$d_$r, j, c & 7u);
#each i X_ROWS
                    all_$r_$i = fma_four(f$r, part$i, all_$r_$i);
#end
#end
                }
#end
#each r ROWS
#each i X_ROWS
                sum_$r_$i = select(sum_$r_$i, all_$r_$i, counts);
#end
#end
#end
            }
#end
            }
#if VLANES/LANES/2
#each r ROWS
#each i X_ROWS
            slots_$r_$i[slot] = sum_$r_$i;
#end
#end
#end
        }
#each r ROWS
#each i X_ROWS
#if VLANES/LANES/2
        for (var half = SLOTS / 2u; half > 0u; half = half >> 1u) {
            for (var v = 0u; v < half; v++) { slots_$r_$i[v] += slots_$r_$i[v + half]; }
        }
        let total_$r_$i = tree(slots_$r_$i[0]);
#else
        let total_$r_$i = tree(sum_$r_$i);
#end
        if (lane == 0u && row$r < job.n_rows && start + $iu < job.n_list) {
            y[lists[job.list + 2u * (start + $iu) + 1u] + job.out + row$r] = total_$r_$i;
        }
#end
#end
#if ONCE
    }
#else
    }
    }
#end
}

// 16 bytes of a unit's elements; all of them, but for integers that are not of
// 4 bits.
fn raw(elements: u32, row: u32, unit: u32) -> vec4<u32> {
    if (FORMAT == 0u && BITS != 4u) { return vec4<u32>(0u); }
    return w4[(elements >> 2u) + row * (p.m.n_blocks * (32u / UNIT)) + unit];
}

#if DIGITS
fn scale_and_bias(scales: u32, row: u32, blk: u32) -> vec2<f32> {
    let pair = affine_pair(p.m, scales, row, blk);
    // Integers of 8 bits are taken less 128, as signed bytes.
    if (BITS == 8u) { return vec2<f32>(pair.x, fma(128.0, pair.x, pair.y)); }
    return pair;
}

fn first_word(elements: u32, row: u32, blk: u32) -> u32 {
    return elements + (row * p.m.n_blocks + blk) * BITS;
}

#if FMA
// Of four columns; of 4 bits, times what activations were divided by.
fn integers_as_floats(q: vec4<u32>, elements: u32, row: u32, blk: u32, i: u32) -> vec4<f32> {
    if (BITS == 4u) {
        let v = vec4<u32>(q[i >> 1u]);
        if ((i & 1u) == 0u) {
            return vec4<f32>(v & vec4<u32>(0xfu, 0xf0u, 0xf00u, 0xf000u));
        }
        return vec4<f32>(v & vec4<u32>(0xf0000u, 0xf00000u, 0xf000000u, 0xf0000000u));
    }
    let v = vec4<f32>(integers(first_word(elements, row, blk), i));
    if (BITS == 8u) { return v - vec4<f32>(128.0); }
    return v;
}
#else
// The integers of a block, four to a word, in the order of `round.wgsl`.
fn packed(q: vec4<u32>, elements: u32, row: u32, blk: u32) -> array<vec4<u32>, 2> {
    if (BITS == 4u) {
        let low = q & vec4<u32>(0x0f0f0f0fu);
        let high = (q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
        return array<vec4<u32>, 2>(
            vec4<u32>(low.x, high.x, low.y, high.y),
            vec4<u32>(low.z, high.z, low.w, high.w),
        );
    }
    let word = first_word(elements, row, blk);
    if (BITS == 8u) {
        return array<vec4<u32>, 2>(
            w4[word >> 2u] ^ vec4<u32>(0x80808080u),
            w4[(word >> 2u) + 1u] ^ vec4<u32>(0x80808080u),
        );
    }
    if (BITS == 2u) {
        let a = (vec4<u32>(w[word]) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
        let b = (vec4<u32>(w[word + 1u]) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
        return array<vec4<u32>, 2>(a, b);
    }
    return array<vec4<u32>, 2>(
        vec4<u32>(pack(word, 0u), pack(word, 1u), pack(word, 2u), pack(word, 3u)),
        vec4<u32>(pack(word, 4u), pack(word, 5u), pack(word, 6u), pack(word, 7u)),
    );
}

fn pack(word: u32, i: u32) -> u32 {
    let q = integers(word, i);
    return q.x | (q.y << 8u) | (q.z << 16u) | (q.w << 24u);
}

fn dot4(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y)
        + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}
#end
#else
// Four columns of a block: the `j`-th four of a unit, the `i`-th of its block.
fn four_of(it: Block, q: vec4<u32>, j: u32, i: u32) -> vec4<f32> {
    if (FORMAT == 0u) { return four(p.m, it, i); }
    if (FORMAT == 1u) { return decode(p.m, it, i, q); }
    if (FORMAT == 2u || FORMAT == 3u) {
        return decode(p.m, it, i, select(q, q.zwzw, j == 1u));
    }
    if (FORMAT == 4u) { return decode(p.m, it, i, vec4<u32>(q[j >> 1u])); }
    return decode(p.m, it, i, vec4<u32>(q[j]));
}

fn fma_four(a: vec4<f32>, b: vec4<f32>, c: f32) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, c))));
}

#if ALIGNED
fn x_at(row: u32, col: u32) -> vec4<f32> {
    return x[(row + col) >> 2u];
}
#else
fn x_at(row: u32, col: u32) -> vec4<f32> {
    var v: vec4<f32>;
    if (col < p.m.cols) { v.x = x[row + col]; }
    if (col + 1u < p.m.cols) { v.y = x[row + col + 1u]; }
    if (col + 2u < p.m.cols) { v.z = x[row + col + 2u]; }
    if (col + 3u < p.m.cols) { v.w = x[row + col + 3u]; }
    return v;
}
#end
#end
