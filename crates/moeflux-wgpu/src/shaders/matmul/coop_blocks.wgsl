// How `matmul/coop_matmul.wgsl` takes blocks of ggml. A step has 32 columns that lie close together:
// those of a unit, so that a thread reads all their bytes at once (W_WORDS is 4), and activations are
// taken in the same order.
//
// The scale of sixteen columns is rounded to a half, and so is its product with an integer less ZERO:
// each to the nearest, by 2^-12 of itself at most, as activations are.

// The integers of a step's columns, those of a row.
#if NIBBLES
// In lower halves of bytes the first sixteen, in upper ones the others.
alias Codes = vec4<u32>;
#else
alias Codes = array<vec4<u32>, 2>;
#end

// The scales of the first sixteen columns and of the others.
alias Scales = vec2<f32>;

alias Step = array<Eight, 4>;

// Four integers less ZERO, the second and the third exchanged.
#if NIBBLES
// As bits of halves 1024 + n.
fn lower_of(both: u32) -> vec4<f16> {
    let even = halves((both & 0x000f000fu) | 0x64006400u);
    let odd = halves(((both >> 8u) & 0x000f000fu) | 0x64006400u);
    return vec4<f16>(even, odd) - vec4<f16>(f16(1024u + ZERO));
}

// Of halves 1024 + 16 n.
fn upper_of(both: u32) -> vec4<f16> {
    let even = halves((both & 0x00f000f0u) | 0x64006400u);
    let odd = halves(((both >> 8u) & 0x00f000f0u) | 0x64006400u);
    return fma(vec4<f16>(even, odd), vec4<f16>(0.0625h), vec4<f16>(-f16(64u + ZERO)));
}
#else
fn integers_of(codes: u32) -> vec4<f16> {
    // As bits of halves 1024 + n, of integers without a sign.
    let bytes = codes ^ 0x80808080u;
    let even = halves((bytes & 0x00ff00ffu) | 0x64006400u);
    let odd = halves(((bytes >> 8u) & 0x00ff00ffu) | 0x64006400u);
    return vec4<f16>(even, odd) - vec4<f16>(f16(1152u + ZERO));
}
#end

// By their bits, as in `matmul/split_f16.wgsl`: conversions may round as the driver likes.
fn rounded_scales(scales: Scales) -> vec2<f16> {
    let bits = bitcast<vec2<u32>>(scales);
    let up = vec2<u32>(0xfffu) + ((bits >> vec2<u32>(13u)) & vec2<u32>(1u));
    let rounded = (bits + up) & vec2<u32>(0xffffe000u);
    let is_finite = (bits & vec2<u32>(0x7f800000u)) < vec2<u32>(0x7f800000u);
    return vec2<f16>(bitcast<vec2<f32>>(select(bits, rounded, is_finite)));
}

fn step_of(codes: Codes, scales: Scales) -> Step {
    let both = rounded_scales(scales);
    let first = vec4<f16>(both.x);
    let second = vec4<f16>(both.y);
#if NIBBLES
    return Step(
        Eight(lower_of(codes.x) * first, lower_of(codes.y) * first),
        Eight(lower_of(codes.z) * first, lower_of(codes.w) * first),
        Eight(upper_of(codes.x) * second, upper_of(codes.y) * second),
        Eight(upper_of(codes.z) * second, upper_of(codes.w) * second),
    );
#else
    let a = codes[0];
    let b = codes[1];
    return Step(
        Eight(integers_of(a.x) * first, integers_of(a.y) * first),
        Eight(integers_of(a.z) * first, integers_of(a.w) * first),
        Eight(integers_of(b.x) * second, integers_of(b.y) * second),
        Eight(integers_of(b.z) * second, integers_of(b.w) * second),
    );
#end
}

fn store_step(it: Step, square: u32, at: u32) {
#each e 4
    w_tile[square][at + $eu] = it[$e];
#end
}

// Those of a row's `step`-th 32 columns, of which there is one.
fn codes_of(job: Job, row: u32, step: u32) -> Codes {
    let at = step_place(p.m, job.elements, row, step);
    let in_block = step % STEPS_OF_BLOCK;
#if NIBBLES
    return unit_nibbles(at, in_block);
#else
#if HALVES/2
    // In Metal's language the alias and what it stands for are two types.
    let codes = unit_codes(at, in_block);
    return Codes(codes[0], codes[1]);
#else
    return Codes(unit_codes(at, 2u * in_block)[0], unit_codes(at, 2u * in_block + 1u)[0]);
#end
#end
}

// Their scales, 0 after the last step.
fn scales_of(job: Job, row: u32, step: u32) -> Scales {
    let nth = min(step, p.m.n_blocks - 1u);
    let at = step_place(p.m, job.elements, row, nth);
    let in_block = nth % STEPS_OF_BLOCK;
#if HALVES/2
    let pairs = unit_pairs(at, in_block);
    let both = Scales(pairs[0].x, pairs[1].x);
#else
    let both = Scales(unit_pairs(at, 2u * in_block)[0].x, unit_pairs(at, 2u * in_block + 1u)[0].x);
#end
    return select(f32(W_FACTOR) * both, Scales(0.0), step > nth);
}

// Where a piece of activations is, counted from a row's first: of a step's columns, or after these.
fn place_of_piece(step: u32, piece: u32) -> u32 {
    let nth_step = step * STEP + piece / 4u;
    let half = step_half(nth_step, (piece & 3u) >> 1u);
    let place = 2u * half + (piece & 1u);
    return select(place, step * X_PIECES + piece, nth_step >= p.m.n_blocks);
}

#if BIASED
// A block after the others: of each sixteen upper, then lower bits of the biases of eight groups, of
// which there are none after the last.
fn step_of_biases(job: Job, row: u32, behind: u32) -> Step {
    let first = four_biases(job, row, 16u * behind);
    let second = four_biases(job, row, 16u * behind + 4u);
    let third = four_biases(job, row, 16u * behind + 8u);
    let fourth = four_biases(job, row, 16u * behind + 12u);
    return Step(
        Eight(vec4<f16>(cut_off(first)), vec4<f16>(cut_off(second))),
        Eight(vec4<f16>(cut_off(third)), vec4<f16>(cut_off(fourth))),
        Eight(vec4<f16>(first - cut_off(first)), vec4<f16>(second - cut_off(second))),
        Eight(vec4<f16>(third - cut_off(third)), vec4<f16>(fourth - cut_off(fourth))),
    );
}

// As in `matmul/split_f16.wgsl`.
fn cut_off(v: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) & vec4<u32>(0xffffe000u));
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
#end
