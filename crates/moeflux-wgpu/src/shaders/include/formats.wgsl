// How weights are stored: rows of blocks of 32 columns, in words, and their scales.

@group(0) @binding(2) var<storage, read> w4: array<vec4<u32>>;

// The first word of a block.
alias Place = u32;

struct Block {
    word: Place,
    // Scale and bias of affine integers; scales of both halves of small floats; scale of NF4.
    a: f32,
    b: f32,
    // Of rectangles.
    scales: u32,
    col: u32,
}

fn block_words() -> u32 {
    if (FORMAT == FORMAT_AFFINE) { return BITS; }
    if (FORMAT == FORMAT_F32) { return 32u; }
    if (FORMAT == FORMAT_F16 || FORMAT == FORMAT_BF16) { return 16u; }
    if (FORMAT == FORMAT_E2M1 || FORMAT == FORMAT_NF4) { return 4u; }
    return 8u;
}

fn half_of(word: u32, idx: u32) -> u32 {
    return (word >> ((idx & 1u) * 16u)) & 0xffffu;
}

fn byte_of(word: u32, idx: u32) -> u32 {
    return (word >> ((idx & 3u) * 8u)) & 0xffu;
}

fn float_at(first: u32, idx: u32) -> f32 {
    if (FLOATS == FLOATS_F32) { return bitcast<f32>(w[first + idx]); }
    let bits = half_of(w[first + (idx >> 1u)], idx);
    if (FLOATS == FLOATS_F16) { return unpack2x16float(bits).x; }
    return bitcast<f32>(bits << 16u);
}

fn e8m0(code: u32) -> f32 {
    let bits = select(code << 23u, 0x400000u, code == 0u);
    return bitcast<f32>(select(bits, 0x7fc00000u, code == 255u));
}

fn e4m3(code: u32) -> f32 {
    let magnitude = (code & 0x7fu) << 20u;
    let small = bitcast<u32>(bitcast<f32>(magnitude + (121u << 23u)) - 0.015625);
    var bits = select(magnitude + (120u << 23u), small, magnitude < (1u << 23u));
    bits = select(bits, 0x7fc00000u, magnitude == (0x7fu << 20u));
    return bitcast<f32>(bits | ((code & 0x80u) << 24u));
}

fn e2m1(code: u32) -> f32 {
    let magnitude = (code & 7u) << 22u;
    let small = bitcast<u32>(bitcast<f32>(magnitude + (127u << 23u)) - 1.0);
    let bits = select(magnitude + (126u << 23u), small, magnitude < (1u << 23u));
    return bitcast<f32>(bits | ((code & 8u) << 28u));
}

// The level of a code: of four for each value of its upper bits.
fn nf4(code: u32) -> f32 {
    let below = select(
        vec4<f32>(-1.0, -0.6961928, -0.52507305, -0.3949175),
        vec4<f32>(-0.28444138, -0.18477343, -0.091050036, 0.0),
        (code & 4u) != 0u,
    );
    let above = select(
        vec4<f32>(0.0795803, 0.1609302, 0.2461123, 0.33791524),
        vec4<f32>(0.44070983, 0.562617, 0.72295684, 1.0),
        (code & 4u) != 0u,
    );
    let of_four = select(below, above, (code & 8u) != 0u);
    let of_two = select(of_four.xy, of_four.zw, (code & 2u) != 0u);
    return select(of_two.x, of_two.y, (code & 1u) != 0u);
}

fn small_scale(word: u32, idx: u32) -> f32 {
    let code = byte_of(word, idx);
    if ((BITS & SMALL_E4M3) == 0u) { return e8m0(code); }
    return e4m3(code);
}

// Which of the pairs of scale and bias a block has.
fn pair_at(m: Matrix, row: u32, blk: u32) -> u32 {
    return row * (m.n_blocks >> m.group_shift) + (blk >> m.group_shift);
}

// Which of the scales of small floats a block has, or the first of two.
fn small_scale_at(m: Matrix, row: u32, blk: u32) -> u32 {
    return (row * m.n_blocks + blk) << select(0u, 1u, (BITS & SMALL_SIXTEEN) != 0u);
}

