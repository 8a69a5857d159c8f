// Products of matrices with many rows of activations on the cooperative matrices of f16: tiles of
// W_TILE rows of the matrix and X_TILE of activations, a subgroup of which has W_FRAGS by X_FRAGS
// squares of 16 by 16.
//
// SUMMANDS: 0 for blocks of ggml and matrices of 4 bits and of MXFP4, which are unpacked in halves;
// others are decoded to singles, and these are sums of this many halves. One holds what has eleven bits
// (halves, BF16, small floats times powers of two), two 22 bits of anything. The product of two
// lower halves is left out. Elements are taken 16 times, so that those above 4,094 are no halves.
//
// Activations are PARTS halves each: two where weights are no integers, which keep 22 bits, else one,
// which rounds each activation by 2^-12 of itself at most, where a digit of 8 bits rounds it by up to
// 1/254 of its group's largest.
//
// What is unpacked meets one half. An integer less 8 has three bits (or is -8), a BF16 scale eight,
// so that their product is exact. What a group's bias then lacks, bias + 8 scale, meets the sum of its
// activations, rounded to a half as well, in blocks of their own before the others: a half of them
// with its upper bits and one with its lower ones. Biases of symmetric integers lack nothing. Scales
// are taken 128 times, so that small ones stay whole; above 60 they are no halves. Of E2M1 an element
// has two bits, its scale is a power of two, up to 64 here, and there are no biases.
//
// Blocks of ggml: see `matmul/coop_blocks.wgsl`.
//
// A sum's order follows from its row's length alone: 16 columns after the other, of each first
// the upper parts of the activations, and the lower ones of weights last.
//
// EMULATED: by plain loops, for devices without such units.

enable f16;
#if EMULATED
#else
enable wgpu_cooperative_matrix;
#end

struct Params {
    m: Matrix,
    jobs: u32,
    // Pairs: a job, and its first row of activations.
    tiles: u32,
    n_tiles: u32,
    // Eights of a row of activations.
    stride: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
#if W_WORDS/4
alias Words = vec4<u32>;
alias Left = vec4<f32>;
#else
alias Words = vec2<u32>;
alias Left = vec2<f32>;
#end
@group(0) @binding(2) var<storage, read> wide: array<Words>;
@group(0) @binding(3) var<storage, read> lists: array<u32>;
// (rows, blocks, parts, 4), see `matmul/split_f16.wgsl`.
@group(0) @binding(4) var<storage, read> x: array<EightOfX>;
@group(0) @binding(5) var<storage, read> factors: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

// Fours between two rows of a tile: those of a step and two, so that rows begin
// at different banks.
const X_LD: u32 = 8u * STEP * PARTS + 2u;
const W_LD: u32 = 8u * STEP * W_PARTS + 2u;
// Pieces that threads load of a row in a step.
const X_PIECES: u32 = 4u * STEP * PARTS;
const W_PIECES: u32 = 4u * STEP / W_WORDS;
const X_SQUARES: u32 = X_TILE / 16u;
const W_SQUARES: u32 = W_TILE / 16u;
// In squares of 16 rows: what is indexed inside one when matrices are loaded is
// known when this is compiled, and so is that it is aligned. In eights: both
// halves of one are stored at an index that is checked once.
alias Eight = array<vec4<f16>, 2>;
// The same as it is loaded.
#if PARTS/2
alias EightOfX = vec4<u32>;
#else
alias EightOfX = Eight;
#end
var<workgroup> w_tile: array<array<Eight, 8u * W_LD>, W_SQUARES>;
var<workgroup> x_tile: array<array<Eight, 8u * X_LD>, X_SQUARES>;
// A square of outputs for each subgroup.
var<workgroup> out: array<array<f32, 256>, THREADS / 32u>;

fn halves(v: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(v));
}

#if BLOCKS
#coop_blocks
#else
#if SUMMANDS
// The words of the `e`-th eight of a block.
fn raw_eight(job: Job, row: u32, blk: u32, e: u32) -> array<vec4<u32>, 2> {
    let place = place_of(p.m, job.elements, row, blk);
    return array<vec4<u32>, 2>(raw_four(place, 2u * e), raw_four(place, 2u * e + 1u));
}

