// What `attention.wgsl` does, to the bit, for 32 queries a workgroup that share
// their keys: those of neighbouring rows, and of all heads of a group. Each key
// and value is read once for all of them.

const QUERIES: u32 = 32u;
// Positions worked on together.
const TILE: u32 = 64u;
// Fours of a value's floats, as threads hold them.
const FOURS: u32 = VC * 32u;
// First of `block` behind scores and weights.
const VALUES: u32 = QUERIES * TILE / 4u;

// While scores are added up: 32 columns of the queries, fours by queries, then
// of the keys, fours by positions. After that: the weights, queries by positions,
// then VP values.
var<workgroup> block: array<vec4<f32>, 768>;
var<workgroup> partial: array<f32, 256>;
// By query.
var<workgroup> largest: array<f32, QUERIES>;
var<workgroup> sums: array<f32, QUERIES>;
var<workgroup> factors: array<f32, QUERIES>;

fn query_four(first: u32, i: u32) -> vec4<f32> {
    var it = vec4<f32>();
    if (i < p.k_dim) { it.x = q[first + i]; }
    if (i + 1u < p.k_dim) { it.y = q[first + i + 1u]; }
    if (i + 2u < p.k_dim) { it.z = q[first + i + 2u]; }
    if (i + 3u < p.k_dim) { it.w = q[first + i + 3u]; }
    return it;
}

// Integers of 8 bits without their scale.
fn key_four(position: u32, kv_head: u32, i: u32) -> vec4<f32> {
    var it = vec4<f32>();
    if (position >= p.seen_to || i >= p.k_dim) { return it; }
    let vector = key_at(position, kv_head);
    if (KV == 0u) {
        it.x = bitcast<f32>(keys[vector + i]);
        if (i + 1u < p.k_dim) { it.y = bitcast<f32>(keys[vector + i + 1u]); }
        if (i + 2u < p.k_dim) { it.z = bitcast<f32>(keys[vector + i + 2u]); }
        if (i + 3u < p.k_dim) { it.w = bitcast<f32>(keys[vector + i + 3u]); }
    } else if (KV == 1u) {
        let low = keys[vector + i / 2u];
        it.x = stored(low, 0u);
        it.y = stored(low, 1u);
        if (i + 2u < p.k_dim) {
            let high = keys[vector + i / 2u + 1u];
            it.z = stored(high, 0u);
            it.w = stored(high, 1u);
        }
    } else {
        let word = keys[vector + stored_word(i)];
        it = vec4<f32>(stored(word, 0u), stored(word, 1u), stored(word, 2u), stored(word, 3u));
    }
    return it;
}

fn key_at(position: u32, kv_head: u32) -> u32 {
    return ((position - p.piece_start) * (p.n_heads / p.group) + kv_head) * p.k_words;
}

fn key_scale(position: u32, kv_head: u32, i: u32) -> f32 {
    if (position >= p.seen_to) { return 0.0; }
    return bitcast<f32>(keys[key_at(position, kv_head) + (i >> 6u) * 17u]);
}

fn value_four(position: u32, kv_head: u32, i: u32) -> vec4<f32> {
    var it = vec4<f32>();
    if (position >= p.seen_to) { return it; }
    let vector = ((position - p.piece_start) * (p.n_heads / p.group) + kv_head) * p.v_words;
    if (i < p.v_dim) { it.x = value_at(vector, i); }
    if (i + 1u < p.v_dim) { it.y = value_at(vector, i + 1u); }
    if (i + 2u < p.v_dim) { it.z = value_at(vector, i + 2u); }
    if (i + 3u < p.v_dim) { it.w = value_at(vector, i + 3u); }
    return it;
}

// Scores and weights are floats of `block`, queries by positions.
fn put_score(query: u32, position: u32, score: f32) {
    block[(query * TILE + position) >> 2u][position & 3u] = score;
}