// The words in which a block's scales and biases are, or of small floats the scale of all of the
// matrix; nothing for rectangles. They are the same for all fours of its columns and apart from its
// elements, unlike those in blocks of ggml.
fn raw_scales(
    m: Matrix, elements: u32, scales: u32, biases: u32, row: u32, blk: u32, i: u32,
) -> vec2<u32> {
    if (FORMAT == FORMAT_E2M1 || FORMAT == FORMAT_E4M3) {
        let first = small_scale_at(m, row, blk) >> 2u;
        if ((BITS & SMALL_GLOBAL) == 0u) { return vec2<u32>(w[scales + first], 0u); }
        if ((BITS & SMALL_APART) != 0u) { return vec2<u32>(w[scales + first], w[biases]); }
        return vec2<u32>(w[scales + 1u + first], w[scales]);
    }
    if (FORMAT == FORMAT_NF4) { return vec2<u32>(w[scales + pair_at(m, row, blk)], 0u); }
    if (FORMAT != FORMAT_AFFINE) { return vec2<u32>(); }
    let at = pair_at(m, row, blk);
    if (FLOATS == FLOATS_SYMMETRIC + FLOATS_F32) { return vec2<u32>(w[scales + at], 0u); }
    if (FLOATS >= FLOATS_SYMMETRIC) { return vec2<u32>(w[scales + (at >> 1u)], 0u); }
    if (FLOATS == FLOATS_APART + FLOATS_F32) { return vec2<u32>(w[scales + at], w[biases + at]); }
    if (FLOATS >= FLOATS_APART) { return vec2<u32>(w[scales + (at >> 1u)], w[biases + (at >> 1u)]); }
    if (FLOATS == FLOATS_F32) { return vec2<u32>(w[scales + 2u * at], w[scales + 2u * at + 1u]); }
    return vec2<u32>(w[scales + at], 0u);
}

fn symmetric_scale(raw: u32, at: u32) -> f32 {
    if (FLOATS == FLOATS_SYMMETRIC + FLOATS_F32) { return bitcast<f32>(raw); }
    let bits = half_of(raw, at);
    if (FLOATS == FLOATS_SYMMETRIC + FLOATS_F16) { return unpack2x16float(bits).x; }
    return bitcast<f32>(bits << 16u);
}

// Scale and bias of affine integers, the `at`-th of all, out of their words.
fn pair_of(raw: vec2<u32>, at: u32) -> vec2<f32> {
    if (FLOATS >= FLOATS_SYMMETRIC) {
        let scale = symmetric_scale(raw.x, at);
        return vec2<f32>(scale, -0.5 * f32(1u << BITS) * scale);
    }
    if (FLOATS == FLOATS_F32 || FLOATS == FLOATS_APART + FLOATS_F32) { return bitcast<vec2<f32>>(raw); }
    var both = raw.x;
    if (FLOATS >= FLOATS_APART) { both = half_of(raw.x, at) | (half_of(raw.y, at) << 16u); }
    if (FLOATS == FLOATS_F16 || FLOATS == FLOATS_APART + FLOATS_F16) { return unpack2x16float(both); }
    return bitcast<vec2<f32>>(vec2<u32>(both << 16u, both & 0xffff0000u));
}

// Scale and bias of a block of affine integers; `biases` counts where these are apart.
fn affine_pair(m: Matrix, scales: u32, biases: u32, row: u32, blk: u32) -> vec2<f32> {
    return pair_of(raw_scales(m, 0u, scales, biases, row, blk, 0u), pair_at(m, row, blk));
}

fn place_of(m: Matrix, elements: u32, row: u32, blk: u32) -> Place {
    return elements + (row * m.n_blocks + blk) * block_words();
}

// Block `blk` of a row of the matrix whose elements begin at word `elements` and whose scales
// begin at word `scales`; `phase` rows of the first rectangles are before its first row, or
// biases, or the scale of all of the matrix, that are apart begin at that word.
fn block_of(m: Matrix, elements: u32, scales: u32, phase: u32, row: u32, blk: u32) -> Block {
    let raw = raw_scales(m, elements, scales, phase, row, blk, 0u);
    return block_with(m, elements, scales, phase, row, blk, raw);
}

// The same whose `raw_scales` were read.
fn block_with(
    m: Matrix, elements: u32, scales: u32, phase: u32, row: u32, blk: u32, raw: vec2<u32>,
) -> Block {
    var it = Block(place_of(m, elements, row, blk), 1.0, 0.0, 0u, blk * 32u);
    if (FORMAT == FORMAT_AFFINE) {
        let pair = pair_of(raw, pair_at(m, row, blk));
        it.a = pair.x;
        it.b = pair.y;
    } else if (FORMAT == FORMAT_E2M1 || FORMAT == FORMAT_E4M3) {
        let at = small_scale_at(m, row, blk);
        it.a = small_scale(raw.x, at);
        it.b = it.a;
        if ((BITS & SMALL_SIXTEEN) != 0u) { it.b = small_scale(raw.x, at + 1u); }
        if ((BITS & SMALL_GLOBAL) != 0u) {
            it.a *= bitcast<f32>(raw.y);
            it.b *= bitcast<f32>(raw.y);
        }
    } else if (FORMAT == FORMAT_NF4) {
        it.a = bitcast<f32>(raw.x);
    } else if (FORMAT == FORMAT_E4M3_BLOCKS) {
        it.scales = scales;
        let first = ((phase + row) / m.block_rows) * m.n_col_blocks;
        it.a = bitcast<f32>(first);
    }
    return it;
}

