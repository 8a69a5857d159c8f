// What `attention/rows.wgsl` does, on the cooperative matrices of f16: 16 queries a subgroup,
// which with those of neighbouring rows and all heads of a group share keys, 64 positions after
// the other. Queries and weights are sums of Q_PARTS halves, keys and values of PARTS, see
// `attention/split_f16_qkv.wgsl`: what two lower halves multiply to is left out, 2^-22 of a
// product. A square has 16 vectors by BLOCK columns.
//
// Weights are powers of e times a factor of their row, so that the row's largest so far is
// between 2^7 and 2^15. Sums are multiplied anew where that would be left after, which is seldom,
// as units have no way to do so: through workgroup memory (the idea is that of FlashAttention-4).
// Values count in units of the loudest tile so far.
//
// Values of more columns than threads have room for are taken in V_PARTS parts of V_DIM columns, each
// by workgroups of its own, which all compute the same weights. Of a part's columns Y_DIM are written; those
// after them are zeros, as are those of keys after K_SQUARES squares. ZEROS: there are such squares, which
// are not multiplied. What a block adds to scores: see `attention/coop_scores.wgsl`.
//
// EMULATED: by plain loops, for devices without such units.

enable f16;
#if EMULATED
#else
enable wgpu_cooperative_matrix;
#end

struct Params {
    n_kv_heads: u32,
    n_heads: u32,
    // Query heads of a key head.
    group: u32,
    scale: f32,
    // 0 for none.
    window: u32,
    mask_words: u32,
    y_start: u32,
    y_width: u32,
    y_stride: u32,
    has_sinks: u32,
    gate_start: u32,
    gate_width: u32,
    gate_stride: u32,
    has_gate: u32,
    // Positions of a key.
    size: u32,
    first_row: u32,
    position: u32,
    n_queries: u32,
    // The positions that are looked at now, from a tile's first one on, and whether others come
    // before and after.
    seen_from: u32,
    seen_to: u32,
    went_on: u32,
    goes_on: u32,
    ahead_to: u32,
    // Workgroups' queries of a key head, and places for queries and for positions.
    n_blocks: u32,
    q_places: u32,
    places: u32,
    // Where values begin, in eights, and factors of keys and of values.
    values: u32,
    key_factors: u32,
    value_factors: u32,
    n: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> queries: array<vec4<u32>>;
// Keys, then values.
@group(0) @binding(2) var<storage, read> cached: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> factors: array<f32>;
@group(0) @binding(4) var<storage, read> chosen: array<u32>;
@group(0) @binding(5) var<storage, read> sinks: array<f32>;
// (rows, heads): maximum, total, sums.
@group(0) @binding(6) var<storage, read_write> parts: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
@group(0) @binding(8) var<storage, read> gate: array<f32>;

const QUERIES: u32 = 16u * SUBGROUPS;
// Eights of a block of columns: of a half of each, of queries, and of keys and values.
const HALF_EIGHTS: u32 = BLOCK / 8u;
const Q_EIGHTS: u32 = HALF_EIGHTS * Q_PARTS;
const EIGHTS: u32 = HALF_EIGHTS * PARTS;
// Of a step's values, 16 positions, and of a position's: what a part has of them, and all.
const V_EIGHTS: u32 = 16u * V_ROW;
const V_ROW: u32 = V_BLOCKS * EIGHTS;
const V_ALL: u32 = V_PARTS * V_ROW;
// Fours between two rows of a square: two more than there are, so that rows begin at
// different banks.
const LD: u32 = 2u * HALF_EIGHTS * MOST_PARTS + 2u;
const WEIGHTS_LD: u32 = 4u * Q_PARTS + 2u;
// By how much a row's maximum may grow until its sums are multiplied anew: weights
// stay below 2^15, and begin with 2^7.
const GROWTH: f32 = 10.0;
const ROOM: f32 = 4.85;

alias Eight = array<vec4<f16>, 2>;
// Squares of vectors: queries, then keys, or values.
var<workgroup> tile: array<array<Eight, 8u * LD>, SQUARES>;
// Of each subgroup: weights, queries by 16 positions; a square of scores or sums.
var<workgroup> weights: array<array<Eight, 8u * WEIGHTS_LD>, SUBGROUPS>;
var<workgroup> square: array<array<vec4<f32>, 64>, SUBGROUPS>;
// What the two threads of a query tell each other.
var<workgroup> pairs: array<f32, THREADS>;
// Whether a row's sums have to be multiplied anew.
var<workgroup> has_grown: atomic<u32>;

fn eight(v: vec4<u32>) -> Eight {
    let a = vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y));
    let b = vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w));
    return Eight(vec4<f16>(a), vec4<f16>(b));
}

