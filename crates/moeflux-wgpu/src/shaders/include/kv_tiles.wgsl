// What both kernels of attention are given, how they read it, and what they do alike: 64
// positions make a tile, which has its own softmax, and tiles are put together one after the
// other.

struct Params {
    n_heads: u32,
    // Query heads of a key head.
    group: u32,
    q_start: u32,
    q_width: u32,
    q_stride: u32,
    scale: f32,
    // 0 for none.
    window: u32,
    k_words: u32,
    v_words: u32,
    mask_words: u32,
    y_start: u32,
    y_width: u32,
    y_stride: u32,
    has_sinks: u32,
    gate_start: u32,
    gate_width: u32,
    gate_stride: u32,
    has_gate: u32,
    // Positions of a key: more than one where keys are entries of pools.
    size: u32,
    // Of queries that share a workgroup.
    n_blocks: u32,
    // What is known of tiles.
    list: u32,
    n: u32,
    // Of `attention/rows.wgsl` alone: `seen`, the positions that are looked at in this buffer,
    // from a tile's first one on, and whether it comes after another one, and before one.
    first_row: u32,
    position: u32,
    n_queries: u32,
    seen_from: u32,
    seen_to: u32,
    went_on: u32,
    goes_on: u32,
    ahead_to: u32,
}

// The words where the keys and values of a tile begin.
var<private> tile_keys: u32;
var<private> tile_values: u32;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
// WIDTH words are read at once.
#if WIDTH/4
@group(0) @binding(2) var<storage, read> pages: array<vec4<u32>>;
#else
#if WIDTH/2
@group(0) @binding(2) var<storage, read> pages: array<vec2<u32>>;
#else
@group(0) @binding(2) var<storage, read> pages: array<u32>;
#end
#end
@group(0) @binding(3) var<storage, read> chosen: array<u32>;
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
@group(0) @binding(5) var<storage, read> lists: array<u32>;
// (rows, heads, tiles): maximum, total, sums.
@group(0) @binding(6) var<storage, read_write> parts: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
@group(0) @binding(8) var<storage, read> gate: array<f32>;

// By query and eighth of a tile.
var<workgroup> eighths: array<vec2<f32>, 8 * QUERIES>;

// Where a query begins.
fn query_at(kv_head: u32, query: u32) -> u32 {
    let row = seen.first_row + query / p.group;
    return row * p.q_width + p.q_start + head_of(kv_head, query) * p.q_stride;
}

fn query_four(at: u32, i: u32) -> vec4<f32> {
    var it = vec4<f32>();
    if (i < K_DIM) { it.x = q[at + i]; }
    if (i + 1u < K_DIM) { it.y = q[at + i + 1u]; }
    if (i + 2u < K_DIM) { it.z = q[at + i + 2u]; }
    if (i + 3u < K_DIM) { it.w = q[at + i + 3u]; }
    return it;
}

// The first words of a key and a value of the tile.
fn key_at(position: u32, kv_head: u32) -> u32 {
    return tile_keys + ((position % TILE) * (p.n_heads / p.group) + kv_head) * p.k_words;
}

fn value_at(position: u32, kv_head: u32) -> u32 {
    return tile_values + ((position % TILE) * (p.n_heads / p.group) + kv_head) * p.v_words;
}

fn halves(low: u32, high: u32) -> vec4<f32> {
    return vec4<f32>(stored(low, 0u), stored(low, 1u), stored(high, 0u), stored(high, 1u));
}

fn bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(stored(word, 0u), stored(word, 1u), stored(word, 2u), stored(word, 3u));
}

// Elements of the key that begins at a word; integers of 8 bits without their
// scale.
fn key_four(at: u32, i: u32) -> vec4<f32> {
    if (i >= K_DIM) { return vec4<f32>(); }
#if WIDTH/4
    return bitcast<vec4<f32>>(pages[(at + i) >> 2u]);
#else
#if WIDTH/2
    let words = pages[(at >> 1u) + (i >> 2u)];
    return halves(words.x, words.y);
#else
    if (KV == KV_Q8) { return bytes(pages[at + stored_word(i)]); }
    var it = vec4<f32>();
    if (KV == KV_BF16) {
        let low = pages[at + i / 2u];
        if (i + 2u < K_DIM) { return halves(low, pages[at + i / 2u + 1u]); }
        return halves(low, 0u);
    }
    it.x = bitcast<f32>(pages[at + i]);
    if (i + 1u < K_DIM) { it.y = bitcast<f32>(pages[at + i + 1u]); }
    if (i + 2u < K_DIM) { it.z = bitcast<f32>(pages[at + i + 2u]); }
    if (i + 3u < K_DIM) { it.w = bitcast<f32>(pages[at + i + 3u]); }
    return it;
#end
#end
}