// The words in which the columns 4 i to 4 i + 3 of a block are.
fn raw_four(word: Place, i: u32) -> vec4<u32> {
    if (FORMAT == FORMAT_AFFINE && (BITS == 3u || BITS == 5u || BITS == 6u)) {
        let at = 4u * i * BITS;
        let first = word + (at >> 5u);
        var raw = vec4<u32>(w[first], 0u, 0u, 0u);
        if ((at & 31u) + 4u * BITS > 32u) { raw.y = w[first + 1u]; }
        return raw;
    }
    if (FORMAT == FORMAT_AFFINE) { return vec4<u32>(w[word + i * BITS / 8u], 0u, 0u, 0u); }
    if (FORMAT == FORMAT_F32) {
        let at = word + 4u * i;
        return vec4<u32>(w[at], w[at + 1u], w[at + 2u], w[at + 3u]);
    }
    if (FORMAT == FORMAT_F16 || FORMAT == FORMAT_BF16) {
        let at = word + 2u * i;
        return vec4<u32>(w[at], w[at + 1u], 0u, 0u);
    }
    if (FORMAT == FORMAT_E2M1 || FORMAT == FORMAT_NF4) {
        return vec4<u32>(w[word + (i >> 1u)], 0u, 0u, 0u);
    }
    return vec4<u32>(w[word + i], 0u, 0u, 0u);
}

// The integers of the columns 4 i to 4 i + 3 of a block, in that order.
fn integers(word: u32, i: u32) -> vec4<u32> {
    return integers_of(raw_four(word, i), i);
}

// The same whose words were read.
fn integers_of(raw: vec4<u32>, i: u32) -> vec4<u32> {
    // 3, 5 and 6 bits may be in two words.
    let shift = (4u * i * BITS) & 31u;
    var v = raw.x >> shift;
    if (shift + 4u * BITS > 32u) { v |= raw.y << (32u - shift); }
    // The mask matters in other formats only, where BITS are flags: shaders must be valid there too.
    let shifts = (vec4<u32>(0u, 1u, 2u, 3u) * BITS) & vec4<u32>(31u);
    return (vec4<u32>(v) >> shifts) & vec4<u32>((1u << BITS) - 1u);
}

fn e4m3_four(word: u32) -> vec4<f32> {
    return vec4<f32>(
        e4m3(word & 255u),
        e4m3((word >> 8u) & 255u),
        e4m3((word >> 16u) & 255u),
        e4m3(word >> 24u),
    );
}

// The scales of four columns, which may be in different rectangles.
fn rectangle_scales(m: Matrix, it: Block, i: u32) -> vec4<f32> {
    let first = bitcast<u32>(it.a);
    var scales: vec4<f32>;
    for (var k = 0u; k < 4u; k++) {
        let col = min(it.col + 4u * i + k, m.cols - 1u);
        scales[k] = float_at(it.scales, first + col / m.block_cols);
    }
    return scales;
}

// The columns 4 i to 4 i + 3 of a block; columns after the last are zero.
fn four(m: Matrix, it: Block, i: u32) -> vec4<f32> {
    return decode(m, it, i, raw_four(it.word, i));
}

// The same whose words were read: the first of `raw` that four columns take; of E2M1 and NF4, the
// one that they are in.
fn decode(m: Matrix, it: Block, i: u32, raw: vec4<u32>) -> vec4<f32> {
    if (FORMAT == FORMAT_AFFINE) {
        return fma(vec4<f32>(integers_of(raw, i)), vec4<f32>(it.a), vec4<f32>(it.b));
    }
    if (FORMAT == FORMAT_F32) { return bitcast<vec4<f32>>(raw); }
    if (FORMAT == FORMAT_F16) { return vec4<f32>(unpack2x16float(raw.x), unpack2x16float(raw.y)); }
    if (FORMAT == FORMAT_BF16) {
        let low = raw.xy << vec2<u32>(16u);
        let high = raw.xy & vec2<u32>(0xffff0000u);
        return bitcast<vec4<f32>>(vec4<u32>(low.x, high.x, low.y, high.y));
    }
    if (FORMAT == FORMAT_E2M1) {
        let v = raw.x >> ((i & 1u) * 16u);
        let scale = select(it.a, it.b, i >= 4u);
        return scale * vec4<f32>(e2m1(v), e2m1(v >> 4u), e2m1(v >> 8u), e2m1(v >> 12u));
    }
    if (FORMAT == FORMAT_NF4) {
        // The lower column of a byte is in its upper half.
        let v = raw.x >> ((i & 1u) * 16u);
        return it.a * vec4<f32>(nf4(v >> 4u), nf4(v), nf4(v >> 12u), nf4(v >> 8u));
    }
    if (FORMAT == FORMAT_E4M3) { return select(it.a, it.b, i >= 4u) * e4m3_four(raw.x); }
    return rectangle_scales(m, it, i) * e4m3_four(raw.x);
}