#if Q_PARTS/2
fn upper(v: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) & vec4<u32>(0xffffe000u));
}
#end

fn exp4(v: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(exp_(v.x), exp_(v.y), exp_(v.z), exp_(v.w));
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
#if EMULATED
#else
    @builtin(subgroup_id) subgroup: u32,
#end
) {
#if EMULATED
    let subgroup = thread >> 5u;
#end
    // Workgroups beyond the last repeat it and write nothing: cooperative matrices need all threads of
    // a subgroup.
    let idx = min(linear(id, n), p.n - 1u);
    let is_inside = linear(id, n) < p.n;
    let part = idx % V_PARTS;
    let kv_head = idx / V_PARTS % p.n_kv_heads;
    first_column = part * V_DIM;
    seen = Seen(p.first_row, p.position, p.n_queries, p.seen_to, p.ahead_to);
    let first_query = (p.n_blocks - 1u - idx / V_PARTS / p.n_kv_heads) * QUERIES;
    let last_query = min(first_query + QUERIES, p.n_queries) - 1u;
    let end = seen_end(last_query / p.group);
    let skipped = max(first_seen(first_query / p.group), p.seen_from) - p.seen_from;
    let first_tile = skipped / TILE;
    // Two threads share a query: of a square's 16 columns each has eight.
    let lane = thread & 31u;
    let in_square = lane >> 1u;
    let eighth = lane & 1u;
    let wanted = first_query + 16u * subgroup + in_square;
    let query = min(wanted, last_query);
    let row = query / p.group;
    let head = head_of(kv_head, query);
    // Each part has its own, as others go on before it has begun.
    let state = V_PARTS * state_of(kv_head, query) + part * (V_DIM + 2u);
    let start = first_seen(row);
    let row_end = seen_end(row);
    let q_factor = p.scale
        * factors[kv_head * (p.q_places / TILE) + query / TILE];
    let key_factors = p.key_factors + kv_head * (p.places / TILE);
    let value_factors = p.value_factors + kv_head * (p.places / TILE);
    // The largest scores that weights are made for, and the total of this thread's.
    var before = begun(head);
    if (p.went_on != 0u) { before = vec2<f32>(parts[state], parts[state + 1u]); }
    var highest = before.x;
    var total = select(0.0, before.y, eighth == 0u);
    var loudest = factors[value_factors + min(first_tile, p.places / TILE - 1u)];
    // So that sums of before are no infinities in units of silence.
    if (p.went_on != 0u) { loudest = max(loudest, 0x1p-40); }
#if EMULATED
#each v V_SQUARES
#each h 2
    var o$v_$h = vec4<f32>();
#end
#end
#else
#each v V_SQUARES
    var o$v = coop_mat16x16<f32, C>();
#end
#end
    if (p.went_on != 0u) {
#each v V_SQUARES
        {
            let at = state + 2u + 16u * $vu + 8u * eighth;
#if EMULATED
#each h 2
            o$v_$h = part_four(at + 4u * $hu, 0u) / loudest;
#end
#else
            workgroupBarrier();
#each h 2
            square[subgroup][2u * lane + $hu] = part_four(at + 4u * $hu, 0u) / loudest;
#end
            workgroupBarrier();
            o$v = coopLoadT<coop_mat16x16<f32, C>>(&square[subgroup][0], 4u);
#end
        }
#end
    }
    // What a thread brings of a block of queries and keys, and of a step's values.
    let q_piece = thread % Q_EIGHTS;
    let q_from = kv_head * p.q_places * K_BLOCKS * Q_EIGHTS + q_piece;
#each i Q_LOADS
    let q_row$i = thread / Q_EIGHTS + $iu * (THREADS / Q_EIGHTS);
    let q_from$i = q_from + min(first_query + q_row$i, last_query) * K_BLOCKS * Q_EIGHTS;
    let q_to$i = (q_row$i & 15u) * (LD / 2u) + q_piece;
#end
    let k_piece = thread % EIGHTS;
    let k_from = kv_head * p.places * K_BLOCKS * EIGHTS + k_piece;
#each i K_LOADS
    let k_row$i = thread / EIGHTS + $iu * (THREADS / EIGHTS);
    let k_to$i = (k_row$i & 15u) * (LD / 2u) + k_piece;
#end
    let v_from = p.values + kv_head * p.places * V_ALL + part * V_ROW;
#each i V_LOADS
    let v_item$i = min(thread + $iu * THREADS, V_EIGHTS - 1u);
    let v_in_row$i = v_item$i % V_ROW;
    let v_square$i = v_in_row$i / EIGHTS;
    let v_from$i = v_from + v_item$i / V_ROW * V_ALL + v_in_row$i;
    let v_to$i = v_item$i / V_ROW * (LD / 2u) + v_in_row$i % EIGHTS;
#end
#each i Q_LOADS
    var q$i = queries[q_from$i];
#end
#each i K_LOADS
    var k$i = cached[k_from + (first_tile * TILE + k_row$i) * K_BLOCKS * EIGHTS];
#end
    let n_tiles = (max(end, p.seen_from) - p.seen_from + TILE - 1u) / TILE;
    for (var t = first_tile; t < n_tiles; t++) {
        if (thread == 0u) { atomicStore(&has_grown, 0u); }
#if EMULATED
#each b 4
#each h 2
        var s$b_$h = vec4<f32>();
#end
#end
#else
#each b 4
        var c$b = coop_mat16x16<f32, C>();
#end
#end
        for (var block = 0u; block < FULL_BLOCKS; block++) {
#coop_scores STEPS
        }
#if ZEROS
        {
            let block = FULL_BLOCKS;
#coop_scores LAST_STEPS
        }
#end
#each i V_LOADS
        var v$i = cached[v_from$i + t * TILE * V_ALL];
#end
#if EMULATED
#else
#each b 4
        workgroupBarrier();
        coopStoreT(c$b, &square[subgroup][0], 4u);
        workgroupBarrier();
#each h 2
        var s$b_$h = square[subgroup][2u * lane + $hu];
#end
#end
#end
        let factor = q_factor * factors[key_factors + t];
        let first = p.seen_from + t * TILE + 8u * eighth;
        var most = NONE;
#each b 4
#each h 2
        var is_seen$b_$h: vec4<bool>;
#each e 4
        is_seen$b_$h[$e] = is_seen(row, first + 16u * $bu + 4u * $hu + $eu, start, row_end);
#end
        s$b_$h = select(vec4<f32>(NONE), s$b_$h * factor, is_seen$b_$h);
        most = max(most, max(max(s$b_$h.x, s$b_$h.y), max(s$b_$h.z, s$b_$h.w)));
#end
#end
        pairs[thread] = most;
        workgroupBarrier();
        most = max(most, pairs[thread ^ 1u]);
        // Rows multiply their sums by themselves, so that their bits are theirs alone.
        var shrinks = 1.0;
        if (most > highest + GROWTH) {
            shrinks = exp_(highest - (most - ROOM));
            highest = most - ROOM;
            atomicMax(&has_grown, 1u);
        }
        total *= shrinks;
        let loudness = factors[value_factors + t];
        let is_louder = loudness > loudest;
        if (is_louder) {
            shrinks *= loudest / loudness;
            loudest = loudness;
            atomicMax(&has_grown, 1u);
        }
        if (workgroupUniformLoad(&has_grown) != 0u) {
#each v V_SQUARES
#if EMULATED
#each h 2
            o$v_$h *= shrinks;
#end
#else
            workgroupBarrier();
            coopStoreT(o$v, &square[subgroup][0], 4u);
            workgroupBarrier();
#each h 2
            square[subgroup][2u * lane + $hu] *= shrinks;
#end
            workgroupBarrier();
            o$v = coopLoadT<coop_mat16x16<f32, C>>(&square[subgroup][0], 4u);
#end
#end
        }
        let quiet = loudness / loudest;
#each b 4
        {
#each h 2
            let w$h = select(
                vec4<f32>(), exp4(s$b_$h - vec4<f32>(highest)), is_seen$b_$h,
            );
            total += (w$h.x + w$h.y) + (w$h.z + w$h.w);
            let its$h = w$h * quiet;
#if Q_PARTS/2
            let high$h = upper(its$h);
#else
            let high$h = nearest_halves(its$h);
#end
#end
            workgroupBarrier();
            let to = in_square * (WEIGHTS_LD / 2u) + eighth;
            weights[subgroup][to] = Eight(vec4<f16>(high0), vec4<f16>(high1));
#if Q_PARTS/2
            weights[subgroup][to + 2u] =
                Eight(vec4<f16>(its0 - high0), vec4<f16>(its1 - high1));
#end
#each i V_LOADS
            tile[v_square$i][v_to$i] = eight(v$i);
#end
            workgroupBarrier();
            // The next step's values, and after the last what the next tile begins with.
            let next = min(t * TILE + 16u * ($bu + 1u), n_tiles * TILE - 16u);
#each i V_LOADS
            v$i = cached[v_from$i + next * V_ALL];
#end
            if ($bu == 3u) {
#each i Q_LOADS
                q$i = queries[q_from$i];
#end
                let after = min(t + 1u, n_tiles - 1u) * TILE;
#each i K_LOADS
                k$i = cached[k_from + (after + k_row$i) * K_BLOCKS * EIGHTS];
#end
            }
#if EMULATED
            for (var j = 0u; j < 16u; j++) {
                let at = in_square * (WEIGHTS_LD / 2u) + (j >> 3u);
                let high = vec4<f32>(f32(weights[subgroup][at][(j >> 2u) & 1u][j & 3u]));
#if Q_PARTS/2
                let low = vec4<f32>(f32(weights[subgroup][at + 2u][(j >> 2u) & 1u][j & 3u]));
#end
#each v V_SQUARES
                {
                    let value = j * (LD / 2u) + 2u * ($vu % STEPS) + eighth;
#each h 2
                    let upper$h = vec4<f32>(tile[$vu / STEPS][value][$h]);
                    o$v_$h = fma(high, upper$h, o$v_$h);
#if Q_PARTS/2
                    o$v_$h = fma(low, upper$h, o$v_$h);
#end
#if PARTS/2
                    o$v_$h = fma(high, vec4<f32>(tile[$vu / STEPS][value + HALF_EIGHTS][$h]), o$v_$h);
#end
#end
                }
#end
            }
#else
            let high = coopLoadT<coop_mat16x16<f16, A>>(&weights[subgroup][0][0], WEIGHTS_LD);
#if Q_PARTS/2
            let low = coopLoadT<coop_mat16x16<f16, A>>(&weights[subgroup][2][0], WEIGHTS_LD);
#end
#each v V_SQUARES
            let upper$v = coopLoadT<coop_mat16x16<f16, B>>(
                &tile[$vu / STEPS][2u * ($vu % STEPS)][0], LD,
            );
            o$v = coopMultiplyAdd(high, upper$v, o$v);
#if Q_PARTS/2
            o$v = coopMultiplyAdd(low, upper$v, o$v);
#end
#if PARTS/2
            let lower$v = coopLoadT<coop_mat16x16<f16, B>>(
                &tile[$vu / STEPS][HALF_EIGHTS + 2u * ($vu % STEPS)][0], LD,
            );
            o$v = coopMultiplyAdd(high, lower$v, o$v);
#end
#end
#end
        }
#end
    }
    workgroupBarrier();
    pairs[thread] = total;
    workgroupBarrier();
    total += pairs[thread ^ 1u];
    let writes = is_inside && wanted <= last_query;
    let inverse = 1.0 / total;
    if (writes && p.goes_on != 0u && eighth == 0u) {
        parts[state] = highest;
        parts[state + 1u] = total;
    }
#each v V_SQUARES
    {
#if EMULATED
#else
        workgroupBarrier();
        coopStoreT(o$v, &square[subgroup][0], 4u);
        workgroupBarrier();
#each h 2
        let o$v_$h = square[subgroup][2u * lane + $hu];
#end
#end
#each h 2
        {
            let column = 16u * $vu + 8u * eighth + 4u * $hu;
            let sum = o$v_$h * loudest;
            if (writes && p.goes_on != 0u) { put_part(state + 2u, column, sum); }
            if (writes && p.goes_on == 0u && column < Y_DIM) {
                put_y(row, head, column, sum * inverse);
            }
        }
#end
    }
#end
}