#if KV/2
fn key_scale(at: u32, i: u32) -> f32 {
    if (i >= K_DIM) { return 0.0; }
    return bitcast<f32>(pages[at + (i >> 6u) * 17u]);
}
#end

// What is after the value's last element counts for nothing.
fn value_four(at: u32, i: u32) -> vec4<f32> {
    if (i >= V_DIM) { return vec4<f32>(); }
#if WIDTH/4
    return bitcast<vec4<f32>>(pages[(at + i) >> 2u]);
#else
#if WIDTH/2
    let words = pages[(at >> 1u) + (i >> 2u)];
    return halves(words.x, words.y);
#else
    if (KV == KV_Q8) {
        let scale = bitcast<f32>(pages[at + (i >> 6u) * 17u]);
        return scale * bytes(pages[at + stored_word(i)]);
    }
    var it = vec4<f32>();
    if (KV == KV_BF16) {
        let low = pages[at + i / 2u];
        if (i + 2u < V_DIM) { return halves(low, pages[at + i / 2u + 1u]); }
        return halves(low, 0u);
    }
    it.x = bitcast<f32>(pages[at + i]);
    if (i + 1u < V_DIM) { it.y = bitcast<f32>(pages[at + i + 1u]); }
    if (i + 2u < V_DIM) { it.z = bitcast<f32>(pages[at + i + 2u]); }
    if (i + 3u < V_DIM) { it.w = bitcast<f32>(pages[at + i + 3u]); }
    return it;
#end
#end
}

// Some columns of a query and a key, from the first to the last. A score is
// made of four such sums, of which each has every fourth four of columns:
// (0 + 1) + (2 + 3).
fn dot_from(sum: f32, x: vec4<f32>, key: vec4<f32>) -> f32 {
    return fma(x.w, key.w, fma(x.z, key.z, fma(x.y, key.y, fma(x.x, key.x, sum))));
}

// Turns the scores of a tile into weights, eight threads a query; gives their
// maximum and total. Scores are read back, so that they are rounded whatever
// they go into.
fn softmax(thread: u32, row: u32, first: u32) -> vec2<f32> {
    let mine = thread >> 3u;
    let eighth = thread & 7u;
    let takes_part = mine < QUERIES;
    let start = first_seen(row);
    let end = seen_end(row);
    var highest = NONE;
#each m 8
    var weight$m = NONE;
    let is_seen$m = takes_part && is_seen(row, first + eighth + 8u * $mu, start, end);
    if (is_seen$m) { weight$m = score(mine, eighth + 8u * $mu); }
    highest = max(highest, weight$m);
#end
    if (takes_part) { eighths[thread].x = highest; }
    workgroupBarrier();
    if (takes_part) {
#each u 8
        highest = max(highest, eighths[8u * mine + $uu].x);
#end
#each m 8
        weight$m = select(0.0, exp_(weight$m - highest), is_seen$m);
        put_score(mine, eighth + 8u * $mu, weight$m);
#end
        eighths[thread].y = ((weight0 + weight4) + (weight2 + weight6))
            + ((weight1 + weight5) + (weight3 + weight7));
    }
    workgroupBarrier();
    if (!takes_part) { return vec2<f32>(NONE, 0.0); }
    let at = 8u * mine;
    let even = (eighths[at].y + eighths[at + 4u].y) + (eighths[at + 2u].y + eighths[at + 6u].y);
    let odd = (eighths[at + 1u].y + eighths[at + 5u].y) + (eighths[at + 3u].y + eighths[at + 7u].y);
    return vec2<f32>(highest, even + odd);
}

// By what the sums so far, and those of a tile, are multiplied before they are
// added, and the maximum of both.
fn factors_of(before: f32, highest: f32) -> vec3<f32> {
    let both = max(before, highest);
    return vec3<f32>(exp_(before - both), exp_(highest - both), both);
}
