// How `matmul/coop_matmul.wgsl` takes blocks of ggml. A step has 32 columns that lie close together:
// those of a unit, so that a thread reads all their bytes at once, and activations are taken in
// the same order.
//
// An integer less ZERO times its scale is the sum of as many halves as activations are: the product
// with the upper HIGH_BITS bits of the scale, which is exact, and that with its lower bits, or both
// added and rounded once. The second is below 2^-4 of the first. Its product with the second half
// of an activation, which is left out, is below 2^-15 of the whole and has either sign.

// Sixteen elements, of each eight as `matmul/split_f16.wgsl` has them.
struct Sixteen {
    upper: array<Eight, 2>,
#if W_PARTS/2
    lower: array<Eight, 2>,
#end
}

// Four integers less ZERO, the second and the third exchanged.
fn integers_of(codes: u32) -> vec4<f16> {
    // As bits of halves 1024 + n, of integers without a sign.
    let bytes = codes ^ 0x80808080u;
    let even = halves((bytes & 0x00ff00ffu) | 0x64006400u);
    let odd = halves(((bytes >> 8u) & 0x00ff00ffu) | 0x64006400u);
    return vec4<f16>(even, odd) - vec4<f16>(f16(1152u + ZERO));
}

fn sixteen_of(codes: vec4<u32>, scale: f32) -> Sixteen {
    // To the nearest, so that what is left out has either sign.
    let unit = 1u << (24u - HIGH_BITS);
    let nearest = bitcast<f32>((bitcast<u32>(scale) + unit / 2u) & ~(unit - 1u));
    let high = vec4<f16>(f16(nearest));
    let low = vec4<f16>(f16(scale - nearest));
    let a = integers_of(codes.x);
    let b = integers_of(codes.y);
    let c = integers_of(codes.z);
    let d = integers_of(codes.w);
#if W_PARTS/2
    return Sixteen(
        array<Eight, 2>(Eight(a * high, b * high), Eight(c * high, d * high)),
        array<Eight, 2>(Eight(a * low, b * low), Eight(c * low, d * low)),
    );
#else
    return Sixteen(array<Eight, 2>(
        Eight(fma(a, high, a * low), fma(b, high, b * low)),
        Eight(fma(c, high, c * low), fma(d, high, d * low)),
    ));
#end
}

fn store_sixteen(it: Sixteen, square: u32, at: u32) {
#each e 2
    w_tile[square][at + $eu] = it.upper[$e];
#if W_PARTS/2
    w_tile[square][at + 4u + $eu] = it.lower[$e];
#end
#end
}

// The integers of half of a step's columns.
fn codes_of(job: Job, row: u32, step: u32, nth: u32) -> vec4<u32> {
    return half_codes(step_place(p.m, job.elements, row, step), step % STEPS_OF_BLOCK, nth);
}

// Their scale, 0 after the last step.
fn scale_of(job: Job, row: u32, step: u32, nth: u32) -> f32 {
    let at = min(step, p.m.n_blocks - 1u);
    let place = step_place(p.m, job.elements, row, at);
    let half = step_half(at, nth) % (BLOCK_COLS / 16u);
    return select(f32(W_FACTOR) * scale_and_bias(place, half).x, 0.0, step > at);
}

// Where a piece of activations is, counted from a row's first: of a step's columns, or after these.
fn place_of_piece(step: u32, piece: u32) -> u32 {
    let nth_step = step * STEP + piece / (4u * PARTS);
    let half = step_half(nth_step, (piece & 3u) >> 1u);
    let part = piece / 4u % PARTS;
    let place = 4u * (PARTS * (half >> 1u) + part) + 2u * (half & 1u) + (piece & 1u);
    return select(place, step * X_PIECES + piece, nth_step >= p.m.n_blocks);
}

#if BIASED
// Eight of a block after the others: upper or lower bits of the biases of eight groups, of which
// there are none after the last.
fn biases(job: Job, row: u32, behind: u32, e: u32) -> Eight {
    let first = 16u * behind + 8u * (e & 1u);
    let a = four_biases(job, row, first);
    let b = four_biases(job, row, first + 4u);
    // Cut off, as in `matmul/split_f16.wgsl`.
    let high_a = bitcast<vec4<f32>>(bitcast<vec4<u32>>(a) & vec4<u32>(0xffffe000u));
    let high_b = bitcast<vec4<f32>>(bitcast<vec4<u32>>(b) & vec4<u32>(0xffffe000u));
    if (e >= 2u) { return Eight(vec4<f16>(a - high_a), vec4<f16>(b - high_b)); }
    return Eight(vec4<f16>(high_a), vec4<f16>(high_b));
}

fn four_biases(job: Job, row: u32, first: u32) -> vec4<f32> {
    return f32(W_FACTOR) * vec4<f32>(
        bias_of(job, row, first), bias_of(job, row, first + 1u),
        bias_of(job, row, first + 2u), bias_of(job, row, first + 3u),
    );
}

fn bias_of(job: Job, row: u32, group: u32) -> f32 {
    let n_groups = p.m.n_blocks * 32u / GROUP_COLS;
    let half = min(group, n_groups - 1u) * (GROUP_COLS / 16u);
    let place = step_place(p.m, job.elements, row, half >> 1u);
    let bias = scale_and_bias(place, half % (BLOCK_COLS / 16u)).y;
    return select(bias, 0.0, group >= n_groups);
}

// Half of such a block.
fn sixteen_biases(job: Job, row: u32, behind: u32, nth: u32) -> Sixteen {
    let upper = array<Eight, 2>(
        biases(job, row, behind, 2u * nth), biases(job, row, behind, 2u * nth + 1u),
    );
#if W_PARTS/2
    return Sixteen(upper, array<Eight, 2>());
#else
    return Sixteen(upper);
#end
}
#end