fn scales_of(job: Job, row: u32, blk: u32, e: u32) -> vec2<u32> {
    return raw_scales(p.m, job.elements, job.scales, job.phase, row, blk, 2u * e);
}

// The eight, in the order of `matmul/split_f16.wgsl`.
fn decoded(
    job: Job, row: u32, blk: u32, e: u32, raw: array<vec4<u32>, 2>, scales: vec2<u32>,
) -> array<vec4<f32>, 2> {
    let it = block_with(p.m, job.elements, job.scales, job.phase, row, blk, scales);
    let a = f32(W_FACTOR) * decode(p.m, it, 2u * e, raw[0]);
    let b = f32(W_FACTOR) * decode(p.m, it, 2u * e + 1u, raw[1]);
    return array<vec4<f32>, 2>(vec4<f32>(a.x, b.x, a.y, b.y), vec4<f32>(a.z, b.z, a.w, b.w));
}

// Cut off, as in `matmul/split_f16.wgsl`.
fn upper(v: array<vec4<f32>, 2>) -> array<vec4<f32>, 2> {
    let mask = vec4<u32>(0xffffe000u);
    return array<vec4<f32>, 2>(
        bitcast<vec4<f32>>(bitcast<vec4<u32>>(v[0]) & mask),
        bitcast<vec4<f32>>(bitcast<vec4<u32>>(v[1]) & mask),
    );
}

fn store_w(v: array<vec4<f32>, 2>, square: u32, at: u32) {
#if W_PARTS/2
    let high = upper(v);
    w_tile[square][at] = Eight(vec4<f16>(high[0]), vec4<f16>(high[1]));
    w_tile[square][at + 4u] = Eight(vec4<f16>(v[0] - high[0]), vec4<f16>(v[1] - high[1]));
#else
    w_tile[square][at] = Eight(vec4<f16>(v[0]), vec4<f16>(v[1]));
#end
}
#else
// Eight elements times their scale, in the order of `matmul/split_f16.wgsl`.
#if FORMAT/4
fn eight_of(v: u32, scale: f32) -> Eight {
    let s = vec2<f16>(f16(scale));
    // Exponent and mantissa where a half has its lowest ones: the element divided by 2^14.
    let a = ((v & 0x00070007u) << 9u) | ((v & 0x00080008u) << 12u);
    let b = ((v & 0x00700070u) << 5u) | ((v & 0x00800080u) << 8u);
    let c = ((v & 0x07000700u) << 1u) | ((v & 0x08000800u) << 4u);
    let d = ((v & 0x70007000u) >> 3u) | (v & 0x80008000u);
    let whole = vec2<f16>(16384.0h);
    return Eight(
        vec4<f16>(halves(a) * whole * s, halves(b) * whole * s),
        vec4<f16>(halves(c) * whole * s, halves(d) * whole * s),
    );
}
#else
// Of integers less eight.
fn eight_of(v: u32, scale: f32) -> Eight {
    // As bits of halves 1024 + n, and 1024 + 16 n.
    let s = vec2<f16>(f16(scale));
    let u = v >> 8u;
    let a = halves((v & 0x000f000fu) | 0x64006400u) - vec2<f16>(1032.0h);
    let b = fma(halves((v & 0x00f000f0u) | 0x64006400u), vec2<f16>(0.0625h), vec2<f16>(-72.0h));
    let c = halves((u & 0x000f000fu) | 0x64006400u) - vec2<f16>(1032.0h);
    let d = fma(halves((u & 0x00f000f0u) | 0x64006400u), vec2<f16>(0.0625h), vec2<f16>(-72.0h));
    return Eight(vec4<f16>(a * s, b * s), vec4<f16>(c * s, d * s));
}
#end

// 0 after the last block, where a step has several.
fn scale_at(job: Job, row: u32, blk: u32) -> f32 {
    let at = min(blk, p.m.n_blocks - 1u);
#if FORMAT/4
    let raw = raw_scales(p.m, job.elements, job.scales, 0u, row, at, 0u);
    let scale = f32(W_FACTOR) * small_scale(raw.x, small_scale_at(p.m, row, at));
#else
    let scale = f32(W_FACTOR) * affine_pair(p.m, job.scales, job.phase, row, at).x;
#end
#if STEP/2
    return select(scale, 0.0, blk > at);
#else
    return scale;
#end
}
#end

