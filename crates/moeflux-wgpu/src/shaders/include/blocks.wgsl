// Blocks of ggml, which are read as they lie: each has BLOCK_COLS columns in BLOCK_BYTES bytes, its
// scales among them. A row has whole blocks. What is inside one a file of `blocks/` says for each
// type, by bytes, as most blocks do not begin at words:
//
// `codes`: the integers of four columns, the first lowest, as signed bytes, ZERO more than what
// they stand for;
// `scale_and_bias`: those of sixteen columns, an element being scale * code + bias;
// `unit_codes`, `unit_pairs`, `unit_half`: the integers, scales and biases of what a lane of
// `matmul/matvec.wgsl` takes at once, HALVES times sixteen columns that may lie apart, and which
// sixteen these are.
//
// STAGED: words that `stage` has a workgroup keep in its memory, where lookups are quick; 0 for
// types and kernels that keep none.

#if HAS_CODEBOOK
@group(0) @binding(2) var<storage, read> codebook: array<u32>;

#if STAGED
var<workgroup> staged: array<u32, STAGED>;

fn stage(thread: u32) {
    for (var i = thread; i < STAGED; i += THREADS) { staged[i] = codebook[i]; }
    workgroupBarrier();
}

fn codebook_at(i: u32) -> u32 {
    return staged[i];
}
#else
fn codebook_at(i: u32) -> u32 {
    return codebook[i];
}
#end
#else
@group(0) @binding(2) var<storage, read> w4: array<vec4<u32>>;
#end

struct Place {
    // The first byte of the block.
    at: u32,
    // Of its fours the first.
    four: u32,
}

struct Block {
    place: Place,
    // Scale and bias of the first sixteen columns, then of the others.
    pairs: vec4<f32>,
}

// Where 32 columns are.
fn place_of(m: Matrix, elements: u32, row: u32, blk: u32) -> Place {
    let nth = row * m.n_blocks + blk;
    let per_block = BLOCK_COLS / 32u;
    return Place(4u * elements + nth / per_block * BLOCK_BYTES, nth % per_block * 8u);
}

// Scale and bias of the columns 4 i to 4 i + 3 out of 32, as bits.
fn raw_scales(
    m: Matrix, elements: u32, scales: u32, biases: u32, row: u32, blk: u32, i: u32,
) -> vec2<u32> {
    let place = place_of(m, elements, row, blk);
    return bitcast<vec2<u32>>(scale_and_bias(place.at, (place.four + i) >> 2u));
}

fn block_of(m: Matrix, elements: u32, scales: u32, phase: u32, row: u32, blk: u32) -> Block {
    let place = place_of(m, elements, row, blk);
    let half = place.four >> 2u;
    let pairs =
        vec4<f32>(scale_and_bias(place.at, half), scale_and_bias(place.at, half + 1u));
    return Block(place, pairs);
}

// The same for four columns whose `raw_scales` were read.
fn block_with(
    m: Matrix, elements: u32, scales: u32, phase: u32, row: u32, blk: u32, raw: vec2<u32>,
) -> Block {
    let pair = bitcast<vec2<f32>>(raw);
    return Block(place_of(m, elements, row, blk), vec4<f32>(pair, pair));
}

// The integers of the columns 4 i to 4 i + 3 out of 32.
fn raw_four(place: Place, i: u32) -> vec4<u32> {
    return vec4<u32>(codes(place.at, place.four + i), 0u, 0u, 0u);
}

fn floats_of(codes: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(codes));
}

// The columns 4 i to 4 i + 3 out of 32.
fn four(m: Matrix, it: Block, i: u32) -> vec4<f32> {
    return decode(m, it, i, raw_four(it.place, i));
}

// The same whose integers were read.
fn decode(m: Matrix, it: Block, i: u32, raw: vec4<u32>) -> vec4<f32> {
    let pair = select(it.pairs.xy, it.pairs.zw, i >= 4u);
    return fma(floats_of(raw.x), vec4<f32>(pair.x), vec4<f32>(pair.y));
}

const UNITS_OF_BLOCK: u32 = BLOCK_COLS / (16u * HALVES);

