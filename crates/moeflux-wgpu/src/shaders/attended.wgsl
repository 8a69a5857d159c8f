// What both kernels of attention are given, and how they read it.

struct Params {
    n_heads: u32,
    // Query heads of a key head.
    group: u32,
    k_dim: u32,
    v_dim: u32,
    q_start: u32,
    q_width: u32,
    q_stride: u32,
    scale: f32,
    // The batch's row of the first, and its position.
    first_row: u32,
    position: u32,
    // 0 for none.
    window: u32,
    // Where this piece of the cache begins, and what is looked at in it.
    piece_start: u32,
    seen_from: u32,
    seen_to: u32,
    // Positions of a split, how many splits the piece has, and how many groups
    // of queries share a workgroup.
    split_len: u32,
    n_splits: u32,
    n_blocks: u32,
    // Of all pieces: how many, and this piece's first.
    all_splits: u32,
    first_split: u32,
    k_words: u32,
    v_words: u32,
    mask_words: u32,
    n_rows: u32,
    n: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> values: array<u32>;
@group(0) @binding(4) var<storage, read> chosen: array<u32>;
// (rows, heads, splits): maximum, total, sums.
@group(0) @binding(5) var<storage, read_write> parts: array<f32>;

const NONE: f32 = -3.0e38;

fn value_at(vector: u32, i: u32) -> f32 {
    let v = stored(values[vector + stored_word(i)], stored_part(i));
    if (KV == 2u) { return v * bitcast<f32>(values[vector + (i >> 6u) * 17u]); }
    return v;
}

// The first position that a row looks at.
fn first_seen(row: u32) -> u32 {
    let end = p.position + row + 1u;
    if (p.window > 0u && end > p.window) { return end - p.window; }
    return 0u;
}