fn score(query: u32, position: u32) -> f32 {
    return block[(query * TILE + position) >> 2u][position & 3u];
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let idx = linear(id, n);
    if (idx >= p.n) { return; }
    let n_kv_heads = p.n_heads / p.group;
    let kv_head = (idx / p.n_blocks) % n_kv_heads;
    let split = idx / (p.n_blocks * n_kv_heads);
    let first_query = (idx % p.n_blocks) * QUERIES;
    let last_query = min(first_query + QUERIES, p.n_rows * p.group) - 1u;
    let split_start = p.seen_from + split * p.split_len;
    let split_end = min(split_start + p.split_len, p.seen_to);
    let end = min(split_end, p.position + last_query / p.group + 1u);
    let skipped = max(first_seen(first_query / p.group), split_start) - split_start;
    // When softmax is computed eight threads share a query.
    let mine = thread >> 3u;
    let eighth = thread & 7u;
    let my_query = min(first_query + mine, last_query);
    let my_row = my_query / p.group;
    let my_end = min(split_end, p.position + my_row + 1u);
    let my_start = first_seen(my_row);
    let my_head = kv_head * p.group + my_query % p.group;
    let my_q = (p.first_row + my_row) * p.q_width + p.q_start + my_head * p.q_stride;
    // Otherwise a thread has four queries, and two positions or fours of values.
    let lane = thread & 31u;
    let four = thread >> 5u;
    if (eighth == 0u) {
        largest[mine] = NONE;
        sums[mine] = 0.0;
    }
#each i 4
#each c VC
    var acc$i_$c = vec4<f32>();
#end
#end
    for (var first = split_start + skipped / TILE * TILE; first < end; first += TILE) {
#each i 4
        var near$i = 0.0;
        var far$i = 0.0;
#if KV/2
        var near_block$i = 0.0;
        var far_block$i = 0.0;
#end
#end
        for (var col = 0u; col < p.k_dim; col += 32u) {
            workgroupBarrier();
            block[eighth * 32u + mine] = query_four(my_q, col + 4u * eighth);
#each h 2
            block[256u + eighth * 64u + mine + $hu * 32u] =
                key_four(first + mine + $hu * 32u, kv_head, col + 4u * eighth);
#end
            workgroupBarrier();
            for (var c = 0u; c < 8u; c++) {
                let near_key = block[256u + c * 64u + lane];
                let far_key = block[256u + c * 64u + lane + 32u];
#each i 4
                {
                    let x = block[c * 32u + 4u * four + $iu];
#if KV/2
                    near_block$i = dot_from(near_block$i, x, near_key);
                    far_block$i = dot_from(far_block$i, x, far_key);
#else
                    near$i = dot_from(near$i, x, near_key);
                    far$i = dot_from(far$i, x, far_key);
#end
                }
#end
            }
#if KV/2
            // Integers that share a scale are multiplied by it together.
            if ((col & 32u) != 0u || col + 32u >= p.k_dim) {
                let near_scale = key_scale(first + lane, kv_head, col);
                let far_scale = key_scale(first + lane + 32u, kv_head, col);
#each i 4
                near$i = fma(near_block$i, near_scale, near$i);
                far$i = fma(far_block$i, far_scale, far$i);
                near_block$i = 0.0;
                far_block$i = 0.0;
#end
            }
#end
        }
        workgroupBarrier();
#each i 4
        put_score(4u * four + $iu, lane, near$i * p.scale);
        put_score(4u * four + $iu, lane + 32u, far$i * p.scale);
#end
        workgroupBarrier();
        let before = largest[mine];
        var highest = before;
#each m 8
        var weight$m = NONE;
        let is_seen$m = is_seen(my_row, first + eighth + 8u * $mu, my_start, my_end);
        if (is_seen$m) { weight$m = score(mine, eighth + 8u * $mu); }
        highest = max(highest, weight$m);
#end
        partial[thread] = highest;
        workgroupBarrier();
        for (var u = 0u; u < 8u; u++) { highest = max(highest, partial[8u * mine + u]); }
#each m 8
        weight$m = select(0.0, exp_(weight$m - highest), is_seen$m);
        put_score(mine, eighth + 8u * $mu, weight$m);
#end
        workgroupBarrier();
        // Halves are added to halves, as `attention.wgsl` does.
        partial[thread] = ((weight0 + weight4) + (weight2 + weight6))
            + ((weight1 + weight5) + (weight3 + weight7));
        workgroupBarrier();
        if (eighth == 0u) {
            let at = 8u * mine;
            let sum = ((partial[at] + partial[at + 4u]) + (partial[at + 2u] + partial[at + 6u]))
                + ((partial[at + 1u] + partial[at + 5u]) + (partial[at + 3u] + partial[at + 7u]));
            let factor = exp_(before - highest);
            sums[mine] = fma(sums[mine], factor, sum);
            factors[mine] = factor;
            largest[mine] = highest;
        }
        workgroupBarrier();
#each i 4
        let factor$i = factors[4u * four + $iu];
#each c VC
        acc$i_$c *= factor$i;
#end
#end
        let len = min(TILE, end - first);
        for (var j = 0u; j < len; j += VP) {
            workgroupBarrier();
            if (thread < VP * FOURS) {
                let position = first + j + thread / FOURS;
                block[VALUES + thread] = value_four(position, kv_head, 4u * (thread % FOURS));
            }
            workgroupBarrier();
#each u VP
            {
#each c VC
                let v$c = block[VALUES + $uu * FOURS + $cu * 32u + lane];
#end
#each i 4
                let w$i = vec4<f32>(score(4u * four + $iu, j + $uu));
#each c VC
                acc$i_$c = fma(w$i, v$c, acc$i_$c);
#end
#end
            }
#end
        }
    }
    workgroupBarrier();
#each i 4
    {
        let query = first_query + 4u * four + $iu;
        if (query <= last_query) {
            let head = kv_head * p.group + query % p.group;
            let part = (query / p.group * p.n_heads + head) * p.all_splits + p.first_split + split;
            let out = part * (p.v_dim + 2u);
            if (lane == 0u) {
                parts[out] = largest[4u * four + $iu];
                parts[out + 1u] = sums[4u * four + $iu];
            }
#each c VC
            put(out + 2u, 4u * (lane + $cu * 32u), acc$i_$c);
#end
        }
    }
#end
}

// The columns of a query and a key, from the first to the last.
fn dot_from(sum: f32, x: vec4<f32>, key: vec4<f32>) -> f32 {
    return fma(x.w, key.w, fma(x.z, key.z, fma(x.y, key.y, fma(x.x, key.x, sum))));
}

fn is_seen(row: u32, position: u32, start: u32, end: u32) -> bool {
    if (position < start || position >= end) { return false; }
#if MASKED
    let word = chosen[(p.first_row + row) * p.mask_words + position / 32u];
    return ((word >> (position & 31u)) & 1u) != 0u;
#else
    return true;
#end
}

fn put(first: u32, col: u32, sums: vec4<f32>) {
    for (var e = 0u; e < 4u; e++) {
        if (col + e < p.v_dim) { parts[first + col + e] = sums[e]; }
    }
}
