// Turns sums into entries of pools, normalised and with their last columns rotated, and puts those into a
// slab. A workgroup has one pool.

struct Params {
    n: u32,
    dim: u32,
    n_pairs: u32,
    eps: f32,
    // Where lists begin: for each pool, where its entry belongs in the slab, or NONE.
    list: u32,
    // Sines and cosines, (pools, pairs).
    table: u32,
}

const NONE: u32 = 0xffffffffu;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> entries: array<u32>;
// Of each element the highest gate, the sum of shares, and that of values by their shares.
@group(0) @binding(2) var<storage, read> sums: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read> lists: array<u32>;

var<private> pool_at: u32;
var<private> inverse: f32;

fn mixed(i: u32) -> f32 {
    let at = 3u * (pool_at * p.dim + i);
    return sums[at + 2u] / sums[at + 1u];
}

fn normal(i: u32) -> f32 {
    return mixed(i) * inverse * weight[i];
}

fn rotated(i: u32) -> f32 {
    let start = p.dim - 2u * p.n_pairs;
    let it = normal(i);
    if (i < start) { return it; }
    let at = i - start;
    var pair = at / 2u;
    var other = at ^ 1u;
    var is_second = (at & 1u) != 0u;
    if (ADJACENT == 0u) {
        is_second = at >= p.n_pairs;
        pair = select(at, at - p.n_pairs, is_second);
        other = select(at + p.n_pairs, pair, is_second);
    }
    let angle = p.table + 2u * (pool_at * p.n_pairs + pair);
    let sine = bitcast<f32>(lists[angle]);
    let cosine = bitcast<f32>(lists[angle + 1u]);
    let partner = normal(start + other);
    return fma(it, cosine, select(-partner, partner, is_second) * sine);
}

#main_in_subgroups pool 64 p.n
    pool_at = pool;
    var squares = 0.0;
    for (var i = thread; i < p.dim; i += 64u) {
        let it = mixed(i);
        squares = fma(it, it, squares);
    }
    inverse = 1.0 / sqrt(total(thread, squares) / f32(p.dim) + p.eps);
    let out = lists[p.list + pool];
    if (out == NONE) { return; }
    if (KV == KV_F32) {
        for (var i = thread; i < p.dim; i += 64u) { entries[out + i] = bitcast<u32>(rotated(i)); }
    } else {
        for (var i = 2u * thread; i < p.dim; i += 128u) {
            var word = bf16(rotated(i));
            if (i + 1u < p.dim) { word |= bf16(rotated(i + 1u)) << 16u; }
            entries[out + i / 2u] = word;
        }
    }
}
