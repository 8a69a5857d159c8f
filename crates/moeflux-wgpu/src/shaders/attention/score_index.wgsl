// Scores of pools of positions by their index keys, which are at the last position of each; a
// thread has one pool of a row. A position that is chosen alone is a pool of one. WEIGHTED: heads
// have weights.

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
    n: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> weights: array<f32>;
@group(0) @binding(4) var<storage, read> lists: array<u32>;
@group(0) @binding(5) var<storage, read_write> scores: array<f32>;

#main_per_element idx p.n
    let pool = p.first_pool + idx % p.len;
    let position = (pool + 1u) * p.size - 1u - p.first;
    let row = idx / p.len;
    let vector = lists[p.list + position / p.page] + (position % p.page) * p.k_words;
    var sum = 0.0;
    for (var head = 0u; head < p.n_heads; head++) {
        let begin = (p.first_row + row) * p.q_width + p.q_start + head * p.q_stride;
        var product = 0.0;
        for (var i = 0u; i < p.dim; i++) {
            var k = stored(keys[vector + stored_word(i)], stored_part(i));
            if (KV == KV_Q8) { k *= bitcast<f32>(keys[vector + (i >> 6u) * 17u]); }
            product = fma(q[begin + i], k, product);
        }
        var weight = 1.0;
        if (WEIGHTED != 0u) {
            weight = weights[(p.first_row + row) * p.weights_width + p.weights_start + head];
        }
        sum = fma(weight, max(product * p.scale, 0.0), sum);
    }
    scores[row * p.stride + pool] = sum;
}