#if BIASED
// What is left of the biases of the `W_WORDS` groups from `group` on, of which there are none
// after the last: one load where their words are aligned.
fn left_of_groups(job: Job, row: u32, group: u32) -> Left {
    let n_groups = p.m.n_blocks >> p.m.group_shift;
    var scales: Left;
    var biases: Left;
    let at = job.scales + row * n_groups + group;
    if (FLOATS == FLOATS_BF16 && at % W_WORDS == 0u) {
        let both = wide[at / W_WORDS];
        scales = bitcast<Left>(both << Words(16u));
        biases = bitcast<Left>(both & Words(0xffff0000u));
    } else {
#each k W_WORDS
        let blk_$k = min((group + $ku) << p.m.group_shift, p.m.n_blocks - 1u);
        let pair_$k = affine_pair(p.m, job.scales, job.phase, row, blk_$k);
        scales[$k] = pair_$k.x;
        biases[$k] = pair_$k.y;
#end
    }
    var left = f32(W_FACTOR) * fma(Left(8.0), scales, biases);
#each k W_WORDS
    left[$k] = select(left[$k], 0.0, group + $ku >= n_groups);
#end
    return left;
}

// The `e`-th eight of a block after the others: upper or lower bits of what is left of eight
// groups' biases.
fn biases(job: Job, row: u32, behind: u32, e: u32) -> Eight {
    let group = 16u * behind + 8u * (e & 1u);
#each k 8/W_WORDS
    let left_$k = left_of_groups(job, row, group + $ku * W_WORDS);
#end
#if W_WORDS/4
    let a = left_0;
    let b = left_1;
#else
    let a = vec4<f32>(left_0, left_1);
    let b = vec4<f32>(left_2, left_3);
#end
    // Cut off, as in `matmul/split_f16.wgsl`.
    let high_a = bitcast<vec4<f32>>(bitcast<vec4<u32>>(a) & vec4<u32>(0xffffe000u));
    let high_b = bitcast<vec4<f32>>(bitcast<vec4<u32>>(b) & vec4<u32>(0xffffe000u));
    if (e >= 2u) { return Eight(vec4<f16>(a - high_a), vec4<f16>(b - high_b)); }
    return Eight(vec4<f16>(high_a), vec4<f16>(high_b));
}
#end
#end

