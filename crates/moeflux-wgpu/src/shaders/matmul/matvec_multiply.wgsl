// How `matmul/matvec.wgsl` multiplies inputs that are rounded, or, where DIGITS is 0, as they
// are: a kernel may do both.

// The rows of a job that workgroup `nth` of `n` has, ROWS at once, GROUPS apart.
#if DIGITS
fn multiply(job: Job, nth: u32, n: u32, group: u32, lane: u32) {
#else
fn multiply_plain(job: Job, nth: u32, n: u32, group: u32, lane: u32) {
#end
    let n_units = p.m.n_blocks * 32u / UNIT;
    let per_group = GROUPS * ROWS;
#if ONCE
    let start = 0u;
#each i X_ROWS
    let x$i = row_of(job, $iu);
#end
#each d DEPTH
    let inside$d = lane + VLANES * $du;
    let unit$d = min(inside$d, n_units - 1u);
#each i X_ROWS
#each h PAIRS
    let s_$d_$i_$h = sums[sum_place(x$i, unit$d, $hu)];
#end
#each h HALVES
#each k DIGITS
    let x_$d_$i_$h_$k = inputs_at(input_place(x$i, $ku, unit$d, $hu));
#end
#end
#end
#end
    for (var first = nth * per_group; first < job.n_rows; first += n * per_group) {
#else
    for (var first = nth * per_group; first < job.n_rows; first += n * per_group) {
    for (var start = 0u; start < job.n_list; start += X_ROWS) {
#each i X_ROWS
        let x$i = row_of(job, start + $iu);
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
#if BLOCKS
#if DIGITS
                let q_$d_$r = codes_of_unit(job.elements, w_row$r, unit$d);
                let pairs_$d_$r = pairs_of_unit(job.elements, w_row$r, unit$d);
#end
#else
                let q_$d_$r = raw(job.elements, w_row$r, unit$d);
#if DIGITS
                let pair_$d_$r = group_scale_and_bias(job, w_row$r, unit$d);
#end
#end
#end
#end
#if DIGITS
#if ONCE
#else
#each d DEPTH
#each i X_ROWS
#each h PAIRS
                let s_$d_$i_$h = sums[sum_place(x$i, unit$d, $hu)];
#end
#if FMA
#else
#each h HALVES
#each k DIGITS
                let x_$d_$i_$h_$k = inputs_at(input_place(x$i, $ku, unit$d, $hu));
#end
#end
#end
#end
#end
#end
#end
#each d DEPTH
                {
                // Lanes beyond the last unit keep their sums.
                let unit = unit$d;
                let counts = inside$d == unit;
#if DIGITS*BLOCKS
#each h HALVES
#if FMA
#each r ROWS
#each i X_ROWS
                var dot_$r_$i_$h = 0.0;
#end
#end
#each j 4
                {
#each i X_ROWS
                    let part$i = inputs_at(float_place(x$i, unit, $hu, $ju));
#end
#each r ROWS
                    let f$r = floats_of(q_$d_$r[$h][$j]);
#each i X_ROWS
                    dot_$r_$i_$h += dot(f$r, part$i);
#end
#end
                }
#end
#else
#each i X_ROWS
#each r ROWS
                var whole_$r_$i_$h = dot4(q_$d_$r[$h], x_$d_$i_$h_0);
#if DIGITS/2
                whole_$r_$i_$h = 256 * whole_$r_$i_$h + dot4(q_$d_$r[$h], x_$d_$i_$h_1);
#end
                let dot_$r_$i_$h = f32(whole_$r_$i_$h);
#end
#end
#end
#end
#each r ROWS
#each i X_ROWS
                var all_$r_$i = sum_$r_$i;
#each h HALVES
                all_$r_$i = fma(
                    dot_$r_$i_$h, pairs_$d_$r[$h].x * s_$d_$i_$h.x,
                    fma(pairs_$d_$r[$h].y, s_$d_$i_$h.y, all_$r_$i),
                );
#end
                sum_$r_$i = select(sum_$r_$i, all_$r_$i, counts);
#end
#end
#else
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
                    let part$i = inputs_at(float_place(x$i, unit, 0u, $ju));
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
                var whole_$r_$i = dot4(bytes$r[0], x_$d_$i_0_0) + dot4(bytes$r[1], x_$d_$i_1_0);
#if DIGITS/2
                whole_$r_$i = 256 * whole_$r_$i
                    + (dot4(bytes$r[0], x_$d_$i_0_1) + dot4(bytes$r[1], x_$d_$i_1_1));
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
                    dot_$r_$i, pair_$d_$r.x * s_$d_$i_0.x, fma(pair_$d_$r.y, s_$d_$i_0.y, sum_$r_$i),
                );
                sum_$r_$i = select(sum_$r_$i, all_$r_$i, counts);
#end
#end
#else
                let blk = unit * UNIT / 32u;
#each r ROWS
                let b$r = block_of(p.m, job.elements, job.scales, job.phase, w_row$r, blk);
#if BLOCKS
                let q_$d_$r = vec4<u32>();
#end
#each i X_ROWS
                var all_$r_$i = sum_$r_$i;
#end
#end
#if E2M1
#each j 4
                {
#each i X_ROWS
                    let first$i = x_at(x$i, 32u * unit + 8u * $ju);
                    let second$i = x_at(x$i, 32u * unit + 8u * $ju + 4u);
#end
#each r ROWS
                    let f$r = eight_of(q_$d_$r[$j]);
                    let scale$r = 16384.0 * select(b$r.a, b$r.b, $j >= 2);
#each i X_ROWS
                    all_$r_$i = fma(
                        scale$r,
                        fma_four(f$r[1], second$i, fma_four(f$r[0], first$i, 0.0)),
                        all_$r_$i,
                    );
#end
#end
                }
#end
#else
#if UNROLLED
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
#end
#each r ROWS
#each i X_ROWS
                sum_$r_$i = select(sum_$r_$i, all_$r_$i, counts);
#end
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

#if DIGITS
#if BLOCKS
// Where a digit of a unit's `nth` sixteen columns is, and their scale and sum.
fn input_place(x: u32, digit: u32, unit: u32, nth: u32) -> u32 {
    let half = row_half(unit, nth);
    return (x * (2u * DIGITS) + 2u * digit + (half & 1u)) * p.m.n_blocks + (half >> 1u);
}

fn sum_place(x: u32, unit: u32, nth: u32) -> u32 {
    return x * 2u * p.m.n_blocks + row_half(unit, nth);
}

// Of these the `i`-th four as floats.
fn float_place(x: u32, unit: u32, nth: u32, i: u32) -> u32 {
    let half = row_half(unit, nth);
    return (x * 8u + 4u * (half & 1u) + i) * p.m.n_blocks + (half >> 1u);
}

fn codes_of_unit(elements: u32, row: u32, unit: u32) -> array<vec4<u32>, HALVES> {
    return unit_codes(unit_place(p.m, elements, row, unit), unit % UNITS_OF_BLOCK);
}

fn pairs_of_unit(elements: u32, row: u32, unit: u32) -> array<vec2<f32>, HALVES> {
    return unit_pairs(unit_place(p.m, elements, row, unit), unit % UNITS_OF_BLOCK);
}
#else
// Where a digit of half of a block is, the scale and sum of all of it, and the `i`-th four of it as
// floats.
fn input_place(x: u32, digit: u32, blk: u32, half: u32) -> u32 {
    return (x * (2u * DIGITS) + 2u * digit + half) * p.m.n_blocks + blk;
}

fn sum_place(x: u32, blk: u32, half: u32) -> u32 {
    return x * p.m.n_blocks + blk;
}

fn float_place(x: u32, blk: u32, half: u32, i: u32) -> u32 {
    return (x * 8u + i) * p.m.n_blocks + blk;
}

fn group_scale_and_bias(job: Job, row: u32, blk: u32) -> vec2<f32> {
    let pair = affine_pair(p.m, job.scales, job.phase, row, blk);
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
// The integers of a block, four to a word, in the order of `matmul/quantize_activations.wgsl`.
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
#end
#end

#if FMA
#else
fn dot4(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y)
        + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}
#end
#else
// Four columns of a block: the `j`-th four of a unit, the `i`-th of its block.
fn four_of(it: Block, q: vec4<u32>, j: u32, i: u32) -> vec4<f32> {
#if BLOCKS
    return four(p.m, it, i);
#else
    if (FORMAT == FORMAT_AFFINE && BITS == 4u) {
        let v = vec4<u32>(q[j >> 1u] >> ((j & 1u) * 16u)) >> vec4<u32>(0u, 4u, 8u, 12u);
        return fma(vec4<f32>(v & vec4<u32>(15u)), vec4<f32>(it.a), vec4<f32>(it.b));
    }
    if (FORMAT == FORMAT_AFFINE) { return four(p.m, it, i); }
    if (FORMAT == FORMAT_F32) { return decode(p.m, it, i, q); }
    if (FORMAT == FORMAT_F16 || FORMAT == FORMAT_BF16) {
        return decode(p.m, it, i, select(q, q.zwzw, j == 1u));
    }
    if (FORMAT == FORMAT_E2M1 || FORMAT == FORMAT_NF4) {
        return decode(p.m, it, i, vec4<u32>(q[j >> 1u]));
    }
    return decode(p.m, it, i, vec4<u32>(q[j]));
#end
}

#if E2M1
// The elements in a word divided by 2^14: exponent and mantissa where a half has its lowest ones,
// the smallest below the smallest normal.
fn eight_of(v: u32) -> array<vec4<f32>, 2> {
    let a = unpack2x16float(((v & 0x00070007u) << 9u) | ((v & 0x00080008u) << 12u));
    let b = unpack2x16float(((v & 0x00700070u) << 5u) | ((v & 0x00800080u) << 8u));
    let c = unpack2x16float(((v & 0x07000700u) << 1u) | ((v & 0x08000800u) << 4u));
    let d = unpack2x16float(((v & 0x70007000u) >> 3u) | (v & 0x80008000u));
    return array<vec4<f32>, 2>(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y));
}
#end

fn fma_four(a: vec4<f32>, b: vec4<f32>, c: f32) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, c))));
}

#if ALIGNED
fn x_at(row: u32, col: u32) -> vec4<f32> {
    return plain[(row + col) >> 2u];
}
#else
fn x_at(row: u32, col: u32) -> vec4<f32> {
    var v: vec4<f32>;
    if (col < p.m.cols) { v.x = plain[row + col]; }
    if (col + 1u < p.m.cols) { v.y = plain[row + col + 1u]; }
    if (col + 2u < p.m.cols) { v.z = plain[row + col + 2u]; }
    if (col + 3u < p.m.cols) { v.w = plain[row + col + 3u]; }
    return v;
}
#end
#end