// The first byte of the block that a unit of a row is in.
fn unit_place(m: Matrix, elements: u32, row: u32, unit: u32) -> u32 {
    let per_row = m.n_blocks * 32u / BLOCK_COLS;
    return 4u * elements + (row * per_row + unit / UNITS_OF_BLOCK) * BLOCK_BYTES;
}

const STEPS_OF_BLOCK: u32 = BLOCK_COLS / 32u;

// The first byte of the block that the `step`-th 32 columns of a row are in, in the order of units.
fn step_place(m: Matrix, elements: u32, row: u32, step: u32) -> u32 {
    return 4u * elements + (row * m.n_blocks + step) / STEPS_OF_BLOCK * BLOCK_BYTES;
}

// Which sixteen columns of the row are half of them, and their integers.
#if HALVES/2
fn step_half(step: u32, nth: u32) -> u32 {
    return row_half(step, nth);
}

fn half_codes(at: u32, step: u32, nth: u32) -> vec4<u32> {
    let both = unit_codes(at, step);
    return select(both[0], both[1], nth == 1u);
}
#else
fn step_half(step: u32, nth: u32) -> u32 {
    return 2u * step + nth;
}

fn half_codes(at: u32, step: u32, nth: u32) -> vec4<u32> {
    return unit_codes(at, 2u * step + nth)[0];
}
#end

// Which sixteen columns of a row are the `nth` of a unit.
fn row_half(unit: u32, nth: u32) -> u32 {
    return unit / UNITS_OF_BLOCK * (BLOCK_COLS / 16u) + unit_half(unit % UNITS_OF_BLOCK, nth);
}

fn half_at(at: u32) -> u32 {
    return (w[at >> 2u] >> ((at & 2u) * 8u)) & 0xffffu;
}

fn byte_at(at: u32) -> u32 {
    return (w[at >> 2u] >> ((at & 3u) * 8u)) & 0xffu;
}

// Four bytes from an even one on.
fn four_at(at: u32) -> u32 {
    let low = w[at >> 2u];
    let high = w[(at >> 2u) + 1u];
    return select(low, (low >> 16u) | (high << 16u), (at & 2u) != 0u);
}

// Sixteen bytes from an even one on.
fn sixteen_at(at: u32) -> vec4<u32> {
    let first = at >> 2u;
    let low = words_at(first);
    let high = vec4<u32>(low.yzw, w[first + 4u]);
    let apart = (low >> vec4<u32>(16u)) | (high << vec4<u32>(16u));
    return select(low, apart, (at & 2u) != 0u);
}

fn bytes_of(word: u32) -> vec4<u32> {
    return vec4<u32>(word & 255u, (word >> 8u) & 255u, (word >> 16u) & 255u, word >> 24u);
}

fn words_at(first: u32) -> vec4<u32> {
    return vec4<u32>(w[first], w[first + 1u], w[first + 2u], w[first + 3u]);
}

// The lower halves of 16 bytes, then the upper ones.
fn nibbles(both: vec4<u32>) -> array<vec4<u32>, 2> {
    let mask = vec4<u32>(0x0f0f0f0fu);
    return array<vec4<u32>, 2>(both & mask, (both >> vec4<u32>(4u)) & mask);
}

// A half, also one below the smallest normal, in which scales often are.
fn float_of(bits: u32) -> f32 {
    if (FLOATS == 1u) { return unpack2x16float(bits).x; }
    let magnitude = bits & 0x7fffu;
    let small = bitcast<u32>(f32(magnitude) * 5.9604644775390625e-8);
    var it = select((magnitude << 13u) + (112u << 23u), small, magnitude < 0x400u);
    it = select(it, (magnitude << 13u) | 0x7f800000u, magnitude >= 0x7c00u);
    return bitcast<f32>(it | ((bits & 0x8000u) << 16u));
}

fn float_at(at: u32) -> f32 {
    return float_of(half_at(at));
}

// Scale and bias where codes are ZERO more than the values that they stand for.
fn centred(scale: f32) -> vec2<f32> {
    return vec2<f32>(scale, -f32(ZERO) * scale);
}

// Each of four bits as a byte.
fn spread(bits: u32) -> u32 {
    return (bits * 0x00204081u) & 0x01010101u;
}

// The first bytes where a mask is not set, the second where it is.
fn pick(mask: u32, zero: u32, one: u32) -> u32 {
    return zero ^ (mask & (zero ^ one));
}