fn store_x(v: EightOfX, square: u32, at: u32) {
#if PARTS/2
    x_tile[square][at][0] = vec4<f16>(halves(v.x), halves(v.y));
    x_tile[square][at][1] = vec4<f16>(halves(v.z), halves(v.w));
#else
    x_tile[square][at] = v;
#end
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
) {
    // Workgroups beyond the last repeat it, and rows beyond those of a job are not written: cooperative
    // matrices need all threads of a subgroup.
    let tile = min(id.z * n.y + id.y, p.n_tiles - 1u);
    let job = job_at(p.jobs, lists[p.tiles + 2u * tile]);
    let x_first = lists[p.tiles + 2u * tile + 1u];
    let w_first = id.x * W_TILE;
    let x_piece = thread % X_PIECES;
#each i X_LOADS
    let x_row_$i = thread / X_PIECES + $iu * (THREADS / X_PIECES);
    let x_list_$i = job.list + 2u * min(x_first + x_row_$i, job.n_list - 1u);
    let x_from_$i = (lists[x_list_$i] + job.x) * p.stride;
    let x_to_$i = (x_row_$i & 15u) * (X_LD / 2u) + x_piece;
#end
    let w_piece = thread % W_PIECES;
    let w_block = w_piece * W_WORDS / 4u;
    let w_word = (w_piece * W_WORDS) & 3u;
#each i W_LOADS
    let w_in_tile_$i = thread / W_PIECES + $iu * (THREADS / W_PIECES);
    let w_row_$i = job.first_row + min(w_first + w_in_tile_$i, job.n_rows - 1u);
#if BLOCKS
    let w_to_$i = (w_in_tile_$i & 15u) * (W_LD / 2u) + 4u * w_block;
#else
    let w_from_$i = (job.elements + w_row_$i * p.m.n_blocks * 4u) / W_WORDS + w_word / W_WORDS;
    let w_to_$i = (w_in_tile_$i & 15u) * (W_LD / 2u) + w_piece * W_WORDS;
#end
#end
#if EMULATED
    var sums: array<f32, 8u * X_FRAGS * W_FRAGS>;
#else
    let in_x = X_FRAGS * (subgroup % (X_SQUARES / X_FRAGS));
    let in_w = W_FRAGS * (subgroup / (X_SQUARES / X_FRAGS));
#each a X_FRAGS
#each b W_FRAGS
    var c_$a_$b = coop_mat16x16<f32, C>();
#end
#end
#end
    // Jobs without rows take no step; everybody comes along all the same.
    let is_empty = w_first >= job.n_rows;
    let n_blocks = p.m.n_blocks;
#if BIASED
#if BLOCKS
    let n_groups = n_blocks * 32u / GROUP_COLS;
#else
    let n_groups = n_blocks >> p.m.group_shift;
#end
    let n_bias_steps = select(((n_groups + 15u) / 16u + STEP - 1u) / STEP, 0u, is_empty);
    for (var step = 0u; step < n_bias_steps; step++) {
        // What is after a row meets zeros, but need not be a number.
        let piece = min(4u * n_blocks + step * X_PIECES + x_piece, p.stride - 1u);
#each i X_LOADS
        let x_$i = x[x_from_$i + piece];
#end
        workgroupBarrier();
#each i W_LOADS
#if BLOCKS
        store_step(
            step_of_biases(job, w_row_$i, step * STEP + w_block), w_in_tile_$i >> 4u, w_to_$i,
        );
#else
#each t W_WORDS
        w_tile[w_in_tile_$i >> 4u][w_to_$i + $tu] =
            biases(job, w_row_$i, step * STEP + w_block, w_word + $tu);
#end
#end
#end
#each i X_LOADS
        store_x(x_$i, x_row_$i >> 4u, x_to_$i);
#end
        workgroupBarrier();
#coop_multiply
    }
#end
#if BLOCKS
    let first_piece = place_of_piece(0u, x_piece);
#else
    let first_piece = x_piece;
#end
#each i X_LOADS
    var x_$i = x[x_from_$i + first_piece];
#end
    let last = p.m.n_blocks - 1u;
    let n_steps = select((n_blocks + STEP - 1u) / STEP, 0u, is_empty);
#if BLOCKS
    // Integers of two steps: the first one's are multiplied by their scales already.
#each i W_LOADS
    var ready_$i = step_of(
        codes_of(job, w_row_$i, min(w_block, last)), scales_of(job, w_row_$i, w_block),
    );
    var codes_$i = codes_of(job, w_row_$i, min(STEP + w_block, last));
    var scales_$i = scales_of(job, w_row_$i, STEP + w_block);
#end
    for (var step = 0u; step < n_steps; step++) {
        workgroupBarrier();
#each i W_LOADS
        store_step(ready_$i, w_in_tile_$i >> 4u, w_to_$i);
#end
#each i X_LOADS
        store_x(x_$i, x_row_$i >> 4u, x_to_$i);
#end
        workgroupBarrier();
        // As below: what comes next is on its way while this step is multiplied.
        let ahead = place_of_piece(min(step + 1u, n_steps - 1u), x_piece);
#each i X_LOADS
        x_$i = x[x_from_$i + ahead];
#end
        let later = (step + 2u) * STEP + w_block;
#each i W_LOADS
        ready_$i = step_of(codes_$i, scales_$i);
        codes_$i = codes_of(job, w_row_$i, min(later, last));
        scales_$i = scales_of(job, w_row_$i, later);
#end
#coop_multiply
    }
#else
#if SUMMANDS
#each i W_LOADS
#each t W_WORDS
    var eight_$i_$t = decoded(
        job, w_row_$i, 0u, w_word + $tu,
        raw_eight(job, w_row_$i, 0u, w_word + $tu), scales_of(job, w_row_$i, 0u, w_word + $tu),
    );
#end
#end
    for (var step = 0u; step < n_steps; step++) {
        workgroupBarrier();
#each i W_LOADS
#each t W_WORDS
        store_w(eight_$i_$t, w_in_tile_$i >> 4u, (w_in_tile_$i & 15u) * (W_LD / 2u) + w_word + $tu);
#end
#end
#each i X_LOADS
        store_x(x_$i, x_row_$i >> 4u, x_to_$i);
#end
        workgroupBarrier();
        // The next step's words are on their way while this one is multiplied.
        let ahead = min(step + 1u, n_steps - 1u);
#each i X_LOADS
        x_$i = x[x_from_$i + ahead * X_PIECES + x_piece];
#end
#each i W_LOADS
#each t W_WORDS
        let scales_$i_$t = scales_of(job, w_row_$i, ahead, w_word + $tu);
        let raw_$i_$t = raw_eight(job, w_row_$i, ahead, w_word + $tu);
#end
#end
#coop_multiply
#each i W_LOADS
#each t W_WORDS
        eight_$i_$t = decoded(job, w_row_$i, ahead, w_word + $tu, raw_$i_$t, scales_$i_$t);
#end
#end
    }
#else
    // Words of two steps: those of the first are unpacked already.
    let first_block = min(w_block, last);
    let next_block = min(STEP + w_block, last);
#each i W_LOADS
    let first_$i = wide[w_from_$i + first_block * (4u / W_WORDS)];
    let first_scale_$i = scale_at(job, w_row_$i, w_block);
#each t W_WORDS
    var eight_$i_$t = eight_of(first_$i[$t], first_scale_$i);
#end
    var w_$i = wide[w_from_$i + next_block * (4u / W_WORDS)];
    var scale_$i = scale_at(job, w_row_$i, STEP + w_block);
#end
    let group_mask = (1u << p.m.group_shift) - 1u;
    for (var step = 0u; step < n_steps; step++) {
        workgroupBarrier();
#each i W_LOADS
#each t W_WORDS
        w_tile[w_in_tile_$i >> 4u][w_to_$i + $tu] = eight_$i_$t;
#end
#end
#each i X_LOADS
        store_x(x_$i, x_row_$i >> 4u, x_to_$i);
#end
        workgroupBarrier();
        // While this step is multiplied the next one's words are unpacked, and
        // those of the one after it are on their way: compilers put all of it
        // between multiplications where nothing branches.
        let ahead = min(step + 1u, n_steps - 1u);
#each i X_LOADS
        x_$i = x[x_from_$i + ahead * X_PIECES + x_piece];
#end
        let later = min((step + 2u) * STEP + w_block, last);
#each i W_LOADS
#each t W_WORDS
        eight_$i_$t = eight_of(w_$i[$t], scale_$i);
#end
        w_$i = wide[w_from_$i + later * (4u / W_WORDS)];
#if STEP/2
        scale_$i = scale_at(job, w_row_$i, (step + 2u) * STEP + w_block);
#end
#end
#if STEP/2
#else
        // The blocks of a group share its scale. Where a step has several blocks
        // this branch costs more than it saves.
        if ((later & group_mask) == 0u) {
#each i W_LOADS
            scale_$i = scale_at(job, w_row_$i, later);
#end
        }
#end
#coop_multiply
    }
#end
#end
#if EMULATED
    for (var i = 0u; i < 8u * X_FRAGS * W_FRAGS; i++) {
        let at = i * THREADS + thread;
        let x_idx = x_first + at / W_TILE;
        let row = w_first + at % W_TILE;
        if (x_idx < job.n_list && row < job.n_rows) {
            let x_row = lists[job.list + 2u * x_idx];
            let to = lists[job.list + 2u * x_idx + 1u] + job.out;
            y[to + row] = sums[i] * (factors[x_row] / f32(W_FACTOR));
        }
    }
#else
    let lane = thread & 31u;
#each a X_FRAGS
    {
#each i 8
        let x_idx_$i = x_first + 16u * (in_x + $au) + 2u * $iu + (lane >> 4u);
        let pair_$i = job.list + 2u * min(x_idx_$i, job.n_list - 1u);
        let factor_$i = factors[lists[pair_$i]] / f32(W_FACTOR);
        let to_$i = lists[pair_$i + 1u] + job.out;
#end
#each b W_FRAGS
        {
            workgroupBarrier();
            coopStoreT(c_$a_$b, &out[subgroup][0], 16u);
            workgroupBarrier();
            let row = w_first + 16u * (in_w + $bu) + (lane & 15u);
#each i 8
            if (x_idx_$i < job.n_list && row < job.n_rows) {
                y[to_$i + row] = out[subgroup][32u * $iu + lane] * factor_$i;
            }
#end
        }
#end
    }
#end
#end
}
