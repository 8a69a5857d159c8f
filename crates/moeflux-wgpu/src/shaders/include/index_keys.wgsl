// What the kernels that score index keys have in common. WEIGHTED: heads have weights.

struct Params {
    n_heads: u32,
    dim: u32,
    q_start: u32,
    q_width: u32,
    q_stride: u32,
    weights_start: u32,
    weights_width: u32,
    scale: f32,
    first_row: u32,
    n_rows: u32,
    // The first position of pages that are in one buffer, and the pools that end in them.
    first: u32,
    first_pool: u32,
    len: u32,
    k_words: u32,
    // Scores of a row.
    stride: u32,
    // Where pages begin, and their positions.
    list: u32,
    page: u32,
    // Positions of a pool.
    size: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read> lists: array<u32>;
@group(0) @binding(5) var<storage, read_write> scores: array<f32>;

// Where the key of the pool of this number among these begins: that of its last position.
fn key_of(pool: u32) -> u32 {
    let position = (p.first_pool + pool + 1u) * p.size - 1u - p.first;
    return lists[p.list + position / p.page] + (position % p.page) * p.k_words;
}

// An element of a key.
fn element(key: u32, i: u32) -> f32 {
    let value = stored(keys[key + stored_word(i)], stored_part(i));
    if (KV == KV_Q8) { return value * bitcast<f32>(keys[key + (i >> 6u) * 17u]); }
    return value;
}

// Where a head of a row of queries begins.
fn query_of(row: u32, head: u32) -> u32 {
    return (p.first_row + row) * p.q_width + p.q_start + head * p.q_stride;
}

// What a head with this product adds to a score.
fn share_of(row: u32, head: u32, product: f32) -> f32 {
    var weight = 1.0;
    if (WEIGHTED != 0u) {
        weight = weights[(p.first_row + row) * p.weights_width + p.weights_start + head];
    }
    return weight * max(product * p.scale, 0.0);
}
